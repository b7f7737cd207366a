"""Background tasks of a process: each is owned, named, and cancelled in `close`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from testbed_runtime.timeouts import cancel_all


class TaskKeeper:
    """Owns asyncio tasks. A task that fails is reported to the loop's exception handler."""

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
        await cancel_all(*self._tasks)
