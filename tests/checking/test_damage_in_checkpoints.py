"""The limits of the rules for checkpoints: the smallest damage is found, and the largest value that is no damage is not."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.history.contradictions.checkpoints import check_checkpoints
from tests.checking.written import JM, NS, Row, Written, checked, edited, job, state, texts, wait, wrote

MS = NS // 1000


def point(what: str, t: float, number: int = 1, task: str = "", **more: Any) -> Written:
    row = {"process": JM, "checkpoint": number, "state": what, "t": t, "task": task}
    return "checkpoints", row | more


def commit(task: str = "a-0", number: int = 1, **more: Any) -> Written:
    row = {
        "process": JM,
        "task": task,
        "checkpoint": number,
        "bitmap": b"\x07\x01",
        "weight": 5,
        "duplicated": 1,
    }
    return "delivery", row | more


VERTEX = {"name": "a", "parallelism": 2, "kind": "ledger"}
OVERTAKING = {"execution.checkpointing.unaligned.enabled": "true"}
ENTRY = {"job": {"vertices": [VERTEX]}, "configuration": OVERTAKING}
HEALTHY: list[Written] = [
    state("a-0", "SCHEDULED", "DEPLOYING"),
    state("a-1", "SCHEDULED", "DEPLOYING"),
    point("triggered", 1),
    point("acknowledged", 1.5, task="a-0", duration_ns=NS // 2, state_bytes=10, persisted_bytes=4, alignment_ns=NS // 4),
    point("acknowledged", 1.75, task="a-1", duration_ns=3 * NS // 4, state_bytes=20),
    point("finalizing", 1.75, duration_ns=3 * NS // 4),
    point("completed", 2, duration_ns=NS, state_bytes=30),
    wait("checkpoint", start=1, t=2, what="checkpoint 1"),
    wait("completion", start=1.75, t=2, what="checkpoint 1"),
    commit(),  # 9
    commit("a-1", weight=0, duplicated=0),
    commit("a-1", weight=8, duplicated=0),
    point("triggered", 3, 2),
    point("failed", 4, 2, duration_ns=NS),
    wait("checkpoint", start=3, t=4, what="checkpoint 2", outcome="expired"),
    job("FINISHED", 9),
]  # fmt: skip


def found(changes: dict[int, Any], entry: Row = ENTRY) -> list[str]:
    return [text.removeprefix("checkpoints.parquet, column ") for text in texts(check_checkpoints(checked(edited(HEALTHY, changes), entry)))]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({3: {"duration_ns": 3 * NS // 2}}, []),
        ({3: {"duration_ns": 3 * NS // 2 + 1}}, ["duration_ns, row 1: is 1.5 s, but 0.500 s passed since checkpoint 1 was triggered"]),
        ({6: {"duration_ns": 2 * NS + 1}}, ["duration_ns, row 4: is 2 s, but 1.000 s passed since checkpoint 1 was triggered"]),
        ({13: {"duration_ns": 2 * NS + 1}}, ["duration_ns, row 6: is 2 s, but 1.000 s passed since checkpoint 2 was triggered"]),
        ({5: {"duration_ns": 0}}, []),
        ({3: {"alignment_ns": NS // 2 + 10 * MS}}, []),
        ({3: {"alignment_ns": NS // 2 + 10 * MS + 1}}, ["alignment_ns, row 1: is 0.51 s, longer than the checkpoint (0.5 s)"]),
    ],
)  # fmt: skip
def test_a_duration_is_the_time_since_the_checkpoint_was_triggered(
    changes: dict[int, Any], expected: list[str]
):
    """Every one to a second. An alignment is part of it, to 10 ms."""
    assert found(changes) == expected


def durations(*off_ns: int) -> list[Written]:
    """Checkpoints of which each lasts a second, and their durations are off by so much."""
    found = [state("a-0", "SCHEDULED", "DEPLOYING"), state("a-1", "SCHEDULED", "DEPLOYING")]
    for number, off in enumerate(off_ns, 1):
        begun = 3 * number
        found += [
            point("triggered", begun, number),
            point("acknowledged", begun + 0.5, number, task="a-0", duration_ns=NS // 2 + off),
            point("acknowledged", begun + 0.5, number, task="a-1", duration_ns=NS // 2 + off),
            point("failed", begun + 1, number, duration_ns=NS + off),
        ]
    return found


@pytest.mark.parametrize(
    ("off_ns", "expected"),
    [
        ((2 * MS, 2 * MS, 2 * MS), ""),
        ((0, 2 * MS + 1, 2 * MS + 1), "row 5: is 0.502 s for checkpoint 2"),
        ((0, 3 * MS, -2 * MS - 1), "row 5: is 0.503 s for checkpoint 2"),  # the one that is most off
        ((0, 0, 9 * MS), ""),
        ((9 * MS, 9 * MS), ""),
        ((9 * MS,), ""),
    ],
)
def test_the_durations_of_most_checkpoints_are_exact_to_two_milliseconds(
    off_ns: tuple[int, ...], expected: str
):
    """A process that is interrupted between two readings of its clock makes one checkpoint look longer or shorter."""
    said = texts(check_checkpoints(checked(edited(durations(*off_ns), {}), {})))
    text = f"checkpoints.parquet, column duration_ns, {expected}, and most are not the time since it was triggered"
    assert said == ([text] if expected else [])


FINISHED = state("a-1", "RUNNING", "FINISHED", 1.6)
MISSING = "state, row 3: says that checkpoint 1 was completed, but a-1 has not acknowledged it"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({4: None, 6: {"state_bytes": 10}}, [MISSING]),
        ({4: [FINISHED], 6: {"state_bytes": 10}}, []),
        ({4: None, 6: [point("completed", 2, duration_ns=NS, state_bytes=10), FINISHED]}, [MISSING]),
        ({4: None, 6: [point("completed", 2, duration_ns=NS, state_bytes=10), ("events", FINISHED[1] | {"process": "jobmanager-2"})]}, []),
        ({4: [state("a-1", "RUNNING", "CANCELED", 1.6)], 6: {"state_bytes": 10}}, [MISSING]),
        ({4: None, 6: None, 7: None, 8: None, 9: None, 10: None, 11: None}, []),
        ({4: {"task": "b-0"}}, ["task, row 2: is 'b-0', which the job does not have"]),
        ({4: [point("acknowledged", 1.6, task="a-0", duration_ns=3 * NS // 5)], 6: {"state_bytes": 10}},
         ["task, row 2: is a-0, which had acknowledged checkpoint 1", MISSING.replace("row 3", "row 4")]),
        ({4: [point("acknowledged", 1.6, 7, task="a-1")], 6: {"state_bytes": 10}},
         ["checkpoint, row 2: is 7, which was not triggered before it was acknowledged", MISSING.replace("row 3", "row 4")]),
        ({4: [point("failed", 1.6, 7), HEALTHY[4]]}, []),
        ({13: [HEALTHY[13], point("completed", 4.5, 7)]}, ["checkpoint, row 7: is 7, which was not triggered before it was completed"]),
    ],
)  # fmt: skip
def test_a_completed_checkpoint_was_acknowledged_by_each_task_that_had_not_finished(
    changes: dict[int, Any], expected: list[str]
):
    """Each does so once. What another JobManager triggered may fail here, and its rows may follow in any order."""
    assert found(changes) == expected


def test_without_a_job_in_the_manifest_any_task_may_acknowledge():
    """Nothing is known about its tasks."""
    assert found({4: {"task": "b-0"}}, {"configuration": OVERTAKING}) == []


@pytest.mark.parametrize(
    ("configuration", "amount", "is_damaged"),
    [({}, 4, True), ({}, 0, False), (OVERTAKING, 4, False), ({"execution.checkpointing.unaligned.enabled": "false"}, 1, True)],
)  # fmt: skip
def test_an_aligned_checkpoint_has_no_records_in_flight(configuration: Row, amount: int, is_damaged: bool):
    """Nothing is known of a trial whose configuration the manifest lacks."""
    problem = (
        f"persisted_bytes, row 1: is {amount} in an aligned checkpoint, which has no records in flight "
        "(execution.checkpointing.unaligned.enabled in the manifest)"
    )
    changes = {3: {"persisted_bytes": amount}}
    assert found(changes, {**ENTRY, "configuration": configuration}) == ([problem] if is_damaged else [])
    assert found(changes, ENTRY) == []


LESS, MORE = (f"state_bytes, row 4: is {n}, but the parts of checkpoint 1 have 30 bytes" for n in (29, 31))
INCREMENTAL = {**ENTRY, "configuration": {"execution.checkpointing.incremental": "true", **OVERTAKING}}


@pytest.mark.parametrize(
    ("changes", "entry", "expected"),
    [
        ({3: {"persisted_bytes": 10}}, ENTRY, []),
        ({3: {"persisted_bytes": 11}}, ENTRY, ["persisted_bytes, row 1: is 11, more than state_bytes"]),
        ({6: {"state_bytes": 29}}, ENTRY, [LESS]),
        ({6: {"state_bytes": 31}}, ENTRY, [MORE]),
        ({6: {"state_bytes": 29}}, INCREMENTAL, [LESS]),
        ({6: {"state_bytes": 31}}, INCREMENTAL, []),
        ({4: [FINISHED], 6: {"state_bytes": 31}}, ENTRY, []),
        ({6: {"state": "failed", "state_bytes": 29}, 7: {"outcome": "failed"}, 8: None, 9: None, 10: None, 11: None}, ENTRY, []),
    ],
)  # fmt: skip
def test_a_checkpoint_is_as_large_as_its_parts(changes: dict[int, Any], entry: Row, expected: list[str]):
    """An incremental one has parts of earlier ones, and a task that had finished has parts that are not in its rows."""
    assert found(changes, entry) == expected


@pytest.mark.parametrize(
    ("delivery", "interval", "is_damaged"),
    [("exactly-once", "1 s", True), ("at-least-once", "1 s", False), ("exactly-once", None, False)],
)
def test_a_sink_that_commits_exactly_once_commits_with_a_checkpoint(
    delivery: str, interval: str | None, is_damaged: bool
):
    """One that writes at least once has none, and without periodic checkpoints the end of a bounded input has none."""
    problem = "delivery.parquet, column checkpoint, row 0: is -1, but a-0 commits exactly once, with a checkpoint (delivery in the manifest)"
    entry: Row = {"job": {"vertices": [{**VERTEX, "delivery": delivery}]}, "configuration": OVERTAKING}
    if interval:
        entry["configuration"] = OVERTAKING | {"execution.checkpointing.interval": interval}
    assert found({9: {"checkpoint": -1}}, entry) == ([problem] if is_damaged else [])
    assert found({}, entry) == []


NEXT = [point("triggered", 2.1, 2), *(point("acknowledged", 2.2, 2, t, duration_ns=100 * MS) for t in ("a-0", "a-1")), point("finalizing", 2.2, 2, duration_ns=100 * MS), point("completed", 2.3, 2, duration_ns=200 * MS)]  # fmt: skip
TWO: dict[int, Any] = {12: None, 13: None, 14: None}
AGAIN = state("a-0", "SCHEDULED", "DEPLOYING", 2.5, attempt=1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({9: {"checkpoint": 2}}, ["is 2, which was not completed when a-0 committed (checkpoints)"]),
        ({9: {"checkpoint": 0}}, ["is 0, which was not completed when a-0 committed (checkpoints)"]),
        ({9: {"checkpoint": -1}}, []),
        ({9: {"checkpoint": 2, "process": "tm-0-1"}}, []),
        ({9: {"checkpoint": 2}, 15: None}, []),
        ({5: [HEALTHY[5], HEALTHY[9]], 9: None}, ["is 1, which was not completed when a-0 committed (checkpoints)"]),
        ({9: [*NEXT, HEALTHY[9]], **TWO}, ["is 1, but a later one had been completed when a-0 committed (checkpoints)"]),
        ({9: [*NEXT, commit(number=-1)], 10: None, 11: None, **TWO}, []),
        ({11: [HEALTHY[11], *NEXT], **TWO}, []),
        ({9: [*NEXT, commit(number=2)], 10: None, 11: None, **TWO}, []),
    ],
)  # fmt: skip
def test_a_commit_is_of_the_last_completed_checkpoint(changes: dict[int, Any], expected: list[str]):
    """That of a sink which writes at least once is of none, and what TaskManagers commit has another order."""
    reported = [
        text.partition(": ")[2]
        for text in found(changes)
        if text.startswith("delivery.parquet, column checkpoint")
    ]
    assert reported == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({9: {"attempt": 1}}, ["delivery.parquet, column attempt, row 0: is 1, but attempt 0 of a-0 was the last one deployed then (task.state in events)"]),
        ({9: {"task": "b-0"}}, []),
        ({9: [AGAIN, HEALTHY[9]]}, ["delivery.parquet, column attempt, row 0: is 0, but attempt 1 of a-0 was the last one deployed then (task.state in events)"]),
        ({9: [HEALTHY[9], AGAIN]}, []),
        ({9: [AGAIN, commit(attempt=1)]}, []),
    ],
)  # fmt: skip
def test_a_commit_is_of_the_last_attempt_that_was_deployed(changes: dict[int, Any], expected: list[str]):
    """Later ones are not known yet."""
    assert found(changes) == expected


WEIGHT = "delivery.parquet, column weight, row {}: of this commit of {} adds up to {}, but it has {} records (bitmap)"


@pytest.mark.parametrize(
    ("changes", "kind", "expected"),
    [
        ({9: {"weight": 4}}, "ledger", [WEIGHT.format(0, "a-0", 4, 5)]),
        ({9: {"weight": 6}}, "ledger", [WEIGHT.format(0, "a-0", 6, 5)]),
        ({9: {"duplicated": 0}}, "ledger", [WEIGHT.format(0, "a-0", 5, 4)]),
        ({11: {"weight": 7}}, "ledger", [WEIGHT.format(1, "a-1", 7, 8)]),
        ({10: {"weight": 8}, 11: {"weight": 0}}, "ledger", []),
        ({9: {"weight": 4}}, "window", []),
        ({9: {"weight": 4}}, "", []),
    ],
)  # fmt: skip
def test_the_weight_of_a_commit_is_the_number_of_its_records(
    changes: dict[int, Any], kind: str, expected: list[str]
):
    """It is on one of the rows of the commit. Windows and vertices of unknown kinds have other weights."""
    assert found(changes, {**ENTRY, "job": {"vertices": [VERTEX | {"kind": kind}]}}) == expected
    assert found(changes, {"configuration": OVERTAKING}) == []


def of_wait(column: str, row: int, problem: str) -> list[str]:
    return [f"waits.parquet, column {column}, row {row}: {problem}"]


BEGAN = "of checkpoint 1 is not the time at which it was {}"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({7: {"start": 0, "t": 3}}, []),
        ({7: {"what": "checkpoint 3"}}, of_wait("what", 0, f"is 'checkpoint 3', which {JM} did not trigger")),
        ({7: {"what": "checkpoint 3", "outcome": "open"}}, []),
        ({7: {"what": "checkpoint 3", "kind": "slot"}}, []),
        ({7: {"process": "jobmanager-2"}}, of_wait("what", 0, "is 'checkpoint 1', which jobmanager-2 did not trigger")),
        ({8: {"what": "checkpoint 3"}}, of_wait("what", 1, f"is 'checkpoint 3', which {JM} did not trigger")),
        ({8: {"start": 0.75}}, []),
        ({8: {"start": 0.749}}, of_wait("start_ns", 1, BEGAN.format("acknowledged"))),
        ({5: None, 8: {"start": 1.75}}, of_wait("start_ns", 1, BEGAN.format("acknowledged"))),
        ({8: {"t": 9, "outcome": "failed"}}, []),
        ({7: {"start": 2.0}}, []),
        ({7: {"start": 2.001}}, of_wait("start_ns", 0, BEGAN.format("triggered"))),
        ({7: {"t": 3.001}}, of_wait("t_ns", 0, BEGAN.format("completed"))),
        ({7: {"outcome": "failed"}}, of_wait("outcome", 0, "is 'failed', but checkpoint 1 was completed (checkpoints)")),
        ({14: {"outcome": "completed"}}, of_wait("outcome", 2, "is 'completed', but checkpoint 2 was failed (checkpoints)")),
        ({14: {"t": 2.999}}, of_wait("t_ns", 2, "of checkpoint 2 is not the time at which it was failed")),
        ({13: None, 14: {"t": 9}}, []),
        ({1: [HEALTHY[1], wait("checkpoint", what="checkpoint 1")]}, of_wait("what", 0, f"is 'checkpoint 1', which {JM} did not trigger")),
        ({13: None, 14: [wait("checkpoint", start=3, t=4, what="checkpoint 2", outcome="cancelled"), point("triggered", 6, 2), wait("checkpoint", start=6, t=7, what="checkpoint 2", outcome="cancelled")]}, []),
    ],
)  # fmt: skip
def test_a_wait_for_a_checkpoint_is_as_long_as_that(changes: dict[int, Any], expected: list[str]):
    """To a second. It begins when its checkpoint is triggered or acknowledged, and has the same outcome."""
    assert [text for text in found(changes) if text.startswith("waits")] == expected


def test_one_finding_of_each_rule_is_enough():
    """A hundred checkpoints with the same damage say no more."""
    assert found({3: {"persisted_bytes": 11}, 4: {"persisted_bytes": 21}}) == ["persisted_bytes, row 1: is 11, more than state_bytes"]  # fmt: skip
    assert check_checkpoints(checked(wrote(*HEALTHY[:2]), ENTRY)) == []


END = "state, row {}: has no end of checkpoint {}, for which JobMaster waited: {} (waits)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({6: None, 9: None, 10: None, 11: None}, [END.format(0, 1, "completed")]),
        ({13: None, 14: {"cause": "Checkpoint expired before completing."}}, [END.format(5, 2, "expired")]),
        ({13: None}, []),
        ({13: None, 14: {"outcome": "cancelled"}}, []),
        ({13: None, 14: {"outcome": "open", "cause": "a"}}, []),
        ({13: None, 14: None}, []),
    ],
)  # fmt: skip
def test_a_wait_for_a_checkpoint_that_ended_has_the_end_of_the_checkpoint(
    changes: dict[int, Any], expected: list[str]
):
    """It is written before. A JobManager that lost its leadership cancels its waits, without a cause and an end."""
    assert found(changes) == expected
