"""The pump: machines on a network, shared connections, texts, hooks, legacy mode."""

from __future__ import annotations

import asyncio
import tempfile

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.codec import ClientDecoder
from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.events import EndOfData, EndOfPartition
from testbed_runtime.core.exchange.frames import (
    AddCredit,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    DataType,
    ErrorResponse,
    PartitionRequest,
    WireVersion,
)
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.faults.frame_classes import frame_class
from testbed_runtime.core.faults.links import channel_id, owner_of
from testbed_runtime.core.options import Options
from testbed_runtime.faults.channel.frames import EffectTap
from testbed_runtime.history.schema import TABLES
from testbed_runtime.transport.tap import HistorySampler
from testbed_runtime.transport.tcp import TcpNetwork
from tests.transport.conformance import Watcher
from tests.transport.encrypted import encrypted_network
from tests.transport.exchanging import Consumer, P, Producer, Unreliable, eventually
from tests.transport.inprocess_network import InProcessNetwork

LEGACY = Options({"taskmanager.network.credit-model": "false"})


@pytest.fixture(params=["tcp", "tls", "in-process"])
async def network(request):
    make = {"tcp": TcpNetwork, "tls": encrypted_network, "in-process": InProcessNetwork}[request.param]
    return make()


@pytest.fixture(params=[TcpNetwork, encrypted_network], ids=["tcp", "tls"])
async def sockets(request):
    """A network of bytes, not of frames: the other end is made by hand."""
    return request.param()


async def test_a_partition_is_read_to_its_end(network) -> None:
    """Data, END_OF_DATA and its acknowledgement, END_OF_PARTITION; every segment is home afterwards."""
    producer = Producer(network)
    consumer = Consumer(network, await producer.start())
    await consumer.connect()
    data = bytes(range(256)) * 100
    writer = asyncio.create_task(_write(producer, data))
    assert await consumer.read(len(data)) == data
    await writer
    producer.partition.notify_end_of_data()
    _, event = await consumer.poll()
    assert isinstance(event, EndOfData)
    consumer.gate.acknowledge_all_records_processed()
    await eventually(lambda: producer.partition.all_data_processed)
    producer.partition.finish()
    producer.partition.close()
    _, event = await consumer.poll()
    assert isinstance(event, EndOfPartition)
    await eventually(lambda: producer.partition.is_consumed)
    assert len(producer.server.connections) == 1, "the connection is kept"
    await consumer.close()
    await producer.close()


@pytest.mark.parametrize("credit", ["true", "false"])
async def test_a_blocking_result_is_read_again_by_the_next_consumer(network, credit: str, tmp_path) -> None:
    """A real file, the requests and credits of any result. The first consumer leaves in the middle."""
    options = Options({"taskmanager.network.credit-model": credit})
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        producer = Producer(network, file=file, options=options)
        address = await producer.start()
        data = bytes(range(256)) * 400
        await _write(producer, data)
        assert producer.pools.outstanding <= 3, "of 100 buffers"
        producer.partition.notify_end_of_data()
        producer.partition.finish()
        first = Consumer(network, address, options=options)
        await first.connect()
        assert data.startswith(await first.read(20_000))
        await first.close()
        again = Consumer(network, address, options=options)
        await again.connect()
        assert await again.read(len(data)) == data
        assert [type((await again.poll())[1]) for _ in range(2)] == [EndOfData, EndOfPartition]
        await again.close()
        assert not producer.partition.is_released
        await producer.close()
        assert file.closed


async def _write(producer: Producer, data: bytes, subpartition: int = 0) -> None:
    position = 0
    while True:
        position += producer.partition.emit(subpartition, data, offset=position)
        if position == len(data):
            break
        available = asyncio.Event()
        producer.partition.pool.when_available(available.set)
        await available.wait()
    producer.partition.flush_all()


async def test_channels_to_one_peer_share_a_connection_which_is_used_again(network) -> None:
    """Also across jobs, by default; without reuse it ends with its last channel."""
    producer = Producer(network, subpartitions=2)
    address = await producer.start()
    consumer = Consumer(network, address, subpartitions=(0, 1))
    first = await consumer.connect()
    second = await consumer.connections.client("tm-0-1", address)
    assert first is second
    assert await consumer.connections.client("tm-0-2", address) is not first
    consumer.gate.close()
    await asyncio.sleep(0.01)
    assert await consumer.connections.client("tm-0-1", address) is first
    await consumer.close()
    await producer.close()


