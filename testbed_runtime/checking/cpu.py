"""Processor time in virtual time: how much the tasks spent per record that arrived."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from msgspec import Struct

from testbed_runtime.checking.common import TaskSeries, Window, data, events
from testbed_runtime.checking.progress import raw_rate
from testbed_runtime.core.grouping import grouped
from testbed_runtime.history.schema import Trial


class Spent(Struct, frozen=True):
    """The cumulative samples of one TaskManager."""

    t_ns: Sequence[int]
    seconds: Sequence[float]
    buffers: Sequence[int]

    def within(self, window: Window) -> tuple[float, float]:
        """Return the seconds and buffers of a window, interpolated between samples."""
        ends = [window.start, window.end]
        seconds, buffers = (np.interp(ends, self.t_ns, v, left=0) for v in (self.seconds, self.buffers))
        return float(np.diff(seconds)[0]), float(np.diff(buffers)[0])


class CpuPerRecord(Struct, frozen=True):
    """Means of a window."""

    seconds: float
    """Processor time of each record."""
    buffers: float
    """Buffers that were sent for each record."""


def spent_of(trial: Trial) -> list[Spent]:
    """Return the samples of each TaskManager; none if work costs nothing."""
    found = grouped((e["subject"], (e["t_ns"], data(e))) for e in events(trial, "cpu.spent"))
    return [
        Spent([t_ns for t_ns, _ in rows], [m["seconds"] for _, m in rows], [m["buffers"] for _, m in rows])
        for rows in (sorted(rows, key=itemgetter(0)) for rows in found.values())
    ]


def cpu_per_record(spent: Sequence[Spent], sinks: list[TaskSeries], window: Window) -> CpuPerRecord | None:
    """Return the means of the records that arrived in the window. None if none arrived, or work costs nothing."""
    records = (raw_rate(sinks, window) or 0.0) * window.seconds
    if not spent or not records:
        return None
    parts = [s.within(window) for s in spent]
    seconds, buffers = (sum(column) / records for column in zip(*parts, strict=True))
    return CpuPerRecord(seconds, buffers)
