"""Scales, ticks and words: what charts are made of."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed_runtime.core.judgement import quantities
from testbed_runtime.core.judgement.recovery import Recovery
from testbed_runtime.core.judgement.series import Load, Span, TrialSeries, VertexLoad
from testbed_runtime.report import words
from testbed_runtime.report.loadchart import LoadChart, level_of
from testbed_runtime.report.roundsbar import Titled, rounds_svg
from testbed_runtime.report.strips import Distribution, Strip, strips_svg
from testbed_runtime.report.svg import GRID_X, GRID_Y, Scale, Svg, curve, log_ticks, nice_ticks
from testbed_runtime.report.timeline import MARK_SHAPES, NARROW, POINTS_MAX, WIDE, Size, Timeline, thinned
from tests.report.conftest import Documents
from tests.report.recoveries import killed, late_producer

reals = st.floats(min_value=1e-6, max_value=1e9)


@given(low=st.floats(-1e6, 1e6), span=reals, target=st.integers(1, 30))
def test_ticks_are_round_few_and_inside(low: float, span: float, target: int):
    """Whatever the range, about as many as asked for, in order."""
    ticks = nice_ticks(low, low + span, target)
    assert len(ticks) <= target * 1.01 + 1
    assert ticks == sorted(ticks)
    assert all(low - span * 1e-6 <= t <= low + span * (1 + 1e-6) for t in ticks) or span < abs(low) * 1e-9


@given(low=st.floats(1e-6, 1e3), factor=st.floats(2, 1e6), target=st.integers(2, 12))
def test_logarithmic_ticks_are_few_and_inside(low: float, factor: float, target: int):
    """Never more than fit."""
    ticks = log_ticks(low, low * factor, target)
    assert len(ticks) <= target
    assert all(low * 0.99 <= t <= low * factor * 1.01 for t in ticks)


@given(low=st.floats(1e-6, 1e3), factor=st.floats(1.5, 1e6), share=st.floats(0, 1))
def test_a_scale_keeps_order_and_stays_on_the_page(low: float, factor: float, share: float):
    """Between start and end, logarithmic or not."""
    for log in (False, True):
        scale = Scale(low, low * factor, 10.0, 110.0, log=log)
        place = scale(low + share * (low * factor - low))
        assert 9.99 <= place <= 110.01
        assert scale(low) <= place <= scale(low * factor)


def test_a_gap_in_the_data_is_a_gap_in_the_line():
    """Nothing is drawn through what was not measured."""
    points = [(0.0, 0.2), (0.5, 0.4), None, (1.0, 0.0)]
    assert positions(curve(points, floor=False)) == [[(0, 100), (1000, 200)], [(2000, 0), (2000, 0)]]


def test_a_filled_curve_starts_and_ends_on_the_floor():
    """One path serves as line and as area."""
    (run,) = positions(curve([(0.0, 0.2), (0.5, 0.4)], floor=True))
    assert run == [(0, 500), (0, 100), (1000, 200), (1000, 500)]


def positions(path: str) -> list[list[tuple[int, int]]]:
    """The absolute points of a curve's runs."""
    runs = []
    for start, moves in re.findall(r"M(\S+ \S+?)l([^M]*)", path):
        x, y = map(int, start.split())
        run = [(x, y)]
        numbers = [int(n) for n in re.findall(r"-?\d+", moves)]
        for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
            x, y = x + dx, y + dy
            run.append((x, y))
        runs.append(run)
    return runs


def test_texts_and_attributes_are_escaped():
    """A name with angle brackets stays a name."""
    svg = Svg(10, 10)
    svg.rect(0, 0, 5, 5, css='x" onload="y', title="<b>")
    svg.text(0, 0, "</svg>")
    drawn = svg.render("k", "<t>", "&")
    assert "<b>" not in drawn
    assert 'onload="' not in drawn
    assert drawn.count("</svg>") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (math.nan, "–"), (0.0, "0 s"), (45e-6, "45.0 µs"), (0.0042, "4.20 ms"), (0.38, "380 ms"), (0.9999, "1.00 s"),
     (4.618, "4.62 s"), (59.96, "60.0 s"), (754.0, "754 s"), (4_524.0, "75.4 min")],
)  # fmt: skip
def test_seconds_are_written_in_the_usual_units(value: float | None, text: str):
    """Three digits and the unit that fits."""
    assert quantities.seconds(value) == text