@pytest.mark.parametrize(("version", "same"), [("1.14", False), ("1.15", True), ("2.x", True)])
async def test_exchanges_share_a_connection_since_1_15(network, version, same) -> None:
    """Each intermediate result has an index of its own before, and so a connection of its own to the same TaskManager."""
    producer = Producer(network)
    address = await producer.start()
    consumer = Consumer(network, address, options=Options({}, flink_version=version))
    results = [replace(P, data_set=bytes([n]) * 16) for n in (1, 2)]
    indices = [consumer.connections.index_of(partition) for partition in results]
    first, second = [await consumer.connections.client("tm-0-1", address, index) for index in indices]
    assert (first is second) is same
    await consumer.close()
    await producer.close()


async def test_without_reuse_the_last_channel_ends_the_connection() -> None:
    """A CloseRequest ends it; the next job opens a new one."""
    network = InProcessNetwork()
    producer = Producer(network)
    address = await producer.start()
    options = Options({"taskmanager.network.tcp-connection.enable-reuse-across-jobs": "false"})
    consumer = Consumer(network, address, options=options)
    client = await consumer.connect()
    await eventually(lambda: producer.server.connections and producer.server.connections[0].readers)
    consumer.gate.close()
    await eventually(lambda: not producer.server.connections)
    await eventually(lambda: not consumer.connections.clients)
    assert await consumer.connections.client("tm-0-1", address) is not client
    await consumer.close()
    await producer.close()


RETRIES = Options({"taskmanager.network.retries": "2"})


async def test_G_09_two_failed_connects_and_two_retries_succeed() -> None:
    """PartitionRequestClientFactoryTest::testNettyClientConnectRetry."""
    network = Unreliable(InProcessNetwork(), 2)
    producer = Producer(network)
    consumer = Consumer(network, await producer.start(), options=RETRIES)
    await consumer.connect()
    assert network.connects == 3
    await consumer.close()
    await producer.close()


async def test_G_09_less_than_0_retries_are_none() -> None:
    """PartitionRequestClientFactory.connectWithRetries makes one attempt before it looks at their number."""
    network = Unreliable(InProcessNetwork(), 0)
    producer = Producer(network)
    options = Options({"taskmanager.network.retries": "-1"})
    consumer = Consumer(network, await producer.start(), options=options)
    await consumer.connect()
    assert network.connects == 1
    await consumer.close()
    await producer.close()


@pytest.mark.parametrize(
    ("version", "name"), [("1.14", ""), ("1.15", " [ tm-0-1 ] "), ("2.x", " [ tm-0-1 ] ")]
)
async def test_G_10_three_failed_connects_and_two_retries_fail(version: str, name: str) -> None:
    """testNettyClientConnectRetryFailure, with Flink's text; a failure is not remembered."""
    network = Unreliable(InProcessNetwork(), 3)
    producer = Producer(network)
    host, port = await producer.start()
    options = Options(RETRIES.as_map(), flink_version=version)
    consumer = Consumer(network, (host, port), options=options)
    with pytest.raises(FlinkError) as failure:
        await consumer.connections.client("tm-0-1", (host, port))
    assert str(failure.value) == (
        f"RemoteTransportException: Connecting to remote task manager '{host}/{host}:{port}{name}' has failed. "
        "This might indicate that the remote task manager has been lost."
    )
    assert failure.value.lost_taskmanager == "tm-0-1"
    await consumer.connect()
    await consumer.close()
    await producer.close()


async def test_G_11_ten_parallel_requests_share_one_attempt() -> None:
    """testNettyClientConnectRetryMultipleThread; a cancelled caller does not take the others along."""
    network = Unreliable(InProcessNetwork(), 2)
    producer = Producer(network)
    address = await producer.start()
    consumer = Consumer(network, address, options=RETRIES)
    calls = [asyncio.create_task(consumer.connections.client("tm-0-1", address)) for _ in range(10)]
    await asyncio.sleep(0)
    calls[0].cancel()
    clients = await asyncio.gather(*calls[1:])
    assert len(set(map(id, clients))) == 1
    assert network.connects == 3
    await consumer.close()
    await producer.close()


async def test_a_closed_connection_manager_cancels_what_it_was_opening() -> None:
    """And refuses new requests."""

    class Never(InProcessNetwork):
        async def connect(self, address, handler, *, timeout_s):
            await asyncio.Event().wait()

    consumer = Consumer(Never(), ("127.0.0.1", 1))
    call = asyncio.create_task(consumer.connections.client("tm-0-1", ("127.0.0.1", 1)))
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(FlinkError, match="already been shut down"):
        await consumer.connections.client("tm-0-1", ("127.0.0.1", 1))


