"""Causes, faults, waits and answers: which rows count, at which edge, and how the result is worded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.failovers import (
    Cause,
    check_failovers,
    failures,
    first_cause,
    root_cause,
    round_causes,
)
from testbed_runtime.checking.faults import FaultEffect, check_faults, residue_of, targets_of
from testbed_runtime.checking.pieces import owner_text
from testbed_runtime.checking.rounds import responsible
from testbed_runtime.checking.steps import detection, steps
from testbed_runtime.checking.trace import trace_events
from testbed_runtime.checking.waitcauses import busy_texts
from testbed_runtime.checking.waits import fault_wait, lasts_until, read_waits
from testbed_runtime.core.judgement.recovery import (
    Recovery,
    Round,
    Segment,
    TrialRecovery,
    with_detail,
)
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.waits import KINDS, Outcome, Wait
from tests.manifests import trial_entry

NS = 1_000_000_000


def effect(
    kind: str = "process.pause", span: tuple[float, float | None] = (1, 3), **more: Any
) -> FaultEffect:
    """A verified fault `f` on tm-1, over seconds."""
    ended = None if span[1] is None else round(span[1] * NS)
    values = {"fault": "f", "verified": True, "residue": False, "targets": '["tm-1"]', "text": ""} | more
    return FaultEffect(kind=kind, injected_ns=round(span[0] * NS), ended_ns=ended, **values)


def waited(kind: str, start: float, end: float, **more: Any) -> Wait:
    values = {"wait": "tm-0-1/1", "who": "tm-0-1", "what": ""} | more
    return Wait(kind=kind, start_ns=round(start * NS), end_ns=round(end * NS), **values)


# ---- the root cause


@pytest.mark.parametrize(
    ("cause_class", "root", "words"),
    [("A", "", "A: b; caused by E: y"), ("", "", "b; caused by E: y"), ("E", "E: x", "E: x")],
)
def test_the_root_cause_is_what_suppressed_recovery_wraps(
    history: Any, cause_class: str, root: str, words: str
):
    """It is recorded beside Flink's text, which says nothing more about it."""
    built = history.empty()
    data = {"from": "FAILING", "to": "FAILED", "cause_class": cause_class, "root": root}
    built.event("job.state", "job", 1, text="b; caused by E: y", data=data)
    assert root_cause(built.trial(), history.at(2)) == words


def test_a_job_that_restarts_has_the_cause_of_its_last_restart(history: Any):
    """One that runs or finished has none, and neither has one that never failed."""
    built = history.empty()
    moves = [
        (1, "CREATED", "RUNNING"),
        (5, "RUNNING", "RESTARTING"),
        (7, "RESTARTING", "RUNNING"),
        (9, "RUNNING", "CANCELED"),
    ]
    for t, before, after in moves:
        built.event("job.state", "job", t, data={"from": before, "to": after})
    for t, text in ((5, "first"), (5.5, "second"), (8, "third")):
        built.event("failover.started", str(t), t, text=text, data={"cause_class": "E"})
    trial = built.trial()
    found = [root_cause(trial, history.at(t)) for t in (0, 2, 5.2, 5.5, 6, 7, 9)]
    assert found == ["", "", "E: first", "E: second", "E: second", "", "E: third"]
    never = history.empty()
    never.event("job.state", "job", 1, data={"to": "RESTARTING"})
    assert root_cause(never.trial(), history.at(2)) == ""


# ---- failures


def test_failures_are_restarts_states_and_the_end_each_once(history: Any):
    """A change to RESTARTING at the same moment is the same restart; of failures within 0.1 s the first counts, the last one always."""
    built = history.empty()
    for t, number in ((5, "1"), (5.1, "2"), (5.201, "3")):
        built.event("failover.started", number, t, text=f"f{number}", data={"cause_class": "E"})
    built.event("failover.started", "1", 5, text="f1", data={"cause_class": "E"})
    for t, to in (
        (5.001, "RESTARTING"),
        (6, "RESTARTING"),
        (7, "FAILING"),
        (7.05, "FAILED"),
        (7.2, "FAILED"),
    ):
        built.event("job.state", "job", t, text=to, data={"to": to, "cause_class": "X"})
    for number, attempt in (("1", 1), ("1", 1), ("1", 2), ("2", 1)):
        built.event("failover.attempt", number, 5.3, data={"attempt": attempt})
    trial = built.trial()
    assert [c.text for c in failures(trial)] == ["f1", "f1", "f2", "f3", "RESTARTING", "FAILING"]
    assert [(c.text, c.terminal) for c in round_causes(trial)] == [
        ("f1", False),
        ("f3", False),
        ("RESTARTING", False),
        ("FAILING", True),
    ]
    counted = check_failovers(trial)
    assert (counted.count, counted.attempts) == (3, 3)


