"""The files of keyed state between a TaskManager's disk and the checkpoint store: what is uploaded, shared, pinned and fetched."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.statememory import StateBackendConfig
from testbed_runtime.core.options import Options
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.store.statefiles import MemoryStateFiles
from testbed_runtime.taskmanager.localstate import LocalState
from testbed_runtime.taskmanager.statefiles import AttemptFiles, StateBackend
from testbed_runtime.workload.snapshots import StateFile, SubtaskSnapshot

JOB = "job"


class CountingStore(MemoryBlobStore):
    """Each put takes 1 s. The first `failing` ones fail."""

    def __init__(self, failing: int = 0) -> None:
        super().__init__()
        self.puts: list[str] = []
        self._failing = failing

    async def put(self, key: str, data: bytes) -> None:
        self.puts.append(key)
        await asyncio.sleep(1.0)
        if len(self.puts) <= self._failing:
            raise OSError("the store refuses")
        await super().put(key, data)


class Attempt:
    """An attempt with files on a disk."""

    def __init__(self, name: str = "one", **options: str) -> None:
        given = {
            "state.backend.type": "rocksdb",
            "execution.checkpointing.incremental": options.get("incremental", "true"),
            "state.backend.rocksdb.checkpoint.transfer.thread.num": options.get("threads", "4"),
        }
        self.disk = MemoryStateFiles()
        backend = StateBackend(StateBackendConfig.of(Options(given), 1), self.disk)
        self.files = AttemptFiles(backend, job=JOB, attempt=name, allocation="slot")

    def snapshot(self, checkpoint: int, *numbers: int) -> SubtaskSnapshot:
        """A snapshot of one run for each file, which is written if it is new, and pinned."""
        runs = []
        for number in numbers:
            name = f"{number:06}.sst"
            if f"one/{name}" not in self.disk.names:
                self.files.write(name, b"x" * number)
            runs.append((StateFile(name, number),))
        self.files.pin(checkpoint, tuple(run[0].name for run in runs))
        return SubtaskSnapshot(checkpoint, "count", 0, 1, 128, runs=tuple(runs))

    async def store(self, store: MemoryBlobStore, snapshot: SubtaskSnapshot) -> SubtaskSnapshot:
        upload = self.files.plan(snapshot, f"jobs/{JOB}/checkpoints/{snapshot.checkpoint}/count-0/one")
        await self.files.store(upload, store)
        return upload.snapshot


@pytest.mark.parametrize(("incremental", "puts"), [("true", [1, 2, 3]), ("false", [1, 2, 1, 2, 3])])
def test_a_file_is_uploaded_once_if_checkpoints_are_incremental(incremental: str, puts: list[int]) -> None:
    """A full checkpoint uploads every file under its own key."""

    async def main() -> tuple[list[int], bool]:
        attempt, store = Attempt(incremental=incremental), CountingStore()
        first = await attempt.store(store, attempt.snapshot(1, 1, 2))
        second = await attempt.store(store, attempt.snapshot(2, 1, 2, 3))
        shared = first.files[0].handle == second.files[0].handle
        return sorted(int(key.split(".")[-2]) for key in store.puts[:2]) + sorted(
            int(key.split(".")[-2]) for key in store.puts[2:]
        ), shared

    assert run_virtual(main()) == (puts, incremental == "true")


def test_a_checkpoint_waits_for_a_file_that_another_one_uploads() -> None:
    """Two checkpoints at once share the upload, and both end with it."""

    async def main() -> tuple[float, int]:
        attempt, store = Attempt(), CountingStore()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        first, second = attempt.snapshot(1, 1), attempt.snapshot(2, 1)
        await asyncio.gather(attempt.store(store, first), attempt.store(store, second))
        return loop.time() - begun, len(store.puts)

    assert run_virtual(main()) == (pytest.approx(1.0), 1)


def test_a_file_that_could_not_be_stored_is_uploaded_by_the_next_checkpoint() -> None:
    """Both checkpoints that refer to it fail; the third succeeds under a key of its own."""

    async def main() -> tuple[list[object], list[str]]:
        attempt, store = Attempt(), CountingStore(failing=1)
        both = [attempt.store(store, attempt.snapshot(number, 1)) for number in (1, 2)]
        answers = await asyncio.gather(*both, return_exceptions=True)
        await attempt.store(store, attempt.snapshot(3, 1))
        return [type(answer) for answer in answers], await store.list("")

    answers, keys = run_virtual(main())
    assert answers == [OSError, OSError]
    assert keys == [f"jobs/{JOB}/checkpoints/3/count-0/one.000001.sst"]


@pytest.mark.parametrize(("threads", "seconds"), [("1", 6.0), ("4", 2.0)])
def test_several_files_are_transferred_at_a_time(threads: str, seconds: float) -> None:
    """`state.backend.rocksdb.checkpoint.transfer.thread.num`: six files of 1 s each."""

    async def main() -> float:
        attempt = Attempt(threads=threads)
        begun = asyncio.get_running_loop().time()
        await attempt.store(CountingStore(), attempt.snapshot(1, 1, 2, 3, 4, 5, 6))
        return asyncio.get_running_loop().time() - begun

    assert run_virtual(main()) == pytest.approx(seconds)


def test_a_file_that_a_checkpoint_uploads_is_deleted_after_it() -> None:
    """Compaction replaces a file of two checkpoints that are in progress."""

    async def main() -> list[list[str]]:
        attempt = Attempt()
        attempt.snapshot(1, 1)
        attempt.snapshot(2, 1)
        seen = []
        attempt.files.delete("000001.sst")
        for checkpoint in (1, 2):
            seen.append(list(attempt.disk.names))
            attempt.files.unpin(checkpoint)
        return [*seen, list(attempt.disk.names)]

    assert run_virtual(main()) == [["one/000001.sst"], ["one/000001.sst"], []]


def test_a_restored_file_is_not_uploaded_again() -> None:
    """The next attempt takes over the files of its job's checkpoint, but not those of another job."""

    async def main(job: str) -> int:
        attempt, store = Attempt(), CountingStore()
        stored = await attempt.store(store, attempt.snapshot(1, 1))
        if job != JOB:
            moved = stored.files[0].handle.replace(f"jobs/{JOB}/", f"jobs/{job}/")
            await store.put(moved, await store.get(stored.files[0].handle))
            stored = replace(stored, runs=((replace(stored.files[0], handle=moved),),))
        store.puts.clear()
        again = Attempt("two")
        found, local = await again.files.fetch([stored], store, LocalState())
        assert not local
        assert again.files.read(found[0].files[0].name) == b"x"
        again.files.pin(2, (found[0].files[0].name,))
        await again.store(store, replace(found[0], checkpoint=2))
        return len(store.puts)

    assert run_virtual(main(JOB)) == 0
    assert run_virtual(main("other")) == 1


