"""Delivery, against hand-written histories: a checker that accepts a bad one is the worst bug."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.checking.common import job_shape
from testbed_runtime.checking.delivery import check_delivery
from testbed_runtime.core.job.ledger import Ledger
from testbed_runtime.core.job.messages import CHUNK_RECORDS
from testbed_runtime.core.judgement.metrics import (
    FILTERED,
    HISTORY_INCOMPLETE,
    JOB_FAILED,
    NO_DATA,
    NOT_DRAINED,
)
from testbed_runtime.history.schema import Trial
from testbed_runtime.history.writer import MemoryHistory
from tests.manifests import trial_entry


def flip(trial: Trial, source: str, number: int, *, on: bool) -> Trial:
    """The same record with one bit changed in the first chunk that covers it (and, to set it, did not hold it yet)."""
    rows = trial.table("delivery").to_pylist()
    for row in rows:
        offset = number - row["base"]
        bits = bytearray(row["bitmap"])
        if row["source"] != source or not 0 <= offset < CHUNK_RECORDS:
            continue
        if bool(bits[offset // 8] >> offset % 8 & 1) == on:
            continue
        bits[offset // 8] ^= 1 << offset % 8
        row["bitmap"] = bytes(bits)
        break
    table = trial.table("delivery")
    return replace(
        trial, tables={**trial.tables, "delivery": type(table).from_pylist(rows, schema=table.schema)}
    )


def test_a_good_history_is_accepted(history: Any):
    """Every number once, across sinks, checkpoints and chunks."""
    found = check_delivery(history.good(), history.entry())
    assert (found.lost, found.duplicated, found.corrupted, found.out_of_order) == (0, 0, 0, 0)
    assert found.committed == 2 * history.end
    assert found.reason == found.detail == ""


@pytest.mark.parametrize("number", [0, 1, 1999, 2000, 4095, 4096, 4999])
def test_one_lost_record_is_found(history: Any, number: int):
    """Losses are found at every kind of boundary: first, last, of a checkpoint, of a chunk."""
    found = check_delivery(flip(history.good(), "source-1", number, on=False), history.entry())
    assert (found.lost, found.duplicated) == (1, 0)
    assert f"source-1 at sink: lost from number {number}" in found.detail


@pytest.mark.parametrize("number", [0, 1999, 2000, 4096, 4999])
def test_one_record_committed_twice_is_found(history: Any, number: int):
    """The duplicate is at another sink or checkpoint, where no single sink could see it."""
    found = check_delivery(flip(history.good(), "source-0", number, on=True), history.entry())
    assert (found.lost, found.duplicated) == (0, 1)
    assert f"source-0 at sink: twice from number {number}" in found.detail


def test_a_record_that_no_source_emitted_is_corrupt(history: Any):
    """A number above the last one."""
    found = check_delivery(flip(history.good(), "source-0", history.end + 5, on=True), history.entry())
    assert (found.lost, found.duplicated, found.corrupted) == (0, 0, 1)
    assert found.detail == f"source-0 at sink: never emitted from number {history.end + 5}"


@pytest.mark.parametrize("what", ["duplicated", "out_of_order", "corrupted"])
def test_what_a_sink_itself_saw_counts(history: Any, what: str):
    """Duplicates within a commit never show in a bitmap."""
    seen = False

    def change(table: str, row: dict[str, Any]) -> dict[str, Any]:
        nonlocal seen
        if table == "delivery" and not seen:
            seen = True
            return row | {what: 1}
        return row

    trial = history.good(change)
    assert getattr(check_delivery(trial, history.entry()), what) == 1


def test_a_whole_lost_chunk_is_found(history: Any):
    """There is no row that could show it."""
    trial = history.without("delivery", base=CHUNK_RECORDS, source="source-0")
    assert check_delivery(trial, history.entry()).lost == history.end - CHUNK_RECORDS


def test_no_commit_at_all_is_everything_lost(history: Any):
    """The job was drained. Each source's first chunk is named, and the second one of one of them."""
    found = check_delivery(history.without("delivery"), history.entry())
    assert found.lost == 2 * history.end
    places = [(0, 0), (0, CHUNK_RECORDS), (1, 0)]
    assert found.detail == "; ".join(f"source-{s} at sink: lost from number {base}" for s, base in places)


