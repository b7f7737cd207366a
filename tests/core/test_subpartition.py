"""Subpartitions: backlog, flush, blocking, priority."""

from __future__ import annotations

import pytest
from exchange_model import barrier

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import AlignmentType, EndOfPartition, data_type_of, encode_event
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer, BufferBuilder, MemorySegment
from testbed_runtime.core.exchange.subpartition import PipelinedSubpartition, SubpartitionView


class Owner:
    """A partition that records what its subpartition reports."""

    def __init__(self) -> None:
        self.failure_cause: FlinkError | None = None
        self.reports: list[str] = []

    def on_all_data_processed(self, index: int) -> None:
        self.reports.append(f"processed {index}")

    def on_barrier_sent(self, index: int) -> None:
        del index

    def on_consumed(self, index: int) -> None:
        self.reports.append(f"consumed {index}")


class Bench:
    """A subpartition with a view whose notifications are counted."""

    def __init__(self, exclusive: int = 2) -> None:
        self.owner = Owner()
        self.subpartition = PipelinedSubpartition(0, self.owner, name="p", exclusive=exclusive)
        self.notified = 0
        self.home = 0
        self.view: SubpartitionView = self.subpartition.create_view(self._notify)

    def _notify(self) -> None:
        self.notified += 1

    def data(self, data: bytes = b"x", *, finished: bool = True) -> BufferBuilder:
        builder = BufferBuilder(MemorySegment(8), self)
        builder.append(memoryview(data))
        if finished:
            builder.finish()
        self.subpartition.add(builder)
        return builder

    def recycle(self, _segment: MemorySegment) -> None:
        self.home += 1

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        self.home += len(segments)

    def event(self, number: int = 1, alignment: AlignmentType = AlignmentType.ALIGNED) -> None:
        data_type = {
            AlignmentType.ALIGNED: DataType.ALIGNED_CHECKPOINT_BARRIER,
            AlignmentType.UNALIGNED: DataType.PRIORITIZED_EVENT_BUFFER,
            AlignmentType.AT_LEAST_ONCE: DataType.EVENT_BUFFER,
        }[alignment]
        payload = encode_event(barrier(number, alignment))
        self.subpartition.add(BufferBuilder.of_event(payload, data_type))

    @property
    def available(self) -> bool:
        return self.subpartition.availability(credit=True)[0]

    def poll(self) -> tuple[DataType, int, DataType, int] | None:
        polled = self.view.poll()
        if polled is None:
            return None
        polled.buffer.recycle()
        return polled.buffer.data_type, polled.backlog, polled.next_type, polled.sequence_number


DATA, NONE = DataType.DATA_BUFFER, DataType.NONE


def test_F_41_a_single_finished_data_buffer_is_neither_available_nor_notified() -> None:
    """The last buffer usually still grows; the second one, a flush or an event says that there is something."""
    bench = Bench()
    bench.data()
    assert (bench.notified, bench.available, bench.subpartition.backlog) == (0, False, 0)
    bench.data()
    assert (bench.notified, bench.available, bench.subpartition.backlog) == (1, True, 1)
    bench.data()
    assert bench.notified == 1
    assert bench.poll() == (DATA, 1, DATA, 0)
    assert bench.poll() == (DATA, 0, NONE, 1)


def test_a_single_event_is_available_at_once() -> None:
    """It is finished from the start; an at-least-once barrier does not block."""
    bench = Bench()
    bench.event(alignment=AlignmentType.AT_LEAST_ONCE)
    assert (bench.notified, bench.available) == (1, True)
    assert bench.poll() == (DataType.EVENT_BUFFER, 0, NONE, 0)
    assert not bench.subpartition.is_blocked


def test_a_flush_makes_an_unfinished_buffer_readable_once() -> None:
    """Data written later needs another flush."""
    bench = Bench()
    bench.subpartition.flush()
    builder = bench.data(b"ab", finished=False)
    assert bench.poll() == (DATA, 0, NONE, 0)
    bench.subpartition.flush()
    assert bench.notified == 0
    builder.append(memoryview(b"cd"))
    bench.subpartition.flush()
    bench.subpartition.flush()
    assert bench.notified == 1
    assert bench.poll() == (DATA, 0, NONE, 1)
    assert not bench.available


def test_a_flush_with_several_buffers_does_not_notify_again() -> None:
    """The reader was notified when the second buffer arrived; the flushed last buffer counts in the backlog."""
    bench = Bench()
    bench.data()
    bench.data(finished=False)
    assert (bench.notified, bench.subpartition.backlog) == (1, 1)
    bench.subpartition.flush()
    assert (bench.notified, bench.subpartition.backlog) == (1, 2)
    assert bench.poll() == (DATA, 1, DATA, 0)
    assert bench.poll() == (DATA, 0, NONE, 1)


