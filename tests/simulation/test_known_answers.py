"""Known answers: real shells in virtual time, each case with one cause whose seconds are known beforehand.

For each: the rounds, the owner of the largest share, its seconds within 0.1 s of the truth, margins, and a total that adds up.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed_runtime.taskmanager.stream import StreamTask
from tests.simulation.knownanswers import (
    ALL,
    ASK,
    BACKOFF,
    DELAY,
    DETECTION_S,
    DRAWN_CHECKPOINTS,
    FAULT_S,
    HEARTBEAT,
    JOBMANAGER,
    KILL,
    LATE_10,
    LATER_S,
    LEADER,
    LEASE,
    NO_SPARE,
    QUICK,
    REACHABILITY,
    RENEW,
    SINK,
    SLOT,
    SOURCE,
    TOLERANCE_S,
    TOLERATED_S,
    Case,
    answer,
    check_answer,
    check_sums,
    fault,
    hanging,
    owners,
)

pytestmark = pytest.mark.virtual


CASES = [
    Case(
        "three-spent-request-budgets",
        [
            fault("late", "79 s", ALL, registration={"delay": {"delay": "25 s"}}),
            fault("kill", "1 s", SOURCE, at="500 ms", **KILL),
        ],
        BACKOFF, 3 * 22.7, rounds=4, failovers=4, version="1.12", managers={"replicas": 4, "replaceLost": "10 s"},
        observation="85 s",
    ),
    Case("kill-consumer", [fault("kill", "1 s", SINK, **KILL)], REACHABILITY, 1.9, failovers=1, options=QUICK),
    Case("kill-producer", [fault("kill", "1 s", SOURCE, **KILL)], REACHABILITY, 1.9, failovers=1, options=QUICK),
    Case(
        "pause-below-the-timeout", [fault("gc", "3 s", SINK, process={"pause": {}})], "end of the fault `gc`", 3.0,
        failovers=0, options=QUICK,
    ),
    Case(
        "pause-above-the-timeout", [fault("gc", "8 s", SINK, process={"pause": {}})], HEARTBEAT, 4.9, failovers=1,
        options=QUICK,
    ),
    Case(
        "heartbeats-muted", [fault("mute", "8 s", SINK, heartbeats={"mute": {"direction": "response"}})], HEARTBEAT, 4.9, failovers=1,
        options=QUICK,
    ),
    Case(
        "late-producer-within-the-old-budget", [LATE_10, fault("kill", "1 s", SOURCE, at="500 ms", **KILL)],
        "during the fault `late`", 12.7, failovers=1, version="1.12", options=QUICK, margin=(BACKOFF, 12.7),
        observation="30 s",
    ),
    Case(
        "late-producer-within-the-new-budget", [LATE_10, fault("kill", "1 s", SOURCE, at="500 ms", **KILL)],
        "during the fault `late`", 10.0, failovers=1, options=QUICK, margin=(BACKOFF, 10.0), observation="30 s",
    ),
    Case(
        "late-producer-beyond-the-new-budget",
        [
            fault("late", "40 s", ALL, registration={"delay": {"delay": "60 s", "vertex": "source"}}),
            fault("kill", "1 s", SOURCE, at="500 ms", **KILL),
        ],
        # requests wait at the producer, whose checker runs every 10 s and expires what is older than 10 s: the request of
        # 6.0 s (4.1 + 0.5 + 1.4) at 20 s, and its repetition at the second tick after that
        BACKOFF, (20 - (FAULT_S + 0.5 + LATER_S)) + 2 * 10, rounds=2, failovers=2, options=QUICK, observation="46 s",
    ),
    Case(
        "restart-delay", [fault("kill", "1 s", SINK, **KILL)], DELAY, 10.0, failovers=1,
        options={**QUICK, DELAY: "10 s"}, observation="20 s",
    ),
    Case(  # 2 s and 4 s: both grow from the option's value
        "exponential-delay",
        [
            fault("late", "10 s", ALL, registration={"delay": {"delay": "20 s"}}),
            fault("kill", "1 s", SOURCE, at="500 ms", **KILL),
        ],
        "restart-strategy.exponential-delay.initial-backoff", 2 + 4, rounds=3, failovers=3, version="1.20", value="1 s, now up to 4 s",
        options={
            **QUICK, "restart-strategy.type": "exponential-delay",
            "restart-strategy.exponential-delay.initial-backoff": "1 s",
            "restart-strategy.exponential-delay.backoff-multiplier": "2.0",
            "restart-strategy.exponential-delay.jitter-factor": "0.0", BACKOFF: "500 ms",
            "taskmanager.network.partition-request-timeout": "500 ms",
        },
        observation="16 s",
    ),
    Case(
        # two requests expire after 10 s; the third is open at the end of the observation, which begins with the kill
        "no-spare-slot", [fault("kill", "1 s", SINK, **KILL)], SLOT, 10 + 10 + (25 - 20 - DETECTION_S), rounds=3,
        options={**QUICK, SLOT: "10 s"}, managers=NO_SPARE, observation="25 s",
    ),
    Case(
        "replacement", [fault("kill", "1 s", SINK, **KILL)], "replaceLost", 10.0, failovers=1,
        options=QUICK, managers={**NO_SPARE, "replaceLost": "10 s"}, observation="16 s",
        margin=(SLOT, 10 - DETECTION_S),
    ),
    Case(
        "late-registration",
        [
            fault("kill", "1 s", SINK, **KILL),
            fault("slow", "20 s", JOBMANAGER, rpc={"delay": {"method": "RegisterTaskManager", "delay": "3 s"}}),
        ],
        "register", 3.0, failovers=1, managers={**NO_SPARE, "replaceLost": "1 s"}, observation="20 s",
        options={**QUICK, "cluster.registration.initial-timeout": "30 s"},
    ),
    Case(
        "slow-deployment-within-the-ask-timeout",
        [
            fault("slow", "20 s", ALL, rpc={"delay": {"method": "SubmitTask", "delay": "2 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
        ],
        "during the fault `slow`", 4.0, failovers=1, options={"heartbeat.interval": "1 s"}, margin=(ASK, 4.0),
        observation="20 s",
    ),
    Case(
        "slow-deployment-beyond-the-ask-timeout",
        [
            fault("slow", "5 s", ALL, rpc={"delay": {"method": "SubmitTask", "delay": "4 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
        ],
        ASK, 3.0, rounds=2, options={"heartbeat.interval": "1 s", ASK: "3 s"}, observation="11 s",
    ),
    Case(  # among its messages are the disconnection that the ResourceManager relays, the connection to the TaskManager that registers
        # and the heartbeats of all TaskManagers, an interval after the JobMaster got to the last ones
        "busy-jobmanager", [fault("kill", "1 s", SINK, **KILL)], "headgate.jobmanager.service-time", 5.22, failovers=1,
        options={**QUICK, "headgate.jobmanager.service-time": "100 ms"}, observation="12 s",
    ),
    Case(  # each report of a task that was cancelled keeps the JobManager busy for 4 s, so all asks expire after 3 s. It
        # processes the reports nevertheless: the last ones when the fault ends, 8 s after it began
        "busy-jobmanager-beyond-the-ask-timeout",
        [
            fault("slow", "8 s", JOBMANAGER, rpc={"delay": {"method": "UpdateTaskExecutionState", "delay": "4 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
        ],
        "during the fault `slow`", 8 - 0.5 - LATER_S, failovers=1, options={"heartbeat.interval": "1 s", ASK: "3 s"}, observation="14 s",
    ),
    Case(
        "slow-open", [fault("kill", "1 s", SINK, **KILL)], "the functions of a task to open", 3.0, failovers=1,
        options=QUICK, observation="11 s", vertex={"operator": "python", "function": "slow.py:keep"},
    ),
    Case(  # a round trip takes 400 ms, and in it a gate takes 1 KiB of each channel and 1 KiB more: sources offer 10 KB/s. What was
        # sent last arrives 0.2 s after the fault
        "latency-with-starved-credit",
        [fault("far", "10 s", ALL, network={"latency": {"delay": "200 ms", "mode": "one-way"}})],
        ": taskmanager.network.memory.buffers-per-channel = 1", 10.2, failovers=0,
        observation="16 s",
        options={
            **QUICK, "taskmanager.memory.segment-size": "1 kb", "taskmanager.memory.min-segment-size": "256 b",
            "taskmanager.network.memory.buffers-per-channel": "1",
            "taskmanager.network.memory.floating-buffers-per-gate": "1",
        },
    ),
    Case(
        "slow-store",
        [
            fault("slow", "20 s", ALL, store={"slow": {"delay": "3 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
        ],
        # a read takes 3 s, and each subtask reads its own state, all at the same time
        "during the fault `slow`", 3.0, failovers=1, options=QUICK, observation="20 s",
    ),
    Case(  # the producer registers its partition before it reads its state
        "late-registration-and-slow-store",
        [
            fault("slow", "30 s", ALL, store={"slow": {"delay": "2 s"}}),
            fault("late", "30 s", ALL, registration={"delay": {"delay": "7 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
        ],
        "during the fault `late`", 7.0, failovers=1, version="1.14", options=QUICK, observation="35 s",
    ),
    Case(  # in 1.18 the partition is found at once, but the request arrives 3 s later
        "slow-partition-requests",
        [
            fault("slow", "20 s", ALL, frames={"delay": {"frameClass": "request", "delay": "3 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
        ],
        "during the fault `slow`", 3.0, failovers=1, version="1.18", options=QUICK, observation="25 s",
    ),
    Case(
        "slow-reports-to-the-jobmanager",
        [
            fault("slow", "20 s", JOBMANAGER, rpc={"delay": {"method": "UpdateTaskExecutionState", "delay": "1 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
        ],
        # afterwards, 12 reports of six tasks that start wait for each other for 12 s: longer than the default ask timeout
        "during the fault `slow`", 4.0, failovers=1, options={"heartbeat.interval": "1 s", ASK: "30 s"}, observation="25 s",
    ),
    Case(
        "failing-store",
        [
            fault("full", "9 s", ALL, store={"failing": {}}),
            fault("kill", "1 s", SINK, at="8 s", **KILL),
        ],
        # checkpoint 2 is 9.6 s old at the kill. 100 records/s arrive at each count, which processes 200. The catch-up begins
        # with the first new record
        "s of it replayed)", (9.6 + DETECTION_S - TOLERATED_S) * 100 / (200 - 100), failovers=1, observation="27 s",
        vertex={"serviceTime": "5 ms"}, version=DRAWN_CHECKPOINTS,
        options={**QUICK, "execution.checkpointing.tolerable-failed-checkpoints": "100"}, tolerance=0.3,
    ),
    Case(
        "jobmanager-paused-below-the-timeout", [fault("gc", "3 s", JOBMANAGER, jobmanager={"pause": {}})], "", 0.0,
        failovers=0, options=QUICK,
    ),
    Case(
        "jobmanager-paused-above-the-timeout", [fault("gc", "8 s", JOBMANAGER, jobmanager={"pause": {}})],
        "the JobManager's return (paused", 8.0, options=QUICK, observation="14 s",
    ),
    Case(
        "jobmanager-killed", [fault("kill", "8 s", JOBMANAGER, jobmanager={"kill": {}})], "the JobManager's return (killed",
        8.0, failovers=1, options=QUICK, observation="14 s",
    ),
    Case(  # the delay would have lasted until 11.9 s after the kill: the JobManager was killed 6 s after it
        "jobmanager-killed-in-a-restart-delay",
        [fault("kill", "1 s", SINK, **KILL), fault("jm", "2 s", JOBMANAGER, at="6 s", jobmanager={"kill": {}})],
        "restart-strategy.fixed-delay.delay = 10 s", 6 - DETECTION_S, rounds=2, failovers=2,
        options={**QUICK, DELAY: "10 s"}, observation="17 s",
    ),
    Case(
        "leadership-kept-in-a-pause", [fault("gc", "3 s", JOBMANAGER, jobmanager={"pause": {}})], "", 0.0,
        failovers=0, options=LEADER,
    ),
    Case(  # the lease expired 4.9 s after the pause began, but only the end of the pause lets the JobManager notice
        "leadership-lost-in-a-pause", [fault("gc", "8 s", JOBMANAGER, jobmanager={"pause": {}})],
        "the JobManager's return (paused", 8.0, failovers=1, options=LEADER, observation="14 s",
    ),
    Case(  # the TaskManagers hear heartbeats all the time
        "leadership-lost-to-the-store", [fault("full", "6 s", JOBMANAGER, store={"failing": {}})], RENEW, 4.9,
        failovers=1, options=LEADER, observation="13 s",
    ),
    Case(  # the next JobManager starts 2 s after the kill, and waits until the lease is 15 s old
        "lease-of-a-killed-jobmanager", [fault("kill", "2 s", JOBMANAGER, jobmanager={"kill": {}})], LEASE,
        15 - 0.1 - 2, failovers=1, options=LEADER, observation="22 s",
    ),
    Case(
        "slow-cancellation",
        [
            fault("slow", "10 s", ALL, rpc={"delay": {"method": "CancelTask", "delay": "2 s"}}),
            fault("kill", "1 s", SINK, at="500 ms", **KILL),
        ],
        "during the fault `slow`", 4.0, failovers=1, options={"heartbeat.interval": "1 s"}, observation="15 s",
    ),
    Case(  # its TaskManager terminates itself after 4 s, and is then detected like any other that is gone
        "hanging-cancellation", [fault("kill", "1 s", SOURCE, **KILL)], "task.cancellation.timeout", 4.0, failovers=1,
        options={**QUICK, "task.cancellation.timeout": "4 s"}, managers={"replicas": 6}, observation="12 s", hangs=True,
    ),
    Case(  # the TaskManager that terminated is replaced before its loss is noticed
        "hanging-cancellation-and-replacement", [fault("kill", "1 s", SOURCE, **KILL)], "task.cancellation.timeout", 4.0, failovers=1,
        options={**QUICK, "task.cancellation.timeout": "4 s"}, managers={"replicas": 5, "replaceLost": "1 s"}, observation="11 s", hangs=True,
    ),
    Case(  # without a limit it hangs until the observation ends
        "endless-cancellation", [fault("kill", "1 s", SOURCE, **KILL)], "the tasks of the region to terminate", 12.0, failovers=1,
        options={**QUICK, "task.cancellation.timeout": "0"}, managers={"replicas": 6}, hangs=True,
    ),
    Case(  # the checkpoint is 1.6 s old at the kill; 100 records/s arrive at each count, which processes 1/8 ms = 125.
        # The catch-up begins with the first new record
        "catch-up", [fault("kill", "1 s", SINK, **KILL)], "spare capacity of `count`",
        (1.6 + DETECTION_S - TOLERATED_S) * 100 / (1 / 0.008 - 100), failovers=1, options=QUICK,
        observation="21 s", vertex={"serviceTime": "8 ms"}, tolerance=0.2, version=DRAWN_CHECKPOINTS,
    ),
    Case(  # a few records do not fill a buffer, and all flushers wake at once: one interval, not one per hop
        "buffer-timeout", [], "execution.buffer-timeout.interval", 5.0, start=True, version=DRAWN_CHECKPOINTS,
        options={
            **QUICK, "execution.buffer-timeout.interval": "5 s", "execution.checkpointing.interval": "10 min",
        },
    ),
    Case(
        "two-failovers-in-a-row",
        [fault("one", "1 s", SINK, **KILL), fault("two", "1 s", SOURCE, at="8 s", **KILL)],
        REACHABILITY, 1.9, failovers=2, options=QUICK, managers={"replicas": 6}, observation="16 s",
    ),
    Case(
        "two-overlapping-faults",
        [fault("one", "1 s", SINK, **KILL), fault("two", "1 s", SOURCE, at="6 s", **KILL)],
        DELAY, 10.0, failovers=1,
        options={**QUICK, DELAY: "10 s"}, managers={"replicas": 6}, observation="18 s",
    ),
    Case(
        "first-start-with-a-late-producer",
        [fault("late", "40 s", ALL, at="deploy", registration={"delay": {"delay": "22 s"}})],
        "during the fault `late`", 25.5, version="1.12", start=True, options={BACKOFF: "13 s"}, margin=(BACKOFF, 25.5),
    ),
    Case(  # its slots were promised; they come from the spare one when it is declared lost
        "first-start-with-a-paused-taskmanager",
        [fault("gc", "8 s", {"taskManagers": {"names": ["tm-0"]}}, at="deploy", process={"pause": {}})],
        HEARTBEAT, 5.0, start=True, options=QUICK,
    ),
    Case(
        "a-job-that-never-starts",
        [fault("late", "40 s", ALL, at="deploy", registration={"delay": {"delay": "30 s"}})],
        BACKOFF, 22.7, version="1.12", start=True, options={"restart-strategy.type": "none"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_answer_names_what_happened(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The owner of the largest share is the option or cause that is known beforehand."""
    if case.hangs:
        monkeypatch.setattr(StreamTask, "close", hanging(StreamTask.close))
    check_answer(case, tmp_path)


