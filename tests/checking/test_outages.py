"""Which faults and failures make up one outage, when it begins and ends, and which failure a fault is responsible for."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from testbed_runtime.checking.catchup import CatchUp
from testbed_runtime.checking.faults import FaultEffect
from testbed_runtime.checking.progress import Progress
from testbed_runtime.checking.rounds import (
    FirstRecord,
    Outage,
    last_due_arrival,
    outages_of,
    start_of,
)

NS = 1_000_000_000
START = 1000
END = 24

Spans = tuple[tuple[float, float], ...]


def at(t: float) -> int:
    return round((START + t) * NS)


def fault(name: str, begun: float | None, ended: float | None, kind: str = "frames.drop", *targets: str) -> FaultEffect:  # fmt: skip
    """A verified fault over seconds."""
    begun_ns, ended_ns = (None if t is None else at(t) for t in (begun, ended))
    return FaultEffect(
        fault=name, kind=kind, injected_ns=begun_ns, ended_ns=ended_ns, verified=True, residue=False,
        targets=json.dumps(targets), text="",
    )  # fmt: skip


def behind(spans: Spans, task: str = "sink-0") -> CatchUp:
    """A job whose sink is 3 s behind in these spans."""
    t_ns = np.asarray([at(n / 10) for n in range(10 * END + 1)], dtype=np.int64)
    late = np.zeros(len(t_ns), dtype=bool)
    for begun, ended in spans:
        late |= (t_ns >= at(begun)) & (t_ns < at(ended))
    lags = np.where(late, 3 * NS, 0)
    one = Progress(task, "sink", t_ns, np.arange(len(t_ns), dtype=np.float64), t_ns - lags)
    return CatchUp(((one, 0.05),), at(END))


def seconds(t_ns: int) -> float:
    return round(t_ns / NS - START, 3)


def named(faults: tuple[FaultEffect, ...]) -> str:
    return " ".join(f.fault for f in faults)


def brief(outage: Outage) -> tuple[str, float, float, bool]:
    """The faults that began it, or that it is named after, its span, and whether the job recovered."""
    faults = outage.earlier or ((outage.fault,) if outage.fault else ())
    return named(faults), seconds(outage.effect), seconds(outage.end), outage.recovered


def record(history: Any, failures: dict[float, str] | None = None, records: tuple[float, ...] = ()) -> Any:
    """Failures of a job, and the moments at which its only sink receives a first record."""
    built = history.empty()
    for number, (t, text) in enumerate((failures or {}).items()):
        if text.startswith("end"):
            built.event("job.state", "job", t, text=text, data={"to": "FAILED"})
        else:
            built.event("failover.started", str(number), t, text=text, data={})
    for t in records:
        built.event("sink.first-record", "sink-0", t)
    return built


# ---- faults without a failover


@pytest.mark.parametrize(
    ("faults", "late", "expected"),
    [
        # one after the other
        ([("a", 8, 9), ("b", 12, 13)], ((8, 10), (12, 14)), [("a", 8, 10, True), ("b", 12, 14, True)]),
        # the second begins while the job is behind, or when it has just recovered
        ([("a", 8, 9), ("b", 12, 13)], ((8, 14),), [("a b", 8, 14, True)]),
        ([("a", 8, 9), ("b", 12, 13)], ((8, 12), (12.1, 14)), [("a b", 8, 14, True)]),
        ([("a", 8, 9), ("b", 12, 13)], ((8, 12),), [("a", 8, 12, True), ("b", 12, 12, True)]),
        ([("a", 8, 9), ("b", 9.5, 10), ("c", 11, 12)], ((8, 14),), [("a b c", 8, 14, True)]),
        # the last of them to end decides, whether it began first or last
        ([("a", 8, 13), ("b", 9, 10)], ((8, 9.9), (12.5, 12.6)), [("a b", 8, 13, True)]),
        ([("a", 8, 10), ("b", 9, 13)], ((8, 9.9), (12.5, 12.6)), [("a b", 8, 13, True)]),
        # never again until the end of the record; a fault after it
        ([("a", 8, 9)], ((8, 24.1),), [("a", 8, 24, False)]),
        ([("a", 8, 9), ("b", 12, 13)], ((8, 24.1),), [("a b", 8, 24, False)]),
        ([("a", 25, 26, "process.pause", "jobmanager")], (), [("a", 25, 25, False)]),
        # the first cost nothing until the second one began, which then lasted until the first one's end, or not
        ([("a", 8, 13.5), ("b", 12, 12.5)], ((12, 14),), [("b a", 12, 14, True)]),
        ([("a", 8, 14), ("b", 12, 12.5)], ((12, 14),), [("b a", 12, 14, True)]),
        ([("a", 8, 20), ("b", 12, 13)], ((12, 14),), [("a", 8, 8, True), ("b", 12, 14, True)]),
        ([("a", 8, 12), ("b", 12, 13)], ((12, 14),), [("a", 8, 8, True), ("b", 12, 14, True)]),
        ([("a", 8, 11), ("b", 12, 13)], ((12, 14),), [("a", 8, 8, True), ("b", 12, 14, True)]),
        ([("a", 8, 13), ("b", 12, 13)], ((12, 24.1),), [("a", 8, 8, True), ("b", 12, 24, False)]),
        ([("a", 8, None), ("b", 12, 13)], ((12, 14),), [("a", 8, 8, True), ("b", 12, 14, True)]),
        # no record waits for the store or a heartbeat: something else held the job up
        ([("a", 8, 20, "store.slow")], ((9, 12),), [("a", 8, 8, True)]),
        ([("a", 8, 20, "heartbeats.mute")], ((9, 12),), [("a", 8, 8, True)]),
        ([("a", 8, 20, "store.failing"), ("b", 12, 13)], ((9, 14),), [("a", 8, 8, True), ("b", 12, 14, True)]),
        ([("a", 8, 13.5, "store.slow"), ("b", 12, 12.5)], ((12, 14),), [("a", 8, 8, True), ("b", 12, 14, True)]),
        # only until the next fault of several it must cost nothing
        ([("a", 8, 20), ("b", 10, 11), ("c", 15, 16)], ((10, 12),), [("a", 8, 8, True), ("b", 10, 12, True), ("c", 15, 15, True)]),
    ],
)  # fmt: skip
def test_faults_share_an_outage_while_the_job_has_not_recovered(
    history: Any, faults: list[Any], late: Spans, expected: list[Any]
):
    """Each row has the spans of its faults, those in which the job is behind, and the outages, in seconds."""
    effects = [fault(*one) for one in faults]
    found = outages_of(record(history).trial(), effects, behind(late), at(END))
    assert [brief(o) for o in found] == expected
    assert all((o.rounds[0].start, o.rounds[-1].end) == (o.effect, o.end) for o in found)
    assert all((o.caught_up is not None) == o.recovered for o in found)


@pytest.mark.parametrize(
    ("kind", "target", "together"),
    [
        ("process.pause", "tm-0", True),
        ("pod.delete", "tm-0", True),
        ("process.pause", "jobmanager", True),
        ("network.latency", "tm-0", False),
        ("process.pause", "tm-1", False),  # it runs no task any more
        ("process.kill", "tm-2", False),  # nor does this one yet
    ],
)
def test_a_job_is_behind_from_the_moment_at_which_a_process_with_its_tasks_stops(
    history: Any, kind: str, target: str, *, together: bool
):
    """Even if that shows only when the next fault begins. Another fault that shows nothing until then cost nothing."""
    built = record(history)
    for t, place in ((1, "tm-1-1"), (2, "tm-0-1"), (9, "tm-2-1")):
        built.event("task.state", "map-0", t, data={"from": "", "to": "DEPLOYING", "taskmanager": place})
    effects = [fault("a", 8, 20, kind, target), fault("b", 12, 13)]
    found = outages_of(built.trial(), effects, behind(((12, 14),)), at(END))
    apart = [("a", 8, 8, True), ("b", 12, 14, True)]
    assert [brief(o) for o in found] == ([("a b", 8, 14, True)] if together else apart)


@pytest.mark.parametrize(
    ("kind", "target", "plane", "together"),
    [
        ("network.partition", "tm-0", "data", True),
        ("network.partition", "tm-1", "both", True),
        ("network.stall", "tm-1->tm-0", "data", True),
        ("network.partition", "tm-0", "rpc", False),
        ("network.loss", "tm-0", "data", False),  # what passes is late at most
        ("network.partition", "tm-2", "data", False),  # its tasks have no remote channels
        ("network.partition", "tm-0->tm-2", "data", False),
        ("network.partition", "tm-3", "data", False),  # nor do these yet
    ],
)
def test_a_job_is_behind_from_the_moment_at_which_nothing_passes_between_its_tasks(
    history: Any, kind: str, target: str, plane: str, *, together: bool
):
    """Even if that shows only when the next fault begins."""
    built = record(history)
    for t, request in ((1, {"connection": "tm-0-1/0"}), (1, {}), (9, {"connection": "tm-3-1/0"})):
        built.add("tm-1-1", "events", t, kind="partition.request", subject="sink-0", data=request)
    effects = [replace(fault("a", 8, 20, kind, target), plane=plane), fault("b", 8.1, 9)]
    found = outages_of(built.trial(), effects, behind(((8.5, 21),)), at(END))
    apart = [("b a", 8.1, 21, True)]
    assert [brief(o) for o in found] == ([("a b", 8, 21, True)] if together else apart)


@pytest.mark.parametrize(("since", "received", "ended"), [(22, 5, 24), (22.1, 5, 10), (22, 6, 10)])
def test_a_job_that_stands_still_for_the_last_two_seconds_has_not_recovered(
    history: Any, since: float, received: int, ended: float
):
    """It had caught up at 10 s. Its sink had 5 records before it fell behind again."""
    built = record(history)
    for t, records in ((1, 5), (21, 5), (24, received)):
        built.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", records_in=records)
    found = outages_of(built.trial(), [fault("a", 8, 9)], behind(((8, 10), (since, 24.1))), at(END))
    assert [brief(o) for o in found] == [("a", 8, ended, ended == 10)]


def test_an_outage_is_unknown_without_a_baseline(history: Any):
    """It has no length then, and the job has not recovered. A fault that never began has none."""
    effects = [fault("a", 8, 9), fault("never", None, None)]
    found = outages_of(record(history).trial(), effects, CatchUp((), at(END), "NoBaseline"), at(END))
    assert [brief(o) for o in found] == [("a", 8, 8, False)]


@pytest.mark.parametrize(
    ("late", "failed", "unnoticed"),
    [
        (((8, 10), (20, 24.1)), 25, ["", "first"]),
        (((8, 10), (20, 21)), 25, ["", ""]),
        (((8, 10), (20, 24.1)), None, ["", ""]),
    ],
)
def test_a_failure_after_the_record_belongs_to_its_fault(
    history: Any, late: Spans, failed: float | None, unnoticed: list[str]
):
    """Only if the job is still behind at the end. The first such failure counts, and the last fault before it."""
    failures = {} if failed is None else {failed: "first", failed + 1: "second"}
    effects = [fault("a", 8, 9), fault("b", 20, 20.5)]
    found = outages_of(record(history, failures).trial(), effects, behind(late), at(END))
    assert [o.rounds[0].unnoticed.text if o.rounds[0].unnoticed else "" for o in found] == unnoticed


# ---- failovers


def test_a_failure_at_the_end_of_the_record_is_a_failover(history: Any):
    """One after it is not."""
    for t, failed in ((END, True), (END + 0.001, False)):
        found = outages_of(
            record(history, {t: "lost"}).trial(), [fault("a", 20, 21)], behind(((20, 24.1),)), at(END)
        )
        assert [(brief(o), o.rounds[0].cause is not None) for o in found] == [(("a", 20, 24, False), failed)]


@pytest.mark.parametrize(
    ("first", "late", "expected", "joined"),
    [
        (("a", 8, 20), ((8, 15),), [("a b", 8, 15, True)], 10.0),
        (("a", 8, 9), ((8, 9.5), (10, 15)), [("a", 8, 9.5, True), ("b", 10, 15, True)], None),
        (("a", 8, 12), ((10, 15),), [("a", 8, 8, True), ("b", 10, 15, True)], None),
    ],
)  # fmt: skip
def test_a_failover_joins_the_outage_of_an_earlier_fault(
    history: Any, first: Any, late: Spans, expected: list[Any], joined: float | None
):
    """A kill at 10 s is known at 11 s, and records arrive again at 13 s. Only if the job was behind when it took effect."""
    effects = [fault(*first), fault("b", 10, 10.5, "process.kill", "tm-1")]
    found = outages_of(record(history, {11: "lost"}, (0.5, 13)).trial(), effects, behind(late), at(END))
    assert [brief(o) for o in found] == expected
    last = found[-1]
    assert (None if last.joined is None else seconds(last.joined)) == joined
    assert (last.fault.fault if last.fault else "") == ("a" if joined else "b")
    assert seconds(last.rounds[0].start) == seconds(last.effect)
    assert last.running is not None
    assert seconds(last.running) == 13


def test_rounds_of_a_joined_outage_are_those_of_its_failovers(history: Any):
    """Two failures after the kill at 10 s: the first round begins with the outage."""
    effects = [fault("a", 8, 20), fault("b", 10, 10.5, "process.kill", "tm-1")]
    built = record(history, {11: "lost", 12: "again"}, (0.5, 13))
    (found,) = outages_of(built.trial(), effects, behind(((8, 15),)), at(END))
    spans = [(seconds(r.start), seconds(r.end), r.cause.text if r.cause else "") for r in found.rounds]
    assert spans == [(8, 12, "lost"), (12, 15, "again")]


def test_faults_within_an_outage_share_it(history: Any):
    """Each that takes effect from the effect to the end of an outage with a failover, in the order of their effects."""
    effects = [
        fault("c", 9, 9.5), fault("a", 8, 9, "process.kill", "tm-1"), fault("same", 8, 8.5), fault("last", 12, 13),
        fault("b", 16, 17, "process.kill", "tm-2"), fault("d", 17.5, 18),
    ]  # fmt: skip
    built = record(history, {}, (0.5, 10, 18))
    for t, name in ((8.5, "tm-1"), (17, "tm-2")):
        built.event("failover.started", name, t, text=name, data={"taskmanager": f"{name}-1"})
    found = outages_of(built.trial(), effects, behind(((8, 12), (16, 19))), at(END))
    assert [(brief(o)[:3], named(o.shared)) for o in found] == [
        (("a", 8, 12), "same c last"),
        (("b", 16, 19), "d"),
    ]


@pytest.mark.parametrize(
    ("fault_begun", "failures", "expected"),
    [
        # it has recovered from the fault before it fails again
        (
            8,
            {9: "x", 13: "y"},
            [("a", 8, 12), ("a", 13, 15)],
        ),
        (8, {9: "x", 11.9: "y"}, [("a", 8, 15)]),
        (12, {9: "x", 13: "y"}, [("", 9, 12), ("a", 12, 15)]),  # the fault begins when the first outage ends
        (20, {9: "x", 13: "y"}, [("", 9, 12), ("", 13, 15), ("a", 20, 20)]),
    ],
)
def test_a_failure_after_the_job_caught_up_begins_an_outage(
    history: Any, fault_begun: float, failures: dict[float, str], expected: list[Any]
):
    """With the effect of its fault, if that is after the outage before; else with the failure itself."""
    built = record(history, failures, (0.5, 10, 14))
    effects = [fault("a", fault_begun, fault_begun + 0.5)]
    found = outages_of(built.trial(), effects, behind(((8, 12), (12.5, 15))), at(END))
    assert [brief(o)[:3] for o in found] == expected


@pytest.mark.parametrize(
    ("failures", "rounds"),
    [
        ({9.5: "x", 12: "end"}, [("x", "end")]),
        ({9.5: "x", 11: "y", 11.5: "z", 12: "end"}, [("x", "y"), ("y", "z"), ("z", "end")]),
        ({12: "end"}, [("end", "end")]),
    ],
)
def test_an_outage_that_ends_with_the_job_has_its_failure_in_the_last_round(
    history: Any, failures: dict[float, str], rounds: list[tuple[str, str]]
):
    """The job has not recovered, and is not running."""
    built = record(history, failures)
    (found,) = outages_of(built.trial(), [fault("a", 8, 9, "process.kill", "tm-1")], behind(()), at(END))
    assert [(r.cause and r.cause.text, r.failure and r.failure.text) for r in found.rounds] == rounds
    assert (seconds(found.end), found.recovered, found.running) == (12, False, None)


# ---- the first start


def started(history: Any, failures: dict[float, str], records: dict[str, tuple[tuple[float, float], ...]]) -> Any:  # fmt: skip
    """A job that is submitted at 0.1 s. Its tasks run at once, again after each failure; each first record has its moment and its latency."""
    built = record(history, failures)
    built.event("job.state", "job", 0.1, data={"from": "CREATED", "to": "RUNNING"})
    for t in (0.1, *failures):
        for task in records:
            built.event("task.state", task, t + 0.001, data={"from": "INITIALIZING", "to": "RUNNING"})
    for task, moments in records.items():
        for t, latency in moments:
            built.event("sink.first-record", task, t, data={"latency_ns": round(latency * NS)})
    return built


def test_a_start_ends_with_the_last_record_that_was_due_when_the_first_sink_had_one(history: Any):
    """Sink 1 gets its first record at 5 s as soon as usual, so none was due for it before."""
    for latency, end in ((0.2, 0.5), (4.9, 5.0)):
        built = started(history, {}, {"sink-0": ((0.5, 0.2),), "sink-1": ((5.0, latency),)})
        found = start_of(built.trial(), at(END))
        assert found is not None
        assert (seconds(found.effect), seconds(found.end), found.recovered, found.first) == (0.1, end, True, True)  # fmt: skip


def test_a_start_is_over_with_its_first_records_also_at_the_end_of_the_record(history: Any):
    """A start does not catch up, so no half second has to follow. The record's last moment is part of it."""
    for t, recovered in ((23.9, True), (24, True), (24.001, False)):
        found = start_of(started(history, {}, {"sink-0": ((t, 0.2),)}).trial(), at(END))
        assert found is not None
        assert (found.recovered, seconds(found.end)) == (recovered, min(t, 24))