@pytest.mark.parametrize(
    ("parameters", "text"),
    [({}, "–"), ({"latency_s": 0.1, "mode": "one-way"}, "latency 100 ms, mode one-way"),
     ({"bytes_per_s": 1_000_000}, "bytes per s 1,000,000"), ({"on": True, "none": None}, "on yes")],
)  # fmt: skip
def test_parameters_are_formatted_with_their_units(parameters: dict[str, object], text: str):
    """Names end in their unit; the text has it once."""
    assert words.mapping(parameters).replace("bytes per 1", "bytes per s 1") == text


def test_a_timeline_stays_inside_its_frame(documents: Documents):
    """Every point of every curve lies on the grid that both layouts place into their panels."""
    drawn = Timeline(documents.timeseries.trials[1], key="k", baseline=20_000.0)
    paths = re.findall(r' d="(M[^"]+l[^"]+)"', drawn.shapes.render())
    assert len(paths) >= 4
    for x, y in (point for path in paths for run in positions(path) for point in run):
        assert 0 <= x <= GRID_X
        assert -0.02 * GRID_Y <= y <= 1.02 * GRID_Y


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=lambda s: s.name)
def test_both_layouts_of_a_timeline_use_the_same_curves(documents: Documents, size: Size):
    """The data is in the page once."""
    drawn = Timeline(documents.timeseries.trials[1], key="k", baseline=20_000.0)
    defined = set(re.findall(r'<path id="([^"]+)"', drawn.shapes.render()))
    used = re.findall(r'<use href="#([^"]+)"', drawn.svg(size))
    assert len(used) == len(defined)
    assert set(used) == defined


def series(**values: list[float | None]) -> TrialSeries:
    """A trial with these series, in bins of 1 s."""
    bins = [float(n) for n in range(len(next(iter(values.values()), ())))]
    return TrialSeries(
        trial="t-1",
        start_ns=0,
        bin_s=1.0,
        bins=bins,
        series=values,
        spans=[],
        marks=[],
        faults=[],
        problems=[],
    )


def test_every_kind_of_mark_looks_different():
    """Marks of the same colour have different shapes."""
    assert len({(shape.css, shape.d) for shape in MARK_SHAPES.values()}) == len(MARK_SHAPES)


def test_a_mark_can_be_drawn_at_any_place_of_a_path():
    """Every command after the place is relative."""
    assert all(shape.d == shape.d.lower() for shape in MARK_SHAPES.values())


def test_a_replay_does_not_flatten_the_dip():
    """Goodput decides the axis; what a replay adds is cut off, and its height is written beside the title."""
    good = [100.0, 100.0, 0.0, 0.0, 100.0, 100.0]
    drawn = Timeline(series(goodput=good, throughput=[*good[:4], 5000.0, 100.0]), key="k", baseline=100.0)
    text = drawn.svg(WIDE)
    assert ">100</text>" in text
    assert "k</text>" not in text.replace("peak 5k</text>", "")
    assert "peak 5k</text>" in text


def test_a_source_that_is_always_faster_than_its_sinks_is_drawn_at_its_rate():
    """Without flow control, its rate is what the page is about: it is not cut off."""
    drawn = Timeline(series(goodput=[100.0] * 6, emitted=[200.0] * 5 + [0.0]), key="k", baseline=100.0)
    text = drawn.svg(WIDE)
    assert ">200</text>" in text
    assert "peak" not in text


def test_a_long_timeline_is_thinned_out():
    """Latencies keep their peaks, rates their means."""
    values: list[float | None] = [1.0] * 4000
    values[1234] = 9.0
    points = [v for _, v in thinned(series(lag_s=values), "lag_s")]
    assert len(points) <= POINTS_MAX
    assert max(v for v in points if v is not None) == 9.0
    assert max(v for _, v in thinned(series(throughput=values), "throughput") if v is not None) < 2.0


def test_the_waits_of_a_recovery_are_a_strip_on_the_timeline():
    """Each at its time, in the colour of its kind."""
    drawn = Timeline(series(goodput=[1.0] * 20), key="k", recovery=killed("t-1", at_s=7.0))
    rects = re.findall(
        r'<rect x="([\d.]+)" y="37" width="([\d.]+)" height="8" class="k-(\S+?)"', drawn.svg(WIDE)
    )
    assert [kind for *_, kind in rects][:2] == ["heartbeat", "cancellation"]
    x, width, _ = rects[0]
    per_second = (WIDE.width - WIDE.left - WIDE.right) / 20.0
    assert float(x) == pytest.approx(WIDE.left + 7.0 * per_second, abs=0.1)
    assert float(width) == pytest.approx(1.72 * per_second, abs=0.1)


