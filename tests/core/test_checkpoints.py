"""The checkpoint coordinator and its failure manager."""

import pytest

from testbed_runtime.core.errors import OptionRefused
from testbed_runtime.core.job.checkpoints import (
    DRAIN_PAUSE_S,
    MAX_QUEUED_REQUESTS,
    AckOutcome,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureManager,
    CheckpointFailureReason,
    Failed,
    Triggered,
    parts_to_commit,
    retained_checkpoints,
)
from testbed_runtime.core.job.messages import AcknowledgeCheckpoint, SinkCommit
from testbed_runtime.core.options import Options

R = CheckpointFailureReason
TASKS = [("a", 0), ("b", 0)]


def test_J_15_the_third_failure_of_two_tolerable_ones_fails_the_job_once():
    """Declined 1, 2, failover 3 (does not count), declined 4."""
    manager = CheckpointFailureManager(2)
    reports = [
        (1, R.CHECKPOINT_DECLINED),
        (2, R.CHECKPOINT_DECLINED),
        (3, R.JOB_FAILOVER_REGION),
        (4, R.CHECKPOINT_DECLINED),
    ]
    failures = [manager.on_failure(*report) for report in reports]
    assert failures[:3] == [None] * 3
    assert failures[3] is not None
    assert failures[3].startswith(
        "Exceeded checkpoint tolerable failure threshold. The latest checkpoint failed due to Checkpoint was declined."
    )


def test_J_16_a_success_breaks_the_row():
    """IO 1, declined 2, success 4, expired 5."""
    manager = CheckpointFailureManager(2)
    assert manager.on_failure(1, R.IO_EXCEPTION) is None
    assert manager.on_failure(2, R.CHECKPOINT_DECLINED) is None
    manager.on_success(4)
    assert manager.on_failure(5, R.CHECKPOINT_EXPIRED) is None


def test_J_17_only_five_reasons_count():
    """Tolerable 0, each of Flink's reasons once with id -2."""
    assert len(R) == 24
    manager = CheckpointFailureManager(0)
    counted = [reason for reason in R if manager.on_failure(-2, reason) is not None]
    assert {*counted} == {
        R.IO_EXCEPTION,
        R.CHECKPOINT_DECLINED,
        R.FINALIZE_CHECKPOINT_FAILURE,
        R.CHECKPOINT_EXPIRED,
        R.CHECKPOINT_ASYNC_EXCEPTION,
    }


def test_J_18_one_checkpoint_counts_once():
    """Declined 1, 2 and 2 again under a tolerance of 2."""
    manager = CheckpointFailureManager(2)
    assert [manager.on_failure(i, R.CHECKPOINT_DECLINED) for i in (1, 2, 2)] == [None, None, None]


def test_failures_of_checkpoints_before_the_last_success_are_ignored():
    """Late declines."""
    manager = CheckpointFailureManager(0)
    manager.on_success(5)
    assert manager.on_failure(4, R.CHECKPOINT_DECLINED) is None


@pytest.mark.parametrize(
    ("successes", "failure", "counts"),
    [
        pytest.param([], 0, True, id="the-first-id"),
        pytest.param([5], 5, False, id="succeeded"),
        pytest.param([5, 3], 4, False, id="before-the-newest-success"),
        pytest.param([5], -1, True, id="without-an-id"),
        pytest.param([5], -2, False, id="any-other-id-is-compared"),
    ],
)
def test_failures_count_by_checkpoint_id(successes, failure, counts):
    """CheckpointFailureManager#checkFailureAgainstCounter: -1 is the only id that is never compared."""
    manager = CheckpointFailureManager(0)
    for checkpoint in successes:
        manager.on_success(checkpoint)
    assert (manager.on_failure(failure, R.CHECKPOINT_DECLINED) is not None) is counts


def test_a_success_of_an_older_checkpoint_does_not_break_the_row():
    """CheckpointFailureManager#handleCheckpointSuccess compares with the newest success."""
    manager = CheckpointFailureManager(1)
    manager.on_success(5)
    assert manager.on_failure(6, R.CHECKPOINT_DECLINED) is None
    manager.on_success(4)
    assert manager.on_failure(7, R.CHECKPOINT_EXPIRED) is not None


def coordinator(draw=max, **config):
    """A coordinator whose first checkpoint is due after the interval, unless `draw` says otherwise."""
    config = CheckpointConfig(**{"interval_s": 1.0, "timeout_s": 10.0, "flink_version": "2.2"} | config)
    made = CheckpointCoordinator(config, draw=draw)
    made.on_job_running(0.0)
    made.on_task_running(0.0)
    return made


