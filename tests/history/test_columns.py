"""Functions over the columns of a history against plain loops over its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.values import NS
from testbed_runtime.history import columns
from testbed_runtime.history.columns import TOLERANCE_NS, Owned
from testbed_runtime.history.schema import Trial
from tests.checking.written import Written, at, checked, event, job, sample, state, wait, wrote

NAMES = st.sampled_from(["a", "b", "ab", ""])
PAIRS = st.lists(st.tuples(NAMES, st.integers(-1, 2)), max_size=12)
OWNERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=12)


def pair_table(rows: list[tuple[str, int]]) -> pa.Table:
    """A table with a text and a number, in chunks of two rows."""
    columns_ = {"name": [name for name, _ in rows], "number": [number for _, number in rows]}
    table = pa.table(columns_, schema=pa.schema([("name", pa.string()), ("number", pa.int64())]))
    return pa.concat_tables(
        [table.schema.empty_table(), *(table.slice(n, 2) for n in range(0, len(table), 2))]
    )


@given(tables=st.lists(PAIRS, max_size=3))
def test_equal_rows_of_all_tables_have_one_number_and_others_another(tables: list[list[tuple[str, int]]]):
    """The numbers of two tables can be compared if they were given together."""
    numbers = columns.numbered([pair_table(rows) for rows in tables], ("name", "number")).tolist()
    rows = [row for of_table in tables for row in of_table]
    assert len(numbers) == len(rows)
    assert {(a == b) for a, m in zip(rows, numbers, strict=True) for b, n in zip(rows, numbers, strict=True) if (a == b) != (m == n)} == set()  # fmt: skip


@given(rows=PAIRS)
def test_each_combination_has_its_rows_in_order(rows: list[tuple[str, int]]):
    """Only combinations that occur are there."""
    found = columns.places(pair_table(rows), "name", "number")
    assert {key: at.tolist() for key, at in found.items()} == {
        key: [n for n, row in enumerate(rows) if row == key] for key in rows
    }


@given(rows=st.lists(st.tuples(NAMES, st.integers(0, 2)), max_size=8))
def test_each_combination_is_returned_with_its_first_row(rows: list[tuple[str, int]]):
    """In a table without nulls."""
    trial = wrote(*(sample(name, attempt=number) for name, number in rows))
    found = columns.distinct(trial.table("tasks"), "task", "attempt")
    expected = {row: (rows.index(row), {"task": row[0], "attempt": row[1]}) for row in rows}
    assert sorted(found, key=lambda pair: pair[0]) == sorted(expected.values(), key=lambda pair: pair[0])
    assert trial.tables["tasks"].num_rows == len(rows)


@given(rows=OWNERS)
def test_rows_of_an_owner_are_in_the_order_of_their_numbers(rows: list[tuple[int, int, bool]]):
    """Rows with one number stay in the order of the table."""
    owned = ordered(rows)
    expected = sorted(range(len(rows)), key=lambda n: (rows[n][0], rows[n][1], n))
    assert owned.order.tolist() == expected
    owners = [rows[n][0] for n in expected]
    kinds = sorted(set(owners))
    assert owned.starts.tolist() == [owners.index(owner) for owner in kinds]
    assert owned.sizes.tolist() == [owners.count(owner) for owner in kinds]
    assert owned.ends.tolist() == [len(owners) - 1 - owners[::-1].index(owner) for owner in kinds]
    assert owned.spread(np.arange(len(kinds))).tolist() == [kinds.index(owner) for owner in owners]


@given(rows=OWNERS.filter(len))
def test_neighbours_are_rows_of_the_same_owner(rows: list[tuple[int, int, bool]]):
    """A row is its own neighbour if it is wanted."""
    owned = ordered(rows)
    placed = [rows[n] for n in owned.order]
    wanted = np.asarray([is_wanted for _, _, is_wanted in placed], dtype=np.bool_)
    before, after = owned.neighbours(wanted)
    for place, (owner, _, _) in enumerate(placed):
        same = [n for n, (other, _, _) in enumerate(placed) if other == owner and wanted[n]]
        assert before[place] == max((n for n in same if n <= place), default=-1)
        assert after[place] == min((n for n in same if n >= place), default=-1)
    owners = sorted({owner for owner, _, _ in placed})
    assert owned.last(wanted).tolist() == [
        max((n for n, row in enumerate(placed) if row[0] == owner and row[2]), default=-1) for owner in owners
    ]
    change = wanted[: len(placed) - 1]
    assert owned.follows(change).tolist() == [
        n > 0 and placed[n][0] == placed[n - 1][0] and bool(change[n - 1]) for n in range(len(placed))
    ]


def ordered(rows: list[tuple[int, int, bool]]) -> Owned:
    """Rows with an owner and a number."""
    owners, numbers = (np.asarray([row[n] for row in rows], dtype=np.int64) for n in (0, 1))
    return Owned.of(owners, numbers)


@given(rows=st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=6))
def test_filled_buckets_are_those_that_are_not_zero(rows: list[list[int]]):
    """With their row, their place in it and their count."""
    table = pa.table({"buckets": pa.chunked_array([pa.array(rows, pa.list_(pa.int64()))])})
    found = zip(*(part.tolist() for part in columns.filled_buckets(table)), strict=True)
    assert list(found) == [(r, b, n) for r, row in enumerate(rows) for b, n in enumerate(row) if n]


@given(rows=st.lists(st.tuples(st.sets(st.integers(0, 30)), st.integers(0, 3)), max_size=5))
def test_a_row_has_the_records_of_its_bitmap_and_the_duplicates(rows: list[tuple[set[int], int]]):
    """A bitmap is as long as its highest bit needs."""
    bitmaps = [sum(1 << bit for bit in bits).to_bytes(4, "little") for bits, _ in rows]
    table = pa.table({"bitmap": pa.array(bitmaps, pa.binary()), "duplicated": pa.array([n for _, n in rows], pa.int64())})  # fmt: skip
    assert columns.committed_records(table).tolist() == [len(bits) + n for bits, n in rows]


@pytest.mark.parametrize(
    ("flags", "place"), [([], []), ([False], []), ([True], [0]), ([False, True, True], [1])]
)
def test_the_first_true_value_is_found(flags: list[bool], place: list[int]):
    """In both kinds of arrays."""
    assert columns.first_true(np.asarray(flags, dtype=np.bool_)) == place
    assert columns.first_true(pa.array(flags, pa.bool_())) == place


@pytest.mark.parametrize(
    ("rows", "asked", "is_sound"),
    [
        ({"a": [1]}, ("a",), True),
        ({"a": [1]}, (), True),
        ({"a": []}, ("a",), False),
        ({"a": [1]}, ("a", "b"), False),
        ({"a": [1, None]}, ("a",), False),
        ({"a": [1, 2], "b": [None, 1]}, ("a",), True),
    ],
)
def test_a_table_is_sound_with_rows_and_without_nulls_in_its_columns(
    rows: dict[str, list[int | None]], asked: tuple[str, ...], is_sound: bool
):
    """Nulls in other columns do not matter."""
    assert columns.sound(pa.table(rows), *asked) is is_sound


@pytest.mark.parametrize(
    ("since_s", "until_s", "allowed_s"),
    [
        (10.0, None, 2.0),  # in the stall
        (8.0, None, 2.0),  # a second before it
        (7.999, None, 0.0),
        (12.0, None, 2.0),  # a second after it
        (12.001, None, 0.0),
        (5.0, 8.0, 2.0),
        (5.0, 7.999, 0.0),
        (0.0, 100.0, 5.0),  # the longest one
    ],
)
def test_a_stall_widens_the_tolerance_of_its_process(since_s: float, until_s: float | None, allowed_s: float):
    """It counts from a second before it to a second after it."""
    trial = wrote(
        wait("stalled", "tm-0-1", start=9.0, t=11.0, process="tm-0-1"),
        wait("stalled", "tm-0-1", start=40.0, t=45.0, process="tm-0-1"),
        wait("slot", "tm-0-1", start=10.0, t=60.0, process="tm-0-1"),
        wait("stalled", "tm-1-1", start=0.0, t=99.0, process="tm-1-1"),
    )
    since, until = at(since_s), None if until_s is None else at(until_s)
    found = checked(trial).tolerance_ns("tm-0-1", since, until)
    assert found == TOLERANCE_NS + round(allowed_s * NS)
    assert checked(trial).tolerance_ns("tm-9-1", since, until) == TOLERANCE_NS


@pytest.mark.parametrize(("off_ns", "has_happened"), [(0, True), (1, False), (-2 * TOLERANCE_NS, True), (-2 * TOLERANCE_NS - 1, False)])  # fmt: skip
def test_a_moment_is_recorded_within_the_tolerance(off_ns: int, has_happened: bool):
    """In both directions, and exactly at its end too."""
    moment = 10 * NS
    assert checked(wrote()).happened("tm-0-1", moment, [0, moment + TOLERANCE_NS + off_ns]) is has_happened


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ("[1]", {}), ("3", {}), ("{", {}), ("null", {}),
    ],
)  # fmt: skip
def test_any_text_but_an_object_is_empty(text: str | None, found: dict[str, Any]):
    """Damaged data is reported elsewhere."""
    assert columns.parsed(text) == found


def numbered(kind: str, process: str, seq: int) -> Written:
    """An event with this number."""
    table, row = event(kind, process=process)
    return table, row | {"seq": seq}


def test_events_of_several_kinds_are_in_the_order_of_each_process():
    """Those of one kind too, and frequent kinds are not read."""
    trial = wrote(
        numbered("note", "b", 2), numbered("loop.stall", "b", 1), numbered("note", "a", 9), numbered("note", "b", 0),
        numbered("cpu.spent", "a", 0),
    )  # fmt: skip
    both = [(row, e["process"], e["seq"]) for row, e in checked(trial).events("note", "loop.stall")]
    assert both == [(2, "a", 9), (3, "b", 0), (1, "b", 1), (0, "b", 2)]
    assert [row for row, _ in checked(trial).events("note")] == [2, 3, 0]
    assert checked(trial).events("cpu.spent") == []
    assert checked(Trial("run", "main-1", {})).events("note") == []


@pytest.mark.parametrize(
    ("data", "process"),
    [({"incarnation": 0}, "tm-0-0"), ({"incarnation": 2}, "tm-0-2"), ({"pid": 1}, "tm-0"), ({}, "tm-0")],
)
def test_the_exit_of_a_process_names_its_incarnation(data: dict[str, int], process: str):
    """A JobManager has none."""
    ((_, exit_event),) = checked(wrote(event("process.exit", "tm-0", **data))).events("process.exit")
    assert columns.ended_process(exit_event) == process


def test_states_attempts_and_waits_are_selected_by_their_kind():
    """Each attempt has the last of several rows."""
    rows: list[Written] = [
        state("map-0", "SCHEDULED", "DEPLOYING"), state("map-0", "DEPLOYING", "RUNNING"), state("map-1", "SCHEDULED", "DEPLOYING", attempt=1), job("RUNNING"),
        wait("partition", "map-0", attempt=0), wait("slot", "map-0", attempt=0), wait("partition", "map-0", attempt=0),
    ]  # fmt: skip
    trial = checked(wrote(*rows))
    assert [e["subject"] for e in trial.changes("task.state", "DEPLOYING")] == ["map-0", "map-1"]
    assert set(trial.deployed) == {("map-0", 0), ("map-1", 1)}
    assert trial.attempts_with("task.state") == {("map-0", 0): 1, ("map-1", 1): 2}
    assert trial.attempts_that_waited("partition") == {("map-0", 0): 2}
    assert [row for row, _ in trial.waits()] == [0, 1, 2]
    assert [row for row, _ in trial.waits("slot")] == [1]
    assert columns.vertex_of("a-b-12") == "a-b"
    assert columns.taskmanager_of({"data": {"taskmanager": "tm-1-1"}}) == "tm-1-1"
