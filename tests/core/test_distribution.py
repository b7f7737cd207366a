"""Distributions of metrics over trials, computed by hand."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from testbed_runtime.core.judgement.distribution import Distribution, distributions
from testbed_runtime.core.judgement.metrics import NOT_RECOVERED, MetricRow
from tests.metricrows import metric_row


def rows(variant: str, metric: str, values: list[float | None], **more: Any) -> list[tuple[str, MetricRow]]:
    """One row per trial."""
    return [(variant, metric_row(metric, value, **more)) for value in values]


def test_a_distribution_is_the_median_and_the_middle_nine_tenths():
    """The values 0 to 100 in any order: 50, from 5 to 95. Trials without a value are counted apart."""
    values: list[float | None] = [float(n) for n in reversed(range(101))]
    (found,) = distributions(rows("a", "recovery.total", [None, *values, None]))
    assert found == Distribution("a", "recovery.total", 101, 2, 50.0, 5.0, 95.0)
    assert to_builtins(found) == {
        "variant": "a", "metric": "recovery.total", "count": 101, "missing": 2, "median": 50.0, "low": 5.0, "high": 95.0,
        "bounded": 0,
    }  # fmt: skip
    (late,) = distributions(
        [*rows("a", "recovery.total", [1, None, 2], reason=NOT_RECOVERED), *rows("a", "recovery.total", [3])]
    )
    assert (late.count, late.missing, late.bounded) == (3, 1, 2), "a lower bound is a value"
    (none,) = distributions(rows("a", "recovery.total", [None]))
    assert none == Distribution("a", "recovery.total", 0, 1, None, None, None)


def test_distributions_are_ordered_by_variant_and_by_metric():
    """The total first. Rows of a phase and other metrics have none."""
    given = [
        *rows("b", "failovers.count", [1]), *rows("b", "recovery.total", [2]), *rows("a", "recovery.detect", [3]),
        *rows("a", "recovery.detect", [9], phase="fault"), *rows("a", "lag.max", [9]),
    ]  # fmt: skip
    assert [(d.variant, d.metric, d.median) for d in distributions(given)] == [
        ("a", "recovery.detect", 3.0),
        ("b", "recovery.total", 2.0),
        ("b", "failovers.count", 1.0),
    ]
