"""Histories as pods write them: times since 1970, in floats, on nodes whose clocks differ by some milliseconds."""

from __future__ import annotations

from functools import cache

import pytest

from testbed_runtime.history.columns import has_one_clock
from testbed_runtime.history.schema import TABLES
from tests.checking.recorded import DOCUMENT, NODES, TIMES, WALL_S, Recorded, Row, record_in_pods, spread
from tests.checking.test_damage_across import OTHERS

NS = 1_000_000_000


DOCUMENTS = {"a TaskManager that is killed": DOCUMENT, **OTHERS}


@cache
def pods(name: str) -> Recorded:
    return record_in_pods(DOCUMENTS[name])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_healthy_history_of_pods_has_no_contradiction(name: str):
    """On one node and on several. Its processes ran on a wall clock, so durations and windows are rounded as there."""
    history, several = pods(name), spread(pods(name))
    assert min(history.trial.table("events").column("t_ns").to_pylist()) > (WALL_S - 1) * NS
    assert [has_one_clock(h.trial) for h in (history, several)] == [True, False]
    assert history.found() == several.found() == []


def test_the_clock_of_one_node_may_not_be_off_by_seconds():
    """Its tasks were sampled before they were deployed."""

    def behind(row: Row) -> Row:
        mine = row["process"].startswith("tm-2")
        return row | {c: row[c] - 5 * NS for c in TIMES if c in row} if mine else row

    history = spread(pods(next(iter(DOCUMENTS))))
    damaged = history
    for table in TABLES:
        if any(p.startswith("tm-2") for p in history.trial.table(table).column("process").to_pylist()):
            damaged = damaged.changed(table, behind)
    assert ("tasks", "t_ns") in damaged.columns()
    assert len(set(NODES.values())) == len(NODES)
