"""Snapshots of subtasks in the blob store: where they are put, how they are read back."""

from __future__ import annotations

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.ports.storage import BlobStore
from testbed_runtime.workload.snapshots import SubtaskSnapshot, decode_snapshot, encode_snapshot


def snapshot_key(job: str, attempt: str, snapshot: SubtaskSnapshot) -> str:
    """One attempt never writes over another's: a new JobManager may count the same checkpoint again, while a zombie of its
    predecessor's still stores its own."""
    return f"jobs/{job}/checkpoints/{snapshot.checkpoint}/{snapshot.vertex}-{snapshot.subtask}/{attempt}"


async def store_snapshot(
    blobs: BlobStore, job: str, attempt: str, snapshot: SubtaskSnapshot
) -> tuple[str, int]:
    """(key, bytes)."""
    data = encode_snapshot(snapshot)
    key = snapshot_key(job, attempt, snapshot)
    await blobs.put(key, data)
    return key, len(data)


async def load_snapshots(blobs: BlobStore, handles: tuple[str, ...]) -> list[SubtaskSnapshot]:
    """Of every subtask of a vertex. Raises FlinkError when one is missing or cannot be read."""
    snapshots = []
    for handle in handles:
        try:
            snapshots.append(decode_snapshot(await blobs.get(handle)))
        except KeyError:
            raise FlinkError(
                "FileNotFoundException", f"The state snapshot {handle} does not exist."
            ) from None
    return snapshots