def test_a_job_that_was_not_drained_cannot_lose_but_can_double(history: Any):
    """Missing records may still be in flight."""
    entry = history.entry(drained=False)
    found = check_delivery(flip(history.good(), "source-0", 7, on=False), entry)
    assert (found.lost, found.reason) == (None, NOT_DRAINED)
    found = check_delivery(flip(history.good(), "source-0", 7, on=True), entry)
    assert (found.lost, found.duplicated, found.reason) == (None, 1, NOT_DRAINED)
    refused = check_delivery(
        history.good(), history.entry(drained=False, stop_refused="Not all required tasks")
    )
    assert (refused.reason, refused.detail) == (NOT_DRAINED, "Not all required tasks")


def test_a_source_that_did_not_say_where_it_ended_leaves_losses_unknown(history: Any):
    """Not zero: a loss at the tail could not be seen."""
    found = check_delivery(history.without("events", kind="source.end", subject="source-1"), history.entry())
    assert (found.lost, found.reason) == (None, NO_DATA)
    assert "source-1" in found.detail


def test_a_function_that_dropped_records_leaves_losses_unknown(history: Any):
    """Each subtask that did is named once."""
    built = history.record()
    for task in ("map-1", "map-0", "map-1"):
        built.event("function.dropped", task, 5, attempt=0)
    found = check_delivery(built.trial(), history.entry())
    assert (found.lost, found.reason, found.detail) == (None, FILTERED, "map-0, map-1 dropped records")


def test_a_job_that_failed_for_good_leaves_losses_unknown(history: Any):
    """It has its own reason, because the scenario may expect it."""

    def change(table: str, row: dict[str, Any]) -> dict[str, Any]:
        failed = table == "events" and row["kind"] == "job.state" and row["data"]["to"] == "FINISHED"
        return row | {"data": {"to": "FAILED"}} if failed else row

    found = check_delivery(history.good(change), history.entry(drained=False))
    assert (found.lost, found.reason) == (None, JOB_FAILED)


def test_a_commit_that_a_new_jobmanager_wrote_again_is_one_commit(history: Any):
    """It was killed between writing it and storing it; the same by one process is a real duplicate."""
    trial = history.good()
    rows = trial.table("delivery").to_pylist()
    table = trial.table("delivery")

    def doubled(process: str) -> Trial:
        again = [r | {"process": process} for r in rows if r["checkpoint"] == 2]
        both = type(table).from_pylist(rows + again, schema=table.schema)
        return replace(trial, tables={**trial.tables, "delivery": both})

    assert check_delivery(doubled("jobmanager-2"), history.entry()).duplicated == 0
    assert check_delivery(doubled("jobmanager-1"), history.entry()).duplicated == 2 * 3000


def job(*edges: tuple[str, str, str], **vertices: dict[str, Any]) -> dict[str, Any]:
    """A manifest's job."""
    return {
        "vertices": [{"name": name, "parallelism": 2, **more} for name, more in vertices.items()],
        "edges": [{"from": a, "to": b, "partitioning": how} for a, b, how in edges],
    }


def small(history: Any, *arrivals: tuple[str, str, list[int]], weight: int = 0, ends: int = 10) -> Trial:
    """(sink subtask, source subtask, numbers), one commit each."""
    built = history.empty()
    for number, (task, source, numbers) in enumerate(arrivals):
        ledger = Ledger()
        ledger.add(source, np.array(numbers, dtype=np.int64))
        ledger.add_weight(weight)
        history.commits(built, number, task, 0, ledger.take(), 5.0)
    for subtask in (0, 1):
        built.event("source.end", f"source-{subtask}", 9.0, data={"next": ends if subtask == 0 else 0})
    return built.trial()


