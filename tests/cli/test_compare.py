"""`headgate compare` and `headgate trend` on run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed_runtime.cli.main import build
from testbed_runtime.core.errors import UserError

CONFIGURATION = {"slow": {"heartbeat.interval": "1 s"}, "fast": {"heartbeat.interval": "500 ms"}}
SLOW, FAST = 2.0, 1.0


def run_folder(
    parent: Path, name: str, *, started: str = "2026-01-01", seed: int = 1, **means: float
) -> Path:
    """Create the folder of a run with 10 trials of each variant, whose detections vary a little around the variant's mean."""
    folder = parent / name
    folder.mkdir()
    trials, rows = [], []
    for number in range(1, 11):
        for variant, mean in means.items():
            trial = f"{variant}-{number}"
            trials.append(
                {"trial": trial, "variant": variant, "role": "fault", "number": number, "seed": seed + number,
                 "configuration": CONFIGURATION.get(variant, {}), "flinkVersion": "2.x", "job": {}, "faults": [], "phases": []}
            )  # fmt: skip
            rows.append(
                {"run": name, "trial": trial, "metric": "recovery.detect", "phase": "", "quantile": None, "text": "",
                 "value": mean + 0.02 * (number * (3 + seed) % 7), "bounded_by": "", "reason": ""}
            )  # fmt: skip
    expectations = {variant: [] for variant in means}
    manifest = {
        "schema": 2, "run": name, "started": started, "place": "simulation", "expectations": expectations, "trials": trials
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "metrics.json").write_text(json.dumps(rows))
    return folder


def headgate(*arguments: object) -> str:
    done = CliRunner().invoke(build(), [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_variants_of_a_run_are_compared_with_its_first_one(tmp_path: Path):
    """A table with means and intervals, then the answer in words."""
    shown = headgate("compare", run_folder(tmp_path, "a", slow=SLOW, fast=FAST))
    assert "slow (10 trials)" in shown
    assert "fast against slow: recovery.detect: better by 1.00 s" in shown


def test_runs_are_compared_variant_by_variant_and_their_settings_are_listed(tmp_path: Path):
    """The same variants in two runs with other seeds: indistinguishable; a changed setting is printed first."""
    first = run_folder(tmp_path, "a", slow=SLOW, fast=FAST)
    second = run_folder(tmp_path, "b", seed=40, slow=SLOW, fast=FAST)
    data = json.loads(headgate("compare", first, second, "--json"))
    assert data["changes"] == []
    assert [(c["variant"], c["contrasts"][0]["answer"]) for c in data["comparisons"]] == [
        ("slow", "indistinguishable"), ("fast", "indistinguishable"),
    ]  # fmt: skip
    assert not data["comparisons"][0]["contrasts"][0]["paired"]
    (tmp_path / "x").mkdir()
    one = run_folder(tmp_path, "c", slow=SLOW)
    other = run_folder(tmp_path / "x", "c", fast=FAST)
    shown = headgate("compare", one, other)
    assert "fast: heartbeat.interval: not set → 500 ms" in shown
    assert "better by 1.00 s" in shown


def test_a_trend_is_ordered_by_time_and_compares_each_run_with_the_one_before(tmp_path: Path):
    """The run that became slower is named, whatever the order of the arguments."""
    runs = [
        run_folder(tmp_path, name, started=f"2026-01-0{day}", seed=day, main=mean)
        for day, name, mean in ((1, "mon", FAST), (2, "tue", FAST), (3, "wed", SLOW))
    ]
    shown = headgate("trend", runs[2], runs[0], runs[1])
    assert "answer: tue and mon are indistinguishable in recovery.detect" in shown
    assert "answer: wed against tue: recovery.detect: worse by 1.0" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "one"], "nothing to compare it with"),
        (["compare", "one", "--variant", "nosuch"], "has no variant nosuch"),
        (["compare", "one", "one/../two", "--metric", "job.state"], "cannot be compared"),
        (["compare", "one", "two", "--metric", "latency"], "write it as in 'latency p99'"),
        (["compare", "one", "two", "--matters", "500 ms"], "is not a valid bound"),
        (["trend", "one"], "needs at least two runs"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
):
    """The error names the argument and what to write."""
    run_folder(tmp_path, "one", main=FAST)
    run_folder(tmp_path, "two", main=FAST)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        CliRunner().invoke(build(), arguments, catch_exceptions=False)
