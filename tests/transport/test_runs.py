"""Buffers that arrive together are handled as if they arrived one by one, and buffers that leave together are encoded alike."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.arrivals import RUN_FRAMES, UNREAD_BYTES
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.codec import ClientDecoder
from testbed_runtime.core.exchange.encoding import encode, encode_run
from testbed_runtime.core.exchange.events import encode_event
from testbed_runtime.core.exchange.frames import (
    BufferResponse,
    DataType,
    PartitionRequest,
    ServerFrame,
    WireVersion,
)
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.subpartition import Run
from testbed_runtime.core.options import Options
from testbed_runtime.transport.pump import ConnectionManager, DataServer, _ClientPump, _ServerPump
from tests.core.exchange_model import SEGMENT_BYTES, Consumer, barrier, partition_id, receiver_id
from tests.transport.exchanging import eventually

CHANNELS = 3
UNKNOWN = 7


class FakeConnection:
    peer, writable, frames = "peer", True, None

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.aborted = False

    def send(self, parts, on_sent=None) -> None:
        self.sent.append(b"".join(parts))
        if on_sent is not None:
            on_sent()

    def pause_reading(self) -> None:
        pass

    def abort(self, *, reset: bool = False) -> None:
        self.aborted = True


@dataclass
class Tap:
    frames: list[tuple[str, ServerFrame]] = field(default_factory=list)

    def seen(self, side: str, link: str, frame) -> None:
        del link
        if isinstance(frame, BufferResponse):
            frame = replace(frame, data=bytes(frame.data))
        self.frames.append((side, frame))


class End:
    """A consumer behind a pump. Without `together`, it handles every frame by itself."""

    def __init__(self, *, together: bool) -> None:
        self.consumer = Consumer(segments=20, floating=(4, 4), channels=CHANNELS)
        self.tap = Tap()
        options = Options({})
        manager = ConnectionManager(None, name="tm-1", options=options, tap=self.tap)
        self.pump = _ClientPump(manager, "tm-0-1", ("127.0.0.1", 1), 0)
        self.connection = FakeConnection()
        self.pump.on_connected(self.connection)
        if not together:
            self.pump._decoder = SingleDecoder(self.pump._decoder)
        for number in range(CHANNELS):
            self.pump.machine.add(self.consumer.channel(number))

    def poll(self) -> list[object]:
        polled: list[object] = []
        try:
            while (item := self.consumer.gate.poll()) is not None:
                index, element = item
                if isinstance(element, Buffer):
                    polled.append((index, element.data_type, element.compressed, bytes(element.view())))
                    element.recycle()
                else:
                    polled.append(item)
        except FlinkError as error:
            polled.append(str(error))
        return polled

    def state(self) -> object:
        self.pump._pull()
        channels = [self.consumer.channel(number) for number in range(CHANNELS)]
        counts = [(c.stats(), c.answered, c.buffers.required, c.buffers.waiting) for c in channels]
        return counts, self.tap.frames, self.connection.sent, self.connection.aborted, self.consumer.pool.used

    def check_credit(self) -> None:
        """All credit is announced by the end of a turn."""
        channels = [self.consumer.channel(number) for number in range(CHANNELS)]
        for channel in channels:
            if self.pump.machine.error is None and not channel.error:
                assert not channel.buffers.unannounced


class SingleDecoder:
    """A decoder that finds no run of buffers."""

    def __init__(self, decoder) -> None:
        self._decoder = decoder

    def heads(self, view, start) -> None:
        return None

    def __getattr__(self, name):
        return getattr(self._decoder, name)


@st.composite
def arrivals(draw) -> list[tuple[str, object]]:
    """Draw bytes that arrive in pieces, and polls in between. A few frames are out of order, unknown, too large or without
    credit."""
    steps: list[tuple[str, object]] = []
    sequences = dict.fromkeys([*range(CHANNELS), UNKNOWN], 0)
    stream = b""
    for _ in range(draw(st.integers(1, 30))):
        number = draw(st.sampled_from([0, 0, 0, 1, 1, 2, 2, UNKNOWN] if draw(st.booleans()) else [0]))
        size = draw(st.sampled_from([1, 7, SEGMENT_BYTES, SEGMENT_BYTES, SEGMENT_BYTES, 0]))
        if draw(st.integers(0, 40)) == 0:
            size = SEGMENT_BYTES + 1
        sequence = sequences[number] + (draw(st.integers(0, 60)) == 0)
        sequences[number] = sequence + 1
        backlog = draw(st.integers(0, 6))
        data_type = draw(st.sampled_from([DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END]))
        data = bytes([draw(st.integers(0, 255))]) * size
        partials: tuple[int, ...] = ()
        kind = draw(st.integers(0, 12))
        if kind == 0:
            data, data_type, backlog = encode_event(barrier(1)), DataType.ALIGNED_CHECKPOINT_BARRIER, 0
        elif kind == 1 and size > 1:
            partials = (1, size - 1)
            sequences[number] += 1
        frame = BufferResponse(
            receiver_id(number),
            number % CHANNELS,
            sequence,
            backlog,
            data_type,
            data,
            draw(st.booleans()),
            partials,
        )
        stream += b"".join(encode(frame, WireVersion.V2))
        if draw(st.integers(0, 3)) == 0:
            steps.append(("poll", None))
        if draw(st.integers(0, 2)) == 0:
            cut = draw(st.integers(0, len(stream)))
            steps.append(("data", stream[:cut]))
            stream = stream[cut:]
    steps.append(("data", stream))
    return steps


@given(arrivals())
async def test_buffers_that_arrive_together_are_handled_as_one_by_one(steps) -> None:
    """Polled elements, credit, taps, errors and pools are the same after every step."""
    ends = End(together=True), End(together=False)
    for step, data in [*steps, ("poll", None)]:
        polled = []
        for end in ends:
            if step == "poll":
                polled.append(end.poll())
            elif data and not end.connection.aborted:
                end.pump.on_data(memoryview(data))
        assert not polled or polled[0] == polled[1]
        assert ends[0].state() == ends[1].state()
        for end in ends:
            end.check_credit()


class Receiving(FakeConnection):
    """A connection that receives into the same memory again and again, and delivers again what its handler gave back, like the one
    over TCP."""

    unread_bytes = b""

    def __init__(self) -> None:
        super().__init__()
        self.memory = bytearray(8 * SEGMENT_BYTES)
        self.settle: list[Callable[[], None]] = []

    def lend(self, settle: Callable[[], None]) -> None:
        self.settle.append(settle)

    def unread(self, data: memoryview) -> bool:
        self.unread_bytes = bytes(data)
        return True

    def deliver(self, end: End, data: bytes) -> None:
        while self.settle:
            self.settle.pop()()
        again, self.unread_bytes = self.unread_bytes, b""
        size = len(again + data)
        self.memory[:size] = again + data
        end.pump.on_data(memoryview(self.memory)[:size])


def runs(sizes: list[int]) -> list[bytes]:
    """Return the frames of a channel's first buffers."""
    frames = [
        BufferResponse(receiver_id(0), 0, sequence, 3, DataType.DATA_BUFFER, bytes([sequence]) * size, False)
        for sequence, size in enumerate(sizes)
    ]
    return [b"".join(encode(frame, WireVersion.V2)) for frame in frames]


