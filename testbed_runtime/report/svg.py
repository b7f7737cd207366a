"""Build small SVG drawings: scales, ticks, paths. Colours come from CSS classes, so light and dark mode both work.

Two layouts of one drawing share its curves: each is written once, on a grid of whole numbers, and placed by `<use>`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from msgspec import Struct

GRID_X, GRID_Y = 2000, 500
"""Steps of the grid of shared curves. Finer than a screen shows, and short in the file."""
TICKS_MAX = 200
"""Upper limit of ticks on one axis. Far more than fit; it guards against a broken range."""


def number(value: float) -> str:
    """Format a coordinate with at most two decimals and no trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def nice_step(span: float, target: int) -> float:
    """Return 1, 2, 2.5 or 5 times a power of ten, so that about `target` ticks or fewer cover `span`."""
    raw = max(span, 1e-12) / max(target, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1.0, 2.0, 2.5, 5.0) if m * power >= raw * 0.999), 10.0 * power)


def nice_ticks(low: float, high: float, target: int) -> list[float]:
    """Return round values within [low, high]."""
    step = nice_step(high - low, target)
    first = math.ceil(low / step - 1e-9)
    count = min(int((high - first * step) / step + 1e-9) + 1, TICKS_MAX)
    return [round((first + i) * step, 12) for i in range(max(count, 0))]


def log_ticks(low: float, high: float, target: int) -> list[float]:
    """Return about `target` round values within [low, high]: 1, 2, 5 times powers of ten, or fewer of them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for factors in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        ticks = [t for p in powers for f in factors if low * 0.999 <= (t := f * 10.0**p) <= high * 1.001]
        if len(ticks) <= target:
            return ticks
    return ticks[:: -(-len(ticks) // max(target, 1))]


class Scale(Struct, frozen=True):
    """An axis: the values from `low` to `high` on the pixels from `start` to `end`. `log` needs values above zero."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + min(max(share, -0.02), 1.02) * (self.end - self.start)


@dataclass(slots=True)
class Svg:
    """A drawing. Elements are appended in painting order; `render` returns the whole `<svg>`."""

    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def element(self, name: str, *, title: str = "", content: str = "", **attributes: object) -> None:
        """Attribute names: `class_` becomes class, `_` becomes `-`. Numbers are shortened, texts escaped."""
        shown = "".join(
            f' {key.rstrip("_").replace("_", "-")}="'
            f'{number(value) if isinstance(value, float) else escape(str(value))}"'
            for key, value in attributes.items()
            if value is not None and value != ""
        )
        inner = (f"<title>{escape(plain(title))}</title>" if title else "") + content
        self.parts.append(f"<{name}{shown}>{inner}</{name}>" if inner else f"<{name}{shown}/>")

    def line(self, x1: float, y1: float, x2: float, y2: float, *, css: str, title: str = "") -> None:
        self.element("line", title=title, x1=x1, y1=y1, x2=x2, y2=y2, class_=css)

    def rect(self, x: float, y: float, width: float, height: float, *, css: str, title: str = "") -> None:
        width, height = max(width, 0.0), max(height, 0.0)
        self.element("rect", title=title, x=x, y=y, width=width, height=height, class_=css)

    def path(self, d: str, css: str) -> None:
        if d:
            self.element("path", d=d, class_=css)

    def use(self, shape: str, css: str, *, left: float, top: float, width: float, height: float) -> None:
        """Place a shared curve (`Shapes`) into a box."""
        if shape:
            scale = f"scale({width / GRID_X:.4g} {height / GRID_Y:.4g})"
            place = f"translate({number(left)} {number(top)}) {scale}"
            self.element("use", href=f"#{shape}", class_=css, transform=place)

    def text(self, x: float, y: float, words: str, *, css: str = "", anchor: str = "start") -> None:
        self.element("text", x=x, y=y, class_=css, text_anchor=anchor, content=escape(plain(words)))

    def time_axis(self, x: Scale, ticks: int, bottom: float, caption: str, *, grid: bool = True) -> None:
        """Draw an axis of seconds with vertical grid lines, or only marks, and its caption."""
        top, end, css = (8.0, bottom, "grid") if grid else (bottom, bottom + 4, "axis")
        for tick in nice_ticks(x.low, x.high, ticks):
            self.line(x(tick), top, x(tick), end, css=css)
            self.text(x(tick), bottom + 16, f"{tick:g}", css="tick", anchor="middle")
        self.line(x.start, bottom, x.end, bottom, css="axis")
        self.text(x.end, bottom + 31, caption, css="tick", anchor="end")

    def render(self, key: str, title: str, description: str, css: str = "") -> str:
        """`key` makes the ids unique within the page."""
        return (
            f'<svg class="chart {css}" viewBox="0 0 {number(self.width)} {number(self.height)}" role="img" '
            f'aria-labelledby="{key}-t {key}-d"><title id="{key}-t">{escape(plain(title))}</title>'
            f'<desc id="{key}-d">{escape(plain(description))}</desc>{"".join(self.parts)}</svg>'
        )


