"""The checkpoint that an earlier run has kept: read it, check a job against it, and bring it into another testbed's store."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.failover import name_of
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph
from testbed_runtime.core.job.restore import (
    STATE_RECOVERY,
    has_same_exchanges,
    in_flight_problems,
    restore_problems,
)
from testbed_runtime.core.trial.plan import RETENTION
from testbed_runtime.jobmanager.jobstore import CompletedCheckpoint, JobStore, StoredJob, StoredRecovery
from testbed_runtime.ports.storage import BlobStore
from testbed_runtime.workload.snapshots import SubtaskSnapshot, decode_snapshot


class KeptCheckpoint(Struct, frozen=True):
    """The latest checkpoint below a folder `files/<trial>` of a run, whose `blobs` are the objects."""

    blobs: BlobStore
    job: StoredJob
    checkpoint: CompletedCheckpoint

    @classmethod
    async def read(cls, blobs: BlobStore, folder: str) -> KeptCheckpoint:
        """Raises UserError if there is none, and HeadgateError if it cannot be read."""
        store = JobStore(blobs)
        jobs = await store.jobs()
        latest = await store.latest(jobs[-1].job) if jobs else None
        if latest is None:
            hint = f"name the folder files/<trial> of a run with {RETENTION}: RETAIN_ON_CANCELLATION"
            raise UserError(folder, "contains no checkpoint", hint)
        return cls(blobs, jobs[-1], latest)

    @classmethod
    async def brought(cls, blobs: BlobStore) -> KeptCheckpoint:
        """Return the checkpoint that `bring` has copied to `blobs`. Raises HeadgateError if it is not complete."""
        try:
            recovery = await JobStore(blobs).recovery()
        except KeyError:
            raise UserError(STATE_RECOVERY, "the objects of the kept checkpoint do not name it") from None
        checkpoint = recovery.checkpoint
        started = checkpoint.timestamp_ms / 1000 - recovery.elapsed_s
        return cls(blobs, StoredJob(checkpoint.job, recovery.graph, {}, started), checkpoint)

    def require(self, wanted: JobGraph) -> None:
        """Raise UserError if the job cannot start from it."""
        _refuse(
            restore_problems(
                self.checkpoint.checkpoint, drained=self.checkpoint.drain, kept=self.job.graph, wanted=wanted
            )
        )

    def _graph(self) -> JobGraph:
        """The graph of the job that took the checkpoint. That is an earlier job if the one that kept it had started from it and took no
        checkpoint of its own."""
        before = self.checkpoint.parallelism
        vertices = (
            replace(vertex, parallelism=before.get(vertex.name, vertex.parallelism))
            for vertex in self.job.graph.vertices
        )
        return replace(self.job.graph, vertices=tuple(vertices))

    async def bring(self, into: BlobStore, wanted: JobGraph, flink_version: str) -> None:
        """Copy the objects of the checkpoint, and name it as the one from which the first job starts. Raises UserError."""
        self.require(wanted)
        kept, in_flight = self._graph(), Counter[JobEdge]()
        is_same = has_same_exchanges(kept, wanted)
        latest, sources = self.checkpoint, {v.name for v in self.job.graph.vertices if v.source is not None}
        positions = {}
        for task in latest.tasks:
            for key in task.objects:
                try:
                    data = await self.blobs.get(key)
                except KeyError:
                    raise UserError(STATE_RECOVERY, f"{key} of the checkpoint is missing") from None
                await into.put(key, data)
                if key != task.handle or (is_same and task.vertex not in sources):
                    continue
                snapshot = decode_snapshot(data)
                in_flight.update(_in_flight(kept, snapshot))
                if task.vertex in sources:
                    positions[name_of((task.vertex, task.subtask))] = snapshot.next_sequence
        _refuse(in_flight_problems(in_flight, kept=kept, wanted=wanted, flink_version=flink_version))
        first = replace(
            latest,
            tasks=tuple(replace(task, commits=()) for task in latest.tasks),
            unrecorded=(),
            retained=(),
            parallelism={vertex.name: vertex.parallelism for vertex in kept.vertices},
        )
        elapsed_s = latest.timestamp_ms / 1000 - self.job.job_started
        await JobStore(into).put_recovery(StoredRecovery(first, elapsed_s, positions, kept))


def _in_flight(graph: JobGraph, snapshot: SubtaskSnapshot) -> Counter[JobEdge]:
    """Return the bytes in flight of each exchange at one of its ends."""
    found, inputs, outputs = Counter[JobEdge](), graph.inputs(snapshot.vertex), graph.outputs(snapshot.vertex)
    for state in snapshot.input_state:
        found[inputs[state.group]] += state.size
    for state in snapshot.output_state:
        found[outputs[state.group]] += state.size
    return +found


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UserError(f"flinkConfiguration[{STATE_RECOVERY}]", " ".join(problems))
