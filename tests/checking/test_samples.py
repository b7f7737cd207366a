"""The sums of the samples and events of a trial: processor time, busy time, throughput, clocks, missing rows and steadiness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from testbed_runtime.checking.baseline import noise, offered_rate, rolling, steady_since, with_noise
from testbed_runtime.checking.busyness import TaskTimes, reached_source_s
from testbed_runtime.checking.checkpoints import check_checkpoints
from testbed_runtime.checking.clocks import clock_difference
from testbed_runtime.checking.common import JobShape, Window, task_series, windows
from testbed_runtime.checking.completeness import delivery_incomplete, missing_rows
from testbed_runtime.checking.cpu import CpuPerRecord, Spent, cpu_per_record, spent_of
from testbed_runtime.checking.progress import Progress, sinks_of
from testbed_runtime.checking.recovery import check_recovery, has_failover
from testbed_runtime.core.judgement.metrics import NO_BASELINE, NOT_RECOVERED, OBSERVATION_TOO_SHORT
from testbed_runtime.core.judgement.recovery import Recovery, Round, TrialRecovery
from tests.manifests import trial_entry

NS = 1_000_000_000


def subtask(moments: list[float], counts: list[float]) -> Progress:
    t_ns = np.asarray([round(t * NS) for t in moments], dtype=np.int64)
    return Progress("sink-0", "sink", t_ns, np.asarray(counts, dtype=np.float64), t_ns)


# ---- processor time


def test_processor_time_is_that_of_the_records_that_arrived(history: Any):
    """Two TaskManagers spend 0.1 s and 0.3 s a second, and send 10 and 30 buffers. 1,000 records arrive in each second."""
    built = history.empty()
    for t in (0, 3, 1):
        for process, share in (("tm-0-1", 1), ("tm-1-1", 3)):
            built.event("cpu.spent", process, t, data={"seconds": share * t / 10, "buffers": share * 10 * t})
        built.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", records_in=1000 * t, lag_ns=0)  # fmt: skip
    trial, window = built.trial(), Window(history.at(1), history.at(3))
    spent, sinks = spent_of(trial), sinks_of(trial)
    assert [s.seconds[-1] for s in spent] == pytest.approx([0.3, 0.9])
    found = cpu_per_record(spent, sinks, window)
    assert isinstance(found, CpuPerRecord)
    assert (found.seconds, found.buffers) == pytest.approx((0.0004, 0.04))
    assert cpu_per_record([], sinks, window) is None
    assert cpu_per_record(spent, [], window) is None
    assert cpu_per_record(spent, sinks, Window(history.at(4), history.at(5))) is None, "no record arrived"


def test_nothing_was_spent_before_the_first_sample():
    """A TaskManager that starts in the window has spent all of it there."""
    assert Spent([NS, 2 * NS], [0.5, 1.0], [100, 200]).within(Window(0, NS)) == (0.5, 100)


# ---- busy times


def test_busy_time_is_the_growth_of_the_counters_of_each_attempt(history: Any):
    """1 of 4 ns in the first attempt and 3 of 4 ns in the second: a half. The window begins with its first sample."""
    built = history.empty()
    for t, attempt, busy, idle in ((1, 0, 0, 0), (2, 0, 10, 5), (3, 0, 11, 8), (4, 1, 0, 0), (5, 1, 3, 1)):
        built.add("tm-0-1", "tasks", t, task="count-0", vertex="count", role="operator", attempt=attempt, busy_ns=busy, idle_ns=idle)  # fmt: skip
    times = TaskTimes.read(built.trial())
    for span, busy in (((2, 6), 0.5), ((2, 4), 0.25), ((4, 6), 0.75)):
        (count,) = times.within(Window(history.at(span[0]), history.at(span[1])))
        assert (count.backpressured, count.busy, count.idle) == (0, busy, 1 - busy)
    assert times.within(Window(history.at(7), history.at(9))) == []
    assert TaskTimes.read(history.empty().trial()).within(Window(0, history.at(9))) == []


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [
        ([(2.5, 0.1), (3.0, 0.3), (3.5, 0.3)], 0.0),  # it waited when the first record arrived
        ([(2.5, 0.1), (3.5, 0.1), (4.0, 0.3)], 0.8),  # it had waited before, for something else
        ([(3.1, 0), (4.0, 0)], None),
    ],
)
def test_back_pressure_reaches_a_source_when_it_waits_after_the_first_record(
    history: Any, samples: list[tuple[float, float]], seconds: float | None
):
    """The record arrived at 3 s. Each row has samples with the time waited so far."""
    built = history.empty()
    built.event("sink.first-record", "sink-0", 3.0, attempt=0)
    for t, waited in samples:
        built.add("tm-0-1", "tasks", t, task="source-0", vertex="source", role="source", backpressured_ns=round(waited * NS))  # fmt: skip
    assert reached_source_s(built.trial()) == (None if seconds is None else pytest.approx(seconds))


# ---- throughput


def test_a_sink_had_received_nothing_before_its_first_sample(history: Any):
    """Neither a subtask nor an attempt. The series of all roles are those of every task."""
    one = subtask([5, 8], [300, 600])
    assert rolling([one, subtask([], [])], np.asarray([2 * NS, 5 * NS])).tolist() == [100.0, 100.0]
    assert rolling([one], np.asarray([0, NS])).tolist() == [0.0, 0.0]
    built = history.empty()
    for task, role in (("sink-0", "sink"), ("count-0", "operator")):
        built.add("tm-0-1", "tasks", 5, task=task, vertex=task[:-2], role=role, records_in=7, lag_ns=0)
    every = task_series(built.trial())
    assert [s.task for s in every] == ["count-0", "sink-0"]
    assert [every[1].received_until(history.at(t)) for t in (4, 5)] == [0.0, 7.0]


def test_throughput_is_steady_over_three_seconds_within_the_span():
    """1,000 a second without any deviation; twice as much in the first second of another job."""
    even = subtask([0, 10], [0, 10_000])
    assert steady_since([even], Window(0, 3 * NS), 1000.0, 0.0) == 0
    assert steady_since([even], Window(0, 3 * NS - 1), 1000.0, 0.0) is None
    fast = subtask([0, 1, 10], [0, 2000, 11_000])
    assert steady_since([fast], Window(0, 10 * NS), 1000.0, 0.0) == NS
    assert steady_since([fast], Window(0, 3 * NS), 1000.0, 0.1) is None


def test_noise_needs_two_spans_of_three_seconds():
    """They begin 0.1 s after each other."""
    fast = subtask([0, 1, 10], [0, 2000, 11_000])
    assert noise([fast], Window(0, 3 * NS + NS // 10)) > 0
    assert noise([fast], Window(0, 3 * NS + NS // 10 - 1)) == 0


def test_the_offered_rate_counts_each_copy_of_a_record():
    """A broadcast to three subtasks, and another sink: four copies."""
    job = {
        "vertices": [{"name": "source", "role": "source", "recordsPerSecond": 100}, {"name": "a", "parallelism": 3, "role": "sink"}, {"name": "b", "role": "sink"}],
        "edges": [{"from": "source", "to": "a", "partitioning": "broadcast"}, {"from": "source", "to": "b"}],
    }  # fmt: skip
    assert offered_rate(trial_entry({"job": job})) == 400


def test_only_the_control_trials_of_fault_trials_are_read(history: Any):
    """Another variant has a control trial, and no fault trial yet."""
    entries = [history.entry(trial=f"{v}-control-1", variant=v, role="control", faults=[]) for v in ("main", "other")]  # fmt: skip
    read: list[str] = []

    def opened(entry: Any) -> Any:
        read.append(entry.trial)
        return history.good()

    found = with_noise([*entries, history.entry()], opened)
    assert read == ["main-control-1"]
    assert [e.noise is not None for e in found] == [False, False, True]


# ---- graphs and windows


def test_a_window_is_on_a_path_of_several_hops():
    """One source reaches the sink through it, the other one does not."""
    edges = (
        ("s", "a", "hash"),
        ("a", "w", "hash"),
        ("w", "b", "hash"),
        ("b", "k", "hash"),
        ("t", "b", "hash"),
    )
    vertices = dict.fromkeys(("s", "t", "a", "w", "b", "k"), 1)
    shape = JobShape(vertices, edges, ("s", "t"), ("k",), frozenset({"w"}))
    assert [shape.windowed("s", "k"), shape.windowed("t", "k")] == [True, False]


def test_the_judged_window_begins_with_the_fault_also_without_an_observation(history: Any):
    """The record ends with the drain, or else with its last phase."""
    spans = [{"name": n, "start_ns": a, "end_ns": b} for n, a, b in (("baseline", 0, 8), ("fault", 8, 24), ("observation", 24, 24))]  # fmt: skip
    drained = windows(
        history.empty().trial(),
        trial_entry({"phases": [*spans, {"name": "drain", "start_ns": 24, "end_ns": 25}]}),
    )
    assert (drained.judged, drained.end) == (Window(8, 24), 24)
    assert windows(history.empty().trial(), trial_entry({"phases": spans})).end == 24


# ---- clocks, checkpoints and missing rows


def test_clocks_differ_by_the_most_exact_offsets(history: Any):
    """The recorder's own clock is compared, too. A process that recorded no offset has the same one."""
    built = history.empty()
    for process, data in (
        ("tm-0-1", {"offset_s": 0.5, "uncertainty_s": 0.2}),
        ("tm-0-1", {"offset_s": 0.25, "uncertainty_s": 0.1}),
        ("tm-1-1", {"offset_s": -0.125, "uncertainty_s": 0.1}),
        ("tm-2-1", {}),
    ):
        built.event("clock.offset", process, 1, data=data)
    found = clock_difference(built.trial())
    assert found.seconds == 0.375
    assert found.text.startswith("tm-0-1 250 ms ahead of the recorder; tm-1-1 125 ms behind the recorder")
    built = history.empty()
    built.event("clock.offset", "tm-2-1", 1, data={})
    assert clock_difference(built.trial()).seconds == 0


