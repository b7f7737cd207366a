"""Known answers that earlier versions got wrong: real shells in virtual time, with seconds known beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed_runtime.core.judgement.metrics import RECOVERY_PHASES
from testbed_runtime.report.answer import headline, savings
from tests.simulation.knownanswers import (
    ALL,
    ASK,
    DELAY,
    DETECTION_S,
    DRAWN_CHECKPOINTS,
    EXPONENTIAL,
    FAULT_S,
    HEARTBEAT,
    JOBMANAGER,
    KILL,
    LATER_S,
    LEADER,
    NO_SPARE,
    QUICK,
    REACHABILITY,
    RENEW,
    SINK,
    SOURCE,
    TOLERANCE_S,
    Case,
    answer,
    check_answer,
    check_sums,
    document,
    fault,
    owners,
    run,
)

pytestmark = pytest.mark.virtual

ON_TM_0 = {"taskManagers": {"names": ["tm-0"]}}
ON_TM_2 = {"taskManagers": {"names": ["tm-2"]}}
ON_TM_5 = {"taskManagers": {"names": ["tm-5"]}}
RESET = {"network": {"reset": {}}}
BUSY_SUBMISSIONS = [
    fault("slow", "20 s", ALL, rpc={"delay": {"method": "SubmitTask", "delay": "4 s"}}),
    fault("kill", "1 s", SINK, at="500 ms", **KILL),
]
CASES = [
    Case(  # the JobManager works at the submission for 3 s
        "submitted-to-a-busy-jobmanager",
        [fault("slow", "12 s", JOBMANAGER, at="deploy", rpc={"delay": {"method": "SubmitJob", "delay": "3 s"}})],
        "the JobManager to create the job, during the fault `slow`", 3.0, start=True, options=QUICK,
    ),
    Case(  # SubmitTask keeps one TaskManager busy for 5 s, so it has heard nothing of the JobManager for as long. The sinks have
        # the records of the other source since 0.2 s
        "failure-before-the-start-has-caught-up",
        [fault("slow", "20 s", {"taskManagers": {"names": ["tm-0"]}}, at="deploy", rpc={"delay": {"method": "SubmitTask", "delay": "5 s"}})],
        HEARTBEAT, 5.0, rounds=2, failovers=1, options=QUICK, version="1.14",
    ),
    Case(  # 1.9 s after the kill the delay begins, and 3 s after the kill the pause of 6 s
        "jobmanager-paused-in-a-restart-delay",
        [fault("kill", "1 s", SINK, **KILL), fault("gc", "6 s", JOBMANAGER, at="3 s", jobmanager={"pause": {}})],
        "the JobManager's return (paused", 6.0, failovers=1, observation="15 s",
        options={"heartbeat.interval": "1 s", "heartbeat.timeout": "15 s", DELAY: "3 s"},
    ),
    Case(  # each message takes a TaskManager 300 ms
        "busy-taskmanagers", [fault("kill", "1 s", SINK, **KILL)], "headgate.taskmanager.service-time = 300 ms", 3.0,
        options={"heartbeat.interval": "1 s", "heartbeat.timeout": "20 s", "headgate.taskmanager.service-time": "300 ms"},
        observation="11 s", tolerance=0.5,
    ),
    Case(  # the last records that it delayed arrive 0.5 s after its end, less what counts as caught up
        "records-under-way-when-latency-ends",
        [fault("far", "4 s", SINK, network={"latency": {"delay": "500 ms", "mode": "one-way"}})],
        "end of the fault `far`", 4 + 0.5 - 0.2, options=QUICK, observation="10 s", tolerance=0.2,
    ),
    Case(  # 5 s after the first loss the second one begins a delay of its own, and the job needs both
        "lost-in-a-replacement",
        [fault("one", "1 s", SINK, **KILL), fault("two", "1 s", {"taskManagers": {"names": ["tm-0"]}}, at="5 s", **KILL)],
        "replaceLost", 5.0 + 8.0, failovers=1, options=QUICK, managers={**NO_SPARE, "replaceLost": "8 s"}, observation="19 s",
    ),
    Case(  # all six asks expire together, and the first one cancels the other tasks: one failure, not six
        "expired-deployments-of-one-region",
        [
            fault("slow", "8 s", ALL, rpc={"delay": {"method": "SubmitTask", "delay": "4 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
        ],
        "pekko.ask.timeout", 3.0, rounds=2, failovers=2, observation="14 s",
        options={"heartbeat.interval": "1 s", "pekko.ask.timeout": "3 s", DELAY: "1 s"},
    ),
    Case(  # registrations at the JobMaster take it 2 s each and are repeated meanwhile. That it declares TaskManagers lost at the end of
        # the fault, 12 s too late, is no reason for the wait: they register with it then, but not before their slots time out once
        "registrations-keep-the-jobmaster-busy",
        [
            fault("kill", "1 s", SINK, **KILL),
            fault("slow", "20 s", JOBMANAGER, rpc={"delay": {"method": "RegisterAtJobMaster", "delay": "2 s"}}),
        ],
        "taskmanager.slot.timeout", 10.0, failovers=1, options=QUICK, managers={**NO_SPARE, "replaceLost": "1 s"},
        observation="25 s",
    ),
    Case(  # a replacement comes 2 s after the kill, and no answer reaches it until 18.5 s after it. TCP sends the first one again at 28.9 s.
        # Its attempt at 27.5 s is refused 1 s later, as the ResourceManager cannot connect to it: it learns that then, and pauses for 30 s
        "registration-behind-a-one-way-cut",
        [
            fault("kill", "1 s", ON_TM_0, **KILL),
            fault("cut", "17500 ms", ON_TM_0, at="1 s", plane="rpc", direction="to", network={"partition": {}}),
        ],
        "cluster.registration.refused-registration-delay", 30.0, failovers=1, managers={**NO_SPARE, "replaceLost": "2 s"},
        observation="65 s", options={**QUICK, HEARTBEAT: "60 s", ASK: "1 s"},
    ),
    Case(
        "late-slot-report",
        [
            fault("kill", "1 s", SINK, **KILL),
            fault("slow", "20 s", JOBMANAGER, rpc={"delay": {"method": "SlotReport", "delay": "3 s"}}),
        ],
        "a TaskManager to register, during the fault `slow`", 3.0, failovers=1, managers={**NO_SPARE, "replaceLost": "1 s"},
        observation="20 s", options=QUICK,
    ),
    Case(  # the ResourceManager asks again 1 s after a request has expired; the fifth one is answered when the fault ends
        "slot-requests-that-expire",
        [
            fault("slow", "15 s", ALL, rpc={"delay": {"method": "RequestSlot", "delay": "3 s"}}),
            fault("kill", "1 s", SOURCE, at="500 ms", **KILL),
        ],
        ASK, 8.0, failovers=1, options={**QUICK, ASK: "2 s"}, observation="21 s",
    ),
    Case(  # lost after 5 s, and needed as there is no other: a lower timeout would save nothing
        "held-up-beyond-the-heartbeat-timeout",
        [
            fault("slow", "20 s", {"taskManagers": {"names": ["tm-1"]}}, rpc={"delay": {"method": "CancelTask", "delay": "6 s"}}),
            fault("kill", "1 s", {"taskManagers": {"names": ["tm-0"]}}, **KILL),
        ],
        "tm-1 to handle the messages in its mailbox, during the fault `slow`", 6.0, failovers=1, options=QUICK, observation="25 s",
    ),
    Case(  # a source sends each count 50 records of 104 bytes per second: a buffer of 32 KiB is full after 6.3 s,
        # and after 6.9 s on the way to the count with fewer keys
        "no-flusher", [], "a full buffer or a checkpoint, which alone send records", 6.9, start=True, version=DRAWN_CHECKPOINTS,
        options={**QUICK, "execution.buffer-timeout.enabled": "false", "execution.checkpointing.interval": "10 min"},
    ),
    Case(  # connections are refused within a millisecond of each restart, which the strategy merges with the one before: delays of 1 s,
        # 1.5 s and 2.25 s, and three restarts
        "refused-in-the-millisecond-of-a-restart", [fault("rst", "4 s", SINK, **RESET)], f"{EXPONENTIAL}.initial-backoff", 1 + 1.5 + 2.25, rounds=3,
        failovers=3, version="1.19", options={**QUICK, "restart-strategy.type": "exponential-delay", f"{EXPONENTIAL}.jitter-factor": "0"},
    ),
    Case(  # a half-open target's own connections are refused, so that only the restart delays pass between its attempts, as in Flink
        "half-open-consumer", [fault("half", "4 s", SINK, network={"halfOpen": {}})], f"{EXPONENTIAL}.initial-backoff", 1 + 1.5 + 2.25, rounds=3,
        failovers=3, version="1.19", options={**QUICK, "restart-strategy.type": "exponential-delay", f"{EXPONENTIAL}.jitter-factor": "0"},
    ),
    Case(  # the restore had lasted for 1.1 s of 2 s
        "paused-in-a-restore",
        [
            fault("slow", "20 s", ALL, store={"slow": {"delay": "2 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
            fault("gc", "3 s", SOURCE, at="3 s", process={"pause": {}}),
        ],
        "return (paused by the fault `gc`)", 3.0, failovers=1, options=QUICK, observation="20 s",
    ),
    Case(  # the lease was last renewed 0.1 s before the fault, and the TaskManager is killed when the JobManager leads no more
        "lost-without-a-leader",
        [fault("full", "9 s", JOBMANAGER, store={"failing": {}}), fault("kill", "1 s", SINK, at="6 s", **KILL)],
        RENEW, 4.9, failovers=1, options=LEADER, managers={"replicas": 6}, observation="15 s",
    ),
    Case(  # what a stall holds back is not waiting for buffers of the receiver
        "stalled-bytes", [fault("held", "4 s", SINK, network={"stall": {}})], "end of the fault `held` (network.stall)", 4.0, failovers=0,
        options=QUICK,
    ),
    Case(  # the counts can process five of six records. Each checkpoint is triggered when the one before it has ended
        "checkpoints-expire-in-back-pressure", [fault("gc", "1 s", SINK, process={"pause": {}})],
        "execution.checkpointing.timeout", 12.0, rounds=4, observation="20 s", vertex={"serviceTime": "12 ms"},
        options={**QUICK, "execution.checkpointing.timeout": "3 s"},
    ),
    Case(  # a channel within a TaskManager asks after 6.3 and 12.7 s in every version, and counts register after 8 s, as sources do
        "late-producer-in-the-same-taskmanager",
        [fault("late", "30 s", ALL, registration={"delay": {"delay": "8 s"}}), fault("kill", "1 s", SINK, at="500 ms", **KILL)],
        "a producer to register its partition, during the fault `late`", 12.7, failovers=1, options=QUICK, version="1.19", observation="30 s",
    ),
    Case(  # only the lost source restores its state from the store; the others have a copy
        "state-of-a-producer",
        [fault("slow", "40 s", ALL, store={"slow": {"delay": "3 s"}}), fault("kill", "1 s", SOURCE, at="8 s", **KILL)],
        "a task's state, during the fault `slow`", 3.0, failovers=1, managers={"replicas": 6}, observation="45 s",
        options={**QUICK, "execution.state-recovery.from-local": "true", "execution.checkpointing.local-backup.enabled": "true"},
    ),
    Case(  # it comes 10 s after the kill, and the observation ends before that
        "replacement-after-the-observation", [fault("kill", "1 s", SINK, at="7 s", **KILL)], "replaceLost", 5.0, failovers=1, options=QUICK,
        managers={**NO_SPARE, "replaceLost": "10 s"},
    ),
    Case(  # submissions keep two TaskManagers from the heartbeats of the JobManager, which they give up. They register again at 21.1 s, while
        # they handle one more submission, and are refused as they do not answer
        "refused-by-a-taskmanager-that-was-busy", BUSY_SUBMISSIONS, "cluster.registration.refused-registration-delay", 30.0, rounds=3,
        failovers=3, version="1.13", options={**QUICK, "akka.ask.timeout": "3 s", DELAY: "1 s"}, observation="53 s",
    ),
    Case(
        "refused-at-the-end-of-the-observation", BUSY_SUBMISSIONS, "cluster.registration.refused-registration-delay", 23.0, rounds=3,
        failovers=3, version="1.13", options={**QUICK, "akka.ask.timeout": "3 s", DELAY: "1 s"}, observation="40 s",
    ),
    Case(  # the lease expires in the pause, which ends a restart delay
        "leadership-lost-in-a-restart-delay",
        [fault("kill", "1 s", SINK, **KILL), fault("gc", "8 s", JOBMANAGER, at="3 s", jobmanager={"pause": {}})],
        "the JobManager's return (paused by the fault `gc`)", 8.0, rounds=2, failovers=2, options={**LEADER, DELAY: "5 s"}, observation="17 s",
    ),
    Case(  # the first slow renewal begins at 12 s and is in time, the second one ends with the fault. The job runs meanwhile
        "leadership-lost-to-a-slow-store", [fault("slow", "12 s", JOBMANAGER, store={"slow": {"delay": "7 s"}})], RENEW, 5.1, failovers=1,
        options=LEADER, observation="19 s",
    ),
    Case(  # tm-5 runs no task: it does not matter that its pause ends 2 ms after the first record, or 6 ms before the restart delay
        "unused-one-paused-to-the-first-record", [fault("gc", "1953 ms", ON_TM_5, process={"pause": {}}), fault("kill", "1 s", ON_TM_2, **KILL)],
        REACHABILITY, DETECTION_S, failovers=1, options=QUICK, managers={"replicas": 6},
    ),
    Case(
        "unused-one-paused-in-a-restart-delay", [fault("gc", "4895 ms", ON_TM_5, process={"pause": {}}), fault("kill", "1 s", ON_TM_2, **KILL)],
        DELAY, 3.0, failovers=1, options={**QUICK, HEARTBEAT: "6 s", DELAY: "3 s"}, managers={"replicas": 6},
    ),
    Case(  # the stall hides that it is gone. Calls to it fail from 11 s on, 0.9 s after the stall
        "killed-behind-a-stall",
        [
            fault("st", "6 s", ON_TM_2, plane="both", network={"stall": {}}),
            fault("kill", "1 s", ON_TM_2, at="2 s", **KILL),
        ],
        "end of the fault `st` (network.stall)", 5.9, failovers=1, options={**QUICK, HEARTBEAT: "60 s"}, observation="20 s",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_answer_names_what_happened(case: Case, tmp_path: Path):
    """The owner of the largest share is the option or cause that is known beforehand."""
    check_answer(case, tmp_path)


def test_the_delay_in_which_a_jobmanager_was_killed_is_the_one_in_force(tmp_path: Path):
    """Requests for partitions expire twice, so the third restart waits for 4 s. The JobManager is killed 0.7 s after it began."""
    faults = [
        fault("late", "10 s", ALL, registration={"delay": {"delay": "20 s"}}),
        fault("kill", "1 s", SOURCE, at="500 ms", **KILL),
        fault("jm", "2 s", JOBMANAGER, at="7 s", jobmanager={"kill": {}}),
    ]
    options = {
        **QUICK, "restart-strategy.type": "exponential-delay", f"{EXPONENTIAL}.initial-backoff": "1 s",
        f"{EXPONENTIAL}.backoff-multiplier": "2.0", f"{EXPONENTIAL}.jitter-factor": "0.0",
        "taskmanager.network.request-backoff.max": "500 ms", "taskmanager.network.partition-request-timeout": "500 ms",
    }  # fmt: skip
    case = Case("lost-delay", faults, "", 0.0, options=options, version="1.20", observation="40 s")
    trial, _ = answer(case, tmp_path)
    found = max(trial.recoveries, key=lambda r: r.total_s)
    check_sums(found)
    owned = {p.text: round(p.seconds, 1) for p in found.prices}
    assert owned[f"{EXPONENTIAL}.initial-backoff = 1 s, now 2 s"] == 2.0
    assert 0 < owned[f"{EXPONENTIAL}.initial-backoff = 1 s, now 4 s"] < 2.0


def test_attempts_that_are_spent_at_once_are_the_answer(tmp_path: Path):
    """Connections are reset for 5 s, and the restarts do not wait for anything."""
    case = Case("spent", [fault("rst", "5 s", SINK, **RESET)], "", 0.0, options=QUICK)
    trial, metrics = answer(case, tmp_path)
    (found,) = trial.recoveries
    text = "after 20 restarts (restart-strategy.fixed-delay.attempts = 20 allows no more restarts)"
    assert text in headline(found)
    assert found.total_s < 0.1
    assert found.prices[0].words == "restarts that failed at once"
    assert metrics["failovers.count"] == 20


def test_a_failure_in_the_millisecond_of_a_restart_leaves_a_sound_history(tmp_path: Path):
    """Exponential delays count in milliseconds, and a refused connection fails within one of them."""
    options = {**QUICK, "restart-strategy.type": "exponential-delay", f"{EXPONENTIAL}.jitter-factor": "0"}
    case = Case(
        "same-millisecond", [fault("rst", "3 s", SINK, **RESET)], "", 0.0, options=options, version="1.20"
    )
    trial, _ = answer(case, tmp_path)
    (found,) = trial.recoveries
    assert found.recovered
    assert sum(p.seconds for p in found.prices if p.option == f"{EXPONENTIAL}.initial-backoff") > 3


def test_a_taskmanager_that_cannot_register_again_leaves_a_sound_history(tmp_path: Path):
    """It had given the ResourceManager up, and terminates itself when its registration has taken too long."""
    faults = [
        fault("kill", "1 s", SINK, **KILL),
        fault("slow", "30 s", JOBMANAGER, rpc={"delay": {"method": "RegisterTaskManager", "delay": "1 s"}}),
    ]
    key = "taskmanager.registration.timeout"
    options = {**QUICK, key: "6 s", "cluster.registration.max-timeout": "400 ms"}
    managers = {**NO_SPARE, "replaceLost": "1 s"}
    case = Case(
        "given-up", faults, "", 0.0, options=options, managers=managers, version="1.17", observation="60 s"
    )
    trial, _ = answer(case, tmp_path)
    longest = max(trial.recoveries, key=lambda r: r.total_s)
    assert longest.prices[0].option == key


def test_a_job_has_not_caught_up_while_an_input_is_missing(tmp_path: Path):
    """The sink gets the records of one source; the other one registers its partition 9 s late. In 1.14 its consumers ask for it after
    0.1, 0.3, …, 6.3 and 12.7 s."""
    faults = [
        fault("late", "30 s", ALL, registration={"delay": {"delay": "9 s", "vertex": "other"}}),
        fault("kill", "1 s", SINK, at="500 ms", **KILL),
    ]
    found = document(Case("union", faults, "", 0.0, options=QUICK, version="1.14", observation="30 s"))
    job = found["spec"]["testbed"]["job"]
    other = {"name": "other", "parallelism": 1, "slotSharingGroup": "src2"}
    job["vertices"].append(other | {"source": {"recordsPerSecond": 100, "recordBytes": 100, "keys": 100}})
    job["edges"].append({"from": "other", "to": "count", "partitioning": "hash"})
    found["spec"]["testbed"]["taskManagers"]["replicas"] = 6
    (recovery,) = run(found, tmp_path).recoveries
    check_sums(recovery)
    first = recovery.prices[0]
    assert first.words == "a producer to register its partition, during the fault `late`"
    assert first.seconds == pytest.approx(12.7, abs=TOLERANCE_S)


def test_a_taskmanager_that_was_killed_in_a_pause_is_lost_after_two_more_heartbeats(tmp_path: Path):
    """Messages that were sent in the pause are lost with its connection, which Flink's JobManager does not notice."""
    faults = [
        fault("gc", "6 s", ON_TM_2, process={"pause": {}}),
        fault("kill", "1 s", ON_TM_2, at="3 s", **KILL),
    ]
    case = Case(
        "killed-in-a-pause", faults, "", 0.0, options={**QUICK, HEARTBEAT: "60 s"}, observation="20 s"
    )
    (found,) = run(document(case), tmp_path).recoveries
    assert owners(found, 0)["stalled"] == pytest.approx(3.0, abs=TOLERANCE_S)
    assert owners(found, 0)["heartbeat"] == pytest.approx(DETECTION_S, abs=TOLERANCE_S)


