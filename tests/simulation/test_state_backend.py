"""Keyed state in files, in whole jobs in virtual time: what checkpoints store, and that a restore loses and doubles nothing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from statistics import mean

import pytest
from msgspec.structs import replace

from testbed_runtime.core.ids import JOB
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.jobmanager.jobstore import CompletedCheckpoint, JobStore
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.workload.filestate import FileState
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.slotmemory import SlotMemory
from testbed_runtime.workload.snapshots import SubtaskSnapshot, decode_snapshot
from tests.simulation import smallswarm
from tests.simulation.smallswarm import UNALIGNED, draw
from tests.simulation.smallworld import SmallWorld, small_world
from tests.workload.test_filestate import Files

ROCKSDB = {"state.backend.type": "rocksdb", "taskmanager.memory.managed.size": "32 kb"}
INCREMENTAL = {**ROCKSDB, "execution.checkpointing.incremental": "true"}
RECOVERS, BACKS_UP = "execution.state-recovery.from-local", "execution.checkpointing.local-backup.enabled"
LOCAL = {RECOVERS: "true"}
SEEDS = range(1000, 1025)
SOAK_SEEDS = range(2000, 7000)


def counting(keys: int = 5000, ttl_s: float = 0.0) -> JobGraph:
    """More keys than fit into the write buffers of a slot."""
    return JobGraph(
        JOB,
        (
            JobVertex("source", 2, 128, "a", source=SourceConfig(records_per_second=1000.0, keys=keys)),
            JobVertex("count", 2, 128, "b", operator=OperatorConfig("keyed-count", state_ttl_s=ttl_s)),
            JobVertex("sink", 2, 128, "b", sink=SinkConfig()),
        ),
        (JobEdge("source", "count", "hash"), JobEdge("count", "sink", "forward")),
    )


async def _run(
    configuration: dict[str, str], *, kill: str = "count-0", graph: JobGraph | None = None
) -> tuple[SmallWorld, int]:
    """Run a job, kill a TaskManager in the middle and drain. Return its world and the sum of the counts in the last
    checkpoint."""
    async with small_world(configuration=configuration) as world:
        await world.submit(graph or counting())
        await asyncio.sleep(2.0)
        if kill:
            world.processes.kill((await world.client.status()).placement[kill])
        await asyncio.sleep(2.0)
        await world.drain()
        return world, await _counted(world, "count")


async def _latest(world: SmallWorld) -> tuple[JobStore, CompletedCheckpoint]:
    store = JobStore(world.blobs)
    latest = await store.latest((await store.jobs())[0].job)
    assert latest is not None
    return store, latest


async def _retained(world: SmallWorld) -> list[CompletedCheckpoint]:
    """Return the last two completed checkpoints, the latest first."""
    store, latest = await _latest(world)
    return [latest, await store.checkpoint(latest.job, latest.checkpoint - 1)]


async def _counted(world: SmallWorld, vertex: str) -> int:
    _, latest = await _latest(world)
    total = 0
    for task in latest.tasks:
        snapshot = decode_snapshot(await world.blobs.get(task.handle))
        disk = Files()
        for file in snapshot.files:
            disk.write(file.name, await world.blobs.get(file.handle))
        total += sum(_state(snapshot, disk).totals().values()) if task.vertex == vertex else 0
    return total


def _state(snapshot: SubtaskSnapshot, disk: Files) -> FileState:
    context = SubtaskContext(1, "counts", snapshot.subtask, snapshot.parallelism, 128, 0, ())
    state = FileState(context, disk, SlotMemory(10**6, 10**6), name="check")
    state.restore([snapshot])
    return state


def emitted(world: SmallWorld) -> int:
    """Return how many records the sources emitted up to their last end. A job whose final checkpoint failed stops a second time."""
    ends = {row["subject"]: json.loads(row["data"])["next"] for row in world.events("source.end")}
    assert len(ends) == 2
    return sum(ends.values())


@pytest.mark.virtual
@pytest.mark.parametrize(
    "configuration",
    [{}, ROCKSDB, INCREMENTAL, {**INCREMENTAL, **LOCAL}, {**INCREMENTAL, UNALIGNED: "true"}],
    ids=["hashmap", "full", "incremental", "local recovery", "unaligned"],
)
def test_every_record_is_counted_once_after_a_restore(configuration: dict[str, str]) -> None:
    """The counts of the final checkpoint add up to the records, although a TaskManager was killed in between."""
    world, counted = run_virtual(_run(configuration))
    world.assert_exact()
    assert len({row["checkpoint"] for row in world.events("task.restored")}) >= 1
    assert counted == emitted(world)


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("configuration", "local"),
    [
        ({"state.backend.local-recovery": "true"}, True),
        ({RECOVERS: "true"}, True),
        ({RECOVERS: "true", BACKS_UP: "false"}, False),
        ({BACKS_UP: "true"}, False),
    ],
    ids=["the old name", "both", "without copies", "copies that are not used"],
)
def test_tasks_restore_from_local_copies_if_they_are_kept_and_used(
    configuration: dict[str, str], local: bool
) -> None:
    """Copies are kept if tasks restore from them, unless another option says so. A task moves to another TaskManager, where it has none."""
    world, _ = run_virtual(_run(configuration))
    restored = {json.loads(row["data"])["local"] for row in world.events("task.restored")}
    assert restored == ({True, False} if local else {False})


@pytest.mark.virtual
def test_an_incremental_checkpoint_stores_less_than_a_full_one() -> None:
    """After 2 s there are 2000 rows, and 100 ms change at most 100 of them."""

    def stored(configuration: dict[str, str]) -> tuple[float, float]:
        world, _ = run_virtual(_run(configuration, kill=""))
        by_checkpoint = Counter[int]()
        for row in world.checkpoints("acknowledged"):
            by_checkpoint[row["checkpoint"]] += row["state_bytes"]
        completed = world.checkpoints("completed")
        return mean(by_checkpoint[row["checkpoint"]] for row in completed), mean(
            row["state_bytes"] for row in completed
        )

    size, full_size = stored(INCREMENTAL)
    whole, _ = stored(ROCKSDB)
    assert 3 * size < whole
    assert 3 * size < full_size


@pytest.mark.virtual
def test_the_store_keeps_exactly_what_retained_checkpoints_refer_to() -> None:
    """Files that compaction has replaced are deleted with the last checkpoint that refers to them."""
    world, _ = run_virtual(_run(INCREMENTAL, kill="count-0"))

    async def objects() -> tuple[set[str], set[str], list[CompletedCheckpoint]]:
        kept = await _retained(world)
        referred = {key for one in kept for task in one.tasks for key in task.objects if ".sst" in key}
        return {key for key in await world.blobs.list("jobs/") if ".sst" in key}, referred, kept

    there, referred, kept = run_virtual(objects())
    assert there == referred
    assert any(int(key.split("/")[3]) < kept[-1].checkpoint for key in there), "a file is shared"


@pytest.mark.virtual
def test_expired_counts_leave_the_checkpoints() -> None:
    """With a time to live of 500 ms the last checkpoint holds the records of about 500 ms, not those of 4 s."""
    for configuration in ({}, INCREMENTAL):
        world, left = run_virtual(_run(configuration, kill="", graph=counting(ttl_s=0.5)))
        world.assert_exact()
        assert 0 < left < emitted(world) / 3


def violations(seed: int) -> list[str]:
    """Run a seed of the small swarm with counts of many keys in incremental checkpoints."""
    drawn = draw(seed)
    source, work, sink = drawn.graph.vertices
    assert source.source is not None
    vertices = (
        replace(source, source=replace(source.source, keys=5000)),
        replace(work, operator=OperatorConfig("keyed-count")),
        sink,
    )
    edges = (JobEdge("source", "work", "hash"), JobEdge("work", "sink", "rebalance"))
    local = LOCAL if seed % 2 else {}
    drawn = replace(
        drawn,
        graph=replace(drawn.graph, vertices=vertices, edges=edges),
        configuration={**drawn.configuration, **INCREMENTAL, **local},
    )

    async def check(world: SmallWorld) -> list[str]:
        counted, sent = await _counted(world, "work"), emitted(world)
        return [] if counted == sent else [f"{counted} records are counted, {sent} were emitted"]

    return smallswarm.run_seed(seed, drawn=drawn, check=check).violations


@pytest.mark.virtual
def test_small_jobs_with_incremental_checkpoints_lose_and_double_nothing() -> None:
    """Kills, pauses, cuts, resets, and a JobManager that restarts."""
    assert {seed: found for seed in SEEDS if (found := violations(seed))} == {}


@pytest.mark.soak
def test_thousands_of_jobs_with_incremental_checkpoints_lose_and_double_nothing() -> None:
    """The same, for an hour."""
    assert {seed: found for seed in SOAK_SEEDS if (found := violations(seed))} == {}
