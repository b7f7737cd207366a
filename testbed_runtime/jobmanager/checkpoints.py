"""The checkpoint coordinator at work: triggers, acknowledgements, finalizing in the store, the commit into the record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from testbed_runtime.core.job.checkpoints import (
    FOREVER,
    AckOutcome,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureReason,
    Failed,
    PendingCheckpoint,
    Triggered,
    parts_to_commit,
)
from testbed_runtime.core.job.executiongraph import Execution, ExecutionGraph, ExecutionState, Restore
from testbed_runtime.core.job.messages import (
    JOBMASTER,
    AcknowledgeCheckpoint,
    CommitRecords,
    DeclineCheckpoint,
    NotifyCheckpointComplete,
    SinkCommit,
    TriggerCheckpoint,
)
from testbed_runtime.jobmanager.jobstore import (
    CompletedCheckpoint,
    JobStore,
    StoredTask,
    restore_of,
)
from testbed_runtime.jobmanager.record import name_of
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.jobmanager.taskexecutors import TaskExecutors
from testbed_runtime.ports.rpc import AskTimeout, Handler, RecipientUnreachable, RemoteFailure

NANOS = 1_000_000_000
RETAINED = 2
"""Completed checkpoints kept: a task that restores may still read the one before the latest."""
MAX_UNRECORDED = 100
"""Completed checkpoints kept for a recorder that is away: their commits are in no record yet."""
NOTIFY_RETRY_S = 0.5
"""Pause before a task is told again of the final checkpoint, after which no other one would tell it."""


@dataclass(frozen=True, slots=True)
class _Due:
    pass


@dataclass(frozen=True, slots=True)
class _Finalized:
    completed: CompletedCheckpoint | None
    checkpoint: int


@dataclass(frozen=True, slots=True)
class _NotTriggered:
    checkpoint: int


class Owner(Protocol):
    """The JobMaster, as its coordinator sees it."""

    job: str
    graph: ExecutionGraph

    def checkpoints_failed_job(self, text: str) -> None: ...

    def checkpoint_settled(self) -> None:
        """A finalizing checkpoint is in the store or has failed: a restart may go on."""


class Checkpoints:
    """Of one job. All methods run in the JobMaster's mailbox."""

    def __init__(
        self,
        services: Services,
        owner: Owner,
        executors: TaskExecutors,
        store: JobStore,
        latest: CompletedCheckpoint | None,
    ) -> None:
        self._services = services
        self._owner = owner
        self._executors = executors
        self._store = store
        self._latest = latest
        last = latest.checkpoint if latest is not None else 0
        self._coordinator = CheckpointCoordinator(CheckpointConfig.of(services.options), last_id=last)
        self._finalizing: dict[int, None] = {}
        self._retained: list[CompletedCheckpoint] = [latest] if latest is not None else []
        unrecorded = (*latest.unrecorded, latest.checkpoint) if latest is not None else ()
        self._unrecorded: dict[int, None] = dict.fromkeys(unrecorded)
        self._flush_first = False
        self._timer: asyncio.TimerHandle | None = None
        self.completed = 0
        self.last_duration_s = 0.0

    def handlers(self) -> dict[type, Handler]:
        return {_Due: self._on_due, _Finalized: self._on_finalized, _NotTriggered: self._on_not_triggered}

    # ---- what the JobMaster says

    @property
    def restore(self) -> Restore:
        return restore_of(self._latest)

    @property
    def settling(self) -> bool:
        """A checkpoint is on its way into the store: nobody may restore before that is decided."""
        return bool(self._finalizing)

    @property
    def draining(self) -> bool:
        return self._coordinator.draining

    def all_running(self) -> None:
        self._coordinator.activate(self._services.clock.now())
        self._arm()

    def stop_with_drain(self) -> None:
        self._coordinator.stop_with_drain()
        self._arm()

    def abort(self, reason: CheckpointFailureReason) -> None:
        for failed in self._coordinator.abort_all(reason, self._services.clock.now()):
            self._record_failed(failed)
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def committed_at_once(self) -> None:
        """Rows of an at-least-once sink wait for the recorder: no checkpoint may cover them before they are there."""
        self._flush_first = True

    async def record_again(self) -> None:
        """A new leader: commit to the record what the old one may not have got there. What it did get there is found to be
        the same commit by the reader."""
        job = self._owner.job
        for checkpoint in list(self._unrecorded):
            if await self._store.is_recorded(job, checkpoint):
                del self._unrecorded[checkpoint]
            else:
                self._record_commits(await self._store.checkpoint(job, checkpoint))
        await self._mark_recorded()

    # ---- trigger

    def _arm(self) -> None:
        self.close()
        deadline = self._coordinator.next_deadline()
        if deadline < FOREVER:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(deadline, self._services.rpc.post, JOBMASTER, _Due())

    async def _on_due(self, message: _Due) -> None:
        del message
        graph = self._owner.graph
        running = [e.task for e in graph.executions if e.state is ExecutionState.RUNNING]
        ready = graph.all_in(ExecutionState.RUNNING, ExecutionState.FINISHED)
        for effect in self._coordinator.on_time(self._services.clock.now(), running if ready else []):
            if isinstance(effect, Triggered):
                self._trigger(effect)
            else:
                self._failed(effect)
        self._arm()

    def _trigger(self, triggered: Triggered) -> None:
        now = self._services.clock.now()
        self._row(triggered.checkpoint, "triggered")
        for task in self._owner.graph.to_trigger():
            execution = self._owner.graph.execution(task)
            message = TriggerCheckpoint(
                attempt=str(execution.attempt),
                checkpoint=triggered.checkpoint,
                timestamp_ms=int(now * 1000),
                leader=self._services.leader,
                drain=triggered.drain,
            )
            self._services.tasks.spawn(self._ask_trigger(execution, message), f"trigger-{name_of(task)}")

    async def _ask_trigger(self, execution: Execution, message: TriggerCheckpoint) -> None:
        try:
            await self._executors.ask(execution.taskmanager, message)
        except (RecipientUnreachable, RemoteFailure):
            self._services.rpc.post(JOBMASTER, _NotTriggered(message.checkpoint))
        except AskTimeout:
            return  # it may have been triggered all the same: the checkpoint's own timeout judges

    async def _on_not_triggered(self, message: _NotTriggered) -> None:
        self._fail(message.checkpoint, CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE)

    # ---- answers

    def acknowledge(self, execution: Execution, message: AcknowledgeCheckpoint) -> bool:
        """False: late (expired, failed or never triggered). The attempt is the current one."""
        pending = self._coordinator.pending(message.checkpoint)
        outcome = self._coordinator.acknowledge(execution.task, message)
        if outcome is AckOutcome.UNKNOWN:
            return False
        if outcome is not AckOutcome.DUPLICATE and pending is not None:
            self._row(
                message.checkpoint,
                "acknowledged",
                task=name_of(execution.task),
                duration_s=self._services.clock.now() - pending.triggered_at,
                alignment_s=message.alignment_s,
                state_bytes=message.state_bytes,
            )
        if outcome is AckOutcome.COMPLETE and pending is not None:
            self._finalizing[pending.id] = None
            self._services.tasks.spawn(self._finalize(self._build(pending)), f"finalize-{pending.id}")
        return True

    def decline(self, message: DeclineCheckpoint) -> None:
        self._fail(message.checkpoint, CheckpointFailureReason.of(message.reason))

    def _fail(self, checkpoint: int, reason: CheckpointFailureReason) -> None:
        if checkpoint in self._finalizing:
            return
        failed = self._coordinator.fail(checkpoint, reason, self._services.clock.now())
        if failed is not None:
            self._failed(failed)
        self._arm()

    def _failed(self, failed: Failed) -> None:
        self._record_failed(failed)
        if failed.job_failure:
            self._owner.checkpoints_failed_job(failed.job_failure)

    # ---- completion

    def _build(self, pending: PendingCheckpoint) -> CompletedCheckpoint:
        last = self._coordinator.last_completed
        tasks = {
            task: StoredTask(
                vertex=task[0],
                subtask=task[1],
                attempt=self._owner.graph.execution(task).attempt.attempt,
                handle=ack.state_handle,
                state_bytes=ack.state_bytes,
                commits=tuple(parts_to_commit(ack.commit, last)) if ack.commit is not None else (),
            )
            for task, ack in pending.acknowledged.items()
        }
        for finished in self._latest.tasks if self._latest is not None else ():
            key = (finished.vertex, finished.subtask)
            if key not in tasks:  # it had finished before: its last state stays its state
                tasks[key] = StoredTask(
                    finished.vertex, finished.subtask, finished.attempt, finished.handle, finished.state_bytes
                )
        ordered = tuple(tasks[task] for task in self._owner.graph.tasks if task in tasks)
        timestamp_ms = int(pending.triggered_at * 1000)
        return CompletedCheckpoint(
            pending.id,
            self._owner.job,
            timestamp_ms,
            pending.drain,
            ordered,
            unrecorded=tuple(self._unrecorded),
        )

    async def _finalize(self, completed: CompletedCheckpoint) -> None:
        if self._flush_first:
            self._flush_first = False
            await self._services.history.flush()
        try:
            await self._store.put_checkpoint(completed)
        except OSError:
            self._services.rpc.post(JOBMASTER, _Finalized(None, completed.checkpoint))
        else:
            self._services.rpc.post(JOBMASTER, _Finalized(completed, completed.checkpoint))

    async def _on_finalized(self, message: _Finalized) -> None:
        self._finalizing.pop(message.checkpoint, None)
        if message.completed is None:
            self._fail(message.checkpoint, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE)
        else:
            self._complete(message.completed)
        self._arm()
        self._owner.checkpoint_settled()

    def _complete(self, completed: CompletedCheckpoint) -> None:
        now = self._services.clock.now()
        for failed in self._coordinator.complete(completed.checkpoint, now):
            self._record_failed(failed)
        self._latest = completed
        self.completed += 1
        self.last_duration_s = now - completed.timestamp_ms / 1000
        size = sum(task.state_bytes for task in completed.tasks)
        self._row(completed.checkpoint, "completed", duration_s=self.last_duration_s, state_bytes=size)
        self._record_commits(completed)
        self._unrecorded[completed.checkpoint] = None
        self._services.tasks.spawn(self._mark_recorded(), f"record-{completed.checkpoint}")
        self._notify(completed)
        self._retain(completed)

    def _notify(self, completed: CompletedCheckpoint) -> None:
        for stored in completed.tasks:
            execution = self._owner.graph.execution((stored.vertex, stored.subtask))
            if execution.attempt.attempt == stored.attempt and not execution.state.terminal:
                message = NotifyCheckpointComplete(
                    str(execution.attempt), completed.checkpoint, self._services.leader
                )
                name = f"notify-{name_of(execution.task)}"
                telling = self._tell(execution, message, until_told=completed.drain)
                self._services.tasks.spawn(telling, name)

    async def _tell(self, execution: Execution, message: object, *, until_told: bool) -> None:
        """Once, as the next completed checkpoint tells it as well; after the final one there is none: until the task was told,
        has ended or is out of reach."""
        while True:
            try:
                await self._executors.ask(execution.taskmanager, message)
            except (RecipientUnreachable, AskTimeout):
                gone = execution.state.terminal or execution.taskmanager not in self._executors
                if gone or not until_told:
                    return
                await asyncio.sleep(NOTIFY_RETRY_S)
            except RemoteFailure:
                return
            else:
                return

    def _retain(self, completed: CompletedCheckpoint) -> None:
        """Keep the newest and what is not in the record yet; of all older ones, failed ones too, only what is referred to."""
        retained = self._retained
        retained.append(completed)
        before = len(retained)
        while len(retained) > RETAINED and (
            retained[0].checkpoint not in self._unrecorded or len(retained) > RETAINED + MAX_UNRECORDED
        ):
            self._unrecorded.pop(retained.pop(0).checkpoint, None)
        if len(retained) < before:
            kept = frozenset(t.handle for c in retained for t in c.tasks)
            drop = self._store.drop_before(completed.job, retained[0].checkpoint, kept)
            self._services.tasks.spawn(_ignoring_disk(drop), f"drop-before-{retained[0].checkpoint}")

    # ---- the record

    async def _mark_recorded(self) -> None:
        """What was appended is in the record as soon as the recorder has acknowledged; while it is away, nothing is."""
        appended = list(self._unrecorded)
        if not await self._services.history.flush():
            return
        for checkpoint in appended:
            await _ignoring_disk(self._store.set_recorded(self._owner.job, checkpoint))
            self._unrecorded.pop(checkpoint, None)

    def _record_commits(self, completed: CompletedCheckpoint) -> None:
        for task in completed.tasks:
            for part in task.commits:
                record_delivery(
                    self._services,
                    name_of((task.vertex, task.subtask)),
                    task.attempt,
                    completed.checkpoint,
                    part,
                )

    def _record_failed(self, failed: Failed) -> None:
        self._row(failed.checkpoint, "failed", reason=failed.reason.name, duration_s=failed.age_s)

    def _row(
        self,
        checkpoint: int,
        state: str,
        *,
        task: str = "",
        reason: str = "",
        duration_s: float = 0.0,
        alignment_s: float = 0.0,
        state_bytes: int = 0,
    ) -> None:
        self._services.history.append(
            "checkpoints",
            checkpoint=checkpoint,
            state=state,
            task=task,
            reason=reason,
            duration_ns=int(duration_s * NANOS),
            alignment_ns=int(alignment_s * NANOS),
            state_bytes=state_bytes,
        )


