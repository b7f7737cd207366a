"""A TaskExecutor's connections to the JobManager process: registration with retries, slot offers, heartbeats received."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.job.heartbeat import HeartbeatConfig, HeartbeatMonitor
from testbed_runtime.core.job.messages import (
    RESOURCEMANAGER,
    OfferSlots,
    RegisterAtJobMaster,
    RegisterTaskManager,
    RegistrationResult,
    SlotOfferResult,
)
from testbed_runtime.core.job.registration import Attempt, RegistrationConfig, RetryingRegistration
from testbed_runtime.core.options import Options
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable, RemoteFailure, Rpc
from testbed_runtime.taskmanager.gateway import JobMasterGateway
from testbed_runtime.taskmanager.slots import Slot, TaskSlotTable

LEADER_PROBE_S = 0.5
"""Pause between registration attempts while no process listens at the JobManager's address. In Flink the leader election
announces a new leader; here the address is probed. The (longer) error delay applies only once a leader answers with an error."""


class PeerWatch:
    """Watches the heartbeats of one peer. Calls `on_silence` once when the peer was silent for heartbeat.timeout."""

    def __init__(self, config: HeartbeatConfig, on_silence: Callable[[], None]) -> None:
        self._config = config
        self._on_silence = on_silence
        self._monitor: HeartbeatMonitor | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start watching: the peer is connected now."""
        self.stop()
        self._monitor = HeartbeatMonitor(self._config, asyncio.get_running_loop().time())
        self._arm()

    def stop(self) -> None:
        if self._monitor is not None:
            self._monitor.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._monitor = self._timer = None

    def on_heartbeat(self) -> None:
        if self._monitor is not None:
            self._monitor.on_heartbeat(asyncio.get_running_loop().time())

    def extend(self, seconds: float) -> None:
        """Account for a stall of this process, which could not receive heartbeats meanwhile.

        A stall shorter than the timeout extends the deadline. After a longer one the peer has given up on this process, and
        going on would make it a zombie: the connection counts as lost even if heartbeats are still in flight."""
        if self._monitor is None:
            return
        if seconds < self._config.timeout_s:
            self._monitor.extend(seconds)
        else:
            self.stop()
            self._on_silence()

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
        self.stop()
        self._on_silence()


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
    """Keeps this TaskManager registered until it is closed.

    Calls `on_fatal` when it could not register within taskmanager.registration.timeout, or was rejected."""

    def __init__(
        self,
        rpc: Rpc,
        address: Address,
        options: Options,
        *,
        message: Callable[[], RegisterTaskManager],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._rpc = rpc
        self._address = address
        self._config = RegistrationConfig.of(options)
        self._limit_s = options.duration("taskmanager.registration.timeout")
        self._limit_text = options.text("taskmanager.registration.timeout")
        self._message = message
        self._on_fatal = on_fatal
        self._watch = PeerWatch(HeartbeatConfig.of(options), self._on_silence)
        self._worker: asyncio.Task[None] | None = None
        self._registered = asyncio.Event()
        self.leader = ""

    def connect(self) -> None:
        """Start registering. Does nothing while a registration is in progress."""
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(
                self._register(), name="register-at-resourcemanager"
            )

    async def registered(self) -> None:
        """Wait until the ResourceManager has accepted this TaskManager."""
        await self._registered.wait()

    @property
    def is_registered(self) -> bool:
        return self._registered.is_set()

    def on_heartbeat(self) -> None:
        self._watch.on_heartbeat()

    def extend(self, seconds: float) -> None:
        self._watch.extend(seconds)

    def _on_silence(self) -> None:
        self.leader = ""
        self._registered.clear()
        self.connect()

    async def _register(self) -> None:
        loop = asyncio.get_running_loop()
        registration = RetryingRegistration(self._config)
        attempt, deadline = registration.first(), loop.time() + self._limit_s
        while loop.time() < deadline:
            await asyncio.sleep(attempt.delay_s)
            ask = self._rpc.ask(
                JOBMANAGER, self._address, RESOURCEMANAGER, self._message(), timeout_s=attempt.timeout_s
            )
            answer = await _try_register(
                ask,
                registration,
                on_unreachable=lambda: Attempt(LEADER_PROBE_S, registration.first().timeout_s),
            )
            if isinstance(answer, Attempt):
                attempt = answer
                continue
            self._worker = None
            self._on_answer(answer)
            return
        self._worker = None
        self._on_fatal(
            "Could not register at the ResourceManager within the specified maximum registration duration "
            f"{self._limit_text}. This indicates a problem with this instance. Terminating now."
        )

    def _on_answer(self, answer: RegistrationResult) -> None:
        if answer.outcome != "success":
            self._on_fatal(f"The ResourceManager rejected this TaskManager: {answer.reason}")
            return
        self.leader = answer.leader
        self._watch.start()
        self._registered.set()

    async def close(self) -> None:
        self._watch.stop()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])
            self._worker = None


