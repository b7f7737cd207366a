"""Which lag is normal for each subtask, and how sinks with few records are judged by what arrives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from testbed_runtime.checking.catchup import Arrivals, CatchUp, missing
from testbed_runtime.checking.common import Window, Windows, windows
from testbed_runtime.checking.progress import Progress
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS

NS = 1_000_000_000
STEP = NS // 10


def lagging(lags: list[float]) -> Progress:
    """A sink with a sample every 0.1 s from 0 on, and these lags in seconds."""
    t_ns = np.arange(len(lags), dtype=np.int64) * STEP
    reached = t_ns - np.asarray([round(lag * NS) for lag in lags], dtype=np.int64)
    return Progress("sink-0", "sink", t_ns, np.arange(len(lags), dtype=np.float64), reached)


def arriving(built: Any, at: float, latency: float) -> None:
    """Add the latencies of the 0.1 s before `at`."""
    start = round((1000 + at) * NS) - STEP
    built.add(
        "tm-0-1", "latency", at, task="sink-1", attempt=0, window_start_ns=start, window_ns=STEP, count=1,
        buckets=[1] + [0] * len(LATENCY_BOUNDS_NS), max_ns=round(latency * NS),
    )  # fmt: skip


def test_arrivals_are_late_beyond_the_percentile_of_twenty_windows_of_the_baseline(history: Any):
    """The windows that ended within the baseline count: 1 to 20 ms have a 95th percentile of 19.05 ms, and 200 ms are tolerated."""
    built = history.empty()
    arriving(built, 2.0, 5.0)
    for number in range(19):
        arriving(built, 2.1 + number / 10, 0.001 * (number + 1))
    arriving(built, 8.1, 5.0)
    baseline = Window(history.at(2), history.at(8))
    assert Arrivals.read(built.trial(), baseline) is None, "19 windows"
    arriving(built, 8.0, 0.020)
    found = Arrivals.read(built.trial(), baseline)
    assert found is not None
    assert found.limit_ns == 219_050_000
    assert (found.arrived_ns[0], found.due_ns[0]) == (history.at(2), history.at(-3))
    assert Arrivals.read(history.empty().trial(), baseline) is None


def test_a_late_record_shows_that_its_sink_was_behind_until_it_arrived():
    """Due at 0.3 s and tolerated until 0.5 s: the sink is behind from then until 0.8 s. Another one came in time."""
    due, arrived = (np.asarray(steps, dtype=np.int64) * STEP for steps in ([3, 10], [8, 12]))
    found = CatchUp((), 13 * STEP, arrivals=Arrivals(due, arrived, 2 * STEP))
    behind = [n for n in range(14) if not found.good_between(n * STEP, n * STEP + 1)]
    assert behind == [6, 7]


def test_a_span_is_good_if_no_subtask_was_behind_in_it():
    """A lag at the limit is normal. The end of the span is not part of it."""
    found = CatchUp(((lagging([0.5, 0.5, 0.5, 0.6, 0.5]), 0.5),), 4 * STEP)
    assert [found.good_between(a * STEP, b * STEP) for a, b in ((0, 3), (0, 4), (4, 5))] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("lags", "at", "end", "fault_end", "since"),
    [
        ([1, 0, 0, 0, 0, 0], 0, 5 * STEP, 0, 1),  # five samples: half a second, the last one at the end
        ([1, 0, 0, 0, 0, 0], 0, 5 * STEP - 1, 0, None),
        ([0] * 20, 0, 2 * NS, 3, 0),  # nothing was ever behind
        ([1] + [0] * 20, 0, 2 * NS, 3, 3),  # two good samples in the fault may be a gap in its effect
        ([1] + [0] * 20, 0, 2 * NS, 11, 1),  # a second is enough
        ([1] + [0] * 20, 0, 2 * NS, 10, 10),
    ],
)  # fmt: skip
def test_a_job_has_caught_up_after_half_a_second_or_before_the_end_of_the_fault_after_a_whole_one(
    lags: list[float], at: int, end: int, fault_end: int, since: int | None
):
    """The moment is the first one of the good ones. Times are in samples of 0.1 s."""
    found = CatchUp(((lagging(lags), 0.5),), end).since(at, fault_end=fault_end * STEP)
    assert found == (None if since is None else since * STEP)


def test_a_job_that_is_behind_until_the_end_has_not_caught_up_from_a_fault_that_outlasts_the_record():
    """Nothing follows in which it could be good."""
    found = CatchUp(((lagging([0.0, 0.1, 0.2]), 0.05),), 2 * STEP)
    assert found.since(0, fault_end=9 * STEP) is None


def test_a_job_has_caught_up_with_its_last_sink_although_another_one_falls_behind_right_after_it():
    """They need not stay good together: of many subtasks, there is always one that is late."""
    first, second = [0.0] * 6 + [1.0] * 10 + [0.0] * 15, [1.0] * 5 + [0.0] * 26
    found = CatchUp(((lagging(first), 0.5), (lagging(second), 0.5)), 3 * NS)
    assert found.since(0) == 5 * STEP


def test_a_sink_is_behind_until_the_late_records_of_each_source_have_arrived():
    """One source is punctual from 0.2 s on, so the newest record never is late after that. The other one's, due at 0.3 s, comes at 1.2 s."""
    sink = lagging([1, 1] + [0] * 30)
    last = sink.t_ns.copy()
    last[12] = 3 * STEP
    assert CatchUp(((sink, 0.5),), 3 * NS).since(0) == 2 * STEP
    found = CatchUp(((replace(sink, last_ns=last), 0.5),), 3 * NS)
    assert [n for n in range(30) if not found.good_between(n * STEP, n * STEP + 1)] == [0, 1, 9, 10, 11]
    last[12] = 0
    assert CatchUp(((replace(sink, last_ns=last), 0.5),), 3 * NS).since(0) == 12 * STEP


