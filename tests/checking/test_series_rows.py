"""The rows of timeseries.json, computed by hand: spans, marks, faults, rates and latencies of a trial from 10 s to 14 s."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import to_builtins

from testbed_runtime.checking.timeseries import MARKS_MAX, TEXT_MAX, trial_timeseries
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS
from tests.checking.conftest import NS, History, at
from tests.manifests import trial_entry

ENTRY = {
    "phases": [
        {"name": "baseline", "start_ns": at(10), "end_ns": at(12)},
        {"name": "drain", "start_ns": at(12), "end_ns": at(14)},
    ]
}


def series(history: History, **more: Any) -> dict[str, Any]:
    """The entry of a trial in timeseries.json."""
    return to_builtins(trial_timeseries(history.trial(), trial_entry(ENTRY, **more)))


def spans(history: History, kind: str) -> list[tuple[str, float, float, str]]:
    """Name, start, end and text of the spans of a kind."""
    found = [s for s in series(history)["spans"] if s["kind"] == kind]
    return [(s["name"], s["start_s"], s["end_s"], s["text"]) for s in found]


def test_times_count_from_the_first_phase():
    """The axis has a bin for each started quarter of a second."""
    found = series(History())
    assert (found["start_ns"], found["bin_s"]) == (at(10), 0.25)
    assert found["bins"] == [n / 4 for n in range(16)]
    assert spans(History(), "phase") == [("baseline", 0.0, 2.0, ""), ("drain", 2.0, 4.0, "")]


def test_a_trial_without_phases_lasts_from_its_first_row_to_its_last():
    """Samples and events count, in whatever order they were written."""
    history = History()
    history.event("note", t=5.0)
    history.add("tm-0-1", "tasks", 4.5, task="sink-0", role="sink")
    history.event("note", t=4.75)
    found = to_builtins(trial_timeseries(history.trial(), trial_entry()))
    assert (found["start_ns"], found["bins"]) == (at(4.5), [0.0, 0.25])
    empty = to_builtins(trial_timeseries(History().trial(), trial_entry()))
    assert (empty["start_ns"], empty["bins"]) == (0, [0.0])


FAULT_SPANS = [
    ("not from its verification", [(11, "injected"), (11.5, "verified"), (12, "ended"), (13, "clean")], [(1.0, 2.0)]),
    ("never verified", [(11, "injected"), (12, "clean")], [(1.0, 2.0)]),
    ("on two targets", [(11, "injected"), (11.5, "injected"), (12, "residue")], [(1.0, 2.0)]),
    ("failed", [(11, "injected"), (12, "failed")], [(1.0, 2.0)]),
    ("its lease expired", [(11, "injected"), (12, "voided")], [(1.0, 2.0)]),
    ("not seen is no end", [(11, "injected"), (12, "unverified")], [(1.0, 4.0)]),
    ("only asked", [(11, "asked"), (12, "ended")], []),
]  # fmt: skip


@pytest.mark.parametrize(("case", "rows", "expected"), FAULT_SPANS)
def test_a_fault_lasts_from_its_effect_to_its_first_end(
    case: str, rows: list[tuple[float, str]], expected: list[tuple[float, float]]
):
    """Without an end it lasts until the trial ends."""
    history = History()
    for t, state in rows:
        history.add("supervisor", "faults", t, fault="f", state=state, kind="process.kill", targets=["tm-0", "tm-1"])  # fmt: skip
    found = spans(history, "fault")
    assert [(start, end) for _, start, end, _ in found] == expected, case
    assert {text for *_, text in found} <= {"process.kill on tm-0, tm-1"}


def test_faults_are_drawn_by_name():
    """Each has a span of its own, which the other's rows do not change."""
    history = History()
    for t, fault, state in ((11, "b", "injected"), (12, "a", "injected"), (13, "b", "ended")):
        history.add("supervisor", "faults", t, fault=fault, state=state, kind="k", targets=[])
    assert spans(history, "fault") == [("a", 2.0, 4.0, "k on "), ("b", 1.0, 3.0, "k on ")]


