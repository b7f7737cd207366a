"""Aligned barriers and the at-least-once tracker."""

from __future__ import annotations

import pytest
from exchange_model import barrier

from testbed_runtime.core.exchange.alignment import (
    INPUT_END_OF_STREAM,
    MAX_CHECKPOINTS_TO_TRACK,
    ON_CANCELLATION_BARRIER,
    SUBSUMED,
    Abort,
    AlignedBarrierHandler,
    BarrierTracker,
    Effect,
    Resume,
    Trigger,
)


def track(tracker: BarrierTracker, *steps: tuple[int, int]) -> list[int]:
    """Steps are (channel, checkpoint), negative for a cancellation; the outcome in the same notation."""
    effects: list[Effect] = []
    for channel, checkpoint in steps:
        if checkpoint > 0:
            effects += tracker.on_barrier(channel, barrier(checkpoint), 0.0)
        else:
            effects += tracker.on_cancellation(channel, -checkpoint, 0.0)
    outcome = []
    for effect in effects:
        assert not isinstance(effect, Resume)
        outcome.append(effect.barrier.checkpoint_id if isinstance(effect, Trigger) else -effect.checkpoint_id)
    return outcome


def test_I_01_the_tracker_triggers_when_every_channel_had_the_barrier() -> None:
    """Four checkpoints in order, interleaved over three channels; nothing is ever blocked."""
    steps = [(0, 1), (1, 1), (0, 2), (2, 1), (1, 2), (2, 2), (2, 3), (2, 4), (1, 3), (0, 3), (1, 4), (0, 4)]
    assert track(BarrierTracker(3), *steps) == [1, 2, 3, 4]


def test_I_02_late_barriers_complete_their_checkpoints_and_an_overtaken_one_never_does() -> None:
    """6 misses a channel when 7 completes."""
    steps = [
        *[(1, 2), (0, 2), (2, 2)],
        *[(1, 3), (2, 3), (2, 4), (1, 4), (0, 3), (0, 4)],
        *[(1, 5), (0, 5), (2, 5)],
        *[(1, 6), (0, 6)],
        *[(1, 7), (2, 7), (2, 8), (1, 8), (1, 9), (0, 7)],
        *[(2, 9), (2, 10), (0, 8), (0, 9), (2, 6)],
        *[(0, 10), (1, 10)],
    ]
    assert track(BarrierTracker(3), *steps) == [2, 3, 4, 5, 7, 8, 9, 10]


def test_I_03_the_tracker_aborts_on_cancellation_markers() -> None:
    """1, 2, then 4 is cancelled, 5, then 6 is cancelled."""
    assert track(BarrierTracker(1), (0, 1), (0, 2), (0, -4), (0, 5), (0, -6)) == [1, 2, -4, 5, -6]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([(0, 1), (0, 1)], [1, 1], id="barrier"),
        pytest.param([(0, 2), (0, 1)], [2, 1], id="older-barrier"),
        pytest.param([(0, -1), (0, -1)], [-1, -1], id="cancellation"),
        pytest.param([(0, 1), (0, -1), (0, 1)], [1, -1, 1], id="barrier-and-cancellation"),
    ],
)
def test_the_tracker_of_one_channel_remembers_nothing(
    steps: list[tuple[int, int]], expected: list[int]
) -> None:
    """CheckpointBarrierTracker's fast path for one open channel does not move the latest checkpoint's id."""
    assert track(BarrierTracker(1), *steps) == expected


def test_the_tracker_of_one_open_channel_still_completes_what_is_pending() -> None:
    """testNoFastPathWithChannelFinishedDuringCheckpointsCancel and its twin for barriers."""
    tracker = BarrierTracker(2)
    assert track(tracker, (0, 1)) == []
    assert tracker.on_end_of_partition(0, 1.0) == []
    assert track(tracker, (1, 1), (1, 2)) == [1, 2]
    cancelled = BarrierTracker(2)
    cancelled.on_barrier(0, barrier(1), 0.0)
    cancelled.on_end_of_partition(0, 1.0)
    assert track(cancelled, (1, -1)) == [-1]
    assert not cancelled.is_pending


def test_the_tracker_measures_the_alignment_of_the_latest_checkpoint_only() -> None:
    """testTwoLastBarriersOneByOne: one alignment is measured at a time."""
    tracker = BarrierTracker(2)
    tracker.on_barrier(0, barrier(1), 1.0)
    tracker.on_barrier(0, barrier(2), 2.0)
    assert tracker.on_barrier(1, barrier(1), 3.0) == [Trigger(barrier(1), 0.0)]
    assert tracker.on_barrier(1, barrier(2), 5.0) == [Trigger(barrier(2), 3.0)]


def test_the_tracker_forgets_an_aborted_checkpoint_once_all_its_barriers_came() -> None:
    """The late barrier of an aborted checkpoint triggers nothing."""
    tracker = BarrierTracker(2)
    assert track(tracker, (0, 1), (1, -1)) == [-1]
    assert not tracker.is_pending
    assert track(tracker, (0, -2), (1, 2), (0, 3), (1, 3)) == [-2, 3]


def test_the_tracker_aborts_older_pending_checkpoints_when_a_newer_one_is_cancelled() -> None:
    """Older ones cannot complete any more; a trailing marker says nothing new."""
    assert track(BarrierTracker(2), (0, 1), (0, 2), (1, -3), (0, -3), (0, -1)) == [-1, -2, -3]