@pytest.mark.parametrize(
    ("reset", "text"),
    [
        (
            False,
            "Connection unexpectedly closed by remote task manager '{peer}'. This might indicate that the remote ",
        ),
        (
            True,
            "Lost connection to task manager '{peer}'. This indicates that the remote task manager was lost.",
        ),
    ],
)
async def test_a_lost_producer_is_reported_with_flinks_message(network, reset: bool, text: str) -> None:
    """An orderly end and a reset have a text each; the connection is forgotten."""
    producer = Producer(network)
    host, port = await producer.start()
    consumer = Consumer(network, (host, port))
    await consumer.connect()
    await eventually(lambda: producer.server.connections)
    for pump in list(producer.server._pumps):
        pump.abort(reset=reset)
    with pytest.raises(FlinkError) as failure:
        await consumer.poll()
    assert text.format(peer=f"{host}/{host}:{port} [ tm-0-1 ] ") in str(failure.value)
    assert failure.value.class_name == "RemoteTransportException"
    assert consumer.connections.clients == ()
    await consumer.close()
    await producer.close()


async def test_broken_bytes_from_a_consumer_are_answered_and_end_the_connection(sockets) -> None:
    """A fatal ErrorResponse in Flink's words, then the end; the server serves on."""
    producer = Producer(sockets)
    address = await producer.start()
    peer = Watcher()
    connection = await sockets.connect(address, peer, timeout_s=5)
    connection.send([b"\x00\x00\x00\x09\xba\xdc\x0f\xff\x05"])
    await peer.until(lambda: bool(peer.closed))
    decoder = ClientDecoder(WireVersion.V2, lambda *_: None)
    decoder.feed(bytes(peer.received))
    assert decoder.next() == ErrorResponse(
        "DecoderException",
        "java.lang.IllegalStateException: Network stream corrupted: received incorrect magic number.",
    )
    consumer = Consumer(sockets, address)
    await consumer.connect()
    producer.emit(b"abc")
    assert await consumer.read(3) == b"abc"
    await consumer.close()
    await producer.close()


async def test_broken_bytes_from_a_producer_fail_every_channel(sockets) -> None:
    """The error is the decoder's, and the connection ends."""
    server = Watcher()
    listener = await sockets.listen(lambda: server, ("127.0.0.1", 0))
    consumer = Consumer(sockets, listener.address)
    await consumer.connect()
    await server.until(lambda: len(server.received) == 97)
    server.connection.send([b"\x00\x00\x00\x09\xba\xdc\x0f\xfe\x05"])
    with pytest.raises(
        FlinkError, match=r"LocalTransportException: Received unknown message from producer: 5 \(conn"
    ):
        await consumer.poll()
    await server.until(lambda: bool(server.closed))
    await consumer.close()
    await listener.close()


async def test_a_request_waits_for_its_partition_and_expires_by_the_servers_timer() -> None:
    """Since 1.19 it is served when registered, or refused after the timeout, without any other timer."""
    network = InProcessNetwork()
    producer = Producer(network)
    producer.manager._timeout = 0.05
    address = await producer.server.start(("127.0.0.1", 0))
    consumer = Consumer(network, address)
    await consumer.connect()
    with pytest.raises(FlinkError, match=f"Partition {P} not found."):
        await consumer.poll()
    late = Consumer(network, address)
    await late.connect()
    await eventually(lambda: producer.manager.waiting)
    producer.manager.register(producer.partition)
    producer.emit(b"late")
    assert await late.read(4) == b"late"
    await late.close()
    await consumer.close()
    await producer.close()


class Recorder:
    """A tap that keeps what it sees, and an interceptor that holds or drops by class."""

    def __init__(self, hold: str = "", drop: str = "") -> None:
        self.frames: list[tuple[str, str, object]] = []
        self.hold, self.drop_class = hold, drop
        self.held: list = []
        self.calls = 0

    def seen(self, side, link, frame) -> None:
        self.frames.append((side, link, frame))

    @property
    def active(self) -> bool:
        return bool(self.hold or self.drop_class)

    def outgoing(self, link, frame, forward, drop) -> None:
        self.calls += 1
        if frame_class(frame) == self.hold:
            self.held.append(forward)
        elif frame_class(frame) == self.drop_class:
            drop()
        else:
            forward()

    def of(self, side: str) -> list[tuple[str, str]]:
        return [(link, frame_class(frame)) for s, link, frame in self.frames if s == side]


