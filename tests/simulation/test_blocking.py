"""Blocking results of real shells in virtual time: when consumers are deployed, and what a failure restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from testbed_runtime.core.ids import JOB
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.job.results import BLOCKING, FULL_RESULT
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.process import TaskManager
from tests.simulation.smallworld import SmallWorld, small_world

RECORDS = 400
NO_CHECKPOINTS = {"execution.checkpointing.interval": ""}
SLOW = OperatorConfig("map", service_time_s=0.02)


def vertex(name: str, group: str, parallelism: int = 2, **what: object) -> JobVertex:
    return JobVertex(name, parallelism, 128, group, **what)  # type: ignore[arg-type]


def job(*, partitioning: str = "hash") -> JobGraph:
    """`source` writes for 1 s, then `slow` reads for 4 s and writes for `sink`, which reads when `slow` has ended."""
    full = {"result": BLOCKING, "deployment": FULL_RESULT}
    return JobGraph(
        JOB,
        (
            vertex("source", "a", source=SourceConfig(records_per_second=400.0, limit=RECORDS)),
            vertex("slow", "b", operator=SLOW),
            vertex("sink", "c", sink=SinkConfig(service_time_s=0.01)),
        ),
        (JobEdge("source", "slow", partitioning, **full), JobEdge("slow", "sink", "forward", **full)),
    )


class Played:
    """The record of a job: the deployments of each task, and the records that were committed, each time that they were."""

    def __init__(self, world: SmallWorld) -> None:
        states = [row for row in world.rows("events") if row["kind"] == "task.state"]
        self.at: dict[tuple[str, str], list[float]] = {}
        for row in states:
            self.at.setdefault((row["subject"], json.loads(row["data"])["to"]), []).append(row["t_ns"] / 1e9)
        started = [row for row in world.rows("events") if row["kind"] == "failover.started"]
        self.failovers = len(started)
        rows = world.rows("delivery")
        self.committed = sum(
            int.from_bytes(r["bitmap"], "little").bit_count() + r["duplicated"] for r in rows
        )

    def deployments(self) -> dict[str, int]:
        return {task: len(times) for (task, state), times in sorted(self.at.items()) if state == "DEPLOYING"}


def play(
    during: Callable[[SmallWorld], Awaitable[None]], *, graph: JobGraph | None = None, seed: int = 1
) -> Played:
    """Run the job to its end while `during` does harm. Every buffer is given back and every result deleted."""

    async def main() -> Played:
        async with small_world(taskmanagers=7, slots=1, seed=seed, configuration=NO_CHECKPOINTS) as world:
            await world.submit(graph or job())
            await during(world)
            while (await world.client.status()).state != "FINISHED":
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            assert partitions(world) == 0
            return Played(world)

    return run_virtual(main())


def partitions(world: SmallWorld) -> int:
    """Return the number of results that TaskManagers still have."""
    shells = [p.shell for name in world.processes.names() if (p := world.processes.get(name)) is not None]
    return sum(len(s.environment.manager.partitions) for s in shells if isinstance(s, TaskManager))


async def running(world: SmallWorld, task: str) -> str:
    """Wait until the task reads. Return the name of its TaskManager."""
    while (await world.client.status()).placement.get(task) is None:
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    return (await world.client.status()).placement[task]


async def nothing(world: SmallWorld) -> None:
    del world


@pytest.mark.parametrize("partitioning", ["hash", "forward", "broadcast"])
def test_a_consumer_is_deployed_when_all_its_producers_have_finished(partitioning: str):
    """Stage by stage; every record arrives once."""
    played = play(nothing, graph=job(partitioning=partitioning))
    assert set(played.deployments().values()) == {1}
    for producers, consumers in (("source", "slow"), ("slow", "sink")):
        ended = max(played.at[f"{producers}-{i}", "FINISHED"][0] for i in range(2))
        assert ended <= min(played.at[f"{consumers}-{i}", "DEPLOYING"][0] for i in range(2))
    assert played.committed == RECORDS * (2 if partitioning == "broadcast" else 1)


def test_a_consumer_that_is_killed_reads_the_result_again():
    """Only the consumer on the lost TaskManager restarts: its producers and its neighbour do not."""

    async def kill(world: SmallWorld) -> None:
        world.processes.kill(await running(world, "slow-1"))

    played = play(kill)
    assert played.deployments() == {
        "source-0": 1,
        "source-1": 1,
        "slow-0": 1,
        "slow-1": 2,
        "sink-0": 1,
        "sink-1": 1,
    }
    assert (played.failovers, played.committed) == (1, RECORDS)


def test_a_producer_whose_result_is_lost_restarts_with_its_consumers():
    """The TaskManager of a FINISHED source dies while its result is read. The other source's result is read again."""

    async def kill(world: SmallWorld) -> None:
        await running(world, "slow-1")
        world.processes.kill((await world.client.status()).placement["source-0"])

    played = play(kill)
    again = played.deployments()
    assert (again["source-0"], again["source-1"]) == (2, 1)
    assert again["slow-0"] == again["slow-1"] == 2
    assert played.committed == RECORDS


def test_a_result_that_is_lost_before_it_is_read_is_written_again():
    """Both sources have ended, one with its TaskManager, and the consumer is not deployed yet: `source-1` ends later."""
    graph = job()
    late = vertex("late", "d", 1, source=SourceConfig(records_per_second=100.0, limit=300))
    edge = JobEdge("late", "slow", "hash", BLOCKING, FULL_RESULT)
    graph = JobGraph(JOB, (*graph.vertices, late), (*graph.edges, edge))

    async def kill(world: SmallWorld) -> None:
        await asyncio.sleep(2)
        assert "slow-0" not in (await world.client.status()).placement
        world.processes.kill((await world.client.status()).placement["source-0"])

    played = play(kill, graph=graph)
    again = played.deployments()
    assert (again["source-0"], again["source-1"], again["late-0"]) == (2, 1, 1)
    assert played.committed == RECORDS + 300


def test_a_producer_that_is_killed_while_it_writes_restarts_alone():
    """Nothing has read its result, and `source-1` is a region of its own."""

    async def kill(world: SmallWorld) -> None:
        await asyncio.sleep(0.5)
        world.processes.kill((await world.client.status()).placement["source-0"])

    played = play(kill)
    assert played.deployments() == {
        "source-0": 2,
        "source-1": 1,
        "slow-0": 1,
        "slow-1": 1,
        "sink-0": 1,
        "sink-1": 1,
    }
    assert played.committed == RECORDS


def test_a_result_is_deleted_when_everything_that_reads_it_has_finished():
    """While `sink` reads, the results of `source` are gone; a loss of `slow-0` then begins again at the source."""

    async def look(world: SmallWorld) -> None:
        await running(world, "sink-0")
        assert partitions(world) == 2
        world.processes.kill((await world.client.status()).placement["slow-0"])

    played = play(look)
    again = played.deployments()
    assert (again["source-0"], again["source-1"], again["slow-0"], again["sink-0"]) == (2, 2, 2, 2)
    assert played.committed == RECORDS


@pytest.mark.parametrize("seed", range(12))
def test_kills_at_any_time_lose_and_duplicate_nothing(seed: int):
    """Two TaskManagers, at times that the seed draws."""

    async def kill(world: SmallWorld) -> None:
        for turn in (1, 2):
            await asyncio.sleep(0.3 + (seed * 7 + turn * 13) % 31 / 10)
            world.processes.kill(world.names[(seed + turn * 3) % 6])

    assert play(kill, seed=seed).committed == RECORDS