@pytest.mark.parametrize(
    "number", [10, CHUNK_RECORDS - 1, CHUNK_RECORDS, CHUNK_RECORDS + 1, 3 * CHUNK_RECORDS]
)
def test_no_number_after_the_last_one_was_emitted(history: Any, number: int):
    """Whether it is in the chunk of the last record or in a later one, where none is expected."""
    found = check_delivery(small(history, ("sink-0", "source-0", [*range(10), number])), history.entry())
    assert (found.lost, found.corrupted) == (0, 1)
    assert found.detail == f"source-0 at sink: never emitted from number {number}"


def test_behind_a_broadcast_each_sink_gets_every_record(history: Any):
    """One copy less at one of them is a loss, one more a duplicate."""
    shape = job(("source", "sink", "broadcast"), source={"role": "source"}, sink={"role": "sink"})
    entry = history.entry(job=shape)
    every = list(range(10))
    good = small(history, ("sink-0", "source-0", every), ("sink-1", "source-0", every))
    assert (check_delivery(good, entry).lost, check_delivery(good, entry).duplicated) == (0, 0)
    bad = small(history, ("sink-0", "source-0", every), ("sink-1", "source-0", every[1:]))
    assert check_delivery(bad, entry).lost == 1
    more = small(
        history, ("sink-0", "source-0", every), ("sink-1", "source-0", every), ("sink-1", "source-0", [3])
    )
    assert check_delivery(more, entry).duplicated == 1


TWICE, ONCE = [*range(10), *range(10)], list(range(10))


@pytest.mark.parametrize(
    ("arrived", "lost", "duplicated"),
    [
        ([("sink-0", TWICE)], 0, 0),
        ([("sink-0", ONCE), ("sink-0", ONCE)], 0, 0),
        ([("sink-0", TWICE[:-1])], 1, 0),
        ([("sink-0", [*TWICE, 3])], 0, 1),
        ([("sink-0", [*TWICE[:-1], 3])], 1, 1),
    ],
)
def test_a_record_is_due_at_a_sink_once_for_each_of_its_paths(
    history: Any, arrived: list[tuple[str, list[int]]], lost: int, duplicated: int
):
    """One commit of one subtask may have all its copies."""
    shape = job(
        ("source", "left", "hash"), ("source", "right", "hash"), ("left", "sink", "hash"), ("right", "sink", "hash"),
        source={"role": "source"}, left={"role": "operator", "kind": "map"}, right={"role": "operator", "kind": "map"}, sink={"role": "sink"},
    )  # fmt: skip
    trial = small(history, *((task, "source-0", numbers) for task, numbers in arrived))
    found = check_delivery(trial, history.entry(job=shape))
    assert (found.lost, found.duplicated, found.committed) == (lost, duplicated, 10)
    rows, table = trial.table("delivery").to_pylist(), trial.table("delivery")
    rows += [row | {"process": "jobmanager-2"} for row in rows]  # a new JobManager writes it again
    both = type(table).from_pylist(rows, schema=table.schema)
    again = check_delivery(
        replace(trial, tables={**trial.tables, "delivery": both}), history.entry(job=shape)
    )
    assert (again.lost, again.duplicated) == (lost, duplicated)


def test_the_shape_of_a_job_is_that_of_the_manifest():
    """The runner writes the role and the kind of each vertex."""
    job = {
        "vertices": [
            {"name": "s", "role": "source", "kind": "generated"},
            {"name": "w", "role": "operator", "kind": "window"},
            {"name": "k", "role": "sink", "kind": "ledger"},
        ],
        "edges": [{"from": "s", "to": "w", "partitioning": "hash"}, {"from": "w", "to": "k"}],
    }
    shape = job_shape(trial_entry({"job": job}))
    assert (shape.sources, shape.sinks, shape.windows) == (("s",), ("k",), {"w"})
    assert shape.copies("s") == {"k": 1}
    assert shape.windowed("s", "k")


