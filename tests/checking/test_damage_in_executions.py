"""The limits of the rules for attempts and restarts: the smallest damage is found, and the largest value that is none is not."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.history.contradictions.executions import check_executions
from tests.checking.written import (
    JM,
    Row,
    Written,
    checked,
    edited,
    event,
    job,
    sample,
    state,
    texts,
    wait,
    wrote,
)

TM = "tm-0-1"
FAILURE = event("failover.failure", "1", 4, restarted=True)
HEALTHY: list[Written] = [
    state("a-0", "SCHEDULED", "DEPLOYING", 1),  # 0
    state("a-0", "DEPLOYING", "RUNNING", 2),
    sample("a-0", 3),
    ("checkpoints", {"process": JM, "state": "completed", "checkpoint": 1, "t": 3}),
    ("checkpoints", {"process": JM, "state": "completed", "checkpoint": 2, "t": 3}),
    FAILURE,  # 5
    event("failover.started", "1", 4),
    state("a-0", "SCHEDULED", "DEPLOYING", 5, attempt=1, on="tm-1-1"),
    event("failover.deployed", "1", 6),
    state("a-0", "DEPLOYING", "RUNNING", 6, attempt=1, on="tm-1-1"),
    event("task.restored", "a-0", 6, attempt=1, checkpoint=2, process="tm-1-1"),  # 10
    sample("a-0", 7, attempt=1, process="tm-1-1"),
    ("channels", {"task": "a-0", "attempt": 1, "process": "tm-1-1"}),
    ("latency", {"task": "a-0", "attempt": 1, "process": "tm-1-1"}),
    ("delivery", {"task": "a-0", "attempt": 1, "process": JM}),
    wait("restore", "a-0", attempt=1, process="tm-1-1"),  # 15
    event("gate.connected", "a-0", attempt=1, process="tm-1-1"),
    event("input-split", "a-0", attempt=1),
    state("a-0", "RUNNING", "FINISHED", 20, attempt=1, on="tm-1-1"),
    job("FINISHED", 21),
]
ENTRY = {"job": {"vertices": [{"name": "a", "parallelism": 2}]}}


def found(changes: dict[int, Any]) -> list[str]:
    return texts(check_executions(checked(edited(HEALTHY, changes), ENTRY)))


def test_attempts_that_were_deployed_and_restarted_have_no_finding():
    """So each finding below follows from a change."""
    assert found({}) == []


@pytest.mark.parametrize(
    "change",
    [
        {19: None},
        {19: job("RUNNING", 21)[1]},
        {19: {"process": "jobmanager-2"}},
        {18: {"process": "jobmanager-2"}},
        {19: [job("FINISHED", 21), event("leadership", JM, granted=True)]},
    ],
)
def test_attempts_are_compared_if_one_jobmanager_recorded_the_end(change: dict[int, Any]):
    """Another one, or one that was a follower for a while, lacks rows."""
    assert found({11: {"attempt": 7}}) != []
    assert found({11: {"attempt": 7}} | change) == []


@pytest.mark.parametrize("end", ["FINISHED", "CANCELED", "FAILED"])
def test_every_end_of_a_job_is_one(end: str):
    """A job that failed was recorded to its end too."""
    assert found({11: {"attempt": 7}, 19: job(end, 21)[1]}) != []


NEVER = "is 7, but no attempt 7 of a-0 was deployed (task.state in events)"
THERE = "is tm-9-1, but attempt 1 of a-0 was deployed to tm-1-1 (task.state in events)"


@pytest.mark.parametrize(
    ("row", "change", "expected"),
    [
        *((row, {"attempt": 7}, f"{table}.parquet, column attempt, row {n}: {NEVER}") for row, table, n in ((11, "tasks", 1), (12, "channels", 0), (13, "latency", 0), (14, "delivery", 0), (15, "waits", 0))),
        (16, {"attempt": 7}, f"events.parquet, column attempt, row 8: of gate.connected {NEVER}"),
        (17, {"attempt": 7}, f"events.parquet, column attempt, row 9: of input-split {NEVER}"),
        (16, {"attempt": 0, "subject": "a-1"}, "events.parquet, column attempt, row 8: of gate.connected is 0, but no attempt 0 of a-1 was deployed (task.state in events)"),
        (16, {"attempt": -1}, ""),
        (16, {"attempt": 7, "kind": "note"}, ""),
        (15, {"who": "a-1"}, "waits.parquet, column attempt, row 0: is 1, but no attempt 1 of a-1 was deployed (task.state in events)"),
        (15, {"who": "b-0"}, "waits.parquet, column who, row 0: is 'b-0', which the job does not have"),
        (15, {"who": "JobMaster", "attempt": 9}, ""),
        (15, {"who": "b-0", "attempt": -1}, ""),
        (15, {"who": "b-0", "attempt": 0}, "waits.parquet, column who, row 0: is 'b-0', which the job does not have"),
        *((row, {"process": "tm-9-1"}, f"{table}.parquet, column process, row {n}: {THERE}") for row, table, n in ((11, "tasks", 1), (12, "channels", 0), (13, "latency", 0))),
        (16, {"process": "tm-9-1"}, f"events.parquet, column subject, row 8: of gate.connected is a-0: process {THERE}"),
        (17, {"process": "tm-9-1"}, ""),
        (14, {"process": "tm-9-1"}, ""),
        (15, {"process": "tm-9-1"}, f"waits.parquet, column who, row 0: is a-0: process {THERE}"),
    ],
)  # fmt: skip
def test_each_row_of_an_attempt_is_where_that_was_deployed(row: int, change: Row, expected: str):
    """Commits and input splits are written by the JobManager, and other waits have the number of a restart."""
    assert found({18: {"t": 8}, row: change}) == ([expected] if expected else [])


@pytest.mark.parametrize(("t", "is_damaged"), [(8.0, False), (8.001, True)])
def test_an_earlier_attempt_is_not_sampled_long_after_a_later_one_has_begun(t: float, is_damaged: bool):
    """Its TaskManager may take one more sample while it cancels it."""
    rows = [sample("a-0", 7, attempt=1), sample("a-0", 7.5, attempt=1), sample("a-0", t, attempt=0)]
    changes: dict[int, Any] = {7: {"data": HEALTHY[0][1]["data"]}, 11: rows}
    changes |= {n: {"process": TM} for n in (10, 12, 13, 15, 16)}
    damage = [text for text in found(changes) if "column attempt" in text]
    expected = "tasks.parquet, column attempt, row 3: is 0, but a-0 had been sampled in attempt 1 for 1.0 s"
    assert damage == ([expected] if is_damaged else [])
    changes[15] = [wait("deployment", what="a-0", attempt=0, outcome="expired")]
    assert not [text for text in found(changes) if "column attempt" in text], (
        "it may begin after its deployment expired"
    )


def test_one_row_of_a_table_is_enough():
    """Others with the same damage say no more."""
    (one,) = found({2: {"attempt": 8}, 11: {"attempt": 7}, 18: {"t": 8}})
    assert one.startswith("tasks.parquet, column attempt")


def test_an_attempt_without_a_known_place_may_be_anywhere():
    """A JobManager of an earlier version did not record it."""
    assert found({7: {"data": '{"from": "SCHEDULED", "to": "DEPLOYING"}'}, 11: {"process": "tm-9-1"}}) == []


UNSAMPLED = "tasks.parquet, column task: lacks a-0, which ran for {} s as attempt 1 and finished"


@pytest.mark.parametrize(
    ("end", "to", "expected"),
    [(11, "FINISHED", []), (11.001, "FINISHED", [UNSAMPLED.format(5)]), (12, "FINISHED", [UNSAMPLED.format(6)]), (12, "CANCELED", [])],
)  # fmt: skip
def test_a_task_that_ran_for_more_than_five_seconds_is_sampled(end: float, to: str, expected: list[str]):
    """If it finished. Without any sample, the table is not compared."""
    last = state("a-0", "RUNNING", to, end, attempt=1, on="tm-1-1")[1]
    changes: dict[int, Any] = {11: None, 18: last}
    assert found(changes) == expected
    assert found({**changes, 2: None}) == []
    assert found({**changes, 9: None}) == []
    assert found({18: last}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({6: [HEALTHY[6], HEALTHY[6]]}, "column subject, row 4: of failover.started is 1, which another one has too"),
        ({8: [HEALTHY[8], HEALTHY[8]]}, "column subject, row 6: of failover.deployed is 1, which another one has too"),
        ({6: None}, "column kind: has 0 failover.started, but 1 failures restarted the job (failover.failure)"),
        ({5: [FAILURE, FAILURE]}, "column kind: has 1 failover.started, but 2 failures restarted the job (failover.failure)"),
        ({5: [FAILURE, event("failover.failure", "1", 4, restarted=False)]}, ""),
        ({5: None}, ""),
        ({5: None, 6: None, 8: None, 0: [state("a-1", "SCHEDULED", "DEPLOYING", 1), HEALTHY[0]]}, "column kind: has 0 failover.started and 0 failover.failure, but a-0 was deployed 2 times (task.state)"),
        ({5: None, 6: None, 8: None}, "column kind: has 0 failover.started and 0 failover.failure, but a-0 was deployed 2 times (task.state)"),
        ({5: event("failover.failure", "1", 4, restarted=False)[1], 6: None, 8: None}, ""),
        ({8: None}, "column kind, row 3: has no failover.deployed of restart 1, but the job finished"),
        ({8: None, 19: job("FAILED", 21)[1]}, ""),
        ({8: None, 6: [HEALTHY[6], event("failover.started", "2", 4)]}, "column kind, row 4: has no failover.deployed of restart 2, but the job finished"),
        ({6: [event("failover.started", "0", 4), HEALTHY[6]]}, ""),
    ],
)  # fmt: skip
def test_each_failure_that_restarted_the_job_started_a_restart(changes: dict[int, Any], expected: str):
    """The last restart of a job that finished was deployed. A failure may be merged into the restart before it."""
    assert found(changes) == ([f"events.parquet, {expected}"] if expected else [])


RESTORED = "column checkpoint, row 7: of task.restored is {}, but {} (checkpoints)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({10: {"checkpoint": 1}}, RESTORED.format(1, "when a-0 was deployed, the last complete one was 2")),
        ({10: {"checkpoint": 3}}, RESTORED.format(3, "when a-0 was deployed, the last complete one was 2")),
        ({10: {"checkpoint": 3}, 3: {"state": "failed"}, 4: {"state": "failed"}}, RESTORED.format(3, "none was complete")),
        ({10: {"checkpoint": 0}, 3: {"state": "failed"}, 4: {"state": "failed"}}, RESTORED.format(0, "none was complete")),
        ({10: {"checkpoint": -1}}, ""),
        ({4: None, 7: [HEALTHY[7], HEALTHY[4]]}, RESTORED.format(2, "when a-0 was deployed, the last complete one was 1")),
        ({3: {"checkpoint": 0}, 4: None, 10: {"checkpoint": 4}}, RESTORED.format(4, "when a-0 was deployed, the last complete one was 0")),
        ({10: {"checkpoint": 1}, 0: [event("job.restored", "job", checkpoint=1), HEALTHY[0]]}, ""),
        ({10: {"checkpoint": 3}, 0: [event("job.restored", "job", checkpoint=1), HEALTHY[0]]}, RESTORED.format(3, "when a-0 was deployed, the last complete one was 2").replace("row 7", "row 8")),
        ({10: None}, "column kind: has no task.restored of attempt 1 of a-0, which was deployed after a completed checkpoint"),
        ({10: None, 11: None}, ""),
        ({10: None, 9: None}, ""),
        ({10: None, 3: None, 4: None}, ""),
        ({10: None, 3: None, 4: None, 7: [HEALTHY[7], HEALTHY[4]]}, ""),
    ],
)  # fmt: skip
def test_an_attempt_restores_the_last_checkpoint_that_was_complete(changes: dict[int, Any], expected: str):
    """When it was deployed. An attempt that did not run for long may not have restored anything."""
    changes = {18: {"t": 8}} | changes
    assert found(changes) == ([f"events.parquet, {expected}"] if expected else [])


@pytest.mark.parametrize(
    ("lost", "heartbeat", "is_damaged"),
    [
        ({}, {}, False),
        ({"t": 11}, {}, False),
        ({"t": 9}, {}, False),
        ({"t": 11.001}, {}, True),
        ({"t": 8.999}, {}, True),
        ({"subject": "tm-2-1"}, {}, True),
        ({"data": '{"detector": "ResourceManager"}'}, {}, True),
        ({"data": '{"detector": "ResourceManager"}'}, {"who": "ResourceManager"}, False),
        ({"kind": "note"}, {"outcome": "completed"}, False),
        ({"kind": "note"}, {"outcome": "fired"}, False),
        ({"kind": "note"}, {"who": TM}, False),
        ({"kind": "note"}, {"kind": "slot"}, False),
        ({"kind": "note"}, {}, True),
    ],
)  # fmt: skip
def test_a_heartbeat_that_expired_lost_its_taskmanager(lost: Row, heartbeat: Row, is_damaged: bool):
    """To a second, by the one who waited. Other waits may expire without a loss."""
    beat = wait("heartbeat", what="tm-1-1", t=10, outcome="expired")
    rows = [
        ("waits", beat[1] | heartbeat),
        ("events", event("taskmanager.lost", "tm-1-1", 10, detector="JobMaster")[1] | lost),
    ]
    who = heartbeat.get("who", "JobMaster")
    problem = f"waits.parquet, column outcome, row 1: is 'expired', but {who} did not lose tm-1-1 then (taskmanager.lost in events)"
    assert found({17: [HEALTHY[17], *rows]}) == ([problem] if is_damaged else [])
    again = event("taskmanager.lost", "tm-1-1", 15, detector="JobMaster")
    assert found({17: [HEALTHY[17], *rows, again]}) == ([problem] if is_damaged else [])


def test_a_history_without_states_is_not_compared():
    """Nothing is known about its attempts."""
    assert check_executions(checked(wrote(sample("a-0", attempt=7), job("FINISHED")), ENTRY)) == []
