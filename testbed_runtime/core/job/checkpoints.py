"""Decide when checkpoints are triggered, complete, are declined or expire, and when the job fails (Flink's
CheckpointCoordinator).

Pure: inputs are events with their times in seconds, outputs are the actions to take. Checkpoint ids count
from 1. They continue under another leader, which is given the last id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct

from testbed_runtime.core.errors import require_option
from testbed_runtime.core.job.failover import Task
from testbed_runtime.core.job.messages import AcknowledgeCheckpoint, SinkCommit
from testbed_runtime.core.options import Options
from testbed_runtime.core.versions import (
    CHECKPOINTS_FOLLOW_TASKS,
    FAILURE_NAMES_REASON,
    FINALIZATION_COUNTS,
    IO_FAILURES_COUNT,
    LATEST,
    SAVEPOINTS_DO_NOT_COUNT,
    has,
)

FOREVER = float("inf")
PREFIX = "execution.checkpointing."
MINIMAL_TIME_S = 0.01
"""Flink's shortest interval and timeout (MINIMAL_CHECKPOINT_TIME)."""
DRAIN_PAUSE_S = 0.1
"""Pause before the final checkpoint is tried again. A lost TaskManager refuses each trigger immediately until its tasks fail,
and without running tasks there is nothing to trigger."""
MAX_QUEUED_REQUESTS = 1000
"""Maximum number of periodic checkpoints that wait for a pending one, as in Flink. Further ones are
dropped."""
MAX_MIN_PAUSE_S = 365.0 * 24 * 3600
"""A longer min-pause is shortened to this, as in Flink."""
INTERVAL_REFUSED = "Checkpoint interval must be larger than or equal to 10 ms"
TIMEOUT_REFUSED = "Checkpoint timeout must be larger than or equal to 10 ms"
CONCURRENT_REFUSED = "The maximum number of concurrent attempts must be at least one."
TOLERABLE_REFUSED = "The tolerable failure checkpoint number must be non-negative."
EXCEEDED = "Exceeded checkpoint tolerable failure threshold."
UNKNOWN_CHECKPOINT = -1
"""Id of a checkpoint that failed before it had one."""


