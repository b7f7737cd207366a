"""One failover from its first cause to the last task that runs again. Plain state; the JobMaster acts on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.failover import Task


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something failed. `detector` is `Task`, `JobMaster`, `ResourceManager` or `JobManager`."""

    class_name: str
    text: str
    detector: str
    taskmanager: str = ""
    """ResourceID of the TaskManager that caused it, if it is known."""
    connection_lost: bool = False
    """The connection to `taskmanager` failed, so it may be dead."""


class Phase(Enum):
    CANCELLING = "cancelling"
    WAITING = "waiting"
    """Cancelled; for the restart delay, for verdicts, for a checkpoint on its way into the store."""
    DEPLOYING = "deploying"


@dataclass(slots=True)
class Failover:
    """`number` counts the job's restarts. A failure while it deploys begins another attempt of the same failover."""

    number: int
    cause: Cause
    tasks: list[Task]
    phase: Phase = Phase.CANCELLING
    restart_at: float = 0.0
    attempts: int = 0
    suspects: dict[TaskManagerID, None] = field(default_factory=dict)

    def widen(self, tasks: Iterable[Task]) -> list[Task]:
        """Tasks that were not part of it yet."""
        known = frozenset(self.tasks)
        added = [task for task in tasks if task not in known]
        self.tasks.extend(added)
        return added

    def ready(self, now: float) -> bool:
        return self.phase is Phase.WAITING and not self.suspects and now >= self.restart_at
