"""Cases of RecordWriterTest and BroadcastRecordWriterTest: records and events for all subpartitions of a result."""

from __future__ import annotations

import pytest
from exchange_model import barrier, nothing, partition_id, producer_pool

from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import CheckpointBarrier, EndOfPartition, decode_event
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import EVERY, ResultPartition
from testbed_runtime.core.exchange.subpartition import SubpartitionView

LENGTH_BYTES = 4
both_memories = pytest.mark.parametrize("memory", [True, False], ids=["memory", "no memory"])


class Writer:
    """A result whose records have the length that Flink's serializer writes before them."""

    def __init__(self, subpartitions: int, segment: int, *, memory: bool = True, size: int = 64) -> None:
        network = NetworkBufferPool(64, segment, memory=memory)
        self.result = ResultPartition(
            partition_id(), subpartitions, producer_pool(network, subpartitions, size)
        )
        self.pool = self.result.pool

    def write(self, subpartition: int, payload: bytes) -> bytes:
        framed = len(payload).to_bytes(LENGTH_BYTES, "big") + payload
        assert self.result.emit(subpartition, framed, record_bytes=len(framed)) == len(framed)
        return framed

    @property
    def queued(self) -> list[int]:
        return [len(s) for s in self.result.subpartitions]

    def view(self, subpartition: int) -> SubpartitionView:
        return self.result.create_view(subpartition, nothing)

    def read(self, subpartition: int) -> list[bytes]:
        """Read everything and return its buffers to the pool."""
        return [bytes_of(buffer) for buffer in read_all(self.view(subpartition))]


def read_all(view: SubpartitionView) -> list[Buffer]:
    found = []
    while (polled := view.poll()) is not None:
        found.append(polled.buffer)
    return found


def bytes_of(buffer: Buffer) -> bytes:
    data = bytes(buffer.view())
    buffer.recycle()
    return data


def test_F_89_an_event_without_records_needs_no_buffer() -> None:
    """Each of four subpartitions has it, and nothing else."""
    writer = Writer(4, 32)
    sent = barrier(2**31 + 919192)
    writer.result.broadcast_event(sent)
    assert (writer.pool.used, writer.queued) == (0, [1] * 4)
    for index in range(4):
        view = writer.view(index)
        assert [decode_event(bytes_of(b)) for b in read_all(view)] == [sent]
        assert view.availability(credit=True)[0] is False


@pytest.mark.parametrize(("broadcast", "used", "queued"), [(True, 3, [4, 4, 4, 4]), (False, 4, [2, 3, 2, 1])])
def test_F_90_an_event_follows_the_records_before_it(broadcast: bool, used: int, queued: list[int]) -> None:
    """Records of half a buffer, of more than one and of exactly one. Those for all subpartitions are in three buffers."""
    writer = Writer(4, 32)
    for number, size in enumerate((16, 33, 28)):
        writer.write(EVERY if broadcast else number, bytes([number]) * size)
    writer.result.broadcast_event(barrier(7))
    assert (writer.pool.used, writer.queued) == (used, queued)
    for index in range(4):
        *data, event = read_all(writer.view(index))
        assert [b.is_buffer for b in data] == [True] * (queued[index] - 1)
        assert isinstance(decode_event(bytes_of(event)), CheckpointBarrier)
        for buffer in data:
            buffer.recycle()
    assert writer.pool.used == 0


def test_F_91_a_record_and_an_event_for_all_are_read_independently() -> None:
    """One reader takes its part of a shared buffer before the other has read anything, and the event keeps its bytes."""
    writer = Writer(2, 4096)
    framed = writer.write(EVERY, bytes(4))
    assert (writer.queued, writer.pool.used) == ([1, 1], 1)
    first, second = writer.view(0), writer.view(1)
    assert [bytes_of(b) for b in read_all(first)] == [framed]
    more = writer.write(EVERY, b"more")
    assert [bytes_of(b) for b in read_all(first)] == [more]
    assert [bytes_of(b) for b in read_all(second)] == [framed + more]
    writer.result.broadcast_event(EndOfPartition())
    assert [len(read_all(view)) for view in (first, second)] == [1, 1]
    assert writer.pool.used == 0