def test_a_restart_lasts_until_its_tasks_are_deployed():
    """One that never deploys lasts until the trial ends. Long texts are cut."""
    history = History()
    history.event("failover.started", "1", 11, text="x" * (TEXT_MAX + 1))
    history.event("failover.deployed", "1", 12)
    history.event("failover.started", "2", 13)
    assert spans(history, "failover") == [("restart 1", 1.0, 2.0, "x" * TEXT_MAX), ("restart 2", 3.0, 4.0, "")]  # fmt: skip


def marks(history: History) -> list[tuple[str, float, str]]:
    """Kind, time and text of all marks."""
    return [(m["kind"], m["t_s"], m["text"]) for m in series(history)["marks"]]


def test_marks_are_the_events_within_the_phases():
    """Both edges are within. A change of the job's state names the new state, other events only their subject."""
    history = History()
    history.event("note", "early", 9.9)
    history.event("note", "first", 10)
    history.event("job.state", "84ed5e6284a4c908", 11, text="It broke.", data={"to": "FAILED"})
    history.event("job.state", "job", 11.5, data={"from": "RUNNING"})
    history.event("task.state", "sink-0", 12, data={"to": "FAILED"})
    history.event("leadership", "jobmanager", 13, text="lost", data={"to": "x"})
    history.event("note", "last", 14)
    history.event("note", "late", 14.1)
    assert marks(history) == [
        ("note", 0.0, "first"),
        ("job.state", 1.0, "job: FAILED. It broke."),
        ("job.state", 1.5, "job"),
        ("leadership", 3.0, "jobmanager. lost"),
        ("note", 4.0, "last"),
    ]


def test_checkpoints_that_completed_or_failed_are_marked():
    """With their duration and the reason, if there is one; those from before the first phase are not."""
    history = History()
    for t, number, state, more in (
        (9.9, 1, "completed", {}),
        (10, 2, "completed", {"duration_ns": 120 * 10**6}),
        (11, 3, "acknowledged", {}),
        (12, 3, "failed", {"reason": "expired"}),
        (13, 4, "failed", {"duration_ns": NS, "reason": "declined"}),
    ):
        history.add("jobmanager-1", "checkpoints", t, checkpoint=number, state=state, **more)
    assert marks(history) == [
        ("checkpoint.completed", 0.0, "checkpoint 2 completed after 120 ms"),
        ("checkpoint.failed", 2.0, "checkpoint 3 failed: expired"),
        ("checkpoint.failed", 3.0, "checkpoint 4 failed after 1.00 s: declined"),
    ]


def test_marks_have_a_limit():
    """A job that fails all the time does not fill the page."""
    history = History()
    for _ in range(MARKS_MAX + 1):
        history.event("note", "n", 11)
    assert len(marks(history)) == MARKS_MAX


A, B = ["tm-0"], ["tm-1"]
EFFECTS = [
    ("verified on both", [("verified", A), ("verified", B)], ("verified", "not measured")),
    ("not on one of both", [("verified", A), ("unverified", B)], ("unverified", "not measured")),
    ("the last word of a target counts", [("unverified", A), ("verified", A)], ("verified", "not measured")),
    ("one target left residue", [("clean", A), ("residue", B)], ("not measured", "residue")),
    ("both are clean", [("clean", A), ("clean", B)], ("not measured", "clean")),
    ("it could not be injected", [("failed", A)], ("not applied", "not measured")),
    ("it failed after it was injected", [("injected", A), ("failed", A)], ("not measured", "not measured")),
    ("only asked", [("asked", A)], ("not measured", "not measured")),
]