def test_a_failure_is_one_of_the_start_until_all_sinks_had_records_in_one_round(history: Any):
    """Sink 0 has one in the second round and sink 1 one in the third, so the fourth is the first with both."""
    records = {"sink-0": ((1.5, 0.2), (3.5, 5.0)), "sink-1": ((2.5, 3.0), (3.6, 3.0))}
    built = started(history, {1: "x", 2: "y", 3: "z"}, records)
    found = start_of(built.trial(), at(END))
    assert found is not None
    assert [r.cause.text if r.cause else "" for r in found.rounds] == ["", "x", "y", "z"]
    assert seconds(found.end) == 3.6
    for t, rounds in ((0.05, 1), (0.1, 2)):
        found = start_of(started(history, {t: "x"}, {"sink-0": ((0.5, 0.2),)}).trial(), at(END))
        assert found is not None
        assert len(found.rounds) == rounds, "a failure before the submission is none of this start"


@pytest.mark.parametrize(
    ("begun", "ended", "target", "start"),
    [
        (1.0, 4.0, "jobmanager", 1.0),
        (1.0, 3.0, "jobmanager", 1.0),
        (0.2, 0.4, "jobmanager", 4.0),  # before the deployment of the trial
        (1.0, 4.5, "jobmanager", 4.0),  # it created the job, so it was not stopped
        (1.0, 4.0, "tm-0", 4.0),
    ],
)
def test_a_start_waits_for_a_jobmanager_that_stood_still_when_the_job_was_submitted(
    history: Any, begun: float, ended: float, target: str, start: float
):
    """It creates the job at 4 s. The runner begins to deploy at 0.5 s, and submits the job when the fault has taken effect."""
    built = history.empty()
    built.event("trial.phase", "deploy", 0.5)
    built.event("job.state", "job", 4.0, data={"from": "CREATED", "to": "RUNNING"})
    built.event("sink.first-record", "sink-0", 4.2, data={"latency_ns": 0})
    kind = "jobmanager.pause" if target == "jobmanager" else "process.pause"
    found = start_of(built.trial(), at(END), [fault("gc", begun, ended, kind, target)])
    assert found is not None
    assert (seconds(found.effect), seconds(found.rounds[0].start)) == (start, start)


