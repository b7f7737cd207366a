"""The pieces of a run that the pipeline reads, without Spark."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.histories import write_run
from testbed_runtime.checking.baseline import with_noise
from testbed_runtime.evaluation import splits, tables
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.history.reader import read_trial
from testbed_runtime.history.schema import arrow_schema
from testbed_runtime.history.validation import DamagedHistory
from testbed_runtime.simulation.entry import DirectEvaluator
from tests.evaluation.conftest import Evaluate


def test_a_large_trial_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No piece has many more rows than the limit, and together they have every row group once."""
    monkeypatch.setattr(splits, "SPLIT_ROWS", 40_000)
    generated = write_run(tmp_path / "run", rows=150_000, trials=2)
    trials = tables.open_trials(generated, read_manifest(generated))
    pieces = [p for p in splits.plan(trials) if p.trial == 0]
    assert len(pieces) > 3
    rows = dict.fromkeys(trials[0].rows, 0)
    for piece in pieces:
        for table, found in splits.read(piece, trials[0]).items():
            rows[table] += len(found)
            assert len(found) <= 40_000 + 65_536
    assert rows == trials[0].rows


def test_a_source_that_counted_more_than_it_emitted_is_damage_of_its_trial(run_folder: Path, tmp_path: Path):
    """Each row is plausible; the end of the source in `events` contradicts them."""
    folder = Path(shutil.copytree(run_folder, tmp_path / run_folder.name))
    trial = tables.open_trials(folder, read_manifest(folder))[0]
    path = trial.folder / "tasks.parquet"
    rows = [r | {"records_out": 10 * r["records_out"]} for r in pq.read_table(path).to_pylist()]
    (piece,) = (p for p in splits.plan([trial]) if p.whole)
    splits.read(piece, trial)
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema("tasks")), path)
    with pytest.raises(DamagedHistory, match=r"column records_out.*source\.end in events"):
        splits.read(piece, trial)


def test_frames_are_validated_although_no_metric_reads_them(tmp_path: Path):
    """A credit with the size of a buffer, in a trial that is read as a whole."""
    folder = write_run(tmp_path / "run", rows=10_000, trials=1)
    trial = tables.open_trials(folder, read_manifest(folder))[0]
    path = trial.folder / "frames.parquet"
    rows = pq.read_table(path).to_pylist()
    row = next(i for i, r in enumerate(rows) if r["frame_class"] == "buffer")
    rows[row] |= {"frame_class": "credit"}
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema("frames")), path)
    (piece,) = splits.plan([trial])
    with pytest.raises(DamagedHistory, match=r"frames\.parquet, column size"):
        splits.read(piece, trial)


def test_the_noise_of_the_control_trial_reaches_the_fault_trials(uneven: Path):
    """It is the same number that the evaluation without Spark reads from the whole history."""
    trials = tables.open_trials(uneven, read_manifest(uneven))
    known = {t.trial: t for t in trials}
    expected = with_noise(
        [t.entry for t in trials], lambda e: read_trial(known[e.trial].folder, run=trials[0].run)
    )
    found = splits.with_control_noise(trials)
    assert [t.entry for t in found] == expected
    assert [(t.entry.noise or 0.0) > 0.01 for t in found if not t.entry.is_control] == [True]


def test_both_evaluators_write_the_same_results(uneven: Path, tmp_path: Path, without_spark: Evaluate):
    """Metric rows, answers, series and trace of a run with an uneven control trial."""
    first, second = (Path(shutil.copytree(uneven, tmp_path / name / uneven.name)) for name in ("a", "b"))
    without_spark(first)
    asyncio.run(DirectEvaluator().evaluate(second))
    for name in ("metrics.json", "recovery.json", "timeseries.json", "trace.json"):
        assert json.loads((first / name).read_text()) == json.loads((second / name).read_text()), name
