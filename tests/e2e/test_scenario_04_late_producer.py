"""`scenarios/04-late-producer` on this machine."""

from __future__ import annotations

from tests.e2e.shipped import MARKS, Finished, shortcomings

pytestmark = MARKS


def test_the_scenario_passes_and_writes_all_its_files(finished: Finished):
    """Pass, with exit code 0."""
    assert shortcomings(finished) == []


def test_the_job_waits_for_a_late_producer_within_its_budget_and_fails_beyond_it(finished: Finished):
    """PartitionNotFoundException with the small budget, RUNNING with the large one, in both generations."""
    assert set(finished.trials) in (
        {"old-small-1"},
        {"old-small-1", "old-large-1", "new-small-1", "new-large-1"},
    )
    for trial in finished.trials:
        if trial.endswith("small-1"):
            assert finished.text(trial, "job.failure") == "PartitionNotFoundException"
        else:
            assert finished.text(trial, "job.state") == "RUNNING"
