"""The end of a bounded source, and the checkpoints that are triggered meanwhile."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from testbed_runtime.core.ids import JOB, JOBMANAGER
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.job.messages import TriggerCheckpoint
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.task import Task
from testbed_runtime.workload.sinks import STAGED
from tests.simulation.smallworld import SmallWorld, small_world

pytestmark = pytest.mark.virtual
STEP_S = 0.0001


def source_of(world: SmallWorld) -> Task | None:
    """Return the source's task, once everything that it emitted is processed."""
    shells = [world.processes.get(name).shell for name in world.names]
    for task in (task for shell in shells for task in shell.tasks):
        if (
            task.meter.role == "source"
            and task.meter.records_out == 100
            and all(partition.all_data_processed for partition in task.partitions)
        ):
            return task
    return None


def test_a_source_takes_the_checkpoints_that_were_triggered_before_it_could_finish():
    """The final checkpoint completes while the next one waits at the source: without its answer, that one would be pending until
    its timeout."""

    async def run() -> None:
        source = SourceConfig(records_per_second=1000, record_bytes=100, limit=100)
        vertices = (
            JobVertex("source", 1, 128, "a", source=source),
            JobVertex("sink", 1, 128, "b", sink=SinkConfig()),
        )
        configuration = {"execution.checkpointing.interval": "1 h"}
        # in 1.17 the end of the data triggers no checkpoint
        world_of = partial(small_world, taskmanagers=2, slots=1, version="1.17")
        async with world_of(configuration=configuration) as world:
            await world.submit(JobGraph(JOB, vertices, (JobEdge("source", "sink", "hash"),)))
            while (task := source_of(world)) is None:
                await asyncio.sleep(STEP_S)
            first, second = (TriggerCheckpoint(task.descriptor.attempt, number, 0, "") for number in (1, 2))
            task.trigger_checkpoint(first)
            while not task.checkpoints.last_started:
                await asyncio.sleep(STEP_S)
            task.trigger_checkpoint(second)
            task.notify_checkpoint_complete(1)
            while not task.ended:
                await asyncio.sleep(STEP_S)
            assert (task.state, task.checkpoints.last_started) == ("FINISHED", 2)
            for sink in world.processes.get("tm-1").shell.tasks:
                sink.notify_checkpoint_complete(2)
            await asyncio.sleep(1)

    run_virtual(run())


@pytest.mark.parametrize("kind", ["ledger", "file"])
def test_what_follows_the_barrier_of_a_stop_is_committed_in_a_job_without_checkpoints(kind: str):
    """Its source has finished, and no later checkpoint covers the panes that the window still holds."""
    vertices = (
        JobVertex("source", 1, 128, "a", source=SourceConfig(records_per_second=10_000, limit=30)),
        JobVertex("window", 2, 128, "b", operator=OperatorConfig("window", window_s=5.0)),
        JobVertex("sink", 1, 128, "c", sink=SinkConfig(kind=kind, path="out")),
    )
    edges = (JobEdge("source", "window", "hash"), JobEdge("window", "sink", "hash"))
    configuration = {
        "execution.checkpointing.interval": "",
        "execution.buffer-timeout.interval": "100 ms",
    }

    async def run() -> SmallWorld:
        async with small_world(taskmanagers=4, slots=1, configuration=configuration) as world:
            await world.submit(JobGraph(JOB, vertices, edges))
            while not any(row["kind"] == "source.end" for row in world.rows("events")):
                await asyncio.sleep(STEP_S)
            await world.drain(poll_s=0.01)
            parts = [key for key in await world.blobs.list("out/") if STAGED not in key]
            texts = [await world.blobs.get(key) for key in parts]
            counts = [int(line.split(b",")[1][:-1]) for text in texts for line in text.splitlines()]
            assert sum(counts) == (30 if kind == "file" else 0)
        return world

    world = run_virtual(run())
    assert [row["checkpoint"] for row in world.checkpoints("completed")] == [1]
    assert sum(row["weight"] for row in world.rows("delivery")) == 30


def test_a_stop_that_no_jobmanager_answers_is_asked_for_again():
    """A JobManager that was killed returns after the drain has begun."""
    vertices = (
        JobVertex("source", 1, 128, "a", source=SourceConfig(records_per_second=100)),
        JobVertex("sink", 1, 128, "b", sink=SinkConfig()),
    )

    async def run() -> SmallWorld:
        async with small_world(taskmanagers=2, slots=1) as world:
            await world.submit(JobGraph(JOB, vertices, (JobEdge("source", "sink", "hash"),)))
            await asyncio.sleep(1)
            world.processes.kill(JOBMANAGER)
            drain = asyncio.create_task(world.drain())
            await asyncio.sleep(1)
            await world.processes.start(JOBMANAGER)
            await drain
        return world

    run_virtual(run()).assert_exact()


@pytest.mark.parametrize("splits", [0, 2, 8])
def test_a_stop_after_the_end_of_a_source_covers_what_its_consumers_have_not_read(splits: int):
    """In a job without checkpoints, a source finishes before its records are read. The TaskManager of the sink is killed while the final
    checkpoint is written: after the restart the source must not emit its records again, and none may be missing."""
    bounded = SourceConfig(records_per_second=10_000, limit=200, splits=splits)
    vertices = (
        JobVertex("source", 2, 128, "a", source=bounded),
        JobVertex("sink", 1, 128, "b", sink=SinkConfig(service_time_s=0.01)),
        JobVertex("unbounded", 1, 128, "c", source=SourceConfig(records_per_second=20)),
    )
    edges = tuple(JobEdge(name, "sink", "rebalance") for name in ("source", "unbounded"))

    async def run() -> SmallWorld:
        async with small_world(
            taskmanagers=4, slots=1, configuration={"execution.checkpointing.interval": ""}
        ) as world:
            await world.submit(JobGraph(JOB, vertices, edges))
            while (status := await world.client.status()).tasks.get("source-0") != "FINISHED":
                await asyncio.sleep(0.05)
            drain = asyncio.create_task(world.drain())
            while not world.checkpoints("finalizing"):
                await asyncio.sleep(STEP_S)
            world.processes.kill(status.placement["sink-0"])
            await drain
        return world

    world = run_virtual(run())
    assert [e["kind"] for e in world.rows("events")].count("failover.started") == 1
    assert next(row["checkpoint"] for row in world.rows("events") if row["kind"] == "task.restored") == 1
    world.assert_exact()
