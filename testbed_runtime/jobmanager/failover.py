"""One failover from its first cause to the last task that runs again. Plain state; the JobMaster acts on it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.failover import Task

CONNECTION_LOST_CLASSES = (
    "RemoteTransportException",
    "LocalTransportException",
    "PartitionConnectionException",
    "RecipientUnreachableException",
)
_RESOURCE_ID = re.compile(r"(?:\[ ?|\(| |^)(tm-\d+-\d+)(?: ?\]|\)|@| |$)")


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something failed, and who said so: `Task`, `JobMaster`, `ResourceManager` or `JobManager`."""

    class_name: str
    text: str
    detector: str
    taskmanager: str = ""
    """ResourceID of the one that is to blame, if it is known."""


def suspects_in(class_name: str, text: str) -> list[TaskManagerID]:
    """TaskManagers that a failure points at: the connection to them was lost."""
    if class_name not in CONNECTION_LOST_CLASSES:
        return []
    return [TaskManagerID.parse(found) for found in dict.fromkeys(_RESOURCE_ID.findall(text))]


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
