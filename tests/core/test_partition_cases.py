"""Cases of ResultPartitionTest, BoundedBlockingSubpartitionTest and TaskEventDispatcherTest: memory, the end, flushes and events."""

from __future__ import annotations

import io

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import (
    EndOfData,
    EndOfPartition,
    Event,
    OtherEvent,
    StopMode,
    decode_event,
)
from testbed_runtime.core.exchange.partition import EVERY, ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.sizing import result_partition_buffers
from testbed_runtime.core.exchange.subpartition import SubpartitionView
from testbed_runtime.core.options import Options
from testbed_runtime.core.values import MAX_INT
from tests.core.exchange_model import SEGMENT_BYTES, nothing, partition_id

RECORD = b"\0\0\4\0"


class Result:
    """A result with its pool, on a TaskManager with ten segments."""

    def __init__(self, subpartitions: int = 2, *, blocking: bool = False) -> None:
        self.network = NetworkBufferPool(10, SEGMENT_BYTES)
        pool = self.network.create_buffer_pool(subpartitions + 1, MAX_INT, subpartitions=subpartitions)
        file = io.BytesIO() if blocking else None
        self.partition = ResultPartition(partition_id(), subpartitions, pool, file=file)
        self.manager = ResultPartitionManager()
        self.manager.register(self.partition)

    def view(self, index: int = 0) -> SubpartitionView:
        return self.partition.create_view(index, nothing)


def read(view: SubpartitionView) -> list[bytes | Event]:
    """Everything that can be read now."""
    found: list[bytes | Event] = []
    while (polled := view.poll()) is not None:
        data = bytes(polled.buffer.view())
        found.append(data if polled.buffer.is_buffer else decode_event(data))
        polled.buffer.recycle()
    return found


def test_F_118_a_task_that_ends_gives_up_its_pool_and_its_result_keeps_what_is_queued() -> None:
    """All ten segments are queued. The pool is gone at once, and the segments return with the release of the result."""
    result = Result(1)
    for _ in range(10):
        assert result.partition.emit(0, bytes(SEGMENT_BYTES)) == SEGMENT_BYTES
    assert result.partition.pool.available_segments == 0
    result.partition.close()
    assert result.partition.pool.destroyed
    assert (result.network.outstanding, result.network.required, result.network.pools) == (10, 0, [])
    result.partition.release()
    assert result.network.outstanding == 0


def test_F_118_other_pools_grow_when_a_task_ends() -> None:
    """A reader that takes its time no longer holds back the segments that the task had been promised."""
    result = Result(4)
    other = result.network.create_buffer_pool(1, MAX_INT)
    assert other.size < 9
    result.partition.emit(0, RECORD)
    result.partition.finish()
    result.partition.close()
    assert other.size == 10
    assert not result.partition.is_released


def test_F_119_a_result_is_available_while_its_pool_has_a_segment() -> None:
    """With two segments, two records that fill them make it unavailable."""
    result = Result(1)
    result.partition.pool.set_num_buffers(2)
    assert result.partition.pool.is_available
    for _ in range(2):
        assert result.partition.emit(0, bytes(SEGMENT_BYTES)) == SEGMENT_BYTES
    assert not result.partition.pool.is_available


def test_F_120_all_records_are_processed_when_the_last_reader_has_acknowledged_the_end_of_data() -> None:
    """Each subpartition has one END_OF_DATA."""
    result = Result(2)
    result.partition.notify_end_of_data()
    views = [result.view(index) for index in range(2)]
    assert [read(view) for view in views] == [[EndOfData(StopMode.DRAIN)]] * 2
    done = []
    for view in views:
        done.append(result.partition.all_data_processed)
        view.acknowledge_all_data_processed()
    assert done == [False, False]
    assert result.partition.all_data_processed


@pytest.mark.parametrize("blocking", [False, True], ids=["pipelined", "blocking"])
def test_the_end_of_the_data_is_announced_once(blocking: bool) -> None:
    """A second announcement, even of another mode, sends nothing (hasNotifiedEndOfUserRecords)."""
    result = Result(1, blocking=blocking)
    for drain in (True, False):
        result.partition.notify_end_of_data(drain)
    result.partition.finish()
    assert read(result.view()) == [EndOfData(StopMode.DRAIN), EndOfPartition()]