def record_delivery(services: Services, task: str, attempt: int, checkpoint: int, commit: SinkCommit) -> None:
    """Rows of `delivery`; the weight stands in the first one."""
    weight = commit.weight
    chunks = commit.chunks or ((("", 0, "", 0, 0, 0),) if weight else ())
    for source, base, bitmap, duplicated, out_of_order, corrupted in chunks:
        services.history.append(
            "delivery",
            task=task,
            attempt=attempt,
            checkpoint=checkpoint,
            source=source,
            base=base,
            bitmap=bytes.fromhex(bitmap),
            duplicated=duplicated,
            out_of_order=out_of_order,
            corrupted=corrupted,
            weight=weight,
        )
        weight = 0


def records_in(commit: SinkCommit) -> int:
    """Set bits of all bitmaps."""
    return sum(int(chunk[2] or "0", 16).bit_count() for chunk in commit.chunks)


async def _ignoring_disk(work: Awaitable[None]) -> None:
    try:
        await work
    except OSError:
        return


class CommitLog:
    """Flushes of at-least-once sinks, each recorded once."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._next: dict[str, int] = {}

    def record(self, execution: Execution, message: CommitRecords) -> None:
        if message.sequence < self._next.get(message.attempt, 0):
            return
        self._next[message.attempt] = message.sequence + 1
        record_delivery(
            self._services, name_of(execution.task), execution.attempt.attempt, -1, message.commit
        )

    def forget(self, attempts: Callable[[str], bool]) -> None:
        """Drop what ended attempts left here."""
        for attempt in [a for a in self._next if attempts(a)]:
            del self._next[attempt]