def test_a_fault_before_the_first_records_owns_the_start(history: Any):
    """It ends when the job has caught up, or never if no record arrives, and begins with the submission or a later effect. A fault
    after the first records has an outage of its own."""
    for moment, begun, expected in (
        ((), 0.0, [("f", 0.1, 24, False)]),
        ((), 0.2, [("f", 0.2, 24, False)]),
        (((5.0, 0.2),), 5.0, [("f", 5.0, 7, True)]),
        (((5.0, 0.2),), 5.1, [("f", 5.1, 7, True)]),
    ):
        built = started(history, {}, {"sink-0": moment})
        found = outages_of(built.trial(), [fault("f", begun, begun + 0.5)], behind(((0, 7),)), at(END))
        assert [brief(o) for o in found] == expected
        assert [o.first for o in found] == [begun <= 5.0]
        assert seconds(found[0].rounds[-1].end) == expected[0][2]


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ({6: "x"}, [("f", 0.1, 9, ["", "x"])]),
        ({6: "x", 8: "y"}, [("f", 0.1, 9, ["", "x", "y"])]),
        ({6: "x", 12: "y"}, [("f", 0.1, 9, ["", "x"]), ("f", 12, 14, ["y"])]),
        ({12: "x"}, [("f", 0.1, 9, [""]), ("f", 12, 14, ["x"])]),
    ],
)
def test_a_failure_before_a_job_has_caught_up_after_its_start_is_one_of_the_start(
    history: Any, failures: dict[float, str], expected: list[Any]
):
    """A fault was there before the job ran. The job is behind until 9 s, and again from 12 to 14 s."""
    records = {"sink-0": tuple((t + 0.4, 0.2) for t in (0.1, *failures))}
    built = started(history, failures, records)
    found = outages_of(built.trial(), [fault("f", 0, 0.5)], behind(((0, 9), (12, 14))), at(END))
    causes = [[r.cause.text if r.cause else "" for r in o.rounds] for o in found if o.effect < o.end]
    assert [(*brief(o)[:3], c) for o, c in zip(found, causes, strict=True)] == expected
    assert [o.first for o in found] == [True, *(False for _ in found[1:])]
    assert all(seconds(o.rounds[-1].end) == brief(o)[2] for o in found)


