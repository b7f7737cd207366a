"""The records that arrived within a window, the windows of a trial, and its busiest vertex, against plain loops over small samples."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed_runtime.checking.baseline import SILENT_NS, cut, noise, steady_since
from testbed_runtime.checking.common import (
    TaskSeries,
    Window,
    Windows,
    busiest,
    events,
    stopped_ns,
    task_series,
    windows,
)
from testbed_runtime.checking.cpu import cpu_per_record, spent_of
from testbed_runtime.checking.progress import (
    GAP_NS,
    LAST_NS,
    SAMPLE_NS,
    SHORTEST_NS,
    Progress,
    _with_usual_gap,
    alive_at_end,
    all_received,
    by_sink,
    goodput,
    last_arrival,
    processed_s,
    raw_rate,
)
from testbed_runtime.history.schema import Trial
from tests.checking.written import NS, Row, at, event, sample, wrote
from tests.manifests import trial_entry

COUNTS = st.lists(st.integers(0, 3), max_size=8)
"""The records that arrived in each second."""
EVERY = st.lists(COUNTS, max_size=3)
SPAN = st.tuples(st.integers(-1, 6), st.integers(1, 4)).map(lambda span: (span[0], span[0] + span[1]))


def totals(counts: list[int]) -> list[int]:
    """The records that had arrived by the end of each second."""
    return [sum(counts[: n + 1]) for n in range(len(counts))]


def times(counts: list[int]) -> Any:
    return np.arange(len(counts), dtype=np.int64) * NS


def series(counts: list[int], task: str = "sink-0") -> TaskSeries:
    """The samples of an attempt, one a second from 0 on."""
    received = np.asarray(totals(counts), dtype=np.int64)
    return TaskSeries(task, "sink", 0, times(counts), received, received * 2, received * 0)


def progress(counts: list[int], **more: Any) -> Progress:
    """The progress of a sink with these samples. The newest record of each is a second old."""
    reached = times(counts) - NS
    return Progress(
        "sink-0", "sink", times(counts), np.asarray(totals(counts), dtype=np.float64), reached, **more
    )


def window(span: tuple[int, int]) -> Window:
    return Window(span[0] * NS, span[1] * NS)


def by(counts: list[int], second: int) -> int:
    """The records that a sink had received by then."""
    found = totals(counts)
    return 0 if second < 0 or not found else found[min(second, len(found) - 1)]


@example(every=[[1]], span=(-1, 0))
@given(every=EVERY, span=SPAN)
def test_a_rate_is_what_all_sinks_received_in_a_window(every: list[list[int]], span: tuple[int, int]):
    """It is unknown if no sink was sampled before the end of the window. A sample at its end is too late."""
    received = sum(by(counts, span[1]) - by(counts, span[0]) for counts in every)
    known = any(every) and span[1] > 0
    expected = received / (span[1] - span[0]) if known else None
    assert raw_rate([series(counts) for counts in every], window(span)) == expected
    assert goodput([progress(counts) for counts in every], window(span)) == expected
    named = [series(counts, f"sink-{n % 2}-{n}") for n, counts in enumerate(every)]
    rates = by_sink(named, window(span))
    assert list(rates) == sorted(rates)
    for vertex in (0, 1):
        own = every[vertex::2]
        total = sum(by(counts, span[1]) - by(counts, span[0]) for counts in own) / (span[1] - span[0])
        assert rates.get(f"sink-{vertex}") == (total if any(own) and span[1] > 0 else None)


@given(every=EVERY, until=st.integers(-1, 9))
def test_the_last_arrival_is_the_last_sample_with_more_records(every: list[list[int]], until: int):
    """A first sample that is not 0 counts."""
    arrived = [n for counts in every for n, new in enumerate(counts) if new and n <= until]
    assert last_arrival([series(counts) for counts in every], until * NS) == max(arrived, default=0) * NS  # fmt: skip


@given(every=EVERY.filter(bool), start=st.integers(0, 4), end=st.integers(0, 9))
def test_the_processed_load_is_the_mean_of_all_sinks(every: list[list[int]], start: int, end: int):
    """A sink that is dead has received nothing since the start."""
    reached = [max([start, *(n - 1 for n in range(len(counts)) if n <= end)]) for counts in every]
    expected = sum(min(due, end) - start for due in reached) / len(every) if end > start else 0.0
    found = processed_s([progress(counts) for counts in every], start * NS, end * NS)
    assert found == pytest.approx(expected)
    assert processed_s([], 0, NS) == 0.0


@given(ends=st.lists(st.none() | st.integers(0, 9), max_size=3))
def test_everything_was_received_when_the_last_sink_had_it(ends: list[int | None]):
    """It is unknown while one of them waits, and without sinks."""
    found = all_received([progress([1], ended_ns=end) for end in ends])
    assert found == (max(e for e in ends if e is not None) if ends and None not in ends else None)


@given(counts=COUNTS, span=SPAN)
def test_the_usual_gap_is_the_longest_one_in_the_baseline(counts: list[int], span: tuple[int, int]):
    """One record in it shows no gap."""
    arrivals = [n for n, new in enumerate(counts) if new and span[0] <= n < span[1]]
    gaps = [(b - a) * NS for a, b in pairwise(arrivals)]
    found = _with_usual_gap(progress(counts), window(span))
    assert found.usual_gap_ns == (max(gaps) if gaps else None)
    assert _with_usual_gap(progress(counts), None).usual_gap_ns == 0


@pytest.mark.parametrize(("gap_ns", "usual_ns"), [(GAP_NS, 0), (GAP_NS + 1, GAP_NS + 1)])
def test_a_short_gap_is_none(gap_ns: int, usual_ns: int):
    """A quarter of a second is short; a source has no usual gap."""
    times_ns = np.asarray([0, gap_ns], dtype=np.int64)
    one = Progress("sink-0", "sink", times_ns, np.asarray([1.0, 2.0]), times_ns)
    assert _with_usual_gap(one, Window(0, gap_ns + 1)).usual_gap_ns == usual_ns
    source = Progress("source-0", "source", times_ns, np.asarray([1.0, 2.0]), times_ns, usual_gap_ns=7)
    assert _with_usual_gap(source, Window(0, gap_ns + 1)).usual_gap_ns == 7


def at_end(counts: list[float], span_ns: tuple[int, int] | None, usual_ns: int | None = 0) -> bool | None:
    """Whether records arrive at the end of the judged window, with a sample each second."""
    judged = None if span_ns is None else Window(*span_ns)
    one = Progress("sink-0", "sink", times([0] * len(counts)), np.asarray(counts), times([0] * len(counts)), usual_gap_ns=usual_ns)  # fmt: skip
    end = span_ns[1] if span_ns else 9 * NS
    return alive_at_end([one], Windows(None, None, None, judged, end))


@pytest.mark.parametrize(
    ("counts", "span_ns", "usual_ns", "alive"),
    [
        ([0, 0, 0, 0, 0, 1], (0, 5 * NS), 0, True),
        ([0, 1, 1, 1, 1, 1], (0, 5 * NS), 0, False),  # before the last two seconds
        ([0, 1, 1, 1, 1, 1], (0, 5 * NS), 2 * NS + 1, True),  # they are usually that far apart
        ([0, 1, 1, 1, 1, 1], (0, 5 * NS), 2 * NS, False),
        ([0, 1, 1, 1, 1, 1], (0, 5 * NS), None, False),
        ([0, 0, 0, 0, 0, 0.1], (0, 5 * NS), 0, True),
        ([0, 1, 2], (2 * NS - SHORTEST_NS, 2 * NS), 0, True),
        ([0, 1, 2], (2 * NS - SHORTEST_NS + 1, 2 * NS), 0, None),
        ([0, 1, 2], (0, 2 * NS), 2 * NS, True),
        ([0, 1, 2], (0, 2 * NS), 2 * NS + 1, None),
        ([0, 1, 2], None, 0, None),
        ([], (0, 2 * NS), 0, None),
    ],
)
def test_a_job_is_alive_if_records_arrive_at_its_end(
    counts: list[float], span_ns: tuple[int, int] | None, usual_ns: int | None, alive: bool | None
):
    """In the last two seconds and the usual gap, if the judged window is not too short for that."""
    assert at_end(counts, span_ns, usual_ns) is alive
    assert (LAST_NS, SHORTEST_NS, GAP_NS) == (2 * NS, NS // 2, NS // 4)


def phase(name: str, start: int, end: int) -> Row:
    return {"name": name, "start_ns": start, "end_ns": end}


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ([], (None, None, None, None, 7)),  # the last row of the history
        ([phase("baseline", 1, 3), phase("fault", 3, 4), phase("observation", 4, 8), phase("drain", 8, 9)], ((1, 3), (3, 4), (4, 8), (3, 8), 8)),
        ([phase("baseline", 1, 3), phase("observation", 3, 8)], ((1, 3), None, (3, 8), (3, 8), 8)),
        ([phase("baseline", 1, 3), phase("fault", 3, 5), phase("drain", 4, 6)], ((1, 3), (3, 4), None, (3, 4), 4)),
        ([phase("baseline", 1, 1), phase("drain", 2, 3)], (None, None, None, None, 2)),
        ([phase("observation", 2, 5), phase("fault", 2, 5), phase("drain", 2, 5)], (None, None, None, None, 2)),
        ([phase("fault", 3, 8), phase("observation", 8, 8), phase("drain", 8, 9)], (None, (3, 8), None, (3, 8), 8)),
        ([phase("fault", 5, 6), phase("observation", 3, 4), phase("drain", 9, 9)], (None, (5, 6), (3, 4), (3, 9), 9)),
    ],
)  # fmt: skip
def test_the_windows_of_a_trial_follow_from_its_phases(phases: list[Row], expected: tuple[Any, ...]):
    """One that has no length, or that was not reached, is none."""
    rows = [event("note"), sample("sink-0")]
    trial = wrote(*((table, {**row, "t": 0.0}) for table, row in rows))
    trial = Trial("r", "t", {n: _at(trial, n, t) for n, t in (("events", 5), ("tasks", 7))})
    found = windows(trial, trial_entry({"phases": phases}))
    spans = [None if w is None else (w.start, w.end) for _, w in found.by_phase()]
    assert ([name for name, _ in found.by_phase()], spans, found.end) == (["baseline", "fault", "observation", ""], [*expected[:4]], expected[4])  # fmt: skip
    assert windows(Trial("r", "t", {}), trial_entry()).end == 0


def _at(trial: Trial, name: str, t_ns: int) -> Any:
    """A table whose rows are at this time."""
    table = trial.table(name)
    place = table.schema.get_field_index("t_ns")
    return table.set_column(place, table.schema.field(place), [[t_ns] * len(table)])


@pytest.mark.parametrize(
    ("phases", "stopped"),
    [
        ([phase("baseline", 1, 3), phase("observation", 3, 8)], 8),
        ([phase("baseline", 1, 3), phase("drain", 3, 8)], None),
        ([], None),
    ],
)
def test_a_trial_that_was_interrupted_was_stopped_at_its_last_phase(phases: list[Row], stopped: int | None):
    """A drained one ended by itself."""
    entry = trial_entry({"phases": phases})
    assert stopped_ns(entry, windows(Trial("r", "t", {}), entry)) == stopped


SAMPLES = st.lists(st.tuples(st.sampled_from(["a-0", "a-1", "b-0"]), st.integers(0, 1), st.integers(0, 6), st.integers(0, 4)), max_size=10)  # fmt: skip


@given(samples=SAMPLES, start=st.integers(-1, 4), length=st.integers(0, 5))
def test_the_busiest_vertex_has_the_attempt_that_worked_most(
    samples: list[tuple[str, int, int, int]], start: int, length: int
):
    """Both ends of the span belong to it. Of several attempts, the last by name counts."""
    trial = wrote(*(sample(task, t, attempt=n, busy_ns=busy) for task, n, t, busy in samples))
    end, worked = start + length, dict[tuple[str, int], int]()
    for task, attempt, *_ in samples:
        own = [b for name, n, t, b in samples if (name, n) == (task, attempt) and start <= t <= end]
        worked[task, attempt] = max(own) - min(own) if own else 0
    most = max(worked.values(), default=0)
    last = max((key for key, busy in worked.items() if busy == most), default=("", 0))
    assert busiest(trial, at(start), at(end)) == ((last[0][0], most) if most else ("", 0))


@given(samples=SAMPLES)
def test_each_attempt_has_its_samples_in_order(samples: list[tuple[str, int, int, int]]):
    """Series are ordered by task and attempt, and events by time."""
    rows = [
        sample(task, t, attempt=n, records_in=v, records_out=v + 1, lag_ns=v + 2) for task, n, t, v in samples
    ]
    found = task_series(wrote(*rows))
    assert [(s.task, s.attempt) for s in found] == sorted({(task, n) for task, n, *_ in samples})
    for one in found:
        own = sorted((at(t), number, v) for number, (task, n, t, v) in enumerate(samples) if (task, n) == (one.task, one.attempt))  # fmt: skip
        assert one.t_ns.tolist() == [t for t, *_ in own]
        assert one.records_in.tolist() == [v for *_, v in own]
        assert (one.records_out - one.records_in).tolist() == [1] * len(own)
        assert (one.lag_ns - one.records_in).tolist() == [2] * len(own)
    trial = wrote(*(event("note" if n else "loop.stall", str(v), t) for _, n, t, v in samples))
    moments = [e["t_ns"] for e in events(trial, "note", "loop.stall")]
    assert moments == sorted(at(t) for *_, t, _ in samples)
    assert len(events(trial, "note")) == sum(n for _, n, *_ in samples)


def test_the_processor_time_of_a_record_is_a_mean_of_its_window():
    """Samples are in any order, and of several TaskManagers."""
    rows = [("tm-0", 4, 4.0, 40), ("tm-0", 0, 0.0, 0), ("tm-1", 0, 1.0, 5), ("tm-1", 4, 3.0, 13)]
    trial = wrote(*(event("cpu.spent", tm, t, seconds=s, buffers=n) for tm, t, s, n in rows))
    sinks = [TaskSeries("sink-0", "sink", 0, *(np.asarray(v, dtype=np.int64) for v in ([at(0), at(4)], [0, 8], [0, 0], [0, 0])))]  # fmt: skip
    spent = spent_of(trial)
    found = cpu_per_record(spent, sinks, Window(at(1), at(3)))
    assert found is not None
    assert (found.seconds, found.buffers) == (pytest.approx(3.0 / 4), pytest.approx(24 / 4))
    assert cpu_per_record([], sinks, Window(at(1), at(3))) is None
    assert cpu_per_record(spent, sinks, Window(at(5), at(6))) is None


def arrived(counts: list[int], tenth: int) -> float:
    """The records that a sink had received by then. They arrive evenly between two samples."""
    second, rest = divmod(tenth, 10)
    return (
        by(counts, second) + (by(counts, second + 1) - by(counts, second)) * rest / 10 if second >= 0 else 0.0
    )


@given(every=EVERY, start=st.integers(0, 20), length=st.integers(1, 60), normal=st.integers(0, 3), share=st.sampled_from([0.0, 0.5]))  # fmt: skip
@example(every=[[0, 3, 0, 0, 3]], start=0, length=31, normal=0, share=0.0)
def test_noise_and_steadiness_are_found_in_every_three_seconds_of_a_window(
    every: list[list[int]], start: int, length: int, normal: int, share: float
):
    """They begin each tenth of a second. With one of them there is no noise."""
    sinks, span = (
        [progress(counts) for counts in every],
        Window(start * SAMPLE_NS, (start + length) * SAMPLE_NS),
    )
    rates = [
        sum(arrived(counts, t + 30) - arrived(counts, t) for counts in every) / 3
        for t in range(start, start + length - 29)
    ]
    total = sum(arrived(counts, start + length) - arrived(counts, start) for counts in every)
    mean = total / (length / 10) if any(every) else 0
    expected = max(abs(rate / mean - 1) for rate in rates) if len(rates) > 1 and mean else 0.0
    assert noise(sinks, span) == pytest.approx(expected, abs=1e-9)
    good = [n for n, rate in enumerate(rates) if abs(rate - normal) <= share * normal + 1e-12]
    close = [n for n, rate in enumerate(rates) if abs(abs(rate - normal) - share * normal) < 1e-9]
    found = steady_since(sinks, span, normal, share)
    if not close:  # otherwise rounding decides
        assert found == ((start + good[0]) * SAMPLE_NS if good else None)


@given(
    every=st.lists(st.lists(st.integers(0, 40), unique=True, max_size=8).map(sorted), max_size=3),
    start=st.integers(0, 20),
    length=st.integers(1, 20),
)
def test_a_window_ends_before_the_last_samples_of_those_that_fell_silent(
    every: list[list[int]], start: int, length: int
):
    """They have no sample for one and a half periods, and had one in the second half of the window."""
    tick = SILENT_NS // 3
    ends = [start + length]
    for samples in every:
        last = max((t for t in samples if t < start + length), default=0)
        later = min((t for t in samples if t >= start + length), default=99)
        if later - last > 3 and last * tick > start * tick + length * tick // 2:
            ends.append(last)
    sinks = [
        Progress("sink-0", "sink", np.asarray(t, dtype=np.int64) * tick, np.zeros(len(t)), np.zeros(len(t), dtype=np.int64))
        for t in every
    ]  # fmt: skip
    found = cut(Window(start * tick, (start + length) * tick), sinks)
    assert (found.start, found.end) == (start * tick, min(ends) * tick)
