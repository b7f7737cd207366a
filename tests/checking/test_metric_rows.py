"""Metric rows whose values can be counted by hand in a small history."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.catchup import CatchUp
from testbed_runtime.checking.checkpoints import check_checkpoints, restored_age_s
from testbed_runtime.checking.common import Window
from testbed_runtime.checking.criticalpath import attribute
from testbed_runtime.checking.faults import FaultEffect
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.progress import Progress
from testbed_runtime.checking.recovery import check_recovery, milestones, worst
from testbed_runtime.checking.rounds import outages_of, start_of
from testbed_runtime.checking.steps import steps
from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.checking.trace import trace_events
from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement.recovery import Recovery, Round, Segment, TrialRecovery
from testbed_runtime.core.waits import Outcome, Wait

NS = 1_000_000_000


def rows(trial: Any, entry: dict[str, Any], phase: str = "") -> dict[str, tuple[float | None, str, str]]:
    """Metric → value, text and reason of one phase, without quantiles."""
    found = [r for r in trial_metrics(trial, entry) if r.phase == phase and r.quantile is None]
    return {r.metric: (r.value, r.text, r.reason) for r in found}


CLOCKS = [
    ([], 0.0, ""),
    (
        [("tm-0-1", 0.05, 0.002), ("runner", -0.02, 0.001)], 0.07,
        "runner 20.0 ms behind the recorder; tm-0-1 50.0 ms ahead of the recorder",
    ),
    ([("tm-0-1", 0.08, 0.03), ("tm-0-1", 0.05, 0.002)], 0.05, "tm-0-1 50.0 ms ahead of the recorder"),
    ([("tm-0-1", -0.05, 0.002), ("tm-1-1", -0.04, 0.002)], 0.05, "tm-0-1 50.0 ms behind the recorder; tm-1-1 40.0 ms behind the recorder"),
]  # fmt: skip


@pytest.mark.parametrize(("offsets", "value", "text"), CLOCKS)
def test_clocks_differ_by_the_most_exact_offset_of_each_process(
    history: Any, offsets: list[tuple[str, float, float]], value: float, text: str
):
    """The two that differ most count, and the recorder's own clock is one of them."""
    built = history.empty()
    built.event("job.state", "job", 0.1, data={"to": "RUNNING"})
    for process, offset, uncertainty in offsets:
        built.event("clock.offset", process, 1, data={"offset_s": offset, "uncertainty_s": uncertainty})
    found = rows(built.trial(), history.entry(faults=[]))["clocks.difference"]
    assert found == (pytest.approx(value), text, "")


def test_counts_of_the_control_plane_are_counted(history: Any):
    """Requests after the first are retries, connections are counted per pair, only later attempts were deployed again."""
    built = history.empty()
    built.event("job.state", "job", 0.1, data={"to": "RUNNING"})
    for task, t, attempt, to in (
        ("map-0", 0.5, 0, "DEPLOYING"), ("map-1", 2.0, 0, "DEPLOYING"), ("map-1", 3.0, 0, "RUNNING"), ("map-0", 9.0, 1, "DEPLOYING"),
        ("map-1", 9.0, 1, "RUNNING"), ("map-0", 9.5, 1, "DEPLOYING"),
    ):  # fmt: skip
        built.event("task.state", task, t, attempt=attempt, data={"to": to})
    for process, data in (
        ("tm-0-1", {"request": 1, "connection": "tm-1-1/0"}), ("tm-0-1", {"request": 2, "connection": "tm-1-1/0"}),
        ("tm-0-1", {"request": 3, "connection": "tm-1-1/1"}), ("tm-1-1", {"connection": "tm-1-1/0"}), ("tm-1-1", {}),
    ):  # fmt: skip
        built.add(process, "events", 1, kind="partition.request", subject="map-0", data=data)
    for seconds in (0.5, 2.5, 1.0):
        built.event("loop.stall", "tm-0-1", 3, data={"seconds": seconds})
    for number in range(3):
        built.event("rpc.timeout", str(number), 4)
    for lost in ("tm-0-1", "tm-0-1", "tm-1-1"):
        built.event("taskmanager.lost", lost, 5)
    found = rows(built.trial(), history.entry(faults=[]))
    counted = {
        "deployment.spread": (1.5, "", ""),
        "restarts.tasks": (1, "map-0", ""),
        "partition.requests": (5, "", ""),
        "partition.retries": (2, "", ""),
        "network.connections": (3, "tm-0-1 → tm-1-1 2, tm-1-1 → tm-1-1 1", ""),
        "rpc.timeouts": (3, "", ""),
        "taskmanagers.lost": (2, "", ""),
        "loop.stall": (2.5, "", ""),
        "stale.rejected": (0, "", ""),
        "failovers.count": (0, "", ""),
        "restarts.attempts": (0, "", ""),
        "job.state": (None, "RUNNING", ""),
        "job.failure": (None, "", ""),
        "job.cause": (None, "", ""),
        "detection.detector": (None, "Task", ""),
        "fault.residue": (None, "", m.NO_FAULT),
    }
    assert {name: found[name] for name in counted} == counted


