"""Order: sinks judge it within each first-in-first-out path (core.ledger); here it is added up."""

from __future__ import annotations

from testbed_runtime.history.schema import Trial


def out_of_order(trial: Trial) -> int | None:
    """Records that came after a later one of the same path; None when no sink recorded anything."""
    rows = trial.rows("delivery")
    return sum(r["out_of_order"] for r in rows) if rows else None