def test_F_121_a_blocking_result_is_read_as_often_as_readers_come() -> None:
    """Its readers leave, and it stays."""
    result = Result(blocking=True)
    result.partition.finish()
    for _ in range(2):
        result.view().release()
        assert result.manager.partitions == (result.partition,)
        assert not result.partition.is_released


def test_F_172_a_blocking_result_is_not_released_when_it_was_consumed() -> None:
    """ResultPartitionFactoryTest.testNoReleaseOnConsumptionForBoundedBlockingPartition: neither before its task ends nor after."""
    result = Result(1, blocking=True)
    result.partition.finish()
    result.partition.on_consumed(0)
    assert not result.partition.is_released
    result.partition.close()
    assert not result.partition.is_released
    assert read(result.view()) == [EndOfPartition()]


def test_F_122_a_record_for_all_subpartitions_continues_in_a_second_buffer() -> None:
    """A third of a buffer, and then as much as a whole one holds: two buffers, of which the second begins inside a record."""
    result, third = Result(2), SEGMENT_BYTES // 3
    result.partition.emit(EVERY, bytes(third), record_bytes=third)
    result.partition.emit(EVERY, bytes(SEGMENT_BYTES), record_bytes=SEGMENT_BYTES)
    result.partition.flush_all()
    for index in range(2):
        assert len(result.partition.subpartitions[index]) == 2
        assert [len(data) for data in read(result.view(index)) if isinstance(data, bytes)] == [
            SEGMENT_BYTES,
            third,
        ]


def test_F_123_a_flush_ends_the_buffers_of_a_blocking_result() -> None:
    """Four records in four buffers: a flush comes after the first and the third, and the second one is for one subpartition."""
    result = Result(2, blocking=True)
    partition = result.partition
    partition.emit(0, RECORD)
    partition.flush(0)
    partition.emit(0, RECORD)
    partition.emit(EVERY, RECORD)
    partition.flush_all()
    partition.emit(EVERY, RECORD)
    partition.finish()
    assert read(result.view(0)) == [RECORD] * 4 + [EndOfPartition()]
    assert read(result.view(1)) == [RECORD] * 2 + [EndOfPartition()]


def test_F_124_a_blocking_result_is_not_read_before_its_end() -> None:
    """The request is an error."""
    result = Result(blocking=True)
    with pytest.raises(FlinkError) as refused:
        result.view()
    assert refused.value.class_name == "IllegalStateException"


@pytest.mark.parametrize(("bounded", "most"), [(True, 2 * 2 + 8), (False, MAX_INT)])
def test_F_125_a_result_requires_a_buffer_per_subpartition_and_one_more(bounded: bool, most: int) -> None:
    """A bounded one has two for each of two subpartitions and eight floating ones at most."""
    assert result_partition_buffers(Options({}), 2, bounded=bounded) == (3, most)


def test_F_126_an_event_of_a_reader_reaches_the_task_that_has_the_result() -> None:
    """It is published also if the task does not subscribe, but not to an unknown result."""
    result, event = Result(), OtherEvent("a.AllWorkersDoneEvent", b"")
    got = list[Event]()
    assert not result.manager.publish(partition_id(1), event)
    assert result.manager.publish(partition_id(), event)
    result.partition.on_task_event = got.append
    assert result.manager.publish(partition_id(), event)
    assert got == [event]


def test_F_127_no_event_reaches_a_task_that_has_ended() -> None:
    """Its result may still be read."""
    result, got = Result(), list[Event]()
    result.partition.on_task_event = got.append
    result.partition.finish()
    result.partition.close()
    assert not result.manager.publish(partition_id(), OtherEvent("a.AllWorkersDoneEvent", b""))
    assert got == []
    assert not result.partition.is_released


def test_a_sorted_result_needs_two_buffers() -> None:
    """SortMergeResultPartition: from the minimum parallelism on. Below it, a blocking result has no limit."""
    options = {
        "taskmanager.network.sort-shuffle.min-parallelism": "3",
        "taskmanager.network.sort-shuffle.min-buffers": "2",
    }
    found = [result_partition_buffers(Options(options), count, blocking=True) for count in (2, 3)]
    assert found == [(3, MAX_INT), (2, 12)]
    with pytest.raises(
        FlinkError, match=r"Too few sort buffers, please increase Key: 'taskmanager.network.sort-shuffle"
    ):
        result_partition_buffers(
            Options(options | {"taskmanager.network.sort-shuffle.min-buffers": "1"}), 3, blocking=True
        )
