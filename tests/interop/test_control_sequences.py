"""Heartbeats of a peer, and the slots of a TaskExecutor: random sequences beside Flink's classes."""

from __future__ import annotations

import random

import pytest

from testbed_runtime.core.job.heartbeat import HeartbeatConfig, HeartbeatMonitor
from testbed_runtime.taskmanager.slots import Slot, TaskSlotTable
from tests.interop.sequences import COUNTS, compare, draw

pytestmark = pytest.mark.processes
SLOT_TIMEOUT_MS = 10


def beats_and_failures(chance: random.Random) -> list[str]:
    """A peer whose answers to heartbeats change, with heartbeats of its own."""
    interval = chance.choice([1, 5, 10])
    lines = [
        f"new {interval} {interval * chance.choice([1, 2, 5]) + chance.choice([0, 1, 3])} {chance.choice([-1, 1, 2, 3, 5])}"
    ]
    for _ in range(chance.randint(1, 25)):
        kind = chance.choices(["peer", "beat", "unmonitor", "wait"], [30, 15, 1, 54])[0]
        match kind:
            case "peer":
                lines.append(
                    f"peer {chance.choice(['answers', 'hears', 'unreachable', 'unreachable', 'fails'])}"
                )
            case "wait":
                lines.append(f"wait {chance.choice([1, 3, interval, interval, 2 * interval, 7 * interval])}")
            case _:
                lines.append(kind)
    return lines


class Heartbeats:
    """A monitor, and the timer of its sender. Of two timers of a millisecond, the one that was set first is first."""

    def __init__(self) -> None:
        self._now = self._interval = self._due = 0
        self._monitor = HeartbeatMonitor(HeartbeatConfig(1, 1, -1), 0)
        self._is_watched, self._deadline_is_older = True, False
        self._peer = "answers"
        self._events: list[str] = []

    def step(self, words: list[str]) -> str:
        self._events = []
        match words:
            case "new", *numbers:
                self._interval, timeout, threshold = map(int, numbers)
                self._monitor = HeartbeatMonitor(HeartbeatConfig(self._interval, timeout, threshold), 0)
            case "peer", peer:
                self._peer = peer
            case ["beat"]:
                self._beat()
            case ["unmonitor"]:
                self._is_watched = False
                self._monitor.cancel()
            case _:
                self._pass(self._now + int(words[1]))
        return ", ".join(self._events)

    def _beat(self) -> None:
        if self._is_watched:
            self._monitor.on_heartbeat(self._now)
            self._deadline_is_older = False

    def _pass(self, until: int) -> None:
        while (due := min(self._due, self._deadline)) <= until:
            self._now = due
            if self._deadline == due and (self._due > due or self._deadline_is_older):
                self._events += [f"{due} timeout"] if self._monitor.on_time(due) else []
            else:
                self._send()
        self._now = until

    @property
    def _deadline(self) -> int:
        running = self._monitor.state.name == "RUNNING"
        return int(self._monitor.deadline) if running else 10**9

    def _send(self) -> None:
        if self._is_watched and self._peer in ("answers", "hears"):
            if self._peer == "answers":
                self._beat()
            self._monitor.on_call_success()
        elif self._is_watched and self._peer == "unreachable" and self._monitor.on_unreachable():
            self._events.append(f"{self._now} unreachable")
        self._due, self._deadline_is_older = self._now + self._interval, True

    def state(self) -> str:
        return ""


def requests_and_tasks(chance: random.Random) -> list[str]:
    """Requests of two jobs for three slots, with repetitions, and tasks that outlive their slots."""
    lines = ["new 3"]
    for _ in range(chance.randint(1, 30)):
        name, job = chance.choice("abcd"), chance.choice("jk")
        kind = chance.choice(
            [
                "allocate",
                "allocate",
                "allocate",
                "activate",
                "activate",
                "deactivate",
                "start",
                "end",
                "free",
                "wait",
            ]
        )
        match kind:
            case "allocate":
                lines.append(f"allocate {chance.randrange(3)} {name} {job}")
            case "activate" | "start":
                lines.append(f"{kind} {name} {job}")
            case "wait":
                lines.append(f"wait {chance.choice([1, 5, 9, 10])}")
            case _:
                lines.append(f"{kind} {name}")
    return lines


class Slots:
    """The table of a TaskExecutor, and how many tasks each of its slots has."""

    def __init__(self) -> None:
        self._table = TaskSlotTable(0, 0)
        self._tasks: dict[str, int] = {}
        self._now_ms = 0

    def step(self, words: list[str]) -> str:
        match words:
            case "new", size:
                self._table = TaskSlotTable(int(size), SLOT_TIMEOUT_MS)
            case "allocate", index, name, job:
                self._table.allocate(int(index), name, job, self._now_ms)
            case "activate", name, job:
                return str(self._table.mark_active(name, job)).lower()
            case "deactivate", name:
                self._table.mark_inactive(name, self._now_ms)
            case "start", name, job:
                return self._start(name, job)
            case "end", name:
                had, slot = self._tasks.pop(name, 0), self._table.get(name)
                return self._free(name) if had and slot is not None and slot.releasing else ""
            case "free", name:
                return self._free(name)
            case _:
                self._now_ms += int(words[1])
                expired = sorted(slot.allocation for slot in self._table.expired(self._now_ms))
                return ", ".join(filter(None, (self._free(name) for name in expired)))
        return ""

    def _start(self, name: str, job: str) -> str:
        slot = self._table.get(name)
        if slot is None:
            return "SlotNotFoundException"
        if not (slot.active and slot.job == job):
            return "SlotNotActiveException"
        self._tasks[name] = self._tasks.get(name, 0) + 1
        return ""

    def _free(self, name: str) -> str:
        if self._tasks.get(name):
            self._table.mark_releasing(name)
            return ""
        return f"freed {name}" if self._table.release(name) is not None else ""

    def state(self) -> str:
        held = sorted(self._table.report(), key=lambda pair: pair[1])
        return " ;" + "".join(f" {name}@{index}={self._state(self._table.get(name))}" for index, name in held)

    def _state(self, slot: Slot | None) -> str:
        assert slot is not None
        return "releasing" if slot.releasing else "active" if slot.active else f"until{int(slot.deadline)}"


@pytest.mark.parametrize("count", COUNTS)
def test_random_heartbeats_give_a_peer_up_when_flinks_manager_does(flink, count):
    """When, and whether it is silent or unreachable."""
    compare(flink, "heartbeats", Heartbeats, draw(21, count, beats_and_failures))


@pytest.mark.parametrize("count", COUNTS)
def test_random_requests_allocate_slots_as_in_flinks_table(flink, count):
    """Allocations, refusals, states and deadlines, and when a slot is free again."""
    compare(flink, "slots", Slots, draw(22, count, requests_and_tasks))