@both_memories
@pytest.mark.parametrize(("broadcast", "used"), [(True, 2), (False, 8)])
def test_F_92_eight_records_for_four_subpartitions_are_in_two_buffers(
    broadcast: bool, used: int, memory: bool
) -> None:
    """Four records of 8 bytes fill one. Written for each subpartition on its own, they need four times as many."""
    writer = Writer(4, 32, memory=memory)
    sent = b""
    for number in range(8):
        for target in [EVERY] if broadcast else range(4):
            framed = writer.write(target, number.to_bytes(4, "big"))
        sent += framed
    assert (writer.pool.used, writer.queued) == (used, [2] * 4)
    for index in range(4):
        assert b"".join(writer.read(index)) == sent
    assert writer.pool.used == 0


def test_F_93_a_writer_is_available_while_its_pool_has_a_buffer() -> None:
    """A pool with one buffer: it is not while that buffer is taken."""
    network = NetworkBufferPool(10, 128)
    pool = network.create_buffer_pool(1, 1)
    seen = [pool.is_available]
    builder = pool.request_builder()
    assert builder is not None
    seen.append(pool.is_available)
    builder.finish()
    builder.build_last().recycle()
    assert [*seen, pool.is_available] == [True, False, True]


@both_memories
def test_F_94_records_for_one_and_for_all_keep_their_order(memory: bool) -> None:
    """Each record to one of eight subpartitions and then to all: every change of the kind ends a buffer."""
    writer = Writer(8, 32, memory=memory)
    expected: list[bytes] = [b""] * 8
    for number in range(8):
        payload = bytes([number]) * 4
        expected[number] += writer.write(number, payload)
        framed = writer.write(EVERY, payload)
        expected = [data + framed for data in expected]
    assert (writer.pool.used, writer.queued) == (16, [9] * 8)
    assert [b"".join(writer.read(index)) for index in range(8)] == expected
    assert writer.pool.used == 1  # the last one still grows


@both_memories
def test_F_95_a_shared_buffer_returns_when_all_have_read_it(memory: bool) -> None:
    """The first reader frees nothing; the buffer of a record for one subpartition is another one."""
    writer = Writer(2, 16, memory=memory, size=3)
    first = [writer.pool.request(), writer.pool.request()]
    for buffer in first:
        assert buffer is not None
        buffer.recycle()
    assert writer.pool.available_segments == 3
    writer.write(EVERY, b"\0\0\0\1")
    writer.write(EVERY, b"\0\0\0\2")
    assert writer.pool.available_segments == 2
    assert [len(data) for data in writer.read(0)] == [16]
    assert writer.pool.available_segments == 2
    writer.write(0, b"\0\0\0\3")
    assert writer.pool.available_segments == 1
    assert [len(data) for data in writer.read(1)] == [16]
    assert writer.pool.available_segments == 2


def test_F_96_a_shared_buffer_has_the_smallest_size_that_a_reader_asks_for() -> None:
    """Sizes of 6 and 10, then 4 and 12, then 8 and 5: both get what the smaller one allows."""
    writer = Writer(2, 32)
    views = [writer.view(0), writer.view(1)]
    sizes = []
    for asked, records in (((6, 10), (6,)), ((4, 12), (3, 7)), ((8, 5), (3,))):
        for view, size in zip(views, asked, strict=True):
            view.notify_new_buffer_size(size)
        for size in records:
            assert writer.result.emit(EVERY, bytes(size), record_bytes=size) == size
        sizes.append([[len(bytes_of(b)) for b in read_all(view)] for view in views])
    assert sizes == [[[6]] * 2, [[4, 6]] * 2, [[3]] * 2]


def test_F_97_a_shared_buffer_is_not_smaller_than_its_first_record() -> None:
    """31 bytes at once, although the readers ask for 6 and 10."""
    writer = Writer(2, 32)
    views = [writer.view(0), writer.view(1)]
    for view, size in zip(views, (6, 10), strict=True):
        view.notify_new_buffer_size(size)
    writer.result.emit(EVERY, bytes(31), record_bytes=31)
    assert [[len(bytes_of(b)) for b in read_all(view)] for view in views] == [[31]] * 2


def test_in_1_14_shared_buffers_are_not_debloated() -> None:
    """The readers ask for 6 and 10 bytes, and get the 32 of a segment."""
    writer = Writer(2, 32)
    writer.result.buffers_fit_records = False
    views = [writer.view(0), writer.view(1)]
    for view, size in zip(views, (6, 10), strict=True):
        view.notify_new_buffer_size(size)
    for _ in range(5):
        assert writer.result.emit(EVERY, bytes(8), record_bytes=8) == 8
    assert [[len(bytes_of(b)) for b in read_all(view)] for view in views] == [[32, 8]] * 2