def test_an_event_without_details_is_the_least_that_it_can_be(history: Any):
    """A first request, a stall of no length, one acknowledgement."""
    built = history.empty()
    for kind in ("partition.request", "loop.stall", "stale.rejected"):
        built.event(kind, "map-0", 1)
    found = rows(built.trial(), history.entry(faults=[]))
    names = ("partition.requests", "partition.retries", "network.connections", "loop.stall", "stale.rejected")
    assert [found[name][0] for name in names] == [1, 0, 0, 0, 1]


def test_without_events_nothing_was_counted(history: Any):
    """No row is no evidence for 0."""
    found = rows(history.empty().trial(), history.entry(faults=[]))
    assert {r for n, (v, _, r) in found.items() if v is None} <= {
        m.NO_DATA,
        m.NO_FAULT,
        m.NO_FAILOVER,
        m.NO_BASELINE,
        m.NOT_COUNTED,
    }
    for name in ("failovers.count", "restarts.attempts", "restarts.tasks", "rpc.timeouts", "job.state", "job.failure", "delivery.lost", "credit.violations"):  # fmt: skip
        assert found[name][0] is None
        assert found[name][2] == m.NO_DATA, name


def test_checkpoints_are_summed_over_their_tasks(history: Any):
    """Longest, largest and mean of those that completed within the window; a completion lasts until the end or the window's."""
    built = history.empty()

    def add(t: float, number: int, state: str, **more: Any) -> None:
        built.add("jobmanager-1", "checkpoints", t, checkpoint=number, state=state, **more)

    for number, size, persisted, aligned, full, took in (
        (1, 10, 5, 1, 100, 0.5),
        (2, 30, 7, 3, 200, 2.0),
        (3, 50, 1, 2, 0, 0),
    ):
        add(number, number, "triggered")
        for task in ("map-0", "map-1"):
            add(
                number + 0.2,
                number,
                "acknowledged",
                task=task,
                state_bytes=size,
                persisted_bytes=persisted,
                alignment_ns=aligned * NS,
            )
        add(number + 0.3, number, "finalizing")
        if took:
            add(number + 0.5, number, "completed", duration_ns=round(took * NS), state_bytes=full)
    add(4.5, 4, "failed")
    trial = built.trial()
    found = check_checkpoints(trial, Window(history.at(1), history.at(5)))
    assert (found.completed, found.failed, found.longest_s, found.alignment_s) == (2, 1, 2.0, 3.0)
    assert found.median_s == 1.25
    assert found.completion_s == pytest.approx(1.7), "the third one never ended"
    assert (found.persisted_bytes, found.size_bytes, found.full_bytes) == (14, 40.0, 150.0)
    early = check_checkpoints(trial, Window(history.at(1), history.at(2)))
    assert (early.completed, early.failed, early.completion_s, early.size_bytes) == (
        1,
        0,
        pytest.approx(0.2),
        20.0,
    )
    none = check_checkpoints(trial, Window(history.at(6), history.at(7)))
    assert (none.completed, none.longest_s, none.alignment_s, none.completion_s, none.persisted_bytes, none.size_bytes) == (0, None, None, None, None, None)  # fmt: skip
    assert restored_age_s(trial, 2, history.at(5)) == 3.0
    assert restored_age_s(trial, 9, history.at(5)) is None


