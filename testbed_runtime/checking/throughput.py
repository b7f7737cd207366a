"""Throughput at the sinks, lag behind the due time, and stalls, over any window."""

from __future__ import annotations

import numpy as np

from testbed_runtime.checking.common import NS, TaskSeries, Window, task_series
from testbed_runtime.history.schema import Trial


def rate(sinks: list[TaskSeries], window: Window) -> float | None:
    """Return the records per second received by all sinks. None if no sink was sampled before the window's end."""
    if window.end <= window.start or not any(len(s.t_ns) and s.t_ns[0] < window.end for s in sinks):
        return None
    received = sum(s.received_until(window.end) - s.received_until(window.start) for s in sinks)
    return received / window.seconds


def sinks_of(trial: Trial) -> list[TaskSeries]:
    return task_series(trial, "sink")


def largest_lag(trial: Trial, window: Window) -> float | None:
    """Return the largest lag of all sources and sinks in seconds."""
    worst: int | None = None
    for series in task_series(trial, "source", "sink"):
        lags = series.lag_ns[(series.t_ns >= window.start) & (series.t_ns < window.end)]
        if len(lags):
            worst = max(int(lags.max()), worst or 0)
    return None if worst is None else worst / NS


def longest_stall(sinks: list[TaskSeries], window: Window) -> float | None:
    """Return the longest time in seconds, within the window, without a new record at any sink. None without samples."""
    if not any(len(s.t_ns) for s in sinks):
        return None
    moments = [window.start, window.end]
    for series in sinks:
        grew = np.diff(series.records_in, prepend=0) > 0
        times = series.t_ns[grew]
        moments.extend(times[(times >= window.start) & (times < window.end)].tolist())
    return float(np.diff(np.sort(np.asarray(moments))).max()) / NS
