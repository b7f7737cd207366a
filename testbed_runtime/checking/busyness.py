"""Back-pressured, busy and idle time of each vertex, and Flink's words for back pressure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from testbed_runtime.checking.common import Window, ints
from testbed_runtime.history.schema import Trial

COLUMNS: Mapping[str, str] = {"backpressured": "backpressured_ns", "busy": "busy_ns", "idle": "idle_ns"}
LOW, HIGH = 0.1, 0.5
"""Flink's web interface shows a vertex as OK up to 10 % back pressure, as LOW up to 50 %, and as HIGH above."""


@dataclass(frozen=True, slots=True)
class VertexTime:
    """Shares of the sampled time of one vertex: of its most back-pressured, its busiest and its least idle subtask."""

    vertex: str
    backpressured: float
    busy: float
    idle: float

    @property
    def level(self) -> str:
        """Flink's word for the back pressure of the vertex."""
        return level(self.backpressured)

    def share(self, name: str) -> float:
        """Return the share with a name of COLUMNS."""
        return {"backpressured": self.backpressured, "busy": self.busy, "idle": self.idle}[name]


def level(backpressured: float) -> str:
    return "OK" if backpressured <= LOW else "LOW" if backpressured <= HIGH else "HIGH"


def vertex_times(trial: Trial, window: Window) -> list[VertexTime]:
    """Return the times of each vertex with samples in the window, in order of their names.

    The counters are cumulative per attempt, so a subtask's share is the growth between its first and last sample."""
    table = trial.table("tasks")
    t_ns = ints(table, "t_ns")
    inside = np.flatnonzero((t_ns >= window.start) & (t_ns < window.end))
    table = table.take(inside)
    if not len(table):
        return []
    names = table.column("task").combine_chunks().dictionary_encode()
    tasks, attempts = np.asarray(names.indices), ints(table, "attempt")
    order = np.lexsort((t_ns[inside], attempts, tasks))
    changes = np.flatnonzero((np.diff(tasks[order]) != 0) | (np.diff(attempts[order]) != 0)) + 1
    counters = {name: ints(table, column) for name, column in COLUMNS.items()}
    vertices = pc.cast(table.column("vertex"), "string").to_pylist()
    spent: dict[tuple[str, int], dict[str, int]] = {}
    for chosen in np.split(order, changes):
        into = spent.setdefault((vertices[int(chosen[0])], int(tasks[chosen[0]])), dict.fromkeys(COLUMNS, 0))
        for name, counter in counters.items():
            into[name] += int(counter[chosen[-1]] - counter[chosen[0]])
    shares: dict[str, list[dict[str, float]]] = {}
    for (vertex, _), times in spent.items():
        if total := sum(times.values()):
            shares.setdefault(vertex, []).append({name: value / total for name, value in times.items()})
    return [
        VertexTime(
            vertex,
            backpressured=max(s["backpressured"] for s in subtasks),
            busy=max(s["busy"] for s in subtasks),
            idle=min(s["idle"] for s in subtasks),
        )
        for vertex, subtasks in sorted(shares.items())
    ]
