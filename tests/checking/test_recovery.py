"""A recovery in its phases, and what bounded each."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.failovers import check_failovers, failures
from testbed_runtime.checking.recovery import check_recovery
from testbed_runtime.core.judgement.metrics import (
    JOB_FAILED,
    NO_BASELINE,
    NO_FAILOVER,
    NO_FAULT,
    NOT_RECOVERED,
    OBSERVATION_TOO_SHORT,
    RECOVERY_PHASES,
)
from testbed_runtime.core.trial.manifest import TaskManagersEntry
from testbed_runtime.report.answer import headline


def phases(trial: Any, entry: Any) -> dict[str, Any]:
    """Name → phase."""
    return {p.name: p for p in check_recovery(trial, entry, trial_recovery(trial, entry))}


def total(found: dict[str, Any]) -> float:
    """The phases that make up `recovery.total`."""
    return sum(found[name].seconds or 0.0 for name in RECOVERY_PHASES[:-1])


def test_the_phases_are_sums_of_the_critical_path(history: Any):
    """The cause is known 1.5 s after the kill, and the first record arrives at the last sink after 3.1 s."""
    found = phases(history.good(), history.entry())
    seconds = {name: found[name].seconds for name in RECOVERY_PHASES}
    assert seconds["detect"] == pytest.approx(1.5)
    assert seconds["cancel"] == 0.0  # hidden behind the restart delay
    assert seconds["slots"] == pytest.approx(0.8)
    assert seconds["restore"] == pytest.approx(0.1)
    assert seconds["deploy"] == pytest.approx(0.4)
    assert seconds["reconnect"] == pytest.approx(0.1)
    assert seconds["first-record"] == pytest.approx(0.2)
    assert seconds["catch-up"] == pytest.approx(0.9, abs=0.15)
    assert seconds["steady"] == pytest.approx(0.0, abs=0.2)
    assert found["downtime"].seconds == pytest.approx(3.1)
    assert found["total"].seconds == pytest.approx(total(found))
    assert (found["total"].text, found["rounds"].seconds) == ("kill", 1)
    assert found["unattributed"].seconds == 0.0
    # the waits end with the restart delay at 10.0 s, and the catch-up begins at 11.1 s
    assert found["from-events"].seconds == pytest.approx((11.1 - 10.0) / total(found))


def test_each_phase_names_its_largest_owner(history: Any):
    """The option with its value, or the resource."""
    found = phases(history.good(), history.entry())
    assert found["detect"].bounded_by == "heartbeat.interval × heartbeat.rpc-failure-threshold = 1 s × 2"
    assert found["slots"].bounded_by == "restart-strategy.fixed-delay.delay = 500 ms"
    assert found["restore"].bounded_by == "state and checkpoint store"
    assert found["deploy"].bounded_by == "deployment of the tasks"
    assert found["reconnect"].bounded_by == "connections and partition requests"
    assert found["first-record"].bounded_by == "the first new record at each sink"
    assert (
        found["catch-up"].bounded_by == "spare capacity of the job (backlog of 4.10 s, 980 ms of it replayed)"
    )
    assert found["downtime"].bounded_by == found["detect"].bounded_by
    assert found["cancel"].bounded_by == ""  # 0 s bound nothing


@pytest.mark.parametrize(
    ("cause_class", "recorded", "kind"),
    [
        ("TimeoutException", "heartbeat", "heartbeat"),
        ("TimeoutException", "deployment", "deployment"),
        ("FlinkRuntimeException", "checkpoint", "checkpoint"),
        ("RemoteTransportException", "", "connection"),
        ("PartitionNotFoundException", "", "partition"),
        ("NoResourceAvailableException", "", "slot"),
        ("RuntimeException", "", "failure-report"),
    ],
)
def test_a_failure_ended_the_wait_that_was_recorded_with_it_or_that_its_class_says(
    history: Any, cause_class: str, recorded: str, kind: str
):
    """Its text is for readers: user code may write what it likes."""
    built = history.empty()
    text = "Heartbeat of TaskManager with id tm-0-1 timed out: Partition not found."
    data = {"cause_class": cause_class, "wait": recorded, "detector": "Task"}
    built.event("failover.started", "1", 8.0, text=text, data=data)
    (found,) = failures(built.trial())
    assert found.kind == kind


def test_slots_that_wait_for_a_dead_taskmanager_name_its_timeout(history: Any):
    """A task noticed first; the JobManager waited until it knew that the TaskManager is gone."""
    built = history.empty()
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    built.wait("connection", "sink-0", "tm-1-1", (7.9, 8.1))
    built.wait("fencing", "JobMaster", "tm-1-1", (8.1, 9.9), history.heartbeat, "expired")
    built.event(
        "failover.started",
        "1",
        8.1,
        text="Connection unexpectedly closed by remote task manager",
        data={"cause_class": "RemoteTransportException"},
    )
    built.event("failover.cancelled", "1", 8.2)
    text = "TaskManager with id tm-1-1 is no longer reachable."
    built.event("taskmanager.lost", "tm-1-1", 9.9, text=text, data={"detector": "JobMaster"})
    built.event("failover.slots", "1", 10.0)
    built.event("sink.first-record", "sink-0", 10.0)
    found = phases(built.trial(), history.entry())
    assert found["detect"].seconds == pytest.approx(0.1)
    assert found["detect"].bounded_by == "the close of the TCP connection to a peer that is gone"
    assert found["slots"].seconds == pytest.approx(1.9)
    assert found["slots"].bounded_by == "heartbeat.interval × heartbeat.rpc-failure-threshold = 1 s × 2"
    assert found["cancel"].seconds == 0.0


def test_without_a_failover_the_middle_phases_are_null(history: Any):
    """And the lag tells when it was over."""
    built = history.empty()
    for t, state in ((8.0, "injected"), (8.1, "verified"), (9.0, "ended"), (9.1, "clean")):
        built.add("supervisor", "faults", t, fault="kill", state=state, targets=["tm-1"])
    history.sample(built, failover=False)
    found = phases(built.trial(), history.entry())
    assert [found[n].reason for n in RECOVERY_PHASES[:7]] == [NO_FAILOVER] * 7
    assert all(found[n].seconds is None for n in RECOVERY_PHASES[:7])
    assert found["catch-up"].seconds == pytest.approx(0.0)
    assert found["steady"].seconds == pytest.approx(0.0, abs=0.11)


def test_a_lag_that_outlasts_the_fault_is_caught_up_with_later(history: Any):
    """The clock starts at the effect. The second of the fault belongs to the fault."""

    def slow(table: str, row: dict[str, Any]) -> dict[str, Any]:
        late = table == "tasks" and history.at(8.2) <= row["t_ns"] < history.at(10.5)
        return row | {"lag_ns": 2_000_000_000} if late else row

    found = phases(without_failover(history, slow), history.entry())
    assert found["catch-up"].seconds == pytest.approx(2.5, abs=0.11)
    assert found["total"].seconds == found["catch-up"].seconds
    assert found["catch-up"].bounded_by == "spare capacity of the job"


def test_an_early_milestone_costs_nothing(history: Any):
    """A step that ended before the one before it has no seconds of its own."""

    def early(table: str, row: dict[str, Any]) -> dict[str, Any]:
        connected = table == "events" and row["kind"] == "gate.connected"
        return row | {"t_ns": history.at(10.2)} if connected else row

    found = phases(history.good(early), history.entry())
    assert found["reconnect"].seconds == 0.0
    assert found["first-record"].seconds == pytest.approx(0.3)


def test_a_job_that_never_came_back_has_a_lower_bound(history: Any):
    """The phase in which it hung, not a null that a maximum would accept."""
    trial = history.good(
        lambda table, row: None
        if (table == "events" and row["kind"] in ("failover.slots", "failover.deployed", "gate.connected", "task.restored"))
        or (table == "events" and row["kind"] == "sink.first-record" and row["t_ns"] > history.at(1))
        or (table == "tasks" and row["t_ns"] > history.at(8.05))
        else row
    )  # fmt: skip
    found = phases(trial, history.entry())
    assert found["slots"].reason == NOT_RECOVERED
    assert found["slots"].seconds == pytest.approx(24 - 9.7)
    assert found["steady"].seconds is None
    assert found["total"].reason == NOT_RECOVERED
    assert found["total"].seconds == pytest.approx(16.0)
    assert (found["downtime"].seconds, found["downtime"].reason) == (pytest.approx(16.0), NOT_RECOVERED)


def test_the_time_of_a_milestone_that_was_not_recorded_is_in_the_next_step(history: Any):
    """Nothing is lost from the total."""
    found = phases(history.without("events", kind="failover.slots"), history.entry())
    assert found["slots"].seconds == pytest.approx(0.5)  # the restart delay
    assert found["deploy"].seconds == pytest.approx(0.8)
    assert found["total"].seconds == pytest.approx(total(found))


def test_an_observation_too_short_for_steadiness_says_so(history: Any):
    """Three seconds are needed. The recovery itself is known."""
    entry, end = history.entry(), history.at(13.5)
    moved = {"observation": {"end_ns": end}, "drain": {"start_ns": end}}
    entry = replace(entry, phases=tuple(replace(p, **moved.get(p.name, {})) for p in entry.phases))
    found = phases(history.good(), entry)
    assert found["steady"].reason == OBSERVATION_TOO_SHORT
    assert (found["total"].reason, found["total"].seconds) == ("", pytest.approx(4.0, abs=0.15))


def test_throughput_that_stays_low_never_gets_steady(history: Any):
    """Caught up by lag alone is not steady."""

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
    without = phases(history.without("faults"), history.entry())
    assert {p.reason for p in without.values()} == {NO_FAULT}
    entry = history.entry()
    entry = replace(entry, phases=tuple(p for p in entry.phases if p.name != "baseline"))
    found = phases(history.good(), entry)
    assert (found["catch-up"].reason, found["total"].reason) == (NO_BASELINE, NO_BASELINE)
    assert found["downtime"].seconds == pytest.approx(3.1)


def test_the_fault_that_hit_the_lost_taskmanager_is_responsible(history: Any):
    """Not the one that came later somewhere else."""
    built = history.empty()
    for fault, target, t in (("kill", "tm-1", 8.0), ("slow", "tm-0", 9.0)):
        built.add("supervisor", "faults", t, fault=fault, state="injected", targets=[target])
    data = {"taskmanager": "tm-1-1", "detector": "JobMaster"}
    built.event(
        "failover.started", "1", 9.5, text="TaskManager with id tm-1-1 is no longer reachable.", data=data
    )
    found = phases(built.trial(), history.entry())
    assert found["total"].text == "kill"
    assert found["detect"].seconds == pytest.approx(1.5)


def test_a_slow_store_is_not_responsible_for_a_lost_connection(history: Any):
    """The store of every TaskManager is slow, and one connection is reset. The metrics describe the failover of the reset."""
    built = history.empty()
    built.add(
        "supervisor",
        "faults",
        8.0,
        fault="slow",
        state="injected",
        kind="store.slow",
        targets=["tm-0", "tm-1"],
    )
    built.add(
        "supervisor", "faults", 9.0, fault="reset", state="injected", kind="network.reset", targets=["tm-0"]
    )
    data = {"taskmanager": "tm-1-1", "detector": "Task", "cause_class": "RemoteTransportException"}
    built.event(
        "failover.started", "1", 9.1, text="Connection unexpectedly closed by remote task manager", data=data
    )
    found = phases(built.trial(), history.entry())
    assert (found["total"].text, found["detect"].seconds) == ("reset", pytest.approx(0.1))


def test_two_restarts_of_one_outage_are_two_rounds_of_one_recovery(history: Any):
    """Between them no sink received anything."""
    built = history.empty()
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    built.event("failover.started", "1", 9.5, text="first", data={})
    built.event("failover.started", "2", 13.0, text="again", data={})
    for kind, t in (("cancelled", 13.1), ("slots", 13.2), ("deployed", 13.4)):
        built.event(f"failover.{kind}", "2", t)
    built.event("sink.first-record", "sink-0", 13.5, attempt=2)
    entry = history.entry()
    found = phases(built.trial(), entry)
    answer = trial_recovery(built.trial(), entry)
    assert [(r.cause, r.ended_by, r.failure) for r in answer.recoveries[0].rounds] == [
        ("first", "failure", "again"),
        ("again", "running", ""),
    ]
    assert found["detect"].seconds == pytest.approx(1.5)
    assert found["cancel"].seconds == pytest.approx(3.6)  # the first of them never ended
    assert found["downtime"].seconds == pytest.approx(5.5)
    assert found["rounds"].seconds == 2


def test_a_failure_before_the_fault_is_no_part_of_its_recovery(history: Any):
    """A failover in the warm-up has its own cause; the fault's recovery begins with the first cause after it."""
    built = history.empty()
    built.event("failover.started", "1", 2.0, text="user code", data={"cause_class": "RuntimeException"})
    built.event("sink.first-record", "sink-0", 2.5)
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    built.event("failover.started", "2", 9.5, text="TaskManager with id tm-1-1 is no longer reachable.")
    built.event("failover.cancelled", "2", 9.6)
    history.sample(built)
    found = trial_recovery(built.trial(), history.entry())
    assert [(r.fault, r.rounds[0].cause) for r in found.recoveries] == [
        ("", "user code"),
        ("kill", "TaskManager with id tm-1-1 is no longer reachable."),
    ]
    detect = phases(built.trial(), history.entry())["detect"]
    assert (detect.seconds, detect.text) == (
        pytest.approx(1.5),
        "TaskManager with id tm-1-1 is no longer reachable.",
    )


