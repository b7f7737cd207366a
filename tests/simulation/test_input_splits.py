"""A bounded source whose subtasks request input splits from the JobMaster, through a failover."""

from __future__ import annotations

import json
from pathlib import Path

from tests.simulation.simulating import Ran
from tests.simulation.test_waits import ANY, FORWARD, HASH, SINK, ran

LIMIT, SPLITS = 6000, 12
SOURCE = {
    "name": "source",
    "parallelism": 2,
    "slotSharingGroup": "src",
    "source": {"recordsPerSecond": 1000, "limit": LIMIT, "splits": SPLITS},
}
COUNT = {"name": "count", "parallelism": 2, "operator": "keyed-count"}
JOB = {"vertices": [SOURCE, COUNT, SINK], "edges": [HASH, FORWARD]}


def splits(run: Ran, attempt: int) -> dict[int, str]:
    """Return which subtask got which split in an attempt."""
    rows = [r for r in run.trial.rows("events") if r["kind"] == "input-split" and r["attempt"] == attempt]
    return {json.loads(row["data"])["split"]: row["subject"] for row in rows}


def test_every_split_is_read_once_and_nothing_is_lost_in_a_failover(tmp_path: Path):
    """6000 records in 12 splits of 500; a TaskManager dies after 3 s. The next attempt reads the splits of its own subtask."""
    run = ran(
        tmp_path, {"duration": "1 s", "target": ANY, "process": {"kill": {}}}, job=JOB, observation="8 s"
    )
    first, second = splits(run, 0), splits(run, 1)
    assert second
    assert set(first) | set(second) == set(range(SPLITS))
    assert all(first[number] == subtask for number, subtask in second.items() if number in first)
    names = ("delivery.committed", "delivery.lost", "delivery.duplicated")
    assert [run.metrics[name] for name in names] == [LIMIT, 0, 0]
