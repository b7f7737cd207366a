"""Needed slots, placement, and the two books of slots."""

import pytest

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.jobgraph import JobGraph, JobVertex
from testbed_runtime.core.job.slots import (
    SlotPool,
    SlotState,
    SlotTable,
    needed_slots,
    slot_key,
    spreads_slots,
)
from testbed_runtime.core.options import Options

TM = [TaskManagerID(i, 1) for i in range(4)]


def test_needed_slots_are_the_largest_parallelism_of_each_group():
    """src 2, main max(2, 3)."""
    graph = JobGraph(
        "j",
        (
            JobVertex("source", 2, 128, "src"),
            JobVertex("count", 2, 128, "main"),
            JobVertex("sink", 3, 128, "main"),
        ),
        (),
    )
    assert needed_slots(graph) == [("src", 0), ("src", 1), ("main", 0), ("main", 1), ("main", 2)]


@pytest.mark.parametrize(("groups", "slots"), [(("a", "a"), 2), (("a", "b"), 4)])
def test_J_110_J_111_subtasks_with_the_same_number_share_a_slot_within_a_group(groups, slots):
    """LocalInputPreferredSlotSharingStrategyTest: two vertices of parallelism 2 need two slots, or four in groups of their own."""
    producer, consumer = (
        JobVertex(name, 2, 128, group) for name, group in zip(("v1", "v2"), groups, strict=True)
    )
    assert len(needed_slots(JobGraph("j", (producer, consumer), ()))) == slots
    for number in range(2):
        shared = slot_key(producer, number) == slot_key(consumer, number)
        assert shared is (groups[0] == groups[1])


def table(*slots, spread=True):
    made = SlotTable(spread=spread)
    for taskmanager, count in zip(TM, slots, strict=False):
        made.register(taskmanager, count)
    return made


def test_placement_spreads_and_begins_with_the_lowest_ordinal():
    """Three TaskManagers with two slots, four allocations."""
    taken = table(2, 2, 2).take(["a", "b", "c", "d"])
    assert [(s.owner.ordinal, s.index) for s in taken] == [(0, 0), (1, 0), (2, 0), (0, 1)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 4), [0, 1, 1, 1, 1]),
        ((4, 1), [0, 1, 0, 0, 0]),
        ((2, 4), [0, 1, 1, 0, 1, 1]),
        ((1, 2, 3), [0, 1, 2, 2, 1, 2]),
    ],
)
def test_the_share_of_used_slots_decides_where_taskmanagers_have_different_numbers(sizes, expected):
    """DefaultResourceAllocationStrategy.leastUtilization; the lowest ordinal of equal shares."""
    taken = table(*sizes).take([f"a{number}" for number in range(sum(sizes))])
    assert [slot.owner.ordinal for slot in taken] == expected


def test_taskmanagers_are_filled_one_after_the_other_unless_slots_are_spread():
    """Flink's default. A suspended TaskManager is left out, and a slot that is free again is the next one."""
    made = table(2, 2, 2, spread=False)
    made.suspend(TM[1], True)
    taken = made.take(["a", "b", "c"])
    assert [(s.owner.ordinal, s.index) for s in taken] == [(0, 0), (0, 1), (2, 0)]
    made.mark("b", SlotState.FREE)
    assert [(s.owner.ordinal, s.index) for s in made.take(["d", "e"])] == [(0, 1), (2, 1)]


@pytest.mark.parametrize(
    ("mode", "even", "expected"),
    [
        ("", "", True),
        ("", "false", False),
        ("", "true", True),
        ("NONE", "", False),
        ("NONE", "true", True),
        ("NONE", "false", False),
        ("SLOTS", "", True),
        ("slots", "false", True),
    ],
)
def test_the_load_balance_mode_decides_before_the_older_option(mode: str, even: str, expected: bool):
    """TaskManagerLoadBalanceMode.loadFromConfiguration: any mode but NONE counts. Without both, Headgate spreads."""
    values = {"taskmanager.load-balance.mode": mode, "cluster.evenly-spread-out-slots": even}
    assert spreads_slots(Options({key: text for key, text in values.items() if text})) is expected


