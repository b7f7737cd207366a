"""`headgate simulate --seeds`: distributions over seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from testbed_runtime.cli import seeds
from testbed_runtime.cli.commands import build
from testbed_runtime.cli.loading import load
from testbed_runtime.cli.seeds import ALIKE, are_alike, lines
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.distribution import distributions

SCENARIO = Path(__file__).parents[2] / "scenarios" / "02-taskmanager-killed"


def row(value, *, metric="recovery.total", variant="main", role="fault"):
    return {"metric": metric, "variant": variant, "role": role, "phase": "", "value": value}


def test_a_distribution_is_median_and_middle_90_percent_per_variant():
    """Control trials and other metrics do not count; a trial without a value is counted as missing."""
    rows = [row(float(n)) for n in range(101)]
    rows += [row(None), row(9e9, role="control"), row(1.0, metric="delivery.lost"), row(4.0, variant="other")]
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
    found = distributions(
        [{**row(2.0), "reason": "NotRecovered"}, row(2.0), {**row(None), "reason": "NoFault"}]
    )
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
    found = [seeds._Found(seed, "Pass", [row(2.0)], [], {}) for seed in (7, 8)]
    monkeypatch.setattr(seeds, "_runs", lambda *_: found)
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
    monkeypatch.setattr(seeds, "_start", None)
    arguments = ["simulate", str(SCENARIO), "--seeds", "3", "--out", str(tmp_path), *more]
    with pytest.raises(HeadgateError, match=words):
        CliRunner().invoke(build(), arguments, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_every_seed_starts_from_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The processes of the seeds get the option, as they get the variants."""
    started: list[list[str]] = []

    def start(path: Path, seed: int, out: Path, words: list[str]) -> None:
        started.append(words)
        raise HeadgateError("started")

    monkeypatch.setattr(seeds, "_start", start)
    loaded = load(SCENARIO)
    with pytest.raises(HeadgateError, match="started"):
        seeds.simulate_seeds(
            loaded, seeds=2, out=tmp_path, variants=["upstream"], checkpoint=tmp_path / "files"
        )
    assert started == [["--variant", "upstream", "--from-checkpoint", str(tmp_path / "files")]]


@pytest.mark.virtual
def test_seeds_are_simulated_side_by_side_and_summarised(tmp_path):
    """Each seed has its own run; the verdicts are counted and the distribution is stored."""
    arguments = ["simulate", str(SCENARIO), "--variant", "upstream", "--seeds", "3", "--out", str(tmp_path)]
    result = CliRunner().invoke(build(), arguments)
    assert result.exit_code == 0, result.output
    assert "taskmanager-killed, 3 seeds: 3 Pass" in result.output
    folder = tmp_path / "taskmanager-killed-seeds-7-9"
    document = json.loads((folder / "distribution.json").read_text())
    assert document["verdicts"] == {"Pass": 3}
    assert sorted(p.name for p in folder.glob("seed-*")) == ["seed-7", "seed-8", "seed-9"]
    total = next(d for d in document["distributions"] if d["metric"] == "recovery.total")
    assert total["count"] == 3
    assert 0 < total["low"] <= total["median"] <= total["high"]
    assert [line.split(":")[0] for line in document["answer"]] == [f"seed-{n}/upstream-1" for n in (7, 8, 9)]
    assert all(f"  {line}\n" in result.output for line in document["answer"])
