"""Busy, back-pressured, idle: where a task's time went, and what Flink calls the result (flink-facts §8)."""

from __future__ import annotations

import enum
from collections.abc import Iterable

LOW_RATIO = 0.10
"""At most: OK."""
HIGH_RATIO = 0.5
"""At most: LOW; above: HIGH."""


class BackPressureLevel(enum.Enum):
    OK = "OK"
    LOW = "LOW"
    HIGH = "HIGH"


def level(ratio: float) -> BackPressureLevel:
    """Of a share of time (0 to 1)."""
    if ratio <= LOW_RATIO:
        return BackPressureLevel.OK
    return BackPressureLevel.LOW if ratio <= HIGH_RATIO else BackPressureLevel.HIGH


def ratio(back_pressured_ms_per_second: float) -> float:
    return back_pressured_ms_per_second / 1000.0


def vertex_ratio(back_pressured_ms_per_second: Iterable[float]) -> float:
    """The worst subtask's; 0 without subtasks."""
    return max((ratio(ms) for ms in back_pressured_ms_per_second), default=0.0)


def busy_ms_per_second(idle: float, back_pressured: float) -> float:
    return 1000.0 - min(idle + back_pressured, 1000.0)


class Wait(enum.Enum):
    """Why a task does not run. When several apply, the first in this order counts."""

    SOFT = "soft back-pressure: an output is not available"
    HARD = "hard back-pressure: blocked in a buffer request"
    IDLE = "no input is available"


class TaskTimes:
    """Seconds of a task's life by what it did; everything that was not waited is busy."""

    __slots__ = ("_since", "_started", "_total", "_waiting")

    def __init__(self, now: float) -> None:
        self._started = now
        self._since = now
        self._waiting: Wait | None = None
        self._total = dict.fromkeys(Wait, 0.0)

    def start(self, wait: Wait, now: float) -> None:
        """The task begins to wait; a wait that runs ends."""
        self.end(now)
        self._waiting = wait
        self._since = now

    def end(self, now: float) -> None:
        """The task runs. Harmless when it does."""
        if self._waiting is not None:
            self._total[self._waiting] += now - self._since
            self._waiting = None

    def waited_s(self, wait: Wait, now: float) -> float:
        """Cumulative seconds, a wait that runs included."""
        running = now - self._since if self._waiting is wait else 0.0
        return self._total[wait] + running

    def back_pressured_s(self, now: float) -> float:
        return self.waited_s(Wait.SOFT, now) + self.waited_s(Wait.HARD, now)

    def busy_s(self, now: float) -> float:
        waited = sum(self.waited_s(wait, now) for wait in Wait)
        return max(0.0, now - self._started - waited)
