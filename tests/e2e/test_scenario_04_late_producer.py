"""`scenarios/04-late-producer` on this machine."""

from __future__ import annotations

import pytest

from tests.e2e.shipped import MARKS, Finished, wanting

pytestmark = MARKS


def test_the_scenario_holds_and_leaves_everything_a_reader_wants(finished: Finished):
    """Pass, and all of its files."""
    assert wanting(finished) == []


@pytest.mark.parametrize("generation", ["old", "new"])
def test_a_late_producer_is_waited_for_within_the_budget_and_fails_the_job_beyond_it(
    generation: str, finished: Finished
):
    """PartitionNotFoundException under the small budget, RUNNING under the large one."""
    assert finished.text(f"{generation}-small-1", "job.failure") == "PartitionNotFoundException"
    assert finished.text(f"{generation}-large-1", "job.state") == "RUNNING"
