"""Latencies, back pressure and load against plain loops over small histories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from testbed_runtime.checking.busyness import TaskTimes, sampled_within, source_waits
from testbed_runtime.checking.common import Window
from testbed_runtime.checking.latency import Histogram, histogram, marker_latencies, merge_sinks, shows
from testbed_runtime.checking.load import credit_waits, heat, vertex_load
from testbed_runtime.core.judgement.series import Heat
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, Trial
from tests.checking.written import NS, Written, at, event, sample, wait, wrote

BOUNDS = len(LATENCY_BOUNDS_NS)
QUARTER = 0.25
WINDOWS = st.lists(
    st.tuples(st.sampled_from(["sink-0", "sink-1"]), st.integers(0, 7), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
    max_size=8,
)  # fmt: skip
Windowed = list[tuple[str, int, list[int]]]


def latencies(rows: Windowed) -> Trial:
    """Rows of `latency`, each of a window of a quarter of a second."""
    return wrote(*(
        ("latency", {
            "task": task, "t": (n + 1) * QUARTER, "window_start": n * QUARTER, "window_ns": NS // 4, "count": sum(counts),
            "buckets": counts + [0] * (BOUNDS + 1 - len(counts)), "max_ns": 1000 * n + sum(counts),
        })
        for task, n, counts in rows
    ))  # fmt: skip


@given(rows=WINDOWS, first=st.integers(0, 8), length=st.integers(0, 8))
def test_a_window_has_the_records_of_the_rows_whose_middle_is_in_it(rows: Windowed, first: int, length: int):
    """Its beginning belongs to it and its end does not; the table of the merged sinks has the same."""
    trial = latencies(rows)
    middle = at(QUARTER / 2)
    window = Window(middle + first * NS // 4, middle + (first + length) * NS // 4)
    inside = [(n, counts) for _, n, counts in rows if first <= n < first + length]
    expected = [sum(counts[b] for _, counts in inside if b < len(counts)) for b in range(BOUNDS + 1)]
    merged = Trial("r", "t", {"latency": merge_sinks(trial.table("latency"))})
    for found in (histogram(trial, window), histogram(merged, window)):
        assert found.counts.tolist() == expected
        assert found.max_ns == max((1000 * n + sum(counts) for n, counts in inside), default=0)
        assert found.total == sum(expected)
    table = merged.table("latency")
    if rows:
        every = sorted({n for _, n, _ in rows})
        assert table.column("t_ns").to_pylist() == [at((n + 1) * QUARTER) for n in every]
        assert table.column("count").to_pylist() == [sum(sum(c) for _, m, c in rows if m == n) for n in every]


@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=6), q=st.sampled_from([0.25, 0.5, 0.75, 0.9, 1.0]), over=st.integers(0, 2))  # fmt: skip
def test_a_quantile_is_at_its_rank_within_its_bucket(counts: list[int], q: float, over: int):
    """The records of a bucket are spread evenly over it, and those of the last one have the maximum."""
    every = counts + [0] * (BOUNDS - len(counts)) + [over]
    found = Histogram(np.asarray(every, dtype=np.int64), LATENCY_BOUNDS_NS[-1] * 2).quantile(q)
    total = sum(every)
    if total == 0 or (q < 1 and total * (1 - q) < 1 - 1e-9):
        assert found is None
        return
    rank, ends = q * total, [sum(every[: n + 1]) for n in range(BOUNDS + 1)]
    bucket = next(n for n, end in enumerate(ends) if end >= rank)
    if bucket == BOUNDS:
        assert found == LATENCY_BOUNDS_NS[-1] * 2 / NS
        return
    lower, upper = ([0, *LATENCY_BOUNDS_NS][n] for n in (bucket, bucket + 1))
    share = 1 - (ends[bucket] - rank) / every[bucket]
    assert found == pytest.approx((lower + share * (upper - lower)) / NS)


def test_a_quantile_is_at_most_the_maximum():
    """All records are in the first bucket, of which the maximum is known."""
    one = Histogram(np.asarray([10] + [0] * BOUNDS, dtype=np.int64), 6000)
    assert (one.quantile(0.5), one.quantile(0.9), one.quantile(1.0)) == (5e-6, 6e-6, 6e-6)


@pytest.mark.parametrize(("total", "q", "enough"), [(0, 1.0, False), (1, 1.0, True), (1, 0.5, False), (2, 0.5, True), (9, 0.9, False), (10, 0.9, True), (99, 0.99, False), (100, 0.99, True)])  # fmt: skip
def test_one_record_is_expected_beyond_a_quantile(total: int, q: float, enough: bool):
    """The maximum needs one record alone."""
    assert shows(total, q) is enough


@given(rows=st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab"), st.lists(st.integers(1, 9), max_size=3)), max_size=6), first=st.integers(0, 9), length=st.integers(0, 9))  # fmt: skip
def test_markers_of_a_window_are_those_recorded_in_it(
    rows: list[tuple[int, str, list[int]]], first: int, length: int
):
    """They are grouped by the vertices of source and receiver."""
    trial = wrote(
        *(event("latency.markers", "sink-1", t, source=f"{s}-0", ns=ns) for t, s, ns in sorted(rows))
    )
    found = marker_latencies(trial, Window(at(first), at(first + length)))
    inside = [(s, ns) for t, s, ns in sorted(rows) if first <= t < first + length]
    assert {pair: sorted(ns.tolist()) for pair, ns in found.items()} == {
        (s, "sink"): sorted(n for other, ns in inside if other == s for n in ns) for s, _ in inside
    }
    assert list(found) == sorted(found)


SAMPLES = st.lists(
    st.tuples(st.sampled_from(["a-0", "a-1", "b-0"]), st.integers(0, 1), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)),
    max_size=10,
)  # fmt: skip
Sampled = list[tuple[str, int, float, float, float]]


def grown(rows: list[tuple[str, int, int, int, int]]) -> Sampled:
    """Rows of samples: seconds and counters that grow from one sample of an attempt to the next."""
    last: dict[tuple[str, int], tuple[int, int, int]] = {}
    found: Sampled = []
    for task, attempt, *steps in rows:
        t, busy, pressed = (a + b for a, b in zip(last.get((task, attempt), (0, 0, 0)), steps, strict=True))
        last[task, attempt] = t, busy, pressed
        found.append((task, attempt, t, busy, pressed))
    return found


def tasks(rows: Sampled, role: str = "operator") -> list[Written]:
    return [
        sample(task, t, attempt=n, role=role, busy_ns=int(b), backpressured_ns=int(p), idle_ns=int(t))
        for task, n, t, b, p in rows
    ]


@given(steps=SAMPLES, first=st.integers(0, 4), length=st.integers(0, 9))
def test_the_shares_of_a_vertex_are_those_of_its_worst_subtask(steps: Any, first: int, length: int):
    """They are the growth of its counters from the first to the last sample of each attempt in the window."""
    rows = grown(steps)
    spent: dict[str, list[float]] = {}
    for key in {(task, n) for task, n, *_ in rows}:
        own = [row[2:] for row in rows if row[:2] == key and first <= row[2] < first + length]
        if own:
            total = spent.setdefault(key[0], [0, 0, 0])
            for place, counter in enumerate((2, 1, 0)):  # back-pressured, busy, idle
                total[place] += own[-1][counter] - own[0][counter]
    expected = []
    for vertex in ("a", "b"):
        shares = [
            [s / sum(own) for s in own] for task, own in spent.items() if task[0] == vertex and sum(own)
        ]
        if shares:
            pressed, busy, idle = zip(*shares, strict=True)
            expected.append((vertex, max(pressed), max(busy), min(idle)))
    found = TaskTimes.read(wrote(*tasks(rows))).within(Window(at(first), at(first + length)))
    assert [(v.vertex, v.backpressured, v.busy, v.idle) for v in found] == [
        (v, *map(pytest.approx, numbers)) for v, *numbers in expected
    ]
    assert [[v.share(n) for n in ("backpressured", "busy", "idle")] for v in found] == [[v.backpressured, v.busy, v.idle] for v in found]  # fmt: skip


@given(steps=SAMPLES, since=st.integers(0, 9))
def test_a_source_waits_since_its_first_growth_of_back_pressure(steps: Any, since: int):
    """It began as long before the sample as the counter has grown since the last earlier one."""
    rows = grown(steps)
    begun = []
    for task, n, t, _, pressed in rows:
        before = max((p for other, m, s, _, p in rows if (other, m) == (task, n) and s < since), default=0)
        if t >= since and pressed > before:
            begun.append(max(at(t) - int(pressed - before), at(since)))
    trial = wrote(*tasks(rows, role="source"), sample("c-0", 0, role="sink", backpressured_ns=9))
    assert source_waits(trial, at(since)) == min(begun, default=None)


@given(rounds=st.lists(st.tuples(st.sampled_from(["a-0", "a-1", "b-0"]), st.integers(0, 5), st.integers(0, 4), st.integers(0, 4)), max_size=8), first=st.integers(0, 5), length=st.integers(0, 5))  # fmt: skip
def test_sampled_back_pressure_is_a_share_of_all_samples_of_a_subtask(rounds: Any, first: int, length: int):
    """The worst subtask of each vertex counts; a round without samples has none."""
    rows = [event("backpressure.sampled", task, t, samples=most, backpressured=min(most, n)) for task, t, most, n in rounds]  # fmt: skip
    totals: dict[str, list[int]] = {}
    for task, t, most, n in rounds:
        if first <= t < first + length:
            own = totals.setdefault(task, [0, 0])
            own[0], own[1] = own[0] + most, own[1] + min(most, n)
    shares = {task: pressed / most if most else 0.0 for task, (most, pressed) in totals.items()}
    found = sampled_within(wrote(*rows), Window(at(first), at(first + length)))
    assert found == {v: max(s for task, s in shares.items() if task[0] == v) for v in sorted({task[0] for task in shares})}  # fmt: skip


@given(spans=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_channels_are_ranked_by_their_waits_for_credit(spans: list[tuple[str, int, int]]):
    """Equal ones by their names. Other waits do not count."""
    rows = [wait("credit", who, what="b", start=start, t=start + length) for who, start, length in spans]
    found = to_builtins(credit_waits(wrote(*rows, wait("slot", "z", start=0, t=9))))
    own = {who: [length for other, _, length in spans if other == who] for who, *_ in spans}
    ranked = sorted(own, key=lambda who: (-sum(own[who]), who))
    assert found == {
        "channels": [{"who": w, "what": "b", "seconds": sum(own[w]), "count": len(own[w]), "longest_s": max(own[w])} for w in ranked],
        "more": 0,
    }  # fmt: skip


@given(rows=WINDOWS, bins=st.integers(1, 4))
def test_a_heat_map_has_every_record_once(rows: Windowed, bins: int):
    """In the column of the middle of its window, if that is before the last edge."""
    edges = np.asarray([at(n * QUARTER * 2) for n in range(bins + 1)], dtype=np.int64)
    found = to_builtins(heat(latencies(rows).table("latency"), edges))
    inside = [(n // 2, counts) for _, n, counts in rows if n // 2 < bins and any(counts)]
    if not inside:
        assert found == to_builtins(Heat())
        return
    used = [b // 3 for _, counts in inside for b, count in enumerate(counts) if count]
    expected = [[sum(count for m, counts in inside if m == n for b, count in enumerate(counts) if b // 3 == row) for row in range(min(used), max(used) + 1)] for n in range(bins)]  # fmt: skip
    assert found["columns"] == expected
    assert found["starts_s"] == [n / 2 for n in range(bins)]
    assert found["bounds_s"] == [
        LATENCY_BOUNDS_NS[3 * row + 2] / NS for row in range(min(used), max(used) + 1)
    ]
    assert found["low_s"] == (LATENCY_BOUNDS_NS[3 * min(used) - 1] / NS if min(used) else 0.0)


@given(steps=SAMPLES, bins=st.integers(1, 5))
def test_the_load_of_a_column_is_that_of_the_worst_attempt(steps: Any, bins: int):
    """An attempt has no load before its first and after its last sample, or with one sample."""
    rows = [(task, n, t, b * NS // 4, p * NS // 4) for task, n, t, b, p in grown(steps)]
    found = to_builtins(
        vertex_load(
            wrote(*tasks(rows)).table("tasks"), np.asarray([at(n) for n in range(bins + 1)], dtype=np.int64)
        )
    )
    expected: dict[str, dict[str, list[float | None]]] = {}
    for task, n in sorted({row[:2] for row in rows}):
        own = [row[2:] for row in rows if row[:2] == (task, n)]
        if len(own) < 2:
            continue
        known = expected.setdefault(task[0], {"busy": [None] * bins, "backpressured": [None] * bins})
        for place, key in ((1, "busy"), (2, "backpressured")):
            for column in range(bins):
                if column > own[-1][0] or column + 1 < own[0][0]:
                    continue
                ends = [
                    np.interp(at(c), [at(o[0]) for o in own], [o[place] for o in own])
                    for c in (column, column + 1)
                ]
                share = round(min(max(float(ends[1] - ends[0]) / NS, 0.0), 1.0), 3)
                known[key][column] = max(share, known[key][column] or 0.0)
    order = [v for v in dict.fromkeys(row[0][0] for row in rows) if v in expected]
    assert found["vertices"] == [{"vertex": v, **expected[v]} for v in order]
    assert found["starts_s"] == ([float(n) for n in range(bins)] if expected else [])
