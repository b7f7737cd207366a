"""Unaligned checkpoints of whole jobs in virtual time: how long they take under back-pressure, and what a restore replays."""

from __future__ import annotations

import asyncio
from statistics import mean
from typing import Any

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
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.input import TaskInput
from testbed_runtime.taskmanager.services import Pace
from tests.simulation.smallswarm import ALIGNED_TIMEOUT, KINDS, UNALIGNED, Outcome, draw, run_seed
from tests.simulation.smallworld import SmallWorld, small_world

RUN_S = 8.0
CHUNKS = 40
SEEDS_PER_CHUNK = 50
"""Together 2,000 seeds. benchmarks/simulate.md has the processor time of a seed."""
SOAK_CHUNKS = 400
SOAK_SEEDS_PER_CHUNK = 250
"""Together 100,000 seeds, after the quick ones."""
RESTORED_WITH_DATA_IN_FLIGHT = 1
DRAINED_WHILE_A_TASKMANAGER_IS_GONE = (3371, 8479)
"""The final checkpoint was triggered again and again at the moment at which it failed, and the time stood still."""


def slow_sink(rate: float = 400.0) -> JobGraph:
    """Sources that are faster than two sinks, which take 200 records/s together: every queue fills up."""
    return JobGraph(
        JOB,
        (
            JobVertex("source", 2, 128, "a", source=SourceConfig(records_per_second=rate, record_bytes=60)),
            JobVertex("work", 2, 128, "b", operator=OperatorConfig("keyed-count")),
            JobVertex("sink", 2, 128, "c", sink=SinkConfig(service_time_s=0.01)),
        ),
        (JobEdge("source", "work", "hash"), JobEdge("work", "sink", "rebalance")),
    )


async def _checkpoints(world_options: dict[str, str]) -> tuple[SmallWorld, list[float]]:
    """Run a back-pressured job. Return its world and the durations of its completed checkpoints once it is saturated."""
    async with small_world(configuration=world_options) as world:
        await world.submit(slow_sink())
        await asyncio.sleep(RUN_S)
        rows = world.checkpoints("completed")
        await world.drain()
    world.assert_exact()
    return world, [row["duration_ns"] / 1e9 for row in rows[1:]]


def test_under_back_pressure_unaligned_checkpoints_are_five_times_faster() -> None:
    """An aligned barrier waits for the queues to be read; an unaligned one waits for the records of one buffer."""
    interval = {"execution.checkpointing.interval": "300 ms"}
    _, aligned = run_virtual(_checkpoints(interval))
    _, unaligned = run_virtual(_checkpoints({**interval, UNALIGNED: "true"}))
    assert len(unaligned) > len(aligned) >= 2
    assert mean(aligned) >= 5 * mean(unaligned)


def test_an_aligned_checkpoint_becomes_unaligned_after_its_timeout() -> None:
    """It takes the timeout plus what an unaligned one takes, and it persists channel state."""
    timeout_s = 0.25
    options = {"execution.checkpointing.interval": "600 ms", UNALIGNED: "true"}
    _, unaligned = run_virtual(_checkpoints(options))
    world, limited = run_virtual(_checkpoints({**options, ALIGNED_TIMEOUT: "250 ms"}))
    assert timeout_s <= min(limited)
    assert mean(limited) <= timeout_s + 2 * mean(unaligned)
    assert sum(row["persisted_bytes"] for row in world.checkpoints("acknowledged")) > 0


def _with_debloating(enabled: str) -> tuple[float, int]:
    """Run a saturated job for 40 s. Return the mean time of its later checkpoints, and the bytes in flight at the end."""
    options = {
        "taskmanager.memory.segment-size": "4 kb",
        "taskmanager.memory.network.min": "4 mb",
        "taskmanager.memory.network.max": "4 mb",
        "execution.checkpointing.interval": "1 s",
        "taskmanager.network.memory.buffer-debloat.enabled": enabled,
        "taskmanager.network.memory.buffer-debloat.target": "500 ms",
    }

    async def main() -> tuple[list[float], list[dict[str, Any]]]:
        async with small_world(configuration=options, pace=Pace(sample_s=1.0, lazy=True)) as world:
            await world.submit(slow_sink(rate=4000.0))
            await asyncio.sleep(40.0)
            durations = [row["duration_ns"] / 1e9 for row in world.checkpoints("completed")]
            rows = world.rows("tasks")
            await world.drain()
            return durations, rows

    durations, rows = run_virtual(main())
    last = {row["task"]: row for row in rows}
    sent = sum(row["bytes_out"] for row in last.values() if row["role"] == "source")
    received = sum(row["bytes_in"] for row in last.values() if row["role"] == "sink")
    return mean(durations[1:] or durations), sent - received


