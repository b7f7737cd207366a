"""The JobMaster of one job: its endpoint, its life from start to a terminal state, and the TaskManagers that it is connected to.

Everything runs in its mailbox. What takes time (asks, the store) runs in a background task that posts its outcome back. So each
deployment, report and answer costs one service time (`headgate.jobmanager.service-time`), and a busy JobMaster answers late.
"""

from __future__ import annotations

import asyncio
from functools import partial

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.ids import JOBMANAGER, TaskManagerID
from testbed_runtime.core.job.deployments import Missing
from testbed_runtime.core.job.executiongraph import Execution, ExecutionGraph, ExecutionState
from testbed_runtime.core.job.failover import Task, name_of
from testbed_runtime.core.job.leaderelection import revoked_text
from testbed_runtime.core.job.livecounters import summed
from testbed_runtime.core.job.messages import (
    JOBMASTER,
    Acknowledge,
    DisconnectTaskManager,
    FailSlot,
    Heartbeat,
    JobStatusReply,
    OfferSlots,
    RegisterAtJobMaster,
    RegistrationResult,
    SlotOfferResult,
    UpdateTaskExecutionState,
)
from testbed_runtime.core.job.outcome import PRODUCER_FAILED
from testbed_runtime.core.waits import JOBMASTER_NAME
from testbed_runtime.jobmanager.blocking import BlockingResults
from testbed_runtime.jobmanager.checkpoints import Checkpoints
from testbed_runtime.jobmanager.completed import CompletedCheckpoints
from testbed_runtime.jobmanager.failover import Failovers
from testbed_runtime.jobmanager.flowcontrol import FlowCoordinator
from testbed_runtime.jobmanager.heartbeats import HeartbeatSender, Lost
from testbed_runtime.jobmanager.jobstore import CompletedCheckpoint, JobStore, StoredJob, StoredStatus
from testbed_runtime.jobmanager.reports import NOT_FOUND, InputSplits, TaskReports
from testbed_runtime.jobmanager.resourcemanager import ResourceManager, ServedJob, restarted
from testbed_runtime.jobmanager.scheduler import SERVICE_TIME, Scheduler
from testbed_runtime.jobmanager.services import RunAsync, Services, connected, on_run_async
from testbed_runtime.jobmanager.state import NO_CAUSE, Cause, JobState, JobTasks
from testbed_runtime.jobmanager.taskexecutors import TaskExecutors
from testbed_runtime.ports.rpc import Handler

_S = ExecutionState
NOT_RESPONSIBLE = "The JobManager is not responsible for job {0}. Maybe the TaskManager used outdated connection information."
"""Flink's text."""

BUSY_S = 5.0
"""A JobMaster that has handled messages for so long without a break is busy."""


