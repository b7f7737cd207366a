"""Known answers of faults and options in combination: real shells in virtual time, with seconds known beforehand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.documents import RECOVERY_FILE
from testbed_runtime.core.judgement.recovery import TrialRecovery
from tests.simulation.knownanswers import (
    ALL,
    DELAY,
    EXPONENTIAL,
    FAULT_S,
    HEARTBEAT,
    JOBMANAGER,
    KILL,
    NO_SPARE,
    PAUSE,
    QUICK,
    SINK,
    SLOT,
    SOURCE,
    TOLERANCE_S,
    Case,
    answer,
    check_answer,
    check_sums,
    document,
    fault,
)
from tests.simulation.simulating import run_document

pytestmark = pytest.mark.virtual

RAISING = """seen = []


def once_late(record):
    seen.append(None)
    if len(seen) == 750:
        raise LookupError("late")
    return record
"""
"""Each attempt loads it again, and gets about 100 records a second."""
TM_2 = {"taskManagers": {"names": ["tm-2"]}}
SERVICE = "headgate.jobmanager.service-time"
SLOW_HEARTBEATS = {"heartbeat.interval": "5 s", "heartbeat.timeout": "20 s", "pekko.ask.timeout": "60 s"}
CASES = [
    Case(
        "submitted-to-a-paused-jobmanager",
        [fault("gc", "3 s", JOBMANAGER, at="deploy", jobmanager={"pause": {}})],
        "the JobManager's return (paused", 3.0, start=True, options=QUICK,
    ),
    Case(  # the last heartbeat came at the start of the trial; the next JobManager came 3 s after the kill
        "slow-offers-to-the-next-jobmanager",
        [
            fault("kill", "3 s", JOBMANAGER, jobmanager={"kill": {}}),
            fault("slow", "30 s", JOBMANAGER, at="3500 ms", rpc={"delay": {"method": "OfferSlots", "delay": "1 s"}}),
        ],
        HEARTBEAT, 20 - FAULT_S - 3, options=SLOW_HEARTBEATS, managers=NO_SPARE, observation="40 s",
    ),
    Case(  # nothing but its service time: four registrations with their repetitions and connections, slot offers, deployments and reports
        "registrations-at-a-busy-jobmaster", [], SERVICE, 17.7, start=True, managers=NO_SPARE,
        options={**SLOW_HEARTBEATS, SERVICE: "300 ms"},
    ),
    Case(  # requests for slots expire after 10 s, but nothing except the replacement gives the job a slot
        "replacement-after-expired-requests", [fault("kill", "1 s", SINK, **KILL)], "replaceLost", 15.0, rounds=2,
        options={**QUICK, SLOT: "10 s"}, managers={**NO_SPARE, "replaceLost": "15 s"}, observation="21 s",
    ),
    Case(  # it has run since the first kill, although the failover comes with the next JobManager
        "replacement-past-another-jobmanager",
        [fault("kill", "1 s", SINK, **KILL), fault("jm", "2 s", JOBMANAGER, at="1 s", jobmanager={"kill": {}})], "replaceLost", 8.0,
        options=QUICK, managers={**NO_SPARE, "replaceLost": "8 s"}, observation="14 s",
    ),
    Case(  # a longer timeout would have saved this job
        "replacement-after-the-last-request", [fault("kill", "1 s", SINK, **KILL)], SLOT, 10.0,
        options={**QUICK, SLOT: "10 s", "restart-strategy.fixed-delay.attempts": "1"},
        managers={**NO_SPARE, "replaceLost": "15 s"}, observation="25 s",
    ),
    Case(  # three TaskManagers hear from it last when it is killed, and give it up 5 s later, 2.9 s after its return. The fourth is busy with
        # a cancellation: its answers to two heartbeats find no JobManager, so it gives it up before
        "jobmanager-killed-in-a-cancellation",
        [
            fault("slow", "20 s", ALL, rpc={"delay": {"method": "CancelTask", "delay": "2 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
            fault("jm", "2 s", JOBMANAGER, at="4 s", jobmanager={"kill": {}}),
        ],
        HEARTBEAT, 2.9, rounds=2, options=QUICK, observation="25 s",
    ),
    Case(  # as when a machine is lost: no connection is refused or reset, so only the silence tells
        "killed-behind-a-cut",
        [fault("cut", "12 s", TM_2, plane="both", network={"partition": {}}), fault("kill", "1 s", TM_2, at="10 ms", **KILL)],
        HEARTBEAT, 5 - 0.1, options=QUICK,
    ),
    Case(  # tm-3 is lost in the second delay, 0.1 s before it ends and the count's producers refuse its requests again
        "refused-just-after-another-loss",
        [
            fault("half", "4 s", {"taskManagers": {"running": "count", "mode": "one"}}, network={"halfOpen": {}}),
            fault("kill", "1 s", {"taskManagers": {"names": ["tm-3"]}}, at="1500 ms", **KILL),
        ],
        f"{EXPONENTIAL}.initial-backoff", 1 + 1.5 + 2.25, rounds=3, failovers=3, version="1.19", observation="7 s",
        managers={"replicas": 6}, options={
            "heartbeat.interval": "500 ms", HEARTBEAT: "8 s", "restart-strategy.type": "exponential-delay", f"{EXPONENTIAL}.jitter-factor": "0",
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_answer_names_what_happened(case: Case, tmp_path: Path):
    """The owner of the largest share is the option or cause that is known beforehand."""
    check_answer(case, tmp_path)


def test_a_function_that_fails_after_a_recovery_is_no_effect_of_the_fault(tmp_path: Path):
    """It raises an error by itself, seconds after the job has recovered from a kill. That is an outage without a fault."""
    (tmp_path / "raising.py").write_text(RAISING)
    case = Case(
        "raising", [fault("kill", "1 s", SINK, **KILL)], "", 0.0, options=QUICK,
        vertex={"operator": "python", "function": "raising.py:once_late"}, observation="12 s",
    )  # fmt: skip
    trial, metrics = answer(case, tmp_path)
    assert [(r.faults, r.rounds[0].cause_class) for r in trial.recoveries] == [
        (("kill",), "ResourceManagerException"),
        ((), "LookupError"),
    ]
    assert metrics["failovers.count"] == 2
    for found in trial.recoveries:
        check_sums(found)


def test_a_sink_behind_a_window_waits_for_its_end(tmp_path: Path):
    """Windows of 5 s end at each fifth second of virtual time: the first one 5 s after the start, with the next flush. After a
    pause from 18.1 to 21.1 s the sink gets what the window until 20 s had, and nothing more is due before the next one."""
    pause = fault("gc", "3 s", SINK, process={"pause": {}})
    found = document(Case("windowed", [pause], "", 0.0, options=QUICK))
    found["spec"]["testbed"]["job"]["vertices"][1] |= {"operator": "window", "window": "5 s"}
    found["spec"]["timeline"] |= {"warmUp": "6 s", "baseline": "12 s"}
    run_document(found, tmp_path)
    (recorded,) = json.loads((tmp_path / RECOVERY_FILE).read_text()).values()
    trial = TrialRecovery.from_json(recorded)
    (recovery,) = trial.recoveries
    assert trial.start is not None
    for one in (trial.start, recovery):
        check_sums(one)
    text = "the end of a window of `count`"
    assert {p.option or p.words: round(p.seconds, 2) for p in trial.start.prices if p.seconds > 0.01} == {
        text: pytest.approx(5.1, abs=0.05), "slot.request.max-interval": 0.02, "slotmanager.requirement-check.delay": pytest.approx(0.03, abs=0.001)
    }  # fmt: skip
    owned = {p.words: p.seconds for p in recovery.prices}
    assert owned["end of the fault `gc` (process.pause)"] == pytest.approx(3.0, abs=TOLERANCE_S)
    assert recovery.total_s == pytest.approx(3.0, abs=0.3), "the next window ended in time"
    assert text not in owned


def test_the_last_records_of_a_slow_network_arrive_after_the_fault(tmp_path: Path):
    """The job restarts while records take 1 s longer. It has caught up 1 s after the end of the latency: it lacked no capacity."""
    faults = [
        fault("slow", "10 s", SINK, network={"latency": {"delay": "1 s", "mode": "one-way"}}),
        fault("kill", "1 s", SOURCE, at="3 s", **KILL),
    ]
    trial, _ = answer(Case("in-flight", faults, "", 0.0, options=QUICK, observation="17 s"), tmp_path)
    (found,) = trial.recoveries
    check_sums(found)
    assert found.total_s == pytest.approx(10 + 1, abs=0.2)
    assert not [p.words for p in found.prices if p.words.startswith("spare capacity") and p.seconds > 0.2]


SPARE_PAUSED = [
    fault("gc", "6 s", {"taskManagers": {"names": ["tm-4"]}}, **PAUSE),
    fault("kill", "1 s", SINK, at="1 s", **KILL),
]
KILLS = [fault("a", "1 s", SINK, **KILL), fault("b", "1 s", SINK, at="14 s", **KILL)]

BOTH = [fault("a", "1 s", SINK, **KILL), fault("b", "1 s", SINK, at="1 s", **KILL)]


@pytest.mark.parametrize(
    ("faults", "managers", "delays", "saved_s", "following"),
    [
        # it comes back after 1 s
        ([fault("kill", "1 s", SOURCE, **KILL)], {**NO_SPARE, "replaceLost": "1 s"}, ("3 s", "500 ms"), 2.0, "replaceLost = 1 s"),
        # its loss is noticed after 4.9 s, and it goes on after 9 s
        ([fault("gc", "9 s", SINK, **PAUSE)], NO_SPARE, ("10 s", "3 s"), 5.9, "tm-3's return (paused by the fault `gc`)"),
        # the only spare one goes on 5 s after the kill
        (SPARE_PAUSED, {"replicas": 5}, ("5 s", "1 s"), 1.9, "tm-4's return (paused by the fault `gc`)"),
        # the first one took the spare slot, and is replaced 6 s after the second one was killed
        (KILLS, {"replicas": 5, "replaceLost": "20 s"}, ("8 s", "2 s"), 3.9, "replaceLost = 20 s"),
        # of two that are lost, the job needs only the first one that comes
        (BOTH, {"replicas": 5, "replaceLost": "5 s"}, ("8 s", "1 s"), 4.9, "replaceLost = 5 s"),
    ],
)  # fmt: skip
def test_a_shorter_delay_saves_what_its_slack_says_and_no_more(
    faults: Any, managers: Any, delays: tuple[str, str], saved_s: float, following: str, tmp_path: Path
):
    """The restart needs a TaskManager that comes during the delay. With a shorter delay the job waits for it."""
    found = []
    for delay in delays:
        options = {**QUICK, DELAY: delay}
        case = Case("slack", faults, "", 0.0, options=options, managers=managers, observation="30 s")
        (tmp_path / delay).mkdir()
        trial, _ = answer(case, tmp_path / delay)
        found.append(trial.recoveries[-1])
    long, short = found
    (segment,) = (s for r in long.rounds for s in r.segments if s.kind == "restart-delay")
    assert segment.slack_ns / 1e9 == pytest.approx(saved_s, abs=TOLERANCE_S)
    assert segment.next == following
    assert long.downtime_s is not None
    assert short.downtime_s is not None
    assert long.downtime_s - short.downtime_s == pytest.approx(saved_s, abs=TOLERANCE_S)
    assert short.prices[0].text == following


def test_a_shorter_detection_saves_until_slots_are_requested_although_a_spare_taskmanager_is_paused(
    tmp_path: Path,
):
    """The spare one goes on 4.5 s after the faults, before the restart delay of 2 s has ended, and no step before needs it."""
    spare = fault("spare", "4500 ms", {"taskManagers": {"names": ["tm-4"]}}, **PAUSE)
    found = {}
    for timeout in ("5 s", "3 s"):
        options = {**QUICK, "heartbeat.timeout": timeout, DELAY: "2 s"}
        case = Case(
            "spare", [fault("gc", "15 s", SINK, **PAUSE), spare], "", 0.0,
            options=options, managers={"replicas": 5}, observation="20 s",
        )  # fmt: skip
        (tmp_path / timeout).mkdir()
        found[timeout] = answer(case, tmp_path / timeout)[0].recoveries[0]
    (detection,) = (s for r in found["5 s"].rounds for s in r.segments if s.option == "heartbeat.timeout")
    assert detection.slack_ns / 1e9 == pytest.approx(2.4, abs=TOLERANCE_S)
    assert found["5 s"].downtime_s is not None
    assert found["3 s"].downtime_s is not None
    assert found["5 s"].downtime_s - found["3 s"].downtime_s == pytest.approx(2.0, abs=TOLERANCE_S)


def test_the_order_of_the_faults_in_the_document_changes_no_answer(tmp_path: Path):
    """Two faults slow the store down. The one that began later delays the restore."""
    faults = [
        fault("jm", "6 s", JOBMANAGER, store={"slow": {"delay": "500 ms"}}),
        fault("tm", "5 s", ALL, at="1 s", store={"slow": {"delay": "3 s"}}),
    ]
    options = {
        **QUICK, "execution.checkpointing.timeout": "1 s", "execution.checkpointing.tolerable-failed-checkpoints": "1",
    }  # fmt: skip
    cases = [
        Case(name, order, "", 0.0, version="1.13", options=options, observation="7 s")
        for name, order in (("one", faults), ("other", faults[::-1]))
    ]
    found = []
    for case in cases:
        (tmp_path / case.name).mkdir()
        trial, _ = answer(case, tmp_path / case.name)
        found.append(trial.recoveries)
    assert found[0] == found[1]
    assert {p.fault for r in found[0] for p in r.prices} - {""} == {"tm"}
