"""Curves for the report: goodput and lag, a latency heat map, busy and back-pressured time per vertex, credit per channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from testbed_runtime.checking.common import Floats, group_starts, windows
from testbed_runtime.checking.latency import merged_buckets
from testbed_runtime.checking.progress import GAP_NS, Progress, progress_of
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement.series import ChannelWait, CreditWaits, Heat, Load, VertexLoad
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.columns import Ints, filled_buckets, ints
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, Trial

COLUMNS_MAX = 120
"""Columns of a heat map and points of a load curve. A drawing cannot show more."""
MERGED = 3
"""Latency buckets in one row of the heat map: each row spans a factor of about two."""
VERTICES_MAX = 24
CHANNELS_MAX = 12
"""Channels that waited longest for credit. The others are only counted."""


def columns(edges: Ints) -> Ints:
    """Return every n-th edge, so that at most COLUMNS_MAX columns remain."""
    every = max(-(-(len(edges) - 1) // COLUMNS_MAX), 1)
    return np.append(edges[:-1:every], edges[-1])


def heat(latency: pa.Table, edges: Ints) -> Heat:
    """Return the records of each column per latency row: `bounds_s` are upper bounds of the rows, from `low_s` on.

    Rows without records at either end are left out; empty without latency."""
    cuts = columns(edges)
    middle = ints(latency, "window_start_ns") + ints(latency, "window_ns") // 2
    places = np.searchsorted(cuts, middle, side="right") - 1
    places[places >= len(cuts) - 1] = -1
    sums = merged_buckets(filled_buckets(latency), places, len(cuts) - 1)
    counts = np.add.reduceat(sums, np.arange(0, len(LATENCY_BOUNDS_NS) + 1, MERGED), axis=1)
    used = np.flatnonzero(counts.sum(axis=0))
    if not len(used):
        return Heat()
    first, last = int(used[0]), int(used[-1]) + 1
    return Heat(
        starts_s=_since(cuts[:-1], cuts[0]),
        low_s=_upper(first * MERGED - 1) if first else 0.0,
        bounds_s=[_upper(row * MERGED + MERGED - 1) for row in range(first, last)],
        columns=counts[:, first:last].tolist(),
    )


def _upper(bucket: int) -> float:
    """Return the upper bound of a bucket in seconds; the overflow bucket has that of the last bounded one."""
    return LATENCY_BOUNDS_NS[min(bucket, len(LATENCY_BOUNDS_NS) - 1)] / NS


def _since(times: Ints, start: int) -> list[float]:
    return [round(float(t - start) / NS, 3) for t in times]


def vertex_load(tasks: pa.Table, edges: Ints) -> Load:
    """Return for each vertex and column how long its busiest subtask was busy and its most back-pressured one
    back-pressured, as shares."""
    cuts = columns(edges)
    vertices = tasks.column("vertex").unique().to_pylist()[:VERTICES_MAX]
    found: dict[str, dict[str, Floats]] = {}
    for vertex, busy, pressed in _attempts(tasks, cuts):
        known = found.setdefault(vertex, {})
        for key, values in (("busy", busy), ("backpressured", pressed)):
            known[key] = np.fmax(known.get(key, np.full(len(cuts) - 1, np.nan)), values)
    shares = {name: {key: _shares(of) for key, of in own.items()} for name, own in found.items()}
    drawn = [VertexLoad(vertex=vertex, **shares[vertex]) for vertex in vertices if vertex in shares]
    return Load(_since(cuts[:-1], cuts[0]) if found else [], drawn)


def _attempts(tasks: pa.Table, cuts: Ints) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield (vertex, busy share, back-pressured share) of each attempt of each subtask; NaN while it did not run."""
    if not len(tasks):
        return
    labels = tasks.column("task").combine_chunks().dictionary_encode().indices.to_numpy()
    attempts, times = ints(tasks, "attempt"), ints(tasks, "t_ns")
    counters = [ints(tasks, name) for name in ("busy_ns", "backpressured_ns")]
    order = np.lexsort((times, attempts, labels))
    width = np.diff(cuts).astype(np.float64)
    for part in np.split(order, group_starts(labels[order], attempts[order])[1:]):
        if len(part) < 2:
            continue
        own = times[part]
        shares = [np.diff(np.interp(cuts, own, counter[part])) / width for counter in counters]
        outside = (cuts[:-1] > own[-1]) | (cuts[1:] < own[0])
        for share in shares:
            share[outside] = np.nan
        yield tasks.column("vertex")[int(part[0])].as_py(), shares[0], shares[1]


