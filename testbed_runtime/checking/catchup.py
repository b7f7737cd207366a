"""When the job has caught up: the lag of every sink and source subtask is back at the baseline's 95th percentile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed_runtime.checking.common import NS, Ints, TaskSeries, Window, Windows, task_series
from testbed_runtime.core.judgement.metrics import NO_BASELINE, NO_DATA
from testbed_runtime.history.schema import Trial

EPSILON_NS = NS // 10
"""Tolerated lag above the baseline's 95th percentile: one sample period, one flush of the outputs."""
HOLD_NS = NS // 2
"""The lag must stay normal for this long: one good sample between two bad ones does not end the recovery."""
EARLY_NS = NS
"""The lag must be normal for this long to count as caught up while the fault still lasts. Less may be a gap in its effect."""
STEP_NS = NS // 10
"""Resolution of the search: the sampling period."""
FRESH_NS = NS
"""A task without a sample for this long is not running. Its lag is unknown, so it has not caught up."""

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The lag of all tasks, as far as it decides when they caught up. `reason` is set if that cannot be known."""

    series: tuple[TaskSeries, ...]
    normal: dict[str, float | None]
    baseline: Window | None
    end: int
    reason: str = ""

    @classmethod
    def read(cls, trial: Trial, spans: Windows, end: int) -> CatchUp:
        series = tuple(task_series(trial, "sink", "source"))
        baseline = spans.baseline
        if baseline is None:
            return cls(series, {}, None, end, NO_BASELINE)
        normal = {s.role: _percentile_lag(series, s.role, baseline) for s in series}
        known = any(v is not None for v in normal.values())
        return cls(series, normal, baseline, end, "" if known else NO_BASELINE if series else NO_DATA)

    def since(self, at: int, *, fault_end: int = 0) -> int | None:
        """Return the first moment from `at` on at which every task has caught up. None if there is none before the end.

        `fault_end`: the end of a fault that the job survived. The moment may be before it, if nothing was behind since."""
        times = np.arange(at, self.end + 1, STEP_NS, dtype=np.int64)
        if self.baseline is None or not len(times):
            return None
        good = np.ones(len(times), dtype=np.bool_)
        for task in sorted({s.task for s in self.series}):
            attempts = [s for s in self.series if s.task == task]
            good &= _caught_up(attempts, self.normal, times, self.baseline)
        first = _since_when(good, int(np.searchsorted(times, max(at, fault_end))))
        found = _first_run(good[first:], HOLD_NS // STEP_NS)
        return None if found is None else int(times[first + found])


def _percentile_lag(series: tuple[TaskSeries, ...], role: str, window: Window) -> float | None:
    lags: list[Ints] = [
        s.lag_ns[(s.t_ns >= window.start) & (s.t_ns < window.end)] for s in series if s.role == role
    ]
    together = np.concatenate(lags) if lags else np.zeros(0, dtype=np.int64)
    return float(np.percentile(together, 95)) if len(together) else None


def _caught_up(
    attempts: list[TaskSeries], normal: dict[str, float | None], times: Ints, baseline: Window
) -> Bools:
    """Return for each time whether the task has caught up: the newest sample of its newest attempt is fresh and its lag
    normal. A sink must also not wait for records longer than in the baseline, because its lag is that of its last record."""
    limit = normal[attempts[0].role]
    good = np.zeros(len(times), dtype=np.bool_)
    quiet = _longest_quiet(attempts, baseline) if attempts[0].role == "sink" else None
    for series in sorted(attempts, key=lambda s: s.attempt):
        newest = np.searchsorted(series.t_ns, times, side="right") - 1
        started = newest >= 0
        lag = series.lag_ns[np.maximum(newest, 0)]
        age = times - series.t_ns[np.maximum(newest, 0)]
        fine = (age <= FRESH_NS) & (lag <= (limit or 0.0) + EPSILON_NS)
        if quiet is not None:
            fine &= _quiet_for(series, times) <= quiet + EPSILON_NS
        good = np.where(started, fine, good)  # a newer attempt replaces an older one from its first sample on
    return good


def _longest_quiet(attempts: list[TaskSeries], baseline: Window) -> int | None:
    """Return the longest time without a new record in the baseline. None if it had no records (a subtask without keys)."""
    moments = np.sort(np.concatenate([_arrivals(s) for s in attempts]))
    moments = moments[(moments >= baseline.start) & (moments < baseline.end)]
    if not len(moments):
        return None
    return int(np.diff(np.concatenate([[baseline.start], moments, [baseline.end]])).max())


def _quiet_for(series: TaskSeries, times: Ints) -> Ints:
    """Return for each time how long ago the last new record arrived, or since when the attempt has run without one."""
    moments = np.concatenate([series.t_ns[:1], _arrivals(series)])
    newest = np.searchsorted(moments, times, side="right") - 1
    return np.asarray(times - moments[np.maximum(newest, 0)], dtype=np.int64)


def _arrivals(series: TaskSeries) -> Ints:
    """Return the times of the samples that show new records."""
    return np.asarray(series.t_ns[np.diff(series.records_in, prepend=0) > 0], dtype=np.int64)


def _since_when(good: Bools, at: int) -> int:
    """Return the index from which everything was good up to `at`, or `at` if that lasted less than EARLY_NS."""
    first = at
    while first > 0 and good[first - 1]:
        first -= 1
    return first if first == 0 or at - first >= EARLY_NS // STEP_NS else at


def _first_run(good: Bools, length: int) -> int | None:
    """Return where the first run of at least `length` starts. A run cut off by the end does not count."""
    run = 0
    for index, value in enumerate(good.tolist()):
        run = run + 1 if value else 0
        if run >= length:
            return index - length + 1
    return None