@pytest.mark.parametrize("damage", ["missing", "incomplete"])
def test_a_damaged_file_in_the_store_fails_the_restore(damage: str) -> None:
    """It is named."""

    async def main() -> None:
        attempt, store = Attempt(), CountingStore()
        stored = await attempt.store(store, attempt.snapshot(1, 7))
        await store.delete(stored.files[0].handle)
        if damage == "incomplete":
            await store.put(stored.files[0].handle, b"xxx")
        await Attempt("two").files.fetch([stored], store, LocalState())

    with pytest.raises(FlinkError, match=r"one\.000007\.sst (does not exist|has 3 bytes instead of 7)"):
        run_virtual(main())


def test_a_restore_that_fails_fetches_no_other_file_any_more() -> None:
    """Its attempt has ended: a file that comes later must not be written to its disk."""

    class SlowStore(MemoryBlobStore):
        async def get(self, key: str) -> bytes:
            await asyncio.sleep(10.0 if key.endswith("000002.sst") else 0.0)
            return await super().get(key)

    async def main() -> tuple[float, list[str]]:
        attempt, store = Attempt(), SlowStore()
        stored = await attempt.store(store, attempt.snapshot(1, 1, 2))
        await store.delete(stored.files[0].handle)
        again, clock = Attempt("two"), asyncio.get_running_loop().time
        began = clock()
        with pytest.raises(FlinkError, match="does not exist"):
            await again.files.fetch([stored], store, LocalState())
        seconds = clock() - began
        await asyncio.sleep(60.0)
        return seconds, again.disk.names

    assert run_virtual(main()) == (0.0, [])


def test_local_copies_of_files_are_kept_while_a_checkpoint_needs_them() -> None:
    """File 1 belongs to checkpoints 1 and 2, file 2 to 2 and 3. Checkpoint 3 completes."""

    async def main() -> tuple[list[str], bool]:
        copies = MemoryBlobStore()
        local, store, attempt = LocalState(copies), CountingStore(), Attempt()
        for checkpoint, numbers in ((1, (1,)), (2, (1, 2)), (3, (2,))):
            upload = attempt.files.plan(
                attempt.snapshot(checkpoint, *numbers), f"jobs/{JOB}/{checkpoint}/one"
            )
            await attempt.files.store(upload, store)
            files = attempt.files.readers(upload)
            await local.keep("task", checkpoint, f"k{checkpoint}", b"", completed=checkpoint, files=files)
            last = upload
        _, is_local = await Attempt("two").files.fetch([last.snapshot], MemoryBlobStore(), local)
        return await copies.list(""), is_local

    assert run_virtual(main()) == ([f"jobs/{JOB}/2/one.000002.sst", "k3"], True)


def test_an_attempt_leaves_no_file() -> None:
    """Whatever is pinned or shared when it ends."""

    async def main() -> list[str]:
        attempt = Attempt()
        await attempt.store(CountingStore(), attempt.snapshot(1, 1, 2))
        attempt.files.close()
        return attempt.disk.names

    assert run_virtual(main()) == []
