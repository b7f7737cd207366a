"""Cases of Flink's CheckpointCoordinatorTest and CheckpointRequestDeciderTest: when checkpoints begin, and what becomes of them."""

from __future__ import annotations

import pytest

from testbed_runtime.core.job.checkpoints import (
    AckOutcome,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureManager,
    CheckpointFailureReason,
    Failed,
    Triggered,
)
from testbed_runtime.core.job.messages import AcknowledgeCheckpoint

TASKS = [("v1", 0), ("v2", 0)]


def coordinator(**config: object) -> CheckpointCoordinator:
    """A coordinator that begins at once."""
    settings = {"interval_s": 0.01, "timeout_s": 200.0, "tolerable_failures": 9, **config}
    made = CheckpointCoordinator(CheckpointConfig(**settings), draw=min)  # type: ignore[arg-type]
    made.on_all_running(0.0)
    return made


def acknowledge(made: CheckpointCoordinator, checkpoint: int, *tasks: tuple[str, int]) -> list[AckOutcome]:
    message = AcknowledgeCheckpoint("attempt", checkpoint, "", 0, 0.0)
    return [made.acknowledge(task, message) for task in tasks or TASKS]


def triggered(made: CheckpointCoordinator, now: float) -> list[int]:
    """Checkpoints that begin at this time."""
    return [one.checkpoint for one in made.on_time(now, TASKS) if isinstance(one, Triggered)]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_J_45_no_more_checkpoints_than_allowed_are_in_progress(most: int) -> None:
    """testMaxConcurrentAttempts1, 2 and 5: one that completes makes room for one."""
    made = coordinator(max_concurrent=most)
    began = [triggered(made, step / 100) for step in range(most + 20)]
    assert began == [[number] for number in range(1, most + 1)] + [[]] * 20
    acknowledge(made, 1)
    assert made.complete(1, 0.3) == []
    assert triggered(made, 0.3) == [most + 1]
    assert triggered(made, 0.5) == []


def test_J_46_a_completed_checkpoint_makes_room_for_those_that_it_subsumes_too() -> None:
    """testMaxConcurrentAttemptsWithSubsumption: checkpoint 2 completes, 1 is subsumed, 3 and 4 begin."""
    made = coordinator(max_concurrent=2)
    assert [triggered(made, now) for now in (0.0, 0.01, 0.02, 0.03)] == [[1], [2], [], []]
    acknowledge(made, 2)
    (subsumed,) = made.complete(2, 0.04)
    assert (subsumed.checkpoint, subsumed.reason) == (1, CheckpointFailureReason.CHECKPOINT_SUBSUMED)
    assert triggered(made, 0.04) == [3, 4]
    assert triggered(made, 0.05) == []


def test_J_47_a_checkpoint_that_waits_in_the_queue_keeps_the_pause() -> None:
    """testMinCheckpointPause: half of the pause after the completion there is none, and one comes at its end."""
    made = coordinator(interval_s=1.0, min_pause_s=1.0)
    assert triggered(made, 1.0) == [1]
    assert triggered(made, 2.0) == []
    acknowledge(made, 1)
    made.complete(1, 2.2)
    assert triggered(made, 2.2) == triggered(made, 2.7) == []
    assert made.next_deadline() == pytest.approx(3.2)
    assert triggered(made, 3.2) == [2]


def test_J_48_an_interval_below_the_pause_is_raised_to_it() -> None:
    """testMinTimeBetweenCheckpointsInterval: an interval of 12 ms and a pause of 50 ms."""
    made = coordinator(interval_s=0.012, min_pause_s=0.05)
    assert triggered(made, 0.05) == [1]
    acknowledge(made, 1)
    made.complete(1, 0.06)
    assert made.next_deadline() == pytest.approx(0.11)
    assert triggered(made, 0.109) == []
    assert triggered(made, 0.11) == [2]