COMPLAINTS = [
    ({}, 1.0, ""),
    ({"state": "FAILED"}, 0.0, "the job was not running"),
    ({"state": "FINISHED"}, 1.0, ""),
    ({"failover": True}, 0.0, "there was a failover"),
    ({"until": 20}, 0.0, "no records arrived at the end; throughput was 75% of its baseline"),
    ({"until": 20, "state": "FINISHED"}, 0.0, "throughput was 75% of its baseline"),
    ({"until": 0}, 0.0, "no sink recorded any data"),
    ({"after": 1.04}, 1.0, ""),
    ({"after": 1.2}, 0.0, "throughput was 120% of its baseline"),
]


@pytest.mark.parametrize(("change", "stable", "text"), COMPLAINTS)
def test_a_control_trial_says_why_it_was_not_stable(
    history: Any, change: dict[str, Any], stable: float, text: str
):
    """It runs without a failover, to the end, at the rate of its baseline."""
    built = history.empty()
    built.event("job.state", "job", 0.1, data={"to": change.get("state", "RUNNING")})
    if change.get("failover"):
        built.event("failover.started", "1", 9)
    until, after = change.get("until", 24), change.get("after", 1.0)
    for tick in range(until * 10 + 1 if until else 0):
        t = tick / 10
        received = 1000 * min(t, 8) + 1000 * after * max(t - 8, 0)
        built.add(
            "tm-0-1",
            "tasks",
            t,
            task="sink-0",
            vertex="sink",
            role="sink",
            records_in=round(received),
            lag_ns=NS // 50,
        )
    found = rows(built.trial(), history.entry(role="control", faults=[]))
    assert found["control.stable"][:2] == (stable, text)


def test_a_deployment_is_split_at_its_events(history: Any):
    """Cancelled, slots, deployed, connected, first record; the state beside them. The last open step lasts until the end."""
    built = history.empty()
    for kind, t in (("cancelled", 1.0), ("slots", 2.0), ("deployed", 3.0)):
        built.event(f"failover.{kind}", "1", t)
    for t in (2.2, 2.6):
        built.event("task.restored", "map-0", t)
    built.event("gate.connected", "map-0", 3.5)
    trial = built.trial()

    def spans(
        since: float, until: float, running: float | None, *, restart: bool = True
    ) -> list[tuple[str, float, float]]:
        at = None if running is None else history.at(running)
        found = steps(trial, since=history.at(since), until=history.at(until), restart=restart, running_ns=at)
        return [(s.kind, (s.start_ns - history.start) / NS, (s.end_ns - history.start) / NS) for s in found]

    whole = [
        ("cancellation", 0.5, 1.0),
        ("slot", 1.0, 2.0),
        ("deployment", 2.0, 3.0),
        ("partition", 3.0, 3.5),
        ("first-record", 3.5, 4.0),
    ]
    assert spans(0.5, 9, 4.0) == [*whole, ("restore", 2.0, 2.6)]
    assert spans(0.5, 9, None) == [*whole[:4], ("first-record", 3.5, 9.0), ("restore", 2.0, 2.6)]
    assert spans(0.5, 1.5, None) == [whole[0], ("slot", 1.0, 1.5)]
    assert spans(0.5, 0.7, None) == [("cancellation", 0.5, 0.7)]
    assert spans(1.5, 9, 4.0) == [("slot", 1.5, 2.0), *whole[2:], ("restore", 2.0, 2.6)]
    assert spans(2.5, 9, 4.0) == [("deployment", 2.5, 3.0), *whole[3:]]
    assert spans(1.5, 2.9, None) == [("slot", 1.5, 2.0), ("deployment", 2.0, 2.9), ("restore", 2.0, 2.6)]
    first = history.empty()
    for t, to in ((1, "DEPLOYING"), (1.5, "DEPLOYING"), (2, "RUNNING"), (3, "RUNNING")):
        first.event("task.state", "map-0", t, data={"to": to})
    trial = first.trial()
    assert spans(0.5, 9, 4.0, restart=False) == [
        ("slot", 0.5, 1.0),
        ("deployment", 1.0, 3.0),
        ("first-record", 3.0, 4.0),
    ]
    assert spans(0.5, 9, None, restart=False) == [("slot", 0.5, 1.0), ("deployment", 1.0, 9.0)]


