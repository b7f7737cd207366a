"""Key groups as in Flink."""

import pytest

from testbed_runtime.core.job.keygroups import (
    compute_default_max_parallelism,
    group_range,
    key_group,
    murmur_hash,
)


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (200, 512), (400, 1024), (30000, 32768), (32768, 32768)],
)
def test_the_default_max_parallelism_is_a_power_of_two_within_its_bounds(parallelism, expected):
    """128 ≤ roundUpToPowerOfTwo(parallelism × 1.5) ≤ 32768."""
    assert compute_default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize("code", [0, 1, -1, 42, 2**31 - 1, -(2**31)])
def test_the_murmur_hash_is_never_negative(code):
    """It indexes groups."""
    assert 0 <= murmur_hash(code) < 2**31


@pytest.mark.parametrize(
    ("code", "expected"), [(0, 0x2362F9DE), (-1, 0x76293B50), (-0x789ABCDF, 2**32 - 0xF55B516B)]
)
def test_the_murmur_hash_is_that_of_four_bytes(code, expected):
    """The known values of MurmurHash3 with seed 0 for 00000000, FFFFFFFF and 21436587; Flink takes the absolute value."""
    assert murmur_hash(code) == expected


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 128])
def test_every_group_belongs_to_the_subtask_whose_range_holds_it(parallelism):
    """Ranges and owners agree, and cover all groups once."""
    seen = []
    for subtask in range(parallelism):
        groups = group_range(subtask, parallelism, 128)
        assert all(group * parallelism // 128 == subtask for group in groups)  # as Flink calculates it
        seen.extend(groups)
    assert seen == list(range(128))


def test_keys_spread_over_the_groups():
    """10,000 keys leave no group of 128 empty."""
    assert {key_group(key, 128) for key in range(10_000)} == set(range(128))


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
