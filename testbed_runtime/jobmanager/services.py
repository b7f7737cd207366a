"""What the three endpoints of the JobManager share: ports, options, the keeper of tasks, the words for the record."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from testbed_runtime.core.options import Options
from testbed_runtime.ports.execution import Clock, IdSource, RandomSource
from testbed_runtime.ports.rpc import Rpc
from testbed_runtime.ports.storage import BlobStore, HistorySink

JOBMASTER = "jobmaster"
RESOURCEMANAGER = "resourcemanager"
DISPATCHER = "dispatcher"
TASKEXECUTOR = "taskexecutor"


class TaskKeeper:
    """Owns asyncio tasks: each has a name, a failure that is reported, and an end in `close`."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": f"{task.get_name()} failed", "exception": error, "task": task}
            )

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class Services:
    """Of one JobManager process. `leader` is its leader session id: another process, another id."""

    rpc: Rpc
    blobs: BlobStore
    history: HistorySink
    clock: Clock
    ids: IdSource
    random: RandomSource
    options: Options
    tasks: TaskKeeper
    leader: str

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
        """A row of `events` (history.schema.EVENT_KINDS)."""
        self.history.append(
            "events",
            kind=kind,
            subject=subject,
            attempt=attempt,
            checkpoint=checkpoint,
            text=text,
            data=dict(data or {}),
        )