def test_a_checkpoint_that_no_task_acknowledged_stored_nothing(history: Any):
    """The size of another one with the same id is not its own."""
    built = history.empty()
    built.add("jobmanager-1", "checkpoints", 1, checkpoint=1, state="completed", state_bytes=0)
    assert check_checkpoints(built.trial(), Window(history.at(0), history.at(8))).size_bytes == 0


def test_rows_that_a_process_shed_are_missing(history: Any):
    """A loss is not proven if it shed rows of `delivery`."""
    for table, incomplete in (("delivery", True), ("tasks", False)):
        built = history.empty()
        for rows in (2, 3):
            built.event("history.shed", "", 1, data={"table": table, "rows": rows})
        found = missing_rows(built.trial())
        assert found is not None
        text = f"jobmanager-1 shed 5 rows of {table}"
        assert (found.rows, found.text) == (5, text)
        assert delivery_incomplete(built.trial()) == (text if incomplete else "")


# ---- steady


@pytest.mark.parametrize(
    ("end", "rate", "seconds", "reason"),
    [
        (11.2, 1000, 0.8, ""),  # the backlog arrives until 12 s
        (21, 1000, 0.0, ""),
        (21.5, 1000, 2.5, OBSERVATION_TOO_SHORT),
        (24.5, 1000, 0.0, OBSERVATION_TOO_SHORT),
        (20, 500, 4.0, NOT_RECOVERED),
    ],
)
def test_a_throughput_is_steady_when_it_is_normal_again(
    history: Any, end: float, rate: int, seconds: float, reason: str
):
    """Three seconds have to follow the recovery, which ends before 24 s. With a reason, the time is a lower bound."""

    def slow(table: str, row: dict[str, Any]) -> dict[str, Any]:
        late = table == "tasks" and row["t_ns"] > history.at(13)
        lost = (row["t_ns"] - history.at(13)) / NS * (1000 - rate) if late else 0
        return row | {"records_in": row["records_in"] - round(lost)} if lost else row

    one = Recovery(fault="kill", effect_ns=history.at(8), end_ns=history.at(end), rounds=(Round(number=1, start_ns=history.at(8), end_ns=history.at(end)),))  # fmt: skip
    found = {p.name: p for p in check_recovery(history.good(slow), history.entry(), TrialRecovery(trial="t", recoveries=(one,)))}  # fmt: skip
    assert found["steady"].seconds == pytest.approx(seconds, abs=0.15 if seconds == 0.8 else 0)
    assert found["steady"].reason == reason
    without = check_recovery(history.empty().trial(), history.entry(), TrialRecovery(trial="t", recoveries=(one,)))  # fmt: skip
    assert [p.reason for p in without if p.name == "steady"] == [NO_BASELINE]


def test_a_recovery_has_a_failover_if_any_round_has():
    """The first start has none."""
    rounds = [
        Round(number=n, start_ns=0, end_ns=1, cause=cause) for n, cause in enumerate(("", "x"), start=1)
    ]
    assert has_failover(Recovery(fault="", effect_ns=0, end_ns=1, rounds=tuple(rounds)))
    assert not has_failover(Recovery(fault="", effect_ns=0, end_ns=1, rounds=tuple(rounds[:1])))
