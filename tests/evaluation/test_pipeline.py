"""The Spark pipeline: the numbers of `checking`, whether a trial is judged whole or in parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from benchmarks.histories import write_run
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation import pipeline, splits, tables
from testbed_runtime.evaluation.evaluate import evaluate
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.history.reader import read_trial

pytestmark = pytest.mark.spark
NS = 1_000_000_000


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three trials of several row groups each."""
    return write_run(tmp_path_factory.mktemp("runs") / "generated", rows=150_000, trials=2)


def judged(spark: Any, folder: Path) -> list[dict[str, Any]]:
    trials = tables.open_trials(folder, read_manifest(folder))
    return pipeline.judged(spark, trials)


def direct(folder: Path) -> list[tuple[Any, Any]]:
    """Return what `checking` gives without Spark and without any reduction."""
    manifest = read_manifest(folder)
    trials = [(read_trial(folder / "history" / e.trial, run=manifest.run), e) for e in manifest.trials]
    return [(trial_metrics(trial, e), to_builtins(trial_timeseries(trial, e))) for trial, e in trials]


@pytest.mark.parametrize("split_rows", [500_000, 40_000])
def test_spark_gives_the_metric_rows_and_series_that_checking_gives(
    spark: Any, generated: Path, run_folder: Path, monkeypatch: pytest.MonkeyPatch, split_rows: int
):
    """Every row, every field, unchanged: for trials in one piece, in many, and for both in one run."""
    monkeypatch.setattr(splits, "SPLIT_ROWS", split_rows)
    monkeypatch.setattr(splits, "BUCKET_ROWS", split_rows // 4)
    for folder in (generated, run_folder):
        found = judged(spark, folder)
        assert [(f.rows, json.loads(f.series)) for f in found] == [
            (rows, json.loads(json.dumps(series))) for rows, series in direct(folder)
        ]


@pytest.mark.parametrize("split_rows", [500_000, 40_000])
def test_a_damaged_trial_is_named_in_one_line(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_rows: int
):
    """The file and what to do, whether it is read whole or in parts; no results are written."""
    monkeypatch.setattr(splits, "SPLIT_ROWS", split_rows)
    folder = write_run(tmp_path / "run", rows=60_000, trials=2)
    path = folder / "history" / "main-2" / "channels.parquet"
    data = bytearray(path.read_bytes())
    data[4:3000] = bytes(2996)
    path.write_bytes(data)
    with pytest.raises(
        HeadgateError, match=r"^history/main-2/channels\.parquet: is truncated or damaged: .*$"
    ):
        evaluate(lambda: spark, folder, lambda line: None)
    assert not (folder / "metrics.json").exists()
