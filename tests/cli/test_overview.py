"""`headgate trend FOLDER`: the runs of a folder, from their catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed_runtime.cli import overview
from testbed_runtime.cli.commands import build
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.judgement.comparison import Key
from tests.cli.test_compare import FAST, SLOW, headgate, run_folder

DETECT = Key("recovery.detect")


def run(name: str, median: float, **more: Any) -> dict[str, Any]:
    row = {
        "scenario": "killed",
        "variant": "main",
        "metric": "recovery.detect",
        "phase": "",
        "quantile": None,
        "run": name,
    }
    ends = {
        "trials": 3,
        "bounded": 0,
        "median": median,
        "least": median - 0.1,
        "most": median + 0.1,
        "change": None,
    }
    return {**row, **ends, **more}


def price(option: str, **more: Any) -> dict[str, Any]:
    row = {
        "option": option,
        "cause": "" if option else "spare capacity",
        "value": "10 s",
        "seconds": 4.5,
        "most_s": 3.0,
    }
    return {**row, "share": 0.25, "recoveries": 2, "runs": 1, **more}


FOUND = {
    "metrics": [
        run("a", 2.0), run("b", 1.5, change=-0.5), run("c", 1.75, change=0.25, bounded=1), run("a", 9.0, variant="other"),
        run("a", 7.0, metric="recovery.total"),
    ],
    "prices": [price("heartbeat.timeout"), price("", value="", share=None)],
}  # fmt: skip


def test_runs_are_listed_with_their_change_and_options_with_their_seconds():
    """Only the metrics and variants that are asked for. A median of lower bounds says so."""
    data = overview.select(FOUND, [DETECT], ["main"])
    assert [row["run"] for row in data["metrics"]] == ["a", "b", "c"]
    assert [" ".join(line.split()) for line in overview.lines(data)] == [
        "killed (main): recovery.detect",
        "run trials median least most change",
        "a 3 2.00 s 1.90 s 2.10 s –",
        "b 3 1.50 s 1.40 s 1.60 s −500 ms",
        "c 3 at least 1.75 s 1.65 s at least 1.85 s +250 ms",
        "",
        "Seconds of all recoveries, by what they waited for:",
        "option or cause value seconds share longest recoveries runs",
        "heartbeat.timeout 10 s 4.50 s 25.0 % 3.00 s 2 1",
        "spare capacity 4.50 s – 3.00 s 2 1",
    ]


def test_runs_without_the_metric_are_named_as_such():
    """Instead of an empty page."""
    data = overview.select(FOUND, [Key("failovers.count")], [])
    assert next(overview.lines({**data, "prices": []})) == "No run has a value of these metrics."


def test_a_folder_of_runs_is_read_from_its_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run's own folder is no folder of runs."""
    folder = run_folder(tmp_path, "a", main=FAST)
    run_folder(tmp_path, "b", main=SLOW)
    assert [overview.is_folder_of_runs(path) for path in (tmp_path, folder, tmp_path / "no")] == [
        True,
        False,
        False,
    ]
    with pytest.raises(UserError, match=r"has no catalogue of evaluated runs .*headgate evaluate"):
        CliRunner().invoke(build(), ["trend", str(tmp_path)], catch_exceptions=False)
    monkeypatch.setattr(overview, "read", lambda folder: FOUND)
    assert "killed (other): recovery.detect" in headgate("trend", tmp_path, "--metric", "recovery.detect")
