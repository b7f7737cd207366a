"""The tasks of one TaskManager: running attempts, and finished ones whose results are not consumed yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.limits import option_limit
from testbed_runtime.core.job.messages import Acknowledge, TaskDeploymentDescriptor
from testbed_runtime.core.waits import Outcome
from testbed_runtime.history.waits import OpenWait
from testbed_runtime.process.tasks import TaskKeeper
from testbed_runtime.taskmanager.credit_waits import CreditWaits
from testbed_runtime.taskmanager.gateway import JobMasterGateway
from testbed_runtime.taskmanager.meter import to_ns
from testbed_runtime.taskmanager.sampler import TaskSampler
from testbed_runtime.taskmanager.services import TaskServices
from testbed_runtime.taskmanager.task import Task
from testbed_runtime.timeouts import timeout

SLOW_CANCELLATION_S = 0.1
"""If a task ends within this time, its cancellation is not recorded, only that of its region."""
CLOSE_S = 1.0
"""Time limit for all tasks to end when the TaskManager stops: half of what its process has for that. A task may ignore its cancellation."""
MAX_TASKS = 4096
"""Limit of attempts held at a time."""
MAX_COUNTED_READERS = 2048
"""The live counters contain the credit of channels if the TaskManager has at most this many and all of them are sampled."""


class TaskTable:
    """Attempts by id. Calls `on_slot_empty(allocation)` when the last task of a slot has ended, `on_fatal(text)` for a task that
    does not end within task.cancellation.timeout."""

    def __init__(
        self,
        services: TaskServices,
        keeper: TaskKeeper,
        *,
        on_slot_empty: Callable[[str], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._services = services
        self._keeper = keeper
        self._on_slot_empty = on_slot_empty
        self._on_fatal = on_fatal
        self._tasks: dict[str, Task] = {}
        self._cancellation = option_limit(services.options, "task.cancellation.timeout")
        self._cancellation_timeout_s = self._cancellation.seconds or 0.0
        self._reporting: dict[str, str] = {}
        """The attempts whose final state the JobMaster has not acknowledged, with their jobs."""
        self._cancel_timers: dict[str, tuple[asyncio.TimerHandle, OpenWait | None]] = {}
        self.sampler = TaskSampler(
            self._tasks.values,
            services.environment,
            services.history,
            services.pace,
            CreditWaits(services.waits, services.options),
            options=services.options,
            cores=services.cores,
        )

    @property
    def all(self) -> tuple[Task, ...]:
        return tuple(self._tasks.values())

    def running(self, attempt: str) -> Task | None:
        """Return the attempt unless it has ended or is unknown."""
        task = self._tasks.get(attempt)
        return None if task is None or task.ended else task

    def deployed(self, job: str) -> tuple[str, ...]:
        """Return the attempts of a job that run here, and those whose end the JobMaster may not know."""
        running = (t.attempt for t in self._tasks.values() if not t.ended and t.descriptor.job == job)
        return (*running, *(attempt for attempt, of_job in self._reporting.items() if of_job == job))

    def submit(self, descriptor: TaskDeploymentDescriptor, gateway: JobMasterGateway) -> None:
        """Start an attempt. Does nothing when it was started before. Raises FlinkError when there are too many."""
        if descriptor.attempt in self._tasks:
            return
        if len(self._tasks) >= MAX_TASKS:
            raise FlinkError(
                "TaskSubmissionException", f"This TaskManager holds {MAX_TASKS} tasks, which is its limit."
            )
        task = Task(descriptor, self._services, gateway, self._on_task_end, self._limit_end)
        self._tasks[descriptor.attempt] = task
        task.start()
        self.sampler.start()

    def cancel(self, attempt: str) -> Acknowledge:
        """Cancel an attempt, or release the results of one that has ended."""
        task = self._tasks.get(attempt)
        if task is None:
            return Acknowledge(accepted=False, reason=f"Cannot find task to stop for execution {attempt}.")
        if task.ended:
            self._release_results(lambda other: other is task)
            return Acknowledge()
        task.cancel()
        self._limit_end(task, waits=True)
        return Acknowledge()

    def _limit_end(self, task: Task, *, waits: bool = False) -> None:
        """Terminate the TaskManager if a task that was cancelled, or failed from outside, does not end in time (Task.TaskCancelerWatchDog).
        `waits`: the JobMaster waits for the end of the task."""
        if self._cancellation_timeout_s > 0 and task.attempt not in self._cancel_timers:
            timer = asyncio.get_running_loop().call_later(self._cancellation_timeout_s, self._on_stuck, task)
            self._cancel_timers[task.attempt] = timer, self._begin_wait(task) if waits else None

    def _begin_wait(self, task: Task, since_s: float | None = None) -> OpenWait:
        return self._services.waits.begin(
            "cancellation",
            task.name,
            task.name,
            attempt=task.descriptor.attempt_number,
            limit=self._cancellation,
            since_s=since_s,
        )

    def fail_slot(self, allocation: str, cause: FlinkError) -> bool:
        """Fail the tasks of a slot and release their results. Return False when none is running."""
        self.release_results(allocation)
        running = self._running_in(allocation)
        for task in running:
            task.fail(cause)
        return bool(running)

    def release_results(self, allocation: str) -> None:
        """Release the results of the ended tasks of a slot."""
        self._release_results(lambda task: task.descriptor.allocation == allocation)

    def release_partitions(self, names: Collection[str]) -> None:
        """Release these results of ended tasks; unknown ones were released before."""
        for task in self._tasks.values():
            for partition in task.partitions if task.ended else ():
                if str(partition.partition_id) in names:
                    self._services.environment.release(partition)
        self._forget_consumed()

    async def close(self) -> None:
        """End every task, except those that do not end in time."""
        for task in self.all:
            task.cancel()
        with suppress(TimeoutError):
            async with timeout(CLOSE_S):
                for task in self.all:
                    await task.wait_ended()
        for task in self.all:
            await task.reports.close()
        self._release_results(lambda _: True)
        self.sampler.close()

    def counters(self) -> dict[str, float]:
        """Live counters, summed over the running attempts. The lag is the largest."""
        meters = [task.meter for task in self._tasks.values() if not task.ended]
        now_ns = to_ns(self._services.clock.now())
        credit = dict[str, float]()
        if self._services.pace.channel_stride == 1:
            connections = self._services.environment.server.connections
            if sum(c.reader_count for c in connections) <= MAX_COUNTED_READERS:
                each = [reader.credit for c in connections for reader in c.readers if not reader.unlimited]
                credit = {"credits": float(sum(each))} if each else {}
        return {
            "tasks": float(len(meters)),
            "records_out": float(sum([m.records_out for m in meters if m.role == "source"])),
            "records_in": float(sum([m.records_in for m in meters if m.role == "sink"])),
            "lag_s": max([m.lag_at(now_ns) for m in meters], default=0) / 1e9,
            **credit,
        }

    # ---- the end of a task

    def _on_stuck(self, task: Task) -> None:
        if not task.ended:
            timer, wait = self._cancel_timers[task.attempt]
            wait = wait or self._begin_wait(task, timer.when() - self._cancellation_timeout_s)
            wait.end(Outcome.EXPIRED)
            self._on_fatal(
                f"Task did not exit gracefully within {self._cancellation_timeout_s:g} + seconds. ({task.name})"
            )

    def _on_task_end(self, task: Task) -> None:
        cancelling = self._cancel_timers.pop(task.attempt, None)
        if cancelling is not None:
            timer, wait = cancelling
            timer.cancel()
            if wait is not None:
                wait.end(at_least_s=SLOW_CANCELLATION_S)
        self._reporting[task.attempt] = task.descriptor.job
        self._keeper.spawn(self._close_reports(task), f"last-report:{task.name}")
        self._forget_consumed()
        allocation = task.descriptor.allocation
        if not self._running_in(allocation):
            self._on_slot_empty(allocation)

    async def _close_reports(self, task: Task) -> None:
        """Close a task's reports once its final state was sent. Until the JobMaster answers, the task counts as deployed."""
        try:
            await task.reports.drained()
        finally:
            self._reporting.pop(task.attempt, None)
            await task.reports.close()

    def _running_in(self, allocation: str) -> list[Task]:
        return [t for t in self._tasks.values() if t.descriptor.allocation == allocation and not t.ended]

    def _release_results(self, wanted: Callable[[Task], bool]) -> None:
        """Release the results of ended tasks: no consumer will read the rest."""
        for task in self._tasks.values():
            if task.ended and wanted(task):
                for partition in task.partitions:
                    self._services.environment.release(partition)
        self._forget_consumed()

    def _forget_consumed(self) -> None:
        for attempt, task in list(self._tasks.items()):
            if task.ended and all(partition.is_released for partition in task.partitions):
                del self._tasks[attempt]