def test_a_failure_during_the_catch_up_leaves_it_its_seconds(tmp_path: Path):
    """The job ran and was behind when it failed again: until then it waited for capacity, not for a checkpoint that was in
    progress."""
    faults = [fault("one", "1 s", SINK, **KILL), fault("two", "1 s", SOURCE, at="8 s", **KILL)]
    case = Case(
        "failure-during-the-catch-up", faults, "", 0.0, options=QUICK, managers={"replicas": 6}, observation="43 s",
        vertex={"serviceTime": "8 ms"}, version=DRAWN_CHECKPOINTS,
    )  # fmt: skip
    trial, metrics = answer(case, tmp_path)
    (found,) = trial.recoveries
    check_sums(found)
    assert (len(found.rounds), metrics["failovers.count"]) == (2, 2)
    first = owners(found, 0)
    assert "checkpoint" not in first
    assert first["heartbeat"] == pytest.approx(DETECTION_S, abs=TOLERANCE_S)
    # the second process is killed 8 s after the first one; its peers received their last buffer shortly before
    up_to = first["heartbeat"] + first["first-record"]
    assert first["catch-up"] == pytest.approx(8 - up_to - first["connection"], abs=TOLERANCE_S)
    assert first["catch-up"] > 3


def test_a_fault_costs_nothing_before_it_holds_anything_up(tmp_path: Path):
    """Late registrations delay only the deployment after the kill: the half second before it belongs to no outage."""
    case = Case(
        "late-before-the-kill",
        [LATE_10, fault("kill", "1 s", SOURCE, at="500 ms", **KILL)],
        "",
        0.0,
        options=QUICK,
        observation="35 s",
    )
    trial, _ = answer(case, tmp_path)
    (found,) = trial.recoveries
    assert (found.faults, found.recovered) == (("kill", "late"), True)
    assert found.shared[0].effect_ns == found.effect_ns