def waited(kind: str, start: float, end: float, outcome: Outcome = Outcome.COMPLETED, **more: Any) -> Wait:
    values = {"wait": f"{kind}/{start:g}/{end:g}", "who": "JobMaster", "what": ""} | more
    return Wait(kind=kind, start_ns=round(start * NS), end_ns=round(end * NS), outcome=outcome, **values)


PATHS = [
    ("of two stuck tasks the one that hung longest", [
        waited("connection", 0, 1), waited("cancellation", 1, 7, Outcome.EXPIRED, option="h", value="1 s"),
        waited("cancellation", 1, 3, Outcome.EXPIRED, option="a", value="1 s"),
        waited("cancellation", 2, 5, Outcome.EXPIRED, option="b", value="1 s"), waited("deployment", 7, 8),
    ], 8, 1, [("connection", "", 1), ("cancellation", "h", 1), ("cancellation", "b", 3), ("cancellation", "h", 2), ("deployment", "", 1)]),
    ("a failed deployment is no step of a recovery", [
        waited("connection", 0, 1), waited("deployment", 1, 2, Outcome.FAILED), waited("deployment", 1, 4),
    ], 4, 1, [("connection", "", 1), ("deployment", "", 3)]),
    ("of waits that ended together the longest", [
        waited("connection", 0, 1), waited("slot", 1, 3.99), waited("restart-delay", 2, 4, Outcome.FIRED, option="d"),
    ], 4, 1, [("connection", "", 1), ("slot", "", 2.99), ("unattributed", "", 0.01)]),
    ("of waits that also began together the one with an option", [
        waited("connection", 0, 1), waited("restore", 1, 4), waited("partition", 1, 4, Outcome.FIRED, option="d"),
    ], 4, 1, [("connection", "", 1), ("partition", "d", 3)]),
    ("a wait from before the span is cut at its start", [
        waited("heartbeat", -3, 2, Outcome.EXPIRED, option="h"), waited("slot", 2, 3),
    ], 3, 2, [("heartbeat", "h", 2), ("slot", "", 1)]),
    ("a wait that its option ended was held up by nothing", [
        waited("connection", 0, 1), waited("restart-delay", 1, 4, Outcome.FIRED, option="d"), waited("jobmanager", 2, 3.9),
    ], 4, 1, [("connection", "", 1), ("restart-delay", "d", 3)]),
    ("of two that began together the one that ended last", [
        waited("connection", 0, 1), waited("partition", 1, 4, Outcome.FIRED, option="a"), waited("partition", 1, 3.99, Outcome.FIRED, option="b"),
    ], 4, 1, [("connection", "", 1), ("partition", "a", 3)]),
    ("a completed heartbeat causes nothing", [waited("heartbeat", 0, 2), waited("slot", 2, 3)], 3, 2, [("unattributed", "", 2), ("slot", "", 1)]),
    ("a failure after the detection explains nothing", [
        waited("heartbeat", 0, 2, Outcome.EXPIRED, option="h"), waited("slot", 2, 3),
    ], 3, 1, [("unattributed", "", 2), ("slot", "", 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "waits", "end", "detected", "owners"), PATHS, ids=[p[0] for p in PATHS])
def test_the_critical_path_has_one_owner_at_a_time(
    name: str, waits: list[Wait], end: float, detected: float, owners: list[tuple[str, str, float]]
):
    """Each row is a rule: kind, option and seconds of every segment."""
    last = waited("catch-up", end, end)
    found = attribute(waits, (), start=0, end=last.end_ns, last=last, detected=round(detected * NS))
    assert [(s.kind, s.option, round(s.seconds, 3)) for s in found] == owners


def outage(
    fault: str, start: float, end: float, *causes: str, recovered: bool = True, **more: Any
) -> Recovery:
    """A recovery with one round for each cause."""
    rounds = tuple(
        Round(number=n, start_ns=round(start * NS), end_ns=round(end * NS), cause=c)
        for n, c in enumerate(causes, 1)
    )
    return Recovery(
        fault=fault,
        effect_ns=round(start * NS),
        end_ns=round(end * NS),
        recovered=recovered,
        rounds=rounds,
        **more,
    )


@pytest.mark.parametrize(
    ("recoveries", "fault"),
    [
        ((outage("a", 1, 9, ""), outage("b", 1, 2, "", "x")), "b"),
        ((outage("a", 1, 9, "x"), outage("b", 1, 2, "x", recovered=False)), "b"),
        ((outage("a", 1, 9, "x"), outage("b", 1, 2, "x")), "a"),
        ((outage("", 1, 9, "x"), outage("b", 1, 2, "")), "b"),
        ((outage("", 1, 9, "x"),), None),
    ],
)
def test_the_worst_recovery_did_not_end_or_had_a_failover_or_was_the_longest(
    recoveries: tuple[Recovery, ...], fault: str | None
):
    """In this order, and only those that a fault began."""
    found = worst(TrialRecovery(trial="t", recoveries=recoveries))
    assert (found and found.fault) == fault


def test_milestones_follow_each_recovery(history: Any):
    """The outage ends with the downtime, or where the catch-up began; an empty window is none."""
    catching = Segment(kind="catch-up", phase="catch-up", start_ns=4 * NS, end_ns=6 * NS, text="c")
    slow = outage("slow", 3, 6)
    slow = Recovery(fault="slow", effect_ns=3 * NS, end_ns=6 * NS, rounds=(Round(number=1, start_ns=3 * NS, end_ns=6 * NS, segments=(catching,)),))  # fmt: skip
    kill = outage("kill", 7, 12, "x", downtime_s=2.0)

    def spans(*recoveries: Recovery, end: float = 20) -> dict[str, tuple[float, float] | None]:
        found = milestones(TrialRecovery(trial="t", recoveries=recoveries), round(end * NS))
        return {name: w and (w.start / NS, w.end / NS) for name, w in found}

    assert spans(slow) == {"outage": (3, 4), "catch-up": (4, 6), "recovered": (6, 20)}
    assert spans(kill, end=12) == {"outage": (7, 9), "catch-up": (9, 12), "recovered": None}
    assert spans(slow, kill) == {
        "outage": (7, 9), "catch-up": (9, 12), "recovered": (12, 20), "outage/slow": (3, 4), "catch-up/slow": (4, 6),
        "recovered/slow": (6, 20), "outage/kill": (7, 9), "catch-up/kill": (9, 12), "recovered/kill": (12, 20),
    }  # fmt: skip
    assert spans() == {"outage": None, "catch-up": None, "recovered": None}
    unknown = outage("kill", 7, 12, "x", reason=m.NO_BASELINE, unattributed_s=1.0, from_events_s=2.0)
    found = {
        p.name: p
        for p in check_recovery(
            history.good(), history.entry(), TrialRecovery(trial="t", recoveries=(unknown,))
        )
    }
    assert (found["total"].seconds, found["total"].reason, found["rounds"].seconds) == (
        None,
        m.NO_BASELINE,
        1.0,
    )
    assert (found["unattributed"].seconds, found["from-events"].seconds) == (0.2, 0.4)
    assert (found["downtime"].seconds, found["downtime"].reason, found["steady"].reason) == (
        5.0,
        m.NO_BASELINE,
        m.NO_BASELINE,
    )


def test_the_trace_has_the_details_of_each_wait(history: Any):
    """A track holds waits that do not overlap, times are microseconds, and what is empty is left out."""
    built = history.empty()
    built.wait("slot", "JobMaster", "a", (1, 3), ("o", "v", 5.0))
    built.wait("slot", "JobMaster", "b", (2, 4))
    built.wait("slot", "JobMaster", "", (3, 4))
    trial = built.trial()
    found = trace_events(trial, TrialRecovery(trial="t"), pid=2)
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert names == {1: "rounds", 2: "critical path", 3: "JobMaster", 4: "JobMaster (2)"}
    slices = [e for e in found if e["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"] - history.start / 1e3, e["dur"], e["pid"]) for e in slices] == [
        ("slot a", 3, 1e6, 2e6, 2),
        ("slot b", 4, 2e6, 2e6, 2),
        ("slot", 3, 3e6, 1e6, 2),
    ]
    assert slices[0]["args"] == {
        "wait": "jobmanager-1/1",
        "option": "o",
        "value": "v",
        "outcome": "completed",
        "budget_s": 5.0,
    }
    assert slices[1]["args"] == {"wait": "jobmanager-1/2", "outcome": "completed"}
    assert trace_events(trial, TrialRecovery(trial="t"), pid=10**6) == []


def test_marks_lie_within_the_phases(history: Any):
    """Other events, and what happened before and after, have none."""
    built = history.empty()
    for t, kind in ((-1, "note"), (1, "gate.connected"), (2, "note"), (30, "note")):
        built.event(kind, f"{kind} at {t}", t)
    built.event("job.state", "job", 3, text="why", data={"to": "RUNNING"})
    found = to_builtins(trial_timeseries(built.trial(), history.entry()))
    assert [(e["t_s"], e["text"]) for e in found["marks"]] == [(2.0, "note at 2"), (3.0, "job: RUNNING. why")]
    assert [(s["name"], s["start_s"], s["end_s"]) for s in found["spans"]][:2] == [
        ("warmUp", 0.0, 2.0),
        ("baseline", 2.0, 8.0),
    ]


def test_a_control_trial_with_a_short_baseline_is_not_compared(history: Any):
    """Less than a second of records is no rate."""
    built = history.empty()
    built.event("job.state", "job", 0.1, data={"to": "RUNNING"})
    for tick in range(241):
        built.add(
            "tm-0-1",
            "tasks",
            tick / 10,
            task="sink-0",
            vertex="sink",
            role="sink",
            records_in=tick if tick < 80 else 80 + 9 * (tick - 80),
        )
    for length, stable in ((0.9, 1.0), (1.0, 0.0)):
        entry = history.entry(role="control", faults=[])
        phases = [
            replace(p, end_ns=history.at(2 + length)) if p.name == "baseline" else p for p in entry.phases
        ]
        entry = replace(entry, phases=tuple(phases))
        assert rows(built.trial(), entry)["control.stable"][0] == stable


def test_a_report_that_a_busy_jobmaster_did_not_answer_ended_its_round(history: Any):
    """The first ask to it that expired owns the time until then, whenever the JobMaster heard of it."""
    built = history.empty()
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    text = "Invocation of updateTaskExecutionState at recipient pekko.tcp://x/user/rpc/jobmaster_1 timed out."
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
        20.0,
        text=text,
        data={"cause_class": "TimeoutException", "wait": "jobmanager"},
    )
    ask = ("pekko.ask.timeout", "4 s", 4.0)
    built.wait("jobmanager", "tm-0-1", "", (10, 14), ask, "expired")
    built.wait("jobmanager", "tm-0-1", "", (11, 16), ask, "expired")
    built.wait("jobmanager", "tm-0-1", "", (9, 12), ask)
    (found,) = trial_recovery(built.trial(), history.entry()).recoveries
    owners = [(s.option, s.seconds) for s in found.rounds[0].segments if s.option]
    assert owners == [("pekko.ask.timeout", 4.0)]


