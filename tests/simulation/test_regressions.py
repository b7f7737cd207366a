"""Bugs that a simulated run once found: a row each, with one line why. A seed of the swarm that fails becomes a row here."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed_runtime.cli import loading
from tests.simulation.simulating import run_document
from tests.simulation.swarming import scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"

ROWS: list[tuple[str | int, list[str], str]] = [
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
    (
        "04-late-producer",
        ["old-small"],
        "A registration that was held back until the job had failed did not count as late.",
    ),
]
"""(a scenario of this repository, or a seed of the swarm; its variants; why it is here)."""


@pytest.mark.virtual
@pytest.mark.parametrize(("found", "variants", "why"), ROWS, ids=[str(row[0]) for row in ROWS])
def test_a_run_that_once_went_wrong_passes(
    found: str | int, variants: list[str], why: str, tmp_path: Path
) -> None:
    """See `why`."""
    document = scenario(found) if isinstance(found, int) else loading.load(SCENARIOS / found).document
    result, complaints = run_document(document, tmp_path, variants=variants)
    assert (result.verdict["verdict"], complaints) == ("Pass", []), why
