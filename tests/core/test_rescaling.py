"""Which old subtasks and channels a subtask restores, against the values of Flink's own tests."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.keygroups import group_range
from testbed_runtime.core.job.rescaling import GateRescaling, SubtaskStateMapper, can_rescale

RANGE, ROUND_ROBIN = SubtaskStateMapper.RANGE, SubtaskStateMapper.ROUND_ROBIN


@pytest.mark.parametrize(
    ("mapper", "before", "after", "expected"),
    [
        (RANGE, 3, 2, [[0, 1], [1, 2]]),
        (RANGE, 10, 2, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]),
        (RANGE, 10, 1, [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]),
        (RANGE, 3, 3, [[0], [1], [2]]),
        (RANGE, 3, 4, [[0], [0, 1], [1, 2], [2]]),
        (RANGE, 3, 7, [[0], [0], [0, 1], [1], [1, 2], [2], [2]]),
        (ROUND_ROBIN, 10, 4, [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]),
        (ROUND_ROBIN, 5, 4, [[0, 4], [1], [2], [3]]),
        (ROUND_ROBIN, 5, 2, [[0, 2, 4], [1, 3]]),
        (ROUND_ROBIN, 5, 1, [[0, 1, 2, 3, 4]]),
        (ROUND_ROBIN, 10, 10, [[0], [1], [2], [3], [4], [5], [6], [7], [8], [9]]),
        (ROUND_ROBIN, 5, 5, [[0], [1], [2], [3], [4]]),
        (ROUND_ROBIN, 1, 1, [[0]]),
        (ROUND_ROBIN, 4, 10, [[0], [1], [2], [3], [], [], [], [], [], []]),
        (ROUND_ROBIN, 4, 5, [[0], [1], [2], [3], []]),
        (ROUND_ROBIN, 2, 5, [[0], [1], [], [], []]),
        (ROUND_ROBIN, 1, 5, [[0], [], [], [], []]),
        (ROUND_ROBIN, 3, 1, [[0, 1, 2]]),
        (ROUND_ROBIN, 3, 2, [[0, 2], [1]]),
        (ROUND_ROBIN, 3, 3, [[0], [1], [2]]),
        (ROUND_ROBIN, 3, 4, [[0], [1], [2], []]),
        (ROUND_ROBIN, 3, 5, [[0], [1], [2], [], []]),
    ],
)
def test_old_subtasks_are_those_of_flinks_mapper(
    mapper: SubtaskStateMapper, before: int, after: int, expected: list[list[int]]
):
    """I-41 (by range) and I-42 (round robin): the values of Flink's SubtaskStateMapperTest and MappingBasedRepartitionerTest."""
    assert [list(olds) for olds in mapper.mapping(before, after)] == expected


@pytest.mark.parametrize(
    ("subtask", "before", "after", "subtasks", "channels", "ambiguous"),
    [
        (0, 3, 2, [0, 1], [[0, 2], [1]], {1}),
        (1, 3, 2, [1, 2], [[0, 2], [1]], {1}),
        (0, 2, 3, [0], [[0], [1], []], {0, 1}),
        (1, 2, 3, [0, 1], [[0], [1], []], {0, 1}),
        (2, 2, 3, [1], [[0], [1], []], {0, 1}),
    ],
)
def test_a_gate_restores_the_channels_of_flinks_rescaling_descriptor(
    subtask: int, before: int, after: int, subtasks: list[int], channels: list[list[int]], ambiguous: set[int]
):
    """I-66 and I-67: the values of Flink's StateAssignmentOperationTest, where both ends of a keyed exchange are rescaled."""
    made = GateRescaling.of("hash", subtask, consumers=(before, after), producers=(before, after))
    assert (list(made.subtasks), [list(olds) for olds in made.channels]) == (subtasks, channels)
    assert made.ambiguous == ambiguous


def test_I_93_each_gate_has_the_rescaling_of_its_own_connection():
    """Both ends go from 3 to 2: a keyed gate reads the old subtasks 0 and 1 and filters 1, a rebalanced one reads 0 and 2 whole."""
    keyed, rebalanced = (
        GateRescaling.of(partitioning, 0, consumers=(3, 2), producers=(3, 2))
        for partitioning in ("hash", "rebalance")
    )
    assert (list(keyed.subtasks), keyed.ambiguous) == ([0, 1], {1})
    assert (list(rebalanced.subtasks), rebalanced.ambiguous) == ([0, 2], set())
    for made in (keyed, rebalanced):
        assert [list(olds) for olds in made.channels] == [[0, 2], [1]]


@pytest.mark.parametrize("partitioning", ["hash", "rebalance"])
@pytest.mark.parametrize("parallelism", [2, 100])
def test_I_94_at_the_same_parallelism_each_subtask_restores_what_was_its_own(
    partitioning: str, parallelism: int
):
    """No record is filtered."""
    for subtask in range(parallelism):
        same = (parallelism, parallelism)
        made = GateRescaling.of(partitioning, subtask, consumers=same, producers=same)
        assert (list(made.subtasks), made.ambiguous) == ([subtask], set())
        assert [list(olds) for olds in made.channels] == [[number] for number in range(parallelism)]


@pytest.mark.parametrize("limit", [90, 100, 128, 500])
def test_a_subtask_reads_every_old_subtask_that_had_its_key_groups(limit: int):
    """Flink calculates with its largest max parallelism; with the real one no key group may be missing."""
    for before in range(1, 25):
        for after in range(1, 25):
            for new, olds in enumerate(RANGE.mapping(before, after)):
                owners = {group * before // limit for group in group_range(new, after, limit)}
                assert owners <= set(olds)


@pytest.mark.parametrize("partitioning", ["forward", "broadcast"])
def test_pointwise_and_broadcast_connections_are_not_rescaled(partitioning: str):
    """With Flink's text."""
    assert not can_rescale(partitioning)
    with pytest.raises(FlinkError, match="Cannot rescale the given pointwise partitioner"):
        GateRescaling.of(partitioning, 0, consumers=(1, 2), producers=(1, 2))
