"""Baselines, lags, windows, histograms and curves at their edges."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from testbed_runtime.checking.baseline import (
    Baseline,
    baseline_of,
    control_noise,
    cut,
    noise,
    offered_rate,
    steady_share,
)
from testbed_runtime.checking.catchup import CatchUp
from testbed_runtime.checking.common import Window, Windows, busiest, data, windows
from testbed_runtime.checking.iterations import supersteps
from testbed_runtime.checking.latency import Histogram, histogram, marker_latencies
from testbed_runtime.checking.load import vertex_load
from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.progress import Progress, alive_at_end, progress_of
from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.core.judgement.quantities import seconds
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS
from tests.manifests import trial_entry

NS = 1_000_000_000


def subtask(moments: list[float], counts: list[float], **more: Any) -> Progress:
    t_ns = np.asarray([round(t * NS) for t in moments], dtype=np.int64)
    return Progress("sink-0", "sink", t_ns, np.asarray(counts, dtype=np.float64), t_ns, **more)


def test_the_baseline_ends_with_the_last_sample_of_a_task_that_fell_silent():
    """After 0.15 s without a sample, and only in the second half of the window."""
    window = Window(0, 10 * NS)
    for moments, end in (
        ([1, 9.9, 10.05], 10),
        ([1, 9.9, 10.051], 9.9),
        ([1, 9.9], 9.9),
        ([1, 5], 10),
        ([1, 5.1], 5.1),
        ([10, 11], 10),
        ([], 10),
    ):
        assert cut(window, [subtask(moments, [0.0] * len(moments))]) == Window(0, round(end * NS)), moments


def test_the_reference_is_the_offered_rate_within_five_percent():
    """Otherwise what was measured."""
    base = Baseline(951.0, 1000.0, 0.0)
    assert base.reference == 1000.0
    assert replace(base, rate=949.0).reference == 949.0
    assert replace(base, rate=1049.0).reference == 1000.0
    assert replace(base, rate=1300.0).reference == 1000.0, "it was catching up"
    assert replace(base, offered=None).reference == 951.0
    assert steady_share(0.02) == steady_share(0.01, 0.02) == pytest.approx(0.07)
    assert steady_share(0.03, 0.02) == pytest.approx(0.08)


def test_noise_needs_more_than_one_span_of_three_seconds():
    """2,000 a second for one second of ten: 1,333 within three seconds around it, a quarter above the mean of 1,100 but for 1/11."""
    moments = [t / 10 for t in range(101)]
    counts = [1000 * t + 1000 * min(max(t - 5, 0), 1) for t in moments]
    one = subtask(moments, counts)
    assert noise([one], Window(0, 10 * NS)) == pytest.approx(4000 / 3 / 1100 - 1)
    assert noise([one], Window(0, 3 * NS)) == 0.0
    assert noise([], Window(0, 10 * NS)) == 0.0
    assert noise([subtask([0, 10], [0, 0])], Window(0, 10 * NS)) == 0.0


def test_without_a_baseline_or_records_there_is_no_baseline(history: Any):
    """Neither a rate nor noise, and no reason to invent one."""
    trial, entry = history.good(), history.entry()
    spans = windows(trial, entry)
    assert baseline_of(trial, entry, replace(spans, baseline=None)) is None
    assert baseline_of(history.without("tasks"), entry, spans) is None
    assert control_noise(trial, replace(spans, baseline=None)) is None
    assert control_noise(history.without("tasks"), spans) is None
    found = baseline_of(trial, entry, spans)
    assert (found.rate, found.offered, found.reference) == (pytest.approx(2000), 2000.0, 2000.0)


@pytest.mark.parametrize(
    ("vertices", "offered"),
    [
        ([{"name": "s", "role": "source", "recordsPerSecond": 100}, {"name": "t", "role": "sink"}], 100.0),
        ([{"name": "s", "role": "source", "recordsPerSecond": 100, "kind": "socket"}, {"name": "t", "role": "sink"}], None),
        ([{"name": "s", "role": "source"}, {"name": "t", "role": "sink"}], None),
        ([{"name": "s", "role": "source", "recordsPerSecond": 0}, {"name": "t", "role": "sink"}], None),
        ([{"name": "s", "role": "source", "recordsPerSecond": 100}, {"name": "t", "role": "sink", "kind": "python"}], None),
        ([{"name": "s", "role": "source", "recordsPerSecond": 100}, {"name": "w", "kind": "window"}, {"name": "t", "role": "sink"}], None),
    ],
)  # fmt: skip
def test_the_offered_rate_is_that_of_generated_sources(vertices: list[dict[str, Any]], offered: float | None):
    """Windows, Python functions and sockets hide it."""
    entry = trial_entry({"job": {"vertices": vertices, "edges": [{"from": "s", "to": "t"}]}})
    assert offered_rate(entry) == offered


@pytest.mark.parametrize(
    ("moments", "judged", "usual", "alive"),
    [
        ([9.0, 10.0], (2, 10), None, True),
        ([7.0, 8.0], (2, 10), None, False),
        ([7.0, 8.0], (2, 10), 1, True),
        ([9.0, 10.0], (9.5, 10), None, True),
        ([9.0, 10.0], (9.6, 10), None, None),
        ([9.0, 10.0], (9, 10), 2, None),
        ([], (2, 10), None, None),
    ],
)
def test_a_job_is_alive_if_new_records_arrived_in_its_last_two_seconds(
    moments: list[float], judged: tuple[float, float], usual: int | None, alive: bool | None
):
    """Plus the usual gap of a windowed sink. Half a second is the least that says anything."""
    one = subtask(
        moments, [100.0 * n for n in range(len(moments))], usual_gap_ns=None if usual is None else usual * NS
    )
    window = Window(round(judged[0] * NS), round(judged[1] * NS))
    assert alive_at_end([one], Windows(None, None, None, window, window.end)) is alive
    assert alive_at_end([one], Windows(None, None, None, None, window.end)) is None


def test_the_sink_with_the_longest_usual_gap_decides_how_long_a_job_may_be_silent():
    """Records every 3 s: one at 6 s is enough at 10 s, although the other sink had none since 2 s."""
    usual = subtask([1.0, 2.0], [0.0, 100.0], usual_gap_ns=0)
    rare = subtask([2.9, 3.0, 5.9, 6.0], [0.0, 100.0, 100.0, 200.0], usual_gap_ns=3 * NS)
    spans = Windows(None, None, None, Window(2 * NS, 10 * NS), 10 * NS)
    assert alive_at_end([usual, rare], spans) is True
    assert alive_at_end([usual], spans) is False


def test_a_job_has_caught_up_when_its_lag_stays_normal_for_half_a_second():
    """A job that finished is behind no more; during a fault a second is needed."""
    moments = [t / 10 for t in range(101)]
    lags = [3.0 if 2 <= t < 4 or 4.2 <= t < 6 else 0.0 for t in moments]
    t_ns = np.asarray([round(t * NS) for t in moments], dtype=np.int64)
    reached = t_ns - np.asarray([round(v * NS) for v in lags], dtype=np.int64)
    one = Progress("sink-0", "sink", t_ns, np.arange(101, dtype=np.float64), reached, usual_gap_ns=0)
    found = CatchUp(((one, 0.5),), 10 * NS)
    assert [found.since(round(t * NS)) for t in (0, 2, 4.5, 9.6, 9.7)] == [
        0,
        6 * NS,
        6 * NS,
        round(9.6 * NS),
        None,
    ]
    assert replace(found, reason="NoData").since(0) is None
    assert found.since(11 * NS) is None
    assert found.since(2 * NS, fault_end=7 * NS) == 6 * NS
    assert found.since(2 * NS, fault_end=round(6.9 * NS)) == round(6.9 * NS)
    assert replace(found, finished=10 * NS).since(round(9.7 * NS)) == 10 * NS
    assert replace(found, finished=9 * NS).since(round(9.7 * NS)) is None


# ---- windows, shapes and events


def test_windows_end_at_the_drain(history: Any):
    """A phase without length is none. Without phases the last row is the end."""

    def phase(name: str, start: float, end: float) -> dict[str, Any]:
        return {"name": name, "start_ns": round(start * NS), "end_ns": round(end * NS)}

    empty = history.empty().trial()
    found = windows(
        empty,
        trial_entry(
            {
                "phases": [
                    phase("baseline", 1, 2),
                    phase("fault", 2, 3),
                    phase("observation", 3, 6),
                    phase("drain", 5, 9),
                ]
            }
        ),
    )
    assert [w and (w.start // NS, w.end // NS) for _, w in found.by_phase()] == [
        (1, 2),
        (2, 3),
        (3, 5),
        (2, 5),
    ]
    assert found.end == 5 * NS
    short = windows(
        empty, trial_entry({"phases": [phase("baseline", 1, 1), phase("fault", 4, 9), phase("drain", 4, 9)]})
    )
    assert (short.baseline, short.fault, short.judged, short.end) == (None, None, None, 4 * NS)
    assert windows(empty, trial_entry({"phases": [phase("observation", 3, 7)]})).judged == Window(
        3 * NS, 7 * NS
    )
    assert windows(empty, trial_entry()).end == 0
    assert windows(history.good(), trial_entry()).end == history.at(24.8)
    assert (NS in Window(NS, 2 * NS), 2 * NS in Window(NS, 2 * NS), 1.5 in Window(0, 3)) == (
        True,
        False,
        False,
    )


@pytest.mark.parametrize(("text", "value"), [('{"a": 1}', {"a": 1}), ("", {}), ("{", {}), ("[1]", {})])
def test_the_data_of_an_event_is_an_object(text: str, value: dict[str, Any]):
    """Anything else is empty."""
    assert data({"data": text}) == value


def test_options_of_an_unknown_version_are_those_of_the_newest():
    """The manifest may come from another release."""
    assert trial_entry({"flinkVersion": "0.1", "configuration": {"a": "b"}}).options.flink_version == "2.x"
    assert trial_entry({"flinkVersion": "1.12"}).options.flink_version == "1.12"


def test_a_vertex_is_the_busiest_by_its_busiest_subtask(history: Any):
    """Within the span; none if nothing worked."""
    built = history.empty()
    for t, a, b in ((1, 0, 0), (2, 500, 100), (3, 600, 900), (4, 600, 900)):
        built.add("tm-0-1", "tasks", t, task="map-0", vertex="map", busy_ns=a)
        built.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", busy_ns=b)
    trial = built.trial()
    found = [
        busiest(trial, history.at(a), history.at(b))[0]
        for a, b in ((1, 2), (2, 3), (1, 4), (3, 4), (5, 6), (1, 1))
    ]
    assert found == ["map", "sink", "sink", "", "", ""]


# ---- latency and curves


def test_a_quantile_is_interpolated_in_its_bucket():
    """Ten records in the fourth bucket and ten in the fifth, one beyond the last."""
    counts = np.zeros(len(LATENCY_BOUNDS_NS) + 1, dtype=np.int64)
    counts[3], counts[4] = 10, 10
    low, middle, high = (LATENCY_BOUNDS_NS[n] / NS for n in (2, 3, 4))
    found = Histogram(counts, LATENCY_BOUNDS_NS[4])
    assert found.quantile(0.25) == pytest.approx((low + middle) / 2)
    assert found.quantile(0.5) == pytest.approx(middle)
    assert found.quantile(0.75) == pytest.approx((middle + high) / 2)
    assert found.quantile(0.95) == pytest.approx(middle + 0.9 * (high - middle))
    assert (found.quantile(0.951), found.quantile(1.0)) == (None, high)
    assert replace(found, max_ns=LATENCY_BOUNDS_NS[2]).quantile(0.75) == low
    first = np.zeros_like(counts)
    first[0] = 4
    assert Histogram(first, NS).quantile(0.5) == pytest.approx(LATENCY_BOUNDS_NS[0] / NS / 2)
    over = np.zeros_like(counts)
    over[-1] = 4
    assert Histogram(over, 77 * NS).quantile(0.5) == 77.0
    assert Histogram(np.zeros_like(counts), 0).quantile(0.5) is None


def test_latencies_belong_to_the_window_with_their_middle(history: Any):
    """And markers to the one in which they were recorded, by source and receiver."""
    built = history.empty()
    counts = [0] * (len(LATENCY_BOUNDS_NS) + 1)
    for t, most in ((1, 5), (2, 7), (3, 6)):
        counts[t] = 2
        built.add(
            "tm-0-1",
            "latency",
            t,
            task="sink-0",
            window_start_ns=history.at(t),
            window_ns=NS,
            buckets=list(counts),
            max_ns=most,
        )
        more = {"source": f"source-{t % 2}", "ns": [t, 9]}
        built.event("latency.markers", "sink-1", t, data=more)
    trial = built.trial()
    one = histogram(trial, Window(history.at(1.5), history.at(2.5)))
    assert (one.total, one.max_ns) == (2, 5)
    both = histogram(trial, Window(history.at(1.4), history.at(2.6)))
    assert (both.total, both.max_ns) == (6, 7)
    found = marker_latencies(trial, Window(history.at(1), history.at(3)))
    assert {pair: ns.tolist() for pair, ns in found.items()} == {("source", "sink"): [1, 9, 2, 9]}


def add_latency(history: Any, built: Any, t: float, bucket: int, records: int, **more: int) -> None:
    """Add a window of records at one sink that all fall into one bucket."""
    counts = [0] * (len(LATENCY_BOUNDS_NS) + 1)
    counts[bucket] = records
    built.add("tm-0-1", "latency", t, task="sink-0", window_start_ns=history.at(t), buckets=counts, **more)


def rich(history: Any) -> Any:
    """A trial with samples of a sink, rows of two faults, two restarts and three checkpoints."""
    built = history.empty()
    for t, received in ((0.0, 0), (0.5, 100), (1.0, 100)):
        built.add(
            "tm-0-1",
            "tasks",
            t,
            task="sink-0",
            vertex="sink",
            role="sink",
            records_in=received,
            lag_ns=NS // 4,
        )
    rows = [
        ("gc", 0.2, "asked", {"text": "no"}), ("gc", 0.25, "injected", {"text": "in", "asked": {"share": 2}}),
        ("gc", 0.5, "verified", {"measured": {"a": 1, "tm": {"x": 1}}}), ("gc", 0.75, "ended", {"text": "out", "measured": {"tm": {"y": 2}}}),
        ("gc", 0.8, "clean", {"measured": {"b": 2}}), ("late", 0.5, "injected", {}),
    ]  # fmt: skip
    for name, t, state, more in rows:
        built.add(
            "supervisor",
            "faults",
            t,
            fault=name,
            state=state,
            kind="process.gc",
            backend="agent",
            targets=["tm-0"],
            **more,
        )
    built.event("failover.started", "1", 0.5, text="why" * 200)
    built.event("failover.started", "2", 0.6)
    built.event("failover.deployed", "1", 0.75)
    built.add("jobmanager-1", "checkpoints", 0.5, checkpoint=3, state="completed", duration_ns=NS // 4)
    built.add("jobmanager-1", "checkpoints", 0.6, checkpoint=4, state="failed", reason="expired")
    built.add("jobmanager-1", "checkpoints", 0.7, checkpoint=5, state="triggered")
    return built.trial()


@pytest.mark.parametrize(("late_s", "end_s"), [(0.5, 2.5), (9, 4.0)])
def test_a_partition_is_shown_until_tcp_has_sent_again_what_it_lost(
    history: Any, late_s: float, end_s: float
):
    """Or until the trial ends."""
    built = history.empty()
    for t, state, measured in ((1, "injected", {}), (2, "ended", {}), (3, "clean", {"sent_again_s": late_s})):
        built.add(
            "supervisor", "faults", t, fault="cut", state=state, kind="network.partition", measured=measured
        )
    entry = trial_entry(
        {"phases": [{"name": "observation", "start_ns": history.at(0), "end_ns": history.at(4)}]}
    )
    _, cut = to_builtins(trial_timeseries(built.trial(), entry))["spans"]
    assert (cut["name"], cut["start_s"], cut["end_s"]) == ("cut", 1.0, end_s)


def test_the_series_of_a_trial_are_those_of_its_rows(history: Any):
    """Bins of 250 ms: 100 records in the first half second, none later; the fault from its injection to its end."""
    phases = [
        {"name": n, "start_ns": history.at(a), "end_ns": history.at(b)}
        for n, a, b in (("baseline", 0, 0.5), ("drain", 0.5, 1.5))
    ]
    entry = trial_entry(
        {
            "phases": phases,
            "job_state": "FAILED",
            "faults": [{"name": "asked", "kind": "k", "params": {"p": 1}, "at_s": 3, "targets": ["tm-9"]}],
        }
    )
    found = to_builtins(trial_timeseries(rich(history), entry))
    assert found["bins"] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25]
    assert found["series"]["throughput"] == [200.0, 200.0, 0.0, 0.0, 0.0, None]
    assert found["series"]["emitted"] == [None] * 6
    spans = [(s["kind"], s["name"], s["start_s"], s["end_s"], s["text"][:10]) for s in found["spans"]]
    assert spans == [
        ("phase", "baseline", 0.0, 0.5, ""), ("phase", "ended", 0.5, 1.5, ""), ("fault", "gc", 0.25, 0.75, "process.gc"),
        ("fault", "late", 0.5, 1.5, "process.gc"), ("failover", "restart 1", 0.5, 0.75, "whywhywhyw"), ("failover", "restart 2", 0.6, 1.5, ""),
    ]  # fmt: skip
    assert [(e["kind"], e["t_s"], e["text"]) for e in found["marks"]] == [
        ("checkpoint.completed", 0.5, "checkpoint 3 completed after 250 ms"),
        ("checkpoint.failed", 0.6, "checkpoint 4 failed: expired"),
    ]
    asked, gc, late = found["faults"]
    assert asked == {
        "fault": "asked", "kind": "k", "backend": "", "why": "", "targets": ["tm-9"], "at_s": 3, "before_submit": False, "duration_s": 0.0,
        "asked": {"params": {"p": 1}, "direction": "both"}, "measured": {}, "after": {}, "effect": "not measured", "residue": "not measured", "text": "",
    }  # fmt: skip
    assert (gc["asked"], gc["measured"], gc["after"]) == (
        {"share": 2},
        {"a": 1, "tm": {"x": 1, "y": 2}},
        {"b": 2},
    )
    assert (gc["effect"], gc["residue"], gc["text"], gc["targets"], gc["backend"]) == (
        "verified",
        "clean",
        "in; ended: out",
        ["tm-0"],
        "agent",
    )
    assert (late["effect"], late["asked"], late["kind"]) == ("not measured", {}, "process.gc")


@pytest.mark.parametrize(
    ("count", "known"),
    [(1, [1.0]), (2, [0.5, 1.0]), (9, [0.5, 1.0]), (10, [0.5, 0.9, 1.0]), (20, [0.5, 0.9, 0.95, 1.0])],
)
def test_a_quantile_of_markers_needs_one_beyond_it(history: Any, count: int, known: list[float]):
    """Only those that arrived at a sink count; the text names every pair of vertices."""
    built = history.empty()
    built.add("tm-0-1", "tasks", 3, task="sink-0", vertex="sink", role="sink")
    built.event(
        "latency.markers",
        "sink-0",
        3,
        data={"source": "source-0", "ns": [(n + 1) * 1_000_000 for n in range(count)]},
    )
    built.event("latency.markers", "map-0", 3, data={"source": "source-0", "ns": [9 * NS]})
    rows = [
        r
        for r in trial_metrics(built.trial(), history.entry())
        if r.metric == "latency.markers" and r.phase == "baseline"
    ]
    found = {r.quantile: r.value for r in rows if r.value is not None}
    assert list(found) == known
    assert found[1.0] == pytest.approx(count / 1000)
    assert rows[-1].text == f"source → map 9.00 s; source → sink {seconds((count + 1) / 2_000)}"


@pytest.mark.parametrize(
    ("total", "quantile", "known"),
    [(0, 1.0, False), (1, 1.0, True), (1, 0.5, False), (2, 0.5, True), (9, 0.9, False), (10, 0.9, True), (20, 0.95, True), (99, 0.99, False), (100, 0.99, True), (1000, 0.999, True)],
)  # fmt: skip
def test_a_quantile_needs_one_record_beyond_it(total: int, quantile: float, known: bool):
    """Exactly as many are enough, although 10 × (1 − 0.9) is below 1 in floating point."""
    counts = np.zeros(len(LATENCY_BOUNDS_NS) + 1, dtype=np.int64)
    counts[5] = total
    assert (Histogram(counts, NS).quantile(quantile) is not None) is known


def test_a_bin_with_few_records_shows_their_maximum(history: Any):
    """One record has no 99th percentile; a hundred have."""
    built = history.empty()
    for t, number in ((0.0, 1), (0.25, 100)):
        add_latency(history, built, t, 5, number, window_ns=NS // 4, max_ns=LATENCY_BOUNDS_NS[5] - 7)
    entry = trial_entry(
        {"phases": [{"name": "baseline", "start_ns": history.at(0), "end_ns": history.at(0.5)}]}
    )
    series = to_builtins(trial_timeseries(built.trial(), entry))["series"]
    most = round((LATENCY_BOUNDS_NS[5] - 7) / NS, 6)
    low, high = LATENCY_BOUNDS_NS[4] / NS, LATENCY_BOUNDS_NS[5] / NS
    assert series["latency_p99_s"][0] == most
    assert series["latency_p99_s"][1] == pytest.approx(low + 0.99 * (high - low), abs=1e-6)
    assert series["latency_p50_s"][:2] == [most, pytest.approx(low + 0.5 * (high - low), abs=1e-6)]
    assert series["latency_p50_s"][2:] == [None] * (len(series["latency_p50_s"]) - 2)


def test_a_windowed_sink_lags_after_its_usual_gap(history: Any):
    """Two moments of records are enough for a gap: 2 s. At 9 s the newest record, of 6 s, is 1 s late."""
    built = history.empty()
    for t, received in ((3.9, 0), (4.0, 5), (5.9, 5), (6.0, 9), (6.1, 9)):
        built.add("tm-0-1", "tasks", t, task="sink-0", vertex="sink", role="sink", records_in=received)
    (one,) = progress_of(built.trial(), "sink", baseline=Window(history.at(2), history.at(8)))
    assert one.usual_gap_ns == 2 * NS
    times = np.asarray([history.at(t) for t in (6, 8, 9)], dtype=np.int64)
    assert one.lag_at(times).tolist() == pytest.approx([0.0, 0.0, 1.0])
    (none,) = progress_of(built.trial(), "sink", baseline=Window(history.at(5), history.at(8)))
    assert none.usual_gap_ns is None


def test_curves_last_as_long_as_any_subtask(history: Any):
    """One sink ends after a second, the other after two; two samples make a share."""
    built = history.empty()
    for t in range(3):
        for task in ("sink-0", "sink-1")[: 3 - t]:
            name = task if t < 2 else "sink-1"
            built.add(
                "tm-0-1",
                "tasks",
                t,
                task=name,
                vertex="sink",
                role="sink",
                records_in=100 * t,
                busy_ns=t * NS // 2,
            )
    entry = trial_entry(
        {"phases": [{"name": "baseline", "start_ns": history.at(0), "end_ns": history.at(3)}]}
    )
    found = to_builtins(trial_timeseries(built.trial(), entry))
    assert [v is None for v in found["series"]["goodput"]][:12] == [False] * 9 + [True] * 3
    edges = np.asarray([history.at(t) for t in (0, 1)], dtype=np.int64)
    two = history.empty()
    for t in (0, 1):
        two.add("tm-0-1", "tasks", t, task="map-0", vertex="map", busy_ns=t * NS // 2)
    assert vertex_load(two.trial().table("tasks"), edges).vertices[0].busy == [0.5]


def test_the_supersteps_of_an_iteration_are_those_of_its_last_attempt(history: Any):
    """An attempt that failed says nothing. Of two iterations, the longer one counts. Without an end there is no number."""
    built = history.empty()
    rows = [("a-sync-0", 0, 5, ""), ("a-sync-0", 1, 1, ""), ("a-sync-0", 1, 2, "converged")]
    for t, (subject, attempt, superstep, ended) in enumerate([*rows, ("b-sync-0", 0, 3, "max-iterations")]):
        row = json.dumps({"superstep": superstep, "count": 9, "ended": ended})
        built.event("iteration.superstep", subject, t, attempt=attempt, data=row)
    assert supersteps(built.trial()) == (3, "a-sync-0: 2 (converged), b-sync-0: 3 (max-iterations)")
    built.event(
        "iteration.superstep", "b-sync-0", 9, attempt=1, data=json.dumps({"superstep": 4, "ended": ""})
    )
    assert supersteps(built.trial()) == (2, "a-sync-0: 2 (converged)")
    assert supersteps(history.empty().trial()) == (None, "")