@pytest.mark.parametrize(
    ("ask", "first", "second"),
    [
        ("10 s", {"heartbeat": DETECTION_S + LATER_S, "deployment": 0.55}, {}),
        ("1 s", {"heartbeat": DETECTION_S, "deployment": 1.0}, {"fencing": 0.95}),
    ],
)
def test_a_deployment_that_was_lost_with_its_taskmanager_waits_for_the_first_limit(
    ask: str, first: dict[str, float], second: dict[str, float], tmp_path: Path
):
    """SubmitTask waits in the mailbox of a TaskManager that is killed 0.5 s later. No answer tells the JobMaster: its heartbeats do, or
    `pekko.ask.timeout`."""
    spare = {"taskManagers": {"names": ["tm-4"]}}
    faults = [
        fault("slow", "20 s", spare, rpc={"delay": {"method": "SubmitTask", "delay": "5 s"}}),
        fault("kill", "1 s", SINK, **KILL),
        fault("again", "1 s", spare, at="2500 ms", **KILL),
    ]
    options = {**QUICK, HEARTBEAT: "60 s", ASK: ask}
    case = Case("deployed", faults, "", 0.0, options=options, managers={"replicas": 6}, observation="20 s")
    (found,) = run(document(case), tmp_path).recoveries
    for number, expected in enumerate((first, second)):
        large = {kind: seconds for kind, seconds in owners(found, number).items() if seconds > 0.25}
        assert large == pytest.approx(expected, abs=TOLERANCE_S)


