"""Known answers of jobs that end, start in parts or take no checkpoints: real shells in virtual time, with seconds known beforehand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.documents import RECOVERY_FILE
from testbed_runtime.core.judgement.recovery import Recovery, TrialRecovery
from testbed_runtime.core.waits import Outcome, Wait
from tests.simulation.knownanswers import (
    DETECTION_S,
    KILL,
    QUICK,
    REACHABILITY,
    SINK,
    SOURCE,
    TOLERANCE_S,
    Case,
    check_sums,
    document,
    fault,
)
from tests.simulation.simulating import Ran, run_one

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
    (recovery,) = recovered(folder).recoveries
    check_sums(recovery)
    return ran, recovery


def recovered(folder: Path) -> TrialRecovery:
    (trial,) = json.loads((folder / RECOVERY_FILE).read_text()).values()
    return TrialRecovery.from_json(trial)


def waits(ran: Ran, kind: str) -> list[Wait]:
    return [wait for wait in map(Wait.from_row, ran.trial.rows("waits")) if wait.kind == kind]


def test_a_job_that_only_waits_for_its_final_checkpoint_has_caught_up(tmp_path: Path):
    """The sinks have received everything 0.3 s after the restart, in which all is replayed. Then the sources wait for a
    checkpoint until the drain, as the end of the data triggers none until 1.17: no backlog, no missing records, and no part of the
    recovery."""
    options = {**QUICK, "execution.checkpointing.interval": "10 min"}
    kill = [fault("kill", "1 s", SINK, **KILL)]
    case = Case("finishing", kill, "", 0.0, options=options, version="1.17")
    ran, found = answer(bounded(case, 6.2), tmp_path)
    assert found.recovered
    assert found.total_s == pytest.approx(DETECTION_S, abs=0.4)
    assert found.prices[0].option == REACHABILITY
    assert ran.result.verdict.verdict == "Pass", ran.result.verdict.summary
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
    kill = [fault("kill", "1 s", SINK, at="3 s", **KILL)]
    case = Case("uncovered", kill, "", 0.0, options=options, version="1.17")
    ran, found = answer(bounded(case, 6.0), tmp_path)
    assert (found.recovered, found.reason) == (True, "")
    assert found.downtime_s == pytest.approx(DETECTION_S, abs=TOLERANCE_S)
    assert found.total_s == pytest.approx(DETECTION_S, abs=TOLERANCE_S)
    assert ran.result.verdict.verdict == "Pass", ran.result.verdict.summary
    outcomes = [w.outcome for w in waits(ran, "final-checkpoint")]
    assert outcomes.count(Outcome.CANCELLED) == 2, "the first attempts waited when the job failed"
    assert outcomes.count(Outcome.FIRED) == 2


def test_consumers_of_a_full_result_wait_for_it_and_not_for_partitions(tmp_path: Path):
    """The sources take 6 s. A count asks both for their results, and sees the second answer after the work on what it read of the
    first. When a TaskManager with a result is lost, its source is restarted too, although the counts have been cancelled long ago."""
    kill = fault("kill", "1 s", {"taskManagers": {"names": ["tm-0"]}}, **KILL)
    case = Case(
        "full-result", [kill], "", 0.0, options=QUICK, vertex={"serviceTime": "10 ms"}, observation="40 s"
    )
    document = bounded(case, 6.0)
    testbed = document["spec"]["testbed"]
    testbed["flinkConfiguration"].pop("execution.checkpointing.interval")
    testbed["job"]["edges"][0] |= {"result": "blocking", "deployment": "on-full-result"}
    testbed["job"]["vertices"][0]["source"]["recordBytes"] = 3000
    ran = run_one(document, tmp_path)
    assert ran.result.verdict.verdict == "Pass", ran.result.verdict.summary
    (found,) = recovered(tmp_path).recoveries
    start = recovered(tmp_path).start
    assert start is not None
    check_sums(start)
    owned = {p.words: p.seconds for p in start.prices}
    text = "the full result of `source`, with which its consumers are deployed"
    assert owned[text] == pytest.approx(6.0, abs=TOLERANCE_S)
    assert max(w.seconds for w in waits(ran, "partition")) < 0.05
    assert found.prices[0].words.startswith("spare capacity of `count`")
    assert REACHABILITY in {p.option for p in found.prices}


def test_consumers_of_a_first_record_wait_for_it(tmp_path: Path):
    """The vertex before them needs 400 ms for each record, and passes on the first one before the others of its buffer."""
    found = document(Case("first-record", [], "", 0.0, options=QUICK))
    job = found["spec"]["testbed"]["job"]
    slow = {
        "name": "slow",
        "parallelism": 2,
        "slotSharingGroup": "src",
        "operator": "map",
        "serviceTime": "400 ms",
    }
    job["vertices"].insert(1, slow)
    job["edges"] = [
        {"from": "source", "to": "slow", "partitioning": "forward"},
        {"from": "slow", "to": "count", "partitioning": "hash", "deployment": "on-first-record"},
        job["edges"][1],
    ]
    ran = run_one(found, tmp_path)
    start = recovered(tmp_path).start
    assert start is not None
    check_sums(start)
    (waited,) = waits(ran, "input")
    assert waited.what == "first record of `slow`"
    assert waited.seconds == pytest.approx(0.1 + 0.4, abs=TOLERANCE_S)
    owned = {p.words: p.seconds for p in start.prices}
    text = "the first record of `slow`, with which its consumers are deployed"
    assert owned[text] == pytest.approx(waited.seconds, abs=0.01)
    assert start.from_events_s < 0.01


def test_a_producer_without_records_was_found_all_the_same(tmp_path: Path):
    """Each source has a record every 4 s. A partition is found when its producer runs, not when the first record comes."""
    found = document(Case("sparse", [], "", 0.0, options=QUICK, observation="8 s"))
    source = found["spec"]["testbed"]["job"]["vertices"][0]["source"]
    source["recordsPerSecond"] = 1
    found["spec"]["faults"] = [fault("kill", "1 s", SOURCE, **KILL)]
    run_one(found, tmp_path)
    for recovery in recovered(tmp_path).recoveries:
        check_sums(recovery)
        margins = {m.option: m.waited_s for m in recovery.margins}
        assert margins.get("taskmanager.network.request-backoff.max", 0.0) < 0.3


def test_a_partition_waits_for_the_deployment_of_its_producer(tmp_path: Path):
    """One source is submitted 3 s late at the first start, and holds up the other one. A count with 40 % of its capacity in use then
    has the load of 3 s: 0.4 of its capacity for 3 s, which the 0.6 that are left work off in 2 s, with those until the first record."""
    slow = fault(
        "slow", "20 s", {"taskManagers": {"names": ["tm-0"]}}, at="deploy",
        rpc={"delay": {"method": "SubmitTask", "delay": "3 s"}},
    )  # fmt: skip
    case = Case("held", [slow], "", 0.0, options=QUICK, vertex={"serviceTime": "4 ms"}, observation="6 s")
    _, found = answer(document(case), tmp_path)
    deployment, catch_up, first_record = found.prices[:3]
    assert (deployment.fault, deployment.kind) == ("slow", "deployment")
    assert deployment.seconds == pytest.approx(3.0, abs=TOLERANCE_S)
    assert (catch_up.kind, first_record.kind) == ("catch-up", "first-record")
    assert catch_up.seconds + first_record.seconds == pytest.approx(2.0, abs=0.3)


def test_a_sink_that_no_checkpoint_covers_at_its_end_loses_records(tmp_path: Path):
    """In Flink 1.14 no checkpoint covers the end of a job, so this sink finishes without a commit. That is a loss, not damage."""
    case = Case(
        "uncovered-end",
        [fault("kill", "1 s", SINK, at="2 s", **KILL)],
        "",
        0.0,
        options=QUICK,
        version="1.14",
    )
    ran, _ = answer(bounded(case, 7.0), tmp_path)
    assert ran.result.verdict.verdict == "Fail", ran.result.verdict.summary
    assert "delivery.lost" in ran.result.verdict.summary


def test_without_checkpoints_everything_is_replayed(tmp_path: Path):
    """The job had run for 4.1 s when it was killed. Its sinks receive nothing new from then on until the failure, in which half of them
    go on."""
    case = Case("uncovered", [fault("kill", "1 s", SINK, **KILL)], "", 0.0, options=QUICK)
    found = document(case)
    del found["spec"]["testbed"]["flinkConfiguration"]["execution.checkpointing.interval"]
    _, recovery = answer(found, tmp_path)
    detail = recovery.rounds[-1].segments[-1].detail
    assert detail.startswith("backlog of 6.15 s, "), "the time since the submission"
    assert "of it replayed" in detail


@pytest.mark.parametrize(("kind", "credit"), [("partition", False), ("latency", True)])
def test_missing_credit_explains_only_what_more_credit_would_help_against(
    kind: str, credit: bool, tmp_path: Path
):
    """A partition lets nothing pass, so every sender runs out of credit."""
    network = {"partition": {}, "latency": {"delay": "2 s", "mode": "one-way"}}[kind]
    cut = fault("cut", "9 s", SINK, network={kind: network})
    options = {
        **QUICK, "taskmanager.memory.segment-size": "1 kb", "taskmanager.memory.min-segment-size": "256 b",
        "taskmanager.network.memory.buffers-per-channel": "1", "taskmanager.network.memory.floating-buffers-per-gate": "1",
    }  # fmt: skip
    _, found = answer(document(Case("silent", [cut], "", 0.0, options=options, observation="19 s")), tmp_path)
    assert found.prices[0].words.startswith(f"end of the fault `cut` (network.{kind}")
    assert ("waited for credit" in found.prices[0].words) is credit


def test_a_task_that_was_canceled_before_it_was_submitted_is_no_damage(tmp_path: Path):
    """Slow offers keep the JobMaster from hearing heartbeats. It declares TaskManagers lost in the same moment in which their slots let
    it deploy, so tasks are canceled while they are DEPLOYING."""
    slow = fault(
        "slow",
        "9 s",
        {"jobManager": {}},
        at="deploy",
        rpc={"delay": {"method": "OfferSlots", "delay": "2 s"}},
    )
    ran = run_one(document(Case("offers", [slow], "", 0.0, options=QUICK)), tmp_path)
    states = [json.loads(e["data"]) for e in ran.trial.rows("events") if e["kind"] == "task.state"]
    assert any((s["from"], s["to"]) == ("DEPLOYING", "CANCELING") for s in states)
    assert ran.result.verdict.verdict != "Error", ran.result.verdict.summary
    start = recovered(tmp_path).start
    assert start is not None
    check_sums(start)
    (expired,) = (p for p in start.prices if p.option == "heartbeat.timeout")
    assert expired.seconds == pytest.approx(5.0, abs=TOLERANCE_S), (
        "what came after it kept the JobMaster busy"
    )
