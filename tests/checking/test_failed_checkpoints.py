"""A checkpoint that the store cannot complete fails the job: whose seconds those before the failure are."""

from __future__ import annotations

import pytest

from testbed_runtime.checking.criticalpath import attribute
from testbed_runtime.checking.lasting import lasting_wait
from testbed_runtime.core.waits import Outcome
from tests.checking.test_lasting import part
from tests.checking.test_recovery_path import SECOND, wait


@pytest.mark.parametrize(
    ("stored", "what", "expected"),
    [
        (Outcome.FAILED, "checkpoint 4", [("checkpoint", 1.0), ("completion", 3.0)]),
        (Outcome.FAILED, "checkpoint 3", [("checkpoint", 4.0)]),  # another one
        (Outcome.CANCELLED, "checkpoint 4", [("checkpoint", 4.0)]),
    ],
)
def test_the_store_that_could_not_complete_a_checkpoint_owns_the_time_since_its_acknowledgements(
    stored: Outcome, what: str, expected: list[tuple[str, float]]
):
    """It is a part of the checkpoint. All of it counts as detection, because it shows a failure."""
    last = wait("checkpoint", 0, 4, Outcome.FAILED, what="checkpoint 4")
    waits = [last, wait("completion", 1, 4, stored, what=what)]
    found = attribute(waits, (), start=0, end=4 * SECOND, last=last, detected=0)
    assert [(s.kind, s.seconds) for s in found] == expected
    assert {s.phase for s in found} == {"detect"}


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.COMPLETED])
def test_a_checkpoint_that_fails_during_a_restart_does_not_explain_the_failure_before(outcome: Outcome):
    """It was being stored when a task failed. A restart waits for one that completes."""
    stored = wait("completion", 1, 5, outcome, who="w", what="checkpoint 4")
    phase = "detect" if outcome is Outcome.FAILED else "restore"
    first = part(3, 5, "completion", "checkpoint 4", outcome=str(outcome), phase=phase)
    assert lasting_wait([stored], [first]) == (None if outcome is Outcome.FAILED else stored)


@pytest.mark.parametrize("edge", [1, 2])
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.COMPLETED])
def test_a_restart_waits_for_the_store_whether_it_completes_the_checkpoint_or_not(
    outcome: Outcome, edge: int
):
    """The job tolerates the failed checkpoint. The store delays the restart, and shows no failure. Another step may end meanwhile."""
    closed = wait("connection", 0, 1)
    stored = wait("completion", 0.5, 3, outcome, what="checkpoint 4")
    last = wait("deployment", 3, 4)
    steps = wait("restore", 0, edge, wait=""), wait("slot", 1, 3, wait="")
    found = attribute(
        [closed, stored, last], steps, start=0, end=4 * SECOND, last=last, detected=SECOND, known=True
    )
    assert [(s.kind, s.seconds) for s in found] == [("connection", 1), ("completion", 2), ("deployment", 1)]
    assert found[1].phase == "restore"