@pytest.mark.parametrize(("killed", "total_s"), [("500 ms", LATER_S), ("0 s", DETECTION_S)])
def test_a_window_that_ends_in_time_cost_nothing(killed: str, total_s: float, tmp_path: Path):
    """Windows of 7 s: killed at 18.1 or 18.6 s, the job runs again at 20 s, and the window until 21 s gives its result in time."""
    found = document(
        Case("windowed", [fault("kill", "1 s", SINK, at=killed, **KILL)], "", 0.0, options=QUICK)
    )
    found["spec"]["testbed"]["job"]["vertices"][1] |= {"operator": "window", "window": "7 s"}
    found["spec"]["timeline"] |= {"warmUp": "2 s", "baseline": "16 s"}
    (recovery,) = run(found, tmp_path).recoveries
    check_sums(recovery)
    assert recovery.recovered
    assert recovery.total_s == pytest.approx(total_s, abs=0.2)
    assert recovery.downtime_s == pytest.approx(total_s, abs=TOLERANCE_S)


def test_an_outage_in_a_start_begins_with_its_fault(tmp_path: Path):
    """An iteration has no result before its last superstep, so the job has not started when one of its TaskManagers is paused for 3 s."""
    pause = fault(
        "gc", "3 s", {"taskManagers": {"running": "work", "mode": "one"}}, at="1 s", process={"pause": {}}
    )
    found = document(
        Case("paused-iteration", [pause], "", 0.0, options=QUICK, version="1.20", observation="40 s")
    )
    del found["spec"]["testbed"]["flinkConfiguration"]["execution.checkpointing.interval"]
    found["spec"]["timeline"] |= {"warmUp": "1 s", "baseline": "2 s", "drain": "60 s"}
    found["spec"]["testbed"]["taskManagers"]["replicas"] = 6
    source = {"recordsPerSecond": 1000, "recordBytes": 100, "keys": 1000, "limit": 1000}
    both, apart = {"parallelism": 2, "slotSharingGroup": "a"}, {"parallelism": 2, "slotSharingGroup": "b"}
    found["spec"]["testbed"]["job"] = {
        "vertices": [
            {"name": "source", **both, "source": source},
            {"name": "loop", **both, "iteration": {"maxIterations": 6}},
            {"name": "work", **apart, "operator": "map", "serviceTime": "2 ms"},
            {"name": "back", **both, "operator": "map"},
            {"name": "sink", "parallelism": 1, "slotSharingGroup": "c", "sink": "ledger"},
        ],
        "edges": [
            {"from": "source", "to": "loop", "partitioning": "hash"},
            {"from": "loop", "to": "work", "partitioning": "hash"},
            {"from": "work", "to": "back", "partitioning": "rebalance"},
            {"from": "back", "to": "loop", "feedback": True},
            {"from": "loop", "to": "sink", "partitioning": "hash"},
        ],
    }
    (recovery,) = run(found, tmp_path).recoveries
    check_sums(recovery)
    assert recovery.effect_ns / 1e9 % 1 == pytest.approx(FAULT_S % 1, abs=0.02)
    owned = {p.kind: p.seconds for p in recovery.prices}
    assert owned["stalled"] == pytest.approx(3.0, abs=TOLERANCE_S)
    assert owned["iteration"] < 3.0


