"""A work queue of keys: one worker at a time for each key, retries with backoff for each key by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headgate_operator.health import Metrics
from headgate_operator.plan.model import Key
from testbed_runtime.core.errors import HeadgateError, LocalProtocolError

FIRST_RETRY_S = 1.0
"""Pause after the first failure, doubled for each further one in a row."""
LONGEST_RETRY_S = 60.0
"""The longest pause between retries: the default of HEADGATE_LONGEST_RETRY_S."""
STALLED_AFTER = 8
"""Failures in a row (about three minutes) after which the object gets the condition Stalled."""
NOT_NOW_PAUSE_S = 10.0
"""Interval between reconciles of an object whose namespace is being deleted. The object's own deletion arrives as an event."""
STALLED_RETRY_S = 300.0
"""Pause between attempts for a stalled key, because frequent attempts do not fix the cause."""
ERROR_TEXT_MAX = 1000
"""Characters of an error text in a log line or a condition."""

log = logging.getLogger("headgate.queue")


class NotNow(Exception):
    """Nothing can be done about a key for NOT_NOW_PAUSE_S, whatever happens to its objects. This is not a failure."""


def retry_after(failures: int, longest_s: float = LONGEST_RETRY_S) -> float:
    """Return the seconds until the next attempt, after this many failures in a row (at least 1)."""
    if failures >= STALLED_AFTER:
        return STALLED_RETRY_S
    return min(FIRST_RETRY_S * 2.0 ** (failures - 1), longest_s)


class KeyedQueue:
    """Runs `work(key)` for each added key. It returns the seconds until the key is queued again, or None.

    `stalled(key, text)` is called after STALLED_AFTER failures in a row."""

    def __init__(
        self,
        work: Callable[[Key], Awaitable[float | None]],
        stalled: Callable[[Key, str], Awaitable[None]],
        *,
        workers: int,
        metrics: Metrics,
        longest_retry_s: float = LONGEST_RETRY_S,
    ) -> None:
        self._work = work
        self._stalled = stalled
        self._workers = workers
        self._metrics = metrics
        self._longest_retry_s = longest_retry_s
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    @property
    def depth(self) -> int:
        return len(self._queued)

    @property
    def idle(self) -> bool:
        """Whether no key is queued or being worked on. Timers may still be armed."""
        return not self._queued and not self._running

    def add(self, key: Key, *, fresh: bool = False) -> None:
        """Queue a key. A failed key waits for its retry, unless its object was changed by a user (`fresh`)."""
        if fresh:
            self._failures.pop(key, None)
        elif key in self._failures and key in self._timers:
            return
        self._disarm(key)
        if key in self._running:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    async def run(self) -> None:
        """Run the workers until cancelled, then forget all keys: they are added again before the next run."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._worker(), name=f"reconcile-{number}")
        finally:
            for key in list(self._timers):
                self._disarm(key)
            self._ready = asyncio.Queue()
            for keys in (self._queued, self._running, self._again):
                keys.clear()
            self._failures.clear()

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            self._running.add(key)
            try:
                pause = await self._once(key)
            finally:
                self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                if key not in self._failures:
                    pause = 0.0
            if pause is not None:
                self._later(key, pause)

    async def _once(self, key: Key) -> float | None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            pause = await self._work(key)
        except NotNow:
            self._failures.setdefault(key, 0)  # so that events do not queue it before the pause ends
            return NOT_NOW_PAUSE_S
        except Exception as error:
            self._metrics.reconciled(key.kind, loop.time() - begun, failed=True)
            return await self._failed(key, error)
        self._failures.pop(key, None)
        self._metrics.reconciled(key.kind, loop.time() - begun, failed=False)
        return pause

    async def _failed(self, key: Key, error: Exception) -> float:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        self._metrics.retried(key.kind)
        text = f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
        # an answer of the API server or an agent needs no stack trace; errors in this program do
        explained = isinstance(error, HeadgateError) and not isinstance(error, LocalProtocolError)
        trace = count == 1 and not explained
        log.warning("reconcile failed", extra={"key": key, "failures": count, "error": text}, exc_info=trace)
        if count >= STALLED_AFTER:
            try:
                await self._stalled(key, text)
            except Exception as second:
                log.warning("could not write Stalled", extra={"key": key, "error": str(second)})
        return retry_after(count, self._longest_retry_s)

    def _later(self, key: Key, pause: float) -> None:
        self._disarm(key)
        self._timers[key] = asyncio.get_running_loop().call_later(pause, self._due, key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _disarm(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
