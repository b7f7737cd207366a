"""Draw a trial's timeline: throughput, lag and latency over time, with phases, faults, failovers and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed_runtime.report import words
from testbed_runtime.report.svg import Scale, Svg, area_path, line_path, log_ticks, nice_ticks, text_width

PANEL_GAP = 30.0
LANE = 20.0
MARK_LINE = LANE + 28.0
"""Vertical position of the marks: below the fault names, above the first panel's title."""
MARK_LANE = 15.0
MARK_SHAPES = {
    "job.state": ("m-note", "M-4 -4H4V4H-4Z", 0),
    "failover.attempt": ("m-note", "M0 -6V6", 0),
    "sink.first-record": ("m-good", "M-4 -5L5 0L-4 5Z", 0),
    "taskmanager.lost": ("m-bad", "M0 -5L5 4H-5Z", 1),
    "process.exit": ("m-bad", "M-4 -4L4 4M4 -4L-4 4", 1),
    "taskmanager.registered": ("m-note", "M0 -5L5 0L0 5L-5 0Z", 1),
    "checkpoint.completed": ("m-ok", "M0 -6V6", 2),
    "checkpoint.failed": ("m-bad", "M-4 -4L4 4M4 -4L-4 4", 2),
}
"""Maps a kind of mark to its CSS class, its path around (0, 0) and its lane. Lanes keep simultaneous marks visible."""


@dataclass(frozen=True, slots=True)
class Size:
    """A page layout: `wide` for screens and paper, `narrow` for phones. Text is drawn at its final size."""

    name: str
    width: float
    left: float
    right: float
    font: float
    time_ticks: int


WIDE = Size("wide", 980.0, 66.0, 16.0, 12.0, 12)
NARROW = Size("narrow", 360.0, 46.0, 10.0, 11.0, 5)


@dataclass(frozen=True, slots=True)
class Panel:
    """One row of the chart. `lines` holds (series name, CSS class); the first line may be filled."""

    title: str
    lines: tuple[tuple[str, str], ...]
    height: float
    log: bool = False
    filled: bool = False
    unit: str = ""


PANELS = (
    Panel(
        "Throughput at the sinks, records per second",
        (("throughput", "s-throughput"), ("emitted", "s-emitted")),
        120.0,
        filled=True,
    ),
    Panel("Lag behind schedule", (("lag_s", "s-lag"),), 80.0, filled=True, unit="s"),
    Panel(
        "Latency from due time to sink (log scale)",
        (("latency_p99_s", "s-p99"), ("latency_p50_s", "s-p50")),
        100.0,
        log=True,
        unit="s",
    ),
)


def timeline_svg(series: Mapping[str, Any], size: Size, *, key: str, baseline: float | None = None) -> str:
    """Draw one trial of timeseries.json. `baseline` is the rate before the fault (records/s), drawn as a line."""
    panels = [p for p in PANELS if any(_has_data(series, name) for name, _ in p.lines)]
    top = MARK_LINE + 2 * MARK_LANE + 34.0
    height = top + sum(p.height + PANEL_GAP for p in panels) + 20.0
    svg = Svg(size.width, height)
    end = _end(series)
    x = Scale(0.0, end, size.left, size.width - size.right)
    bottom = height - 36.0
    _spans(svg, series, x, size, bottom)
    _marks(svg, series, x, MARK_LINE)
    y = top
    for panel in panels:
        reference = baseline if panel is PANELS[0] else None
        _panel(svg, panel, series, x=x, size=size, top=y, baseline=reference)
        y += panel.height + PANEL_GAP
    _time_axis(svg, x, size, bottom, end, first=_first_phase(series))
    title = f"Timeline of trial {series['trial']}"
    return svg.render(key, title, describe(series), css=size.name)


def describe(series: Mapping[str, Any]) -> str:
    """Describe the timeline in words, for screen readers."""
    spans = [s for s in series["spans"] if s["kind"] != "phase"]
    parts = [f"{s['kind']} {s['name']} from {s['start_s']:.1f} s to {s['end_s']:.1f} s" for s in spans]
    done = sum(1 for m in series["marks"] if m["kind"] == "checkpoint.completed")
    return "; ".join([*parts, f"{done} checkpoints completed", f"{_end(series):.1f} s in total"])


def _first_phase(series: Mapping[str, Any]) -> str:
    """Name the phase at which the time axis starts."""
    name = next((s["name"] for s in series["spans"] if s["kind"] == "phase"), "deploy")
    return "deployment" if name == "deploy" else words.TRIAL_PHASES.get(name, (name, ""))[0].lower()


def _end(series: Mapping[str, Any]) -> float:
    last_bin = series["bins"][-1] + series["bin_s"] if series["bins"] else 1.0
    return float(max([last_bin, *(s["end_s"] for s in series["spans"])]))


def _values(series: Mapping[str, Any], name: str) -> list[float | None]:
    return list(series["series"].get(name) or ())


def _has_data(series: Mapping[str, Any], name: str) -> bool:
    return any(v is not None for v in _values(series, name))


