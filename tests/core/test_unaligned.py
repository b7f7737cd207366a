"""Unaligned checkpoints: the alternating handler, and what a barrier overtakes in subpartitions and channels."""

from __future__ import annotations

import pytest
from exchange_model import Consumer, Exchange, barrier, data_frame, deliver, partition_id

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.alignment import (
    ON_CANCELLATION_BARRIER,
    SUBSUMED,
    Abort,
    AlignedBarrierHandler,
    AlternatingBarrierHandler,
    BarrierPolicy,
    BarrierTracker,
    Complete,
    Effect,
    Overtaken,
    Prioritize,
    Resume,
    Trigger,
)
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import (
    NO_TIMEOUT_MS,
    AlignmentType,
    CheckpointBarrier,
    SnapshotType,
    encode_event,
)
from testbed_runtime.core.exchange.frames import BufferResponse, DataType
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.options import Options

UNALIGNED = AlignmentType.UNALIGNED
PREFIX = "execution.checkpointing."


def overtaking(checkpoint: int = 1) -> CheckpointBarrier:
    return barrier(checkpoint, UNALIGNED)


def limited(checkpoint: int = 1, *, timeout_ms: int = 100) -> CheckpointBarrier:
    """A barrier of t = 0 that times out."""
    return CheckpointBarrier(checkpoint, 0, AlignmentType.ALIGNED, timeout_ms)


def test_the_first_unaligned_barrier_triggers_and_the_last_completes() -> None:
    """The data of a channel belongs to the checkpoint until its own barrier arrives; nothing is blocked."""
    handler = AlternatingBarrierHandler(3)
    assert handler.on_barrier(1, overtaking(), 1.0) == [Trigger(overtaking(), 0.0), Overtaken(1)]
    assert handler.on_barrier(0, overtaking(), 2.0) == [Overtaken(0)]
    assert handler.on_barrier(2, overtaking(), 4.0) == [Overtaken(2), Complete(1, 3.0)]
    assert not handler.is_pending


def test_a_channel_that_ends_counts_as_aligned_in_time_and_as_overtaken_later() -> None:
    """Timeout 100 ms: as the last of two channels, as one of three before the timeout, and as one of three after it."""
    event = limited()
    last, middle, late = (AlternatingBarrierHandler(count) for count in (2, 3, 3))
    for handler in (last, middle, late):
        assert handler.on_barrier(0, event, 0.01) == []
    aligned = [Trigger(event.with_unaligned_supported(), pytest.approx(0.04)), Resume(0)]
    assert last.on_end_of_partition(1, 0.05) == aligned
    assert middle.on_end_of_partition(1, 0.03) == []
    assert middle.on_barrier(2, event, 0.05) == [*aligned, Resume(2)]
    unaligned = Trigger(event.as_unaligned(), pytest.approx(0.19))
    assert late.on_end_of_partition(1, 0.2) == [unaligned, Overtaken(0), Overtaken(1)]
    assert late.on_end_of_partition(2, 0.25) == [Overtaken(2), Resume(0), Complete(1, pytest.approx(0.24))]
    assert [handler.is_pending for handler in (last, middle, late)] == [False] * 3


def test_a_barrier_that_has_been_read_overtakes_nothing_any_more() -> None:
    """When the timeout turns the checkpoint into an unaligned one, only barriers that are still queued are let through."""
    handler = AlternatingBarrierHandler(3)
    for channel in (0, 1):
        assert handler.on_announcement(channel, 5 + channel, limited(), 0.01) == []
    assert handler.on_barrier(0, limited(), 0.02) == []
    assert handler.on_time(0.1) == [Prioritize(1, 6), Trigger(limited().as_unaligned(), pytest.approx(0.08)), Overtaken(0)]  # fmt: skip


def test_a_channel_that_ends_before_any_barrier_starts_nothing() -> None:
    """An announcement alone begins the checkpoint. The end of a channel is no barrier, and the next barrier triggers."""
    handler = AlternatingBarrierHandler(2)
    assert handler.on_announcement(0, 3, limited(), 0.01) == []
    assert handler.on_end_of_partition(1, 0.02) == []
    assert handler.on_barrier(0, limited(), 0.05) == [Trigger(limited().with_unaligned_supported(), pytest.approx(0.03)), Resume(0)]  # fmt: skip


