"""Draw how busy and how back-pressured each vertex was over time: one strip per vertex, darker for a larger share."""

from __future__ import annotations

from collections.abc import Sequence

from testbed_runtime.core.judgement.series import TrialSeries
from testbed_runtime.report import words
from testbed_runtime.report.svg import Scale, Shapes, Svg, boxes, nice_ticks
from testbed_runtime.report.timeline import Size

ROW = 15.0
HEAD = 20.0
LEVELS = ((0.1, "low"), (0.5, "high"))
"""Flink's levels of back pressure: OK up to 10 %, LOW up to 50 %, HIGH above."""
STEPS = 5
LABEL = 110.0
KINDS = (
    ("busy", "Busy (busiest subtask)", "busy"),
    ("backpressured", "Back-pressured (worst subtask)", "pressed"),
)
"""(key of timeseries.json, title, CSS class)."""


def level_of(share: float) -> str:
    """Return Flink's word for a share of back-pressured time."""
    return "HIGH" if share > LEVELS[1][0] else "LOW" if share > LEVELS[0][0] else "OK"


class LoadChart:
    """The load of one trial, as shapes that both layouts use."""

    def __init__(self, series: TrialSeries, *, key: str, end_s: float) -> None:
        self.key = key
        self.end = end_s
        self.trial = series.trial
        self.vertices = series.load.vertices
        self._starts = [*series.load.starts_s, end_s]
        self.shapes = Shapes(key)
        self._drawn = {
            (vertex.vertex, kind): self._strip(getattr(vertex, kind))
            for vertex in self.vertices
            for kind, _, _ in KINDS
        }

    def _strip(self, shares: Sequence[float | None]) -> list[tuple[str, int]]:
        """Return (id, step) of the boxes of each darkness; neighbours of the same step are one box."""
        cells: dict[int, list[tuple[float, float, float, float]]] = {}
        begin = 0
        steps = [0 if s is None or s < 0.02 else 1 + min(int(s * STEPS), STEPS - 1) for s in shares]
        for index in range(1, len(steps) + 1):
            if index == len(steps) or steps[index] != steps[begin]:
                left, right = self._starts[begin] / self.end, min(self._starts[index] / self.end, 1.0)
                if steps[begin] and right > left:
                    cells.setdefault(steps[begin], []).append((left, 0.0, right - left, 1.0))
                begin = index
        return [(self.shapes.add(boxes(found)), step) for step, found in sorted(cells.items())]

    def svg(self, size: Size) -> str:
        """Draw one layout; empty without data."""
        if not self.vertices:
            return ""
        block = HEAD + len(self.vertices) * (ROW + 3)
        svg = Svg(size.width, len(KINDS) * block + 30.0)
        left, right = LABEL if size.name == "wide" else 84.0, size.width - size.right
        room = int(left / (size.font * 0.56)) - 1
        y = 0.0
        for kind, caption, css in KINDS:
            svg.text(left, y + 13, caption, css="panel-title")
            y += HEAD
            for vertex in self.vertices:
                name, most = vertex.vertex, _most(getattr(vertex, kind))
                svg.text(left - 8, y + 12, words.shortened(name, room), css="small", anchor="end")
                title, width = f"{name}: at most {words.percent(most)}", right - left
                svg.rect(left, y, width, ROW, css="load-none", title=title)
                for shape, step in self._drawn[name, kind]:
                    svg.use(shape, f"load-{css} load-{step}", left=left, top=y, width=width, height=ROW)
                y += ROW + 3
        x = Scale(0.0, self.end, left, right)
        for tick in nice_ticks(0.0, self.end, size.time_ticks):
            svg.text(x(tick), y + 14, f"{tick:g}", css="tick", anchor="middle")
        key, caption = f"{self.key}{size.name[0]}", f"Load of trial {self.trial}"
        return svg.render(key, caption, self.describe(), css=size.name)

    def describe(self) -> str:
        """Describe the load in words, for screen readers."""
        return "; ".join(
            f"{v.vertex}: busy up to {words.percent(_most(v.busy))}, back-pressured up to "
            f"{words.percent(_most(v.backpressured))} ({level_of(_most(v.backpressured))})"
            for v in self.vertices
        )


def _most(shares: Sequence[float | None]) -> float:
    return max((s for s in shares if s is not None), default=0.0)
