"""Draw latency before, during and after the fault next to the control run: one line from p50 to p99 per phase."""

from __future__ import annotations

from testbed_runtime.report import words
from testbed_runtime.report.model import PhaseLatency, TrialView
from testbed_runtime.report.svg import Scale, Svg, log_ticks
from testbed_runtime.report.timeline import Size

ROW = 22.0
GROUP_GAP = 12.0
LABEL_WIDTH = 92.0
VALUE_WIDTH = 64.0


def latency_svg(trial: TrialView, control: TrialView | None, size: Size, *, key: str) -> str:
    """Draw one row per phase of the trial and of its control trial. Return an empty string without latency data."""
    rows = _rows(trial, control)
    values = [c.value for _, phase, _ in rows for c in phase.cells if c.value]
    if not values:
        return ""
    groups = len({phase.phase for _, phase, _ in rows})
    height = len(rows) * ROW + groups * GROUP_GAP + 46.0
    svg = Svg(size.width, height)
    left, right = LABEL_WIDTH + 10, size.width - VALUE_WIDTH
    x = Scale(min(values) * 0.8, max(max(values) * 1.2, min(values) * 4), left, right, log=True)
    bottom = height - 38.0
    _axis(svg, x, bottom, size)
    y = 4.0
    previous = ""
    for label, phase, css in rows:
        if phase.phase != previous:
            y += GROUP_GAP
            previous = phase.phase
        _row(svg, label, phase, css, x=x, y=y + ROW / 2, size=size)
        y += ROW
    shown = [[f"p{q} {c.shown}" for q, c in zip((50, 95, 99), p.cells, strict=True)] for _, p, _ in rows]
    description = "; ".join(f"{r[0]}: {', '.join(cells)}" for r, cells in zip(rows, shown, strict=True))
    return svg.render(key, f"Latency of trial {trial.trial} by phase", description, css=size.name)


def _rows(trial: TrialView, control: TrialView | None) -> list[tuple[str, PhaseLatency, str]]:
    of_control = {p.phase: p for p in control.latencies} if control else {}
    rows = []
    for phase in trial.latencies:
        rows.append((phase.title, phase, "l-fault"))
        if phase.phase in of_control:
            rows.append(("control", of_control[phase.phase], "l-control"))
    return [row for row in rows if any(c.value for c in row[1].cells)]


def _axis(svg: Svg, x: Scale, bottom: float, size: Size) -> None:
    for tick in log_ticks(x.low, x.high, max(int((x.end - x.start) / 52), 2)):
        svg.line(x(tick), 8, x(tick), bottom, css="grid")
        svg.text(x(tick), bottom + 16, words.seconds_short(tick), css="tick", anchor="middle")
    svg.line(x.start, bottom, x.end, bottom, css="axis")
    caption = "latency from the due time, log scale: p50, p95, p99"
    svg.text(size.width - 4, bottom + 32, caption, css="tick", anchor="end")


def _row(svg: Svg, label: str, phase: PhaseLatency, css: str, *, x: Scale, y: float, size: Size) -> None:
    points, font = [(c, x(c.value)) for c in phase.cells if c.value], "small" if css == "l-fault" else "tick"
    svg.text(LABEL_WIDTH, y + 4, label, css=font, anchor="end")
    svg.line(points[0][1], y, points[-1][1], y, css=f"range {css}")
    for number, (cell, place) in enumerate(points):
        # smallest for the median, largest for the top quantile
        radius = 2.5 + 2.0 * number / max(len(points) - 1, 1)
        svg.element("circle", title=f"{label}: {cell.shown}", cx=place, cy=y, r=radius, class_=f"dot {css}")
    svg.text(size.width - VALUE_WIDTH + 8, y + 4, points[-1][0].shown, css=font)
