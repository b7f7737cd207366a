"""The PySpark jobs against two independent oracles: DuckDB over the same files, and `checking` called directly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import duckdb
import pytest

from testbed_runtime.checking.metrics import control_metrics, trial_metrics
from testbed_runtime.core.judgement.metrics import QUANTILES, RECOVERY_PHASES
from testbed_runtime.evaluation.jobs import recovery, throughput
from testbed_runtime.evaluation.run import Evaluation
from testbed_runtime.history.reader import read_trial
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS
from tests.report import synthetic

pytestmark = pytest.mark.spark


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return frame.toArrow().to_pylist()


def direct_rows(folder: Path) -> list[dict[str, Any]]:
    """What `checking` says, without Spark."""
    entries = synthetic.manifest()["trials"]
    rows = [
        row
        for e in entries
        for row in trial_metrics(read_trial(folder / "history" / e["trial"], run=synthetic.RUN), e)
    ]
    return rows + control_metrics(rows, entries)


def by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    keyed = {(r["run"], r["trial"], r["metric"], r["phase"], r["quantile"], r["text"]): r for r in rows}
    assert len(keyed) == len(rows)
    return keyed


def close(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)


def test_spark_gives_the_metric_rows_that_checking_gives(opened: Evaluation, run_folder: Path):
    """Grouped by (run, trial), shipped to a Python worker and back: every row, every field, unchanged."""
    expected = by_key([r for r in direct_rows(run_folder) if not r["metric"].endswith("relative-to-control")])
    assert by_key(rows_of(opened.metrics())) == expected


def test_the_phases_of_the_recovery_come_in_order_and_sum_to_one(opened: Evaluation):
    """Position, share and bound of each phase that is defined."""
    rows = rows_of(recovery.of_run(opened))
    mine = [r for r in rows if r["trial"] == "short-timeout-1"]
    assert [r["phase"] for r in mine] == list(RECOVERY_PHASES)
    assert {r["variant"] for r in mine} == {"short-timeout"}
    assert math.isclose(sum(r["share"] or 0 for r in mine), 1.0)
    assert mine[0]["bounded_by"] == "heartbeat.timeout = 5 s"
    assert math.isclose(mine[0]["seconds"], synthetic.COSTS["detect"], abs_tol=0.05)


def test_a_recovery_that_took_no_time_has_phases_without_a_share(spark: Any):
    """A job that failed for good, or never felt the fault, is not an error of the evaluation."""
    metrics = spark.createDataFrame(
        [
            ("run", "main-1", "recovery.catch-up", 0.0, "", ""),
            ("run", "main-1", "recovery.steady", 0.0, "", ""),
        ],
        "run string, trial string, metric string, value double, bounded_by string, reason string",
    )
    rows = rows_of(recovery.recovery(metrics, {("run", "main-1"): "main"}))
    assert [(r["phase"], r["share"]) for r in rows] == [("catch-up", None), ("steady", None)]


def test_throughput_and_latency_by_phase_are_what_checking_says(opened: Evaluation, run_folder: Path):
    """The wide aggregate in SQL and the pure function agree on every trial, phase and quantile, and on what they are held against."""
    pure = by_key(direct_rows(run_folder))
    names = {"throughput": "throughput.records-per-second", "latency": "latency"}
    relative = {"throughput": "throughput.relative", "latency": "latency.relative"}
    rows = rows_of(throughput.of_run(opened))
    assert len(rows) == 4 * 4 * (1 + len(QUANTILES))
    for row in rows:
        tail = (row["phase"], row["quantile"], "")
        place = f"{row['trial']} {row['metric']} {tail}"
        assert close(row["value"], pure[row["run"], row["trial"], names[row["metric"]], *tail]["value"]), (
            place
        )
        ratio = pure[row["run"], row["trial"], relative[row["metric"]], *tail]["value"]
        assert close(row["relative_to_baseline"], ratio), place
        if row["role"] == "fault":
            against = pure[row["run"], row["trial"], f"{relative[row['metric']]}-to-control", *tail]["value"]
            assert close(row["relative_to_control"], against), place


def test_throughput_per_second_agrees_with_duckdb(opened: Evaluation, run_folder: Path):
    """An oracle that shares no code: records between two samples, spread over the milliseconds between them."""
    rows = rows_of(throughput.throughput_per_second(opened.tables["tasks"], opened.phases()))
    start = round((synthetic.START_S + synthetic.FAULT_AT - synthetic.BASELINE_S) * 1e9)
    query = """
        with samples as (
            select trial, task, attempt, t_ns, records_in,
                   lag(t_ns) over w as before_ns, lag(records_in) over w as before
            from read_parquet($files) where role = 'sink'
            window w as (partition by trial, task, attempt order by t_ns)
        ), spread as (
            select trial, coalesce(before_ns, t_ns) as from_ns, t_ns, records_in - coalesce(before, 0) as n,
                   unnest(range(0, 1000)) as part
            from samples
        )
        select trial, floor((from_ns + (part + 0.5) / 1000 * (t_ns - from_ns) - $start) / 1e9) as second, sum(n / 1000.0) as n
        from spread group by trial, second
    """
    files = str(run_folder / "history" / "*" / "tasks.parquet")
    found = duckdb.execute(query, {"files": files, "start": start}).fetchall()
    oracle = {(trial, int(second)): n for trial, second, n in found}
    assert rows
    for row in rows:
        assert abs(row["records_per_second"] - oracle.get((row["trial"], row["second"]), 0.0)) < 60, row


def test_latency_quantiles_lie_in_the_bucket_that_duckdb_finds(opened: Evaluation, run_folder: Path):
    """The bucket that holds the quantile, found by an oracle that shares no code."""
    phase = next(p for p in synthetic.phases() if p["name"] == "observation")
    query = """
        with counts as (
            select trial, bucket, sum(n) as n from (
                select trial, unnest(buckets) as n, unnest(range(0, len(buckets))) as bucket from read_parquet($files)
                where window_start_ns + window_ns // 2 >= $start and window_start_ns + window_ns // 2 < $end
            ) group by trial, bucket
        )
        select trial, min(bucket) from (
            select trial, bucket, sum(n) over (partition by trial order by bucket) as upto,
                   sum(n) over (partition by trial) as total from counts
        ) where upto >= 0.99 * total group by trial
    """
    files = str(run_folder / "history" / "*" / "latency.parquet")
    found = duckdb.execute(
        query, {"files": files, "start": phase["start_ns"], "end": phase["end_ns"]}
    ).fetchall()
    rows = rows_of(throughput.latency_by_phase(opened.tables["latency"], opened.phases()))
    values = {r["trial"]: r["value"] for r in rows if r["phase"] == "observation" and r["quantile"] == 0.99}
    assert len(found) == len(values) == 4
    for trial, bucket in found:
        lower = LATENCY_BOUNDS_NS[bucket - 1] / 1e9 if bucket else 0.0
        assert lower <= values[trial] <= LATENCY_BOUNDS_NS[bucket] / 1e9
