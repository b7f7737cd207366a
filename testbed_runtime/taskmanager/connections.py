"""A TaskExecutor's connections to the JobManager process: registration with retries, slot offers, heartbeats received."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from msgspec import Struct

from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.job.heartbeat import (
    HeartbeatConfig,
    HeartbeatMonitor,
    timed_out_text,
    unreachable_text,
)
from testbed_runtime.core.job.limits import option_limit, reachability_limit
from testbed_runtime.core.job.messages import (
    RESOURCEMANAGER,
    DisconnectTaskExecutor,
    OfferSlots,
    RegisterAtJobMaster,
    RegisterTaskManager,
    RegistrationResult,
    SlotOfferResult,
    SlotReport,
)
from testbed_runtime.core.job.registration import (
    REFUSED_DELAY,
    Attempt,
    RegistrationConfig,
    RetryingRegistration,
)
from testbed_runtime.core.job.rpcnames import actor_address
from testbed_runtime.core.options import BY_KEY, Options
from testbed_runtime.core.waits import JOBMASTER_NAME, NO_LIMIT, RM_NAME, Limit, Outcome
from testbed_runtime.history.waits import OpenWait, WaitLog
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import ASK_FAILURES, AskTimeout, RecipientUnreachable, RemoteFailure, Rpc
from testbed_runtime.taskmanager.gateway import JobMasterGateway
from testbed_runtime.taskmanager.slots import Slot, TaskSlotTable
from testbed_runtime.timeouts import cancel_all, timeout

ANSWERED_AT_ONCE_S = 0.3
"""If a JobManager answers within this time after it was declared lost, no wait for it is recorded."""
REPORT_MIN_S = 0.01
"""Slot reports and refusals that take less time are not recorded as waits of their own. They are part of the registration's wait."""
LEADER_PROBE_S = 0.5
"""Pause between registration attempts while no process listens at the JobManager's address. In Flink the leader election
announces a new leader; here the address is probed. The (longer) error delay applies only once a leader answers with an error."""


class WaitScope(Struct, frozen=True):
    """Records the waits of the connections of one TaskManager."""

    options: Options
    waits: WaitLog
    who: str
    """ResourceID."""

    def heartbeat(self, peer: str, since_s: float, outcome: Outcome, limit: Limit) -> None:
        """Record a wait for a heartbeat of the peer that ends now."""
        self.waits.begin("heartbeat", self.who, peer, limit=limit, since_s=since_s).end(outcome)

    def registration(self, peer: str, *, limit: Limit = NO_LIMIT) -> OpenWait:
        return self.waits.begin("registration", self.who, peer, limit=limit)

    def away(self, peer: str, since_s: float) -> OpenWait:
        """Begin the wait for a JobManager whose last sign of life was at `since_s`."""
        return self.waits.begin("jobmanager", self.who, peer, since_s=since_s)

    def refused(self, wait: OpenWait, attempt: Attempt) -> OpenWait:
        """Begin the wait for the next attempt, if the peer has answered with a refusal."""
        if attempt.option != REFUSED_DELAY:
            return wait
        wait.end(at_least_s=REPORT_MIN_S)
        return self.registration(wait.what, limit=wait.limit)

    def registered(self, wait: OpenWait, attempt: Attempt, given_up: Limit) -> None:
        """End the wait, because an attempt succeeded. If the attempt had a delay, the delay decided the end of the wait. A peer that
        answers right after it was given up had been available before: then the limit after which it was given up decided the end."""
        beyond_s = self.waits.now() - wait.start_s - (given_up.seconds or 0.0)
        if attempt.option:
            wait.limit = option_limit(self.options, attempt.option)
            wait.end(Outcome.FIRED)
        elif wait.kind == "jobmanager" and beyond_s < ANSWERED_AT_ONCE_S:
            wait.limit = given_up
            wait.end(Outcome.EXPIRED)
        else:
            wait.end()


