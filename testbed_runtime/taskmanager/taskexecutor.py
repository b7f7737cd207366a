"""The endpoint `taskexecutor`: slots for jobs, tasks in slots, heartbeats, and what happens when a JobMaster is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.ids import JOBMANAGER, TaskManagerID
from testbed_runtime.core.job.heartbeat import (
    UNREACHABLE_CLASS,
    HeartbeatConfig,
    timed_out_text,
    unreachable_text,
)
from testbed_runtime.core.job.messages import (
    JOBMASTER,
    RESOURCEMANAGER,
    TASKEXECUTOR,
    Acknowledge,
    CancelTask,
    DisconnectJobManager,
    DisconnectResourceManager,
    DisconnectTaskExecutor,
    DisconnectTaskManager,
    FailSlot,
    FreeSlot,
    Heartbeat,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    NotifySlotAvailable,
    RegisterAtJobMaster,
    RegisterTaskManager,
    ReleasePartitions,
    RemoteHandshakeMessage,
    RequestSlot,
    SetSourceRate,
    SubmitTask,
    TaskDeploymentDescriptor,
    TriggerCheckpoint,
)
from testbed_runtime.core.versions import SLOT_REFUSAL_NAMES_HOLDER, has
from testbed_runtime.core.waits import JOBMASTER_NAME, Limit
from testbed_runtime.history.waits import OpenWait
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import AskTimeout, Handler, RecipientUnreachable, RemoteFailure, Rpc
from testbed_runtime.process.tasks import TaskKeeper
from testbed_runtime.taskmanager.connections import (
    JobConnection,
    PeerWatch,
    ResourceManagerConnection,
    WaitScope,
)
from testbed_runtime.taskmanager.gateway import JobMasterGateway
from testbed_runtime.taskmanager.leaderretrieval import LeaderRetrieval
from testbed_runtime.taskmanager.services import TaskServices
from testbed_runtime.taskmanager.slots import Slot, TaskSlotTable
from testbed_runtime.taskmanager.task import Task
from testbed_runtime.taskmanager.tasks import TaskTable
from testbed_runtime.timeouts import Timer


class TaskExecutorConfig(Struct, frozen=True):
    """The identity, addresses and size of this TaskManager."""

    resource_id: TaskManagerID
    jobmanager: Address
    data_address: Address
    slots: int
    boot_id: str


class TaskExecutor:
    """Owns the tasks, slots and connections of one TaskManager. Calls `on_fatal(text)` when the process has to end."""

    def __init__(
        self, config: TaskExecutorConfig, rpc: Rpc, services: TaskServices, *, on_fatal: Callable[[str], None]
    ) -> None:
        options = services.options
        self._config = config
        self._rpc = rpc
        self._services = services
        self._keeper = TaskKeeper()
        self._slots = TaskSlotTable(
            config.slots,
            options.duration("taskmanager.slot.timeout"),
            names_holder=has(options.flink_version, SLOT_REFUSAL_NAMES_HOLDER),
        )
        self._slot_timer = Timer()
        self._jobs: dict[str, JobConnection] = {}
        self._sessions = 0
        """Number of connections to JobMasters so far."""
        self._tasks = TaskTable(services, self._keeper, on_slot_empty=self._on_slot_empty, on_fatal=on_fatal)
        self._heartbeats = HeartbeatConfig.of(options)
        self._scope = WaitScope(options, services.waits, str(config.resource_id))
        self._ask_timeout_s = options.duration("pekko.ask.timeout")
        self.resourcemanager = ResourceManagerConnection(
            rpc,
            config.jobmanager,
            self._scope,
            message=self._registration_message,
            allocations=self._slots.report,
            on_fatal=on_fatal,
            on_given_up=self._on_resourcemanager_given_up,
        )

        self._retrieval = LeaderRetrieval(options, services.blobs, self._on_leader)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The attempts that are held: running ones, and ended ones whose results are not consumed yet."""
        return self._tasks.all

    def start(self) -> None:
        """Open the mailbox and register at the ResourceManager."""
        handlers: dict[type, Handler] = {
            RequestSlot: self._request_slot,
            FreeSlot: self._free_slot,
            SubmitTask: self._submit_task,
            CancelTask: self._cancel_task,
            ReleasePartitions: self._release_partitions,
            TriggerCheckpoint: self._trigger_checkpoint,
            SetSourceRate: self._set_source_rate,
            NotifyCheckpointComplete: self._notify_checkpoint,
            NotifyCheckpointAborted: self._notify_checkpoint,
            Heartbeat: self._heartbeat,
            DisconnectResourceManager: self._disconnect_resourcemanager,
            DisconnectJobManager: self._disconnect_jobmanager,
            RemoteHandshakeMessage: self._handshake,
        }
        service_time_s = self._services.options.duration("headgate.taskmanager.service-time")
        self._rpc.serve(TASKEXECUTOR, handlers, service_time_s=service_time_s)
        self.resourcemanager.connect()
        self._retrieval.start()

    def extend(self, seconds: float) -> None:
        """Account for a stall of this process: see PeerWatch.extend."""
        self.resourcemanager.extend(seconds)
        for connection in list(self._jobs.values()):
            connection.extend(seconds)

    async def close(self) -> None:
        """End every task and close every connection."""
        await self._retrieval.close()
        await self.resourcemanager.close()
        await self._tasks.close()
        for connection in list(self._jobs.values()):
            await connection.close()
        self._slot_timer.cancel()
        await self._keeper.close()

    # ---- ResourceManager -------------------------------------------------------------------------------------

    def _registration_message(self) -> RegisterTaskManager:
        config = self._config
        return RegisterTaskManager(
            resource_id=str(config.resource_id),
            rpc_address=self._rpc.address,
            slots=config.slots,
            boot_id=config.boot_id,
        )

    def _on_resourcemanager_given_up(self, message: DisconnectTaskExecutor) -> None:
        self._note(message.cause)
        self._keeper.spawn(self._tell(RESOURCEMANAGER, message), "disconnect-from-resourcemanager")

    async def _request_slot(self, message: RequestSlot) -> Acknowledge:
        if message.leader != self.resourcemanager.leader:
            raise FlinkError(
                "TaskManagerException",
                f"TaskManager is not connected to the resource manager {message.leader}.",
            )
        connection = self._connection(message)
        loop_time = asyncio.get_running_loop().time()
        self._slots.allocate(message.slot, message.allocation, message.job, loop_time)
        self._arm_slot_timer()
        connection.offer()
        return Acknowledge()

    def _connection(self, message: RequestSlot) -> JobConnection:
        """Return the connection to the job's JobMaster. For a new leader session, replace the previous connection."""
        known = self._jobs.get(message.job)
        if known is not None and known.gateway.leader == message.jobmaster_leader:
            return known
        lost = given_up = None
        if known is not None:
            lost, given_up = known.hand_over(), known.given_up
            self._drop_job(known, keep=message.allocation)
        gateway = JobMasterGateway(
            self._rpc,
            message.jobmaster_address,
            message.job,
            message.jobmaster_leader,
            str(self._config.resource_id),
            self._ask_timeout_s,
        )
        return self._connect(gateway, lost=lost, given_up=given_up)

    def _connect(
        self, gateway: JobMasterGateway, *, lost: OpenWait | None = None, given_up: Limit | None = None
    ) -> JobConnection:
        """Create the job's next connection. It registers at the JobMaster with the first offer."""
        self._sessions += 1
        registration = RegisterAtJobMaster(
            gateway.resource_id,
            self._rpc.address,
            self._config.data_address,
            gateway.job,
            gateway.leader,
            self._sessions,
        )
        connection = JobConnection(
            gateway,
            registration,
            self._slots,
            scope=self._scope,
            on_lost=self._on_job_lost,
            on_slot_refused=self._give_back,
            on_slot_gone=self._on_slot_gone,
            lost=lost,
            given_up=given_up,
        )
        self._jobs[gateway.job] = connection
        return connection

    # ---- slots ---------------------------------------------------------------------------------------------

    def _on_slot_gone(self, connection: JobConnection, allocation: str, cause: str) -> None:
        """Handle that the JobMaster holds a slot which this TaskManager does not hold."""
        gateway = connection.gateway
        message = FailSlot(gateway.resource_id, gateway.leader, allocation, cause)
        self._keeper.spawn(gateway.tell(message), f"fail-slot:{allocation}")

    def _sync_slots(self, connection: JobConnection, message: Heartbeat) -> None:
        """Compare the slots with those that the JobMaster holds (TaskExecutor.syncSlotsWithSnapshotFromJobMaster)."""
        held, job, owner = message.allocations or (), connection.job, self._config.resource_id
        for index, allocation in held:
            if not self._slots.is_allocated(index, job, allocation):
                text = f"Slot {index} on TaskExecutor {owner} is not allocated by job {job}."
                self._on_slot_gone(connection, allocation, text)
        for slot in self._slots.unused(job, held, message.asked_at):
            self._give_back(slot, f"{slot.allocation} is no longer allocated by job {job}.")

    def _give_back(self, slot: Slot, cause: str) -> None:
        """Free a slot that no JobMaster uses, and notify the ResourceManager, which otherwise learns of it from the next heartbeat."""
        self._release_slot(slot.allocation, FlinkError("FlinkException", cause))
        if self._slots.get(slot.allocation) is None:
            self._notify_available(slot)

    def _notify_available(self, slot: Slot) -> None:
        leader = self.resourcemanager.leader
        if leader:
            message = NotifySlotAvailable(str(self._config.resource_id), leader, slot.allocation)
            self._keeper.spawn(self._tell(RESOURCEMANAGER, message), f"slot-available:{slot.index}")

    async def _free_slot(self, message: FreeSlot) -> Acknowledge:
        slot = self._slots.get(message.allocation)
        if slot is not None and len(self._slots.of_job(slot.job)) == 1 and slot.job in self._jobs:
            self._jobs[slot.job].end_wait()
        self._release_slot(message.allocation, FlinkError("FlinkException", message.cause))
        return Acknowledge()

    def _release_slot(self, allocation: str, cause: FlinkError) -> None:
        """Fail the tasks of a slot. It is free when they have ended."""
        slot = self._slots.get(allocation)
        if slot is None:
            return
        if self._tasks.fail_slot(allocation, cause):
            self._slots.mark_releasing(allocation)
        else:
            self._slot_is_free(allocation)

    def _on_slot_empty(self, allocation: str) -> None:
        slot = self._slots.get(allocation)
        if slot is not None and slot.releasing:
            self._tasks.release_results(allocation)
            self._slot_is_free(allocation)
            self._notify_available(slot)

    def _slot_is_free(self, allocation: str) -> None:
        slot = self._slots.release(allocation)
        if slot is None or self._slots.of_job(slot.job):
            return
        connection = self._jobs.pop(slot.job, None)
        if connection is not None:
            text = f"TaskExecutor {self._config.resource_id} has no more allocated slots for job {slot.job}."
            self._disconnect(connection, FlinkError("FlinkException", text))

    def _arm_slot_timer(self) -> None:
        self._slot_timer.set(self._slots.next_deadline(), self._on_slot_timer)

    def _on_slot_timer(self) -> None:
        for slot in self._slots.expired(asyncio.get_running_loop().time()):
            if len(self._slots.of_job(slot.job)) == 1 and slot.job in self._jobs:
                self._jobs[slot.job].time_out()
            self._give_back(slot, f"The slot {slot.allocation} has timed out.")
        self._arm_slot_timer()

    # ---- tasks ---------------------------------------------------------------------------------------------

    async def _submit_task(self, message: SubmitTask) -> Acknowledge:
        descriptor = message.descriptor
        connection = self._check_submission(descriptor)
        self._tasks.submit(descriptor, connection.gateway)
        return Acknowledge()

    def _check_submission(self, descriptor: TaskDeploymentDescriptor) -> JobConnection:
        connection = self._jobs.get(descriptor.job)
        if connection is None or not connection.established:
            raise _submission_error(
                f"Could not submit task because there is no JobManager associated for the job {descriptor.job}."
            )
        if connection.gateway.leader != descriptor.leader:
            raise _submission_error(
                f"Rejecting the task submission because the job manager leader id {descriptor.leader} does not "
                f"match the expected job manager leader id {connection.gateway.leader}."
            )
        if not self._slots.mark_active(descriptor.allocation, descriptor.job):
            raise _submission_error(
                f"No task slot allocated for job ID {descriptor.job} and allocation ID {descriptor.allocation}."
            )
        self._arm_slot_timer()
        return connection

    async def _cancel_task(self, message: CancelTask) -> Acknowledge:
        return self._tasks.cancel(message.attempt)

    async def _release_partitions(self, message: ReleasePartitions) -> Acknowledge:
        self._tasks.release_partitions(message.partitions)
        return Acknowledge()

    async def _trigger_checkpoint(self, message: TriggerCheckpoint) -> Acknowledge:
        task = self._tasks.running(message.attempt)
        if task is None:
            raise FlinkError(
                "CheckpointException",
                f"TaskManager received a checkpoint request for unknown task {message.attempt}.",
            )
        task.trigger_checkpoint(message)
        return Acknowledge()

    async def _set_source_rate(self, message: SetSourceRate) -> Acknowledge:
        task = self._tasks.running(message.attempt)
        if task is not None:
            task.set_rate(message.rate)
        return Acknowledge(accepted=task is not None)

    async def _notify_checkpoint(
        self, message: NotifyCheckpointComplete | NotifyCheckpointAborted
    ) -> Acknowledge:
        task = self._tasks.running(message.attempt)
        if task is None:
            return Acknowledge(accepted=False, reason=f"unknown task {message.attempt}")
        if isinstance(message, NotifyCheckpointComplete):
            task.notify_checkpoint_complete(message.checkpoint)
        else:
            task.notify_checkpoint_aborted(message.checkpoint, message.latest_completed)
        return Acknowledge()

    # ---- heartbeats ------------------------------------------------------------------------------------------

    async def _heartbeat(self, message: Heartbeat) -> Acknowledge:
        """Acknowledge the heartbeat. As in Flink, the answer is a message of its own to the sender's endpoint."""
        executions: tuple[str, ...] = ()
        allocations: tuple[tuple[int, str], ...] | None = None
        watches: list[PeerWatch] = []
        if message.origin == RESOURCEMANAGER:
            if self.resourcemanager.on_heartbeat(message.leader):
                watches.append(self.resourcemanager.watch)
            endpoint, allocations = RESOURCEMANAGER, self._slots.report()
        else:
            jobs = [c for c in self._jobs.values() if c.on_heartbeat(message.leader)]
            watches += [c.watch for c in jobs]
            for connection in jobs:
                self._sync_slots(connection, message)
            executions = tuple(attempt for c in jobs for attempt in self._tasks.deployed(c.job))
            endpoint = JOBMASTER
        if not watches:
            return Acknowledge(accepted=False)
        origin = str(self._config.resource_id)
        answer = Heartbeat(origin, message.leader, self.counters(), message.asked_at, executions, allocations)
        sessions = [(watch, watch.session) for watch in watches]
        self._keeper.spawn(self._answer(endpoint, answer, sessions), f"heartbeat-to-{endpoint}")
        return Acknowledge()

    async def _answer(
        self, endpoint: str, answer: Heartbeat, sessions: Iterable[tuple[PeerWatch, object]]
    ) -> None:
        """Answer a heartbeat. If several answers in a row do not reach the peer, it is declared lost."""
        reached = await self._tell(endpoint, answer)
        if reached is not None:
            for watch, session in sessions:
                watch.on_answered(session, reached=reached)

    async def _tell(self, endpoint: str, message: object) -> bool | None:
        """Send a message that may be lost: the peer notices the silence. Return whether it has arrived, or None if that is not
        known."""
        try:
            await self._rpc.ask(
                JOBMANAGER, self._config.jobmanager, endpoint, message, timeout_s=self._heartbeats.timeout_s
            )
        except RecipientUnreachable:
            return False
        except (AskTimeout, RemoteFailure):
            return None
        return True

    def counters(self) -> dict[str, float]:
        """Return the live counters of this TaskManager."""
        slots = {"slots": float(self._slots.size), "free_slots": float(self._slots.free)}
        return {**slots, **self._tasks.counters()}

    async def _handshake(self, message: RemoteHandshakeMessage) -> Acknowledge:
        return Acknowledge()

    async def _disconnect_resourcemanager(self, message: DisconnectResourceManager) -> Acknowledge:
        self.resourcemanager.disconnected(message.leader)
        return Acknowledge()

    async def _disconnect_jobmanager(self, message: DisconnectJobManager) -> Acknowledge:
        connection = self._jobs.get(message.job)
        if connection is not None and (connection.gateway.leader, connection.session) == (
            message.leader,
            message.session,
        ):
            self._reconnect(connection, FlinkError("FlinkException", message.cause), lost=None)
        return Acknowledge()

    def _on_leader(self, leader: str) -> None:
        """Handle the publication of another leader session: fail the tasks of the previous session, and register
        (JobLeaderListenerImpl)."""
        for connection in list(self._jobs.values()):
            former = connection.gateway.leader
            if former != leader:
                text = f"JobManager for job {connection.job} with leader id {former} lost leadership."
                self._note(text)
                self._drop_job(connection)
        self.resourcemanager.on_leader(leader)

    def _note(self, text: str) -> None:
        self._services.history.append("events", kind="note", subject=str(self._config.resource_id), text=text)

    def _on_job_lost(self, connection: JobConnection) -> None:
        watch, leader = connection.watch, connection.gateway.leader
        if watch.unreachable:
            class_name = UNREACHABLE_CLASS["TaskExecutor"]
            text = unreachable_text("JobManager", leader)
        else:
            class_name = "TimeoutException"
            text = timed_out_text("TaskExecutor", "JobManager", leader)
        self._note(text)
        lost = self._scope.away(JOBMASTER_NAME, watch.last_seen)
        self._reconnect(connection, FlinkError(class_name, text, wait="heartbeat"), lost=lost)

    def _reconnect(self, connection: JobConnection, cause: FlinkError, *, lost: OpenWait | None) -> None:
        """Disconnect from a JobMaster, which fails the job's tasks. Then connect and offer the slots again, as Flink does."""
        self._disconnect(connection, cause)
        again = self._connect(connection.gateway, lost=lost, given_up=connection.watch.given_up)
        failure = FlinkError(
            "FlinkException", f"Disconnect from JobManager responsible for {connection.job}."
        )
        now = asyncio.get_running_loop().time()
        for slot in self._slots.of_job(connection.job):
            if slot.active:
                self._slots.mark_inactive(slot.allocation, now)
            self._tasks.fail_slot(slot.allocation, failure)
        self._arm_slot_timer()
        again.offer()

    def _disconnect(self, connection: JobConnection, cause: FlinkError) -> None:
        """Close a connection, and notify the JobMaster if it has accepted this TaskManager (TaskExecutor.closeJob)."""
        gateway, established = connection.gateway, connection.established
        message = DisconnectTaskManager(
            gateway.resource_id,
            gateway.leader,
            connection.session,
            cause.class_name,
            cause.message,
            cause.wait,
        )
        connection.stop_watching()
        self._keeper.spawn(connection.close(), f"close-job-connection:{connection.job}")
        if established:
            self._keeper.spawn(gateway.tell(message), f"disconnect:{connection.job}")

    def _drop_job(self, connection: JobConnection, keep: str = "") -> None:
        """Fail the job's tasks and free its slots, except for the one that the next leader has just allocated."""
        if self._jobs.get(connection.job) is connection:
            del self._jobs[connection.job]
        connection.stop_watching()
        self._keeper.spawn(connection.close(), f"close-job-connection:{connection.job}")
        cause = FlinkError("FlinkException", f"Disconnect from JobManager responsible for {connection.job}.")
        for slot in self._slots.of_job(connection.job):
            if slot.allocation != keep:
                self._release_slot(slot.allocation, cause)


def _submission_error(text: str) -> FlinkError:
    return FlinkError("TaskSubmissionException", text)
