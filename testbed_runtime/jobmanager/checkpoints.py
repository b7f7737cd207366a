"""The checkpoints of one job in progress: trigger, acknowledge, write to the store, notify the tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from testbed_runtime.core.ids import ExecutionAttemptID
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
from testbed_runtime.core.job.executiongraph import Execution, ExecutionGraph, ExecutionState
from testbed_runtime.core.job.failover import Task, name_of
from testbed_runtime.core.job.limits import option_limit
from testbed_runtime.core.job.messages import (
    JOBMASTER,
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from testbed_runtime.core.values import NS
from testbed_runtime.core.versions import ABORTION_NAMES_COMPLETED, TRIGGER_FAILURES_ABORT, has
from testbed_runtime.core.waits import JOBMASTER_NAME, Outcome
from testbed_runtime.history.waits import OpenWait
from testbed_runtime.jobmanager.completed import CompletedCheckpoints
from testbed_runtime.jobmanager.jobstore import CompletedCheckpoint, StoredTask
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.jobmanager.taskexecutors import TaskExecutors
from testbed_runtime.ports.rpc import NoAnswer, RemoteFailure
from testbed_runtime.timeouts import Timer

NOTIFY_RETRY_S = 0.5
"""Pause before a task is notified of the final checkpoint again: no later one would notify it."""

_R = CheckpointFailureReason
_OUTCOMES = {
    _R.CHECKPOINT_EXPIRED: Outcome.EXPIRED,
    _R.JOB_FAILOVER_REGION: Outcome.CANCELLED,
    _R.CHECKPOINT_SUBSUMED: Outcome.CANCELLED,
    _R.CHECKPOINT_COORDINATOR_SHUTDOWN: Outcome.CANCELLED,
    _R.CHECKPOINT_COORDINATOR_SUSPEND: Outcome.CANCELLED,
    _R.TASK_FAILURE: Outcome.CANCELLED,
}
"""Any other reason means that the checkpoint failed."""


class Checkpoints:
    """Triggers, collects and completes the checkpoints of one job. Runs in the JobMaster's mailbox.

    Calls `on_job_failure(class, text)` when too many checkpoints failed, or the final one, `on_settled` when a checkpoint that was
    being stored is complete or has failed, so that a restart may go on, and `on_changed` when the status of the job has changed: another
    id was used, or the final checkpoint is impossible."""

    def __init__(
        self,
        services: Services,
        graph: ExecutionGraph,
        executors: TaskExecutors,
        completed: CompletedCheckpoints,
        *,
        on_job_failure: Callable[[str, str], None],
        on_settled: Callable[[], None],
        on_changed: Callable[[], None],
        last_id: int = 0,
    ) -> None:
        """`last_id`: the last checkpoint that the previous leader triggered."""
        self._services = services
        self._graph = graph
        self._executors = executors
        self._on_job_failure = on_job_failure
        self._on_settled = on_settled
        self._on_changed = on_changed
        self._done = completed
        self._coordinator = CheckpointCoordinator(
            CheckpointConfig.of(services.options),
            last_id=last_id,
            last_completed=completed.latest.checkpoint if completed.latest is not None else 0,
            draw=services.random.stream("checkpoints").randint,
        )
        self._finalizing: dict[int, OpenWait] = {}
        """Checkpoints that every task has acknowledged and the store has not completed yet."""
        self._to_store: deque[PendingCheckpoint] = deque()
        """The same checkpoints, stored one after the other: a later one must not be replaced by an earlier one, as in Flink."""
        self._ended: dict[Task, ExecutionAttemptID] = {}
        """The attempt of each task whose data has ended."""
        self._waits: dict[int, OpenWait] = {}
        self._timeout = option_limit(services.options, "execution.checkpointing.timeout")
        self._timer = Timer()
        self.completed = 0
        self.last_duration_s = 0.0

    # ---- what the JobMaster calls

    @property
    def settling(self) -> bool:
        """Whether a checkpoint is being written to the store. No task may restore before the result is known."""
        return bool(self._finalizing)

    @property
    def draining(self) -> bool:
        return self._coordinator.draining

    @property
    def last_id(self) -> int:
        return self._coordinator.last_id

    @property
    def drain_refused(self) -> str:
        """The reason, with Flink's text, why the stop with a final checkpoint was refused; empty if it was not."""
        reason = self._coordinator.drain_refused
        return reason.value if reason is not None else ""

    def job_running(self) -> None:
        self._follow(self._coordinator.on_job_running)

    def task_running(self) -> None:
        self._follow(self._coordinator.on_task_running)

    def all_running(self) -> None:
        self._follow(self._coordinator.on_all_running)

    def data_ended(self, execution: Execution) -> None:
        """Record that the data of a task has ended. When the data of all tasks has ended, a checkpoint begins at once. A restarted task
        has to report it again."""
        self._ended[execution.task] = execution.attempt
        executions = self._graph.executions
        if len(self._ended) == len(executions) and all(self._ended[e.task] == e.attempt for e in executions):
            self._follow(self._coordinator.on_end_of_data)

    def _follow(self, change: Callable[[float], None]) -> None:
        """Notify the coordinator of a change. A batch job takes no checkpoints, not even a final one: it ends with its sources."""
        if not self._graph.graph.is_batch:
            change(self._services.clock.now())
            self._arm()

    def stop_with_drain(self) -> None:
        self._aborted(self._coordinator.stop_with_drain(self._services.clock.now()))
        self._refuse_drain()
        self._arm()

    def _refuse_drain(self) -> None:
        """Refuse a final checkpoint that is impossible because it would need a task that has finished, as Flink does. If all sources
        have finished, do not refuse: the job is about to end by itself."""
        after_finish = self._services.options.checkpoints_after_finish
        if self._coordinator.drain_due and not after_finish and self._graph.partly_finished:
            self._coordinator.refuse_drain()
            text = f"The stop with a final checkpoint was refused: {self.drain_refused}"
            self._services.event("note", self._done.job, text=text)
            self._on_changed()

    def on_restart(self) -> None:
        self._aborted(self._coordinator.on_restart(self._services.clock.now()))

    def stop(self) -> None:
        """Trigger no more checkpoints: the job ends."""
        self._aborted(self._coordinator.stop(self._services.clock.now()))

    def _aborted(self, checkpoints: list[Failed]) -> None:
        for failed in checkpoints:
            self._abort(failed)
        self._arm()

    def close(self) -> None:
        self._timer.cancel()

    # ---- trigger

    def _arm(self) -> None:
        deadline = self._coordinator.next_deadline()
        due = deadline if deadline < FOREVER else None
        self._timer.set(due, self._services.run_async, JOBMASTER, self._on_due)

    def _on_due(self) -> None:
        self._refuse_drain()
        graph = self._graph
        running = [e.task for e in graph.executions if e.state is ExecutionState.RUNNING]
        after_finish = self._services.options.checkpoints_after_finish
        allowed = (ExecutionState.RUNNING, ExecutionState.FINISHED)
        ready = graph.all_in(*(allowed if after_finish else allowed[:1]))
        for effect in self._coordinator.on_time(self._services.clock.now(), running if ready else []):
            if isinstance(effect, Triggered):
                self._trigger(effect)
            else:
                self._failed(effect)
        self._arm()

    def _trigger(self, triggered: Triggered) -> None:
        now = self._services.clock.now()
        self._on_changed()
        self._row(triggered.checkpoint, "triggered")
        self._waits[triggered.checkpoint] = self._services.waits.begin(
            "checkpoint", JOBMASTER_NAME, f"checkpoint {triggered.checkpoint}", limit=self._timeout
        )
        for task in self._graph.to_trigger():
            execution = self._graph.execution(task)
            message = TriggerCheckpoint(
                attempt=str(execution.attempt),
                checkpoint=triggered.checkpoint,
                timestamp_ms=int(now * 1000),
                leader=self._services.leader,
                drain=triggered.drain,
            )
            self._services.tasks.spawn(self._ask_trigger(execution, message), f"trigger-{name_of(task)}")

    async def _ask_trigger(self, execution: Execution, message: TriggerCheckpoint) -> None:
        """Trigger the checkpoint at a task. Any failure, including a timeout, aborts the checkpoint
        (CheckpointCoordinator.triggerTasks)."""
        reason = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
        try:
            await self._executors.ask(execution.taskmanager, message)
        except NoAnswer:
            pass
        except RemoteFailure as error:
            if error.class_name == "CheckpointException":  # the task is unknown there
                reason = CheckpointFailureReason.TASK_CHECKPOINT_FAILURE
        else:
            return
        if has(self._services.options.flink_version, TRIGGER_FAILURES_ABORT):
            self._services.run_async(JOBMASTER, self._not_triggered, execution, message.checkpoint, reason)

    def _not_triggered(self, execution: Execution, checkpoint: int, reason: CheckpointFailureReason) -> None:
        """Fail the checkpoint, unless the task has finished. A task that its TaskManager does not know has ended, and its report may be late."""
        ended = execution.state is ExecutionState.FINISHED or reason is _R.TASK_CHECKPOINT_FAILURE
        if not (ended and self._may_go_without(checkpoint)):
            self._fail(checkpoint, reason)

    def _may_go_without(self, checkpoint: int) -> bool:
        """Whether this is the final checkpoint of a stop, which does not need tasks that have nothing left to do (`task_finished`). In
        Flink the stop fails if they do not take it, and the job restarts."""
        pending = self._coordinator.pending(checkpoint)
        return pending is not None and pending.drain and self._services.options.checkpoints_after_finish

    # ---- answers

    def acknowledge(self, execution: Execution, message: AcknowledgeCheckpoint) -> bool:
        """Handle an acknowledgement of a current attempt. Return False when the checkpoint is not pending (expired, failed)."""
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
                state_bytes=message.state_bytes - message.reused_bytes,
                persisted_bytes=message.persisted_bytes,
            )
        if outcome is AckOutcome.COMPLETE and pending is not None:
            self._acknowledged(pending)
        return True

    def _acknowledged(self, pending: PendingCheckpoint) -> None:
        age_s = self._services.clock.now() - pending.triggered_at
        self._row(pending.id, "finalizing", duration_s=age_s)
        self._finalizing[pending.id] = self._services.waits.begin(
            "completion", JOBMASTER_NAME, f"checkpoint {pending.id}"
        )
        self._to_store.append(pending)
        if len(self._to_store) == 1:
            self._store_next()

    def task_finished(self, task: Task) -> None:
        """Record that a task has finished. The final checkpoint of a stop may have been triggered when it had nothing left to do."""
        pending = self._coordinator.finish(task) if self._services.options.checkpoints_after_finish else None
        if pending is not None:
            self._acknowledged(pending)

    def decline(self, execution: Execution, message: DeclineCheckpoint) -> None:
        """Handle a task that takes no snapshot. If it is ending, it reports its end instead."""
        reason = CheckpointFailureReason.of(message.reason)
        ending = reason is _R.CHECKPOINT_DECLINED_TASK_CLOSING or execution.state is ExecutionState.FINISHED
        if not (ending and self._may_go_without(message.checkpoint)):
            self._fail(message.checkpoint, reason, by=execution)

    def _fail(self, checkpoint: int, reason: CheckpointFailureReason, *, by: Execution | None = None) -> None:
        """Fail a checkpoint. If more checkpoints failed than are tolerated and this one was declined `by` a task, the job fails only if
        that task still runs (failGlobalIfExecutionIsStillRunning)."""
        pending = self._coordinator.pending(checkpoint)
        if pending is None or checkpoint in self._finalizing:
            return
        now = self._services.clock.now()
        failed = self._coordinator.fail(checkpoint, reason, now, by_task=by is not None)
        running = (ExecutionState.RUNNING, ExecutionState.INITIALIZING)
        if failed is not None and (by is None or pending.drain or by.state in running):
            self._failed(failed)
        elif failed is not None:
            self._abort(failed)
        self._arm()

    def _abort(self, failed: Failed) -> None:
        """Record a checkpoint that has ended without success, and notify the running tasks (CheckpointCoordinator.sendAbortedMessages)."""
        self._row(failed.checkpoint, "failed", reason=failed.reason.name, duration_s=failed.age_s)
        self._end_wait(failed.checkpoint, _OUTCOMES.get(failed.reason, Outcome.FAILED), failed.reason.value)
        names = has(self._services.options.flink_version, ABORTION_NAMES_COMPLETED)
        latest = self._coordinator.last_completed if names else 0
        for execution in self._graph.executions:
            if execution.state is ExecutionState.RUNNING:
                attempt, leader = str(execution.attempt), self._services.leader
                message = NotifyCheckpointAborted(attempt, failed.checkpoint, leader, latest)
                name = f"abort-{name_of(execution.task)}"
                self._services.tasks.spawn(self._notify_task(execution, message, final=False), name)

    def _failed(self, failed: Failed) -> None:
        self._abort(failed)
        if failed.job_failure:
            self._on_job_failure(failed.cause_class, failed.job_failure)

    # ---- completion

    def _store_next(self) -> None:
        """Write the next checkpoint to the store, unless a later one has subsumed it."""
        while self._to_store:
            pending = self._to_store[0]
            if self._coordinator.pending(pending.id) is not None:
                self._services.tasks.spawn(self._finalize(self._build(pending)), f"finalize-{pending.id}")
                return
            self._to_store.popleft()
            self._finalizing.pop(pending.id).end(Outcome.CANCELLED)

    def _build(self, pending: PendingCheckpoint) -> CompletedCheckpoint:
        last = self._coordinator.last_completed
        tasks = {
            task: StoredTask(
                vertex=task[0],
                subtask=task[1],
                attempt=self._graph.execution(task).attempt.attempt,
                handle=ack.state_handle,
                state_bytes=ack.state_bytes,
                commits=tuple(parts_to_commit(ack.commit, last)) if ack.commit is not None else (),
                shared=ack.shared_state,
            )
            for task, ack in pending.acknowledged.items()
        }
        for execution in self._graph.executions:
            if execution.task not in tasks:  # it had finished before this checkpoint
                vertex = self._graph.graph.vertex(execution.task[0])
                tasks[execution.task] = self._done.finished(pending.id, execution, vertex)
        ordered = tuple(tasks[task] for task in self._graph.tasks)
        timestamp_ms = int(pending.triggered_at * 1000)
        return CompletedCheckpoint(
            pending.id,
            self._done.job,
            timestamp_ms,
            pending.drain,
            ordered,
            unrecorded=self._done.unrecorded,
            retained=self._done.retained,
        )

    async def _finalize(self, completed: CompletedCheckpoint) -> None:
        outcome = Outcome.COMPLETED
        try:
            await self._done.put(completed)
        except OSError:
            outcome = Outcome.FAILED
        self._services.run_async(JOBMASTER, self._on_finalized, completed, outcome)

    def _on_finalized(self, completed: CompletedCheckpoint, outcome: Outcome) -> None:
        self._to_store.popleft()
        self._finalizing.pop(completed.checkpoint).end(outcome)
        if outcome is Outcome.FAILED:
            self._fail(completed.checkpoint, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE)
        else:
            self._complete(completed)
        self._store_next()
        self._arm()
        self._on_settled()

    def _complete(self, completed: CompletedCheckpoint) -> None:
        now = self._services.clock.now()
        for failed in self._coordinator.complete(completed.checkpoint, now):
            self._abort(failed)
        self.completed += 1
        self.last_duration_s = now - completed.timestamp_ms / 1000
        size = sum(task.state_bytes for task in completed.tasks)
        self._row(completed.checkpoint, "completed", duration_s=self.last_duration_s, state_bytes=size)
        self._end_wait(completed.checkpoint, Outcome.COMPLETED)
        self._done.add(completed)
        self._notify(completed)
        run_async = self._services.run_async
        deleting = self._done.retain(completed, lambda n: run_async(JOBMASTER, self._on_deleted, n))
        self._coordinator.on_deleting(deleting)

    def _on_deleted(self, checkpoints: int) -> None:
        self._coordinator.on_deleted(checkpoints, self._services.clock.now())
        self._arm()

    def _notify(self, completed: CompletedCheckpoint) -> None:
        for stored in completed.tasks:
            execution = self._graph.execution((stored.vertex, stored.subtask))
            if execution.attempt.attempt == stored.attempt and not execution.state.terminal:
                message = NotifyCheckpointComplete(
                    str(execution.attempt), completed.checkpoint, self._services.leader
                )
                name = f"notify-{name_of(execution.task)}"
                notifying = self._notify_task(execution, message, final=completed.drain)
                self._services.tasks.spawn(notifying, name)

    async def _notify_task(self, execution: Execution, message: object, *, final: bool) -> None:
        """Notify a task once. The next checkpoint would notify it too, but after the final one there is none: then repeat
        until the task was notified, has ended or is unreachable."""
        while True:
            try:
                await self._executors.ask(execution.taskmanager, message)
            except NoAnswer:
                gone = execution.state.terminal or execution.taskmanager not in self._executors
                if gone or not final:
                    return
                await asyncio.sleep(NOTIFY_RETRY_S)
            except RemoteFailure:
                return
            else:
                return

    # ---- the history

    def _end_wait(self, checkpoint: int, outcome: Outcome, cause: str = "") -> None:
        wait = self._waits.pop(checkpoint, None)
        if wait is not None:
            wait.end(outcome, cause=cause)

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
        persisted_bytes: int = 0,
    ) -> None:
        self._services.history.append(
            "checkpoints",
            checkpoint=checkpoint,
            state=state,
            task=task,
            reason=reason,
            duration_ns=int(duration_s * NS),
            alignment_ns=int(alignment_s * NS),
            state_bytes=state_bytes,
            persisted_bytes=persisted_bytes,
        )
