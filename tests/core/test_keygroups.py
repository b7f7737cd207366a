"""Key groups as in Flink."""

import pytest

from testbed_runtime.core.job.keygroups import (
    compute_default_max_parallelism,
    group_range,
)


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (200, 512), (400, 1024), (30000, 32768), (32768, 32768)],
)
def test_the_default_max_parallelism_is_a_power_of_two_within_its_bounds(parallelism, expected):
    """128 ≤ roundUpToPowerOfTwo(parallelism × 1.5) ≤ 32768."""
    assert compute_default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 128])
def test_every_group_belongs_to_the_subtask_whose_range_holds_it(parallelism):
    """Ranges and owners agree, and cover all groups once."""
    seen = []
    for subtask in range(parallelism):
        groups = group_range(subtask, parallelism, 128)
        assert all(group * parallelism // 128 == subtask for group in groups)  # as Flink calculates it
        seen.extend(groups)
    assert seen == list(range(128))


def test_more_subtasks_than_groups_are_refused():
    """max parallelism bounds the parallelism."""
    with pytest.raises(ValueError, match="Maximum parallelism"):
        group_range(0, 129, 128)


@pytest.mark.parametrize("parallelism", [0, -1, 32769])
def test_a_parallelism_out_of_bounds_is_refused(parallelism):
    """KeyGroupRangeAssignment.checkParallelismPreconditions, for the parallelism and for its maximum."""
    for call in (
        lambda: compute_default_max_parallelism(parallelism),
        lambda: group_range(0, parallelism, 128),
        lambda: group_range(0, 1, parallelism),
    ):
        with pytest.raises(ValueError, match=f"Operator parallelism not within bounds: {parallelism}"):
            call()


@pytest.mark.parametrize(
    ("max_parallelism", "parallelism"), [(1, 1), (13, 1), (13, 2), (32767, 1), (32767, 13), (32767, 32767)]
)
def test_J_55_each_key_group_is_in_the_range_of_the_subtask_that_owns_it(max_parallelism, parallelism):
    """testCreateKeyGroupPartitions: KeyGroupRangeAssignment.computeOperatorIndexForKeyGroup is the other direction."""
    ranges = [group_range(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
    owners = [group * parallelism // max_parallelism for group in range(max_parallelism)]
    assert all(group in ranges[owner] for group, owner in enumerate(owners))