def test_failed_rounds_belong_to_the_wait_that_expired(history: Any):
    """Three deployments die of the same budget: the option owns them all, and the restarts are counted."""
    built = history.empty()
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    limit = ("taskmanager.network.request-backoff.max", "400 ms", 0.7)
    built.event(
        "failover.started",
        "1",
        8.1,
        text="Connection unexpectedly closed by remote task manager",
        data={"cause_class": "RemoteTransportException"},
    )
    text = "Partition 00#0@00 not found."
    for number, t in enumerate((9.0, 10.0, 11.0), start=2):
        built.wait("partition", f"sink-0/{number}", "source-0", (t - 0.7, t), limit, "expired")
        data = {"cause_class": "PartitionNotFoundException"}
        built.event("failover.started", str(number), t, text=text, data=data)
    built.event("sink.first-record", "sink-0", 11.5)
    entry = history.entry()
    found = trial_recovery(built.trial(), entry).recoveries[0]
    assert [r.ended_by for r in found.rounds] == ["failure", "failure", "failure", "running"]
    price = found.prices[0]
    assert (price.option, price.value, price.count) == (limit[0], "400 ms", 3)
    assert price.seconds == pytest.approx(2.1)
    assert phases(built.trial(), entry)["reconnect"].bounded_by == f"{limit[0]} = 400 ms"
    assert check_failovers(built.trial()).count == 4