def behind(*spans: tuple[float, float], reason: str = "", start: int = 0) -> CatchUp:
    """One subtask whose lag is 3 s within these spans and 0 otherwise, until 20 s."""
    moments = [t / 10 for t in range(201)]
    t_ns = np.asarray([start + round(t * NS) for t in moments], dtype=np.int64)
    lag = np.asarray([3 * NS if any(a <= t < b for a, b in spans) else 0 for t in moments], dtype=np.int64)
    one = Progress("sink-0", "sink", t_ns, np.arange(201, dtype=np.float64), t_ns - lag, usual_gap_ns=0)
    return CatchUp(((one, 0.5),), start + 20 * NS, reason)


def fault(
    name: str, start: float, end: float | None, *, kind: str = "k", targets: str = "[]", at: int = 0
) -> FaultEffect:
    ended = None if end is None else at + round(end * NS)
    return FaultEffect(name, kind, True, at + round(start * NS), ended, False, targets, "")


Said = list[tuple[str, float, float, bool, list[tuple[float, float, str, str, float | None]]]]


def described(history: Any, found: list[Any]) -> Said:
    """Fault, effect, end, whether it recovered, and start, end, cause, failure and running of each round."""

    def at(ns: int | None) -> float | None:
        return None if ns is None else (ns - history.start) / NS

    return [
        (o.fault.fault if o.fault else "", at(o.effect), at(o.end), o.recovered,
         [(at(r.start), at(r.end), r.cause.text if r.cause else "", r.failure.text if r.failure else "", at(r.running)) for r in o.rounds])
        for o in found
    ]  # type: ignore[misc]  # fmt: skip


