"""The hand-written history with what its tables must agree on: times that pass, latencies of all records, acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, Trial
from tests.ordered import in_order

NS = 1_000_000_000
Row = dict[str, Any]
Change = Callable[[str, Row], Row | None]

AGAIN_S, CAUGHT_UP_S = 11.0, 12.0
"""Samples begin again at AGAIN_S, and the backlog is gone at CAUGHT_UP_S."""


def agreeing(history: Any, change: Change = lambda table, row: row) -> Trial:
    """Return the good trial, numbered as processes do. `change` sees each row as in Builder.record."""
    record = history.empty(lambda table, row: change(table, _agree(history, table, row)))
    history.fill(record)
    for task in ("source-0", "source-1", "count-0", "count-1"):
        record.add("jobmanager-1", "checkpoints", 7.1, checkpoint=1, state="acknowledged", task=task)
    return in_order(record.trial())


def _agree(history: Any, table: str, row: Row) -> Row:
    t_s = (row["t_ns"] - history.start) / NS
    if table == "tasks":
        return row | {"idle_ns": row["t_ns"] - history.start}
    if table == "channels" and row["side"] == "consumer":
        return row | {"exclusive": row["announced"] - row["used"]}
    if table == "delivery":
        return row | {"checkpoint": 1, "t_ns": max(row["t_ns"], history.at(7.2))}
    if table != "latency":
        return row
    lag_s = 0.02 if t_s < AGAIN_S else max(0.02, 3.0 - 3.0 * (t_s - AGAIN_S))
    bucket = int(np.searchsorted(LATENCY_BOUNDS_NS, round(lag_s * NS)))
    first = t_s in (0.0, AGAIN_S)
    count = 0 if first else 490 if AGAIN_S < t_s <= CAUGHT_UP_S else 100
    buckets = [0] * (len(LATENCY_BOUNDS_NS) + 1)
    buckets[bucket] = count
    return row | {"count": count, "buckets": buckets, "max_ns": LATENCY_BOUNDS_NS[bucket]}
