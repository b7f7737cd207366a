"""Latency from a record's due time to its arrival at a sink: quantiles of merged histograms."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from testbed_runtime.checking.common import NS, Ints, Window, events, ints
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
    """Whether so many records have a quantile: at least one of them is expected beyond it."""
    return total > 0 and (q >= 1 or total * (1 - q) >= 1 - ROUNDING)


def histogram(trial: Trial, window: Window) -> Histogram:
    """Merge the histograms of all sinks whose window has its middle within `window`."""
    table = trial.table("latency")
    if len(table):
        middle = ints(table, "window_start_ns") + ints(table, "window_ns") // 2
        table = table.filter(pa.array((middle >= window.start) & (middle < window.end)))
    largest = int(ints(table, "max_ns").max()) if len(table) else 0
    return Histogram(bucket_matrix(table).sum(axis=0), largest)


def marker_latencies(trial: Trial, window: Window) -> dict[tuple[str, str], Ints]:
    """Return the latencies in ns of the latency markers recorded in the window, by source vertex and receiving vertex."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in events(trial, "latency.markers"):
        if window.start <= int(row["t_ns"]) < window.end:
            data = json.loads(row["data"])
            pair = data["source"].rpartition("-")[0], str(row["subject"]).rpartition("-")[0]
            found[pair] += data["ns"]
    return {pair: np.asarray(latencies, dtype=np.int64) for pair, latencies in sorted(found.items())}


def bucket_matrix(table: pa.Table) -> Ints:
    """Return the buckets of a `latency` table as a matrix with one row each. Missing buckets are 0, surplus ones are ignored."""
    column = table.column("buckets").combine_chunks()
    lengths = np.asarray(
        pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False), dtype=np.int64
    )
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype=np.int64)
    width = len(_UPPER) + 1
    if (lengths == width).all():
        return values.reshape(len(table), width)
    rows = np.repeat(np.arange(len(table)), lengths)
    places = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    matrix = np.zeros((len(table), width), dtype=np.int64)
    matrix[rows[places < width], places[places < width]] = values[places < width]
    return matrix


def merge_sinks(table: pa.Table) -> pa.Table:
    """Return a `latency` table with one row per time window: the sum over all sinks. Every quantile stays the same."""
    if not len(table):
        return table
    start, length = ints(table, "window_start_ns"), ints(table, "window_ns")
    order = np.lexsort((length, start))
    changed = (np.diff(start[order], prepend=start[order[0]]) != 0) | (
        np.diff(length[order], prepend=length[order[0]]) != 0
    )
    changed[0] = True
    firsts = np.flatnonzero(changed)
    buckets = np.add.reduceat(bucket_matrix(table)[order], firsts, axis=0)
    merged = {
        "t_ns": np.maximum.reduceat(ints(table, "t_ns")[order], firsts),
        "window_start_ns": start[order][firsts],
        "window_ns": length[order][firsts],
        "count": np.add.reduceat(ints(table, "count")[order], firsts),
        "buckets": pa.FixedSizeListArray.from_arrays(pa.array(buckets.ravel()), buckets.shape[1]),
        "max_ns": np.maximum.reduceat(ints(table, "max_ns")[order], firsts),
    }
    same = {
        "run": table.column("run")[0],
        "trial": table.column("trial")[0],
        "process": "",
        "boot_id": "",
        "task": "",
        "seq": -1,
        "attempt": -1,
    }
    columns = [
        merged[f.name] if f.name in merged else pa.repeat(pa.scalar(same[f.name], f.type), len(firsts))
        for f in table.schema
    ]
    return pa.table(
        [
            pa.array(c).cast(f.type) if not isinstance(c, pa.Array) else c.cast(f.type)
            for c, f in zip(columns, table.schema, strict=True)
        ],
        schema=table.schema,
    )
