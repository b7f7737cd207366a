"""Order of records. The sinks check it within each FIFO path (core.job.ledger); this module sums their counts."""

from __future__ import annotations

from testbed_runtime.history.schema import Trial


def out_of_order(trial: Trial) -> int | None:
    """Return how many records arrived after a later record of the same path. None if no sink recorded anything."""
    rows = trial.rows("delivery")
    return sum(r["out_of_order"] for r in rows) if rows else None
