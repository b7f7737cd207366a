"""Unaligned checkpoints with data in flight, from which a job starts at another parallelism."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from testbed_runtime.checking.delivery import source_starts
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.options import Options
from testbed_runtime.history.reader import read_trial
from testbed_runtime.jobmanager.recovery import KeptCheckpoint
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.workload.snapshots import decode_snapshot
from tests.simulation.simulating import RUN, run_document
from tests.simulation.smallswarm import ALIGNED_TIMEOUT, UNALIGNED, draw
from tests.simulation.smallworld import small_world

CHUNKS = 2
SEEDS_PER_CHUNK = 30
SOAK_CHUNKS = 102
"""Each with as many seeds, after the quick ones."""
TASKMANAGERS = 6
EXAMPLE = Path(__file__).parents[2] / "scenarios" / "examples" / "rescaled.yaml"


@dataclass
class Rescaled:
    """The effect of a seed: two jobs, the second of which goes on from the checkpoint of the first."""

    graph: JobGraph
    persisted: int = 0
    """Bytes of data in flight in the checkpoint."""
    records: int = 0


def rescaled(graph: JobGraph, work: int, sink: int) -> JobGraph:
    """The same job with another parallelism of all vertices but the source."""
    wanted = {"source": graph.vertices[0].parallelism, "work": work, "sink": sink}
    return replace(graph, vertices=tuple(replace(v, parallelism=wanted[v.name]) for v in graph.vertices))


async def run(seed: int) -> Rescaled:
    """Run a job with unaligned checkpoints, and go on with another parallelism; every second time a TaskManager is killed before
    the second job has a checkpoint of its own."""
    random, drawn = Random(f"rescaled/{seed}"), draw(seed)
    edges = random.choice((("hash", "rebalance"), ("rebalance", "hash"), ("hash", "hash")))
    graph = replace(
        drawn.graph,
        edges=tuple(replace(e, partitioning=p) for e, p in zip(drawn.graph.edges, edges, strict=True)),
    )
    before, after = (rescaled(graph, random.randint(1, 4), random.randint(1, 4)) for _ in range(2))
    timeout = random.choice(("0 ms", "5 ms"))
    options = {**drawn.configuration, UNALIGNED: "true", ALIGNED_TIMEOUT: timeout}
    found, committed = Rescaled(after), Counter[tuple[str, int]]()
    settings: dict[str, Any] = {"seed": seed, "taskmanagers": TASKMANAGERS, "slots": 2}
    async with small_world(**settings, configuration=options) as world:
        await world.submit(before)
        await asyncio.sleep(random.uniform(0.3, 0.6))
        while not world.checkpoints("completed"):
            await asyncio.sleep(0.05)
        kept = await KeptCheckpoint.read(world.blobs, "kept")
        into = MemoryBlobStore()
        await kept.bring(into, after, Options(options).flink_version)
        last = kept.checkpoint.checkpoint
        committed.update(numbers(world, until=last))
        for task in kept.checkpoint.tasks:
            found.persisted += decode_snapshot(await world.blobs.get(task.handle)).persisted_bytes
        await world.drain(poll_s=0.25)
    options["execution.state-recovery.path"] = "kept"
    async with small_world(**settings, blobs=into, configuration=options) as world:
        await world.submit(after)
        if seed % 2:
            await asyncio.sleep(random.uniform(0.02, 0.2))
            world.processes.kill(f"tm-{random.randrange(TASKMANAGERS)}")
        await asyncio.sleep(0.3)
        await world.drain(poll_s=0.25)
        committed.update(numbers(world))
        emitted = {(s, n) for s, count in world.emitted().items() for n in range(count)}
        disorder = [
            r for r in world.rows("delivery") if r["duplicated"] or r["out_of_order"] or r["corrupted"]
        ]
    assert set(committed) == emitted
    assert max(committed.values()) == 1
    assert not disorder
    found.records = len(emitted)
    return found


def numbers(world: Any, until: int | None = None) -> Counter[tuple[str, int]]:
    """Every number that a sink has committed, up to a checkpoint."""
    everything = world.rows("delivery")
    world.rows = lambda table: [r for r in everything if until is None or r["checkpoint"] <= until]
    try:
        return Counter({(s, n): t for s, found in world.delivered().items() for n, t in found.items()})
    finally:
        del world.rows


@pytest.mark.virtual
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_record_in_flight_is_lost_or_repeated_at_another_parallelism(chunk: int) -> None:
    """The commits of both jobs together hold every record once. No network buffer leaks."""
    seeds = range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)
    found = [run_virtual(run(seed)) for seed in seeds]
    assert sum(one.persisted > 0 for one in found) > SEEDS_PER_CHUNK / 2
    assert sum(one.records for one in found) > 50 * SEEDS_PER_CHUNK


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(CHUNKS, CHUNKS + SOAK_CHUNKS))
def test_no_record_of_three_thousand_seeds_is_lost_or_repeated(chunk: int) -> None:
    """The same for a quarter of an hour."""
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        run_virtual(run(seed))


@pytest.mark.virtual
def test_the_example_goes_on_with_the_records_in_flight_and_1_12_refuses_it(tmp_path: Path) -> None:
    """The second run of the example commits records that are older than those that it emits."""
    document = yaml.safe_load(EXAMPLE.read_text())
    run_document(document, tmp_path / "first", variants=["before"])
    kept = tmp_path / "first" / "files" / "before-1"
    document["spec"]["testbed"]["flinkConfiguration"]["execution.state-recovery.path"] = str(kept)
    result, _ = run_document(document, tmp_path / "second", variants=["after"])
    assert result.verdict.verdict == "Pass"
    trial = read_trial(tmp_path / "second" / "history" / "after-1", run=RUN, trial="after-1")
    starts, oldest = source_starts(trial), dict[str, int]()
    for row in trial.rows("delivery"):
        bits = int.from_bytes(row["bitmap"], "little")
        first = row["base"] + (bits & -bits).bit_length() - 1
        oldest[row["source"]] = min(first, oldest.get(row["source"], first))
    assert all(oldest[source] < start for source, start in starts.items())
    document["spec"]["testbed"]["flinkVersion"] = "1.12"
    result, _ = run_document(document, tmp_path / "refused", variants=["after"])
    assert result.verdict.verdict == "Error"
    assert "Flink 1.12 restores it at the same parallelism only" in result.verdict.summary
