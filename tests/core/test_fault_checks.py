"""The fields of a fault and its target: each problem at its limit."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import UserError, nearest
from testbed_runtime.core.faults.check import MAX_DURATION_S, problems, target_problems
from testbed_runtime.core.faults.kinds import kind_of
from testbed_runtime.core.faults.model import Fault, Target


def fault(kind: str = "process.kill", **more: Any) -> Fault:
    return Fault(**{"name": "f", "kind": kind, "at_s": 0.0, "duration_s": 1.0} | more)


LATENCY = {"latency_s": 0.1, "mode": "one-way", "jitter_s": 0.0, "correlation": 0}


def found(wrong: Fault, **more: Any) -> list[str]:
    return [f"{error.path}: {error.problem}" for error in problems(wrong, "at", **more)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"duration_s": 0.0}, ["at.duration: must be greater than 0"]),
        ({"duration_s": MAX_DURATION_S}, []),
        ({"duration_s": MAX_DURATION_S + 1}, ["at.duration: 86401 s is out of range"]),
        ({"duration_s": float("nan")}, ["at.duration: nan s is out of range"]),
        ({"duration_s": True}, ["at.duration: True s is out of range"]),
        ({"plane": "dta"}, ["at.plane: 'dta' is not one of data, rpc, both"]),
        ({"direction": "back"}, ["at.direction: 'back' is not one of to, from, both"]),
        ({"params": {"x": 1}}, ["at.process.kill.x: is not a parameter of process.kill"]),
    ],
)
def test_the_fields_of_a_fault_are_in_range(change: dict[str, Any], expected: list[str]):
    """A duration is above 0 and at most a day."""
    assert found(fault(**change)) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"latency_s": None}, ["at.network.latency.delay: network.latency needs it"]),
        ({"latency_s": 0}, ["at.network.latency.delay: must be greater than 0"]),
        ({"mode": "both"}, ["at.network.latency.mode: 'both' is not one of one-way, round-trip"]),
        ({"correlation": 100, "jitter_s": 0.1}, []),
        ({"correlation": 101, "jitter_s": 0.1}, ["at.network.latency.correlation: 101 is out of range"]),
        ({"correlation": -1}, ["at.network.latency.correlation: -1 is out of range"]),
        ({"jitter_s": 0.1}, []),
        ({"jitter_s": 0.11}, ["at.network.latency.jitter: is more than the delay, so bytes would arrive before they were sent"]),
        ({"latency_s": 0, "jitter_s": 0.11}, ["at.network.latency.delay: must be greater than 0"]),
    ],
)  # fmt: skip
def test_the_parameters_of_a_kind_are_in_range(change: dict[str, Any], expected: list[str]):
    """Constraints between them are checked once each is in range."""
    assert found(fault("network.latency", params=LATENCY | change)) == expected


ANY, NAMED = Target(), Target(names=("tm-0",))


@pytest.mark.parametrize(
    ("kind", "selects", "written", "peers", "problem"),
    [
        ("process.kill", True, True, False, ""),
        ("process.kill", False, True, False, "process.kill needs TaskManagers"),
        ("jobmanager.kill", False, False, False, ""),
        ("jobmanager.kill", True, True, False, "jobmanager.kill hits the JobManager"),
        ("pod.delete", False, True, False, ""),
        ("pod.delete", False, False, False, "pod.delete needs its pods"),
        ("network.latency", False, False, False, ""),
        ("network.latency", True, True, True, ""),
        ("process.kill", True, True, True, "process.kill hits processes, not links"),
    ],
)
def test_a_kind_of_fault_has_a_kind_of_target(
    kind: str, selects: bool, written: bool, peers: bool, problem: str
):
    """Processes are those of TaskManagers, pods are named, and only links have peers."""
    reported = [
        e.problem for e in target_problems(fault(kind), "at", selects=selects, written=written, peers=peers)
    ]
    assert reported == ([problem] if problem else [])


ON_RPC = "write plane: rpc"
NO_PART = "the JobManager has no part in the exchange between TaskManagers, so the fault has no effect"


@pytest.mark.parametrize(
    ("change", "selects", "reported"),
    [
        ({"kind": "network.latency"}, True, []),
        ({"kind": "network.latency"}, False, [("at.target", NO_PART, ON_RPC)]),
        ({"kind": "network.latency", "plane": "rpc"}, False, []),
        ({"kind": "network.latency", "plane": "both"}, False, []),
        (
            {"kind": "network.latency", "target": Target(peers=("jobmanager",))},
            True,
            [("at.target.peers", NO_PART, ON_RPC)],
        ),
        ({"kind": "network.latency", "target": Target(peers=("jobmanager", "tm-1"))}, True, []),
        ({"kind": "network.latency", "target": Target(peers=("jobmanager",), peers_running="map")}, True, []),
        ({"kind": "frames.delay"}, False, [("at.target", NO_PART, "name TaskManagers")]),
        ({"kind": "frames.delay"}, True, []),
        ({"kind": "process.kill"}, True, []),
    ],
)
def test_a_fault_on_the_exchange_does_not_hit_the_jobmanager(
    change: dict[str, Any], selects: bool, reported: list[tuple[str, str, str]]
):
    """Neither as its target nor as its only peer."""
    wrong = target_problems(fault(**change), "at", selects=selects, written=True, peers="target" in change)
    assert [(e.path, e.problem, e.hint) for e in wrong] == reported


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        ("rpc.delay", {"method": "SubmitTask", "delay_s": 1.0}, []),
        (
            "rpc.delay",
            {"method": "SubmitTsk", "delay_s": 1.0},
            ["at.rpc.delay.method: the message 'SubmitTsk' does not exist"],
        ),
        (
            "network.latency",
            LATENCY | {"x": 1, "y": 2},
            [f"at.network.latency.{name}: is not a parameter of network.latency" for name in "xy"],
        ),
    ],
)
def test_names_of_messages_and_parameters_exist(kind: str, params: dict[str, Any], expected: list[str]):
    """Each wrong one is reported."""
    assert found(fault(kind, params=params)) == expected


def test_the_hint_of_a_process_fault_on_the_jobmanager_names_the_kind_for_it():
    """`pause` and `kill` exist for both."""
    [problem] = target_problems(fault("process.pause"), "at", selects=False, written=True, peers=False)
    assert (
        problem.hint
        == "write target: {taskManagers: {mode: one}}, or use jobmanager.pause for the JobManager"
    )
    [problem] = target_problems(fault("process.pause"), "at", selects=False, written=False, peers=False)
    assert problem.hint == "write target: {taskManagers: {mode: one}}"


@pytest.mark.parametrize(
    ("target", "before_submit", "is_wrong"),
    [
        (Target(running="a"), True, True),
        (Target(peers_running="a"), True, True),
        (Target(running="a"), False, False),
        (Target(), True, False),
    ],
)
def test_before_the_job_is_submitted_nothing_runs(target: Target, before_submit: bool, is_wrong: bool):
    """So no process can be selected by what runs there."""
    early = replace(fault("network.latency"), target=target, before_submit=before_submit)
    reported = list(target_problems(early, "at", selects=True, written=True, peers=False))
    assert bool(reported) is is_wrong


@pytest.mark.parametrize(
    ("method", "selects", "written", "receiver"),
    [
        ("SubmitTask", True, True, ""),
        ("SubmitTask", False, True, "TaskManagers"),
        ("SubmitTask", False, False, ""),
        ("AcknowledgeCheckpoint", True, True, "the JobManager"),
        ("AcknowledgeCheckpoint", False, True, ""),
        ("", True, True, ""),
    ],
)
def test_a_delayed_message_is_received_by_its_target(
    method: str, selects: bool, written: bool, receiver: str
):
    """Without a written target, every TaskManager is hit."""
    delayed = fault("rpc.delay", params={"method": method, "delay_s": 1.0})
    reported = [
        e.problem for e in target_problems(delayed, "at", selects=selects, written=written, peers=False)
    ]
    assert len(reported) == bool(receiver)
    assert all(f"{method} is a message to {receiver}, so" in text for text in reported)


def test_a_near_name_is_proposed():
    """Otherwise all names are."""
    assert nearest("warmup", ["warmUp", "drain"]) == "did you mean warmUp?"
    assert nearest("xyz", ["warmUp", "drain"]) == "there are warmUp, drain"
    with pytest.raises(UserError):
        kind_of(fault("process.kil"))
