"""Cases of CheckpointBarrierTrackerTest, AlignedCheckpointsTest and AlternatingCheckpointsTest: sequences of barriers, cancellations and ends of channels."""

from __future__ import annotations

import pytest
from exchange_model import barrier

from testbed_runtime.core.exchange.alignment import (
    INPUT_END_OF_STREAM,
    ON_CANCELLATION_BARRIER,
    SUBSUMED,
    Abort,
    AlignedBarrierHandler,
    AlternatingBarrierHandler,
    BarrierHandler,
    BarrierTracker,
    Complete,
    Effect,
    Prioritize,
    Resume,
    Trigger,
)
from testbed_runtime.core.exchange.events import AlignmentType, CheckpointBarrier


def run(handler: BarrierHandler, *steps: str) -> tuple[list[int], list[tuple[int, str]]]:
    """Take steps: `b1@0` a barrier of checkpoint 1 on channel 0, `c1@0` a cancellation, `e@0` the end of the channel. Return the
    triggered and the aborted checkpoints."""
    triggered, aborted = [], []
    for step in steps:
        what, _, channel = step.partition("@")
        effects: list[Effect]
        if what == "e":
            effects = handler.on_end_of_partition(int(channel), 0.0)
        elif what[0] == "b":
            effects = handler.on_barrier(int(channel), barrier(int(what[1:])), 0.0)
        else:
            effects = handler.on_cancellation(int(channel), int(what[1:]), 0.0)
        triggered += [e.barrier.checkpoint_id for e in effects if isinstance(e, Trigger)]
        aborted += [(e.checkpoint_id, e.reason) for e in effects if isinstance(e, Abort)]
    return triggered, aborted


MULTI_CHANNEL_ABORT = (
    "b1@1 b1@2 b1@0 b2@0 b2@2 c2@1 b3@1 b3@2 b3@0 c4@1 b4@2 b4@0 b5@2 b5@1 b5@0 c6@1 c6@2 b6@0"
)


@pytest.mark.parametrize(
    ("channels", "steps", "triggered", "aborted"),
    [
        pytest.param(3, MULTI_CHANNEL_ABORT, [1, 3, 5], [2, 4, 6], id="I-04"),
        pytest.param(3, "b1@0 c2@0 c1@1 c2@1 c1@2 c2@2", [], [1, 2], id="I-26"),
        pytest.param(3, "b1@0 b2@0 b2@1 b3@0 b4@0 b4@1 b5@1 e@2", [4], [], id="I-27"),
        pytest.param(3, "b2@0 b2@1 e@1", [], [], id="I-28-before-the-last"),
        pytest.param(3, "b2@0 b2@1 e@1 b2@2", [2], [], id="I-28"),
        pytest.param(3, "e@2 b5@0 b6@0 b6@1 e@1 b7@0", [6, 7], [], id="I-29"),
        pytest.param(2, "b1@0 e@0 b1@1", [1], [], id="I-30"),
        pytest.param(3, "c4@0 b4@1 b5@1 e@2", [], [4], id="I-54"),
        pytest.param(3, "e@2 b5@0 b6@0 c6@1 e@1 c7@0", [], [5, 6, 7], id="I-55"),
        pytest.param(2, "b1@0 e@0 c1@1", [], [1], id="I-56"),
        pytest.param(1, "b1@0 b3@0 b4@0 b6@0 b7@0 b10@0", [1, 3, 4, 6, 7, 10], [], id="I-57"),
        pytest.param(
            3, "b1@1 b1@2 b1@0 b2@0 b2@1 b2@2 b3@2 b4@0 b4@1 b4@2", [1, 2, 4], [], id="I-57-several"
        ),
    ],
)
def test_I_04_and_I_26_to_I_30_and_I_54_to_I_57_the_tracker_triggers_or_aborts_each_checkpoint_once(
    channels: int, steps: str, triggered: list[int], aborted: list[int]
) -> None:
    """Several channels that cancel, and channels that end before, within or after their barriers."""
    found = run(BarrierTracker(channels), *steps.split())
    assert found == (triggered, [(checkpoint, ON_CANCELLATION_BARRIER) for checkpoint in aborted])


def test_I_31_the_trackers_alignment_begins_with_the_first_barrier_of_its_checkpoint() -> None:
    """The cancellation of the one before arrives in between: 2 s from barrier to barrier."""
    tracker = BarrierTracker(2)
    tracker.on_barrier(1, barrier(1), 0.0)
    tracker.on_barrier(1, barrier(2), 1.0)
    tracker.on_cancellation(0, 1, 2.0)
    assert tracker.on_barrier(0, barrier(2), 3.0) == [Trigger(barrier(2), 2.0)]


