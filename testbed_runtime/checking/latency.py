"""Latency from a record's due time to its arrival at a sink: quantiles of merged histograms."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
from msgspec import Struct

from testbed_runtime.checking.common import Window, data, events, group_starts
from testbed_runtime.core.values import NS
from testbed_runtime.history.columns import Ints, filled_buckets, ints, vertex_of
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, Trial

ROUNDING = 1e-9
"""10 × (1 − 0.9) is a little less than 1 in floating point."""
_UPPER = np.asarray(LATENCY_BOUNDS_NS, dtype=np.float64)


class Histogram(Struct, frozen=True):
    """Counts per bucket of LATENCY_BOUNDS_NS, plus one overflow bucket."""

    counts: Ints
    max_ns: int

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def quantile(self, q: float) -> float | None:
        """Return the quantile in seconds, interpolated within its bucket (at most 12.5 % off: bounds grow by 1.25).

        None below 1 / (1 − q) records, where the quantile would just be the maximum."""
        if not shows(self.total, q):
            return None
        cumulative = np.cumsum(self.counts)
        rank = q * self.total
        bucket = int(np.searchsorted(cumulative, rank, side="left"))
        if bucket >= len(_UPPER):
            return self.max_ns / NS
        lower = _UPPER[bucket - 1] if bucket else 0.0
        before = float(cumulative[bucket - 1]) if bucket else 0.0
        share = (rank - before) / float(self.counts[bucket])
        return min(float(lower + share * (_UPPER[bucket] - lower)), float(self.max_ns)) / NS


def shows(total: int, q: float) -> bool:
    """Return whether there are enough records for a quantile: at least one of them is expected above it."""
    return total > 0 and (q >= 1 or total * (1 - q) >= 1 - ROUNDING)


def histogram(trial: Trial, window: Window) -> Histogram:
    """Merge the histograms of all sinks whose window has its middle within `window`."""
    table = trial.table("latency")
    middle = ints(table, "window_start_ns") + ints(table, "window_ns") // 2
    inside = (middle >= window.start) & (middle < window.end)
    filled = trial.kept("filled latency buckets", lambda: filled_buckets(table))
    counts = merged_buckets(filled, np.where(inside, 0, -1), 1)[0]
    return Histogram(counts, int(ints(table, "max_ns")[inside].max()) if inside.any() else 0)


def marker_latencies(trial: Trial, window: Window) -> dict[tuple[str, str], Ints]:
    """Return the latencies in ns of the latency markers recorded in the window, by source vertex and receiving vertex."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in events(trial, "latency.markers"):
        if window.start <= row["t_ns"] < window.end:
            more = data(row)
            found[vertex_of(more["source"]), vertex_of(row["subject"])] += more["ns"]
    return {pair: np.asarray(latencies, dtype=np.int64) for pair, latencies in sorted(found.items())}


def merged_buckets(filled: tuple[Ints, Ints, Ints], group: Ints, groups: int) -> Ints:
    """Return the sum of the buckets of each group of rows of a `latency` table: a matrix with one row for each group. `group` is that of
    each row, -1 for none, and `filled` the result of `filled_buckets`. Missing buckets are 0, surplus ones are ignored."""
    rows, places, counts = filled
    matrix = np.zeros((groups, len(_UPPER) + 1), dtype=np.int64)
    known = (group[rows] >= 0) & (places < matrix.shape[1])
    np.add.at(matrix, (group[rows][known], places[known]), counts[known])
    return matrix


def merge_sinks(table: pa.Table) -> pa.Table:
    """Return a `latency` table with one row per time window, which has the sum over all sinks, so that
    quantiles stay the same. It keeps only the columns that do not belong to one sink."""
    if not len(table):
        return table
    start, length = ints(table, "window_start_ns"), ints(table, "window_ns")
    order = np.lexsort((length, start))
    firsts = group_starts(start[order], length[order])
    window = np.empty(len(table), dtype=np.int64)
    window[order] = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(order)))
    buckets = merged_buckets(filled_buckets(table), window, len(firsts))
    merged = {
        "t_ns": np.maximum.reduceat(ints(table, "t_ns")[order], firsts),
        "window_start_ns": start[order][firsts],
        "window_ns": length[order][firsts],
        "count": np.add.reduceat(ints(table, "count")[order], firsts),
        "buckets": pa.FixedSizeListArray.from_arrays(pa.array(buckets.ravel()), buckets.shape[1]),
        "max_ns": np.maximum.reduceat(ints(table, "max_ns")[order], firsts),
    }
    return pa.table(merged).cast(pa.schema([table.schema.field(name) for name in merged]))
