"""A recovery in its phases, and what bounded each."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.bounds import detect_bound, request_bound
from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.recovery import PHASES, check_recovery
from testbed_runtime.core.judgement.metrics import (
    NO_BASELINE,
    NO_DATA,
    NO_FAILOVER,
    NO_FAULT,
    NOT_RECOVERED,
    OBSERVATION_TOO_SHORT,
)
from testbed_runtime.core.options import Options


def phases(trial: Any, entry: Any) -> dict[str, Any]:
    """Name → phase."""
    return {p.name: p for p in check_recovery(trial, entry).phases}


def test_the_phases_are_the_steps_between_milestones(history: Any):
    """In this history the cause is known 1.5 s after the kill, and the first record arrives after 3 s."""
    found = check_recovery(history.good(), history.entry())
    seconds = {p.name: p.seconds for p in found.phases}
    assert tuple(seconds) == PHASES
    assert seconds["detect"] == pytest.approx(1.5)
    assert seconds["cancel"] == pytest.approx(0.2)
    assert seconds["slots"] == pytest.approx(0.6)
    assert seconds["restore"] == pytest.approx(0.1)
    assert seconds["deploy"] == pytest.approx(0.4)
    assert seconds["reconnect"] == pytest.approx(0.1)
    assert seconds["first-record"] == pytest.approx(0.1)
    assert seconds["catch-up"] == pytest.approx(1.0, abs=0.15)
    assert seconds["steady"] == pytest.approx(0.0, abs=0.2)
    assert found.downtime.seconds == pytest.approx(3.0)
    assert found.total.seconds == pytest.approx(sum(s for s in seconds.values()))
    assert found.fault == "kill"


def test_each_phase_names_what_bounded_it(history: Any):
    """The option with its value, or the resource."""
    found = phases(history.good(), history.entry())
    assert found["detect"].bounded_by == "heartbeat.interval × heartbeat.rpc-failure-threshold = 1 s × 2"
    assert found["slots"].bounded_by == "restart-strategy.fixed-delay.delay = 500 ms"
    assert found["restore"].bounded_by == "state and checkpoint store"
    assert found["deploy"].bounded_by == "deployment of the tasks"
    assert found["reconnect"].bounded_by == "connections and partition requests"
    assert found["first-record"].bounded_by == "execution.buffer-timeout.interval = 100 ms"
    assert found["catch-up"].bounded_by.startswith("spare capacity of the job (backlog of 4.0 s)")


CAUSES = [
    ("TimeoutException", "Heartbeat of TaskManager with id tm-0-1 timed out.", "heartbeat.timeout = 50 s"),
    ("TimeoutException", "The heartbeat of TaskManager with id tm-0-1 timed out.", "heartbeat.timeout = 50 s"),
    ("JobMasterException", "TaskManager with id tm-0-1 is no longer reachable.", "heartbeat.interval × heartbeat.rpc-failure-threshold = 10 s × 2"),
    ("RemoteTransportException", "Connection unexpectedly closed by remote task manager '127.0.0.1:1'. This might indicate that the remote task manager was lost.", "close of the TCP connection"),
    ("PartitionNotFoundException", "Partition 00#0@00 not found.", "taskmanager.network.partition-request-timeout = 10 s"),
    ("TimeoutException", "Invocation of [submitTask] at recipient [tm-0] timed out.", "pekko.ask.timeout = 10 s"),
    ("FlinkRuntimeException", "Exceeded checkpoint tolerable failure threshold. The latest checkpoint failed due to …", "execution.checkpointing.tolerable-failed-checkpoints = 0"),
    ("NoResourceAvailableException", "Could not acquire the minimum required resources.", "slot.request.timeout = 5 min"),
    ("RuntimeException", "user code", "failure reported by a task"),
]  # fmt: skip


@pytest.mark.parametrize(("cause_class", "text", "bound"), CAUSES)
def test_detection_is_bounded_by_what_the_text_says(cause_class: str, text: str, bound: str):
    """Flink's texts tell which mechanism it was."""
    cause = Cause(t_ns=0, text=text, cause_class=cause_class, detector="JobMaster", taskmanager="")
    assert detect_bound(cause, Options({})) == bound


