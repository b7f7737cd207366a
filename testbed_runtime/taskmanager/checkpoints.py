"""A task's checkpoints: snapshots are taken at the barrier, then stored and acknowledged in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyEndOfData,
    SinkCommit,
    TaskDeploymentDescriptor,
)
from testbed_runtime.core.options import Options
from testbed_runtime.core.versions import ABORTED_BY_AGE, END_OF_DATA_TRIGGERS, has
from testbed_runtime.ports.storage import BlobStore
from testbed_runtime.taskmanager.gateway import JobMasterGateway
from testbed_runtime.taskmanager.localstate import LocalState
from testbed_runtime.taskmanager.statefiles import AttemptFiles
from testbed_runtime.timeouts import cancel_all
from testbed_runtime.workload.snapshots import ChannelState, SubtaskSnapshot, decode_snapshot, encode_snapshot

MAX_ABORTED = 128
"""Most aborted checkpoints that a task remembers until their barriers arrive, until 1.16 (SubtaskCheckpointCoordinatorImpl)."""


def aborted_limit(options: Options) -> int:
    """Return how many aborted checkpoints a task remembers."""
    if has(options.flink_version, ABORTED_BY_AGE):
        return options.integer("execution.checkpointing.max-concurrent-checkpoints")
    return MAX_ABORTED


class Begun(Enum):
    """How a task handles the barrier of a checkpoint (SubtaskCheckpointCoordinatorImpl.checkpointState)."""

    SNAPSHOT = "snapshot"
    ABORTED = "aborted"
    """The JobMaster has aborted the checkpoint: send a cancellation instead of the barrier."""
    OUT_OF_ORDER = "out of order"
    """A later checkpoint has begun or was cancelled: do nothing."""


@dataclass(slots=True)
class TakenSnapshot:
    """A task's state at a barrier, before it is stored."""

    snapshot: SubtaskSnapshot
    commit: SinkCommit | None = None
    before: Callable[[], Awaitable[None]] | None = None
    """Stores the objects that the snapshot refers to."""
    output: Callable[[], Awaitable[tuple[ChannelState, ...]]] | None = None
    """Returns the output channel state that is not known yet."""
    alignment_s: float = 0.0
    inputs: dict[int, list[bytes]] = field(default_factory=dict)
    """Unaligned: the data of each channel that belongs to the checkpoint."""
    open_inputs: set[int] = field(default_factory=set)
    """Unaligned: channels whose barrier has not arrived yet."""

    def received(self, channel: int, data: memoryview) -> None:
        """Persist data that the task takes from a channel before its barrier."""
        if channel in self.open_inputs:
            self.inputs[channel].append(bytes(data))

    def overtaken(self, channel: int, data: tuple[bytes, ...]) -> None:
        """Complete the state of a channel whose barrier has arrived."""
        if channel in self.open_inputs:
            self.open_inputs.discard(channel)
            self.inputs[channel].extend(data)


