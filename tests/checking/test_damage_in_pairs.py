"""The rows that are written for the same thing: each is missed if it is not there, and each reason for its absence counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed_runtime.history.contradictions.pairs import EVENT_DATA, check_pairs
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
    sample,
    state,
    texts,
    wait,
    wrote,
)
from tests.manifests import trial_entry

TM, ASK = "tm-0-1", "pekko.ask.timeout"
CAUSE = {"cause_class": "E", "taskmanager": "tm-1-1", "detector": "JobMaster"}
FAILED = {"task": "", "ended": 0, "restarted": True, **CAUSE}
CHANNEL = ("channels", {"side": "consumer", "task": "b-0", "peer": "a-0", "t": 3.0})
WINDOW = ("latency", {"task": "b-0", "t": 3.0})
HEALTHY: list[Written] = [
    event("trial.phase", "baseline", process="runner"),  # 0
    event("taskmanager.registered", TM, slots=1),
    wait("registration", "ResourceManager", what=TM),
    event("failover.failure", "1", **FAILED),
    event("failover.started", "1", region=[], **CAUSE),
    wait("cancellation", attempt=1, t=1),  # 5
    event("failover.cancelled", "1", 1),
    wait("slot", t=1),
    event("failover.slots", "1", 1),
    ("events", event("failover.attempt", "1")[1] | {"data": '{"attempt": 1}'}),
    state("a-0", "SCHEDULED", "DEPLOYING", 1),  # 10
    state("b-0", "SCHEDULED", "DEPLOYING", 1),
    wait("deployment", what="a-0", attempt=0, option=ASK),
    wait("deployment", what="b-0", attempt=0, option=ASK),
    event("failover.deployed", "1"),
    event("partition.request", "b-0", attempt=0, process=TM, partition="p", request=1, backoff_s=0),  # 15
    event("gate.connected", "b-0", attempt=0, process=TM),
    wait("partition", "b-0", attempt=0, process=TM),
    event("sink.first-record", "b-0", attempt=0, process=TM, latency_ns=5),
    wait("first-record", "b-0", attempt=0, process=TM),
    event("source.end", "a-0", attempt=0, process=TM, next=5),  # 20
    sample("b-0", 3, role="sink", records_in=5),
    WINDOW,
    CHANNEL,
    ("checkpoints", {"process": JM, "state": "completed", "checkpoint": 1}),
    wait("checkpoint", what="checkpoint 1"),  # 25
    wait("completion", what="checkpoint 1"),
    state("a-0", "RUNNING", "FINISHED", 8),
    state("b-0", "RUNNING", "FINISHED", 8),
    job("FINISHED", 9),
]  # fmt: skip
EDGES = [{"from": "a", "to": "b"}]
VERTICES = [{"name": "a", "parallelism": 1}, {"name": "b", "parallelism": 1}]
ENTRY = {"drained": True, "job": {"vertices": VERTICES, "edges": EDGES}}
LOST = event("taskmanager.lost", TM, 8.5, detector="JobMaster", cause_class="E", wait="connection")
EXIT = event("process.exit", "tm-0", process="runner", incarnation=1, signal="SIGKILL")
ENDED = event("process.exit", "tm-0", process="runner", incarnation=1, signal="")


def found(changes: dict[int, Any], entry: Row = ENTRY, *, one_clock: bool = True) -> list[str]:
    return texts(check_pairs(checked(edited(HEALTHY, changes), entry, one_clock=one_clock)))


def lacks(table: str, problem: str) -> list[str]:
    return [f"{table}.parquet, column kind: has no {problem}"]


def test_a_history_with_every_counterpart_has_no_finding():
    """So each finding below follows from what is missing."""
    assert found({}) == []


NO_STATE = "task.state, but tasks were deployed (waits)"
NO_END = "job.state at the end of the job, which was drained (manifest)"
DRAINED_ONLY = "task.state, but tasks waited and were drained (waits, manifest)"
STATES: dict[int, Any] = dict.fromkeys((10, 11, 27, 28))
NOT_OF_A_TASK: dict[int, Any] = {12: {"option": ""}, 13: {"option": ""}}


@pytest.mark.parametrize(
    ("changes", "drained", "expected"),
    [
        (STATES, False, lacks("events", NO_STATE)),
        ({**STATES, **NOT_OF_A_TASK}, False, []),
        ({**STATES, **NOT_OF_A_TASK}, True, lacks("events", DRAINED_ONLY)),
        ({**STATES, **NOT_OF_A_TASK, 17: None, 19: None}, True, []),
        ({29: None}, True, lacks("events", NO_END)),
        ({29: job("RUNNING")[1]}, True, lacks("events", NO_END)),
        ({29: None}, False, []),
        ({0: None}, True, lacks("events", "trial.phase")),
    ],
)  # fmt: skip
def test_the_states_of_a_job_that_ran_are_recorded(
    changes: dict[int, Any], drained: bool, expected: list[str]
):
    """Waits for deployments, waits of tasks and the manifest say that it did."""
    assert found(changes, {**ENTRY, "drained": drained}) == expected


def empty(table: str) -> str:
    return f"{table}.parquet, column seq: has no rows, but tasks ran, finished or waited for them (events, waits)"


def grown(seconds: float) -> list[Written]:
    """Samples of a sink that received records at second 3 and that much later, and was idle before and after that."""
    counts = ((1.0, 0), (3.0, 5), (3.0 + seconds, 9), (4.5, 9))
    return [sample("b-0", t, role="sink", records_in=n) for t, n in counts]


@pytest.mark.parametrize(
    ("changes", "entry", "expected"),
    [
        ({21: None, 22: None, 23: None}, ENTRY, [empty("tasks")]),
        ({0: None, 21: None, 22: None, 23: None}, ENTRY, lacks("events", "trial.phase")),
        ({24: None}, ENTRY, [empty("checkpoints")]),
        ({24: None, 25: None, 26: None}, ENTRY, []),
        ({21: grown(1.0), 23: None}, ENTRY, [empty("channels")]),
        ({21: grown(0.999), 23: None}, ENTRY, []),
        ({21: grown(1.0), 23: None}, {"drained": True}, []),
        ({21: grown(1.0), 23: None, 27: None, 28: None}, ENTRY, []),
    ],
)  # fmt: skip
def test_a_table_has_rows_if_something_was_recorded_in_it(
    changes: dict[int, Any], entry: Row, expected: list[str]
):
    """Channels are sampled if a task received records for ten samples, and there are channels."""
    assert found(changes, entry) == expected


def test_a_table_that_was_not_read_is_not_missed():
    """A trial that is read in parts has some tables only."""
    trial = edited(HEALTHY, {21: None, 22: None, 23: None, 24: None})
    for name in ("tasks", "checkpoints"):
        tables = {n: t for n, t in trial.tables.items() if n != name}
        assert empty(name) not in texts(check_pairs(checked(Trial("r", "t", tables), ENTRY, one_clock=True)))


VALUES: dict[type, tuple[Any, Any]] = {
    str: ("x", 1),
    int: (0, "1"),
    float: (0.5, "1"),
    bool: (True, 1),
    list: ([], "[]"),
}


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, names in EVENT_DATA.items() for n in names])
def test_the_data_of_an_event_has_what_its_kind_has(kind: str, name: str):
    """A missing value, one of another type and a number below 0 are damage. A whole number may be meant as a fraction."""
    good = {n.split("|")[0]: VALUES[t][0] for n, t in EVENT_DATA[kind].items()}

    def reported(**changes: Any) -> list[str]:
        data = {n: v for n, v in (good | changes).items() if v is not None}
        trial = wrote(
            HEALTHY[10], HEALTHY[0], HEALTHY[12], ("events", event(kind)[1] | {"data": json.dumps(data)})
        )
        prefix = f"events.parquet, column data, row 2: of {kind} has "
        return [
            t.removeprefix(prefix)
            for t in texts(check_pairs(checked(trial, {}, one_clock=True)))
            if "column data" in t
        ]

    first, wanted = name.split("|", maxsplit=1)[0], EVENT_DATA[kind][name]
    assert reported() == []
    assert reported(**{first: None}) == [f"no {name}"]
    assert reported(**{first: VALUES[wanted][1]}) == [f"{str(VALUES[wanted][1])!r} as {name}, which is no {wanted.__name__}"]  # fmt: skip
    if wanted is int:
        assert reported(**{first: -1}) == [f"-1 as {name}, which is below 0"]
        assert reported(**{first: True}) == [f"'True' as {name}, which is no int"]
    if wanted is float:
        assert reported(**{first: 3}) == []
        assert reported(**{first: True}) == [f"'True' as {name}, which is no float"]
    if "|" in name:
        assert reported(**{first: None, name.split("|")[1]: 1}) == []


def test_one_event_without_its_data_is_named():
    """Others may be as damaged. Without waits or deployments, nothing is compared."""
    broken: dict[int, Any] = {18: {"data": "{}"}, 20: {"data": "{}"}}
    assert found(broken) == ["events.parquet, column data, row 12: of sink.first-record has no latency_ns"]
    waits = {n: None for n, (table, _) in enumerate(HEALTHY) if table == "waits"}
    assert found(broken | waits, {}) == [
        "waits.parquet, column seq: has no rows, but tasks ran, finished or waited for them (events, waits)"
    ]
    assert check_pairs(checked(wrote(HEALTHY[2], HEALTHY[18]), {}, one_clock=True)) == []


NOT_RECORDED: dict[int, Any] = {29: [job("FINISHED", 9), event("leadership", JM, granted=True, leader="l")]}
OF_A = "of attempt 0 of {}, which finished (task.state)"


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (2, lacks("waits", f"registration of {TM} (taskmanager.registered in events)")),
        (20, lacks("events", f"source.end {OF_A.format('a-0')}")),
        (16, lacks("events", f"gate.connected {OF_A.format('b-0')}")),
        (15, lacks("events", f"partition.request {OF_A.format('b-0')}")),
        (17, lacks("waits", f"partition {OF_A.format('b-0')}")),
        (18, ["waits.parquet, column kind, row 6: is 'first-record', but there is no sink.first-record of attempt 0 of b-0 (events)"]),
        (19, lacks("waits", "first-record of attempt 0 of b-0 (sink.first-record in events)")),
        (22, ["latency.parquet, column task: lacks attempt 0 of b-0, which received records (tasks)"]),
    ],
)  # fmt: skip
def test_an_attempt_that_finished_has_all_its_rows(missing: int, expected: list[str]):
    """Unless its TaskManager was lost or killed, or the attempt did not finish. A TaskManager that sampled a task had registered."""
    changes: dict[int, Any] = {missing: None}
    assert found(changes) == expected
    assert found(changes | NOT_RECORDED) == []
    changes[21] = {} if missing != 15 else {"records_in": 0}
    if missing == 2:
        assert found({2: None, 28: [HEALTHY[28], LOST]}) == expected
        changes |= {row: {"process": "tm-9-1"} for row in (21, 22, 23)}
    for gone in (LOST, EXIT):
        assert found({**changes, 28: [HEALTHY[28], gone]}) == []
    assert found({**changes, 28: [HEALTHY[28], ENDED]}) == expected
    cancelled = {27: state("a-0", "RUNNING", "CANCELED", 8)[1], 28: state("b-0", "RUNNING", "CANCELED", 8)[1]}
    assert found(changes | cancelled) == []


def test_the_first_of_several_restarts_is_named():
    """Two were deployed and did not start."""
    deployed = [("events", HEALTHY[14][1] | {"subject": number}) for number in ("3", "2")]
    gone = {14: deployed, **dict.fromkeys(range(3, 10))}
    assert found(gone) == lacks("events", "failover.started of restart 2 (failover.deployed)")


def test_an_attempt_that_received_records_had_requested_a_partition():
    """Also one that was killed: its last rows may be missing, but not those before its sample. Records that were in flight in a checkpoint
    need no request."""
    requested = lacks("events", "partition.request of attempt 3 of b-0, which received records (tasks)")
    for received in (0, 1, 5):
        more = [sample("b-0", 7, role="operator", attempt=3, records_in=received)]
        assert found({28: [HEALTHY[28], *more]}) == (requested if received else [])
        assert found({24: {"persisted_bytes": 1}, 28: [HEALTHY[28], *more]}) == []


def test_a_sink_that_finished_has_its_end():
    """Another task has none."""
    for role in ("sink", "operator"):
        entry = trial_entry(
            {
                "drained": True,
                "job": {"vertices": [VERTICES[0], VERTICES[1] | {"role": role}], "edges": EDGES},
            }
        )
        ended = event("sink.end", "b-0", attempt=0, process=TM)
        missing = lacks("events", f"sink.end {OF_A.format('b-0')}")
        assert found({}, entry) == (missing if role == "sink" else [])
        assert found({20: [HEALTHY[20], ended]}, entry) == []


def test_only_a_sink_without_a_record_waited_for_its_first_one_until_it_was_closed():
    """Such a wait has no event, and an event no such wait."""
    assert found({18: None, 19: {"outcome": "cancelled"}}) == []
    assert found({19: {"outcome": "cancelled"}}) == [
        "waits.parquet, column outcome, row 6: is 'cancelled', but b-0 received its first record in attempt 0 "
        "(sink.first-record in events)"
    ]


def test_of_a_vertex_that_is_not_in_the_manifest_nothing_is_missed():
    """The head of an iteration has a task more."""
    assert found({15: None, 16: None, 17: None, 20: None}, {"drained": True}) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"role": "operator"}, []),
        ({"records_in": 0}, []),
        (
            {"records_in": 1},
            ["latency.parquet, column task: lacks attempt 0 of b-0, which received records (tasks)"],
        ),
    ],
)
def test_only_a_sink_that_received_records_measures_latencies(change: Row, expected: list[str]):
    """Others have none."""
    assert found({21: change, 22: None}) == expected


NO_DEPLOYMENT = lacks("waits", "deployment of attempt 0 of b-0 (task.state in events)")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({1: None}, lacks("events", f"taskmanager.registered of {TM}, to which a-0 was deployed (task.state)")),
        ({13: None}, NO_DEPLOYMENT),
        ({13: {"attempt": 1}}, NO_DEPLOYMENT),
        ({13: [state("b-0", "DEPLOYING", "CANCELED")]}, []),
        ({13: [state("b-0", "DEPLOYING", "CANCELING")]}, []),
        ({13: [state("b-0", "DEPLOYING", "FAILED")]}, []),
        ({13: [state("b-0", "DEPLOYING", "RUNNING")]}, NO_DEPLOYMENT),
        ({13: [state("b-0", "RUNNING", "FAILED")]}, NO_DEPLOYMENT),
        ({2: {"what": "x", "who": TM}}, []),
        ({2: {"what": "x"}}, lacks("waits", f"registration of {TM} (taskmanager.registered in events)")),
        ({1: [HEALTHY[1], event("taskmanager.registered", "tm-9-1", slots=1)]}, []),
    ],
)  # fmt: skip
def test_each_attempt_was_deployed_to_a_taskmanager_that_had_registered(
    changes: dict[int, Any], expected: list[str]
):
    """An attempt that ended while DEPLOYING may not have been submitted."""
    assert found(changes) == expected


def of_restart(kind: str, number: int, row: int) -> list[str]:
    return [f"events.parquet, column subject, row {row}: of {kind} is {number}, but no such restart started"]


ENDS = "waits.parquet, column kind: has no {} that restart 1 ended ({} in events)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        *(({row: None}, lacks("events", f"{kind} of restart 1 (failover.deployed)")) for row, kind in ((3, "failover.failure"), (6, "failover.cancelled"), (8, "failover.slots"), (9, "failover.attempt"))),
        ({3: None, 14: None}, []),
        ({6: None, 14: None}, []),
        ({6: [HEALTHY[6], event("failover.cancelled", "2", 1)]}, of_restart("failover.cancelled", 2, 5)),
        ({3: [HEALTHY[3], event("failover.failure", "2", **FAILED)]}, []),
        ({14: {"subject": "2"}, **dict.fromkeys((3, 4, 5, 6, 7, 8, 9))}, lacks("events", "failover.started of restart 2 (failover.deployed)")),
        ({5: [HEALTHY[5], wait("cancellation", attempt=1, t=9)]}, []),
        ({6: [HEALTHY[6], event("failover.cancelled", "3", 1), event("failover.cancelled", "2", 1)]}, [of_restart("failover.cancelled", 2, 6)[0]]),
        ({5: {"t": 2}}, []),
        ({5: {"t": 0}}, []),
        ({5: {"t": 2.001}}, [ENDS.format("cancellation", "failover.cancelled")]),
        ({5: {"t": -0.001}}, [ENDS.format("cancellation", "failover.cancelled")]),
        ({5: None}, [ENDS.format("cancellation", "failover.cancelled")]),
        ({7: {"t": 2.001}}, [ENDS.format("slot", "failover.slots")]),
        ({7: {"t": 2.0}}, []),
        ({5: {"attempt": 2}}, ["waits.parquet, column attempt, row 1: of this cancellation wait is 2, but no such restart started"]),
        ({5: {"attempt": 2, "process": TM}}, []),
        ({7: [HEALTHY[7], wait("fencing", attempt=2)]}, ["waits.parquet, column attempt, row 3: of this fencing wait is 2, but no such restart started"]),
        ({7: [HEALTHY[7], wait("restart-delay", attempt=2)]}, ["waits.parquet, column attempt, row 3: of this restart-delay wait is 2, but no such restart started"]),
        ({7: [HEALTHY[7], wait("slot", attempt=2)]}, []),
        ({7: [wait("restart-delay", attempt=2, process=TM), HEALTHY[7], wait("fencing", attempt=2)]}, ["waits.parquet, column attempt, row 4: of this fencing wait is 2, but no such restart started"]),
    ],
)  # fmt: skip
def test_a_restart_that_was_deployed_has_all_its_steps(changes: dict[int, Any], expected: list[str]):
    """Its cancellation and its slots were awaited, to a second. A failure may end the job instead of a restart."""
    assert found(changes) == expected


@pytest.mark.parametrize("name", CAUSE)
def test_a_restart_starts_for_the_cause_of_one_of_its_failures(name: str):
    """Each of the three parts counts. Without a failure nothing is known."""
    other = event("failover.failure", "1", **FAILED | {name: "other"})
    problem = "events.parquet, column data, row 3: of failover.started 1 has another cause than each failover.failure of it"
    assert found({3: [other]}) == [problem]
    assert found({3: [other, HEALTHY[3]]}) == []
    assert found({3: None, 14: None}) == []


def test_a_restart_has_the_text_of_one_of_its_failures():
    """One that differs from all of them was changed. Without a failure nothing is known."""
    problem = "events.parquet, column text, row 3: of failover.started 1 is not that of any failover.failure of it: 'other'"
    assert found({4: {"text": "other"}}) == [problem]
    assert found({3: [HEALTHY[3], ("events", HEALTHY[3][1] | {"text": "other"})], 4: {"text": "other"}}) == []
    assert found({3: None, 4: {"text": "other"}, 14: None}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({25: None}, lacks("waits", "checkpoint for checkpoint 1, which was completed (checkpoints)")),
        ({26: None}, lacks("waits", "completion for checkpoint 1, which was completed (checkpoints)")),
        ({25: {"process": "jobmanager-2"}}, lacks("waits", "checkpoint for checkpoint 1, which was completed (checkpoints)")),
        ({24: [HEALTHY[24], HEALTHY[24]]}, lacks("waits", "checkpoint for checkpoint 1, which was completed (checkpoints)")),
        ({24: {"state": "failed"}, 25: None, 26: None}, []),
        ({24: [HEALTHY[24], ("checkpoints", HEALTHY[24][1] | {"checkpoint": 2})], 25: None}, lacks("waits", "checkpoint for checkpoint 1, which was completed (checkpoints)")),
    ],
)  # fmt: skip
def test_each_completed_checkpoint_was_awaited(changes: dict[int, Any], expected: list[str]):
    """As often as it was completed."""
    assert found(changes) == expected


BEAT = wait("heartbeat", what="tm-1-1", t=2, outcome="expired")


@pytest.mark.parametrize(
    ("t", "heartbeat", "is_damaged"),
    [
        (2, {}, False), (3, {}, False), (1, {}, False), (3.001, {}, True), (0.999, {}, True),
        (2, {"outcome": "fired"}, True), (2, {"who": "ResourceManager"}, True), (2, {"what": "tm-2-1"}, True), (2, {"kind": "slot"}, True),
    ],
)  # fmt: skip
def test_a_taskmanager_was_lost_when_its_heartbeat_expired(t: float, heartbeat: Row, is_damaged: bool):
    """To a second. One that was lost by its connection had no such wait."""
    beat = ("waits", BEAT[1] | heartbeat)
    lost = event("taskmanager.lost", "tm-1-1", t, detector="JobMaster", cause_class="E", wait="heartbeat")
    closed = event("taskmanager.lost", "tm-1-1", t, detector="JobMaster", cause_class="E", wait="connection")
    problem = "events.parquet, column t_ns, row 16: of taskmanager.lost is not the end of a heartbeat of tm-1-1 (waits)"
    assert found({28: [HEALTHY[28], beat, lost]}) == ([problem] if is_damaged else [])
    assert found({28: [HEALTHY[28], beat, closed]}) == []


@pytest.mark.parametrize(
    ("change", "is_damaged"),
    [
        ({}, False),
        ({"side": "producer", "task": "a-0", "peer": "b-0"}, False),
        ({"side": "producer"}, True),
        ({"task": "a-0", "peer": "b-0"}, True),
        ({"peer": "a-1"}, True),
        ({"peer": "c-0"}, True),
    ],
)
def test_a_channel_is_on_an_edge_of_the_job(change: Row, is_damaged: bool):
    """Its task receives from or sends to the other vertex, and both subtasks exist."""
    row = CHANNEL[1] | change
    problem = f"channels.parquet, column peer: is {row['peer']!r} in a channel of {row['task']} ({row['side']}), but the job has no such edge"
    assert [t for t in found({23: change}) if "column peer" in t] == ([problem] if is_damaged else [])
    assert [t for t in found({23: change}, {"job": {"vertices": VERTICES}}) if "column peer" in t] == []


@pytest.mark.parametrize(
    ("spent", "expected"),
    [
        ((1, 1, 1), ""),
        ((1, 1, 1.001), "idle_ns, row 0: makes b-0 spend 1.0 s more than passed since its deployment (task.state in events)"),
        ((2, 1, 1.5), "busy_ns, row 0: makes b-0 spend 2.5 s more than passed since its deployment (task.state in events)"),
        ((1, 3, 1.5), "backpressured_ns, row 0: makes b-0 spend 3.5 s more than passed since its deployment (task.state in events)"),
    ],
)  # fmt: skip
def test_an_attempt_spends_no_more_time_than_since_its_deployment(spent: tuple[float, ...], expected: str):
    """Its sample at second 3 is 2 s after its deployment. Clocks of several machines are not compared."""
    names = ("busy_ns", "backpressured_ns", "idle_ns")
    change = {name: round(seconds * NS) for name, seconds in zip(names, spent, strict=True)}
    rows = [("tasks", HEALTHY[21][1] | change), sample("b-0", 3.01, role="sink", records_in=5)]
    assert found({21: rows}) == ([f"tasks.parquet, column {expected}"] if expected else [])
    assert found({21: rows}, one_clock=False) == []
    unknown = [("tasks", row | {"attempt": 7, "records_in": 0}) for _, row in rows]
    assert found({21: unknown, 22: None, 23: None}) == []


def unsampled(samples: tuple[float, ...], rows: tuple[float, ...], table: str = "channels") -> list[str]:
    written: list[Written] = [sample("b-0", t, role="sink", records_in=5) for t in samples]
    written += [("latency" if table == "latency" else "channels", (WINDOW if table == "latency" else CHANNEL)[1] | {"t": t}) for t in rows]  # fmt: skip
    return found({21: written, 22: WINDOW[1] | {"t": 3.0}, 23: None})


@pytest.mark.parametrize(
    ("samples", "rows", "late"),
    [
        ((3,), (4.1,), None),
        ((3,), (4.101,), 1.1),
        ((3,), (3.5, 4.3), 1.3),
        ((3, 6.0), (5.0,), None),
        ((3, 6.001), (5.0,), 2.0),
        ((3, 6.001), (5.001,), None),
        ((3, 6.1), (5.001,), 2.0),
        ((3, 6.0), (4.2,), None),
        ((3, 9), (4.1,), None),
        ((3, 9, 10), (9.5,), None),
        ((3, 4, 5), (5.9,), None),
    ],
)
def test_a_task_whose_other_rows_go_on_is_sampled(
    samples: tuple[float, ...], rows: tuple[float, ...], late: float | None
):
    """It lacks samples for 1.1 s at its end, or for 3 s in between: its process may be paused, and then it writes nothing for long."""
    problem = f"tasks.parquet, column t_ns: of the last sample of attempt 0 of b-0 is {late} s before its next row in "
    for table in ("channels", "latency"):
        assert unsampled(samples, rows, table) == ([f"{problem}{table} ({TM})"] if late else [])


def test_a_task_that_reads_restored_input_has_no_sample_until_it_runs():
    """Its output is sampled meanwhile, for 2 s here. One that fails before it runs has no sample."""
    begin = state("b-0", "DEPLOYING", "INITIALIZING", 2)
    end = state("b-0", "INITIALIZING", "RUNNING", 5.0)
    rows = [("channels", CHANNEL[1] | {"t": t}) for t in (3.0, 4.2, 4.9, 5.1)]
    sampled = [sample("b-0", 5.2, role="sink", records_in=5), *rows]
    assert found({11: [HEALTHY[11], begin, end], 21: sampled, 23: None}) == []
    assert found({11: [HEALTHY[11], begin], 21: sample("a-0")[1] | {"role": "source"}, 23: rows}) == []
    failed = {21: sample("a-0")[1] | {"role": "source"}, 23: rows}
    assert found(failed, ENTRY | {"flinkVersion": "1.12"}) == [], "it reports no INITIALIZING"
    assert len(found(failed, ENTRY | {"flinkVersion": "1.13"})) == 1
    late = [*rows, ("channels", CHANNEL[1] | {"t": 6.3})]
    (missing,) = found(
        {
            11: [HEALTHY[11], begin, end],
            21: sample("b-0", 5.1)[1] | {"role": "sink", "records_in": 5},
            23: late,
        }
    )
    assert "is 1.2 s before its next row in channels" in missing


def test_a_task_without_any_sample_is_missed_after_its_first_row():
    """One sampling interval and a second."""
    (missing,) = found(
        {21: sample("a-0")[1] | {"role": "source"}, 22: [WINDOW, ("latency", WINDOW[1] | {"t": 4.101})]}
    )
    assert missing.startswith(
        "tasks.parquet, column t_ns: of the last sample of attempt 0 of b-0 is 1.1 s before"
    )
    assert (
        found({21: sample("a-0")[1] | {"role": "source"}, 22: [WINDOW, ("latency", WINDOW[1] | {"t": 4.1})]})
        == []
    )


@pytest.mark.parametrize(
    ("began", "ended", "expected"),
    [
        ((1, "RUNNING"), (6, "RUNNING", "CANCELED"), ""),
        ((1, "RUNNING"), (6.001, "RUNNING", "CANCELED"), "lacks tm-7-1, on which c-0 ran for 5 s (task.state in events)"),
        ((1, "RUNNING"), (7, "RUNNING", "FAILED"), "lacks tm-7-1, on which c-0 ran for 6 s (task.state in events)"),
        ((1, "INITIALIZING"), (7, "RUNNING", "FAILED"), ""),
        ((1, "RUNNING"), (7, "INITIALIZING", "FAILED"), ""),
        ((1, "RUNNING"), (7, "INITIALIZING", "RUNNING"), ""),
    ],
)  # fmt: skip
def test_a_taskmanager_on_which_a_task_ran_for_long_wrote_rows(
    began: tuple[float, str], ended: tuple[float, str, str], expected: str
):
    """Longer than 5 s. One that did write has none to miss."""
    for on in ("tm-7-1", TM):
        states = [
            state("c-0", "DEPLOYING", began[1], began[0], on=on),
            state("c-0", ended[1], ended[2], ended[0], on=on),
        ]
        problem = [f"tasks.parquet, column process: {expected}"] if expected and on != TM else []
        assert found({28: [HEALTHY[28], *states]}) == problem


BUFFERS = event("network.buffers", TM, process=TM, used=1, total=9)
POOLS = event("network.pools", TM, process=TM, pools=[], free=0, others=0)
OTHER_POOLS = event("network.pools", "tm-9-1", process="tm-9-1", pools=[], free=0, others=0)


@pytest.mark.parametrize(
    ("wrote", "samples", "expected"),
    [
        ((BUFFERS, POOLS), 20, ""),
        ((POOLS,), 20, "network.buffers"),
        ((BUFFERS, OTHER_POOLS), 20, "network.pools"),
        ((BUFFERS,), 20, ""),
        ((), 19, ""),
    ],
)
def test_a_taskmanager_that_samples_a_task_records_its_buffers(
    wrote: tuple[Written, ...], samples: int, expected: str
):
    """Once a second, if they changed: the first time they have. A job without connections has none, and an earlier version no pools."""
    taken = [sample("b-0", 3 + n / 10, role="operator", records_in=5) for n in range(samples)]
    changes = {21: [*wrote, *taken], 22: None, 23: None}
    problem = lacks("events", f"{expected} of {TM}, which took {samples} samples of b-0 (tasks)")
    assert found(changes) == (problem if expected else [])
    no_edges = {"drained": True, "job": {"vertices": VERTICES, "edges": []}}
    assert not [text for text in found(changes, no_edges) if "network." in text]
