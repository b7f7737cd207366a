"""Distinct records, lag that grows in silence, and the baseline that they are compared with."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from testbed_runtime.checking.baseline import (
    CALM_NS,
    Baseline,
    baseline_of,
    control_noise,
    cut,
    normal_lag,
    offered_rate,
    steady_share,
    steady_since,
    with_noise,
)
from testbed_runtime.checking.busyness import TaskTimes, level, reached_source_s, sampled_within
from testbed_runtime.checking.common import Window, windows
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.progress import (
    NOTHING,
    SAMPLE_NS,
    Progress,
    all_received,
    by_sink,
    goodput,
    last_arrival,
    progress_of,
    sinks_of,
)
from testbed_runtime.checking.recovery import milestones
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.judgement.metrics import NOT_RECOVERED
from testbed_runtime.core.judgement.recovery import Recovery, Round, Segment, TrialRecovery
from testbed_runtime.core.trial.manifest import TrialEntry

NS = 1_000_000_000


def sinks(trial: Any, history: Any) -> list[Progress]:
    """The progress of the sinks, with the usual gaps of the baseline."""
    return progress_of(trial, "sink", baseline=windows(trial, history.entry()).baseline)


def test_replayed_records_are_not_counted_again(history: Any):
    """An attempt restored from a checkpoint continues at the count of its predecessor at that checkpoint's barrier."""
    built = history.empty()
    for tick in range(80):
        built.add("tm-0-1", "tasks", tick / 10, task="sink-0", vertex="sink", role="sink", records_in=100 * tick, lag_ns=NS // 50)  # fmt: skip
    built.add("jobmanager-1", "checkpoints", 7.0, checkpoint=3, state="acknowledged", task="sink-0")
    built.event("task.restored", "sink-0", 9.0, attempt=1, checkpoint=3)
    for tick in range(100):
        late = max(2.0 - tick / 20, 0.02)
        built.add("tm-0-1", "tasks", 10 + tick / 10, task="sink-0", vertex="sink", role="sink", attempt=1, records_in=100 * tick, lag_ns=round(late * NS))  # fmt: skip
    (found,) = progress_of(built.trial(), "sink")
    assert found.received_until(history.at(8)) == 7900
    assert found.received_until(history.at(10)) == 7900
    assert found.received_until(history.at(10.5)) == 7900, "500 of the 900 replayed records"
    assert found.received_until(history.at(19)) == 7000 + 9000
    assert (np.diff(found.distinct) >= 0).all()


def test_two_attempts_may_continue_at_the_same_checkpoint(history: Any):
    """300 records before the checkpoint at 3 s. The attempt from 7 s on has received 200 more by 9 s, however far the one before it was."""
    built = history.empty()
    built.add("jobmanager-1", "checkpoints", 3.0, checkpoint=1, state="acknowledged", task="sink-0")
    for attempt, (begin, end) in enumerate(((0, 40), (50, 56), (70, 91))):
        if attempt:
            built.event("task.restored", "sink-0", begin / 10, attempt=attempt, checkpoint=1)
        for tick in range(begin, end):
            built.add("tm-0-1", "tasks", tick / 10, task="sink-0", vertex="sink", role="sink", attempt=attempt, records_in=10 * (tick - begin))  # fmt: skip
    (found,) = progress_of(built.trial(), "sink")
    assert [found.received_until(history.at(t)) for t in (3, 5.5, 9)] == [300, 390, 500]


def test_a_replaced_attempt_no_longer_counts_for_its_successors(history: Any):
    """It wrote samples until 5.9 s. The checkpoint at 5.5 s is of the attempt from 5 s on, which had 350 records by then."""
    built = history.empty()
    for number, t in ((1, 3.0), (2, 5.5)):
        built.add("jobmanager-1", "checkpoints", t, checkpoint=number, state="acknowledged", task="sink-0")
        built.event("task.restored", "sink-0", 5 * number, attempt=number, checkpoint=number)
    for attempt, (begin, end) in enumerate(((0, 60), (50, 57), (70, 101))):
        for tick in range(begin, end):
            built.add("tm-0-1", "tasks", tick / 10, task="sink-0", vertex="sink", role="sink", attempt=attempt, records_in=10 * (tick - begin))  # fmt: skip
    (found,) = progress_of(built.trial(), "sink")
    assert found.received_until(history.at(10)) == 350 + 300


def test_what_a_sample_after_a_gap_shows_arrived_in_its_own_period(history: Any):
    """No sample was written from 1 s to 2 s. The 50 records of the next one came in the last tenth. Before the first one, none had."""
    built = history.empty()
    for t, received in ((1.0, 100), (2.0, 150), (2.1, 160)):
        built.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", records_in=received)
    (found,) = progress_of(built.trial(), "sink")
    times = (0.5, 1.0, 1.9, 1.95, 2.0, 2.1, 9.0)
    assert [round(found.received_until(history.at(t))) for t in times] == [0, 100, 100, 125, 150, 160, 160]
    assert found.moments()[0].tolist() == [history.at(t) for t in (1.0, 2.0, 2.1)]
    assert found.last_ns is not None
    assert (found.last_ns == NOTHING).tolist() == [False, True, False, False], (
        "only the added sample shows no record"
    )


def test_the_progress_of_a_trial_is_computed_once_for_each_baseline(history: Any):
    """Six checks of a trial ask for it."""
    trial = history.good()
    (sink, other) = progress_of(trial, "sink")
    assert [one for one in progress_of(trial) if one.role == "sink"] == [sink, other]
    assert progress_of(trial, "sink")[0] is sink
    assert sinks(trial, history)[0] is not sink, "the gaps of another baseline"


def test_a_restart_without_a_checkpoint_replays_everything(history: Any):
    """Without `task.restored` the new attempt begins at 0, and nothing is new until it passes its predecessor."""
    (one, two) = sinks(history.without("events", kind="task.restored"), history)
    assert one.received_until(history.at(11.5)) == pytest.approx(8000, abs=1)
    assert goodput([one, two], Window(history.at(11), history.at(12))) == pytest.approx(0, abs=1)


def test_no_record_is_lost_or_doubled_over_a_failover(history: Any):
    """Goodput over the outage and the catch-up is the offered rate."""
    found = sinks(history.good(), history)
    assert goodput(found, Window(history.at(8), history.at(12))) == pytest.approx(2000)
    assert goodput(found, Window(history.at(0), history.at(24))) == pytest.approx(2000)


def test_nothing_arrives_while_a_task_is_silent(history: Any):
    """The records of the next sample are not spread over the gap before it."""
    (one, _) = sinks(history.good(), history)
    assert one.received_until(history.at(10.8)) == one.received_until(history.at(8.1))


def test_lag_grows_while_a_task_is_dead(history: Any):
    """The sinks write no samples from 8 to 11 s. Their lag is then 3 s, and not the 20 ms of the last sample."""
    (one, _) = sinks(history.good(), history)
    lags = one.lag_at(np.array([history.at(t) for t in (-1, 7.0, 9.0, 10.9)], dtype=np.int64))
    assert np.isnan(lags[0])
    assert lags[1:] == pytest.approx([0.02, 1.02, 2.92], abs=0.11)
    assert one.largest_lag(Window(history.at(8.2), history.at(10))) == pytest.approx(2.02, abs=0.11)
    assert one.largest_lag(Window(history.at(2), history.at(7))) == pytest.approx(0.02)


def test_a_task_that_died_for_good_lags_until_the_end(history: Any):
    """No later sample is needed: the lag grows to the end of the window."""
    trial = history.good(lambda t, r: None if t == "tasks" and r["t_ns"] > history.at(8.05) else r)
    for one in sinks(trial, history):
        assert one.largest_lag(Window(history.at(8.5), history.at(24))) == pytest.approx(16.02, abs=0.11)
        assert one.longest_stall(Window(history.at(9), history.at(24))) == pytest.approx(15.0)


def test_a_finished_task_has_no_lag(history: Any):
    """A bounded source that ended is not behind."""
    built = history.empty(lambda t, r: None if t == "tasks" and r["t_ns"] > history.at(8.05) else r)
    history.sample(built, failover=False)
    for sink in (0, 1):
        built.event("task.state", f"sink-{sink}", 8.1, data={"to": "FINISHED"})
    for one in sinks(built.trial(), history):
        assert one.lag_at(np.array([history.at(12)], dtype=np.int64)) == pytest.approx([0.0])
        assert one.largest_lag(Window(history.at(9), history.at(24))) is None
        assert one.longest_stall(Window(history.at(9), history.at(24))) is None


def test_a_sink_that_has_received_everything_has_no_lag(history: Any):
    """Also before it finishes, and while it receives all of it once more: from the first end of its data on. Every sink counts."""
    built = history.empty(lambda t, r: None if t == "tasks" and r["t_ns"] > history.at(8.05) else r)
    history.sample(built, failover=False)
    built.event("sink.end", "sink-0", 8.1)
    assert all_received(sinks(built.trial(), history)) is None
    built.event("sink.end", "sink-1", 8.2)
    built.event("sink.end", "sink-0", 14.0)
    built.event("task.state", "sink-0", 15.0, data={"to": "FINISHED"})
    found = sinks(built.trial(), history)
    assert all_received(found) == history.at(8.2)
    assert all_received([]) is None
    for one in found:
        assert one.lag_at(np.array([history.at(12)], dtype=np.int64)) == pytest.approx([0.0])
        assert one.longest_stall(Window(history.at(9), history.at(24))) is None


def windowed(history: Any, every: int) -> Any:
    """Samples of a sink that receives a batch every `every` samples, until second 12."""
    built = history.empty()
    for tick in range(240):
        received = 1000 * (min(tick, 120) // every)
        built.add("tm-0-1", "tasks", tick / 10, task="sink-0", vertex="sink", role="sink", records_in=received, lag_ns=NS // 50)  # fmt: skip
    return built.trial()


def test_the_usual_gap_of_a_windowed_sink_is_no_lag(history: Any):
    """Panes come once a second. Only what exceeds that is lag."""
    (one,) = sinks(windowed(history, 10), history)
    assert one.usual_gap_ns == pytest.approx(NS)
    assert one.largest_lag(Window(history.at(2), history.at(11))) == pytest.approx(0.02)
    assert one.largest_lag(Window(history.at(12), history.at(24))) == pytest.approx(11.02, abs=0.11)


def test_the_first_record_ends_a_stall(history: Any):
    """One record in the middle of the window is progress, also if its sample is the first one of all."""
    built = history.empty()
    for tick in range(40, 100):
        built.add("tm-0-1", "tasks", tick / 10, task="sink-0", vertex="sink", role="sink", records_in=1, lag_ns=0)  # fmt: skip
    (one,) = sinks(built.trial(), history)
    expecting = replace(one, usual_gap_ns=0)
    assert expecting.longest_stall(Window(history.at(0), history.at(9))) == pytest.approx(5.0)
    assert expecting.longest_stall(Window(history.at(9), history.at(9))) is None


def test_a_sink_without_records_in_the_baseline_is_not_late(history: Any):
    """No keys are routed to it, so its silence means nothing."""
    (one,) = sinks(windowed(history, 1000), history)
    assert one.usual_gap_ns is None
    assert one.longest_stall(Window(history.at(8), history.at(24))) is None


def end_of_baseline(trial: Any, history: Any) -> int:
    spans = windows(trial, history.entry())
    assert spans.baseline is not None
    return cut(spans.baseline, progress_of(trial, "sink")).end


def test_the_baseline_ends_before_the_lost_samples_of_a_killed_task(history: Any):
    """A sink that died at the end of the baseline lost its last samples. Its rate is still that of the others."""
    lost = history.good(
        lambda t, r: None if t == "tasks" and r["task"] == "sink-1" and history.at(7.65) < r["t_ns"] < history.at(9) else r
    )  # fmt: skip
    found = baseline_of(lost, history.entry(), windows(lost, history.entry()))
    assert found is not None
    assert end_of_baseline(lost, history) == history.at(7.6)
    assert found.rate == pytest.approx(2000, rel=0.002)


def test_a_task_that_fell_silent_early_does_not_cut_the_baseline(history: Any):
    """A dead sink in the first half is no lost sample."""
    dead = history.good(
        lambda t, r: None if t == "tasks" and r["task"] == "sink-1" and r["t_ns"] > history.at(4) else r
    )
    found = baseline_of(dead, history.entry(), windows(dead, history.entry()))
    assert found is not None
    assert end_of_baseline(dead, history) >= history.at(7.8)
    assert found.rate == pytest.approx(1000 + 1000 / 3, rel=0.05)


def entry_with_rate(history: Any, rate: int, **operator: Any) -> TrialEntry:
    """The entry as the runner writes it, with the rate of the source."""
    job = {
        "vertices": [
            {"name": "source", "parallelism": 2, "role": "source", "kind": "generated", "recordsPerSecond": rate},
            {"name": "count", "parallelism": 2, "role": "operator", "kind": "keyed-count"} | operator,
            {"name": "sink", "parallelism": 2, "role": "sink", "kind": "ledger"},
        ],
        "edges": [
            {"from": "source", "to": "count", "partitioning": "hash"},
            {"from": "count", "to": "sink", "partitioning": "forward"},
        ],
    }  # fmt: skip
    return history.entry(job=job)


@pytest.mark.parametrize(("offered", "reference"), [(2040, 2040), (3000, 2000)])
def test_the_offered_rate_is_the_reference_of_a_job_that_keeps_up(history: Any, offered: int, reference: int):
    """A baseline within 5 % of the offered rate is noise around it. Further off, the job does not keep up."""
    entry = entry_with_rate(history, offered)
    found = baseline_of(history.good(), entry, windows(history.good(), entry))
    assert found is not None
    assert found.offered == offered
    assert found.reference == pytest.approx(reference, rel=0.002)


@pytest.mark.parametrize(
    ("rate", "reference", "catching_up"),
    [(949, 949, False), (950, 1000, False), (1050, 1000, False), (1051, 1000, True)],
)
def test_a_rate_is_the_offered_one_within_a_twentieth(rate: float, reference: float, *, catching_up: bool):
    """A job that is faster than its sources has a backlog."""
    found = Baseline(rate, 1000.0, 0.0)
    assert (found.reference, found.catching_up) == (reference, catching_up)


@pytest.mark.parametrize("kind", ["python", "window"])
def test_an_operator_that_changes_the_number_of_records_hides_the_offered_rate(history: Any, kind: str):
    """A Python function may drop records, and a window merges them."""
    assert offered_rate(entry_with_rate(history, 2000, kind=kind)) is None


def test_noise_is_the_largest_deviation_over_three_seconds(history: Any):
    """A control trial with a slow second widens what counts as steady; a smooth one does not."""
    smooth, uneven = history.empty(), history.empty()
    history.sample(smooth, failover=False)
    for tick in range(240):
        t = tick / 10
        received = 1000 * t - 300 * min(max(t - 12, 0), 1) + 300 * min(max(t - 13, 0), 1)
        uneven.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", records_in=round(received), lag_ns=NS // 50)  # fmt: skip
    spans = windows(smooth.trial(), history.entry())
    assert control_noise(smooth.trial(), spans) == pytest.approx(0, abs=0.001)
    assert control_noise(uneven.trial(), spans) == pytest.approx(0.1, abs=0.01)
    assert steady_share(0.01, 0.1) == pytest.approx(0.15)
    assert steady_share(0.01) == pytest.approx(0.06)


def test_steady_is_found_where_three_seconds_are_normal(history: Any):
    """The sinks catch up until 12 s. A throughput that is never normal is never steady."""
    found = sinks(history.good(), history)
    span = Window(history.at(11), history.at(24))
    since = steady_since(found, span, 2000.0, 0.05)
    assert since is not None
    assert abs(since - history.at(12)) < NS // 2
    assert steady_since(found, span, 9000.0, 0.05) is None


def test_the_normal_lag_is_the_95th_percentile_of_the_baseline(history: Any):
    """It is measured in the same way as the lag that is compared with it. Samples that come as usual leave no gap."""
    (one, _) = sinks(history.good(), history)
    assert one.usual_gap_ns == progress_of(history.good(), "sink")[0].usual_gap_ns == 0
    assert normal_lag(one, Window(history.at(2), history.at(8))) == pytest.approx(0.02, abs=0.001)
    assert normal_lag(one, Window(0, NS)) is None
    assert normal_lag(one, Window(NS, NS)) is None
    assert replace(one, last_ns=None).latest_in(Window(0, 2 * history.at(9))) == 0


@pytest.mark.parametrize("start_s", [-2.7, 2])
def test_the_lag_of_a_job_that_catches_up_is_that_of_its_calmest_window(history: Any, start_s: float):
    """The windows of 3 s begin each half second. Lags before the first sample are unknown."""
    window, until = Window(history.at(start_s), history.at(start_s + 3)), history.at(20)
    for one in sinks(history.good(), history):
        starts = range(window.start, until - 3 * NS + 1, CALM_NS)
        lags = [one.lag_at(np.arange(start, start + 3 * NS, SAMPLE_NS, dtype=np.int64)) for start in starts]
        expected = min(float(np.percentile(each[~np.isnan(each)], 95)) for each in lags)
        assert normal_lag(one, window, until) == expected
        assert np.isnan(lags[0]).any() == (start_s < 0)


def test_the_noise_of_the_control_trial_widens_steady(history: Any):
    """A throughput 8 % below the baseline is steady if the control trial deviates by as much by itself."""
    low = history.good(
        lambda t, r: r | {"records_in": round(r["records_in"] * 0.92)} if t == "tasks" and r["attempt"] == 1 and r["t_ns"] > history.at(13) else r
    )  # fmt: skip
    control = history.entry(trial="main-control-1", role="control", faults=[])
    uneven = history.empty()
    for tick in range(240):
        t = tick / 10
        received = 1000 * t - 300 * min(max(t - 12, 0), 1) + 300 * min(max(t - 13, 0), 1)
        uneven.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", records_in=round(received), lag_ns=NS // 50)  # fmt: skip
    _, fault = with_noise([control, history.entry()], lambda entry: uneven.trial())
    assert fault.noise == pytest.approx(0.1, abs=0.01)
    noise = [
        next(r.value for r in trial_metrics(trial, e) if r.metric == "throughput.noise")
        for trial, e in ((uneven.trial(), control), (history.good(), fault))
    ]
    assert noise == pytest.approx([0.1, 0.0], abs=0.01)
    steady = {e.noise: r for e in (fault, history.entry()) for r in trial_metrics(low, e) if r.metric == "recovery.steady"}  # fmt: skip
    assert steady[fault.noise].reason == ""
    assert steady[None].reason == NOT_RECOVERED


def test_windows_by_milestones_follow_what_happened(history: Any):
    """Outage, catch-up and the time after it have values of their own, whatever the fault's duration was asked to be."""
    rows = {(r.metric, r.phase): r.value for r in trial_metrics(history.good(), history.entry())}
    assert rows["throughput.goodput", "outage"] == pytest.approx(0, abs=30)
    assert rows["throughput.goodput", "catch-up"] == pytest.approx(8000, rel=0.15)
    assert rows["throughput.goodput", "recovered"] == pytest.approx(2000, rel=0.02)
    assert rows["lag.max", "outage"] == pytest.approx(3.0, abs=0.15)
    assert rows["lag.max", "recovered"] < 0.2


def recovery(fault: str, start: float, history: Any) -> Recovery:
    """A recovery of 3 s without a failover, 2 s of which the fault lasted."""

    def segment(kind: str, a: float, b: float) -> Segment:
        return Segment(kind=kind, phase="catch-up", start_ns=history.at(a), end_ns=history.at(b))

    parts = (segment("fault", start, start + 2), segment("catch-up", start + 2, start + 3))
    only = Round(number=1, start_ns=history.at(start), end_ns=history.at(start + 3), segments=parts)
    return Recovery(fault=fault, effect_ns=history.at(start), end_ns=history.at(start + 3), rounds=(only,))


def test_several_faults_have_windows_of_their_own(history: Any):
    """The plain names are those of the longest recovery; each fault's carry its name."""
    first = recovery("slow", 8, history)
    second = replace(recovery("slower", 14, history), end_ns=history.at(18))
    found = dict(milestones(TrialRecovery(trial="main-1", recoveries=(first, second)), history.at(24)))
    assert found["outage/slow"] == Window(history.at(8), history.at(10))
    assert found["catch-up/slow"] == Window(history.at(10), history.at(11))
    assert found["recovered/slow"] == Window(history.at(11), history.at(24))
    assert found["outage"] == found["outage/slower"] == Window(history.at(14), history.at(16))
    assert found["recovered"] == Window(history.at(18), history.at(24))
    alone = dict(milestones(TrialRecovery(trial="main-1", recoveries=(first,)), history.at(24)))
    assert set(alone) == {"outage", "catch-up", "recovered"}
    assert set(dict(milestones(TrialRecovery(trial="main-1"), 0)).values()) == {None}


@pytest.mark.parametrize(("phase", "valid"), [("outage", True), ("recovered/kill", True), ("outages", False)])
def test_expectations_may_name_milestones(phase: str, valid: bool):
    """And nothing that has no rows."""
    item = Expectation.from_item({"metric": "lag.max", "max": "2 s", "phase": phase})
    assert (item.problem == "") is valid


def test_back_pressure_has_flinks_words(history: Any):
    """The share of the most back-pressured subtask, over all attempts, as OK, LOW or HIGH."""
    built = history.empty()
    for tick in range(100):
        t = tick / 10
        for task, pressed, busy in (("count-0", 0.7, 0.2), ("count-1", 0.2, 0.3), ("sink-0", 0.05, 0.95)):
            spent = {"backpressured_ns": pressed, "busy_ns": busy, "idle_ns": 1 - pressed - busy}
            counters = {name: round(share * t * NS) for name, share in spent.items()}
            counters["idle_ns"] += 100 * NS if tick >= 80 else 0  # the window ends before this sample
            built.add("tm-0-1", "tasks", t, task=task, vertex=task[:-2], role="operator", **counters)
    count, sink = TaskTimes.read(built.trial()).within(Window(history.at(2), history.at(8)))
    assert (count.vertex, count.level, sink.level) == ("count", "HIGH", "OK")
    assert (count.backpressured, count.busy, count.idle) == pytest.approx((0.7, 0.3, 0.1), abs=0.001)
    assert [level(x) for x in (0.1, 0.11, 0.5, 0.51)] == ["OK", "LOW", "LOW", "HIGH"]
    rows = {(r.metric, r.phase): r for r in trial_metrics(built.trial(), history.entry())}
    assert rows["tasks.backpressured", "baseline"].text == "count 70% HIGH; sink 5% OK"
    assert rows["tasks.backpressured", "baseline"].value == pytest.approx(0.7)
    assert rows["tasks.busy", "baseline"].value == pytest.approx(0.95)
    assert rows["tasks.idle", "baseline"].value == pytest.approx(0.0, abs=0.001)


def test_a_source_that_waits_has_waited_since_before_the_sample(history: Any):
    """First record at 3.0 s; at the sample of 4.0 s the source has waited for 0.6 s: 4.0 − 0.6 − 3.0 = 0.4 s."""
    built = history.empty()
    built.event("sink.first-record", "sink-0", 3.0, attempt=0)
    for t, waited in ((3.5, 0.0), (4.0, 0.6), (4.5, 1.1)):
        built.add("tm-0-1", "tasks", t, task="source-0", vertex="source", role="source", backpressured_ns=round(waited * NS))  # fmt: skip
    assert reached_source_s(built.trial()) == pytest.approx(0.4)
    assert reached_source_s(history.empty().trial()) is None


def test_each_sink_vertex_has_its_own_throughput(history: Any):
    """Two subtasks of 30 records/s add up to 60; another vertex has 5. The window is from 2 to 8 s."""
    built = history.empty()
    for t in range(12):
        for task, per_second in (("fast-0", 30), ("fast-1", 30), ("slow-0", 5)):
            built.add("tm-0-1", "tasks", t, task=task, vertex=task[:-2], role="sink", records_in=per_second * t)  # fmt: skip
    window = Window(history.at(2), history.at(8))
    assert by_sink(sinks_of(built.trial()), window) == pytest.approx({"fast": 60.0, "slow": 5.0})
    rows = {(r.metric, r.phase): r for r in trial_metrics(built.trial(), history.entry())}
    assert rows["throughput.slowest-sink", "baseline"].value == pytest.approx(5.0)
    assert rows["throughput.fastest-sink", "baseline"].value == pytest.approx(60.0)
    assert rows["throughput.fastest-sink", "baseline"].text == "fast 60; slow 5"


def test_lag_and_stall_are_those_of_the_worst_task(history: Any):
    """One sink receives a record every tenth of a second and is 0.1 s late, the other one each second and is 0.8 s late."""
    built = history.empty()
    for tick in range(120):
        for task, every, late in (("sink-0", 1, 0.1), ("sink-1", 10, 0.8)):
            built.add("tm-0-1", "tasks", tick / 10, task=task, vertex="sink", role="sink", records_in=tick // every, lag_ns=round(late * NS))  # fmt: skip
    rows = {(r.metric, r.phase): r.value for r in trial_metrics(built.trial(), history.entry())}
    assert rows["lag.max", "baseline"] == pytest.approx(0.8)
    assert rows["liveness.longest-stall", "baseline"] == pytest.approx(1.0)


def test_sampled_back_pressure_is_the_worst_subtasks_share_of_samples(history: Any):
    """Rounds that ended in the phase add up: 30 of 100 and 50 of 100 samples are 80 of 200, which is 40 % and LOW."""
    built = history.empty()
    for task, rounds in (("count-0", (30, 50)), ("count-1", (0, 10)), ("sink-0", (100, 20))):
        for t, pressed in zip((2.5, 4.5), rounds, strict=True):
            found = {"backpressured": pressed, "samples": 100}
            built.event("backpressure.sampled", task, t, attempt=0, data=json.dumps(found))
    late = {"backpressured": 100, "samples": 100}
    built.event("backpressure.sampled", "count-0", 19, attempt=0, data=json.dumps(late))
    shares = sampled_within(built.trial(), Window(history.at(2), history.at(8)))
    assert shares == {"count": 0.4, "sink": 0.6}
    rows = {(r.metric, r.phase): r for r in trial_metrics(built.trial(), history.entry())}
    assert rows["tasks.backpressured-sampled", "baseline"].text == "count 40% LOW; sink 60% HIGH"
    assert rows["tasks.backpressured-sampled", "baseline"].value == 0.6
    assert rows["tasks.backpressured-sampled", "observation"].value == 1.0


def test_the_last_arrival_is_that_of_the_sink_that_received_longest(history: Any):
    """Samples without a new record are no arrival, and later ones than asked for do not count."""
    built = history.empty()
    for sink, counts in (("sink-0", (0, 4, 4, 9)), ("sink-1", (0, 2, 5, 5)), ("sink-2", (0, 0, 0, 0))):
        for second, count in enumerate(counts):
            built.add(
                "tm-0-1", "tasks", second, task=sink, vertex="sink", role="sink", attempt=0, records_in=count
            )
    sinks = sinks_of(built.trial())
    assert [last_arrival(sinks, history.at(second)) for second in (0, 1, 2, 3)] == [
        0,
        history.at(1),
        history.at(2),
        history.at(3),
    ]
    first = history.empty()
    first.add("tm-0-1", "tasks", 1, task="sink-0", vertex="sink", role="sink", records_in=1)
    assert last_arrival(sinks_of(first.trial()), history.at(3)) == history.at(1)


@pytest.mark.parametrize(
    ("kind", "emitted_s", "sampled_s", "state", "alive"),
    [
        ("socket", 20.0, 24.0, "RUNNING", 1),
        ("socket", 0.0, 24.0, "RUNNING", 1),
        ("socket", 22.0, 24.0, "RUNNING", 0),
        ("generated", 20.0, 24.0, "RUNNING", 0),
        pytest.param("socket", 20.0, 21.0, "RUNNING", 0, id="paused source"),
        pytest.param("socket", 20.0, 24.0, "RESTARTING", 0, id="restarting job"),
        pytest.param("socket", 20.0, 21.0, "FAILED", 0, id="dead job"),
    ],
)
def test_nothing_arrives_at_the_end_if_no_one_types(
    history: Any, kind: str, emitted_s: float, sampled_s: float, state: str, alive: int
):
    """The last record arrives at 21 s, and the observation ends at 24 s. A word of 22 s should have arrived too, and a source that is
    dead or paused reads no words."""
    built = history.empty()
    built.event("job.state", "job", 0, data=json.dumps({"from": "CREATED", "to": "RUNNING"}))
    if state != "RUNNING":
        built.event("job.state", "job", 21, data=json.dumps({"from": "RUNNING", "to": state}))
    for tick in range(241):
        t = tick / 10
        built.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", records_in=min(tick, 210))
        emitted = min(tick, round(emitted_s * 10))
        if t <= sampled_s:
            built.add("tm-1-1", "tasks", t, task="source-0", vertex="source", role="source", records_out=emitted)  # fmt: skip
    entry = history.entry(job={"vertices": [{"name": "source", "role": "source", "kind": kind}]})
    rows = {(r.metric, r.phase): r for r in trial_metrics(built.trial(), entry)}
    assert rows["liveness.at-end", ""].value == alive


@pytest.mark.parametrize(
    ("worked_s", "reason", "text"), [(3.0, "Overloaded", "`count` was at work"), (1.4, "", ""), (0.0, "", "")]
)
def test_an_overloaded_job_without_records_at_the_end_is_called_overloaded(
    history: Any, worked_s: float, reason: str, text: str
):
    """No record arrives from 21 s on, and the observation ends at 24 s: an operator that works for most of that is the reason."""
    built = history.empty()
    for tick in range(241):
        t = tick / 10
        built.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", records_in=min(tick, 210))
        busy_ns = round(max(0.0, min(t - 21, worked_s)) * NS)
        built.add("tm-0-1", "tasks", t, task="count-0", vertex="count", role="operator", busy_ns=busy_ns)
    rows = {(r.metric, r.phase): r for r in trial_metrics(built.trial(), history.entry())}
    found = rows["liveness.at-end", ""]
    assert (found.value, found.reason, found.text) == (0, reason, text)