@pytest.mark.parametrize(
    ("windowed", "latency", "running"),
    [((), 0.04, 13), (("sink",), 0.04, 10.5), (("sink",), 0.06, 13), (("other",), 0.04, 13), (("sink",), None, 13)],
)  # fmt: skip
def test_a_sink_behind_a_window_whose_first_result_is_punctual_had_missed_none(
    history: Any, windowed: tuple[str, ...], latency: float | None, running: float
):
    """Its task runs at 10.5 s. The result at 13 s is at most 50 ms old, as ever, or older."""
    built = record(history, {10: "lost"}, (0.5,))
    built.event("task.state", "sink-0", 10.5, data={"from": "INITIALIZING", "to": "RUNNING"})
    late = {} if latency is None else {"latency_ns": round(latency * NS)}
    built.event("sink.first-record", "sink-0", 13, data=late)
    (found,) = outages_of(built.trial(), [], behind(((10, 15),)), at(END), windowed=windowed)
    assert found.running is not None
    assert seconds(found.running) == running


@pytest.mark.parametrize(
    ("found", "missing", "last"),
    [
        ([(5, 3), (7, 2)], [], 7),  # due at 2 and at 5
        ([(5, 3), (7, 1.9)], [], 5),  # due at 5.1: the next record of a sink
        ([(5, 3), (9, 3.5)], [], 9),  # later than any that was due
        ([(5, 1), (6, 2), (9, 2)], [], 6),
        ([(5, 3)], [None], None),
        ([(5, 3)], [(30, 14)], None),  # due at 16, and overdue at 19
        ([(5, 3)], [(30, 13)], 5),
    ],
)
def test_the_last_first_record_is_one_that_was_due(
    found: list[tuple[float, float]], missing: list[tuple[float, float] | None], last: float | None
):
    """The tasks run from 5 s to 20 s. A sink without a record by then is waited for if it should have had one."""

    def first(one: tuple[float, float]) -> FirstRecord:
        return FirstRecord(at(one[0]), round(one[1] * NS))

    moment = last_due_arrival(
        [first(one) for one in found], [one and first(one) for one in missing], at(5), at(20)
    )
    assert moment == (None if last is None else at(last))


