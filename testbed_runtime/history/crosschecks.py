"""Compare the tables of a sealed trial with each other, and with its entry in the manifest.

Each rule holds for every row that a process can write. It finds damage that leaves each table consistent in itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed_runtime.history.columns import events
from testbed_runtime.history.contradictions.buffers import check_buffers
from testbed_runtime.history.contradictions.channels import check_balance, check_samples
from testbed_runtime.history.contradictions.checkpoints import check_checkpoints
from testbed_runtime.history.contradictions.clocks import check_clocks, has_one_clock
from testbed_runtime.history.contradictions.counters import check_counters_across
from testbed_runtime.history.contradictions.exchange import check_exchange
from testbed_runtime.history.contradictions.executions import check_executions
from testbed_runtime.history.contradictions.faults import check_faults
from testbed_runtime.history.contradictions.frames import check_frames
from testbed_runtime.history.contradictions.kinds import check_kinds
from testbed_runtime.history.contradictions.pairs import check_pairs
from testbed_runtime.history.contradictions.sequences import check_sequences
from testbed_runtime.history.contradictions.waits import check_awaited, check_ended, check_waits
from testbed_runtime.history.damage import Damage
from testbed_runtime.history.numbers import counts_of
from testbed_runtime.history.schema import Trial


def check_across(trial: Trial, entry: Mapping[str, Any]) -> list[Damage]:
    """Return the contradictions, at most one finding per rule. Times of several processes are compared if the
    processes share a clock. A rule is skipped if a table lacks a column that it needs: a trial that was read
    in parts keeps only some columns.

    Return nothing if rows are known to be missing. They explain any contradiction, and the trial is
    Inconclusive."""
    one_clock = has_one_clock(trial)
    found = [
        *check_executions(trial, entry),
        *check_checkpoints(trial, entry),
        *check_counters_across(trial, entry),
        *check_exchange(trial, entry),
        *check_waits(trial, entry),
        *check_balance(trial, entry),
        *check_samples(trial, entry),
        *check_faults(trial, entry, one_clock=one_clock),
        *check_kinds(trial),
        *check_frames(trial, one_clock=one_clock),
        *check_buffers(trial),
        *check_ended(trial),
        *check_awaited(trial, entry),
        *check_sequences(trial, entry, one_clock=one_clock),
        *check_pairs(trial, entry, one_clock=one_clock),
        *(check_clocks(trial) if one_clock else ()),
    ]
    return [] if found and lacks_rows(trial) else found


def lacks_rows(trial: Trial) -> bool:
    """Whether rows are known to be missing: a process shed them, or its numbers have gaps."""
    shed = bool(events(trial, "history.shed"))
    return shed or any(c["highest"] + 1 > c["distinct"] for c in counts_of(trial).to_pylist())
