"""The books of slots, failover regions and expected attempts against plain models, on random operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.deployments import Comparison, Deployments, Missing
from testbed_runtime.core.job.failover import Link, Regions, Task
from testbed_runtime.core.job.slots import HeldSlot, SlotPool, SlotState, SlotTable

OWNERS = tuple(TaskManagerID(ordinal, incarnation) for ordinal, incarnation in ((0, 1), (1, 1), (1, 2)))
NAMES = tuple("abcdef")
owners, names = st.sampled_from(OWNERS), st.sampled_from(NAMES)


class TableModel:
    """The slots as one list of rows: owner, index, state, allocation, time of the allocation."""

    def __init__(self, spread: bool) -> None:
        self.spread = spread
        self.rows: list[list] = []
        self.suspended: set[TaskManagerID] = set()

    def of(self, owner: TaskManagerID, *states: SlotState) -> list[str]:
        return [row[3] for row in self.rows if row[0] == owner and row[2] in states]

    def free(self) -> list[list]:
        return [row for row in self.rows if row[2] is SlotState.FREE and row[0] not in self.suspended]

    def register(self, owner: TaskManagerID, count: int, held: Sequence[tuple[int, str]]) -> None:
        self.remove(owner)
        by_index = dict(held)
        for i in range(count):
            state = SlotState.ALLOCATED if i in by_index else SlotState.FREE
            self.rows.append([owner, i, state, by_index.get(i, ""), 0.0])

    def remove(self, owner: TaskManagerID) -> list[str]:
        lost = [row[3] for row in self.rows if row[0] == owner and row[3]]
        self.rows = [row for row in self.rows if row[0] != owner]
        self.suspended.discard(owner)
        return lost

    def take(self, allocations: Sequence[str]) -> list[tuple[TaskManagerID, int, str]]:
        if len(self.free()) < len(allocations):
            return []
        taken = []
        for allocation in allocations:

            def rank(row: list) -> tuple[int, TaskManagerID, int]:
                used = sum(r[0] == row[0] and r[2] is not SlotState.FREE for r in self.rows)
                return (used if self.spread else 0, row[0], row[1])

            best = min(self.free(), key=rank)
            best[2:4] = SlotState.PENDING, allocation
            taken.append((best[0], best[1], allocation))
        return taken

    def mark(self, allocation: str, state: SlotState, now: float) -> None:
        for row in self.rows:
            if row[3] == allocation:
                row[2:] = state, "" if state is SlotState.FREE else allocation, now


@given(st.booleans(), st.data())
def test_a_table_of_slots_does_what_a_list_of_rows_does(spread: bool, data: st.DataObject) -> None:
    """Registrations with held slots, losses, suspensions, allocations of all or none, answers in any order. After each of them, every
    question has the model's answer."""
    table, model, number = SlotTable(spread=spread), TableModel(spread), 0
    for kind in data.draw(st.lists(st.sampled_from("rrsstttmmmmx"), max_size=25)):
        owner = data.draw(owners)
        known = [row[3] for row in model.rows if row[3]]
        match kind:
            case "r":
                count = data.draw(st.integers(1, 3))
                held = [(i, f"held-{number + i}") for i in data.draw(st.sets(st.integers(0, count - 1)))]
                number += count
                table.register(owner, count, held)
                model.register(owner, count, held)
            case "s":
                suspended = data.draw(st.booleans())
                table.suspend(owner, suspended)
                if any(row[0] == owner for row in model.rows):
                    (model.suspended.add if suspended else model.suspended.discard)(owner)
            case "t":
                wanted = [f"new-{number + i}" for i in range(data.draw(st.integers(1, 3)))]
                number += len(wanted)
                assert [(s.owner, s.index, s.allocation) for s in table.take(wanted)] == model.take(wanted)
            case "m":
                allocation = data.draw(st.sampled_from([*known, "unknown"]))
                state, now = data.draw(st.sampled_from(SlotState)), float(data.draw(st.integers(0, 3)))
                if state is not SlotState.PENDING:
                    table.mark(allocation, state, now)
                    model.mark(allocation, state, now)
            case _:
                assert table.remove(owner) == model.remove(owner)
        soon = (SlotState.FREE, SlotState.RELEASING)
        assert table.free == len(model.free())
        assert table.expected == sum(row[2] in soon for row in model.rows)
        assert table.taskmanagers == sorted({row[0] for row in model.rows})
        for one in OWNERS:
            assert table.releasing(one) == model.of(one, SlotState.RELEASING)
            reported = [(0, name) for name in known[::2]]
            asked = 2.0
            expected = [
                row[3]
                for row in model.rows
                if row[0] == one and row[2] is SlotState.ALLOCATED and row[4] < asked
            ]
            assert table.missing(one, reported, asked) == [a for a in expected if (0, a) not in reported]
        for row in model.rows:
            slot = table.slot(row[3]) if row[3] else None
            assert not row[3] or (slot and (slot.owner, slot.index, slot.state, slot.allocated_at)) == (
                row[0],
                row[1],
                row[2],
                row[4],
            )


KEYS = tuple(("group", i) for i in range(4))
keys = st.sampled_from(KEYS)