# ---- the fault behind a failure


@pytest.mark.parametrize(("slow_until", "blamed"), [(20, "slow"), (17, "rst")])
def test_a_fault_from_which_the_job_had_recovered_is_not_blamed_for_what_another_one_does(
    history: Any, slow_until: float, blamed: str
):
    """Both failures name the TaskManager that was reset until 10 s. The second one comes at 18 s: if nothing else is active then, it is
    the last that is known."""
    built = history.empty()
    for number, t in ((1, 10.0), (2, 18.0)):
        built.event("failover.started", str(number), t, text="lost", data={"taskmanager": "tm-0-1"})
    for t in (11.0, 19.0):
        built.event("sink.first-record", "sink-0", t)
    faults = [
        fault("slow", 9, slow_until, "rpc.delay", "jobmanager"),
        fault("rst", 9.9, 10, "network.reset", "tm-0"),
    ]
    found = outages_of(built.trial(), faults, behind(((9.9, 12), (18, 20))), at(END))
    names = [o.fault.fault for o in found if o.fault is not None and o.effect < o.end]
    assert names[-2:] == ["rst", blamed]


@pytest.mark.parametrize(
    ("second", "late", "begun", "shared"),
    [
        # over when the job had recovered, which ran well until it failed
        (("gc", 5, 6, "process.pause", "tm-2"), (18, 20), ("gc", 18), []),
        (("gc", 5, 6, "process.kill", "tm-2"), (18, 20), ("gc", 18), []),
        (("gc", 5, 6, "process.pause", "tm-2"), (9, 20), ("gc", 18), []),
        # not over, or lost and missed since
        (("gc", 5, 9, "process.pause", "tm-2"), (9, 20), ("gc", 8), []),
        (("gc", 5, 6, "process.kill", "tm-2"), (9, 20), ("gc", 8), []),
        # what is active at the failure is blamed instead of what was over
        (("gc", 5, 6, "process.pause", "tm-2"), (18, 20), ("rst", 17.9), ["rst"]),
        (("gc", 5, 6, "process.kill", "tm-2"), (9, 20), ("gc", 8), ["rst"]),
    ],
)
def test_a_fault_within_an_outage_begins_the_next_one_only_if_it_lasted_longer(
    history: Any, second: Any, late: tuple[float, float], begun: tuple[str, float], shared: list[str]
):
    """The first kill is at 4 s, and the job has caught up at 8 s. It fails again at 18 s, on the TaskManager of the second fault."""
    built = history.empty()
    for number, t, name in ((1, 4.5, "tm-1-1"), (2, 18.0, "tm-2-1")):
        built.event("failover.started", str(number), t, text="lost", data={"taskmanager": name})
    for t in (5.2, 19.0):
        built.event("sink.first-record", "sink-0", t)
    faults = [fault("kill", 4, 4.1, "process.kill", "tm-1"), fault(*second)]
    faults += [fault(name, 17.9, 18.1, "network.reset", "tm-1->tm-2") for name in shared]
    found = outages_of(built.trial(), faults, behind(((4, 8), late)), at(END))
    first, last = (o for o in found if o.rounds[0].cause is not None)
    assert (brief(first)[:3], seconds(last.end)) == (("kill", 4, 8), 20)
    assert last.fault is not None
    assert (last.fault.fault, seconds(last.effect)) == begun


