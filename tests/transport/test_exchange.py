"""serve and fetch: the same partition at both ends, and a producer that sends everything Flink may send."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from unittest.mock import create_autospec

import pytest

from testbed_runtime.core.errors import FlinkError, HeadgateError, UserError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.channel import ChannelClient
from testbed_runtime.core.exchange.codec import ServerDecoder
from testbed_runtime.core.exchange.encoding import encode
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfOutputChannelState,
    EndOfPartition,
    Event,
    OtherEvent,
    SubtaskConnectionDescriptor,
    WatermarkEvent,
    data_type_of,
    encode_event,
)
from testbed_runtime.core.exchange.frames import (
    AckAllUserRecordsProcessed,
    BacklogAnnouncement,
    BufferResponse,
    CloseRequest,
    DataType,
    ErrorResponse,
    Frame,
    PartitionRequest,
    ResumeConsumption,
    WireVersion,
)
from testbed_runtime.core.options import Options
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.transport.exchange import (
    SILENCE_S,
    FetchRequest,
    ServeRequest,
    SubpartitionReport,
    _Fetcher,
    _Meter,
    fetch,
    serve,
)
from testbed_runtime.transport.simulated import SimulatedFabric
from testbed_runtime.transport.tcp import TcpNetwork
from tests.transport.conformance import Watcher
from tests.transport.exchanging import LIMIT_S, P
from tests.transport.inprocess_network import InProcessNetwork
from tests.transport.records import frame_record

OPTIONS = Options({})


def serving(network, **changes) -> tuple[asyncio.Task, asyncio.Future]:
    address = asyncio.get_running_loop().create_future()
    fields = {"subpartitions": 2, "records": 3000, "record_bytes": 100, "seed": 7} | changes
    options = fields.pop("options", OPTIONS)
    request = ServeRequest(P, ("127.0.0.1", 0), **fields)
    return asyncio.create_task(serve(network, request, options, listening=address.set_result)), address


def wanting(address, **changes) -> FetchRequest:
    fields = {"subpartition": 0, "exclusive": 2, "floating": 8, "entropy": bytes(12)} | changes
    return FetchRequest(P, address, **fields)


@pytest.fixture(params=["tcp", "simulated"])
async def networks(request):
    if request.param == "simulated":
        fabric = SimulatedFabric(random.Random(1))
        return fabric.network("tm-0"), fabric.network("tm-1")
    network = TcpNetwork()
    return network, network


async def test_both_ends_report_the_same(networks) -> None:
    """Two subpartitions, one after the other: equal numbers and digests at both ends."""
    task, address = serving(networks[0])
    fetched = [
        await fetch(networks[1], wanting(await address, subpartition=i, entropy=bytes([i]) * 12), OPTIONS)
        for i in range(2)
    ]
    served = await task
    assert [r.as_json() for r in fetched] == [r.as_json() for r in served]
    assert fetched[0].records == 3000
    assert fetched[0].bytes == 3000 * 104
    assert fetched[0].events == 2
    assert fetched[0].digest.hexdigest() != fetched[1].digest.hexdigest()


@pytest.mark.parametrize(
    ("exclusive", "floating", "record_bytes", "records"),
    [(2, 8, 100_000, 30), (0, 1, 100, 3000), (0, 8, 0, 1000), (5, 3, 33, 0), (1, 1, 32_764, 50)],
)
@pytest.mark.parametrize("version", ["2.x", "1.20", "1.12"])
async def test_credit_and_records_of_every_size_arrive(
    exclusive: int, floating: int, record_bytes: int, records: int, version: str
) -> None:
    """Records larger than a buffer, empty ones, none at all; with and without exclusive buffers; in each version."""
    network, options = InProcessNetwork(), Options({}, flink_version=version)
    task, address = serving(
        network, subpartitions=1, records=records, record_bytes=record_bytes, options=options
    )
    report = await fetch(network, wanting(await address, exclusive=exclusive, floating=floating), options)
    (served,) = await task
    assert report.as_json() == served.as_json()
    assert report.records == records
    assert report.credits >= report.buffers


async def test_the_same_seed_gives_the_same_bytes() -> None:
    """And another one others; the second subpartition has the seed after it."""

    async def digests(seed: int, count: int) -> list[str]:
        network = InProcessNetwork()
        task, address = serving(network, subpartitions=count, seed=seed)
        for i in range(count):
            await fetch(network, wanting(await address, subpartition=i, entropy=bytes([i]) * 12), OPTIONS)
        return [report.digest.hexdigest() for report in await task]

    first = await digests(7, 2)
    assert first == await digests(7, 2)
    assert await digests(8, 1) == first[1:]


async def test_a_slow_reader_of_one_subpartition_does_not_hold_up_the_other() -> None:
    """Each subpartition has its own pool."""
    network = InProcessNetwork()
    task, address = serving(network, records=20_000)
    second = await fetch(network, wanting(await address, subpartition=1), OPTIONS)
    assert second.records == 20_000
    first = await fetch(network, wanting(await address, entropy=bytes([1]) * 12), OPTIONS)
    assert first.records == 20_000
    await task


async def test_a_reader_that_leaves_early_ends_the_server_with_an_error() -> None:
    """A pipelined partition can be read only once, so waiting would never end."""
    network = InProcessNetwork()
    task, address = serving(network)
    leaving = asyncio.create_task(fetch(network, wanting(await address, floating=1, exclusive=0), OPTIONS))
    for _ in range(6):
        await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    with pytest.raises(ExceptionGroup) as failure:
        await task
    assert "the reader of subpartition 0 left before the end" in str(failure.value.exceptions[0])


async def test_a_second_reader_is_refused_with_flinks_words() -> None:
    """And the first one reads on."""
    network = InProcessNetwork()
    task, address = serving(network, subpartitions=1, records=20_000)
    reading = asyncio.create_task(fetch(network, wanting(await address), OPTIONS))
    await asyncio.sleep(0.005)
    with pytest.raises(FlinkError, match=r"Fatal error at remote task manager") as refused:
        await fetch(network, wanting(await address, entropy=bytes([9]) * 12), OPTIONS)
    assert "pipelined subpartitions can only be consumed once." in str(refused.value.__cause__)
    assert (await reading).records == 20_000
    await task


async def test_a_missing_partition_is_asked_for_again_and_then_given_up() -> None:
    """Before 1.19, requests are refused at once: retry after each backoff, then PartitionNotFoundException."""
    network = InProcessNetwork()
    other = "00" * 20 + P.to_bytes().hex()[40:]
    task, address = serving(network, options=Options({}, flink_version="1.12"))
    options = Options(
        {
            "taskmanager.network.request-backoff.initial": "1 ms",
            "taskmanager.network.request-backoff.max": "4 ms",
        },
        flink_version="1.12",
    )
    request = FetchRequest(type(P).from_bytes(bytes.fromhex(other)), await address, 0, 2, 8, bytes(12))
    with pytest.raises(FlinkError, match=r"PartitionNotFoundException: Partition 0+#0@.* not found\."):
        await fetch(network, request, options)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_channel_that_has_failed_does_not_ask_for_a_missing_partition_again() -> None:
    """The refusal of a request may arrive after another error. A channel that has not failed asks again."""
    report = SubpartitionReport(0)
    fetcher = _Fetcher(
        wanting(("127.0.0.1", 1)), OPTIONS, NetworkBufferPool(11, 32768), report, _Meter({0: report})
    )
    fetcher.gate.set_up()
    channel = fetcher.channel
    channel.attach(create_autospec(ChannelClient, instance=True))
    channel.on_failed_partition_request()
    assert channel.requests == 1
    channel.on_error(FlinkError("IOException", "reset"))
    channel.on_failed_partition_request()
    assert channel.next_deadline is None
    fetcher.close()


def test_a_silent_producer_is_reported_once_and_still_waited_for() -> None:
    """It may have no data yet. Nothing else would tell a producer that does not speak the protocol from one that is late."""
    notices: list[float] = []

    async def main() -> None:
        loop, fabric = asyncio.get_running_loop(), SimulatedFabric(random.Random(1))
        started = loop.time()
        listener = await fabric.network("tm-0").listen(Watcher, ("tm-0", 7000))
        reading = fetch(
            fabric.network("tm-1"),
            wanting(listener.address),
            OPTIONS,
            waiting=lambda: notices.append(loop.time() - started),
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reading, 10 * SILENCE_S)

    run_virtual(main())
    assert notices == [pytest.approx(SILENCE_S, abs=1)]


@pytest.mark.parametrize("version", ["1.12", "1.20", "2.x"])
def test_a_producer_that_does_not_have_the_partition_is_not_silent(version: str) -> None:
    """It refuses the requests until the consumer gives up, after more than SILENCE_S."""
    notices: list[float] = []

    async def main() -> None:
        loop, fabric = asyncio.get_running_loop(), SimulatedFabric(random.Random(1))
        options, started = Options({}, flink_version=version), loop.time()
        task, address = serving(fabric.network("tm-0"), options=options)
        other = type(P).from_bytes(bytes(20) + P.to_bytes()[20:])
        request = FetchRequest(other, await address, 0, 2, 8, bytes(12))
        with pytest.raises(FlinkError, match="PartitionNotFoundException"):
            await fetch(fabric.network("tm-1"), request, options, waiting=lambda: notices.append(loop.time()))
        assert loop.time() - started > SILENCE_S
        task.cancel()

    run_virtual(main())
    assert notices == []


@pytest.mark.parametrize(
    "changes",
    [{"subpartitions": 0}, {"subpartitions": 1000}, {"records": -1}, {"record_bytes": 2**30}, {"seed": -3}],
)
async def test_bad_input_is_refused_before_anything_starts(changes: dict[str, int]) -> None:
    """The error names the argument and a valid value."""
    task, _ = serving(InProcessNetwork(), **changes)
    with pytest.raises(UserError, match=r"^--.* is out of range \(choose"):
        await task


@pytest.mark.parametrize("size", [0, 5000, 2048, 2**21])
async def test_a_segment_size_that_flink_would_not_take_is_refused(size: int) -> None:
    """Powers of two from a page on; the message names the option."""
    task, _ = serving(InProcessNetwork(), buffer_bytes=size)
    with pytest.raises(UserError, match=r"^-D taskmanager.memory.segment-size: .* \(choose a power of two"):
        await task


class Script(Watcher):
    """A producer that sends frames of a script, and waits where it says so."""

    def __init__(self) -> None:
        super().__init__()
        self._decoder = ServerDecoder(WireVersion.V2)
        self.frames: list[Frame] = []
        self.receiver = b""
        self.sequence = 0

    def on_data(self, data: memoryview) -> None:
        view = data
        while len(view):
            view = view[self._decoder.feed(view) :]
            frame = self._decoder.next()
            if frame is not None:
                self.frames.append(frame)
        self.changed.set()

    async def request(self) -> PartitionRequest:
        await self.until(lambda: bool(self.frames))
        request = self.frames[0]
        assert isinstance(request, PartitionRequest)
        self.receiver = request.receiver
        return request

    async def wait_for(self, kind: type, count: int) -> None:
        await self.until(lambda: sum(isinstance(f, kind) for f in self.frames) >= count)

    def data(self, payload: bytes, backlog: int = 0, data_type: DataType = DataType.DATA_BUFFER) -> None:
        frame = BufferResponse(self.receiver, 0, self.sequence, backlog, data_type, payload)
        self.sequence += 1
        self.connection.send(encode(frame, WireVersion.V2))

    def event(self, event: Event, *, padding: int = 0, data_type: DataType | None = None) -> None:
        self.data(encode_event(event) + bytes(padding), data_type=data_type or data_type_of(event))


@pytest.fixture
async def scripted() -> AsyncIterator[tuple[Script, asyncio.Task]]:
    """A producer of which a subpartition was requested, and the fetch of it."""
    network, script = TcpNetwork(), Script()
    listener = await network.listen(lambda: script, ("127.0.0.1", 0))
    task = asyncio.create_task(fetch(network, wanting(listener.address), OPTIONS))
    await script.request()
    yield script, task
    script.connection.abort()
    await listener.close()


async def test_barriers_of_every_kind_and_unknown_events_are_received_as_a_task_would(scripted) -> None:
    """Aligned and timeoutable ones are resumed, others are not; padding, user events and watermarks are counted."""
    script, task = scripted
    record = frame_record(bytes(100))
    script.data(record[:50], backlog=3)
    script.event(CheckpointBarrier(1, 5), padding=4)
    await script.wait_for(ResumeConsumption, 1)
    script.event(CheckpointBarrier(2, 5, alignment_timeout_ms=30_000), padding=4)
    await script.wait_for(ResumeConsumption, 2)
    script.event(CheckpointBarrier(3, 5, AlignmentType.UNALIGNED), padding=4)
    script.event(CheckpointBarrier(4, 5, AlignmentType.AT_LEAST_ONCE), padding=4)
    script.event(CancelCheckpointMarker(4))
    script.event(SubtaskConnectionDescriptor(0, 1))
    script.event(OtherEvent("interop.Ping", struct.pack(">i", 42)), padding=106)
    script.event(EndOfOutputChannelState())
    await script.wait_for(ResumeConsumption, 3)
    script.event(WatermarkEvent(b"\x01"), data_type=DataType.ALIGNED_WATERMARK_EVENT)
    await script.wait_for(ResumeConsumption, 4)
    script.event(WatermarkEvent(b"\x01"), data_type=DataType.UNALIGNED_WATERMARK_EVENT)
    script.data(record[50:] + record, data_type=DataType.DATA_BUFFER_WITH_CLEAR_END)
    script.event(EndOfData())
    await script.wait_for(AckAllUserRecordsProcessed, 1)
    script.event(EndOfPartition())
    report = await task
    assert (report.records, report.buffers, report.bytes, report.events) == (2, 2, 208, 12)
    assert sum(isinstance(f, ResumeConsumption) for f in script.frames) == 4
    await script.until(lambda: isinstance(script.frames[-1], CloseRequest))
    await script.until(lambda: bool(script.closed))


async def test_a_backlog_announcement_is_answered_with_credit(scripted) -> None:
    """The floating buffers that the gate has."""
    script, task = scripted
    script.connection.send(encode(BacklogAnnouncement(20, script.receiver), WireVersion.V2))
    await script.until(lambda: len(script.frames) == 2)
    assert script.frames[1].credit == 8
    script.connection.abort()
    with pytest.raises(FlinkError, match="Connection unexpectedly closed by remote task manager"):
        await task


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ErrorResponse("IOException", "boom"), "Fatal error at remote task manager"),
        (ErrorResponse("IOException", "boom", b"receiver"), "Error at remote task manager"),
    ],
)
async def test_an_error_of_the_producer_ends_the_fetch(scripted, error: ErrorResponse, text: str) -> None:
    """The errors have Flink's messages, for the connection and for the channel."""
    script, task = scripted
    receiver = script.receiver if error.receiver else None
    answer = ErrorResponse(error.class_name, error.message, receiver)
    script.connection.send(encode(answer, WireVersion.V2))
    with pytest.raises(FlinkError, match=text):
        await task


async def test_a_partition_that_ends_within_a_record_is_an_error(scripted) -> None:
    """Bytes are missing."""
    script, task = scripted
    script.data(frame_record(b"abc")[:-1])
    script.event(EndOfData())
    script.event(EndOfPartition())
    with pytest.raises(HeadgateError, match="ended within a record: 6 bytes remain"):
        async with asyncio.timeout(LIMIT_S):
            await task


async def test_more_data_than_credit_is_flinks_error(scripted) -> None:
    """The channel fails as Flink's would."""
    script, task = scripted
    for _ in range(2 + 8 + 1):
        script.data(frame_record(bytes(10)))
    with pytest.raises(FlinkError, match=r"The read buffer is null in credit-based input channel\."):
        await task
