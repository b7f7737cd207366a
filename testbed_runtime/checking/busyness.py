"""Back-pressured, busy and idle time of each vertex, and Flink's words for back pressure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow.compute as pc
from msgspec import Struct

from testbed_runtime.checking.common import Floats, Window, data, events, group_starts
from testbed_runtime.core.exchange.backpressure import level as level_of
from testbed_runtime.core.values import NS
from testbed_runtime.history.columns import Ints, ints, numbered, vertex_of
from testbed_runtime.history.schema import Trial

COLUMNS: Mapping[str, str] = {"backpressured": "backpressured_ns", "busy": "busy_ns", "idle": "idle_ns"}
"""In the order of VertexTime's fields."""


class VertexTime(Struct, frozen=True):
    """Shares of the sampled time of one vertex: the back-pressured share of its most back-pressured subtask,
    the busy share of its busiest subtask, and the idle share of its least idle subtask."""

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
    """Return Flink's word for a share of time or of samples."""
    return level_of(backpressured).value


def reached_source_s(trial: Trial) -> float | None:
    """Return the seconds from the first record at a sink until a source first waited for buffers. None if none waited.
    A source that still waits at the sample has waited since then; one that has run again is dated up to a sample late."""
    arrived = [e["t_ns"] for e in events(trial, "sink.first-record")]
    waited = source_waits(trial, arrived[0]) if arrived else None
    return None if waited is None else (waited - arrived[0]) / NS


def source_waits(trial: Trial, since: int) -> int | None:
    """Return when a source first waited for buffers (or for its rate limit) from `since` on."""
    table = trial.table("tasks")
    table = table.filter(pc.equal(table.column("role"), "source"))
    if not len(table):
        return None
    t_ns, pressed = ints(table, "t_ns"), ints(table, "backpressured_ns")
    attempts = numbered([table], ("task", "attempt"))
    before = np.zeros(int(attempts.max()) + 1, dtype=np.int64)  # by attempt
    earlier = t_ns < since
    np.maximum.at(before, attempts[earlier], pressed[earlier])  # the counter of an attempt only grows
    waited = pressed - before[attempts]
    begun = (t_ns - waited)[(waited > 0) & ~earlier]
    return max(int(begun.min()), since) if len(begun) else None


def sampled_within(trial: Trial, window: Window) -> dict[str, float]:
    """Return the share of back-pressured samples of the worst subtask of each vertex, over the rounds that ended in the window."""
    taken: dict[str, tuple[int, int]] = {}
    for event in events(trial, "backpressure.sampled"):
        if window.start <= event["t_ns"] < window.end:
            samples, pressed = taken.get(event["subject"], (0, 0))
            found = data(event)
            taken[event["subject"]] = (samples + found["samples"], pressed + found["backpressured"])
    worst: dict[str, float] = {}
    for task, (samples, pressed) in sorted(taken.items()):
        vertex = vertex_of(task)
        worst[vertex] = max(worst.get(vertex, 0.0), pressed / max(samples, 1))
    return worst


class TaskTimes(Struct, frozen=True):
    """The cumulative times of all attempts, sorted by task, attempt and time."""

    t_ns: Ints
    attempt: Ints
    """Number of the attempt that each row belongs to."""
    counters: Mapping[str, Ints]
    tasks: tuple[tuple[str, int], ...]
    """The vertex and the number of the task of each attempt."""

    @classmethod
    def read(cls, trial: Trial) -> TaskTimes:
        table = trial.table("tasks")
        names, vertices = (table.column(c).combine_chunks().dictionary_encode() for c in ("task", "vertex"))
        tasks, attempts, t_ns = np.asarray(names.indices), ints(table, "attempt"), ints(table, "t_ns")
        order = np.lexsort((t_ns, attempts, tasks))
        starts = group_starts(tasks[order], attempts[order])
        codes, labels = np.asarray(vertices.indices), vertices.dictionary.to_pylist()
        return cls(
            t_ns[order],
            np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order))),
            {name: ints(table, column)[order] for name, column in COLUMNS.items()},
            tuple((labels[codes[row]], int(tasks[row])) for row in order[starts].tolist()),
        )

    def within(self, window: Window) -> list[VertexTime]:
        """Return the times of each vertex with samples in the window, in order of their names.

        A subtask's share is the growth of its counters between its first and last sample, over all attempts."""
        inside = np.flatnonzero((self.t_ns >= window.start) & (self.t_ns < window.end))
        if not len(inside):
            return []
        starts = group_starts(self.attempt[inside])
        firsts, lasts = inside[starts], inside[np.append(starts[1:], len(inside)) - 1]
        grown = np.stack([counter[lasts] - counter[firsts] for counter in self.counters.values()])
        spent: dict[tuple[str, int], Ints] = {}
        for position, attempt in enumerate(self.attempt[firsts].tolist()):
            key = self.tasks[attempt]
            spent[key] = spent.get(key, 0) + grown[:, position]
        shares: dict[str, list[Floats]] = {}
        for (vertex, _), times in spent.items():
            if total := int(times.sum()):
                shares.setdefault(vertex, []).append(times / total)
        found = []
        for vertex, subtasks in sorted(shares.items()):
            pressed, busy, idle = zip(*subtasks, strict=True)
            found.append(VertexTime(vertex, float(max(pressed)), float(max(busy)), float(min(idle))))
        return found