def test_each_round_is_a_bar_and_names_its_cause():
    """The worked example has four rounds; the bars touch without gaps, and labels that do not fit are left out."""
    found = late_producer("t-1").recoveries[0]
    drawn = rounds_svg([Titled("t-1", found)], WIDE, key="k")
    assert re.findall(r">(round \d, [\d.]+ s), because of (\S+)", drawn) == [
        ("round 1, 32.9 s", "tm-3"), ("round 2, 23.9 s", "PartitionNotFoundException:"),
        ("round 3, 23.9 s", "PartitionNotFoundException:"), ("round 4, 10.2 s", "PartitionNotFoundException:"),
    ]  # fmt: skip
    assert drawn.count('class="k-partition"') == 4
    assert drawn.count("22.7 s partition</text>") == 3
    assert drawn.count(">request-backoff.max = 10 s</text>") == 3
    assert "cancellation</text>" not in drawn


def test_a_recovery_without_rounds_draws_nothing():
    """No empty axes."""
    assert rounds_svg([Titled("t-1", Recovery(fault="x", effect_ns=0, end_ns=1))], WIDE, key="k") == ""


def test_a_distribution_has_a_dot_for_each_trial_and_the_quartiles():
    """With the interval of the mean below; a variant without values has only its name."""
    strips = (Strip("a", (1.0, 1.1, 1.2, 1.3, 9.0), 1.0, 4.5, "2.7 s [1.0 s, 4.5 s]"), Strip("b", ()))
    drawn = strips_svg([Distribution("recovery.downtime", "s", strips)], WIDE, key="k")
    (dots,) = re.findall(r'd="([^"]+)" class="dots"', drawn)
    assert dots.count("M") == 5
    assert drawn.count('class="quartiles"') == 1
    assert drawn.count('class="interval"') == 1
    assert ">b</text>" in drawn


def test_an_axis_of_counts_has_whole_numbers_only():
    """A failover and a half does not exist."""
    drawn = strips_svg([Distribution("failovers.count", "", (Strip("v", (2.0, 2.0, 1.0)),))], WIDE, key="k")
    assert re.findall(r'class="tick"[^>]*>([^<]*)<', drawn) == ["0", "1", "2"]


def test_the_load_of_each_vertex_is_a_strip():
    """Darker for a larger share; the description says Flink's word for it."""
    vertex = VertexLoad("count", busy=[0.9, 0.9, None], backpressured=[0.0, 0.6, 0.6])
    drawn = LoadChart(replace(series(), load=Load([0.0, 1.0, 2.0], [vertex])), key="k", end_s=3.0)
    text = drawn.svg(NARROW)
    assert "count: busy up to 90 %, back-pressured up to 60 % (HIGH)" in text
    assert len(re.findall(r'class="load-busy load-5"', text)) == 1
    assert len(re.findall(r'class="load-pressed load-4"', text)) == 1


@pytest.mark.parametrize(("share", "word"), [(0.1, "OK"), (0.11, "LOW"), (0.5, "LOW"), (0.51, "HIGH")])
def test_back_pressure_has_the_levels_of_flink(share: float, word: str):
    """As in Flink's web UI."""
    assert level_of(share) == word


@pytest.mark.parametrize(
    ("starts", "labels"),
    [
        ((10.0, 10.5), ["first, second"]),
        ((10.0, 20.0), ["first", "second"]),
        ((10.0, 10.5, 11.0), ["first, second, third"]),
        ((10.0, 10.5, 20.0), ["first, second", "third"]),
    ],
)
def test_faults_that_begin_close_together_share_a_label(
    documents: Documents, starts: tuple[float, ...], labels: list[str]
):
    """No name is dropped, and none covers another."""
    series = documents.timeseries.trials[1]
    phases = [s for s in series.spans if s.kind == "phase"]
    names = ("first", "second", "third")
    faults = [Span("fault", n, s, s + 1, "") for n, s in zip(names, starts, strict=False)]
    drawn = Timeline(replace(series, spans=[*phases, *faults]), key="k").svg(WIDE)
    assert re.findall(r"fault-label[^>]*>([^<]*)<", drawn) == labels
