"""Known answers: losses that are heard of late, regions that fail together, and waits that no lower value shortens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.judgement.recovery import Recovery
from testbed_runtime.report.answer import savings
from tests.simulation.knownanswers import (
    ALL,
    ASK,
    DETECTION_S,
    HEARTBEAT,
    JOBMANAGER,
    KILL,
    PAUSE,
    QUICK,
    REACHABILITY,
    SINK,
    SOURCE,
    TOLERANCE_S,
    Case,
    check_sums,
    document,
    fault,
    run,
)

pytestmark = pytest.mark.virtual

BUSY = "a JobManager that is paused, dead, busy or cut off, during the fault `busy`"
ACKNOWLEDGED = fault(
    "busy", "10 s", JOBMANAGER, rpc={"delay": {"method": "AcknowledgeCheckpoint", "delay": "1 s"}}
)
"""The six tasks acknowledge the checkpoint that begins at 6 s of virtual time, so the JobMaster handles nothing else until 12 s."""


def recoveries(found: dict[str, Any], folder: Path) -> tuple[Recovery, ...]:
    """Run the document. Return its recoveries with an outage, whose seconds add up."""
    costly = tuple(r for r in run(found, folder).recoveries if r.total_s > 0)
    for one in costly:
        check_sums(one)
    return costly


def owned(found: Recovery) -> dict[str, float]:
    """Map each owner that matters to its seconds."""
    return {p.option or p.text: round(p.seconds, 1) for p in found.prices if p.seconds > 0.25}


def test_a_busy_jobmaster_hears_late_of_a_loss(tmp_path: Path):
    """The ResourceManager notices it 1.9 s after the kill at 6.1 s, and reports it to the JobMaster."""
    faults = [ACKNOWLEDGED, fault("kill", "1 s", SINK, at="2 s", **KILL)]
    case = Case("heard-late", faults, "", 0.0, options={**QUICK, HEARTBEAT: "30 s"}, observation="30 s")
    (found,) = recoveries(document(case), tmp_path)
    assert found.faults == ("kill", "busy")
    assert owned(found) == {BUSY: pytest.approx(4.05, abs=TOLERANCE_S), REACHABILITY: DETECTION_S}
    assert found.downtime_s == pytest.approx(5.9, abs=TOLERANCE_S)


def test_a_fault_on_messages_costs_nothing_before_a_heartbeat_is_missing(tmp_path: Path):
    """The JobMaster hears its last heartbeats at 6 s, 1.9 s after the fault has begun, and declares the TaskManagers lost at 11 s."""
    case = Case("missing-since", [ACKNOWLEDGED], "", 0.0, options=QUICK, observation="20 s")
    (found,) = recoveries(document(case), tmp_path)
    assert found.prices[0].option == HEARTBEAT
    assert found.prices[0].seconds == pytest.approx(5.0, abs=TOLERANCE_S)
    assert found.total_s == pytest.approx(7.1, abs=0.2)
    assert "saves nothing" in next(savings(found))


def test_a_fault_that_ended_before_the_jobmanager_was_paused_is_not_blamed(tmp_path: Path):
    """A source is cut off for 0.3 s, which costs nothing. The pause ends after heartbeat.timeout."""
    faults = [
        fault("cut", "300 ms", SOURCE, at="2 s", plane="rpc", network={"partition": {}}),
        fault("gc", "5 s", JOBMANAGER, at="4 s", jobmanager={"pause": {}}),
    ]
    case = Case("after-a-cut", faults, "", 0.0, options=QUICK, version="1.20", observation="20 s")
    (found,) = recoveries(document(case), tmp_path)
    assert found.faults == ("gc",)
    assert owned(found) == {"the JobManager's return (paused by the fault `gc`)": 5.0}


def test_regions_that_fail_in_one_millisecond_leave_a_sound_history(tmp_path: Path):
    """A TaskManager with two slots runs two regions. Both restart on the spare one."""
    case = Case("together", [fault("kill", "1 s", SINK, **KILL)], "", 0.0, options=QUICK, managers={"replicas": 4, "slots": 2})  # fmt: skip
    found = document(case)
    source, _, sink = found["spec"]["testbed"]["job"]["vertices"]
    shared = {"parallelism": 6, "slotSharingGroup": "main"}
    found["spec"]["testbed"]["job"] = {
        "vertices": [source | shared, sink | shared],
        "edges": [{"from": "source", "to": "sink", "partitioning": "forward"}],
    }
    (recovery,) = recoveries(found, tmp_path)
    assert owned(recovery) == {REACHABILITY: DETECTION_S}


@pytest.mark.parametrize(
    ("version", "kind"), [("1.18", "fixed-delay.delay"), ("1.20", "exponential-delay.initial-backoff")]
)
def test_the_delay_of_a_strategy_that_is_not_chosen_is_ignored(version: str, kind: str, tmp_path: Path):
    """Without restart-strategy.type, Flink takes the defaults of the strategy, so the delay is 1 s."""
    key = f"restart-strategy.{kind}"
    case = Case(
        "ignored",
        [fault("kill", "1 s", SINK, **KILL)],
        "",
        0.0,
        version=version,
        options=QUICK | {key: "300 ms"},
    )
    found = document(case)
    configuration = found["spec"]["testbed"]["flinkConfiguration"]
    found["spec"]["testbed"]["flinkConfiguration"] = {
        k: v for k, v in configuration.items() if k == key or not k.startswith("restart-strategy")
    }
    (recovery,) = recoveries(found, tmp_path)
    assert owned(recovery) == {REACHABILITY: DETECTION_S, key: pytest.approx(1.0, abs=TOLERANCE_S)}


def two_regions(case: Case) -> dict[str, Any]:
    """Return the document of the case with two regions, each with a source and a sink of its own."""
    found = document(case)
    source, _, sink = found["spec"]["testbed"]["job"]["vertices"]
    parts = [
        vertex
        | {
            "name": f"{vertex['name']}-{name}",
            "parallelism": 1,
            "slotSharingGroup": f"{vertex['name']}-{name}",
        }
        for name in "ab"
        for vertex in (source, sink)
    ]
    edges = [{"from": f"source-{name}", "to": f"sink-{name}", "partitioning": "hash"} for name in "ab"]
    found["spec"]["testbed"]["job"] = {"vertices": parts, "edges": edges}
    return found


def test_a_pause_of_a_region_goes_on_after_the_failover_of_another_one(tmp_path: Path):
    """It lasts for 6 s, and the other region is lost 1 s after it began, and back 1.9 s later. It has one owner before and after that, and
    a loss that is noticed sooner would not have ended the outage sooner."""
    faults = [
        fault("gc", "6 s", {"taskManagers": {"running": "sink-a"}}, **PAUSE),
        fault("kill", "1 s", {"taskManagers": {"running": "sink-b"}}, at="1 s", **KILL),
    ]
    case = Case("goes-on", faults, "", 0.0, options=QUICK | {HEARTBEAT: "20 s"}, observation="20 s")
    (found,) = recoveries(two_regions(case), tmp_path)
    owner = "tm-1's return (paused by the fault `gc`)"
    assert owned(found) == {owner: pytest.approx(4.1, abs=0.1), REACHABILITY: DETECTION_S}
    (line,) = savings(found)
    assert line.startswith(REACHABILITY)
    assert line.endswith(f"a lower value saves nothing: the job then waits for {owner}")
    assert found.rounds[-1].segments[-1].kind == "catch-up"


def test_an_earlier_deployment_saves_nothing_if_its_acknowledgements_would_expire(tmp_path: Path):
    """Each message takes 5 s, longer than the ask timeout, so no deployment succeeds before the fault ends at 12.1 s."""
    slow = fault("slow", "8 s", ALL, rpc={"delay": {"method": "SubmitTask", "delay": "5 s"}})
    case = Case(
        "in-vain", [slow, fault("kill", "1 s", SINK, **KILL)], "", 0.0, version="1.12", observation="30 s",
        options={"heartbeat.interval": "1 s", HEARTBEAT: "6 s", ASK: "4 s"},
    )  # fmt: skip
    (found,) = recoveries(document(case), tmp_path)
    assert found.prices[0].option == HEARTBEAT
    assert "a lower value saves nothing: the job then waits for the TaskManagers to acknowledge" in next(
        savings(found)
    )


def test_a_loss_noticed_before_the_jobmanager_pauses_would_outrun_the_pause(tmp_path: Path):
    """It is paused 1 s after the kill, inside the detection of 1.9 s. With one missing heartbeat, the failover ends 0.9 s after the kill,
    and the pause costs nothing, so no limit is given."""
    faults = [
        fault("kill", "1 s", SINK, **KILL),
        fault("gc", "4 s", JOBMANAGER, at="1 s", jobmanager={"pause": {}}),
    ]
    downtimes = {}
    for threshold in ("2", "1"):
        chosen = QUICK | {HEARTBEAT: "30 s", "heartbeat.rpc-failure-threshold": threshold}
        case = Case("outrun", faults, "", 0.0, options=chosen, observation="20 s")
        (tmp_path / threshold).mkdir()
        (found, *_) = recoveries(document(case), tmp_path / threshold)
        assert list(savings(found)) == []
        downtimes[threshold] = found.downtime_s
    assert downtimes == {
        "2": pytest.approx(5.0, abs=TOLERANCE_S),
        "1": pytest.approx(0.9, abs=TOLERANCE_S),
    }


def test_a_loss_in_a_restore_ends_what_an_earlier_restart_saves(tmp_path: Path):
    """Each state takes 5 s. It is restored from 1.9 s after the first kill on, and interrupted by the second one 3.5 s after it. No detection is
    short enough for that restore to end before. Only the second detection costs anything."""
    faults = [
        fault("slow", "30 s", ALL, store={"slow": {"delay": "5 s"}}),
        fault("one", "1 s", SINK, at="500 ms", **KILL),
        fault("two", "1 s", {"taskManagers": {"names": ["tm-0"]}}, at="4 s", **KILL),
    ]
    case = Case(
        "restore", faults, "", 0.0, managers={"replicas": 6}, observation="40 s",
        options=QUICK | {"execution.checkpointing.timeout": "60 s"},
    )  # fmt: skip
    (found,) = recoveries(document(case), tmp_path)
    detections = [s for r in found.rounds for s in r.segments if s.kind == "heartbeat"]
    assert [round(s.seconds, 1) for s in detections] == [1.4, 1.9]
    (line,) = savings(found)
    assert line.startswith(f"{REACHABILITY} = 1 s × 2: a lower value saves at most 1.92 s")
    assert line.endswith("then the job waits for its recovery from the fault `two`")


@pytest.mark.parametrize("threshold", ["2", "1"])
def test_a_loss_that_restarts_no_task_costs_nothing(threshold: str, tmp_path: Path):
    """The TaskManager of a source that has finished dies. Its loss is noticed soon, but the counts, 100 records per second each, go on with what
    they have received of its full result, and fail only when the connection closes, 4.2 s after the kill."""
    kill = fault("kill", "1 s", {"taskManagers": {"names": ["tm-0"]}}, **KILL)
    case = Case(
        "finished", [kill], "", 0.0, observation="40 s", vertex={"serviceTime": "10 ms"},
        options=QUICK | {"heartbeat.rpc-failure-threshold": threshold},
    )  # fmt: skip
    found = document(case)
    testbed = found["spec"]["testbed"]
    del testbed["flinkConfiguration"]["execution.checkpointing.interval"]
    testbed["job"]["vertices"][0]["source"] |= {"recordsPerSecond": 400, "limit": 1500}
    testbed["job"]["edges"][0] |= {"result": "blocking", "deployment": "on-full-result"}
    found["spec"]["timeline"] |= {"warmUp": "1 s", "baseline": "1 s"}
    (recovery,) = recoveries(found, tmp_path)
    assert "heartbeat" not in {p.kind for p in recovery.prices}
    (work,) = (p.seconds for p in recovery.prices if p.text.startswith("the work of `count` on its input"))
    assert work == pytest.approx(4.2, abs=TOLERANCE_S)
    assert recovery.from_events_s < 0.01


def test_a_process_that_comes_just_after_a_request_for_its_slot_has_the_time_until_then(tmp_path: Path):
    """The loss is noticed 1.9 s after the kill. The slot is requested 20 ms later, and allocated 50 ms after the replacement has come."""
    case = Case("just-after", [fault("kill", "1 s", SINK, **KILL)], "", 0.0, options=QUICK, managers={"replicas": 4, "replaceLost": "2 s"})  # fmt: skip
    (found,) = recoveries(document(case), tmp_path)
    assert {p.kind for p in found.prices} >= {"replacement", "slot-request"}
    assert "slot" not in {p.kind for p in found.prices if p.seconds > 0.005}
    assert found.prices[0].seconds == pytest.approx(2.0, abs=0.005)


@pytest.mark.parametrize("read_s", [2, 4])
def test_a_producer_registers_late_and_then_restores(read_s: int, tmp_path: Path):
    """Its consumers restore their state while it has not registered yet, which delays nothing."""
    registration = {"delay": {"delay": "3 s", "vertex": "source"}}
    faults = [
        fault("late", "12 s", ALL, registration=registration),
        fault("slow", "12 s", ALL, store={"slow": {"delay": f"{read_s} s"}}),
        fault("kill", "1 s", SINK, at="100 ms", **KILL),
    ]
    case = Case("late-and-slow", faults, "", 0.0, options=QUICK, observation="20 s")
    (found,) = recoveries(document(case), tmp_path)
    seconds = {p.fault: p.seconds for p in found.prices if p.fault}
    assert seconds == {
        "late": pytest.approx(3.0, abs=TOLERANCE_S),
        "slow": pytest.approx(read_s, abs=TOLERANCE_S),
    }
