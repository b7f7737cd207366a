"""Latency histograms: count a batch of records per bucket in one pass."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class LatencyHistogram:
    """Counts per bucket, given ascending upper bounds in nanoseconds. One more bucket holds larger values."""

    __slots__ = ("_bounds", "_bounds_ns", "_counts", "_has_batches", "_singles", "count", "max_ns")

    def __init__(self, bounds_ns: Sequence[int]) -> None:
        self._bounds_ns = bounds_ns
        self._bounds = np.array(bounds_ns, dtype=np.int64)
        self._counts = np.zeros(len(bounds_ns) + 1, dtype=np.int64)
        self._has_batches = False
        self._singles: list[int] = []
        """The buckets of latencies that were added one by one. A list is cheaper than an array while there are few."""
        self.count = 0
        self.max_ns = 0

    def add(self, latencies_ns: npt.NDArray[np.int64]) -> None:
        """Add latencies. A negative one (the clocks of two machines differ) counts as 0."""
        if not len(latencies_ns):
            return
        buckets = self._bounds.searchsorted(latencies_ns, side="left")
        self._has_batches = True
        self._counts += np.bincount(buckets, minlength=len(self._counts))
        self.count += len(latencies_ns)
        self.max_ns = max(self.max_ns, int(np.maximum.reduce(latencies_ns)))

    def add_one(self, latency_ns: int) -> None:
        """Add one latency."""
        self._singles.append(bisect_left(self._bounds_ns, latency_ns))
        self.count += 1
        self.max_ns = max(self.max_ns, latency_ns)

    def take(self) -> tuple[int, list[int], int]:
        """Return the count, the buckets and the largest value since the last call."""
        if self._has_batches:
            counts: list[int] = self._counts.tolist()
            self._counts[:] = 0
            self._has_batches = False
        else:
            counts = [0] * len(self._counts)
        for bucket in self._singles:
            counts[bucket] += 1
        self._singles.clear()
        taken = self.count, counts, self.max_ns
        self.count = self.max_ns = 0
        return taken