def test_a_result_of_which_no_sample_was_left_is_not_waited_for(tmp_path: Path):
    """It was killed 0.1 s after the window until 16 s had ended, so no sample shows its result. That until 20 s comes in time, so
    nothing was missing when the job ran again."""
    kill = fault("kill", "1 s", {"taskManagers": {"running": "hourly", "mode": "one"}}, **KILL)
    found = document(Case("beside", [kill], "", 0.0, options=QUICK))
    job = found["spec"]["testbed"]["job"]
    own = {"parallelism": 1, "slotSharingGroup": "own"}
    job["vertices"].append({"name": "hourly", **own, "operator": "window", "window": "4 s"})
    job["vertices"].append({"name": "report", **own, "sink": "ledger"})
    job["edges"].append({"from": "source", "to": "hourly", "partitioning": "hash"})
    job["edges"].append({"from": "hourly", "to": "report", "partitioning": "forward"})
    found["spec"]["testbed"]["taskManagers"]["replicas"] = 6
    found["spec"]["timeline"] |= {"warmUp": "5 s", "baseline": "11 s"}
    (recovery,) = run(found, tmp_path).recoveries
    check_sums(recovery)
    assert recovery.downtime_s == pytest.approx(DETECTION_S, abs=TOLERANCE_S)
    assert recovery.total_s == pytest.approx(DETECTION_S, abs=0.3)