def test_J_49_a_checkpoint_that_is_not_acknowledged_by_all_tasks_in_time_expires() -> None:
    """testCheckpointTimeoutIsolated: the acknowledgement that comes after it is for an unknown checkpoint."""
    made = coordinator(timeout_s=0.2, interval_s=10.0)
    assert triggered(made, 0.0) == [1]
    assert acknowledge(made, 1, TASKS[0]) == [AckOutcome.ACCEPTED]
    assert made.on_time(0.199, TASKS) == []
    (expired,) = made.on_time(0.2, TASKS)
    assert isinstance(expired, Failed)
    assert expired.reason is CheckpointFailureReason.CHECKPOINT_EXPIRED
    assert made.pending(1) is None
    assert acknowledge(made, 1, TASKS[1]) == [AckOutcome.UNKNOWN]


def test_J_50_acknowledgements_of_unknown_checkpoints_and_tasks_change_nothing() -> None:
    """testHandleMessagesForNonExistingCheckpoints: another checkpoint, and another task of the pending one."""
    made = coordinator()
    assert triggered(made, 0.0) == [1]
    assert acknowledge(made, 2, TASKS[0]) == [AckOutcome.UNKNOWN]
    assert acknowledge(made, 1, ("other", 0)) == [AckOutcome.UNKNOWN]
    assert acknowledge(made, 1) == [AckOutcome.ACCEPTED, AckOutcome.COMPLETE]


def test_J_51_a_declined_checkpoint_leaves_the_other_one() -> None:
    """testTriggerAndDeclineCheckpointComplex: the second decline of the same checkpoint is ignored."""
    made = coordinator(max_concurrent=2)
    assert [triggered(made, now) for now in (0.0, 0.01)] == [[1], [2]]
    declined = CheckpointFailureReason.CHECKPOINT_DECLINED
    assert made.fail(1, declined, 0.01) is not None
    assert made.fail(1, declined, 0.01) is None
    assert (made.pending(1), made.pending(2) is None) == (None, False)
    assert acknowledge(made, 2) == [AckOutcome.ACCEPTED, AckOutcome.COMPLETE]
    assert (made.complete(2, 0.02), made.last_completed) == ([], 2)


R = CheckpointFailureReason


@pytest.mark.parametrize(
    ("version", "reason", "by_task", "fails"),
    [
        ("1.12", R.TRIGGER_CHECKPOINT_FAILURE, False, True),
        ("1.14", R.CHECKPOINT_EXPIRED, False, True),
        ("1.15", R.CHECKPOINT_EXPIRED, False, False),
        ("2.x", R.FINALIZE_CHECKPOINT_FAILURE, False, False),
        ("1.14", R.CHECKPOINT_DECLINED_TASK_NOT_READY, True, True),
        ("2.x", R.CHECKPOINT_DECLINED_TASK_NOT_READY, True, True),
        ("2.x", R.CHECKPOINT_ASYNC_EXCEPTION, True, True),
    ],
)
def test_J_64_a_final_checkpoint_that_a_task_declines_fails_the_job_whatever_is_tolerated(
    version: str, reason: R, by_task: bool, fails: bool
) -> None:
    """jobFailsIfInFlightSynchronousSavepointIsDiscarded: its tasks would wait for it without end. It is tried again."""
    made = coordinator(tolerable_failures=9, flink_version=version)
    made.on_job_running(0.0)
    made.stop_with_drain(0.0)
    assert made.on_time(0.5, TASKS) == [Triggered(1, True)]
    failed = made.fail(1, reason, 1.0, by_task=by_task)
    assert failed == Failed(1, reason, 0.5, reason.value if fails else "", "CheckpointException")
    assert made.on_time(2.0, TASKS) == [Triggered(2, True)]


def until(made: CheckpointCoordinator, now: float) -> list[tuple[int, float]]:
    """Let the time pass. The checkpoints that begin, each with its time."""
    found = []
    while (due := made.next_deadline()) <= now:
        found += [(number, round(due, 3)) for number in triggered(made, due)]
    return found


def test_a_checkpoint_that_subsumes_another_has_the_queue_checked_for_both() -> None:
    """CheckpointCoordinator of 2.3.0: at its end and after its cleanup, and the same for the other one. Within min-pause each check
    refuses a request: four of the five that wait, and the last one when checkpoint 3 completes."""
    made = coordinator(interval_s=0.1, min_pause_s=0.03, max_concurrent=3)
    assert until(made, 0.7) == [(1, 0.03), (2, 0.13), (3, 0.23)]
    for number in (2, 3):
        acknowledge(made, number)
        made.complete(number, 0.7)
        assert until(made, 0.7) == []
    assert until(made, 0.9) == [(4, 0.73), (5, 0.83)]