def test_a_loss_that_is_noticed_after_the_observation_waits_for_its_detection(tmp_path: Path):
    """The process was killed 1 s before the drain, in which its failover happened: no answer says that the job only waited for
    the end of the fault, or that it had no failover."""
    case = Case(
        "kill-at-the-end",
        [fault("kill", "500 ms", SINK, at="9 s", **KILL)],
        "",
        0.0,
        options=QUICK,
        observation="10 s",
    )
    trial, metrics = answer(case, tmp_path)
    (found,) = trial.recoveries
    check_sums(found)
    assert (found.recovered, found.rounds[0].ended_by) == (False, "open")
    assert [(p.option or p.words, round(p.seconds, 1)) for p in found.prices] == [(REACHABILITY, 1.0)]
    assert (metrics["failovers.count"], metrics["recovery.detect"]) == (
        1,
        pytest.approx(1.0, abs=TOLERANCE_S),
    )
    assert metrics["recovery.downtime"] == pytest.approx(1.0, abs=TOLERANCE_S), "a lower bound"


def test_faults_that_overlap_without_a_failover_are_one_outage(tmp_path: Path):
    """Each of them has the seconds in which the job waited for its end; none is taken for missing capacity."""
    faults = [
        fault("one", "3 s", SINK, process={"pause": {}}),
        fault("two", "4 s", SOURCE, at="2 s", process={"pause": {}}),
    ]
    trial, metrics = answer(Case("two-pauses", faults, "", 0.0, options=QUICK), tmp_path)
    (found,) = trial.recoveries
    check_sums(found)
    assert metrics["failovers.count"] == 0
    owned = {p.text: p.seconds for p in found.prices}
    assert owned["end of the fault `one`"] == pytest.approx(3.0, abs=TOLERANCE_S)
    assert owned["end of the fault `two`"] == pytest.approx(3.0, abs=TOLERANCE_S)
    assert found.total_s == pytest.approx(6.0, abs=0.3)


