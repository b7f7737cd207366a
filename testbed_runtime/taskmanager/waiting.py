"""How a task waits: for a wake-up, and for the service time that it has to spend."""

from __future__ import annotations

import asyncio

from testbed_runtime.ports.execution import Clock, Cpu

STEP_S = 0.001
"""Service time is spent from this amount on: epoll's timers count whole milliseconds."""
CREDIT_MAX_S = 0.010
"""The most that a timer that fired late may pay in advance. A longer stall is not service time."""


class Wakeup:
    """A level-triggered wake-up with one waiter: a `set` before the `wait` is not lost."""

    __slots__ = ("_future", "_loop", "_set", "_timer")

    def __init__(self) -> None:
        self._set = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        """Wake the waiter. May be called any number of times, from any callback."""
        self._set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, until: float | None = None) -> None:
        """Wait for `set`, or until the loop's time is `until`."""
        loop = self._loop = self._loop or asyncio.get_running_loop()  # which is a system call each time
        if not self._set and (until is None or until > loop.time()):
            self._future = asyncio.Future(loop=loop)  # `create_future` would only add a call
            if until is not None:
                self._timer = loop.call_at(until, self._expire)
            try:
                await self._future
            finally:
                self._future = None
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
        self._set = False

    def _expire(self) -> None:
        self._timer = None
        self.set()


class ServiceTime:
    """Adds up the service time of a task and spends it through the Cpu port. Oversleeping counts as paid."""

    def __init__(self, cpu: Cpu, clock: Clock) -> None:
        self._cpu = cpu
        self._clock = clock
        self._owed_s = 0.0

    async def spend(self, seconds: float) -> None:
        self._owed_s += seconds
        if self._owed_s < STEP_S:
            return
        begin = self._clock.now()
        await self._cpu.spend(self._owed_s)
        self._owed_s = max(-CREDIT_MAX_S, self._owed_s - (self._clock.now() - begin))
