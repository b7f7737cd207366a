"""Cases of SubpartitionTestBase, ResultPartitionTest, PartitionRequestListenerManagerTest and EventSerializerTest."""

from __future__ import annotations

import io
from random import Random
from typing import IO

import numpy as np
import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.blocking import BlockingSubpartition, ResultFile
from testbed_runtime.core.exchange.buffers import BufferBuilder, MemorySegment, NetworkBufferPool
from testbed_runtime.core.exchange.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    EndOfSegment,
    EndOfSuperstep,
    Event,
    EventAnnouncement,
    OtherEvent,
    RecoveryMetadata,
    SavepointFormat,
    SnapshotType,
    StopMode,
    SubtaskConnectionDescriptor,
    data_type_of,
    decode_event,
    encode_event,
)
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.partition import EVERY, ResultPartition
from testbed_runtime.core.exchange.partitions import PartitionRequestListener, ResultPartitionManager
from testbed_runtime.core.exchange.subpartition import PipelinedSubpartition
from tests.core.exchange_model import nothing, partition_id
from tests.core.test_partition_cases import Result
from tests.core.test_subpartition import Owner

END = encode_event(EndOfPartition())
BUFFER_BYTES = 4096
both_kinds = pytest.mark.parametrize("blocking", [False, True], ids=["pipelined", "blocking"])


class Home:
    """Counts the segments that return."""

    def __init__(self) -> None:
        self.returned = 0

    def recycle(self, segment: MemorySegment) -> None:
        del segment
        self.returned += 1

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        self.returned += len(segments)

    def filled(self, size: int = BUFFER_BYTES) -> BufferBuilder:
        """A builder that is full and finished."""
        builder = BufferBuilder(MemorySegment(size), self)
        builder.append(memoryview(bytes(size)))
        builder.finish()
        return builder


class FullDisk(io.BytesIO):
    """A file on a disk without space."""

    def write(self, data: object) -> int:
        del data
        raise OSError("no space left on device")


def subpartition(blocking: bool, file: IO[bytes] | None = None) -> PipelinedSubpartition:
    if not blocking:
        return PipelinedSubpartition(0, Owner())
    return BlockingSubpartition(0, Owner(), ResultFile(file or io.BytesIO()))


def finish(made: PipelinedSubpartition) -> None:
    made.add(BufferBuilder.of_event(END, DataType.END_OF_PARTITION), last=True)


def elements(made: PipelinedSubpartition) -> tuple[int, int]:
    """How many elements it has had, and how many of them are data."""
    if isinstance(made, BlockingSubpartition):
        return len(made.elements), made.data_buffers
    return len(made), made.backlog_buffers


@both_kinds
def test_F_152_a_released_subpartition_has_no_reader_and_takes_no_buffer(blocking: bool) -> None:
    """createReaderAfterDispose, testAddAfterRelease: the buffer returns at once."""
    made, home = subpartition(blocking), Home()
    made.release()
    assert not made.add(home.filled())
    assert home.returned == 1
    with pytest.raises(FlinkError) as refused:
        made.create_view(nothing)
    assert refused.value.class_name == "IllegalStateException"


@both_kinds
def test_F_153_a_finished_subpartition_takes_no_buffer(blocking: bool) -> None:
    """testAddAfterFinish: its end is the only element."""
    made, home = subpartition(blocking), Home()
    finish(made)
    assert elements(made) == (1, 0)
    assert not made.add(home.filled())
    assert (home.returned, elements(made)) == (1, (1, 0))


@both_kinds
def test_F_154_a_reader_that_leaves_does_not_release_the_subpartition(blocking: bool) -> None:
    """testReleasingReaderDoesNotReleasePartition, testReadAfterDispose, testReleaseIsIdempotent: it may be released three times, and
    a reader that has left reads without an error."""
    made, home = subpartition(blocking), Home()
    made.add(home.filled())
    finish(made)
    view = made.create_view(nothing)
    assert (made.is_released, view.is_released) == (False, False)
    view.release()
    assert (made.is_released, view.is_released) == (False, True)
    assert view.poll() is None
    for _ in range(3):
        made.release()
    assert (made.is_released, home.returned) == (True, 1)


