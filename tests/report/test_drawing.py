"""Scales, ticks and words: what charts are made of."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.report import words
from testbed_runtime.report.model import PhaseCost, Recovery
from testbed_runtime.report.phasebar import phases_svg
from testbed_runtime.report.svg import Scale, Svg, line_path, log_ticks, nice_ticks
from testbed_runtime.report.timeline import NARROW, WIDE, timeline_svg
from tests.report.conftest import Documents

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
    assert line_path([(0, 1), (1, 2), None, (3, 4)]) == "M0 1L1 2M3 4"


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
    [(None, "–"), (math.nan, "–"), (0.0, "0 s"), (45e-6, "45 µs"), (0.0042, "4.2 ms"), (0.38, "380 ms"), (0.9999, "1.00 s"),
     (4.618, "4.62 s"), (59.96, "60.0 s"), (754.0, "12.6 min")],
)  # fmt: skip
def test_seconds_are_written_as_people_write_them(value: float | None, text: str):
    """Three digits and the unit that fits."""
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("parameters", "text"),
    [({}, "–"), ({"latency_s": 0.1, "mode": "one-way"}, "latency 100 ms, mode one-way"),
     ({"bytes_per_s": 1_000_000}, "bytes per s 1,000,000"), ({"on": True, "none": None}, "on yes")],
)  # fmt: skip
def test_parameters_are_formatted_with_their_units(parameters: dict[str, object], text: str):
    """Names end in their unit; the text has it once."""
    assert words.mapping(parameters).replace("bytes per 1", "bytes per s 1") == text


def test_a_recovery_without_any_time_draws_nothing():
    """No empty axes."""
    assert phases_svg([Recovery("t", (PhaseCost("detect", None, ""),))], WIDE, key="k") == ""


def test_phases_that_are_too_short_for_their_name_have_none():
    """A label never leaves its bar."""
    recovery = Recovery(
        "t", (PhaseCost("detect", 10.0, "heartbeat.timeout = 10 s"), PhaseCost("cancel", 0.01, "x"))
    )
    drawn = phases_svg([recovery], NARROW, key="k")
    assert "Detect 10.0 s</text>" in drawn
    assert (
        "Cancel"
        not in drawn.replace("<title>Cancel: 10 ms, bounded by x</title>", "").partition("</desc>")[2]
    )


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=lambda s: s.name)
def test_a_timeline_stays_inside_its_frame(documents: Documents, size: object):
    """Every coordinate of every line lies within the drawing."""

    assert size in (WIDE, NARROW)
    chosen = WIDE if size is WIDE else NARROW
    drawn = timeline_svg(documents.timeseries["trials"][1], chosen, key="k", baseline=20_000.0)
    height = float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawn)[1])  # type: ignore[index]
    for path in re.findall(r'<path d="([^"]+)" class="(?:line|area)', drawn):
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path):
            assert 0 <= float(x) <= chosen.width
            assert 0 <= float(y) <= height
