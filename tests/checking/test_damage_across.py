"""Damage that leaves each table consistent in itself: another table contradicts it, and the reason names table and column."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.history.crosschecks import check_across
from testbed_runtime.history.schema import Trial
from testbed_runtime.history.validation import check_trial
from tests.ordered import in_order


def trial(history: Any, table: str = "", column: str = "", change: Any = None, *, attempt: int = 1) -> Trial:
    """The good trial with the samples of its sources. `change` gets each row of a table, and returns the value of a column."""

    def changed(name: str, row: dict[str, Any]) -> dict[str, Any]:
        return row | {column: change(row)} if name == table else row

    record = history.empty(changed) if change else history.empty()
    history.fill(record)
    for tick in range(1, 26):
        for source in (0, 1):
            record.add(
                f"tm-{source}-1", "tasks", tick, task=f"source-{source}", vertex="source", role="source", attempt=attempt,
                records_out=min(200 * tick, history.end), lag_ns=0,
            )  # fmt: skip
    return in_order(record.trial())


def times_ten(row: dict[str, Any]) -> int:
    return 10 * int(row.get("records_out", 0))


def test_the_good_history_has_no_contradiction(history: Any):
    """So every finding below comes from the damage."""
    assert check_across(trial(history), history.entry()) == []


@pytest.mark.parametrize(
    ("table", "column", "change", "problem"),
    [
        ("tasks", "records_out", times_ten, "source-0 emitted 5000 records (source.end in events)"),
        ("tasks", "lag_ns", lambda row: 0, "is 0 in every sample of sink-0"),
    ],
)
def test_a_column_that_another_table_contradicts_is_damaged(
    history: Any, table: str, column: str, change: Any, problem: str
):
    """The whole column was changed, so no row stands out."""
    damaged = trial(history, table, column, change)
    found = check_trial(damaged, history.entry() | {"trial": damaged.trial})
    assert [(d.table, d.column) for d in found] == [(table, column)]
    assert problem in found[0].problem


def test_an_attempt_that_reported_no_end_may_have_emitted_more(history: Any):
    """A source ended with a drain, the drain failed, and its next attempt was killed later."""
    assert check_across(trial(history, "tasks", "records_out", times_ten, attempt=2), history.entry()) == []


def test_a_task_acknowledges_a_checkpoint_once(history: Any):
    """A second time is damage, unless it was triggered again: a JobMaster that lost its leadership numbers from the last completed one."""
    record = history.record()
    record.add("jobmanager-1", "checkpoints", 10.0, checkpoint=3, state="triggered")
    for t in (10.1, 10.2):
        record.add("jobmanager-1", "checkpoints", t, checkpoint=3, state="acknowledged", task="sink-0")
    (found,) = check_across(record.trial(), history.entry())
    assert str(found).endswith("is sink-0, which had acknowledged checkpoint 3")
    again = history.record()
    for t in (10.0, 11.0):
        again.add("jobmanager-1", "checkpoints", t, checkpoint=3, state="triggered")
        again.add("jobmanager-1", "checkpoints", t + 0.1, checkpoint=3, state="acknowledged", task="sink-0")
    assert check_across(again.trial(), history.entry()) == []


def test_broadcast_records_count_once_for_each_subtask(history: Any):
    """A source with a broadcast edge sends each record to every subtask."""
    entry = history.entry()
    edges = [entry["job"]["edges"][0] | {"partitioning": "broadcast"}, entry["job"]["edges"][1]]
    double = trial(history, "tasks", "records_out", lambda row: 2 * int(row.get("records_out", 0)))
    assert check_across(double, entry | {"job": entry["job"] | {"edges": edges}}) == []
    assert [d.column for d in check_across(double, entry)] == ["records_out"]