class TaskCheckpoints:
    """Owns the uploads of one task; `close` cancels them."""

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        *,
        blobs: BlobStore,
        local: LocalState,
        files: AttemptFiles,
        gateway: JobMasterGateway,
        options: Options,
    ) -> None:
        self._limit = aborted_limit(options)
        self._by_age = has(options.flink_version, ABORTED_BY_AGE)
        self._notifies_end = covers_end(options) and has(options.flink_version, END_OF_DATA_TRIGGERS)
        self._job = descriptor.job
        self._attempt = descriptor.attempt
        self._local = local
        self._files = files
        self._blobs = blobs
        self._gateway = gateway
        self._uploads: dict[int, asyncio.Task[None]] = {}
        self._stopping: set[int] = set()
        """Checkpoints that the JobMaster aborted after their barriers had arrived."""
        self._cancellable: set[int] = set()
        """Checkpoints whose upload can be cancelled without harm to a later checkpoint."""
        self._begun = 0
        """The latest checkpoint whose barrier, or whose cancellation, has arrived."""
        self._aborted: dict[int, None] = {}
        """Checkpoints that the JobMaster has aborted, in the order of its notifications. The first is forgotten first."""
        self._last_aborted = 0
        self.last_started = 0
        self.last_completed = 0

    def begin(self, checkpoint: int) -> Begun:
        """Begin a checkpoint at its barrier, if the task is to take a snapshot."""
        remembered = checkpoint in self._aborted
        self._aborted.pop(checkpoint, None)
        if checkpoint <= self._begun:
            return Begun.OUT_OF_ORDER
        self._pass(checkpoint)
        forgotten = self._by_age and checkpoint + self._limit < self._last_aborted
        return Begun.ABORTED if remembered or forgotten else Begun.SNAPSHOT

    def abort(self, checkpoint: int) -> None:
        """Handle the JobMaster's notification: remember the checkpoint until its barrier arrives, or stop storing its snapshot."""
        if checkpoint > self._begun:
            self._aborted[checkpoint] = None
            if len(self._aborted) > self._limit:
                del self._aborted[next(iter(self._aborted))]
            self._last_aborted = max(self._last_aborted, checkpoint)
        elif checkpoint in self._uploads or checkpoint > self.last_started:
            self._stopping.add(checkpoint)
            if checkpoint in self._cancellable:
                self._uploads[checkpoint].cancel()

    def _pass(self, checkpoint: int) -> None:
        self._begun = max(self._begun, checkpoint)
        self._stopping = {c for c in self._stopping if c in self._uploads or c > self.last_started}

    def start(self, taken: TakenSnapshot) -> None:
        """Store and acknowledge in the background."""
        snapshot = taken.snapshot
        self.last_started = max(self.last_started, snapshot.checkpoint)
        name = f"upload:{snapshot.vertex}-{snapshot.subtask}:{snapshot.checkpoint}"
        upload = asyncio.get_running_loop().create_task(self._upload(taken), name=name)
        self._uploads[snapshot.checkpoint] = upload

    async def _upload(self, taken: TakenSnapshot) -> None:
        checkpoint = taken.snapshot.checkpoint
        try:
            message = await self._store(taken)
        except Exception:  # whatever the store raises declines this checkpoint, and only it
            if checkpoint not in self._stopping:
                await self.decline(checkpoint, "CHECKPOINT_ASYNC_EXCEPTION")
        else:
            if message is not None:
                await self._gateway.tell(message)
        finally:
            self._files.unpin(checkpoint)
            self._cancellable.discard(checkpoint)
            self._stopping.discard(checkpoint)
            self._uploads.pop(checkpoint, None)

    async def _store(self, taken: TakenSnapshot) -> AcknowledgeCheckpoint | None:
        """Store a snapshot. Return the acknowledgement, or None if the JobMaster has aborted the checkpoint. What later checkpoints
        refer to is stored even then."""
        snapshot = taken.snapshot
        checkpoint = snapshot.checkpoint
        if taken.before is not None:
            await taken.before()
        if not self._may_go_on(checkpoint):
            return None
        if taken.output is not None:
            snapshot = replace(snapshot, output_state=snapshot.output_state + await taken.output())
        key = snapshot_key(self._job, self._attempt, snapshot)
        upload = self._files.plan(snapshot, key)
        data = encode_snapshot(upload.snapshot)
        if upload.fresh:
            self._cancellable.discard(checkpoint)
        # before anything else is awaited: later plans refer to its files
        await self._files.store(upload, self._blobs)
        if not self._may_go_on(checkpoint):
            return None
        await self._blobs.put(key, data)
        self._cancellable.discard(checkpoint)
        if not snapshot.persisted_bytes:  # as in Flink, a local copy covers no channel state
            task = f"{self._job}/{snapshot.vertex}-{snapshot.subtask}"
            await self._local.keep(
                task, checkpoint, key, data, completed=self.last_completed, files=self._files.readers(upload)
            )
        if checkpoint in self._stopping:
            return None
        return AcknowledgeCheckpoint(
            attempt=self._attempt,
            checkpoint=checkpoint,
            state_handle=key,
            state_bytes=len(data) + upload.file_bytes,
            alignment_s=taken.alignment_s,
            commit=taken.commit,
            persisted_bytes=snapshot.persisted_bytes,
            shared_state=upload.handles,
            reused_bytes=upload.reused_bytes,
        )

    def _may_go_on(self, checkpoint: int) -> bool:
        """Let an abort of the checkpoint cancel its upload from now on. Return False if it was already aborted."""
        self._cancellable.add(checkpoint)
        return checkpoint not in self._stopping

    def abandon(self, checkpoint: int) -> None:
        """End a checkpoint that was cancelled. A snapshot that was taken is not stored."""
        self._pass(checkpoint)
        if checkpoint not in self._uploads:
            self._stopping.discard(checkpoint)
        self._files.unpin(checkpoint)

    async def decline(self, checkpoint: int, reason: str) -> None:
        await self._gateway.tell(DeclineCheckpoint(self._attempt, checkpoint, reason))

    def decline_soon(self, checkpoint: int, reason: str) -> None:
        """Decline in the background."""
        name = f"decline:{self._attempt[-12:]}:{checkpoint}"
        task = asyncio.get_running_loop().create_task(self.decline(checkpoint, reason), name=name)
        self._uploads[-checkpoint] = task
        task.add_done_callback(lambda _: self._uploads.pop(-checkpoint, None))

    def data_ended(self) -> None:
        """The data of this task has ended: notify the JobMaster in the background, if a checkpoint is to cover that
        (StreamTask.notifyEndOfData)."""
        if self._notifies_end:
            name = f"end-of-data:{self._attempt[-12:]}"
            telling = self._gateway.tell(NotifyEndOfData(self._attempt))
            self._uploads[0] = asyncio.get_running_loop().create_task(telling, name=name)
            self._uploads[0].add_done_callback(lambda _: self._uploads.pop(0, None))

    def completed(self, checkpoint: int) -> None:
        self.last_completed = max(self.last_completed, checkpoint)

    async def drained(self) -> None:
        """Wait until every upload was acknowledged or declined."""
        while self._uploads:
            await asyncio.wait(list(self._uploads.values()))

    async def close(self) -> None:
        await cancel_all(*self._uploads.values())
        self._uploads.clear()


