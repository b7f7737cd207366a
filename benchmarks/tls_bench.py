"""The price of TLS on the data port, as CPU time against the same without TLS, in the same run: two processes on loopback.

    python benchmarks/tls_bench.py [--megabytes 300] [--rounds 3] [--loops asyncio uvloop]

1. The whole exchange (see transport_bench.py) with buffers of 32 KiB, 4 KiB and 1 KiB, with credit and in legacy mode: without
   TLS, with Flink's default cipher suite (CBC and SHA-1), and with AES-GCM. CPU time is that of both ends per buffer; the ratio is to
   the case without TLS of the same round.
2. One announcement of credit, as the frame that it is: two ends that answer each AddCredit with one. CPU time of both ends for each
   frame that was sent, woke its receiver, and was decoded. Its share is what the announcements of (1) cost of (1).
3. `transport.tls` against asyncio's own TLS (`loop.create_connection(ssl=…)`, also uvloop's), both below the same frames.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from transport_bench import FACTORIES, RECEIVER, SEGMENT, Measured, Setup, measure, run_child

from testbed_runtime.core.exchange.codec import ServerDecoder
from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.frames import AddCredit, BytesLike, WireVersion
from testbed_runtime.core.exchange.tls import ALGORITHMS, INTERNAL, TlsSettings
from testbed_runtime.core.options import Options
from testbed_runtime.local.testbed import write_certificate
from testbed_runtime.ports.network import Address, Connection, ConnectionHandler, Network
from testbed_runtime.transport.tcp import RECEIVE_BUFFER_BYTES, TcpNetwork
from testbed_runtime.transport.tls import DataTls

CIPHERS = {"cbc": "TLS_RSA_WITH_AES_128_CBC_SHA", "gcm": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}
"""Flink's default, and one of those that its documentation recommends."""
SMALL = (4096, 1024)
SMALL_BUFFERS = 40_000
ANNOUNCEMENTS = 20_000