def test_the_budget_of_partition_requests_has_generations():
    """Backoff in 1.12; from 1.19 on the wait at the producer, unless the backoff allows more of them."""
    assert request_bound(Options({}, flink_version="1.12")).startswith(
        "taskmanager.network.request-backoff.max"
    )
    assert request_bound(Options({})).startswith("taskmanager.network.partition-request-timeout")
    raised = Options({"taskmanager.network.request-backoff.max": "60 s"})
    assert request_bound(raised) == "taskmanager.network.request-backoff.max = 60 s"


def test_a_phase_is_not_bounded_by_the_milestone_that_began_it(history: Any):
    """The loss of a TaskManager ends `detect`; it does not bound the moment after it."""
    found = phases(history.good(), history.entry())
    assert found["cancel"].bounded_by == "cancellation of the tasks"


def test_slots_that_wait_for_a_dead_taskmanager_name_its_timeout(history: Any):
    """A task noticed first; the JobManager waited until it knew that the TaskManager is gone."""
    built = history.empty()
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    built.event("failover.started", "1", 8.1, text="Connection unexpectedly closed by remote task manager")
    built.event("failover.cancelled", "1", 8.2)
    text = "TaskManager with id tm-1-1 is no longer reachable."
    built.event("taskmanager.lost", "tm-1-1", 9.9, text=text, data={"detector": "JobMaster"})
    built.event("failover.slots", "1", 10.0)
    found = phases(built.trial(), history.entry())
    assert found["detect"].bounded_by == "close of the TCP connection"
    assert found["slots"].bounded_by == (
        "heartbeat.interval × heartbeat.rpc-failure-threshold = 1 s × 2 (headgate.restart.fence-dead-slots)"
    )


def test_without_a_failover_the_middle_phases_are_null(history: Any):
    """And the lag tells when it was over."""
    built = history.empty()
    for t, state in ((8.0, "injected"), (8.1, "verified"), (9.0, "ended"), (9.1, "clean")):
        built.add("supervisor", "faults", t, fault="kill", state=state, targets=["tm-1"])
    history.sample(built, failover=False)
    found = phases(built.trial(), history.entry())
    assert [found[n].reason for n in PHASES[:7]] == [NO_FAILOVER] * 7
    assert all(found[n].seconds is None for n in PHASES[:7])
    assert found["catch-up"].seconds == pytest.approx(0.0)
    assert found["steady"].seconds == pytest.approx(0.0, abs=0.11)


def test_a_lag_that_outlasts_the_fault_is_caught_up_with_later(history: Any):
    """The clock starts at the effect."""

    def slow(table: str, row: dict[str, Any]) -> dict[str, Any]:
        late = table == "tasks" and history.at(8.2) <= row["t_ns"] < history.at(10.5)
        return row | {"lag_ns": 2_000_000_000} if late else row

    built = history.empty(slow)
    for t, state in ((8.0, "injected"), (8.1, "verified"), (9.0, "ended"), (9.1, "clean")):
        built.add("supervisor", "faults", t, fault="kill", state=state, targets=["tm-1"])
    history.sample(built, failover=False)
    assert phases(built.trial(), history.entry())["catch-up"].seconds == pytest.approx(2.5, abs=0.11)


def test_milestones_never_go_back(history: Any):
    """An event that came before the phase before it ended costs nothing: running maximum."""

    def early(table: str, row: dict[str, Any]) -> dict[str, Any]:
        connected = table == "events" and row["kind"] == "gate.connected"
        return row | {"t_ns": history.at(10.2)} if connected else row

    found = phases(history.good(early), history.entry())
    assert found["reconnect"].seconds == 0.0
    assert found["first-record"].seconds == pytest.approx(0.2)


def test_a_job_that_never_came_back_has_a_lower_bound(history: Any):
    """The phase in which it hung, not a null that a maximum would accept."""
    trial = history.good(
        lambda table, row: None
        if (table == "events" and row["kind"] in ("failover.slots", "failover.deployed", "gate.connected", "sink.first-record", "task.restored"))
        or (table == "tasks" and row["t_ns"] > history.at(8.05))
        else row
    )  # fmt: skip
    found = check_recovery(trial, history.entry())
    by_name = {p.name: p for p in found.phases}
    assert by_name["slots"].reason == NOT_RECOVERED
    assert by_name["slots"].seconds == pytest.approx(24 - 9.7)
    assert by_name["steady"].seconds is None
    assert found.total.reason == NOT_RECOVERED
    assert found.total.seconds == pytest.approx(16.0)


