"""The states of one job and of its tasks: recorded in the history. The job's is also written to the store, so that the next JobManager
recovers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.causes import ended_wait
from testbed_runtime.core.job.deployments import Deployments
from testbed_runtime.core.job.executiongraph import ExecutionGraph, ExecutionState
from testbed_runtime.core.job.failover import Task, name_of
from testbed_runtime.core.job.messages import TERMINAL_JOB_STATES
from testbed_runtime.jobmanager.jobstore import JobStore, StoredStatus
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.jobmanager.taskexecutors import TaskExecutors

_S = ExecutionState
RETRY_S = 5.0
"""After a refused write of a job's result."""


class Cause(Struct, frozen=True):
    """Why something failed. `detector` is one of waits.DETECTORS."""

    class_name: str
    text: str
    detector: str
    taskmanager: str = ""
    """ResourceID of the TaskManager that caused it, if it is known."""
    connection_lost: bool = False
    """The connection to `taskmanager` failed, so it may be dead."""
    wait: str = ""
    """The kind of the wait that it ended, if the class does not say it."""

    @property
    def kind(self) -> str:
        """The kind of the wait that this cause ended."""
        return ended_wait(self.class_name, self.wait or ("connection" if self.connection_lost else ""))


NO_CAUSE = Cause("", "", "")


class JobTasks:
    """The execution graph of a job, with every transition recorded."""

    def __init__(self, services: Services, graph: ExecutionGraph, executors: TaskExecutors) -> None:
        self.graph = graph
        self._services = services
        self.executors = executors
        self.deployments = Deployments()

    def transition(self, task: Task, state: ExecutionState, cause: Cause = NO_CAUSE) -> bool:
        """Change the task's state. Return False when its current state does not allow that."""
        moved = self.graph.transition(task, state)
        if moved is None:
            return False
        if moved.taskmanager is not None:
            self._track(str(self.graph.execution(task).attempt), moved.taskmanager, moved.after)
        data = {
            "from": moved.before.value,
            "to": moved.after.value,
            "taskmanager": str(moved.taskmanager or ""),
            "cause_class": cause.class_name,
        }
        subject = name_of(moved.task)
        self._services.event("task.state", subject, attempt=moved.attempt, text=cause.text, data=data)
        return True

    def _track(self, attempt: str, taskmanager: TaskManagerID, state: ExecutionState) -> None:
        if state is _S.DEPLOYING:
            self.deployments.begin(attempt, taskmanager)
        elif state.terminal:
            self.deployments.end(attempt, taskmanager)

    def cancel(self, task: Task) -> None:
        """Cancel the task. If it was not deployed, or its TaskManager is lost, it is CANCELED at once. If it has FINISHED, release the
        pipelined results that no consumer has read (Execution.cancel)."""
        execution = self.graph.execution(task)
        if execution.state is _S.FINISHED:
            self.executors.release(execution, self.graph.pipelined_results(task))
        if execution.state in (_S.CREATED, _S.SCHEDULED):
            self.transition(task, _S.CANCELED)
            return
        if execution.state.terminal or not self.transition(task, _S.CANCELING):
            return
        if execution.taskmanager not in self.executors:
            self.transition(task, _S.CANCELED)
            return
        self.executors.cancel(execution)


class JobState:
    """The job's state and the cause of its last failure. One write to the store at a time; the newest state wins."""

    def __init__(
        self, services: Services, store: JobStore, job: str, snapshot: Callable[[], StoredStatus]
    ) -> None:
        self._services = services
        self._store = store
        self._job = job
        self._snapshot = snapshot
        self._wanted = False
        self._writing = False
        self.name = "CREATED"
        self.cause = NO_CAUSE

    @property
    def terminal(self) -> bool:
        return self.name in TERMINAL_JOB_STATES

    def to(self, name: str, *, text: str = "", root: str = "") -> None:
        """Change the state and record it. `root`: the cause within a text that wraps it."""
        if name == self.name:
            return
        cause = NO_CAUSE if name in ("RUNNING", "FINISHED") else self.cause
        data = {"from": self.name, "to": name, "cause_class": cause.class_name}
        if cause is not NO_CAUSE:
            data |= {"wait": cause.kind, "root": root}
        self.name = name
        self._services.event("job.state", self._job, text=text or cause.text, data=data)

    def save(self) -> None:
        """Write the status to the store in the background."""
        self._wanted = True
        if not self._writing:
            self._writing = True
            self._services.tasks.spawn(self._write(), f"status-{self._job[:8]}")

    async def save_now(self) -> None:
        """Raises OSError when the store refuses."""
        await self._store.put_status(self._job, self._snapshot())

    async def _write(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await self.save_now()
            except OSError as error:
                self._services.event("note", self._job, text=f"The job's status cannot be stored: {error}")
                if self.terminal:  # no later change writes it
                    self._wanted = True
                    await asyncio.sleep(RETRY_S)
        self._writing = False