def test_a_tracker_ignores_announcements() -> None:
    """The barrier itself follows."""
    tracker = BarrierTracker(2)
    assert tracker.on_announcement(0, 1, barrier(1), 0.0) == []
    assert not tracker.is_pending
    assert (tracker.deadline, tracker.on_time(99.0)) == (None, [])
    assert tracker.on_barrier(0, barrier(1), 1.0) == []
    assert tracker.is_pending


def test_an_announcement_begins_an_aligned_checkpoint_which_subsumes_the_one_before() -> None:
    """As in Flink's SingleCheckpointBarrierHandler. No timeout turns the checkpoint into an unaligned one."""
    handler = AlignedBarrierHandler(2)
    assert handler.on_barrier(0, barrier(1), 0.0) == []
    assert handler.on_announcement(0, 2, barrier(2), 1.0) == [Abort(1, SUBSUMED), Resume(0)]
    assert (handler.deadline, handler.on_time(99.0)) == (None, [])
    assert handler.is_pending


def test_I_05_announced_barriers_that_are_too_old_overtake_before_any_is_read() -> None:
    """Timeout 10 ms, two channels, read at 20 ms: one unaligned trigger, and both barriers overtake."""
    handler = AlternatingBarrierHandler(2)
    event = limited(timeout_ms=10)
    assert handler.on_announcement(0, 2, event, 0.020) == [Prioritize(0, 2)]
    assert handler.on_announcement(1, 1, event, 0.020) == [Prioritize(1, 1)]
    first = handler.on_barrier(0, event, 0.020)
    assert first == [Trigger(event.as_unaligned(), 0.0), Overtaken(0)]
    assert handler.on_barrier(1, event, 0.020) == [Overtaken(1), Resume(0), Resume(1), Complete(1, 0.0)]


def test_I_07_the_timer_triggers_without_further_input() -> None:
    """Timeout 100 ms, one of two barriers read, then 101 ms pass: exactly one unaligned checkpoint."""
    handler = AlternatingBarrierHandler(2)
    assert handler.on_barrier(0, limited(), 0.0) == []
    assert handler.deadline == 0.1
    assert handler.on_time(0.0999) == []
    effects = handler.on_time(0.101)
    assert effects == [Trigger(limited().as_unaligned(), 0.101), Overtaken(0)]
    assert handler.blocked == (0,)
    assert handler.deadline is None
    assert handler.on_time(0.2) == []


def test_I_08_checkpoints_and_savepoints_alternate_on_many_channels() -> None:
    """123 checkpoints on 123 channels, each second one a savepoint, which is aligned: all are triggered, in order."""
    policy = BarrierPolicy(unaligned=True)
    handler, triggered = AlternatingBarrierHandler(123), []
    for checkpoint in range(1, 124):
        kind = SnapshotType.SAVEPOINT if checkpoint % 2 else SnapshotType.CHECKPOINT
        event = policy.barrier(checkpoint, 0, kind)
        effects = [e for channel in range(123) for e in handler.on_barrier(channel, event, 0.0)]
        triggered += [e.barrier for e in effects if isinstance(e, Trigger)]
        resumed = [e.channel for e in effects if isinstance(e, Resume)]
        assert resumed == (list(range(123)) if checkpoint % 2 else [])
    assert [b.checkpoint_id for b in triggered] == list(range(1, 124))
    assert [b.alignment for b in triggered[:2]] == [AlignmentType.ALIGNED, UNALIGNED]


def test_a_checkpoint_that_aligns_in_time_stays_aligned() -> None:
    """The barrier goes on with its timeout, because it may still overtake the task's own output."""
    handler = AlternatingBarrierHandler(2)
    assert handler.on_announcement(1, 5, limited(), 0.01) == []
    assert handler.on_barrier(0, limited(), 0.02) == []
    aligned = Trigger(limited(), pytest.approx(0.03))  # since the first barrier, not since the announcement
    assert handler.on_barrier(1, limited(), 0.05) == [aligned, Resume(0), Resume(1)]
    assert handler.deadline is None


def test_a_late_announcement_of_a_timed_out_checkpoint_overtakes_at_once() -> None:
    """Channel 0 has switched the checkpoint; the announcement of channel 1 comes after that."""
    handler = AlternatingBarrierHandler(2)
    handler.on_barrier(0, limited(), 0.0)
    handler.on_time(0.1)
    assert handler.on_announcement(1, 9, limited(), 0.15) == [Prioritize(1, 9)]


