"""Metric rows: what a test leaves out has its default."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from testbed_runtime.core.judgement.metrics import MetricRow

_ROW = MetricRow("r", "main-1", "recovery.total", "", None, None, "", "", "")


def metric_row(metric: str, value: float | None = None, **more: Any) -> MetricRow:
    """A row of the trial main-1."""
    return replace(_ROW, metric=metric, value=value, **more)