def ack(task, checkpoint):
    return AcknowledgeCheckpoint(f"{task}", checkpoint, "", 0, 0.0)


def finish(made, checkpoint, now):
    outcomes = [made.acknowledge(task, ack(task, checkpoint)) for task in TASKS]
    assert outcomes == [AckOutcome.ACCEPTED, AckOutcome.COMPLETE]
    return made.complete(checkpoint, now)


def test_checkpoints_come_at_the_interval_and_never_two_at_once():
    """The one that was due waits until the pending one is there, and comes at once then."""
    made = coordinator()
    assert made.next_deadline() == 1.0
    assert made.on_time(1.0, TASKS) == [Triggered(1, False)]
    assert made.on_time(2.5, TASKS) == []
    finish(made, 1, 2.6)
    assert made.next_deadline() == 2.6
    assert made.on_time(2.6, TASKS) == [Triggered(2, False)]
    finish(made, 2, 2.7)
    assert made.next_deadline() == 3.0


@pytest.mark.parametrize(
    ("config", "bounds"),
    [
        pytest.param({}, (0, 1000), id="no-pause"),
        pytest.param({"min_pause_s": 0.25}, (250, 1000), id="pause"),
        pytest.param({"min_pause_s": 3.0}, (3000, 3000), id="the-interval-is-raised-to-the-pause"),
        pytest.param({"min_pause_s": 4e7}, (31_536_000_000, 31_536_000_000), id="the-pause-is-cut-to-a-year"),
    ],
)
def test_the_first_checkpoint_comes_after_a_delay_that_is_drawn(config, bounds):
    """CheckpointCoordinator#getRandomInitDelay: from min-pause to the interval, until 2.2 at each activation."""
    asked = []

    def draw(low, high):
        asked.append((low, high))
        return low

    made = coordinator(draw, **config)
    assert asked == [bounds]
    assert made.next_deadline() == bounds[0] / 1000
    made.on_restart(0.0)
    made.on_job_running(10.0)
    made.on_task_running(11.0)
    made.on_all_running(12.0)
    assert made.next_deadline() == 10 + bounds[0] / 1000
    assert asked == [bounds, bounds]


@pytest.mark.parametrize("version", ["2.3", "2.x"])
def test_from_2_3_on_the_first_checkpoint_comes_min_pause_after_all_tasks_run(version):
    """ExecutionTrackingCheckpointCoordinatorDeActivator: what is due before is dropped, and the period starts anew."""
    made = coordinator(interval_s=6.0, min_pause_s=0.25, flink_version=version)
    assert made.next_deadline() == 0.25
    assert made.on_time(0.25, []) == []
    made.on_task_running(0.5)
    assert made.next_deadline() == 6.25
    made.on_all_running(1.0)
    assert made.next_deadline() == 1.25
    assert made.on_time(1.25, TASKS) == [Triggered(1, False)]
    finish(made, 1, 1.5)
    made.on_all_running(2.0)
    assert made.next_deadline() == 7.25


def test_from_2_3_on_the_period_after_a_restart_begins_with_the_first_task_and_survives_later_restarts():
    """Seen with Flink 2.3.0: the attempts that failed are tracked for good, so that only the first report of RUNNING counts."""
    made = coordinator(interval_s=6.0, flink_version="2.3", max_concurrent=2)
    made.on_all_running(1.0)
    assert made.on_time(1.0, TASKS) == [Triggered(1, False)]
    assert [(f.checkpoint, f.reason) for f in made.on_restart(2.0)] == [(1, R.CHECKPOINT_COORDINATOR_SUSPEND)]
    made.on_job_running(3.0)
    assert made.next_deadline() == float("inf")
    made.on_task_running(4.0)
    assert made.on_time(4.0, []) == []
    made.on_all_running(5.0)
    assert made.on_time(10.0, TASKS) == [Triggered(2, False)]
    assert [(f.checkpoint, f.reason) for f in made.on_restart(11.0)] == [(2, R.JOB_FAILOVER_REGION)]
    for again in (made.on_job_running, made.on_task_running, made.on_all_running):
        again(15.0)
    assert made.next_deadline() == 16.0
    assert made.stop(15.5) == []
    assert made.next_deadline() == float("inf")


def test_the_period_follows_from_the_first_checkpoint():
    """CheckpointCoordinator's ScheduledTrigger: each is due one interval after the one before."""
    made = coordinator(lambda low, high: 300)
    assert made.on_time(0.3, TASKS) == [Triggered(1, False)]
    finish(made, 1, 0.4)
    assert made.next_deadline() == 1.3


