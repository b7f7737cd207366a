"""RestartPipelinedRegionFailoverStrategy: regions and restarts of random jobs with pipelined and blocking results."""

from __future__ import annotations

import random

import pytest

from testbed_runtime.core.job.executiongraph import ExecutionGraph
from testbed_runtime.core.job.failover import Link, Regions, Task, name_of
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex
from testbed_runtime.core.job.results import BLOCKING
from tests.interop.sequences import COUNTS, compare, draw

pytestmark = pytest.mark.processes


def a_job(chance: random.Random) -> list[str]:
    """Vertices in topological order, edges that leave no cycle between regions, and failures with lost results."""
    names = "abcdefg"[: chance.randint(2, 7)]
    width = chance.randint(1, 3)
    sizes = {name: chance.choice([width, width, chance.randint(1, 3)]) for name in names}
    edges: list[JobEdge] = []
    for target in names[1:]:
        for source in chance.sample(
            names[: names.index(target)], min(names.index(target), chance.choice([1, 1, 2, 3]))
        ):
            forward = sizes[source] == sizes[target] and chance.random() < 0.5
            edge = JobEdge(
                source,
                target,
                "forward" if forward else "hash",
                chance.choice([BLOCKING, "pipelined-bounded"]),
            )
            if not _has_cycle(names, [*edges, edge]):
                edges.append(edge)
    lines = ["new", *(f"vertex {name} {size}" for name, size in sizes.items())]
    lines += [f"edge {e.source} {e.target} {e.partitioning} {e.result}" for e in edges]
    lines.append("regions")
    for _ in range(chance.randint(1, 12) if edges else 0):
        edge = chance.choice(edges)
        producer, consumer = chance.randrange(sizes[edge.source]), chance.randrange(sizes[edge.target])
        result = f"{edge.source} {edge.target} {consumer if edge.partitioning == 'forward' else producer}"
        match chance.choice(["lose", "restore", "fail", "fail", "unread"]):
            case "fail":
                name = chance.choice(names)
                lines.append(f"fail {name} {chance.randrange(sizes[name])}")
            case "unread":
                lines.append(f"fail {edge.target} {consumer} {result}")
            case kind:
                lines.append(f"{kind} {result}")
    return lines


def _has_cycle(names: str, edges: list[JobEdge]) -> bool:
    """Whether a region would wait for itself, which a scenario cannot have."""
    regions = Regions(
        [(name, 0) for name in names],
        [Link((e.source, 0), (e.target, 0), e.result != BLOCKING) for e in edges],
    )
    return any(
        (e.source, 0) in regions.to_restart([(e.target, 0)], available=lambda *_: True)
        for e in edges
        if e.result == BLOCKING
    )


class Restarts:
    """The regions of one job, and the results that are lost."""

    def __init__(self) -> None:
        self._vertices: list[JobVertex] = []
        self._edges: list[JobEdge] = []
        self._lost: set[tuple[str, str, int]] = set()
        self._graph: ExecutionGraph | None = None

    def step(self, words: list[str]) -> str:
        match words:
            case "vertex", name, size:
                self._vertices.append(JobVertex(name, int(size), 128))
            case "edge", source, target, partitioning, result:
                self._edges.append(JobEdge(source, target, partitioning, result))
            case ["regions"]:
                job = JobGraph("job", tuple(self._vertices), tuple(self._edges))
                self._graph = ExecutionGraph(job, "job", epoch=1)
                found = {_names(self._graph.regions.region(task)) for task in self._graph.tasks}
                return " ".join(sorted(found))
            case "lose", source, target, producer:
                self._lost.add((source, target, int(producer)))
            case "restore", source, target, producer:
                self._lost.discard((source, target, int(producer)))
            case "fail", name, subtask, *result:
                failed = [(name, int(subtask)), *([(result[0], int(result[2]))] if result else [])]
                return self._restarted(failed)
        return ""

    def _restarted(self, failed: list[Task]) -> str:
        assert self._graph is not None
        return _names(
            self._graph.regions.to_restart(
                failed,
                available=lambda producer, consumer: (
                    (producer[0], consumer[0], producer[1]) not in self._lost
                ),
            )
        )

    def state(self) -> str:
        return ""


def _names(tasks: list[Task]) -> str:
    return ",".join(sorted(map(name_of, tasks)))


@pytest.mark.parametrize("count", COUNTS)
def test_random_failures_restart_the_regions_that_flink_restarts(flink, count):
    """The regions of each job, and the tasks that restart after a failure and after an unreadable result."""
    compare(flink, "regions", Restarts, draw(10, count, a_job))