@pytest.mark.parametrize("ended", [17.1, 18.5])
def test_a_loss_is_active_until_the_next_outage(history: Any, ended: float):
    """The reset was over at 10 s. A process that was killed at 17 s is missed at 18 s, although the fault itself ended sooner."""
    built = record(history, {10: "lost"}, (11, 19))
    built.event("failover.started", "second", 18.0, text="lost", data={"taskmanager": "tm-0-1"})
    faults = [fault("rst", 9.9, 10, "network.reset", "tm-0"), fault("kill", 17, ended, "process.kill", "tm-1")]  # fmt: skip
    found = outages_of(built.trial(), faults, behind(((9.9, 12), (17, 20))), at(END))
    assert [brief(o) for o in found] == [("rst", 9.9, 12, True), ("kill", 17, 20, True)]


@pytest.mark.parametrize(
    ("kind", "failed", "waits", "effect"),
    [
        ("store.failing", "checkpoint", [((9, 10), "failed"), ((8.5, 10), "expired")], 8.5),
        ("rpc.delay", "heartbeat", [((9, 10), "expired")], 9),
        ("store.failing", "checkpoint", [((7, 10), "failed")], 8),
        ("store.failing", "checkpoint", [((9, 10), "completed")], 8),
        ("store.failing", "checkpoint", [((9, 11.1), "failed")], 8),  # after the failure
        ("store.failing", "checkpoint", [((7, 8), "failed"), ((9, 11), "failed")], 9),  # before the fault
        ("rpc.delay", "checkpoint", [((9, 10), "failed")], 8),
        ("store.failing", "heartbeat", [((9, 10), "failed")], 8),
    ],
)
def test_a_fault_that_costs_a_running_job_nothing_begins_with_what_it_fails(
    history: Any, kind: str, failed: str, waits: list[Any], effect: float
):
    """It is there from 8 s on, and the job fails at 11 s."""
    built = record(history, {}, (0.5, 12))
    for span, outcome in waits:
        built.wait(failed, "JobMaster", "", span, outcome=outcome)
    built.event("failover.started", "1", 11.0, text="lost", data={"wait": failed})
    found = outages_of(built.trial(), [fault("a", 8, 20, kind)], behind(((8, 14),)), at(END))
    assert [brief(o) for o in found] == [("a", effect, 14, True)]