def test_a_barrier_that_overtakes_takes_the_announced_and_the_aligned_ones_with_it() -> None:
    """Channel 0 has announced its barrier and channel 1 is blocked by one when channel 2's overtakes before the timeout."""
    handler = AlternatingBarrierHandler(3)
    assert handler.on_announcement(0, 7, limited(), 0.0) == []
    assert handler.on_barrier(1, limited(), 0.01) == []
    effects = handler.on_barrier(2, limited().as_unaligned(), 0.02)
    trigger = Trigger(limited().as_unaligned(), 0.01)
    assert effects == [Prioritize(0, 7), trigger, Overtaken(1), Overtaken(2)]
    complete = Complete(1, pytest.approx(0.02))
    assert handler.on_barrier(0, limited(), 0.03) == [Overtaken(0), Resume(1), Resume(0), complete]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(0.1, [], id="exactly"),
        pytest.param(
            0.101, [Trigger(limited().as_unaligned(), 0.101), Overtaken(0), Overtaken(1)], id="later"
        ),
    ],
)
def test_a_barrier_is_too_old_when_more_than_its_timeout_has_passed(
    now: float, expected: list[Effect]
) -> None:
    """SingleCheckpointBarrierHandler's isTimedOut is strict; its timer is not."""
    handler = AlternatingBarrierHandler(3)
    handler.on_barrier(0, limited(), 0.0)
    assert handler.on_barrier(1, limited(), now) == expected
    assert bool(handler.on_time(now)) is not bool(expected)


def test_the_last_barrier_aligns_even_if_it_is_too_old() -> None:
    """AbstractAlternatingAlignedBarrierHandlerState asks whether all barriers have arrived before it asks for the time."""
    handler = AlternatingBarrierHandler(2)
    handler.on_barrier(0, limited(), 0.0)
    assert handler.on_barrier(1, limited(), 0.5) == [Trigger(limited(), 0.5), Resume(0), Resume(1)]
    alone = AlternatingBarrierHandler(1)
    assert alone.on_barrier(0, limited(), 0.5) == [Trigger(limited(), 0.0), Resume(0)]


def test_the_last_barrier_completes_a_checkpoint_that_it_turns_unaligned() -> None:
    """AlternatingCollectingBarriers, then AlternatingCollectingBarriersUnaligned, with one barrier."""
    handler = AlternatingBarrierHandler(2)
    handler.on_barrier(0, limited(), 0.0)
    assert handler.on_barrier(1, limited().as_unaligned(), 0.02) == [
        Trigger(limited().as_unaligned(), 0.02),
        Overtaken(0),
        Overtaken(1),
        Resume(0),
        Complete(1, 0.02),
    ]
    assert not handler.is_pending


def test_a_repeated_aligned_barrier_leaves_its_channel_blocked() -> None:
    """The channel counts once, and is resumed once, at the end."""
    handler = AlternatingBarrierHandler(2)
    handler.on_barrier(0, limited(), 0.0)
    assert handler.on_barrier(0, limited(), 0.01) == []
    aligned = Trigger(limited(), pytest.approx(0.01))
    assert handler.on_barrier(1, limited(), 0.02) == [aligned, Resume(0), Resume(1)]


def test_a_cancellation_of_a_checkpoint_that_was_only_announced_is_ignored() -> None:
    """SingleCheckpointBarrierHandler#processCancellationBarrier: the barrier that follows is waited for."""
    handler = AlternatingBarrierHandler(2)
    handler.on_announcement(0, 3, limited(), 0.0)
    assert handler.on_cancellation(1, 1, 0.01) == []
    assert handler.is_pending
    assert handler.on_barrier(0, limited(), 0.02) == []
    assert handler.on_cancellation(1, 1, 0.03) == [Abort(1, ON_CANCELLATION_BARRIER), Resume(0)]


def test_a_newer_cancellation_drops_an_unaligned_checkpoint_without_a_word() -> None:
    """UnalignedCheckpointsTest's testSingleChannelAbortCheckpoint and relatives: one decline, for the cancelled one."""
    handler = AlternatingBarrierHandler(2)
    handler.on_barrier(0, overtaking(1), 0.0)
    assert handler.on_cancellation(1, 2, 0.01) == [Abort(2, ON_CANCELLATION_BARRIER)]
    assert handler.on_barrier(1, overtaking(1), 0.02) == []