def test_the_first_cause_is_a_failover_a_lost_taskmanager_or_the_end_of_the_job(history: Any):
    """In this order, whatever came first."""
    built = history.empty()
    assert first_cause(built.trial()) is None
    built.event("job.state", "job", 7, text="end", data={"to": "FAILED"})
    assert first_cause(built.trial()).text == "end"
    built.event("taskmanager.lost", "tm-1-1", 8, text="lost", data={"detector": "ResourceManager"})
    lost = first_cause(built.trial())
    assert (lost.text, lost.taskmanager, lost.detector, lost.terminal) == (
        "lost",
        "tm-1-1",
        "ResourceManager",
        False,
    )
    built.event("failover.started", "1", 8.5, text="failed")
    found = first_cause(built.trial())
    assert (found.text, found.taskmanager, found.detector, found.cause_class) == ("failed", "", "Task", "")


# ---- faults


def test_a_fault_is_what_its_rows_say(history: Any):
    """Every target's last row must verify it, its residue is unknown without a row, and a lapsed lease voids it."""
    built = history.empty()
    rows = [
        ("kill", 1, "injected", ["tm-0"]), ("kill", 2, "verified", ["tm-0"]), ("kill", 3, "ended", ["tm-0"]),
        ("kill", 4, "ended", ["tm-0"]), ("kill", 5, "clean", ["tm-0"]),
        ("half", 1, "verified", ["tm-0"]), ("half", 2, "unverified", ["tm-1"]), ("half", 3, "residue", ["tm-1"]), ("half", 4, "clean", ["tm-0"]),
        ("later", 1, "unverified", ["tm-0"]), ("later", 2, "verified", ["tm-0"]),
        ("void", 1, "verified", ["tm-0"]), ("void", 2, "voided", ["tm-0"]),
    ]  # fmt: skip
    for name, t, state, targets in rows:
        built.add(
            "supervisor", "faults", t, fault=name, state=state, targets=targets, kind="k", text=f"{state}"
        )
    trial = built.trial()
    planned = trial_entry({"faults": [{"name": "asked"}, {"name": "kill"}]})
    found = {e.fault: e for e in check_faults(trial, planned)}
    assert list(found) == ["asked", "kill", "half", "later", "void"]
    assert {n: (e.verified, e.residue, e.voided, e.reason) for n, e in found.items()} == {
        "asked": (False, None, False, "FaultNotVerified"),
        "kill": (True, False, False, ""),
        "half": (False, True, False, "FaultNotVerified"),
        "later": (True, None, False, ""),
        "void": (False, None, True, "Voided"),
    }
    kill = found["kill"]
    assert (kill.begun_ns, kill.ended_ns, kill.text) == (
        history.at(1),
        history.at(4),
        "injected; verified; ended; clean",
    )
    assert (found["asked"].begun_ns, found["later"].ended_ns) == (0, None)
    assert [e.fault for e in check_faults(trial, replace(planned, role="control"))] == list(found)[1:]
    clean, unknown, left = found["kill"], found["asked"], found["half"]
    assert residue_of([clean]) == (0, "")
    assert residue_of([clean, left, left]) == (2, "")
    assert residue_of([clean, unknown]) == (None, "ResidueNotMeasured")
    assert residue_of([unknown, left]) == (1, "")


@pytest.mark.parametrize(
    ("text", "targets"), [('["tm-1", "tm-2"]', ["tm-1", "tm-2"]), ("", []), ("{", []), ("{}", [])]
)
def test_targets_are_a_list_of_names(text: str, targets: list[str]):
    """Anything else is none."""
    assert targets_of(effect(targets=text)) == targets