def test_slots_of_a_replacement_name_the_delay_and_its_start(history: Any):
    """The replacement went on while the failure was not known yet, so it owns that time too."""
    built = history.empty()
    built.add("supervisor", "faults", 8.0, fault="kill", state="injected", targets=["tm-1"])
    built.event("process.exit", "tm-1-1", 8.0)
    built.event("taskmanager.registered", "tm-1-2", 11.0)
    built.wait("registration", "tm-1-2", "ResourceManager", (10.8, 11.0))
    built.wait("slot", "JobMaster", "1 of 4 slots", (8.2, 11.05), ("slot.request.timeout", "5 min", 300.0))
    built.event(
        "failover.started",
        "1",
        8.1,
        text="Connection unexpectedly closed by remote task manager",
        data={"cause_class": "RemoteTransportException"},
    )
    built.event("failover.cancelled", "1", 8.2)
    built.event("failover.slots", "1", 11.05)
    built.event("sink.first-record", "sink-0", 11.1)
    entry = history.entry()
    entry = replace(entry, job=replace(entry.job, task_managers=TaskManagersEntry(replace_lost="2 s")))
    found = trial_recovery(built.trial(), entry).recoveries[0]
    assert [(s.kind, round(s.seconds, 3)) for s in found.rounds[0].segments][:4] == [
        ("replacement", 2.0),
        ("start", 0.8),
        ("registration", 0.2),
        ("slot", 0.05),
    ]
    assert found.prices[0].text == "replaceLost = 2 s"
    assert [(m.option, round(m.left_s, 2)) for m in found.margins] == [("slot.request.timeout", 297.15)]
    # Kubernetes' whole seconds: created after 9.0, scheduled after 10.0
    built.wait("pending", "Kubernetes", "tm-1-2", (9, 10))
    built.wait("image", "Kubernetes", "tm-1-2", (10, 10.5))
    found = trial_recovery(built.trial(), entry).recoveries[0]
    assert [(s.kind, round(s.seconds, 3), s.text) for s in found.rounds[0].segments][1:3] == [
        ("image", 0.5, "the image and the container of a pod"),
        ("start", 0.3, "start of tm-1-2"),
    ]


