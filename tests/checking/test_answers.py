"""Answers that earlier versions got wrong: the option that ended a job, waits that a record lacks, and what a lower value saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.catchup import CatchUp
from testbed_runtime.checking.common import JobShape, windows
from testbed_runtime.checking.failovers import check_failovers
from testbed_runtime.checking.prices import margins, prices
from testbed_runtime.checking.progress import Progress
from testbed_runtime.checking.steps import failing_at_once, next_checkpoints
from testbed_runtime.checking.unrecorded import lost_waits
from testbed_runtime.checking.waits import read_waits
from testbed_runtime.core.job.restart import restart_limit
from testbed_runtime.core.judgement.metrics import JOB_FAILED
from testbed_runtime.core.judgement.recovery import Recovery, Segment
from testbed_runtime.core.options import Options
from testbed_runtime.core.waits import Outcome, Wait
from testbed_runtime.report.answer import headline
from tests.checking.test_catchup import NS, STEP, lagging
from tests.checking.test_outages import END, at, fault
from tests.checking.test_recovery_path import DELAY, path, segments, wait
from tests.manifests import trial_entry

CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}
HEARTBEAT: dict[str, Any] = {"option": "heartbeat.timeout", "value": "2 s"}


@pytest.mark.parametrize(
    ("version", "options", "limit"),
    [
        ("1.20", {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "20"}, "restart-strategy.fixed-delay.attempts = 20"),
        ("1.20", {"restart-strategy.type": "failure-rate"}, "restart-strategy.failure-rate.max-failures-per-interval = 1"),
        ("1.20", {"restart-strategy.type": "none", **CHECKPOINTS}, "restart-strategy.type = none"),
        ("1.20", {}, "restart-strategy.type = none"),
        # without a type, what is set for a strategy has no effect
        ("2.x", {**CHECKPOINTS, "restart-strategy.exponential-delay.attempts-before-reset-backoff": "3"}, "restart-strategy.exponential-delay.attempts-before-reset-backoff = 2147483647"),
        ("1.18", {"restart-strategy.type": "exponential-delay"}, ""),
        ("1.18", CHECKPOINTS, ""),
    ],
)  # fmt: skip
def test_a_job_that_may_not_restart_names_the_option(version: str, options: dict[str, str], limit: str):
    """Each strategy has its own. Until 1.18 the exponential one and the default with checkpoints never give up."""
    assert restart_limit(Options(options, flink_version=version)) == limit


@pytest.mark.parametrize(
    ("total_s", "restarts", "expected"),
    [
        (0.006, 20, "the job failed 6.00 ms after `f`, after 20 restarts (o = 1 allows no more restarts)"),
        (0.0, 1, "the job failed after `f`, after 1 restart (o = 1 allows no more restarts)"),
        (0.0, 0, "the job failed after `f` (o = 1 allows no more restarts)"),
    ],
)
def test_a_failed_job_says_how_many_restarts_it_had(total_s: float, restarts: int, expected: str):
    """With a delay of 0 s, all attempts may be spent within milliseconds."""
    found = Recovery(
        fault="f", effect_ns=0, end_ns=round(total_s * NS), recovered=False, reason=JOB_FAILED,
        restarts=restarts, limit="o = 1",
    )  # fmt: skip
    assert headline(found) == expected


@pytest.mark.parametrize(("number", "expected"), [(2, []), (3, ["restarts that failed at once"])])
def test_restarts_that_follow_each_other_at_once_are_one_step(history: Any, number: int, expected: list[str]):
    """A failure that two tasks report begins no third restart. One that comes later is not part of them."""
    built = history.empty()
    for n in range(number):
        built.event("failover.started", str(n + 1), 3 + n / 100)
    built.event("failover.started", "9", 3.2)
    found = failing_at_once(built.trial(), at(3), at(5))
    assert [w.cause for w in found] == expected
    assert all((w.start_ns, w.end_ns) == (at(3), at(3.02)) for w in found)


def test_a_restart_whose_failure_was_merged_too_late_is_not_counted(history: Any):
    """Flink's `numRestarts` leaves it out. A history of an earlier version does not say it, and counts."""
    built = history.empty()
    for number, more in enumerate(({}, {"counted": True}, {"counted": False}), 1):
        built.event("failover.started", str(number), 3.0 + number, data=more)
    assert check_failovers(built.trial()).count == 2


