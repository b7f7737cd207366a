"""Latency markers: emitted by sources, forwarded by operators, measured at every task."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from testbed_runtime.cli import loading, running
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
from testbed_runtime.workload.records import (
    intact,
    latency_marker,
    marker_positions,
    new_records,
    record_dtype,
)
from tests.simulation.smallworld import small_world

pytestmark = pytest.mark.virtual


def graph(operator: OperatorConfig) -> JobGraph:
    """Two sources, two operators, two sinks, all-to-all: markers reach every pair."""
    vertices = (
        JobVertex(
            "source", 2, 128, "a", source=SourceConfig(records_per_second=200, record_bytes=100, keys=9)
        ),
        JobVertex("work", 2, 128, "b", operator=operator),
        JobVertex("sink", 2, 128, "b", sink=SinkConfig()),
    )
    return JobGraph(JOB, vertices, (JobEdge("source", "work", "hash"), JobEdge("work", "sink", "hash")))


async def latencies(
    interval: str, operator: OperatorConfig
) -> tuple[dict[tuple[str, str], list[int]], int, int]:
    """Run a job for 10 s. Return the latencies of its markers by source and receiver, how many records the sources emitted,
    and how many the sinks committed."""
    configuration = {
        "metrics.latency.interval": interval,
        "execution.buffer-timeout.interval": "10 ms",
        "execution.checkpointing.interval": "1 s",
    }
    async with small_world(configuration=configuration, taskmanagers=4, slots=1) as world:
        await world.submit(graph(operator))
        await asyncio.sleep(10)
        await world.drain()
        trial = world.history.trial()
    found: dict[tuple[str, str], list[int]] = {}
    emitted = 0
    for row in trial.rows("events"):
        data = json.loads(row["data"] or "{}")
        if row["kind"] == "latency.markers":
            found.setdefault((data["source"], row["subject"]), []).extend(data["ns"])
        emitted += data["next"] if row["kind"] == "source.end" else 0
    rows = trial.rows("delivery")
    committed = sum(int.from_bytes(row["bitmap"], "little").bit_count() for row in rows)
    assert not any(row["corrupted"] or row["duplicated"] for row in rows)
    return found, emitted, committed


def test_markers_are_measured_per_source_subtask_and_receiver_and_change_no_record():
    """Every 100 ms for 10 s: 100 for each source, at a random operator each, and as many at the sinks."""
    found, emitted, committed = run_virtual(latencies("100 ms", OperatorConfig("map")))
    assert emitted == committed > 1900
    received = Counter()
    for (source, receiver), values in found.items():
        received[source, receiver.rpartition("-")[0]] += len(values)
        assert 20 <= len(values) <= 80, "a random channel takes about half of them"
    assert len(found) == 8
    assert set(received) == {(f"source-{i}", to) for i in (0, 1) for to in ("work", "sink")}
    assert all(95 <= count <= 101 for count in received.values())
    medians = {to: np.median([v for (_, r), values in found.items() for v in values if r.startswith(to)])
               for to in ("work", "sink")}  # fmt: skip
    assert 2e6 < medians["work"] < 11e6, "they wait for the flusher of 10 ms like records"
    assert medians["work"] + 3e6 < medians["sink"] < 22e6, "and at the sink for that of the operator too"


def test_markers_bypass_an_operator_that_holds_records_back():
    """A window emits nothing for 5 s; the markers pass it."""
    found, _, _ = run_virtual(latencies("1 s", OperatorConfig("window", window_s=5.0)))
    at_sinks = [
        value for (_, receiver), values in found.items() for value in values if receiver.startswith("sink")
    ]
    assert len(at_sinks) >= 16
    assert max(at_sinks) < 100e6


def test_without_an_interval_there_are_none():
    """Flink's default."""
    assert run_virtual(latencies("0 ms", OperatorConfig("map")))[0] == {}


def test_a_damaged_record_is_no_marker():
    """A count of 0 without the checksum of a marker."""
    marker = latency_marker(100, 3, 4, 5)
    assert (int(marker["vertex"][0]), int(marker["subtask"][0]), int(marker["due_ns"][0])) == (3, 4, 5)
    assert (marker_positions(marker), intact(marker).all()) == ([0], True)
    marker["checksum"] += np.uint64(1)
    assert marker_positions(marker) == []
    assert marker_positions(new_records(3, record_dtype(100), 0, 0)) == []


def test_the_shipped_example_shows_the_median_of_each_hop(tmp_path: Path):
    """scenarios/examples/latency-markers.yaml: half a timeout for a hop, the whole for two."""
    path = Path(__file__).resolve().parents[2] / "scenarios" / "examples" / "latency-markers.yaml"
    result = running.simulate_loaded(loading.load(path), out=tmp_path, quiet=True)
    assert result.verdict.verdict == "Pass", result.verdict.summary
    rows = json.loads((result.folder / "metrics.json").read_text())
    shown = {
        row["trial"]: row
        for row in rows
        if (row["metric"], row["phase"], row["quantile"]) == ("latency.markers", "observation", 0.5)
    }
    assert shown["flush-10-ms-1"]["value"] == pytest.approx(0.010, abs=0.004)
    assert shown["flush-500-ms-1"]["value"] == pytest.approx(0.5, abs=0.25)
    assert "source → window" in shown["flush-10-ms-1"]["text"]