@pytest.mark.parametrize("rate", [1, 2])
def test_a_sink_that_gets_records_rarely_has_caught_up_before_its_next_one(rate: int, tmp_path: Path):
    """The records that were due in the outage arrive when the job runs again; the next one comes in time, up to a second later."""
    found = document(Case("rare", [fault("kill", "1 s", SINK, **KILL)], "", 0.0, options=QUICK))
    found["spec"]["testbed"]["job"]["vertices"][0]["source"]["recordsPerSecond"] = rate
    (recovery,) = run(found, tmp_path).recoveries
    check_sums(recovery)
    assert recovery.recovered
    assert recovery.total_s == pytest.approx(DETECTION_S, abs=0.2)


def test_the_phases_of_a_checkpoint_that_expires_add_up(tmp_path: Path):
    """It is triggered 1.9 s after the store has become slow, and expires 3 s later. The outage begins with it. The state takes 4 s."""
    slow = fault("slow", "9 s", ALL, store={"slow": {"delay": "4 s"}})
    options = {**QUICK, "execution.checkpointing.timeout": "3 s"}
    _, metrics = answer(Case("expired-checkpoint", [slow], "", 0.0, options=options), tmp_path)
    assert metrics["recovery.detect"] == pytest.approx(3.0, abs=TOLERANCE_S)
    phases = [metrics[f"recovery.{name}"] for name in RECOVERY_PHASES[:-1]]
    assert sum(phases) == pytest.approx(metrics["recovery.total"], abs=1e-6)


