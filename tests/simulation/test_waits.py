"""Waits of real shells in virtual time: each kind with its option, its outcome and its seconds."""

from __future__ import annotations

import re
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
    slots: int = 1,
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
                    "taskManagers": {"replicas": replicas, "slots": slots, "replaceLost": replace},
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
    """The TaskManagers disconnect and tell the JobMaster, which gives their slots back. They get slots again: no restart fails."""
    run = ran(tmp_path, {"duration": "8 s", "jobmanager": {"pause": {}}})
    assert run.metrics["failovers.count"] == 1
    (text,) = [e["text"] for e in run.trial.rows("events") if e["kind"] == "failover.started"]
    assert re.fullmatch("The heartbeat of JobManager with id [0-9a-f]{32} timed out.", text)
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
    """Its answers are lost, it is alive: it is given up after heartbeat.timeout, is notified, and registers at once. It does not
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


def test_a_killed_taskmanager_costs_a_heartbeat_a_delay_a_replacement_and_a_start(tmp_path: Path) -> None:
    """Each of them with its option and its seconds, and the slot that waits for all of them."""
    kill = {"duration": "1 s", "target": ANY, "process": {"kill": {}}}
    options = {"restart-strategy.fixed-delay.delay": "500 ms"}
    run = ran(tmp_path, kill, replicas=4, replace="4 s", options=options)
    (detected,) = waits(run, "heartbeat", outcome=Outcome.EXPIRED)
    product = "heartbeat.interval × heartbeat.rpc-failure-threshold"
    assert (detected.option, detected.value, detected.budget_ns) == (product, "1 s × 2", 2 * 10**9)
    assert detected.seconds == near(2.0)
    assert detected.what.endswith("-1")
    (delay,) = waits(run, "restart-delay")
    assert (delay.option, delay.value, delay.outcome) == (
        "restart-strategy.fixed-delay.delay",
        "500 ms",
        Outcome.FIRED,
    )
    assert delay.seconds == near(0.5)
    (replacement,) = waits(run, "replacement")
    assert (replacement.option, replacement.value, replacement.outcome) == (
        "replaceLost",
        "4 s",
        Outcome.FIRED,
    )
    assert (replacement.seconds, since_fault(run, replacement.start_ns)) == (near(4.0), near(0.0))
    (started,) = [w for w in waits(run, "start") if w.what.endswith("-2")]
    assert started.start_ns == replacement.end_ns
    (slot,) = waits(run, "slot", attempt=2)
    assert (slot.option, slot.outcome) == ("slot.request.timeout", Outcome.COMPLETED)
    assert slot.seconds == near(4.0 - since_fault(run, delay.end_ns))
    (cancelled,) = waits(run, "cancellation")
    assert (cancelled.who, cancelled.option, cancelled.outcome) == (
        "JobMaster",
        "task.cancellation.timeout",
        Outcome.COMPLETED,
    )


def test_a_killed_producer_is_noticed_by_its_connection_and_fenced_until_its_heartbeat(
    tmp_path: Path,
) -> None:
    """The consumer notices at once and reports it; the restart waits until the TaskManager is known to be dead."""
    kill = {
        "duration": "1 s",
        "target": {"taskManagers": {"running": "source", "mode": "one"}},
        "process": {"kill": {}},
    }
    run = ran(tmp_path, kill)
    gone = waits(run, "connection")
    assert gone
    assert all(w.outcome is Outcome.COMPLETED and since_fault(run, w.end_ns) == near(0.0) for w in gone)
    (started,) = [e for e in run.trial.rows("events") if e["kind"] == "failover.started"]
    (fenced,) = waits(run, "fencing")
    assert (fenced.what, fenced.outcome) == (gone[0].what, Outcome.EXPIRED)
    assert fenced.option == "heartbeat.interval × heartbeat.rpc-failure-threshold"
    assert since_fault(run, fenced.end_ns) == near(1.9)
    reports = waits(run, "failure-report", outcome=Outcome.COMPLETED)
    assert {w.who for w in reports} >= {gone[0].who}
    assert {w.option for w in reports} == {"pekko.ask.timeout"}
    assert since_fault(run, int(started["t_ns"])) == near(0.0)


@pytest.mark.parametrize(
    ("version", "budget_s", "option"),
    [("1.12", 5.1, "request-backoff.max"), ("1.20", 4.0, "request-backoff.max")],
)
def test_a_producer_later_than_the_budget_costs_the_budget_each_time(
    tmp_path: Path, version: str, budget_s: float, option: str
) -> None:
    """Both generations: the wait expires with the option that decides, and the restart after the fault completes with a
    margin. Each failed deployment counts as a restart."""
    late = {
        "at": "deploy",
        "duration": "14 s",
        "target": {"taskManagers": {"mode": "all"}},
        "registration": {"delay": {"delay": "14 s", "vertex": "source"}},
    }
    options = {
        "taskmanager.network.request-backoff.max": "2 s",
        "taskmanager.network.partition-request-timeout": "2 s",
    }
    run = ran(tmp_path, late, version=version, options=options)
    expired = waits(run, "partition", outcome=Outcome.EXPIRED)
    rounds = sorted({w.attempt for w in expired})
    assert rounds
    assert run.metrics["failovers.count"] == len(rounds)
    for wait in expired:
        assert (wait.option, wait.value) == (f"taskmanager.network.{option}", "2 s")
        assert wait.budget_ns == int(budget_s * 1e9)
        longest = budget_s if version == "1.12" else 2 * budget_s
        assert budget_s - 0.1 <= wait.seconds <= longest + 0.1
    found = [w for w in waits(run, "partition", outcome=Outcome.COMPLETED) if w.who.startswith("count")]
    assert {w.attempt for w in found if w.seconds > 0.2} == {rounds[-1] + 1}
    causes = [e for e in run.trial.rows("events") if e["kind"] == "failover.failure"]
    assert len(causes) == len(rounds)
    assert all("PartitionNotFoundException" in e["data"] for e in causes)


def test_a_job_without_a_slot_fails_after_slot_request_timeout(tmp_path: Path) -> None:
    """The wait expires, each time; the restart counts."""
    kill = {"duration": "1 s", "target": ANY, "process": {"kill": {}}}
    run = ran(tmp_path, kill, replicas=4, options={"slot.request.timeout": "3 s"}, observation="8 s")
    expired = waits(run, "slot", outcome=Outcome.EXPIRED)
    assert expired
    assert {(w.who, w.what, w.option, w.value) for w in expired} == {
        ("JobMaster", "4 slots", "slot.request.timeout", "3 s")
    }
    assert [w.seconds for w in expired] == [near(3.0)] * len(expired)


def test_a_busy_jobmaster_delays_the_deployment_by_its_service_time(tmp_path: Path) -> None:
    """Two messages for each task: the deployment and its answer."""
    run = ran(tmp_path, options={"headgate.jobmanager.service-time": "50 ms"}, observation="2 s")
    (wait,) = waits(run, "deployment", what="6 tasks")
    assert (wait.option, wait.value, wait.outcome) == (
        "headgate.jobmanager.service-time",
        "50 ms",
        Outcome.FIRED,
    )
    assert wait.budget_ns == 600_000_000
    single = [w for w in waits(run, "deployment") if w.what != "6 tasks"]
    assert {(w.option, w.outcome) for w in single} == {("pekko.ask.timeout", Outcome.COMPLETED)}
    assert {w.what for w in single} == {f"{v}-{n}" for v in ("source", "count", "sink") for n in (0, 1)}


def test_a_slow_store_delays_restore_and_checkpoints(tmp_path: Path) -> None:
    """A task waits for its state; a checkpoint that takes longer than its timeout expires, another shows its margin."""
    slow = {
        "duration": "12 s",
        "target": {"taskManagers": {"mode": "all"}},
        "store": {"slow": {"delay": "2 s"}},
    }
    kill = {"at": "5 s", "duration": "1 s", "target": ANY, "process": {"kill": {}}}
    options = {
        "execution.checkpointing.timeout": "1500 ms",
        "execution.checkpointing.tolerable-failed-checkpoints": "100",
    }
    run = ran(tmp_path, slow, kill, options=options)
    restored = [w for w in waits(run, "restore") if w.outcome is Outcome.COMPLETED]
    assert {w.who for w in restored if w.seconds > 1.0} >= {"source-0", "count-0"}
    assert all(w.what.startswith("checkpoint ") for w in restored)
    expired = waits(run, "checkpoint", outcome=Outcome.EXPIRED)
    assert expired
    assert {(w.who, w.option, w.value) for w in expired} == {
        ("JobMaster", "execution.checkpointing.timeout", "1500 ms")
    }
    assert [w.seconds for w in expired] == [near(1.5)] * len(expired)
    assert waits(run, "checkpoint", outcome=Outcome.COMPLETED)


def test_a_producer_without_credit_and_a_consumer_without_barriers_wait(tmp_path: Path) -> None:
    """Credit is withheld for 4 s: one wait for each starved channel, with the option that sets its buffers."""
    withheld = {"duration": "4 s", "target": ANY, "frames": {"withholdCredit": {}}}
    job = {
        "vertices": [{**SOURCE, "source": {"recordsPerSecond": 20_000, "recordBytes": 1000}}, COUNT, SINK],
        "edges": [HASH, FORWARD],
    }
    run = ran(tmp_path, withheld, job=job, observation="8 s")
    starved = [w for w in waits(run, "credit") if w.seconds > 2.0]
    assert {w.who for w in starved} == {"source-0", "source-1"}
    assert {(w.option, w.value, w.budget_ns) for w in starved} == {
        ("taskmanager.network.memory.buffers-per-channel", "2", -1)
    }
    # the credit that was announced before is used first, so a channel starves a little later than the fault begins
    assert all(3.0 < w.seconds < 4.2 and since_fault(run, w.end_ns) == near(4.0) for w in starved)


def test_a_late_barrier_shows_as_alignment(tmp_path: Path) -> None:
    """Frames of one producer arrive 300 ms late: its consumers wait for its barriers for so long."""
    late = {
        "duration": "5 s",
        "target": {"taskManagers": {"running": "source", "mode": "one"}},
        "frames": {"delay": {"frameClass": "barrier", "delay": "300 ms"}},
    }
    run = ran(tmp_path, late, observation="8 s")
    aligned = [w for w in waits(run, "alignment") if w.seconds > 0.2]
    assert {w.who for w in aligned} == {"count-0", "count-1"}
    assert all(w.seconds == near(0.3) and w.what.startswith("checkpoint ") for w in aligned)


def test_a_killed_jobmanager_is_waited_for_until_the_next_leader_is_there(tmp_path: Path) -> None:
    """Slots that were kept for the old leader do not hold the job up: the next one gets them at once."""
    run = ran(tmp_path, {"duration": "8 s", "jobmanager": {"kill": {}}})
    assert run.metrics["failovers.count"] == 1
    away = waits(run, "jobmanager", what="JobMaster")
    assert {w.who for w in away} == {f"tm-{n}-1" for n in range(4)}
    assert {w.outcome for w in away} == {Outcome.COMPLETED}
    # the ResourceManager's address is probed every 0.5 s
    assert all(8.0 <= since_fault(run, w.end_ns) < 8.7 for w in away)
    (slot,) = [w for w in waits(run, "slot") if since_fault(run, w.start_ns) > 0]
    assert (slot.outcome, slot.seconds < 0.7) == (Outcome.COMPLETED, True)


def test_a_task_that_reaches_a_taskmanager_after_it_was_given_up_keeps_no_slot(tmp_path: Path) -> None:
    """A TaskManager pauses before its task arrives, and is given up. When it resumes, it has no JobMaster and refuses the task,
    as in Flink. Its slot, which the JobMaster does not know any more, serves the next deployment."""
    killed = {"target": {"taskManagers": {"names": ["tm-2"]}}, "duration": "1 s", "process": {"kill": {}}}
    paused = {
        "at": "2 s",
        "duration": "8 s",
        "target": {"taskManagers": {"names": ["tm-0"]}},
        "process": {"pause": {}},
    }
    run = ran(tmp_path, killed, paused, options={"restart-strategy.fixed-delay.delay": "500 ms"})
    again = [e for e in run.trial.rows("events") if e["kind"] == "taskmanager.registered"]
    assert again[-1]["subject"] == "tm-0-1"
    assert run.metrics["recovery.rounds"] == 2
    assert run.metrics["recovery.total"] < 11.0


def test_a_half_open_producer_costs_its_consumers_a_failover_when_the_fault_ends(tmp_path: Path) -> None:
    """They wait in silence for 4 s, and their ends are reset then, as with the proxy of a real run."""
    vanished = {
        "duration": "4 s",
        "target": {"taskManagers": {"names": ["tm-0"]}},
        "network": {"halfOpen": {}},
    }
    run = ran(tmp_path, vanished)
    failures = [e for e in run.trial.rows("events") if e["kind"] == "failover.started"]
    assert [since_fault(run, int(e["t_ns"])) for e in failures] == [near(4.0)]
    assert failures[0]["text"].startswith("Lost connection to task manager 'tm-0")
    assert run.metrics["fault.verified"] == 1
