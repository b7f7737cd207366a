"""Draw a trial's timeline: throughput, lag and latency over time, with phases, faults, recoveries and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.judgement import quantities
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.core.judgement.series import Span, TrialSeries
from testbed_runtime.report import words
from testbed_runtime.report.svg import (
    Scale,
    Shapes,
    Svg,
    bold_width,
    boxes,
    curve,
    log_ticks,
    nice_ticks,
    text_width,
)

PANEL_GAP = 30.0
LANE = 20.0
ROUND_LANE, ROUND_HEIGHT = LANE + 17.0, 8.0
"""Position and height of the strip that shows the waits of the recoveries."""
MARK_LINE = LANE + 38.0
"""Vertical position of the marks: below the recoveries, above the first panel's title."""
MARK_LANE = 15.0
POINTS_MAX = 400
"""Maximum points of a curve. A longer curve is thinned out."""
HEAT_LEVELS = 5
CLIP = 2.5
"""The axis of the rates ends at this multiple of the baseline; the peak above it is written beside the title."""


class MarkShape(Struct, frozen=True):
    """How a kind of mark is drawn and what the legend calls it. Lanes keep simultaneous marks visible."""

    css: str
    d: str
    """A path around the mark's place, with relative commands only, so that one path can have many marks."""
    lane: int
    title: str


MARK_SHAPES = {
    "job.state": MarkShape("m-note", "m-4-4h8v8h-8z", 0, "job state"),
    "leadership": MarkShape("m-note", "m-5-5h10l-5 10z", 0, "leadership granted or revoked"),
    "failover.attempt": MarkShape("m-note", "m0-6v12", 0, "deployment of a failover"),
    "sink.first-record": MarkShape("m-good", "m-4-5l9 5l-9 5z", 0, "first record of a deployment"),
    "taskmanager.lost": MarkShape("m-bad", "m0-5l5 9h-10z", 1, "TaskManager lost"),
    "process.exit": MarkShape("m-bad", "m-4-4h8v8h-8z", 1, "process exited"),
    "taskmanager.registered": MarkShape("m-note", "m0-5l5 5l-5 5l-5-5z", 1, "TaskManager registered"),
    "checkpoint.completed": MarkShape("m-ok", "m0-6v12", 2, "checkpoint completed"),
    "checkpoint.failed": MarkShape("m-bad", "m-4-4l8 8m0-8l-8 8", 2, "checkpoint failed"),
}
"""Every kind of mark that is drawn."""


class Size(Struct, frozen=True):
    """A page layout: `wide` for screens and paper, `narrow` for phones. Text is drawn at its final size."""

    name: str
    width: float
    left: float
    right: float
    font: float
    time_ticks: int


WIDE = Size("wide", 980.0, 66.0, 16.0, 12.0, 12)
NARROW = Size("narrow", 360.0, 46.0, 10.0, 11.0, 5)


class Panel(Struct, frozen=True):
    """One row of the chart. `lines` holds (series name, CSS class). The first line that has data may be filled. All lines
    decide the axis; of the lines in `clipped`, only the usual value counts."""

    title: str
    lines: tuple[tuple[str, str], ...]
    height: float
    more: str = ""
    """Added to the title where there is room."""
    log: bool = False
    filled: bool = False
    unit: str = ""
    clipped: tuple[str, ...] = ()


PANELS = (
    Panel(
        "Records per second at the sinks",
        (("goodput", "s-throughput"), ("throughput", "s-raw"), ("emitted", "s-emitted")),
        120.0,
        more=": distinct, and with those that are replayed",
        filled=True,
        clipped=("throughput", "emitted"),
    ),
    Panel("Lag behind schedule", (("lag_s", "s-lag"),), 80.0, filled=True, unit="s"),
    Panel(
        "Latency from due time to sink (log scale)",
        (("latency_p99_s", "s-p99"), ("latency_p50_s", "s-p50")),
        100.0,
        more=", shaded by the number of records",
        log=True,
        unit="s",
    ),
)


class Drawn(Struct, frozen=True):
    """A panel with its curves, as shapes that both layouts use."""

    panel: Panel
    low: float
    high: float
    shapes: tuple[tuple[str, str], ...]
    """(id, CSS class), in painting order."""
    ticks: tuple[float, ...]
    baseline: float | None
    above: float | None
    """The largest value that the axis cuts off."""


