"""`headgate simulate --seeds`: distributions over seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed_runtime.cli.main import build
from testbed_runtime.cli.seeds import lines
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
