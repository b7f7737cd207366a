"""The slots of a TaskExecutor: free, allocated for a job (offered to its JobMaster), active. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError


class Slot(Struct, frozen=True):
    """An allocation. It is freed at `deadline` (the loop's time) unless it is active by then. An active one has no deadline."""

    index: int
    allocation: str
    job: str
    deadline: float
    active: bool = False
    releasing: bool = False
    """The slot is freed when its last task has ended."""
    accepted_at: float | None = None
    """When the JobMaster accepted the slot, in seconds of the JobMaster's clock; None before its answer."""

    @property
    def waits(self) -> bool:
        """Whether the slot is freed at its deadline."""
        return not (self.active or self.releasing)


class TaskSlotTable:
    """Allocations by id. Nothing here waits or calls: the caller arms a timer for `next_deadline`."""

    def __init__(self, slots: int, timeout_s: float, *, names_holder: bool = True) -> None:
        """`names_holder`: the refusal of an allocation that has another slot names that slot."""
        self.size = slots
        self._timeout_s = timeout_s
        self._names_holder = names_holder
        self._slots: dict[str, Slot] = {}

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self.size - len(self._slots)

    def allocate(self, index: int, allocation: str, job: str, now: float) -> Slot:
        """Allocate a slot. The same request again changes nothing. Raises FlinkError SlotOccupiedException when the slot is taken, or
        is about to be free, and SlotAllocationException when the allocation has another slot."""
        if not 0 <= index < self.size:
            raise FlinkError(
                "SlotAllocationException", f"Could not allocate slot {index}: there are {self.size}."
            )
        taken = next((slot for slot in self._slots.values() if slot.index == index), None)
        if taken is not None:
            if self.is_allocated(index, job, allocation):
                return taken
            text = f"The slot {index} has already been allocated for a different job."
            raise FlinkError("SlotOccupiedException", text)
        held = self._slots.get(allocation)
        if held is not None:
            text = "Could not allocate slot."
            if self._names_holder:
                text = f"A slot with allocationId {allocation} is already assigned to job {held.job} with subtask index {held.index}."
            raise FlinkError("SlotAllocationException", text)
        slot = Slot(index, allocation, job, now + self._timeout_s)
        self._slots[allocation] = slot
        return slot

    def get(self, allocation: str) -> Slot | None:
        return self._slots.get(allocation)

    def mark_active(self, allocation: str, job: str, accepted_at: float | None = None) -> bool:
        """Activate a slot. Return False when the job has no such allocation, or it is about to be free."""
        slot = self._slots.get(allocation)
        if slot is None or slot.job != job or slot.releasing:
            return False
        self._slots[allocation] = replace(slot, active=True, accepted_at=accepted_at or slot.accepted_at)
        return True

    def mark_releasing(self, allocation: str) -> None:
        """Mark a slot to be freed when its last task has ended, regardless of its deadline."""
        slot = self._slots.get(allocation)
        if slot is not None:
            self._slots[allocation] = replace(slot, active=False, releasing=True)

    def mark_inactive(self, allocation: str, now: float) -> None:
        """Offer a slot to a JobMaster again. The slot is freed if no JobMaster accepts it in time, counted from now."""
        slot = self._slots.get(allocation)
        if slot is not None and not slot.releasing:
            deadline = now + self._timeout_s
            self._slots[allocation] = replace(slot, deadline=deadline, active=False, accepted_at=None)

    def release(self, allocation: str) -> Slot | None:
        return self._slots.pop(allocation, None)

    def of_job(self, job: str, *, active: bool | None = None) -> list[Slot]:
        """Return the slots of a job, ordered by index: all of them, the active ones, or those that are to be offered."""
        slots = (s for s in self._slots.values() if s.job == job)
        found = [s for s in slots if active is None or (s.active == active and not s.releasing)]
        return sorted(found, key=lambda slot: slot.index)

    def is_allocated(self, index: int, job: str, allocation: str) -> bool:
        """Return whether the job holds this slot, and keeps it."""
        slot = self._slots.get(allocation)
        return slot is not None and (slot.index, slot.job, slot.releasing) == (index, job, False)

    def unused(self, job: str, held: Iterable[tuple[int, str]], asked_at: float) -> list[Slot]:
        """Return the active slots that are not in `held`, unless the JobMaster accepted them after `asked_at` (on its clock)."""
        names = {allocation for _, allocation in held}
        return [
            slot
            for slot in self.of_job(job, active=True)
            if slot.allocation not in names and slot.accepted_at is not None and slot.accepted_at < asked_at
        ]

    def report(self) -> tuple[tuple[int, str], ...]:
        """Return index and allocation of every slot that is not free."""
        return tuple(sorted((slot.index, slot.allocation) for slot in self._slots.values()))

    def next_deadline(self) -> float | None:
        return min((slot.deadline for slot in self._slots.values() if slot.waits), default=None)

    def expired(self, now: float) -> list[Slot]:
        """Return the slots that did not become active in time. They stay until `release`."""
        found = [slot for slot in self._slots.values() if slot.waits and slot.deadline <= now]
        return sorted(found, key=lambda slot: slot.index)