def test_the_end_of_a_channel_is_no_first_barrier() -> None:
    """AlternatingWaitingForFirstBarrier: at the timeout there is nothing to take a snapshot of yet."""
    handler = AlternatingBarrierHandler(2)
    handler.on_announcement(0, 3, limited(), 0.0)
    assert handler.on_end_of_partition(1, 0.05) == []
    assert handler.on_time(0.1) == [Prioritize(0, 3)]
    assert handler.on_barrier(0, limited(), 0.12) == [
        Trigger(limited().as_unaligned(), pytest.approx(0.07)),
        Overtaken(1),
        Overtaken(0),
        Resume(0),
        Complete(1, pytest.approx(0.07)),
    ]


def test_an_ended_channel_notices_the_timeout_and_is_not_resumed() -> None:
    """AlternatingCollectingBarriers#endOfPartitionReceived; channelFinished removes the channel from the blocked ones."""
    handler = AlternatingBarrierHandler(3)
    handler.on_barrier(0, limited(), 0.0)
    handler.on_barrier(1, limited(), 0.0)
    assert handler.on_end_of_partition(1, 0.2) == [
        Trigger(limited().as_unaligned(), 0.2),
        Overtaken(0),
        Overtaken(1),
    ]
    assert handler.on_barrier(2, limited(), 0.3) == [Overtaken(2), Resume(0), Resume(2), Complete(1, 0.3)]


@pytest.mark.parametrize("timeout_ms", [NO_TIMEOUT_MS, 100])
def test_a_forced_aligned_barrier_returns_to_its_alignment_after_the_connection(timeout_ms: int) -> None:
    """A pointwise connection aligns; what the source asked for holds again for the task's own output."""
    asked = limited(timeout_ms=timeout_ms) if timeout_ms == 100 else overtaking()
    sent = asked.with_unaligned_unsupported()
    assert sent.alignment is AlignmentType.FORCED_ALIGNED
    handler = AlternatingBarrierHandler(2)
    assert handler.on_barrier(0, sent, 0.0) == []
    triggers = [e for e in handler.on_barrier(1, sent, 0.0) if isinstance(e, Trigger)]
    assert triggers == [Trigger(asked, 0.0)]


def test_a_newer_checkpoint_subsumes_an_unaligned_one_that_is_incomplete() -> None:
    """The channel state of the older one is dropped with it, and its late barrier is ignored."""
    handler = AlternatingBarrierHandler(2)
    handler.on_barrier(0, overtaking(1), 0.0)
    assert handler.on_barrier(0, overtaking(2), 1.0) == [
        Abort(1, SUBSUMED),
        Trigger(overtaking(2), 0.0),
        Overtaken(0),
    ]
    assert handler.on_barrier(1, overtaking(1), 1.0) == []
    assert handler.on_barrier(1, overtaking(2), 2.0) == [Overtaken(1), Complete(2, 1.0)]


def test_a_cancellation_resumes_blocked_channels_only() -> None:
    """An aligned barrier has blocked channel 0; channel 1 has none."""
    handler = AlternatingBarrierHandler(3)
    handler.on_barrier(0, limited(), 0.0)
    assert handler.on_cancellation(1, 1, 0.01) == [Abort(1, ON_CANCELLATION_BARRIER), Resume(0)]
    assert handler.on_barrier(1, limited(), 0.02) == [Resume(1)]
    assert handler.deadline is None


