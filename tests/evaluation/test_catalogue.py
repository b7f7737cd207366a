"""The run catalogue: what an evaluation writes, what readers of many runs find, and how its schema grows."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.recovery import Price, Recovery, TrialRecovery
from testbed_runtime.core.trial.manifest import RunManifest
from testbed_runtime.evaluation import catalogue, trends, worker
from testbed_runtime.evaluation.evaluate import evaluate
from tests.evaluation.conftest import Evaluate
from tests.manifests import run_manifest
from tests.metricrows import metric_row

S = 1_000_000_000


def read(folder: Path, name: str, **where: str) -> pa.Table:
    """Return the rows of a table whose partitions are `where`."""
    partitioning = ds.partitioning(pa.schema([(p, pa.string()) for p in catalogue.PARTITIONS]), flavor="hive")
    dataset = ds.dataset(folder / name, schema=catalogue.WITH_PARTITIONS[name], partitioning=partitioning)
    rows = dataset.to_table().sort_by([(p, "ascending") for p in catalogue.PARTITIONS])
    return pa.Table.from_pylist(
        [r for r in rows.to_pylist() if all(r[k] == v for k, v in where.items())], rows.schema
    )


def metric(trial: str, name: str, value: float | None, **more: Any) -> MetricRow:
    return metric_row(name, value, trial=trial, **more)


def manifest(run: str, started: str, *trials: str) -> RunManifest:
    entries = [{"trial": t, "number": n, "flinkVersion": "1.12"} for n, t in enumerate(trials, 1)]
    scenario = {"metadata": {"name": "late-producer"}}
    return run_manifest(entries, run=run, started=started, scenario=scenario)


def outage(trial: str, *prices: Price) -> TrialRecovery:
    total = sum(p.seconds for p in prices) + 1.0
    found = Recovery(
        fault="kill",
        effect_ns=0,
        end_ns=round(total * S),
        prices=prices,
        unattributed_s=1.0,
        from_events_s=0.5,
    )
    return TrialRecovery(trial=trial, recoveries=(found,))


def price(option: str, seconds: float, *, count: int = 1) -> Price:
    return Price(
        text=f"{option} = 10 s", seconds=seconds, kind="partition", option=option, value="10 s", count=count
    )


BACKOFF, DELAY = "taskmanager.network.request-backoff.max", "restart-strategy.fixed-delay.delay"


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    """Two runs of one scenario; the second is faster."""
    folder = tmp_path / catalogue.FOLDER
    for run, started, total, waits in (
        ("a", "2026-11-01T00:00:00", 9.0, 3),
        ("b", "2026-11-02T00:00:00", 7.0, 1),
    ):
        rows = [
            metric("t1", "recovery.total", total),
            metric("t2", "recovery.total", total + 2),
            metric("t1", "job.state", None),
        ]
        answers = {
            "t1": outage("t1", price(BACKOFF, total - 2, count=waits), price(DELAY, 1.0)),
            "t2": TrialRecovery(trial="t2"),
        }
        catalogue.write_run(folder, manifest(run, started, "t1", "t2"), rows, answers)
    return folder


def test_rows_of_many_runs_are_read_at_once(two_runs: Path):
    """With run and trial from the partitions, and what the manifest says of the trial; without Spark."""
    found = read(two_runs, catalogue.METRICS, metric="recovery.total").to_pylist()
    assert [(r["run"], r["trial"], r["value"]) for r in found] == [("a", "t1", 9.0), ("a", "t2", 11.0), ("b", "t1", 7.0), ("b", "t2", 9.0)]  # fmt: skip
    assert {(r["scenario"], r["variant"], r["flink_version"], r["number"]) for r in found} == {
        ("late-producer", "main", "1.12", 1),
        ("late-producer", "main", "1.12", 2),
    }
    assert len(read(two_runs, catalogue.METRICS, run="b")) == 3
    assert (two_runs / "metrics" / "run=a" / "trial=t1" / "part.parquet").exists()


def test_prices_name_the_option_and_its_seconds(two_runs: Path):
    """One row per owner of each recovery; a trial without a recovery has none."""
    found = read(two_runs, catalogue.PRICES, run="a").to_pylist()
    assert [(r["trial"], r["option"], r["seconds"], r["waits"], r["total_s"]) for r in found] == [
        ("t1", BACKOFF, 7.0, 3, 9.0),
        ("t1", DELAY, 1.0, 1, 9.0),
    ]
    assert [(r["unattributed_s"], r["from_events_s"]) for r in found] == [(1.0, 0.5)] * 2


@pytest.mark.parametrize("option", ["akka.ask.timeout", "pekko.ask.timeout"])
def test_an_option_has_one_name_in_the_prices_of_all_versions(tmp_path: Path, option: str):
    """The answer of a job has the one of its version, and `headgate trend` one row for both."""
    rows = [metric("t1", "recovery.total", 3.0)]
    answers = {"t1": outage("t1", price(option, 2.0))}
    catalogue.write_run(tmp_path, manifest("a", "2026-11-01T00:00:00", "t1"), rows, answers)
    assert read(tmp_path, catalogue.PRICES).column("option").to_pylist() == ["pekko.ask.timeout"]


def test_a_delay_that_grew_has_the_value_of_its_option(tmp_path: Path):
    """`headgate trend` adds up what a value costs, however far the delay had grown in each run."""
    rows = [metric("t1", "recovery.total", 3.0)]
    answers = {"t1": outage("t1", replace(price(DELAY, 2.0), value="1 s, now 4 s"))}
    catalogue.write_run(tmp_path, manifest("a", "2026-11-01T00:00:00", "t1"), rows, answers)
    assert read(tmp_path, catalogue.PRICES).column("value").to_pylist() == ["1 s"]


def test_an_evaluation_replaces_what_an_earlier_one_wrote(two_runs: Path):
    """A trial that is void now has no rows any more, and other runs keep theirs."""
    catalogue.write_run(
        two_runs, manifest("a", "2026-11-01T00:00:00", "t2"), [metric("t2", "recovery.total", 1.0)], {}
    )
    found = read(two_runs, catalogue.METRICS)
    assert [(r["run"], r["trial"]) for r in found.to_pylist() if r["run"] == "a"] == [("a", "t2")]
    assert len(read(two_runs, catalogue.PRICES, run="a")) == 0
    assert len(read(two_runs, catalogue.METRICS, run="b")) == 3
    assert not [p for p in two_runs.rglob("*") if p.name.startswith(".")]


def older_and_newer(folder: Path) -> None:
    """Rewrite run a as an older version would have written it, and run b as a newer one."""
    part = folder / "metrics" / "run=a" / "trial=t1" / "part.parquet"
    pq.write_table(pq.ParquetFile(part).read().drop_columns(["bounded_by", "environment"]), part)
    part = folder / "metrics" / "run=b" / "trial=t1" / "part.parquet"
    rows = pq.ParquetFile(part).read()
    pq.write_table(rows.append_column("confidence", pa.array([0.5] * len(rows))), part)


def test_older_and_newer_rows_are_read_together(two_runs: Path):
    """A missing column is null, an unknown one is ignored."""
    older_and_newer(two_runs)
    found = read(two_runs, catalogue.METRICS)
    assert found.schema.names == catalogue.WITH_PARTITIONS[catalogue.METRICS].names
    assert [r["bounded_by"] for r in found.to_pylist() if r["trial"] == "t1"] == [None, None, "", ""]


def retyped(part: Path) -> None:
    rows = pq.ParquetFile(part).read()
    index = rows.schema.get_field_index("value")
    pq.write_table(rows.set_column(index, "value", rows.column("value").cast(pa.string())), part)


DAMAGED: list[tuple[Callable[[Path], object], str]] = [
    (lambda part: part.write_text("hello"), "is damaged: "),
    (lambda part: part.write_bytes(part.read_bytes()[:-20]), "is damaged: "),
    (retyped, "is damaged: column value has the type string. Evaluate its run again"),
]


@pytest.mark.parametrize(("damage", "problem"), DAMAGED)
def test_the_damaged_file_of_a_catalogue_is_named(
    two_runs: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object], problem: str
):
    """Spark's own error names a class of Java. Files of other versions are none."""
    older_and_newer(two_runs)
    assert catalogue.damaged_part(two_runs, catalogue.METRICS) == ""
    part = two_runs / "metrics" / "run=b" / "trial=t1" / "part.parquet"
    damage(part)

    def fails(*_: Any) -> Any:
        raise ValueError("An error occurred while calling o78.getResult.")

    monkeypatch.setattr(worker.trends, "trend", fails)
    out = io.StringIO()
    worker.serve(lambda: None, [json.dumps({"trends": str(two_runs)})], out)  # type: ignore[arg-type,return-value]
    assert json.loads(out.getvalue())["error"].startswith(f"{part} {problem}")