@pytest.mark.parametrize(("case", "rows", "expected"), EFFECTS)
def test_a_fault_is_as_good_as_its_worst_target(
    case: str, rows: list[tuple[str, list[str]]], expected: tuple[str, str]
):
    """Effect and residue are those of every target."""
    history = History()
    for t, (state, targets) in enumerate(rows):
        history.add("supervisor", "faults", 11 + t / 10, fault="f", state=state, targets=targets)
    (found,) = series(history)["faults"]
    assert (found["effect"], found["residue"]) == expected, case


def test_a_fault_is_described_by_the_manifest_and_by_the_history():
    """The manifest names the kind, the history the backend. What several agents measured is joined; the last counters count."""
    history = History()
    for t, state, targets, more in (
        (11, "asked", A, {"asked": {"delay": 1}, "text": "not shown", "kind": "k"}),
        (
            11.1,
            "verified",
            A,
            {"measured": {"states": {"tm-0": "T"}, "rtt": 1, "counters": {"sent": 1}}, "text": "seen"},
        ),
        (11.2, "verified", B, {"measured": {"states": {"tm-1": "T"}, "rtt": 2}, "text": "seen"}),
        (12, "ended", A, {"text": "by the deadline"}),
        (
            13,
            "clean",
            A,
            {"measured": {"counters": {"sent": 7}}, "backend": "netem", "kind": "network.latency"},
        ),
    ):
        history.add("supervisor", "faults", t, fault="f", state=state, targets=targets, **more)
    manifest = {"name": "f", "kind": "asked.kind", "backend": "proxy", "why": "no privilege", "targets": ["tm-9"],
                "at_s": 1, "duration_s": 2, "before_submit": True, "params": {"delay": 9}}  # fmt: skip
    (found,) = series(history, faults=[manifest])["faults"]
    assert found == {
        "fault": "f", "kind": "asked.kind", "backend": "netem", "why": "no privilege", "targets": ["tm-0", "tm-1"], "at_s": 1,
        "before_submit": True, "duration_s": 2, "asked": {"delay": 1},
        "measured": {"states": {"tm-0": "T", "tm-1": "T"}, "rtt": 2, "counters": {"sent": 7}}, "after": {"counters": {"sent": 7}},
        "effect": "verified", "residue": "clean", "text": "seen; ended: by the deadline",
    }  # fmt: skip
    (alone,) = series(history)["faults"]
    assert (alone["kind"], alone["why"], alone["before_submit"]) == ("network.latency", "", False)
    (never,) = series(History(), faults=[manifest])["faults"]
    assert (never["backend"], never["targets"], never["asked"]) == (
        "proxy",
        ["tm-9"],
        {"params": {"delay": 9}, "direction": "both"},
    )
    other = {"name": "e", "params": {}}
    assert [f["fault"] for f in series(history, faults=[manifest, other])["faults"]] == ["f", "e"]


def test_the_text_of_a_fault_is_cut():
    """TEXT_MAX characters of all its rows."""
    history = History()
    for t in (11, 12):
        history.add("supervisor", "faults", t, fault="f", state="failed", text=f"{t}" * TEXT_MAX, targets=A)
    assert len(series(history)["faults"][0]["text"]) == TEXT_MAX


def sampled(*samples: tuple[float, str, int, int]) -> History:
    """Samples of sinks: second, task, attempt, records received so far."""
    history = History()
    for t, task, attempt, records in samples:
        history.add("tm-0-1", "tasks", t, task=task, vertex="sink", role="sink", attempt=attempt, records_in=records)  # fmt: skip
    return history


RATES = [
    ("one task, 100 records in a second", [(10.5, "sink-0", 0, 0), (11.5, "sink-0", 0, 100)], [None, 0, 100, 100, 100, 100, 0, None]),
    ("two tasks add up", [(10, "sink-0", 0, 0), (10, "sink-1", 0, 0), (10.5, "sink-0", 0, 50), (10.5, "sink-1", 0, 10)], [120, 120, 0, None]),
    ("records of a first sample count at once", [(10.25, "sink-0", 0, 0), (10.5, "sink-0", 1, 25)], [0, 100, 0, None]),
    ("an attempt begins at 0 again", [(10, "sink-0", 0, 0), (10.5, "sink-0", 0, 50), (10.5, "sink-0", 1, 0), (11, "sink-0", 1, 50)], [100, 100, 100, 100, 0, None]),
]  # fmt: skip