class PeerWatch:
    """Watches the heartbeats of one peer. Calls `on_lost` once when the peer was silent for heartbeat.timeout, or when the
    answers to its heartbeats did not reach it (HeartbeatManagerImpl.handleHeartbeatRpc)."""

    def __init__(self, scope: WaitScope, peer: str, on_lost: Callable[[], None]) -> None:
        self._scope = scope
        self._config = HeartbeatConfig.of(scope.options)
        self._timeout = option_limit(scope.options, "heartbeat.timeout")
        self._peer = peer
        self._on_lost = on_lost
        self.last_seen = 0.0
        """Time of the last sign of life of the peer before `on_lost`."""
        self.unreachable = False
        """Whether the peer was declared lost because answers did not reach it."""
        self._reached_s = 0.0
        """When an answer reached the peer last, or when it was connected."""
        self._monitor: HeartbeatMonitor | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start watching: the peer is connected now."""
        self.stop()
        self._reached_s = asyncio.get_running_loop().time()
        self._monitor = HeartbeatMonitor(self._config, self._reached_s)
        self._arm()

    def stop(self) -> None:
        if self._monitor is not None:
            self._monitor.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._monitor = self._timer = None

    def on_heartbeat(self) -> None:
        if self._monitor is not None:
            late_since = self._monitor.on_heartbeat(asyncio.get_running_loop().time())
            if late_since is not None:
                self._scope.heartbeat(self._peer, late_since, Outcome.COMPLETED, self._timeout)

    @property
    def session(self) -> object:
        """An object that identifies the current connection to the peer; None while the peer is not connected."""
        return self._monitor

    def on_answered(self, session: object, *, reached: bool) -> None:
        """Count whether the answer to a heartbeat of a session has reached the peer. Answers of an earlier session are ignored."""
        monitor = self._monitor
        if monitor is None or monitor is not session:
            return
        if not reached:
            if monitor.on_unreachable():
                self._give_up(monitor, unreachable=True)
            return
        if monitor.on_call_success():
            limit = reachability_limit(self._scope.options)
            self._scope.heartbeat(self._peer, self._reached_s, Outcome.COMPLETED, limit)
        self._reached_s = asyncio.get_running_loop().time()

    @property
    def given_up(self) -> Limit:
        """The limit after which the peer is declared lost, or was declared lost the last time."""
        return reachability_limit(self._scope.options) if self.unreachable else self._timeout

    def extend(self, seconds: float) -> None:
        """Account for a stall of this process, which could not receive heartbeats meanwhile.

        A stall shorter than the timeout extends the deadline. After a longer stall, the peer has given up this process, which would be a
        zombie if it continued. The connection then counts as lost, even if heartbeats are still in flight."""
        if self._monitor is None:
            return
        if seconds < self._config.timeout_s:
            self._monitor.extend(seconds)
        else:
            self.unreachable = False
            self._lose(self._monitor)

    def _arm(self) -> None:
        if self._monitor is not None:
            self._timer = asyncio.get_running_loop().call_at(self._monitor.deadline, self._on_timer)

    def _on_timer(self) -> None:
        monitor = self._monitor
        if monitor is None:
            return
        if not monitor.on_time(asyncio.get_running_loop().time()):
            self._arm()
            return
        self._give_up(monitor, unreachable=False)

    def _give_up(self, monitor: HeartbeatMonitor, *, unreachable: bool) -> None:
        self.unreachable = unreachable
        since_s = self._reached_s if unreachable else monitor.last_seen
        self._scope.heartbeat(self._peer, since_s, Outcome.EXPIRED, self.given_up)
        self._lose(monitor)

    def _lose(self, monitor: HeartbeatMonitor) -> None:
        self.last_seen = monitor.last_seen
        self.stop()
        self._on_lost()


async def _try_register(
    ask: Coroutine[object, object, RegistrationResult],
    registration: RetryingRegistration,
    *,
    on_unreachable: Callable[[], Attempt],
) -> RegistrationResult | Attempt:
    """Return the answer that ends the registration, or the next attempt."""
    try:
        answer = await ask
    except AskTimeout:
        return registration.on_timeout()
    except RecipientUnreachable:
        return on_unreachable()
    except RemoteFailure:
        return registration.on_error()
    return registration.on_refused() if answer.outcome == "failure" else answer


class ResourceManagerConnection:
    """Keeps this TaskManager registered until it is closed. Each registration is followed by a slot report.

    Calls `on_fatal` when it could not register within taskmanager.registration.timeout, or was rejected."""

    def __init__(
        self,
        rpc: Rpc,
        address: Address,
        scope: WaitScope,
        *,
        message: Callable[[], RegisterTaskManager],
        allocations: Callable[[], tuple[tuple[int, str], ...]],
        on_fatal: Callable[[str], None],
        on_given_up: Callable[[DisconnectTaskExecutor], None],
    ) -> None:
        """`allocations` returns the content of the slot report. `on_given_up` is called with a message for a ResourceManager that was
        declared lost."""
        self._rpc = rpc
        self._address = address
        self._scope = scope
        self._config = RegistrationConfig.of(scope.options)
        self._limit = option_limit(scope.options, "taskmanager.registration.timeout")
        self._wait: OpenWait | None = None
        self._message = message
        self._allocations = allocations
        self._ask_timeout = option_limit(scope.options, "pekko.ask.timeout")
        self._registration = 0
        """The number that the ResourceManager gave to the last registration."""
        self._report: asyncio.Task[None] | None = None
        self._on_fatal = on_fatal
        self._on_given_up = on_given_up
        self.watch = PeerWatch(scope, RM_NAME, self._on_lost)
        self._worker: asyncio.Task[None] | None = None
        self._registered = asyncio.Event()
        self.leader = ""

    def connect(self) -> None:
        """Start registering. Does nothing while a registration is in progress."""
        if self._worker is None:
            self._wait = self._wait or self._scope.registration(RM_NAME, limit=self._limit)
            self._worker = asyncio.get_running_loop().create_task(
                self._register(self._wait), name="register-at-resourcemanager"
            )

    async def registered(self) -> None:
        """Wait until the ResourceManager has accepted this TaskManager and its slots."""
        await self._registered.wait()

    @property
    def is_registered(self) -> bool:
        return self._registered.is_set()

    def on_heartbeat(self, leader: str) -> bool:
        """Record a heartbeat. Return False if this TaskManager is not registered at the sender, which then gets no answer, as in Flink."""
        if not leader or leader != self.leader:
            return False
        self.watch.on_heartbeat()
        return True

    def extend(self, seconds: float) -> None:
        self.watch.extend(seconds)

    def disconnected(self, leader: str) -> None:
        """Register again immediately, because the ResourceManager has disconnected this TaskManager."""
        if leader and leader == self.leader:
            self._disconnect()
            self.connect()

    def on_leader(self, leader: str) -> None:
        """Register at a new leader at once (TaskExecutor.notifyOfNewResourceManagerLeader). Does nothing if this is the current leader."""
        if leader == self.leader:
            return
        self._disconnect()
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None
        self.connect()

    def _on_lost(self) -> None:
        """Disconnect from the ResourceManager, and register again (TaskExecutor.reconnectToResourceManager)."""
        peer = "ResourceManager", self.leader
        text = unreachable_text(*peer) if self.watch.unreachable else timed_out_text("TaskExecutor", *peer)
        self._wait = self._scope.away(RM_NAME, self.watch.last_seen)
        self._reconnect(text, "heartbeat")

    def _reconnect(self, text: str, wait: str) -> None:
        """Notify the ResourceManager that this TaskManager disconnects from it, and register again."""
        message = DisconnectTaskExecutor(self._scope.who, self.leader, self._registration, text, wait)
        self._on_given_up(message)
        self._disconnect()
        self.connect()

    def _disconnect(self) -> None:
        self.watch.stop()
        self.leader = ""
        self._registered.clear()
        if self._report is not None:
            self._report.cancel()
            self._report = None

    async def _register(self, wait: OpenWait) -> None:
        """Register, with retries. The limit also ends an attempt or a delay in progress (TaskExecutor.registrationTimeout)."""
        try:
            async with timeout(self._limit.seconds or 0.0):
                answer, attempt = await self._until_answered()
        except TimeoutError:
            wait, self._worker, self._wait = self._wait or wait, None, None
            wait.limit = self._limit  # also for the wait for a lost ResourceManager
            wait.end(Outcome.EXPIRED)
            self._on_fatal(
                "Could not register at the ResourceManager within the specified maximum registration duration "
                f"{self._limit.value}. This indicates a problem with this instance. Terminating now."
            )
            return
        wait, self._worker, self._wait = self._wait or wait, None, None
        if answer.outcome == "success":
            self._scope.registered(wait, attempt, self.watch.given_up)
        else:
            wait.end(Outcome.FAILED, cause=answer.reason)
        self._on_answer(answer)

    async def _until_answered(self) -> tuple[RegistrationResult, Attempt]:
        """Return the answer that ends the registration, and the attempt that got it."""
        registration = RetryingRegistration(self._config)
        attempt = registration.first()
        while True:
            await asyncio.sleep(attempt.delay_s)
            ask = self._rpc.ask(
                JOBMANAGER, self._address, RESOURCEMANAGER, self._message(), timeout_s=attempt.timeout_s
            )
            answer = await _try_register(
                ask,
                registration,
                on_unreachable=lambda: Attempt(LEADER_PROBE_S, registration.first().timeout_s),
            )
            if isinstance(answer, RegistrationResult):
                return answer, attempt
            attempt = answer
            if self._wait is not None:
                self._wait = self._scope.refused(self._wait, attempt)

    def _on_answer(self, answer: RegistrationResult) -> None:
        if answer.outcome != "success":
            where = actor_address(self._address, RESOURCEMANAGER, self._scope.options.flink_version)
            self._on_fatal(
                f"The TaskExecutor's registration at the ResourceManager {where} has been rejected: Rejected TaskExecutor "
                f"registration at the ResourceManager because: {answer.reason}"
            )
            return
        self.leader, self._registration = answer.leader, answer.registration
        report = SlotReport(self._scope.who, self.leader, self._registration, self._allocations())
        self._report = asyncio.get_running_loop().create_task(self._send_report(report), name="slot-report")
        self.watch.start()

    async def _send_report(self, report: SlotReport) -> None:
        """Report the slots. A ResourceManager that does not answer is given up (TaskExecutor.establishResourceManagerConnection)."""
        limit, since_s = self._ask_timeout, asyncio.get_running_loop().time()
        try:
            await self._rpc.ask(
                JOBMANAGER, self._address, RESOURCEMANAGER, report, timeout_s=limit.seconds or 0.0
            )
        except ASK_FAILURES as error:
            if isinstance(error, AskTimeout):
                self._waited_for_report(since_s, Outcome.EXPIRED)
            self._report = None  # otherwise this task would cancel itself
            self._reconnect("Failed to send initial slot report to ResourceManager.", "registration")
        else:
            if asyncio.get_running_loop().time() - since_s >= REPORT_MIN_S:
                self._waited_for_report(since_s, Outcome.COMPLETED)
            self._registered.set()

    def _waited_for_report(self, since_s: float, outcome: Outcome) -> None:
        waits, who = self._scope.waits, self._scope.who
        waits.begin("registration", who, RM_NAME, limit=self._ask_timeout, since_s=since_s).end(outcome)

    async def close(self) -> None:
        self.watch.stop()
        await cancel_all(self._worker, self._report)
        self._worker = self._report = None


class JobConnection:
    """The connection to the JobMaster of one job. Lives while this TaskManager has slots for the job.

    Calls `on_lost(connection)` when the JobMaster fell silent or is unreachable, `on_slot_refused(slot, cause)` for a slot that
    the JobMaster did not accept, and `on_slot_gone(connection, allocation, cause)` for an accepted slot that this TaskManager no
    longer has."""

    def __init__(
        self,
        gateway: JobMasterGateway,
        message: RegisterAtJobMaster,
        slots: TaskSlotTable,
        *,
        scope: WaitScope,
        on_lost: Callable[[JobConnection], None],
        on_slot_refused: Callable[[Slot, str], None],
        on_slot_gone: Callable[[JobConnection, str, str], None],
        lost: OpenWait | None,
        given_up: Limit | None,
    ) -> None:
        """`lost`: the open wait for the JobMaster, if it was declared lost after `given_up` and this connection is the next attempt."""
        self.gateway = gateway
        self.session = message.session
        self._lost = lost
        self._message = message
        self._slots = slots
        self._scope = scope
        self._on_slot_refused = on_slot_refused
        self._on_slot_gone = on_slot_gone
        self.watch = PeerWatch(scope, JOBMASTER_NAME, lambda: on_lost(self))
        self._given_up = given_up or self.watch.given_up
        self._worker: asyncio.Task[None] | None = None
        """The task that registers this TaskManager."""
        self._offers: set[asyncio.Task[None]] = set()
        self._last_offer = 0
        """Number of the last offer. It repeats the slots of earlier offers that are still inactive, so only its answer decides on them."""
        self._established = False
        self._wait = lost

    @property
    def job(self) -> str:
        return self.gateway.job

    @property
    def established(self) -> bool:
        """Whether the JobMaster has accepted this TaskManager. It deploys no tasks here before that."""
        return self._established

    @property
    def given_up(self) -> Limit:
        """The limit after which the JobMaster was given up. Until this JobMaster is connected, it is the limit for the previous one."""
        return self.watch.given_up if self._established else self._given_up

    def offer(self) -> None:
        """Offer every slot that is not active. Register first if necessary."""
        loop = asyncio.get_running_loop()
        if not self._established:
            self._worker = self._worker or loop.create_task(self._run(), name=f"job-connection:{self.job}")
        elif offered := self._slots.of_job(self.job, active=False):
            self._last_offer += 1
            offering = self._offer_slots(offered, self._last_offer)
            offer = loop.create_task(offering, name=f"slot-offer:{self.job}")
            self._offers.add(offer)
            offer.add_done_callback(self._offers.discard)

    def on_heartbeat(self, leader: str) -> bool:
        """Record a heartbeat. Return False if this TaskManager is not connected to that leader, which then gets no answer, as in Flink."""
        if not self._established or self.gateway.leader != leader:
            return False
        self.watch.on_heartbeat()
        return True

    def extend(self, seconds: float) -> None:
        self.watch.extend(seconds)

    async def _run(self) -> None:
        self._established = await self._register()
        self._worker = None
        if self._established:
            self.watch.start()
            self.offer()

    async def _register(self) -> bool:
        """Register at the JobMaster, with retries. Return False when it rejected this TaskManager."""
        registration = RetryingRegistration(RegistrationConfig.of(self._scope.options))
        attempt = registration.first()
        wait = self._wait = self._lost or self._scope.registration(JOBMASTER_NAME)
        while True:
            await asyncio.sleep(attempt.delay_s)
            ask = self.gateway.ask(self._message, timeout_s=attempt.timeout_s)
            answer = await _try_register(ask, registration, on_unreachable=registration.on_error)
            if isinstance(answer, RegistrationResult):
                if answer.outcome == "success":
                    self._scope.registered(wait, attempt, self._given_up)
                    return True
                wait.end(Outcome.FAILED, cause=answer.reason)
                for slot in self._slots.of_job(self.job):
                    self._on_slot_refused(slot, f"JobManager {self.job} has rejected the registration.")
                return False
            attempt = answer
            wait = self._wait = self._scope.refused(wait, attempt)

    async def _offer_slots(self, offered: list[Slot], number: int) -> None:
        """Offer slots. Offer again after a timeout; free them after any other failure (TaskExecutor.handleAcceptedSlotOffers)."""
        gateway = self.gateway
        message = OfferSlots(
            gateway.resource_id,
            self.job,
            gateway.leader,
            tuple((slot.index, slot.allocation) for slot in offered),
        )
        answer: SlotOfferResult | Exception
        try:
            answer = await gateway.ask(message)
        except ASK_FAILURES as error:
            answer = error
        if number == self._last_offer:
            self._on_answered_offer(offered, answer)
        elif isinstance(answer, SlotOfferResult):
            for slot in offered:  # the last offer contains the slots that no task has activated since
                current = self._slots.get(slot.allocation)
                if current is not None and current.active and slot.allocation in answer.accepted:
                    self._slots.mark_active(slot.allocation, self.job, answer.at)

    def _on_answered_offer(self, offered: list[Slot], answer: SlotOfferResult | Exception) -> None:
        if isinstance(answer, AskTimeout):
            self.offer()
            return
        if isinstance(answer, Exception):
            self._refuse(offered, str(answer))
            return
        for slot in offered:
            if slot.allocation in answer.accepted:
                if not self._slots.mark_active(slot.allocation, self.job, answer.at):
                    text = f"Could not mark slot {slot.allocation} active."
                    self._on_slot_gone(self, slot.allocation, text)
            else:
                self._refuse([slot], "The slot was rejected by the JobManager.")

    def _refuse(self, slots: list[Slot], cause: str) -> None:
        for slot in slots:
            current = self._slots.get(slot.allocation)
            if current is not None and not current.active:
                self._on_slot_refused(current, cause)

    def hand_over(self) -> OpenWait | None:
        """Return the wait for a lost JobMaster. The connection to the next leader continues it."""
        wait, self._wait = self._wait, None
        return wait if wait is not None and wait.kind == "jobmanager" and not wait.ended else None

    def end_wait(self) -> None:
        """End the wait for a lost JobMaster, because its JobManager is back and frees the last slot of the job."""
        if (wait := self.hand_over()) is not None:
            wait.end()

    def time_out(self) -> None:
        """End the wait for the registration, because the job's last slot timed out first."""
        if self._wait is not None and self._wait.kind == "registration":
            options, key = self._scope.options, "taskmanager.slot.timeout"
            newer = BY_KEY[key].is_newer_than(options.flink_version)
            self._wait.limit = option_limit(options, "pekko.ask.timeout" if newer else key)
            self._wait.end(Outcome.EXPIRED)

    def stop_watching(self) -> None:
        """Stop the heartbeat watch, because this TaskManager disconnects from the job."""
        self._established = False
        self.watch.stop()

    async def close(self) -> None:
        self.stop_watching()
        if self._wait is not None:
            self._wait.end(Outcome.CANCELLED)
        await cancel_all(*self._offers, self._worker)
        self._worker = None
