"""The files of keyed state: on the TaskManager's disk, and their copies in the checkpoint store (`state.backend.type: rocksdb`).

With incremental checkpoints a file is uploaded once. Later checkpoints refer to the same object, so every checkpoint between
two that contain a file refers to it too, and the JobManager deletes it with the last one whose files it keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.statememory import StateBackendConfig
from testbed_runtime.ports.storage import BlobStore, StateFileStore
from testbed_runtime.taskmanager.localstate import LocalState
from testbed_runtime.timeouts import cancel_all
from testbed_runtime.workload.filestate import FileState
from testbed_runtime.workload.keyedstate import KeyedState, SubtaskContext, TimeToLive
from testbed_runtime.workload.slotmemory import SlotMemory
from testbed_runtime.workload.snapshots import StateFile, SubtaskSnapshot


class StateBackend:
    """The state backend of one TaskManager: its disk, and the memory of each slot."""

    def __init__(self, config: StateBackendConfig, disk: StateFileStore) -> None:
        self.config = config
        self.disk = disk
        self._slots: dict[str, SlotMemory] = {}

    def memory(self, allocation: str) -> SlotMemory:
        """Return the memory of a slot. If the stores of a slot do not share memory, return new memory for each call."""
        if not self.config.shared:
            return SlotMemory.of(self.config)
        return self._slots.setdefault(allocation, SlotMemory.of(self.config))

    def release(self, allocation: str) -> None:
        """Forget the memory of a slot in which no store is open."""
        if allocation in self._slots and not self._slots[allocation].stores:
            del self._slots[allocation]


class Upload(Struct, frozen=True):
    """The files and the snapshot of a checkpoint that is being stored."""

    snapshot: SubtaskSnapshot
    fresh: dict[str, str]
    """The local name of each file that this checkpoint uploads itself, by the file's handle."""

    @property
    def handles(self) -> tuple[str, ...]:
        return tuple(file.handle for file in self.snapshot.files)

    @property
    def reused_bytes(self) -> int:
        return sum(file.size for file in self.snapshot.files if file.handle not in self.fresh)

    @property
    def file_bytes(self) -> int:
        return sum(file.size for file in self.snapshot.files)