class Timeline:
    """One trial of timeseries.json. The curves are written once by `shapes`; `svg` draws a layout around them."""

    def __init__(
        self,
        series: TrialSeries,
        *,
        key: str,
        baseline: float | None = None,
        recovery: TrialRecovery | None = None,
        details: bool = True,
    ) -> None:
        """`baseline` is the rate before the fault, drawn as a line. Without `details`: no heat map, no titles of marks."""
        self.series = series
        self.key = key
        self.recovery = recovery
        self.details = details
        self.end = _end(series)
        self.shapes = Shapes(key)
        panels = [p for p in PANELS if any(_known(series, name) for name, _ in p.lines)]
        self._drawn = [self._panel(p, baseline if p is PANELS[0] else None) for p in panels]

    @property
    def kinds(self) -> set[str]:
        """The kinds of marks that this drawing has, for the legend."""
        return {mark.kind for mark in self.series.marks} & set(MARK_SHAPES)

    def _panel(self, panel: Panel, baseline: float | None) -> Drawn:
        present = [(n, css) for n, css in panel.lines if _known(self.series, n)]
        leading = [(n, css) for n, css in present if n not in panel.clipped] or present
        shown = [v for n, _ in leading for v in _known(self.series, n) if v > 0 or not panel.log]
        everything = [v for n, _ in present for v in _known(self.series, n)]
        # only a short peak such as a catch-up is cut off; a source that is always faster than its sinks shows its rate
        shown += [median(_known(self.series, n)) for n, _ in present if n in panel.clipped]
        low, high, ticks = _axis(shown, panel, baseline)
        found: list[tuple[str, str]] = []
        if panel.log and self.details:
            found += self._heat(low, high)
        if panel.log and not found:
            panel = replace(panel, more="")  # no heat map
        x, y = Scale(0.0, self.end, 0.0, 1.0), _unit(low, high, log=panel.log)
        for index, (name, css) in enumerate(present):
            filled = panel.filled and index == 0
            points = [
                None if v is None or (panel.log and v <= 0) else (x(t), y(v))
                for t, v in thinned(self.series, name)
            ]
            shape = self.shapes.add(curve(points, floor=filled))
            found.append((shape, f"{'area' if filled else 'line'} {css}"))
        above = max(everything, default=0.0)
        return Drawn(panel, low, high, tuple(found), tuple(ticks), baseline, above if above > high else None)

    def _heat(self, low: float, high: float) -> Iterable[tuple[str, str]]:
        """Yield the heat map: one path per shade, on the axis of the latency panel."""
        heat = self.series.heat
        if not heat.columns:
            return
        y, most = _unit(low, high, log=True), max(max(column) for column in heat.columns)
        starts = [*heat.starts_s, self.end]
        bounds = [heat.low_s, *heat.bounds_s]
        cells: dict[int, list[tuple[float, float, float, float]]] = {}
        for index, column in enumerate(heat.columns):
            left, right = starts[index] / self.end, min(starts[index + 1] / self.end, 1.0)
            for row, count in enumerate(column):
                top, bottom = y(bounds[row + 1]), y(max(bounds[row], low))
                if count and bottom > top:
                    level = min(int(HEAT_LEVELS * (count / most) ** 0.5), HEAT_LEVELS - 1)
                    cells.setdefault(level, []).append((left, top, right - left, bottom - top))
        for level in sorted(cells):
            yield self.shapes.add(boxes(cells[level])), f"heat heat-{level}"

    def svg(self, size: Size) -> str:
        """Draw one layout."""
        top = MARK_LINE + 2 * MARK_LANE + 34.0
        height = top + sum(d.panel.height + PANEL_GAP for d in self._drawn) + 20.0
        svg = Svg(size.width, height)
        x = Scale(0.0, self.end, size.left, size.width - size.right)
        bottom = height - 36.0
        self._spans(svg, x, size, bottom)
        self._rounds(svg, x)
        self._marks(svg, x)
        y = top
        for drawn in self._drawn:
            _draw(svg, drawn, size=size, top=y)
            y += drawn.panel.height + PANEL_GAP
        caption = f"seconds since the {_first_phase(self.series)} began"
        svg.time_axis(x, size.time_ticks, bottom, caption, grid=False)
        title = f"Timeline of trial {self.series.trial}"
        return svg.render(f"{self.key}{size.name[0]}", title, describe(self.series), css=size.name)

    def _spans(self, svg: Svg, x: Scale, size: Size, bottom: float) -> None:
        """Draw phases as a strip at the top, and faults and failovers as shading across all panels."""
        spans = self.series.spans
        for index, span in enumerate(s for s in spans if s.kind == "phase"):
            left, right = x(span.start_s), x(span.end_s)
            title, meaning = words.TRIAL_PHASES.get(span.name, (span.name, ""))
            more = f"{title}: {meaning}" if self.details else ""
            svg.rect(left, 0, right - left, LANE - 4, css=f"phase phase-{index % 2}", title=more)
            if text_width(title, size.font) < right - left - 6:
                svg.text((left + right) / 2, LANE - 8, title, css="small", anchor="middle")
        for span in (s for s in spans if s.kind in ("fault", "failover")):
            left, right = x(span.start_s), x(span.end_s)
            words_of = f"{span.name}: {span.text} ({span.start_s:.2f} s to {span.end_s:.2f} s)"
            top = LANE if span.kind == "fault" else MARK_LINE - 10
            width, css = max(right - left, 1.5), f"span-{span.kind}"
            svg.rect(left, top, width, bottom - top, css=css, title=words_of)
        _span_labels(svg, [s for s in spans if s.kind == "fault"], x, size)

    def _rounds(self, svg: Svg, x: Scale) -> None:
        """Draw the waits of every recovery as a strip on the time axis."""
        if self.recovery is None:
            return
        for segment in (s for r in self.recovery.recoveries for n in r.rounds for s in n.segments):
            left, right = (x((t - self.series.start_ns) / 1e9) for t in (segment.start_ns, segment.end_ns))
            shown = f"{segment.words or segment.kind}: {quantities.seconds(segment.seconds)}"
            width, title = max(right - left, 0.8), shown if self.details else ""
            svg.rect(left, ROUND_LANE, width, ROUND_HEIGHT, css=f"k-{segment.kind}", title=title)

    def _marks(self, svg: Svg, x: Scale) -> None:
        if not self.details:
            self._plain_marks(svg, x)
            return
        for mark in self.series.marks:
            shape = MARK_SHAPES.get(mark.kind)
            if shape is not None:
                title = f"{mark.t_s:.2f} s: {mark.text}"
                place = f"translate({x(mark.t_s):.1f} {MARK_LINE + shape.lane * MARK_LANE:.1f})"
                svg.element("path", title=title, d=shape.d, class_=f"mark {shape.css}", transform=place)

    def _plain_marks(self, svg: Svg, x: Scale) -> None:
        """Draw all marks of a kind as one path, which keeps a page of many trials small."""
        for kind in sorted(self.kinds):
            shape = MARK_SHAPES[kind]
            y = MARK_LINE + shape.lane * MARK_LANE
            places = [x(m.t_s) for m in self.series.marks if m.kind == kind]
            svg.path("".join(f"M{p:.1f} {y:.0f}{shape.d}" for p in places), f"mark {shape.css}")


