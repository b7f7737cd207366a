"""Job graphs drawn from seeds: diamonds, broadcasts, several sources and sinks. Each record arrives at each sink once on every path."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import product
from random import Random

import pytest

from testbed_runtime.checking.common import JobShape
from testbed_runtime.core.ids import JOB
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.simulation.loop import run_virtual
from tests.simulation.smallswarm import UNALIGNED
from tests.simulation.smallworld import SmallWorld, small_world


def drawn(random: Random) -> JobGraph:
    """At most two sources, two operators and two sinks, of one to three subtasks."""
    sources, operators, sinks = random.randint(1, 2), random.randint(0, 2), random.randint(1, 2)
    roles = ["source"] * sources + ["operator"] * operators + ["sink"] * sinks
    vertices = [vertex(random, role, number) for number, role in enumerate(roles)]
    edges: dict[tuple[int, int], str] = {}
    for number in range(sources, len(roles)):
        before = range(min(number, sources + operators))
        for origin in random.sample(before, random.randint(1, len(before))):
            edges[origin, number] = partitioning(random, vertices[origin], vertices[number])
    for number in set(range(sources + operators)) - {origin for origin, _ in edges}:
        target = random.randrange(max(sources, number + 1), len(roles))
        edges[number, target] = partitioning(random, vertices[number], vertices[target])
    links = tuple(JobEdge(vertices[a].name, vertices[b].name, how) for (a, b), how in edges.items())
    return JobGraph(JOB, tuple(vertices), links, seed=random.randrange(1 << 16))


def vertex(random: Random, role: str, number: int) -> JobVertex:
    match role:
        case "source":
            more = {"source": SourceConfig(records_per_second=60.0, keys=8, record_bytes=60)}
        case "operator":
            more = {"operator": OperatorConfig(random.choice(("map", "keyed-count")))}
        case _:
            more = {"sink": SinkConfig(service_time_s=random.choice((0.0, 0.001)))}
    return JobVertex(f"v{number}", random.randint(1, 3), 128, random.choice("ab"), **more)


def partitioning(random: Random, origin: JobVertex, target: JobVertex) -> str:
    how = ["hash", "rebalance", "broadcast"]
    return random.choice([*how, "forward"] if origin.parallelism == target.parallelism else how)


def paths(graph: JobGraph, source: str, sink: str) -> int:
    """How often a record of a source arrives at a sink: once on each path, at every subtask behind a broadcast."""
    if source == sink:
        return 1
    found = 0
    for edge in graph.edges:
        if edge.source == source:
            many = graph.vertex(edge.target).parallelism if edge.partitioning == "broadcast" else 1
            found += many * paths(graph, edge.target, sink)
    return found


async def delivered(graph: JobGraph, seed: int, *, kill: str, unaligned: bool) -> SmallWorld:
    configuration = {UNALIGNED: str(unaligned).lower()}
    async with small_world(seed=seed, taskmanagers=3, slots=2, configuration=configuration) as world:
        await world.submit(graph)
        await asyncio.sleep(0.4)
        if kill:
            world.processes.kill(kill)
        await asyncio.sleep(0.4)
        await world.drain(poll_s=0.25)
    return world


@pytest.mark.parametrize(("seed", "kill"), [(n, kill) for n, kill in product(range(8), ("", "tm-0"))])
def test_each_record_arrives_on_every_path_of_any_job(seed: int, kill: str):
    """Without a fault, and with a killed TaskManager; and as often as the check of delivery expects."""
    random = Random(f"job-graph/{seed}")
    graph = drawn(random)
    world = run_virtual(delivered(graph, seed, kill=kill, unaligned=random.random() < 0.5))
    found = Counter[tuple[str, str, int]]()
    for row in world.rows("delivery"):
        bits = int.from_bytes(row["bitmap"], "little")
        numbers = (row["base"] + i for i in range(bits.bit_length()) if bits >> i & 1)
        found.update((vertex_of(row["task"]), row["source"], number) for number in numbers)
        assert (row["duplicated"], row["out_of_order"], row["corrupted"]) == (0, 0, 0)
    ends = {
        row["subject"]: json.loads(row["data"])["next"]
        for row in world.rows("events")
        if row["kind"] == "source.end"
    }
    shape = JobShape(
        {v.name: v.parallelism for v in graph.vertices},
        tuple((e.source, e.target, e.partitioning) for e in graph.edges),
        tuple(v.name for v in graph.vertices if v.source),
        tuple(v.name for v in graph.vertices if v.sink),
    )
    expected = Counter[tuple[str, str, int]]()
    for source, sink in product(shape.sources, shape.sinks):
        copies = paths(graph, source, sink)
        assert shape.copies(source).get(sink, 0) == copies
        for subtask in range(shape.parallelism[source]):
            origin = f"{source}-{subtask}"
            expected.update({(sink, origin, number): copies for number in range(ends[origin]) if copies})
    assert ends
    assert found == expected
