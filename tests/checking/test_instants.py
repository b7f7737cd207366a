"""Functions over spans and samples against plain loops over every instant."""

from __future__ import annotations

from itertools import accumulate, groupby, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed_runtime.checking import catchup
from testbed_runtime.checking.baseline import CALM_NS, normal_lag
from testbed_runtime.checking.catchup import HOLD_NS, CatchUp
from testbed_runtime.checking.common import Window, without_spans
from testbed_runtime.checking.progress import NOTHING, SAMPLE_NS, Progress
from testbed_runtime.checking.waits import _pod_steps, starved_words, without_splits
from testbed_runtime.core.job.splits import NEXT_SPLIT
from testbed_runtime.core.waits import Wait

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda ends: (min(ends), max(ends))), max_size=6)  # fmt: skip
STATES = st.lists(st.booleans(), max_size=24)
HOLD = HOLD_NS // SAMPLE_NS
TICK_NS = SAMPLE_NS // 2
"""A fifth of a gap, so that some silences are exactly as long as one."""


def covered(spans: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in spans for t in range(start, end)}


def runs(states: list[bool]) -> list[tuple[bool, int]]:
    """The runs of equal states, with their lengths."""
    return [(state, len(list(run))) for state, run in groupby(states)]


@given(spans=SPANS)
def test_united_spans_cover_the_same_instants_and_do_not_touch(spans: list[tuple[int, int]]):
    """A large job has one span for each channel."""
    found = list(catchup._united(spans))
    assert covered(found) == covered(spans)
    assert all(a[1] < b[0] for a, b in pairwise(found))


@given(span=st.tuples(st.integers(0, 9), st.integers(9, 20)), others=SPANS)
def test_the_rest_of_a_span_is_what_no_other_span_covers(
    span: tuple[int, int], others: list[tuple[int, int]]
):
    """Its parts are not empty."""
    found = without_spans(span, others)
    assert covered(found) == covered([span]) - covered(others)
    assert all(start < end for start, end in found)


@given(states=STATES, spans=SPANS)
def test_times_are_cleared_strictly_between_the_ends_of_a_span(
    states: list[bool], spans: list[tuple[int, int]]
):
    """Whatever the order of the spans is."""
    good = np.asarray(states, dtype=np.bool_)
    since, until = (np.asarray([span[n] for span in spans], dtype=np.int64) for n in (0, 1))
    catchup.clear(good, np.arange(len(states), dtype=np.int64), since, until)
    assert good.tolist() == [s and not any(a < t < b for a, b in spans) for t, s in enumerate(states)]


@given(states=STATES, length=st.integers(0, 5))
def test_a_short_run_has_the_state_of_the_last_long_one(states: list[bool], length: int):
    """Before the first long one, everything is bad."""
    expected, state = [], False
    for own, lasted in runs(states):
        state = own if lasted >= length else state
        expected += [state] * lasted
    assert catchup._without_short_runs(np.asarray(states, dtype=np.bool_), length).tolist() == expected


@given(states=STATES, length=st.integers(0, 5))
def test_a_short_good_run_before_a_bad_one_is_bad(states: list[bool], length: int):
    """The last run counts, however short it is."""
    found = runs(states)
    expected = []
    for number, (own, lasted) in enumerate(found, start=1):
        expected += [own and (lasted >= length or number == len(found))] * lasted
    assert catchup._without_short_gaps(np.asarray(states, dtype=np.bool_), length).tolist() == expected


@given(states=STATES, data=st.data())
def test_a_fault_may_end_a_second_after_the_job_has_caught_up(states: list[bool], data: st.DataObject):
    """Or at any time, if the job was good from the beginning on."""
    at = data.draw(st.integers(0, len(states)))
    good = next((n for n in range(at) if not states[at - 1 - n]), at)
    assert catchup._since_when(np.asarray(states, dtype=np.bool_), at) == (
        at - good if good in (at, *range(10, 99)) else at
    )


LAGS = st.lists(st.integers(0, 8), min_size=1, max_size=20)
"""The lag of a sink in tenths of a second, in each sample."""


def sink(lags: list[int], *, gap: int | None = 0, ended: int | None = None) -> Progress:
    """A sink with a sample every 0.1 s from 0 on that shows a new record with this lag."""
    t_ns = np.arange(len(lags), dtype=np.int64) * SAMPLE_NS
    reached = t_ns - np.asarray(lags, dtype=np.int64) * SAMPLE_NS
    return Progress(
        "sink-0", "sink", t_ns, np.arange(len(lags), dtype=np.float64), np.maximum.accumulate(reached), last_ns=reached,
        usual_gap_ns=None if gap is None else gap * SAMPLE_NS, ended_ns=None if ended is None else ended * SAMPLE_NS,
    )  # fmt: skip


