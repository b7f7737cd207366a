"""A stall and a lost TaskManager: both are written in two rows, and one without the other is found."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.history.contradictions.pairs import check_pairs
from tests.checking.written import JM, Row, Written, edited, event, state, texts, wait

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
    return texts(check_pairs(edited(HEALTHY, changes), {}, one_clock=True))


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
        (LAST | {3: wait("restart-delay", process=TM)[1]}, []),
    ],
)
def test_a_stall_has_an_event_and_a_wait(changes: dict[int, Row | None], expected: list[str]):
    """The process writes the event first, and a killed one may lose the wait."""
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
