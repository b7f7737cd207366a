"""Drawn scenarios: nothing is lost, doubled or overtaken, no credit is invented, and after the faults the job goes on and drains."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from testbed_runtime.taskmanager.source import SourceTask
from tests.simulation.simulating import run_one
from tests.simulation.swarming import run_seed, violations, with_leadership

QUICK = range(1, 7)
MORE = range(7, 17)
SOAK_FIRST = int(os.environ.get("HEADGATE_SWARM_FIRST", "17"))
SOAK = range(SOAK_FIRST, SOAK_FIRST + int(os.environ.get("HEADGATE_SWARM_SEEDS", "2000")))
KILLING = 17
"""A seed that kills a TaskManager under an exactly-once sink."""


def drawn(seed: int, folder: Path) -> list[str]:
    """Return what the run of a seed violated."""
    sys.stdout.write(f"swarm seed {seed}\n")  # first: a run that hangs can be replayed too
    sys.stdout.flush()
    return violations(run_seed(seed, folder))


@pytest.mark.parametrize("seed", QUICK)
def test_what_was_drawn_violates_nothing(seed: int, tmp_path: Path) -> None:
    """Safety while the faults last, liveness after them."""
    assert drawn(seed, tmp_path) == []


@pytest.mark.virtual
@pytest.mark.parametrize("seed", MORE)
def test_more_draws_violate_nothing(seed: int, tmp_path: Path) -> None:
    """The same, for some minutes."""
    assert drawn(seed, tmp_path) == []


@pytest.mark.virtual
@pytest.mark.parametrize("seed", range(1, 7))
def test_a_jobmanager_that_may_lose_its_leadership_violates_nothing(seed: int, tmp_path: Path) -> None:
    """The same, with leader election and one more fault: the JobManager pauses, dies, or cannot renew its lease."""
    assert violations(run_one(with_leadership(seed), tmp_path)) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK)
def test_thousands_of_draws_violate_nothing(seed: int, tmp_path: Path) -> None:
    """The same, for hours."""
    assert drawn(seed, tmp_path) == []


@pytest.mark.virtual
@pytest.mark.parametrize(("step", "said"), [(1, "delivery.lost"), (-1, "delivery.duplicated")])
def test_a_restore_that_is_off_by_one_is_seen(
    step: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swarm can fail: a source that goes on one record too late or too early is reported."""
    restore = SourceTask.restore

    async def wrong(self: SourceTask, snapshots: list[object]) -> None:
        await restore(self, snapshots)
        self.source.next_sequence += step

    monkeypatch.setattr(SourceTask, "restore", wrong)
    assert [text.split(" is ")[0] for text in violations(run_seed(KILLING, tmp_path))] == [said]
