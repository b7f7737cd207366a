"""Cases of Flink's tests of slots: TaskSlotTableImplTest, DefaultSlotStatusSyncerTest, and those of the JobMaster's slot pool."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.deployments import Deployments
from testbed_runtime.core.job.slots import SlotPool, SlotState, SlotTable
from testbed_runtime.taskmanager.slots import TaskSlotTable

FIRST, SECOND = TaskManagerID(0, 1), TaskManagerID(1, 1)


# ---- at a TaskManager


def test_J_66_a_task_activates_only_a_slot_of_its_job() -> None:
    """testTryMarkSlotActive: 3 slots, two of them for job 1, one of these active."""
    slots = TaskSlotTable(3, 10.0)
    for index, (allocation, job) in enumerate((("a1", "job1"), ("a2", "job1"), ("a3", "job2"))):
        slots.allocate(index, allocation, job, 0.0)
    slots.mark_active("a1", "job1")
    held = [
        slots.is_allocated(i, job, a)
        for i, a, job in ((0, "a1", "job1"), (1, "a2", "job1"), (2, "a3", "job2"))
    ]
    assert held == [True] * 3
    assert [slot.allocation for slot in slots.of_job("job1", active=True)] == ["a1"]
    assert [slots.mark_active(allocation, "job1") for allocation in ("a1", "a2", "a3")] == [True, True, False]
    assert [slot.allocation for slot in slots.of_job("job1", active=True)] == ["a1", "a2"]


def test_J_67_an_allocation_has_one_slot_and_a_slot_one_allocation() -> None:
    """testInconsistentStaticSlotAllocation: what is refused changes nothing."""
    slots = TaskSlotTable(2, 10.0)
    slots.allocate(0, "a1", "job", 0.0)
    for index, allocation in ((1, "a1"), (0, "a2")):
        with pytest.raises(FlinkError, match="already"):
            slots.allocate(index, allocation, "job", 0.0)
    assert slots.is_allocated(0, "job", "a1")
    assert (slots.free, slots.report()) == (1, ((0, "a1"),))


@pytest.mark.parametrize(
    ("names_holder", "text"),
    [
        (True, "A slot with allocationId a1 is already assigned to job job with subtask index 0."),
        (False, "Could not allocate slot."),
    ],
)
def test_J_67_a_refused_allocation_names_the_slot_that_it_has_from_2_1_on(
    names_holder: bool, text: str
) -> None:
    """Before, TaskSlotTableImpl.allocateSlot returned false, and the TaskExecutor wrote the text."""
    slots = TaskSlotTable(2, 10.0, names_holder=names_holder)
    slots.allocate(0, "a1", "job", 0.0)
    with pytest.raises(FlinkError) as refused:
        slots.allocate(1, "a1", "job", 0.0)
    assert (refused.value.class_name, refused.value.message) == ("SlotAllocationException", text)


def test_J_68_a_freed_slot_belongs_to_no_allocation() -> None:
    """testFreeSlot and testGenerateSlotReport: of two slots, the second is freed. A report names the one that is left."""
    slots = TaskSlotTable(2, 10.0)
    slots.allocate(0, "a1", "job", 0.0)
    slots.allocate(1, "a2", "job", 0.0)
    freed = slots.release("a2")
    assert freed is not None
    assert freed.index == 1
    assert [slot.index for slot in slots.of_job("job")] == [0]
    assert not slots.is_allocated(1, "job", "a1")
    assert not slots.is_allocated(1, "job", "a2")
    assert (slots.free, slots.report()) == (1, ((0, "a1"),))


def test_a_slot_that_is_about_to_be_free_is_not_allocated_any_more_and_expires_no_second_time() -> None:
    """TaskSlot.isAllocated: neither ACTIVE nor ALLOCATED. It keeps its place in the report until its last task has ended."""
    slots = TaskSlotTable(1, 10.0)
    slots.allocate(0, "a1", "job", 0.0)
    slots.mark_releasing("a1")
    assert not slots.is_allocated(0, "job", "a1")
    assert not slots.mark_active("a1", "job")
    slots.mark_inactive("a1", 1.0)
    with pytest.raises(FlinkError, match="SlotOccupiedException"):
        slots.allocate(0, "a1", "job", 1.0)
    assert (slots.of_job("job", active=False), slots.next_deadline(), slots.expired(99.0)) == ([], None, [])
    assert (slots.free, slots.report()) == (0, ((0, "a1"),))


# ---- at the ResourceManager


def pending() -> SlotTable:
    """One TaskManager with one slot, which is requested."""
    table = SlotTable()
    table.register(FIRST, 1)
    assert [slot.allocation for slot in table.take(["a1"])] == ["a1"]
    return table


def test_J_69_an_answer_about_a_slot_that_was_freed_meanwhile_changes_nothing() -> None:
    """testAllocationUpdatesIgnoredIfSlotFreed; testFreeSlot: so does an unknown allocation."""
    table = pending()
    table.mark("unknown", SlotState.FREE)
    slot = table.slot("a1")
    assert slot is not None
    assert slot.state is SlotState.PENDING
    table.mark("a1", SlotState.FREE)
    table.mark("a1", SlotState.ALLOCATED, 1.0)
    assert (table.slot("a1"), table.free) == (None, 1)


def test_J_70_an_answer_about_a_slot_of_a_taskmanager_that_is_gone_changes_nothing() -> None:
    """testAllocationUpdatesIgnoredIfSlotRemoved."""
    table = pending()
    assert table.remove(FIRST) == ["a1"]
    table.mark("a1", SlotState.ALLOCATED, 1.0)
    assert (table.slot("a1"), table.free, table.taskmanagers) == (None, 0, [])


# ---- at the JobMaster


def holding(**slots: tuple[TaskManagerID, int]) -> SlotPool:
    """A pool with these slots: allocation → TaskManager and index."""
    pool = SlotPool()
    for number, (allocation, (owner, index)) in enumerate(slots.items()):
        pool.expect(allocation, ("group", number))
        assert pool.offer(owner, allocation, index)
    return pool


def test_J_71_a_repeated_offer_is_accepted_and_brings_no_new_slot() -> None:
    """testDuplicateSlotOfferings."""
    pool = holding(a1=(FIRST, 0))
    before = pool.all_held
    assert pool.offer(FIRST, "a1", 0)
    assert pool.all_held == before


def test_J_72_superfluous_offers_are_rejected() -> None:
    """testOfferingTooManySlotsWillRejectSuperfluousSlots: one is required, three are offered."""
    pool = SlotPool()
    pool.expect("a1", ("group", 0))
    assert [pool.offer(FIRST, name, index) for index, name in enumerate(("a1", "a2", "a3"))] == [
        True,
        False,
        False,
    ]


def test_J_73_a_released_taskmanager_leaves_no_slots() -> None:
    """testReleaseSlotsRemovesSlots: those of the other one stay."""
    pool = holding(a1=(FIRST, 0), a2=(SECOND, 0), a3=(FIRST, 1))
    assert [slot.allocation for slot in pool.lose(FIRST)] == ["a1", "a3"]
    assert [slot.allocation for slot in pool.all_held] == ["a2"]


def test_J_74_a_report_names_the_slots_of_one_taskmanager() -> None:
    """testCreateAllocatedSlotReport; testFailAllocationReleasesSlot and testFailLastAllocationOfTaskManagerReturnsIt: without those
    that have failed."""
    pool = holding(a1=(FIRST, 1), a2=(SECOND, 0), a3=(FIRST, 0))
    assert pool.report(FIRST) == ((0, "a3"), (1, "a1"))
    pool.forget("a1")
    assert (pool.report(FIRST), pool.holds_at(FIRST, "a1")) == (((0, "a3"),), False)
    pool.forget("a3")
    assert (pool.report(FIRST), pool.report(SECOND)) == ((), ((0, "a2"),))


def missing(tracked: Deployments, taskmanager: TaskManagerID, asked_at: float = 9.0) -> list[str]:
    """The attempts that this TaskManager should hold, by a report without any."""
    return [one.attempt for one in tracked.compare(taskmanager, (), asked_at).missing]


def test_J_75_a_deployment_is_tracked_from_its_acknowledgement_to_its_end() -> None:
    """DefaultExecutionDeploymentTrackerTest: pending, deployed, stopped while it is pending or deployed. Other ids do not matter, and
    unknown ones are ignored."""
    tracked = Deployments()
    tracked.acknowledge("unknown", FIRST, 1.0)
    tracked.end("unknown", FIRST)
    for attempt in ("a1", "a2", "a3"):
        tracked.begin(attempt, FIRST)
    assert missing(tracked, FIRST) == []
    tracked.end("a3", FIRST)
    for attempt in ("a1", "a2", "a3"):
        tracked.acknowledge(attempt, FIRST, 1.0)
    assert missing(tracked, FIRST) == ["a1", "a2"]
    tracked.end("another", FIRST)
    tracked.end("a1", FIRST)
    assert (missing(tracked, FIRST), missing(tracked, SECOND)) == (["a2"], [])