class JobMaster:
    """Created by the Dispatcher. `start` schedules the job; `close` stops this JobMaster and leaves the job in the store."""

    def __init__(
        self,
        services: Services,
        resourcemanager: ResourceManager,
        store: JobStore,
        stored: StoredJob,
        *,
        recovered: StoredStatus | None = None,
        latest: CompletedCheckpoint | None = None,
        revoked: str = "",
    ) -> None:
        """`revoked`: why the previous leader session ended, if it belonged to this process."""
        self.job = stored.job
        self.stored = stored
        self._services = services
        self._rm = resourcemanager
        self._recovered = recovered
        self._revoked = revoked
        self._epoch = recovered.epoch + 1 if recovered else 1
        first_attempt = recovered.attempt + 1 if recovered else 0
        self.graph = ExecutionGraph(stored.graph, stored.job, epoch=self._epoch, first_attempt=first_attempt)
        self._names = {task: name_of(task) for task in self.graph.tasks}
        self._state = JobState(services, store, self.job, self.stored_status)
        self._executors = TaskExecutors(services, self._on_cancel_ended)
        self._tasks = JobTasks(services, self.graph, self._executors)
        self._completed = CompletedCheckpoints(services, self.job, store, latest)
        self._checkpoints = Checkpoints(
            services,
            self.graph,
            self._executors,
            self._completed,
            on_job_failure=self._on_checkpoints_failed,
            on_settled=self._advance,
            on_changed=self._state.save,
            last_id=recovered.checkpoint if recovered else 0,
        )
        self._reports = TaskReports(services, self.graph, self._checkpoints, self._completed)
        self._splits = InputSplits(services, self.graph)
        self._flow = FlowCoordinator(services, stored.graph, self._tasks)
        self._scheduler = Scheduler(
            services,
            stored,
            self._tasks,
            resourcemanager,
            restore=lambda: self._completed.restore,
            on_deploying=self._on_deploying,
            on_failed=self._fail,
        )
        self._results = BlockingResults(self.graph, self._executors, self._scheduler.pool)
        self.heartbeats = self._heartbeats()
        self._failovers = Failovers(
            services,
            self._state,
            self._tasks,
            self._scheduler,
            self._checkpoints,
            results=self._results,
            restarts=recovered.restarts if recovered else 0,
            number=recovered.failovers if recovered else 0,
            probe=self.heartbeats.probe,
            on_exhausted=self._end_all,
            on_reset=self._reports.forget_ended,
        )
        self.handlers = self._handlers()
        """The handlers of the endpoint `jobmaster`."""

    def _heartbeats(self) -> HeartbeatSender:
        return HeartbeatSender(
            self._services,
            JOBMASTER,
            JOBMASTER_NAME,
            JOBMANAGER,
            on_lost=self._on_lost,
            on_answer=self._on_heartbeat,
            allocations=self._scheduler.pool.report,
        )

    def _handlers(self) -> dict[type, Handler]:
        return {
            RegisterAtJobMaster: self._register,
            OfferSlots: self._offer_slots,
            FailSlot: self._fail_slot,
            DisconnectTaskManager: self._disconnect,
            UpdateTaskExecutionState: self._update_state,
            RunAsync: on_run_async,
            **self._scheduler.handlers(),
            **self._reports.handlers(),
            **self._flow.handlers(),
            **self._splits.handlers(),
            **self.heartbeats.handlers(),
        }

    # ---- start, cancel, status

    @property
    def state(self) -> str:
        return self._state.name

    async def start(self) -> None:
        """Schedule all tasks. A recovered job first records the commits of its latest checkpoint again."""
        await self._state.save_now()
        scheduler = self._scheduler
        self._rm.serve_job(
            ServedJob(self.job, scheduler.pool, self._taskmanager_lost, scheduler.not_enough_resources)
        )
        if self._recovered is not None:
            await self._completed.recover()
            self._failovers.begin_recovered(self._revoked and revoked_text(self.job, self._revoked))
            if self._recovered.draining:
                self._checkpoints.stop_with_drain()
                self._scheduler.deploy_all()
        self._state.to("RUNNING")
        self._checkpoints.job_running()
        self._scheduler.schedule(self.graph.tasks, self._failovers.number)
        self._state.save()

    def cancel(self) -> None:
        if not self._state.terminal:
            self._state.to("CANCELLING")
            self._end_all()

    def stop_with_drain(self) -> None:
        """Take a final checkpoint as soon as all tasks run; then the tasks finish."""
        if not self._state.terminal:
            self._checkpoints.stop_with_drain()
            self._scheduler.deploy_all()
            self._state.save()

    def status(self) -> JobStatusReply:
        names, executions = self._names, self.graph.executions
        owners = {e.slot.owner for e in executions if e.slot is not None}
        texts = {owner: str(owner) for owner in owners}  # far fewer than tasks
        placed = {names[e.task]: texts[e.slot.owner] for e in executions if e.slot is not None}
        cause = NO_CAUSE if self.state == "RUNNING" else self._state.cause
        return JobStatusReply(
            state=self.state,
            cause_class=cause.class_name,
            cause=cause.text,
            restarts=self._failovers.restarts,
            tasks={names[e.task]: str(e.state) for e in executions},
            placement=placed,
            completed_checkpoints=self._checkpoints.completed,
            taskmanagers=self._rm.taskmanagers,
            counters=self._counters(),
            stop_refused=self._checkpoints.drain_refused,
            waits_for=self._waits_for(),
        )

    def _waits_for(self) -> str:
        """Describe the longest wait, and what keeps the JobMaster busy meanwhile."""
        services, options = self._services, self._services.options
        longest, busy_s = services.waits.longest(JOBMASTER_NAME), services.rpc.busy_s(JOBMASTER)
        if not longest or busy_s < BUSY_S:
            return longest
        each = options.duration(SERVICE_TIME)
        text = f"; each takes {SERVICE_TIME} = {options.shown(SERVICE_TIME)}" if each else ""
        return f"{longest}. It has handled messages for {busy_s:.1f} s without a break{text}"

    def _counters(self) -> dict[str, float]:
        """Sum up the TaskManagers' heartbeat payloads, and add the JobMaster's own counters."""
        total = summed(self.heartbeats.payloads.values())
        total["checkpoint_duration_s"] = self._checkpoints.last_duration_s
        total["stale_rejected"] = float(self._reports.stale)
        return total

    def stored_status(self) -> StoredStatus:
        """Return the status of the job that is written to the store."""
        return StoredStatus(
            state=self.state,
            epoch=self._epoch,
            attempt=max(e.attempt.attempt for e in self.graph.executions),
            restarts=self._failovers.restarts,
            cause_class=self._state.cause.class_name,
            cause=self._state.cause.text,
            draining=self._checkpoints.draining,
            failovers=self._failovers.number,
            checkpoint=self._checkpoints.last_id,
        )

    def _on_deploying(self, restart: int) -> None:
        self._failovers.on_deploying(restart)

    # ---- end

    def _end_all(self) -> None:
        """Cancel every task; the job ends when all tasks have."""
        self._checkpoints.stop()
        self._scheduler.abandon()
        self._failovers.abandon()
        for task in self.graph.tasks:
            self._tasks.cancel(task)
        self._check_end()

    def _check_end(self) -> None:
        if not self.graph.ended or self._state.terminal:
            return
        if self.state == "CANCELLING":
            self._finish("CANCELED", self._state.cause.text)
        elif self.state == "FAILING":
            cause = self._state.cause
            root = f"{cause.class_name}: {cause.text}"
            text = f"Recovery is suppressed by {self._failovers.strategy.text}; caused by {root}"
            self._finish("FAILED", text, root=root)
        elif self.graph.all_in(_S.FINISHED):
            self._state.cause = NO_CAUSE
            self._reports.commit_held()
            self._finish("FINISHED", "")

    def _finish(self, state: str, text: str, *, root: str = "") -> None:
        self._state.to(state, text=text, root=root)
        self._checkpoints.stop()
        self._scheduler.close()
        self._failovers.abandon()
        self._scheduler.release_all(f"The job {self.job} has ended.")
        self.heartbeats.close()
        self._state.save()

    def suspend(self) -> None:
        """Stop after a loss of leadership (JobMaster.onStop, DefaultScheduler.closeAsync). The job stays in the store, and the next
        leader recovers it."""
        if not self._state.terminal:
            self._state.to("SUSPENDED", text="Scheduler is being stopped.")
            for execution in self.graph.executions:
                self._tasks.transition(execution.task, _S.CANCELING)
                self._tasks.transition(execution.task, _S.CANCELED)
            name = self.stored.graph.name
            self._executors.disconnect_all(self.job, f"Stopping JobMaster for job '{name}' ({self.job}).")
        self.close()

    def close(self) -> None:
        self._scheduler.close()
        self._failovers.abandon()
        self._checkpoints.close()
        self.heartbeats.close()

    # ---- task states

    async def _update_state(self, message: UpdateTaskExecutionState) -> Acknowledge:
        """Handle the report of a task. The progress of an attempt that is being cancelled or has ended is refused, so its TaskManager ends
        it (Execution.switchToRunning)."""
        execution = self.graph.find(message.attempt)
        progress = message.state in (_S.INITIALIZING, _S.RUNNING)
        if execution is None or (progress and (execution.state is _S.CANCELING or execution.state.terminal)):
            return Acknowledge(False, NOT_FOUND.format(message.attempt))
        lost = message.lost_taskmanager
        cause = Cause(
            message.cause_class, message.cause, "Task", lost, connection_lost=bool(lost), wait=message.wait
        )
        if execution.state is _S.CANCELING and message.state in ("FAILED", "CANCELED"):
            self._failovers.suspect(cause)
            self._on_cancel_ended(execution)
        elif message.state == "FAILED":
            self._fail(execution.task, cause, message.failed_partition)
        else:
            self._on_progress(execution.task, ExecutionState(message.state), message.cause_class)
        return Acknowledge()

    def _fail(self, task: Task, cause: Cause, failed_partition: str = "") -> None:
        """Restart the task's region, unless the job ends anyway. A task that is being cancelled because of another task's failure only
        ends (Execution.completeCancelling), but its failure may also name a suspect."""
        self._failovers.suspect(cause)
        if not self._tasks.transition(task, _S.FAILED, cause):
            return
        if self.graph.execution(task).state is _S.CANCELED:
            self._advance()
        elif self.state in ("FAILING", "CANCELLING"):
            self._check_end()
        else:
            self._failovers.fail(task, cause, failed_partition)

    def _on_progress(self, task: Task, state: ExecutionState, cause_class: str = "") -> None:
        """Continue with the next state. A task that was cancelled because its producer failed waits for the report of that failure,
        which was sent first but may be lost."""
        if not self._tasks.transition(task, state):
            return
        if state is _S.RUNNING or (state is _S.FINISHED and self._failovers.active):
            if state is _S.RUNNING:
                self._checkpoints.task_running()
            self._failovers.check_deployed()
            if not self._failovers.active and self.graph.all_in(_S.RUNNING, _S.FINISHED):
                self._checkpoints.all_running()
        if state is _S.FINISHED:
            self._checkpoints.task_finished(task)
        if state is _S.FINISHED and self.graph.has_blocking:
            self._results.on_finished(task)
            self._scheduler.on_finished()
        unexpected = state is _S.CANCELED and cause_class != PRODUCER_FAILED
        ends = self.state not in ("RUNNING", "RESTARTING")
        if unexpected and not (ends or self._failovers.covers(task)):
            cause = Cause("CancelTaskException", f"{name_of(task)} was cancelled by its TaskManager.", "Task")
            self._failovers.fail(task, cause)
        self._advance()

    def _on_cancel_ended(self, execution: Execution) -> None:
        if execution.state is _S.CANCELING:
            self._tasks.transition(execution.task, _S.CANCELED)
            self._advance()

    def _on_checkpoints_failed(self, class_name: str, text: str) -> None:
        """Restart the whole job, because too many checkpoints or the final one failed. One may fail during a restart, while it is
        being stored."""
        if self.state in ("RUNNING", "RESTARTING"):
            cause = Cause(class_name, text, JOBMASTER_NAME, wait="checkpoint")
            self._failovers.restart(self.graph.tasks, cause)

    def _advance(self) -> None:
        if self._failovers.active:
            self._failovers.advance()
        else:
            self._check_end()

    # ---- TaskManagers

    def _sender(self, leader: str, resource_id: str) -> TaskManagerID:
        """Return the TaskManager that sent a message. Raises FlinkError for a message to another leader."""
        if leader != self._services.leader:
            raise FlinkError(
                "FencingTokenException",
                f"Fencing token mismatch: Ignoring message because the fencing token {leader} did not match the "
                f"expected fencing token {self._services.leader}.",
            )
        return TaskManagerID.parse(resource_id)

    async def _register(
        self, message: RegisterAtJobMaster
    ) -> RegistrationResult | asyncio.Future[RegistrationResult]:
        """Connect to the TaskExecutor before it is answered (JobMaster.registerTaskManager)."""
        taskmanager = self._sender(message.leader, message.resource_id)
        known = self._executors.session(taskmanager)
        refused = self._refused(message, known)
        if refused:
            return RegistrationResult("rejection", self._services.leader, refused)
        if known == message.session:
            return RegistrationResult("success", self._services.leader)
        if known is not None:
            replaced = restarted(taskmanager, self._services.options.flink_version)
            self._taskmanager_lost(replaced, "TaskManager", gone=True)
        register = partial(self._register_connected, taskmanager, message)
        return connected(self._services, JOBMASTER, taskmanager, message.rpc_address, register)

    def _refused(self, message: RegisterAtJobMaster, known: int | None) -> str:
        """Return why a TaskExecutor is rejected; empty if it is not. `known`: the session of its connection."""
        if message.job != self.job or self._state.terminal:
            return NOT_RESPONSIBLE.format(message.job)
        newer = known is not None and message.session < known
        return "A newer connection has replaced it." if newer else ""

    def _register_connected(
        self, taskmanager: TaskManagerID, message: RegisterAtJobMaster
    ) -> RegistrationResult:
        refused = self._refused(message, self._executors.session(taskmanager))
        if refused:
            return RegistrationResult("rejection", self._services.leader, refused)
        self._executors.connect(taskmanager, message.rpc_address, message.data_address, message.session)
        self.heartbeats.watch(taskmanager, message.rpc_address)
        return RegistrationResult("success", self._services.leader)

    async def _disconnect(self, message: DisconnectTaskManager) -> Acknowledge:
        """Handle that a TaskExecutor has closed its connection."""
        taskmanager = self._sender(message.leader, message.resource_id)
        if self._executors.session(taskmanager) == message.session:
            lost = Lost(taskmanager, message.cause, message.cause_class, wait=message.wait)
            self._taskmanager_lost(lost, "TaskManager", gone=True)
        return Acknowledge()

    async def _offer_slots(self, message: OfferSlots) -> SlotOfferResult:
        taskmanager = self._sender(message.leader, message.resource_id)
        if taskmanager not in self._executors:
            raise FlinkError("Exception", f"Unknown TaskManager {message.resource_id}")
        return SlotOfferResult(self._scheduler.offer(taskmanager, message.slots), self._services.clock.now())

    async def _fail_slot(self, message: FailSlot) -> Acknowledge:
        """Fail the tasks of a slot that its TaskManager does not hold, and disconnect it if no other slot is there, unless the
        job has blocking results (JobMaster.internalFailAllocation)."""
        taskmanager = self._sender(message.leader, message.resource_id)
        if not self._scheduler.pool.holds_at(taskmanager, message.allocation):
            return Acknowledge()
        self._scheduler.fail_slot(message.allocation, message.cause)
        cause = Cause("FlinkException", message.cause, "TaskManager", str(taskmanager))
        for execution in self.graph.executions:
            if execution.slot is not None and execution.slot.allocation == message.allocation:
                self._slot_lost(execution, cause)
        if not self._scheduler.pool.report(taskmanager) and not self.graph.has_blocking:
            text = f"No more slots registered at JobMaster {taskmanager}."
            self._taskmanager_lost(Lost(taskmanager, text, "FlinkException"), JOBMASTER_NAME)
        self._scheduler.request_slots()
        self._advance()
        return Acknowledge()

    def _on_lost(self, lost: Lost) -> None:
        """Handle a loss that the JobMaster's own heartbeats detected."""
        data = {"detector": JOBMASTER_NAME, "cause_class": lost.cause_class, "wait": lost.wait}
        self._services.event("taskmanager.lost", str(lost.taskmanager), text=lost.text, data=data)
        self._rm.suspend(lost.taskmanager)
        self._taskmanager_lost(lost, JOBMASTER_NAME)

    def _taskmanager_lost(self, lost: Lost, detector: str, *, gone: bool = False) -> None:
        """Fail the TaskManager's tasks and drop its slots. Notify it, unless it has disconnected itself (`gone`)."""
        if not self._executors.disconnect(lost.taskmanager, self.job, lost.text, gone=gone):
            return
        self.heartbeats.unwatch(lost.taskmanager)
        self._scheduler.lose(lost.taskmanager, lost.text)
        cause = Cause(lost.cause_class, lost.text, detector, str(lost.taskmanager), wait=lost.wait)
        self._failovers.decide(lost.limit if lost.limit.option else None)
        for execution in self.graph.executions:
            if execution.taskmanager == lost.taskmanager:
                self._slot_lost(execution, cause)
        self._failovers.lost(lost.taskmanager, lost.limit)
        self._scheduler.request_slots()
        self._advance()

    def _slot_lost(self, execution: Execution, cause: Cause) -> None:
        """Fail a task whose slot is lost. If the task is being cancelled, it counts as cancelled."""
        if execution.state is _S.CANCELING:
            self._tasks.transition(execution.task, _S.CANCELED)
        elif not execution.state.terminal and execution.state not in (_S.CREATED, _S.SCHEDULED):
            self._fail(execution.task, cause)

    def _on_heartbeat(self, taskmanager: TaskManagerID, heartbeat: Heartbeat) -> None:
        if self._failovers.clear_suspect(taskmanager):
            self._advance()
        if heartbeat.leader != self._services.leader:
            return  # an answer to an earlier leader session, which knows none of these attempts
        found = self._tasks.deployments.compare(taskmanager, heartbeat.executions, heartbeat.asked_at)
        for missing in found.missing:
            self._on_missing(taskmanager, missing)
        for attempt in found.unknown:
            execution = self.graph.find(attempt)
            if execution is None or execution.state is not _S.FINISHED:
                self._executors.cancel_unknown(taskmanager, attempt)

    def _on_missing(self, taskmanager: TaskManagerID, missing: Missing) -> None:
        """Fail an attempt that its TaskManager no longer runs: the report of its end was lost."""
        execution = self.graph.find(missing.attempt)
        if execution is None:
            return
        if execution.state is _S.CANCELING:
            self._on_cancel_ended(execution)
            return
        text = (
            f"Execution {missing.attempt} is unexpectedly no longer running on task executor {taskmanager}."
        )
        self.heartbeats.record_missing(taskmanager, missing.since, text)
        self._fail(execution.task, Cause("FlinkException", text, JOBMASTER_NAME, wait="heartbeat"))