def _shares(values: Floats) -> list[float | None]:
    return [round(float(min(max(v, 0.0), 1.0)), 3) if np.isfinite(v) else None for v in values]


def credit_waits(trial: Trial) -> CreditWaits:
    """Return the channels that waited longest for credit, from the waits of that kind: seconds, number, longest wait."""
    waits = [row for row in trial.rows("waits") if row["kind"] == "credit"]
    sums = grouped(((row["who"], row["what"]), (row["t_ns"] - row["start_ns"]) / NS) for row in waits)
    ranked = sorted(sums.items(), key=lambda item: (-sum(item[1]), item[0]))
    channels = [
        ChannelWait(who, what, round(sum(found), 4), len(found), round(max(found), 4))
        for (who, what), found in ranked[:CHANNELS_MAX]
    ]
    return CreditWaits(channels, max(len(ranked) - CHANNELS_MAX, 0))


def progress_curves(trial: Trial, entry: TrialEntry, edges: Ints) -> dict[str, list[float | None]]:
    """Return `goodput` (distinct records per second at the sinks) and `lag_s` (of the worst source or sink) of each bin.

    The lag of a dead or frozen subtask grows; None while nothing is known."""
    baseline = windows(trial, entry).baseline
    sinks = progress_of(trial, "sink", baseline=baseline)
    worst = np.full(len(edges) - 1, np.nan)
    middles = edges[:-1] + np.diff(edges) // 2
    for one in (*sinks, *progress_of(trial, "source", baseline=baseline)):
        for times in (middles, edges[1:]):
            worst = np.fmax(worst, _lag(one, times))
    received = [(p.t_ns, p.distinct) for p in sinks if len(p.t_ns)]
    return {"goodput": rate_curve(received, edges), "lag_s": _curve(worst, 4)}


def rate_curve(counters: Sequence[tuple[Ints, Ints | Floats]], edges: Ints) -> list[float | None]:
    """Return the records per second of each bin, from the times and the counts of each attempt or subtask. The counts are interpolated
    at the bin edges, because samples (100 ms) and bins do not coincide."""
    if not counters:
        return [None] * (len(edges) - 1)
    total = np.zeros(len(edges) - 1)
    for times, counts in counters:
        # the first sample may already contain records; they count at the time of that sample
        total += np.diff(np.interp(edges, times, counts, left=0.0))
    first, last = min(times[0] for times, _ in counters), max(times[-1] for times, _ in counters)
    total[(edges[:-1] > last) | (edges[1:] < first)] = np.nan
    return _curve(total / (np.diff(edges) / NS), 1)


def _lag(one: Progress, times: Ints) -> Floats:
    """Return the lag at each time: the lag of the newest sample, which grows once the subtask has been silent
    for GAP_NS."""
    lag = one.lag_at(times)
    moments, reached = one.moments()
    if len(moments):
        newest = np.searchsorted(moments, times, side="right") - 1
        recent = times - moments[newest] <= GAP_NS
        known = np.isfinite(lag) & recent
        lag[known] = ((moments - reached)[newest] / NS)[known]
    return lag


def _curve(values: Floats, digits: int) -> list[float | None]:
    return [round(float(v), digits) if np.isfinite(v) else None for v in values]