def test_a_milestone_that_was_not_recorded_is_not_zero(history: Any):
    """Its time is in the next phase, and the row says so."""
    found = phases(history.without("events", kind="failover.slots"), history.entry())
    assert (found["slots"].seconds, found["slots"].reason) == (None, NO_DATA)
    assert found["restore"].seconds == pytest.approx(0.7)


def test_an_observation_too_short_for_steadiness_says_so(history: Any):
    """Three seconds are needed."""
    entry = history.entry()
    for phase in entry["phases"]:
        if phase["name"] in ("observation", "drain"):
            phase["start_ns" if phase["name"] == "drain" else "end_ns"] = history.at(13.5)
    found = check_recovery(history.good(), entry)
    assert found.phases[-1].reason == OBSERVATION_TOO_SHORT
    assert found.total.reason == OBSERVATION_TOO_SHORT
    assert found.total.seconds == pytest.approx(5.5)


def test_throughput_that_stays_low_never_gets_steady(history: Any):
    """Caught up by lag alone is not recovered."""

    def half(table: str, row: dict[str, Any]) -> dict[str, Any]:
        if table == "tasks" and row["attempt"] == 1:
            return row | {"records_in": row["records_in"] // 2}
        return row

    assert phases(history.good(half), history.entry())["steady"].reason == NOT_RECOVERED


def test_a_silent_task_has_not_caught_up(history: Any):
    """No sample is no good sample."""
    trial = history.good(
        lambda table, row: (
            None if table == "tasks" and row["attempt"] == 1 and row["task"] == "sink-1" else row
        )
    )
    assert phases(trial, history.entry())["catch-up"].reason == NOT_RECOVERED


def test_without_fault_or_baseline_there_is_nothing_to_measure(history: Any):
    """The rows carry the reason."""
    assert {p.reason for p in check_recovery(history.without("faults"), history.entry()).phases} == {NO_FAULT}
    entry = history.entry()
    entry["phases"] = [p for p in entry["phases"] if p["name"] != "baseline"]
    assert phases(history.good(), entry)["catch-up"].reason == NO_BASELINE


def test_the_fault_that_hit_the_lost_taskmanager_is_the_guilty_one(history: Any):
    """Not the one that came later somewhere else."""
    built = history.empty()
    for fault, target, t in (("kill", "tm-1", 8.0), ("slow", "tm-0", 9.0)):
        built.add("supervisor", "faults", t, fault=fault, state="injected", targets=[target])
    data = {"taskmanager": "tm-1-1", "detector": "JobMaster"}
    built.event(
        "failover.started", "1", 9.5, text="TaskManager with id tm-1-1 is no longer reachable.", data=data
    )
    found = check_recovery(built.trial(), history.entry())
    assert found.fault == "kill"
    assert found.phases[0].seconds == pytest.approx(1.5)


def test_two_restarts_are_one_recovery(history: Any):
    """Detected by the first, over with the last."""

    def add_second(trial_builder: Any) -> Any:
        trial_builder.event("failover.started", "2", 13.0, text="again", data={})
        for kind, t in (("cancelled", 13.1), ("slots", 13.2), ("deployed", 13.4)):
            trial_builder.event(f"failover.{kind}", "2", t)
        trial_builder.event("sink.first-record", "sink-0", 13.5, attempt=2)
        return trial_builder

    built = history.empty()
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    built.event("failover.started", "1", 9.5, text="first", data={})
    found = check_recovery(add_second(built).trial(), history.entry())
    by_name = {p.name: p for p in found.phases}
    assert by_name["detect"].seconds == pytest.approx(1.5)
    assert by_name["cancel"].seconds == pytest.approx(3.6)
    assert found.downtime.seconds == pytest.approx(5.5)


def test_a_failure_before_the_fault_is_no_part_of_its_recovery(history: Any):
    """A failover in the warm-up has its own cause; the fault's recovery begins with the first cause after it."""
    built = history.empty()
    built.event("failover.started", "1", 2.0, text="user code", data={"cause_class": "RuntimeException"})
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    built.event("failover.started", "2", 9.5, text="TaskManager with id tm-1-1 is no longer reachable.")
    built.event("failover.cancelled", "2", 9.6)
    detect = phases(built.trial(), history.entry())["detect"]
    assert (detect.seconds, detect.text) == (
        pytest.approx(1.5),
        "TaskManager with id tm-1-1 is no longer reachable.",
    )


def test_restarts_that_failed_stand_in_the_phase_before_the_one_that_counts(history: Any):
    """Most of `cancel` was failed restarts: it says how many, and what made the last one fail."""
    built = history.empty()
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    text = "Partition 00#0@00 not found."
    for number, t in enumerate((8.1, 9.0, 10.0), start=1):
        built.event(
            "failover.started", str(number), t, text=text, data={"cause_class": "PartitionNotFoundException"}
        )
    built.event("failover.cancelled", "3", 10.1)
    found = phases(built.trial(), history.entry())["cancel"]
    assert found.seconds == pytest.approx(2.0)
    assert (
        found.bounded_by
        == "2 failed restarts, the last due to taskmanager.network.partition-request-timeout = 10 s"
    )


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        ("2 s", "taskManagers.replaceLost = 2 s (then start and registration of TaskManager tm-1-2)"),
        ("200 ms", "start and registration of TaskManager tm-1-2"),
    ],
)
def test_slots_of_a_replacement_name_the_delay_or_its_start(history: Any, delay: str, expected: str):
    """Whichever of the two was longer, from the end of the process to the registration of the next one."""
    built = history.empty()
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    built.event("process.exit", "tm-1", 8.0)
    built.event("failover.started", "1", 8.1, text="Connection unexpectedly closed by remote task manager")
    built.event("failover.cancelled", "1", 8.2)
    built.event("taskmanager.registered", "tm-1-2", 11.0)
    built.event("failover.slots", "1", 11.05)
    entry = history.entry()
    entry["job"]["taskManagers"] = {"replaceLost": delay}
    assert phases(built.trial(), entry)["slots"].bounded_by == expected