def test_a_first_start_has_a_round_for_each_failure(history: Any):
    """A fault from before its end is its cause, and then it lasts until the job has caught up."""
    built = history.empty()
    built.event("job.state", "job", 1, data={"from": "CREATED", "to": "RUNNING"})
    for t, text in ((3, "one"), (5, "two")):
        built.event("failover.started", text, t, text=text)
    built.event("sink.first-record", "sink-0", 6)
    built.event("sink.first-record", "sink-1", 7)
    trial, end = built.trial(), history.at(20)
    rounds = [(1, 3, "", "one", None), (3, 5, "one", "two", None), (5, 7, "two", "", 7)]
    start = start_of(trial, end)
    assert described(history, [start]) == [("", 1, 7, True, rounds)]
    assert start.first
    assert outages_of(trial, [], behind(start=history.start), end) == []
    early = fault("early", 0.5, 2, at=history.start)
    caught = [*rounds[:2], (5, 9, "two", "", 7)]
    assert described(history, outages_of(trial, [early], behind((7, 9), start=history.start), end)) == [
        ("early", 1, 9, True, caught)
    ]
    built.event("task.state", "sink-2", 6, data={"to": "RUNNING"})
    built.event("sink.first-record", "sink-2", 25)
    late = start_of(built.trial(), end)
    assert (late.recovered, described(history, [late])[0][4][-1]) == (False, (5, 20, "two", "", None)), (
        "sink-2 got nothing"
    )
    assert start_of(history.empty().trial(), end) is None