class JobConnection:
    """The connection to the JobMaster of one job. Lives while this TaskManager has slots for the job.

    Calls `on_lost(connection)` when the JobMaster fell silent, `on_slot_refused(slot, cause)` for a slot that the JobMaster
    did not accept."""

    def __init__(
        self,
        gateway: JobMasterGateway,
        message: RegisterAtJobMaster,
        slots: TaskSlotTable,
        *,
        registration: RegistrationConfig,
        heartbeats: HeartbeatConfig,
        on_lost: Callable[[JobConnection], None],
        on_slot_refused: Callable[[Slot, str], None],
    ) -> None:
        self.gateway = gateway
        self._message = message
        self._slots = slots
        self._registration = registration
        self._on_slot_refused = on_slot_refused
        self._watch = PeerWatch(heartbeats, lambda: on_lost(self))
        self._worker: asyncio.Task[None] | None = None
        self._offer_again = False
        self._established = False

    @property
    def job(self) -> str:
        return self.gateway.job

    def offer(self) -> None:
        """Register if that is not done yet, then offer every slot that is not active."""
        self._offer_again = True
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(
                self._run(), name=f"job-connection:{self.job}"
            )

    def on_heartbeat(self) -> None:
        self._watch.on_heartbeat()

    def extend(self, seconds: float) -> None:
        self._watch.extend(seconds)

    async def _run(self) -> None:
        if not self._established:
            self._established = await self._register()
            if self._established:
                self._watch.start()
        while self._established and self._offer_again:
            self._offer_again = False
            await self._offer_slots()
        self._worker = None

    async def _register(self) -> bool:
        """Register at the JobMaster, with retries. Return False when it rejected this TaskManager."""
        registration = RetryingRegistration(self._registration)
        attempt = registration.first()
        while True:
            await asyncio.sleep(attempt.delay_s)
            ask = self.gateway.ask(self._message, timeout_s=attempt.timeout_s)
            answer = await _try_register(ask, registration, on_unreachable=registration.on_error)
            if isinstance(answer, RegistrationResult):
                if answer.outcome == "success":
                    return True
                for slot in self._slots.of_job(self.job):
                    self._on_slot_refused(slot, f"The JobManager rejected the registration: {answer.reason}")
                return False
            attempt = answer

    async def _offer_slots(self) -> None:
        """Offer the slots that are not active. Offer again after a timeout; free them after any other failure."""
        offered = self._slots.of_job(self.job, active=False)
        if not offered:
            return
        gateway = self.gateway
        message = OfferSlots(
            gateway.resource_id,
            self.job,
            gateway.leader,
            tuple((slot.index, slot.allocation) for slot in offered),
        )
        try:
            answer: SlotOfferResult = await gateway.ask(message)
        except AskTimeout:
            self._offer_again = True
            return
        except (RecipientUnreachable, RemoteFailure) as error:
            self._refuse(offered, f"Slot offering to JobManager with unknown address failed: {error}")
            return
        for slot in offered:
            if slot.allocation in answer.accepted:
                self._slots.mark_active(slot.allocation, self.job)
            else:
                self._refuse([slot], f"The slot {slot.allocation} was rejected by the JobManager.")

    def _refuse(self, slots: list[Slot], cause: str) -> None:
        for slot in slots:
            current = self._slots.get(slot.allocation)
            if current is not None and not current.active:
                self._on_slot_refused(current, cause)

    def stop_watching(self) -> None:
        """Stop the heartbeat watch: this TaskManager gives the job up."""
        self._established = False
        self._watch.stop()

    async def close(self) -> None:
        self.stop_watching()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])
            self._worker = None
