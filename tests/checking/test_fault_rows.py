"""A fault that several agents hold is one row of the report, and one that never began says why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed_runtime.checking.faults import added_delays, check_faults, round_trip_delays
from testbed_runtime.checking.timeseries import _faults
from tests.manifests import trial_entry

ENTRY = trial_entry(
    {"faults": [{"name": "lossy", "kind": "network.loss", "backend": "nfqueue", "targets": ["tm-2", "tm-3"]}]}
)


def row(target: str, state: str, measured: dict[str, Any] | None = None, text: str = "") -> dict[str, Any]:
    return {
        "fault": "lossy",
        "kind": "network.loss",
        "backend": "nfqueue",
        "state": state,
        "targets": json.dumps([target]),
        "asked": json.dumps({"params": {"percent": 5}}),
        "measured": json.dumps(measured or {}),
        "text": text,
    }


def test_targets_and_paths_of_all_agents_stand_side_by_side():
    """Each agent probed its own path."""
    (fault,) = _faults(
        [
            row("tm-2", "verified", {"paths": {"tm-2->tm-0/data": {"backward_lost_percent": 5.1}}}),
            row("tm-3", "verified", {"paths": {"tm-3->tm-0/data": {"backward_lost_percent": 4.9}}}),
            row("tm-2", "clean"),
            row("tm-3", "clean"),
        ],
        ENTRY,
    )
    assert fault.targets == ["tm-2", "tm-3"]
    assert list(fault.measured["paths"]) == ["tm-2->tm-0/data", "tm-3->tm-0/data"]
    assert (fault.effect, fault.residue) == ("verified", "clean")


def test_one_agent_that_saw_no_effect_is_not_hidden_by_the_next():
    """The last row decides; the same for the residue."""
    (fault,) = _faults(
        [row("tm-2", "unverified"), row("tm-3", "verified"), row("tm-2", "residue"), row("tm-3", "clean")],
        ENTRY,
    )
    assert (fault.effect, fault.residue) == ("unverified", "residue")


def test_an_agent_may_correct_itself():
    """The last state counts; a fault without rows is not measured."""
    (fault,) = _faults([row("tm-2", "unverified"), row("tm-2", "verified")], ENTRY)
    assert fault.effect == "verified"
    (silent,) = _faults([], ENTRY)
    assert (silent.targets, silent.effect) == (["tm-2", "tm-3"], "not measured")


@pytest.mark.parametrize(
    ("state", "reason", "residue"), [("FINISHED", "JobEnded", False), ("FAILED", "JobEnded", False), ("RESTARTING", "FaultNotVerified", None)]
)  # fmt: skip
def test_a_fault_that_had_no_time_to_begin_says_that_the_job_had_ended(
    history: Any, state: str, reason: str, residue: bool | None
):
    """The runner injects nothing into a job that has ended. A fault of which only the injection is known did begin."""
    built = history.empty()
    built.event("job.state", "job", 5.0, data={"from": "RUNNING", "to": state})
    built.add("supervisor", "faults", 4.0, fault="begun", state="injected", targets=["tm-0"], kind="k")
    entry = history.entry(faults=[{"name": "late"}, {"name": "begun"}])
    late, begun = check_faults(built.trial(), entry)
    assert (late.verified, late.reason, late.residue) == (False, reason, residue)
    assert (begun.reason, begun.residue) == ("FaultNotVerified", None)
    drained = history.empty()
    drained.event("job.state", "job", 30.0, data={"from": "RUNNING", "to": state})
    assert check_faults(drained.trial(), entry)[0].reason == "FaultNotVerified", "its rows are missing"


@pytest.mark.parametrize(
    ("mode", "direction", "one_way", "round_trip"),
    [("one-way", "both", 400, 800), ("one-way", "to", 400, 400), ("round-trip", "both", 200, 400)],
)
def test_a_latency_delays_a_direction_and_a_round_trip(
    mode: str, direction: str, one_way: int, round_trip: int
):
    """The latency of a round trip is divided between both directions."""
    entry = trial_entry(
        {"faults": [{"name": "far", "direction": direction, "params": {"latency_s": 0.4, "mode": mode}}]}
    )
    assert (added_delays(entry), round_trip_delays(entry)) == (
        {"far": one_way * 1_000_000},
        {"far": round_trip * 1_000_000},
    )
