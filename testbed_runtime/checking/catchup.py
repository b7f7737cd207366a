"""When the job has caught up: the lag of every sink and source subtask is back at the baseline's 95th percentile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed_runtime.checking.baseline import cut, normal_lag
from testbed_runtime.checking.common import NS, Windows, data, events
from testbed_runtime.checking.progress import Progress, progress_of
from testbed_runtime.core.judgement.metrics import NO_BASELINE, NO_DATA
from testbed_runtime.history.schema import Trial

EPSILON_S = 0.2
"""Tolerated lag above the baseline's 95th percentile: one flush of the outputs, and one sample period, in which it grows."""
HOLD_NS = NS // 2
"""The lag must stay normal for this long: one good sample between two bad ones does not end the recovery."""
EARLY_NS = NS
"""The lag must be normal for this long to count as caught up while the fault still lasts. Less may be a gap in its effect."""
STEP_NS = NS // 10
"""Resolution of the search: the sampling period."""

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The lag of all subtasks, as far as it decides when they caught up. `reason` is set if that cannot be known."""

    subtasks: tuple[tuple[Progress, float], ...]
    """Each subtask with the largest lag in seconds that is normal for it."""
    end: int
    reason: str = ""
    finished: int | None = None
    """When the job had finished: then nothing is behind any more."""

    @classmethod
    def read(cls, trial: Trial, spans: Windows, end: int) -> CatchUp:
        baseline = spans.baseline
        if baseline is None:
            return cls((), end, NO_BASELINE)
        found = progress_of(trial, baseline=baseline)
        window = cut(baseline, [one for one in found if one.role == "sink"])
        usual = [(one, normal_lag(one, window)) for one in found]
        known = tuple((one, lag + EPSILON_S) for one, lag in usual if lag is not None)
        ends = [int(e["t_ns"]) for e in events(trial, "job.state") if data(e).get("to") == "FINISHED"]
        finished = next((t for t in ends if t <= end), None)
        return cls(known, end, "" if known else NO_BASELINE if found else NO_DATA, finished)

    def since(self, at: int, *, fault_end: int = 0) -> int | None:
        """Return the first moment from `at` on at which every subtask has caught up. None if there is none before the end.

        `fault_end`: the end of a fault that the job survived. The moment may be before it, if nothing was behind since."""
        times = np.arange(at, self.end + 1, STEP_NS, dtype=np.int64)
        if self.reason or not len(times):
            return None
        good = np.ones(len(times), dtype=np.bool_)
        for subtask, limit in self.subtasks:
            good &= subtask.lag_at(times) <= limit
        first = _since_when(good, int(np.searchsorted(times, max(at, fault_end))))
        found = _first_run(good[first:], HOLD_NS // STEP_NS)
        if found is None:
            return self.finished if self.finished is not None and self.finished >= at else None
        return int(times[first + found])


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