def without_failover(
    history: Any, change: Any = None, *, until: float | None = 9.0, credit_s: float = 0.0
) -> Any:
    """A fault from 8 s that costs no failover. `until`: its end; None if it does not end. `credit_s`: how long after 8 s a
    sender waits for credit."""
    built = history.empty(change)
    built.wait("credit", "source-0", "count-1", (8.0, 8.0 + credit_s), ("buffers-per-channel", "2", -1.0))
    ends = () if until is None else ((until, "ended"), (until + 0.1, "clean"))
    for t, state in ((8.0, "injected"), (8.1, "verified"), *ends):
        built.add("supervisor", "faults", t, fault="kill", kind="process.kill", state=state, targets=["tm-1"])
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


@pytest.mark.parametrize("until", [9.0, 14.0, None])
def test_a_job_that_catches_up_during_the_fault_owes_the_outage_to_it(history: Any, until: float | None):
    """The lag is good again 2 s before the fault ends, or the fault never ends: the fault was active, so it is the owner.
    One that ends after 1 s owns that second, and the spare capacity the other two."""

    def slow(table: str, row: dict[str, Any]) -> dict[str, Any]:
        late = table == "tasks" and history.at(8.0) <= row["t_ns"] < history.at(11.0)
        return row | {"lag_ns": 2_000_000_000} if late else row

    answer = trial_recovery(without_failover(history, slow, until=until), history.entry())
    (one,) = answer.recoveries
    fault = "end of the fault `kill` (process.kill)"
    expected = {fault: 1.0, "spare capacity of the job": 2.0} if until == 9.0 else {fault: 3.0}
    assert {p.words: p.seconds for p in one.prices} == pytest.approx(expected, abs=0.11)