def test_a_source_that_is_as_late_as_in_the_baseline_does_not_keep_its_sink_behind(history: Any):
    """Every tenth sample shows a record of a source that is always 1 s late. Later ones, of 10 s, are a backlog."""
    built = history.empty()
    for tick in range(121):
        late = 0.02 if tick % 10 else 1.0 if tick != 100 else 3.0
        built.add("tm-0-1", "tasks", tick / 10, task="sink-0", vertex="sink", role="sink", records_in=10 * tick, lag_ns=round(late * NS))  # fmt: skip
    found = caught(built, history)
    assert found.good_between(history.at(3), history.at(8))
    behind = [n for n in range(75, 110) if not found.good_between(history.at(n / 10), history.at(n / 10) + 1)]
    assert behind == list(range(83, 100)), "since 7 s + 1.2 s"


@pytest.mark.parametrize(
    ("latency", "restarted", "ended", "expected"),
    [
        (3.0, (), None, [(5.32, 8)]),  # due at 5.1 s at the latest
        (3.0, (), 8.0, []),  # it came after everything had been received
        (0.22, (), None, []),  # within what is normal
        (3.0, (6.0, 8.35), None, [(6.0, 8)]),  # it may be replayed
        (3.0, (6.0, 8.25), None, []),  # by the attempt whose first sample follows
        (3.0, (8.0,), None, []),
    ],
)
def test_a_record_of_a_later_window_was_missing_before_it_began(
    history: Any, latency: float, restarted: tuple[float, ...], ended: float | None, expected: list[Any]
):
    """Records of the baseline are up to 0.02 s late. One came between 8 and 8.1 s, and another one in the same time window of its due time."""
    built = history.empty()
    for at in (3.0, 4.0, 8.2):
        arriving(built, at, 0.02 if at < 8 else 0.3)
    arriving(built, 8.1, latency)
    ended_ns = None if ended is None else history.at(ended)
    sink = replace(lagging([0]), restarted_ns=tuple(history.at(t) for t in restarted), ended_ns=ended_ns)
    found = missing(built.trial(), Window(history.at(2), history.at(5)), [sink], 0.0)
    spans = [((a - history.at(0)) / NS, (b - history.at(0)) / NS) for a, b in zip(*found, strict=True)]
    assert [s for s in spans if s[1] < 8.1] == expected
    assert [len(x) for x in missing(built.trial(), Window(0, NS), [sink], 0.0)] == [0, 0], "no baseline"


