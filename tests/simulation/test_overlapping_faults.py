"""Two faults at once in virtual time: one recovery for both, with a window for each and every second attributed once."""

from __future__ import annotations

import copy
import html
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.common import data, events, windows
from testbed_runtime.checking.recovery import milestones
from testbed_runtime.cli import loading
from tests.simulation.simulating import run_one

SCENARIOS = Path(__file__).parents[2] / "scenarios"
KILLED = "02-taskmanager-killed"
PAUSED = "03-taskmanager-paused"
LOCAL = "15-local-recovery"


def fault(name: str, at: str, duration: str, target: str, **kind: Any) -> dict[str, Any]:
    """A fault of one TaskManager, or of the JobManager."""
    where = {} if target == "jm" else {"target": {"taskManagers": {"names": [target]}}}
    return {"name": name, "at": at, "duration": duration} | where | kind


def kill(name: str, at: str, target: str, duration: str = "1 s") -> dict[str, Any]:
    return fault(name, at, duration, target, process={"kill": {}})


def pause(name: str, at: str, duration: str, target: str) -> dict[str, Any]:
    return fault(name, at, duration, target, process={"pause": {}})


def mute(name: str, at: str, duration: str, target: str, direction: str = "response") -> dict[str, Any]:
    return fault(name, at, duration, target, heartbeats={"mute": {"direction": direction}})


def latency(name: str, at: str, duration: str, target: str) -> dict[str, Any]:
    return fault(name, at, duration, target, network={"latency": {"mode": "one-way", "delay": "400 ms"}})


LINKS = {
    "target": {"taskManagers": {"names": ["tm-0"]}, "peers": {"running": "sink"}},
    "network": {"latency": {"mode": "one-way", "delay": "400 ms"}},
}
"""The links to the TaskManagers of a vertex."""


def jobmanager(name: str, at: str, duration: str, kind: str) -> dict[str, Any]:
    return fault(name, at, duration, "jm", jobmanager={kind: {}})