def _spans(svg: Svg, series: Mapping[str, Any], x: Scale, size: Size, bottom: float) -> None:
    """Draw phases as a strip at the top, and faults and failovers as shading across all panels."""
    for index, span in enumerate(s for s in series["spans"] if s["kind"] == "phase"):
        left, right = x(span["start_s"]), x(span["end_s"])
        title, meaning = words.TRIAL_PHASES.get(span["name"], (span["name"], ""))
        svg.rect(left, 0, right - left, LANE - 4, css=f"phase phase-{index % 2}", title=f"{title}: {meaning}")
        if text_width(title, size.font) < right - left - 6:
            svg.text((left + right) / 2, LANE - 8, title, css="small", anchor="middle")
    for span in (s for s in series["spans"] if s["kind"] in ("fault", "failover")):
        left, right = x(span["start_s"]), x(span["end_s"])
        words_of = f"{span['name']}: {span['text']} ({span['start_s']:.2f} s to {span['end_s']:.2f} s)"
        top = LANE if span["kind"] == "fault" else MARK_LINE - 10
        svg.rect(left, top, max(right - left, 1.5), bottom - top, css=f"span-{span['kind']}", title=words_of)
    _span_labels(svg, [s for s in series["spans"] if s["kind"] == "fault"], x, size)


def _span_labels(svg: Svg, faults: Sequence[Mapping[str, Any]], x: Scale, size: Size) -> None:
    """Write each fault's name at its start, without overlap and within the drawing."""
    free_from = size.left
    for span in sorted(faults, key=lambda s: s["start_s"]):
        wanted = text_width(span["name"], size.font) + 8
        left = min(x(span["start_s"]) + 4, size.width - size.right - wanted)
        if left >= free_from:
            svg.text(left, LANE + 11, span["name"], css="small fault-label")
            free_from = left + wanted


def _marks(svg: Svg, series: Mapping[str, Any], x: Scale, y: float) -> None:
    for mark in series["marks"]:
        if mark["kind"] in MARK_SHAPES:
            css, shape, lane = MARK_SHAPES[mark["kind"]]
            title = f"{mark['t_s']:.2f} s: {mark['text']}"
            place = f"translate({x(mark['t_s']):.1f} {y + lane * MARK_LANE:.1f})"
            svg.element("path", title=title, d=shape, class_=f"mark {css}", transform=place)


def _panel(
    svg: Svg,
    panel: Panel,
    series: Mapping[str, Any],
    *,
    x: Scale,
    size: Size,
    top: float,
    baseline: float | None,
) -> None:
    lines = [(_values(series, name), css) for name, css in panel.lines]
    shown = [v for values, _ in lines for v in values if v is not None and (v > 0 or not panel.log)]
    y, ticks = _value_axis(shown, panel, top, baseline)
    svg.text(size.left, top - 8, panel.title, css="panel-title")
    for tick in ticks:
        level = y(tick)
        svg.line(size.left, level, size.width - size.right, level, css="grid")
        label = words.seconds_short(tick) if panel.unit == "s" else words.short(tick)
        svg.text(size.left - 6, level + 4, label, css="tick", anchor="end")
    if baseline:
        svg.line(size.left, y(baseline), size.width - size.right, y(baseline), css="baseline",
                 title=f"baseline: {words.count(baseline)} records per second")  # fmt: skip
    middle = series["bin_s"] / 2
    for index, (values, css) in enumerate(lines):
        points = [
            None if v is None or (panel.log and v <= 0) else (x(t + middle), y(v))
            for t, v in zip(series["bins"], values, strict=False)
        ]
        if panel.filled and index == 0:
            for run in _runs(points):
                svg.path(area_path(run, y.start), f"area {css}")
        svg.path(line_path(points), f"line {css}")


def _runs(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    """Split the points at the gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def _value_axis(
    values: Sequence[float], panel: Panel, top: float, baseline: float | None
) -> tuple[Scale, list[float]]:
    bottom = top + panel.height
    if panel.log:
        low, high = min(values, default=1e-3), max(values, default=1.0)
        scale = Scale(low * 0.8, max(high * 1.25, low * 2.0), bottom, top, log=True)
        return scale, log_ticks(scale.low, scale.high, max(int(panel.height / 18), 2))
    least = 1e-3 if panel.unit == "s" else 1.0
    high = max([*values, baseline or 0.0, least]) * 1.08
    return Scale(0.0, high, bottom, top), nice_ticks(0.0, high, max(int(panel.height / 28), 2))


def _time_axis(svg: Svg, x: Scale, size: Size, bottom: float, end: float, *, first: str) -> None:
    svg.line(size.left, bottom, size.width - size.right, bottom, css="axis")
    for tick in nice_ticks(0.0, end, size.time_ticks):
        svg.line(x(tick), bottom, x(tick), bottom + 4, css="axis")
        svg.text(x(tick), bottom + 16, f"{tick:g}", css="tick", anchor="middle")
    svg.text(
        size.width - size.right, bottom + 31, f"seconds since the {first} began", css="tick", anchor="end"
    )
