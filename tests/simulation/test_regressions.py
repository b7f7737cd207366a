"""What a simulated run once found: a row each, with one line why. A seed that fails becomes a row here."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed_runtime.cli import loading
from tests.simulation.simulating import run_document
from tests.simulation.swarming import run_seed, violations

SCENARIOS = Path(__file__).parents[2] / "scenarios"

SEEDS = [
    (24, "Every restart fails at once while connections are reset: it goes on when they are not."),
]
"""Of the swarm."""

RUNS = [
    (
        "05-slow-ask",
        ["staged-small"],
        "An attempt that was cancelled before its first step stayed CANCELING, and the job FAILING.",
    ),
    (
        "02-taskmanager-killed",
        ["downstream", "upstream"],
        "The dead of the first trial took the process of the same name in the second one along.",
    ),
    (
        "03-taskmanager-paused",
        ["long-timeout"],
        "A stopped process went on to take what its peers sent, and the run did not end after its resume.",
    ),
]


@pytest.mark.scenario
@pytest.mark.parametrize(("name", "variants", "why"), RUNS, ids=[row[0] for row in RUNS])
def test_a_run_that_once_went_wrong_passes(name: str, variants: list[str], why: str, tmp_path: Path) -> None:
    """See `why`."""
    document = loading.load(SCENARIOS / name).document
    result, complaints = run_document(document, tmp_path, variants=variants)
    assert (result.verdict["verdict"], complaints) == ("Pass", []), why


@pytest.mark.parametrize(("seed", "why"), SEEDS, ids=[str(row[0]) for row in SEEDS])
def test_a_seed_that_once_went_wrong_holds(seed: int, why: str, tmp_path: Path) -> None:
    """See `why`."""
    assert violations(run_seed(seed, tmp_path)) == [], why
