"""Rules of a job graph, each with the fix."""

from __future__ import annotations

import pytest

from tests.api.test_validate import errors


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("partitioning", ["hash", "rebalance", "forward", "broadcast"])
def test_the_subtasks_of_a_window_get_only_their_own_keys(partitioning: str, parallelism: int):
    """A restore drops the panes of all others. A single subtask has every key."""

    def change(spec):
        job = spec["testbed"]["job"]
        for vertex in job["vertices"]:
            vertex["parallelism"] = parallelism
        job["vertices"][1]["operator"] = "window"
        job["edges"][0]["partitioning"] = partitioning

    needs = "needs hash directly before it, as Flink's needs keyBy"
    problem = f"is {partitioning}, but the window 'count' has parallelism 2 and {needs}"
    refused = partitioning != "hash" and parallelism > 1
    hint = "(write hash, or parallelism: 1 for the window)"
    assert errors(change) == [f"spec.testbed.job.edges[0].partitioning: {problem} {hint}"] * refused