def describe(series: TrialSeries) -> str:
    """Describe the timeline in words, for screen readers."""
    spans = [s for s in series.spans if s.kind != "phase"]
    parts = [f"{s.kind} {s.name} from {s.start_s:z.1f} s to {s.end_s:z.1f} s" for s in spans]
    done = sum(1 for m in series.marks if m.kind == "checkpoint.completed")
    return "; ".join([*parts, f"{done} checkpoints completed", f"{_end(series):.1f} s in total"])


def thinned(series: TrialSeries, name: str) -> Iterator[tuple[float, float | None]]:
    """Yield (second, value) of each bin, or of groups of bins if there are more than POINTS_MAX.

    A group shows its largest lag or latency, and its mean rate."""
    values, middle = series.series.get(name, ()), series.bin_s / 2
    every = max(-(-len(values) // POINTS_MAX), 1)
    for start in range(0, len(values), every):
        known = [v for v in values[start : start + every] if v is not None]
        merged = (max(known) if name.endswith("_s") else sum(known) / len(known)) if known else None
        yield series.bins[start] + middle * every, merged


def _first_phase(series: TrialSeries) -> str:
    """Name the phase at which the time axis starts."""
    name = next((s.name for s in series.spans if s.kind == "phase"), "deploy")
    return "deployment" if name == "deploy" else words.TRIAL_PHASES.get(name, (name, ""))[0].lower()


def _end(series: TrialSeries) -> float:
    last_bin = series.bins[-1] + series.bin_s if series.bins else 1.0
    return float(max([last_bin, *(s.end_s for s in series.spans)]))


def _known(series: TrialSeries, name: str) -> list[float]:
    return [v for v in series.series.get(name, ()) if v is not None]


def _span_labels(svg: Svg, faults: Sequence[Span], x: Scale, size: Size) -> None:
    """Write each fault's name at its start, or after the names that are there already, within the drawing."""
    labels: list[tuple[float, list[str]]] = []
    free_from, end = size.left, size.width - size.right
    for span in sorted(faults, key=lambda s: s.start_s):
        left, name = x(span.start_s) + 4, span.name
        if labels and left < free_from:
            left, names = labels[-1]
            names.append(name)
        else:
            labels.append((left, [name]))
        free_from = left + bold_width(", ".join(labels[-1][1]), size.font) + 8
    free_from = size.left
    for start, names in labels:
        text = ", ".join(names)
        width = bold_width(text, size.font)
        left = max(min(start, end - width - 8), free_from)
        shown = words.shortened(text, max(int(len(text) * (end - left) / width), 1))
        svg.text(left, LANE + 11, shown, css="small fault-label")
        free_from = left + bold_width(shown, size.font) + 8


def _draw(svg: Svg, drawn: Drawn, *, size: Size, top: float) -> None:
    """Draw a panel: title, grid, baseline, and the shared curves."""
    panel = drawn.panel
    y = Scale(drawn.low, drawn.high, top + panel.height, top, log=panel.log)
    right = size.width - size.right
    whole = panel.title + panel.more
    title = whole if text_width(whole, size.font) < right - size.left else panel.title
    svg.text(size.left, top - 8, title, css="panel-title")
    for tick in drawn.ticks:
        largest = 0.0 if panel.log else drawn.ticks[-1]
        label = words.seconds_short(tick, largest) if panel.unit == "s" else words.short(tick)
        svg.line(size.left, y(tick), right, y(tick), css="grid")
        svg.text(size.left - 6, y(tick) + 4, label, css="tick", anchor="end")
    if drawn.baseline:
        text = f"baseline: {quantities.count(drawn.baseline)} records per second"
        svg.line(size.left, y(drawn.baseline), right, y(drawn.baseline), css="baseline", title=text)
    for shape, css in drawn.shapes:
        svg.use(shape, css, left=size.left, top=top, width=right - size.left, height=panel.height)
    if drawn.above is not None:
        note = f"peak {words.short(float(f'{drawn.above:.2g}'))}"
        svg.text(right, top - 8, note, css="tick", anchor="end")


def _unit(low: float, high: float, *, log: bool) -> Scale:
    """Map a value to 1 (bottom) to 0 (top). Values outside stay within the drawing."""
    return Scale(low, high, 1.0, 0.0, log=log)


def _axis(values: Sequence[float], panel: Panel, baseline: float | None) -> tuple[float, float, list[float]]:
    """Return the lowest and highest value of a panel's axis, and its ticks."""
    if panel.log:
        low = min(values, default=1e-3) * 0.8
        high = max(max(values, default=1.0) * 1.25, low * 2.5)
        return low, high, log_ticks(low, high, max(int(panel.height / 18), 2))
    least = 1e-3 if panel.unit == "s" else 1.0
    high = max([*values, baseline or 0.0, least]) * 1.08
    if baseline and panel.clipped:  # a catch-up of many times the rate would flatten the dip before it
        high = min(high, baseline * CLIP)
    return 0.0, high, nice_ticks(0.0, high, max(int(panel.height / 28), 2))
