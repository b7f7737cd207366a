"""`headgate simulate --seeds`: distributions over seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from testbed_runtime.cli import seeds
from testbed_runtime.cli.commands import build
from testbed_runtime.cli.loading import load, with_checkpoint
from testbed_runtime.cli.seeds import ALIKE, are_alike, lines
from testbed_runtime.cli.study_runs import Done, Task
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.distribution import distributions
from testbed_runtime.core.judgement.verdict import RunVerdict, Verdict
from tests.metricrows import metric_row

SCENARIO = Path(__file__).parents[2] / "scenarios" / "02-taskmanager-killed"


def row(value, *, metric="recovery.total", variant="main", reason=""):
    return variant, metric_row(metric, value, reason=reason)


def test_a_distribution_is_median_and_middle_90_percent_per_variant():
    """Other metrics do not count; a trial without a value is counted as missing."""
    rows = [row(float(n)) for n in range(101)]
    rows += [row(None), row(1.0, metric="delivery.lost"), row(4.0, variant="other")]
    first, second = distributions(rows)
    assert (first.variant, first.count, first.missing) == ("main", 101, 1)
    assert (first.low, first.median, first.high) == (5.0, 50.0, 95.0)
    assert (second.variant, second.median, second.missing) == ("other", 4.0, 0)


def test_a_line_says_how_many_trials_have_no_value():
    """A variant that never recovered shows no number."""
    found = distributions([row(2.0), row(None), row(None, variant="never")])
    assert list(lines(found)) == [
        "  main: recovery.total: median 2.00 s, p5 2.00 s, p95 2.00 s (1 of 2 without a value)",
        "  never: recovery.total: no value (1 of 1 without a value)",
    ]


def test_a_line_says_how_many_trials_had_not_recovered():
    """Their values are what was observed until the end, so the percentiles may be larger."""
    found = distributions([row(2.0, reason="NotRecovered"), row(2.0), row(None, reason="NoFault")])
    assert list(lines(found)) == [
        "  main: recovery.total: median 2.00 s, p5 2.00 s, p95 2.00 s (1 of 3 without a value) "
        "(1 of 2 had not recovered: at least these values)",
    ]


@pytest.mark.parametrize(
    ("values", "alike"), [((2.0, 2.0001), True), ((2.0, 3.0), False), ((2.0,), False), ((None, None), False)]
)
def test_seeds_whose_recoveries_are_equally_long_are_alike(values, alike):
    """As far as the printed digits show it. Other metrics may differ."""
    rows = [row(value) for value in values]
    assert are_alike(distributions([*rows, row(1.0, metric="failovers.count")])) is alike


@pytest.mark.parametrize(("jitter", "said"), [({}, True), ({"jitter": "1 s"}, False)])
def test_a_distribution_of_one_value_says_how_to_get_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jitter: dict[str, str], said: bool
):
    """Only if no fault has a jitter. Before the first seed, a line says how many there are."""
    document = yaml.safe_load((SCENARIO / "scenario.yaml").read_text())
    for variant in document["spec"]["variants"]:
        variant["faults"][0] |= jitter
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(document))
    found = [seeds._SeedResult(Verdict.PASS, [row(2.0)], [], {})] * 2
    monkeypatch.setattr(seeds, "_runs", lambda *_, **__: found)
    arguments = ["simulate", str(tmp_path), "--seeds", "2", "--out", str(tmp_path / "runs")]
    done = CliRunner().invoke(build(), arguments, catch_exceptions=False)
    assert (ALIKE in done.stdout) is said, done.stdout
    assert done.stderr.startswith("2 seeds in virtual time, up to 2 at a time")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--variant", "nosuch"], "variant 'nosuch' does not exist"),
        (["--seed", "9223372036854775806"], "^--seed: must be at most 9223372036854775807"),
        (["--seed", "-1"], "^--seed: must be at least 0, got -1"),
    ],
)
def test_what_no_seed_can_simulate_is_refused_before_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], words: str
):
    """Once, and nothing is written."""
    monkeypatch.setattr(seeds, "simulate_all", None)
    arguments = ["simulate", str(SCENARIO), "--seeds", "3", "--out", str(tmp_path), *more]
    with pytest.raises(HeadgateError, match=words):
        CliRunner().invoke(build(), arguments, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_every_seed_starts_from_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Their documents differ only in the seed, and each run has a folder of its own."""
    given: list[Task] = []
    monkeypatch.setattr(seeds, "kept_checkpoints", lambda plan: None)
    monkeypatch.setattr(seeds, "simulate_all", lambda tasks, **_: given.extend(tasks) or [])
    loaded = with_checkpoint(load(SCENARIO), tmp_path / "files")
    seeds.simulate_seeds(loaded, seeds=2, out=tmp_path, variants=["upstream"])
    specs = [task.document["spec"] for task in given]
    assert [spec["seed"] for spec in specs] == [7, 8]
    assert all(spec | {"seed": 7} == loaded.document["spec"] for spec in specs)
    assert {(task.variants, task.folder.parent.name) for task in given} == {
        (("upstream",), "seed-7"),
        (("upstream",), "seed-8"),
    }


def test_a_seed_that_cannot_be_simulated_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With its reason: a distribution without it would be another one."""
    task = Task(7, {}, tmp_path, (), tmp_path / "run", keep_history=True)

    def simulate_all(tasks: list[Task], *, jobs: int, on_done: Any) -> list[Done]:
        on_done(Done(7, RunVerdict(verdict=Verdict.ERROR, summary="out of memory"), {}))
        return []

    monkeypatch.setattr(seeds, "simulate_all", simulate_all)
    with pytest.raises(HeadgateError, match=r"^the simulation with seed 7 failed: out of memory"):
        list(seeds._runs([task], quiet=True))


@pytest.mark.virtual
def test_seeds_are_simulated_side_by_side_and_summarised(tmp_path):
    """Each seed has its own run; the verdicts are counted and the distribution is stored."""
    arguments = ["simulate", str(SCENARIO), "--variant", "upstream", "--seeds", "3", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "testbed_runtime.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "taskmanager-killed, 3 seeds: 3 Pass" in done.stdout
    folder = tmp_path / "taskmanager-killed-seeds-7-9"
    document = json.loads((folder / "distribution.json").read_text())
    assert document["verdicts"] == {"Pass": 3}
    assert sorted(p.name for p in folder.glob("seed-*")) == ["seed-7", "seed-8", "seed-9"]
    total = next(d for d in document["distributions"] if d["metric"] == "recovery.total")
    assert total["count"] == 3
    assert 0 < total["low"] <= total["median"] <= total["high"]
    assert [line.split(":")[0] for line in document["answer"]] == [f"seed-{n}/upstream-1" for n in (7, 8, 9)]
    assert all(f"  {line}\n" in done.stdout for line in document["answer"])