def test_the_fault_behind_a_failure_hit_what_it_names_or_was_the_last_before_it():
    """A late registration only explains a missing partition."""
    first, second, late = (
        effect(span=(1, 2), fault="a"),
        effect(span=(2, 3), fault="b", targets="[]"),
        effect(span=(6, 7), fault="c"),
    )
    registration = effect("registration.delay", (3, 4), fault="r", targets='["tm-0"]')
    cause = Cause(5 * NS, "t", "E", "Task", "tm-1-1")
    every = [late, registration, second, first]
    assert responsible(every, cause).fault == "a"
    assert responsible(every, replace(cause, taskmanager="")).fault == "b"
    assert responsible(every, replace(cause, taskmanager="", kind="partition")).fault == "r"
    assert responsible([registration], cause).fault == "r"
    assert responsible([second], replace(cause, t_ns=2 * NS)).fault == "b"
    assert responsible([late], cause) is None


# ---- waits


@pytest.mark.parametrize(
    ("fault", "wait", "words"),
    [
        (effect(), waited("stalled", 1, 3, who="tm-1-1"), "tm-1's return (paused by the fault `f`)"),
        (effect(), waited("stalled", 1, 3), KINDS["stalled"].doc),
        (effect("jobmanager.kill", targets='["jobmanager"]'), waited("jobmanager", 1, 3), "the JobManager's return (killed by the fault `f`)"),
        (effect("jobmanager.pause", targets='["jobmanager"]'), waited("jobmanager", 1, 3), "the JobManager's return (paused by the fault `f`)"),
        (effect("store.slow"), waited("restore", 1, 3), f"{KINDS['restore'].doc}, during the fault `f`"),
        (effect("store.slow"), waited("partition", 1, 3), KINDS["partition"].doc),
        (effect("jobmanager.pause", targets='["jobmanager"]'), waited("failure-report", 1, 3), f"{KINDS['failure-report'].doc}, during the fault `f`"),
        (effect("network.stall"), waited("first-record", 1, 3), f"{KINDS['first-record'].doc}, during the fault `f`"),
        (effect("rpc.delay", targets='["tm-0"]'), waited("jobmanager", 1, 3), f"{KINDS['jobmanager'].doc}, during the fault `f`"),
        (effect("registration.delay"), waited("partition", 1, 3), f"{KINDS['partition'].doc}, during the fault `f`"),
        (effect("rpc.delay"), waited("slot", 2, 2.25), f"{KINDS['slot'].doc}, during the fault `f`"),
        (effect("rpc.delay"), waited("slot", 2, 2.249), KINDS["slot"].doc),
        (effect("rpc.delay"), waited("slot", 2, 2.001, outcome=Outcome.EXPIRED), f"{KINDS['slot'].doc}, during the fault `f`"),
        (effect("rpc.delay"), waited("slot", 0, 1), KINDS["slot"].doc),
        (effect("rpc.delay"), waited("slot", 3, 4), KINDS["slot"].doc),
        (effect("rpc.delay", (1, None)), waited("slot", 3, 4), f"{KINDS['slot'].doc}, during the fault `f`"),
    ],
)  # fmt: skip
def test_a_wait_is_blamed_on_the_fault_that_made_it_long(
    history: Any, fault: FaultEffect, wait: Wait, words: str
):
    """Only the kinds that such a fault holds up, while it lasted, and from 0.25 s on, or however soon they expired."""
    built = history.empty()
    built.wait(wait.kind, wait.who, "", (wait.start_ns / NS, wait.end_ns / NS), outcome=wait.outcome.value)
    moved = replace(
        fault,
        injected_ns=fault.begun_ns + history.start,
        ended_ns=fault.ended_ns and fault.ended_ns + history.start,
    )
    (found,) = [
        w
        for w in read_waits(built.trial(), trial_entry(), [moved], history.at(9))
        if w.wait.startswith("jobmanager-1/")
    ]
    assert found.cause == words


