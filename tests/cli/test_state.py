"""`headgate state`: the keyed state of a kept checkpoint, at the job's parallelism and at others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from testbed_runtime.core.job.jobgraph import JobGraph, JobVertex, OperatorConfig, SinkConfig, SourceConfig
from testbed_runtime.core.job.statememory import StateBackendConfig
from testbed_runtime.core.options import Options
from testbed_runtime.jobmanager.jobstore import CompletedCheckpoint, JobStore, StoredJob, StoredTask
from testbed_runtime.store.blobstore import FolderBlobStore
from testbed_runtime.store.statefiles import MemoryStateFiles
from testbed_runtime.taskmanager.statefiles import AttemptFiles, StateBackend
from testbed_runtime.workload.keyedstate import SubtaskContext, TimeToLive
from testbed_runtime.workload.keys import key_groups, subtasks_of
from testbed_runtime.workload.snapshots import SubtaskSnapshot, encode_snapshot
from testbed_runtime.workload.sortedfile import Rows

KEYS = 1000


def graph(ttl_s: float) -> JobGraph:
    """A source, a keyed count of parallelism 2, a sink."""
    return JobGraph(
        "job",
        (
            JobVertex("source", 1, 128, source=SourceConfig()),
            JobVertex("count", 2, 128, operator=OperatorConfig("keyed-count", state_ttl_s=ttl_s)),
            JobVertex("sink", 1, 128, sink=SinkConfig()),
        ),
        (),
    )


async def keep(folder: Path, backend: str, ttl_s: float = 0.0) -> None:
    """Write checkpoint 7, triggered after 15 s, of a job whose keys 0 to 999 were counted 1 to 1000 times: those up to 499 at the
    start, the others after 9 s."""
    now_s = 0
    ttl = TimeToLive(round(ttl_s * 1e9), lambda: now_s * 10**9)
    blobs = FolderBlobStore(folder)
    keys = Rows.of([((0, key), (key + 1, 0, b"")) for key in range(KEYS)])
    owners = subtasks_of(key_groups(keys.keys, 128), 2, 128)
    tasks = []
    for subtask in range(2):
        mine = keys.chosen(owners == subtask)
        config = StateBackendConfig.of(Options({"state.backend.type": backend}), 1)
        files = AttemptFiles(
            StateBackend(config, MemoryStateFiles()), job="j", attempt=f"a{subtask}", allocation=""
        )
        state = files.state(SubtaskContext(1, "count", subtask, 2, 128, 0, ()), ttl)
        for now_s, some in ((0, mine.chosen(mine.keys < 500)), (9, mine.chosen(mine.keys >= 500))):  # noqa: B007 - the clock of `ttl`
            state.add(0, some.keys.tolist(), some.counts.tolist(), {})
        snapshot = state.snapshot(SubtaskSnapshot(7, "count", subtask, 2, 128))
        key = f"jobs/j/checkpoints/7/count-{subtask}/a"
        upload = files.plan(snapshot, key)
        await files.store(upload, blobs)
        await blobs.put(key, encode_snapshot(upload.snapshot))
        tasks.append(StoredTask("count", subtask, 0, key, 1, shared=upload.handles))
    store = JobStore(blobs)
    await store.put_job(StoredJob("j", graph(ttl_s), {}, 0.0))
    await store.put_checkpoint(CompletedCheckpoint(7, "j", 15_000, False, tuple(tasks)))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("parallelism", [0, 1, 3])
def test_every_entry_is_restored_by_one_subtask(headgate, tmp_path, backend, parallelism):
    """At the job's own parallelism, 2, and at others: the key groups are split, and no count is lost."""
    asyncio.run(keep(tmp_path, backend))
    said = headgate("state", str(tmp_path), "--parallelism", str(parallelism), "--json")
    found = json.loads(said.stdout)
    subtasks = found["subtasks"]
    assert (found["checkpoint"], len(subtasks)) == (7, parallelism or 2)
    assert sum(one["entries"] for one in subtasks) == KEYS
    assert sum(one["counted"] for one in subtasks) == KEYS * (KEYS + 1) // 2
    firsts = [one["first_key_group"] for one in subtasks]
    assert firsts == [0] + [one["last_key_group"] + 1 for one in subtasks[:-1]]
    assert subtasks[-1]["last_key_group"] == 127


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize(("ttl_s", "entries"), [(16.0, KEYS), (10.0, KEYS // 2), (5.0, 0)])
def test_entries_that_had_expired_are_left_out(headgate, tmp_path, backend, ttl_s, entries):
    """They were written 15 and 6 s before the checkpoint was triggered."""
    asyncio.run(keep(tmp_path, backend, ttl_s))
    found = json.loads(headgate("state", str(tmp_path), "--json").stdout)["subtasks"]
    assert sum(one["entries"] for one in found) == entries


def test_another_max_parallelism_is_refused_in_flinks_words(headgate, tmp_path):
    """The groups of the keys would not match."""
    asyncio.run(keep(tmp_path, "hashmap"))
    said = headgate("state", str(tmp_path), "--max-parallelism", "256")
    assert said.returncode == 2
    assert (
        "Cannot map operator count with max parallelism 128 to new program with max parallelism 256"
        in said.stderr
    )
    assert "checkpoint 7" in headgate("state", str(tmp_path), "--max-parallelism", "128").stdout


def test_a_folder_without_a_checkpoint_says_which_option_keeps_one(headgate, tmp_path):
    """Bad input."""
    said = headgate("state", str(tmp_path))
    assert said.returncode == 2
    assert "externalized-checkpoint-retention: RETAIN_ON_CANCELLATION" in said.stderr
    assert "is more than the max parallelism" in _too_wide(headgate, tmp_path)


def _too_wide(headgate, folder):
    asyncio.run(keep(folder, "hashmap"))
    return headgate("state", str(folder), "--parallelism", "300").stderr