@pytest.mark.parametrize("missing", [1, SEGMENT_BYTES - 1, SEGMENT_BYTES])
async def test_a_buffer_that_lacks_a_few_bytes_is_read_again_with_its_end(missing) -> None:
    """It has no segment before it is complete. Then everything is as if the bytes had arrived together."""
    frames = runs([SEGMENT_BYTES] * 2)
    whole, cut = End(together=True), End(together=True)
    connection = cut.connection = Receiving()
    cut.pump.on_connected(connection)
    stream = b"".join(frames)
    connection.deliver(cut, stream[:-missing])
    assert connection.unread_bytes == frames[1][:-missing]
    assert cut.consumer.channel(0).queued == 1
    assert cut.consumer.channel(0).stats().exclusive == 1
    connection.deliver(cut, stream[-missing:])
    assert connection.unread_bytes == b""
    whole.pump.on_data(memoryview(stream))
    assert cut.consumer.channel(0).stats() == whole.consumer.channel(0).stats()
    polled = whole.poll()
    assert [data for _, _, _, data in polled] == [bytes([i]) * SEGMENT_BYTES for i in range(2)]
    assert cut.poll() == polled
    assert cut.state() == whole.state()


@pytest.mark.parametrize("version", list(WireVersion))
@pytest.mark.parametrize(
    ("there", "lacks_little"), [(0, False), (1, False), (-1, True), (-UNREAD_BYTES - 1, False)]
)
def test_only_the_end_of_a_buffer_is_worth_reading_again(version, there, lacks_little) -> None:
    """A header that is incomplete, or a payload of which much is missing, is decoded as far as it has arrived."""
    first, second = (
        b"".join(encode(BufferResponse(receiver_id(0), 0, number, 3, DataType.DATA_BUFFER, bytes(2 * UNREAD_BYTES), False), version))
        for number in range(2)
    )  # fmt: skip
    decoder = ClientDecoder(version, lambda *_: None)
    assert decoder.heads(memoryview(first + second[:there]), 0) is not None
    assert decoder.lacks_little == lacks_little


