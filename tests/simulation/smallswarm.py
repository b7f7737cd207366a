"""Thousands of small jobs drawn from seeds: kills, pauses and cuts while checkpoints are aligned, unaligned or time out."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from msgspec import Struct

from testbed_runtime.core.ids import JOB, JOBMANAGER
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.transport.links import LinkProfile
from tests.simulation.smallworld import SmallWorld, small_world

UNALIGNED = "execution.checkpointing.unaligned.enabled"
ALIGNED_TIMEOUT = "execution.checkpointing.aligned-checkpoint-timeout"
POLL_S = 0.25
"""A client that asks more often whether the job has drained only adds work."""
KINDS = ("kill", "kill", "pause", "cut", "reset", "slow", "jobmanager")


class Fault(Struct, frozen=True):
    kind: str
    at_s: float
    duration_s: float
    target: str
    other: str


class Drawn(Struct, frozen=True):
    """A small job, its options and its faults."""

    seed: int
    graph: JobGraph
    configuration: dict[str, str]
    slots: int
    faults: tuple[Fault, ...]
    run_s: float

    @property
    def unaligned(self) -> bool:
        return self.configuration.get(UNALIGNED) == "true"


@dataclass
class Outcome:
    """The effect of a seed, and the rules that it violated."""

    drawn: Drawn
    violations: list[str] = field(default_factory=list)
    records: int = 0
    restarts: int = 0
    restored_bytes: int = 0
    """Channel state of the checkpoints from which the job was restored."""


def draw(seed: int) -> Drawn:
    random = Random(f"small-swarm/{seed}")
    mode = random.choice(("aligned", "unaligned", "unaligned", "timeout"))
    configuration = {
        "execution.checkpointing.interval": random.choice(("60 ms", "120 ms")),
        "taskmanager.memory.segment-size": random.choice(("256 b", "1 kb")),
        "taskmanager.network.memory.buffers-per-channel": random.choice(("0", "1", "2")),
        "execution.buffer-timeout.interval": random.choice(("0 ms", "20 ms")),
        UNALIGNED: "false" if mode == "aligned" else "true",
        ALIGNED_TIMEOUT: random.choice(("5 ms", "30 ms")) if mode == "timeout" else "0 ms",
    }
    slots = random.choice((1, 2))
    targets = [f"tm-{n}" for n in range(4 // slots)]
    faults = tuple(
        Fault(
            kind=random.choice(KINDS),
            at_s=random.uniform(0.1, 0.5),
            duration_s=random.choice((0.02, 0.2, 0.6)),
            target=target,
            other=random.choice([name for name in targets if name != target]),
        )
        for target in (random.choice(targets) for _ in range(random.choice((1, 2, 2))))
    )
    return Drawn(seed, _graph(random), configuration, slots, faults, run_s=0.5)


def _graph(random: Random) -> JobGraph:
    """Two subtasks of each vertex; most sinks are slower than the source, so that data is always in flight."""
    rate = random.choice((100.0, 240.0))
    edges = random.choice((("hash", "rebalance"), ("rebalance", "hash"), ("hash", "forward")))
    operator = OperatorConfig(random.choice(("keyed-count", "map")))
    sink = SinkConfig(service_time_s=random.choice((0.0, 0.015, 0.03)))
    source = SourceConfig(records_per_second=rate, keys=8, record_bytes=random.choice((60, 300)))
    return JobGraph(
        JOB,
        (
            JobVertex("source", 2, 128, "a", source=source),
            JobVertex("work", 2, 128, "b", operator=operator),
            JobVertex("sink", 2, 128, "b", sink=sink),
        ),
        (JobEdge("source", "work", edges[0]), JobEdge("work", "sink", edges[1])),
        seed=random.randrange(1 << 16),
    )


Check = Callable[[SmallWorld], Awaitable[list[str]]]
"""Returns further rules that a world violated at its end."""


def run_seed(
    seed: int,
    *,
    drawn: Drawn | None = None,
    check: Check | None = None,
    blobs: MemoryBlobStore | None = None,
) -> Outcome:
    """Run a seed, or what was drawn from it, to its end in virtual time."""
    outcome = Outcome(drawn or draw(seed))
    try:
        run_virtual(_run(outcome, check, blobs))
    except AssertionError as error:
        outcome.violations.append(str(error))
    return outcome


async def _run(outcome: Outcome, check: Check | None, blobs: MemoryBlobStore | None) -> None:
    drawn = outcome.drawn
    async with small_world(
        seed=drawn.seed,
        taskmanagers=4 // drawn.slots,
        slots=drawn.slots,
        configuration=drawn.configuration,
        blobs=blobs,
    ) as world:
        await world.submit(drawn.graph)
        async with asyncio.TaskGroup() as group:
            for fault in drawn.faults:
                group.create_task(_inject(world, fault))
            group.create_task(asyncio.sleep(drawn.run_s))
        await world.drain(poll_s=POLL_S)
        if check is not None:
            outcome.violations += await check(world)
    _judge(world, outcome)


async def _inject(world: SmallWorld, fault: Fault) -> None:
    """Inject a fault and end it. A process that another fault has killed is left alone."""
    await asyncio.sleep(fault.at_s)
    processes, fabric = world.processes, world.fabric
    links = ((fault.target, fault.other), (fault.other, fault.target))
    match fault.kind:
        case "kill":
            processes.kill(fault.target)
        case "jobmanager":
            processes.kill(JOBMANAGER)
            await asyncio.sleep(fault.duration_s)
            if processes.get(JOBMANAGER) is None:
                await processes.start(JOBMANAGER)
        case "pause":
            processes.pause(fault.target)
            await asyncio.sleep(fault.duration_s)
            processes.resume(fault.target)
        case "cut":
            for link in links:
                fabric.hold(*link, lost=True)
            await asyncio.sleep(fault.duration_s)
            for link in links:
                fabric.hold(*link)
        case "slow":
            fabric.shape(
                *links[0], LinkProfile(latency_s=fault.duration_s / 4, jitter_s=fault.duration_s / 8)
            )
            await asyncio.sleep(fault.duration_s)
            fabric.shape(*links[0], None)
        case "reset":
            fabric.reset(*links[0])


def _judge(world: SmallWorld, outcome: Outcome) -> None:
    """Compare what was emitted with what was committed. Leaked buffers and asyncio's complaints are found before."""
    delivered, events = world.delivered(), world.rows("events")
    emitted = {
        row["subject"]: json.loads(row["data"])["next"] for row in events if row["kind"] == "source.end"
    }
    for source, count in sorted(emitted.items()):
        numbers = delivered.get(source, Counter())
        lost = [n for n in range(count) if n not in numbers]
        twice = [n for n, times in numbers.items() if times > 1]
        if lost:
            outcome.violations.append(f"{source}: {len(lost)} of {count} lost, the first is {lost[0]}")
        if twice:
            outcome.violations.append(
                f"{source}: {len(twice)} of {count} duplicated, the first is {twice[0]}"
            )
        outcome.records += count
    if not outcome.records:
        outcome.violations.append("nothing was emitted")
    for row in world.rows("delivery"):
        if row["duplicated"] or row["out_of_order"] or row["corrupted"]:
            outcome.violations.append(f"a sink saw {row}")
    restored = Counter(row["checkpoint"] for row in events if row["kind"] == "task.restored")
    persisted = Counter[int]()
    for row in world.checkpoints("acknowledged"):
        persisted[row["checkpoint"]] += row["persisted_bytes"]
    outcome.restarts = len(restored)
    outcome.restored_bytes = sum(persisted[checkpoint] for checkpoint in restored)