def test_I_58_each_of_two_checkpoints_that_overlap_is_triggered_with_its_last_barrier() -> None:
    """The alignment of the later one lasts 2 s, from its own first barrier on."""
    tracker = BarrierTracker(2)
    tracker.on_barrier(1, barrier(1), 0.0)
    tracker.on_barrier(1, barrier(2), 1.0)
    assert triggers(tracker.on_barrier(0, barrier(1), 2.0)) == [(1, False)]
    assert tracker.on_barrier(0, barrier(2), 3.0) == [Trigger(barrier(2), 2.0)]


def test_I_12_a_barrier_of_a_later_checkpoint_jumps_over_the_pending_one() -> None:
    """The channels that wait for the earlier one go on, and the channel of the later one is blocked."""
    handler = AlignedBarrierHandler(3, after_tasks_finish=False)
    assert run(handler, "b1@1", "b1@2", "b1@0", "b2@1", "b2@0") == ([1], [])
    assert set(handler.blocked) == {0, 1}
    assert run(handler, "b3@2") == ([], [(2, SUBSUMED)])
    assert handler.blocked == (2,)
    run(handler, "b3@0")
    assert set(handler.blocked) == {0, 2}
    assert run(handler, "b4@1") == ([], [(3, SUBSUMED)])
    assert handler.blocked == (1,)
    assert run(handler, "e@0", "e@2", "e@1") == ([], [(4, INPUT_END_OF_STREAM)])
    assert handler.blocked == ()


@pytest.mark.parametrize(
    ("channels", "steps", "triggered", "aborted"),
    [
        pytest.param(2, "b1@0 c3@1 c2@0 c3@0", [], [(3, ON_CANCELLATION_BARRIER)], id="I-13"),
        pytest.param(4, "e@2 e@1 b2@3 b2@0 b3@0 b3@3 e@0 b4@3 e@3", [2, 3, 4], [], id="I-14"),
        pytest.param(3, "b1@0 b1@1 b1@2 b2@2 b2@0 e@1 e@2 e@0", [1], [(2, INPUT_END_OF_STREAM)], id="I-15"),
        pytest.param(
            1,
            "b1@0 b2@0 c4@0 b5@0 c6@0",
            [1, 2, 5],
            [(4, ON_CANCELLATION_BARRIER), (6, ON_CANCELLATION_BARRIER)],
            id="I-16",
        ),
        pytest.param(3, "b1@1 c1@0 b2@1 b1@2 b2@0 b2@2", [2], [(1, ON_CANCELLATION_BARRIER)], id="I-59"),
        pytest.param(3, "b3@1 b3@0 b5@2 c3@0 b5@0 b5@1", [5], [(3, SUBSUMED)], id="I-60"),
        pytest.param(
            3, MULTI_CHANNEL_ABORT, [1, 3, 5], [(n, ON_CANCELLATION_BARRIER) for n in (2, 4, 6)], id="I-62"
        ),
    ],
)
def test_I_13_to_I_16_and_I_59_and_I_60_and_I_62_channels_that_end_or_cancel_leave_none_blocked(
    channels: int, steps: str, triggered: list[int], aborted: list[tuple[int, str]]
) -> None:
    """Cancellations that are missing, channels that have ended before or during a checkpoint, and a single channel."""
    handler = AlignedBarrierHandler(channels, after_tasks_finish=False)
    assert run(handler, *steps.split()) == (triggered, aborted)
    assert handler.blocked == ()


@pytest.mark.parametrize(
    ("steps", "triggered"),
    [("b1@0 b1@1 e@2", [1]), ("b2@0 b2@1 e@1 b2@2", [2]), ("e@2 b6@0 b6@1 e@1 b7@0", [6, 7])],
)
def test_I_61_the_end_of_a_channel_counts_as_its_barrier_once(steps: str, triggered: list[int]) -> None:
    """With checkpoints after tasks have finished."""
    handler = AlignedBarrierHandler(3)
    assert run(handler, *steps.split()) == (triggered, [])
    assert (handler.blocked, handler.is_pending) == ((), False)


def limited(checkpoint: int = 1, *, at_ms: int = 0, timeout_ms: int = 100) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint, at_ms, AlignmentType.ALIGNED, timeout_ms)


def triggers(effects: list[Effect]) -> list[tuple[int, bool]]:
    """The triggered checkpoints, and whether they are unaligned."""
    found = [effect.barrier for effect in effects if isinstance(effect, Trigger)]
    return [(each.checkpoint_id, each.alignment is AlignmentType.UNALIGNED) for each in found]


def test_I_17_the_checkpoint_after_one_that_timed_out_is_aligned_again() -> None:
    """One channel, timeout 100 ms: the first barrier is read 101 ms after its announcement, the second at once."""
    handler = AlternatingBarrierHandler(1)
    assert handler.on_announcement(0, 0, limited(), 0.0) == []
    assert handler.on_time(0.101) == [Prioritize(0, 0)]
    assert triggers(handler.on_barrier(0, limited(), 0.101)) == [(1, True)]
    second = limited(2, at_ms=101)
    assert handler.on_announcement(0, 1, second, 0.101) == []
    assert triggers(handler.on_barrier(0, second, 0.101)) == [(2, False)]