def test_the_period_starts_anew_after_a_refusal():
    """CheckpointRequestDecider refuses the request of 2.0 and has the trigger rescheduled to the end of min-pause, 2.7."""
    made = coordinator(min_pause_s=0.8)
    made.on_time(1.0, TASKS)
    finish(made, 1, 1.9)
    assert made.on_time(2.0, TASKS) == []
    assert made.on_time(2.7, TASKS) == [Triggered(2, False)]
    finish(made, 2, 2.75)
    assert made.next_deadline() == pytest.approx(3.7)


@pytest.mark.parametrize(
    ("pause", "ends", "takes", "expected"),
    [
        pytest.param(0.0, 3.5, 0.0, [3.5, 3.5, 4.0], id="each-waits-for-room"),
        pytest.param(0.6, 3.5, 0.4, [4.1, 5.1], id="min-pause-refuses-them"),
        pytest.param(0.5, 3.5, 0.1, [4.0, 5.0], id="min-pause-refuses-one-at-each-look-at-the-queue"),
        pytest.param(0.0, 1.5, 0.0, [2.0, 3.0], id="none-is-queued"),
    ],
)
def test_requests_beyond_the_concurrent_ones_are_queued(pause, ends, takes, expected):
    """CheckpointRequestDecider: those of 2.0 and 3.0 wait until the checkpoint of 1.0 ends."""
    made = coordinator(min_pause_s=pause)
    made.on_time(1.0, TASKS)
    finish(made, 1, ends)
    times, now = [], ends
    while len(times) < len(expected):
        now = max(now, made.next_deadline())
        for triggered in made.on_time(now, TASKS):
            times.append(now)
            finish(made, triggered.checkpoint, now + takes)
    assert times == pytest.approx(expected)


def test_two_queued_requests_are_triggered_one_after_the_other():
    """CheckpointCoordinator#onTriggerSuccess looks at the queue again: there is room for two."""
    made = coordinator(max_concurrent=2, timeout_s=4.0, tolerable_failures=9)
    made.on_time(1.0, TASKS)
    made.on_time(2.0, TASKS)
    assert made.next_deadline() == 5.0
    assert made.on_time(5.0, TASKS)[1:] == [Triggered(3, False)]
    assert made.on_time(6.0, TASKS)[1:] == [Triggered(4, False)]


def test_the_queue_is_bounded():
    """CheckpointRequestDecider keeps 1000 requests and drops the newest periodic one."""
    made = coordinator(timeout_s=1e6)
    made.on_time(1.0, TASKS)
    now = 5000.5
    finish(made, 1, now)
    count = 0
    while made.next_deadline() <= now:
        (triggered,) = made.on_time(now, TASKS)
        finish(made, triggered.checkpoint, now)
        count += 1
    assert count == MAX_QUEUED_REQUESTS
    assert made.next_deadline() == 5001.0


def test_a_request_is_dropped_when_not_all_tasks_are_running():
    """NOT_ALL_REQUIRED_TASKS_RUNNING: the next one is due an interval later."""
    made = coordinator()
    assert made.on_time(1.0, []) == []
    assert made.next_deadline() == 2.0


def test_a_stop_of_the_scheduler_empties_the_queue():
    """CheckpointCoordinator#abortPendingAndQueuedCheckpoints."""
    made = coordinator()
    made.on_time(1.0, TASKS)
    made.on_time(3.5, TASKS)
    made.on_restart(3.6)
    made.on_job_running(4.0)
    assert made.next_deadline() == 5.0


def test_the_pause_is_kept():
    """min-pause after a completion."""
    made = coordinator(min_pause_s=0.8)
    made.on_time(1.0, TASKS)
    finish(made, 1, 1.9)
    assert made.next_deadline() == pytest.approx(2.7)


def test_a_checkpoint_expires_and_may_fail_the_job():
    """Tolerable 0."""
    made = coordinator(timeout_s=0.5)
    made.on_time(1.0, TASKS)
    made.acknowledge(TASKS[0], ack(TASKS[0], 1))
    assert made.next_deadline() == 1.5
    (failed,) = made.on_time(1.5, TASKS)
    assert isinstance(failed, Failed)
    assert (failed.checkpoint, failed.reason, failed.age_s) == (1, R.CHECKPOINT_EXPIRED, 0.5)
    assert failed.job_failure
    assert made.acknowledge(TASKS[1], ack(TASKS[1], 1)) is AckOutcome.UNKNOWN


