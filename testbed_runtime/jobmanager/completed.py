"""The completed checkpoints of one job: which are retained, and whose commits are in the history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import replace

from testbed_runtime.core.job.checkpoints import retained_checkpoints
from testbed_runtime.core.job.executiongraph import NOTHING_TO_RESTORE, Execution, Restore
from testbed_runtime.core.job.failover import name_of
from testbed_runtime.core.job.jobgraph import JobVertex
from testbed_runtime.core.job.messages import SinkCommit
from testbed_runtime.core.job.splits import split_records
from testbed_runtime.jobmanager.jobstore import CompletedCheckpoint, JobStore, StoredTask
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.workload.snapshots import SubtaskSnapshot, encode_snapshot

MAX_UNRECORDED = 100
"""Further completed checkpoints kept while the recorder is unreachable: no history has their commits yet."""


class CompletedCheckpoints:
    """The completed checkpoint *is* the commit. Its commits are appended to the history, and it is kept until they are there."""

    def __init__(
        self, services: Services, job: str, store: JobStore, latest: CompletedCheckpoint | None
    ) -> None:
        self._services = services
        self.job = job
        self._store = store
        self._most = retained_checkpoints(services.options)
        self._retained = [latest] if latest is not None else []
        unrecorded = (*latest.unrecorded, latest.checkpoint) if latest is not None else ()
        self._unrecorded: dict[int, None] = dict.fromkeys(unrecorded)
        self._ended: dict[str, bytes] = {}
        """The states of finished tasks that are not in the store yet."""
        self._flush_first = False
        self._restore: tuple[CompletedCheckpoint | None, Restore] | None = None
        self.latest = latest

    @property
    def unrecorded(self) -> tuple[int, ...]:
        return tuple(self._unrecorded)

    @property
    def retained(self) -> tuple[int, ...]:
        """The ids of the completed checkpoints that are kept, from the oldest to the latest."""
        return tuple(completed.checkpoint for completed in self._retained)

    async def recover(self) -> None:
        """Take over from the previous leader: retain the checkpoints that it retained, and record its commits again."""
        if self.latest is not None:
            for checkpoint in self.latest.retained:
                with suppress(KeyError):  # it was deleted since
                    self._retained.insert(-1, await self._store.checkpoint(self.job, checkpoint))
        await self.record_again()
        await self.mark_recorded()

    @property
    def restore(self) -> Restore:
        """The handles that each vertex restores. Every task of a deployment asks for them."""
        if self._restore is None or self._restore[0] is not self.latest:
            found = NOTHING_TO_RESTORE if self.latest is None else self.latest.restore()
            self._restore = self.latest, found
        return self._restore[1]

    def flush_before_next(self) -> None:
        """Make the next checkpoint wait for the recorder: an at-least-once sink has appended rows, and no checkpoint may cover them
        before the recorder has them."""
        self._flush_first = True

    def finished(self, checkpoint: int, execution: Execution, vertex: JobVertex) -> StoredTask:
        """Return the state of a task that had finished before a checkpoint: the one that covers its end or, in a job without periodic
        checkpoints, one with which it has nothing left to do (FullyFinishedOperatorState of FLIP-147). A `socket` source still connects
        again."""
        attempt, subtask = execution.attempt.attempt, execution.task[1]
        if self.latest is not None and not self.latest.parallelism:
            for task in self.latest.tasks:
                if (task.vertex, task.subtask, task.attempt) == (*execution.task, attempt):
                    return replace(task, commits=())
        emitted = 0
        if (source := vertex.source) is not None:
            if source.splits:
                emitted = execution.splits * split_records(source.limit, source.splits)
            else:
                emitted = max(0, source.share(subtask, vertex.parallelism))
        snapshot = SubtaskSnapshot(
            checkpoint, vertex.name, subtask, vertex.parallelism, vertex.max_parallelism, emitted
        )
        key = f"jobs/{self.job}/checkpoints/{checkpoint}/{name_of(execution.task)}/{execution.attempt}"
        self._ended[key] = data = encode_snapshot(snapshot)
        return StoredTask(vertex.name, subtask, attempt, key, len(data))

    async def put(self, completed: CompletedCheckpoint) -> None:
        """Write it to the store. Raises OSError."""
        ended, self._ended = self._ended, {}
        for key, data in ended.items():
            await self._store.put_state(key, data)
        if self._flush_first:
            self._flush_first = False
            await self._services.history.flush()
        await self._store.put_checkpoint(completed)

    def add(self, completed: CompletedCheckpoint) -> None:
        """A checkpoint was written to the store: commit it to the history."""
        self.latest = completed
        self._record_commits(completed)
        self._unrecorded[completed.checkpoint] = None
        self._services.tasks.spawn(self.mark_recorded(), f"record-{completed.checkpoint}")

    async def record_again(self) -> None:
        """Commit again what the previous leader may not have recorded. Readers ignore a commit that two processes made. Rows that an
        earlier leader session of this process appended are not lost."""
        for checkpoint in list(self._unrecorded):
            if await self._store.is_recorded(self.job, checkpoint):
                del self._unrecorded[checkpoint]
            elif (self.job, checkpoint) not in self._services.committed:
                self._record_commits(await self._store.checkpoint(self.job, checkpoint))

    def _record_commits(self, completed: CompletedCheckpoint) -> None:
        committed = self._services.committed
        committed[self.job, completed.checkpoint] = None
        if len(committed) > self._most + MAX_UNRECORDED:
            del committed[next(iter(committed))]
        for task in completed.tasks:
            for part in task.commits:
                subject = name_of((task.vertex, task.subtask))
                record_delivery(self._services, subject, task.attempt, completed.checkpoint, part)

    async def mark_recorded(self) -> None:
        """Mark the appended commits as recorded, once the recorder has acknowledged them."""
        appended = list(self._unrecorded)
        if not await self._services.history.flush():
            return
        for checkpoint in appended:
            with suppress(OSError):
                await self._store.set_recorded(self.job, checkpoint)
            self._unrecorded.pop(checkpoint, None)

    def retain(self, completed: CompletedCheckpoint, on_deleted: Callable[[int], None]) -> int:
        """Keep the newest checkpoints and the unrecorded ones. Delete all older ones, failed ones too, except for objects that
        a kept one refers to: a file of an older one that a later checkpoint needs is in every one between them. Return how many
        completed ones are being deleted, the number with which `on_deleted` is called at the end."""
        retained = self._retained
        retained.append(completed)
        before = len(retained)
        while len(retained) > self._most and (
            retained[0].checkpoint not in self._unrecorded or len(retained) > self._most + MAX_UNRECORDED
        ):
            self._unrecorded.pop(retained.pop(0).checkpoint, None)
        count = before - len(retained)
        if count:
            kept = {key for c in retained for t in c.tasks for key in t.objects}
            drop = self._store.drop_before(completed.job, retained[0].checkpoint, frozenset(kept))
            self._services.tasks.spawn(
                _then(drop, on_deleted, count), f"drop-before-{retained[0].checkpoint}"
            )
        return count


def record_delivery(services: Services, task: str, attempt: int, checkpoint: int, commit: SinkCommit) -> None:
    """Append rows to `delivery`. The first one carries the weight."""
    weight = commit.weight
    chunks = commit.chunks or ((("", 0, "", 0, 0, 0),) if weight else ())
    for source, base, bitmap, duplicated, out_of_order, corrupted in chunks:
        counts = duplicated, out_of_order, corrupted, weight
        services.history.put(
            "delivery", (task, attempt, checkpoint, source, base, bytes.fromhex(bitmap), *counts)
        )
        weight = 0


async def _then(work: Awaitable[None], on_end: Callable[[int], None], count: int) -> None:
    try:
        with suppress(OSError):
            await work
    finally:
        on_end(count)
