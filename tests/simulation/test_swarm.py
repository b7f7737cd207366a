"""Drawn scenarios: nothing is lost, doubled or overtaken, no credit is invented, and after the faults the job goes on and drains."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.simulation.swarming import run_seed, violations

QUICK_SEEDS = 10
SOAK_SEEDS = int(os.environ.get("HEADGATE_SWARM_SEEDS", "2000"))
SOAK_FIRST = int(os.environ.get("HEADGATE_SWARM_FIRST", "1000"))


@pytest.mark.parametrize("seed", range(1, QUICK_SEEDS + 1))
def test_what_was_drawn_violates_nothing(seed: int, tmp_path: Path) -> None:
    """Safety while the faults last, liveness after them."""
    assert violations(run_seed(seed, tmp_path)) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SOAK_FIRST, SOAK_FIRST + SOAK_SEEDS))
def test_thousands_of_draws_violate_nothing(seed: int, tmp_path: Path) -> None:
    """The same; the seed is printed first, so that a run that hangs can be replayed too."""
    sys.stdout.write(f"swarm seed {seed}\n")
    sys.stdout.flush()
    assert violations(run_seed(seed, tmp_path)) == []
