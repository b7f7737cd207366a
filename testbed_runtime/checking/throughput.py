"""Raw throughput at the sinks over any window, including replayed records. `progress` has the distinct ones."""

from __future__ import annotations

from testbed_runtime.checking.common import TaskSeries, Window, task_series
from testbed_runtime.history.schema import Trial


def rate(sinks: list[TaskSeries], window: Window) -> float | None:
    """Return the records per second received by all sinks. None if no sink was sampled before the window's end."""
    if window.end <= window.start or not any(len(s.t_ns) and s.t_ns[0] < window.end for s in sinks):
        return None
    received = sum(s.received_until(window.end) - s.received_until(window.start) for s in sinks)
    return received / window.seconds


def sinks_of(trial: Trial) -> list[TaskSeries]:
    return task_series(trial, "sink")