def test_outages_are_those_of_failovers_and_of_faults_without_one(history: Any):
    """Failures belong together until the job has caught up between them; an outage ends where the next one begins."""
    built = history.empty()
    for t, text in ((3, "one"), (5, "two"), (12, "three"), (16, "four")):
        built.event("failover.started", text, t, text=text)
    for t in (6, 14, 17):
        built.event("sink.first-record", "sink-0", t)
    trial, end, zero = built.trial(), history.at(20), history.start
    kill, slow, again = (
        fault("kill", 2, 4, at=zero),
        fault("slow", 9, 10, at=zero),
        fault("again", 11, 11.5, at=zero),
    )
    found = outages_of(trial, [kill, slow, again], behind((2, 8), (9, 10.5), (11, 18), start=zero), end)
    assert described(history, found) == [
        ("kill", 2, 8, True, [(2, 5, "one", "two", None), (5, 8, "two", "", 6)]),
        ("slow", 9, 10.5, True, [(9, 10.5, "", "", None)]),
        ("again", 11, 18, True, [(11, 16, "three", "four", 14), (16, 18, "four", "", 17)]),
    ]
    unknown = outages_of(trial, [kill], behind(reason=m.NO_DATA, start=zero), end)
    assert [(o.fault and o.fault.fault, o.recovered, (o.end - zero) / NS) for o in unknown] == [
        ("kill", True, 6),
        ("kill", True, 14),
        ("kill", True, 17),
    ]
    survived = outages_of(
        history.empty().trial(), [fault("slow", 9, None, at=zero)], behind((9, 20.1), start=zero), end
    )
    assert described(history, survived) == [("slow", 9, 20, False, [(9, 20, "", "", None)])]


def test_a_job_that_failed_for_good_ends_its_outage(history: Any):
    """With the failure as the end of its last round; a job that did not restart at all has one round."""
    built = history.empty()
    built.event("job.state", "job", 6, text="end", data={"to": "FAILED"})
    kill = fault("kill", 2, 4, at=history.start)
    found = outages_of(built.trial(), [kill], behind(start=history.start), history.at(20))
    assert described(history, found) == [("kill", 2, 6, False, [(2, 6, "end", "end", None)])]
    built.event("failover.started", "one", 3, text="one")
    found = outages_of(built.trial(), [kill], behind(start=history.start), history.at(20))
    assert described(history, found) == [("kill", 2, 6, False, [(2, 6, "one", "end", None)])]