def test_while_a_checkpoint_begins_the_queue_is_not_checked() -> None:
    """CheckpointRequestDecider of 2.3.0: the end of checkpoint 2 begins one at once, after which a single request is refused. The
    other one is refused at the end of checkpoint 4, and the period starts anew."""
    made = coordinator(interval_s=0.1, min_pause_s=0.03, max_concurrent=2)
    assert until(made, 0.34) == [(1, 0.03), (2, 0.13)]
    made.on_end_of_data(0.34)
    acknowledge(made, 2)
    made.complete(2, 0.36)
    assert triggered(made, 0.36) == [3]
    assert until(made, 0.391) == [(4, 0.39)]
    acknowledge(made, 4)
    made.complete(4, 0.391)
    assert until(made, 0.53) == [(5, 0.421), (6, 0.521)]


def test_a_checkpoint_that_is_due_in_the_pause_while_another_is_in_progress_is_not_refused() -> None:
    """CheckpointCoordinator of 2.3.0: those of 0.16 s and 0.26 s wait, and the period goes on."""
    made = coordinator(interval_s=0.1, min_pause_s=0.06)
    assert until(made, 0.12) == [(1, 0.06)]
    acknowledge(made, 1)
    made.complete(1, 0.12)
    made.on_end_of_data(0.13)
    assert triggered(made, 0.13) == [2]
    for number, following in ((2, [3]), (3, [4]), (4, [])):
        made.fail(number, CheckpointFailureReason.CHECKPOINT_DECLINED, 0.3)
        assert triggered(made, 0.3) == following
    assert until(made, 0.4) == [(5, 0.36)]


@pytest.mark.parametrize("version", ["1.12", "2.x"])
def test_a_final_checkpoint_that_ends_with_a_restart_fails_the_job_no_second_time(version: str) -> None:
    """Its tasks end anyway."""
    made = coordinator(tolerable_failures=0, flink_version=version)
    made.on_job_running(0.0)
    made.stop_with_drain(0.0)
    made.on_time(0.5, TASKS)
    assert [failed.job_failure for failed in made.on_restart(1.0)] == [""]


def test_J_65_failures_of_checkpoints_before_the_last_success_do_not_count() -> None:
    """testIgnoresPastCheckpoints: two are tolerated; 1 fails again after the success of 2."""
    manager = CheckpointFailureManager(2)
    expired = CheckpointFailureReason.CHECKPOINT_EXPIRED
    failures = [manager.on_failure(1, expired), manager.on_failure(2, expired)]
    manager.on_success(2)
    failures += [manager.on_failure(number, expired) for number in (1, 3, 4)]
    assert failures == [None] * 5
    assert manager.on_failure(5, expired)


def test_J_52_without_running_tasks_a_request_is_dropped() -> None:
    """testPeriodicSchedulingWithInactiveTasks: the next one after a task runs begins a checkpoint."""
    made = coordinator(max_concurrent=2)
    assert made.on_time(0.0, []) == []
    assert triggered(made, 0.01) == [1]


def test_J_81_one_request_waits_until_a_checkpoint_ends() -> None:
    """testEnqueueOnTooManyPending: it begins then, at once."""
    made = coordinator(max_concurrent=1)
    assert triggered(made, 0.0) == [1]
    assert triggered(made, 0.01) == []
    assert made.fail(1, R.CHECKPOINT_DECLINED_TASK_CLOSING, 0.012) is not None
    assert triggered(made, 0.012) == [2]


def test_J_82_no_more_than_a_thousand_requests_wait() -> None:
    """testQueueSizeLimit: of the 2000 that come within 20 s, the others are dropped."""
    made = coordinator(max_concurrent=1)
    began, served = triggered(made, 0.0), -1
    while began:
        served += 1
        acknowledge(made, began[0])
        made.complete(began[0], 20.0)
        began = triggered(made, 20.0)
    assert served == 1000