def test_a_fault_that_held_back_one_of_two_sources_cost_its_whole_time():
    """The sinks go on with the records of the other source, and the missing ones all come at its end, after 4 s."""
    sink = lagging([0] * 60)
    assert CatchUp(((sink, 0.5),), 6 * NS).since(0, fault_end=4 * NS) == 0
    spans = np.asarray([NS // 2], dtype=np.int64), np.asarray([4 * NS], dtype=np.int64)
    found = CatchUp(((sink, 0.5),), 6 * NS, missing=spans)
    assert found.since(0, fault_end=4 * NS) == 4 * NS
    assert [found.good_between(a * STEP, b * STEP) for a, b in ((0, 5), (5, 7), (40, 50))] == [
        True,
        False,
        True,
    ]


def test_what_an_attempt_replays_was_not_missing_before_it_began():
    """The attempt of 1 s on replays a record that was due at 0.1 s. After the end of the subtask nothing is late."""
    sink = replace(lagging([0] * 30), restarted_ns=(NS,))
    last = sink.t_ns.copy()
    last[15] = STEP
    found = replace(sink, last_ns=last).late(NS // 2)
    assert [x.tolist() for x in found] == [[NS], [15 * STEP]]
    assert [x.tolist() for x in replace(sink, last_ns=last, ended_ns=14 * STEP).late(NS // 2)] == [[], []]
    assert [x.tolist() for x in sink.late(NS // 2)] == [[], []]


@pytest.mark.parametrize(("rate", "limit"), [(100, 2.2), (94, 0.22), (None, 2.2)])
def test_a_job_that_is_catching_up_in_its_baseline_is_normal_when_it_is_calm(
    history: Any, rate: int | None, limit: float
):
    """100 records a second arrive in the baseline, 2 s late, and from 8 s on 0.02 s late. A job that is faster than what its sources
    offer, here 94 records a second, has a backlog."""
    built = history.empty()
    for tick in range(181):
        late = 2.0 if tick < 80 else 0.02
        built.add("tm-0-1", "tasks", tick / 10, task="sink-0", vertex="sink", role="sink", records_in=10 * tick, lag_ns=round(late * NS))  # fmt: skip
    vertices = [
        {"name": "source", "role": "source", "kind": "generated", "recordsPerSecond": rate or 100},
        {"name": "map", "role": "operator", "kind": "python" if rate is None else "map"},
        {"name": "sink", "role": "sink", "kind": "ledger"},
    ]
    edges = [{"from": a, "to": b, "partitioning": "forward"} for a, b in (("source", "map"), ("map", "sink"))]
    trial, entry = built.trial(), history.entry(job={"vertices": vertices, "edges": edges})
    ((_, found),) = CatchUp.read(trial, entry, windows(trial, entry), history.at(18)).subtasks
    assert found == pytest.approx(limit, abs=0.001)


def test_a_job_that_finished_when_it_was_looked_at_is_not_behind():
    """No half second is needed then."""
    found = CatchUp(((lagging([1] * 9), 0.5),), 8 * STEP, finished=4 * STEP)
    assert [found.since(n * STEP) for n in (3, 4, 5)] == [4 * STEP, 4 * STEP, None]


def sampled(history: Any, received: dict[str, int], until: dict[str, float] | None = None) -> Any:
    """Samples every 0.1 s until 12 s, with the records that each task receives in the baseline from 2 s to 8 s."""
    built = history.empty()
    for task, number in received.items():
        vertex = task.rpartition("-")[0]
        for tick in range(121):
            t = tick / 10
            if t <= (until or {}).get(task, 12):
                records = round(number * min(max(t - 2, 0), 6) / 6)
                built.add("tm-0-1", "tasks", t, task=task, vertex=vertex, role=vertex, records_in=records, lag_ns=NS // 50)  # fmt: skip
    return built


def caught(built: Any, history: Any, **entry: Any) -> CatchUp:
    trial, chosen = built.trial(), history.entry(**entry)
    return CatchUp.read(trial, chosen, windows(trial, chosen), history.at(12))


def test_the_normal_lag_is_that_of_the_baseline_and_at_least_the_flushes_on_the_way(history: Any):
    """0.02 s in the baseline, and 0.2 s are tolerated. Two exchanges flush after at most 0.1 s each, or after 0.4 s each."""
    built = sampled(history, {"sink-0": 600})
    (one,) = caught(built, history).subtasks
    assert one[1] == pytest.approx(0.22, abs=0.001)
    (one,) = caught(built, history, configuration={"execution.buffer-timeout.interval": "400 ms"}).subtasks
    assert one[1] == pytest.approx(0.8)
    (one,) = caught(built, history, job={"vertices": [{"name": "other"}], "edges": []}).subtasks
    assert one[1] == pytest.approx(0.22, abs=0.001), "the graph does not have it"


def test_only_sinks_cut_the_baseline_in_which_lags_are_normal(history: Any):
    """A sink that fell silent at 7.4 s lost its last samples, and lags by 0.6 s at the end of the window. A source has ended."""
    lost = sampled(history, {"sink-0": 600, "sink-1": 600}, {"sink-0": 7.4})
    assert [limit for _, limit in caught(lost, history).subtasks] == pytest.approx([0.22, 0.22], abs=0.001)
    ended = sampled(history, {"sink-0": 600, "source-0": 600}, {"source-0": 7.4})
    (_, source) = caught(ended, history).subtasks
    assert source[1] > 0.3


@pytest.mark.parametrize(
    ("received", "windows_of_latency", "judged"), [(19, 20, []), (19, 19, ["sink-1"]), (20, 20, ["sink-1"])]
)
def test_a_sink_with_few_records_in_the_baseline_is_judged_by_arrivals(
    history: Any, received: int, windows_of_latency: int, judged: list[str]
):
    """Below 20 records, if there are 20 windows with arrivals. Its samples say nothing then; those of others do."""
    built = sampled(history, {"sink-0": 600, "sink-1": received})
    for number in range(windows_of_latency):
        arriving(built, 3 + number / 10, 0.02)
    found = caught(built, history)
    assert [one.task for one, _ in found.subtasks] == ["sink-0", *judged]
    assert (found.arrivals is not None) == (judged == [])
    assert found.reason == ""


def test_a_job_has_finished_with_its_last_state_until_the_end(history: Any):
    """Another state is none, and what came later is not known yet."""
    built = sampled(history, {"sink-0": 600})
    built.event("job.state", "job", 1, data={"from": "CREATED", "to": "RUNNING"})
    assert caught(built, history).finished is None
    built.event("job.state", "job", 12.1, data={"from": "RUNNING", "to": "FINISHED"})
    assert caught(built, history).finished is None
    built = sampled(history, {"sink-0": 600})
    built.event("job.state", "job", 12, data={"from": "RUNNING", "to": "FINISHED"})
    assert caught(built, history).finished == history.at(12)
    built.event("sink.end", "sink-0", 11)
    assert caught(built, history).finished == history.at(11), "its sinks had received everything before"


def test_without_a_baseline_or_samples_it_is_unknown_when_a_job_has_caught_up(history: Any):
    """The reason says which of them is missing."""
    built, chosen = history.empty(), history.entry()
    without = Windows(None, None, None, None, history.at(12))
    assert CatchUp.read(built.trial(), chosen, without, history.at(12)).reason == "NoBaseline"
    assert caught(built, history).reason == "NoData"
    late = sampled(history, {})
    late.add("tm-0-1", "tasks", 9, task="sink-0", vertex="sink", role="sink", records_in=1, lag_ns=0)
    assert caught(late, history).reason == "NoBaseline", "no sample in the baseline"


@pytest.mark.parametrize(
    ("lags", "at", "since"),
    [
        ([0.1, 0.2, 0.3], 0, 0),
        ([0, 0, 0.1, 0.2], 0, 2),
        ([0, 0.1, 0, 0.1], 0, 3),
        ([0.1, 0.2, 0], 0, None),
        ([0.1, 0, 0.1, 0.2], 2, 2),
        ([0.1], 5, None),
    ],
)
def test_a_sink_is_behind_since_its_last_moment_without_a_backlog(
    lags: list[float], at: int, since: int | None
):
    """Only a backlog that lasts until the end counts."""
    found = CatchUp(((lagging(lags), 0.05),), (len(lags) - 1) * STEP).behind_since(at * STEP)
    assert found == (None if since is None else since * STEP)


@pytest.mark.parametrize(
    ("latency_ns", "punctual"), [(50_000_000, True), (50_000_001, False), (None, False)], ids=str
)
def test_a_record_is_punctual_within_the_lag_that_is_normal_for_its_sink(
    latency_ns: int | None, punctual: bool
):
    """A sink whose normal lag is not known shows nothing."""
    row = lagging([0.0])
    found = CatchUp(((replace(row, task="sink-1"), 9.0), (row, 0.05)), 0)
    assert found.punctual("sink-0", latency_ns) is punctual
    assert found.punctual("unknown-0", latency_ns) is False


@pytest.mark.parametrize(("gap_s", "moment"), [(0.0, 0), (0.9, 0), (1.0, 23), (2.0, 23)])
def test_a_sink_that_gets_records_rarely_has_caught_up_when_the_next_ones_come_in_time(
    gap_s: float, moment: int
):
    """Records that are late by 1 s arrive from 1.3 to 2.3 s. What is good for 0.9 s before them may be a gap, but not what is good until
    the end."""
    sink = replace(lagging([0.0] * 30), usual_gap_ns=round(gap_s * NS))
    last = sink.t_ns.copy()
    last[13:24] -= NS
    assert CatchUp(((replace(sink, last_ns=last), 0.5),), 29 * STEP).since(0) == moment * STEP


@pytest.mark.parametrize(
    ("at", "since", "begun"),
    [(12, 0, 5), (10, 0, 5), (9, 0, 9), (20, 0, 20), (12, 7, 7), (12, 8, 12), (5, 5, 5)],
)
def test_a_job_was_behind_until_a_moment_for_half_a_second_or_not_at_all(at: int, since: int, begun: int):
    """It is behind from 0.5 to 1.5 s."""
    found = CatchUp(((lagging([0.0] * 25), 0.5),), 24 * STEP, held=((5 * STEP, 15 * STEP),))
    assert found.behind_until(at * STEP, since * STEP) == begun * STEP
