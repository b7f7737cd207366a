"""Trials as the evaluation reduces them."""

from testbed_runtime.checking import reduced
from testbed_runtime.history.schema import TABLES, Trial


def whole(trial: Trial) -> Trial:
    """Reduce all rows of a trial at once."""
    parts = reduced.reduce_rows({name: trial.table(name) for name in TABLES})
    return reduced.assemble(trial.run, trial.trial, {n: [rows] for n, rows in parts.items()}, trial.problems)
