"""Work costs processor time in virtual time if it is asked for: the throughput of a busy task, and what a buffer timeout costs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from testbed_runtime.core.ids import JOB
from testbed_runtime.core.job.cost import CALIBRATIONS, CORES, COST
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex, SinkConfig, SourceConfig
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.process import TaskManager
from testbed_runtime.taskmanager.work import QUANTUM_S, TICK_S, Cores, TaskWork
from tests.simulation.smallworld import SmallWorld, small_world

pytestmark = pytest.mark.virtual

PRICES = CALIBRATIONS["flink-2.3"]
START_S = 0.05


@dataclass(frozen=True, slots=True)
class Measured:
    """The work of a job in a time: records at its sinks per second, and for each of them processor time, buffers to another
    TaskManager, and buffers that were read."""

    rate: float
    cpu_s: float
    buffers: float
    read: float


def _counts(world: SmallWorld) -> tuple[int, float, int, int]:
    shells = [p.shell for n in world.names if (p := world.processes.get(n)) is not None]
    managers = [s for s in shells if isinstance(s, TaskManager)]
    cores = [m.cores for m in managers if m.cores is not None]
    records = sum(task.meter.records_in for m in managers for task in m.tasks)
    read = sum(task.meter.buffers_in for m in managers for task in m.tasks)
    return records, sum(c.spent_s for c in cores), sum(c.buffers for c in cores), read


async def _measure(
    rate: float,
    timeout_ms: int,
    seconds: float,
    *,
    sinks: int,
    sources: int = 1,
    cost: str = "flink-2.3",
    cores: str = "",
) -> Measured:
    configuration = {
        COST: cost,
        **({CORES: cores} if cores else {}),
        "execution.buffer-timeout.interval": f"{max(0, timeout_ms)} ms",
        "execution.buffer-timeout.enabled": str(timeout_ms >= 0).lower(),
        "execution.checkpointing.interval": "1 h",
        "slot.request.max-interval": "0 ms",  # the job starts at once
        "slotmanager.requirement-check.delay": "0 ms",
        "taskmanager.memory.segment-size": "32 kb",
        "taskmanager.memory.network.min": "64 mb",
        "taskmanager.memory.network.max": "64 mb",
    }
    source = SourceConfig(records_per_second=rate, record_bytes=100, keys=100_000)
    vertices = (
        JobVertex("source", sources, 128, "a", source=source),
        JobVertex("sink", sinks, 128, "b", sink=SinkConfig()),
    )
    job = JobGraph(JOB, vertices, (JobEdge("source", "sink", "hash"),))
    async with small_world(configuration=configuration, taskmanagers=2, slots=sinks) as world:
        await world.submit(job)
        await asyncio.sleep(START_S)
        before = _counts(world)
        await asyncio.sleep(seconds)
        records, *work = (a - b for a, b in zip(_counts(world), before, strict=True))
        await world.drain()
    return Measured(records / seconds, *(done / max(1, records) for done in work))


def measure(rate: float, timeout_ms: int, seconds: float, **shape: int | str) -> Measured:
    """Run a job of this shape: see `_measure`."""
    return run_virtual(_measure(rate, timeout_ms, seconds, **shape))


def test_a_busy_source_emits_as_many_records_as_its_price_allows():
    """A source with a core of its own writes one record in the price of a record, however many are due."""
    found = measure(8_000_000, 100, 0.1, sinks=2)
    assert found.rate == pytest.approx(1 / PRICES.record_out_s, rel=0.1)


def test_a_core_is_shared():
    """A source and its consumers that share half a core get half of it between them: the processor time sets the rate."""
    found = measure(8_000_000, 100, 0.1, sinks=2, cores="0.5")
    assert found.rate < 0.6 / PRICES.record_out_s


def test_work_without_prices_takes_no_time():
    """Without a cost the source emits what is due, and no processor time is counted."""
    found = measure(8_000_000, 100, 0.02, sinks=2, cost="none")
    assert found.rate == pytest.approx(8_000_000, rel=0.1)
    assert (found.cpu_s, found.buffers) == (0, 0)


def test_a_longer_buffer_timeout_saves_buffers_and_their_price():
    """Below saturation the timeout decides how many records share a buffer, so processor time falls from step to step."""
    found = [measure(20_000, timeout_ms, 1.0, sinks=64) for timeout_ms in (10, 100, 500)]
    assert found[0].buffers > found[1].buffers > found[2].buffers
    assert found[0].cpu_s > found[1].cpu_s > found[2].cpu_s
    assert [f.rate for f in found] == pytest.approx([20_000] * 3, rel=0.2), (
        "a second has two flushes of 500 ms"
    )


def test_a_busy_job_is_faster_with_a_longer_buffer_timeout_up_to_no_flusher():
    """256 channels, always behind: 1 ms has 60 to 90 % of the throughput of 100 ms; 10 ms and more are within 10 % of no flusher.
    Each step up saves buffers."""
    found = {ms: measure(10_000_000, ms, 0.1, sinks=16, sources=16, cores="1") for ms in (0, 1, 10, 100, -1)}
    rates = {ms: f.rate / found[-1].rate for ms, f in found.items()}
    assert rates[0] < rates[1] < rates[10] < rates[100] < 1.02
    assert 0.6 < rates[1] / rates[100] < 0.9
    assert rates[10] > 0.9
    assert found[0].read > found[1].read > found[10].read > found[100].read > found[-1].read


@pytest.mark.parametrize(
    ("timeout_ms", "cores", "read"), [(1, "0.785", 9.4), (10, "0.815", 5.8), (100, "0.815", 4.0)]
)
def test_a_busy_job_sends_as_many_buffers_as_flink_with_the_same_processor_time(timeout_ms, cores, read):
    """Buffers per 1,000 records of the first rounds in benchmarks/cost.md, with the cores that Flink's processes got."""
    found = measure(10_000_000, timeout_ms, 0.2, sinks=16, sources=16, cores=cores)
    assert found.read * 1000 == pytest.approx(read, rel=0.1)