def newest(lags: list[int], step: int) -> int:
    """The due time of the newest record by then."""
    return max(n - lag for n, lag in enumerate(lags[: step + 1]))


@given(every=st.lists(LAGS.filter(lambda lags: len(lags) > 12), min_size=1, max_size=3), limit=st.integers(0, 8), data=st.data())  # fmt: skip
def test_a_job_is_behind_while_one_of_its_subtasks_is(
    every: list[list[int]], limit: int, data: st.DataObject
):
    """Before a moment, half a second counts as behind; before the end, any time does."""
    end = min(len(lags) for lags in every) - 1
    bad = [any(n - newest(lags, n) > limit for lags in every) for n in range(end + 1)]
    found = CatchUp(tuple((replace(sink(lags), last_ns=None), limit / 10) for lags in every), end * SAMPLE_NS)
    at, since = data.draw(st.integers(1, end)), data.draw(st.integers(0, end))
    assert found.good_between(since * SAMPLE_NS, at * SAMPLE_NS) == (not any(bad[since:at]))
    good = next((n for n in range(end, since - 1, -1) if not bad[n]), since - 1)
    assert found.behind_since(since * SAMPLE_NS) == (None if good == end else (good + 1) * SAMPLE_NS)
    if since < at:
        begun = next((n + 1 for n in range(at - 1, since, -1) if not bad[n]), since)
        assert found.behind_until(at * SAMPLE_NS, since * SAMPLE_NS) == (begun if at - begun >= HOLD else at) * SAMPLE_NS  # fmt: skip


@given(
    lags=LAGS,
    gap=st.sampled_from([0, 3]),
    ended=st.none() | st.integers(0, 20),
    window=st.tuples(st.integers(0, 9), st.integers(10, 20)),
)
def test_the_lag_of_a_sink_is_the_age_of_its_newest_record_less_the_usual_gap(
    lags: list[int], gap: int, ended: int | None, window: tuple[int, int]
):
    """It is at least the age that the record had when it arrived, and 0 after the end."""
    one = sink(lags, gap=gap, ended=ended)
    times = list(range(-1, len(lags) + 3))
    found = one.lag_at(np.asarray(times, dtype=np.int64) * SAMPLE_NS)
    for t, lag in zip(times, found.tolist(), strict=True):
        if t < 0:
            assert np.isnan(lag)
            continue
        reached = newest(lags, t)
        arrived = next(n for n in range(len(lags)) if newest(lags, n) == reached)
        expected = 0 if ended is not None and t >= ended else max(arrived - reached, t - reached - gap)
        assert round(lag * 10, 6) == expected
    shown = [lag for n, lag in enumerate(lags) if window[0] <= n < window[1]]
    assert one.latest_in(Window(window[0] * SAMPLE_NS, window[1] * SAMPLE_NS)) == max(shown, default=0) / 10


