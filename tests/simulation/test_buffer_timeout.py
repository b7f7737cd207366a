"""Latency below saturation follows from the buffer timeout and from the time in which a buffer fills, and from nothing else."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from testbed_runtime.core.ids import JOB
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex, SinkConfig, SourceConfig
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.workload.latency import LatencyHistogram
from tests.simulation.smallworld import small_world

pytestmark = pytest.mark.virtual

RECORD_BYTES = 100
SEGMENT_BYTES = 32 * 1024
FILL_RECORDS = SEGMENT_BYTES / (4 + RECORD_BYTES)
"""Records of 100 bytes, each with a length of 4 bytes, that fill a buffer of 32 KiB: 315.08."""
TOLERANCE, ERROR_MS = 0.2, 1.0
SECONDS = {1_000: 4.0, 50_000: 0.5}
SHORT_S = {1_000: 0.5, 50_000: 0.05}
"""Virtual seconds of each rate; fewer if the records travel one by one."""


def one_channel(rate: float) -> JobGraph:
    source = SourceConfig(records_per_second=rate, record_bytes=RECORD_BYTES)
    vertices = (
        JobVertex("source", 1, 128, "a", source=source),
        JobVertex("sink", 1, 128, "b", sink=SinkConfig()),
    )
    return JobGraph(JOB, vertices, (JobEdge("source", "sink", "hash"),))


async def latencies_ms(rate: float, timeout_ms: int, seconds: float, seen: list[np.ndarray]) -> np.ndarray:
    """Run one channel between two TaskManagers. Return the latencies of the records that arrive after a short start."""
    configuration = {
        "execution.buffer-timeout.interval": f"{max(0, timeout_ms)} ms",
        "execution.buffer-timeout.enabled": str(timeout_ms >= 0).lower(),
        "execution.checkpointing.interval": "1 h",
        "taskmanager.memory.segment-size": "32 kb",
        "taskmanager.memory.network.min": "2 mb",
        "taskmanager.memory.network.max": "2 mb",
    }
    async with small_world(configuration=configuration, taskmanagers=2, slots=1) as world:
        await world.submit(one_channel(rate))
        await asyncio.sleep(0.1 if timeout_ms == 0 else 0.7)
        seen.clear()
        await asyncio.sleep(seconds)
        found = np.concatenate(seen) / 1e6
        await world.drain()
    return found


def record_latencies(monkeypatch: pytest.MonkeyPatch, seen: list[np.ndarray]) -> None:
    """Append what a sink adds to its histogram, of many records and of one."""
    monkeypatch.setattr(LatencyHistogram, "add", lambda _, latencies: seen.append(latencies))
    monkeypatch.setattr(LatencyHistogram, "add_one", lambda _, latency: seen.append(np.array([latency])))


def waits_ms(timeout_ms: float, fill_ms: float) -> np.ndarray:
    """Return the wait of each of a thousand records that are written evenly between two ticks of the flusher.

    A buffer starts at a tick. It leaves after `fill_ms`, and so do those after it, until the next tick ends the last one:
    315 ms and 185 ms of 500 ms, for example. A record waits until its buffer leaves."""
    if timeout_ms == 0:
        return np.zeros(1000)
    cycle_ms = fill_ms if timeout_ms < 0 else timeout_ms
    written = np.linspace(0, cycle_ms, 1000, endpoint=False)
    return np.minimum((written // fill_ms + 1) * fill_ms, cycle_ms) - written


@pytest.mark.parametrize("timeout_ms", [0, 1, 10, 100, 500, -1])
@pytest.mark.parametrize("rate", [1_000, 50_000])
def test_latency_follows_the_buffer_timeout(rate, timeout_ms, monkeypatch):
    """A record waits for the flusher's next tick or for a full buffer: p50 is half of min(timeout, fill), p90 0.9 of it."""
    seen: list[np.ndarray] = []
    record_latencies(monkeypatch, seen)
    waits = waits_ms(timeout_ms, FILL_RECORDS / rate * 1000)  # it fills in 315 ms and in 6.3 ms
    seconds = SECONDS[rate] if waits.max() > 1 else SHORT_S[rate]
    found = run_virtual(latencies_ms(rate, timeout_ms, seconds, seen))
    for quantile in (50, 90):
        expected_ms, measured_ms = (
            float(np.percentile(waits, quantile)),
            float(np.percentile(found, quantile)),
        )
        assert abs(measured_ms - expected_ms) <= TOLERANCE * expected_ms + ERROR_MS, quantile
    assert len(found) == pytest.approx(rate * seconds, rel=0.25)


def test_the_waits_are_half_and_nine_tenths_of_the_shorter_time():
    """The law of the documents is the result of the arithmetic if one of the two times is much shorter than the other."""
    for timeout_ms, fill_ms, longest_ms in (
        (10, 315, 10),
        (1, 6.3, 1),
        (100, 315, 100),
        (-1, 315, 315),
        (630, 6.3, 6.3),
    ):
        waits = waits_ms(timeout_ms, fill_ms)
        assert np.percentile(waits, 50) == pytest.approx(longest_ms / 2, rel=0.02)
        assert np.percentile(waits, 90) == pytest.approx(longest_ms * 0.9, rel=0.02)


@pytest.mark.parametrize("rate", [7, 200, 333, 777])
def test_a_source_without_ticks_makes_progress_at_any_rate(rate, monkeypatch):
    """A due time that is no exact number of seconds must not wake the source too early, at the same time again and again."""
    seen: list[np.ndarray] = []
    record_latencies(monkeypatch, seen)
    found = run_virtual(latencies_ms(rate, 0, 3.0, seen))
    assert len(found) == pytest.approx(3 * rate, abs=2)
    assert found.max() < ERROR_MS
