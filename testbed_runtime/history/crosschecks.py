"""Compare the tables of a sealed trial with each other, and with its entry in the manifest.

Each rule holds for every row that a process can write. It finds damage that leaves each table consistent in itself.
"""

from __future__ import annotations

import pyarrow.compute as pc

from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.contradictions.buffers import check_buffers
from testbed_runtime.history.contradictions.channels import check_balance, check_samples
from testbed_runtime.history.contradictions.checkpoints import check_checkpoints
from testbed_runtime.history.contradictions.clocks import check_clocks
from testbed_runtime.history.contradictions.counters import check_counters_across
from testbed_runtime.history.contradictions.exchange import check_exchange
from testbed_runtime.history.contradictions.executions import check_executions
from testbed_runtime.history.contradictions.faults import check_faults
from testbed_runtime.history.contradictions.frames import check_frames
from testbed_runtime.history.contradictions.kinds import check_kinds
from testbed_runtime.history.contradictions.pairs import check_pairs
from testbed_runtime.history.contradictions.sequences import check_sequences
from testbed_runtime.history.contradictions.waits import check_awaited, check_waits
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.numbers import counts_of
from testbed_runtime.history.schema import Trial

CHECKS = (
    check_executions, check_checkpoints, check_counters_across, check_exchange, check_waits, check_balance, check_samples, check_faults,
    check_kinds, check_frames, check_buffers, check_awaited, check_sequences, check_pairs, check_clocks,
)  # fmt: skip


def check_across(trial: Trial, entry: TrialEntry) -> list[Damage]:
    """Return the contradictions, at most one finding per rule. Times of several processes are compared if the
    processes share a clock. A rule is skipped if a table lacks a column that it needs: a trial that was read
    in parts keeps only some columns.

    Return nothing if rows are known to be missing. They explain any contradiction, and the trial is
    Inconclusive."""
    checked = CheckedTrial(trial, entry)
    found = [damage for check in CHECKS for damage in check(checked)]
    return [] if found and lacks_rows(trial) else found


def lacks_rows(trial: Trial) -> bool:
    """Whether rows are known to be missing: a process shed them, or its numbers have gaps."""
    shed = pc.any(pc.equal(trial.table("events").column("kind"), "history.shed")).as_py()
    return bool(shed) or any(c["highest"] + 1 > c["distinct"] for c in counts_of(trial).to_pylist())
