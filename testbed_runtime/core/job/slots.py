"""Slots: which ones a job needs (sharing groups), where they are allocated (spread or filled, lowest ordinal first), and their owners."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.jobgraph import JobGraph, JobVertex
from testbed_runtime.core.options import Options

SlotKey = tuple[str, int]
"""(slot sharing group, index): hosts subtask `index` of every vertex of the group."""


def slot_key(vertex: JobVertex, subtask: int) -> SlotKey:
    return (vertex.slot_sharing_group, subtask)


def needed_slots(graph: JobGraph) -> list[SlotKey]:
    """Return the slots that a job needs, in the order of the first vertices."""
    sizes = slots_of_groups((vertex.slot_sharing_group, vertex.parallelism) for vertex in graph.vertices)
    return [(group, index) for group, count in sizes.items() for index in range(count)]


def slots_of_groups(vertices: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Map each slot sharing group to the slots that it needs: its largest parallelism. Takes the group and the parallelism of each vertex."""
    largest: dict[str, int] = {}
    for group, parallelism in vertices:
        largest[group] = max(largest.get(group, 0), parallelism)
    return largest


def spreads_slots(options: Options) -> bool:
    """Return whether slots are spread over the TaskManagers (Flink's TaskManagerLoadBalanceMode.loadFromConfiguration, with
    another default)."""
    mode, spread = "taskmanager.load-balance.mode", "cluster.evenly-spread-out-slots"
    if options.string(mode) == "SLOTS":
        return True
    return options.boolean(spread) and (options.is_set(spread) or not options.is_set(mode))


class SlotState(Enum):
    FREE = "free"
    PENDING = "pending"
    """Requested from the TaskExecutor, not answered yet."""
    ALLOCATED = "allocated"
    RELEASING = "releasing"
    """Released by the job; the TaskExecutor has not confirmed it yet."""


@dataclass(slots=True)
class Slot:
    owner: TaskManagerID
    index: int
    state: SlotState = SlotState.FREE
    allocation: str = ""
    allocated_at: float = 0.0
    """When its TaskManager confirmed the allocation. A report that was requested earlier may not contain it."""


@dataclass(slots=True)
class _TaskManager:
    slots: list[Slot]
    suspended: bool = False

    @property
    def free(self) -> int:
        return sum(slot.state is SlotState.FREE for slot in self.slots)

    @property
    def utilization(self) -> float:
        return 1 - self.free / len(self.slots)


class SlotTable:
    """The slots of all registered TaskManagers, as the ResourceManager knows them. `spread`: a slot is allocated on the TaskManager
    with the smallest share of used ones; otherwise, one TaskManager is filled after the other."""

    def __init__(self, *, spread: bool = True) -> None:
        self._spread = spread
        self._taskmanagers: dict[TaskManagerID, _TaskManager] = {}
        self._by_allocation: dict[str, Slot] = {}

    def register(self, taskmanager: TaskManagerID, slots: int, held: Iterable[tuple[int, str]] = ()) -> None:
        """Add a TaskManager. All its slots are free, even if it was registered before, except those `held` by the job."""
        self.remove(taskmanager)
        self._taskmanagers[taskmanager] = known = _TaskManager([Slot(taskmanager, i) for i in range(slots)])
        for index, allocation in held:
            slot = self._by_allocation[allocation] = known.slots[index]
            slot.state, slot.allocation = SlotState.ALLOCATED, allocation

    def remove(self, taskmanager: TaskManagerID) -> list[str]:
        """Remove a TaskManager. Return the allocations that were there."""
        gone = self._taskmanagers.pop(taskmanager, None)
        lost = [slot.allocation for slot in gone.slots if slot.allocation] if gone else []
        for allocation in lost:
            self._by_allocation.pop(allocation, None)
        return lost

    def suspend(self, taskmanager: TaskManagerID, suspended: bool) -> None:
        """Give a TaskManager no new allocation until it is known to be alive."""
        if taskmanager in self._taskmanagers:
            self._taskmanagers[taskmanager].suspended = suspended

    @property
    def free(self) -> int:
        """Number of slots that can be allocated now."""
        return sum(known.free for known in self._taskmanagers.values() if not known.suspended)

    @property
    def expected(self) -> int:
        """Number of slots that are free, or will be when their TaskManagers answer."""
        soon = (SlotState.FREE, SlotState.RELEASING)
        return sum(slot.state in soon for known in self._taskmanagers.values() for slot in known.slots)

    def take(self, allocations: Sequence[str]) -> list[Slot]:
        """Allocate a slot for each allocation, all or none ([]): each on the TaskManager with the smallest share of used ones (if
        slots are spread), then the lowest ordinal, then the lowest index."""
        if self.free < len(allocations):
            return []
        taken = []
        for allocation in allocations:
            slot = self._best()
            slot.state, slot.allocation = SlotState.PENDING, allocation
            self._by_allocation[allocation] = slot
            taken.append(slot)
        return taken

    def _best(self) -> Slot:
        _, owner = min(
            (known.utilization if self._spread else 0.0, owner)
            for owner, known in self._taskmanagers.items()
            if not known.suspended and known.free
        )
        return next(slot for slot in self._taskmanagers[owner].slots if slot.state is SlotState.FREE)

    def slot(self, allocation: str) -> Slot | None:
        return self._by_allocation.get(allocation)

    def missing(
        self, taskmanager: TaskManagerID, reported: Iterable[tuple[int, str]], asked_at: float
    ) -> list[str]:
        """Return the allocations that are missing in a TaskManager's report, which was requested at the given
        time."""
        known, held = self._taskmanagers.get(taskmanager), {allocation for _, allocation in reported}
        return [
            slot.allocation
            for slot in (known.slots if known is not None else ())
            if slot.state is SlotState.ALLOCATED
            and slot.allocation not in held
            and slot.allocated_at < asked_at
        ]

    def mark(self, allocation: str, state: SlotState, now: float = 0.0) -> None:
        """Set the state of a slot. Does nothing for an unknown allocation. FREE removes the allocation."""
        slot = self._by_allocation.get(allocation)
        if slot is None:
            return
        slot.state, slot.allocated_at = state, now
        if state is SlotState.FREE:
            slot.allocation = ""
            del self._by_allocation[allocation]

    def releasing(self, taskmanager: TaskManagerID) -> list[str]:
        known = self._taskmanagers.get(taskmanager)
        if known is None:
            return []
        return [slot.allocation for slot in known.slots if slot.state is SlotState.RELEASING]

    @property
    def taskmanagers(self) -> list[TaskManagerID]:
        return sorted(self._taskmanagers)


