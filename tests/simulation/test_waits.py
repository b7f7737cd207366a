"""Waits of real shells in virtual time: each kind with its option, its outcome and its seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.waits import Outcome, Wait
from tests.simulation.simulating import Ran, run_one

FAULT = 3.1
"""Virtual seconds from the start of the trial to the fault: deployment, warm-up and baseline."""
OPTIONS = {
    "heartbeat.interval": "1 s",
    "heartbeat.timeout": "5 s",
    "execution.checkpointing.interval": "1 s",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100",
    "restart-strategy.fixed-delay.delay": "0 s",
}
SOURCE = {"name": "source", "parallelism": 2, "slotSharingGroup": "src", "source": {"recordsPerSecond": 200}}
COUNT = {"name": "count", "parallelism": 2, "operator": "keyed-count"}
SINK = {"name": "sink", "parallelism": 2, "sink": "ledger"}
HASH = {"from": "source", "to": "count", "partitioning": "hash"}
FORWARD = {"from": "count", "to": "sink", "partitioning": "forward"}
ANY = {"taskManagers": {"running": "count", "mode": "one"}}


def ran(
    folder: Path,
    *faults: dict[str, Any],
    options: dict[str, str] | None = None,
    version: str = "1.20",
    replicas: int = 5,
    replace: str = "Never",
    observation: str = "20 s",
    job: dict[str, Any] | None = None,
) -> Ran:
    """Run a job of six tasks on four of five TaskManagers, with these faults."""
    return run_one(
        {
            "apiVersion": "headgate.dev/v1alpha1",
            "kind": "Scenario",
            "metadata": {"name": "waits"},
            "spec": {
                "hypothesis": "Every wait is recorded.",
                "seed": 3,
                "testbed": {
                    "flinkVersion": version,
                    "taskManagers": {"replicas": replicas, "slots": 1, "replaceLost": replace},
                    "flinkConfiguration": {**OPTIONS, **(options or {})},
                    "job": job or {"vertices": [SOURCE, COUNT, SINK], "edges": [HASH, FORWARD]},
                },
                "timeline": {"warmUp": "1 s", "baseline": "2 s", "observation": observation, "drain": "30 s"},
                "faults": [{"name": f"fault-{n}", "at": "0 s", **fault} for n, fault in enumerate(faults)],
                "control": False,
                "trials": 1,
                "expect": [{"metric": "job.state", "equals": "RUNNING"}],
            },
        },
        folder,
    )


def waits(run: Ran, kind: str, **wanted: Any) -> list[Wait]:
    """Return the waits of a kind whose attributes have these values, in the order of their ends."""
    found = [Wait.from_row(row) for row in run.trial.rows("waits") if row["kind"] == kind]
    return [w for w in found if all(getattr(w, name) == value for name, value in wanted.items())]


def since_fault(run: Ran, t_ns: int) -> float:
    (injected,) = [row for row in run.trial.rows("faults") if row["state"] == "injected"]
    return (t_ns - int(injected["t_ns"])) / 1e9


def states(run: Ran) -> list[str]:
    import json

    return [json.loads(e["data"])["to"] for e in run.trial.rows("events") if e["kind"] == "job.state"]


def near(seconds: float) -> Any:
    """Within 0.1 s."""
    return pytest.approx(seconds, abs=0.1)


def test_a_jobmanager_that_is_paused_for_longer_than_the_timeout_restarts_the_job_once(
    tmp_path: Path,
) -> None:
    """The TaskManagers disconnect, tell the JobMaster, connect again and offer their slots: no restart fails."""
    run = ran(tmp_path, {"duration": "8 s", "jobmanager": {"pause": {}}})
    assert run.metrics["failovers.count"] == 1
    assert (run.metrics["job.state"], run.metrics["delivery.lost"]) == ("RUNNING", 0)
    expired = waits(run, "heartbeat", what="JobMaster", outcome=Outcome.EXPIRED)
    assert {w.who for w in expired} == {f"tm-{n}-1" for n in range(4)}
    assert {(w.option, w.value, w.budget_ns) for w in expired} == {("heartbeat.timeout", "5 s", 5 * 10**9)}
    assert [w.seconds for w in expired] == [near(5.0)] * 4
    away = waits(run, "jobmanager", what="JobMaster", outcome=Outcome.COMPLETED)
    assert [since_fault(run, w.end_ns) for w in away] == [near(8.0)] * 4
    (stalled,) = waits(run, "stalled", who="jobmanager-1")
    assert stalled.seconds == near(8.0)


def test_a_jobmanager_that_is_paused_for_less_than_the_timeout_shows_its_margin(tmp_path: Path) -> None:
    """No failover; the longest silence is a completed wait with the option that it came close to."""
    run = ran(tmp_path, {"duration": "3 s", "jobmanager": {"pause": {}}})
    assert run.metrics["failovers.count"] == 0
    completed = waits(run, "heartbeat", what="JobMaster")
    assert {w.outcome for w in completed} == {Outcome.COMPLETED}
    assert len(completed) == 4
    assert all(2.9 < w.seconds < 4.1 and w.option == "heartbeat.timeout" for w in completed)


def test_a_taskmanager_that_the_resourcemanager_gives_up_registers_again_at_once(tmp_path: Path) -> None:
    """Its answers are lost, it is alive: it is given up after heartbeat.timeout, is told, and registers at once. It does not
    wait for a timeout of its own."""
    mute = {"heartbeats": {"mute": {"direction": "request"}}, "target": ANY, "duration": "7 s"}
    run = ran(tmp_path, mute, replicas=4)
    lost = [e for e in run.trial.rows("events") if e["kind"] == "taskmanager.lost"]
    again = [e for e in run.trial.rows("events") if e["kind"] == "taskmanager.registered"][4:]
    assert lost
    assert (again[0]["subject"], again[0]["t_ns"] - lost[0]["t_ns"] < 10**8) == (lost[0]["subject"], True)
    assert run.metrics["job.state"] == "RUNNING"
    detected = waits(run, "heartbeat", what=lost[0]["subject"], outcome=Outcome.EXPIRED)
    assert {w.who for w in detected} >= {"JobMaster"} or {w.who for w in detected} >= {"ResourceManager"}
    assert detected[0].seconds == near(5.0)
