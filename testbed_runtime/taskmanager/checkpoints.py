"""A task's checkpoints: snapshots are taken at the barrier, then stored and acknowledged in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.messages import AcknowledgeCheckpoint, DeclineCheckpoint, SinkCommit
from testbed_runtime.ports.storage import BlobStore
from testbed_runtime.taskmanager.gateway import JobMasterGateway
from testbed_runtime.workload.snapshots import SubtaskSnapshot, decode_snapshot, encode_snapshot


class TaskCheckpoints:
    """Owns the uploads of one task; `close` cancels them."""

    def __init__(self, *, job: str, attempt: str, blobs: BlobStore, gateway: JobMasterGateway) -> None:
        self._job = job
        self._attempt = attempt
        self._blobs = blobs
        self._gateway = gateway
        self._uploads: dict[int, asyncio.Task[None]] = {}
        self.last_started = 0
        self.last_completed = 0

    def start(
        self,
        snapshot: SubtaskSnapshot,
        commit: SinkCommit | None,
        *,
        alignment_s: float,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Store and acknowledge in the background. `before` stores the objects that the snapshot refers to."""
        self.last_started = max(self.last_started, snapshot.checkpoint)
        upload = self._upload(snapshot, commit, alignment_s, before)
        name = f"upload:{snapshot.vertex}-{snapshot.subtask}:{snapshot.checkpoint}"
        self._uploads[snapshot.checkpoint] = asyncio.get_running_loop().create_task(upload, name=name)

    async def _upload(
        self,
        snapshot: SubtaskSnapshot,
        commit: SinkCommit | None,
        alignment_s: float,
        before: Callable[[], Awaitable[None]] | None,
    ) -> None:
        try:
            if before is not None:
                await before()
            key, size = await store_snapshot(self._blobs, self._job, self._attempt, snapshot)
        except Exception:  # whatever the store raises declines this checkpoint, and only it
            await self.decline(snapshot.checkpoint, "CHECKPOINT_ASYNC_EXCEPTION")
        else:
            message = AcknowledgeCheckpoint(
                self._attempt, snapshot.checkpoint, key, size, alignment_s, commit
            )
            await self._gateway.tell(message)
        self._uploads.pop(snapshot.checkpoint, None)

    async def decline(self, checkpoint: int, reason: str) -> None:
        await self._gateway.tell(DeclineCheckpoint(self._attempt, checkpoint, reason))

    def decline_soon(self, checkpoint: int, reason: str) -> None:
        """Decline in the background."""
        name = f"decline:{self._attempt[-12:]}:{checkpoint}"
        task = asyncio.get_running_loop().create_task(self.decline(checkpoint, reason), name=name)
        self._uploads[-checkpoint] = task
        task.add_done_callback(lambda _: self._uploads.pop(-checkpoint, None))

    def completed(self, checkpoint: int) -> None:
        self.last_completed = max(self.last_completed, checkpoint)

    async def drained(self) -> None:
        """Wait until every upload was acknowledged or declined."""
        while self._uploads:
            await asyncio.wait(list(self._uploads.values()))

    async def close(self) -> None:
        uploads = list(self._uploads.values())
        for upload in uploads:
            upload.cancel()
        if uploads:
            await asyncio.wait(uploads)
        self._uploads.clear()


def snapshot_key(job: str, attempt: str, snapshot: SubtaskSnapshot) -> str:
    """Return the blob key of a snapshot. It contains the attempt, so that no attempt overwrites the snapshot of another: a
    new JobManager may reuse a checkpoint id while a task of its predecessor still stores its own."""
    return f"jobs/{job}/checkpoints/{snapshot.checkpoint}/{snapshot.vertex}-{snapshot.subtask}/{attempt}"


async def store_snapshot(
    blobs: BlobStore, job: str, attempt: str, snapshot: SubtaskSnapshot
) -> tuple[str, int]:
    """Store the snapshot. Return its key and its size in bytes."""
    data = encode_snapshot(snapshot)
    key = snapshot_key(job, attempt, snapshot)
    await blobs.put(key, data)
    return key, len(data)


async def load_snapshots(blobs: BlobStore, handles: tuple[str, ...]) -> list[SubtaskSnapshot]:
    """Load the snapshots of every subtask of a vertex. Raises FlinkError when one is missing or cannot be read."""
    snapshots = []
    for handle in handles:
        try:
            snapshots.append(decode_snapshot(await blobs.get(handle)))
        except KeyError:
            raise FlinkError(
                "FileNotFoundException", f"The state snapshot {handle} does not exist."
            ) from None
    return snapshots
