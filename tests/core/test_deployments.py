"""The attempts that a TaskManager should hold, compared with those that it reports."""

import pytest

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.deployments import Comparison, Deployments, Missing

TM, OTHER = TaskManagerID(0, 1), TaskManagerID(1, 1)


def expecting(*attempts: str, at: float = 1.0) -> Deployments:
    found = Deployments()
    for attempt in attempts:
        found.begin(attempt, TM)
        found.acknowledge(attempt, TM, at)
    return found


@pytest.mark.parametrize(
    ("expected", "reported", "missing", "unknown"),
    [
        pytest.param(["a"], ["a"], (), (), id="matching"),
        pytest.param(["a"], [], ("a",), (), id="missing"),
        pytest.param([], ["a"], (), ("a",), id="unknown"),
        pytest.param(["a", "b"], ["b", "c"], ("a",), ("c",), id="missing and unknown"),
    ],
)
def test_J_22_to_J_25_a_report_shows_what_is_missing_and_what_is_unknown(
    expected, reported, missing, unknown
):
    """Flink's cases, with one TaskManager."""
    assert expecting(*expected).compare(TM, reported, 2.0) == Comparison(
        tuple(Missing(attempt, 1.0) for attempt in missing), unknown
    )


def test_J_144_an_attempt_that_was_never_submitted_changes_nothing():
    """DefaultExecutionDeploymentTrackerTest.testCompleteDeploymentUnknownExecutionDoesNotThrowException,
    testStopTrackingUnknownExecutionDoesNotThrowException and testGetExecutionsReturnsEmptySetForUnknownHost."""
    deployments = expecting("a")
    deployments.acknowledge("b", TM, 1.0)
    deployments.end("b", TM)
    deployments.end("a", OTHER)
    assert deployments.compare(TM, [], 2.0) == Comparison((Missing("a", 1.0),), ())
    assert deployments.compare(OTHER, [], 2.0) == Comparison((), ())


def test_J_26_a_submission_that_is_not_acknowledged_is_neither_missing_nor_unknown():
    """It may not have arrived yet, or its acknowledgement may not."""
    deployments = Deployments()
    deployments.begin("a", TM)
    assert deployments.compare(TM, [], 2.0) == Comparison((), ())
    assert deployments.compare(TM, ["a"], 2.0) == Comparison((), ())


def test_a_report_that_was_requested_before_the_acknowledgement_does_not_show_that_a_task_is_gone():
    """Messages may overtake each other."""
    deployments = expecting("a", at=2.0)
    assert deployments.compare(TM, [], 1.9).missing == ()
    assert deployments.compare(TM, [], 2.1).missing == (Missing("a", 2.0),)


def test_a_missing_attempt_was_last_there_at_the_report_before():
    """An older report that arrives late does not change that."""
    deployments = expecting("a", at=1.0)
    deployments.compare(TM, ["a"], 5.0)
    deployments.compare(TM, ["a"], 4.0)
    assert deployments.compare(TM, [], 6.0).missing == (Missing("a", 5.0),)


def test_an_attempt_that_ended_is_not_missing_and_a_late_acknowledgement_does_not_bring_it_back():
    """Its TaskManager may report the end before it acknowledges the submission."""
    deployments = expecting("a")
    deployments.end("a", TM)
    deployments.acknowledge("a", TM, 2.0)
    assert deployments.compare(TM, [], 3.0) == Comparison((), ())


def test_each_taskmanager_has_its_own_attempts():
    """An attempt of another one is unknown."""
    assert expecting("a").compare(OTHER, ["a"], 2.0) == Comparison((), ("a",))