def test_a_blocking_event_stops_everything_behind_it_until_resumption() -> None:
    """Backlog 0 while blocked, no notification either."""
    bench = Bench()
    bench.data()
    bench.event()
    bench.data()
    bench.data()
    assert bench.poll() == (DATA, 1, DataType.ALIGNED_CHECKPOINT_BARRIER, 0)
    assert bench.poll() == (DataType.ALIGNED_CHECKPOINT_BARRIER, 0, NONE, 1)
    before = bench.notified
    bench.data()
    bench.subpartition.flush()
    assert bench.poll() is None
    assert (bench.notified, bench.subpartition.backlog, bench.view.availability(credit=True)) == (
        before,
        0,
        (False, 0),
    )
    bench.view.resume_consumption()
    assert bench.view.availability(credit=True) == (True, 3)
    assert bench.poll() == (DATA, 2, DATA, 2)
    with pytest.raises(FlinkError, match="Should be blocked by checkpoint"):
        bench.view.resume_consumption()


def test_F_177_F_178_a_priority_event_overtakes_also_in_a_blocked_subpartition() -> None:
    """Only the first of them notifies; its sequence number is that of its sending. With credit it is not reported as available
    (PipelinedSubpartition.isDataAvailableUnsafe), so a remote reader gets it after the resumption."""
    bench = Bench()
    bench.data()
    bench.event(1)
    bench.poll()
    bench.poll()
    bench.data()
    before = bench.notified
    bench.event(2, AlignmentType.UNALIGNED)
    bench.event(3, AlignmentType.UNALIGNED)
    assert bench.notified == before + 1
    assert bench.subpartition.availability(credit=True) == (False, 0)
    assert bench.subpartition.availability(credit=False) == (True, 0)
    assert bench.poll() == (DataType.PRIORITIZED_EVENT_BUFFER, 0, NONE, 2)
    assert bench.poll() == (DataType.PRIORITIZED_EVENT_BUFFER, 0, NONE, 3)
    assert bench.poll() is None


def test_a_flush_of_a_lone_priority_event_flushes_the_data_that_follows() -> None:
    """PipelinedSubpartition.flush looks at the only element, whatever it is, and remembers the request until the queue is read."""
    bench = Bench()
    bench.event(1, AlignmentType.UNALIGNED)
    before = bench.notified
    bench.subpartition.flush()
    assert bench.notified == before + 1
    bench.data(finished=False)
    assert bench.poll() == (DataType.PRIORITIZED_EVENT_BUFFER, 1, DATA, 0)
    assert bench.poll() == (DATA, 0, NONE, 1)


def test_I_05_only_the_newest_barrier_can_time_out() -> None:
    """PipelinedSubpartition keeps one channelStateFuture: a newer barrier fails the older one, and each overtakes once."""
    bench = Bench()
    for number in (1, 2):
        bench.data()
        event = barrier(number, alignment_timeout_ms=10)
        bench.subpartition.add(BufferBuilder.of_event(encode_event(event), data_type_of(event)))
    assert bench.subpartition.overtake(1) is None
    assert bench.subpartition.overtake(2) == (b"x", b"x")
    assert (bench.subpartition.overtake(2), bench.subpartition.overtake(1)) == (None, None)
    types = [polled[0] for _ in range(4) if (polled := bench.poll()) is not None]
    timeoutable = DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
    assert types == [DataType.PRIORITIZED_EVENT_BUFFER, DATA, timeoutable]  # which blocks the rest


def test_until_2_2_a_priority_event_waits_in_a_blocked_subpartition() -> None:
    """PipelinedSubpartition.pollBuffer and needNotifyPriorityEvent of 1.12 to 2.2. It leaves first after the resumption."""
    bench = Bench()
    bench.subpartition.priority_passes_block = False
    bench.event(1)
    assert bench.poll() == (DataType.ALIGNED_CHECKPOINT_BARRIER, 0, NONE, 0)
    before = bench.notified
    bench.data()
    bench.event(2, AlignmentType.UNALIGNED)
    assert (bench.notified, bench.poll()) == (before, None)
    bench.view.resume_consumption()
    assert bench.poll() == (DataType.PRIORITIZED_EVENT_BUFFER, 0, NONE, 1)


def test_a_priority_event_flushes_nothing() -> None:
    """Data behind it stays as unavailable as before: its last buffer is not announced (PipelinedSubpartitionTest.testBarrierOvertaking)."""
    bench = Bench()
    bench.data()
    bench.data()
    bench.event(1)
    bench.data()
    bench.event(2, AlignmentType.UNALIGNED)
    assert bench.notified == 2
    alone = Bench()
    alone.data()
    alone.event(1, AlignmentType.UNALIGNED)
    assert alone.poll() == (DataType.PRIORITIZED_EVENT_BUFFER, 0, NONE, 0)
    assert not alone.available