def test_all_or_nothing():
    """Two slots for three allocations are no slots."""
    made = table(1, 1)
    assert made.take(["a", "b", "c"]) == []
    assert made.free == 2


def test_a_suspended_taskmanager_gets_nothing():
    """It gets slots again once it has answered."""
    made = table(1, 1)
    made.suspend(TM[0], True)
    assert [s.owner for s in made.take(["a"])] == [TM[1]]
    assert made.take(["b"]) == []
    made.suspend(TM[0], False)
    assert [s.owner for s in made.take(["b"])] == [TM[0]]


def test_a_releasing_slot_is_not_free_before_it_was_confirmed():
    """Fencing."""
    made = table(1)
    made.take(["a"])
    made.mark("a", SlotState.RELEASING)
    assert made.free == 0
    assert made.releasing(TM[0]) == ["a"]
    made.mark("a", SlotState.FREE)
    assert made.free == 1
    assert made.slot("a") is None


def test_a_removed_taskmanager_takes_its_allocations_along():
    """And comes back with free slots."""
    made = table(2)
    made.take(["a"])
    assert made.remove(TM[0]) == ["a"]
    assert made.slot("a") is None
    made.register(TM[0], 2)
    assert made.free == 2


def test_the_pool_accepts_what_it_waits_for_and_nothing_else():
    """Repeated offers are accepted again, unknown ones are not."""
    pool = SlotPool()
    pool.expect("a", ("g", 0))
    assert pool.missing([("g", 0), ("g", 1)]) == [("g", 1)]
    assert pool.offer(TM[0], "a")
    assert pool.offer(TM[0], "a")
    assert not pool.offer(TM[1], "a")
    assert not pool.offer(TM[0], "b")
    assert pool.has([("g", 0)])


def test_a_lost_taskmanager_leaves_its_keys_missing():
    """They are asked for again."""
    pool = SlotPool()
    for allocation, key, owner in (("a", ("g", 0), TM[0]), ("b", ("g", 1), TM[1])):
        pool.expect(allocation, key)
        pool.offer(owner, allocation)
    assert [held.allocation for held in pool.lose(TM[0])] == ["a"]
    assert pool.missing([("g", 0), ("g", 1)]) == [("g", 0)]


def test_what_was_waited_for_can_be_given_up():
    """A refused request, and the end of scheduling."""
    pool = SlotPool()
    pool.expect("a", ("g", 0))
    assert pool.unexpect("a")
    assert not pool.unexpect("a")
    pool.expect("b", ("g", 0))
    pool.expect("c", ("g", 1))
    assert pool.drop_expectations([("g", 1)]) == ["b"]
    assert [pool.offer(TM[0], name) for name in "bc"] == [False, True]


def test_J_32_a_report_frees_allocated_slots_but_no_pending_ones():
    """Nor one that was allocated after the report was asked for, and none of another TaskManager."""
    table = SlotTable()
    table.register(TaskManagerID(0, 1), 4)
    for allocation in ("kept", "freed", "pending", "new"):
        table.take([allocation])
    for allocation, now in (("kept", 1.0), ("freed", 1.0), ("new", 5.0)):
        table.mark(allocation, SlotState.ALLOCATED, now)
    assert table.missing(TaskManagerID(0, 1), [(0, "kept")], 5.0) == ["freed"]
    assert table.missing(TaskManagerID(1, 1), [], 5.0) == []


def test_slots_that_the_job_holds_are_not_free_when_their_taskmanager_registers_again():
    """Its slot report has them. Those that the job has lost are free."""
    table = SlotTable()
    table.register(TaskManagerID(0, 1), 2, [(1, "held")])
    assert (table.free, [slot.index for slot in table.take(["other"])]) == (1, [0])
    assert table.remove(TaskManagerID(0, 1)) == ["other", "held"]
