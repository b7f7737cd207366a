"""The files that the evaluation writes beside the metrics: the answer of each trial, and its trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed_runtime.cli import loading
from testbed_runtime.core.documents import RECOVERY_FILE
from testbed_runtime.evaluation import pipeline, splits, tables
from testbed_runtime.evaluation.evaluate import write_results
from testbed_runtime.history.manifest import read_manifest
from tests.simulation.simulating import run_document

SCENARIO = Path(__file__).parents[2] / "scenarios" / "06-no-fault"


@pytest.mark.virtual
def test_the_evaluation_writes_the_files_that_a_simulated_run_has(tmp_path: Path):
    """The same answer and the same trace from the sealed history as from the simulator."""
    run_document(loading.load(SCENARIO).document, tmp_path)
    names = (RECOVERY_FILE, "trace.json")
    simulated = [json.loads((tmp_path / name).read_text()) for name in names]
    trials = tables.open_trials(tmp_path, read_manifest(tmp_path))
    found = [pipeline.judge_whole(piece, trials) for piece in splits.plan(trials)]
    write_results(tmp_path, trials, found, [])
    assert [json.loads((tmp_path / name).read_text()) for name in names] == simulated
    assert simulated[1]["traceEvents"]