def test_a_flush_is_over_when_priority_events_were_all_that_waited() -> None:
    """The flush ends with the last element, whatever its section: later data must be flushed again."""
    bench = Bench()
    bench.event(1, AlignmentType.UNALIGNED)
    bench.event(2, AlignmentType.UNALIGNED)
    bench.subpartition.flush()
    bench.poll()
    bench.poll()
    assert not bench.available
    before = bench.notified
    bench.data(finished=False)
    assert (bench.notified, bench.available) == (before, False)
    bench.subpartition.flush()
    assert (bench.notified, bench.available) == (before + 1, True)
    assert bench.poll() == (DATA, 0, NONE, 2)


@pytest.mark.parametrize(("exclusive", "elements"), [(2, [0, 1]), (0, [0, 1, 2])])
def test_an_empty_finished_buffer_is_sent_only_to_a_receiver_without_exclusive_buffers(
    exclusive: int, elements: list[int]
) -> None:
    """Which must learn that it may free its credit."""
    bench = Bench(exclusive)
    builder = bench.data(b"ab", finished=False)
    bench.subpartition.flush()
    polled = [bench.poll()]
    builder.finish()
    bench.event(alignment=AlignmentType.AT_LEAST_ONCE)
    while (item := bench.poll()) is not None:
        polled.append(item)
    assert [item[3] for item in polled if item is not None] == elements
    assert bench.home == 1


def test_only_an_event_may_be_sent_without_credit() -> None:
    """Whatever is behind it."""
    bench = Bench()
    bench.data()
    bench.data()
    assert bench.view.availability(credit=False) == (False, 1)
    bench.event(2, AlignmentType.UNALIGNED)
    assert bench.view.availability(credit=False)[0]


def test_a_subpartition_is_read_once() -> None:
    """The second reader gets an error that names the partition."""
    bench = Bench()
    with pytest.raises(FlinkError) as caught:
        bench.subpartition.create_view(bench._notify)
    assert caught.value.message == (
        "Subpartition 0 of is being (or already has been) consumed, but pipelined subpartitions can only be "
        "consumed once. [p]"
    )


def test_the_end_notifies_and_nothing_follows_it() -> None:
    """Elements added later are released; the owner is notified that everything was consumed."""
    bench = Bench()
    bench.data()
    end = BufferBuilder.of_event(b"\x00\x00\x00\x00", DataType.END_OF_PARTITION)
    assert bench.subpartition.add(end, last=True)
    assert bench.notified == 1
    bench.data()
    assert bench.home == 1
    assert bench.poll() == (DATA, 0, DataType.END_OF_PARTITION, 0)
    assert bench.poll() == (DataType.END_OF_PARTITION, 0, NONE, 1)
    bench.view.acknowledge_all_data_processed()
    bench.view.release()
    bench.view.release()
    assert bench.owner.reports == ["processed 0", "consumed 0"]
    assert bench.view.poll() is None
    assert bench.view.availability(credit=True) == (False, 0)


def test_a_release_frees_what_is_queued_in_any_state() -> None:
    """The reader is not notified; its next poll returns nothing, and the cause is known."""
    bench = Bench()
    bench.data()
    bench.data(b"", finished=False)
    bench.event(2, AlignmentType.UNALIGNED)
    bench.owner.failure_cause = FlinkError("Exception", "boom")
    before = bench.notified
    bench.subpartition.release()
    bench.subpartition.release()
    assert (bench.home, bench.notified, bench.view.is_released) == (2, before, True)
    assert str(bench.view.failure_cause) == (
        "ProducerFailedException: java.lang.Exception: java.lang.Exception: boom"
    )
    assert bench.poll() is None
    bench.view.release()
    assert bench.owner.reports == ["consumed 0"], "a partition that was released ignores it"
    with pytest.raises(FlinkError, match="Already released"):
        bench.subpartition.create_view(bench._notify)


def test_a_negative_buffer_size_is_refused() -> None:
    """The debloater only asks for sizes."""
    with pytest.raises(FlinkError, match="IllegalArgumentException"):
        Bench().view.notify_new_buffer_size(-1)


def test_a_view_knows_that_it_has_delivered_the_end() -> None:
    """Neither data nor other events are the end; what follows the end does not change that."""
    bench = Bench()
    bench.data()
    bench.event(alignment=AlignmentType.AT_LEAST_ONCE)
    bench.subpartition.add(
        BufferBuilder.of_event(encode_event(EndOfPartition()), data_type_of(EndOfPartition()))
    )
    seen = []
    while bench.poll() is not None:
        seen.append(bench.subpartition.end_delivered)
    assert seen == [False, False, True]


