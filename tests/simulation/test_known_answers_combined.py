"""Known answers of faults and options in combination: real shells in virtual time, with seconds known beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.test_known_answers import (
    FAULT_S,
    HEARTBEAT,
    JOBMANAGER,
    KILL,
    NO_SPARE,
    QUICK,
    SINK,
    SLOT,
    TOLERANCE_S,
    Case,
    answer,
    check_sums,
    fault,
)

pytestmark = pytest.mark.virtual

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
    Case(  # nothing but its service time: four registrations, slot offers, deployments and reports of tasks
        "registrations-at-a-busy-jobmaster", [], SERVICE, 13.2, start=True, managers=NO_SPARE,
        options={**SLOW_HEARTBEATS, SERVICE: "300 ms"},
    ),
    Case(  # requests for slots expire after 10 s, but nothing except the replacement gives the job a slot
        "replacement-after-expired-requests", [fault("kill", "1 s", SINK, **KILL)], "replaceLost", 15.0, rounds=2,
        options={**QUICK, SLOT: "10 s"}, managers={**NO_SPARE, "replaceLost": "15 s"}, observation="25 s",
    ),
    Case(  # a longer timeout would have saved this job
        "replacement-after-the-last-request", [fault("kill", "1 s", SINK, **KILL)], SLOT, 10.0,
        options={**QUICK, SLOT: "10 s", "restart-strategy.fixed-delay.attempts": "1"},
        managers={**NO_SPARE, "replaceLost": "15 s"}, observation="25 s",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_answer_names_what_happened(case: Case, tmp_path: Path):
    """The owner of the largest share, its seconds, and a total that adds up."""
    trial, _ = answer(case, tmp_path)
    found = trial.start if case.start else max(trial.recoveries, key=lambda r: r.total_s)
    assert found is not None
    check_sums(found)
    assert len(found.rounds) == case.rounds
    first = found.prices[0]
    assert case.owner in (first.option or first.words)
    assert first.seconds == pytest.approx(case.seconds, abs=TOLERANCE_S)