@pytest.mark.parametrize(("kind", "stops"), [("process.pause", True), ("frames.withholdCredit", False)])
def test_a_fault_that_stops_a_task_in_the_catch_up_has_its_seconds(kind: str, stops: bool, tmp_path: Path):
    """The counts process 125 records per second of 100. The fault begins when the job has run again for 0.4 s. Without new credit,
    they work on what their buffers have."""
    family, _, name = kind.partition(".")
    faults = [
        fault("kill", "1 s", SOURCE, **KILL),
        fault("gc", "3 s", SINK, at="4 s", **{family: {name: {}}}),
    ]
    case = Case(
        "stopped", faults, "", 0.0, options=QUICK, managers={"replicas": 6}, observation="60 s", vertex={"serviceTime": "8 ms"}
    )  # fmt: skip
    trial, _ = answer(case, tmp_path)
    (found,) = trial.recoveries
    check_sums(found)
    owned = {p.words: p.seconds for p in found.prices}
    stopped = sum(seconds for text, seconds in owned.items() if text.startswith("end of the fault `gc`"))
    assert stopped == pytest.approx(3.0 if stops else 0.0, abs=TOLERANCE_S)
    assert (
        sum(seconds for text, seconds in owned.items() if text.startswith("spare capacity of `count`")) > 10
    )


