"""The ResourceManager: registered TaskManagers, their free slots, and the allocation of slots to the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.heartbeat import UNREACHABLE_CLASS
from testbed_runtime.core.job.limits import option_limit, start_up_limit
from testbed_runtime.core.job.messages import (
    JOBMASTER,
    RESOURCEMANAGER,
    Acknowledge,
    DisconnectResourceManager,
    DisconnectTaskExecutor,
    FreeSlot,
    Heartbeat,
    NotifySlotAvailable,
    RegisterTaskManager,
    RegistrationResult,
    RequestSlot,
    SlotReport,
)
from testbed_runtime.core.job.slots import SlotKey, SlotPool, SlotState, SlotTable, spreads_slots
from testbed_runtime.core.versions import (
    DECLARATIVE_SLOTS,
    RESTART_NAMES_TASKMANAGER,
    RM_TELLS_JOBS,
    SLOT_DELAYS,
    has,
)
from testbed_runtime.core.waits import JOBMASTER_NAME, RM_NAME, Outcome
from testbed_runtime.history.waits import OpenWait
from testbed_runtime.jobmanager.heartbeats import HeartbeatSender, Lost
from testbed_runtime.jobmanager.services import RunAsync, Services, connected, on_run_async
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import ASK_FAILURES, Handler, NoAnswer
from testbed_runtime.timeouts import Timer

RETRY_S = 0.1
"""Pause before a refused slot is requested again if there is no such delay: its TaskManager may just be freeing it."""


def restarted(taskmanager: TaskManagerID, version: str) -> Lost:
    """Return the loss of a TaskManager whose successor, or a newer connection of it, registers."""
    name = f"{taskmanager} " if has(version, RESTART_NAMES_TASKMANAGER) else ""
    text = (
        f"A registered TaskManager {name}re-registered with a new session id. This indicates a restart of the TaskManager. "
        "Closing the old connection."
    )
    return Lost(taskmanager, text, "FlinkException")


class ServedJob(Struct, frozen=True):
    """The job that slots are allocated for. Its callbacks are called in the mailbox of its JobMaster."""

    job: str
    pool: SlotPool
    on_lost: Callable[[Lost, str], None]
    """Called with the loss of a TaskManager, and with what detected it."""
    on_unfulfillable: Callable[[], None]
    """Called when the job requests more slots than it can get from a standalone ResourceManager."""


class _Registration(Struct, frozen=True):
    """A registered TaskManager. `number` is what Flink calls its InstanceID."""

    number: int
    address: Address
    slots: int


class _Postponed:
    """A step that an endpoint postpones for some time after a change, so that it also covers later changes."""

    def __init__(
        self, services: Services, who: str, endpoint: str, step: Callable[[], None], *, option: str
    ) -> None:
        """`option`: the option that says how long the step is postponed."""
        self._services = services
        self._who = who
        self._limit = option_limit(services.options, option)
        self._endpoint = endpoint
        self._step = step
        self._timer: asyncio.TimerHandle | None = None
        self._wait: OpenWait | None = None
        exists = has(services.options.flink_version, SLOT_DELAYS[option])
        self.delay_s = services.options.duration(option) if exists else 0.0

    def arm(self, seconds: float) -> None:
        """Start the timer, unless it is running or its step is not taken yet."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def begin_wait(self) -> None:
        """Begin to record the wait, because the step would change something from now on."""
        if self._wait is None and self._timer is not None:
            self._wait = self._services.waits.begin("slot-request", self._who, limit=self._limit)

    def _fire(self) -> None:
        if self._wait is not None:
            self._wait.end(Outcome.FIRED)
        self._services.run_async(self._endpoint, self._step)

    def stop(self) -> None:
        """Stop the timer, because the step was taken or is not needed. The next change starts it again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.drop_wait()

    def drop_wait(self) -> None:
        """Drop the wait, because the step would no longer change anything."""
        if self._wait is not None:
            self._services.waits.drop(self._wait)
            self._wait = None


class ResourceManager:
    """The endpoint `resourcemanager`. The JobMaster of the same process calls `request`, `release` and `suspend` directly. It is
    notified of a lost TaskManager, unless this version leaves that to the JobMaster's heartbeats."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._table = SlotTable(spread=spreads_slots(services.options))
        self._registered: dict[TaskManagerID, _Registration] = {}
        self._connecting: dict[TaskManagerID, object] = {}
        """The newest attempt to register of each TaskManager that is being connected."""
        self._registrations = 0
        """Number of registrations so far."""
        self._suspended: set[TaskManagerID] = set()
        """Those that get no allocation until they answer a heartbeat. Registering again is no answer."""
        self._served: ServedJob | None = None
        self._wanted: list[SlotKey] = []
        self._declared: list[SlotKey] = []
        """Keys to request when no other has been added for some time."""
        self._keys: dict[str, SlotKey] = {}
        self._freeing: dict[str, None] = {}
        self._allocations = 0
        self._fence = services.options.boolean("headgate.restart.fence-dead-slots")
        version = services.options.flink_version
        interval, delay = "slot.request.max-interval", "slotmanager.requirement-check.delay"
        self._declaration = _Postponed(services, JOBMASTER_NAME, JOBMASTER, self._declare, option=interval)
        self._check = _Postponed(services, RM_NAME, RESOURCEMANAGER, self._on_check, option=delay)
        self._fails_unfulfillable = self._unfulfillable = False
        """Whether requests that the free slots do not suffice for fail, and whether there are such requests."""
        self._start_up = Timer()
        start_up_s = start_up_limit(services.options).seconds or 0.0
        if start_up_s > 0 and has(version, DECLARATIVE_SLOTS):
            end = services.clock.now() + start_up_s
            self._start_up.set(end, services.run_async, RESOURCEMANAGER, self._on_start_up_ended)
        self._tells_job = has(version, RM_TELLS_JOBS) or not has(version, DECLARATIVE_SLOTS)
        self.heartbeats = HeartbeatSender(
            services,
            RESOURCEMANAGER,
            "ResourceManager",
            RESOURCEMANAGER,
            on_lost=lambda lost: self._on_lost(lost, tells_job=self._tells_job),
            on_answer=self._on_heartbeat,
        )

    def handlers(self) -> dict[type, Handler]:
        return {
            RegisterTaskManager: self._register,
            SlotReport: self._on_slot_report,
            DisconnectTaskExecutor: self._disconnect,
            NotifySlotAvailable: self._on_available,
            RunAsync: on_run_async,
            **self.heartbeats.handlers(),
        }

    def close(self) -> None:
        self.heartbeats.close()
        self._declaration.stop()
        self._check.stop()
        self._start_up.cancel()

    @property
    def taskmanagers(self) -> tuple[str, ...]:
        """Those that have registered and reported their slots."""
        return tuple(str(taskmanager) for taskmanager in self._table.taskmanagers)

    # ---- what the JobMaster calls

    def serve_job(self, job: ServedJob) -> None:
        """Allocate slots for this job from now on."""
        self._served = job
        self.cancel_requests()

    def request(self, keys: Sequence[SlotKey]) -> None:
        """Request slots for these keys. Free slots are allocated at once, others as soon as they become free. The request is sent when
        no other one has followed for some time (DefaultDeclarativeSlotPool.doDeclareResourceRequirements)."""
        added = [key for key in keys if key not in (*self._declared, *self._wanted)]
        self._declared += added
        if not self._declaration.delay_s:
            self._declare()
        elif added:
            self._declaration.stop()
            self._declaration.arm(self._declaration.delay_s)
            self._declaration.begin_wait()

    def _declare(self) -> None:
        self._declaration.stop()
        self._wanted += self._declared
        self._declared.clear()
        self._check_requirements()

    def cancel_requests(self) -> None:
        self._declaration.stop()
        self._check.drop_wait()
        self._declared.clear()
        self._wanted.clear()

    def release(self, allocations: Sequence[str], cause: str) -> None:
        """Release slots of the job. A slot becomes free when its TaskManager has confirmed it, or at once when dead slots
        are not fenced."""
        for allocation in allocations:
            if self._table.slot(allocation) is None:
                continue
            self._keys.pop(allocation, None)
            if self._fence:
                self._table.mark(allocation, SlotState.RELEASING)
                self._free(allocation, cause)
            else:
                self._free(allocation, cause)
                self._table.mark(allocation, SlotState.FREE)
        self._check_requirements()

    def suspend(self, taskmanager: TaskManagerID) -> None:
        """Allocate nothing there until it answers a heartbeat."""
        if self._fence and taskmanager in self._registered:
            self._suspended.add(taskmanager)
            self._table.suspend(taskmanager, True)

    # ---- registration

    async def _register(self, message: RegisterTaskManager) -> asyncio.Future[RegistrationResult]:
        """Connect to the TaskExecutor before it is answered (ResourceManager.registerTaskExecutor)."""
        taskmanager, attempt = TaskManagerID.parse(message.resource_id), object()
        self._connecting[taskmanager] = attempt
        register = partial(self._register_connected, message, attempt)
        answer = connected(self._services, RESOURCEMANAGER, taskmanager, message.rpc_address, register)
        answer.add_done_callback(partial(self._forget_attempt, taskmanager, attempt))
        return answer

    def _forget_attempt(self, taskmanager: TaskManagerID, attempt: object, answer: object) -> None:
        del answer
        if self._connecting.get(taskmanager) is attempt:
            del self._connecting[taskmanager]

    def _register_connected(self, message: RegisterTaskManager, attempt: object) -> RegistrationResult:
        taskmanager = TaskManagerID.parse(message.resource_id)
        if self._connecting.get(taskmanager) is not attempt:
            reason = "Decline outdated task executor registration."
            return RegistrationResult("failure", self._services.leader, reason)
        newer = [t for t in self._registered if t.ordinal == taskmanager.ordinal and t > taskmanager]
        if newer:
            reason = f"TaskManager {newer[0]} has replaced {taskmanager}."
            return RegistrationResult("rejection", self._services.leader, reason)
        for older in [t for t in self._registered if t.ordinal == taskmanager.ordinal and t < taskmanager]:
            self.heartbeats.unwatch(older)
            self._on_lost(restarted(older, self._services.options.flink_version))
        self._remove_slots(taskmanager)
        self._registrations += 1
        self._registered[taskmanager] = _Registration(self._registrations, message.rpc_address, message.slots)
        self.heartbeats.watch(taskmanager, message.rpc_address)
        return RegistrationResult("success", self._services.leader, registration=self._registrations)

    def _is_current(self, taskmanager: TaskManagerID, leader: str, registration: int) -> bool:
        """Return whether a message belongs to the TaskManager's registration, and not to one before it."""
        known = self._registered.get(taskmanager)
        return known is not None and (leader, registration) == (self._services.leader, known.number)

    async def _on_slot_report(self, message: SlotReport) -> Acknowledge:
        """Make the slots of a TaskManager that has registered available (ResourceManager.sendSlotReport)."""
        taskmanager = TaskManagerID.parse(message.resource_id)
        if not self._is_current(taskmanager, message.leader, message.registration):
            text = f"Unknown TaskManager registration id {message.registration}."
            raise FlinkError("ResourceManagerException", text)
        slots = self._registered[taskmanager].slots
        self._table.register(taskmanager, slots, self._held(taskmanager, message))
        self._table.suspend(taskmanager, taskmanager in self._suspended)
        self._services.event("taskmanager.registered", str(taskmanager), data={"slots": slots})
        self._check_requirements()
        return Acknowledge()

    def _held(self, taskmanager: TaskManagerID, message: SlotReport) -> list[tuple[int, str]]:
        """Return the allocated slots that the job still uses, because it has not lost the TaskManager (yet)."""
        served = self._served
        return [slot for slot in message.allocations if served and served.pool.holds_at(taskmanager, slot[1])]

    async def _disconnect(self, message: DisconnectTaskExecutor) -> Acknowledge:
        """Handle that a TaskManager has given up this ResourceManager (ResourceManager.disconnectTaskManager), and registers again."""
        taskmanager = TaskManagerID.parse(message.resource_id)
        if self._is_current(taskmanager, message.leader, message.registration):
            self.heartbeats.unwatch(taskmanager)
            self._remove(taskmanager)
            if self._tells_job:
                lost = Lost(taskmanager, message.cause, UNREACHABLE_CLASS["TaskExecutor"], wait=message.wait)
                self._relay(lost, "TaskManager")
            self._check_requirements()
        return Acknowledge()

    def _remove(self, taskmanager: TaskManagerID) -> Address | None:
        """Forget a TaskManager and its slots. Return where it was."""
        known = self._registered.pop(taskmanager, None)
        self._suspended.discard(taskmanager)
        self._remove_slots(taskmanager)
        return known.address if known is not None else None

    def _remove_slots(self, taskmanager: TaskManagerID) -> None:
        for allocation in self._table.remove(taskmanager):
            self._want_again(allocation)

    def _on_lost(self, lost: Lost, *, tells_job: bool = True) -> None:
        """Remove a TaskManager and disconnect it. If `tells_job`, also disconnect the job that has slots there."""
        address = self._remove(lost.taskmanager)
        if address is not None:
            disconnect = DisconnectResourceManager(self._services.leader, lost.text)
            telling = self._services.tell(lost.taskmanager, address, disconnect)
            self._services.tasks.spawn(telling, f"disconnect-{lost.taskmanager}")
        data = {"detector": "ResourceManager", "cause_class": lost.cause_class, "wait": lost.wait}
        self._services.event("taskmanager.lost", str(lost.taskmanager), text=lost.text, data=data)
        if tells_job:
            self._relay(lost, "ResourceManager")
        self._check_requirements()

    def _relay(self, lost: Lost, detector: str) -> None:
        """Disconnect a TaskManager from the job (JobMasterGateway.disconnectTaskManager)."""
        if self._served is not None:
            self._services.run_async(JOBMASTER, self._served.on_lost, lost, detector)

    def _on_heartbeat(self, taskmanager: TaskManagerID, heartbeat: Heartbeat) -> None:
        if heartbeat.allocations is not None:
            for _, allocation in heartbeat.allocations:
                self._on_requested(allocation, Acknowledge())
            for allocation in self._table.missing(taskmanager, heartbeat.allocations, heartbeat.asked_at):
                self._available(allocation)
        if taskmanager in self._suspended:
            self._suspended.remove(taskmanager)
            self._table.suspend(taskmanager, False)
            self._check_requirements()
        for allocation in self._table.releasing(taskmanager):
            self._free(allocation, "The slot is not used any more.")

    # ---- allocation

    def _check_requirements(self) -> None:
        """Allocate slots a little later, because more requirements and slots may change meanwhile
        (FineGrainedSlotManager.checkResourceRequirementsWithDelay)."""
        if not self._check.delay_s:
            self._services.run_async(RESOURCEMANAGER, self._on_check)
            return
        self._check.arm(self._check.delay_s)
        if self._wanted and self._table.free:
            self._check.begin_wait()

    def _on_check(self) -> None:
        """Allocate as many of the requested slots as are free."""
        self._check.stop()
        served, count = self._served, min(self._table.free, len(self._wanted))
        self._unfulfillable = self._table.expected < len(self._wanted)
        if served is not None and count:
            self._allocate(served, count)
        self._fail_unfulfillable()

    def _on_start_up_ended(self) -> None:
        """Fail requests that cannot be fulfilled, from now on (StandaloneResourceManager.startStartupPeriod)."""
        self._fails_unfulfillable = True
        self._fail_unfulfillable()

    def _fail_unfulfillable(self) -> None:
        if self._fails_unfulfillable and self._unfulfillable and self._served is not None:
            self._services.run_async(JOBMASTER, self._served.on_unfulfillable)

    def _allocate(self, served: ServedJob, count: int) -> None:
        keys, self._wanted = self._wanted[:count], self._wanted[count:]
        allocations = [self._new_allocation() for _ in keys]
        slots = self._table.take(allocations)
        for key, slot in zip(keys, slots, strict=True):
            self._keys[slot.allocation] = key
            served.pool.expect(slot.allocation, key)
            request = RequestSlot(
                slot=slot.index,
                allocation=slot.allocation,
                job=served.job,
                jobmaster_address=self._services.rpc.address,
                jobmaster_leader=self._services.leader,
                leader=self._services.leader,
            )
            self._services.ask_async(
                RESOURCEMANAGER,
                slot.owner,
                self._registered[slot.owner].address,
                request,
                partial(self._on_requested, slot.allocation),
                name=f"request-slot-{slot.owner}",
                call_id=f"request-slot/{slot.allocation}",
            )

    def _new_allocation(self) -> str:
        self._allocations += 1
        return f"{self._services.leader[:16]}{self._allocations:016x}"

    def _on_requested(self, allocation: str, answer: object) -> None:
        """Handle the answer to a request for a slot, or a report that contains the slot, whichever comes first."""
        slot = self._table.slot(allocation)
        if slot is None or slot.state is not SlotState.PENDING:
            return
        refused = isinstance(answer, Acknowledge) and not answer.accepted
        if not (refused or isinstance(answer, ASK_FAILURES)):
            self._table.mark(allocation, SlotState.ALLOCATED, self._services.clock.now())
            return
        if isinstance(answer, NoAnswer):
            self.suspend(slot.owner)
        self._table.mark(allocation, SlotState.FREE)
        self._want_again(allocation)
        if self._check.delay_s:
            self._check_requirements()
        else:
            self._check.arm(RETRY_S)

    def _want_again(self, allocation: str) -> None:
        key = self._keys.pop(allocation, None)
        if key is None or self._served is None or not self._served.pool.unexpect(allocation):
            return
        if key not in self._wanted:
            self._wanted.append(key)

    # ---- release

    async def _on_available(self, message: NotifySlotAvailable) -> Acknowledge:
        slot = self._table.slot(message.allocation)
        if (
            message.leader == self._services.leader
            and slot is not None
            and str(slot.owner) == message.resource_id
        ):
            self._available(message.allocation)
        return Acknowledge()

    def _available(self, allocation: str) -> None:
        """Handle a slot that its TaskManager has freed by itself. If the job still waits for this slot, it gets another one."""
        self._table.mark(allocation, SlotState.FREE)
        self._want_again(allocation)
        self._check_requirements()

    def _free(self, allocation: str, cause: str) -> None:
        slot = self._table.slot(allocation)
        if slot is None or allocation in self._freeing:
            return
        self._freeing[allocation] = None
        self._services.ask_async(
            RESOURCEMANAGER,
            slot.owner,
            self._registered[slot.owner].address,
            FreeSlot(allocation, cause, self._services.leader),
            partial(self._on_freed, allocation),
            name=f"free-slot-{slot.owner}",
        )

    def _on_freed(self, allocation: str, answer: object) -> None:
        """Make a released slot free. A TaskExecutor that answers with an error does not know the allocation: it is free there too."""
        self._freeing.pop(allocation, None)
        slot = self._table.slot(allocation)
        if not isinstance(answer, NoAnswer) and slot is not None and slot.state is SlotState.RELEASING:
            self._table.mark(allocation, SlotState.FREE)
            self._keys.pop(allocation, None)
            self._check_requirements()