def plain(text: str) -> str:
    """Return a text without the backticks around code: a drawing has one font."""
    return text.replace("`", "")


def text_width(words: str, size: float = 12.0) -> float:
    """Estimate the width in pixels in a sans-serif font. Errs on the wide side."""
    return len(words) * size * 0.56


def bold_width(words: str, size: float = 12.0) -> float:
    """Estimate the width of bold text."""
    return 1.1 * text_width(words, size)


Point = tuple[float, float]


@dataclass(slots=True)
class Shapes:
    """The definitions of a page's section. `key` makes the ids unique."""

    key: str
    parts: list[str] = field(default_factory=list)

    def add(self, d: str) -> str:
        """Define a path and return its id; empty for an empty path."""
        if not d:
            return ""
        name = f"{self.key}-{len(self.parts)}"
        self.parts.append(f'<path id="{name}" class="shape" d="{d}"/>')
        return name

    def render(self) -> str:
        """Return an invisible drawing that holds the definitions; empty without any."""
        if not self.parts:
            return ""
        return f'<svg class="defs" aria-hidden="true" width="0" height="0"><defs>{"".join(self.parts)}</defs></svg>'


def curve(points: Sequence[Point | None], *, floor: bool) -> str:
    """Return the path of a curve with x and y from 0 to 1 (y downwards). None interrupts it.

    With `floor` each part starts and ends at y = 1, so that the same path can be stroked and filled."""
    parts: list[str] = []
    for run in runs(points):
        steps = [(round(x * GRID_X), round(y * GRID_Y)) for x, y in run]
        if floor:
            steps = [(steps[0][0], GRID_Y), *steps, (steps[-1][0], GRID_Y)]
        elif len(steps) == 1:
            steps *= 2
        steps = _without_level_points(steps)
        x, y = steps[0]
        parts.append(f"M{x} {y}l")
        moves = [f"{b[0] - a[0]} {b[1] - a[1]}" for a, b in pairwise(steps)]
        parts.append(",".join(moves).replace(" -", "-").replace(",-", "-"))
    return "".join(parts)


def _without_level_points(steps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop the points within a level stretch, which is drawn by its two ends."""
    inner = [
        here for before, here, after in zip(steps, steps[1:], steps[2:], strict=False)
        if not before[1] == here[1] == after[1]
    ]  # fmt: skip
    return [steps[0], *inner, steps[-1]]


def runs(points: Iterable[Point | None]) -> list[list[Point]]:
    """Split the points at the gaps."""
    found: list[list[Point]] = [[]]
    for point in points:
        if point is None:
            found.append([])
        else:
            found[-1].append(point)
    return [run for run in found if run]


def boxes(cells: Iterable[tuple[float, float, float, float]]) -> str:
    """Return the path of filled boxes (x, y, width, height), each from 0 to 1."""
    parts = []
    for x, y, width, height in cells:
        left, top = round(x * GRID_X), round(y * GRID_Y)
        right, bottom = round((x + width) * GRID_X), round((y + height) * GRID_Y)
        parts.append(f"M{left} {top}h{right - left}v{bottom - top}h{left - right}z")
    return "".join(parts)
