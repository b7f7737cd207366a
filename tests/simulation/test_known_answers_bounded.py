"""Known answers of jobs that end: real shells in virtual time, each with seconds that are known beforehand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.judgement.recovery import RECOVERY_FILE, Recovery, TrialRecovery
from testbed_runtime.core.waits import Outcome, Wait
from tests.simulation.simulating import Ran, run_one
from tests.simulation.test_known_answers import (
    DETECTION_S,
    KILL,
    QUICK,
    REACHABILITY,
    SINK,
    TOLERANCE_S,
    Case,
    check_sums,
    document,
    fault,
)

pytestmark = pytest.mark.virtual

RATE = 200
"""Records per second of the documents' source, which starts with the trial."""


def bounded(case: Case, ends_s: float) -> dict[str, Any]:
    """Return the document of a case whose source ends after so many seconds."""
    found = document(case)
    found["spec"]["testbed"]["job"]["vertices"][0]["source"]["limit"] = round(ends_s * RATE)
    return found


def answer(found: dict[str, Any], folder: Path) -> tuple[Ran, Recovery]:
    """Run the document. Return the run, and its only recovery."""
    ran = run_one(found, folder)
    (trial,) = json.loads((folder / RECOVERY_FILE).read_text()).values()
    (recovery,) = TrialRecovery.from_json(trial).recoveries
    check_sums(recovery)
    return ran, recovery


def waits(ran: Ran, kind: str) -> list[Wait]:
    return [wait for wait in map(Wait.from_row, ran.trial.rows("waits")) if wait.kind == kind]


def test_a_job_that_only_waits_for_its_final_checkpoint_has_caught_up(tmp_path: Path):
    """The sinks have received everything 0.2 s after the restart. Then the sources wait for a checkpoint until the drain: no
    backlog, no missing records, and no part of the recovery."""
    options = {**QUICK, "execution.checkpointing.interval": "10 min"}
    case = Case("finishing", [fault("kill", "1 s", SINK, **KILL)], "", 0.0, options=options)
    ran, found = answer(bounded(case, 6.2), tmp_path)
    assert found.recovered
    assert found.total_s == pytest.approx(DETECTION_S, abs=0.25)
    assert found.prices[0].option == REACHABILITY
    assert ran.result.verdict["verdict"] == "Pass", ran.result.verdict["summary"]
    assert ran.metrics["liveness.at-end"] == 1
    ended = max(int(e["t_ns"]) for e in ran.trial.rows("events") if e["kind"] == "sink.end")
    waited = waits(ran, "final-checkpoint")
    assert {(w.who, w.option, w.value, w.outcome) for w in waited} == {
        (task, "execution.checkpointing.interval", "10 min", Outcome.COMPLETED)
        for task in ("source-0", "source-1")
    }
    assert all(w.start_ns == pytest.approx(ended, abs=1e8) for w in waited)


def test_a_job_that_had_received_everything_is_down_until_it_has_received_it_again(tmp_path: Path):
    """Its sinks get no new record after the kill: what was not committed is replayed, and ends with the end of the data."""
    options = {**QUICK, "execution.checkpointing.interval": "10 s"}
    case = Case("uncovered", [fault("kill", "1 s", SINK, at="3 s", **KILL)], "", 0.0, options=options)
    ran, found = answer(bounded(case, 6.0), tmp_path)
    assert (found.recovered, found.reason) == (True, "")
    assert found.downtime_s == pytest.approx(DETECTION_S, abs=TOLERANCE_S)
    assert found.total_s == pytest.approx(DETECTION_S, abs=TOLERANCE_S)
    assert ran.result.verdict["verdict"] == "Pass", ran.result.verdict["summary"]
    outcomes = [w.outcome for w in waits(ran, "final-checkpoint")]
    assert outcomes.count(Outcome.CANCELLED) == 2, "the first attempts waited when the job failed"
    assert outcomes.count(Outcome.FIRED) == 2