def test_a_window_beside_the_path_does_not_make_it_windowed(history: Any):
    """Then the records of the path are compared by their numbers."""
    shape = job(
        ("source", "window", "hash"), ("window", "counts", "hash"), ("source", "sink", "hash"),
        source={"role": "source"}, window={"role": "operator", "kind": "window"}, counts={"role": "sink"}, sink={"role": "sink"},
    )  # fmt: skip
    found = job_shape(trial_entry({"job": shape}))
    assert (found.windowed("source", "counts"), found.windowed("source", "sink")) == (True, False)
    assert found.hops() == {"source": 0, "window": 1, "counts": 2, "sink": 1}


def test_a_windows_record_that_is_broadcast_is_due_at_every_subtask(history: Any):
    """Twice is no duplicate with two subtasks, three times is one."""
    shape = job(
        ("source", "window", "hash"), ("window", "sink", "broadcast"),
        source={"role": "source"}, window={"role": "operator", "kind": "window"}, sink={"role": "sink"},
    )  # fmt: skip
    entry = history.entry(job=shape)
    once = [("sink-0", "window-0", [0, 1]), ("sink-1", "window-0", [0, 1])]
    assert check_delivery(small(history, *once, weight=10), entry).duplicated == 0
    twice = check_delivery(small(history, *once, ("sink-1", "window-0", [1]), weight=10), entry)
    assert "window-0 at sink: twice from number 1" in twice.examples


def test_two_sinks_each_get_every_record(history: Any):
    """A record that only one of them has is lost at the other."""
    shape = job(
        ("source", "left", "hash"), ("source", "right", "hash"),
        source={"role": "source"}, left={"role": "sink"}, right={"role": "sink"},
    )  # fmt: skip
    every = list(range(10))
    good = small(history, ("left-0", "source-0", every), ("right-1", "source-0", every))
    assert check_delivery(good, history.entry(job=shape)).lost == 0
    bad = small(history, ("left-0", "source-0", [*every]), ("left-1", "source-0", every))
    found = check_delivery(bad, history.entry(job=shape))
    assert (found.lost, found.duplicated) == (10, 10)


@pytest.mark.parametrize(
    ("weights", "first", "lost", "duplicated"),
    [((4, 6), 0, 0, 0), ((4, 5), 0, 1, 0), ((5, 6), 0, 0, 1), ((0, 0), 0, 10, 0), ((2, 4), 2, 0, 0), ((2, 5), 2, 0, 1)],
)  # fmt: skip
def test_behind_a_window_the_counts_are_added_up(
    history: Any, weights: tuple[int, int], first: int, lost: int, duplicated: int
):
    """A record stands for many, so its own number says nothing of the source. Only those from the restored position on count."""
    shape = job(
        ("source", "window", "hash"), ("window", "sink", "hash"),
        source={"role": "source"}, window={"role": "operator", "kind": "window"}, sink={"role": "sink"},
    )  # fmt: skip
    built = history.empty()
    for number, weight in enumerate(weights):
        ledger = Ledger()
        ledger.add(f"window-{number}", np.arange(2, dtype=np.int64))
        ledger.add_weight(weight)
        history.commits(built, 1, f"sink-{number}", 0, ledger.take(), 5.0)
    if first:
        built.event("job.restored", "job", 0.0, data={"next": {"source-0": first, "source-1": first}})
    for subtask in (0, 1):
        built.event("source.end", f"source-{subtask}", 9.0, data={"next": 5})
    found = check_delivery(built.trial(), history.entry(job=shape))
    assert (found.lost, found.duplicated) == (lost, duplicated)
    expected = 10 - 2 * first
    assert found.committed == expected - lost
    texts = [(lost, f"sink: {lost} of {expected} records are in no window"), (duplicated, f"sink: {duplicated} records were counted twice")]  # fmt: skip
    assert found.detail == "".join(text for count, text in texts if count)