async def test_only_what_is_not_read_before_the_next_read_is_copied_into_its_segment() -> None:
    """The first buffer is recycled in time, the second is not."""
    end = End(together=True)
    connection = end.connection = Receiving()
    end.pump.on_connected(connection)
    frames = runs([SEGMENT_BYTES] * 3)
    connection.deliver(end, frames[0])
    _, first = end.consumer.gate.poll()
    assert first.view().obj is connection.memory
    first.recycle()
    connection.deliver(end, frames[1])
    connection.deliver(end, frames[2])
    (_, second), (_, third) = end.consumer.gate.poll(), end.consumer.gate.poll()
    assert (second.view(), third.view()) == (bytes([1]) * SEGMENT_BYTES, bytes([2]) * SEGMENT_BYTES)
    assert second.view().obj is not connection.memory
    assert third.view().obj is connection.memory


@pytest.mark.parametrize("version", list(WireVersion))
def test_a_long_run_is_read_in_bounded_parts(version) -> None:
    """A consumer without buffers reads no more than one part again, however much has arrived."""
    frames = [
        BufferResponse(receiver_id(1), 0, sequence, 0, DataType.DATA_BUFFER, bytes([sequence % 256]), False)
        for sequence in range(3 * RUN_FRAMES + 1)
    ]
    view = memoryview(b"".join(part for frame in frames for part in encode(frame, version)))
    decoder, position, found = ClientDecoder(version, lambda *_: None), 0, []
    while (run := decoder.heads(view, position)) is not None:
        found.append([sequence for _, _, sequence, *_ in run[2]])
        position = run[2][-1][1]
    assert [len(part) for part in found] == [RUN_FRAMES] * 3 + [1]
    assert [sequence for part in found for sequence in part] == list(range(len(frames)))


@pytest.mark.parametrize("version", list(WireVersion))
def test_buffers_that_leave_together_are_encoded_as_one_by_one(version) -> None:
    """The bytes are those of `encode`, in both layouts."""
    types = (DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END)
    buffers = [Buffer(memoryview(bytes([i]) * (i + 1)), types[i % 2], compressed=i == 2) for i in range(3)]
    run = Run(buffers, 9, 2**31 - 3)
    single = [
        part
        for buffer, backlog, sequence in run
        for part in encode(
            BufferResponse(
                receiver_id(3), 5, sequence, backlog, buffer.data_type, buffer.view(), buffer.compressed
            ),
            version,
        )
    ]
    assert encode_run(receiver_id(3), 5, run, version) == single
    with pytest.raises(struct.error):
        encode_run(receiver_id(3), 5, Run(buffers, 9, 2**31 - 2), version)


@pytest.mark.parametrize("version", WireVersion)
@pytest.mark.parametrize("size", [1, 64])
def test_a_run_of_full_buffers_is_encoded_like_its_buffers(version: WireVersion, size: int) -> None:
    """Only sequence number and backlog are packed for each of them."""
    buffers = [Buffer(memoryview(bytes([i]) * size), DataType.DATA_BUFFER) for i in range(3)]
    for receiver in (receiver_id(3), receiver_id(4)):
        uneven, even = Run(buffers, 2, 2**31 - 3), Run(buffers, 2, 2**31 - 3, size)
        assert encode_run(receiver, 5, even, version) == encode_run(receiver, 5, uneven, version)
    with pytest.raises(struct.error):
        encode_run(receiver_id(3), 5, Run(buffers, 2, 2**31 - 2, size), version)


async def test_the_producer_fills_returned_segments_before_the_next_piece_leaves() -> None:
    """Six buffers leave together, then four. The last one reports the backlog behind it, not the end of a queue sent at once."""
    size, loop, tap, connection = 32 * 1024, asyncio.get_running_loop(), Tap(), FakeConnection()
    pool = NetworkBufferPool(10, size).create_buffer_pool(2, 10, subpartitions=1)
    partition, manager = ResultPartition(partition_id(), 1, pool), ResultPartitionManager(started=0.0)
    manager.register(partition)

    def produce() -> None:
        while not partition.is_released and partition.emit(0, bytes(size)):
            pass
        pool.when_available(lambda: loop.call_soon(produce))

    produce()
    pump = _ServerPump(DataServer(None, manager, name="tm-0", options=Options({}), tap=tap))
    pump.on_connected(connection)
    request = PartitionRequest(partition_id(), 0, 0, receiver_id(1), 10)
    pump.on_data(memoryview(b"".join(encode(request, WireVersion.V2))))
    await eventually(lambda: len(connection.sent) > 1)
    assert [len(sent) // size for sent in connection.sent] == [6, 4]
    backlogs = [frame.backlog for side, frame in tap.frames if side == "sent"]
    assert backlogs == [8, 7, 6, 5, 4, 3, 8, 7, 6, 5]
    pump.on_closed(None)
    partition.release()