@pytest.mark.parametrize(
    ("kind", "blamed"), [("rpc.delay", True), ("store.slow", True), ("frames.drop", False)]
)
def test_the_fault_that_delays_a_submission_owns_it(history: Any, kind: str, blamed: bool):
    """The JobManager works at its messages, or writes the job to a slow store."""
    built = history.empty()
    built.event("job.submitted", "", 1.0)
    built.event("job.state", "job", 4.0, data={"from": "CREATED", "to": "RUNNING"})
    slow = fault("slow", 0.5, 20.0, kind, "jobmanager")
    found = read_waits(built.trial(), trial_entry(), [slow], at(END))
    assert [(w.kind, w.who, w.fault) for w in found] == [("jobmanager", "runner", "slow" if blamed else "")]
    words = "the JobManager to create the job"
    assert found[0].cause == (f"{words}, during the fault `slow`" if blamed else words)


def test_a_lost_restart_delay_has_the_value_in_force(history: Any):
    """The JobManager was killed in the third restart, whose delay had grown to 4 s."""
    key = "restart-strategy.exponential-delay.initial-backoff"
    entry = trial_entry(
        {
            "configuration": {"restart-strategy.type": "exponential-delay", key: "1 s"},
            "flinkVersion": "2.x",
        }
    )
    built = history.empty()
    built.event("failover.started", "3", 5.0, data={"delay_option": key, "delay_s": 4.0})
    built.event("failover.cancelled", "3", 5.1)
    built.event("process.exit", "jobmanager-1", 7.0)
    (found,) = lost_waits(built.trial(), entry, at(END))
    assert (found.kind, found.cause) == ("restart-delay", f"{key} = 1 s, now 4 s")


def test_each_restart_in_which_the_jobmanager_was_killed_has_its_lost_wait(history: Any):
    """The first restart waits for slots, the second one is complete, the fourth one took the task of the third one and waits for its
    delay."""
    delay = {"delay_option": "restart-strategy.fixed-delay.delay", "delay_s": 9.0}
    built = history.empty()
    for number, t, region in (
        ("1", 1.0, ["a-0", "b-0"]),
        ("2", 2.0, ["c-0"]),
        ("3", 5.0, ["b-0"]),
        ("4", 6.0, ["b-0"]),
    ):
        built.event("failover.started", number, t, data={**delay, "region": region})
        built.event("failover.cancelled", number, t + 0.1)
    built.event("task.state", "a-0", 3.0, data={"from": "CREATED", "to": "SCHEDULED"})
    for kind in ("failover.slots", "failover.deployed"):
        built.event(kind, "2", 3.0)
    built.event("process.exit", "jobmanager-1", 7.0)
    found = lost_waits(built.trial(), trial_entry({"configuration": {}, "flinkVersion": "2.x"}), at(END))
    assert [(w.kind, w.start_ns, w.end_ns) for w in found] == [
        ("slot", at(3.0), at(END)),
        ("restart-delay", at(6.0), at(END)),
    ]
    assert len({w.wait for w in found}) == 2