@pytest.mark.parametrize(
    ("direct", "weight", "lost", "duplicated"),
    [(ONCE, 20, 0, 0), (ONCE[1:], 20, 1, 1), ([*ONCE, 3], 20, 1, 1), (ONCE[1:], 19, 1, 0), ([*ONCE, 3], 21, 0, 1), (ONCE, 19, 1, 0)],
)  # fmt: skip
def test_records_beside_a_window_are_compared_by_their_numbers(
    history: Any, direct: list[int], weight: int, lost: int, duplicated: int
):
    """A record that is lost there does not make up for one that the window counts twice, nor the other way round."""
    shape = job(
        ("source", "window", "hash"), ("window", "sink", "hash"), ("source", "sink", "hash"),
        source={"role": "source"}, window={"role": "operator", "kind": "window"}, sink={"role": "sink"},
    )  # fmt: skip
    arrived = [("sink-0", "source-0", direct), ("sink-1", "window-0", [0, 1])]
    built = history.empty()
    for number, (task, origin, numbers) in enumerate(arrived):
        ledger = Ledger()
        ledger.add(origin, np.array(numbers, dtype=np.int64))
        ledger.add_weight(weight if number else 0)
        history.commits(built, number, task, 0, ledger.take(), 5.0)
    for subtask, end in ((0, 10), (1, 0)):
        built.event("source.end", f"source-{subtask}", 9.0, data={"next": end})
    found = check_delivery(built.trial(), history.entry(job=shape))
    assert (found.lost, found.duplicated) == (lost, duplicated)


def test_a_window_s_record_committed_twice_is_a_duplicate(history: Any):
    """Its own numbers tell."""
    shape = job(
        ("source", "window", "hash"), ("window", "sink", "hash"),
        source={"role": "source"}, window={"role": "operator", "kind": "window"}, sink={"role": "sink"},
    )  # fmt: skip
    trial = small(history, ("sink-0", "window-0", [0, 1]), ("sink-1", "window-0", [1]), weight=5)
    assert check_delivery(trial, history.entry(job=shape)).duplicated == 1


def test_at_least_once_rows_are_recognised(history: Any):
    """And an earlier attempt that got further than the last is no corruption there."""
    built = history.empty()
    for numbers in ([0, 1, 2, 11], [1, 2, 3]):
        ledger = Ledger()
        ledger.add("source-0", np.array(numbers, dtype=np.int64))
        history.commits(built, -1, "sink-0", 0, ledger.take(), 5.0)
    for subtask, end in ((0, 4), (1, 0)):
        built.event("source.end", f"source-{subtask}", 9.0, data={"next": end})
    found = check_delivery(built.trial(), history.entry())
    assert found.at_least_once
    assert (found.lost, found.duplicated, found.corrupted) == (0, 2, 0)


def test_a_subtask_that_commits_at_once_makes_its_sink_at_least_once(history: Any):
    """The subtasks of a sink take over from each other at a failover."""
    built = history.empty()
    for task, checkpoint in (("sink-0", 1), ("sink-1", -1)):
        ledger = Ledger()
        ledger.add("source-0", np.array([0], dtype=np.int64))
        history.commits(built, checkpoint, task, 0, ledger.take(), 5.0)
    assert check_delivery(built.trial(), history.entry()).at_least_once


