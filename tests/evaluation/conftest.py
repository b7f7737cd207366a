"""One Spark for all tests of the evaluation, and one synthetic run on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.histories import write_run
from testbed_runtime.evaluation import evaluate, pipeline, splits, tables
from testbed_runtime.evaluation.session import spark_session
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS
from tests.evaluation.rewritten import rewrite
from tests.report import synthetic

NS = 1_000_000_000
Evaluate = Callable[..., None]


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Manifest and sealed histories of four trials."""
    folder = tmp_path_factory.mktemp("runs") / synthetic.RUN
    folder.mkdir()
    synthetic.write_run(folder)
    return folder


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A control trial and a fault trial; the control's sinks receive nothing for half a second."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "uneven", rows=4000, trials=2)
    manifest = read_manifest(folder)
    (control,) = (e for e in manifest.trials if e.is_control)
    start = next(p.start_ns for p in control.phases if p.name == "baseline") + 3 * NS
    history = folder / "history" / control.trial
    rows = pq.read_table(history / "tasks.parquet").to_pylist()
    for row in rows:
        if row["role"] == "sink" and start <= row["t_ns"] < start + NS // 2:
            row["records_in"] -= int((row["t_ns"] - start) / NS * 1000)
    rewrite(history, "tasks", rows)
    windows = pq.read_table(history / "latency.parquet").to_pylist()
    rewrite(history, "latency", _later(windows, start))
    return folder


def _later(windows: list[dict[str, Any]], start: int) -> list[dict[str, Any]]:
    """Measure half of the records of each sink's first window after `start` in the next window."""
    moved: dict[str, list[int]] = {}
    for row in windows:
        if row["t_ns"] == start + NS // 4:
            moved[row["task"]] = [count - count // 2 for count in row["buckets"]]
            row["buckets"] = [count // 2 for count in row["buckets"]]
        elif row["t_ns"] == start + NS // 2:
            row["buckets"] = [a + b for a, b in zip(row["buckets"], moved[row["task"]], strict=True)]
        row["count"] = sum(row["buckets"])
        highest = max(number for number, count in enumerate(row["buckets"]) if count)
        row["max_ns"] = LATENCY_BOUNDS_NS[highest]
    return windows


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """Evaluates a run, and adds it to a catalogue. Each trial is judged in this process, by the function that Spark calls."""

    def judged(_: Any, trials: Sequence[tables.TrialFiles]) -> list[dict[str, Any]]:
        return [pipeline.judge_whole(piece, trials) for piece in splits.plan(trials)]

    def run(folder: Path, into: Path | None = None) -> None:
        spark: Any = None
        evaluate.evaluate(lambda: spark, folder, lambda line: None, into=into)

    monkeypatch.setattr(evaluate, "judged", judged)
    return run