def test_F_155_a_buffer_that_cannot_be_written_returns() -> None:
    """testRecycleBufferAndConsumerOnFailure: the producer gets the error."""
    made, home = subpartition(blocking=True, file=FullDisk()), Home()
    with pytest.raises(FlinkError, match="cannot be written") as failed:
        made.add(home.filled(100))
    assert (failed.value.class_name, home.returned) == ("IOException", 1)


@both_kinds
def test_F_156_a_record_uses_a_buffer_only_while_its_result_is_written(blocking: bool) -> None:
    """testAddOnPipelinedPartition, testAddOnFinished… and testAddOnReleased…: a finished result refuses it, and a released one
    drops it."""
    result = Result(blocking=blocking)
    size = result.partition.pool.segment_bytes
    assert result.partition.emit(0, bytes(size)) == size
    assert result.partition.pool.used == 1
    result = Result(blocking=blocking)
    result.partition.finish()
    with pytest.raises(FlinkError) as refused:
        result.partition.emit(0, bytes(size))
    assert (refused.value.class_name, result.partition.pool.used) == ("IllegalStateException", 0)
    result = Result(blocking=blocking)
    result.partition.release()
    assert result.partition.emit(0, bytes(size)) == size
    assert result.partition.pool.used == 0


def test_F_157_a_result_that_has_failed_is_not_found() -> None:
    """testCreateSubpartitionOnFailingPartition, whether its failure has a cause or not."""
    for cause in (None, FlinkError("RuntimeException", "user code")):
        result = Result()
        result.manager.release(result.partition.partition_id, cause)
        with pytest.raises(FlinkError) as missing:
            result.manager.create_view(result.partition.partition_id, 0, nothing)
        assert missing.value.class_name == "PartitionNotFoundException"


def queued_bytes(partition: ResultPartition) -> int:
    return sum(len(e.unread()) for s in partition.subpartitions for e in (*s._priority, *s._buffers))


def test_F_158_the_bytes_that_are_queued_are_those_of_data_and_events() -> None:
    """testSizeOfQueuedBuffers: restored data, its end, records of two subpartitions whose readers ask for 10 bytes, an event, and a
    record for both. They are read in this order."""
    network = NetworkBufferPool(10, 1024)
    pool = network.create_buffer_pool(3, 10, subpartitions=2)
    partition = ResultPartition(partition_id(), 2, pool)
    first, second = partition.subpartitions
    sizes = []
    for made in (first, second):
        made.set_buffer_size(10)
    for index in (0, 1):
        partition.add_recovered(index, bytes(6))
        sizes.append(queued_bytes(partition))
    partition.end_recovery()
    sizes.append(queued_bytes(partition))
    for count in (3, 10):
        for index in (0, 1):
            partition.emit(index, bytes(count), record_bytes=count)
            sizes.append(queued_bytes(partition))
    partition.broadcast_event(EndOfPartition())
    sizes.append(queued_bytes(partition))
    for index, count in ((0, 5), (EVERY, 7)):
        partition.emit(index, bytes(count), record_bytes=count)
        sizes.append(queued_bytes(partition))
    assert sizes == [6, 12, 20, 23, 26, 36, 46, 54, 59, 73]

    order = [6, 6, 4, 4, 10, 10, 3, 3, 4, 4, 5, 7, 7]
    readers = [first, second] * 5 + [first, first, second]
    for number, (made, size) in enumerate(zip(readers, order, strict=True)):
        polled, before = made.poll(), queued_bytes(partition)
        assert polled is not None
        assert (polled.buffer.size, sum(order[number + 1 :])) == (size, before)
        polled.buffer.recycle()
        if number in (2, 3):
            made.resume()


def test_F_159_waiting_requests_are_kept_withdrawn_and_expire_one_by_one() -> None:
    """testAddListener, testRemoveListener and testRemoveExpiration: three of different channels. Two that came at 0 are older than a
    timeout of 1 ms; the one that has just come is not."""
    expired: list[int] = []

    def waiting(number: int, created: float) -> PartitionRequestListener:
        return PartitionRequestListener(
            partition_id(number), created, lambda partition: None, lambda: expired.append(number)
        )

    manager, now = ResultPartitionManager(request_timeout_s=0.001), 1_700_000_000.0
    kept = [waiting(number, now) for number in range(3)]
    for one in kept:
        manager.listen(one)
    assert manager.waiting == 3
    manager.withdraw(kept[0])
    assert (manager.waiting, expired) == (2, [])
    manager = ResultPartitionManager(request_timeout_s=0.001)
    for number, created in enumerate((0.0, 0.0, now)):
        manager.listen(waiting(number, created))
    manager.on_time(now)
    assert (manager.waiting, sorted(expired)) == (1, [0, 1])


