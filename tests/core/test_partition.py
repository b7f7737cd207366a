"""Result partitions: records into buffers, events, the end in two steps."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from exchange_model import Exchange, barrier, partition_id, producer_pool
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import EndOfData, EndOfPartition, StopMode, decode_event
from testbed_runtime.core.exchange.partition import ResultPartition, byte_view
from testbed_runtime.core.exchange.partitions import ResultPartitionManager


def partition(subpartitions: int = 1, size: int = 4, segment: int = 32) -> ResultPartition:
    network = NetworkBufferPool(32, segment)
    return ResultPartition(partition_id(), subpartitions, producer_pool(network, subpartitions, size))


def test_anything_contiguous_is_emitted_without_a_copy_of_the_whole() -> None:
    """Bytes, views, arrays, structured arrays."""
    records = np.zeros(2, dtype=[("key", ">i4"), ("value", ">i8")])
    records["key"] = (1, 2)
    assert bytes(byte_view(records)) == records.tobytes()
    assert bytes(byte_view(np.arange(3, dtype=np.int16))) == np.arange(3, dtype=np.int16).tobytes()
    assert bytes(byte_view(memoryview(b"abcd").cast("H"))) == b"abcd"
    view = memoryview(b"abcd")
    assert byte_view(view) is view


def test_emit_takes_what_fits_and_goes_on_when_the_pool_is_available() -> None:
    """Less than all is back-pressure; the bytes stay in order."""
    exchange = Exchange(producer_pool=4).start()
    data = bytes(range(200))
    taken = exchange.partition.emit(0, data)
    assert taken == 128
    assert exchange.partition.emit(0, data, offset=taken) == 0
    woken: list[int] = []
    exchange.partition.pool.when_available(lambda: woken.append(1))
    received = exchange.run()
    assert woken == [1]
    taken += exchange.partition.emit(0, data, offset=taken)
    assert taken == 200
    exchange.partition.flush_all()
    received += exchange.run()
    assert b"".join(element for _, element in received if isinstance(element, bytes)) == data
    exchange.close()


@given(
    sizes=st.lists(st.integers(1, 200), max_size=12),
    polls=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=12, max_size=12),
    most=st.sampled_from([1, 3, 2**31 - 1]),
    buffer_size=st.sampled_from([0, 8, 32, 64]),
)
def test_segments_that_are_filled_at_once_are_read_like_those_filled_in_pieces(
    sizes: list[int], polls: list[tuple[int, bool]], most: int, buffer_size: int
) -> None:
    """The same buffers, backlogs and notifications, and the same segments in use."""
    seen = []
    for piece in (1 << 30, 5):
        network, notified = NetworkBufferPool(32, 32), []
        pool = network.create_buffer_pool(2, 6, subpartitions=1, max_buffers_per_channel=most)
        result = ResultPartition(partition_id(), 1, pool)
        view = result.create_view(0, partial(notified.append, 1))
        view.notify_new_buffer_size(buffer_size)
        steps: list[object] = []
        for number, size in enumerate(sizes):
            data, taken = bytes([number]) * size, 0
            while taken < size:
                part = memoryview(data)[: taken + piece]
                accepted = result.emit(0, part, offset=taken, extend=False)
                taken += accepted
                if not accepted:
                    break
            steps.append((taken, pool.used, pool.is_available, result.queued, len(notified)))
            count, flushes = polls[number]
            if flushes:
                result.flush_all()
            for _ in range(count):
                if (polled := view.poll()) is not None:
                    steps.append((bytes(polled.buffer.view()), astuple(polled)[1:], len(notified)))
                    polled.buffer.recycle()
        result.release()
        assert network.outstanding == 0
        seen.append(steps)
    assert seen[0] == seen[1]


def test_only_read_only_memory_is_not_copied() -> None:
    """Whole segments of it are sent from where they are. Others are copied, so their writer may use them again."""
    network = NetworkBufferPool(4, 32)
    result = ResultPartition(partition_id(), 1, network.create_buffer_pool(4, 4, subpartitions=1))
    view = result.create_view(0, lambda: None)
    fixed, used_again = bytes(range(64)), bytearray(range(64, 128))
    assert result.emit(0, fixed) == result.emit(0, used_again) == 64
    used_again[:] = bytes(64)
    result.flush_all()
    result.finish()
    buffers = [view.poll().buffer for _ in range(4)]
    assert b"".join(buffer.view() for buffer in buffers) == bytes(range(128))
    assert [buffer.view().obj is fixed for buffer in buffers] == [True, True, False, False]
    assert network.outstanding == 4
    for buffer in buffers:
        buffer.recycle()
    result.release()
    assert network.outstanding == 0


def sent_under_back_pressure(*, flushes: bool) -> tuple[list[int], int, int]:
    """Write more than is read. Return the sizes of the buffers that were read meanwhile, the notifications, and the size of
    the buffer after the last whole one."""
    result, notified = partition(size=8), []
    view = result.create_view(0, lambda: notified.append(1))
    sizes = []
    for _ in range(60):
        result.emit(0, bytes(20))
        if flushes:
            result.flush_all()
        if len(result.subpartitions[0]) >= 3:  # there is credit for one buffer, and two stay behind
            polled = view.poll()
            assert polled is not None
            sizes.append(polled.buffer.size)
            polled.buffer.recycle()
    count = len(notified)
    while (polled := view.poll()) is not None:
        last = polled.buffer.size
        polled.buffer.recycle()
    result.release()
    return sizes, count, last


def test_the_flusher_changes_nothing_under_back_pressure() -> None:
    """As long as buffers wait for credit, a flush neither cuts a buffer short nor notifies the reader again."""
    plain, flushed = sent_under_back_pressure(flushes=False), sent_under_back_pressure(flushes=True)
    assert set(plain[0]) == {32}
    # 37 whole buffers and a begun one were written, and two have stayed
    assert len(plain[0]) == (60 * 20) // 32 - 1
    assert flushed[0] == plain[0]
    assert flushed[1] == plain[1] == 1
    assert (plain[2], flushed[2]) == (16, 16)  # 1200 bytes are 37 whole buffers and 16 bytes


def test_overdraft_lets_what_was_begun_be_finished() -> None:
    """Only when it is asked for."""
    network = NetworkBufferPool(32, 8)
    pool = network.create_buffer_pool(2, 2, subpartitions=1, max_overdraft=2)
    result = ResultPartition(partition_id(), 1, pool)
    assert result.emit(0, b"x" * 40) == 16
    assert result.emit(0, b"x" * 40, offset=16, overdraft=True) == 16
    assert pool.overdraft == 2
    result.release()
    assert network.outstanding == 0


def test_under_back_pressure_a_buffer_is_filled_beyond_the_size_asked_for() -> None:
    """The hint would only make it worse."""
    result = partition(size=2)
    result.subpartitions[0].set_buffer_size(8)
    assert result.emit(0, b"x" * 100) == 8 + 32


def test_a_buffer_grows_to_its_record_and_one_byte_more() -> None:
    """BufferWritingResultPartition.append: the byte keeps the buffer open, and the size asked for holds again afterwards."""
    result = partition(size=1)
    result.subpartitions[0].set_buffer_size(8)
    assert result.emit(0, bytes(10)) == 10
    assert result.emit(0, bytes(3)) == 3  # up to 14 of 32 bytes
    held = result.subpartitions[0]._buffers[0]
    assert (held.written, held.room, held.finished) == (13, 1, False)
    assert result.emit(0, bytes(40)) == 19  # the segment is full


def test_an_event_ends_the_buffers_that_grow_and_goes_to_everybody() -> None:
    """Records stay ahead of it."""
    exchange = Exchange(channels=2).start()
    exchange.partition.emit(0, b"before")
    exchange.partition.broadcast_event(barrier(1))
    exchange.partition.emit(0, b"after")
    exchange.partition.flush_all()
    assert sorted(exchange.run(), key=lambda item: item[0]) == [
        (0, b"before"),
        (0, barrier(1)),
        (1, barrier(1)),
    ]
    for index in (0, 1):
        exchange.gate.resume_consumption(index)
    exchange.settle()
    exchange.partition.flush_all()
    assert exchange.run() == [(0, b"after")]
    exchange.close()


def test_readers_of_one_event_do_not_disturb_each_other() -> None:
    """All subpartitions share its buffer: a reader that has recycled it takes nothing from the next one."""
    result = partition(subpartitions=3)
    views = [result.create_view(index, lambda: None) for index in range(3)]
    result.broadcast_event(barrier(7))
    for view in views:
        polled = view.poll()
        assert polled is not None
        assert decode_event(polled.buffer.view()) == barrier(7)
        polled.buffer.recycle()
        assert view.poll() is None


@pytest.mark.parametrize("drain", [True, False])
def test_the_end_comes_in_two_steps(drain: bool) -> None:
    """END_OF_DATA, everybody acknowledges, END_OF_PARTITION; then the partition frees itself and is forgotten."""
    processed: list[int] = []
    exchange = Exchange(channels=2)
    exchange.partition = ResultPartition(
        partition_id(), 2, exchange.partition.pool, on_all_data_processed=lambda: processed.append(1)
    )
    exchange.start()
    exchange.partition.notify_end_of_data(drain)
    mode = StopMode.DRAIN if drain else StopMode.NO_DRAIN
    assert sorted(exchange.run(), key=lambda item: item[0]) == [(0, EndOfData(mode)), (1, EndOfData(mode))]
    assert exchange.gate.received_end_of_data
    assert exchange.gate.draining is drain
    assert not exchange.partition.all_data_processed
    exchange.gate.acknowledge_all_records_processed()
    exchange.settle()
    assert exchange.partition.all_data_processed
    assert processed == [1]
    exchange.partition.finish()
    ended = exchange.run()
    assert sorted(index for index, event in ended if event == EndOfPartition()) == [0, 1]
    assert exchange.gate.finished
    exchange.settle()
    assert not exchange.partition.is_released
    exchange.partition.close()
    assert exchange.partition.is_consumed
    assert exchange.partition.is_released
    assert exchange.manager.partitions == ()
    exchange.close()


def test_a_consumer_that_vanishes_does_not_release_the_partition() -> None:
    """The writer stays blocked until its task is cancelled."""
    exchange = Exchange(producer_pool=4).start()
    exchange.partition.emit(0, b"x" * 500)
    exchange.server.on_closed()
    assert not exchange.partition.is_released
    assert exchange.partition.emit(0, b"x") == 0
    exchange.close()


def test_a_released_partition_refuses_records_with_its_cause() -> None:
    """Tasks that wait for the pool are woken."""
    result = partition()
    result.emit(0, b"x" * 500)
    woken: list[int] = []
    result.pool.when_available(lambda: woken.append(1))
    result.release(FlinkError("RuntimeException", "boom"))
    result.release()
    assert woken == [1]
    with pytest.raises(FlinkError, match="RuntimeException: boom"):
        result.emit(0, b"x")


def test_F_70_a_partition_that_was_released_without_a_cause_drops_records() -> None:
    """No reader is left: the records need no buffers, and the end is no error."""
    result = partition()
    result.emit(0, b"x")
    result.release()
    assert result.emit(0, b"x" * 500) == 500
    assert result.emit(0, b"x" * 500, offset=100) == 400
    result.finish()
    assert (result.queued, result.pool.used) == (0, 0)


def test_F_64_nothing_is_added_after_the_end_of_a_partition() -> None:
    """A record that came too late would be lost without a word."""
    result = partition()
    result.emit(0, b"x")
    result.finish()
    queued = result.queued
    text = "IllegalStateException: Partition already finished."
    with pytest.raises(FlinkError, match=text):
        result.emit(0, b"y")
    with pytest.raises(FlinkError, match=text):
        result.notify_end_of_data()
    with pytest.raises(FlinkError, match=text):
        result.finish()
    assert result.queued == queued
    result.release()


def test_a_manager_forgets_a_consumed_partition() -> None:
    """Registered callbacks are called."""
    result = partition()
    manager = ResultPartitionManager()
    manager.register(result)
    consumed: list[ResultPartition] = []
    result.when_consumed(consumed.append)
    view = result.create_view(0, lambda: None)
    result.finish()
    polled = view.poll()
    assert polled is not None
    result.close()
    assert consumed == []
    view.release()
    assert (consumed, manager.partitions) == ([result], ())


def test_F_60_a_partition_is_released_when_its_readers_have_left_and_its_task_has_closed_it() -> None:
    """PipelinedResultPartitionReleaseOnConsumptionTest.testConsumptionBasedPartitionRelease: whatever the readers have read."""
    result, manager = partition(2), ResultPartitionManager()
    manager.register(result)
    views = [result.create_view(index, lambda: None) for index in range(2)]
    views[0].release()
    assert not result.is_released
    views[1].release()
    assert not result.is_released
    result.close()
    assert result.is_released
    assert manager.partitions == ()


def test_F_61_a_partition_without_readers_takes_records_until_its_task_closes_it() -> None:
    """PipelinedResultPartitionReleaseOnConsumptionTest.testConsumptionBeforePartitionClose."""
    result = partition(1)
    assert result.emit(0, b"x" * 16) == 16
    result.create_view(0, lambda: None).release()
    assert not result.is_released
    assert result.emit(0, b"x" * 16) == 16
    result.close()
    assert result.is_released
    assert result.pool.destroyed


def test_F_62_F_63_a_reader_that_leaves_twice_counts_once() -> None:
    """PipelinedResultPartitionReleaseOnConsumptionTest.testMultipleReleaseCallsAreIdempotent and testReleaseAfterIdempotentCalls."""
    result = partition(2)
    result.on_consumed(0)
    result.on_consumed(0)
    result.close()
    result.close()
    assert not result.is_released
    result.on_consumed(1)
    assert result.is_released


def _sizes(result: ResultPartition, subpartition: int = 0) -> list[int]:
    """Finish the partition; the sizes of the buffers of a subpartition."""
    result.finish()
    view = result.create_view(subpartition, lambda: None)
    found = []
    while (polled := view.poll()) is not None:
        if polled.buffer.is_buffer:
            found.append(polled.buffer.size)
    return found


def _emit(result: ResultPartition, subpartition: int, *sizes: int) -> None:
    for size in sizes:
        assert result.emit(subpartition, bytes(size), record_bytes=size) == size


def _polled(result: ResultPartition, subpartition: int) -> list[int]:
    """The sizes of the next two buffers."""
    polled = [result.subpartitions[subpartition].poll() for _ in range(2)]
    return [each.buffer.size for each in polled if each is not None]


def test_F_65_each_subpartition_has_the_buffer_size_of_its_reader() -> None:
    """Another size holds from the next buffer on."""
    result = partition(2, size=16, segment=1024)
    for subpartition, size in zip(result.subpartitions, (10, 6), strict=True):
        subpartition.set_buffer_size(size)
    for index in (0, 1):
        _emit(result, index, 2, 10)
    assert [_polled(result, index) for index in (0, 1)] == [[10, 2], [6, 6]]
    for subpartition, size in zip(result.subpartitions, (13, 5), strict=True):
        subpartition.set_buffer_size(size)
    _emit(result, 0, 12, 8)
    _emit(result, 1, 2, 7)
    assert [_polled(result, index) for index in (0, 1)] == [[8, 12], [5, 4]]


def test_F_66_a_buffer_is_not_smaller_than_its_first_record() -> None:
    """12 and 111 bytes, although the readers ask for 10 and 7."""
    result = partition(2, size=16, segment=1024)
    for subpartition, size in zip(result.subpartitions, (10, 7), strict=True):
        subpartition.set_buffer_size(size)
    _emit(result, 0, 12)
    _emit(result, 1, 111)
    assert [_polled(result, index) for index in (0, 1)] == [[12], [111]]


def test_F_68_a_buffer_is_not_larger_than_its_segment() -> None:
    """Readers that ask for more change nothing."""
    result = partition(2, size=16, segment=1024)
    for subpartition, size in zip(result.subpartitions, (1025, 2**31 - 1), strict=True):
        subpartition.set_buffer_size(size)
    for index in (0, 1):
        _emit(result, index, 1024)
    assert [_polled(result, index) for index in (0, 1)] == [[1024], [1024]]


def test_F_69_the_last_buffer_grows_to_the_next_record() -> None:
    """Two records of 10 bytes in the only buffer, of which the reader asks for 1 byte."""
    network = NetworkBufferPool(1, 20)
    result = ResultPartition(partition_id(), 1, network.create_buffer_pool(1, 1, subpartitions=1))
    result.subpartitions[0].set_buffer_size(1)
    _emit(result, 0, 10, 10)
    assert _polled(result, 0) == [20]


def test_before_flink_1_19_the_last_buffer_does_not_grow() -> None:
    """The second of two records waits for another buffer, although the first one's has room for it."""
    network = NetworkBufferPool(1, 20)
    result = ResultPartition(partition_id(), 1, network.create_buffer_pool(1, 1, subpartitions=1))
    result.last_buffer_grows = False
    result.subpartitions[0].set_buffer_size(1)
    record = bytes(10)
    assert result.emit(0, record, record_bytes=10) == 10
    assert result.emit(0, record, record_bytes=10) == 0
    assert _polled(result, 0) == [10]