def test_J_83_a_savepoint_needs_no_pause_and_a_periodic_checkpoint_is_dropped_within_it() -> None:
    """testSavepointTiming and testCheckpointTiming: the pause is 10 s after the last completion."""
    for stops, expected in ((True, [2]), (False, [])):
        made = coordinator(min_pause_s=10.0)
        assert triggered(made, 10.0) == [1]
        acknowledge(made, 1)
        made.complete(1, 19.5)
        if stops:
            made.stop_with_drain(20.0)
        assert triggered(made, 20.0) == expected
    assert made.next_deadline() == 29.5


def test_J_84_a_savepoint_comes_before_a_checkpoint_that_waits() -> None:
    """testSavepointPrioritized: and no periodic one after it."""
    made = coordinator(max_concurrent=1)
    assert triggered(made, 0.0) == [1]
    assert triggered(made, 0.015) == []
    assert [failed.checkpoint for failed in made.stop_with_drain(0.02)] == [1]
    assert made.on_time(0.02, TASKS) == [Triggered(2, True)]
    assert made.on_time(5.0, TASKS) == []


def test_a_checkpoint_at_the_end_of_all_data_keeps_no_pause_and_comes_before_one_that_waits() -> None:
    """It is not periodic (CheckpointRequestDecider). Without checkpoints there is none (FLINK-32663)."""
    made = coordinator(interval_s=10.0, min_pause_s=10.0)
    assert triggered(made, 10.0) == [1]
    made.on_end_of_data(11.0)
    assert triggered(made, 11.0) == []
    acknowledge(made, 1)
    made.complete(1, 12.0)
    assert made.next_deadline() <= 12.0
    assert triggered(made, 12.0) == [2]
    acknowledge(made, 2)
    made.complete(2, 13.0)
    assert (made.next_deadline(), triggered(made, 13.0)) == (23.0, [])
    made.on_end_of_data(14.0)
    made.on_restart(14.0)
    assert (made.next_deadline(), triggered(made, 14.0)) == (float("inf"), [])
    without = coordinator(interval_s=0.0)
    without.on_end_of_data(1.0)
    assert triggered(without, 1.0) == []


def test_J_85_a_checkpoint_is_complete_with_the_last_acknowledgement() -> None:
    """testTriggerAndConfirmSimpleCheckpoint: a repeated one changes nothing. The next checkpoint has the next id."""
    made = coordinator()
    assert made.on_time(0.0, TASKS) == [Triggered(1, False)]
    first, second = TASKS
    assert acknowledge(made, 1, first, first) == [AckOutcome.ACCEPTED, AckOutcome.DUPLICATE]
    pending = made.pending(1)
    assert pending is not None
    assert (list(pending.waiting), list(pending.acknowledged), pending.finalizing) == (
        [second],
        [first],
        False,
    )
    assert acknowledge(made, 1, second) == [AckOutcome.COMPLETE]
    assert made.complete(1, 0.005) == []
    assert (made.pending(1), made.last_completed) == (None, 1)
    assert triggered(made, 0.01) == [2]


@pytest.mark.parametrize("reason", [R.CHECKPOINT_DECLINED, R.CHECKPOINT_ASYNC_EXCEPTION])
def test_J_86_a_declined_checkpoint_is_gone(reason: R) -> None:
    """testTriggerAndDeclineSyncCheckpointFailureSimple, testTriggerAndDeclineAsyncCheckpointFailureSimple: later declines and
    acknowledgements of it change nothing. With no failure tolerated, the job fails once."""
    made = coordinator(tolerable_failures=0)
    assert triggered(made, 0.0) == [1]
    assert acknowledge(made, 1, TASKS[1]) == [AckOutcome.ACCEPTED]
    failed = made.fail(1, reason, 0.004, by_task=True)
    assert failed is not None
    assert failed.job_failure.startswith("Exceeded checkpoint tolerable failure threshold.")
    assert made.fail(1, reason, 0.004, by_task=True) is None
    assert (made.pending(1), acknowledge(made, 1, TASKS[0])) == (None, [AckOutcome.UNKNOWN])


