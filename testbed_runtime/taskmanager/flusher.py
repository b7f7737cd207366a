"""The output flusher: lets what is written be read at the ticks of `execution.buffer-timeout`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class OutputFlusher:
    """Ticks lie `interval_s` apart, counted from the first use. No timer while nothing is written; a tick that was missed is
    skipped, never made up for. With an interval of 0 every `touched` flushes at once; a negative one never flushes."""

    def __init__(self, interval_s: float, flush: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._flush = flush
        self._origin: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def touched(self) -> None:
        """Something was written."""
        if self._interval_s == 0:
            self._flush()
        elif self._timer is None and self._interval_s > 0:
            loop = asyncio.get_running_loop()
            now = loop.time()
            if self._origin is None:
                self._origin = now
            ticks = math.floor((now - self._origin) / self._interval_s) + 1
            self._timer = loop.call_at(self._origin + ticks * self._interval_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._flush()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
