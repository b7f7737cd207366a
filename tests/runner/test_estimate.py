"""How long a run takes, said before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed_runtime.api.compile import compile_run
from testbed_runtime.cli import loading
from testbed_runtime.runner.estimate import run_seconds

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
TWO_CORES = {"cores": 2, "load_1min": 0.4}


def trials_of(name, **more):
    loaded = loading.load(SCENARIOS / name)
    return compile_run(loaded.scenario, scenario_folder=loaded.folder, **more).trials


def test_the_estimate_covers_starts_drains_control_and_evaluation():
    """A run of the demo took 79 s on two idle cores with phases of 32 s; they now take 8 s more."""
    trials = trials_of("02-taskmanager-killed", variants=["downstream"])
    assert sum(t.planned_s for t in trials) == 40.0
    assert run_seconds(trials, environment="local", machine=TWO_CORES) == pytest.approx(87, rel=0.08)


def test_a_busy_machine_takes_longer():
    """Three other programs on two cores: what computes takes more than twice as long."""
    trials = trials_of("02-taskmanager-killed", variants=["downstream"])
    busy = run_seconds(trials, environment="local", machine={"cores": 2, "load_1min": 3.0})
    assert 110 < busy < 160


def test_virtual_time_has_only_the_phases():
    """Nothing starts, and no Spark evaluates."""
    trials = trials_of("06-no-fault")
    planned = sum(t.planned_s for t in trials)
    assert run_seconds(trials, environment="simulation", machine=TWO_CORES) == planned
