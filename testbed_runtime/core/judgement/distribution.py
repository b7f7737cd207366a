"""Distributions of metrics over the seeds of a simulation: per variant, median and the range of the middle 90 %."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.judgement.metrics import LOWER_BOUNDS, MetricRow

DISTRIBUTED = ("recovery.total", "recovery.downtime", "recovery.detect", "failovers.count")
"""Metrics whose distribution is shown."""
LOW, HIGH = 5, 95
"""Percentiles of the range."""


class Distribution(Struct, frozen=True):
    """The values of one metric in all trials of one variant. `missing` counts the trials without a value,
    such as trials that never recovered."""

    variant: str
    metric: str
    count: int
    missing: int
    median: float | None
    low: float | None
    high: float | None
    bounded: int = 0
    """Values that are lower bounds: these trials had not recovered when they ended."""


def distributions(rows: Iterable[tuple[str, MetricRow]]) -> list[Distribution]:
    """Return one distribution per variant and metric from the metric rows of its trials. `rows`: each with its variant."""
    found: dict[tuple[str, str], list[float | None]] = {}
    bounded: Counter[tuple[str, str]] = Counter()
    for variant, row in rows:
        if row.metric in DISTRIBUTED and not row.phase:
            key = variant, row.metric
            found.setdefault(key, []).append(row.value)
            bounded[key] += row.value is not None and row.reason in LOWER_BOUNDS
    order = {metric: number for number, metric in enumerate(DISTRIBUTED)}
    return [
        replace(_of(variant, metric, found[variant, metric]), bounded=bounded[variant, metric])
        for variant, metric in sorted(found, key=lambda key: (key[0], order[key[1]]))
    ]


def _of(variant: str, metric: str, values: list[float | None]) -> Distribution:
    known = [value for value in values if value is not None]
    missing = len(values) - len(known)
    if not known:
        return Distribution(variant, metric, 0, missing, None, None, None)
    low, median, high = np.percentile(known, [LOW, 50, HIGH]).tolist()
    return Distribution(variant, metric, len(known), missing, median, low, high)
