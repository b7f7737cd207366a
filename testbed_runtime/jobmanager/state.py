"""The state of one job: recorded in the history, and written to the store so that the next JobManager recovers it."""

from __future__ import annotations

from collections.abc import Callable

from testbed_runtime.core.job.messages import TERMINAL_JOB_STATES
from testbed_runtime.jobmanager.jobstore import JobStore, StoredStatus
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.jobmanager.tasks import NO_CAUSE


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
        self._writing = False