@pytest.mark.parametrize(
    ("credit_s", "more"),
    [(0.4, ""), (0.6, ", source-0 waited for credit of count-1: buffers-per-channel = 2")],
)
def test_a_fault_during_which_a_sender_had_no_credit_names_its_limit(
    history: Any, credit_s: float, more: str
):
    """Half of the fault's second is enough."""

    def slow(table: str, row: dict[str, Any]) -> dict[str, Any]:
        late = table == "tasks" and history.at(8.0) <= row["t_ns"] < history.at(9.5)
        return row | {"lag_ns": 2_000_000_000} if late else row

    answer = trial_recovery(without_failover(history, slow, credit_s=credit_s), history.entry())
    assert answer.recoveries[0].prices[0].words == f"end of the fault `kill` (process.kill{more})"


@pytest.mark.parametrize(("until", "expected", "bound"), [
    (8.6, 1.0, "end of the fault `kill` (process.kill)"),
    (7.5, 0.0, ""),
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


def test_a_job_that_fails_again_after_it_recovered_has_two_recoveries(history: Any):
    """The second one begins with the second failure: the time between them was no outage."""
    built = history.empty()
    built.add(
        "supervisor", "faults", 8.0, fault="kill", kind="process.kill", state="injected", targets=["tm-1"]
    )
    built.event("failover.started", "1", 9.5, text="first", data={})
    built.event("sink.first-record", "sink-0", 11.0, attempt=1)
    built.event("failover.started", "2", 15.0, text="second", data={})
    built.event("sink.first-record", "sink-0", 15.5, attempt=2)
    history.sample(built)
    found = trial_recovery(built.trial(), history.entry()).recoveries
    assert [(r.rounds[0].cause, round(r.total_s, 1)) for r in found] == [("first", 4.0), ("second", 0.5)]
    assert found[0].end_ns <= found[1].effect_ns == history.at(15.0)


def test_tasks_that_fail_together_are_one_round(history: Any):
    """Flink counts a restart for each of them; nothing was deployed in between."""
    built = history.empty()
    built.add(
        "supervisor", "faults", 8.0, fault="kill", kind="process.kill", state="injected", targets=["tm-1"]
    )
    for number, t in enumerate((9.5, 9.5001, 9.5002), start=1):
        built.event("failover.started", str(number), t, text=f"task {number}", data={})
    built.event("failover.cancelled", "3", 9.6)
    built.event("failover.slots", "3", 9.8)
    built.event("sink.first-record", "sink-0", 11.0)
    found = trial_recovery(built.trial(), history.entry()).recoveries[0]
    assert [r.cause for r in found.rounds] == ["task 1"]
    assert check_failovers(built.trial()).count == 3


def test_a_job_that_failed_for_good_says_so(history: Any):
    """The recovery ends with the job, and its total is a lower bound."""
    built = history.empty()
    built.add(
        "supervisor", "faults", 8.0, fault="kill", kind="process.kill", state="injected", targets=["tm-1"]
    )
    built.event("failover.started", "1", 9.5, text="first", data={})
    built.event("job.state", "job", 12.0, text="the last cause", data={"to": "FAILED", "cause_class": "X"})
    found = trial_recovery(built.trial(), history.entry()).recoveries[0]
    assert (found.recovered, found.reason, found.total_s) == (False, JOB_FAILED, pytest.approx(4.0))
    limit = "restart-strategy.fixed-delay.attempts = 1 allows no more restarts"
    assert headline(found) == f"the job failed 4.00 s after `kill`, after 1 restart ({limit})"
    assert found.rounds[-1].failure == "the last cause"
    total = phases(built.trial(), history.entry())["total"]
    assert (total.seconds, total.reason) == (pytest.approx(4.0), NOT_RECOVERED)


def _until_the_failure(history: Any, change: Any = None) -> Any:
    """Return the good history, in which the sinks receive records until the failure."""
    built = history.record(change)
    for tick in range(81, 96):
        for sink in (0, 1):
            built.add(
                f"tm-{sink}-1", "tasks", tick / 10, task=f"sink-{sink}", vertex="sink", role="sink", attempt=0,
                records_in=100 * tick, lag_ns=0,
            )  # fmt: skip
    return built


def test_a_job_that_goes_on_after_the_effect_has_a_backlog_since_its_checkpoint(history: Any):
    """The checkpoint was triggered 1.2 s after the effect, and 0.3 s before the failure: only that is replayed."""

    def later(table: str, row: dict[str, Any]) -> dict[str, Any]:
        stored = table == "checkpoints" and row["state"] == "triggered"
        return row | {"t_ns": history.at(9.2)} if stored else row

    built = _until_the_failure(history, later)
    (found,) = trial_recovery(built.trial(), history.entry()).recoveries
    backlog = next(p for p in found.prices if p.kind == "catch-up")
    assert backlog.words == "spare capacity of the job (backlog of 1.90 s, 300 ms of it replayed)"


def test_what_the_sinks_received_until_the_failure_is_replayed_too(history: Any):
    """Both sinks receive records until the failure 1.5 s after the effect, and the checkpoint is 1 s older than the effect."""
    built = _until_the_failure(history)
    (found,) = trial_recovery(built.trial(), history.entry()).recoveries
    backlog = next(p for p in found.prices if p.kind == "catch-up")
    assert backlog.words == "spare capacity of the job (backlog of 4.10 s, 2.50 s of it replayed)"


@pytest.mark.parametrize(
    ("kind", "outcome", "seconds"),
    [
        ("partition", "completed", 6.0),
        ("restore", "open", 6.0),
        ("partition", "cancelled", 4.0),
        ("partition", "expired", 4.0),
        ("first-record", "completed", 4.0),
    ],
)
def test_a_job_has_not_recovered_while_a_task_waits_for_an_input_or_its_state(
    history: Any, kind: str, outcome: str, seconds: float
):
    """It has caught up 4 s after the effect at all sinks that receive records. A wait that was given up held nothing up."""
    built = history.record()
    built.wait(kind, "sink-1", "count-1", (11.2, 14.0), outcome=outcome, attempt=1)
    (found,) = trial_recovery(built.trial(), history.entry()).recoveries
    assert found.total_s == pytest.approx(seconds, abs=0.15)