CASES: list[tuple[str, str, str, list[dict[str, Any]], list[tuple[str, ...]]]] = [
    ("a kill and a pause", KILLED, "2 s", [kill("a", "0 s", "tm-2"), pause("b", "1 s", "3 s", "tm-0")], [("a", "b")]),
    ("a kill and latency", KILLED, "2 s", [kill("a", "0 s", "tm-2"), latency("b", "1 s", "3 s", "tm-0")], [("a", "b")]),
    ("two kills", KILLED, "2 s", [kill("a", "0 s", "tm-2"), kill("b", "1 s", "tm-0")], [("a", "b")]),
    ("three kills", KILLED, "2 s", [kill("a", "0 s", "tm-2"), kill("b", "1 s", "tm-0"), kill("c", "2 s", "tm-1")], [("a", "b", "c")]),
    ("no failover from two at the same instant, then a kill", PAUSED, "Never", [
        latency("a", "5 s", "2 s", "tm-1"), kill("b", "5 s", "tm-2", "2 s"), kill("c", "5900 ms", "tm-1"),
    ], [("a", "b", "c")]),
    ("latency that lasts longer than what came after it", LOCAL, "Never", [
        jobmanager("a", "3 s", "2 s", "pause"), latency("b", "2 s", "8 s", "tm-2"),
    ], [("b", "a")]),
    ("a JobManager that restarted, and is paused", LOCAL, "Never", [
        jobmanager("a", "1 s", "2 s", "kill"), jobmanager("b", "3 s", "300 ms", "pause"),
    ], [("a", "b")]),
    ("the JobManager killed during the recovery of a TaskManager", KILLED, "2 s", [
        kill("a", "0 s", "tm-2"), jobmanager("b", "1 s", "2 s", "kill"),
    ], [("a", "b")]),
]  # fmt: skip
"""(what, scenario, replaceLost, faults, the faults of each recovery)."""


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("scenario", "replaced", "faults", "recoveries"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_overlapping_faults_share_a_recovery(
    scenario: str,
    replaced: str,
    faults: list[dict[str, Any]],
    recoveries: list[tuple[str, ...]],
    tmp_path: Path,
) -> None:
    """Its prices sum to the total with at most 1 % unattributed, each fault has a window, each restart is in a recovery."""
    document = copy.deepcopy(loading.load(SCENARIOS / scenario).document)
    spec = document["spec"]
    spec.pop("variants", None)
    spec["testbed"]["taskManagers"]["replaceLost"] = replaced
    spec["timeline"] = {"warmUp": "3 s", "baseline": "3 s", "observation": "20 s", "drain": "30 s"}
    asked = [{"metric": "lag.max", "phase": f"outage/{f['name']}", "max": "60 s"} for f in faults]
    spec |= {"control": False, "trials": 1, "faults": faults, "expect": asked}
    ran = run_one(document, tmp_path)
    found, end = trial_recovery(ran.trial, ran.entry), windows(ran.trial, ran.entry).end
    assert [r.faults for r in found.recoveries] == recoveries
    for recovery in found.recoveries:
        owned = sum(p.seconds for p in recovery.prices)
        assert owned + recovery.unattributed_s == pytest.approx(recovery.total_s)
        assert recovery.unattributed_s <= 0.01 * recovery.total_s
        segments = [s for r in recovery.rounds for s in r.segments]
        assert (segments[0].start_ns, segments[-1].end_ns) == (recovery.effect_ns, recovery.end_ns)
        assert all(a.end_ns == b.start_ns for a, b in pairwise(segments))
    named = dict(milestones(found, end))
    assert all(named[f"outage/{f['name']}"] for f in faults)
    restarts = [e["t_ns"] for e in events(ran.trial, "job.state") if data(e).get("to") == "RESTARTING"]
    assert all(any(r.effect_ns <= t <= r.end_ns for r in found.recoveries) for t in restarts if t < end)
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert [e["verdict"] for e in verdict["expectations"] if e["phase"]] == ["Pass"] * len(faults)
    assert " and ".join(recoveries[0]) in (tmp_path / "report.html").read_text()


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        (jobmanager("a", "1 s", "4 s", "kill"), jobmanager("b", "2 s", "1 s", "kill"), "the JobManager"),
        (jobmanager("a", "1 s", "4 s", "kill"), jobmanager("b", "2 s", "1 s", "pause"), "the JobManager"),
        (kill("a", "0 s", "tm-2"), kill("b", "1 s", "tm-2"), "tm-2"),
        (kill("a", "0 s", "tm-2"), pause("b", "1 s", "2 s", "tm-2"), "tm-2"),
        (jobmanager("a", "1 s", "4 s", "pause"), mute("b", "2 s", "1 s", "tm-2"), "the JobManager"),
        (pause("a", "1 s", "4 s", "tm-2"), mute("b", "2 s", "1 s", "tm-2", "request"), "tm-2"),
    ],
    ids=[
        "JobManager killed twice",
        "JobManager killed, then paused",
        "killed twice",
        "killed, then paused",
        "a paused JobManager ignores the answers to its heartbeats",
        "a paused TaskManager ignores heartbeats",
    ],
)
def test_a_fault_on_a_process_that_does_not_run_is_not_applied(
    first: dict[str, Any], second: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """The process is dead or paused. The run is judged and the other fault lasts as planned. With jitter, no document can be refused for it."""
    document = copy.deepcopy(loading.load(SCENARIOS / KILLED).document)
    spec = document["spec"]
    spec.pop("variants", None)
    spec["testbed"]["taskManagers"] |= {"replaceLost": "Never", "replicas": 6}
    spec["timeline"] = {"warmUp": "3 s", "baseline": "3 s", "observation": "12 s", "drain": "30 s"}
    asked = [{"metric": "lag.max", "phase": "outage/b", "max": "60 s"}]
    spec |= {"control": False, "trials": 1, "faults": [first, second | {"jitter": "1 ms"}], "expect": asked}
    ran = run_one(document, tmp_path)
    rows = [r for r in ran.trial.rows("faults") if r["fault"] == "b"]
    assert [r["state"] for r in rows] == ["asked", "failed", "clean"]
    assert rows[1]["text"] == f"not applied: {name} was not running"
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    found = {e["text"]: e["verdict"] for e in verdict["expectations"]}
    assert verdict["verdict"] == "Inconclusive"
    assert found["fault a takes effect"] == found["fault.residue equals 0"] == "Pass"
    assert found["fault b takes effect"] == found["lag.max (outage/b) at most 60 s"] == "Inconclusive"
    whole = [
        r["t_ns"]
        for r in ran.trial.rows("faults")
        if r["fault"] == "a" and r["state"] in ("injected", "ended")
    ]
    assert (whole[1] - whole[0]) / 1e9 == pytest.approx(float(first["duration"].split()[0]), abs=0.01)
    assert "| not applied |" in (tmp_path / "report.md").read_text()
    assert f"not applied: {name} was not running" in (tmp_path / "report.html").read_text()


@pytest.mark.virtual
@pytest.mark.parametrize(
    "selected", [{"target": {"taskManagers": {"running": "sink"}}, "process": {"kill": {}}}, LINKS]
)
def test_a_fault_on_a_vertex_whose_tasks_do_not_run_is_not_applied(
    selected: dict[str, Any], tmp_path: Path
) -> None:
    """The job waits for slots when the fault is due, so no TaskManager runs the vertex. The run is judged, and not ended as Error."""
    document = copy.deepcopy(loading.load(SCENARIOS / KILLED).document)
    spec = document["spec"]
    spec.pop("variants", None)
    spec["testbed"]["taskManagers"] |= {"replaceLost": "8 s", "replicas": 4}
    spec["timeline"] = {"warmUp": "3 s", "baseline": "3 s", "observation": "12 s", "drain": "30 s"}
    second = {"name": "b", "at": "6 s", "duration": "1 s", **selected}
    asked = [{"metric": "lag.max", "phase": "outage/b", "max": "60 s"}]
    spec |= {"control": False, "trials": 1, "faults": [kill("a", "0 s", "tm-2"), second], "expect": asked}
    ran = run_one(document, tmp_path)
    rows = [r for r in ran.trial.rows("faults") if r["fault"] == "b"]
    assert [(r["state"], r["targets"]) for r in rows] == [(s, "[]") for s in ("asked", "failed", "clean")]
    assert rows[1]["text"] == "not applied: no TaskManager runs vertex 'sink'"
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    found = {e["text"]: e["verdict"] for e in verdict["expectations"]}
    assert (verdict["verdict"], verdict["reason"]) == ("Inconclusive", "FaultNotVerified")
    assert found["fault a takes effect"] == found["fault.residue equals 0"] == "Pass"
    assert found["fault b takes effect"] == found["lag.max (outage/b) at most 60 s"] == "Inconclusive"
    assert rows[1]["text"] in html.unescape((tmp_path / "report.html").read_text())