def without_failover(history: Any, change: Any = None) -> Any:
    """A fault from 8 to 9 s that costs no failover."""
    built = history.empty(change)
    for t, state in ((8.0, "injected"), (8.1, "verified"), (9.0, "ended"), (9.1, "clean")):
        built.add("supervisor", "faults", t, fault="kill", state=state, targets=["tm-1"])
    history.sample(built, failover=False)
    return built.trial()


def test_a_sink_that_gets_nothing_has_not_caught_up(history: Any):
    """Its last lag was a good one, but that was long ago: it is quiet for longer than it ever was in the baseline."""

    def starved(table: str, row: dict[str, Any]) -> dict[str, Any]:
        if table == "tasks" and history.at(8.0) <= row["t_ns"] < history.at(11.0):
            return row | {"records_in": 8000}
        return row

    found = phases(without_failover(history, starved), history.entry())
    assert found["catch-up"].seconds == pytest.approx(3.0, abs=0.11)


def test_a_lag_that_ends_with_the_fault_is_still_a_recovery(history: Any):
    """Everything is good when the fault ends, but it was not good before: the fault's own length is what it cost."""

    def slow(table: str, row: dict[str, Any]) -> dict[str, Any]:
        late = table == "tasks" and history.at(8.2) <= row["t_ns"] < history.at(9.0)
        return row | {"lag_ns": 2_000_000_000} if late else row

    found = phases(without_failover(history, slow), history.entry())
    assert found["catch-up"].seconds == pytest.approx(1.0, abs=0.11)


def test_a_sink_that_never_gets_anything_does_not_hold_up_the_others(history: Any):
    """No key hashes to it: in the baseline it was as quiet."""

    def no_keys(table: str, row: dict[str, Any]) -> dict[str, Any]:
        return (
            row | {"records_in": 0, "lag_ns": 0} if table == "tasks" and row.get("task") == "sink-1" else row
        )

    found = phases(without_failover(history, no_keys), history.entry())
    assert found["catch-up"].seconds == pytest.approx(0.0)


@pytest.mark.parametrize(("until", "expected", "bound"), [
    (8.6, 1.0, "end of the fault"),
    (7.5, 0.0, "spare capacity of the job"),
])  # fmt: skip
def test_a_short_gap_in_a_fault_is_no_recovery_from_it(
    history: Any, until: float, expected: float, bound: str
):
    """The lag is good for the last 400 ms of the fault: it is over when the fault is. Without any lag there is nothing."""

    def slow(table: str, row: dict[str, Any]) -> dict[str, Any]:
        late = table == "tasks" and history.at(8.0) <= row["t_ns"] < history.at(until)
        return row | {"lag_ns": 2_000_000_000} if late else row

    found = phases(without_failover(history, slow), history.entry())["catch-up"]
    assert found.seconds == pytest.approx(expected, abs=0.11)
    assert found.bounded_by == bound