@pytest.mark.parametrize(
    ("record_bytes", "count", "expected"),
    [(20, 1, [20]), (20, 2, [20, 20]), (3, 3, [5, 4]), (70, 1, [32, 32, 6]), (66, 2, [32, 32, 5, 32, 31])],
)
def test_F_67_a_buffer_has_room_for_the_rest_of_a_record(
    record_bytes: int, count: int, expected: list[int]
) -> None:
    """The reader asks for 5 bytes, and segments have 32: no buffer ends within a record that fits into it."""
    result = partition(size=16)
    result.subpartitions[0].set_buffer_size(5)
    for _ in range(count):
        assert result.emit(0, bytes(record_bytes), record_bytes=record_bytes) == record_bytes
    assert _sizes(result) == expected


@pytest.mark.parametrize(
    ("records", "expected"),
    [([12], [10, 2]), ([4, 12], [10, 6]), ([40], [10, 30]), ([80], [10, 32, 32, 6])],
)
def test_in_1_14_a_debloated_buffer_ends_within_its_first_record(
    records: list[int], expected: list[int]
) -> None:
    """The reader asks for 10 bytes, and segments have 32: only what follows a cut has room for the rest (FLINK-24190)."""
    result = partition(size=16)
    result.buffers_fit_records = False
    result.subpartitions[0].set_buffer_size(10)
    for size in records:
        assert result.emit(0, bytes(size), record_bytes=size) == size
    assert _sizes(result) == expected


def test_F_66_records_that_are_written_together_fill_the_same_buffers() -> None:
    """Three records of 20 bytes at once, and one after the other."""
    for data in ([bytes(60)], [bytes(20)] * 3):
        result = partition(size=16)
        result.subpartitions[0].set_buffer_size(25)
        for part in data:
            result.emit(0, part, record_bytes=20)
        assert _sizes(result) == [25, 25, 10]


def test_a_flush_covers_an_event_that_is_not_read_yet() -> None:
    """Data behind the event can be read at once."""
    result = partition()
    view = result.create_view(0, lambda: None)
    result.broadcast_event(EndOfData(StopMode.DRAIN))
    result.flush_all()
    result.emit(0, b"x")
    assert view.poll() is not None
    assert view.availability(credit=True) == (True, 1)
