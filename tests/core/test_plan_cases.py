"""Cases of Flink's DefaultCheckpointPlanCalculatorTest: at which tasks a checkpoint begins."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from testbed_runtime.core.job.executiongraph import ExecutionGraph, ExecutionState
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex

Vertices = list[tuple[int, Iterable[int]]]
"""The parallelism of each vertex, and which subtasks have finished."""
Edges = list[tuple[int, int, str]]
ALL, EACH = "hash", "forward"


def triggered(vertices: Vertices, edges: Edges) -> dict[int, set[int]]:
    """The subtasks at which a checkpoint begins, by vertex."""
    graph = JobGraph(
        "job",
        tuple(JobVertex(str(number), count, 128) for number, (count, _) in enumerate(vertices)),
        tuple(JobEdge(str(source), str(target), how) for source, target, how in edges),
        seed=7,
    )
    built = ExecutionGraph(graph, "job", epoch=1)
    for task in built.tasks:
        built.execution(task).state = ExecutionState.RUNNING
    for number, (_, finished) in enumerate(vertices):
        for index in finished:
            built.execution((str(number), index)).state = ExecutionState.FINISHED
    found: dict[int, set[int]] = {}
    for vertex, index in built.to_trigger():
        found.setdefault(int(vertex), set()).add(index)
    return found


@pytest.mark.parametrize(
    ("vertices", "edges", "expected"),
    [
        pytest.param([(3, range(2)), (4, ())], [(0, 1, ALL)], {0: {2}}, id="J-76"),
        pytest.param([(4, range(2)), (4, ())], [(0, 1, EACH)], {0: {2, 3}, 1: {0, 1}}, id="J-77"),
        pytest.param([(4, range(2)), (4, (0,))], [(0, 1, EACH)], {0: {2, 3}, 1: {1}}, id="J-78"),
        pytest.param(
            [(3, range(3)), (5, (0, 2, 3)), (5, (2, 4)), (5, (2,))],
            [(0, 3, ALL), (1, 3, EACH), (2, 3, EACH)],
            {1: {1, 4}, 2: {0, 1, 3}},
            id="J-79",
        ),
        pytest.param(
            [(16, range(4)), (16, range(16)), (16, range(2)), (16, ()), (16, ())],
            [(0, 2, EACH), (0, 3, EACH), (1, 2, ALL), (1, 3, EACH), (2, 4, EACH), (3, 4, ALL)],
            {0: set(range(4, 16)), 2: {2, 3}, 3: set(range(4))},
            id="J-80",
        ),
    ],
)
def test_J_76_to_J_80_a_checkpoint_begins_where_no_producer_is_left(
    vertices: Vertices, edges: Edges, expected: dict[int, set[int]]
) -> None:
    """Some sources have finished behind an all-to-all exchange; behind a forward one; some of its consumers too; several inputs; several
    levels."""
    assert triggered(vertices, edges) == expected


def test_J_112_a_checkpoint_begins_at_all_sources_while_no_task_has_finished() -> None:
    """Two of four vertices have no producers."""
    vertices: Vertices = [(3, ()), (4, ()), (5, ()), (6, ())]
    assert triggered(vertices, [(0, 2, ALL), (1, 2, ALL), (2, 3, ALL)]) == {
        0: set(range(3)),
        1: set(range(4)),
    }
