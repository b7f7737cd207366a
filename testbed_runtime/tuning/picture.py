"""The trade-off curve of a study as SVG: its first two objectives, and a line through the rows that no other row beats in both. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from testbed_runtime.api.kinds import TuningStudySpec
from testbed_runtime.tuning.grid import REFERENCES
from testbed_runtime.tuning.score import Line, name_of

WIDTH, HEIGHT, MARGIN = 720, 440, 70
LOG_FROM = 20.0
"""An axis is logarithmic if its largest value is this many times its smallest."""
CHARACTER, LINE_HEIGHT = 6.6, 15
"""Approximate width of a character, and the distance between two labels, in pixels."""
LONGEST_LABEL = 48
RADIUS, ASCENT, DESCENT = 5, 10, 3
"""Size of a point, and height of the text of a label above and below its base line."""
AXIS_GAP = 8
"""Distance by which an axis goes beyond its points."""
COLOURS = {"": "#9ca3af", "front": "#1d4ed8", "reference": "#b45309", "best": "#15803d"}
"""The colours of the kinds of rows, in the order in which they are painted, so that the best row is never under another one."""
BETTER = {"min": "lower", "max": "higher"}
NAMES = {"": "other rows", "front": "on the Pareto front", "reference": "reference", "best": "best row"}
NAMED = ("best", "reference")
"""The kinds of rows whose labels say which options they are."""
LEGEND_TOP, LEGEND_GAP = 24, 28


def picture(spec: TuningStudySpec, lines: Sequence[Line]) -> str:
    """Return the picture; empty if fewer than two rows have values for two objectives."""
    if len(spec.objectives) < 2:
        return ""
    shown = [
        (x, y, line)
        for line in lines
        if line.eligible and (x := line.values[0]) is not None and (y := line.values[1]) is not None
    ]
    if len(shown) < 2:
        return ""
    left = max(MARGIN, 36 + CHARACTER * max(len(line.texts[1]) for *_, line in shown))
    axes = [x for x, _, _ in shown], [y for _, y, _ in shown]
    to_x = _axis(axes[0], left, WIDTH - MARGIN)
    to_y = _axis(axes[1], HEIGHT - MARGIN, MARGIN)
    titles = [
        f"{name_of(objective)} ({BETTER[objective.direction]} is better)"
        + (", log scale" if _is_log(values) else "")
        for objective, values in zip(spec.objectives, axes, strict=False)
    ]
    path = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in _curve(spec, shown))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(titles[1])} over {escape(titles[0])}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(titles[0])}</text>',
        f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2})">'
        f"{escape(titles[1])}</text>",
        *_legend({_kind(line) for *_, line in shown}, left),
        *_ends([(x, line.texts[0]) for x, _, line in shown], to_x, HEIGHT - MARGIN + 24, vertical=False),
        *_ends([(y, line.texts[1]) for _, y, line in shown], to_y, left - 12, vertical=True),
        f'<path d="M{left:.1f} {MARGIN - AXIS_GAP}V{HEIGHT - MARGIN + AXIS_GAP}H{WIDTH - MARGIN + AXIS_GAP}" fill="none" stroke="#d1d5db"/>',
        f'<polyline points="{path}" fill="none" stroke="{COLOURS["front"]}" stroke-opacity="0.3"/>',
    ]
    points = [(to_x(x), to_y(y), line) for x, y, line in shown]
    kinds = list(COLOURS)
    parts += [_point(*point) for point in sorted(points, key=lambda point: kinds.index(_kind(point[2])))]
    return "\n".join([*parts, *_labels(points), "</svg>"]) + "\n"


def _curve(spec: TuningStudySpec, shown: Sequence[tuple[float, float, Line]]) -> list[tuple[float, float]]:
    """Return the rows of the front that no other row beats in both objectives, from left to right. The front of a study with more
    objectives has others too."""
    signs = [1.0 if objective.direction == "min" else -1.0 for objective in spec.objectives[:2]]
    costs = sorted({(signs[0] * x, signs[1] * y) for x, y, line in shown if line.front})
    found: list[tuple[float, float]] = []
    for x, y in costs:  # the best first: a row belongs to the curve if it is better in the other objective
        if not found or y < found[-1][1]:
            found.append((x, y))
    return sorted((signs[0] * x, signs[1] * y) for x, y in found)


def _is_log(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= LOG_FROM


def _axis(values: Sequence[float], low_at: float, high_at: float) -> Callable[[float], float]:
    """Return the position of a value between the ends of the axis."""
    low, high = min(values), max(values)
    if low == high:
        return lambda _: (low_at + high_at) / 2
    if _is_log(values):
        return lambda v: low_at + (high_at - low_at) * math.log(v / low) / math.log(high / low)
    return lambda v: low_at + (high_at - low_at) * (v - low) / (high - low)


def _legend(kinds: set[str], left: float) -> Iterator[str]:
    """Name the colours that the picture has, above it."""
    for kind in reversed([kind for kind in COLOURS if kind in kinds]):
        mark = f'<tspan fill="{COLOURS[kind]}">●</tspan>'
        yield f'<text x="{left:.1f}" y="{LEGEND_TOP}" text-anchor="start">{mark} {NAMES[kind]}</text>'
        left += CHARACTER * len(NAMES[kind]) + LEGEND_GAP


def _ends(
    values: Sequence[tuple[float, str]], to: Callable[[float], float], across: float, *, vertical: bool
) -> Iterator[str]:
    """Label the smallest and the largest value of an axis."""
    for value, text in (min(values), max(values)):
        x, y = (across, to(value)) if vertical else (to(value), across)
        yield _text(text, x, y, "end" if vertical else "middle", "#6b7280")


def _text(text: str, x: float, y: float, anchor: str, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _kind(line: Line) -> str:
    return "best" if line.best else "reference" if line.row.reference else "front" if line.front else ""


def _point(x: float, y: float, line: Line) -> str:
    where = f"{line.row.full_text}: {', '.join(line.texts)}"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[_kind(line)]}"><title>{escape(where)}</title></circle>'


def _labels(points: Sequence[tuple[float, float, Line]]) -> Iterator[str]:
    """Name the best row and the references, and every row of a study with one option by its value. Rows at one point share a label. It is
    above its point, or further up or down where a label or a point is."""
    taken: list[tuple[float, float, float]] = []
    lowest = HEIGHT - MARGIN + AXIS_GAP - DESCENT  # further down are the ends of the axis
    for x, y, kind, text in _named(points):
        ends_here, width = x > WIDTH / 2, CHARACTER * len(text)
        low, high = (x - 9 - width, x - 9) if ends_here else (x + 9, x + 9 + width)
        steps = (-9 - LINE_HEIGHT * n for n in range(len(points)))
        steps = (step for up in steps for step in (up, 9 - up))
        at = next(
            (
                y + step
                for step in steps
                if y + step <= lowest
                and all(abs(y + step - used) >= LINE_HEIGHT or high < a or b < low for a, b, used in taken)
                and not any(_covers(low, high, y + step, px, py) for px, py, _ in points)
            ),
            y - 9,
        )
        taken.append((low, high, at))
        anchor, start = ("end", high) if ends_here else ("start", low)
        yield _text(text, start, at, anchor, COLOURS[kind])


def _named(points: Sequence[tuple[float, float, Line]]) -> Iterator[tuple[float, float, str, str]]:
    """Return position, kind and text of each label."""
    plain: dict[tuple[float, float], list[Line]] = {}
    for x, y, line in points:
        if _kind(line) not in NAMED and len(line.row.options) == 1:
            plain.setdefault((x, y), []).append(line)
    for x, y, line in points:
        if _kind(line) in NAMED:
            yield x, y, _kind(line), ", ".join([_name(line), *map(_values, plain.pop((x, y), ()))])
    for (x, y), lines in plain.items():
        yield x, y, _kind(lines[0]), ", ".join(map(_values, lines))


def _name(line: Line) -> str:
    """Return what the row is called: its options and their values, or where these are too long, the values only."""
    if len(line.row.text) <= LONGEST_LABEL:
        return line.row.text
    name = "best" if line.best else REFERENCES.get(line.row.reference, "")
    return ": ".join(filter(None, (name, _values(line))))


def _values(line: Line) -> str:
    return ", ".join(line.row.options.values())


def _covers(low: float, high: float, at: float, x: float, y: float) -> bool:
    """Return whether a label from `low` to `high` on the base line `at` touches the point at x, y."""
    beside = low - RADIUS < x < high + RADIUS
    return beside and at - ASCENT - RADIUS < y < at + DESCENT + RADIUS
