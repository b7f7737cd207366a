"""DuckDB computes the metrics from the Parquet files, in SQL that shares no code with Headgate. Both must agree."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.histories import write_run
from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.evaluation import pipeline, splits, tables
from testbed_runtime.history.manifest import manifest_data, read_manifest
from testbed_runtime.history.schema import Trial, arrow_schema
from tests.evaluation.oracle import GOODPUT, LAG, QUANTILES, STALL, Oracle
from tests.evaluation.rewritten import rewrite
from tests.simulation.knownanswers import answer
from tests.simulation.test_known_answers import CASES

PHASES = ("baseline", "fault", "observation", "")
Rows = dict[tuple[str, str, float | None], dict[str, Any]]


def judged(folder: Path) -> list[tuple[TrialEntry, Oracle, Rows]]:
    """Return (manifest entry, oracle, metric rows) of each trial of a run."""
    trials = tables.open_trials(folder, read_manifest(folder))
    found = []
    for piece in splits.plan(trials):
        entry = trials[piece.trial].entry
        rows = pipeline.judge_whole(piece, trials).rows
        by_key = {(r.metric, r.phase, r.quantile): r for r in rows}
        found.append((entry, Oracle(folder / "history" / entry.trial, entry), by_key))
    return found


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A control trial and a trial with a killed TaskManager, from the generator of the benchmarks."""
    return write_run(tmp_path_factory.mktemp("runs") / "generated", rows=4000, trials=2)


@pytest.fixture(scope="module", params=["synthetic", "generated", "kill-consumer", "pause-below-the-timeout"])
def trials(
    request: pytest.FixtureRequest,
    run_folder: Path,
    generated: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Any]:
    """Synthetic trials, and two of real shells in virtual time."""
    made = {"synthetic": run_folder, "generated": generated}
    if request.param in made:
        return judged(made[request.param])
    folder = tmp_path_factory.mktemp("simulated")
    answer(next(c for c in CASES if c.name == request.param), folder)
    return judged(folder)


def same(mine: float | None, other: float | None) -> bool:
    return mine is other is None or (
        mine is not None and other is not None and math.isclose(mine, other, rel_tol=1e-9, abs_tol=1e-9)
    )


def test_the_throughput_of_each_phase_is_the_oracles(trials: list[Any]):
    """Records per second at the sinks, each attempt's counter interpolated between its samples."""
    for entry, oracle, rows in trials:
        other = oracle.throughput()
        for phase in PHASES:
            value = rows["throughput.records-per-second", phase, None].value
            assert same(value, other[phase]), (entry.trial, phase, value, other[phase])


def test_the_latency_of_each_phase_and_quantile_is_the_oracles(trials: list[Any]):
    """Quantiles of the merged histograms, interpolated within their bucket."""
    for entry, oracle, rows in trials:
        other = oracle.latency()
        for phase in PHASES:
            for quantile in QUANTILES:
                value = rows["latency", phase, quantile].value
                assert same(value, other.get((phase, quantile))), (entry.trial, phase, quantile)


@pytest.mark.parametrize(
    ("metric", "query"),
    [("throughput.goodput", GOODPUT), ("lag.max", LAG), ("liveness.longest-stall", STALL)],
)
def test_the_progress_of_each_phase_is_the_oracles(trials: list[Any], metric: str, query: str):
    """Distinct records per second, the largest lag and the longest silence of a subtask."""
    for entry, oracle, rows in trials:
        other = oracle.by_phase(query)
        for phase in PHASES:
            value = rows[metric, phase, None].value
            assert same(value, other[phase]), (entry.trial, phase, value, other[phase])


def test_the_recovery_of_each_trial_is_the_oracles(trials: list[Any]):
    """The total, the downtime and the failovers of its fault, with and without a failover."""
    judged_faults = 0
    for entry, oracle, rows in trials:
        for metric, value in oracle.recovery().items() if not entry.is_control else ():
            mine = rows[metric, "", None].value
            assert same(mine, value), (entry.trial, metric, mine, value)
            judged_faults += 1
    assert judged_faults >= 3


def test_the_recovery_with_long_buffer_timeouts_is_the_oracles(run_folder: Path, tmp_path: Path):
    """Lag within the buffer timeouts on the way to a sink is no backlog: with 700 ms, trials recover sooner than with 100 ms."""
    folder = shutil.copytree(run_folder, tmp_path / "run")
    manifest = manifest_data(folder)
    totals = []
    for timeout in ("100 ms", "700 ms"):
        for entry in manifest["trials"]:
            entry["configuration"]["execution.buffer-timeout.interval"] = timeout
        (folder / "manifest.json").write_text(json.dumps(manifest))
        found = [
            (rows["recovery.total", "", None].value, oracle)
            for entry, oracle, rows in judged(folder)
            if not entry.is_control
        ]
        assert all(same(value, oracle.recovery()["recovery.total"]) for value, oracle in found)
        totals.append(sum(value for value, _ in found))
    assert totals[1] < totals[0]


def test_the_recovery_of_subtasks_that_are_never_normal_together_is_the_oracles(
    run_folder: Path, tmp_path: Path
):
    """After the fault, one sink and then the other one receives only late records for 0.4 s of every 1.6 s, after it has missed the first one for
    0.3 s."""
    entry = next(t for t in read_manifest(run_folder).trials if not t.is_control)
    folder = Path(shutil.copytree(run_folder / "history" / entry.trial, tmp_path / "trial"))
    healed = next(p.end_ns for p in entry.phases if p.name == "fault")
    rows = pq.read_table(folder / "tasks.parquet").to_pylist()
    for row in rows:
        turn = row["t_ns"] // 10**8 + 8 * int(row["task"].rpartition("-")[2])
        if row["role"] == "sink" and row["t_ns"] >= healed and turn % 16 < 4:
            row["lag_ns"] = 5 * 10**8
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema("tasks")), folder / "tasks.parquet")
    trial = Trial("run", entry.trial, {file.stem: pq.read_table(file) for file in folder.glob("*.parquet")})
    (found,) = trial_recovery(trial, entry).recoveries
    assert found.recovered
    assert same(found.total_s, Oracle(folder, entry).recovery()["recovery.total"])


def test_the_delivery_of_each_trial_is_the_oracles(trials: list[Any]):
    """Lost, duplicated, committed, corrupted and out of order, from the bits of the commits."""
    for entry, oracle, rows in trials:
        for name, value in oracle.delivery().items():
            assert rows[f"delivery.{name}", "", None].value == value, (entry.trial, name)
        assert rows["delivery.committed", "", None].value > 0


def test_the_delivery_with_losses_and_duplicates_is_the_oracles(generated: Path, tmp_path: Path):
    """The oracle and checking find the same damage: a commit lost its records, and two overlap."""
    folder = Path(shutil.copytree(generated, tmp_path / "damaged"))
    history = folder / "history" / "main-2"
    rows = pq.read_table(history / "delivery.parquet").to_pylist()
    rows[0]["bitmap"] = bytes(512)
    rows[5]["bitmap"] = rows[-1]["bitmap"] = bytes([255] * 512)
    rewrite(history, "delivery", rows)
    _, oracle, found = judged(folder)[1]
    other = oracle.delivery()
    assert other["lost"] > 0
    assert other["duplicated"] > 0
    assert other["corrupted"] > 0
    assert {name: found[f"delivery.{name}", "", None].value for name in other} == other
