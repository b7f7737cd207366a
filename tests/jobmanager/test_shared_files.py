"""The files of incremental checkpoints while several checkpoints are in progress: none is deleted that one of them may still need."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from testbed_runtime.core.job.statememory import StateBackendConfig
from testbed_runtime.core.options import Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.jobmanager.completed import CompletedCheckpoints
from testbed_runtime.jobmanager.jobstore import CompletedCheckpoint, JobStore, StoredTask
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.process.clock import LoopClock, SeededIds, SeededRandom
from testbed_runtime.process.tasks import TaskKeeper
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.store.statefiles import MemoryStateFiles
from testbed_runtime.taskmanager.localstate import LocalState
from testbed_runtime.taskmanager.statefiles import AttemptFiles, StateBackend
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from testbed_runtime.workload.snapshots import StateFile, SubtaskSnapshot
from tests.jobmanager.harness import Rows

JOB = "job"
SUBTASKS = 2


class SlowStore(MemoryBlobStore):
    """An upload takes up to 3 s."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    async def put(self, key: str, data: bytes) -> None:
        if key.endswith(".sst"):
            await asyncio.sleep(3 * self._random.random())
        await super().put(key, data)


class Subtask:
    """Writes, merges and uploads files as a log-structured merge tree does. Its barriers come in order, and later than they are sent."""

    def __init__(self, number: int, store: MemoryBlobStore) -> None:
        self.number = number
        self._store = store
        self._attempts = self._files_written = 0
        self.live: list[StateFile] = []
        self.barriers: list[int] = []
        self.restart()

    def restart(self) -> None:
        self._attempts += 1
        options = {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"}
        backend = StateBackend(StateBackendConfig.of(Options(options), 1), MemoryStateFiles())
        self._attempt = f"attempt-{self._attempts}"
        self.files = AttemptFiles(backend, job=JOB, attempt=self._attempt, allocation="slot")
        self.live, self.barriers = [], []

    async def restore(self, latest: CompletedCheckpoint, snapshots: dict[str, SubtaskSnapshot]) -> None:
        snapshot = snapshots[latest.tasks[self.number].handle]
        (found,), _ = await self.files.fetch([snapshot], self._store, LocalState())
        self.live = list(found.files)

    def write(self) -> None:
        self._files_written += 1
        file = StateFile(f"{self._files_written:06}.sst", 1)
        self.files.write(file.name, b"x")
        self.live.append(file)

    def merge(self, count: int) -> None:
        for file in self.live[-count:]:
            self.files.delete(file.name)
        del self.live[-count:]
        self.write()

    async def snapshot(self, checkpoint: int) -> tuple[str, SubtaskSnapshot]:
        files, runs = self.files, tuple((file,) for file in self.live)
        files.pin(checkpoint, tuple(file.name for file in self.live))
        taken = SubtaskSnapshot(checkpoint, "count", self.number, SUBTASKS, 128, runs=runs)
        key = f"jobs/{JOB}/checkpoints/{checkpoint}/count-{self.number}/{self._attempt}"
        upload = files.plan(taken, key)
        await files.store(upload, self._store)
        await self._store.put(key, b"")
        files.unpin(checkpoint)
        return key, upload.snapshot


class Trial:
    """Random checkpoints, failures and restarts of a job of two subtasks. `check` finds every file that should be there."""

    def __init__(self, seed: int, retained: int, concurrent: int) -> None:
        self.random = Random(seed)
        self.store = SlowStore(self.random)
        options = Options({"execution.checkpointing.num-retained": str(retained)})
        rpc, clock, rows = MemoryRpc("jobmanager", Switchboard()), LoopClock("sim"), Rows()
        waits = WaitLog(rows, "jobmanager", clock.now)
        self.services = Services(
            rpc=rpc, blobs=self.store, history=rows, clock=clock, ids=SeededIds(1), random=SeededRandom(1),
            options=options, tasks=TaskKeeper(), leader="leader", waits=waits,
        )  # fmt: skip
        self.completed = CompletedCheckpoints(self.services, JOB, JobStore(self.store), None)
        self.concurrent = concurrent
        self.subtasks = [Subtask(number, self.store) for number in range(SUBTASKS)]
        self.last = 0
        self.pending: dict[int, dict[int, tuple[str, SubtaskSnapshot]]] = {}
        self.snapshots: dict[str, SubtaskSnapshot] = {}
        self.kept: list[CompletedCheckpoint] = []
        self.uploads: set[asyncio.Task[None]] = set()
        self.retained = retained
        self.restores = 0

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await self.step()
            await self.check()
        await self.services.tasks.close()

    async def step(self) -> None:
        subtask = self.random.choice(self.subtasks)
        match self.random.choices(range(6), weights=(6, 3, 5, 8, 1, 0.4))[0]:
            case 0:
                subtask.write()
            case 1 if len(subtask.live) > 1:
                subtask.merge(self.random.randint(2, len(subtask.live)))
            case 2 if len(self.pending) < self.concurrent:
                self.last += 1
                self.pending[self.last] = {}
                for one in self.subtasks:
                    one.barriers.append(self.last)
            case 3 if subtask.barriers:
                upload = asyncio.ensure_future(self.acknowledge(subtask, subtask.barriers.pop(0)))
                self.uploads.add(upload)
                upload.add_done_callback(self.uploads.discard)
            case 4 if self.pending:
                del self.pending[self.random.choice(list(self.pending))]
            case 5:
                await self.restart()
        await asyncio.sleep(0.3)

    async def acknowledge(self, subtask: Subtask, checkpoint: int) -> None:
        key, snapshot = await subtask.snapshot(checkpoint)
        if (acknowledged := self.pending.get(checkpoint)) is None:
            return
        acknowledged[subtask.number] = key, snapshot
        if len(acknowledged) == SUBTASKS:
            await self.complete(checkpoint, acknowledged)

    async def complete(self, checkpoint: int, found: dict[int, tuple[str, SubtaskSnapshot]]) -> None:
        self.pending = {number: one for number, one in self.pending.items() if number > checkpoint}
        tasks = []
        for number in range(SUBTASKS):
            key, snapshot = found[number]
            self.snapshots[key] = snapshot
            shared = tuple(file.handle for file in snapshot.files)
            tasks.append(StoredTask("count", number, 0, key, 0, shared=shared))
        done = CompletedCheckpoint(checkpoint, JOB, 0, False, tuple(tasks))
        await self.completed.put(done)
        self.completed.add(done)
        await asyncio.sleep(0.01)  # until its commits are recorded, which keeps it longer
        self.completed.retain(done, lambda _: None)
        self.kept = [*self.kept, done][-self.retained :]

    async def restart(self) -> None:
        """One or both subtasks, from the latest checkpoint. What is pending is aborted."""
        if not self.kept:
            return
        self.pending.clear()
        for subtask in self.subtasks[: self.random.randint(1, SUBTASKS)]:
            subtask.restart()
            await subtask.restore(self.kept[-1], self.snapshots)
        for subtask in self.subtasks:
            subtask.barriers.clear()
        self.restores += 1

    async def check(self) -> None:
        """Every file of a retained checkpoint, and of each acknowledgement of a pending one, is in the store."""
        acknowledged = [a for found in self.pending.values() for a in found.values()]
        wanted = {file.handle for _, snapshot in acknowledged for file in snapshot.files}
        wanted |= {key for one in self.kept for task in one.tasks for key in task.objects}
        assert wanted - set(await self.store.list("jobs/")) == set()


@pytest.mark.parametrize("retained", [1, 3])
@pytest.mark.parametrize("concurrent", [1, 3, 5])
def test_no_file_is_deleted_that_a_checkpoint_in_progress_or_a_retained_one_refers_to(
    retained: int, concurrent: int
) -> None:
    """SharedStateRegistry: whatever is completed, aborted, subsumed or restarted, and in whatever order uploads end."""

    async def main() -> tuple[int, int]:
        trials = [Trial(seed, retained, concurrent) for seed in range(8)]
        for trial in trials:
            await trial.run(250)
        return sum(len(t.snapshots) for t in trials), sum(t.restores for t in trials)

    snapshots, restores = run_virtual(main())
    assert snapshots > 100
    assert restores > 10
