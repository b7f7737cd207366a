"""A reduced trial has the metrics of the whole one, however it was split."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import to_builtins

from testbed_runtime.checking import reduced
from testbed_runtime.checking.common import Window
from testbed_runtime.checking.credit import by_channel
from testbed_runtime.checking.latency import histogram, merge_sinks, merged_buckets
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.history.columns import filled_buckets
from testbed_runtime.history.numbers import add_up, count_part, counts_of
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS, TABLES, Trial
from testbed_runtime.history.writer import MemoryHistory
from tests.manifests import trial_entry
from tests.report import synthetic

PLANS = {plan.trial: plan for plan in synthetic.PLANS}


def answers(trial: Trial, entry: TrialEntry) -> str:
    return json.dumps(
        [to_builtins(trial_metrics(trial, entry)), to_builtins(trial_timeseries(trial, entry))],
        sort_keys=True,
    )


def in_parts(trial: Trial, pieces: int, seed: int) -> Trial:
    """Reduce the rows of a trial in `pieces` parts of arbitrary length, its channels in buckets."""
    random = np.random.default_rng(seed)
    parts: dict[str, list[pa.Table]] = {}
    chosen = {name: np.sort(random.integers(0, pieces, len(trial.table(name)))) for name in TABLES}
    for piece in range(pieces):
        mine = {n: trial.table(n).filter(pa.array(chosen[n] == piece)) for n in TABLES}
        for name, rows in reduced.reduce_rows(mine).items():
            parts.setdefault(name, []).append(rows)
    buckets = [reduced.channel_buckets(rows, 3) for rows in parts.pop("channels")]
    parts["credit"] = [by_channel(pa.concat_tables(bucket)) for bucket in zip(*buckets, strict=True)]
    return reduced.assemble(trial.run, trial.trial, parts, trial.problems)


@pytest.mark.parametrize("name", PLANS)
def test_the_reduced_trial_has_the_same_metrics_and_series(name: str):
    """No checker reads a column or a table that is left out. A new one has to be added to `reduced.COLUMNS`."""
    trial, entry = synthetic.history(PLANS[name]), synthetic.entry(PLANS[name])
    assert answers(reduced.reduced(trial), entry) == answers(trial, entry)


@pytest.mark.parametrize("seed", range(3))
def test_a_trial_in_parts_has_the_same_metrics_and_series(seed: int):
    """Cut anywhere, and the channels in buckets."""
    plan = synthetic.PLANS[1]
    trial, entry = synthetic.history(plan), synthetic.entry(plan)
    assert answers(in_parts(trial, 2 + seed, seed), entry) == answers(trial, entry)


def test_violations_of_credit_survive_the_split(history: Any):
    """The buckets hold both sides of a channel, so nothing is compared with half of the samples."""

    def edit(table: str, row: dict[str, Any]) -> dict[str, Any]:
        return (
            row | {"used": row["used"] + 500}
            if table == "channels" and row.get("side") == "consumer"
            else row
        )

    trial = history.good(edit)
    expected, parts = answers(trial, trial_entry()), answers(in_parts(trial, 4, 1), trial_entry())
    assert expected == parts
    assert "more buffers than announced credit" in expected


def test_a_trial_without_rows_is_reduced_to_one_without_rows():
    """Every metric says that there is no data."""
    trial = Trial("r", "t", {})
    assert answers(reduced.reduced(trial), trial_entry()) == answers(trial, trial_entry())


def test_no_part_of_a_large_table_travels_whole():
    """Frames leave only their numbers, latencies one row per window, tasks only the columns that are read."""
    trial = synthetic.history(synthetic.PLANS[0])
    parts = reduced.reduce_rows({name: trial.table(name) for name in TABLES})
    assert "frames" not in parts
    assert len(parts["latency"]) == len(trial.table("latency")) / 2
    assert "boot_id" not in parts["tasks"].column_names


def memory_of(numbers: Mapping[str, list[int]]) -> Trial:
    memory = MemoryHistory(run="r", trial="t")
    for process, seqs in numbers.items():
        sink = memory.sink(process, lambda: 0)
        for _ in seqs:
            sink.append("events", kind="note", t_ns=1)
    tables = memory.tables()
    seq = pa.array([s for seqs in numbers.values() for s in seqs], pa.int64())
    events = tables["events"]
    tables["events"] = events.set_column(events.schema.get_field_index("seq"), "seq", seq)
    return Trial("r", "t", tables)


@pytest.mark.parametrize("numbers", [[0, 1, 2], [0, 2, 5], [0, 0, 1], [7], [3, 10**12], [5, 4, 4, 10**9]])
def test_rows_are_counted_by_their_numbers(numbers: list[int]):
    """Rows, distinct numbers and the highest one; dense or sparse, in one part or in two."""
    trial = memory_of({"tm-0-1": numbers, "tm-1-1": [0]})
    found = counts_of(trial).to_pylist()
    repeated = "" if len(set(numbers)) == len(numbers) else "events"
    assert [tuple(c.values()) for c in found] == [
        ("tm-0-1", "sim", len(numbers), len(set(numbers)), max(numbers), repeated, ["events"]),
        ("tm-1-1", "sim", 1, 1, 0, "", ["events"]),
    ]
    events = trial.table("events")
    parts = [count_part({"events": events.slice(0, 2)}), count_part({"events": events.slice(2)})]
    assert add_up(pa.concat_tables(parts)).to_pylist() == found


def test_histograms_of_several_sinks_add_up():
    """Windows at the same time become one; the histogram of any span stays the same, also with missing buckets."""
    memory = MemoryHistory(run="r", trial="t")
    sink = memory.sink("tm-0-1", lambda: 0)
    for start, task, buckets in ((0, "a-0", [1, 2]), (250, "a-0", [0, 4]), (0, "a-1", [5]), (250, "a-1", [])):
        sink.append(
            "latency",
            task=task,
            window_start_ns=start,
            window_ns=250,
            buckets=buckets,
            max_ns=start + 9,
            t_ns=start,
        )
    trial = memory.trial()
    merged = merge_sinks(trial.table("latency"))
    assert [row["buckets"][:2] for row in merged.to_pylist()] == [[6, 2], [0, 4]]
    each = merged_buckets(filled_buckets(trial.table("latency")), np.arange(4), 4)
    assert each.shape == (4, len(LATENCY_BOUNDS_NS) + 1)
    assert each[:, :2].tolist() == [[1, 2], [0, 4], [5, 0], [0, 0]]
    for window in (Window(0, 200), Window(200, 400), Window(0, 400), Window(900, 1000)):
        small = histogram(Trial("r", "t", {"latency": merged}), window)
        large = histogram(trial, window)
        assert (small.counts.tolist(), small.max_ns) == (large.counts.tolist(), large.max_ns)


def test_both_sides_of_a_channel_are_in_one_bucket():
    """One side has the names of the other one in another order."""
    channels = [(f"a-{n}", f"b-{n * n}") for n in range(6)]
    sides = [*channels, *((peer, task) for task, peer in channels)]
    rows = pa.table({"task": [task for task, _ in sides], "peer": [peer for _, peer in sides]})
    found = [{(r["task"], r["peer"]) for r in one.to_pylist()} for one in reduced.channel_buckets(rows, 5)]
    assert all({(peer, task) for task, peer in one} == one for one in found)
    assert sum(map(len, found)) == len(sides)
    assert sum(map(bool, found)) > 1
