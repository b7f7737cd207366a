"""Known answers of faults and options in combination: real shells in virtual time, with seconds known beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.test_known_answers import (
    FAULT_S,
    HEARTBEAT,
    JOBMANAGER,
    NO_SPARE,
    QUICK,
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
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_answer_names_what_happened(case: Case, tmp_path: Path):
    """The owner of the largest share, its seconds, and a total that adds up."""
    trial, _ = answer(case, tmp_path)
    found = trial.start if case.start else max(trial.recoveries, key=lambda r: r.total_s)
    assert found is not None
    check_sums(found)
    first = found.prices[0]
    assert case.owner in (first.option or first.words)
    assert first.seconds == pytest.approx(case.seconds, abs=TOLERANCE_S)