def test_a_connection_is_waited_for_since_its_fault(tmp_path: Path):
    """The counts are behind, so they had received nothing for 1.3 s when connections were reset. They worked, and waited for no bytes."""
    faults = [fault("kill", "1 s", SOURCE, **KILL), fault("rst", "1 s", SINK, at="5200 ms", **RESET)]
    case = Case(
        "reset", faults, "", 0.0, options={**QUICK, DELAY: "2 s"}, managers={"replicas": 7}, observation="60 s",
        vertex={"serviceTime": "8 ms"}, version=DRAWN_CHECKPOINTS,
    )  # fmt: skip
    trial, _ = answer(case, tmp_path)
    (found,) = trial.recoveries
    check_sums(found)
    first = owners(found, 0)
    assert first["connection"] == pytest.approx(0.1, abs=TOLERANCE_S)
    assert first["catch-up"] > 1


def test_a_lost_leadership_stops_the_job_until_the_next_leader(tmp_path: Path):
    """The job recovers from a kill 4.05 s after the store fails, and the lease is lost 0.85 s later, 5 s after its last renewal. The next leader
    reports that after the fault."""
    faults = [
        fault("full", "7 s", JOBMANAGER, store={"failing": {}}),
        fault("kill", "1 s", SINK, at="2 s", **KILL),
    ]
    case = Case("revoked", faults, "", 0.0, options=LEADER, managers={"replicas": 6}, observation="25 s")
    trial, _ = answer(case, tmp_path)
    first, second = trial.recoveries
    assert (first.fault, second.fault) == ("kill", "full")
    assert second.total_s == pytest.approx(7 - 4.05, abs=0.3)
    assert (second.prices[0].kind, second.prices[0].fault) == ("leadership", "full")
    assert second.prices[0].seconds == pytest.approx(7 - 4.9, abs=TOLERANCE_S)
    assert (second.prices[1].option, second.prices[1].seconds) == (
        RENEW,
        pytest.approx(0.85, abs=TOLERANCE_S),
    )