LOCATION = bytes([15, 52, 52, 11, 0, 0, 0, 0, 255, 233, 237, 35])
EVENTS: list[Event] = [
    EndOfPartition(),
    EndOfSuperstep(),
    EndOfData(StopMode.DRAIN),
    EndOfData(StopMode.NO_DRAIN),
    CheckpointBarrier(1678, 4623784),
    CheckpointBarrier(1678, 4623784, snapshot_type=SnapshotType.FULL_CHECKPOINT),
    *(
        CheckpointBarrier(1678, 4623784, snapshot_type=kind, savepoint_format=form)
        for form in SavepointFormat
        for kind in (SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND, SnapshotType.SAVEPOINT_TERMINATE)
    ),
    OtherEvent("a.TestTaskEvent", b"\x3f\xe0\0\0\0\0\0\0\0\0\0\x02\xe0\xcb\xfa\xe9"),
    CancelCheckpointMarker(287087987329842),
    EventAnnouncement(44, CheckpointBarrier(42, 1337, alignment_timeout_ms=10)),
    SubtaskConnectionDescriptor(23, 42),
    EndOfSegment(),
    RecoveryMetadata(3),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_F_160_an_event_comes_back_as_it_was(event: Event) -> None:
    """testSerializeDeserializeEvent, testToBuffer and testToBufferConsumer: an event is no data, and complete from the start. Every
    barrier that does not overtake blocks its reader."""
    data = encode_event(event)
    assert decode_event(data) == event
    builder = BufferBuilder.of_event(data, data_type_of(event))
    assert (builder.is_buffer, builder.finished, builder.readable > 0) == (False, True, True)
    assert data_type_of(event).is_blocking_upstream is isinstance(event, CheckpointBarrier)


@pytest.mark.parametrize(
    ("kind", "location"),
    [
        (SnapshotType.SAVEPOINT_SUSPEND, LOCATION), (SnapshotType.SAVEPOINT, LOCATION), (SnapshotType.CHECKPOINT, LOCATION),
        (SnapshotType.FULL_CHECKPOINT, LOCATION), (SnapshotType.CHECKPOINT, None),
    ],
)  # fmt: skip
def test_F_161_a_barrier_keeps_its_kind_and_its_location(kind: SnapshotType, location: bytes | None) -> None:
    """CheckpointSerializationTest: the id and the time need more than 32 bits, and a location has any bytes."""
    numbers = 2**31 - 1 + 123123, 2**31 - 1 + 1228
    fields = {} if location is None else {"location": location}
    made = CheckpointBarrier(*numbers, snapshot_type=kind, **fields)  # type: ignore[arg-type]
    found = decode_event(encode_event(made))
    assert found == made
    assert isinstance(found, CheckpointBarrier)
    assert (found.checkpoint_id, found.timestamp_ms, found.location) == (*numbers, location)


def test_F_162_a_result_is_forgotten_when_its_reader_has_left_and_its_task_has_ended() -> None:
    """PipelinedSubpartitionWithReadViewTest.testRelease, in this order."""
    result = Result(1)
    result.view().release()
    assert result.manager.partitions == (result.partition,)
    result.partition.close()
    assert result.manager.partitions == ()


def test_F_163_no_event_reaches_a_task_after_the_shutdown_of_its_taskmanager() -> None:
    """TaskEventDispatcherTest.clearAll."""
    result, got = Result(), list[Event]()
    result.partition.on_task_event = got.append
    event = OtherEvent("a.AllWorkersDoneEvent", b"")
    assert result.manager.publish(result.partition.partition_id, event)
    result.manager.shut_down()
    assert not result.manager.publish(result.partition.partition_id, event)
    assert len(got) == 1


def test_F_164_a_builder_returns_its_segment_once_with_or_without_readers() -> None:
    """BufferBuilderAndConsumerTest.recycleWithoutConsumer and recycleConsumerAndBufferBuilder."""
    home = Home()
    BufferBuilder(MemorySegment(40), home).release()
    assert home.returned == 1
    builder = BufferBuilder(MemorySegment(40), home)
    builder.append(memoryview(b"abcd"))
    buffer = builder.build()
    builder.release()
    assert home.returned == 1
    buffer.recycle()
    assert home.returned == 2


def test_F_169_a_reader_that_comes_too_early_disturbs_nothing() -> None:
    """BoundedBlockingSubpartitionTest.testRecycleCurrentBufferOnFailure: the buffer that is being filled stays until the release."""
    made, home = subpartition(blocking=True), Home()
    builder = BufferBuilder(MemorySegment(100), home)
    made.add(builder)
    builder.append(memoryview(bytes(100)))
    with pytest.raises(FlinkError, match="unfinished blocking partition"):
        made.create_view(nothing)
    assert (home.returned, len(made)) == (0, 1)
    made.release()
    assert (home.returned, len(made)) == (1, 0)


@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "in turn"])
def test_F_170_ten_readers_of_a_blocking_result_get_the_same(together: bool) -> None:
    """BoundedBlockingSubpartitionWriteReadTest: testRead10ConsumersSequential, testRead10ConsumersConcurrent, of 100,000 numbers."""
    network = NetworkBufferPool(3, 4096)
    pool = network.create_buffer_pool(2, 3, subpartitions=1)
    partition = ResultPartition(partition_id(), 1, pool, file=io.BytesIO())
    numbers = np.arange(100_000, dtype=">i8").tobytes()
    assert partition.emit(0, numbers) == len(numbers)
    partition.finish()
    count = -(-len(numbers) // 4096)
    views = [partition.create_view(0, nothing) for _ in range(10)]
    found = [bytearray() for _ in views]
    steps = [(number, step) for number in range(10) for step in range(count)]
    for number, step in sorted(steps, key=lambda place: place[1]) if together else steps:
        polled = views[number].poll()
        assert polled is not None
        assert (polled.backlog, polled.sequence_number) == (count - 1 - step, step)
        found[number] += polled.buffer.view()
    assert set(map(bytes, found)) == {numbers}
    for view in views:
        ended = view.poll()
        assert ended is not None
        assert ended.buffer.data_type is DataType.END_OF_PARTITION
        assert view.poll() is None


@pytest.mark.parametrize("slow_producer", [False, True])
@pytest.mark.parametrize("slow_consumer", [False, True])
def test_F_171_a_reader_that_only_follows_notifications_gets_everything(
    slow_producer: bool, slow_consumer: bool
) -> None:
    """PipelinedSubpartitionTest.testConcurrent{Fast,Slow}ProduceAnd{Fast,Slow}Consume: 128 buffers of 8192 numbers, then the end."""
    made, home, draw = subpartition(blocking=False), Home(), Random(slow_producer + 2 * slow_consumer)
    notified: list[bool] = []
    view = made.create_view(lambda: notified.append(True))
    produced, read, may_read = 0, 0, False
    weights = [0.1 if slow_producer else 1.0, 0.1 if slow_consumer else 1.0]
    for _ in range(100_000):
        if draw.choices((True, False), weights)[0] and produced <= 128:
            if produced < 128:
                builder = BufferBuilder(MemorySegment(32 * 1024), home)
                first = produced * 8192
                builder.append(memoryview(np.arange(first, first + 8192, dtype=">i4").tobytes()))
                builder.finish()
                assert made.add(builder)
            else:
                finish(made)
            produced += 1
        elif may_read or notified:
            notified.clear()
            polled = view.poll()
            assert polled is not None
            may_read = polled.next_type is not DataType.NONE
            if not polled.buffer.is_buffer:
                break
            numbers = np.frombuffer(polled.buffer.view(), dtype=">i4")
            assert (numbers == np.arange(read * 8192, (read + 1) * 8192)).all()
            read += 1
            polled.buffer.recycle()
    assert (produced, read, home.returned) == (129, 128, 128)
    assert view.poll() is None