async def test_taps_see_both_sides_of_a_frame_under_the_same_link() -> None:
    """`a->b` in the direction of the frame, by logical names, on both ends."""
    network = InProcessNetwork()
    at_producer, at_consumer = Recorder(), Recorder()
    producer = Producer(network, tap=at_producer)
    consumer = Consumer(network, await producer.start(), tap=at_consumer)
    await consumer.connect()
    producer.emit(b"abc")
    await consumer.read(3)
    assert at_consumer.of("sent")[0] == ("tm-1->tm-0", "request")
    assert at_producer.of("received")[0] == ("tm-1->tm-0", "request")
    assert at_producer.of("sent") == at_consumer.of("received") == [("tm-0->tm-1", "buffer")]
    await consumer.close()
    await producer.close()


async def test_credit_is_announced_once_the_reader_has_had_its_turn(network) -> None:
    """All buffers that a reader recycles in one loop iteration lead to one AddCredit of its channel."""
    unread: list[bool] = []

    class Watching(Recorder):
        def seen(self, side, link, frame) -> None:
            if side == "sent" and isinstance(frame, AddCredit):
                unread.append(consumer.gate.is_available)

    producer = Producer(network)
    consumer = Consumer(network, await producer.start(), tap=Watching())
    await consumer.connect()
    size = 100 * 1024
    writer = asyncio.create_task(_write(producer, bytes(size)))
    assert len(await consumer.read(size)) == size
    await writer
    assert unread
    assert sum(unread) <= len(unread) / 4, "a turn that was already under way may announce earlier"
    await consumer.close()
    await producer.close()


async def test_an_inactive_interceptor_is_never_called() -> None:
    """The fast path costs nothing."""
    network, idle = InProcessNetwork(), Recorder()
    producer = Producer(network, interceptor=idle)
    consumer = Consumer(network, await producer.start(), interceptor=idle)
    await consumer.connect()
    producer.emit(b"abc")
    await consumer.read(3)
    assert idle.calls == 0
    await consumer.close()
    await producer.close()


async def test_withheld_credit_stops_the_producer_until_it_is_released() -> None:
    """The held AddCredits are all that is missing."""
    network, holding = InProcessNetwork(), Recorder(hold="credit")
    producer = Producer(network)
    consumer = Consumer(network, await producer.start(), interceptor=holding)
    await consumer.connect()
    writer = asyncio.create_task(_write(producer, bytes(20 * 1024)))
    assert await consumer.read(2 * 1024) == bytes(2 * 1024)
    await eventually(lambda: holding.held)
    await asyncio.sleep(0.01)
    assert consumer.gate.poll() is None, "two exclusive buffers were all the credit"
    holding.hold = ""
    for forward in holding.held:
        forward()
    assert len(await consumer.read(18 * 1024)) == 18 * 1024
    await writer
    await consumer.close()
    await producer.close()


async def test_dropped_buffers_go_home_and_are_noticed_by_the_sequence_number() -> None:
    """No segment is lost with a dropped frame; the consumer says which number is missing."""
    network, dropping = InProcessNetwork(), Recorder(drop="buffer")
    producer = Producer(network, interceptor=dropping)
    consumer = Consumer(network, await producer.start())
    await consumer.connect()
    producer.emit(b"abc")
    await eventually(lambda: dropping.calls)
    dropping.drop_class = ""
    producer.emit(b"def")
    with pytest.raises(FlinkError, match="expected buffer with sequence number 0, but received 1"):
        await consumer.poll()
    await consumer.close()
    await producer.close()


async def test_frames_held_beyond_the_end_of_their_connection_give_their_buffers_back() -> None:
    """A fault that outlives a connection leaks nothing."""
    network, holding = InProcessNetwork(), Recorder(hold="buffer")
    producer = Producer(network, interceptor=holding)
    consumer = Consumer(network, await producer.start())
    await consumer.connect()
    producer.emit(b"abc")
    await eventually(lambda: holding.held)
    await consumer.close()
    await eventually(lambda: not producer.server.connections)
    for forward in holding.held:
        forward()
    await producer.close()


async def test_legacy_mode_reads_everything_without_credit(network) -> None:
    """No AddCredit crosses the wire, and all data arrives."""
    tap = Recorder()
    producer = Producer(network, options=LEGACY)
    consumer = Consumer(network, await producer.start(), options=LEGACY, tap=tap, floating=2)
    await consumer.connect()
    data = bytes(range(256)) * 400
    writer = asyncio.create_task(_write(producer, data))
    assert await consumer.read(len(data)) == data
    await writer
    assert not [f for _, _, f in tap.frames if isinstance(f, AddCredit)]
    await consumer.close()
    await producer.close()


