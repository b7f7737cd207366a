"""`headgate state`: restore the keyed state of a kept checkpoint, at any parallelism."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct, to_builtins

from testbed_runtime.cli.options import AsJson, show
from testbed_runtime.cli.tables import aligned
from testbed_runtime.core.errors import FlinkError, UserError
from testbed_runtime.core.options import Options

if TYPE_CHECKING:
    from testbed_runtime.ports.storage import BlobStore
    from testbed_runtime.workload.keyedstate import SubtaskContext, TimeToLive


class Restored(Struct, frozen=True):
    """The state that one subtask restored."""

    subtask: str
    first_key_group: int
    last_key_group: int
    entries: int
    counted: int


def state(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder `files/<trial>` of a run with execution.checkpointing.externalized-checkpoint-retention: RETAIN_ON_CANCELLATION."
        ),
    ],
    parallelism: Annotated[int, typer.Option(min=0, help="New parallelism; 0: that of the job.")] = 0,
    max_parallelism: Annotated[
        int, typer.Option(min=0, help="New max parallelism; 0: that of the job. Any other is refused.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Restore the keyed state of a kept checkpoint as a job would, and show what each subtask gets.

    Entries that had expired when the checkpoint was triggered are left out. Another parallelism redistributes the key groups; another max parallelism is refused, as in Flink."""
    checkpoint, found = asyncio.run(restored_state(folder, parallelism, max_parallelism))
    data = {"checkpoint": checkpoint, "subtasks": [to_builtins(one) for one in found]}
    show(data, lines(checkpoint, found), as_json=as_json)


def lines(checkpoint: int, restored: Sequence[Restored]) -> Iterator[str]:
    """Yield the checkpoint and the subtasks as a table. Pure."""
    yield f"checkpoint {checkpoint}"
    rows = [("subtask", "key groups", "entries", "counted")]
    rows += [
        (r.subtask, f"{r.first_key_group}-{r.last_key_group}", str(r.entries), str(r.counted))
        for r in restored
    ]
    yield from aligned(rows)


async def restored_state(folder: Path, parallelism: int, max_parallelism: int) -> tuple[int, list[Restored]]:
    """Restore the checkpoint's keyed state. Raises UserError if the checkpoint is missing or cannot be restored at this parallelism."""
    from testbed_runtime.cli.preflight import checkpoint_folder
    from testbed_runtime.jobmanager.recovery import KeptCheckpoint
    from testbed_runtime.workload.keyedstate import SubtaskContext, TimeToLive

    blobs = checkpoint_folder(str(folder))
    kept = await KeptCheckpoint.read(blobs, str(folder))
    handles, found = kept.checkpoint.restore().handles, []
    for vertex in kept.job.graph.vertices:
        if vertex.operator is None or not vertex.operator.keyed:
            continue
        triggered_ns = kept.checkpoint.timestamp_ms * 1_000_000
        ttl = TimeToLive(int(vertex.operator.state_ttl_s * 1e9), partial(int, triggered_ns))
        wanted, groups = parallelism or vertex.parallelism, max_parallelism or vertex.max_parallelism
        if wanted > groups:
            raise UserError("--parallelism", f"{wanted} is more than the max parallelism {groups}")
        for subtask in range(wanted):
            context = SubtaskContext(0, vertex.name, subtask, wanted, groups, 0, ())
            try:
                found.append(await _restored(blobs, handles.get(vertex.name, ()), context, ttl))
            except FlinkError as error:
                raise UserError(vertex.name, f"{error.class_name}: {error.message}") from None
    return kept.checkpoint.checkpoint, found


async def _restored(
    blobs: BlobStore, handles: tuple[str, ...], context: SubtaskContext, ttl: TimeToLive
) -> Restored:
    """Restore one subtask as its task does, with files in memory. Raises FlinkError."""
    from testbed_runtime.core.job.keygroups import group_range
    from testbed_runtime.core.job.statememory import StateBackendConfig
    from testbed_runtime.store.statefiles import MemoryStateFiles
    from testbed_runtime.taskmanager.checkpoints import restore_snapshots
    from testbed_runtime.taskmanager.localstate import LocalState
    from testbed_runtime.taskmanager.statefiles import AttemptFiles, StateBackend

    snapshots, _ = await restore_snapshots(
        blobs, LocalState(), handles, subtask=context.subtask, parallelism=context.parallelism
    )
    kind = "rocksdb" if any(snapshot.runs for snapshot in snapshots) else "hashmap"
    config = StateBackendConfig.of(Options({"state.backend.type": kind}), 1)
    files = AttemptFiles(StateBackend(config, MemoryStateFiles()), job="", attempt="state", allocation="")
    snapshots, _ = await files.fetch(snapshots, blobs, LocalState())
    keyed = files.state(context, ttl)
    keyed.restore(snapshots)
    rows = keyed.rows()
    mine = group_range(context.subtask, context.parallelism, context.max_parallelism)
    name = f"{context.name}-{context.subtask}"
    return Restored(name, mine.start, mine.stop - 1, len(rows), int(rows.counts.sum()))
