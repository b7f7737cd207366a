"""Busy, back-pressured and idle time of a task, and Flink's back pressure levels (JobVertexBackPressureHandler)."""

from __future__ import annotations

import enum
from collections.abc import Iterable

LOW_RATIO = 0.10
"""Ratios up to this are OK."""
HIGH_RATIO = 0.5
"""Ratios up to this are LOW, above it HIGH."""


class BackPressureLevel(enum.Enum):
    OK = "OK"
    LOW = "LOW"
    HIGH = "HIGH"


def level(ratio: float) -> BackPressureLevel:
    """Return the level of a share of time (0 to 1)."""
    if ratio <= LOW_RATIO:
        return BackPressureLevel.OK
    return BackPressureLevel.LOW if ratio <= HIGH_RATIO else BackPressureLevel.HIGH


def ratio(back_pressured_ms_per_second: float) -> float:
    return back_pressured_ms_per_second / 1000.0


def vertex_ratio(back_pressured_ms_per_second: Iterable[float]) -> float:
    """Return the ratio of the worst subtask; 0 without subtasks."""
    return max((ratio(ms) for ms in back_pressured_ms_per_second), default=0.0)


def busy_ms_per_second(idle: float, back_pressured: float) -> float:
    return 1000.0 - min(idle + back_pressured, 1000.0)


class Wait(enum.Enum):
    """Why a task is not running. If several reasons apply, the first in this order counts."""

    SOFT = "soft back-pressure: an output is not available"
    HARD = "hard back-pressure: blocked in a buffer request"
    IDLE = "no input is available"


class TaskTimes:
    """How many seconds a task spent waiting, by reason. All other time is busy time."""

    __slots__ = ("_since", "_started", "_total", "_waiting")

    def __init__(self, now: float) -> None:
        self._started = now
        self._since = now
        self._waiting: Wait | None = None
        self._total = dict.fromkeys(Wait, 0.0)

    def start(self, wait: Wait, now: float) -> None:
        """Start waiting. Ends the current wait, if any."""
        self.end(now)
        self._waiting = wait
        self._since = now

    def end(self, now: float) -> None:
        """Stop waiting. Does nothing if the task is not waiting."""
        if self._waiting is not None:
            self._total[self._waiting] += now - self._since
            self._waiting = None

    def waited_s(self, wait: Wait, now: float) -> float:
        """Return the cumulative seconds waited, including the current wait."""
        running = now - self._since if self._waiting is wait else 0.0
        return self._total[wait] + running

    def back_pressured_s(self, now: float) -> float:
        return self.waited_s(Wait.SOFT, now) + self.waited_s(Wait.HARD, now)

    def busy_s(self, now: float) -> float:
        waited = sum(self.waited_s(wait, now) for wait in Wait)
        return max(0.0, now - self._started - waited)
