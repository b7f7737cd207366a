"""Failover of one job: which tasks restart, when they may, and the milestones of that in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct

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
from testbed_runtime.jobmanager.state import JobState
from testbed_runtime.jobmanager.tasks import Cause, JobTasks

_S = ExecutionState
FAILOVER_STRATEGY = "jobmanager.execution.failover-strategy"


class RestartDue(Struct, frozen=True):
    """The restart delay is over."""


class Phase(Enum):
    CANCELLING = "cancelling"
    WAITING = "waiting"
    """Everything is cancelled. Waits for the restart delay, for verdicts on suspects, for a checkpoint that is being stored."""
    DEPLOYING = "deploying"


@dataclass(slots=True)
class Failover:
    """One restart, from its cause until all its tasks run again, or until the next failure.

    `number` counts the failovers: a failure while one is in progress begins the next one, unless the restart strategy merges the
    failure into it. Tasks that still wait for their restart then are restarted with it."""

    number: int
    cause: Cause
    tasks: list[Task]
    others: list[Task] = field(default_factory=list)
    """Tasks of the restart before it that were being deployed, and are not restarted with it. It is complete when they run too."""
    phase: Phase = Phase.CANCELLING
    restart_at: float = 0.0
    attempts: int = 0
    suspects: dict[TaskManagerID, OpenWait] = field(default_factory=dict)
    """TaskManagers that may be dead: no restart before each has answered a heartbeat or is lost."""
    cancellation: OpenWait | None = None
    delay: OpenWait | None = None

    def widen(self, tasks: Iterable[Task]) -> None:
        """Add the tasks that are not part of it yet."""
        known = frozenset(self.tasks)
        self.tasks.extend(task for task in tasks if task not in known)
        restarted = frozenset(self.tasks)
        self.others = [task for task in self.others if task not in restarted]

    def give_way(self) -> None:
        """Restart none of its tasks that are being deployed again, because another region has failed."""
        if self.phase is Phase.DEPLOYING:
            self.others += self.tasks
            self.tasks = []

    def ready(self, now: float) -> bool:
        return self.phase is Phase.WAITING and not self.suspects and now >= self.restart_at


class Failovers:
    """Cancels and restarts regions of the job; at most one failover is in progress. Runs in the JobMaster's mailbox.

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
        self.number = max(number, restarts)  # a status of an earlier version has only the restarts
        """The number of the last failover. It is unique in the history of a process, also over its leader sessions."""
        self._current: Failover | None = None
        self._lost: Limit | None = None
        """While a lost TaskManager is handled: what decided that it is lost."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def active(self) -> bool:
        return self._current is not None

    def covers(self, task: Task) -> bool:
        """Whether the failover in progress restarts this task; True when none is in progress."""
        return self._current is None or task in self._current.tasks

    # ---- begin

    def begin_recovered(self, revoked: str) -> None:
        """Count the restart of the JobManager as a failover, with the same milestones, or its next leader session (`revoked`: how
        the one before ended)."""
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
        new = counted or self._current is None  # too late to be merged: it has deployed
        self._state.cause = cause
        allowed = self.strategy.can_restart(now)
        self._record_failure(cause, failed, new=new and allowed)
        if not allowed:
            self._state.to("FAILING", text=cause.text)
            self._on_exhausted()
            return
        delay_s = self.strategy.backoff_s(now)
        failover = self._begin_or_merge(region, cause, new=new, delay_s=delay_s, counted=counted)
        self._state.to("RESTARTING", text=cause.text)
        self.suspect(cause)
        self._scheduler.stop()
        self._scheduler.release_expected(cause.text)
        self._checkpoints.on_restart()
        self._delay(failover, now, delay_s)
        for task in failover.tasks:
            self._tasks.cancel(task)
        self._state.save()
        self.advance()

    def _record_failure(self, cause: Cause, failed: str, *, new: bool) -> None:
        """Record every failure, also one that ends a restart in progress or that no restart follows."""
        ended = self._current.number if self._current is not None else 0
        data = {
            "cause_class": cause.class_name,
            "wait": cause.kind,
            "task": failed,
            "taskmanager": cause.taskmanager,
            "detector": cause.detector,
            "ended": ended,
            "restarted": new,
        }
        number = self.number + 1 if new else self.number
        self._services.event("failover.failure", str(number), text=cause.text, data=data)

    def _begin_or_merge(
        self, region: list[Task], cause: Cause, *, new: bool, delay_s: float, counted: bool
    ) -> Failover:
        """Begin the next restart. It takes over the suspects of one in progress, and the tasks that wait for it, or is merged into it."""
        current = self._current
        if current is None:
            return self._begin(cause, list(region), delay_s, counted=counted)
        current.give_way()
        current.tasks = self._scheduled(current.tasks)
        current.widen(region)
        self._end_waits(current)
        if new:
            failover = self._begin(cause, current.tasks, delay_s)
            failover.suspects, failover.others = current.suspects, current.others
            return failover
        current.phase = Phase.CANCELLING
        return current

    def _begin(
        self, cause: Cause, tasks: list[Task], delay_s: float = 0.0, *, counted: bool = True
    ) -> Failover:
        """Begin a restart. One whose failure the strategy has merged with the one before is not `counted` (numRestarts)."""
        self.number += 1
        self.restarts += counted
        failover = self._current = Failover(self.number, cause, tasks)
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
        self._cancel_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(failover.restart_at, self._services.rpc.post, JOBMASTER, RestartDue())

    def _begin_cancellation(self, failover: Failover, tasks: Sequence[Task]) -> OpenWait:
        limit = option_limit(self._services.options, "task.cancellation.timeout")
        what = f"{len(tasks)} tasks"
        return self._services.waits.begin(
            "cancellation", JOBMASTER_NAME, what, attempt=failover.number, limit=limit
        )

    # ---- lost TaskManagers and suspects

    def lost(self, taskmanager: TaskManagerID, limit: Limit) -> None:
        """Continue without a lost TaskManager: its tasks count as cancelled since `limit` decided that it is lost. A restart
        that has not begun to deploy includes the producers of the blocking results that were there."""
        limited = limit if limit.option else None
        self.clear_suspect(taskmanager, limited)
        failover = self._current
        self._lost = limited
        if failover is not None and failover.phase is not Phase.DEPLOYING and self._graph.has_blocking:
            self._include_producers(failover)
        self.advance()
        self._lost = None

    def _include_producers(self, failover: Failover) -> None:
        """Add the producers of lost blocking results. If everything was cancelled already, these are cancelled next."""
        known = len(failover.tasks)
        failover.widen(self._region(failover.tasks))
        if len(failover.tasks) == known:
            return
        if failover.phase is Phase.WAITING:
            failover.phase = Phase.CANCELLING
            failover.cancellation = self._begin_cancellation(failover, failover.tasks[known:])
            self._lost = None  # not what their cancellation waits for
        for task in failover.tasks:
            self._tasks.cancel(task)

    def suspect(self, cause: Cause) -> None:
        """Hold the restart until the TaskManager at the other end of a lost connection has answered, or its slots are gone."""
        failover = self._current
        if failover is None or not self._fence or not cause.connection_lost:
            return
        taskmanager = TaskManagerID.parse(cause.taskmanager)
        if taskmanager in self._tasks.executors and taskmanager not in failover.suspects:
            failover.suspects[taskmanager] = self._services.waits.begin(
                "fencing", JOBMASTER_NAME, str(taskmanager), attempt=failover.number, cause=cause.text
            )
            self._probe(taskmanager)

    def clear_suspect(self, taskmanager: TaskManagerID, lost: Limit | None = None) -> bool:
        """Clear a suspect that has answered, or that is lost because of a limit. Return False when it was not suspected."""
        failover = self._current
        if failover is None or taskmanager not in failover.suspects:
            return False
        wait = failover.suspects.pop(taskmanager)
        if lost is not None:
            wait.limit = lost
            wait.end(Outcome.EXPIRED)
        else:
            wait.end()
        return True

    # ---- go on

    def advance(self) -> None:
        """Continue when nothing is left to wait for: tasks that end, the restart delay, verdicts, a checkpoint."""
        failover = self._current
        if failover is None:
            return
        if failover.phase is Phase.CANCELLING and all(
            self._graph.execution(task).state.terminal for task in failover.tasks
        ):
            failover.phase = Phase.WAITING
            if failover.cancellation is not None:
                lost = self._lost
                failover.cancellation.limit = lost or failover.cancellation.limit
                failover.cancellation.end(Outcome.EXPIRED if lost else Outcome.COMPLETED)
            self._event("failover.cancelled", failover)
        now = self._services.clock.now()
        if failover.delay is not None and now >= failover.restart_at:
            failover.delay.end(Outcome.FIRED)
        if failover.ready(now) and not self._checkpoints.settling:
            failover.phase = Phase.DEPLOYING
            self._results.release(failover.tasks)
            self._graph.reset(failover.tasks)
            self._on_reset()
            self._state.to("RUNNING")
            self._checkpoints.job_running()
            self._scheduler.schedule(failover.tasks)
            self._state.save()

    def on_deploying(self) -> None:
        """Every task of the failover has a slot."""
        failover = self._current
        if failover is not None:
            failover.attempts += 1
            self._event("failover.slots", failover)
            self._event("failover.attempt", failover, {"attempt": failover.attempts})

    def check_deployed(self) -> None:
        """Complete the failover when its tasks and the others run, except those that wait for a blocking result."""
        failover = self._current
        if failover is not None and failover.phase is Phase.DEPLOYING:
            execution, running = self._graph.execution, (_S.RUNNING, _S.FINISHED)
            later = self._graph.incomplete_inputs()
            tasks = [*failover.tasks, *failover.others]
            if all(execution(task).state in running for task in tasks if task[0] not in later):
                self._event("failover.deployed", failover)
                self._current = None

    def _event(self, kind: str, failover: Failover, data: dict[str, int] | None = None) -> None:
        self._services.event(kind, str(failover.number), data=data)

    # ---- end

    def abandon(self) -> None:
        """Restart nothing any more: the job ends."""
        if self._current is not None:
            self._end_waits(self._current)
            for wait in self._current.suspects.values():
                wait.end(Outcome.CANCELLED)
        self._current = None
        self._cancel_timer()

    @staticmethod
    def _end_waits(failover: Failover) -> None:
        """End what this restart waited for: another one takes its place, or the job ends."""
        for wait in (failover.cancellation, failover.delay):
            if wait is not None:
                wait.end(Outcome.CANCELLED)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