def test_the_tracker_keeps_a_bounded_number_of_pending_checkpoints() -> None:
    """The oldest of more than 50 is dropped and can never complete."""
    assert MAX_CHECKPOINTS_TO_TRACK == 50
    tracker = BarrierTracker(2)
    steps = [(0, n) for n in range(1, MAX_CHECKPOINTS_TO_TRACK + 2)]
    assert track(tracker, *steps, (1, 1)) == []
    assert track(tracker, (1, 2)) == [2]


def test_the_tracker_counts_an_ended_channel_as_seen() -> None:
    """Or aborts, where checkpoints after finished tasks are off."""
    tracker = BarrierTracker(2)
    tracker.on_barrier(0, barrier(1), 1.0)
    assert tracker.on_end_of_partition(1, 3.0) == [Trigger(barrier(1), 2.0)]
    assert track(tracker, (0, 2)) == [2]
    strict = BarrierTracker(2, after_tasks_finish=False)
    strict.on_barrier(0, barrier(1), 1.0)
    assert strict.on_end_of_partition(1, 3.0) == [Abort(1, INPUT_END_OF_STREAM)]


def test_a_checkpoint_is_triggered_by_the_last_barrier_and_all_channels_go_on() -> None:
    """The snapshot comes before the producers go on."""
    handler = AlignedBarrierHandler(3)
    assert handler.on_barrier(2, barrier(1), 1.0) == []
    assert handler.on_barrier(0, barrier(1), 2.0) == []
    assert handler.blocked == (2, 0)
    assert handler.is_pending
    assert handler.on_barrier(1, barrier(1), 4.0) == [
        Trigger(barrier(1), 3.0),
        Resume(2),
        Resume(0),
        Resume(1),
    ]
    assert not handler.is_pending


def test_a_single_channel_triggers_at_once() -> None:
    """There is nothing to align with."""
    handler = AlignedBarrierHandler(1)
    assert handler.on_barrier(0, barrier(1), 1.0) == [Trigger(barrier(1), 0.0), Resume(0)]


def test_a_newer_barrier_subsumes_the_pending_checkpoint() -> None:
    """The blocked channels go on, the new alignment starts."""
    handler = AlignedBarrierHandler(2)
    handler.on_barrier(0, barrier(1), 1.0)
    assert handler.on_barrier(1, barrier(2), 2.0) == [Abort(1, SUBSUMED), Resume(0)]
    assert handler.on_barrier(0, barrier(2), 3.0) == [Trigger(barrier(2), 1.0), Resume(1), Resume(0)]


def test_a_late_barrier_only_lets_its_channel_go_on() -> None:
    """The barrier belongs to a completed or an older checkpoint."""
    handler = AlignedBarrierHandler(1)
    handler.on_barrier(0, barrier(2), 1.0)
    assert handler.on_barrier(0, barrier(2), 2.0) == [Resume(0)]
    assert handler.on_barrier(0, barrier(1), 2.0) == [Resume(0)]


def test_a_cancellation_aborts_the_pending_checkpoint_and_later_barriers_of_it_pass() -> None:
    """An older cancellation is ignored."""
    handler = AlignedBarrierHandler(2)
    handler.on_barrier(0, barrier(3), 1.0)
    assert handler.on_cancellation(1, 2, 1.0) == []
    assert handler.on_cancellation(1, 3, 1.0) == [Abort(3, ON_CANCELLATION_BARRIER), Resume(0)]
    assert handler.on_cancellation(0, 3, 1.0) == []
    assert handler.on_barrier(1, barrier(3), 2.0) == [Resume(1)]


def test_a_newer_cancellation_drops_the_pending_checkpoint_without_a_word() -> None:
    """SingleCheckpointBarrierHandler#processCancellationBarrier: only the cancelled checkpoint is declined."""
    handler = AlignedBarrierHandler(2)
    handler.on_barrier(0, barrier(3), 1.0)
    assert handler.on_cancellation(1, 4, 1.0) == [Abort(4, ON_CANCELLATION_BARRIER), Resume(0)]
    assert not handler.is_pending
    assert handler.on_barrier(1, barrier(3), 2.0) == [Resume(1)]


def test_a_repeated_barrier_changes_nothing_while_its_channel_is_blocked() -> None:
    """Its channel stays blocked and counts once; the only aligned channel's alignment begins anew (markAlignmentStart)."""
    handler = AlignedBarrierHandler(2)
    handler.on_barrier(0, barrier(1), 1.0)
    assert handler.on_barrier(0, barrier(1), 2.0) == []
    assert handler.on_barrier(1, barrier(1), 4.0) == [Trigger(barrier(1), 2.0), Resume(0), Resume(1)]


def test_an_ended_channel_counts_as_aligned_and_is_not_resumed() -> None:
    """Later checkpoints do not wait for it either."""
    handler = AlignedBarrierHandler(2)
    handler.on_barrier(0, barrier(1), 1.0)
    assert handler.on_end_of_partition(1, 2.0) == [Trigger(barrier(1), 1.0), Resume(0)]
    assert handler.on_barrier(0, barrier(2), 3.0) == [Trigger(barrier(2), 0.0), Resume(0)]
    assert handler.on_end_of_partition(0, 4.0) == []


def test_an_ended_channel_declines_where_checkpoints_after_finished_tasks_are_off() -> None:
    """The blocked channel goes on."""
    handler = AlignedBarrierHandler(2, after_tasks_finish=False)
    handler.on_barrier(0, barrier(1), 1.0)
    assert handler.on_end_of_partition(1, 2.0) == [Abort(1, INPUT_END_OF_STREAM), Resume(0)]