@pytest.mark.parametrize(("tolerable", "next_one"), [(0, []), (1, [Triggered(2, False)])])
def test_no_checkpoint_begins_when_one_that_expired_fails_the_job(tolerable: int, next_one: list[Triggered]):
    """The restart would abort it before it is triggered. One that is tolerated is followed by the next, which is due."""
    made = coordinator(interval_s=0.5, timeout_s=0.5, tolerable_failures=tolerable)
    made.on_time(0.5, TASKS)
    failed, *following = made.on_time(1.0, TASKS)
    assert isinstance(failed, Failed)
    assert bool(failed.job_failure) is (tolerable == 0)
    assert following == next_one


def test_acknowledgements_count_once_and_only_from_those_asked():
    """Duplicates and strangers."""
    made = coordinator()
    made.on_time(1.0, TASKS)
    assert made.acknowledge(TASKS[0], ack(TASKS[0], 1)) is AckOutcome.ACCEPTED
    assert made.acknowledge(TASKS[0], ack(TASKS[0], 1)) is AckOutcome.DUPLICATE
    assert made.acknowledge(("c", 0), ack(("c", 0), 1)) is AckOutcome.UNKNOWN
    assert made.acknowledge(TASKS[0], ack(TASKS[0], 9)) is AckOutcome.UNKNOWN


def test_nothing_is_triggered_between_a_failover_and_the_next_start():
    """Pending ones are aborted; what is being finalized is decided in the store."""
    made = coordinator(max_concurrent=2)
    made.on_time(1.0, TASKS)
    made.on_time(2.0, TASKS)
    for task in TASKS:
        made.acknowledge(task, ack(task, 1))
    aborted = made.on_restart(2.1)
    assert [(f.checkpoint, f.job_failure) for f in aborted] == [(2, "")]
    assert made.on_time(50.0, TASKS) == []
    made.complete(1, 2.2)
    assert made.last_completed == 1
    made.on_job_running(60.0)
    assert made.next_deadline() == 61.0


def test_a_completed_checkpoint_subsumes_older_ones():
    """Two at a time."""
    made = coordinator(max_concurrent=2)
    made.on_time(1.0, TASKS)
    made.on_time(2.0, TASKS)
    assert [(f.checkpoint, f.reason) for f in finish(made, 2, 2.5)] == [(1, R.CHECKPOINT_SUBSUMED)]


def test_the_final_checkpoint_aborts_the_pending_one_and_is_the_last():
    """Stop with drain; no interval needed. Another request changes nothing."""
    made = coordinator()
    made.on_time(1.0, TASKS)
    aborted = Failed(1, R.CHECKPOINT_COORDINATOR_SUSPEND, pytest.approx(0.1))
    assert made.stop_with_drain(1.1) == [aborted]
    assert made.on_time(1.2, TASKS) == [Triggered(2, True)]
    assert made.stop_with_drain(1.2) == []
    finish(made, 2, 1.3)
    assert made.next_deadline() == float("inf")
    without = coordinator(interval_s=0.0)
    assert without.next_deadline() == float("inf")
    without.stop_with_drain(0.0)
    assert without.on_time(0.5, TASKS) == [Triggered(1, True)]


def test_a_final_checkpoint_that_is_given_up_leaves_the_periodic_ones():
    """A new one may be wanted after that."""
    made = coordinator()
    made.stop_with_drain(0.0)
    assert (made.draining, made.drain_refused) == (True, None)
    made.refuse_drain()
    assert (made.draining, made.drain_due, made.drain_refused) == (
        False,
        False,
        R.NOT_ALL_REQUIRED_TASKS_RUNNING,
    )
    assert made.on_time(1.0, TASKS) == [Triggered(1, False)]
    made.stop_with_drain(0.0)
    assert (made.draining, made.drain_refused) == (True, None)


def test_a_final_checkpoint_that_fails_is_tried_again():
    """After a pause: a TaskManager that is gone fails it again at the same moment; and after a failover."""
    made = coordinator(tolerable_failures=9)
    made.stop_with_drain(0.0)
    assert made.on_time(0.1, TASKS) == [Triggered(1, True)]
    assert made.fail(1, R.TRIGGER_CHECKPOINT_FAILURE, 0.2) is not None
    assert made.on_time(0.2, TASKS) == []
    assert made.next_deadline() == 0.2 + DRAIN_PAUSE_S
    assert made.on_time(0.2 + DRAIN_PAUSE_S, TASKS) == [Triggered(2, True)]
    made.on_restart(0.4)
    made.on_job_running(5.0)
    assert made.on_time(5.0, TASKS) == [Triggered(3, True)]


