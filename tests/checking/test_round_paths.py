"""The owners of the seconds of an outage: of one without a failover, of each round, and of what lasts at the end of the record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.answer import _Paths, _shared, _with_prolonging_faults, trial_recovery
from testbed_runtime.checking.common import Windows, windows
from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.faults import FaultEffect, added_delays
from testbed_runtime.checking.limiting import FaultSizes, carried_bytes, limiting_fault, places_of_behind
from testbed_runtime.checking.prices import margins
from testbed_runtime.checking.reduced import reduced
from testbed_runtime.checking.rounds import Outage, RoundSpan
from testbed_runtime.checking.waits import starved_words
from testbed_runtime.core.judgement.metrics import JOB_FAILED
from testbed_runtime.core.judgement.recovery import Price, Recovery
from testbed_runtime.core.waits import RM_NAME, Outcome, Wait
from tests.manifests import trial_entry

NS = 1_000_000_000
START = 1000
SERVICE_TIME = "headgate.jobmanager.service-time"


def at(t: float) -> int:
    return round((START + t) * NS)


def fault(name: str, begun: float, ended: float | None, kind: str = "frames.drop") -> FaultEffect:
    return FaultEffect(
        fault=name, kind=kind, injected_ns=at(begun), ended_ns=None if ended is None else at(ended),
        verified=True, residue=False, targets=json.dumps(["tm-1"]), text="",
    )  # fmt: skip


def wait(kind: str, start: float, end: float, outcome: str = "completed", **more: Any) -> Wait:
    values = {"wait": f"tm-0-1/{kind}/{start:g}", "who": "tm-0-1", "what": ""} | more
    return Wait(kind=kind, start_ns=at(start), end_ns=at(end), outcome=Outcome(outcome), **values)


def cause(t: float, kind: str = "failure-report", **more: Any) -> Cause:
    values = {"cause_class": "E", "detector": "Task", "taskmanager": ""} | more
    return Cause(at(t), f"at {t:g}", kind=kind, **values)


def answered(
    outage: Outage,
    waits: list[Wait],
    *,
    trial: Any,
    service_time: str = "0 ms",
    interval: str = "0 s",
    others: Sequence[FaultEffect] = (),
    params: Mapping[str, Any] | None = None,
    more: Mapping[str, str] | None = None,
) -> Recovery:
    options = {SERVICE_TIME: service_time, "execution.checkpointing.interval": interval, **(more or {})}
    entry = trial_entry(
        {
            "configuration": options,
            "faults": [{"name": "a", "params": params or {}}],
        }
    )
    paths = _Paths(trial, entry, waits, Windows(None, None, None, None, at(60)))
    paths.effects = [*others, *([outage.fault] if outage.fault is not None else [])]
    return paths.recovery(outage, "")


def parts(found: Recovery, number: int = 0) -> list[tuple[str, float]]:
    """The kind of each segment, or its fault, and its seconds."""
    return [(s.fault or s.kind, round(s.seconds, 6)) for s in found.rounds[number].segments]


def survived(faults: tuple[FaultEffect, ...], *, recovered: bool = True, **more: Any) -> Outage:
    """An outage from 8 to 20 s without a failover."""
    span = RoundSpan(at(8), at(20), **more)
    return Outage(faults[0], at(8), at(20), (span,), recovered, at(20) if recovered else None, earlier=faults)


@pytest.mark.parametrize(
    ("faults", "recovered", "expected"),
    [
        ((fault("a", 8, 10), fault("b", 12, 14)), True, [("a", 2), ("catch-up", 2), ("b", 2), ("catch-up", 6)]),
        ((fault("a", 8, 13), fault("b", 10, 15)), True, [("a", 5), ("b", 2), ("catch-up", 5)]),
        ((fault("a", 8, 10), fault("c", 2, 18)), True, [("a", 2), ("c", 8), ("catch-up", 2)]),
        ((fault("a", 8, 25),), True, [("a", 12)]),
        ((fault("a", 8, None),), True, [("a", 12)]),
        ((fault("a", 8, 9, "process.kill"),), True, [("a", 1), ("catch-up", 11)]),
        ((fault("a", 8, 9, "process.kill"),), False, [("a", 12)]),  # missed until the end
    ],
)  # fmt: skip
def test_a_job_that_survives_waits_for_each_fault_and_then_for_its_backlog(
    history: Any, faults: tuple[FaultEffect, ...], recovered: bool, expected: list[Any]
):
    """First for the active fault that began first, then for one from before the outage."""
    found = answered(survived(faults, recovered=recovered), [], trial=history.empty().trial())
    assert parts(found) == expected


@pytest.mark.parametrize(
    ("ended", "last", "expected"),
    [
        (9, 20, [("a", 1), ("catch-up", 11)]),
        (9, 18.1, [("a", 1), ("catch-up", 11)]),
        (9, 18, [("a", 1), ("catch-up", 9), ("still", 2)]),
        (9, 8.5, [("a", 1), ("still", 11)]),
        (18.5, 19, [("a", 10.5), ("catch-up", 1.5)]),
        (18.5, 8.5, [("a", 10.5), ("still", 1.5)]),  # nothing at all since the fault ended
        (20, 8.5, [("a", 12)]),
    ],
)
def test_a_job_stands_still_if_its_sinks_get_nothing_for_two_seconds_or_since_the_fault(
    history: Any, ended: float, last: float, expected: list[Any]
):
    """The record ends at 20 s, and the job has not recovered. Its sink got its last record at `last`."""
    built = history.empty()
    for t, received in ((7, 1), (last, 2), (20, 2)):
        built.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", records_in=received)
    found = answered(survived((fault("a", 8, ended),), recovered=False), [], trial=built.trial())
    still = [s.text.startswith("a job that stands still") for s in found.rounds[0].segments]
    assert [
        ("still" if one else name, s) for one, (name, s) in zip(still, parts(found), strict=True)
    ] == expected


@pytest.mark.parametrize(
    ("span", "expected"),
    [((15, 26), [("unattributed", 7), ("partition", 5)]), ((21, 26), [("a", 1), ("catch-up", 11)])],
)
def test_a_failure_after_the_record_owns_the_wait_that_led_to_it(
    history: Any, span: tuple[float, float], expected: list[Any]
):
    """Unless that wait began after the record, too. A task that was deployed meanwhile is no step of an outage without a failover."""
    built = history.empty()
    built.event("task.state", "sink-0", 9, data={"to": "DEPLOYING"})
    outage = survived((fault("a", 8, 9),), recovered=False, unnoticed=cause(26, "partition"))
    found = answered(outage, [wait("partition", *span, "expired")], trial=built.trial())
    assert parts(found) == expected
    assert found.rounds[0].failure == "at 26"


def test_a_failover_of_a_later_fault_begins_within_the_outage_of_an_earlier_one(history: Any):
    """The kill takes effect at 11 s. Before that, the first round waits for the fault before it, and then for the backlog. The second
    one begins with its own failure."""
    rounds = (
        RoundSpan(at(8), at(13), cause(12, "heartbeat"), cause(13)),
        RoundSpan(at(13), at(16), cause(13), running=at(15)),
    )
    faults = (fault("a", 8, 10), fault("b", 11, 11.5, "process.kill"))
    outage = Outage(faults[0], at(8), at(16), rounds, True, at(16), earlier=faults, joined=at(11))
    found = answered(outage, [wait("slot", 13, 15)], trial=history.empty().trial())
    assert parts(found) == [("a", 2), ("catch-up", 1), ("heartbeat", 1), ("cancellation", 1)]
    assert parts(found, 1) == [("slot", 2), ("catch-up", 1)]
    assert [(r.start_ns, r.end_ns) for r in found.rounds] == [(at(8), at(13)), (at(13), at(16))]


def test_a_failure_interrupts_the_catch_up(history: Any):
    """The sinks had records again at 11 s, and the job failed at 15 s before it had caught up."""
    rounds = (
        RoundSpan(at(8), at(15), cause(9.5), cause(15, "slot"), running=at(11)),
        RoundSpan(at(15), at(18), cause(15, "slot"), running=at(18)),
    )
    found = answered(Outage(fault("a", 8, 9), at(8), at(18), rounds, True), [], trial=history.empty().trial())
    last = found.rounds[0].segments[-1]
    assert (last.kind, last.seconds, last.outcome) == ("catch-up", 4, "cancelled")
    assert last.detail == "backlog of 3.00 s"


@pytest.mark.parametrize(
    ("triggered", "failures", "backlog"),
    [
        ({1: 5, 2: 6, 3: 7}, (9.5,), "backlog of 4.00 s"),  # of the last restored one
        ({3: 7.5}, (9.5,), "backlog of 3.50 s"),
        ({3: 9.2}, (9.1, 9.5), "backlog of 1.80 s"),  # stored after the effect
        ({3: 9.7}, (9.1, 9.5), "backlog of 1.30 s"),
        ({}, (9.5,), "backlog of 3.00 s"),
    ],
)
def test_the_backlog_is_the_outage_and_the_age_of_the_restored_checkpoint(
    history: Any, triggered: dict[int, float], failures: tuple[float, ...], backlog: str
):
    """The effect is at 8 s, and records arrive again at 11 s. No sink was sampled, so nothing is said to be
    replayed."""
    built = history.empty()
    for number, t in triggered.items():
        built.add("jobmanager-1", "checkpoints", t, checkpoint=number, state="triggered")
    for number in (1, 2, 3):
        built.event("task.restored", f"sink-{number}", 10 + number / 10, attempt=1, checkpoint=number)
    rounds = [RoundSpan(at(8), at(12), cause(t), running=at(11)) for t in failures]
    outage = Outage(fault("a", 8, 9), at(8), at(12), tuple(rounds), True, at(12))
    found = answered(outage, [], trial=built.trial())
    assert found.rounds[-1].segments[-1].detail == backlog


@pytest.mark.parametrize(
    ("ended", "plane", "busy", "owner"),
    [
        (20, "data", 0.4, "spare capacity of the job, during the fault `a`"),
        (12.5, "data", 0.4, "spare capacity of the job, during the fault `a`"),
        (12.4, "data", 0.4, "spare capacity of `map`"),
        (20, "rpc", 0.4, "spare capacity of `map`"),
        (20, "data", 0.5, "spare capacity of `map`"),
        (20, "data", 0, "spare capacity of the job, during the fault `a`"),
    ],
)
def test_a_link_that_a_fault_makes_narrow_limits_a_catch_up_in_which_nothing_is_busy(
    history: Any, ended: float, plane: str, busy: float, owner: str
):
    """Records arrive again at 11 s, and nothing is late at 14 s. The fault must last for half of that time."""
    built = history.empty()
    for tick in range(31):
        built.add(
            "tm-1-1", "tasks", 11 + tick / 10, task="map-0", vertex="map", role="operator", attempt=1,
            busy_ns=round(busy * tick / 10 * NS),
        )  # fmt: skip
    rounds = (RoundSpan(at(8), at(14), cause(9.5), running=at(11)),)
    slow = replace(fault("a", 8, ended, "network.bandwidth"), plane=plane)
    outage = Outage(slow, at(8), at(14), rounds, True, at(14))
    last = answered(outage, [], trial=built.trial()).rounds[0].segments[-1]
    assert (last.text, last.fault) == (owner, "a" if "fault" in owner else "")


def narrow(span: tuple[float, float], kind: str = "network.bandwidth", *targets: str) -> FaultEffect:
    return replace(fault("a", *span, kind), targets=json.dumps(targets or ["tm-1"]))


def bystander(*targets: str, kind: str = "network.latency") -> FaultEffect:
    return replace(fault("b", 5, 20, kind), targets=json.dumps(targets))


@pytest.mark.parametrize(
    ("own", "others", "params", "named"),
    [
        (narrow((8, 13.5)), [], None, "a"),
        (narrow((8, 13.5)), [bystander("tm-9")], None, "a"),  # it runs no task
        (narrow((8, 9)), [bystander("tm-9")], None, ""),
        (narrow((8, 9)), [bystander("tm-1->tm-9")], None, ""),
        (narrow((8, 9)), [bystander("tm-1->*")], None, "b"),
        (narrow((8, 9)), [bystander()], None, "b"),  # on every TaskManager
        (narrow((8, 13.5)), [bystander("tm-1")], None, "b"),  # it lasted longer
        (narrow((8, 20)), [bystander("tm-1")], None, "a"),  # as long
        (narrow((8, 9)), [bystander("tm-1", kind="network.duplicate")], None, ""),
        (narrow((8, 20), "frames.withhold-credit"), [], None, "a"),
        (narrow((8, 20), "frames.drop"), [], {"frame_class": "barrier"}, ""),
        (narrow((8, 20), "frames.drop"), [], {"frame_class": "credit"}, "a"),
        (narrow((8, 20), "frames.delay"), [], {"frame_class": "request"}, ""),
        (narrow((8, 20), "frames.delay"), [], {"frame_class": "buffer"}, "a"),
    ],
)  # fmt: skip
def test_a_fault_limits_a_catch_up_only_where_records_pass(
    history: Any, own: FaultEffect, others: list[FaultEffect], params: Any, named: str
):
    """Only tm-1 runs a task. Records arrive again at 11 s, and nothing is late at 14 s."""
    built = history.empty()
    for tick in range(31):
        built.add("tm-1-1", "tasks", 11 + tick / 10, task="map-0", vertex="map", role="operator", attempt=1)
    rounds = (RoundSpan(at(8), at(14), cause(9.5), running=at(11)),)
    outage = Outage(own, at(8), at(14), rounds, True, at(14))
    found = answered(outage, [], trial=built.trial(), others=others, params=params)
    assert found.rounds[0].segments[-1].fault == named


@pytest.mark.parametrize(
    ("kind", "params", "credit_s", "limits"),
    [
        ("network.latency", {"latency_s": 0.005}, 0, False),
        ("network.latency", {"latency_s": 1.49}, 0, False),
        ("network.latency", {"latency_s": 1.5}, 0, True),  # half of the catch-up
        ("network.latency", {"latency_s": 0.005}, 1.6, True),
        ("frames.delay", {"frame_class": "buffer", "delay_s": 0.2}, 0, False),
        ("frames.delay", {"frame_class": "barrier", "delay_s": 0.2}, 0, True),
        ("network.bandwidth", {"bytes_per_second": 2000}, 0, True),
        ("network.bandwidth", {"bytes_per_second": 2001}, 0, False),
        ("network.partition", {}, 0, True),
    ],
)
def test_a_fault_limits_a_catch_up_only_if_it_is_large_enough(
    history: Any, kind: str, params: dict[str, Any], credit_s: float, *, limits: bool
):
    """Records arrive again at 11 s, and nothing is late at 14 s. A task receives 1000 bytes per second meanwhile. What a latency delays is
    late by that alone, unless a sender lacks credit for more than half of the time. Those of another attempt before do not count."""
    built = history.empty()
    row = {"vertex": "map", "role": "operator", "attempt": 1}
    for tick in range(31):
        built.add("tm-1-1", "tasks", 11 + tick / 10, task="map-0", bytes_in=5000 + 100 * tick, **row)
        built.add("tm-0-1", "tasks", 11 + tick / 10, task="map-1", bytes_in=100_000 * tick, **row)
    credit = [wait("credit", 11, 11 + credit_s, option="o")] if credit_s else []
    slow, span = replace(fault("a", 8, 20, kind), targets='["tm-1"]'), (at(11), at(14))
    entry = trial_entry({"faults": [{"name": "a", "params": params}]})
    size = FaultSizes(
        params={"a": params},
        delays=added_delays(entry),
        starved=bool(starved_words(credit, *span)),
        carried=carried_bytes(built.trial(), span, ["tm-1"]),
    )
    assert (limiting_fault([slow], span, ["tm-1"], size=size, own="") is slow) is limits
    assert carried_bytes(reduced(built.trial()), span, ["tm-1"]) == size.carried  # as Spark reads them


@pytest.mark.parametrize(
    ("behind", "places"),
    [
        ([], {"tm-0", "tm-1"}),
        (["left-0"], {"tm-0"}),
        (["right-0"], {"tm-0", "tm-1"}),
        (["source-0"], {"tm-0"}),
    ],
)
def test_what_is_behind_is_at_its_taskmanager_and_at_those_of_its_inputs(
    history: Any, behind: list[str], places: set[str]
):
    """One source feeds two sinks. Where a task ran before does not count."""
    built = history.empty()
    for attempt, t, ran in (
        (1, 10, {"left": "tm-1-1"}),
        (2, 12, {"source": "tm-0-1", "left": "tm-0-1", "right": "tm-1-1"}),
    ):
        for vertex, process in ran.items():
            role = "source" if vertex == "source" else "sink"
            built.add(process, "tasks", t, task=f"{vertex}-0", vertex=vertex, role=role, attempt=attempt)
    edges = [{"from": "source", "to": "left"}, {"from": "source", "to": "right"}]
    entry = trial_entry({"job": {"edges": edges}})
    assert places_of_behind(built.trial(), entry, (at(11), at(14)), behind) == places


def test_a_request_for_a_slot_that_expired_with_a_failure_did_not_end_its_round(history: Any):
    """The ResourceManager asks again, so the job waits on: its wait for all slots is what failed at 14 s."""
    slots = {"what": "job", "option": "slot.request.timeout", "value": "4 s"}
    asked = {"what": "tm-4", "option": "pekko.ask.timeout", "value": "5 s"}
    waits = [
        wait("slot", 10, 14, "expired", **slots),
        wait("slot", 9, 14, "expired", who=RM_NAME, **asked),
    ]
    failed = cause(14, "slot")
    rounds = (
        RoundSpan(at(8), at(14), cause(9.5), failed),
        RoundSpan(at(14), at(16), failed, running=at(16)),
    )
    outage = Outage(fault("a", 8, 9), at(8), at(16), rounds, True)
    found = answered(outage, waits, trial=history.empty().trial())
    assert found.rounds[0].segments[-1].option == "slot.request.timeout"


@pytest.mark.parametrize("taskmanager", ["tm-3-1", "tm-0-1"])
def test_missing_heartbeats_own_the_end_of_a_round_that_another_failure_ended(history: Any, taskmanager: str):
    """The deployment to a TaskManager expired at 12 s. The heartbeats of tm-3-1 had been missing since 9.6 s, and failed the job at 14 s: no
    shorter timeout of the deployment would have changed that."""
    waits = [
        wait("deployment", 10, 12, "expired", option="pekko.ask.timeout"),
        wait("heartbeat", 9.6, 14, "expired", who="JobMaster", what="tm-3-1", option="heartbeat.timeout"),
    ]
    spent, lost = (
        cause(12, "deployment", taskmanager=taskmanager),
        cause(14, "heartbeat", taskmanager="tm-3-1"),
    )
    rounds = (
        RoundSpan(at(8), at(12), cause(9.5), spent),
        RoundSpan(at(12), at(14), spent, lost),
        RoundSpan(at(14), at(16), lost, running=at(16)),
    )
    found = answered(
        Outage(fault("a", 8, 9), at(8), at(16), rounds, True), waits, trial=history.empty().trial()
    )
    assert parts(found)[-1] == ("heartbeat", pytest.approx(12 - 9.6))
    assert parts(found, 1) == [("heartbeat", 2)]


@pytest.mark.parametrize(("plane", "expected"), [("data", ("a", 1)), ("rpc", ("catch-up", 1.2))])
def test_a_fault_that_holds_up_no_data_does_not_hold_up_the_catch_up(
    history: Any, plane: str, expected: tuple[str, float]
):
    """Records arrive again at 11 s, and nothing is late at 12.2 s. The fault lasts until 12 s."""
    rounds = (RoundSpan(at(8), at(12.2), cause(9.5), running=at(11)),)
    cut = replace(fault("a", 8, 12, "network.partition"), plane=plane)
    outage = Outage(cut, at(8), at(12.2), rounds, True, at(12.2))
    assert expected in parts(answered(outage, [], trial=history.empty().trial()))


@pytest.mark.parametrize(
    ("faults", "latency", "expected"),
    [
        ([(8, 12)], 0, [1, 0.2]),
        ([(8, 11.95)], 0, [0.95, 0.25]),
        ([(8, 11.94)], 0, None),  # the job had more to do
        ([(8, 12.2)], 0, [1.2]),
        ([(8, 12.21)], 0, None),  # it lasts
        ([(8, 11)], 0, None),  # it had ended when records arrived again
        ([(11, 12)], 0, None),
        ([(10.9, 12)], 0, [1, 0.2]),
        ([(8, None)], 0, None),
        ([(8, 11.45)], 0.5, [0.95, 0.25]),  # what it delayed arrives later
        ([(8, 11.44)], 0.5, None),
        ([(8, 11.8)], 0.5, [1.2]),
        ([(8, 12), (8, 12.1)], 0, [1.1, 0.1]),  # the last one to end
        ([(8, 12.1), (8, 12)], 0, [1.1, 0.1]),
    ],
)
def test_a_catch_up_that_ends_with_a_fault_on_the_exchange_had_waited_for_its_end(
    history: Any, faults: list[tuple[float, float | None]], latency: float, expected: list[float] | None
):
    """Records arrive again at 11 s, and nothing is late at 12.2 s, which may show a quarter of a second later."""
    rounds = (RoundSpan(at(8), at(12.2), cause(9.5), running=at(11)),)
    slow = [fault(name, *span, "network.latency") for name, span in zip("ab", faults, strict=False)]
    outage = Outage(None, at(8), at(12.2), rounds, True, at(12.2))
    for recovered in (True, False):
        known = replace(outage, recovered=recovered, caught_up=at(12.2) if recovered else None)
        found = answered(known, [], trial=history.empty().trial(), others=slow, params={"latency_s": latency})
        own = [s for s in found.rounds[0].segments if s.kind == "catch-up"]
        assert [round(s.seconds, 6) for s in own] == (expected if recovered and expected else [1.2])
        ends = [s.text for s in own if s.text.startswith("end of the fault")]
        assert len(ends) == bool(recovered and expected)


def test_what_was_received_after_the_records_returned_is_no_part_of_the_first_replay(history: Any):
    """Records arrive again at 11 s, and the job fails again at 15 s. The checkpoint is 1 s older than the effect."""
    rounds = (
        RoundSpan(at(8), at(15), cause(9.5), cause(15), running=at(11)),
        RoundSpan(at(15), at(18), cause(15), running=at(18)),
    )
    found = answered(Outage(fault("a", 8, 9), at(8), at(18), rounds, True), [], trial=history.good())
    assert found.rounds[0].segments[-1].detail == "backlog of 4.00 s, 980 ms of it replayed"


@pytest.mark.parametrize(
    ("completed", "backlog"),
    [(None, "backlog of 8.00 s"), (11.5, "backlog of 8.00 s"), (7, "backlog of 3.00 s")],
)
def test_without_a_completed_checkpoint_everything_is_replayed(
    history: Any, completed: float | None, backlog: str
):
    """The job was created at 3 s, the effect is at 8 s, and records arrive again at 11 s. Nothing was restored."""
    built = history.empty()
    built.event("job.state", "job", 3, data={"from": "CREATED", "to": "RUNNING"})
    if completed is not None:
        built.add("jobmanager-1", "checkpoints", completed, checkpoint=1, state="completed")
    rounds = (RoundSpan(at(8), at(12), cause(9.5), running=at(11)),)
    outage = Outage(fault("a", 8, 9), at(8), at(12), rounds, True, at(12))
    found = answered(outage, [], trial=built.trial(), interval="20 s")
    assert found.rounds[0].segments[-1].detail.partition(",")[0] == backlog


@pytest.mark.parametrize(
    ("waits", "owner"),
    [
        ([wait("slot", 10, 26), wait("partition", 12, 26), wait("credit", 9.6, 26)], "slot"),
        ([wait("slot", 9.496, 26), wait("partition", 12, 26)], "slot"),
        ([wait("slot", 9.494, 26), wait("partition", 12, 26)], "partition"),
        ([wait("slot", 10, 19), wait("partition", 12, 20)], "partition"),
        ([wait("restart-delay", 11, 26)], "restart-delay"),
    ],
)  # fmt: skip
def test_a_job_that_is_not_running_at_the_end_waits_for_what_lasts(
    history: Any, waits: list[Wait], owner: str
):
    """The wait of this round that began first, if its kind is one before a first record. The record ends at 20 s."""
    outage = Outage(fault("a", 9.5, 10), at(9.5), at(20), (RoundSpan(at(9.5), at(20), cause(9.5)),), False)
    found = answered(outage, waits, trial=history.empty().trial())
    assert found.rounds[0].segments[-1].kind == owner


def test_a_job_that_fails_for_good_after_several_rounds_has_failed(history: Any):
    """The last failure decides."""
    end = replace(cause(14), terminal=True)
    rounds = (RoundSpan(at(8), at(12), cause(9.5), cause(12)), RoundSpan(at(12), at(14), cause(12), end))
    found = answered(Outage(None, at(8), at(14), rounds, False), [], trial=history.empty().trial())
    assert (found.reason, found.rounds[-1].failure) == (JOB_FAILED, "at 14")


def test_a_busy_jobmanager_owns_the_time_until_it_hears_of_a_request_that_expired(history: Any):
    """The ask timed out at 12 s, which it learns at 14 s. Without a service time the failure report owns that."""
    expired = wait("jobmanager", 9.5, 12, "expired", option="pekko.ask.timeout", value="2 s")
    failed = cause(14, "jobmanager", cause_class="java.util.concurrent.TimeoutException")
    rounds = (
        RoundSpan(at(9.5), at(14), cause(9.5), failed),
        RoundSpan(at(14), at(15), failed, running=at(15)),
    )
    outage = Outage(None, at(9.5), at(15), rounds, True)
    found = answered(outage, [expired], trial=history.empty().trial(), service_time="100 ms")
    first, second = found.rounds[0].segments
    assert (first.option, first.seconds) == ("pekko.ask.timeout", 2.5)
    assert (second.text, second.seconds, second.outcome) == (f"{SERVICE_TIME} = 100 ms", 2, "completed")


def test_a_busy_jobmanager_owns_the_steps_that_it_does(history: Any):
    """Cancellation, slots and deployment; tasks connect by themselves."""
    configuration = history.entry().configuration | {SERVICE_TIME: "100 ms"}
    trial = history.without("waits")
    (found,) = trial_recovery(trial, history.entry(configuration=configuration)).recoveries
    texts = {s.kind: s.text for s in found.rounds[0].segments}
    assert {k for k, text in texts.items() if text == f"{SERVICE_TIME} = 100 ms"} >= {
        "cancellation",
        "slot",
        "deployment",
    }
    assert texts["partition"] == "connections and partition requests"


@pytest.mark.parametrize(
    ("waits", "option"),
    [
        ([("partition", 10, 13.024, "a"), ("deployment", 9, 13, "b")], "a"),
        ([("partition", 10, 13.026, "a"), ("deployment", 9, 13, "b")], "b"),
        ([("partition", 10, 12.76, "a"), ("deployment", 9, 13, "b")], "a"),
        ([("partition", 12.95, 13, "a"), ("partition", 12.9, 12.9, "b")], "a"),
        ([("partition", 10, 13, "a"), ("partition", 9.5, 13, "b")], "b"),
        ([("partition", 10, 13, "a"), ("partition", 7, 7.9, "b")], "a"),
    ],
)
def test_a_failed_round_belongs_to_the_wait_that_ended_from_250_ms_before_it_to_25_ms_after_it(
    history: Any, waits: list[Any], option: str
):
    """The failure names a partition. Of two that expired, the longer one."""
    recorded = [wait(kind, a, b, "expired", option=name, value="v") for kind, a, b, name in waits]
    rounds = (RoundSpan(at(8), at(13), cause(8), cause(13, "partition")), RoundSpan(at(13), at(14), cause(13), running=at(14)))  # fmt: skip
    found = answered(Outage(None, at(8), at(14), rounds, True), recorded, trial=history.empty().trial())
    assert [s.option for s in found.rounds[0].segments if s.option] == [option]


def test_a_wait_that_ended_5_ms_after_the_recovery_has_a_margin():
    """Two processes record the same moment that far apart."""
    waits = [wait("slot", 9, t, option=f"{t}", value="v", budget_ns=5 * NS) for t in (10.005, 10.006)]
    assert [m.option for m in margins(waits, at(8), at(10))] == ["10.005"]


def test_a_report_that_a_busy_jobmanager_answers_after_the_start_has_a_margin():
    """Records flow while the JobMaster still learns that the tasks run. A report of a later failure belongs to that one."""
    waits = [
        wait("jobmanager", begun, 19, option=f"from {begun}", value="v", budget_ns=10 * NS)
        for begun in (9.9, 10.5)
    ]
    assert [m.option for m in margins(waits, at(8), at(10))] == ["from 9.9"]


def test_a_fault_prolongs_the_first_recovery_that_blames_it():
    """Only one that cost nothing by itself. A recovery of its own that lasted is kept."""

    def recovery(name: str, start: float, end: float, blamed: str = "", **more: Any) -> Recovery:
        prices = (Price(text="t", seconds=1, kind="slot", fault=blamed),) if blamed else ()
        return Recovery(fault=name, effect_ns=at(start), end_ns=at(end), prices=prices, **more)

    effects = [fault("idle", 2, 20), fault("first", 5, 6), fault("second", 8, 9)]
    idle, first = recovery("idle", 2, 2), recovery("first", 5, 5.5, "idle")
    found = _with_prolonging_faults([idle, first, recovery("second", 8, 9, "idle")], effects)
    assert [r.faults for r in found] == [("first", "idle"), ("second",)]
    found = _with_prolonging_faults([first, recovery("second", 8, 9, "first")], effects)
    assert [r.faults for r in found] == [("first",), ("second",)]
    later = recovery("second", 8, 9, shared=(_shared(effects[1], at(8)),))
    assert len(_with_prolonging_faults([first, later], effects)) == 2
    found = _with_prolonging_faults([replace(idle, recovered=False), first], effects)
    assert [r.faults for r in found] == [("idle",), ("first",)]
    again = [idle, recovery("first", 5, 5.5), recovery("idle", 12, 14, "idle")]
    assert [r.faults for r in _with_prolonging_faults(again, effects)] == [("first",), ("idle",)]


@pytest.mark.parametrize(("share", "starved"), [(0.45, True), (0.55, False)])
def test_a_task_is_starved_if_it_receives_less_than_half_of_what_is_usual(
    history: Any, share: float, *, starved: bool
):
    """The sinks receive the usual rate until 8 s, and then nothing."""
    trial, entry = history.good(), history.entry()
    paths = _Paths(trial, entry, [], windows(trial, entry))
    assert paths._starved([(history.at(8 - share), history.at(9 - share))]) is starved
