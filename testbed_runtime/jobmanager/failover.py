"""Failover of one job: which tasks restart, when they may, and the milestones of that in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from testbed_runtime.core.ids import ResultPartitionID, TaskManagerID
from testbed_runtime.core.job.checkpoints import CheckpointFailureReason
from testbed_runtime.core.job.executiongraph import ExecutionState
from testbed_runtime.core.job.failover import Task, name_of
from testbed_runtime.core.job.messages import JOBMASTER
from testbed_runtime.core.job.restart import restart_strategy
from testbed_runtime.jobmanager.checkpoints import Checkpoints
from testbed_runtime.jobmanager.scheduler import Scheduler
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.jobmanager.state import JobState
from testbed_runtime.jobmanager.tasks import Cause, JobTasks

_S = ExecutionState


@dataclass(frozen=True, slots=True)
class RestartDue:
    """The restart delay is over."""


class Phase(Enum):
    CANCELLING = "cancelling"
    WAITING = "waiting"
    """Everything is cancelled. Waits for the restart delay, for verdicts on suspects, for a checkpoint that is being stored."""
    DEPLOYING = "deploying"


@dataclass(slots=True)
class Failover:
    """One failover, from its first cause until all its tasks run again.

    `number` counts the job's restarts. A failure while it deploys begins another attempt of the same failover."""

    number: int
    cause: Cause
    tasks: list[Task]
    phase: Phase = Phase.CANCELLING
    restart_at: float = 0.0
    attempts: int = 0
    suspects: dict[TaskManagerID, None] = field(default_factory=dict)
    """TaskManagers that may be dead: no restart before each has answered a heartbeat or is lost."""

    def widen(self, tasks: Iterable[Task]) -> None:
        """Add the tasks that are not part of it yet."""
        known = frozenset(self.tasks)
        self.tasks.extend(task for task in tasks if task not in known)

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
        restarts: int,
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
        self._probe = probe
        self._on_exhausted = on_exhausted
        self._on_reset = on_reset
        self._fence = services.options.boolean("headgate.restart.fence-dead-slots")
        self.strategy = restart_strategy(services.options, services.random.stream("restart").randint)
        self.restarts = restarts
        self._current: Failover | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def active(self) -> bool:
        return self._current is not None

    def covers(self, task: Task) -> bool:
        """Whether the failover in progress restarts this task; True when none is in progress."""
        return self._current is None or task in self._current.tasks

    # ---- begin

    def begin_recovered(self) -> None:
        """Count the restart of the JobManager as a failover, with the same milestones."""
        text = "The JobManager was started again and recovers the job."
        cause = Cause("JobManagerRestarted", text, "JobManager")
        failover = self._begin(cause, list(self._graph.tasks))
        failover.phase = Phase.DEPLOYING
        self._event("failover.cancelled", failover)

    def fail(self, task: Task, cause: Cause, failed_partition: str = "") -> None:
        """Restart the region of a failed task, and that of the producer whose partition it could not read."""
        producer = (
            self._graph.producer_of(ResultPartitionID.parse(failed_partition)) if failed_partition else None
        )
        self.restart(
            self._graph.regions.to_restart(task, lost_producer=producer, available=lambda *_: True), cause
        )

    def restart(self, region: list[Task], cause: Cause) -> None:
        """Restart these tasks as soon as they may."""
        now = self._services.clock.now()
        self.strategy.notify_failure(now)
        self._state.cause = cause
        if not self.strategy.can_restart(now):
            self._state.to("FAILING", text=cause.text)
            self._on_exhausted()
            return
        failover = self._current
        if failover is None:
            failover = self._begin(cause, list(region))
        else:
            failover.widen(region)
            failover.phase = Phase.CANCELLING
        self._state.to("RESTARTING", text=cause.text)
        self.suspect(cause)
        self._scheduler.stop()
        self._scheduler.release_expected(cause.text)
        self._checkpoints.abort(CheckpointFailureReason.JOB_FAILOVER_REGION)
        self._delay(failover, now)
        for task in failover.tasks:
            self._tasks.cancel(task)
        self._state.save()
        self.advance()

    def _begin(self, cause: Cause, tasks: list[Task]) -> Failover:
        self.restarts += 1
        failover = self._current = Failover(self.restarts, cause, tasks)
        data = {
            "cause_class": cause.class_name,
            "region": [name_of(task) for task in tasks],
            "taskmanager": cause.taskmanager,
            "detector": cause.detector,
        }
        self._services.event("failover.started", str(failover.number), text=cause.text, data=data)
        return failover

    def _delay(self, failover: Failover, now: float) -> None:
        failover.restart_at = now + self.strategy.backoff_s()
        self._cancel_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(failover.restart_at, self._services.rpc.post, JOBMASTER, RestartDue())

    # ---- suspects

    def suspect(self, cause: Cause) -> None:
        """Hold the restart until the TaskManager at the other end of a lost connection has answered, or its slots are gone."""
        failover = self._current
        if failover is None or not self._fence or not cause.connection_lost:
            return
        taskmanager = TaskManagerID.parse(cause.taskmanager)
        if taskmanager in self._tasks.executors and taskmanager not in failover.suspects:
            failover.suspects[taskmanager] = None
            self._probe(taskmanager)

    def clear_suspect(self, taskmanager: TaskManagerID) -> bool:
        """Return False when it was not suspected."""
        failover = self._current
        if failover is None or taskmanager not in failover.suspects:
            return False
        del failover.suspects[taskmanager]
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
            self._event("failover.cancelled", failover)
        if failover.ready(self._services.clock.now()) and not self._checkpoints.settling:
            failover.phase = Phase.DEPLOYING
            self._graph.reset(failover.tasks)
            self._on_reset()
            self._state.to("RUNNING")
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
        """Complete the failover when all its tasks run."""
        failover = self._current
        if failover is not None and failover.phase is Phase.DEPLOYING:
            states = [self._graph.execution(task).state for task in failover.tasks]
            if all(state in (_S.RUNNING, _S.FINISHED) for state in states):
                self._event("failover.deployed", failover)
                self._current = None

    def _event(self, kind: str, failover: Failover, data: dict[str, int] | None = None) -> None:
        self._services.event(kind, str(failover.number), data=data)

    # ---- end

    def abandon(self) -> None:
        """Restart nothing any more: the job ends."""
        self._current = None
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