def test_a_final_checkpoint_without_running_tasks_is_tried_again_after_a_pause():
    """A deadline that stays in the past would keep the JobMaster busy."""
    made = coordinator()
    made.stop_with_drain(0.0)
    assert made.on_time(0.1, []) == []
    assert made.next_deadline() == 0.1 + DRAIN_PAUSE_S
    assert made.on_time(0.1 + DRAIN_PAUSE_S, TASKS) == [Triggered(1, True)]


def test_a_commit_takes_along_what_no_completed_checkpoint_took():
    """Parts of failed checkpoints."""
    earlier = (SinkCommit(checkpoint=3), SinkCommit(checkpoint=4))
    commit = SinkCommit(checkpoint=5, earlier=earlier)
    assert parts_to_commit(commit, 3) == [earlier[1], commit]


@pytest.mark.parametrize(
    ("key", "least", "below", "message"),
    [
        ("interval", "10 ms", "9 ms", "Checkpoint interval must be larger than or equal to 10 ms"),
        ("interval", "10 ms", "0 ms", "Checkpoint interval must be larger than or equal to 10 ms"),
        ("timeout", "10 ms", "9 ms", "Checkpoint timeout must be larger than or equal to 10 ms"),
        ("max-concurrent-checkpoints", "1", "0", "The maximum number of concurrent attempts must be at least one."),
        ("tolerable-failed-checkpoints", "0", "-1", "The tolerable failure checkpoint number must be non-negative."),
    ],
)  # fmt: skip
def test_J_15_what_flinks_checkpoint_config_refuses_is_refused(key, least, below, message):
    """Its setters, one below and at the limit."""
    key = "execution.checkpointing." + key
    CheckpointConfig.of(Options({key: least}))
    with pytest.raises(OptionRefused) as refused:
        CheckpointConfig.of(Options({key: below}))
    found = refused.value
    assert (found.class_name, found.message, found.key) == ("IllegalArgumentException", message, key)


def test_J_48_a_negative_pause_is_refused():
    """CheckpointConfig.setMinPauseBetweenCheckpoints; none is allowed."""
    assert CheckpointConfig(min_pause_s=0).min_pause_s == 0
    with pytest.raises(OptionRefused, match="Pause value must be zero or positive"):
        CheckpointConfig(min_pause_s=-0.001)


@pytest.mark.parametrize(
    ("version", "io", "finalization"),
    [("1.12", False, False), ("1.13", False, False), ("1.14", True, False), ("1.15", True, True), ("2.x", True, True)],
)  # fmt: skip
def test_J_17_which_reasons_count_depends_on_the_version(version, io, finalization):
    """CheckpointFailureManager.checkFailureCounter of each minor; an expired checkpoint counts in all of them."""
    counted = [
        CheckpointFailureManager(0, version).on_failure(1, reason) is not None
        for reason in (R.IO_EXCEPTION, R.FINALIZE_CHECKPOINT_FAILURE, R.CHECKPOINT_EXPIRED)
    ]
    assert counted == [io, finalization, True]


def test_J_18_until_1_13_failures_without_an_id_count_once():
    """countedCheckpointIds contains the unknown id too; from 1.14 on each of them counts."""
    for version, expected in (("1.13", [True, True]), ("1.14", [True, False])):
        manager = CheckpointFailureManager(1, version)
        assert [manager.on_failure(-1, R.CHECKPOINT_DECLINED) is None for _ in range(2)] == expected


@pytest.mark.parametrize(
    ("version", "named"), [("1.16", ""), ("1.17", " The latest checkpoint failed due to Checkpoint expired")]
)
def test_J_15_the_failure_of_the_job_names_the_reason_from_1_17_on(version, named):  # fmt: skip
    """Before, it is the threshold alone."""
    text = CheckpointFailureManager(0, version).on_failure(1, R.CHECKPOINT_EXPIRED)
    assert text is not None
    assert (
        text.removeprefix("Exceeded checkpoint tolerable failure threshold.").partition(" before")[0] == named
    )


@pytest.mark.parametrize(("value", "kept"), [("10", 10), ("1", 1), ("0", 1), ("-1", 1)])
def test_J_95_at_least_one_checkpoint_is_retained(value: str, kept: int):
    """Too small a number does not count."""
    assert retained_checkpoints(Options({"execution.checkpointing.num-retained": value})) == kept


def test_a_failure_reason_is_found_by_its_name():
    """An unknown one, of another version, counts as an ordinary decline."""
    assert [R.of(reason.name) for reason in R] == list(R)
    assert R.of("CHECKPOINT_DECLINED_UNKNOWN") is R.CHECKPOINT_DECLINED
