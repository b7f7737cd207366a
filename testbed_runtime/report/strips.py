"""Draw distributions: for each metric one row per variant, with a dot for each trial, the quartiles as a box, and the interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import quantiles

from msgspec import Struct

from testbed_runtime.core.judgement.comparison import Comparison, Mean
from testbed_runtime.report import words
from testbed_runtime.report.svg import Scale, Svg, bold_width, log_ticks, nice_ticks, number
from testbed_runtime.report.timeline import Size

ROW = 24.0
HEAD = 20.0
FOOT = 26.0
DOT = 2.6
LOG_FROM = 20.0
"""The axis is logarithmic if the largest value is at least this many times the smallest."""
BOX_FROM = 5
"""Minimum number of values for which quartiles are drawn."""


class Strip(Struct, frozen=True):
    """The values of one variant, and the interval of their mean (None: unknown)."""

    name: str
    values: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    text: str = ""


class Distribution(Struct, frozen=True):
    """One metric of every variant."""

    title: str
    unit: str
    strips: tuple[Strip, ...]

    @property
    def values(self) -> list[float]:
        return [v for strip in self.strips for v in strip.values]


def distributions(comparison: Comparison) -> list[Distribution]:
    """Return the distributions of a comparison, without metrics that have no value."""
    found = []
    for index, metric in enumerate(comparison.metrics):
        strips = tuple(_strip_of(group.name, group.values[index]) for group in comparison.groups)
        if any(strip.values for strip in strips):
            found.append(Distribution(metric.title, metric.unit, strips))
    return found


def _strip_of(name: str, found: Mean) -> Strip:
    return Strip(name, tuple(v for v in found.values if v is not None), found.low, found.high, found.text)


def strips_svg(found: Sequence[Distribution], size: Size, *, key: str) -> str:
    """Draw all metrics below each other, each with its own axis. Return an empty string without any."""
    if not found:
        return ""
    height = sum(HEAD + len(d.strips) * ROW + FOOT for d in found)
    svg = Svg(size.width, height)
    longest = max(bold_width(s.name, size.font) for d in found for s in d.strips)
    left, right = min(longest + 12, size.width * 0.32), size.width - 14.0
    y = 0.0
    for item in found:
        y = _metric(svg, item, (left, right), y, size)
    return svg.render(key, "Distributions over the trials", describe(found), css=size.name)


def _metric(svg: Svg, item: Distribution, sides: tuple[float, float], y: float, size: Size) -> float:
    left, right = sides
    x, wide = _scale(item.values, left, right)
    shown = _shown(item.unit, 0.0 if wide else x.high)
    svg.text(0, y + 13, item.title + (" (log scale)" if wide else ""), css="panel-title")
    y += HEAD
    bottom = y + len(item.strips) * ROW
    ticks = log_ticks if wide else nice_ticks
    counts = all(value.is_integer() for value in item.values)
    for tick in ticks(x.low, x.high, max(int((right - left) / 70), 2)):
        if counts and not float(tick).is_integer():
            continue
        svg.line(x(tick), y, x(tick), bottom, css="grid")
        svg.text(x(tick), bottom + 13, shown(tick), css="tick", anchor="middle")
    for strip in item.strips:
        _strip(svg, strip, x, y + ROW / 2, size)
        y += ROW
    return bottom + FOOT


def _scale(values: Sequence[float], left: float, right: float) -> tuple[Scale, bool]:
    """Return the axis, and whether it is logarithmic: an outlier must not squeeze the others into a corner."""
    low, high = min(values), max(values)
    if low > 0 and high / low > LOG_FROM:
        return Scale(low * 0.8, high * 1.25, left, right, log=True), True
    return Scale(min(0.0, low), high * 1.05 or 1.0, left, right), False


def _strip(svg: Svg, strip: Strip, x: Scale, y: float, size: Size) -> None:
    left = x.start
    room = max(int((left - 8) / bold_width("n", size.font)), 4)
    svg.text(left - 8, y + 4, words.shortened(strip.name, room), css="small", anchor="end")
    values = sorted(strip.values)
    if len(values) >= BOX_FROM:
        q1, q2, q3 = (x(q) for q in quantiles(values, n=4, method="inclusive"))
        svg.rect(q1, y - 7, q3 - q1, 14, css="quartiles")
        svg.line(q2, y - 7, q2, y + 7, css="median")
    # dots of one path; neighbours alternate around the middle, so that equal values stay visible
    spread = 0.0 if len(values) < BOX_FROM else 3.2
    dots = "".join(f"M{number(x(v))} {number(y + spread * ((i % 3) - 1))}h.01" for i, v in enumerate(values))
    title = f"{strip.name}: {strip.text}, {len(values)} trials"
    if dots:
        svg.element("path", title=title, d=dots, class_="dots", stroke_width=2 * DOT)
    if strip.low is not None and strip.high is not None and strip.high > strip.low:
        title = f"interval of the mean: {strip.text}"
        svg.line(x(strip.low), y + 10, x(strip.high), y + 10, css="interval", title=title)


def _shown(unit: str, largest: float) -> Callable[[float], str]:
    if unit == "s":
        return lambda tick: words.seconds_short(tick, largest)
    return words.percent if unit == "ratio" else words.short


def describe(found: Sequence[Distribution]) -> str:
    """Describe the distributions in words, for screen readers."""
    return ". ".join(f"{d.title}: " + ", ".join(f"{s.name} {s.text}" for s in d.strips) for d in found)