def test_an_ended_channel_completes_an_unaligned_checkpoint() -> None:
    """No barrier follows END_OF_PARTITION."""
    handler = AlternatingBarrierHandler(2)
    handler.on_barrier(0, overtaking(), 0.0)
    assert handler.on_end_of_partition(1, 0.5) == [Overtaken(1), Complete(1, 0.5)]
    assert handler.on_barrier(0, overtaking(2), 1.0) == [
        Trigger(overtaking(2), 0.0),
        Overtaken(0),
        Complete(2, 0.0),
    ]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param({}, (AlignmentType.ALIGNED, NO_TIMEOUT_MS, AlignedBarrierHandler), id="aligned"),
        pytest.param(
            {"mode": "AT_LEAST_ONCE"},
            (AlignmentType.AT_LEAST_ONCE, NO_TIMEOUT_MS, BarrierTracker),
            id="at-least-once",
        ),
        pytest.param(
            {"unaligned.enabled": "true"},
            (UNALIGNED, NO_TIMEOUT_MS, AlternatingBarrierHandler),
            id="unaligned",
        ),
        pytest.param(
            {"unaligned.enabled": "true", "aligned-checkpoint-timeout": "30 s"},
            (AlignmentType.ALIGNED, 30_000, AlternatingBarrierHandler),
            id="timeout",
        ),
        pytest.param(
            {"unaligned.enabled": "true", "aligned-checkpoint-timeout": f"{NO_TIMEOUT_MS} ms"},
            (UNALIGNED, NO_TIMEOUT_MS, AlternatingBarrierHandler),
            id="largest-timeout",
        ),
        pytest.param(
            {"aligned-checkpoint-timeout": "30 s"},
            (AlignmentType.ALIGNED, NO_TIMEOUT_MS, AlignedBarrierHandler),
            id="timeout-without-unaligned",
        ),
    ],
)
def test_options_decide_the_alignment(
    written: dict[str, str], expected: tuple[AlignmentType, int, type]
) -> None:
    """Flink's CheckpointOptions: a savepoint and a source that has ended are aligned in any case."""
    policy = BarrierPolicy.of(Options({PREFIX + key: value for key, value in written.items()}))
    event = policy.barrier(1, 0, SnapshotType.CHECKPOINT)
    assert (event.alignment, event.alignment_timeout_ms, type(policy.handler(2))) == expected
    if policy.exactly_once:
        for other in (
            policy.barrier(1, 0, SnapshotType.SAVEPOINT_TERMINATE),
            policy.barrier(1, 0, SnapshotType.CHECKPOINT, ended=True),
        ):
            assert (other.alignment, other.is_timeoutable) == (AlignmentType.ALIGNED, False)


@pytest.mark.parametrize(
    ("version", "deadline", "too_old_at"),
    [("1.12", None, None), ("1.13", 0.15, 0.151), ("1.14", 0.1, 0.101), ("2.x", 0.1, 0.101)],
)
def test_when_the_timeout_of_an_aligned_checkpoint_counts_depends_on_the_version(
    version: str, deadline: float | None, too_old_at: float | None
) -> None:
    """Never, from the first barrier or announcement of a task (here at 50 ms), or from the start of the checkpoint."""
    written = {PREFIX + "unaligned.enabled": "true", PREFIX + "aligned-checkpoint-timeout": "100 ms"}
    policy = BarrierPolicy.of(Options(written, flink_version=version))
    handler = policy.handler(3)
    assert handler.on_announcement(0, 5, limited(), 0.05) == []
    assert handler.deadline == (None if deadline is None else pytest.approx(deadline))
    assert handler.on_barrier(1, limited(), deadline or 9.0) == []
    if too_old_at is None:
        assert handler.on_barrier(2, limited(), 10.0) == []
        return
    assert handler.on_barrier(2, limited(), too_old_at)[0] == Prioritize(0, 5)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("mode", "AT_LEAST_ONCE", "Cannot use unaligned checkpoints with AT_LEAST_ONCE checkpointing mode"),
        (
            "max-concurrent-checkpoints",
            "2",
            "maxConcurrentCheckpoints can't be > 1 if UnalignedCheckpoints enabled",
        ),
    ],
)
def test_unaligned_checkpoints_are_refused_where_flink_refuses_them(key: str, value: str, text: str) -> None:
    """With Flink's texts."""
    options = Options({PREFIX + "unaligned.enabled": "true", PREFIX + key: value})
    with pytest.raises(FlinkError, match=text):
        BarrierPolicy.of(options)


def test_a_barrier_overtakes_what_the_partition_has_not_sent() -> None:
    """Sent bytes are not part of the output state; an unfinished buffer is, up to what was written."""
    exchange = Exchange().start()
    exchange.partition.emit(0, b"sent")
    exchange.partition.flush_all()
    exchange.run()
    exchange.partition.emit(0, b"b" * 5)
    overtaken = exchange.partition.broadcast_barrier(overtaking())
    assert overtaken == {0: (b"b" * 5,)}
    exchange.partition.flush_all()
    items = [item if isinstance(item, bytes) else type(item) for _, item in exchange.run()]
    assert items == [CheckpointBarrier, b"b" * 5]
    exchange.close()