def test_J_87_checkpoints_are_periodic_until_the_scheduler_stops() -> None:
    """testPeriodicTriggering and testStopPeriodicScheduler: those in progress are aborted. After a restart they begin anew."""
    made = coordinator(max_concurrent=9)
    assert [triggered(made, step / 100) for step in range(5)] == [[1], [2], [3], [4], [5]]
    aborted = made.on_restart(0.05)
    assert [failed.checkpoint for failed in aborted] == [1, 2, 3, 4, 5]
    assert {failed.reason for failed in aborted} == {R.CHECKPOINT_COORDINATOR_SUSPEND}
    assert (made.next_deadline(), made.on_time(9.0, TASKS)) == (float("inf"), [])
    made.on_task_running(10.0)
    assert triggered(made, 10.0) == [6]


def test_J_88_a_checkpoint_that_expires_counts_against_the_tolerable_failures() -> None:
    """testExpiredCheckpointExceedsTolerableFailureNumber: none is tolerated."""
    made = coordinator(tolerable_failures=0, timeout_s=0.02)
    assert triggered(made, 0.0) == [1]
    (failed,) = (one for one in made.on_time(0.02, TASKS) if isinstance(one, Failed))
    assert (failed.checkpoint, failed.reason) == (1, R.CHECKPOINT_EXPIRED)
    assert failed.job_failure.startswith("Exceeded checkpoint tolerable failure threshold.")


def test_J_100_none_begins_while_too_many_old_ones_are_being_deleted() -> None:
    """testEnqueueOnTooManyCleaning: with ten at once, eleven are too many. What was due waits, and begins with the first deletion."""
    made = coordinator(max_concurrent=10)
    made.on_deleting(11)
    assert made.next_deadline() == float("inf")
    assert triggered(made, 0.0) == triggered(made, 0.02) == []
    made.on_deleted(1, 0.025)
    assert made.next_deadline() == pytest.approx(0.025)
    assert triggered(made, 0.025) == [1, 2, 3]
    assert triggered(made, 0.03) == [4]


def test_J_101_a_stop_waits_for_deletions_too() -> None:
    """Its checkpoint is triggered when there are no longer too many."""
    made = coordinator(max_concurrent=1)
    made.on_deleting(2)
    made.stop_with_drain(0.0)
    assert made.next_deadline() == float("inf")
    assert triggered(made, 0.1) == []
    made.on_deleted(1, 0.2)
    assert triggered(made, 0.2) == [1]


def test_J_113_tasks_that_have_finished_acknowledge_nothing() -> None:
    """testCheckpointTriggeredAfterSomeTasksFinishedIfAllowed: three of six tasks have, so three acknowledgements complete it."""
    made, running = coordinator(), [("v1", 2), ("v2", 0), ("v2", 2)]
    assert made.on_time(0.0, running) == [Triggered(1, False)]
    outcomes = acknowledge(made, 1, ("v1", 0), *running)
    assert outcomes == [AckOutcome.UNKNOWN, AckOutcome.ACCEPTED, AckOutcome.ACCEPTED, AckOutcome.COMPLETE]


def test_J_114_without_a_running_task_no_checkpoint_begins() -> None:
    """testCheckpointAbortsIfTriggerTasksAreFinished and …AreNotExecuted: the request is dropped, and the next one is not."""
    made = coordinator()
    assert made.on_time(0.0, []) == []
    assert made.pending(1) is None
    assert triggered(made, 0.01) == [1]


@pytest.mark.parametrize("reason", [R.IO_EXCEPTION, R.FINALIZE_CHECKPOINT_FAILURE])
def test_J_115_J_116_a_failure_of_the_store_fails_the_job_once_if_none_is_tolerated(
    reason: CheckpointFailureReason,
) -> None:
    """testIOExceptionCheckpointExceedsTolerableFailureNumber, testExceptionInStoringCompletedCheckpointIsReportedToFailureManager."""
    made = coordinator(tolerable_failures=0)
    assert triggered(made, 0.0) == [1]
    acknowledge(made, 1)
    failed = made.fail(1, reason, 0.005)
    assert failed is not None
    assert failed.job_failure.startswith("Exceeded checkpoint tolerable failure threshold.")
    assert made.fail(1, reason, 0.005) is None