def test_a_catalogue_that_cannot_be_written_does_not_cost_the_results(
    run_folder: Path, tmp_path: Path, without_spark: Evaluate, capsys: pytest.CaptureFixture[str]
):
    """A file is in its place. The run's own results are complete, and stderr says what is missing."""
    (tmp_path / "catalogue").write_text("not a folder")
    folder = Path(shutil.copytree(run_folder, tmp_path / run_folder.name))

    without_spark(folder, tmp_path / "catalogue")
    assert "The run was not added to the catalogue" in capsys.readouterr().err
    assert all((folder / name).stat().st_size for name in ("metrics.json", "recovery.json", "trace.json"))


@pytest.mark.spark
def test_spark_compares_runs_and_adds_up_prices(spark: Any, two_runs: Path):
    """Medians of each run with the change since the run before, and the seconds of each option over all recoveries."""
    older_and_newer(two_runs)
    rows = trends.trend(spark, two_runs, catalogue.METRICS).toArrow().to_pylist()
    assert [(r["run"], r["metric"], r["trials"], r["median"], r["change"]) for r in rows if r["metric"] == "recovery.total"] == [
        ("a", "recovery.total", 2, 10.0, None),
        ("b", "recovery.total", 2, 8.0, -2.0),
    ]  # fmt: skip
    assert {r["bounded"] for r in rows} == {0}
    first, second = trends.trend(spark, two_runs, catalogue.PRICES).toArrow().to_pylist()
    assert (first["option"], first["seconds"], first["waits"], first["runs"], first["recoveries"]) == (
        BACKOFF,
        12.0,
        4,
        2,
        2,
    )
    assert first["share"] == pytest.approx(12.0 / 16.0)
    assert (second["option"], second["seconds"]) == (DELAY, 2.0)
    with pytest.raises(HeadgateError, match="evaluate a run first"):
        trends.trend(spark, two_runs / "nothing", catalogue.PRICES)


@pytest.mark.spark
def test_an_evaluation_adds_its_run_to_the_catalogue(spark: Any, run_folder: Path, tmp_path: Path):
    """Every metric row of every trial, comparisons with the control run included, and the prices of recovery.json."""
    evaluate(lambda: spark, run_folder, lambda line: None, into=tmp_path)
    written = json.loads((run_folder / "metrics.json").read_text())
    found = read(tmp_path, catalogue.METRICS).to_pylist()
    key = ("trial", "metric", "phase", "quantile", "value", "reason")
    assert sorted(str([r[k] for k in key]) for r in found) == sorted(
        str([r[k] for k in key]) for r in written
    )
    answers = json.loads((run_folder / "recovery.json").read_text())
    seconds = [p["seconds"] for a in answers.values() for r in a["recoveries"] for p in r["prices"]]
    assert seconds
    assert sum(read(tmp_path, catalogue.PRICES).column("seconds").to_pylist()) == pytest.approx(sum(seconds))
