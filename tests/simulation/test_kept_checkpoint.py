"""Jobs that start from the checkpoint that an earlier run has kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.checking.delivery import source_ends, source_starts
from tests.simulation.simulating import run_document, run_one

pytestmark = pytest.mark.virtual

JOB: dict[str, Any] = {
    "vertices": [
        {"name": "source", "source": {"recordsPerSecond": 500, "keys": 100}, "slotSharingGroup": "a"},
        {"name": "window", "parallelism": 2, "operator": "window", "window": "1 s", "slotSharingGroup": "b"},
        {"name": "sink", "sink": "ledger", "slotSharingGroup": "b"},
    ],
    "edges": [{"from": "source", "to": "window"}, {"from": "window", "to": "sink"}],
}
KILL = {"name": "kill", "at": "0 s", "duration": "500 ms", "jobmanager": {"kill": {}}}


def document(interval: str, kept: Path | None = None, *faults: dict[str, Any]) -> dict[str, Any]:
    """A run of the job that keeps its last checkpoint. With Flink 2.3, the first checkpoint would come as soon as all tasks run."""
    configuration = {
        "heartbeat.interval": "500 ms",
        "heartbeat.timeout": "2 s",
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        **({} if kept is None else {"execution.state-recovery.path": str(kept)}),
    }
    testbed = {
        "flinkVersion": "2.2",
        "taskManagers": {"replicas": 3},
        "flinkConfiguration": configuration,
        "job": JOB,
    }
    timeline = {"warmUp": "2 s", "baseline": "2 s", "observation": "10 s", "drain": "60 s"}
    spec = {"seed": 3, "testbed": testbed, "timeline": timeline, "faults": list(faults)}
    head = {"apiVersion": "headgate.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "kept"}}
    return {**head, "spec": spec}


def test_a_job_that_loses_its_jobmanager_before_a_checkpoint_of_its_own_starts_from_the_kept_one_again(
    tmp_path: Path,
):
    """The earlier run's records are neither lost nor emitted again. The new job's time goes on, so the source is on schedule."""
    first = run_one(document("1 s"), tmp_path / "first")
    kept = tmp_path / "first" / "files" / "main-1"
    second = run_one(document("1 h", kept, KILL), tmp_path / "second")
    assert [ran.complaints for ran in (first, second)] == [[], []]
    ends = [source_ends(ran.trial)["source-0"] for ran in (first, second)]
    assert source_starts(second.trial) == {"source-0": ends[0]}
    restored = [row for row in second.trial.rows("events") if row["kind"] == "task.restored"]
    assert {row["checkpoint"] for row in restored} == {first.trial.rows("checkpoints")[-1]["checkpoint"]}
    assert {row["attempt"] for row in restored if row["subject"] == "source-0"} == {0, 1}
    found = {
        name: second.metrics[f"delivery.{name}"] for name in ("lost", "duplicated", "corrupted", "committed")
    }
    assert found == {"lost": 0, "duplicated": 0, "corrupted": 0, "committed": ends[1] - ends[0]}
    started, ended = (
        next(row["t_ns"] for row in second.trial.rows("events") if row["kind"] == kind)
        for kind in ("job.restored", "source.end")
    )
    assert ends[1] - ends[0] == pytest.approx(500 * (ended - started) / 1e9, abs=50)


def test_a_job_without_a_max_parallelism_goes_on_with_the_key_groups_of_the_checkpoint(tmp_path: Path):
    """64 of them, although 128 would be computed for a new job."""
    before = document("1 s")
    vertices: list[dict[str, Any]] = [
        {**vertex, "operator": "keyed-count", "maxParallelism": 64} if vertex["name"] == "window" else vertex
        for vertex in JOB["vertices"]
    ]
    del vertices[1]["window"]
    before["spec"]["testbed"]["job"] = {**JOB, "vertices": vertices}
    first = run_one(before, tmp_path / "first")
    after = document("1 s", tmp_path / "first" / "files" / "main-1")
    unset = {key: value for key, value in vertices[1].items() if key != "maxParallelism"}
    after["spec"]["testbed"]["job"] = {
        **JOB,
        "vertices": [vertices[0], {**unset, "parallelism": 3}, vertices[2]],
    }
    after["spec"]["testbed"]["taskManagers"]["replicas"] = 4
    second = run_one(after, tmp_path / "second")
    assert [ran.complaints for ran in (first, second)] == [[], []]
    assert {name: second.metrics[f"delivery.{name}"] for name in ("lost", "duplicated")} == {
        "lost": 0,
        "duplicated": 0,
    }
    blobs = tmp_path / "second" / "files" / "main-1"
    (graph,) = blobs.rglob("graph")
    assert '"name":"window","parallelism":3,"max_parallelism":64' in graph.read_text()


def test_an_incomplete_kept_checkpoint_ends_the_run_with_the_missing_object(tmp_path: Path):
    """Nothing starts from half of the state."""
    run_document(document("1 s"), tmp_path / "first")
    kept = tmp_path / "first" / "files" / "main-1"
    gone = max(kept.rglob("checkpoints/*/window-1/*"), key=lambda path: int(path.parts[-3]))
    gone.unlink()
    result, _ = run_document(document("1 s", kept), tmp_path / "second")
    assert result.verdict.verdict == "Error"
    assert f"{gone.relative_to(kept)} of the checkpoint is missing" in str(result.verdict)