@pytest.mark.parametrize(
    ("kind", "failed", "waited", "ended", "effect"),
    [
        ("heartbeats.mute", "heartbeat", (15, 18), 20, 15),
        ("heartbeats.mute", "heartbeat", (11, 18), 20, 14),  # from the end of the outage before
        ("store.slow", "checkpoint", (15, 18), 20, 15),
        ("heartbeats.mute", "heartbeat", (15, 19), 20, 18),  # not the wait that failed
        ("heartbeats.mute", "heartbeat", (15, 18), 13, 18),  # over before the job had recovered
        ("frames.drop", "connection", (15, 18), 20, 18),  # the job runs until the connection closes
    ],
)
def test_a_fault_that_fails_a_job_again_begins_with_what_it_fails(
    history: Any, kind: str, failed: str, waited: tuple[float, float], ended: float, effect: float
):
    """The job has failed at 11 s and has recovered at 14 s. It fails again at 18 s, by a fault that has been there since 8 s. A spare
    TaskManager is lost at 14.5 s."""
    built = record(history, {}, (0.5, 12, 19))
    lost = {"wait": failed, "taskmanager": "tm-0-1"}
    for number, span in enumerate(((8, 11), waited), start=1):
        built.wait(failed, "JobMaster", "tm-0-1", span, outcome="expired")
        built.event("failover.started", str(number), 11.0 if number == 1 else 18.0, text="lost", data=lost)
    built.wait(failed, "ResourceManager", "tm-5-1", (12, 14.5), outcome="expired")
    found = outages_of(built.trial(), [fault("a", 8, ended, kind)], behind(((8, 14), (18, 20))), at(END))
    assert [brief(o)[1:3] for o in found][1:] == [(effect, 20)]


@pytest.mark.parametrize(("timed_out", "begun"), [(True, 15), (False, 18)])
def test_a_failure_of_which_a_busy_jobmaster_heard_late_began_when_the_job_fell_behind(
    history: Any, timed_out: bool, begun: float
):
    """The job had recovered from another failure at 12 s."""
    built = record(history, {9: "lost"}, (0.5, 10, 19))
    late = {"wait": "jobmanager", "detector": "Task", "cause_class": "TimeoutException" if timed_out else "E"}
    built.event("failover.started", "2", 18.0, text="late", data=late)
    found = outages_of(built.trial(), [], behind(((8, 12), (15, 20))), at(END))
    assert [brief(o)[1:3] for o in found] == [(9, 12), (begun, 20)]