class AttemptFiles:
    """`workload.filestate.StateFiles` of one attempt."""

    def __init__(self, backend: StateBackend, *, job: str, attempt: str, allocation: str) -> None:
        self._backend = backend
        self._config = backend.config
        self._job = job
        self._attempt = attempt
        self._allocation = allocation
        self._memory = backend.memory(allocation)
        self._names: set[str] = set()
        self._pinned: dict[int, frozenset[str]] = {}
        self._deleted: set[str] = set()
        self._copies: dict[str, tuple[str, asyncio.Future[None]]] = {}
        """Handle of each file that was uploaded, and its upload."""
        self._transfers = asyncio.Semaphore(self._config.transfer_threads)

    def state(self, context: SubtaskContext, ttl: TimeToLive) -> KeyedState:
        """Create the keyed state of this attempt's operator."""
        if not self._config.on_disk:
            return KeyedState(context, ttl)
        return FileState(context, self, self._memory, name=self._attempt, ttl=ttl)

    # ---- the disk

    def write(self, name: str, data: bytes) -> None:
        self._names.add(name)
        self._backend.disk.write(self._path(name), data)

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes:
        return self._backend.disk.read(self._path(name), offset, size)

    def delete(self, name: str) -> None:
        """Delete a file, once no checkpoint uploads it any more."""
        if any(name in names for names in self._pinned.values()):
            self._deleted.add(name)
            return
        self._deleted.discard(name)
        self._names.discard(name)
        self._copies.pop(name, None)
        self._backend.disk.delete(self._path(name))

    def pin(self, checkpoint: int, names: tuple[str, ...]) -> None:
        if names:
            self._pinned[checkpoint] = frozenset(names)

    def unpin(self, checkpoint: int) -> None:
        """Release the files of a checkpoint after its upload has succeeded or failed."""
        for name in sorted(self._pinned.pop(checkpoint, frozenset()) & self._deleted):
            self.delete(name)

    def close(self) -> None:
        """Delete every file of the attempt."""
        self._pinned.clear()
        for name in sorted(self._names):
            self.delete(name)
        self._memory.close(self._attempt)  # a restore that failed has no operator that closes its store
        self._backend.release(self._allocation)

    def _path(self, name: str) -> str:
        return f"{self._attempt}/{name}"

    # ---- the checkpoint store

    def plan(self, snapshot: SubtaskSnapshot, key: str) -> Upload:
        """Give each file of a snapshot its handle: the handle that an earlier checkpoint gave it, or a new one below this checkpoint's
        `key`."""
        fresh: dict[str, str] = {}

        def with_handle(file: StateFile) -> StateFile:
            known = self._copies.get(file.name) if self._config.incremental else None
            handle = f"{key}.{file.name}" if known is None else known[0]
            if known is None:
                fresh[handle] = file.name
            return replace(file, handle=handle)

        runs = tuple(tuple(with_handle(file) for file in run) for run in snapshot.runs)
        return Upload(replace(snapshot, runs=runs), fresh)

    async def store(self, upload: Upload, blobs: BlobStore) -> None:
        """Upload the new files, and wait for those that another checkpoint is uploading. Raises what the store raises."""
        others = [self._upload_of(file) for file in upload.snapshot.files if file.handle not in upload.fresh]
        loop = asyncio.get_running_loop()
        own: dict[str, asyncio.Future[None]] = {
            name: loop.create_task(self._put(blobs, handle, name), name=f"upload:{handle}")
            for handle, name in upload.fresh.items()
        }
        if self._config.incremental:
            self._copies |= {name: (handle, own[name]) for handle, name in upload.fresh.items()}
        waiting = [*own.values(), *(asyncio.shield(other) for other in others)]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for name, answer in zip(own, answers, strict=False):
            if answer is not None and self._copies.get(name, ("", None))[1] is own[name]:
                del self._copies[name]  # the next checkpoint tries again
        for answer in answers:
            if answer is not None:
                raise answer

    def _upload_of(self, file: StateFile) -> asyncio.Future[None]:
        """Return the upload of a file by an earlier checkpoint. Raises FlinkError IOException if that checkpoint has failed."""
        handle, stored = self._copies.get(file.name, ("", None))
        if stored is None or handle != file.handle:
            raise FlinkError("IOException", f"The state file {file.handle} was not stored.")
        return stored

    async def _put(self, blobs: BlobStore, handle: str, name: str) -> None:
        async with self._transfers:
            await blobs.put(handle, self.read(name))

    async def fetch(
        self, snapshots: list[SubtaskSnapshot], blobs: BlobStore, local: LocalState
    ) -> tuple[list[SubtaskSnapshot], bool]:
        """Copy the files of snapshots to the disk. Return the snapshots with their local names, and whether every file had a
        local copy. Raises FlinkError if a file is missing or incomplete."""
        every = len(snapshots) > 1
        jobs = [
            (file, f"{snapshot.subtask}-{file.name}" if every else file.name)
            for snapshot in snapshots
            for file in snapshot.files
        ]
        copies = [
            asyncio.create_task(self._get(file, name, blobs, local), name=f"fetch:{file.handle}")
            for file, name in jobs
        ]
        try:
            found = await asyncio.gather(*copies)
        finally:  # after a failure nothing may be written to an attempt that has ended
            await cancel_all(*copies)
        names = {file.handle: name for file, name in jobs}
        renamed = [
            replace(s, runs=tuple(tuple(replace(f, name=names[f.handle]) for f in run) for run in s.runs))
            for s in snapshots
        ]
        return renamed, all(found)

    async def _get(self, file: StateFile, name: str, blobs: BlobStore, local: LocalState) -> bool:
        async with self._transfers:
            copy = await local.find(file.handle)
            try:
                data = await blobs.get(file.handle) if copy is None else bytes(copy)
            except KeyError:
                raise FlinkError(
                    "FileNotFoundException", f"The state file {file.handle} does not exist."
                ) from None
        if len(data) != file.size:
            raise FlinkError(
                "IOException", f"The state file {file.handle} has {len(data)} bytes instead of {file.size}."
            )
        self.write(name, data)
        if file.handle.startswith(f"jobs/{self._job}/") and name == file.name:
            stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            stored.set_result(None)
            self._copies[name] = (file.handle, stored)
        return copy is not None

    def readers(self, upload: Upload) -> dict[str, Callable[[], bytes]]:
        """Return how to read each file of a checkpoint, by its handle."""
        return {file.handle: partial(self.read, file.name) for file in upload.snapshot.files}