def test_debloating_keeps_less_data_in_flight_and_shortens_aligned_checkpoints() -> None:
    """The sinks take 200 × 64 bytes a second: two stages with a target of 500 ms hold about 12,800 bytes, and a barrier
    passes both in about a second; rounding to whole records and the least buffer size double that at most."""
    full_s, full_bytes = _with_debloating("false")
    short_s, short_bytes = _with_debloating("true")
    stages, target_s, rate = 2, 0.5, 200 * 64
    assert short_bytes <= 2 * stages * target_s * rate
    assert short_s <= 2 * stages * target_s
    assert full_bytes >= 5 * short_bytes
    assert full_s >= 5 * short_s


def test_records_in_flight_are_restored_once() -> None:
    """The TaskManager of a slow sink is killed: the checkpoint holds records that no source emits again."""

    async def main() -> SmallWorld:
        async with small_world(configuration={UNALIGNED: "true"}) as world:
            await world.submit(slow_sink())
            await asyncio.sleep(3.0)
            world.processes.kill((await world.client.status()).placement["sink-0"])
            await asyncio.sleep(3.0)
            await world.drain()
        return world

    world = run_virtual(main())
    world.assert_exact()
    restored = {row["checkpoint"] for row in world.events("task.restored")}
    persisted = {
        row["task"]: row["persisted_bytes"]
        for row in world.checkpoints("acknowledged")
        if row["checkpoint"] in restored
    }
    assert len(restored) == 1
    assert persisted["source-0"] > 0
    assert persisted["sink-0"] > 0


def test_at_least_once_loses_nothing_and_may_deliver_twice() -> None:
    """Barriers do not align: a sink commits records that one source emits again after the restore."""

    async def main() -> SmallWorld:
        async with small_world(configuration={"execution.checkpointing.mode": "AT_LEAST_ONCE"}) as world:
            await world.submit(slow_sink())
            await asyncio.sleep(3.0)
            world.processes.kill((await world.client.status()).placement["source-0"])
            await asyncio.sleep(3.0)
            await world.drain()
        return world

    world = run_virtual(main())
    delivered, emitted = world.delivered(), world.emitted()
    assert len(emitted) == 2
    for source, count in emitted.items():
        assert set(delivered[source]) == set(range(count))
    assert max(times for numbers in delivered.values() for times in numbers.values()) == 2


def test_the_swarm_notices_lost_channel_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed passes when the state is restored."""
    assert not run_seed(RESTORED_WITH_DATA_IN_FLIGHT).violations
    monkeypatch.setattr(TaskInput, "recover", lambda self, states: None)
    assert any("lost" in violation for violation in run_seed(RESTORED_WITH_DATA_IN_FLIGHT).violations)


@pytest.mark.parametrize("seed", DRAINED_WHILE_A_TASKMANAGER_IS_GONE)
def test_the_final_checkpoint_waits_for_the_failover_of_a_killed_taskmanager(seed: int) -> None:
    """Its tasks are not known to be dead yet, and every trigger is refused at once."""
    assert run_seed(seed).violations == []


def violations_of(outcomes: list[Outcome]) -> dict[int, list[str]]:
    """The violations of the seeds that have any."""
    return {outcome.drawn.seed: outcome.violations for outcome in outcomes if outcome.violations}


def test_the_draws_have_each_fault_with_each_kind_of_checkpoint() -> None:
    """Aligned, unaligned from the start, and unaligned after a timeout."""
    drawn = [draw(seed) for seed in range(CHUNKS * SEEDS_PER_CHUNK)]
    found = {
        (fault.kind, job.unaligned, job.configuration[ALIGNED_TIMEOUT] != "0 ms")
        for job in drawn
        for fault in job.faults
    }
    modes = ((False, False), (True, False), (True, True))
    assert found == {(kind, *mode) for kind in KINDS for mode in modes}


@pytest.mark.virtual
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_kills_cuts_and_pauses_lose_duplicate_and_leak_nothing(chunk: int) -> None:
    """Small jobs with aligned, unaligned and time-limited checkpoints."""
    seeds = range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)
    outcomes = [run_seed(seed) for seed in seeds]
    assert violations_of(outcomes) == {}
    assert any(outcome.restored_bytes for outcome in outcomes), "no restore had channel state"


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(SOAK_CHUNKS))
def test_a_hundred_thousand_seeds_lose_duplicate_and_leak_nothing(chunk: int) -> None:
    """The same for hours."""
    first = CHUNKS * SEEDS_PER_CHUNK + chunk * SOAK_SEEDS_PER_CHUNK
    assert violations_of([run_seed(seed) for seed in range(first, first + SOAK_SEEDS_PER_CHUNK)]) == {}
