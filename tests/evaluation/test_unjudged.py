"""A checker that raises an exception costs the verdict of its trial, and of no other one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.checking import baseline, metrics, reduced
from testbed_runtime.checking.unjudged import TEXT_MAX, described
from testbed_runtime.cli import loading
from testbed_runtime.core.documents import RECOVERY_FILE, TIMESERIES_FILE
from testbed_runtime.core.judgement.metrics import RUN_FAILED
from testbed_runtime.core.judgement.verdict import VariantVerdict, Verdict
from testbed_runtime.evaluation import pipeline, splits, tables
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.runner.conclude import reread
from testbed_runtime.simulation import entry as simulation
from tests.evaluation.conftest import Evaluate
from tests.simulation.simulating import run_document

BROKEN, WHOLE = "short-timeout-1", "long-timeout-1"
SCENARIO = Path(__file__).parents[2] / "scenarios" / "06-no-fault"


@pytest.fixture
def folder(run_folder: Path, tmp_path: Path) -> Path:
    """A copy whose results a test may write."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def break_checker(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, *trials: str) -> None:
    """Let a checker look for a table that one of these trials does not have, deep in its code."""
    real = getattr(module, name)

    def fail(trial: Any, *arguments: Any, **more: Any) -> Any:
        if trial.trial in trials:
            trial.rows("no-such-table")
        return real(trial, *arguments, **more)

    monkeypatch.setattr(module, name, fail)


@pytest.mark.parametrize("name", ["trial_recovery", "trial_metrics", "trial_timeseries"])
def test_an_exception_of_a_checker_is_the_error_of_its_trial(
    folder: Path, without_spark: Evaluate, monkeypatch: pytest.MonkeyPatch, name: str
):
    """The verdict has the type of the exception, its message and its place; the other trials have all their values."""
    break_checker(monkeypatch, pipeline, name, BROKEN)
    without_spark(folder, folder.parent / "catalogue")
    verdict, report = reread(folder)
    errors = [e for e in verdict.judged if e.verdict is Verdict.ERROR]
    assert verdict.verdict is Verdict.ERROR
    assert [(e.trial, e.reason) for e in errors] == [(BROKEN, RUN_FAILED)]
    assert errors[0].measured.startswith(
        "its history could not be judged: KeyError: 'no-such-table' (testbed_runtime/history/schema.py:"
    )
    assert f"{BROKEN} could not be completed: its history" in verdict.summary
    assert {e.trial for e in verdict.judged} == {BROKEN, WHOLE}
    assert VariantVerdict("short-timeout", Verdict.ERROR) in verdict.variants
    assert list(json.loads((folder / RECOVERY_FILE).read_text())).count(BROKEN) == 0
    series = json.loads((folder / TIMESERIES_FILE).read_text())["trials"]
    assert [one["trial"] for one in series if one["trial"] in (BROKEN, WHOLE)] == [WHOLE]
    assert "no-such-table" in report.read_text()


def test_a_control_trial_whose_noise_cannot_be_computed_is_the_only_error(
    folder: Path, without_spark: Evaluate, monkeypatch: pytest.MonkeyPatch
):
    """The noise is computed before any trial is judged, and again with the control trial."""
    control = next(e.trial for e in read_manifest(folder).trials if e.is_control)
    for module in (baseline, metrics):
        break_checker(monkeypatch, module, "control_noise", control)
    without_spark(folder)
    verdict, _ = reread(folder)
    errors = [e.trial for e in verdict.judged if e.verdict is Verdict.ERROR]
    assert errors == [control]


def in_pieces(trials: Sequence[tables.TrialFiles]) -> dict[str, Any]:
    """Judge a trial as Spark judges a large one."""
    scanned = [
        part for n, piece in enumerate(splits.plan(trials)) for part in pipeline.scan(n, piece, trials)
    ]
    buckets = {part.bucket for part in scanned}
    combined = [
        part for bucket in buckets for part in pipeline.combine([p for p in scanned if p.bucket == bucket])
    ]
    return pipeline.judge(combined, trials)


@pytest.mark.parametrize(
    ("module", "name"),
    [(pipeline, "reduce_rows"), (pipeline, "by_channel"), (pipeline, "merge_sinks"), (pipeline, "trial_metrics"), (reduced, "add_up")],
)  # fmt: skip
def test_an_exception_in_any_step_of_a_large_trial_is_its_error(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
):
    """It may be raised in the scan, in a bucket of channels, or when the trial is judged."""
    monkeypatch.setattr(splits, "SPLIT_ROWS", 2000)
    trials = [t for t in tables.open_trials(run_folder, read_manifest(run_folder)) if t.trial == WHOLE]
    assert not in_pieces(trials).error

    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(module, name, fail)
    found = in_pieces(trials)
    assert found.error == ""
    (row,) = found.rows
    assert (row.trial, row.reason) == (WHOLE, RUN_FAILED)
    assert row.text.startswith("its history could not be judged: ZeroDivisionError (testbed_runtime/")


def test_a_long_message_is_its_first_line():
    """Arrow's errors have a line for each column."""
    assert described(KeyError("a")) == "its history could not be judged: KeyError: 'a'"
    assert described(ValueError("no match\na: int64\nb: int64")).endswith("ValueError: no match")
    assert described(ValueError("x" * 1000)).endswith(" " + "x" * TEXT_MAX)


@pytest.mark.virtual
def test_a_simulated_trial_that_cannot_be_judged_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The simulator and studies call the same checkers."""
    break_checker(monkeypatch, simulation, "trial_metrics", "main-1")
    result, _ = run_document(loading.load(SCENARIO).document, tmp_path)
    assert (
        "main-1 could not be completed: its history could not be judged: KeyError" in result.verdict.summary
    )
