"""Known answers of owners that have only a part of what was waited for: real shells in virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from testbed_runtime.core.documents import RECOVERY_FILE
from testbed_runtime.core.judgement.recovery import TrialRecovery
from tests.simulation.knownanswers import (
    ALL,
    CUT,
    DELAY,
    DETECTION_S,
    EXPONENTIAL,
    JOBMANAGER,
    KILL,
    QUICK,
    REACHABILITY,
    REGIONS,
    SINK,
    SOURCE,
    TOLERANCE_S,
    Case,
    answered,
    document,
    fault,
    of_case,
    of_region,
    seconds,
)
from tests.simulation.simulating import run_document, run_one

pytestmark = pytest.mark.virtual

EXAMPLES = Path(__file__).resolve().parents[2] / "scenarios" / "examples"


SPLITS = {
    "vertices": [
        {
            "name": "source",
            "parallelism": 2,
            "slotSharingGroup": "src",
            "source": {"recordsPerSecond": 1000, "limit": 20_000, "splits": 40},
        },
        {"name": "sink", "parallelism": 2, "slotSharingGroup": "main", "sink": "ledger"},
    ],
    "edges": [{"from": "source", "to": "sink", "partitioning": "hash"}],
}


def test_a_partition_has_only_the_supersteps_that_it_held_up(tmp_path: Path):
    """It lasts 2 s of an iteration of more than 7 s, and TCP sends again 1.36 s later what it has lost. What comes before and after that is
    the work of the iteration."""
    found = yaml.safe_load((EXAMPLES / "bulk-iteration.yaml").read_text())
    (tmp_path / "supersteps.py").write_text((EXAMPLES / "supersteps.py").read_text())
    target = found["spec"]["faults"][0]["target"]
    found["spec"]["faults"] = [fault("cut", "2 s", target, at="1 s", **CUT)]
    found["spec"]["expect"] = []
    trial = answered(found, tmp_path)
    (recovery,) = trial.recoveries
    for one in (trial.start, recovery):
        assert one is not None
        assert seconds(one, "`cut`") == pytest.approx(3.36, abs=TOLERANCE_S)
        assert seconds(one, "supersteps of an iteration") == pytest.approx(one.total_s, abs=2 * TOLERANCE_S)
        assert one.total_s > 3


def test_a_source_waits_for_its_next_input_split(tmp_path: Path):
    """The JobManager takes 2 s for each request: until it has answered the first one, no record is sent."""
    slow = {"rpc": {"delay": {"method": "RequestNextInputSplit", "delay": "2 s"}}}
    case = Case("splits", [fault("slow", "20 s", JOBMANAGER, at="deploy", **slow)], "", 0.0, options=QUICK, observation="20 s")  # fmt: skip
    start = of_case(case, tmp_path, SPLITS).start
    assert seconds(start, "during the fault `slow`") == pytest.approx(2.0, abs=TOLERANCE_S)
    assert start is not None
    assert start.prices[0].kind == "jobmanager"


def test_a_source_that_waits_for_input_splits_does_not_lack_capacity(tmp_path: Path):
    """After a restart each request of a source takes 1 s or, behind that of the other source, 2 s: it reads 500 records of 1 s in that time."""
    faults = [
        fault("slow", "20 s", JOBMANAGER, rpc={"delay": {"method": "RequestNextInputSplit", "delay": "1 s"}}),
        fault("kill", "1 s", SOURCE, at="1 s", **KILL),
    ]
    case = Case("splits", faults, "", 0.0, options=QUICK, observation="40 s")
    (found,) = of_case(case, tmp_path, SPLITS).recoveries
    assert found.prices[0].fault == "slow"
    assert found.prices[0].seconds > 10
    assert not seconds(found, "spare capacity of `source`")


@pytest.mark.parametrize("later", [2, 5])
def test_a_merged_failure_leaves_the_delay_its_seconds(later: int, tmp_path: Path):
    """The second region fails while the first one waits for its delay: from 2.x on, both restart when that is over, so all of
    its 10 s are one wait."""
    faults = [
        fault("one", "1 s", of_region("a"), **KILL),
        fault("two", "1 s", of_region("b"), at=f"{later} s", **KILL),
    ]
    options = {**QUICK, "restart-strategy.type": "exponential-delay", f"{EXPONENTIAL}.initial-backoff": "10 s", f"{EXPONENTIAL}.jitter-factor": "0.0"}  # fmt: skip
    case = Case("merged", faults, "", 0.0, options=options, managers={"replicas": 6}, observation="30 s")
    (found,) = of_case(case, tmp_path, REGIONS).recoveries
    assert (found.restarts, len(found.rounds)) == (1, 1)
    assert found.prices[0].text == f"{EXPONENTIAL}.initial-backoff = 10 s"
    assert found.prices[0].seconds == pytest.approx(10.0, abs=TOLERANCE_S)
    assert found.prices[1].option == REACHABILITY
    assert found.prices[1].seconds == pytest.approx(DETECTION_S, abs=TOLERANCE_S)


def test_the_delay_of_a_region_beside_which_another_one_fails_has_its_seconds(tmp_path: Path):
    """The first region waits from 6.0 to 16 s. The second one is killed at 9.1 s and lost at 11 s, and waits for 10 s then: each on its own."""
    faults = [
        fault("one", "1 s", of_region("a"), **KILL),
        fault("two", "1 s", of_region("b"), at="5 s", **KILL),
    ]
    case = Case("apart", faults, "", 0.0, options={**QUICK, DELAY: "10 s"}, managers={"replicas": 6}, observation="30 s")  # fmt: skip
    (found,) = of_case(case, tmp_path, REGIONS).recoveries
    assert (found.restarts, len(found.rounds)) == (2, 2)
    assert [p.text for p in found.prices[:1]] == [f"{DELAY} = 10 s"]
    assert found.prices[0].seconds == pytest.approx(13.1, abs=2 * TOLERANCE_S)
    assert not seconds(found, "the delay of the restart strategy")


def test_a_dropped_buffer_is_missed_and_its_producer_is_not(tmp_path: Path):
    """The first buffer of each channel was dropped: the end of what its producer restored. Nothing sends it again, and each producer
    waits until its consumer has those of all."""
    faults = [
        fault("drop", "4 s", ALL, frames={"drop": {"frameClass": "buffer"}}),
        fault("kill", "1 s", SOURCE, at="500 ms", **KILL),
    ]
    (found,) = of_case(Case("dropped", faults, "", 0.0, options=QUICK), tmp_path).recoveries
    assert not found.recovered
    assert found.prices[0].text == "the first new record at a sink, during the fault `drop`"
    assert not seconds(found, "the partition of")


@pytest.mark.parametrize(
    ("duration", "verified"), [("4 s", ["verified", "verified"]), ("1 s", ["verified", "unverified"])]
)
def test_a_partition_within_another_one_is_measured_when_that_has_ended(
    duration: str, verified: list[str], tmp_path: Path
):
    """Nothing passed before it. One that ends before the other one has no effect of its own."""
    target = {"taskManagers": {"names": ["tm-2"]}}
    faults = [fault("one", "4 s", target, **CUT), fault("two", duration, target, at="2 s", **CUT)]
    ran = run_one(document(Case("cuts", faults, "", 0.0, options=QUICK)), tmp_path)
    states = {r["fault"]: r["state"] for r in ran.trial.rows("faults") if r["state"].endswith("verified")}
    assert [states[name] for name in ("one", "two")] == verified


def test_an_outage_begins_when_the_one_before_ended_if_its_process_was_dead_by_then(tmp_path: Path):
    """The sink is killed when the job catches up after another kill. Its loss takes 1.9 s to be noticed."""
    faults = [fault("one", "1 s", SOURCE, **KILL), fault("two", "1 s", SINK, at="2020 ms", **KILL)]
    case = Case(
        "close", faults, "", 0.0, options={**QUICK, "execution.buffer-timeout.interval": "5 s"},
        managers={"replicas": 7}, observation="20 s",
    )  # fmt: skip
    one, two = of_case(case, tmp_path).recoveries
    assert (one.fault, two.fault) == ("one", "two")
    assert one.end_ns == two.effect_ns
    assert {p.option for p in two.prices if p.seconds > 1} >= {REACHABILITY}
    assert seconds(two, REACHABILITY) == pytest.approx(DETECTION_S, abs=TOLERANCE_S)


def test_no_replacement_is_part_of_a_detection(tmp_path: Path):
    """A consumer of a blocking result is at work when the TaskManager of its producer dies, and reads no input meanwhile. A replacement
    that would come sooner saves nothing of this."""
    found = yaml.safe_load((EXAMPLES / "blocking.yaml").read_text())
    found["spec"]["faults"] = [fault("kill", "1 s", SOURCE, at="1 s", **KILL)]
    found["spec"]["expect"] = []
    run_document(found, tmp_path)
    (recorded,) = json.loads((tmp_path / RECOVERY_FILE).read_text()).values()
    (recovery,) = TrialRecovery.from_json(recorded).recoveries
    assert recovery.rounds[0].cause_class.endswith("RemoteTransportException")
    assert not seconds(recovery, "replaceLost")
    assert seconds(
        recovery, "the work of `count` on its input, before it notices the close"
    ) == pytest.approx(2.24, abs=TOLERANCE_S)


def test_a_jobmanager_that_is_paused_before_a_recovery_ends_has_the_outage_after_it(tmp_path: Path):
    """It deploys the tasks and is paused at 6.05 s, for 8 s. TaskManagers give it up meanwhile and cancel their tasks."""
    faults = [
        fault("kill", "1 s", SINK, **KILL),
        fault("gc", "8 s", JOBMANAGER, at="1950 ms", jobmanager={"pause": {}}),
    ]
    case = Case("paused", faults, "", 0.0, options=QUICK, observation="25 s")
    one, two = of_case(case, tmp_path).recoveries
    assert (one.fault, two.fault, one.end_ns) == ("kill", "gc", two.effect_ns)
    assert seconds(two, "the JobManager's return (paused by the fault `gc`)") == pytest.approx(8.0, abs=0.2)