def test_a_queued_barrier_overtakes_at_its_timeout() -> None:
    """The data before it is returned; the data after it is not, and stays behind it."""
    exchange = Exchange().start()
    exchange.partition.emit(0, b"before")
    assert exchange.partition.broadcast_barrier(limited()) == {}
    exchange.partition.emit(0, b"behind")
    assert exchange.partition.holds_barrier(1)
    assert exchange.partition.time_out_barriers(1) == {0: (b"before",)}
    assert not exchange.partition.holds_barrier(1)
    exchange.partition.flush_all()
    items = [item if isinstance(item, bytes) else item.alignment for _, item in exchange.run()]
    assert items == [UNALIGNED, b"before", b"behind"]
    exchange.close()


def test_a_barrier_that_was_sent_in_time_overtakes_nothing() -> None:
    """The waiter is notified when the barrier has left."""
    exchange = Exchange().start()
    sent = []
    exchange.partition.on_barriers_sent = lambda: sent.append(True)
    exchange.partition.emit(0, b"before")
    exchange.partition.broadcast_barrier(limited())
    exchange.run()
    assert sent == [True]
    assert exchange.partition.time_out_barriers(1) == {}
    exchange.close()


def test_F_173_recovered_output_takes_buffers_of_the_pool_and_comes_first() -> None:
    """ResultSubpartitionRecoveredStateHandlerTest: a buffer for each piece that fits into one, which returns when it was read."""
    exchange = Exchange().start()
    pool, size = exchange.partition.pool, exchange.partition.pool.segment_bytes
    used = pool.used
    first = b"x" * (2 * size + 1)
    accepted = [exchange.partition.add_recovered(0, first, offset) for offset in (0, size, 2 * size)]
    assert accepted == [size, size, 1]
    assert exchange.partition.add_recovered(0, b"y") == 1
    assert pool.used == used + 4
    exchange.partition.emit(0, b"new")
    exchange.partition.flush_all()
    items = [item for _, item in exchange.run() if isinstance(item, bytes)]
    assert items == [b"x" * size, b"x" * size, b"x", b"y", b"new"]
    assert pool.used == used + 1
    exchange.close()


def test_recovered_output_without_a_buffer_in_the_pool_is_not_accepted() -> None:
    """It may use those of the overdraft, as Flink's requestBufferBuilderBlocking does."""
    pool = NetworkBufferPool(4, 1024).create_buffer_pool(2, 2, max_overdraft=1)
    partition = ResultPartition(partition_id(), 1, pool)
    assert [partition.add_recovered(0, b"data") for _ in range(4)] == [4, 4, 4, 0]
    partition.release()
    assert pool.used == 0


def _queue(consumer: Consumer, sequence: int, event: CheckpointBarrier, data_type: DataType) -> None:
    payload = memoryview(encode_event(event))
    receiver = consumer.channel().receiver
    deliver(consumer.client, BufferResponse(receiver, 0, sequence, 0, data_type, payload, False))


def test_a_receivers_in_flight_data_is_what_the_barrier_has_overtaken() -> None:
    """Two buffers arrived before the barrier and are still queued; one arrived after it."""
    consumer = Consumer()
    consumer.connect()
    for sequence, data in ((0, b"a"), (1, b"b")):
        deliver(consumer.client, data_frame(0, sequence, 3, data))
    _queue(consumer, 2, overtaking(), DataType.PRIORITIZED_EVENT_BUFFER)
    deliver(consumer.client, data_frame(0, 3, 3, b"c"))
    assert consumer.gate.poll() == (0, overtaking())
    assert consumer.channel().in_flight(1) == (b"a", b"b")


def test_an_announced_barrier_can_overtake_at_the_receiver() -> None:
    """The timeout passes while the barrier is queued behind data here."""
    consumer = Consumer()
    consumer.connect()
    deliver(consumer.client, data_frame(0, 0, 0, b"a"))
    _queue(consumer, 1, limited(), DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER)
    consumer.gate.poll()
    consumer.channel().prioritize(1)
    assert consumer.gate.poll() == (0, limited())
    assert consumer.channel().in_flight(1) == (b"a",)