@pytest.mark.parametrize(
    ("twice", "allowed"), [((), True), (("loose",), True), (("exact",), False), (("loose", "exact"), False)]
)
def test_a_sink_that_commits_at_once_excuses_no_other(history: Any, twice: tuple[str, ...], allowed: bool):
    """The other one commits with its checkpoints, so a duplicate there is none of a failover."""
    shape = job(
        ("source", "loose", "hash"), ("source", "exact", "hash"),
        source={"role": "source"}, loose={"role": "sink"}, exact={"role": "sink"},
    )  # fmt: skip
    built = history.empty()
    for sink, checkpoint in (("loose", -1), ("exact", 1)):
        ledger = Ledger()
        ledger.add("source-0", np.array([0, 1, 2, 2] if sink in twice else [0, 1, 2], dtype=np.int64))
        history.commits(built, checkpoint, f"{sink}-0", 0, ledger.take(), 5.0)
    for subtask, end in ((0, 3), (1, 0)):
        built.event("source.end", f"source-{subtask}", 9.0, data={"next": end})
    found = check_delivery(built.trial(), history.entry(job=shape))
    assert (found.lost, found.duplicated, found.at_least_once) == (0, len(twice), allowed)


@pytest.mark.parametrize(("checkpoints", "allowed"), [((1, -1), True), ((-1, -1), True), ((1, 2, -1), False)])
def test_a_commit_without_a_checkpoint_excuses_no_duplicates_of_checkpoints(
    history: Any, checkpoints: tuple[int, ...], allowed: bool
):
    """A bounded job commits what follows the checkpoint of a stop."""
    built = history.empty()
    for checkpoint in checkpoints:
        ledger = Ledger()
        ledger.add("source-0", np.array([0, 1], dtype=np.int64))
        history.commits(built, checkpoint, "sink-0", 0, ledger.take(), 5.0)
    for subtask, end in ((0, 2), (1, 0)):
        built.event("source.end", f"source-{subtask}", 9.0, data={"next": end})
    found = check_delivery(built.trial(), history.entry())
    assert (found.duplicated, found.at_least_once) == (2 * (len(checkpoints) - 1), allowed)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("batch", [{"result": "blocking"}, {}], ids=["blocking", "pipelined"])
def test_a_batch_job_commits_exactly_once_without_checkpoints(
    history: Any, batch: dict[str, str], delivery: str
):
    """Its commits are held until it has finished. A job without checkpoints that is no batch job may restart a sink that has
    committed."""
    shape = job(
        ("source", "sink", "hash"), source={"role": "source"}, sink={"role": "sink", "delivery": delivery}
    )
    shape["edges"][0] |= batch
    ledger = Ledger()
    ledger.add("source-0", np.array([0, 0], dtype=np.int64))
    built = history.empty()
    history.commits(built, -1, "sink-0", 0, ledger.take(), 5.0)
    for subtask, end in ((0, 1), (1, 0)):
        built.event("source.end", f"source-{subtask}", 9.0, data={"next": end})
    found = check_delivery(built.trial(), history.entry(job=shape))
    assert (found.lost, found.duplicated) == (0, 1)
    assert found.at_least_once == (delivery == "at-least-once" or not batch)


