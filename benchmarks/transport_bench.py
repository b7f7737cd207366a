"""Throughput of the TCP path against a raw blocking socket, in the same run: two processes, 32 KiB payloads, loopback.

    python benchmarks/transport_bench.py [--megabytes 2000] [--rounds 3] [--floating 8 16 32]

Two figures for each case, both as a share of the raw socket's: by the clock, and by processor time (the busier of the two
processes bounds the rate; this hardly depends on what else the machine does).

raw       blocking sendall(header + payload) to recv_into(MSG_WAITALL)
frames    TcpNetwork: encode, sendmsg; one receive buffer, ClientDecoder, one copy into a segment
exchange  the whole exchange: ResultPartition, credit, DataServer, ConnectionManager, InputGate; both ends wait as tasks do. Credit is
          2 exclusive and `--floating` floating buffers, 8 by default as in Flink; with several numbers, each is a case
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

import uvloop

from testbed_runtime.core.exchange.backoff import remote_backoff
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.client import PartitionRequestClient
from testbed_runtime.core.exchange.codec import ClientDecoder
from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.events import EndOfPartition
from testbed_runtime.core.exchange.frames import AddCredit, BufferResponse, DataType, WireVersion
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import recycle_all
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.faults.links import channel_id
from testbed_runtime.core.ids import InputChannelID, ResultPartitionID
from testbed_runtime.core.options import Options
from testbed_runtime.ports.network import Connection, Network
from testbed_runtime.taskmanager.stream import RUN_BUFFERS
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.transport.pump import ConnectionManager, DataServer
from testbed_runtime.transport.tcp import TcpNetwork

SEGMENT = 32 * 1024
HEADER = 47
EXCLUSIVE, FLOATING = 2, 8
"""The credit of one channel by default."""
FRAMES_PER_TURN = EXCLUSIVE + FLOATING
RECEIVER = InputChannelID(bytes(16))
PARTITION = ResultPartitionID.from_bytes(bytes(60))
FACTORIES = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass(frozen=True)
class Setup:
    """The part of a case that both ends share. As JSON it is an argument of the child."""

    way: str = "plain"
    """The key of the network, for a script that has several."""
    cipher: str = ""
    certificate: str = ""
    segment: int = SEGMENT
    credit: bool = True
    floating: int = FLOATING
    """`taskmanager.network.memory.floating-buffers-per-gate`, on both sides. The channel has `EXCLUSIVE` buffers besides."""

    @property
    def pool(self) -> int:
        """The buffers of the producer's pool, as Flink sizes it for one subpartition."""
        return EXCLUSIVE + self.floating

    def options(self) -> Options:
        return Options({"taskmanager.network.credit-model": str(self.credit).lower()})


class Way(Protocol):
    """A function that returns the network of a setup. It is called inside the loop that the network serves."""

    def __call__(self, setup: Setup) -> Network: ...


def plain(setup: Setup) -> Network:
    del setup
    return TcpNetwork()


@dataclass(frozen=True)
class Measured:
    """`wall`: MB/s of payload by wall clock; `cpu`: MB/s per second of CPU time of the busier process."""

    wall: float
    cpu: float
    sender_us: float
    receiver_us: float
    """CPU time per buffer of the two processes."""
    announced: int = 0
    """AddCredit frames of the consumer, in the whole exchange."""


def receive_raw(listener: socket.socket, buffers: int) -> float:
    connection, _ = listener.accept()
    memory = memoryview(bytearray(HEADER + SEGMENT))
    started = 0.0
    for _ in range(buffers):
        connection.recv_into(memory, HEADER + SEGMENT, socket.MSG_WAITALL)
        started = started or time.perf_counter()
    return time.perf_counter() - started