class HeldSlot(Struct, frozen=True):
    """A slot that the JobMaster holds for a key."""

    key: SlotKey
    allocation: str
    owner: TaskManagerID
    index: int = 0
    """The slot's index at its TaskManager."""


class SlotPool:
    """The JobMaster's slots by key: requested ones and held ones."""

    def __init__(self) -> None:
        self._expected: dict[str, SlotKey] = {}
        self._held: dict[SlotKey, HeldSlot] = {}

    def missing(self, keys: Iterable[SlotKey]) -> list[SlotKey]:
        """Return the keys that are neither held nor requested."""
        asked = frozenset(self._expected.values())
        return [key for key in dict.fromkeys(keys) if key not in self._held and key not in asked]

    def has(self, keys: Iterable[SlotKey]) -> bool:
        return all(key in self._held for key in keys)

    def expect(self, allocation: str, key: SlotKey) -> None:
        self._expected[allocation] = key

    def drop_expectations(self, awaited: Collection[SlotKey]) -> list[str]:
        """Forget the requested slots, except for those that are still `awaited`. Return their allocations."""
        dropped = [allocation for allocation, key in self._expected.items() if key not in awaited]
        for allocation in dropped:
            del self._expected[allocation]
        return dropped

    def offer(self, owner: TaskManagerID, allocation: str, index: int = 0) -> bool:
        """Return whether the offer is accepted. A slot that is held already is accepted again (a repeated call)."""
        key = self._expected.pop(allocation, None)
        if key is not None:
            self._held[key] = HeldSlot(key, allocation, owner, index)
            return True
        return self.holds_at(owner, allocation)

    def holds_at(self, owner: TaskManagerID, allocation: str) -> bool:
        return any((held.owner, held.allocation) == (owner, allocation) for held in self._held.values())

    def report(self, owner: TaskManagerID) -> tuple[tuple[int, str], ...]:
        """Return index and allocation of the slots of a TaskManager (AllocatedSlotReport)."""
        return tuple(sorted((s.index, s.allocation) for s in self._held.values() if s.owner == owner))

    def held(self, key: SlotKey) -> HeldSlot:
        return self._held[key]

    @property
    def all_held(self) -> list[HeldSlot]:
        return list(self._held.values())

    def lose(self, owner: TaskManagerID) -> list[HeldSlot]:
        """Remove the slots of a lost TaskManager."""
        lost = [held for held in self._held.values() if held.owner == owner]
        for held in lost:
            del self._held[held.key]
        return lost

    def unexpect(self, allocation: str) -> bool:
        """Forget a requested allocation. Return False when it was not requested."""
        return self._expected.pop(allocation, None) is not None

    def forget(self, allocation: str) -> None:
        """Forget an allocation that the job no longer holds."""
        self._expected.pop(allocation, None)
        for held in list(self._held.values()):
            if held.allocation == allocation:
                del self._held[held.key]
