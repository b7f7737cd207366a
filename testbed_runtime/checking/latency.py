"""Latency from a record's due time to its arrival at a sink: quantiles of merged histograms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from testbed_runtime.checking.common import NS, Ints, Window, ints
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, Trial

_UPPER = np.asarray(LATENCY_BOUNDS_NS, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts per bucket of LATENCY_BOUNDS_NS, plus one overflow bucket."""

    counts: Ints
    max_ns: int

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def quantile(self, q: float) -> float | None:
        """Return the quantile in seconds, interpolated within its bucket (at most 12.5 % off: bounds grow by 1.25).

        None below 1 / (1 − q) records, where the quantile would just be the maximum."""
        if self.total == 0 or (q < 1 and self.total * (1 - q) < 1):
            return None
        if q >= 1:
            return self.max_ns / NS
        cumulative = np.cumsum(self.counts)
        rank = q * self.total
        bucket = int(np.searchsorted(cumulative, rank, side="left"))
        if bucket >= len(_UPPER):
            return self.max_ns / NS
        lower = _UPPER[bucket - 1] if bucket else 0.0
        before = float(cumulative[bucket - 1]) if bucket else 0.0
        share = (rank - before) / float(self.counts[bucket])
        return min(float(lower + share * (_UPPER[bucket] - lower)), float(self.max_ns)) / NS


def histogram(trial: Trial, window: Window) -> Histogram:
    """Merge the histograms of all sinks whose window has its middle within `window`."""
    table = trial.table("latency")
    if len(table):
        middle = ints(table, "window_start_ns") + ints(table, "window_ns") // 2
        table = table.filter(pa.array((middle >= window.start) & (middle < window.end)))
    counts = np.zeros(len(_UPPER) + 1, dtype=np.int64)
    for buckets in table.column("buckets").to_pylist():
        counts[: len(buckets)] += np.asarray(buckets[: len(counts)], dtype=np.int64)
    return Histogram(counts, int(ints(table, "max_ns").max()) if len(table) else 0)