@pytest.mark.parametrize(
    ("kind", "planes"),
    [
        *((kind, ("rpc", "both")) for kind in ("jobmanager", "slot", "deployment", "failure-report")),
        *((kind, ("data", "both")) for kind in ("first-record", "connection")),
        ("partition", ("data", "rpc", "both")),
    ],
)
def test_a_fault_of_the_network_holds_up_only_what_is_on_its_plane(
    history: Any, kind: str, planes: tuple[str, ...]
):
    """A consumer requests a partition from its producer, and asks the JobMaster about it. The rest is either calls or data."""
    built = history.empty()
    built.wait(kind, "tm-1-1", "", (1.0, 3.0))
    blamed = []
    for plane in ("data", "rpc", "both"):
        span = {"injected_ns": history.at(0), "ended_ns": history.at(4)}
        cut = replace(effect("network.partition"), plane=plane, **span)
        (found,) = [
            w for w in read_waits(built.trial(), trial_entry(), [cut], history.at(9)) if w.kind == kind
        ]
        blamed += [plane] if found.fault == "f" else []
    assert tuple(blamed) == planes


def test_busy_components_are_named_by_their_option():
    """Only with a service time above 0. Of two, the longer one delays what both of them do."""
    key, other = "headgate.jobmanager.service-time", "headgate.taskmanager.service-time"
    assert busy_texts(trial_entry()) == {}
    assert busy_texts(trial_entry({"configuration": {key: "0 ms"}})) == {}
    assert busy_texts(trial_entry({"configuration": {key: "100 ms"}}))["jobmanager"] == f"{key} = 100 ms"
    found = busy_texts(trial_entry({"configuration": {key: "100 ms", other: "2 s"}}))
    assert (found["jobmanager"], found["deployment"]) == (f"{key} = 100 ms", f"{other} = 2 s")
    assert "jobmanager" not in busy_texts(trial_entry({"configuration": {other: "2 s"}}))


def test_the_end_of_a_fault_names_a_sender_that_had_no_credit_for_half_of_it():
    """The sums of each sender count, within the span only."""
    credit = {"who": "map-0", "what": "sink-0", "option": "o", "value": "2"}
    half = [waited("credit", 0, 2, **credit), waited("credit", 2.5, 9, **credit)]
    found = fault_wait(effect("frames.drop"), NS, 3 * NS, half)
    assert (found.cause, found.fault) == ("end of the fault `f`", "f")
    assert found.detail == "frames.drop, map-0 waited for credit of sink-0: o = 2"
    for less in (half[:1], [], [waited("slot", 0, 9)]):
        assert fault_wait(effect("frames.drop"), NS, 3 * NS, less).detail == "frames.drop"
    kinds = {
        k: fault_wait(effect(k), 0, NS).kind
        for k in ("process.pause", "jobmanager.pause", "jobmanager.kill", "frames.drop")
    }
    assert list(kinds.values()) == ["stalled", "stalled", "stalled", "fault"]
    killed = effect("process.kill")
    assert [fault_wait(killed, 0, NS, missed=missed).kind for missed in (False, True)] == ["fault", "stalled"]
    assert fault_wait(killed, 0, NS) == fault_wait(killed, 0, NS, missed=False)


@pytest.mark.parametrize(
    ("kind", "ended", "missed", "until"),
    [
        ("process.kill", 3, True, 9), ("process.kill", 3, False, 3), ("process.pause", 3, True, 3), ("process.pause", None, False, 9),
    ],
)  # fmt: skip
def test_a_process_that_was_killed_is_missed_after_the_fault(
    kind: str, ended: float | None, missed: bool, until: int
):
    """A job waits for one that is only paused until the fault ends."""
    assert lasts_until(effect(kind, (1, ended)), 9 * NS, missed=missed) == until * NS


def test_the_restore_lasts_until_the_last_task_has_its_state(history: Any):
    """It begins when the tasks have their slots."""
    built = history.empty()
    built.event("task.state", "sink-0", 1.0, attempt=0, data={"from": "SCHEDULED", "to": "DEPLOYING"})
    for number, t in enumerate((2.0, 3.0, 4.0)):
        built.event("task.restored", f"sink-{number}", t, attempt=0, checkpoint=1)
    found = steps(
        built.trial(), since=history.at(0), until=history.at(9), restart=False, running_ns=history.at(5)
    )
    (restore,) = [s for s in found if s.kind == "restore"]
    assert (restore.start_ns, restore.end_ns) == (history.at(1), history.at(4))


