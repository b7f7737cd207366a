"""The JobMaster of one job: slots, deployment, task states, failover, checkpoints. Everything runs in its mailbox.

What takes time (asks, the store) runs in a task that posts its outcome back, so that each deployment, report and answer costs one
service time of the mailbox (`headgate.jobmanager.service-time`) and a busy JobMaster answers late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.ids import ResultPartitionID, TaskManagerID
from testbed_runtime.core.job.checkpoints import CheckpointFailureReason
from testbed_runtime.core.job.executiongraph import (
    DeploymentContext,
    ExecutionGraph,
    ExecutionState,
)
from testbed_runtime.core.job.failover import Task
from testbed_runtime.core.job.messages import (
    JOBMASTER,
    TERMINAL_JOB_STATES,
    Acknowledge,
    JobStatusReply,
    OfferSlots,
    RegisterAtJobMaster,
    RegistrationResult,
    SlotOfferResult,
    SubmitTask,
    UpdateTaskExecutionState,
)
from testbed_runtime.core.job.restart import restart_strategy
from testbed_runtime.core.job.slots import SlotKey, SlotPool, needed_slots
from testbed_runtime.jobmanager.checkpoints import Checkpoints
from testbed_runtime.jobmanager.failover import Cause, Failover, Phase
from testbed_runtime.jobmanager.heartbeats import HeartbeatSender, Lost
from testbed_runtime.jobmanager.jobstore import (
    CompletedCheckpoint,
    JobStore,
    StoredJob,
    StoredStatus,
)
from testbed_runtime.jobmanager.record import StatusWriter, name_of, record_failover, record_transition
from testbed_runtime.jobmanager.reports import TaskReports
from testbed_runtime.jobmanager.resourcemanager import ResourceManager
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.jobmanager.taskexecutors import CancelEnded, Deployed, TaskExecutors
from testbed_runtime.ports.rpc import Handler

_S = ExecutionState


@dataclass(frozen=True, slots=True)
class _Deploy:
    attempt: str


@dataclass(frozen=True, slots=True)
class _RestartDue:
    number: int


@dataclass(frozen=True, slots=True)
class _SlotsOverdue:
    round: int


class JobMaster:
    """Created by the Dispatcher; `start` schedules, `close` forgets. `closed` tells that the job reached its end."""

    def __init__(
        self,
        services: Services,
        resourcemanager: ResourceManager,
        store: JobStore,
        stored: StoredJob,
        *,
        recovered: StoredStatus | None = None,
        latest: CompletedCheckpoint | None = None,
    ) -> None:
        self.job = stored.job
        self.stored = stored
        self.state = "CREATED"
        self.restarts = recovered.restarts if recovered else 0
        self._services = services
        self._rm = resourcemanager
        self._store = store
        self._recovered = recovered
        self._epoch = recovered.epoch + 1 if recovered else 1
        first_attempt = recovered.attempt + 1 if recovered else 0
        self.graph = ExecutionGraph(stored.graph, stored.job, epoch=self._epoch, first_attempt=first_attempt)
        self._pool = SlotPool()
        self._executors = TaskExecutors(services)
        options = services.options
        self._fence = options.boolean("headgate.restart.fence-dead-slots")
        self._slot_timeout_s = options.duration("slot.request.timeout")
        self._strategy = restart_strategy(options, services.random.stream("restart").randint)
        self._checkpoints = Checkpoints(services, self, self._executors, store, latest)
        self._reports = TaskReports(services, self.graph, self._checkpoints)
        self._failover: Failover | None = None
        self._scheduling: list[Task] = []
        self._scheduling_round = 0
        self._slot_timer: asyncio.TimerHandle | None = None
        self._restart_timer: asyncio.TimerHandle | None = None
        self._cause = Cause("", "", "")
        self._status = StatusWriter(services, store, self.job, self._stored_status)
        self.heartbeats = HeartbeatSender(
            services, JOBMASTER, "JobMaster", "jobmanager", on_lost=self._on_lost, on_alive=self._on_alive
        )

        self.handlers = self._handlers()
        """Of the endpoint `jobmaster`."""

    def _handlers(self) -> dict[type, Handler]:
        return {
            RegisterAtJobMaster: self._register,
            OfferSlots: self._offer_slots,
            UpdateTaskExecutionState: self._update_state,
            **self._reports.handlers(),
            _Deploy: self._on_deploy,
            Deployed: self._on_deployed,
            CancelEnded: self._on_cancel_ended,
            _RestartDue: self._on_restart_due,
            _SlotsOverdue: self._on_slots_overdue,
            **self._checkpoints.handlers(),
            **self.heartbeats.handlers(),
        }

    # ---- the job

    async def start(self) -> None:
        """Schedule all tasks; a recovered job first puts its latest commit into the record."""
        await self._status.save_now()
        self._rm.serve_job(self)
        if self._recovered is not None:
            await self._checkpoints.record_again()
            self._begin_recovered()
            if self._recovered.draining:
                self._checkpoints.stop_with_drain()
        self._to_state("RUNNING")
        self._schedule(self.graph.tasks)
        self._status.save()

    def _begin_recovered(self) -> None:
        """The restart of the JobManager is a failover too: its phases are measured like every other's."""
        self.restarts += 1
        cause = Cause(
            "JobManagerRestarted", "The JobManager was started again and recovers the job.", "JobManager"
        )
        self._failover = Failover(self.restarts, cause, list(self.graph.tasks), Phase.DEPLOYING)
        record_failover(self._services, self._failover)
        self._services.event("failover.cancelled", str(self.restarts))

    def cancel(self) -> None:
        if self.state in TERMINAL_JOB_STATES:
            return
        self._to_state("CANCELLING")
        self._end_all(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND)

    def stop_with_drain(self) -> None:
        """A final checkpoint as soon as all tasks run; then the tasks finish."""
        if self.state not in TERMINAL_JOB_STATES:
            self._checkpoints.stop_with_drain()
            self._status.save()

    def status(self) -> JobStatusReply:
        placed = {
            name_of(e.task): str(e.taskmanager) for e in self.graph.executions if e.taskmanager is not None
        }
        return JobStatusReply(
            state=self.state,
            cause_class=self._cause.class_name if self.state != "RUNNING" else "",
            cause=self._cause.text if self.state != "RUNNING" else "",
            restarts=self.restarts,
            tasks={name_of(e.task): e.state.value for e in self.graph.executions},
            placement=placed,
            completed_checkpoints=self._checkpoints.completed,
            taskmanagers=self._rm.taskmanagers,
            free_slots=self._rm.free_slots,
            counters=self._counters(),
        )

    def _counters(self) -> dict[str, float]:
        """Sums over the TaskManagers' payloads; lags are the largest."""
        total: dict[str, float] = {}
        for payload in self.heartbeats.payloads.values():
            for key, value in payload.items():
                is_lag = key.endswith("lag_s")
                total[key] = max(total.get(key, 0.0), value) if is_lag else total.get(key, 0.0) + value
        total["checkpoint_duration_s"] = self._checkpoints.last_duration_s
        total["stale_rejected"] = float(self._reports.stale)
        return total

    def _to_state(self, state: str, *, text: str = "") -> None:
        if state == self.state:
            return
        good = state in ("RUNNING", "FINISHED")
        cause = Cause("", "", "") if good else self._cause
        data = {"from": self.state, "to": state, "cause_class": cause.class_name}
        self.state = state
        self._services.event("job.state", self.job, text=text or cause.text, data=data)

    def _end_all(self, reason: CheckpointFailureReason) -> None:
        """Cancel everything; the job ends when all tasks have."""
        self._checkpoints.abort(reason)
        self._stop_scheduling()
        self._stop_timers()
        self._failover = None
        for task in self.graph.tasks:
            self._cancel(task)
        self._check_end()

    def _check_end(self) -> None:
        ended = all(e.state.terminal for e in self.graph.executions)
        if not ended or self.state in TERMINAL_JOB_STATES:
            return
        if self.state == "CANCELLING":
            self._finish("CANCELED")
        elif self.state == "FAILING":
            self._finish("FAILED")
        elif self.graph.all_in(_S.FINISHED):
            self._cause = Cause("", "", "")
            self._finish("FINISHED")

    def _finish(self, state: str) -> None:
        text = self._cause.text
        if state == "FAILED":
            text = (
                f"Recovery is suppressed by {self._strategy.text}; caused by {self._cause.class_name}: {text}"
            )
        self._to_state(state, text=text)
        self._checkpoints.abort(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        self._stop_timers()
        self._rm.cancel_requests()
        held = [slot.allocation for slot in self._pool.all_held]
        for allocation in held:
            self._pool.forget(allocation)
        self._rm.release(held, f"The job {self.job} has ended.")
        self.heartbeats.close()
        self._status.save()

    def close(self) -> None:
        self._stop_timers()
        self._checkpoints.close()
        self.heartbeats.close()

    def _stop_timers(self) -> None:
        for timer in (self._slot_timer, self._restart_timer):
            if timer is not None:
                timer.cancel()

    def _stored_status(self) -> StoredStatus:
        return StoredStatus(
            state=self.state,
            epoch=self._epoch,
            attempt=max(e.attempt.attempt for e in self.graph.executions),
            restarts=self.restarts,
            cause_class=self._cause.class_name,
            cause=self._cause.text,
            draining=self._checkpoints.draining,
        )

    # ---- slots and deployment

    def expect_slot(self, allocation: str, key: SlotKey) -> None:
        self._pool.expect(allocation, key)

    def slot_refused(self, allocation: str) -> bool:
        return self._pool.unexpect(allocation)

    def _keys(self, tasks: Iterable[Task]) -> list[SlotKey]:
        wanted = {self.graph.key(task): None for task in tasks}
        return [key for key in needed_slots(self.stored.graph) if key in wanted]

    def _schedule(self, tasks: list[Task]) -> None:
        for task in tasks:
            self._transition(task, _S.SCHEDULED)
        self._scheduling = list(tasks)
        self._scheduling_round += 1
        loop = asyncio.get_running_loop()
        overdue = _SlotsOverdue(self._scheduling_round)
        self._slot_timer = loop.call_later(self._slot_timeout_s, self._services.rpc.post, JOBMASTER, overdue)
        self._request_slots()

    def _request_slots(self) -> None:
        if not self._scheduling:
            return
        self._rm.request(self._pool.missing(self._keys(self._scheduling)))
        self._try_deploy()

    def _stop_scheduling(self) -> None:
        self._scheduling = []
        self._rm.cancel_requests()
        if self._slot_timer is not None:
            self._slot_timer.cancel()

    def _try_deploy(self) -> None:
        tasks = self._scheduling
        if not tasks or not self._pool.has(self._keys(tasks)):
            return
        self._stop_scheduling()
        if self._failover is not None:
            self._failover.attempts += 1
            self._services.event("failover.slots", str(self._failover.number))
            data = {"attempt": self._failover.attempts}
            self._services.event("failover.attempt", str(self._failover.number), data=data)
        for task in tasks:
            self.graph.assign(task, self._pool.held(self.graph.key(task)))
        for task in tasks:
            self._transition(task, _S.DEPLOYING)
            self._services.rpc.post(JOBMASTER, _Deploy(str(self.graph.execution(task).attempt)))

    async def _on_slots_overdue(self, message: _SlotsOverdue) -> None:
        if message.round != self._scheduling_round or not self._scheduling:
            return
        text = "Could not acquire the minimum required resources."
        if self._services.options.flink_version == "1.12":
            text = "Slot request bulk is not fulfillable! Could not allocate the required slot within slot request timeout"
        task = self._scheduling[0]
        self._stop_scheduling()
        self._rm.release(self._pool.drop_expectations(), text)
        self._task_failed(task, Cause("NoResourceAvailableException", text, "JobMaster"))

    async def _on_deploy(self, message: _Deploy) -> None:
        execution = self.graph.find(message.attempt)
        if execution is None or execution.state is not _S.DEPLOYING or execution.taskmanager is None:
            return
        context = DeploymentContext(
            job=self.job,
            leader=self._services.leader,
            job_started=self.stored.job_started,
            restore=self._checkpoints.restore,
            data_address=self._executors.data_address,
        )
        self._executors.submit(execution, SubmitTask(self.graph.descriptor(execution.task, context)))

    async def _on_deployed(self, message: Deployed) -> None:
        execution = self.graph.find(message.attempt)
        if not message.class_name or execution is None or execution.state.terminal:
            return
        owner = str(execution.taskmanager or "")
        cause = Cause(
            message.class_name, message.text, "JobMaster", owner, connection_lost=message.unreachable
        )
        if execution.state is _S.CANCELING:
            self._suspect(cause)
            return
        if message.refused and execution.slot is not None:
            self._pool.forget(execution.slot.allocation)
            self._rm.release([execution.slot.allocation], message.text)
        self._executors.cancel_once(execution)
        self._task_failed(execution.task, cause)

    # ---- task states

    def _transition(self, task: Task, state: ExecutionState, cause: Cause | None = None) -> bool:
        moved = self.graph.transition(task, state)
        if moved is None:
            return False
        record_transition(self._services, moved, cause)
        return True

    async def _update_state(self, message: UpdateTaskExecutionState) -> Acknowledge:
        execution = self.graph.find(message.attempt)
        if execution is None:
            return Acknowledge(False, f"The execution attempt {message.attempt} was not found.")
        lost = message.lost_taskmanager
        cause = Cause(message.cause_class, message.cause, "Task", lost, connection_lost=bool(lost))
        if message.state == "FAILED":
            self._suspect(cause)
        if execution.state is _S.CANCELING and message.state in ("FAILED", "CANCELED"):
            self._transition(execution.task, _S.CANCELED)
            self._advance()
        elif message.state == "FAILED":
            self._task_failed(execution.task, cause, message.failed_partition)
        else:
            self._on_progress(execution.task, ExecutionState(message.state))
        return Acknowledge()

    def _on_progress(self, task: Task, state: ExecutionState) -> None:
        if not self._transition(task, state):
            return
        if state is _S.RUNNING or (state is _S.FINISHED and self._failover is not None):
            self._check_running()
        if state is _S.CANCELED and not self._is_ending(task):
            cause = Cause("CancelTaskException", f"{name_of(task)} was cancelled by its TaskManager.", "Task")
            self._begin_failover(task, cause, "")
        self._advance()

    def _is_ending(self, task: Task) -> bool:
        failover = self._failover
        return self.state != "RUNNING" and (failover is None or task in failover.tasks)

    def _check_running(self) -> None:
        failover = self._failover
        if failover is not None and failover.phase is Phase.DEPLOYING:
            states = [self.graph.execution(task).state for task in failover.tasks]
            if all(state in (_S.RUNNING, _S.FINISHED) for state in states):
                self._services.event("failover.deployed", str(failover.number))
                self._failover = None
        if self._failover is None and self.graph.all_in(_S.RUNNING, _S.FINISHED):
            self._checkpoints.all_running()

    # ---- failover

    def _suspect(self, cause: Cause) -> None:
        """A lost connection makes its other end a suspect: no restart before it has answered or its slots are gone."""
        failover = self._failover
        if failover is None or not self._fence or not cause.connection_lost:
            return
        taskmanager = TaskManagerID.parse(cause.taskmanager)
        if taskmanager in self._executors and taskmanager not in failover.suspects:
            failover.suspects[taskmanager] = None
            self.heartbeats.probe(taskmanager)

    def _task_failed(self, task: Task, cause: Cause, failed_partition: str = "") -> None:
        if not self._transition(task, _S.FAILED, cause):
            return
        if self.state in ("FAILING", "CANCELLING"):
            self._check_end()
            return
        self._begin_failover(task, cause, failed_partition)

    def checkpoints_failed_job(self, text: str) -> None:
        """A failure of the whole job."""
        if self.state == "RUNNING":
            cause = Cause("FlinkRuntimeException", text, "JobMaster")
            self._restart(self.graph.tasks, cause)

    def _begin_failover(self, task: Task, cause: Cause, failed_partition: str) -> None:
        producer = (
            self.graph.producer_of(ResultPartitionID.parse(failed_partition)) if failed_partition else None
        )
        region = self.graph.regions.to_restart(task, lost_producer=producer, available=lambda *_: True)
        self._restart(region, cause)

    def _restart(self, region: list[Task], cause: Cause) -> None:
        now = self._services.clock.now()
        self._strategy.notify_failure(now)
        self._cause = cause
        if not self._strategy.can_restart(now):
            self._to_state("FAILING", text=cause.text)
            self._end_all(CheckpointFailureReason.TASK_FAILURE)
            return
        failover = self._failover
        if failover is None:
            self.restarts += 1
            failover = self._failover = Failover(self.restarts, cause, list(region))
            record_failover(self._services, failover)
            self._to_state("RESTARTING", text=cause.text)
        else:
            failover.widen(region)
            failover.phase = Phase.CANCELLING
            self._to_state("RESTARTING", text=cause.text)
        self._suspect(cause)
        self._stop_scheduling()
        self._rm.release(self._pool.drop_expectations(), cause.text)
        self._checkpoints.abort(CheckpointFailureReason.JOB_FAILOVER_REGION)
        self._delay_restart(failover, now)
        for task in failover.tasks:
            self._cancel(task)
        self._status.save()
        self._advance()

    def _delay_restart(self, failover: Failover, now: float) -> None:
        failover.restart_at = now + self._strategy.backoff_s()
        if self._restart_timer is not None:
            self._restart_timer.cancel()
        loop = asyncio.get_running_loop()
        due = _RestartDue(failover.number)
        self._restart_timer = loop.call_at(failover.restart_at, self._services.rpc.post, JOBMASTER, due)

    async def _on_restart_due(self, message: _RestartDue) -> None:
        del message
        self._advance()

    def checkpoint_settled(self) -> None:
        self._advance()

    def _advance(self) -> None:
        """Go on with whatever waits for tasks to end, for a delay, for verdicts."""
        failover = self._failover
        if failover is None:
            self._check_end()
            return
        if failover.phase is Phase.CANCELLING and all(
            self.graph.execution(task).state.terminal for task in failover.tasks
        ):
            failover.phase = Phase.WAITING
            self._services.event("failover.cancelled", str(failover.number))
        if failover.ready(self._services.clock.now()) and not self._checkpoints.settling:
            failover.phase = Phase.DEPLOYING
            self.graph.reset(failover.tasks)
            self._reports.forget_ended()
            self._to_state("RUNNING")
            self._schedule(failover.tasks)
            self._status.save()

    # ---- cancellation

    def _cancel(self, task: Task) -> None:
        execution = self.graph.execution(task)
        if execution.state in (_S.CREATED, _S.SCHEDULED):
            self._transition(task, _S.CANCELED)
            return
        if execution.state.terminal or not self._transition(task, _S.CANCELING):
            return
        if execution.taskmanager not in self._executors:
            self._transition(task, _S.CANCELED)
            return
        self._executors.cancel(execution)

    async def _on_cancel_ended(self, message: CancelEnded) -> None:
        execution = self.graph.find(message.attempt)
        if execution is not None and execution.state is _S.CANCELING:
            self._transition(execution.task, _S.CANCELED)
            self._advance()

    # ---- TaskManagers

    def _check_leader(self, leader: str) -> None:
        if leader != self._services.leader:
            raise FlinkError(
                "FencingTokenException",
                f"Fencing token mismatch: Ignoring message because the fencing token {leader} did not match the "
                f"expected fencing token {self._services.leader}.",
            )

    async def _register(self, message: RegisterAtJobMaster) -> RegistrationResult:
        self._check_leader(message.leader)
        if message.job != self.job or self.state in TERMINAL_JOB_STATES:
            return RegistrationResult(
                "rejection", self._services.leader, f"The job {message.job} is not run here."
            )
        taskmanager = TaskManagerID.parse(message.resource_id)
        self._executors.connect(taskmanager, message.rpc_address, message.data_address)
        self.heartbeats.watch(taskmanager, message.rpc_address)
        return RegistrationResult("success", self._services.leader)

    async def _offer_slots(self, message: OfferSlots) -> SlotOfferResult:
        self._check_leader(message.leader)
        taskmanager = TaskManagerID.parse(message.resource_id)
        if taskmanager not in self._executors:
            raise FlinkError("Exception", f"Unknown TaskManager {message.resource_id}")
        accepted = tuple(alloc for _, alloc in message.slots if self._pool.offer(taskmanager, alloc))
        self._try_deploy()
        return SlotOfferResult(accepted)

    def _on_lost(self, lost: Lost) -> None:
        """Our own heartbeats say so."""
        data = {"detector": "JobMaster", "cause_class": lost.cause_class}
        self._services.event("taskmanager.lost", str(lost.taskmanager), text=lost.text, data=data)
        self._rm.suspend(lost.taskmanager)
        self.taskmanager_lost(lost, "JobMaster")

    def taskmanager_lost(self, lost: Lost, detector: str) -> None:
        """Its tasks fail, its slots are gone."""
        if not self._executors.disconnect(lost.taskmanager):
            return
        self.heartbeats.unwatch(lost.taskmanager)
        held = [slot.allocation for slot in self._pool.lose(lost.taskmanager)]
        self._rm.release(held, lost.text)
        cause = Cause(lost.cause_class, lost.text, detector, str(lost.taskmanager))
        for execution in self.graph.executions:
            if execution.taskmanager != lost.taskmanager or execution.state.terminal:
                continue
            if execution.state is _S.CANCELING:
                self._transition(execution.task, _S.CANCELED)
            elif execution.state not in (_S.CREATED, _S.SCHEDULED):
                self._task_failed(execution.task, cause)
        self._clear_suspect(lost.taskmanager)
        self._request_slots()
        self._advance()

    def _on_alive(self, taskmanager: TaskManagerID) -> None:
        if self._clear_suspect(taskmanager):
            self._advance()

    def _clear_suspect(self, taskmanager: TaskManagerID) -> bool:
        failover = self._failover
        if failover is None or taskmanager not in failover.suspects:
            return False
        del failover.suspects[taskmanager]
        return True