class CheckpointFailureReason(Enum):
    """Flink's names and texts of the failure reasons."""

    PERIODIC_SCHEDULER_SHUTDOWN = "Periodic checkpoint scheduler is shut down."
    TOO_MANY_CHECKPOINT_REQUESTS = "The maximum number of queued checkpoint requests exceeded"
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (
        "The minimum time between checkpoints is still pending. "
        "Checkpoint will be triggered after the minimum time."
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = "Not all required tasks are currently running."
    IO_EXCEPTION = "An Exception occurred while triggering the checkpoint. IO-problem detected."
    BLOCKING_OUTPUT_EXIST = "Blocking output edge exists in running tasks."
    CHECKPOINT_ASYNC_EXCEPTION = "Asynchronous task checkpoint failed."
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = (
        "The checkpoint was aborted due to exception of other subtasks sharing the ChannelState file."
    )
    CHECKPOINT_EXPIRED = "Checkpoint expired before completing."
    CHECKPOINT_SUBSUMED = "Checkpoint has been subsumed."
    CHECKPOINT_DECLINED = "Checkpoint was declined."
    CHECKPOINT_DECLINED_TASK_NOT_READY = "Checkpoint was declined (tasks not ready)"
    CHECKPOINT_DECLINED_TASK_CLOSING = "Checkpoint was declined (task is closing)"
    CHECKPOINT_DECLINED_SUBSUMED = (
        "Checkpoint was canceled because a barrier from newer checkpoint was received."
    )
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = "Task received cancellation from one of its inputs"
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = "Checkpoint was declined because one input stream is finished"
    CHECKPOINT_COORDINATOR_SHUTDOWN = "CheckpointCoordinator shutdown."
    CHECKPOINT_COORDINATOR_SUSPEND = "Checkpoint Coordinator is suspending."
    JOB_FAILOVER_REGION = "FailoverRegion is restarting."
    TASK_FAILURE = "Task has failed."
    TASK_CHECKPOINT_FAILURE = "Task local checkpoint failure."
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = "Unknown task for the checkpoint to notify."
    FINALIZE_CHECKPOINT_FAILURE = "Failure to finalize checkpoint."
    TRIGGER_CHECKPOINT_FAILURE = "Trigger checkpoint failure."

    @classmethod
    def of(cls, name: str) -> CheckpointFailureReason:
        """Return the reason by its name. An unknown one counts as an ordinary decline."""
        return cls[name] if name in cls.__members__ else cls.CHECKPOINT_DECLINED


_R = CheckpointFailureReason
COUNTED = (
    _R.CHECKPOINT_DECLINED,
    _R.CHECKPOINT_EXPIRED,
    _R.CHECKPOINT_ASYNC_EXCEPTION,
    _R.FINALIZE_CHECKPOINT_FAILURE,
    _R.IO_EXCEPTION,
)
ENDS_ANYWAY = (_R.CHECKPOINT_COORDINATOR_SHUTDOWN, _R.CHECKPOINT_COORDINATOR_SUSPEND, _R.JOB_FAILOVER_REGION)
"""Reasons for which a checkpoint ends together with the attempts of its tasks."""


class CheckpointFailureManager:
    """Counts failures in a row against `execution.checkpointing.tolerable-failed-checkpoints`."""

    def __init__(self, tolerable: int, flink_version: str = LATEST) -> None:
        self._tolerable = tolerable
        self._counts_io = has(flink_version, IO_FAILURES_COUNT)
        self._counts_finalization = has(flink_version, FINALIZATION_COUNTS)
        self._names_reason = has(flink_version, FAILURE_NAMES_REASON)
        self._spares_savepoints = has(flink_version, SAVEPOINTS_DO_NOT_COUNT)
        self._counted: set[int] = set()
        self._failures = 0
        self._last_success: int | None = None

    def on_success(self, checkpoint: int) -> None:
        """Reset the count, unless a newer checkpoint has already succeeded."""
        if self._last_success is None or checkpoint > self._last_success:
            self._last_success = checkpoint
            self._reset()

    def on_stop_failure(self, reason: CheckpointFailureReason, *, by_task: bool) -> bool:
        """Return whether the job fails because of the final checkpoint of a stop, whose tasks would otherwise
        wait for it forever. The number of tolerated failures does not matter. `by_task`: a task has declined
        the checkpoint."""
        return by_task or not (self._spares_savepoints or reason in ENDS_ANYWAY)

    def on_failure(self, checkpoint: int, reason: CheckpointFailureReason) -> str | None:
        """Count a failure. Return the text with which the job fails, if it does. A checkpoint counts once,
        and only if it is newer than the last success. UNKNOWN_CHECKPOINT always counts (until 1.13, like any
        other id)."""
        if not self._counts(reason):
            return None
        if checkpoint != UNKNOWN_CHECKPOINT or not self._counts_io:
            is_late = self._last_success is not None and checkpoint <= self._last_success
            if is_late or checkpoint in self._counted:
                return None
            self._counted.add(checkpoint)
        self._failures += 1
        if self._failures <= self._tolerable:
            return None
        self._reset()
        why = (
            f" The latest checkpoint failed due to {reason.value}, view the Checkpoint History tab or the Job Manager log to find "
            "out why continuous checkpoints failed."
        )
        return EXCEEDED + (why if self._names_reason else "")

    def _counts(self, reason: CheckpointFailureReason) -> bool:
        if reason is _R.IO_EXCEPTION:
            return self._counts_io
        if reason is _R.FINALIZE_CHECKPOINT_FAILURE:
            return self._counts_finalization
        return reason in COUNTED

    def _reset(self) -> None:
        self._failures = 0
        self._counted.clear()


def _require_interval(holds: bool) -> None:
    require_option(holds, INTERVAL_REFUSED, PREFIX + "interval", "leave it out for no checkpoints")


class CheckpointConfig(Struct, frozen=True):
    """Seconds; an interval of 0 turns periodic checkpoints off."""

    interval_s: float = 0.0
    timeout_s: float = 600.0
    min_pause_s: float = 0.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    flink_version: str = LATEST

    def __post_init__(self) -> None:
        """Raise OptionRefused as the setters of Flink's CheckpointConfig do. Flink does not call the setters
        of options that are not set."""
        _require_interval(self.interval_s == 0 or self.interval_s >= MINIMAL_TIME_S)
        for holds, text, key in (
            (self.timeout_s >= MINIMAL_TIME_S, TIMEOUT_REFUSED, "timeout"),
            (self.min_pause_s >= 0, "Pause value must be zero or positive", "min-pause"),
            (self.max_concurrent >= 1, CONCURRENT_REFUSED, "max-concurrent-checkpoints"),
            (self.tolerable_failures >= 0, TOLERABLE_REFUSED, "tolerable-failed-checkpoints"),
        ):
            require_option(holds, text, PREFIX + key)

    @classmethod
    def of(cls, options: Options) -> CheckpointConfig:
        key, interval_s = PREFIX + "interval", options.duration(PREFIX + "interval")
        _require_interval(interval_s >= MINIMAL_TIME_S or not options.is_set(key))
        return cls(
            interval_s=interval_s,
            timeout_s=options.duration(PREFIX + "timeout"),
            min_pause_s=options.duration(PREFIX + "min-pause"),
            max_concurrent=options.integer(PREFIX + "max-concurrent-checkpoints"),
            tolerable_failures=options.integer(PREFIX + "tolerable-failed-checkpoints"),
            flink_version=options.flink_version,
        )


def retained_checkpoints(options: Options) -> int:
    """Return how many completed checkpoints are kept. Too small a number is replaced by Flink's default
    (DefaultCompletedCheckpointStoreUtils.getMaximumNumberOfRetainedCheckpoints)."""
    return max(1, options.integer(PREFIX + "num-retained"))


@dataclass(slots=True)
class PendingCheckpoint:
    id: int
    triggered_at: float
    drain: bool
    waiting: dict[Task, None]
    acknowledged: dict[Task, AcknowledgeCheckpoint] = field(default_factory=dict)
    finalizing: bool = False


class Triggered(Struct, frozen=True):
    checkpoint: int
    drain: bool


class Failed(Struct, frozen=True):
    """A failed checkpoint. `job_failure` is not empty if the job fails because of it."""

    checkpoint: int
    reason: CheckpointFailureReason
    age_s: float
    job_failure: str = ""
    cause_class: str = "FlinkRuntimeException"


class AckOutcome(Enum):
    ACCEPTED = "accepted"
    COMPLETE = "complete"
    """Every task has acknowledged: write the checkpoint to the store."""
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"
    """The checkpoint expired, failed, was subsumed or was never triggered."""


class CheckpointCoordinator:
    """The state of Flink's CheckpointCoordinator. `on_time` and the other handlers return the results.
    `next_deadline` says when to call `on_time` again.

    A periodic checkpoint that is due while `max_concurrent` are pending waits in a queue until one of them
    has ended. If it is due within min-pause of the last completed checkpoint, it is dropped, and the period
    restarts at the end of the pause. While more than `max_concurrent` old checkpoints are being deleted, no
    checkpoint begins."""

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        last_id: int = 0,
        last_completed: int = 0,
        draw: Callable[[int, int], int] = max,
    ) -> None:
        """`last_id`: the last checkpoint that an earlier leader triggered. `draw(low, high)` returns the
        delay of the first checkpoint in milliseconds: from min-pause to the interval, both included."""
        self._config = config
        self._min_pause_s = min(config.min_pause_s, MAX_MIN_PAUSE_S)
        self._interval_s = max(config.interval_s, self._min_pause_s) if config.interval_s > 0 else FOREVER
        self._draw = draw
        self._failures = CheckpointFailureManager(config.tolerable_failures, config.flink_version)
        self._pending: dict[int, PendingCheckpoint] = {}
        self.last_id = max(last_id, last_completed)
        """Id of the newest checkpoint that was triggered."""
        self.last_completed = last_completed
        self._due = FOREVER
        """When the next periodic checkpoint is requested."""
        self._queued = 0
        """Periodic checkpoints that were requested and not triggered yet."""
        self._deleting = 0
        """Completed checkpoints that are no longer retained, and not deleted yet."""
        self._recheck = FOREVER
        """When the queue is checked again."""
        self._rechecks = 0
        """Number of these checks. Within min-pause, each check drops one periodic checkpoint."""
        self._at_once = FOREVER
        """Time of the request for a checkpoint that ignores the pause."""
        self._pause_end = -FOREVER
        self.draining = False
        self._drain_from = 0.0
        self.drain_refused: CheckpointFailureReason | None = None
        """Why the last request to stop cannot be carried out."""
        self._active = False
        self._follows_tasks = has(config.flink_version, CHECKPOINTS_FOLLOW_TASKS)
        self._all_ran = self._has_restarted = False

    # ---- when

    def on_job_running(self, now: float) -> None:
        """Handle the job's change to RUNNING. Its tasks may still be starting."""
        if not self._follows_tasks:
            self._start(now)

    def on_task_running(self, now: float) -> None:
        """Handle a task's report that it runs. This starts a scheduler that was stopped
        (DefaultExecutionGraph.updateState)."""
        if self._follows_tasks and not self._active:
            self._start(now)

    def on_all_running(self, now: float) -> None:
        """Handle that all tasks run or have finished. Before the first restart, the period begins anew. After
        a restart, nothing happens: Flink's ExecutionTrackingCheckpointCoordinatorDeActivator still waits for
        the attempts that failed."""
        self._drain_from = min(self._drain_from, now)
        if self._follows_tasks and not (self._has_restarted or self._all_ran):
            self._all_ran = True
            self._start(now)

    def on_end_of_data(self, now: float) -> None:
        """Handle the end of the data of all tasks. Take a checkpoint without a pause, so that the tasks need
        not wait for the next periodic one (SchedulerBase.notifyEndOfData)."""
        if self._interval_s < FOREVER:
            self._at_once = now

    def _start(self, now: float) -> None:
        """Begin to trigger checkpoints. The first one is due after the drawn delay (from 2.3 on, after
        min-pause). A wanted final one is due at once."""
        self._active = True
        if self._interval_s < FOREVER:
            shortest_ms, longest_ms = round(self._min_pause_s * 1000), round(self._interval_s * 1000)
            delay_ms = shortest_ms if self._follows_tasks else self._draw(shortest_ms, longest_ms)
            self._due, self._queued = now + delay_ms / 1000, 0
            self._recheck, self._rechecks = FOREVER, 0

    def on_restart(self, now: float) -> list[Failed]:
        """Abort the pending checkpoints and stop the scheduler. From 2.3 on, stop only a scheduler that
        started when all tasks ran: after the first restart, the period continues."""
        goes_on = self._follows_tasks and not self._all_ran
        self._all_ran, self._has_restarted = False, True
        if goes_on:
            return self._abort_pending(_R.JOB_FAILOVER_REGION, now)
        return self.stop(now)

    def stop(self, now: float) -> list[Failed]:
        """Abort the pending checkpoints and trigger none until the next start. The store decides about
        checkpoints that are being finalized."""
        failed = self._abort_pending(_R.CHECKPOINT_COORDINATOR_SUSPEND, now)
        self._active = False
        self._due = self._recheck = self._at_once = FOREVER
        self._queued = self._rechecks = 0
        return failed

    def _abort_pending(self, reason: CheckpointFailureReason, now: float) -> list[Failed]:
        return [self._fail(p, reason, now) for p in list(self._pending.values()) if not p.finalizing]

    def stop_with_drain(self, now: float) -> list[Failed]:
        """Take one final checkpoint; no periodic ones follow. Pending ones are aborted (SchedulerBase.stopWithSavepoint)."""
        repeated = self.draining
        self.draining = True
        self.drain_refused = None
        return [] if repeated else self._abort_pending(_R.CHECKPOINT_COORDINATOR_SUSPEND, now)

    def refuse_drain(self) -> None:
        """Give up the final checkpoint. Periodic checkpoints continue."""
        self.draining = False
        self.drain_refused = _R.NOT_ALL_REQUIRED_TASKS_RUNNING

    @property
    def drain_due(self) -> bool:
        """Whether a final checkpoint is wanted and has not been triggered, although all tasks have started."""
        return self.draining and self._active

    def next_deadline(self) -> float:
        expiries = [
            p.triggered_at + self._config.timeout_s for p in self._pending.values() if not p.finalizing
        ]
        return min([*expiries, self._next_trigger()])

    @property
    def _deletes_too_many(self) -> bool:
        return self._deleting > self._config.max_concurrent

    @property
    def _full(self) -> bool:
        return self._deletes_too_many or len(self._pending) >= self._config.max_concurrent

    def _next_trigger(self) -> float:
        if not self._active or self._deletes_too_many:
            return FOREVER
        if self.draining:
            return self._drain_from
        if self._full:
            return FOREVER
        periodic = self._due if self._queued else max(self._due, self._pause_end)
        return min(self._at_once, self._recheck, periodic)

    def on_time(self, now: float, tasks: list[Task]) -> list[Triggered | Failed]:
        """Expire old checkpoints and trigger those that are due, unless the job fails because of an expired
        one. `tasks` must acknowledge: all tasks that have not finished. Without tasks, a periodic request is
        dropped, and a final one is repeated after a pause."""
        expired = [
            self._fail(pending, _R.CHECKPOINT_EXPIRED, now)
            for pending in list(self._pending.values())
            if not pending.finalizing and now >= pending.triggered_at + self._config.timeout_s
        ]
        done: list[Triggered | Failed] = [*expired]
        if any(failed.job_failure for failed in expired):
            return done
        if self.draining:
            if now >= self._next_trigger() and tasks:
                done.append(self._trigger(now, tasks))
            elif now >= self._next_trigger():
                self._drain_from = now + DRAIN_PAUSE_S
            return done
        if now >= self._next_trigger():
            self._request(now)
            checks, self._recheck, self._rechecks = max(1, self._rechecks), FOREVER, 0
            while checks and not self._take_queued(now, tasks, done):
                checks -= 1
        return done

    def _take_queued(self, now: float, tasks: list[Task], done: list[Triggered | Failed]) -> bool:
        """Trigger the queued checkpoints that may begin. Return whether a request was taken: while a
        checkpoint is triggered, Flink checks no other request."""
        taken = False
        while self._choose(now):
            taken = True
            if tasks:
                done.append(self._trigger(now, tasks))
        return taken

    def _request(self, now: float) -> None:
        """Queue the periodic checkpoints that have become due."""
        if not self._active or self.draining or self._due > now:
            return
        if not (self._full or self._queued):  # requested within min-pause, it was refused
            self._due = max(self._due, self._pause_end)
        if self._due <= now:
            missed = int((now - self._due) // self._interval_s) + 1
            self._queued = min(self._queued + missed, MAX_QUEUED_REQUESTS)
            self._due += missed * self._interval_s

    def _choose(self, now: float) -> bool:
        """Take a request from the queue. Return False if the queue is empty or the request is refused (Flink's CheckpointRequestDecider)."""
        if self._full:
            return False
        if self._at_once <= now:
            self._at_once = FOREVER
            return True
        if not self._queued:
            return False
        self._queued -= 1
        if self._pause_end > now:
            self._due = self._pause_end
            return False
        return True

    def _trigger(self, now: float, tasks: list[Task]) -> Triggered:
        self.last_id += 1
        drain = self.draining
        self._pending[self.last_id] = PendingCheckpoint(self.last_id, now, drain, dict.fromkeys(tasks))
        if drain:
            self._active = False  # until it fails, nothing more is triggered
        return Triggered(self.last_id, drain)

    def _remove(self, checkpoint: int, now: float) -> None:
        """End a checkpoint, which makes room for a queued one. Flink checks the queue then, and again after
        its cleanup."""
        self._request(now)
        self._pending.pop(checkpoint, None)
        self._check_again(now, 2)

    def _check_again(self, now: float, times: int) -> None:
        if self._queued:
            self._recheck = now
            self._rechecks += times

    def on_deleting(self, checkpoints: int) -> None:
        """Count checkpoints that are no longer retained and are now being deleted."""
        self._deleting += checkpoints

    def on_deleted(self, checkpoints: int, now: float) -> None:
        """Count checkpoints that were deleted, or whose deletion failed. A queued checkpoint may now begin (CheckpointsCleaner)."""
        self._request(now)
        if self._deletes_too_many:
            self._rechecks = 0  # in vain
        self._deleting -= checkpoints
        self._check_again(now, checkpoints)

    # ---- answers

    def pending(self, checkpoint: int) -> PendingCheckpoint | None:
        return self._pending.get(checkpoint)

    def acknowledge(self, task: Task, ack: AcknowledgeCheckpoint) -> AckOutcome:
        """Handle an acknowledgement. The caller has checked that the attempt is current."""
        pending = self._pending.get(ack.checkpoint)
        if pending is None:
            return AckOutcome.UNKNOWN
        if task in pending.acknowledged:
            return AckOutcome.DUPLICATE
        if task not in pending.waiting:
            return AckOutcome.UNKNOWN
        del pending.waiting[task]
        pending.acknowledged[task] = ack
        if pending.waiting:
            return AckOutcome.ACCEPTED
        pending.finalizing = True
        return AckOutcome.COMPLETE

    def finish(self, task: Task) -> PendingCheckpoint | None:
        """Handle the end of a task: the final checkpoint of a stop need not wait for its acknowledgement. Return
        that checkpoint if every other task has acknowledged it."""
        for pending in self._pending.values():
            if pending.drain and task in pending.waiting:
                del pending.waiting[task]
                pending.finalizing = not pending.waiting and bool(pending.acknowledged)
                return pending if pending.finalizing else None
        return None

    def fail(
        self, checkpoint: int, reason: CheckpointFailureReason, now: float, *, by_task: bool = False
    ) -> Failed | None:
        """Fail a checkpoint that a task has declined, or that could not be triggered or finalized. Return None when it is not
        pending."""
        pending = self._pending.get(checkpoint)
        return None if pending is None else self._fail(pending, reason, now, by_task=by_task)

    def _fail(
        self,
        pending: PendingCheckpoint,
        reason: CheckpointFailureReason,
        now: float,
        *,
        by_task: bool = False,
    ) -> Failed:
        self._remove(pending.id, now)
        age_s = now - pending.triggered_at
        if not pending.drain:
            return Failed(pending.id, reason, age_s, self._failures.on_failure(pending.id, reason) or "")
        self._active = True
        self._drain_from = now + DRAIN_PAUSE_S
        fails = self._failures.on_stop_failure(reason, by_task=by_task)
        return Failed(pending.id, reason, age_s, reason.value if fails else "", "CheckpointException")

    def complete(self, checkpoint: int, now: float) -> list[Failed]:
        """Complete a checkpoint that is in the store. Older pending ones are subsumed."""
        self._remove(checkpoint, now)
        self.last_completed = checkpoint
        self._failures.on_success(checkpoint)
        self._pause_end = now + self._min_pause_s
        older = [p for p in self._pending.values() if p.id < checkpoint]
        return [self._fail(p, _R.CHECKPOINT_SUBSUMED, now) for p in older]


def parts_to_commit(commit: SinkCommit, last_completed: int) -> list[SinkCommit]:
    """Return the parts that a completed checkpoint commits: the sink's own part, and earlier parts that were
    not committed yet."""
    return [part for part in commit.earlier if part.checkpoint > last_completed] + [commit]
