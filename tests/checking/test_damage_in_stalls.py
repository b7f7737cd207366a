"""A stall and a lost TaskManager: both are written in two rows, and one without the other is found. A stall may also be between two times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from testbed_runtime.history.contradictions.checkpoints import check_checkpoints
from testbed_runtime.history.contradictions.executions import check_executions
from testbed_runtime.history.contradictions.pairs import check_pairs
from testbed_runtime.history.contradictions.waits import check_awaited, check_waits
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.schema import Trial
from tests.checking.written import (
    JM,
    NS,
    Row,
    Written,
    checked,
    edited,
    event,
    job,
    state,
    texts,
    wait,
    wrote,
)

TM = "tm-0-1"
CAUSE = {"cause_class": "E", "detector": "JobMaster", "wait": "heartbeat"}
FAILED = {"task": "", "ended": 0, "restarted": True, "taskmanager": "tm-1-1", **CAUSE}
HEALTHY: list[Written] = [
    state("a-0", "SCHEDULED", "DEPLOYING"),  # 0
    event("loop.stall", JM, 3, seconds=2.0),
    wait("stalled", JM, t=3),
    wait("restart-delay", t=9),
    event("taskmanager.lost", "tm-1-1", 4, **CAUSE),
    event("failover.failure", "1", 4, **FAILED),  # 5
    event("trial.phase", "baseline", process="runner"),
]


def found(changes: dict[int, Any]) -> list[str]:
    return texts(check_pairs(checked(edited(HEALTHY, changes), {}, one_clock=True)))


def lacks(table: str, what: str) -> list[str]:
    return [f"{table}.parquet, column kind: has no {what}"]


NO_STALL = lacks("events", f"loop.stall of {JM}, which has a wait of that kind (waits)")
NO_WAIT = lacks("waits", f"stall of {JM} (loop.stall in events, row 1)")
NOT_LOST = lacks("events", "taskmanager.lost of tm-1-1, which a failover.failure names (row {})")
LAST: dict[int, Any] = {2: None, 3: None, 4: None, 5: None}
"""The stall is the last that the JobManager wrote."""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({1: None}, NO_STALL),
        ({1: {"process": TM}}, NO_STALL),
        ({2: None}, NO_WAIT),
        ({2: {"kind": "heartbeat"}}, NO_WAIT),
        ({2: {"t": 9}}, []),
        ({2: [wait("slot", t=3), HEALTHY[2]]}, NO_STALL),
        (LAST | {3: wait("restart-delay", process=TM)[1]}, []),
    ],
)
def test_a_stall_has_an_event_and_a_wait(changes: dict[int, Row | None], expected: list[str]):
    """The process writes the event first, and a killed one may lose the wait. It may stall again between the two."""
    assert found(changes)[:1] == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({4: None}, [NOT_LOST[0].format(2)]),
        ({4: {"subject": "tm-2-1"}}, [NOT_LOST[0].format(3)]),
        ({4: None, 5: event("failover.failure", **FAILED | {"detector": "ResourceManager", "wait": ""})[1]}, [NOT_LOST[0].format(2)]),
        ({4: None, 5: event("failover.failure", **FAILED | {"wait": "connection"})[1]}, []),
        ({4: None, 5: event("failover.failure", **FAILED | {"wait": "deployment"})[1]}, []),
        ({4: None, 5: event("failover.failure", **FAILED | {"detector": "Task"})[1]}, []),
        ({4: None, 5: event("failover.failure", **FAILED | {"taskmanager": ""})[1]}, []),
    ],
)  # fmt: skip
def test_a_taskmanager_that_a_detector_gave_up_is_lost(changes: dict[int, Row | None], expected: list[str]):
    """An ask that timed out, or a task that lost its connection, names a TaskManager that may still be there."""
    assert found(changes) == expected


LOST: list[Written] = [
    HEALTHY[0],
    job("FINISHED"),
    wait("heartbeat", what="tm-1-1", t=1, outcome="expired"),
    event("taskmanager.lost", "tm-1-1", 4, **CAUSE),
]
RESTARTED: list[Written] = [
    *LOST[:2],
    event("failover.started", "1"),
    wait("cancellation", attempt=1, t=1),
    event("failover.cancelled", "1", 4),
]


def checkpoint(*times: float, lasted: float = 1, waited: tuple[float, float] = (1, 2)) -> list[Written]:
    """A checkpoint that was triggered and failed at these times."""
    row = {"process": JM, "checkpoint": 1, "task": ""}
    begun, ended = ({"state": s, "t": t} for s, t in zip(("triggered", "failed"), times, strict=True))
    span = wait("checkpoint", what="checkpoint 1", start=waited[0], t=waited[1], outcome="expired")
    return [
        ("checkpoints", row | begun),
        ("checkpoints", row | ended | {"duration_ns": round(lasted * NS)}),
        span,
    ]


@pytest.mark.parametrize(
    ("check", "rows", "problem"),
    [
        (lambda t: check_waits(checked(t, {})), [event("note", t=1), wait("slot", t=5), event("note", t=2)], "wrote next"),
        (lambda t: check_waits(checked(t, {})), [event("note", t=4), wait("slot", t=1)], "wrote before it"),
        (lambda t: check_awaited(checked(t, {})), LOST, "has no heartbeat that ended"),
        (lambda t: check_executions(checked(t, {})), LOST, "did not lose tm-1-1 then"),
        (lambda t: check_pairs(checked(t, {}, one_clock=True)), LOST, "is not the end of a heartbeat"),
        (lambda t: check_pairs(checked(t, {}, one_clock=True)), RESTARTED, "has no cancellation that restart 1 ended"),
        (lambda t: check_checkpoints(checked(t, {})), checkpoint(1, 2, lasted=4), "passed since checkpoint 1 was triggered"),
        (lambda t: check_checkpoints(checked(t, {})), checkpoint(4, 5, waited=(1, 5)), "at which it was triggered"),
        (lambda t: check_checkpoints(checked(t, {})), checkpoint(1, 2, waited=(1, 5)), "at which it was failed"),
    ],
)  # fmt: skip
def test_a_process_may_stall_between_two_times_of_one_moment(
    check: Callable[[Trial], list[Damage]], rows: list[Written], problem: str
):
    """They differ by 3 s here. A stall of 2 s of the same process explains that. A shorter one, one at another time or that of another
    process does not."""

    def is_damaged(*more: Written) -> bool:
        return any(problem in text for text in texts(check(wrote(*rows, *more))))

    assert is_damaged()
    assert is_damaged(wait("stalled", TM, start=2, t=4, process=TM))
    assert is_damaged(wait("stalled", JM, start=2, t=3.999))
    assert is_damaged(wait("stalled", JM, start=3600, t=3602))
    assert not is_damaged(wait("stalled", JM, start=2, t=4))
    assert not is_damaged(wait("stalled", JM, start=2, t=4), wait("stalled", JM, start=9, t=9.5))