@pytest.mark.parametrize(
    ("cause_class", "kind", "words"),
    [
        ("JobMasterException", "heartbeat", "missing heartbeats"),
        ("E", "connection", KINDS["connection"].doc),
        ("E", "checkpoint", "the next checkpoint, by execution.checkpointing.interval"),
        ("E", "failure-report", "detection of E"),
        ("", "failure-report", "detection of the failure"),
    ],
)
def test_a_detection_is_worded_by_its_kind(cause_class: str, kind: str, words: str):
    """It lasts from the effect to the moment at which the JobMaster knew."""
    (found,) = detection(Cause(5 * NS, "t", cause_class, "Task", "", kind=kind), 2 * NS)
    assert (found.kind, found.cause, found.seconds, found.who) == (kind, words, 3.0, "JobMaster")


# ---- answers


def test_an_answer_has_the_seconds_and_reasons_of_its_outage(history: Any):
    """Detection 1.5 s, delay and slots 0.8 s, deployment 0.5 s, first records 0.3 s; the rest is the backlog."""
    (found,) = trial_recovery(history.good(), history.entry()).recoveries
    assert (found.fault, found.recovered, found.reason, found.downtime_s) == (
        "kill",
        True,
        "",
        pytest.approx(3.1),
    )
    assert found.total_s == pytest.approx(sum(p.seconds for p in found.prices) + found.unattributed_s)
    (one,) = found.rounds
    assert (one.number, one.ended_by, one.failure, one.cause_class) == (
        1,
        "running",
        "",
        "JobMasterException",
    )
    assert one.seconds == pytest.approx(found.total_s)
    backlog = next(p for p in found.prices if p.kind == "catch-up")
    assert backlog.words == "spare capacity of the job (backlog of 4.10 s, 980 ms of it replayed)"
    written = json.loads(json.dumps(trial_recovery(history.good(), history.entry()).to_json()))
    assert written["recoveries"][0]["rounds"][0]["number"] == 1
    assert Recovery(fault="", effect_ns=NS, end_ns=3 * NS).total_s == 2.0
    assert Round(number=1, start_ns=NS, end_ns=3 * NS).seconds == 2.0


def test_a_job_that_stands_still_after_its_fault_does_not_catch_up(history: Any):
    """Its sinks receive nothing more, also after the fault. That is no lack of capacity."""

    def stuck(table: str, row: dict[str, Any]) -> dict[str, Any] | None:
        after = row["t_ns"] > history.at(8)
        if table == "waits" or (table == "events" and after and row["kind"] != "job.state"):
            return None
        if table == "faults":
            return row | {"kind": "frames.drop"}
        silent = {"attempt": 0, "records_in": 8000, "lag_ns": row["t_ns"] - history.at(8)}
        return row | silent if table == "tasks" and after else row

    (found,) = trial_recovery(history.good(stuck), history.entry()).recoveries
    last = found.prices[0]
    assert (found.recovered, last.seconds) == (False, pytest.approx(15.0, abs=0.1))
    assert last.words.startswith("a job that stands still")


def test_the_replay_since_a_checkpoint_owns_the_wait_for_a_first_record(history: Any):
    """Only of an attempt that was restored, and from 0.25 s on."""
    built = history.empty()
    built.event("task.restored", "sink-0", 1, attempt=1, checkpoint=7)
    for span, attempt in (((1, 1.25), 1), ((1, 1.249), 1), ((1, 2), 2)):
        built.wait("first-record", "sink-0", "", span, attempt=attempt)
    built.wait("first-record", "sink-0", "", (1, 3), outcome="open", attempt=1)
    built.wait("partition", "sink-0", "", (1, 4), attempt=1)
    found = {
        w.wait: with_detail(w.cause, w.detail)
        for w in read_waits(built.trial(), history.entry(), [], history.at(9))
    }
    usual = KINDS["first-record"].doc
    assert found == {
        "jobmanager-1/1": "replay since checkpoint 7 (execution.checkpointing.interval = 1 s)",
        "jobmanager-1/2": usual,
        "jobmanager-1/3": usual,
        "jobmanager-1/4": usual,
        "jobmanager-1/5": KINDS["partition"].doc,
    }