def test_an_outage_begins_with_the_first_of_two_losses(tmp_path: Path):
    """The loss of the second process is noticed first, but no record arrived since the first one was killed."""
    faults = [fault("one", "1 s", SINK, **KILL), fault("two", "1 s", SOURCE, at="100 ms", **KILL)]
    case = Case("two-losses", faults, "", 0.0, options=QUICK, managers={"replicas": 6})
    trial, metrics = answer(case, tmp_path)
    (found,) = trial.recoveries
    check_sums(found)
    assert (found.fault, metrics["failovers.count"]) == ("one", 1)
    assert found.effect_ns / 1e9 % 1 == pytest.approx(FAULT_S % 1, abs=0.02)
    assert found.downtime_s == pytest.approx(DETECTION_S, abs=0.2)
    assert max(found.prices, key=lambda p: p.seconds).option == REACHABILITY


def test_a_taskmanager_that_gives_the_jobmanager_up_detects_a_failure(tmp_path: Path):
    """Heartbeats to it are muted. Its seconds are those of the detection, not of a deployment."""
    case = Case(
        "requests-muted", [fault("mute", "6 s", SINK, heartbeats={"mute": {"direction": "request"}})], "", 0.0,
        options=QUICK, observation="11 s",
    )  # fmt: skip
    trial, metrics = answer(case, tmp_path)
    longest = max(trial.recoveries, key=lambda r: r.total_s)
    assert longest.prices[0].option == HEARTBEAT
    assert metrics["recovery.detect"] == pytest.approx(4.9, abs=TOLERANCE_S)
    assert metrics["recovery.deploy"] == pytest.approx(0.0, abs=TOLERANCE_S)


def test_a_pause_has_one_price_before_and_after_a_kill(tmp_path: Path):
    """The kill is noticed at once, but its region can only be cancelled when the pause has ended."""
    faults = [fault("gc", "3 s", SINK, process={"pause": {}}), fault("kill", "1 s", SOURCE, at="1 s", **KILL)]
    trial, _ = answer(
        Case("pause-and-kill", faults, "", 0.0, options=QUICK, managers={"replicas": 6}), tmp_path
    )
    (found,) = trial.recoveries
    check_sums(found)
    assert found.fault == "gc"
    assert (found.prices[0].fault, found.prices[0].count) == ("gc", 1)
    assert found.prices[0].seconds == pytest.approx(3.0, abs=TOLERANCE_S)