async def test_legacy_mode_stops_all_channels_of_a_connection_when_one_has_no_buffer() -> None:
    """Head-of-line blocking, the reason for credit: one slow channel holds up its neighbour; with credit it does not."""
    for options, passes in ((LEGACY, False), (Options({}), True)):
        network = InProcessNetwork()
        producer = Producer(network, subpartitions=2, options=options)
        consumer = Consumer(
            network, await producer.start(), options=options, subpartitions=(0, 1), floating=1
        )
        await consumer.connect()
        await eventually(
            lambda p=producer: p.server.connections and len(p.server.connections[0].readers) == 2
        )
        kept: list[Buffer] = []
        writer = asyncio.create_task(_write(producer, bytes(12 * 1024), 0))
        await asyncio.sleep(0.01)
        await writer
        slow = consumer.gate.channels[0]
        producer.emit(b"fast", 1)
        await asyncio.sleep(0.01)
        assert slow.queued >= 2
        assert bool(consumer.gate.channels[1].queued) is passes
        for _ in range(12 + 1):
            _, element = await consumer.poll()
            assert isinstance(element, Buffer)
            kept.append(bytes(element.view()))
            element.recycle()
        assert sum(map(len, kept)) == 12 * 1024 + 4
        await consumer.close()
        await producer.close()


class Rows:
    """A HistorySink that keeps rows."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def append(self, table, **row) -> None:
        self.rows.append({"table": table, **row})

    def put(self, table, values) -> None:
        self.append(table, **dict(zip([name for name, _ in TABLES[table]], values, strict=True)))

    async def flush(self) -> None:
        return


def test_samples_of_frames_are_numbered_alike_on_both_sides_and_limited_in_rate() -> None:
    """Sequence numbers of buffers, else counts by class; when rows run short both sides keep the same numbers."""
    now = 0.0
    sent, received = Rows(), Rows()
    taps = [EffectTap(HistorySampler(rows, lambda: now)) for rows in (sent, received)]
    receiver = channel_id(1, bytes(12))
    for number in range(5000):
        frame = BufferResponse(receiver, 0, number, 0, DataType.DATA_BUFFER, b"abc")
        taps[0].seen("sent", "tm-0->tm-1", frame)
        taps[1].seen("received", "tm-0->tm-1", frame)
    for tap in taps:
        tap.seen("sent", "tm-1->tm-0", AddCredit(3, receiver))
    assert sent.rows[0] == {
        "table": "frames",
        "side": "sent",
        "link": "tm-0->tm-1",
        "channel": receiver.hex(),
        "frame_class": "buffer",
        "number": 0,
        "size": 3,
    }
    numbers = [row["number"] for row in sent.rows if row["frame_class"] == "buffer"]
    assert numbers == [row["number"] for row in received.rows if row["frame_class"] == "buffer"]
    assert len(numbers) <= 400
    now = 100.0
    taps[0].seen("sent", "tm-1->tm-0", AddCredit(3, receiver))
    assert sent.rows[-1]["frame_class"] == "credit"
    assert sent.rows[-1]["number"] == 1


def test_a_channel_id_tells_whose_it_is() -> None:
    """Ours carry the ordinal, Flink's are random."""
    assert owner_of(channel_id(12, bytes(range(12)))) == "tm-12"
    assert owner_of(bytes(range(0x10, 0x20))) == ""


async def test_every_client_message_of_flink_is_accepted(sockets) -> None:
    """A hand-made consumer: request, cancel, close; the connection ends with the CloseRequest."""
    producer = Producer(sockets)
    address = await producer.start()
    peer = Watcher()
    connection = await sockets.connect(address, peer, timeout_s=5)
    receiver = bytes(range(16))
    connection.send(encode(PartitionRequest(P, 0, 0, receiver, 2), WireVersion.V2))
    await eventually(lambda: producer.server.connections and producer.server.connections[0].readers)
    producer.emit(b"abc")
    await peer.until(lambda: len(peer.received) == 47 + 3)
    connection.send(encode(CancelPartitionRequest(receiver), WireVersion.V2))
    await eventually(lambda: not producer.server.connections[0].readers)
    connection.send(encode(CloseRequest(), WireVersion.V2))
    await peer.until(lambda: peer.closed == [None])
    await producer.close()