def send_raw(port: int, buffers: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frame = bytes(HEADER + SEGMENT)
        for _ in range(buffers):
            connection.sendall(frame)


class Segment:
    def __init__(self) -> None:
        self.memory = memoryview(bytearray(SEGMENT))

    def fill_view(self, size: int) -> memoryview:
        return self.memory[:size]

    def recycle(self) -> None:
        return


class FrameReceiver:
    def __init__(self, buffers: int) -> None:
        segments = [Segment() for _ in range(10)]
        self.left, self.turn, self.started = buffers, 0, 0.0
        self.done = asyncio.Event()
        self.segments = segments
        self.decoder = ClientDecoder(WireVersion.V2, cast("Any", self.allocate))

    def allocate(self, *_: object) -> Segment:
        self.turn += 1
        return self.segments[self.turn % 10]

    def on_connected(self, connection: Connection) -> None:
        self.connection = connection

    def on_data(self, data: memoryview) -> None:
        self.started = self.started or time.perf_counter()
        while len(data):
            data = data[self.decoder.feed(data) :]
            if self.decoder.next() is not None:
                self.left -= 1
                if not self.left:
                    self.done.set()

    def on_writable(self) -> None:
        return

    def on_closed(self, error: Exception | None) -> None:
        del error


class FrameSender:
    def __init__(self, buffers: int) -> None:
        self.left = buffers
        self.done = asyncio.Event()
        self.segment = memoryview(bytearray(SEGMENT))

    def on_connected(self, connection: Connection) -> None:
        self.connection = connection
        asyncio.get_running_loop().call_soon(self.on_writable)

    def on_writable(self) -> None:
        for _ in range(FRAMES_PER_TURN):
            if not (self.left and self.connection.writable):
                return
            self.left -= 1
            frame = BufferResponse(RECEIVER, 0, self.left, 0, DataType.DATA_BUFFER, self.segment)
            self.connection.send(encode(frame, WireVersion.V2))
        asyncio.get_running_loop().call_soon(self.on_writable)

    def on_data(self, data: memoryview) -> None:
        return

    def on_closed(self, error: Exception | None) -> None:
        del error
        self.done.set()


async def receive_frames(buffers: int, setup: Setup, way: Way) -> float:
    receiver = FrameReceiver(buffers)
    listener = await way(setup).listen(lambda: receiver, ("127.0.0.1", 0))
    print(listener.address[1], flush=True)
    await receiver.done.wait()
    elapsed = time.perf_counter() - receiver.started
    receiver.connection.close()
    await listener.close()
    await asyncio.sleep(0.05)
    return elapsed


async def send_frames(port: int, buffers: int, setup: Setup, way: Way) -> int:
    sender = FrameSender(buffers)
    await way(setup).connect(("127.0.0.1", port), sender, timeout_s=5)
    await sender.done.wait()
    return 0


async def produce(buffers: int, setup: Setup, way: Way) -> float:
    pools = NetworkBufferPool(setup.pool, setup.segment)
    manager = ResultPartitionManager(started=asyncio.get_running_loop().time())
    pool, consumed = pools.create_buffer_pool(EXCLUSIVE, setup.pool, subpartitions=1), asyncio.Event()
    part = ResultPartition(PARTITION, 1, pool, on_consumed=lambda _: consumed.set())
    manager.register(part)
    server = DataServer(way(setup), manager, name="tm-0", options=setup.options())
    print((await server.start(("127.0.0.1", 0)))[1], flush=True)
    available = Wakeup()
    # read-only, as the records of a source are
    chunk, left, started = memoryview(bytes(256 * 1024)), buffers * setup.segment, 0.0
    while left:
        view, position = chunk[: min(left, len(chunk))], 0
        while position < len(view):
            position += part.emit(0, view, offset=position)
            if position < len(view):
                part.pool.when_available(available.set)
                await available.wait()
                started = started or time.perf_counter()
        left -= len(view)
    part.notify_end_of_data()
    part.finish()
    part.close()
    await consumed.wait()
    elapsed = time.perf_counter() - started
    await server.close()
    return elapsed


async def consume(port: int, buffers: int, setup: Setup, way: Way) -> int:
    """Return how often credit was announced."""
    del buffers
    ready, options, announced = Wakeup(), setup.options(), 0
    pools = NetworkBufferPool(setup.pool, setup.segment)
    gate = InputGate(pools, pools.create_buffer_pool(1, setup.floating), ready.set)
    channel = gate.add_remote(
        PARTITION, 0, receiver=channel_id(1, bytes(12)), backoff=remote_backoff(options)
    )
    connections = ConnectionManager(way(setup), name="tm-1", options=options)
    gate.set_up()
    client = await connections.client("tm-0-1", ("127.0.0.1", port))
    next_frame = PartitionRequestClient.next_frame

    def counted(self: PartitionRequestClient) -> Any:
        nonlocal announced
        taken = next_frame(self)
        announced += taken is not None and isinstance(taken[0], AddCredit)
        return taken

    setattr(PartitionRequestClient, "next_frame", counted)  # noqa: B010 - for this measurement only
    client.add(channel)
    element: object = None
    while not isinstance(element, EndOfPartition):
        polled = gate.poll_run(RUN_BUFFERS)
        if polled is None:
            await ready.wait()
            continue
        element = polled[1]
        if isinstance(element, list):
            recycle_all(element)
    await asyncio.sleep(0.05)
    await connections.close()
    setattr(PartitionRequestClient, "next_frame", next_frame)  # noqa: B010
    return announced


def child(mode: str, loop: str, buffers: int, setup: Setup, way: Way) -> float:
    if mode == "raw":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            print(listener.getsockname()[1], flush=True)
            return receive_raw(listener, buffers)
    main = receive_frames if mode == "frames" else produce
    with asyncio.Runner(loop_factory=FACTORIES[loop]) as runner:
        return runner.run(main(buffers, setup, way))


def run_child(arguments: list[str], way: Way) -> None:
    """Run the other end, with the arguments of `--child`. Print its wall and CPU time."""
    begun = time.process_time()
    mode, loop, buffers, setup = arguments
    elapsed = child(mode, loop, int(buffers), Setup(**json.loads(setup)), way)
    print(elapsed, time.process_time() - begun, flush=True)


def measure(
    mode: str,
    loop: str,
    buffers: int,
    setup: Setup | None = None,
    *,
    way: Way = plain,
    script: str = __file__,
) -> Measured:
    """Run one round. The child measures the time; it is the receiver, except in the whole exchange, where it produces. `script`
    has `--child`, with the same way."""
    setup, announced = setup or Setup(), 0
    arguments = [sys.executable, script, "--child", mode, loop, str(buffers), json.dumps(asdict(setup))]
    # numpy's BLAS threads spin for a while after the import, which would count as CPU time
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        begun = time.process_time()
        if mode == "raw":
            send_raw(port, buffers)
        else:
            main = send_frames if mode == "frames" else consume
            with asyncio.Runner(loop_factory=FACTORIES[loop]) as runner:
                announced = runner.run(main(port, buffers, setup, way))
        ours = time.process_time() - begun
        elapsed, theirs = map(float, process.stdout.readline().split())
    sender, receiver = (theirs, ours) if mode == "exchange" else (ours, theirs)
    megabytes, each = buffers * setup.segment / 1e6, 1e6 / buffers
    rates = megabytes / elapsed, megabytes / max(ours, theirs)
    return Measured(*rates, sender * each, receiver * each, announced)


def summary(rounds: list[Measured], raw: list[Measured]) -> dict[str, object]:
    """Return the medians over the rounds, and of each round's ratio to the raw socket of the same round."""
    pairs = list(zip(rounds, raw, strict=True))
    return {
        "MB/s": [round(r.wall) for r in rounds],
        "of raw": round(statistics.median(r.wall / base.wall for r, base in pairs), 2),
        "MB/s of CPU": round(statistics.median(r.cpu for r in rounds)),
        "of raw by CPU": round(statistics.median(r.cpu / base.cpu for r, base in pairs), 2),
        "us a buffer": [
            round(statistics.median(r.sender_us for r in rounds), 1),
            round(statistics.median(r.receiver_us for r in rounds), 1),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--floating", nargs="+", type=int, default=[FLOATING], help="floating buffers per gate"
    )
    parser.add_argument("--child", nargs=4)
    asked = parser.parse_args()
    if asked.child:
        run_child(asked.child, plain)
        return
    buffers = asked.megabytes * 1_000_000 // SEGMENT
    plain_setup = Setup()
    cases = [("raw blocking", "raw", "blocking", plain_setup)]
    for loop in ("asyncio", "uvloop"):
        cases.append((f"frames {loop}", "frames", loop, plain_setup))
        cases.extend(
            (f"exchange {loop}, {floating} floating", "exchange", loop, Setup(floating=floating))
            for floating in asked.floating
        )
    results: dict[str, list[Measured]] = {}
    for _ in range(asked.rounds):
        # interleaved, so that other work on the machine affects all cases alike
        for case, mode, loop, setup in cases:
            results.setdefault(case, []).append(measure(mode, loop, buffers, setup))
    raw = results["raw blocking"]
    for name, rounds in results.items():
        print(json.dumps({"case": name, **summary(rounds, raw)}))


if __name__ == "__main__":
    main()
