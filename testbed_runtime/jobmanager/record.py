"""What the JobMaster writes down: events of tasks and failovers, and the job's status in the store."""

from __future__ import annotations

from collections.abc import Callable

from testbed_runtime.core.job.executiongraph import Transition
from testbed_runtime.core.job.failover import Task
from testbed_runtime.jobmanager.failover import Cause, Failover
from testbed_runtime.jobmanager.jobstore import JobStore, StoredStatus
from testbed_runtime.jobmanager.services import Services


def name_of(task: Task) -> str:
    """`vertex-subtask`."""
    return f"{task[0]}-{task[1]}"


def record_transition(services: Services, moved: Transition, cause: Cause | None) -> None:
    """The `task.state` event."""
    data = {
        "from": moved.before.value,
        "to": moved.after.value,
        "taskmanager": str(moved.taskmanager or ""),
        "cause_class": cause.class_name if cause else "",
    }
    text = cause.text if cause else ""
    services.event("task.state", name_of(moved.task), attempt=moved.attempt, text=text, data=data)


def record_failover(services: Services, failover: Failover) -> None:
    """The `failover.started` event."""
    cause = failover.cause
    data = {
        "cause_class": cause.class_name,
        "region": [name_of(task) for task in failover.tasks],
        "taskmanager": cause.taskmanager,
        "detector": cause.detector,
    }
    services.event("failover.started", str(failover.number), text=cause.text, data=data)


class StatusWriter:
    """Writes the job's status into the store: one write at a time, the newest state wins."""

    def __init__(
        self, services: Services, store: JobStore, job: str, current: Callable[[], StoredStatus]
    ) -> None:
        self._services = services
        self._store = store
        self._job = job
        self._current = current
        self._wanted = False
        self._writing = False

    def save(self) -> None:
        """Soon."""
        self._wanted = True
        if not self._writing:
            self._writing = True
            self._services.tasks.spawn(self._write(), f"status-{self._job[:8]}")

    async def save_now(self) -> None:
        """Raises OSError when the store refuses."""
        await self._store.put_status(self._job, self._current())

    async def _write(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await self.save_now()
            except OSError as error:
                self._services.event("note", self._job, text=f"The job's status cannot be stored: {error}")
        self._writing = False