def test_functions_that_open_last_over_a_failure_that_is_noticed_before_they_end(tmp_path: Path):
    """They open from 2 s after the kill on, for 3 s, in which their TaskManagers cannot cancel them. The loss that is noticed 50 ms before their
    end could be noticed a second sooner, and the restart would still wait for them."""
    faults = [fault("kill", "1 s", SINK, **KILL), fault("two", "1 s", SOURCE, at="3500 ms", **KILL)]
    case = Case(
        "opening", faults, "", 0.0, options=QUICK, managers={"replicas": 6}, observation="30 s",
        vertex={"operator": "python", "function": "slow.py:keep"},
    )  # fmt: skip
    trial, _ = answer(case, tmp_path)
    (found,) = trial.recoveries
    check_sums(found)
    first = owners(found, 0)
    assert first["open"] == pytest.approx(2.95, abs=TOLERANCE_S)
    assert first["deployment"] < 0.01


def test_a_fault_behind_requests_that_expired_is_named(tmp_path: Path):
    """Late registrations cost nothing before the kill, and then each restart."""
    faults = [
        fault("late", "20 s", ALL, registration={"delay": {"delay": "30 s"}}),
        fault("kill", "1 s", SOURCE, at="500 ms", **KILL),
    ]
    options = {
        **QUICK,
        "taskmanager.network.request-backoff.max": "1 s",
        "restart-strategy.fixed-delay.attempts": "2",
    }
    case = Case("blamed", faults, "", 0.0, options=options, version="1.17", observation="25 s")
    trial, _ = answer(case, tmp_path)
    (found,) = trial.recoveries
    assert found.faults == ("kill", "late")
    assert "the job failed" in headline(found)


def test_a_job_whose_credit_was_lost_does_not_wait_for_capacity(tmp_path: Path):
    """AddCredit frames vanish for 3 s, and no receiver sends them again: some channels stand still, and the others go on."""
    drop = fault("drop", "3 s", SINK, frames={"drop": {"frameClass": "credit", "percent": 100}})
    trial, _ = answer(Case("lost-credit", [drop], "", 0.0, options=QUICK, version="1.20"), tmp_path)
    (found,) = trial.recoveries
    check_sums(found)
    assert not found.recovered
    assert found.prices[0].words.startswith("too little credit: source-")
    assert found.prices[0].seconds == pytest.approx(12 - 3, abs=0.5)


def test_restarts_while_connections_are_refused_save_what_comes_after_the_fault(tmp_path: Path):
    """Connections are reset for 3.5 s, in which one restart fails. The second one comes 4 s after the failure."""
    case = Case("refused", [fault("rst", "3500 ms", SINK, **RESET)], "", 0.0, options={**QUICK, DELAY: "2 s"})
    trial, _ = answer(case, tmp_path)
    (found,) = trial.recoveries
    assert found.prices[0].seconds == pytest.approx(4.0, abs=TOLERANCE_S)
    (line,) = savings(found)
    assert line.startswith(f"{DELAY} = 2 s: a lower value saves at most 50")
    assert line.endswith(" ms, then the job waits for the end of the fault `rst`")


def test_a_lower_heartbeat_timeout_lets_taskmanagers_register_sooner(tmp_path: Path):
    """They hear nothing from 4 s after the first kill on, and the JobManager is back 3 s later, when a replacement comes too: it tries to register
    every 0.5 s."""
    faults = [
        fault("kill", "1 s", SINK, **KILL),
        fault("jm", "3 s", JOBMANAGER, at="4 s", jobmanager={"kill": {}}),
    ]
    managers = {**NO_SPARE, "replaceLost": "6 s"}
    case = Case("sooner", faults, "", 0.0, options=QUICK, managers=managers, observation="30 s")
    trial, _ = answer(case, tmp_path)
    (found,) = trial.recoveries
    (line,) = savings(found)
    assert (
        line
        == f"{HEARTBEAT} = 5 s: a lower value saves at most 1.40 s, then the job waits for a TaskManager to register"
    )
