"""Curves that two layouts of one drawing share: each is written once, on a grid of whole numbers, and placed by `<use>`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import escape

from testbed_runtime.report.svg import GRID_X, GRID_Y

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
        self.parts.append(f'<path id="{escape(name)}" class="shape" d="{d}"/>')
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
    """Drop the points within a level stretch: its ends draw it."""
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
