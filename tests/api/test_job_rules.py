"""Rules of a job graph, each with the fix."""

from __future__ import annotations

import pytest

from tests.api.test_validate import errors


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("partitioning", ["hash", "rebalance", "forward", "broadcast"])
@pytest.mark.parametrize("operator", ["window", "keyed-count"])
def test_the_subtasks_of_an_operator_with_keyed_state_get_only_their_own_keys(
    operator: str, partitioning: str, parallelism: int
):
    """A restore drops the state of all others. A single subtask has every key."""

    def change(spec):
        job = spec["testbed"]["job"]
        for vertex in job["vertices"]:
            vertex["parallelism"] = parallelism
        job["vertices"][1]["operator"] = operator
        job["edges"][0]["partitioning"] = partitioning

    needs = "needs hash directly before it, as keyed state in Flink needs keyBy"
    problem = f"is {partitioning}, but the {operator} 'count' has parallelism 2 and {needs}"
    refused = partitioning != "hash" and parallelism > 1
    hint = f"(write hash, or parallelism: 1 for the {operator})"
    assert errors(change) == [f"spec.testbed.job.edges[0].partitioning: {problem} {hint}"] * refused
