"""The slots of a TaskExecutor: free, allocated for a job (offered to its JobMaster), active. Pure."""

from __future__ import annotations

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError


class Slot(Struct, frozen=True):
    """An allocation. `deadline` is the loop's time at which it is freed unless it is active; `active` has none."""

    index: int
    allocation: str
    job: str
    deadline: float
    active: bool = False


class TaskSlotTable:
    """Allocations by id. Nothing here waits or calls: the caller arms a timer for `next_deadline`."""

    def __init__(self, slots: int, timeout_s: float) -> None:
        self.size = slots
        self._timeout_s = timeout_s
        self._slots: dict[str, Slot] = {}

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self.size - len(self._slots)

    def allocate(self, index: int, allocation: str, job: str, now: float) -> Slot:
        """Allocate a slot. The same request again changes nothing. Raises FlinkError SlotOccupiedException when the slot is taken,
        and SlotAllocationException when the allocation has another slot."""
        if not 0 <= index < self.size:
            raise FlinkError(
                "SlotAllocationException", f"Could not allocate slot {index}: there are {self.size}."
            )
        taken = next((slot for slot in self._slots.values() if slot.index == index), None)
        if taken is not None:
            if (taken.allocation, taken.job) == (allocation, job):
                return taken
            text = f"The slot {index} has already been allocated for a different job."
            raise FlinkError("SlotOccupiedException", text)
        held = self._slots.get(allocation)
        if held is not None:
            raise FlinkError(
                "SlotAllocationException",
                f"A slot with allocationId {allocation} is already assigned to job {held.job} with subtask index {held.index}.",
            )
        slot = Slot(index, allocation, job, now + self._timeout_s)
        self._slots[allocation] = slot
        return slot

    def get(self, allocation: str) -> Slot | None:
        return self._slots.get(allocation)

    def mark_active(self, allocation: str, job: str) -> bool:
        """Activate a slot. Return False when the job has no such allocation."""
        slot = self._slots.get(allocation)
        if slot is None or slot.job != job:
            return False
        self._slots[allocation] = Slot(slot.index, allocation, job, slot.deadline, active=True)
        return True

    def mark_inactive(self, allocation: str, now: float) -> None:
        """Offer an active slot to a JobMaster again. It is freed if none accepts it in time. One that is not active keeps its
        deadline."""
        slot = self._slots.get(allocation)
        if slot is not None and slot.active:
            self._slots[allocation] = Slot(slot.index, allocation, slot.job, now + self._timeout_s)

    def release(self, allocation: str) -> Slot | None:
        return self._slots.pop(allocation, None)

    def of_job(self, job: str, *, active: bool | None = None) -> list[Slot]:
        """Return the slots of a job, ordered by index."""
        found = [s for s in self._slots.values() if s.job == job and active in (None, s.active)]
        return sorted(found, key=lambda slot: slot.index)

    def report(self) -> tuple[tuple[int, str], ...]:
        """Return index and allocation of every slot that is not free."""
        return tuple(sorted((slot.index, slot.allocation) for slot in self._slots.values()))

    def next_deadline(self) -> float | None:
        return min((slot.deadline for slot in self._slots.values() if not slot.active), default=None)

    def expired(self, now: float) -> list[Slot]:
        """Return the slots that did not become active in time. They stay until `release`."""
        found = [slot for slot in self._slots.values() if not slot.active and slot.deadline <= now]
        return sorted(found, key=lambda slot: slot.index)
