"""Known answers where another wait or fault was in progress, but decided nothing: real shells in virtual time, with seconds known beforehand."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.judgement.recovery import Recovery
from tests.simulation.knownanswers import (
    ALL,
    DELAY,
    DETECTION_S,
    HEARTBEAT,
    JOBMANAGER,
    KILL,
    LATER_S,
    QUICK,
    REACHABILITY,
    SINK,
    SOURCE,
    TOLERANCE_S,
    Case,
    answer,
    answered,
    check_answer,
    check_sums,
    document,
    fault,
)

pytestmark = pytest.mark.virtual

FAR = fault("far", "10 s", ALL, network={"latency": {"delay": "2 s", "mode": "one-way"}})
HALF = fault("half", "10 s", SOURCE, network={"halfOpen": {}})
LATER = {"at": "500 ms"}
TM_0, TM_1, TM_2, TM_3 = ({"taskManagers": {"names": [f"tm-{n}"]}} for n in range(4))


def recovery(case: Case, folder: Path) -> Recovery:
    """Run a case. Return its only recovery, whose seconds add up."""
    trial, _ = answer(case, folder)
    (found,) = (r for r in trial.recoveries if r.total_s)
    check_sums(found)
    return found


def owned(found: Recovery) -> dict[str, float]:
    """Return the seconds of each fault or option."""
    seconds: dict[str, float] = defaultdict(float)
    for price in found.prices:
        seconds[price.fault or price.option or price.text] += price.seconds
    return seconds


def test_a_replacement_in_progress_does_not_own_the_detection_before_slots_of_a_spare_one(tmp_path: Path):
    """The spare TaskManager has a free slot, so the job never waits for the next incarnation of the one that was killed."""
    managers = {"replicas": 5, "replaceLost": "6 s"}
    check_answer(
        Case("spare", [fault("kill", "1 s", SINK, **KILL)], REACHABILITY, DETECTION_S, options=QUICK, managers=managers), tmp_path
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "target"),
    [(FAR, SOURCE), (FAR, SINK), (HALF, SOURCE)],
    ids=["far-source", "far-sink", "half-open"],
)
def test_a_fault_on_the_exchange_owns_the_seconds_before_a_loss(
    first: dict[str, Any], target: dict[str, Any], tmp_path: Path
):
    """It silences no heartbeats. They are missing since the kill, half a second later."""
    kill = fault("kill", "1 s", target, **KILL, **LATER)
    options = {**QUICK, DELAY: "1 s"}
    found = recovery(Case("before", [first, kill], "", 0.0, options=options, observation="17 s"), tmp_path)
    first_round = [s for s in found.rounds[0].segments if s.seconds > TOLERANCE_S]
    assert (first_round[0].fault, first_round[1].option) == (first["name"], REACHABILITY)
    assert first_round[0].seconds == pytest.approx(0.5, abs=TOLERANCE_S)
    assert first_round[1].seconds == pytest.approx(LATER_S, abs=TOLERANCE_S)


def test_a_latency_closes_no_connection(tmp_path: Path):
    """A reset closes them all at once. It begins 1 s after the latency at the other end of the connections, and the wait for their close is
    no part of the second before it."""
    reset = fault("reset", "3 s", SINK, network={"reset": {}}, **LATER)
    found = recovery(
        Case("reset", [FAR, reset], "", 0.0, options=QUICK, observation="17 s", managers={"replicas": 6}), tmp_path
    )  # fmt: skip
    assert found.faults == ("far", "reset")
    assert owned(found)["far"] > found.total_s - 0.3


def test_a_catch_up_waits_for_barriers_that_a_cut_of_the_control_plane_holds_back(tmp_path: Path):
    """A source that cannot be reached does not hear of the next checkpoint. Counts that have got the barrier of the other one read nothing
    more of that, until the cut ends: not their capacity limits them."""
    cut = fault("cut", "8 s", TM_0, at="4 s", plane="rpc", network={"partition": {}})
    kill = fault("kill", "1 s", {"taskManagers": {"names": ["tm-2"]}}, **KILL)
    case = Case(
        "barriers", [kill, cut], "", 0.0, options={**QUICK, HEARTBEAT: "60 s"}, vertex={"serviceTime": "8 ms"}, observation="48 s",
        version="2.2",
    )  # fmt: skip
    found = recovery(case, tmp_path)
    waited = [s for s in found.rounds[0].segments if s.fault == "cut"]
    assert [s.kind for s in waited] == ["catch-up"]
    assert 8.0 <= waited[0].seconds < 13.5, "until the message has been sent again"


def test_a_half_open_connection_that_closes_with_its_fault_is_no_other_wait(tmp_path: Path):
    """Its peer hears nothing until the fault ends, and of the close then."""
    half = fault("half", "4 s", TM_1, network={"halfOpen": {}})
    found = document(Case("half", [half], "", 0.0, options={**QUICK, HEARTBEAT: "30 s"}, version="1.18"))
    found["spec"]["testbed"]["flinkConfiguration"].pop("execution.checkpointing.interval")
    (one,) = answered(found, tmp_path).recoveries
    assert owned(one)["half"] == pytest.approx(4.0, abs=TOLERANCE_S)


@pytest.mark.parametrize("reset_s", [None, 2.5])
def test_a_store_that_cannot_complete_a_checkpoint_owns_the_time_until_the_job_fails(
    reset_s: float | None, tmp_path: Path
):
    """Every task acknowledges at 1.95 s. The store is asked 1.5 s later, and fails. If a task fails before, the job fails once more."""
    faults = [
        fault("slow", "7 s", JOBMANAGER, store={"slow": {"delay": "1500 ms"}}),
        fault("full", "4 s", JOBMANAGER, store={"failing": {}}),
    ]
    if reset_s is not None:
        faults.append(fault("reset", "200 ms", SINK, at=f"{reset_s * 1000:.0f} ms", network={"reset": {}}))
    options = {**QUICK, DELAY: "3 s", "execution.checkpointing.tolerable-failed-checkpoints": "0"}
    found = recovery(Case("incomplete", faults, "", 0.0, options=options), tmp_path)
    stored = {s.text: s.seconds for r in found.rounds for s in r.segments if s.kind == "completion"}
    ((text, seconds),) = stored.items()
    assert text.startswith("the checkpoint store to complete a checkpoint")
    assert seconds == pytest.approx(1.5 if reset_s is None else 1.95 + 1.5 - reset_s, abs=TOLERANCE_S)
    assert owned(found)[DELAY] == pytest.approx(3.0, abs=TOLERANCE_S)
    assert len(found.rounds) == (1 if reset_s is None else 2)


def test_a_restart_waits_for_a_store_that_fails_a_tolerated_checkpoint(tmp_path: Path):
    """The store is asked 1.5 s after the acknowledgements, and refuses at 3.45 s. The connection is reset at 2.5 s, and the delay is 50 ms."""
    faults = [
        fault("slow", "7 s", JOBMANAGER, store={"slow": {"delay": "1500 ms"}}),
        fault("full", "4 s", JOBMANAGER, store={"failing": {}}),
        fault("reset", "200 ms", SINK, at="2500 ms", network={"reset": {}}),
    ]
    tolerated = {**QUICK, DELAY: "50 ms", "execution.checkpointing.tolerable-failed-checkpoints": "100"}
    found = recovery(Case("tolerated", faults, "", 0.0, options=tolerated), tmp_path)
    stored = [s for r in found.rounds for s in r.segments if s.kind == "completion"]
    assert [s.phase for s in stored] == ["restore"]
    assert stored[0].seconds == pytest.approx(3.45 - 2.55, abs=TOLERANCE_S)


def test_an_outage_that_comes_again_and_lasts_longer_is_the_total(tmp_path: Path):
    """The job recovers from the kill, and uses up the credit that is left. It then waits for the end of the fault, 25.5 s after the kill."""
    faults = [
        fault("kill", "1 s", TM_2, **KILL),
        fault("held", "25 s", TM_3, at="500 ms", frames={"withholdCredit": {}}),
    ]
    trial, metrics = answer(Case("again", faults, "", 0.0, options=QUICK, observation="40 s"), tmp_path)
    first, again = trial.recoveries
    assert (first.faults, again.faults, again.again) == (("kill", "held"), ("held",), True)
    assert metrics["recovery.total"] == pytest.approx(again.total_s)
    assert again.total_s > first.total_s
    assert again.end_ns - first.effect_ns == pytest.approx(25.5e9, abs=TOLERANCE_S * 1e9)
    assert metrics["recovery.detect"] == pytest.approx(DETECTION_S, abs=TOLERANCE_S)
    assert "main again after `held`: " in (tmp_path / "report.md").read_text()