@pytest.mark.parametrize(("received", "replay"), [(0, False), (5, True)])
def test_a_sink_that_received_nothing_before_its_first_new_record_waited_for_no_replay(
    history: Any, received: int, replay: bool
):
    """It has samples until 0.1 s before its first new record."""
    built = history.empty()
    built.event("task.restored", "sink-0", 1, attempt=1, checkpoint=7)
    built.wait("first-record", "sink-0", "", (1, 3), attempt=1)
    for t, records in ((1.0, 0), (2.9, received), (3.0, 9)):
        built.add(
            "tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", attempt=1, records_in=records
        )
    (found,) = read_waits(built.trial(), history.entry(), [], history.at(9))
    assert found.cause.startswith("replay") is replay


def at(history: Any, fault: FaultEffect) -> FaultEffect:
    """Move a fault to the clock of the history."""
    return replace(
        fault,
        injected_ns=fault.begun_ns + history.start,
        ended_ns=fault.ended_ns and fault.ended_ns + history.start,
    )


def test_a_fault_that_stops_a_process_is_a_wait_of_everything(history: Any):
    """One for each target, open until the end if the fault did not end. Other faults and faults that never began are none."""
    faults = [
        at(history, effect(targets='["tm-0", "tm-1"]')),
        at(history, effect("jobmanager.kill", (2, None), fault="j", targets='["jobmanager"]')),
        at(history, effect("process.kill", fault="k")),
        replace(effect(fault="n"), injected_ns=None),
    ]
    found = read_waits(history.empty().trial(), trial_entry(), faults, history.at(9))
    assert [(w.wait, w.kind, w.who, w.what, w.seconds, str(w.outcome), w.cause) for w in found] == [
        (
            "f/tm-0",
            "stalled",
            "everything",
            "tm-0",
            2.0,
            "completed",
            "tm-0's return (paused by the fault `f`)",
        ),
        (
            "f/tm-1",
            "stalled",
            "everything",
            "tm-1",
            2.0,
            "completed",
            "tm-1's return (paused by the fault `f`)",
        ),
        (
            "j/jobmanager",
            "jobmanager",
            "everything",
            "jobmanager",
            7.0,
            "open",
            "the JobManager's return (killed by the fault `j`)",
        ),
    ]


def test_after_a_stopped_jobmanager_its_peers_register_again(history: Any):
    """A wait for it that lasts beyond the end of the fault begins there."""
    fault = at(history, effect("jobmanager.pause", (1, 3), targets='["jobmanager"]'))
    built = history.empty()
    for span in ((0.5, 5), (0.5, 3), (3, 5)):
        built.wait("jobmanager", "tm-0-1", "", span)
    found = {
        w.wait: (w.kind, w.seconds) for w in read_waits(built.trial(), trial_entry(), [fault], history.at(9))
    }
    assert found == {
        "f/jobmanager": ("jobmanager", 2.0),
        "jobmanager-1/1": ("registration", 2.0),
        "jobmanager-1/2": ("jobmanager", 2.5),
        "jobmanager-1/3": ("jobmanager", 2.0),
    }


def test_a_replacement_is_the_delay_and_the_start_of_the_next_incarnation(history: Any):
    """The delay begins with the exit of the one before, unless the supervisor recorded it; a TaskManager without an exit replaces none."""
    built = history.empty()
    built.event("process.exit", "tm-1-1", 2)
    for name, t in (("tm-1-1", 1), ("tm-1-2", 8), ("tm-0-1", 8)):
        built.event("taskmanager.registered", name, t)
    built.wait("registration", "tm-1-2", "ResourceManager", (6, 8))
    entry = trial_entry({"job": {"taskManagers": {"replaceLost": "3 s"}}})

    def waits(entry: TrialEntry, end: float = 20) -> dict[str, tuple[str, float, str]]:
        found = read_waits(built.trial(), entry, [], history.at(end))
        return {w.wait: (w.kind, w.seconds, str(w.outcome)) for w in found if w.who == "supervisor"}

    assert waits(entry) == {
        "tm-1-2/replacement": ("replacement", 3.0, "fired"),
        "tm-1-2/start": ("start", 1.0, "completed"),
    }
    assert waits(entry, 5.5) == {"tm-1-2/replacement": ("replacement", 3.0, "fired")}
    assert waits(trial_entry()) == {"tm-1-2/start": ("start", 4.0, "completed")}
    assert waits(trial_entry({"job": {"taskManagers": {"replaceLost": "9 s"}}})) == {
        "tm-1-2/replacement": ("replacement", 6.0, "fired")
    }
    built.wait("replacement", "supervisor", "tm-1-2", (2, 5))
    assert waits(entry) == {"jobmanager-1/2": ("replacement", 3.0, "completed")}, "the supervisor recorded it"