@given(
    lags=LAGS,
    ended=st.none() | st.integers(0, 30),
    start=st.integers(-8, 8),
    length=st.integers(1, 8),
    until=st.none() | st.integers(0, 30),
)
def test_the_normal_lag_is_that_of_the_calmest_window(
    lags: list[int], ended: int | None, start: int, length: int, until: int | None
):
    """The windows begin each half second, and end by `until` and by the end of the task."""
    one, ends = sink(lags, ended=ended), [t for t in (until, ended) if t is not None]
    last = start if until is None else max(min(ends) - length, start)
    begins = range(start, last + 1, CALM_NS // SAMPLE_NS)
    parts = [one.lag_at(np.arange(t, t + length, dtype=np.int64) * SAMPLE_NS) for t in begins]
    known = [part[~np.isnan(part)] for part in parts]
    least = min((float(np.percentile(part, 95)) for part in known if len(part)), default=None)
    found = normal_lag(
        one, Window(start * SAMPLE_NS, (start + length) * SAMPLE_NS), until and until * SAMPLE_NS
    )
    assert found == (least if len(known[0]) else None)


@given(
    lags=LAGS,
    limit=st.integers(0, 8),
    ended=st.none() | st.integers(0, 20),
    begun=st.none() | st.integers(1, 20),
)
def test_a_record_was_missing_from_when_it_was_late_until_it_arrived(
    lags: list[int], limit: int, ended: int | None, begun: int | None
):
    """Replayed records were not missing before their attempt began."""
    last = sink(lags, ended=ended).last_ns
    assert last is not None
    last[::5] = NOTHING  # no record
    one = Progress(
        "sink-0", "sink", np.arange(len(lags), dtype=np.int64) * SAMPLE_NS, np.zeros(len(lags)), last, last_ns=last,
        ended_ns=None if ended is None else ended * SAMPLE_NS, restarted_ns=() if begun is None else (begun * SAMPLE_NS,),
    )  # fmt: skip
    expected = [
        (max(n - lag + limit, begun if begun is not None and begun <= n else 0), n)
        for n, lag in enumerate(lags)
        if n % 5 and lag > limit and (ended is None or n <= ended)
    ]
    since, until = one.late(limit * SAMPLE_NS)
    assert list(zip((since // SAMPLE_NS).tolist(), (until // SAMPLE_NS).tolist(), strict=True)) == expected


@given(
    steps=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    lags=st.lists(st.integers(0, 8), min_size=9, max_size=9),
    gap=st.sampled_from([0, 4]),
    ended=st.none() | st.integers(0, 30),
    window=st.tuples(st.integers(0, 9), st.integers(10, 40)),
)
def test_the_largest_lag_and_stall_are_those_of_the_longest_silence(
    steps: list[int], lags: list[int], gap: int, ended: int | None, window: tuple[int, int]
):
    """A lag grows in silence that is longer than a quarter of a second and the usual gap. Each record is newer than those before it."""
    t = [0, *accumulate(steps)]
    reached = list(accumulate((n - lag for n, lag in zip(t, lags, strict=False)), lambda a, b: max(a + 1, b)))
    one = Progress(
        "sink-0", "sink", np.asarray(t, dtype=np.int64) * TICK_NS, np.arange(1.0, len(t) + 1), np.asarray(reached, dtype=np.int64) * TICK_NS,
        usual_gap_ns=gap * TICK_NS, ended_ns=None if ended is None else ended * TICK_NS,
    )  # fmt: skip
    end = window[1] if ended is None else min(window[1], ended)
    known = [n - due for n, due in zip(t, reached, strict=True) if window[0] <= n < end]
    for n, due, later in zip(t, reached, [*t[1:], end], strict=True):
        until = min(later, end)
        if until - n > 5 + gap and until > window[0]:
            known.append(until - due - gap)
    span = Window(window[0] * TICK_NS, window[1] * TICK_NS)
    assert one.largest_lag(span) == (max(known) / 20 if known else None)
    edges = [window[0], *(n for n in t if window[0] <= n < end), end]
    assert one.longest_stall(span) == (
        None if end <= window[0] else max(b - a for a, b in pairwise(edges)) / 20
    )


def spanning(kind: str, spans: list[tuple[int, int]], **more: str) -> list[Wait]:
    values = {"who": "source-0", "what": ""} | more
    return [
        Wait(wait=f"{kind}/{n}", kind=kind, start_ns=a, end_ns=b, **values) for n, (a, b) in enumerate(spans)
    ]


@given(spans=SPANS, due=st.integers(0, 9), up=st.integers(9, 20))
def test_the_steps_of_a_pod_cover_what_came_before_their_ends_once(
    spans: list[tuple[int, int]], due: int, up: int
):
    """The first begins when the pod was due, and the last ends when the process was up."""
    found = _pod_steps(spanning("pending", spans), due, up)
    assert covered([(w.start_ns, w.end_ns) for w in found]) == set(range(due, min(up, max([due, *(b for _, b in spans)]))))  # fmt: skip
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))
    assert all(w.start_ns < w.end_ns for w in found)


@given(first=SPANS, second=SPANS, span=st.tuples(st.integers(0, 9), st.integers(10, 20)))
def test_who_waited_for_more_than_half_of_a_span_is_named(
    first: list[tuple[int, int]], second: list[tuple[int, int]], span: tuple[int, int]
):
    """A sender waits for credit, and a source for a split. The waits of two of them do not add up."""
    inside = [[max(0, min(b, span[1]) - max(a, span[0])) for a, b in spans] for spans in (first, second)]
    most = max(map(sum, inside))
    named = starved_words(spanning("credit", first, who="a") + spanning("credit", second, who="b"), *span)
    assert bool(named) == (2 * most > span[1] - span[0])
    assert not named or sum(inside["ab".index(named[0])]) == most
    asked = without_splits(
        spanning("slot", first, who="a", what=NEXT_SPLIT) + spanning("open", second, who="b", what=NEXT_SPLIT), *span
    )  # fmt: skip
    assert (asked is not None) == bool(named)
    if asked is not None:
        own = inside["ab".index(asked.who)]
        assert sum(own) == most
        assert min(asked.end_ns, span[1]) - max(asked.start_ns, span[0]) == max(own)
