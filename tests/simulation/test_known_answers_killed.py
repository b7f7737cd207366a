"""Known answers of faults that end with a kill, that repeat a loss, or that fail several checkpoints: real shells in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.judgement.recovery import Recovery
from testbed_runtime.report.answer import savings
from tests.simulation.knownanswers import (
    ALL,
    DELAY,
    DETECTION_S,
    HEARTBEAT,
    JOBMANAGER,
    KILL,
    LATER_S,
    NO_SPARE,
    PAUSE,
    QUICK,
    REACHABILITY,
    SINK,
    TOLERANCE_S,
    Case,
    fault,
    longest,
    of_case,
    seconds,
    taskmanager,
)

pytestmark = pytest.mark.virtual

CHECKPOINT = "execution.checkpointing.timeout"
TOLERATED = "execution.checkpointing.tolerable-failed-checkpoints"
FIRST_KILL = fault("first", "1 s", taskmanager("tm-0"), at="500 ms", **KILL)
KILL_AT_6 = fault("kill", "1 s", taskmanager("tm-2"), at="6 s", **KILL)
SEVEN = {"replicas": 7}


def slow(method: str) -> dict[str, Any]:
    """Keep tm-2 busy with one message for longer than it lives."""
    return fault("slow", "30 s", taskmanager("tm-2"), rpc={"delay": {"method": method, "delay": "20 s"}})


def saved(found: Recovery, option: str) -> float:
    """Return how many seconds a lower value of an option saves at most."""
    segments = [s for r in found.rounds for s in r.segments if s.option == option]
    return sum(s.seconds if s.slack_ns < 0 else s.slack_ns / 1e9 for s in segments)


@pytest.mark.parametrize(
    ("faults", "before_s", "detection_s"),
    [
        ([slow("SubmitTask"), FIRST_KILL, KILL_AT_6], 6 - 1.95, LATER_S + DETECTION_S),
        ([slow("CancelTask"), FIRST_KILL, KILL_AT_6], 6 - 0.5, DETECTION_S),
        ([fault("slow", "20 s", taskmanager("tm-2"), **PAUSE), FIRST_KILL, KILL_AT_6], 6.0, DETECTION_S),
    ],
    ids=["submission", "cancellation", "pause"],
)
def test_a_taskmanager_that_is_killed_while_it_does_not_answer_is_lost_since_its_kill(
    faults: list[dict[str, Any]], before_s: float, detection_s: float, tmp_path: Path
):
    """Its calls fail only when it is dead. The seconds before belong to the fault that kept it from answering."""
    options = {**QUICK, HEARTBEAT: "20 s"}
    found = longest(
        Case("killed", faults, "", 0.0, options=options, managers=SEVEN, observation="35 s"), tmp_path
    )
    assert seconds(found, "`slow`") == pytest.approx(before_s, abs=TOLERANCE_S)
    assert seconds(found, REACHABILITY) == pytest.approx(detection_s, abs=TOLERANCE_S)


@pytest.mark.parametrize("direction", ["request", "response"])
def test_a_muted_taskmanager_is_lost_twice_with_a_low_timeout(direction: str, tmp_path: Path):
    """Its heartbeats are missing for 7.1 s, with the one before the fault and the one after it. Below half of that, they would be missing for two
    timeouts."""
    faults = [fault("mute", "6 s", SINK, heartbeats={"mute": {"direction": direction}})]
    found = longest(Case("muted", faults, "", 0.0, options=QUICK, observation="11 s"), tmp_path)
    assert found.prices[0].option == HEARTBEAT
    assert saved(found, HEARTBEAT) == pytest.approx(5 - 7.1 / 2, abs=TOLERANCE_S)
    assert "to be lost once more, during the fault `mute`" in list(savings(found))[-1]


@pytest.mark.parametrize(("timeout", "tolerated"), [("3 s", 1), ("4500 ms", 1), ("3 s", 2)])
def test_a_limit_of_checkpoints_counts_those_that_were_tolerated_before(
    timeout: str, tolerated: int, tmp_path: Path
):
    """With a longer timeout, the checkpoint that fails the job also begins later. The first one begins 1.95 s after the fault."""
    lasts_s = 6 + 6 * tolerated
    faults = [fault("slow", f"{lasts_s} s", ALL, store={"slow": {"delay": "30 s"}})]
    options = {**QUICK, CHECKPOINT: timeout, TOLERATED: str(tolerated)}
    found = longest(Case("tolerated", faults, "", 0.0, options=options, observation="25 s"), tmp_path)
    needed = [s.enough_ns / 1e9 for r in found.rounds for s in r.segments if s.enough_ns > 0]
    assert needed == [pytest.approx((lasts_s - 1.95) / (tolerated + 1), abs=TOLERANCE_S)]


def test_a_replacement_that_comes_before_the_jobmanager_is_killed_saves_the_time_until_then(tmp_path: Path):
    """The JobManager is away from 4 to 7 s, and TaskManagers register with it at 8.9 s. The job runs before, with an earlier replacement."""
    faults = [
        fault("kill", "1 s", SINK, **KILL),
        fault("jm", "3 s", JOBMANAGER, at="4 s", jobmanager={"kill": {}}),
    ]
    managers = {**NO_SPARE, "replaceLost": "10 s"}
    case = Case("before", faults, "", 0.0, options=QUICK, managers=managers, observation="16 s")
    (found,) = of_case(case, tmp_path).recoveries
    assert seconds(found, "replaceLost") == pytest.approx(10.0, abs=TOLERANCE_S)
    assert saved(found, "replaceLost") == pytest.approx(4.0 + 10.0 - 8.9, abs=TOLERANCE_S)


@pytest.mark.parametrize(("killed_s", "shorter_s"), [(3, 0.0), (6, 1.0)])
def test_a_restart_delay_that_the_jobmanagers_kill_cuts_off_takes_what_a_shorter_detection_saves(
    killed_s: int, shorter_s: float, tmp_path: Path
):
    """The delay of 5 s would have ended at 5 s at the earliest: after the kill, or 1 s before it."""
    jobmanager = fault("jm", "1 s", JOBMANAGER, at=f"{killed_s} s", jobmanager={"kill": {}})
    options = {**QUICK, DELAY: "5 s"}
    case = Case(
        "cut-off",
        [fault("kill", "1 s", SINK, **KILL), jobmanager],
        "",
        0.0,
        options=options,
        observation="16 s",
    )
    (found,) = of_case(case, tmp_path).recoveries
    assert seconds(found, REACHABILITY) == pytest.approx(DETECTION_S, abs=TOLERANCE_S)
    assert saved(found, REACHABILITY) == pytest.approx(shorter_s, abs=TOLERANCE_S)


def test_a_delay_before_slow_submissions_saves_them_too_although_a_replacement_limits_it(tmp_path: Path):
    """TaskManagers are slow from 4 s on. The lost one is replaced after 2.5 s, and the job runs then with a delay of 50 ms."""
    faults = [
        fault("kill", "1 s", taskmanager("tm-2"), **KILL),
        fault("slow", "20 s", taskmanager("tm-0"), at="4 s", rpc={"delay": {"method": "SubmitTask", "delay": "3 s"}}),
    ]  # fmt: skip
    managers = {**NO_SPARE, "replaceLost": "2500 ms"}
    found = {}
    for delay in ("6 s", "50 ms"):
        options = {**QUICK, HEARTBEAT: "20 s", "pekko.ask.timeout": "30 s", DELAY: delay}
        case = Case("limited", faults, "", 0.0, options=options, managers=managers, observation="24 s")
        (tmp_path / delay).mkdir()
        found[delay] = longest(case, tmp_path / delay)
    before, after = found.values()
    assert before.downtime_s is not None
    assert after.downtime_s is not None
    assert saved(before, DELAY) == pytest.approx(before.downtime_s - after.downtime_s, abs=TOLERANCE_S)
    assert saved(before, DELAY) > 6.0 + 2.0
    (line,) = savings(before)
    assert line.endswith("more than these 6.00 s: the job then runs again before the fault `slow`")