def test_a_reader_that_comes_later_is_notified_of_what_is_queued() -> None:
    """A partition may be requested after its task has written. An empty subpartition notifies nothing."""
    for queued in (0, 1):
        subpartition = PipelinedSubpartition(0, Owner(), name="p", exclusive=2)
        if queued:
            subpartition.add(BufferBuilder.of_event(b"\0\0\0\0", DataType.EVENT_BUFFER))
        notified: list[int] = []
        subpartition.create_view(lambda notified=notified: notified.append(1))  # type: ignore[misc]
        assert len(notified) == queued


@pytest.mark.parametrize("after", ["end", "release"])
def test_buffers_that_come_together_too_late_are_recycled(after: str) -> None:
    """After the end of the partition, and after its release."""
    bench = Bench()
    if after == "end":
        bench.subpartition.add(BufferBuilder.of_event(b"\0\0\0\0", DataType.END_OF_PARTITION), last=True)
    else:
        bench.subpartition.release()
    before = bench.notified
    bench.subpartition.add_run([Buffer(memoryview(b"x"), DATA, MemorySegment(8), bench) for _ in range(2)])
    assert (bench.home, bench.notified) == (2, before)


@pytest.mark.parametrize("queued", [0, 1, 2])
@pytest.mark.parametrize("together", [1, 2, 3])
def test_buffers_that_come_together_notify_as_one_by_one(queued: int, together: int) -> None:
    """The second element makes the first one readable, and the third notifies no reader."""
    one, run = Bench(), Bench()
    for bench in (one, run):
        for _ in range(queued):
            bench.data()
    for _ in range(together):
        one.data()
    run.subpartition.add_run([Buffer(memoryview(b"x"), DATA, MemorySegment(8), run) for _ in range(together)])
    assert (run.notified, run.subpartition.backlog) == (one.notified, one.subpartition.backlog)


def test_an_element_that_comes_too_late_is_refused() -> None:
    """After the release, and after the end, whose own element is the last one taken."""
    bench = Bench()
    assert bench.subpartition.add(BufferBuilder.of_event(b"\0\0\0\0", DataType.EVENT_BUFFER))
    assert bench.subpartition.add(BufferBuilder.of_event(b"\0\0\0\0", DataType.END_OF_PARTITION), last=True)
    assert bench.subpartition.add(BufferBuilder.of_event(b"\0\0\0\0", DataType.EVENT_BUFFER)) is False
    released = Bench()
    released.subpartition.release()
    assert released.subpartition.add(BufferBuilder.of_event(b"\0\0\0\0", DataType.EVENT_BUFFER)) is False


@pytest.mark.parametrize("run", [0, 1, 2, 10], ids=lambda n: f"runs of {n}" if n else "one by one")
def test_each_buffer_that_is_sent_counts_once_by_its_reason(run: int) -> None:
    """Full, before an event, or flushed; in runs as one by one."""
    bench = Bench()
    for size in (8, 8, 3, 8):
        bench.data(b"x" * size)
    bench.event()
    sizes: list[int] = []

    def read() -> None:
        while True:
            found, _ = bench.view.poll_run(run, 11)
            sizes.extend(buffer.size for buffer, _, _ in found)
            if found.buffers:
                continue
            polled = bench.view.poll()
            if polled is None:
                return
            if polled.buffer.is_buffer:
                sizes.append(polled.buffer.size)
            elif polled.buffer.data_type.is_blocking_upstream:
                bench.view.resume_consumption()

    read()
    assert sizes == [8, 8, 3, 8]
    assert bench.subpartition.sent == [3, 0, 1]
    bench.data(b"x" * 5, finished=False)
    bench.subpartition.flush()
    read()
    assert (sizes[4:], bench.subpartition.sent) == ([5], [3, 1, 1])


def test_a_run_ends_before_an_event() -> None:
    """An event between the buffers is polled alone, and so is the last element of the queue."""
    bench = Bench()
    bench.data(b"x" * 8)
    bench.event(alignment=AlignmentType.AT_LEAST_ONCE)
    for size in (5, 8, 8):
        bench.data(b"x" * size)
    runs = []
    for _ in range(2):
        run, next_type = bench.view.poll_run(10, 100)
        runs.append(([buffer.size for buffer, _, _ in run], next_type))
        bench.view.poll()
    assert runs == [([8], DataType.EVENT_BUFFER), ([5, 8], DataType.NONE)]


def test_a_run_ends_with_the_buffer_that_reaches_its_bytes() -> None:
    """The rest comes with the next one."""
    bench = Bench()
    for size in (8, 3, 8, 8, 8):
        bench.data(b"x" * size)
    assert [[b.size for b, _, _ in bench.view.poll_run(10, most)[0]] for most in (11, 8, 100)] == [
        [8, 3],
        [8],
        [8],
    ]
