"""A TaskExecutor's connection to the JobMaster of one job: registration, slot offers, heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from testbed_runtime.core.job.heartbeat import HeartbeatConfig
from testbed_runtime.core.job.messages import (
    OfferSlots,
    RegisterAtJobMaster,
    RegistrationResult,
    SlotOfferResult,
)
from testbed_runtime.core.job.registration import Attempt, RegistrationConfig, RetryingRegistration
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable, RemoteFailure
from testbed_runtime.taskmanager.gateway import JOBMANAGER, JOBMASTER, JobMasterGateway
from testbed_runtime.taskmanager.heartbeats import PeerWatch
from testbed_runtime.taskmanager.slots import Slot, TaskSlotTable


class JobConnection:
    """Lives while this TaskManager has slots for the job. `on_lost(connection)` when the JobMaster fell silent,
    `on_slot_refused(slot, cause)` for what it did not take."""

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
        self.established = False

    @property
    def job(self) -> str:
        return self.gateway.job

    def offer(self) -> None:
        """Register if that is not done yet, and offer every slot that is not active."""
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
        if not self.established:
            self.established = await self._register()
            if self.established:
                self._watch.start()
        while self.established and self._offer_again:
            self._offer_again = False
            await self._offer_slots()
        self._worker = None

    async def _register(self) -> bool:
        """False: rejected."""
        registration = RetryingRegistration(self._registration)
        attempt = registration.first()
        while True:
            await asyncio.sleep(attempt.delay_s)
            answer = await self._attempt(registration, attempt)
            if isinstance(answer, RegistrationResult):
                if answer.outcome == "success":
                    return True
                for slot in self._slots.of_job(self.job):
                    self._on_slot_refused(slot, f"The JobManager rejected the registration: {answer.reason}")
                return False
            attempt = answer

    async def _attempt(
        self, registration: RetryingRegistration, attempt: Attempt
    ) -> RegistrationResult | Attempt:
        try:
            answer: RegistrationResult = await self.gateway.rpc.ask(
                JOBMANAGER, self.gateway.address, JOBMASTER, self._message, timeout_s=attempt.timeout_s
            )
        except AskTimeout:
            return registration.on_timeout()
        except (RecipientUnreachable, RemoteFailure):
            return registration.on_error()
        return registration.on_refused() if answer.outcome == "failure" else answer

    async def _offer_slots(self) -> None:
        """An offer that was not answered in time is made again; after another failure the slots are freed."""
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
        refused = [slot for slot in offered if slot.allocation not in answer.accepted]
        for slot in refused:
            self._refuse([slot], f"The slot {slot.allocation} was rejected by the JobManager.")

    def _refuse(self, slots: list[Slot], cause: str) -> None:
        for slot in slots:
            current = self._slots.get(slot.allocation)
            if current is not None and not current.active:
                self._on_slot_refused(current, cause)

    def stop_watching(self) -> None:
        """The job is given up here."""
        self.established = False
        self._watch.stop()

    async def close(self) -> None:
        self.stop_watching()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])
            self._worker = None