@pytest.mark.parametrize(("case", "samples", "expected"), RATES)
def test_a_rate_is_the_growth_of_each_attempts_counter(
    case: str, samples: list[tuple[float, str, int, int]], expected: list[float | None]
):
    """In records per second; None where no task was sampled."""
    found = series(sampled(*samples))["series"]
    assert found["throughput"] == [*expected, *[None] * (16 - len(expected))], case
    assert set(found["emitted"]) == {None}


def test_numbers_are_as_exact_as_a_drawing_can_show():
    """A tenth of a millisecond, a tenth of a record per second, a microsecond of latency."""
    history = sampled((10, "sink-0", 0, 0), (10.15, "sink-0", 0, 0), (10.3, "sink-0", 0, 10))
    history.event("note", "n", 10.123456)
    history.wait("credit", "a", "b", (0, 0.123456))
    found = series(history)
    assert found["series"]["throughput"][0] == found["series"]["goodput"][0] == 26.7
    assert found["marks"][0]["t_s"] == found["credit"]["channels"][0]["seconds"] == 0.1235
    assert found["credit"]["channels"][0]["longest_s"] == 0.1235
    found = series(windows_of((10, {40: 100}, 62_512_345)))
    assert found["series"]["latency_p99_s"][0] == 0.062512


def test_sources_emit_what_sinks_receive():
    """The two rates are of different counters of different tasks."""
    history = History()
    for t, out in ((10, 0), (14, 400)):
        history.add("tm-0-1", "tasks", t, task="source-0", vertex="source", role="source", records_out=out, records_in=7)  # fmt: skip
    found = series(history)["series"]
    assert (found["emitted"], found["throughput"]) == ([100.0] * 16, [None] * 16)


def windows_of(*rows: tuple[float, dict[int, int], int]) -> History:
    """Latency windows of a quarter of a second: start, records by bucket, the largest latency in ns."""
    history = History()
    for t, buckets, most in rows:
        counts = [buckets.get(i, 0) for i in range(len(LATENCY_BOUNDS_NS) + 1)]
        history.add("tm-0-1", "latency", t + 0.25, task="sink-0", window_start_ns=at(t), window_ns=NS // 4,
                    count=sum(counts), buckets=counts, max_ns=most)  # fmt: skip
    return history


def test_the_latency_of_a_bin_is_that_of_the_windows_with_their_middle_in_it():
    """Windows of one bin are merged. Too few records for a quantile show the largest latency."""
    low, high = LATENCY_BOUNDS_NS[39] / NS, LATENCY_BOUNDS_NS[40] / NS
    most = 7 * NS // 100
    history = windows_of(
        (9.8, {40: 1}, most),  # before the first phase
        (10.3, {40: 1}, most),
        (10.2, {40: 1}, most - 1),
        (10.5, {}, 0),
        (10.8, {0: 1}, 5_000),
        (10.9, {40: 100}, most),
        (13.9, {40: 1}, most),  # after the last one
    )
    found = series(history)["series"]
    middle = round((low + high) / 2, 6)
    assert found["latency_p50_s"] == [None, middle, None, 5e-06, middle, *[None] * 11]
    assert found["latency_p99_s"] == [None, 0.07, None, 5e-06, 0.07, *[None] * 11]


@pytest.mark.parametrize("text", ["[", "3", '"a"', "", None])
def test_what_is_no_list_of_targets_counts_as_none(text: str | None):
    """A history of another writer is drawn as far as it can be read."""
    history = History()
    history.add("supervisor", "faults", 11, fault="f", state="injected", kind="k", targets=text)
    assert spans(history, "fault") == [("f", 1.0, 4.0, "k on ")]
    json.dumps(series(history), allow_nan=False)