class _Busy:
    """A task that always wants a core, and how long it had one."""

    def __init__(self, cores: Cores) -> None:
        self.had_s = 0.0
        self._running = asyncio.create_task(self._run(cores), name="busy")

    async def _run(self, cores: Cores) -> None:
        work = TaskWork(cores, None, None)  # type: ignore[arg-type] - neither meter nor output is asked
        while True:
            await cores.spend(work, QUANTUM_S)
            self.had_s += QUANTUM_S

    async def end(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


async def _longest_wait() -> float:
    """Return how long a task that wants a core each 11.3 ms waited for it, beside ten that always want it."""
    cores, loop = Cores(PRICES, 1), asyncio.get_running_loop()
    others = [_Busy(cores) for _ in range(10)]
    await asyncio.sleep(0.1)
    work, longest = TaskWork(cores, None, None), 0.0  # type: ignore[arg-type]
    for _ in range(20):
        await asyncio.sleep(0.0113)
        asked = loop.time()
        await cores.spend(work, QUANTUM_S)
        longest = max(longest, loop.time() - asked - QUANTUM_S)
    for task in others:
        await task.end()
    return longest


def test_a_task_that_was_woken_waits_for_a_tick_at_most():
    """The task that has received the least is next: it does not wait for all that always run."""
    assert run_virtual(_longest_wait()) <= TICK_S + QUANTUM_S


async def _share_of_a_newcomer() -> float:
    """Return the share of a core that a task gets in 40 ms, beside one that had it alone for a second."""
    cores = Cores(PRICES, 1)
    old = _Busy(cores)
    await asyncio.sleep(1)
    new = _Busy(cores)
    await asyncio.sleep(0.04)
    for task in (old, new):
        await task.end()
    return new.had_s / 0.04


def test_a_newcomer_is_not_owed_the_time_before():
    """The older task goes on with half of the core, but for what a task that has waited is owed."""
    assert run_virtual(_share_of_a_newcomer()) == pytest.approx(0.5, abs=0.1)


def test_the_flusher_of_an_idle_output_costs_time_too():
    """Its thread wakes up each interval, whatever was written."""
    idle, waking = (measure(100, ms, 1.0, sinks=2).cpu_s * 100 for ms in (-1, 1))
    assert waking - idle == pytest.approx(1000 * PRICES.flush_s, rel=0.2)
