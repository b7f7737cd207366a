"""Outages that do not end, end late, or end with their fault: what the answer says of them, in virtual time."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.cli import loading
from testbed_runtime.core.judgement.recovery import Recovery
from tests.simulation.simulating import run_one

KILLED = Path(__file__).parents[2] / "scenarios" / "02-taskmanager-killed"
LEASE = "high-availability.kubernetes.leader-election"
KILL = {"name": "kill", "at": "0 s", "duration": "1 s", "process": {"kill": {}}}
CONSUMER = {"taskManagers": {"running": "sink", "mode": "one"}}
PRODUCER = {"taskManagers": {"running": "source", "mode": "one"}}


def recovery(
    folder: Path, faults: list[dict[str, Any]], *, options: dict[str, str] | None = None, **spec: Any
) -> Recovery:
    """The only recovery of the job of scenario 02 with these faults, options and changes."""
    document = copy.deepcopy(loading.load(KILLED).document)
    found = document["spec"]
    found.pop("variants", None)
    found["testbed"]["flinkConfiguration"] |= {"restart-strategy.fixed-delay.delay": "1 s"} | (options or {})
    rate = spec.pop("rate", 2000)
    if service_time := spec.pop("service_time", ""):
        found["testbed"]["job"]["vertices"][2]["serviceTime"] = service_time
    found["testbed"]["job"]["vertices"][0]["source"]["recordsPerSecond"] = rate
    found["testbed"]["taskManagers"] |= {"replicas": 4, "replaceLost": "3 s"}
    asked = [{"metric": "delivery.lost", "equals": 0}]
    found |= {"control": False, "trials": 1, "faults": faults, "expect": asked}
    found["timeline"] = {"warmUp": "3 s", "baseline": "3 s", "observation": "12 s", "drain": "20 s"}
    ran = run_one(document, folder)
    (one,) = trial_recovery(ran.trial, ran.entry).recoveries
    return one


def owners(found: Recovery) -> dict[str, float]:
    """The seconds of each owner, by the option or by the beginning of its text."""
    return {p.option or p.text: round(p.seconds, 1) for p in found.prices}


@pytest.mark.virtual
def test_a_job_that_a_past_fault_stopped_for_good_has_not_recovered(tmp_path: Path) -> None:
    """Lost buffers cost the sender its credit. It shows only when the credit is spent, after a second without any lag."""
    drop = {"name": "drop", "at": "0 s", "duration": "1 s", "target": PRODUCER}
    drop["frames"] = {"drop": {"frameClass": "buffer"}}
    found = recovery(tmp_path, [drop])
    assert (found.recovered, found.reason, round(found.total_s)) == (False, "NotRecovered", 12)
    still = next(s for text, s in owners(found).items() if text.startswith("a job that stands still"))
    assert still == pytest.approx(10.9, abs=0.5)


@pytest.mark.virtual
def test_a_restarted_job_that_falls_further_behind_has_not_recovered(tmp_path: Path) -> None:
    """A sink takes 1 ms for each of 1,100 records per second. Its lag is unknown until the first buffer is handled, not 0."""
    found = recovery(tmp_path, [KILL | {"target": CONSUMER}], rate=2200, service_time="1 ms")
    assert (found.recovered, found.reason) == (False, "NotRecovered")


@pytest.mark.virtual
def test_seconds_without_a_leader_belong_to_the_lease_also_at_the_end_of_the_record(tmp_path: Path) -> None:
    """A killed JobManager's lease lasts 15 s. The TaskManager that was killed before it is not what the job waits for."""
    killed = {"name": "jobmanager", "at": "500 ms", "duration": "2 s", "jobmanager": {"kill": {}}}
    found = recovery(
        tmp_path, [KILL | {"target": CONSUMER}, killed], options={"high-availability.type": "kubernetes"}
    )
    owned = owners(found)
    assert sum(owned.values()) == pytest.approx(found.total_s, abs=0.2)
    assert owned[f"{LEASE}.lease-duration"] == pytest.approx(9.5, abs=1.6)
    assert owned["the JobManager's return (killed by the fault `jobmanager`)"] == pytest.approx(2.0)


@pytest.mark.virtual
def test_a_catch_up_that_ends_with_a_fault_on_the_exchange_waited_for_it(tmp_path: Path) -> None:
    """Barriers that are held for 2 s also hold the records behind them, before the failover and after it."""
    held = {"name": "held", "at": "0 s", "duration": "7 s", "target": PRODUCER}
    held["frames"] = {"delay": {"frameClass": "barrier", "delay": "2 s"}}
    found = recovery(tmp_path, [held, KILL | {"at": "2 s", "target": CONSUMER}])
    owned = owners(found)
    assert found.recovered
    assert owned["end of the fault `held`"] > 2.0
    assert owned.get("spare capacity of the job", 0.0) <= 0.3
