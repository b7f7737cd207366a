"""`asyncio.timeout`, also for the cleanup of a task that is being cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def timeout(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """Limit a block as `asyncio.timeout` does. Raises TimeoutError.

    Until Python 3.11.2 (Debian 12's), `asyncio.timeout` raises CancelledError in its place if the task was cancelled before."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    limit = asyncio.timeout(seconds)  # noqa: TID251 - the one place
    try:
        async with limit:
            yield limit
    except asyncio.CancelledError:
        if limit.expired() and task is not None and task.cancelling() <= before:
            raise TimeoutError from None
        raise