@pytest.mark.parametrize(
    ("outcome", "option", "value", "cause", "words"),
    [
        (Outcome.EXPIRED, "o", "1 s", "c", "o = 1 s"),
        (Outcome.FIRED, "o", "", "c", "o"),
        (Outcome.FIRED, "", "1 s", "c", "c"),
        (Outcome.COMPLETED, "o", "1 s", "c", "c"),
        (Outcome.COMPLETED, "o", "1 s", "", KINDS["slot"].doc),
    ],
)
def test_the_owner_of_a_wait_is_its_option_or_its_cause(
    outcome: Outcome, option: str, value: str, cause: str, words: str
):
    """Only an option that decided owns the wait."""
    assert owner_text(waited("slot", 1, 2, outcome=outcome, option=option, value=value, cause=cause)) == words


@pytest.mark.parametrize(
    ("waits", "option"),
    [
        ([("partition", (10, 13), "a", "expired"), ("partition", (9.5, 13), "b", "completed")], "a"),
        ([("partition", (10, 13), "a", "expired"), ("partition", (9.5, 13), "b", "cancelled")], "a"),
        ([("deployment", (10, 13), "a", "expired"), ("checkpoint", (9.6, 13), "b", "cancelled")], "a"),
        ([("deployment", (10, 13), "a", "expired"), ("alignment", (9.6, 13), "b", "expired")], "a"),
        ([("partition", (10, 12.7), "a", "expired"), ("deployment", (11, 13), "b", "expired")], "b"),
    ],
)
def test_a_failed_round_belongs_to_the_wait_that_failed_near_its_end(
    history: Any, waits: list[Any], option: str
):
    """First to the kind that the failure names, then to any that can fail; a wait that ended 0.25 s earlier is not near."""
    built = history.empty()
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    built.event(
        "failover.started",
        "1",
        9.0,
        text="Connection unexpectedly closed",
        data={"cause_class": "E", "taskmanager": "tm-1-1"},
    )
    built.event(
        "failover.started",
        "2",
        13.0,
        text="Partition p not found.",
        data={"cause_class": "PartitionNotFoundException"},
    )
    for kind, span, name, outcome in waits:
        built.wait(kind, "sink-0", "", span, (name, "1 s", 1.0), outcome)
    (found,) = trial_recovery(built.trial(), history.entry()).recoveries
    assert found.rounds[0].segments[-1].option == option


def test_the_trace_has_the_rounds_of_every_recovery(history: Any):
    """The start first, then each recovery by its fault."""
    part = Segment(kind="slot", phase="slots", start_ns=NS, end_ns=2 * NS, text="owner", option="o")
    one = Round(number=1, start_ns=NS, end_ns=2 * NS, segments=(part,), cause="c")
    start = Recovery(fault="", effect_ns=NS, end_ns=2 * NS, rounds=(one,))
    found = trace_events(
        history.empty().trial(),
        TrialRecovery(trial="t", start=start, recoveries=(replace(start, fault="kill"),)),
    )
    slices = [(e["name"], e["cat"], e["ts"], e["dur"], e["args"]) for e in found if e["ph"] == "X"]
    path = ("owner", "slot", 1e6, 1e6, {"phase": "slots", "option": "o"})
    details = {"cause": "c", "ended_by": "running"}
    assert slices == [
        ("start: round 1", "round", 1e6, 1e6, {"recovery": "start", **details}), path,
        ("recovery from kill: round 1", "round", 1e6, 1e6, {"recovery": "recovery from kill", **details}), path,
    ]  # fmt: skip
