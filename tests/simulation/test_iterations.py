"""Iterations of real shells in virtual time: their results against an independent answer, and what a failure changes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from testbed_runtime.api import models
from testbed_runtime.api.compile import job_graph
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.process import TaskManager
from testbed_runtime.workload.iteration import UpdateBuffer
from tests.simulation.smallworld import SmallWorld, small_world

NO_CHECKPOINTS = {"execution.checkpointing.interval": ""}
RECORDS = 300
STEPS = """
from dataclasses import replace
def more(record):
    return replace(record, text=str(int(record.text or 0) + 1))
def unfinished(record):
    return int(record.text) < 1 + record.key % 5
def vertex(record):
    return replace(record, key=PARALLELISM * record.sequence + int(record.source[-1]), text="")
def label(record):
    return replace(record, text=str(record.key))
def neighbours(record):
    return [replace(record, key=near) for near in GRAPH[record.key]]
def smaller(candidate, current):
    return replace(current, text=candidate.text) if int(candidate.text) < int(current.text) else None
def component(record):
    return replace(record, text=f"{record.key} {record.text}")
def reopened(record):
    return replace(record, text="")
"""


def functions(folder: Path, graph: list[list[int]] | None = None, parallelism: int = 2) -> str:
    path = folder / "steps.py"
    path.write_text(f"GRAPH = {graph or []!r}\nPARALLELISM = {parallelism}\n{STEPS}")
    return str(path)


def vertex(name: str, group: str, parallelism: int = 2, **what: Any) -> dict[str, Any]:
    return {"name": name, "parallelism": parallelism, "slotSharingGroup": group, **what}


def compiled(vertices: list[dict[str, Any]], edges: list[str]) -> JobGraph:
    """Compile a job. An edge is `from to`, and its partitioning, `feedback` or `blocking`."""
    written = []
    for edge in edges:
        origin, target, *how = edge.split()
        more: dict[str, Any] = {"partitioning": how[0]} if how else {}
        if how == ["feedback"]:
            more = {"feedback": True}
        if how == ["blocking"]:
            more = {"result": "blocking", "deployment": "on-full-result"}
        written.append({"from": origin, "to": target, **more})
    return job_graph(models.Job.model_validate({"vertices": vertices, "edges": written}), seed=1)


def source(parallelism: int = 2, limit: int = RECORDS) -> dict[str, Any]:
    return vertex("source", "a", parallelism, source={"recordsPerSecond": 10_000, "limit": limit})


def bulk(steps: str, *, criterion: str = "", most: int = 7, slow: str = "0 ms") -> JobGraph:
    """Every record counts its supersteps."""
    loop = {"maxIterations": most, "criterion": criterion and f"{steps}:{criterion}"}
    vertices = [
        source(),
        vertex("loop", "b", iteration=loop),
        vertex("step", "c", operator="python", function=f"{steps}:more", serviceTime=slow),
        vertex("back", "b", operator="map"),
        vertex("sink", "a", sink="file", path="out"),
    ]
    edges = [
        "source loop",
        "loop step",
        "step back rebalance",
        "back loop feedback",
        "loop sink",
    ]
    return compiled(vertices, edges)


def components(steps: str, vertices: int, parallelism: int = 2, slow: str = "0 ms") -> JobGraph:
    """Connected components by the smallest number in reach."""
    made = [
        source(parallelism, vertices),
        vertex("number", "a", parallelism, operator="python", function=f"{steps}:vertex"),
        vertex("label", "a", parallelism, operator="python", function=f"{steps}:label"),
        vertex("loop", "b", parallelism, iteration={"kind": "delta", "maxIterations": 1000}),
        vertex(
            "near", "c", parallelism, operator="flat-map", function=f"{steps}:neighbours", serviceTime=slow
        ),
        vertex("join", "b", parallelism, operator="solution-set-join", function=f"{steps}:smaller"),
        vertex("write", "a", parallelism, operator="python", function=f"{steps}:component"),
        vertex("sink", "a", parallelism, sink="file", path="out"),
    ]
    edges = [
        "source number forward",
        "number label forward",
        "label loop",
        "loop near",
        "near join",
        "join loop feedback",
        "loop write",
        "write sink forward",
    ]
    return compiled(made, edges)


def random_graph(seed: int, vertices: int, edges: int) -> list[list[int]]:
    random = Random(seed)
    graph: list[list[int]] = [[] for _ in range(vertices)]
    for _ in range(edges):
        one, other = random.randrange(vertices), random.randrange(vertices)
        graph[one].append(other)
        graph[other].append(one)
    return graph


def smallest_in_reach(graph: list[list[int]]) -> dict[int, int]:
    """The answer by union-find, which knows nothing of supersteps."""
    parent = list(range(len(graph)))

    def root(vertex: int) -> int:
        while parent[vertex] != vertex:
            vertex = parent[vertex]
        return vertex

    for one, near in enumerate(graph):
        for other in near:
            low, high = sorted((root(one), root(other)))
            parent[high] = low
    return {vertex: root(vertex) for vertex in range(len(graph))}


class Played:
    """The output and the record of a job: lines, commits, supersteps of each attempt, deployments."""

    def __init__(self, world: SmallWorld, lines: list[str]) -> None:
        self.lines = sorted(lines)
        events = world.rows("events")
        self.supersteps = [
            (row["attempt"], json.loads(row["data"])["superstep"], json.loads(row["data"])["ended"])
            for row in events
            if row["kind"] == "iteration.superstep"
        ]
        self.failovers = sum(row["kind"] == "failover.started" for row in events)
        self.dropped = sum(row["kind"] == "function.dropped" for row in events)
        self.deployments = Counter(
            row["subject"]
            for row in events
            if row["kind"] == "task.state" and json.loads(row["data"])["to"] == "DEPLOYING"
        )
        self.committed = sum(
            int.from_bytes(r["bitmap"], "little").bit_count() for r in world.rows("delivery")
        )
        self.wrong = sum(r["duplicated"] + r["corrupted"] + r["out_of_order"] for r in world.rows("delivery"))

    @property
    def last(self) -> tuple[int, str]:
        """The number of supersteps of the last attempt, and why it ended."""
        _, number, ended = max(self.supersteps)
        return number, ended


async def nothing(world: SmallWorld) -> None:
    del world


def play(
    graph: JobGraph,
    during: Callable[[SmallWorld], Awaitable[None]] = nothing,
    *,
    seed: int = 1,
    options: dict[str, str] | None = None,
) -> Played:
    """Run the job to its end while `during` does harm. No loop is left, and every buffer is given back (small_world)."""

    async def main() -> Played:
        configuration = NO_CHECKPOINTS | (options or {})
        async with small_world(taskmanagers=7, slots=1, seed=seed, configuration=configuration) as world:
            await world.submit(graph)
            await during(world)
            while (await world.client.status()).state != "FINISHED":
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            assert loops(world) == 0
            keys = [key for key in await world.blobs.list("") if "out/part-" in key]
            lines = [line for key in keys for line in (await world.blobs.get(key)).decode().splitlines()]
            return Played(world, lines)

    return run_virtual(main())


def loops(world: SmallWorld) -> int:
    """Return the number of loops that TaskManagers still have."""
    shells = [p.shell for name in world.processes.names() if (p := world.processes.get(name)) is not None]
    return sum(len(s.iterations.loops) for s in shells if isinstance(s, TaskManager))


def finished(world: SmallWorld) -> set[str]:
    """Return the tasks that have finished."""
    states = [row for row in world.rows("events") if row["kind"] == "task.state"]
    return {row["subject"] for row in states if json.loads(row["data"])["to"] == "FINISHED"}


def test_a_bulk_iteration_has_as_many_supersteps_as_it_may(tmp_path: Path):
    """Each record passes through each superstep once, and arrives once."""
    played = play(bulk(functions(tmp_path)))
    assert played.lines == ["(7,1)"] * RECORDS
    assert [number for _, number, _ in played.supersteps] == [1, 2, 3, 4, 5, 6, 7]
    assert played.last == (7, "max-iterations")
    assert (played.committed, played.wrong, played.failovers) == (RECORDS, 0, 0)


@pytest.mark.parametrize("credit", ["true", "false"])
def test_a_result_that_fits_into_no_buffer_pool_and_no_memory_does_not_stop_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credit: str
):
    """30 KB of records in buffers of 1 KiB, in the legacy mode too, and 500 bytes of memory for the way back."""
    monkeypatch.setitem(UpdateBuffer.__init__.__kwdefaults__, "most_bytes", 500)
    mode = {"taskmanager.network.credit-model": credit}
    played = play(bulk(functions(tmp_path)), options=mode)
    assert played.lines == ["(7,1)"] * RECORDS
    assert (played.committed, played.wrong) == (RECORDS, 0)


def test_a_bulk_iteration_ends_when_its_criterion_is_true_for_no_record(tmp_path: Path):
    """Records are unfinished for up to five supersteps; the others go on as long."""
    played = play(bulk(functions(tmp_path), criterion="unfinished", most=50))
    assert played.lines == ["(5,1)"] * RECORDS
    assert played.last == (5, "converged")


@pytest.mark.parametrize(("seed", "edges", "parallelism"), [(1, 60, 2), (2, 100, 1), (3, 140, 2), (4, 0, 2)])
def test_a_delta_iteration_finds_the_connected_components_of_a_graph(
    tmp_path: Path, seed: int, edges: int, parallelism: int
):
    """Sparse graphs, whose components union-find knows. Without any edge the first workset leads to an empty one."""
    graph = random_graph(seed, 120, edges)
    steps = functions(tmp_path, graph, parallelism)
    played = play(components(steps, 120, parallelism))
    answer = smallest_in_reach(graph)
    assert played.lines == sorted(f"({v} {label},1)" for v, label in answer.items())
    assert played.last[1] == "converged"
    assert (played.last[0] > 1) == (edges > 0)
    assert (played.committed, played.wrong, played.dropped) == (120, 0, 0)


def test_a_long_chain_needs_as_many_supersteps_as_it_is_long(tmp_path: Path):
    """The smallest number moves by one vertex in each superstep, and the last superstep finds nothing new."""
    graph = [[v for v in (n - 1, n + 1) if 0 <= v < 30] for n in range(30)]
    played = play(components(functions(tmp_path, graph), 30))
    assert played.last == (30, "converged")


@pytest.mark.parametrize("seed", range(8))
def test_kills_at_any_time_change_no_result(tmp_path: Path, seed: int):
    """Two TaskManagers, at times that the seed draws. The whole job restarts, from the sources and from the first superstep."""

    async def kill(world: SmallWorld) -> None:
        for turn in (1, 2):
            await asyncio.sleep(0.2 + (seed * 7 + turn * 13) % 31 / 10)
            world.processes.kill(world.names[(seed + turn * 3) % 6])

    graph = random_graph(seed, 120, 110)
    steps = functions(tmp_path, graph)
    played = play(components(steps, 120, slow="20 ms"), kill, seed=seed)
    assert played.failovers > 0
    assert played.lines == sorted(f"({v} {label},1)" for v, label in smallest_in_reach(graph).items())
    assert (played.committed, played.wrong) == (120, 0)
    assert min(row for row in played.supersteps if row[0] == max(played.supersteps)[0])[1] == 1


def test_a_killed_head_restarts_every_task_once(tmp_path: Path):
    """Head, tail and synchronisation task are in one pipelined region with everything else."""

    async def kill(world: SmallWorld) -> None:
        while not [row for row in world.rows("events") if row["kind"] == "iteration.superstep"]:
            await asyncio.sleep(0.1)
        world.processes.kill((await world.client.status()).placement["loop-1"])

    played = play(bulk(functions(tmp_path), slow="5 ms"), kill)
    assert (played.failovers, played.last) == (1, (7, "max-iterations"))
    assert played.lines == ["(7,1)"] * RECORDS
    assert set(played.deployments.values()) == {2}
    assert "loop-sync-0" in played.deployments


def test_a_sink_that_had_finished_commits_and_writes_once(tmp_path: Path):
    """`quick` has FINISHED when the TaskManager of `slow` is killed. It runs again, its commits count once, and its file is
    overwritten."""
    steps = functions(tmp_path)
    vertices = [
        source(),
        vertex("loop", "b", iteration={"maxIterations": 3}),
        vertex("back", "b", operator="python", function=f"{steps}:more"),
        vertex("quick", "a", sink="file", path="out"),
        vertex("pass", "b", operator="map"),
        vertex("slow", "c", sink="ledger", serviceTime="20 ms"),
    ]
    edges = ["source loop", "loop back", "back loop feedback", "loop quick", "loop pass", "pass slow"]

    async def kill(world: SmallWorld) -> None:
        while not {"quick-0", "quick-1"} <= finished(world):
            await asyncio.sleep(0.1)
        world.processes.kill((await world.client.status()).placement["slow-1"])

    played = play(compiled(vertices, edges), kill)
    assert (played.failovers, played.deployments["quick-0"]) == (1, 2)
    assert played.lines == ["(3,1)"] * RECORDS
    assert (played.committed, played.wrong) == (2 * RECORDS, 0)


def test_an_iteration_may_read_and_write_blocking_results(tmp_path: Path):
    """A failure inside then restarts the iteration, and reads its input again: no source runs twice."""
    steps = functions(tmp_path)
    loop = {"maxIterations": 3}
    vertices = [
        source(),
        vertex("loop", "b", iteration=loop),
        vertex("back", "b", operator="python", function=f"{steps}:more", serviceTime="5 ms"),
        vertex("sink", "c", sink="ledger"),
    ]
    graph = compiled(
        vertices, ["source loop blocking", "loop back", "back loop feedback", "loop sink blocking"]
    )

    async def kill(world: SmallWorld) -> None:
        while not [row for row in world.rows("events") if row["kind"] == "iteration.superstep"]:
            await asyncio.sleep(0.1)
        world.processes.kill((await world.client.status()).placement["loop-0"])

    played = play(graph, kill)
    assert (played.failovers, played.committed, played.wrong) == (1, RECORDS, 0)
    again = {task for task, times in played.deployments.items() if times > 1}
    assert again == {"loop-0", "loop-1", "back-0", "back-1", "loop-sync-0"}


def test_one_iteration_may_follow_another(tmp_path: Path):
    """Each has its own supersteps."""
    steps = functions(tmp_path)
    vertices = [
        source(),
        vertex("first", "b", iteration={"maxIterations": 3}),
        vertex("one", "b", operator="python", function=f"{steps}:more"),
        vertex("second", "c", iteration={"maxIterations": 4}),
        vertex("two", "c", operator="python", function=f"{steps}:more"),
        vertex("sink", "a", sink="file", path="out"),
    ]
    edges = [
        "source first",
        "first one",
        "one first feedback",
        "first second",
        "second two rebalance",
        "two second feedback",
        "second sink",
    ]
    played = play(compiled(vertices, edges))
    assert played.lines == ["(7,1)"] * RECORDS
    assert sorted(number for _, number, _ in played.supersteps) == [1, 1, 2, 2, 3, 3, 4]


def test_two_records_with_one_key_leave_delivery_open(tmp_path: Path):
    """The second one replaces the first in the solution set, as in Flink, so some records never arrive: this is recorded as
    records that a function dropped."""
    steps = functions(tmp_path, [[]] * 10)
    vertices = [
        source(limit=40) | {"source": {"recordsPerSecond": 10_000, "limit": 40, "keys": 10}},
        vertex("label", "a", operator="python", function=f"{steps}:label"),
        vertex("loop", "b", iteration={"kind": "delta", "maxIterations": 9}),
        vertex("join", "b", operator="solution-set-join", function=f"{steps}:smaller"),
        vertex("sink", "a", sink="file", path="out"),
    ]
    edges = ["source label forward", "label loop", "loop join", "join loop feedback", "loop sink"]
    played = play(compiled(vertices, edges))
    assert played.dropped > 0
    assert played.lines == sorted(set(played.lines))
    assert 5 < len(played.lines) <= 10
    assert played.wrong == 0, "a record that replaces another one has its place in the order"
