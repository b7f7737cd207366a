"""Raw throughput at the sinks over any window, including replayed records. `progress` has the distinct ones."""

from __future__ import annotations

from testbed_runtime.checking.common import TaskSeries, Window, task_series
from testbed_runtime.history.schema import Trial


def rate(sinks: list[TaskSeries], window: Window) -> float | None:
    """Return the records per second received by all sinks. None if no sink was sampled before the window's end."""
    if not any(len(s.t_ns) and s.t_ns[0] < window.end for s in sinks):
        return None
    received = sum(s.received_until(window.end) - s.received_until(window.start) for s in sinks)
    return received / window.seconds


def by_sink(sinks: list[TaskSeries], window: Window) -> dict[str, float]:
    """Return the records per second received by each sink vertex."""
    groups: dict[str, list[TaskSeries]] = {}
    for series in sinks:
        groups.setdefault(series.task.rpartition("-")[0], []).append(series)
    rates = {vertex: rate(group, window) for vertex, group in sorted(groups.items())}
    return {vertex: found for vertex, found in rates.items() if found is not None}


def sinks_of(trial: Trial) -> list[TaskSeries]:
    return task_series(trial, "sink")
