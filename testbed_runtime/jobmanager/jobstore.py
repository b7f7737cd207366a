"""The objects of a job in the blob store, with a version: its graph, its status, its completed checkpoints.

jobs/<job>/graph                        written once, when the job is submitted
jobs/<job>/status                       state, leader epoch, newest attempt, restarts
jobs/<job>/checkpoints/<id>/_metadata   the tasks of the checkpoint, with the handles of their state
jobs/<job>/checkpoints/latest           the id of the latest completed checkpoint: writing it commits the checkpoint
jobs/<job>/checkpoints/<id>/_recorded   the commits of the checkpoint are in the history
recovery                                the kept checkpoint from which the first job starts
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct, field

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.job.executiongraph import Restore
from testbed_runtime.core.job.jobgraph import JobGraph
from testbed_runtime.core.job.messages import SinkCommit
from testbed_runtime.ports.storage import BlobStore

STORE_VERSION = 1
T = TypeVar("T")


class StoredJob(Struct, frozen=True):
    job: str
    graph: JobGraph
    configuration: dict[str, str]
    job_started: float
    version: int = STORE_VERSION


class StoredStatus(Struct, frozen=True):
    state: str
    epoch: int
    attempt: int
    """The largest attempt number that may have been deployed."""
    restarts: int
    cause_class: str = ""
    cause: str = ""
    draining: bool = False
    failovers: int = 0
    """The largest number of a failover. `restarts` leaves some of them out."""
    checkpoint: int = 0
    """The last checkpoint id that was used (Flink's CheckpointIDCounter)."""
    version: int = STORE_VERSION


class StoredTask(Struct, frozen=True):
    """One subtask's part of a checkpoint."""

    vertex: str
    subtask: int
    attempt: int
    handle: str
    state_bytes: int
    commits: tuple[SinkCommit, ...] = ()
    shared: tuple[str, ...] = ()
    """Further objects that the handle refers to, also those of earlier checkpoints."""

    @property
    def objects(self) -> tuple[str, ...]:
        return (self.handle, *self.shared)


class CompletedCheckpoint(Struct, frozen=True):
    checkpoint: int
    job: str
    timestamp_ms: int
    drain: bool
    tasks: tuple[StoredTask, ...]
    unrecorded: tuple[int, ...] = ()
    """Earlier checkpoints whose commits the recorder had not acknowledged when this one was made."""
    retained: tuple[int, ...] = ()
    """Earlier checkpoints that were retained when this one was made."""
    parallelism: dict[str, int] = field(default_factory=dict)
    """Parallelism of each vertex, if another job starts from it."""
    version: int = STORE_VERSION

    def restore(self) -> Restore:
        """Return the handles of each vertex, in the order of its subtasks."""
        handles: dict[str, list[tuple[int, str]]] = {}
        for task in self.tasks:
            if task.handle:
                handles.setdefault(task.vertex, []).append((task.subtask, task.handle))
        ordered = {vertex: tuple(handle for _, handle in sorted(some)) for vertex, some in handles.items()}
        return Restore(self.checkpoint, ordered, self.parallelism)


class StoredRecovery(Struct, frozen=True):
    """A checkpoint of an earlier run. Its objects are in this store too."""

    checkpoint: CompletedCheckpoint
    elapsed_s: float
    """Age of its job when it was triggered. The new job goes on with that age, so that no record is due late or early."""
    positions: dict[str, int]
    """The next number of each source subtask."""
    graph: JobGraph
    """The job that took it."""
    version: int = STORE_VERSION


class JobStore:
    """Reads raise HeadgateError when an object is damaged or has an unknown version."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def jobs(self) -> list[StoredJob]:
        """Return all jobs in the order of their submission."""
        keys = [key for key in await self._blobs.list("jobs/") if key.endswith("/graph")]
        return sorted([await self._get(key, StoredJob) for key in keys], key=lambda j: j.job_started)

    async def put_job(self, stored: StoredJob) -> None:
        await self._blobs.put(f"jobs/{stored.job}/graph", msgspec.json.encode(stored))

    async def put_recovery(self, recovery: StoredRecovery) -> None:
        await self._blobs.put("recovery", msgspec.json.encode(recovery))

    async def recovery(self) -> StoredRecovery:
        """Raises KeyError."""
        return await self._get("recovery", StoredRecovery)

    async def status(self, job: str) -> StoredStatus:
        """Raises KeyError."""
        return await self._get(f"jobs/{job}/status", StoredStatus)

    async def put_status(self, job: str, status: StoredStatus) -> None:
        await self._blobs.put(f"jobs/{job}/status", msgspec.json.encode(status))

    async def put_state(self, key: str, data: bytes) -> None:
        """Write the state of a task that has not written it itself."""
        await self._blobs.put(key, data)

    async def put_checkpoint(self, completed: CompletedCheckpoint) -> None:
        """Write the metadata, then the pointer. The second write completes the checkpoint."""
        folder = f"jobs/{completed.job}/checkpoints"
        data = msgspec.json.encode(completed)
        await self._blobs.put(f"{folder}/{completed.checkpoint}/_metadata", data)
        await self._blobs.put(f"{folder}/latest", str(completed.checkpoint).encode())

    async def latest(self, job: str) -> CompletedCheckpoint | None:
        folder = f"jobs/{job}/checkpoints"
        try:
            checkpoint = int(await self._blobs.get(f"{folder}/latest"))
        except KeyError:
            return None
        return await self._get(f"{folder}/{checkpoint}/_metadata", CompletedCheckpoint)

    async def checkpoint(self, job: str, checkpoint: int) -> CompletedCheckpoint:
        """Return a completed checkpoint. Raises KeyError."""
        return await self._get(f"jobs/{job}/checkpoints/{checkpoint}/_metadata", CompletedCheckpoint)

    async def set_recorded(self, job: str, checkpoint: int) -> None:
        await self._blobs.put(f"jobs/{job}/checkpoints/{checkpoint}/_recorded", b"")

    async def is_recorded(self, job: str, checkpoint: int) -> bool:
        try:
            await self._blobs.get(f"jobs/{job}/checkpoints/{checkpoint}/_recorded")
        except KeyError:
            return False
        return True

    async def drop_before(self, job: str, checkpoint: int, keep: frozenset[str]) -> None:
        """Delete all checkpoints with a lower id, completed or not, except for the objects in `keep`."""
        folder = f"jobs/{job}/checkpoints/"
        for key in await self._blobs.list(folder):
            number = key.removeprefix(folder).partition("/")[0]
            if number.isdigit() and int(number) < checkpoint and key not in keep:
                await self._blobs.delete(key)

    async def _get(self, key: str, kind: type[T]) -> T:
        data = await self._blobs.get(key)
        try:
            decoded = msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise HeadgateError(f"{key} in the blob store cannot be read: {error}") from None
        version = getattr(decoded, "version", None)
        if version != STORE_VERSION:
            raise HeadgateError(
                f"{key} in the blob store has version {version}, this is version {STORE_VERSION}"
            )
        return decoded
