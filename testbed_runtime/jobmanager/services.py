"""The ports, options and background tasks that the three endpoints of the JobManager share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from testbed_runtime.core.options import Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.ports.execution import Clock, IdSource, RandomSource
from testbed_runtime.ports.rpc import Rpc
from testbed_runtime.ports.storage import BlobStore, HistorySink
from testbed_runtime.process.tasks import TaskKeeper


class Services(Struct, frozen=True):
    """Shared by the endpoints of one leader session. `leader` is its id, new for each process and each grant of the leadership."""

    rpc: Rpc
    blobs: BlobStore
    history: HistorySink
    clock: Clock
    ids: IdSource
    random: RandomSource
    options: Options
    tasks: TaskKeeper
    leader: str
    waits: WaitLog
    parting: TaskKeeper = field(default_factory=TaskKeeper)
    """Messages that tell TaskManagers of a disconnection. They outlive the leader session, as `tasks` does not."""
    committed: dict[tuple[str, int], None] = field(default_factory=dict)
    """The newest checkpoints (job, id) whose commits this process has appended to the history."""

    def event(
        self,
        kind: str,
        subject: str,
        *,
        text: str = "",
        data: Mapping[str, Any] | None = None,
        attempt: int = -1,
        checkpoint: int = -1,
    ) -> None:
        """Append a row to the `events` table; the kinds are in history.schema.EVENT_KINDS."""
        self.history.append(
            "events",
            kind=kind,
            subject=subject,
            attempt=attempt,
            checkpoint=checkpoint,
            text=text,
            data=dict(data or {}),
        )
