"""Limits of time: `asyncio.timeout`, also for the cleanup of a task that is being cancelled, calls that are repeated for a while, and a timer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


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


async def repeated(
    call: Callable[[], Awaitable[T]], passes: Callable[[Exception], bool], *, limit_s: float, every_s: float
) -> T:
    """Repeat a call after each error that passes by itself. Raises any other error at once, and the last one when the limit leaves no
    time for one more call."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while True:
        try:
            return await call()
        except Exception as error:
            if not passes(error) or loop.time() + every_s >= end:
                raise
        await asyncio.sleep(every_s)


async def polled(look: Callable[[], Awaitable[T]], *, limit_s: float, every_s: float) -> T:
    """Look until the result is true, or the limit has passed. Return the last result."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while True:
        found = await look()
        if found or loop.time() >= end:
            return found
        await asyncio.sleep(every_s)


async def wait_until(condition: Callable[[], bool], changed: asyncio.Event, *, limit_s: float) -> bool:
    """Wait until the condition is true; it is checked each time `changed` is set. Return whether it became true in time."""
    with contextlib.suppress(TimeoutError):
        async with timeout(limit_s):
            while not condition():
                changed.clear()
                await changed.wait()
    return condition()


class Timer:
    """A call that is due at one time. Setting it again replaces the earlier time."""

    __slots__ = ("_handle",)

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def set(self, when: float | None, call: Callable[..., object], *arguments: object) -> None:
        """Call it at this time of the loop; never if it is None."""
        self.cancel()
        if when is not None:
            self._handle = asyncio.get_running_loop().call_at(when, call, *arguments)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


async def cancel_all(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended. None counts as a task that has ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