@given(st.data())
def test_a_pool_of_slots_does_what_two_lists_do(data: st.DataObject) -> None:
    """One list of requested allocations with their keys, and one of held slots."""
    pool = SlotPool()
    expected: list[tuple[str, tuple[str, int]]] = []
    held: list[HeldSlot] = []
    for kind in data.draw(st.lists(st.sampled_from("eeeooooludf"), max_size=25)):
        name, owner, key = data.draw(names), data.draw(owners), data.draw(keys)
        asked = next((k for a, k in expected if a == name), None)
        match kind:
            case "e":
                if asked is None and name not in [slot.allocation for slot in held]:
                    expected.append((name, key))
                    pool.expect(name, key)
            case "o":
                index = data.draw(st.integers(0, 2))
                again = any((slot.owner, slot.allocation) == (owner, name) for slot in held)
                assert pool.offer(owner, name, index) is (asked is not None or again)
                if asked is not None:
                    new = HeldSlot(asked, name, owner, index)
                    places = [i for i, slot in enumerate(held) if slot.key == asked]
                    for i in places:
                        held[i] = new
                    held += [] if places else [new]
                    expected = [pair for pair in expected if pair[0] != name]
            case "l":
                assert pool.lose(owner) == [slot for slot in held if slot.owner == owner]
                held = [slot for slot in held if slot.owner != owner]
            case "u":
                assert pool.unexpect(name) is (asked is not None)
                expected = [pair for pair in expected if pair[0] != name]
            case "d":
                awaited = data.draw(st.sets(keys))
                assert pool.drop_expectations(awaited) == [a for a, k in expected if k not in awaited]
                expected = [pair for pair in expected if pair[1] in awaited]
            case _:
                pool.forget(name)
                expected = [pair for pair in expected if pair[0] != name]
                held = [slot for slot in held if slot.allocation != name]
        there, waiting = {slot.key for slot in held}, {k for _, k in expected}
        assert pool.all_held == held
        assert pool.missing((*KEYS, *KEYS)) == [k for k in KEYS if k not in there | waiting]
        assert [pool.has([a, b]) for a, b in product(KEYS, KEYS)] == [
            {a, b} <= there for a, b in product(KEYS, KEYS)
        ]
        assert all(pool.held(slot.key) == slot for slot in held)
        for one in OWNERS:
            of_one = [slot for slot in held if slot.owner == one]
            assert pool.report(one) == tuple(sorted((slot.index, slot.allocation) for slot in of_one))
            assert [pool.holds_at(one, n) for n in NAMES] == [
                n in [slot.allocation for slot in of_one] for n in NAMES
            ]


TASKS: tuple[Task, ...] = tuple(("v", i) for i in range(7))
tasks = st.sampled_from(TASKS)
links = st.lists(st.builds(Link, tasks, tasks, st.booleans()), max_size=9)


def spread_to(found: set[Task], grows: Callable[[set[Task]], set[Task]]) -> set[Task]:
    """Add tasks until there is none to add."""
    while (more := found | grows(found)) != found:
        found = more
    return found


@given(links, st.lists(tasks, min_size=1, max_size=2), st.sets(st.tuples(tasks, tasks), max_size=12))
def test_what_restarts_is_what_the_rules_reach(
    links: list[Link], failed: list[Task], gone: set[tuple[Task, Task]]
) -> None:
    """The rules are applied again and again to all links: pipelined neighbours restart together, readers of a restarted task restart,
    and so does the producer of a result that is gone. Both answers have the tasks' order."""
    regions = Regions(TASKS, links)

    def connected(found: set[Task]) -> set[Task]:
        joined = [{link.producer, link.consumer} for link in links if link.pipelined]
        return {task for ends in joined if ends & found for task in ends}

    def restarted(found: set[Task]) -> set[Task]:
        readers = {link.consumer for link in links if link.producer in found}
        lost = {
            link.producer
            for link in links
            if link.consumer in found and (link.producer, link.consumer) in gone
        }
        return connected(found) | readers | lost

    for task in TASKS:
        assert regions.region(task) == [t for t in TASKS if t in spread_to({task}, connected)]
    found = regions.to_restart(failed, available=lambda producer, consumer: (producer, consumer) not in gone)
    assert found == [task for task in TASKS if task in spread_to(set(failed), restarted)]


@given(st.data())
def test_expected_attempts_are_what_one_list_of_submissions_says(data: st.DataObject) -> None:
    """Each has the time of its acknowledgement, or none yet. A report names what it misses with the newest time at which it was there:
    the acknowledgement or the newest report since the TaskManager had anything to hold."""
    deployments = Deployments()
    submitted: dict[tuple[TaskManagerID, str], float | None] = {}
    reported: dict[TaskManagerID, float] = {}
    for kind in data.draw(st.lists(st.sampled_from("bbaaecc"), max_size=25)):
        name, owner, now = data.draw(names), data.draw(owners), float(data.draw(st.integers(0, 4)))
        match kind:
            case "b":
                deployments.begin(name, owner)
                submitted[owner, name] = None
            case "a":
                deployments.acknowledge(name, owner, now)
                if (owner, name) in submitted:
                    submitted[owner, name] = now
            case "e":
                deployments.end(name, owner)
                submitted.pop((owner, name), None)
                if not any(one == owner for one, _ in submitted):
                    reported.pop(owner, None)
            case _:
                report = data.draw(st.lists(names, unique=True, max_size=4))
                expected = {n: at for (one, n), at in submitted.items() if one == owner}
                missing = tuple(
                    Missing(n, max(at, reported.get(owner, 0.0)))
                    for n, at in expected.items()
                    if at is not None and at < now and n not in report
                )
                unknown = tuple(n for n in report if n not in expected)
                assert deployments.compare(owner, report, now) == Comparison(missing, unknown)
                if expected:
                    reported[owner] = max(reported.get(owner, 0.0), now)
