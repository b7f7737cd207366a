"""Local recovery: when the copy on the TaskManager is used, and when the checkpoint store is."""

from __future__ import annotations

import asyncio

import pytest

from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.checkpoints import (
    restore_snapshots,
    snapshot_key,
)
from testbed_runtime.taskmanager.localstate import LocalState
from testbed_runtime.workload.snapshots import SubtaskSnapshot, encode_snapshot

TASK = "job/count-0"


def snapshot(checkpoint: int = 3, subtask: int = 0, parallelism: int = 2) -> SubtaskSnapshot:
    return SubtaskSnapshot(checkpoint, "count", subtask, parallelism, 128, next_sequence=checkpoint)


class Stores:
    """A primary store with two subtasks' snapshots, and the local copy of the first."""

    def __init__(self) -> None:
        self.primary, self.secondary = MemoryBlobStore(), MemoryBlobStore()
        self.local = LocalState(self.secondary)
        self.handles = tuple(snapshot_key("job", "attempt", snapshot(subtask=n)) for n in range(2))

    async def fill(self) -> None:
        for number, key in enumerate(self.handles):
            await self.primary.put(key, encode_snapshot(snapshot(subtask=number)))
        data = encode_snapshot(snapshot())
        await self.local.keep(TASK, 3, self.handles[0], data, completed=0)

    async def restore(self, parallelism: int = 2) -> tuple[list[SubtaskSnapshot], bool]:
        await self.fill()
        return await self.restore_again(parallelism)

    async def restore_again(self, parallelism: int = 2) -> tuple[list[SubtaskSnapshot], bool]:
        return await restore_snapshots(
            self.primary, self.local, self.handles, subtask=0, parallelism=parallelism
        )


class FullDisk(MemoryBlobStore):
    async def put(self, key: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")


class SlowDisk(MemoryBlobStore):
    async def delete(self, key: str) -> None:
        await asyncio.sleep(1.0)
        await super().delete(key)


def test_the_local_copy_is_used_and_the_store_is_not_read() -> None:
    """The primary objects are gone, and the restore still succeeds."""

    async def main() -> tuple[list[SubtaskSnapshot], bool]:
        stores = Stores()
        await stores.fill()
        stores.primary = MemoryBlobStore()
        return await stores.restore_again()

    assert run_virtual(main()) == ([snapshot()], True)


@pytest.mark.parametrize("damage", ["missing", "incomplete"])
def test_a_missing_or_incomplete_copy_falls_back_to_the_store(damage: str) -> None:
    """The checksum notices that the end of a copy is missing."""

    async def main() -> tuple[list[SubtaskSnapshot], bool]:
        stores = Stores()
        await stores.fill()
        key = stores.handles[0]
        copy = await stores.secondary.get(key)
        await stores.secondary.delete(key)
        if damage == "incomplete":
            await stores.secondary.put(key, copy[:-1])
        return await stores.restore_again()

    assert run_virtual(main()) == ([snapshot()], False)


def test_a_copy_that_cannot_be_written_harms_nothing() -> None:
    """The disk of the TaskManager is full."""

    async def main() -> memoryview | None:
        local = LocalState(FullDisk())
        await local.keep(TASK, 1, "key", b"data", completed=0)
        return await local.find("key")

    assert run_virtual(main()) is None


def test_a_copy_whose_snapshot_cannot_be_written_leaves_no_files() -> None:
    """They were written first, and nothing would refer to them."""

    class LittleDisk(MemoryBlobStore):
        async def put(self, key: str, data: bytes) -> None:
            await super().put(key, data)
            if key == "key":
                raise OSError("no space left on device")

    async def main() -> list[str]:
        store = LittleDisk()
        files = {name: lambda: b"data" for name in ("one", "two")}
        await LocalState(store).keep(TASK, 1, "key", b"data", completed=0, files=files)
        return await store.list("")

    assert run_virtual(main()) == []


def test_another_parallelism_reads_the_snapshots_of_all_subtasks() -> None:
    """The key groups of one subtask come from several snapshots then."""
    found, is_local = run_virtual(Stores().restore(parallelism=3))
    assert [one.subtask for one in found] == [0, 1]
    assert not is_local


def test_copies_are_deleted_when_a_newer_checkpoint_completes() -> None:
    """Checkpoints 1 to 12, of which 10 completed: 10, 11 and 12 are kept. Without a completed one, the newest eight are."""

    async def main(completed: int) -> list[str]:
        store = MemoryBlobStore()
        local = LocalState(store)
        for checkpoint in range(1, 13):
            await local.keep(TASK, checkpoint, f"{checkpoint:02}", b"", completed=min(completed, checkpoint))
        return await store.list("")

    assert run_virtual(main(10)) == ["10", "11", "12"]
    assert run_virtual(main(0)) == [f"{n:02}" for n in range(13 - 8, 13)]


def test_two_uploads_at_once_delete_each_replaced_copy_once() -> None:
    """Checkpoint 3 is stored while the copies that checkpoint 2 has replaced are being deleted."""

    async def main() -> list[str]:
        store = SlowDisk()
        local = LocalState(store)
        for checkpoint in (0, 1):
            await local.keep(TASK, checkpoint, f"{checkpoint}", b"", completed=0)
        await asyncio.gather(*(local.keep(TASK, number, f"{number}", b"", completed=2) for number in (2, 3)))
        return await store.list("")

    assert run_virtual(main()) == ["2", "3"]
