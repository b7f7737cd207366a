"""Jobs of several regions in virtual time: they fail at nearly the same time, and each restarts on its own."""

from __future__ import annotations

from random import Random

import pytest

from testbed_runtime.core.ids import JOB
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex, SinkConfig, SourceConfig
from tests.simulation.smallswarm import Drawn, Fault, run_seed

FIXED, EXPONENTIAL = "restart-strategy.fixed-delay.delay", "restart-strategy.exponential-delay."
MERGING = {
    "restart-strategy.type": "exponential-delay",
    EXPONENTIAL + "initial-backoff": "100 ms",
    EXPONENTIAL + "max-backoff": "200 ms",
    "restart-strategy.fixed-delay.attempts": "",
    FIXED: "",
}
KINDS = ("kill", "kill", "kill", "pause", "cut", "reset", "jobmanager")


def drawn(seed: int) -> Drawn:
    """Two or four regions, with slots of their own or shared ones, and two to four faults within the delay, the deployment or the wait
    for slots of the first restart."""
    random = Random(f"disjoint-regions/{seed}")
    slots = random.choice((1, 2))
    targets = [f"tm-{n}" for n in range(4 // slots)]
    configuration = {
        FIXED: random.choice(("20 ms", "50 ms", "300 ms")),
        "slot.request.timeout": random.choice(("300 ms", "5 min")),
        "headgate.restart.fence-dead-slots": random.choice(("true", "true", "false")),
        "jobmanager.execution.failover-strategy": random.choice(("region", "region", "region", "full")),
    }
    run_s = random.choice((0.5, 2.5))
    if random.random() < 0.3:
        configuration |= MERGING
    faults: list[Fault] = []
    for _ in range(random.choice((2, 3, 4))):
        target = random.choice(targets)
        other = random.choice([name for name in targets if name != target])
        at_s = 0.2 + random.choice((0.0, 0.02, 0.1, 0.4, 1.0, 1.5))
        kind = random.choice(KINDS)
        if kind == "jobmanager" and any(fault.kind == kind for fault in faults):
            kind = "kill"
        faults.append(Fault(kind, at_s, random.choice((0.02, 0.2, 1.5)), target, other))
    return Drawn(seed, _graph(random), configuration, slots, tuple(faults), run_s)


def _graph(random: Random) -> JobGraph:
    source, sink = SourceConfig(records_per_second=100.0, keys=8, record_bytes=60), SinkConfig()
    shape = random.choice(("own slots", "shared slots", "subtasks"))
    if shape == "subtasks":
        vertices = (JobVertex("s", 4, 128, "x", source=source), JobVertex("t", 4, 128, "x", sink=sink))
        return JobGraph(JOB, vertices, (JobEdge("s", "t", "forward"),), seed=random.randrange(1 << 16))
    count = 1 if shape == "own slots" else 2
    found = [
        vertex
        for r in "ab"
        for vertex in (
            JobVertex(f"source-of-{r}", count, 128, f"s{r}" if count == 1 else "x", source=source),
            JobVertex(f"sink-of-{r}", count, 128, f"m{r}" if count == 1 else "x", sink=sink),
        )
    ]
    edges = tuple(JobEdge(f"source-of-{r}", f"sink-of-{r}", "hash") for r in "ab")
    return JobGraph(JOB, tuple(found), edges, seed=random.randrange(1 << 16))


def violations(seeds: range) -> dict[int, list[str]]:
    """Run these seeds. Return the rules that they violated."""
    outcomes = [run_seed(seed, drawn=drawn(seed)) for seed in seeds]
    assert sum(one.restarts for one in outcomes) > len(seeds) // 2
    return {one.drawn.seed: one.violations for one in outcomes if one.violations}


def test_regions_that_fail_at_nearly_the_same_time_lose_and_duplicate_nothing() -> None:
    """Every record that a source emitted is committed exactly once, whatever each restart waited for when the next one began."""
    assert violations(range(20)) == {}


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=pytest.mark.virtual if first < 120 else pytest.mark.soak)
        for first in range(20, 220, 50)
    ],
)
def test_more_draws_lose_and_duplicate_nothing(first: int) -> None:
    """The same. The second half of the draws is in `make soak`."""
    assert violations(range(first, first + 50)) == {}
