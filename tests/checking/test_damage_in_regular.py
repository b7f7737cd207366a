"""Rows that a process writes regularly, or always together: the absence of each is found, and what may be absent is not."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.history.contradictions.regular import CHANNELS, MEMORY, check_regular
from tests.checking.written import JM, Row, Written, edited, event, sample, state, texts, wait

TM = "tm-0-1"
FAILED = {"taskmanager": "tm-1-1", "detector": "JobMaster", "wait": "heartbeat"}
HEALTHY: list[Written] = [
    state("a-0", "SCHEDULED", "DEPLOYING"),  # 0
    event("loop.stall", JM, 3, seconds=2.0),
    wait("stalled", JM, t=3),
    wait("restart-delay", t=9),
    event("taskmanager.lost", "tm-1-1", 4),
    event("failover.failure", "1", 4, **FAILED),  # 5
    sample("a-0", 1),
    sample("a-0", 6),
    event(MEMORY[0], TM, 2, process=TM),
    event(MEMORY[1], TM, 2, process=TM),
    ("channels", {"side": "consumer", "task": "b-0", "peer": "a-0"}),  # 10
    ("channels", {"side": "producer", "task": "a-0", "peer": "b-0"}),
]
MANY: list[Written] = [("channels", {"side": "producer", "task": "a-0", "peer": "b-0"})] * CHANNELS


def found(changes: dict[int, Any]) -> list[str]:
    return texts(check_regular(edited(HEALTHY, changes)))


def lacks(table: str, what: str) -> list[str]:
    return [f"{table}.parquet, column kind: lacks {what}"]


NO_STALL = lacks("events", f"the loop.stall of {JM}, which has a wait of that kind (waits)")
NO_WAIT = lacks("waits", f"the stall of {JM} (loop.stall in events, row 1)")
NOT_LOST = lacks("events", "the taskmanager.lost of tm-1-1, which a failover.failure names (row {})")
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
        ({4: None, 5: event("failover.failure", **FAILED | {"wait": "connection"})[1]}, [NOT_LOST[0].format(2)]),
        ({4: None, 5: event("failover.failure", **FAILED | {"wait": "deployment"})[1]}, []),
        ({4: None, 5: event("failover.failure", **FAILED | {"detector": "Task"})[1]}, []),
        ({4: None, 5: event("failover.failure", **FAILED | {"taskmanager": ""})[1]}, []),
    ],
)  # fmt: skip
def test_a_taskmanager_that_a_detector_gave_up_is_lost(changes: dict[int, Row | None], expected: list[str]):
    """An ask that timed out, or a task that lost its connection, names a TaskManager that may still be there."""
    assert found(changes) == expected


@pytest.mark.parametrize("kind", MEMORY)
@pytest.mark.parametrize(("last_s", "missed"), [(6.0, True), (5.9, False)])
def test_a_taskmanager_with_tasks_records_its_network_memory(kind: str, last_s: float, missed: bool):
    """In the first seconds. One whose tasks were sampled for less than five seconds may not have come to it."""
    changes: dict[int, Any] = {7: sample("a-0", last_s)[1], 8 + MEMORY.index(kind): None}
    expected = lacks("events", f"every {kind} of {TM}, which has samples in tasks")
    assert found(changes) == (expected if missed else [])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({10: None, 11: MANY}, [f"channels.parquet, column side: is never consumer, but {CHANNELS} rows are of a producer"]),
        ({10: None, 11: MANY[1:]}, []),
        ({10: None, 11: [(table, row | {"local": True}) for table, row in MANY]}, []),
        ({10: MANY, 11: None}, [f"channels.parquet, column side: is never consumer, but {CHANNELS} rows are of a producer"]),
    ],
)  # fmt: skip
def test_both_ends_of_remote_channels_are_sampled(changes: dict[int, Any], expected: list[str]):
    """A local channel has one end. A few samples may be of the moment in which the other end is not there yet."""
    assert found(changes) == expected


@pytest.mark.parametrize("changes", [{0: None, 1: None}, {1: None, 2: None, 3: None, 4: None}])
def test_a_history_without_deployments_or_waits_is_not_compared(changes: dict[int, Any]):
    """It has no JobManager's rows."""
    assert found(changes) == []
