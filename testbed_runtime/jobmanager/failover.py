"""Failover of one job: which tasks restart, when they may restart, and the events that record it in the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from testbed_runtime.core.ids import ResultPartitionID, TaskManagerID
from testbed_runtime.core.job.causes import RECOVERED
from testbed_runtime.core.job.executiongraph import ExecutionState
from testbed_runtime.core.job.failover import Task, name_of
from testbed_runtime.core.job.limits import option_limit, restart_delay
from testbed_runtime.core.job.messages import JOBMASTER
from testbed_runtime.core.job.restart import restart_strategy
from testbed_runtime.core.waits import JOBMASTER_NAME, Limit, Outcome
from testbed_runtime.history.waits import OpenWait
from testbed_runtime.jobmanager.blocking import BlockingResults
from testbed_runtime.jobmanager.checkpoints import Checkpoints
from testbed_runtime.jobmanager.scheduler import Scheduler
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.jobmanager.state import Cause, JobState, JobTasks
from testbed_runtime.timeouts import Timer

_S = ExecutionState
FAILOVER_STRATEGY = "jobmanager.execution.failover-strategy"


LATE_DELAY_S = 0.001
"""Least delay after a failure that the strategy merges with a restart that has begun. A real restart takes that long: in virtual time, a job
that fails at once would otherwise restart forever at one instant."""


class Phase(Enum):
    CANCELLING = "cancelling"
    WAITING = "waiting"
    """Everything is cancelled. Waits for the restart delay, for verdicts on suspects, for a checkpoint that is being stored."""
    DEPLOYING = "deploying"


@dataclass(slots=True)
class Failover:
    """One restart, from its cause until all its tasks run again. A later failure may take over some of its tasks (Flink's
    ExecutionVertexVersioner): only the last restart of a task deploys it."""

    number: int
    cause: Cause
    tasks: list[Task]
    phase: Phase = Phase.CANCELLING
    restart_at: float = 0.0
    timer: Timer = field(default_factory=Timer)
    cancellation: OpenWait | None = None
    delay: OpenWait | None = None

    def end(self) -> None:
        """End its waits, because other restarts have taken over all its tasks, or the job ends."""
        for wait in (self.cancellation, self.delay):
            if wait is not None:
                wait.end(Outcome.CANCELLED)
        self.timer.cancel()


class Failovers:
    """Cancels and restarts regions of the job, each on its own. Runs in the JobMaster's mailbox.

    `probe` asks a TaskManager for a heartbeat now. Calls `on_exhausted` when the restart strategy gives the job up,
    `on_reset` when new attempts have replaced the failed ones."""

    def __init__(
        self,
        services: Services,
        state: JobState,
        tasks: JobTasks,
        scheduler: Scheduler,
        checkpoints: Checkpoints,
        *,
        results: BlockingResults,
        restarts: int,
        number: int,
        probe: Callable[[TaskManagerID], None],
        on_exhausted: Callable[[], None],
        on_reset: Callable[[], None],
    ) -> None:
        self._services = services
        self._state = state
        self._tasks = tasks
        self._graph = tasks.graph
        self._scheduler = scheduler
        self._checkpoints = checkpoints
        self._results = results
        self._probe = probe
        self._on_exhausted = on_exhausted
        self._on_reset = on_reset
        self._fence = services.options.boolean("headgate.restart.fence-dead-slots")
        self._restarts_all = services.options.string(FAILOVER_STRATEGY) == "full"
        self.strategy = restart_strategy(services.options, services.random.stream("restart").randint)
        self.restarts = restarts
        """As Flink's `numRestarts`: without failovers whose failure came too late to be merged with the one before."""
        self.number = number
        """The number of the last failover. It is unique in the history of a process, also over its leader sessions."""
        self._active: list[Failover] = []
        """The restarts in progress, the oldest one first. No two have a task in common."""
        self._suspects: dict[TaskManagerID, OpenWait] = {}
        """TaskManagers that may be dead: no restart to their slots before each has answered a heartbeat or is lost."""
        self._lost: Limit | None = None
        """While a lost TaskManager is handled: what decided that it is lost."""

    @property
    def active(self) -> bool:
        return bool(self._active)

    @property
    def _pending(self) -> list[Failover]:
        """The restarts that have not begun to deploy."""
        return [one for one in self._active if one.phase is not Phase.DEPLOYING]

    def covers(self, task: Task) -> bool:
        """Whether this task is cancelled and will restart."""
        return any(task in one.tasks for one in self._pending)

    # ---- begin

    def begin_recovered(self, revoked: str) -> None:
        """Count the recovery of the job by a restarted JobManager, or by its next leader session, as a failover with the same events.
        `revoked`: how the previous leader session ended."""
        text = "The JobManager was started again and recovers the job."
        cause = Cause(RECOVERED, text, "JobManager")
        if revoked:
            cause = Cause("Exception", revoked, "JobManager", wait="lease")
        failover = self._begin(cause, list(self._graph.tasks))
        failover.phase = Phase.DEPLOYING
        self._event("failover.cancelled", failover)

    def fail(self, task: Task, cause: Cause, failed_partition: str = "") -> None:
        """Restart the region of a failed task, and that of the producer whose partition it could not read."""
        producer = (
            self._graph.producer_of(ResultPartitionID.parse(failed_partition)) if failed_partition else None
        )
        failed = [task] if producer is None else [task, producer]
        self.restart(self._region(failed), cause, failed=name_of(task))

    def _region(self, failed: Iterable[Task]) -> list[Task]:
        """Return the tasks to restart (RestartPipelinedRegionFailoverStrategy, where those that still wait to be scheduled keep
        their attempt, or RestartAllFailoverStrategy)."""
        if self._restarts_all:
            return list(self._graph.tasks)
        return self._scheduled(self._graph.regions.to_restart(failed, available=self._results.available))

    def _scheduled(self, tasks: Iterable[Task]) -> list[Task]:
        return [task for task in tasks if self._graph.execution(task).state is not _S.CREATED]

    def restart(self, region: list[Task], cause: Cause, *, failed: str = "") -> None:
        """Restart these tasks as soon as they may. `failed` names the task whose failure is the cause."""
        now = self._services.clock.now()
        counted = self.strategy.notify_failure(now)
        merged = None if counted or not self._pending else self._pending[-1]
        self._state.cause = cause
        allowed = self.strategy.can_restart(now)
        self._record_failure(cause, failed, region, new=merged is None and allowed)
        if not allowed:
            self._state.to("FAILING", text=cause.text)
            self._on_exhausted()
            return
        delay_s = self.strategy.backoff_s(now)
        if not counted:  # a merged failure does not restart a delay, nor end one early
            delay_s = max(delay_s, LATE_DELAY_S if merged is None else merged.restart_at - now)
        failover = (
            self._merge(merged, region) if merged else self._begin(cause, region, delay_s, counted=counted)
        )
        self._state.to("RESTARTING", text=cause.text)
        self.suspect(cause)
        self._checkpoints.on_restart()
        self._delay(failover, now, delay_s)
        self._take(failover, region, cause.text)
        self._state.save()
        self.advance()

    def _take(self, failover: Failover, tasks: Iterable[Task], text: str) -> None:
        """Cancel these tasks and take them over from other restarts."""
        taken = frozenset(tasks)
        for other in [one for one in self._active if one is not failover and not taken.isdisjoint(one.tasks)]:
            other.tasks = [task for task in self._scheduled(other.tasks) if task not in taken]
            if not other.tasks:
                other.end()
                self._active.remove(other)
        self._scheduler.cancel(taken, text)
        for task in tasks:
            self._tasks.cancel(task)
        self.check_deployed()

    def _record_failure(self, cause: Cause, failed: str, region: Iterable[Task], *, new: bool) -> None:
        """Record a failure, even if it takes over tasks of a restart in progress, or no restart follows it."""
        taken = frozenset(region)
        ended = (one.number for one in reversed(self._active) if not taken.isdisjoint(one.tasks))
        data = {
            "cause_class": cause.class_name,
            "wait": cause.kind,
            "task": failed,
            "taskmanager": cause.taskmanager,
            "detector": cause.detector,
            "ended": next(ended, 0),
            "restarted": new,
        }
        number = self.number + 1 if new else self.number
        self._services.event("failover.failure", str(number), text=cause.text, data=data)

    def _merge(self, failover: Failover, region: Iterable[Task]) -> Failover:
        """Restart these tasks with a restart that waits."""
        failover.end()
        failover.tasks = list(dict.fromkeys((*failover.tasks, *region)))
        failover.phase = Phase.CANCELLING
        return failover

    def _begin(
        self, cause: Cause, tasks: Sequence[Task], delay_s: float = 0.0, *, counted: bool = True
    ) -> Failover:
        """Begin a restart. It is not `counted` in numRestarts if the strategy has merged its failure with the previous one."""
        self.number += 1
        self.restarts += counted
        failover = Failover(self.number, cause, list(tasks))
        self._active.append(failover)
        data = {
            "cause_class": cause.class_name,
            "wait": cause.kind,
            "region": [name_of(task) for task in tasks],
            "taskmanager": cause.taskmanager,
            "detector": cause.detector,
            "delay_option": self.strategy.option if delay_s > 0 else "",
            "delay_s": delay_s,
            "counted": counted,
        }
        self._services.event("failover.started", str(failover.number), text=cause.text, data=data)
        return failover

    def _delay(self, failover: Failover, now: float, seconds: float) -> None:
        failover.restart_at = now + seconds
        failover.cancellation = self._begin_cancellation(failover, failover.tasks)
        if seconds > 0:
            limit = restart_delay(self._services.options, self.strategy.option, seconds)
            failover.delay = self._services.waits.begin(
                "restart-delay", JOBMASTER_NAME, attempt=failover.number, limit=limit
            )
        failover.timer.set(failover.restart_at, self._services.run_async, JOBMASTER, self.advance)

    def _begin_cancellation(self, failover: Failover, tasks: Sequence[Task]) -> OpenWait:
        limit = option_limit(self._services.options, "task.cancellation.timeout")
        what = f"{len(tasks)} tasks"
        return self._services.waits.begin(
            "cancellation", JOBMASTER_NAME, what, attempt=failover.number, limit=limit
        )

    # ---- lost TaskManagers and suspects

    def lost(self, taskmanager: TaskManagerID, limit: Limit) -> None:
        """Continue without a lost TaskManager. Its tasks count as cancelled, because `limit` decided that it is lost. A restart that has
        not begun to deploy also restarts the producers of the blocking results that were on it."""
        limited = limit if limit.option else None
        self.clear_suspect(taskmanager, limited)
        self.decide(limited)
        if self._graph.has_blocking:
            for failover in reversed(self._pending):  # the last one takes what several need
                self._include_producers(failover)
        self.advance()
        self.decide(None)

    def decide(self, limit: Limit | None) -> None:
        """Attribute cancellations that end from now on to the limit that decided that a TaskManager is lost."""
        self._lost = limit

    def _include_producers(self, failover: Failover) -> None:
        """Add the producers of lost blocking results. If everything was cancelled already, these are cancelled next."""
        added = [task for task in self._region(failover.tasks) if task not in failover.tasks]
        if not added:
            return
        failover.tasks += added
        if failover.phase is Phase.WAITING:
            failover.phase = Phase.CANCELLING
            failover.cancellation = self._begin_cancellation(failover, added)
            self._lost = None  # not what their cancellation waits for
        self._take(failover, added, failover.cause.text)

    def suspect(self, cause: Cause) -> None:
        """Delay restarts until the TaskManager at the other end of a lost connection has answered, or its slots are removed."""
        if not self._active or not self._fence or not cause.connection_lost:
            return
        taskmanager = TaskManagerID.parse(cause.taskmanager)
        if taskmanager in self._tasks.executors and taskmanager not in self._suspects:
            self._suspects[taskmanager] = self._services.waits.begin(
                "fencing", JOBMASTER_NAME, str(taskmanager), attempt=self.number, cause=cause.text
            )
            self._probe(taskmanager)

    def clear_suspect(self, taskmanager: TaskManagerID, lost: Limit | None = None) -> bool:
        """Stop suspecting a TaskManager that has answered, or that was lost because of a limit. Return False if it was not suspected."""
        wait = self._suspects.pop(taskmanager, None)
        if wait is None:
            return False
        if lost is not None:
            wait.limit = lost
            wait.end(Outcome.EXPIRED)
        else:
            wait.end()
        return True

    # ---- go on

    def advance(self) -> None:
        """Continue when nothing is left to wait for: tasks that end, the restart delay, verdicts, a checkpoint."""
        now = self._services.clock.now()
        for failover in self._pending:
            if failover.phase is Phase.CANCELLING and all(
                self._graph.execution(task).state.terminal for task in failover.tasks
            ):
                failover.phase = Phase.WAITING
                if failover.cancellation is not None:
                    lost = self._lost
                    failover.cancellation.limit = lost or failover.cancellation.limit
                    failover.cancellation.end(Outcome.EXPIRED if lost else Outcome.COMPLETED)
                self._event("failover.cancelled", failover)
            due = now >= failover.restart_at
            if failover.delay is not None and due:
                failover.delay.end(Outcome.FIRED)
            # asked last: it looks at every task, and each task that ends comes here
            if failover.phase is Phase.WAITING and due and not self._is_held(failover):
                self._deploy(failover)

    def _is_held(self, failover: Failover) -> bool:
        """Whether a checkpoint is settling, or a suspect caused this restart or holds slots of its tasks."""
        if self._checkpoints.settling or not self._suspects:
            return self._checkpoints.settling
        places = {self._graph.execution(task).taskmanager for task in failover.tasks}
        return any(t in places or str(t) == failover.cause.taskmanager for t in self._suspects)

    def _deploy(self, failover: Failover) -> None:
        """Schedule new attempts. The job runs again when no other restart is pending."""
        failover.phase = Phase.DEPLOYING
        self._results.release(failover.tasks)
        self._graph.reset(failover.tasks)
        self._on_reset()
        if not self._pending:
            self._state.to("RUNNING")
            self._checkpoints.job_running()
        self._scheduler.schedule(failover.tasks, failover.number)
        self._state.save()

    def on_deploying(self, number: int) -> None:
        """Every task of this failover has a slot."""
        for failover in self._active:
            if failover.number == number:
                self._event("failover.slots", failover)
                self._event("failover.attempt", failover, {"attempt": 1})

    def check_deployed(self) -> None:
        """Complete each failover whose tasks all run, except those that wait for a blocking result."""
        execution, running = self._graph.execution, (_S.RUNNING, _S.FINISHED)
        later = self._graph.incomplete_inputs() if self._graph.has_blocking else ()
        for failover in [one for one in self._active if one.phase is Phase.DEPLOYING]:
            if all(execution(task).state in running for task in failover.tasks if task[0] not in later):
                self._event("failover.deployed", failover)
                self._active.remove(failover)

    def _event(self, kind: str, failover: Failover, data: dict[str, int] | None = None) -> None:
        self._services.event(kind, str(failover.number), data=data)

    # ---- end

    def abandon(self) -> None:
        """Restart nothing any more: the job ends."""
        for failover in self._active:
            failover.end()
        for wait in self._suspects.values():
            wait.end(Outcome.CANCELLED)
        self._active.clear()
        self._suspects.clear()
