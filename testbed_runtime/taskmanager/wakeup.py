"""How a task waits: for whatever concerns it, until a time; a wake-up that came before the wait counts."""

from __future__ import annotations

import asyncio


class Wakeup:
    """One waiter. `set` may be called any number of times, from any callback."""

    __slots__ = ("_future", "_set")

    def __init__(self) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, until: float | None = None) -> None:
        """Until `set`, or the loop's time `until`."""
        loop = asyncio.get_running_loop()
        if not self._set and (until is None or until > loop.time()):
            self._future = loop.create_future()
            timer = None if until is None else loop.call_at(until, self.set)
            try:
                await self._future
            finally:
                self._future = None
                if timer is not None:
                    timer.cancel()
        self._set = False
