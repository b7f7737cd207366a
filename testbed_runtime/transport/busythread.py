"""The thread that sends for a simulated connection, where sending takes processor time."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable


class BusyThread:
    """Adds up work. `on_free` is called in `context` when all of it is done."""

    __slots__ = ("_context", "_loop", "_on_free", "_timer", "_until")

    def __init__(self, on_free: Callable[[], None], context: contextvars.Context) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_free = on_free
        self._context = context
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        return self._loop.time() < self._until

    def work(self, seconds: float) -> None:
        self._until = max(self._loop.time(), self._until) + seconds
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        self._timer = self._loop.call_at(self._until, self._rest, context=self._context)

    def _rest(self) -> None:
        self._timer = None
        if self.is_busy:
            self._arm()
        else:
            self._on_free()
