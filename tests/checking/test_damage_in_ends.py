"""Events that follow from the end of a wait, what tasks wait for, and the numbers of network buffers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed_runtime.history.contradictions.buffers import check_buffers
from testbed_runtime.history.contradictions.waits import check_awaited
from testbed_runtime.history.crosschecks import check_across
from tests.checking.written import JM, Row, Written, checked, edited, event, job, state, texts, wait, wrote
from tests.manifests import trial_entry

TM, NEXT = "tm-0-1", "tm-0-2"
LEADERSHIP = event("leadership", JM, granted=True, leader="l")
RECORDED: list[Written] = [
    event("taskmanager.registered", TM, slots=1),  # 0
    state("a-0", "SCHEDULED", "DEPLOYING"),
    state("b-0", "SCHEDULED", "DEPLOYING"),
    wait("heartbeat", what=TM, t=4, outcome="expired"),
    event("taskmanager.lost", TM, 4.5, detector="JobMaster", cause_class="E", wait="heartbeat"),
    event("failover.failure", "1", 4.5, detector="JobMaster", wait="heartbeat"),  # 5
    event("failover.started", "1", 4.5, detector="JobMaster", wait="heartbeat", delay_s=0.5),
    wait("restart-delay", attempt=1, start=4.5, t=5, outcome="fired"),
    event("taskmanager.registered", NEXT, 5, slots=1),
    event("task.restored", "b-0", 6, attempt=1, checkpoint=3, process=NEXT),
    wait("restore", "b-0", what="checkpoint 3", attempt=1, process=NEXT),  # 10
    wait("partition", "b-0", what="a-0", process=NEXT),
    wait("partition", "a-0", what="its own", process=NEXT),
    wait("alignment", "b-0", what="checkpoint 4", process=NEXT),
    ("checkpoints", {"process": JM, "state": "triggered", "checkpoint": 4}),
    wait("connection", "b-0", what=TM, process=NEXT),  # 15
    wait("cancellation", what="2 tasks", attempt=1),
    wait("cancellation", "a-0", what="a-0", process=NEXT),
    wait("jobmanager", NEXT, what="JobMaster: RUNNING", process=NEXT),
    wait("first-record", "b-0", process=NEXT),
    wait("image", "kubernetes", what="a pod", process="supervisor"),  # 20
    job("FINISHED", 9),
]  # fmt: skip
ENTRY: Row = {
    "job": {"vertices": [{"name": "a"}, {"name": "b"}], "edges": [{"from": "a", "to": "b"}]},
}


def ended(changes: dict[int, Any]) -> list[str]:
    return texts(check_awaited(checked(edited(RECORDED, changes))))


def awaited(changes: dict[int, Any], entry: Row = ENTRY) -> list[str]:
    return [
        t.removeprefix("waits.parquet, column ")
        for t in texts(check_awaited(checked(edited(RECORDED, changes), entry)))
    ]


NO_HEARTBEAT = "waits.parquet, column kind: has no heartbeat that ended with {} (data in events)"
NO_DELAY = "waits.parquet, column kind: has no restart-delay of restart 1, which was delayed by 0.5 s (failover.started in events)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({3: None}, [NO_HEARTBEAT.format(f"taskmanager.lost of {TM}")]),
        ({3: None, 4: None, 8: None}, [NO_HEARTBEAT.format("failover.failure of 1")]),
        ({3: {"t": 3.5}}, []),
        ({3: {"t": 3.499}}, [NO_HEARTBEAT.format(f"taskmanager.lost of {TM}")]),
        ({3: {"t": 5.5}}, []),
        ({3: [RECORDED[3], wait("heartbeat", what=TM, t=90)]}, []),
        ({3: None, 4: None, 5: None, 8: None}, [NO_HEARTBEAT.format("failover.started of 1")]),
        ({3: None, 4: event("taskmanager.lost", TM, 4.5, detector="TaskManager", wait="heartbeat")[1], 5: None, 6: None}, []),
        ({3: None, 5: None, 6: None}, [NO_HEARTBEAT.format(f"taskmanager.lost of {TM}")]),
        ({5: event("failover.failure", "1", 4.5, wait="connection")[1]}, []),
        ({5: event("failover.failure", "1", 4.5, detector="JobMaster", wait=["heartbeat"])[1]}, []),
        ({7: None}, [NO_DELAY]),
        ({7: {"attempt": 2}}, [NO_DELAY]),
        ({7: {"who": "b-0"}}, [NO_DELAY]),
        ({7: None, 6: event("failover.started", "1", 4.5, wait="heartbeat", delay_s=0)[1]}, []),
        ({7: None, 21: [RECORDED[21], LEADERSHIP]}, []),
        ({7: None, 1: None, 2: None}, []),
    ],
)  # fmt: skip
def test_an_event_that_follows_from_the_end_of_a_wait_has_that_wait(
    changes: dict[int, Any], expected: list[str]
):
    """To a second. Only the JobManager records both."""
    assert ended(changes) == expected


def test_without_waits_nothing_follows_from_them():
    """A trial that was read in parts keeps only some tables."""
    assert texts(check_buffers(checked(wrote()))) == []
    assert texts(check_awaited(checked(wrote(*(r for r in RECORDED if r[0] == "events"))))) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({11: {"what": "b-0"}}, ["what, row 3: is 'b-0', which sends nothing to b-0 (manifest)"]),
        ({11: {"what": "b-0"}, 12: {"what": "b-0"}}, ["what, row 3: is 'b-0', which sends nothing to b-0 (manifest)"]),
        ({10: {"what": "checkpoint 4"}}, ["what, row 2: is 'checkpoint 4', but b-0 restored checkpoint 3 (task.restored in events)"]),
        ({10: {"what": "checkpoint 4", "attempt": 2}}, []),
        ({13: {"what": "checkpoint 5"}}, ["what, row 5: is 'checkpoint 5', which was not triggered (checkpoints)"]),
        ({13: {"what": "checkpoint 5"}, 21: [RECORDED[21], LEADERSHIP]}, []),
        ({13: {"what": "checkpoint 5"}, 1: None, 2: None}, []),
    ],
)  # fmt: skip
def test_a_task_waits_for_its_producers_and_for_checkpoints_that_there_were(
    changes: dict[int, Any], expected: list[str]
):
    """Only of a job whose JobManager recorded all of it."""
    assert awaited(changes) == expected


def test_without_edges_in_the_manifest_any_producer_may_be_waited_for():
    """Nothing is known about them."""
    assert awaited({11: {"what": "b-0"}}, {}) == []


POOL: Row = {"side": "in", "task": "b-0", "peer": "a", "required": 1, "most": 8, "size": 4, "channels": 2, "exclusive": 2, "used": 9, "used_exclusive": 3}  # fmt: skip
"""Its size has been reduced while nine of its buffers were in use."""
OUT: Row = {"side": "out", "task": "b-0", "peer": "c", "required": 3, "most": -1, "size": 90, "used": 90}


def buffers(*, used: Any = 5, total: Any = 100, **changes: Any) -> list[str]:
    """Return the findings for the buffers of a TaskManager with a pool of each side; `changes` are those of the first pool."""
    pools = {"pools": [POOL | changes, OUT], "free": 92, "others": 0}
    rows = [
        event("network.buffers", TM, process=TM, used=3, total=100),
        event("network.buffers", TM, process=TM, used=used, total=total),
        event("network.pools", TM, process=TM, **pools),
    ]
    return [
        t.removeprefix("events.parquet, column data, ") for t in texts(check_buffers(checked(wrote(*rows))))
    ]


OF_POOL = "of the pool of b-0 (in, a)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"used": 100}, ""),
        ({"used": 101}, "row 1: of network.buffers has 101 as used, of 100 buffers"),
        ({"used": -1}, "row 1: of network.buffers has -1 as used, of 100 buffers"),
        ({"total": 200}, f"row 1: of network.buffers has 200 as total, but {TM} has 100 buffers"),
        ({"size": 8}, ""),
        ({"size": 9}, f"row 2: of network.pools has 9 as size {OF_POOL}, which requires 1 and may have 8"),
        ({"required": 0}, ""),
        ({"most": 0}, f"row 2: of network.pools has 4 as size {OF_POOL}, which requires 1 and may have 0"),
        ({"required": 5}, f"row 2: of network.pools has 4 as size {OF_POOL}, which requires 5 and may have 8"),
        ({"required": -1}, f"row 2: of network.pools has 4 as size {OF_POOL}, which requires -1 and may have 8"),
        ({"channels": "2"}, f"row 2: of network.pools has '2' as channels {OF_POOL}"),
        ({"side": "up"}, "row 2: of network.pools has 'up' as side of the pool of b-0 (up, a)"),
    ],
)  # fmt: skip
def test_the_numbers_of_network_buffers_can_be_together(changes: Row, expected: str):
    """No pool has more than it may have, no more are used than there are, and all buffers are as many at any time."""
    assert buffers(**changes) == ([expected] if expected else [])


@pytest.mark.parametrize(("pressed", "is_damaged"), [(0, False), (100, False), (101, True), (-1, True)])
def test_a_task_is_back_pressured_in_at_most_all_samples(pressed: int, is_damaged: bool):
    """A round has 100."""
    rows = [event("backpressure.sampled", "b-0", attempt=0, process=TM, samples=100, backpressured=pressed)]
    problem = f"events.parquet, column data, row 0: of backpressure.sampled has {pressed} as backpressured, of 100 samples"
    assert texts(check_buffers(checked(wrote(*rows)))) == ([problem] if is_damaged else [])


@pytest.mark.parametrize("value", [[], None], ids=repr)
def test_a_value_of_another_type_does_not_end_the_comparison(value: Any):
    """Whatever is in an event's data, but for its state, which is known by then. A null stands for a value that is missing."""
    for number, (table, row) in enumerate(RECORDED):
        data = json.loads(row.get("data") or "{}") | {"taskmanager": TM} if table == "events" else {}
        for name in data.keys() - {"to"}:
            changed = {number: {"data": json.dumps(data | {name: value})}}
            check_across(edited(RECORDED, changed), trial_entry(ENTRY))


def test_the_rules_are_among_those_of_a_trial():
    """Each of them is called."""
    trial = edited(RECORDED, {7: None, 13: {"what": "checkpoint 5"}})
    reported = texts(check_across(trial, trial_entry(ENTRY)))
    assert NO_DELAY in reported
    assert [t for t in reported if "is 'checkpoint 5', which was not triggered" in t]
    pressed = event("backpressure.sampled", "b-0", attempt=0, process=TM, samples=1, backpressured=2)
    assert [t for t in texts(check_across(wrote(pressed), trial_entry(ENTRY))) if "of 1 samples" in t]