def test_a_sink_behind_a_window_is_not_behind_between_two_windows():
    """A window ends each 2 s. The result of that until 4 s comes at 5 s and, late, at 5.2 s; that until 6 s comes in time. Without a
    limit for what is late, or with the next one late too, the sink is behind until it comes."""
    t_ns = np.arange(100, dtype=np.int64) * STEP
    came = [(20, 20), (50, 40), (52, 40), (60, 60), (80, 80)]  # the steps in which results came, and were due
    distinct, reached = np.zeros(100), np.zeros(100, dtype=np.int64)
    for tick, due in came:
        distinct[tick:] += 1
        reached[tick:] = due * STEP
    one = Progress("sink-0", "sink", t_ns, distinct, reached, usual_gap_ns=2 * NS)
    times = np.asarray([50, 51, 52, 59, 60], dtype=np.int64) * STEP
    assert one.lag_at(times, tolerated_s=0.2).tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0, 0.0])
    assert one.lag_at(times).tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.0])
    early = Progress("sink-0", "sink", t_ns, distinct, reached, usual_gap_ns=NS // 2)
    assert early.lag_at(times, tolerated_s=0.2).tolist() == pytest.approx([1.0, 1.0, 1.0, 1.4, 0.0]), (
        "it came later than usual"
    )
    again = replace(early, restarted_ns=(55 * STEP,))
    assert again.lag_at(times, tolerated_s=0.2).tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0, 0.0]), (
        "another attempt would have got what was missing first"
    )
    replayed = replace(early, restarted_ns=(45 * STEP,), usual_gap_ns=3 * NS // 10)
    assert replayed.lag_at(times, tolerated_s=0.2).tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0, 0.0])
    rare = replace(early, usual_gap_ns=None)
    assert rare.lag_at(times, tolerated_s=0.2).tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0, 0.0])
    reached[60:80] = 55 * STEP
    assert one.lag_at(times, tolerated_s=0.2)[:4].tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0])
    last = np.asarray([52], dtype=np.int64) * STEP
    short = replace(rare, t_ns=t_ns[:55], distinct=distinct[:55], reached_ns=reached[:55])
    assert short.lag_at(last, tolerated_s=0.2).tolist() == [0.0], "silence means nothing"
    assert replace(short, usual_gap_ns=NS // 2).lag_at(last, tolerated_s=0.2)[0] == pytest.approx(1.0)


def test_many_subtasks_have_caught_up_although_one_of_them_is_always_a_little_late():
    """Each is late once per half second, at different times, after it had caught up by itself."""
    late = [
        [1.0] * 5 + [0.0] * 5 + ([0.0] * 2 + [1.0] + [0.0] * 2) * 6,
        [1.0] * 7 + [0.0] * 6 + [1.0, 0.0, 0.0] * 9,
    ]
    found = CatchUp(tuple((lagging(one), 0.5) for one in late), 39 * STEP)
    assert found.since(0) == 7 * STEP
    assert CatchUp(((lagging(late[0]), 0.5), (lagging([1.0] * 40), 0.5)), 39 * STEP).since(0) is None


@pytest.mark.parametrize(("again", "moment"), [(5, 12), (6, 16), (40, None)])
def test_a_subtask_that_falls_behind_again_before_the_last_one_has_caught_up_is_behind(
    again: int, moment: int | None
):
    """One is good for 1 s, and late for one sample less than follows; the other is good from 1.2 s on. Less than 0.5 s is no backlog."""
    first = ([0.0] * 10 + [1.0] * again + [0.0] * 40)[:40]
    found = CatchUp(((lagging(first), 0.5), (lagging([1.0] * 12 + [0.0] * 28), 0.5)), 39 * STEP)
    assert found.since(0) == (None if moment is None else moment * STEP)


def test_a_job_is_behind_while_a_task_waits_for_an_input():
    """The sinks receive the records of the other source, and are not late."""
    found = CatchUp(((lagging([0.0] * 40), 0.5),), 39 * STEP, held=((10 * STEP, 20 * STEP),))
    assert found.since(5 * STEP) == 5 * STEP
    assert found.since(10 * STEP) == found.since(15 * STEP) == 20 * STEP
    assert not found.good_between(19 * STEP, 20 * STEP)


def test_spans_in_which_tasks_wait_are_joined(history: Any):
    """Those of less than half a second do not count."""
    trial, entry = history.good(), history.entry()
    held = [(at(3), at(5)), (at(4), at(4.6)), (at(5), at(6)), (at(7), at(7.4)), (at(8), at(9))]
    found = CatchUp.read(trial, entry, windows(trial, entry), at(END), held=held)
    assert found.held == ((at(3), at(6)), (at(8), at(9)))


def test_a_lower_value_waits_for_the_owner_of_the_wait_that_decides_then():
    """The cancellation ends when the loss of a TaskManager is noticed; a TaskManager that the same option delays comes earlier too."""
    first = wait("replacement", 0, 6, Outcome.FIRED, option="replaceLost", value="6 s", what="tm-2")
    last = wait("replacement", 1, 7, Outcome.FIRED, option="replaceLost", value="6 s", what="tm-0", wait="r")
    lost = wait("heartbeat", 0, 2, Outcome.EXPIRED, **HEARTBEAT)
    waits = [
        lost, wait("cancellation", 2, 2.1), first, last, wait("registration", 6, 6.01, what="tm-2"),
        wait("registration", 7, 7.01, what="tm-0"), wait("slot", 2.1, 7.1),
    ]  # fmt: skip
    found = [s for s in segments(waits, 7.1, detected=2) if s.kind == "replacement"]
    assert [(s.what, s.next) for s in found] == [
        ("tm-2", "heartbeat.timeout = 2 s"),
        ("tm-0", "heartbeat.timeout = 2 s"),
    ]
    assert found[-1].slack_ns == pytest.approx(5 * NS, abs=NS / 5)


def test_a_pause_owns_what_it_adds_to_a_restart_delay():
    """The delay of 3 s would have ended at 4 s; the JobManager stood still from 2 to 8 s."""
    waits = [
        wait("connection", 0, 1),
        wait("restart-delay", 1, 8, Outcome.FIRED, budget_ns=3 * NS, wait="jobmanager-1/1", **DELAY),
        wait("jobmanager", 2, 8, who="everything", what="jobmanager"),
    ]
    assert path(waits, 8, detected=1) == [("connection", 1), ("restart-delay", 1), ("jobmanager", 6)]


def test_a_pause_within_an_iteration_is_not_part_of_its_supersteps():
    """Each superstep needs every task."""
    waits = [wait("iteration", 0, 9, who="loop-0"), wait("stalled", 4, 7, who="everything", what="tm-3")]
    assert path(waits, 9) == [("iteration", 4), ("stalled", 3), ("iteration", 2)]


def test_the_cancellation_of_a_region_has_no_margin():
    """`task.cancellation.timeout` counts in a TaskManager, and not from the JobMaster's decision."""
    limit: dict[str, Any] = {"option": "task.cancellation.timeout", "value": "3 s", "budget_ns": 3 * NS}
    own = wait("cancellation", 1, 2, who="source-0", **limit)
    waits: list[Wait] = [wait("cancellation", 0, 12, **limit), own]
    assert [(m.who, m.waited_s) for m in margins(waits, 0, 20 * NS)] == [("source-0", 1.0)]


def test_a_fault_has_one_price_whatever_it_held_up():
    """The detail is that of its longest part."""

    def part(start: int, end: int, detail: str, fault: str = "f") -> Segment:
        return Segment(
            kind="fault", phase="", start_ns=start * NS, end_ns=end * NS, text="t", detail=detail, fault=fault
        )

    assert [(p.seconds, p.detail, p.count) for p in prices([part(0, 1, "a"), part(1, 4, "b")])] == [
        (4.0, "b", 1)
    ]
    assert len(prices([part(0, 1, "a", ""), part(1, 4, "b", "")])) == 2


def test_an_outage_begins_with_its_fault_also_in_a_start(history: Any):
    """The fault comes 2 s after the submission, and the first record at 6 s. The start itself begins with the submission."""
    built = history.empty()
    history.sample(built, failover=False)
    built.event("job.state", "job", 0.0, data={"from": "CREATED", "to": "RUNNING"})
    for sink in (0, 1):
        built.event("sink.first-record", f"sink-{sink}", 6.0, attempt=0, data={"latency_ns": NS})
    for t, state in ((2.0, "injected"), (2.1, "verified"), (4.0, "ended")):
        built.add(
            "supervisor", "faults", t, fault="kill", kind="process.pause", state=state, targets=["tm-1"]
        )
    found = trial_recovery(built.trial(), history.entry())
    assert found.start is not None
    assert (found.start.effect_ns, found.recoveries[0].effect_ns) == (at(0), at(2))
    assert found.recoveries[0].rounds[0].start_ns == at(2)
    assert found.recoveries[0].downtime_s == pytest.approx(4.0)


def test_a_sink_behind_windows_only_waits_for_their_ends():
    """A sink that another path leads to as well does not, and a window beside its path is none of them."""
    edges = [("s", "w"), ("w", "a"), ("s", "v"), ("v", "b"), ("s", "b"), ("w", "v")]
    shape = JobShape(
        dict.fromkeys("swvabc", 1), tuple((one, other, "hash") for one, other in [*edges, ("v", "c")]),
        ("s",), ("a", "b", "c"), frozenset("wv"),
    )  # fmt: skip
    assert [shape.windows_before(sink) for sink in "abc"] == [("w",), (), ("v", "w")]


@pytest.mark.parametrize(
    ("triggered", "expected"),
    [
        ((2.0, 4.0), [(3.0, 4.0)]),
        ((2.0, 4.3), []),
        ((4.0,), []),
        ((2.0,), []),
        ((2.0, 4.0, 6.0, 8.0), [(3.0, 4.0), (4.0, 6.0)]),  # one more is tolerated
        ((2.0, 4.3, 6.3), [(4.3, 6.3)]),
    ],
)
def test_the_interval_owns_the_time_until_each_next_checkpoint(history: Any, triggered: Any, expected: Any):
    """The store fails at 3 s and the job at 7 s. One that another option delayed, or the first one, says nothing of the interval."""
    built, key = history.empty(), "execution.checkpointing.interval"
    for number, t in enumerate(triggered):
        built.add("jobmanager-1", "checkpoints", t, checkpoint=number, state="triggered")
    found = next_checkpoints(built.trial(), trial_entry({"configuration": {key: "2 s"}}), at(3), at(7))
    assert [(w.start_ns, w.end_ns) for w in found] == [(at(a), at(b)) for a, b in expected]
    assert {(w.option, w.value) for w in found} <= {(key, "2 s")}