def test_I_18_a_barrier_that_never_times_out_waits_for_the_others() -> None:
    """However long that takes."""
    handler = AlternatingBarrierHandler(2)
    forever = limited(timeout_ms=2**31 - 1)
    assert triggers(handler.on_barrier(0, forever, 0.0)) == []
    assert handler.on_time(1000.0) == []
    assert triggers(handler.on_barrier(1, forever, 1000.0)) == [(1, False)]


def test_I_19_an_overtaking_barrier_from_upstream_begins_the_announced_checkpoint() -> None:
    """The announced barrier overtakes too."""
    handler = AlternatingBarrierHandler(2)
    event = limited(timeout_ms=2**31 - 1)
    assert triggers(handler.on_announcement(0, 0, event, 0.0)) == []
    effects = handler.on_barrier(1, event.as_unaligned(), 0.0)
    assert effects[0] == Prioritize(0, 0)
    assert triggers(effects) == [(1, True)]


def test_I_20_a_barrier_of_a_local_channel_is_not_announced_and_times_out_when_it_is_read() -> None:
    """It is too old already: the checkpoint begins with it."""
    handler = AlternatingBarrierHandler(2)
    assert triggers(handler.on_barrier(0, limited(), 0.101)) == [(1, True)]


@pytest.mark.parametrize("end", ["last barrier", "cancellation"])
def test_I_21_the_timer_does_nothing_once_the_checkpoint_is_over(end: str) -> None:
    """Every barrier has been read, or the checkpoint was cancelled."""
    handler = AlternatingBarrierHandler(2)
    handler.on_barrier(0, limited(), 0.0)
    if end == "last barrier":
        assert triggers(handler.on_barrier(1, limited(), 0.0)) == [(1, False)]
    else:
        assert handler.on_cancellation(0, 1, 0.0) == [Abort(1, ON_CANCELLATION_BARRIER), Resume(0)]
    assert handler.deadline is None
    assert handler.on_time(0.101) == []


def test_I_22_the_end_of_a_channel_turns_a_checkpoint_unaligned_that_is_too_old() -> None:
    """Before its timer acts. The end of the last channel completes it."""
    handler = AlternatingBarrierHandler(3)
    assert triggers(handler.on_barrier(0, limited(), 0.0)) == []
    assert triggers(handler.on_end_of_partition(1, 0.101)) == [(1, True)]
    effects = handler.on_end_of_partition(2, 0.101)
    assert triggers(effects) == []
    assert effects[-2:] == [Resume(0), Complete(1, 0.101)]


def test_I_23_a_channel_that_ends_after_the_announcement_begins_the_alignment() -> None:
    """FLINK-24068: three channels, one barrier announced, one channel ended, then both barriers."""
    handler = AlternatingBarrierHandler(3)
    event = limited(timeout_ms=10_000)
    handler.on_announcement(0, 0, event, 0.0)
    handler.on_end_of_partition(1, 1.0)
    assert triggers(handler.on_barrier(0, event, 2.0)) == []
    assert handler.on_barrier(2, event, 3.0)[0] == Trigger(event, 2.0)


def test_I_24_a_barrier_that_is_out_of_order_only_lets_its_channel_go_on() -> None:
    """Checkpoint 5 after checkpoint 10 has begun."""
    handler = AlternatingBarrierHandler(2)
    handler.on_barrier(0, barrier(10), 0.0)
    assert handler.on_barrier(1, barrier(5), 0.0) == [Resume(1)]
    assert handler.is_pending


def test_I_25_a_late_cancellation_of_the_subsumed_checkpoint_changes_no_alignment() -> None:
    """Barriers of 1 and 2 on one channel at 0 and 1 s; on the other the cancellation of 1 at 2 s and the barrier at 3 s."""
    handler = AlternatingBarrierHandler(2)
    handler.on_barrier(0, limited(timeout_ms=10_000), 0.0)
    second = limited(2, at_ms=1000, timeout_ms=10_000)
    handler.on_barrier(0, second, 1.0)
    assert handler.on_cancellation(1, 1, 2.0) == []
    assert handler.on_barrier(1, second, 3.0)[0] == Trigger(second, 2.0)


def test_I_95_each_barrier_of_a_single_channel_triggers_its_checkpoint() -> None:
    """Nothing stays blocked."""
    handler = AlignedBarrierHandler(1)
    assert run(handler, *(f"b{number}@0" for number in range(1, 7)), "e@0") == ([1, 2, 3, 4, 5, 6], [])
    assert handler.blocked == ()


@pytest.mark.parametrize("handler", [AlignedBarrierHandler, BarrierTracker])
@pytest.mark.parametrize("channels", [1, 4])
def test_I_96_without_barriers_nothing_is_triggered(handler: type[BarrierHandler], channels: int) -> None:
    """All channels end."""
    made = handler(channels)  # type: ignore[call-arg]
    assert run(made, *(f"e@{number}" for number in range(channels))) == ([], [])
    assert made.deadline is None