def covers_end(options: Options) -> bool:
    """Return whether a task that has processed all its data waits for a checkpoint before it finishes."""
    return options.duration("execution.checkpointing.interval") > 0 and options.checkpoints_after_finish


class FinalCheckpoint:
    """The checkpoint that a task waits for at its end (StreamTask.afterInvoke)."""

    def __init__(self, options: Options) -> None:
        self._enabled = covers_end(options)
        self._first = 0
        """The first checkpoint after the end of the data."""
        self.stop = 0
        """The checkpoint of a stop with savepoint. Once it has begun, the completion of any other checkpoint is not enough."""

    def begin(self, checkpoint: int, *, ended: bool, stop: bool) -> None:
        """Record that a checkpoint has begun. `ended`: it follows the end of the data."""
        if stop:
            self.stop = checkpoint
        if ended and not self._first:
            self._first = checkpoint

    def may_finish(self, last_completed: int, *, ended: bool, processed: bool) -> bool:
        """Return whether the task may finish. `processed`: the consumers have processed everything, which matters only if checkpoints
        continue after tasks have finished."""
        covered = self._enabled and ended
        if covered and not processed:
            return False
        if self.stop:
            return last_completed >= self.stop
        return not covered or 0 < self._first <= last_completed


def snapshot_key(job: str, attempt: str, snapshot: SubtaskSnapshot) -> str:
    """Return the blob key of a snapshot. It contains the attempt, so that no attempt overwrites the snapshot of another: a
    new JobManager may reuse a checkpoint id while a task of its predecessor still stores its own."""
    return f"jobs/{job}/checkpoints/{snapshot.checkpoint}/{snapshot.vertex}-{snapshot.subtask}/{attempt}"


async def restore_snapshots(
    blobs: BlobStore, local: LocalState, handles: tuple[str, ...], *, subtask: int, parallelism: int
) -> tuple[list[SubtaskSnapshot], bool]:
    """Load what a subtask restores: its own snapshot, or those of all subtasks if the parallelism has changed. Return also
    whether the local copy was used. Raises FlinkError like `load_snapshots`."""
    if len(handles) == parallelism:
        copy = await local.find(handles[subtask])
        if copy is not None:
            return [decode_snapshot(copy)], True
        own = await load_snapshots(blobs, (handles[subtask],))
        if own[0].parallelism == parallelism:
            return own, False
    return await load_snapshots(blobs, handles), False


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
