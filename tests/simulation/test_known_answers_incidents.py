"""Known answers of incidents: a TaskManager that its consumers cannot connect to, and faults that a job survives narrowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.job.limits import BACKOFF_MAX, CONNECT_TIMEOUT
from testbed_runtime.core.values import NS
from testbed_runtime.report.answer import answer_lines
from tests.manifests import trial_entry
from tests.simulation.knownanswers import (
    ALL,
    DELAY,
    HEARTBEAT,
    JOBMANAGER,
    QUICK,
    TOLERANCE_S,
    Case,
    answer,
    check_sums,
    fault,
)

pytestmark = pytest.mark.virtual

CUT = fault("cut", "25 s", {"taskManagers": {"names": ["tm-0"]}}, at="deploy", network={"partition": {}})
"""No consumer reaches the source on this TaskManager before 25 s."""


@pytest.mark.parametrize("version", ["1.17", "2.x"])
def test_a_connection_that_is_not_made_in_time_belongs_to_its_timeout(tmp_path: Path, version: str):
    """Two attempts expire after 10 s each. TCP repeats the first handshake after 19 and 35 s: one of them after the cut."""
    options = {**QUICK, CONNECT_TIMEOUT: "10", DELAY: "1 s"}
    case = Case("unreachable", [CUT], "", 0.0, version=version, options=options, observation="30 s")
    trial, metrics = answer(case, tmp_path)
    found = max(trial.recoveries, key=lambda r: r.total_s)
    check_sums(found)
    price = found.prices[0]
    assert (price.option, price.value, metrics["failovers.count"]) == (CONNECT_TIMEOUT, "10", 2)
    assert price.seconds == pytest.approx(20.0, abs=TOLERANCE_S)
    expired = [s.enough_ns / NS for r in found.rounds for s in r.segments if s.option == CONNECT_TIMEOUT]
    assert expired[0] == pytest.approx(35.0, abs=TOLERANCE_S)


def test_a_request_that_is_not_sent_yet_does_not_use_up_the_backoff(tmp_path: Path):
    """The connection takes 25 s, more than the 20 s for which a request is certain to wait. Its producer counts from its arrival."""
    case = Case("connecting", [CUT], "", 0.0, options=QUICK, observation="30 s")
    trial, metrics = answer(case, tmp_path)
    found = max(trial.recoveries, key=lambda r: r.total_s)
    check_sums(found)
    assert metrics["failovers.count"] == 0
    assert "during the fault `cut`" in found.prices[0].words
    assert BACKOFF_MAX not in {m.option for m in found.margins}


@pytest.mark.parametrize(
    ("slow", "option", "waited"),
    [
        (
            fault("slow", "20 s", ALL, store={"slow": {"delay": "6 s"}}),
            "execution.checkpointing.timeout",
            6.0,
        ),
        (fault("gc", "3 s", JOBMANAGER, jobmanager={"pause": {}}), HEARTBEAT, 3.1),
    ],
    ids=["store", "jobmanager"],
)
def test_a_fault_without_an_outage_shows_how_close_it_came(
    tmp_path: Path, slow: dict[str, Any], option: str, waited: float
):
    """Each checkpoint takes 6 s, and the last heartbeats are 0.1 s old when the JobManager stops."""
    options = {**QUICK, "execution.checkpointing.timeout": "10 s"}
    case = Case("survived", [slow], "", 0.0, options=options, observation="30 s")
    trial, metrics = answer(case, tmp_path)
    (found,) = trial.recoveries
    assert (found.total_s, metrics["failovers.count"]) == (0.0, 0)
    assert {m.option: m.waited_s for m in found.margins}[option] == pytest.approx(waited, abs=TOLERANCE_S)
    assert any(
        f"close to its limit: {option}" in line
        for line in answer_lines([trial_entry(trial=trial.trial)], {trial.trial: trial})
    )
