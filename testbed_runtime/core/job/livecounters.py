"""Live counters of a job for progress: sums over the TaskManagers, and a rate that restarts do not distort."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

RATE_WINDOW_S = 2.0
"""The rate of records covers this many seconds: two checkpoints in most scenarios, so that a single barrier
does not show."""
MAX_READINGS = 64
"""Number of readings that are kept for the rate. At ten a second, they cover six seconds."""
COUNTED = "records_in"


def summed(readings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the counters of all processes together: sums, and the largest lag."""
    values: dict[str, float] = {}
    for counters in readings:
        for key, value in counters.items():
            is_lag = key.endswith("lag_s")
            values[key] = max(values.get(key, 0.0), value) if is_lag else values.get(key, 0.0) + value
    return values


class LiveCounters:
    """`update` with each reading; `values` is the newest sum. One job, one reader."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._total = 0.0
        self._readings: deque[tuple[float, float]] = deque(maxlen=MAX_READINGS)

    def update(self, readings: Mapping[str, Mapping[str, float]], now: float) -> dict[str, float]:
        """Add a reading: the counters of each process (with its incarnation) that answered. `now` is in
        seconds.

        Return what `summed` returns, and `records_per_s`. A count that decreased belongs to new attempts and
        started at 0."""
        values = summed(readings.values())
        for process, counters in readings.items():
            count = counters.get(COUNTED, 0.0)
            before = self._seen.get(process, 0.0)
            self._total += count - before if count >= before else count
            self._seen[process] = count
        self._readings.append((now, self._total))
        while len(self._readings) > 2 and self._readings[1][0] <= now - RATE_WINDOW_S:
            self._readings.popleft()
        begin, count = self._readings[0]
        if now > begin:
            values["records_per_s"] = (self._total - count) / (now - begin)
        self.values = values
        return values