@given(
    st.integers(1, 3 * CHUNK_RECORDS // 2),
    st.lists(st.integers(0, 3 * CHUNK_RECORDS // 2 - 1), max_size=12),
    st.lists(st.integers(0, 3 * CHUNK_RECORDS // 2 - 1), max_size=12),
)
def test_losses_and_duplicates_are_counted_exactly(end: int, missing: list[int], doubled: list[int]):
    """Any set of lost and duplicated records is counted exactly."""
    lost = {n for n in missing if n < end}
    twice = {n for n in doubled if n < end} - lost
    memory = MemoryHistory()
    sink = memory.sink("jobmanager-1", lambda: 1)
    for checkpoint, numbers in enumerate([sorted(set(range(end)) - lost), sorted(twice)]):
        ledger = Ledger()
        ledger.add("source-0", np.array(numbers, dtype=np.int64))
        for source, base, bitmap, *_ in ledger.take().chunks:
            sink.append(
                "delivery",
                task="sink-0",
                checkpoint=checkpoint,
                source=source,
                base=base,
                bitmap=bytes.fromhex(bitmap),
            )
    sink.append("events", kind="source.end", subject="source-0", data={"next": end})
    shape = {
        "vertices": [{"name": "source", "role": "source"}, {"name": "sink", "role": "sink"}],
        "edges": [{"from": "source", "to": "sink"}],
    }
    found = check_delivery(memory.trial(), trial_entry({"drained": True, "job": shape}))
    assert (found.lost, found.duplicated, found.corrupted) == (len(lost), len(twice), 0)


@pytest.mark.parametrize("number", [0, 1999, 4999])
def test_with_at_least_once_a_loss_is_a_loss_and_a_duplicate_is_counted(history: Any, number: int):
    """Only a record beyond the last word of its source is no stranger there: an earlier attempt may have got further."""

    def at_once(trial: Trial) -> Trial:
        table = trial.table("delivery")
        rows = [{**row, "checkpoint": -1} for row in table.to_pylist()]
        return replace(
            trial, tables={**trial.tables, "delivery": type(table).from_pylist(rows, schema=table.schema)}
        )

    found = check_delivery(flip(at_once(history.good()), "source-1", number, on=False), history.entry())
    assert (found.lost, found.duplicated, found.at_least_once) == (1, 0, True)
    beyond = flip(at_once(history.good()), "source-1", history.end + 5, on=True)
    assert check_delivery(beyond, history.entry()).corrupted == 0


def test_a_loss_is_not_proven_by_a_history_with_holes(history: Any):
    """Missing rows of the process that writes `delivery` may be commits. Those of another process cannot."""
    lossy = history.without("delivery", checkpoint=2)
    assert (check_delivery(lossy, history.entry()).lost or 0) > 0
    events = lossy.table("events")
    lossy.tables["events"] = events.filter(
        [kind != "failover.cancelled" for kind in events.column("kind").to_pylist()]
    )
    found = check_delivery(lossy, history.entry())
    assert (found.lost, found.reason) == (None, HISTORY_INCOMPLETE)
    assert "jobmanager-1 lacks 1 rows" in found.detail
    other = history.without("delivery", checkpoint=2)
    other.tables["tasks"] = other.table("tasks").slice(1)
    assert (check_delivery(other, history.entry()).lost or 0) > 0


@pytest.mark.parametrize(
    ("numbers", "lost", "duplicated", "corrupted"),
    [
        (range(40, 60), 0, 0, 0),
        (range(41, 60), 1, 0, 0),
        ([*range(40, 60), 40], 0, 1, 0),
        ([39, *range(40, 60)], 0, 0, 0),
        ([39, 39, *range(40, 60)], 0, 1, 0),
        (range(40, 61), 0, 0, 1),
        (range(60), 0, 0, 0),
    ],
)
@pytest.mark.parametrize("before", [0, CHUNK_RECORDS, 3 * CHUNK_RECORDS])
def test_of_a_job_that_started_from_a_checkpoint_only_the_records_after_it_can_be_lost(
    history: Any, numbers: Any, lost: int, duplicated: int, corrupted: int, before: int
):
    """The earlier run has those before it. One of them may still arrive, once: it was in flight in the checkpoint."""
    built = history.empty()
    restored = {"source-0": before + 40, "source-1": 0}
    built.event("job.restored", "job", 0.0, checkpoint=7, data={"next": restored})
    for number in numbers:
        ledger = Ledger()
        ledger.add("source-0", np.array([before + number], dtype=np.int64))
        history.commits(built, 8, "sink-0", 0, ledger.take(), 5.0)
    for subtask, end in ((0, before + 60), (1, 0)):
        built.event("source.end", f"source-{subtask}", 9.0, data={"next": end})
    found = check_delivery(built.trial(), history.entry())
    assert (found.lost, found.duplicated, found.corrupted) == (lost, duplicated, corrupted)