class AsyncioEnd(asyncio.BufferedProtocol):
    """A connection of asyncio's transports, with the methods that a sender and a receiver of frames use."""

    def __init__(self, handler: ConnectionHandler) -> None:
        self._handler = handler
        self._memory = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        """A view, because asyncio slices it: a slice of a bytearray is a copy, and what is received into it is lost."""
        self.writable = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._handler.on_connected(cast("Connection", self))

    def connection_lost(self, error: Exception | None) -> None:
        self._handler.on_closed(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._memory

    def buffer_updated(self, nbytes: int) -> None:
        self._handler.on_data(self._memory[:nbytes])

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._handler.on_writable()

    def send(self, parts: Sequence[BytesLike]) -> None:
        self._transport.write(b"".join(parts))

    def close(self) -> None:
        self._transport.close()


class AsyncioListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.address: Address = server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        self._server.close()


class AsyncioNetwork:
    """asyncio's own TLS."""

    def __init__(self, tls: DataTls) -> None:
        self._tls = tls
        self._loop = asyncio.get_running_loop()

    async def listen(
        self, make_handler: Callable[[], ConnectionHandler], address: Address
    ) -> AsyncioListener:
        def make() -> AsyncioEnd:
            return AsyncioEnd(make_handler())

        return AsyncioListener(await self._loop.create_server(make, *address, ssl=self._tls.listening))

    async def connect(self, address: Address, handler: ConnectionHandler, *, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await self._loop.create_connection(
                lambda: AsyncioEnd(handler), *address, ssl=self._tls.connecting, server_hostname=""
            )


def way(setup: Setup) -> Network:
    if setup.way == "plain":
        return TcpNetwork()
    settings = TlsSettings.read(Options({INTERNAL: "true", ALGORITHMS: CIPHERS[setup.cipher]}))
    assert settings is not None
    tls = DataTls.load(setup.certificate, settings)
    return cast("Network", AsyncioNetwork(tls)) if setup.way == "asyncio" else TcpNetwork(tls=tls)


class Announcer:
    """Answers each AddCredit with one, until it has sent `left`. The one that connects begins."""

    def __init__(self, left: int, *, first: bool) -> None:
        self.left, self.first = left, first
        self.done = asyncio.Event()
        self.decoder = ServerDecoder(WireVersion.V2)

    def on_connected(self, connection: Connection) -> None:
        self.connection = connection
        if self.first:
            self.announce()

    def announce(self) -> None:
        self.left -= 1
        self.connection.send(encode(AddCredit(2, RECEIVER), WireVersion.V2))

    def on_data(self, data: memoryview) -> None:
        self.decoder.feed(data)
        if self.decoder.next() is None:
            return
        if self.left:
            self.announce()
        if not self.left:
            self.done.set()

    def on_writable(self) -> None:
        return

    def on_closed(self, error: Exception | None) -> None:
        del error
        self.done.set()


async def answer(setup: Setup) -> None:
    announcer = Announcer(ANNOUNCEMENTS, first=False)
    listener = await way(setup).listen(lambda: announcer, ("127.0.0.1", 0))
    print(listener.address[1], flush=True)
    await announcer.done.wait()
    await listener.close()


async def announce(port: int, setup: Setup) -> None:
    announcer = Announcer(ANNOUNCEMENTS, first=True)
    await way(setup).connect(("127.0.0.1", port), announcer, timeout_s=5)
    await announcer.done.wait()


def announcement_us(loop: str, setup: Setup) -> float:
    """Return the CPU time of both ends for one announcement, in µs."""
    arguments = [sys.executable, __file__, "--answer", loop, json.dumps(asdict(setup))]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, begun = int(process.stdout.readline()), time.process_time()
        with asyncio.Runner(loop_factory=FACTORIES[loop]) as runner:
            runner.run(announce(port, setup))
        ours, theirs = time.process_time() - begun, float(process.stdout.readline())
    return (ours + theirs) * 1e6 / (2 * ANNOUNCEMENTS)


def exchange(loop: str, buffers: int, setup: Setup) -> Measured:
    return measure("exchange", loop, buffers, setup, way=way, script=__file__)


def both_us(measured: Measured) -> float:
    return measured.sender_us + measured.receiver_us


def middle(values: Iterable[float], digits: int = 2) -> float:
    return round(statistics.median(values), digits)


def exchanges(loop: str, asked: argparse.Namespace, certificate: str) -> None:
    """Print the price of an announcement and of a buffer, for each cipher, size of buffers, and mode."""
    bare = Setup()
    ways = [bare, *(Setup("tls", cipher, certificate) for cipher in CIPHERS)]
    prices: dict[Setup, list[float]] = {setup: [] for setup in ways}
    found: dict[Setup, list[Measured]] = {}
    for number in range(asked.rounds):
        turn = ways[:: 1 if number % 2 == 0 else -1]  # whatever runs later in a round needs less CPU
        for setup in turn:
            prices[setup].append(announcement_us(loop, setup))
        for segment, credit in itertools.product((SEGMENT, *SMALL), (True, False)):
            for setup in turn:
                case = replace(setup, segment=segment, credit=credit)
                found.setdefault(case, []).append(exchange(loop, buffers_of(segment, asked), case))
    for setup, each in prices.items():
        row = {"loop": loop, "tls": setup.cipher or "none", "us an announcement": middle(each, 1)}
        print(
            json.dumps(row | {"of without": middle(a / b for a, b in zip(each, prices[bare], strict=True))})
        )
    for case, rounds in found.items():
        plain = found[replace(bare, segment=case.segment, credit=case.credit)]
        ratios = [both_us(a) / both_us(b) for a, b in zip(rounds, plain, strict=True)]
        row = {"loop": loop, "tls": case.cipher or "none", "bytes": case.segment}
        row |= {"mode": "credit" if case.credit else "legacy", "us a buffer": middle(map(both_us, rounds), 1)}
        row |= {"of without": middle(ratios), "from": round(min(ratios), 2), "to": round(max(ratios), 2)}
        if case.credit:
            price = prices[replace(case, segment=SEGMENT)]
            frames = [one.announced / buffers_of(case.segment, asked) for one in rounds]
            cost = [us * count for us, count in zip(price, frames, strict=True)]
            row |= {"announced a buffer": middle(frames), "us of announcements": middle(cost, 1)}
            row |= {"their share": middle(us / both_us(one) for us, one in zip(cost, rounds, strict=True))}
        print(json.dumps(row), flush=True)


def buffers_of(segment: int, asked: argparse.Namespace) -> int:
    return asked.megabytes * 1_000_000 // SEGMENT if segment == SEGMENT else SMALL_BUFFERS


def implementations(loop: str, asked: argparse.Namespace, certificate: str) -> None:
    """Print what `transport.tls` and asyncio's own TLS need for frames of 32 KiB."""
    ways = [Setup(kind, "gcm", certificate) for kind in ("tls", "asyncio")]
    found: dict[str, list[Measured]] = {setup.way: [] for setup in ways}
    for number in range(asked.rounds):
        for setup in ways[:: 1 if number % 2 == 0 else -1]:
            buffers = buffers_of(SEGMENT, asked)
            found[setup.way].append(measure("frames", loop, buffers, setup, way=way, script=__file__))
    for kind, rounds in found.items():
        ratios = [both_us(a) / both_us(b) for a, b in zip(rounds, found["tls"], strict=True)]
        row = {"loop": loop, "frames by": kind, "us a buffer": middle(map(both_us, rounds), 1)}
        print(json.dumps(row | {"of transport.tls": middle(ratios), "MB/s": middle(r.wall for r in rounds)}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loops", nargs="+", choices=sorted(FACTORIES), default=sorted(FACTORIES))
    parser.add_argument("--only", choices=("exchange", "implementations"))
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--answer", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        run_child(asked.child, way)
        return
    if asked.answer:
        begun, (loop, setup) = time.process_time(), asked.answer
        with asyncio.Runner(loop_factory=FACTORIES[loop]) as runner:
            runner.run(answer(Setup(**json.loads(setup))))
        print(time.process_time() - begun, flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        certificate = Path(folder) / "certificate.pem"
        write_certificate(certificate)
        for loop in asked.loops:
            if asked.only != "implementations":
                exchanges(loop, asked, str(certificate))
            if asked.only != "exchange":
                implementations(loop, asked, str(certificate))


if __name__ == "__main__":
    main()
