"""The digests of a seal find any value that was changed after the trial, whatever the other tables say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.histories import write_run
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation import splits, tables
from testbed_runtime.history.digests import block_of, changed, digest, recounted
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.history.reader import read_seal, read_trial
from testbed_runtime.history.sealing import SEALED
from testbed_runtime.history.validation import DamagedHistory
from tests.checking.written import texts

TRIAL = "main-1"
Change = Callable[[pa.Table], pa.Table]
VALUES = [
    pa.array([1, 2, None, 0], pa.int64()),
    pa.array([1, 2, 3, 4], pa.int32()),
    pa.array(["a", "", None, "ü"]),
    pa.array([b"\x00", b"", None, b"\xff\x01"]),
    pa.array([True, False, None, True]),
    pa.array([0.5, float("nan"), None, -1.0]),
    pa.array([[1, 2], [], None, [3]], pa.list_(pa.int64())),
]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one trial."""
    return write_run(tmp_path_factory.mktemp("runs") / "generated", rows=4000, trials=1)


@pytest.fixture
def folder(generated: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(generated, tmp_path / generated.name))


def rewritten(folder: Path, table: str, change: Change, **how: Any) -> Path:
    """Change a table so that the number of rows in the seal agrees with it."""
    history = folder / "history" / TRIAL
    rows = change(pq.ParquetFile(history / f"{table}.parquet").read())
    pq.write_table(rows, history / f"{table}.parquet", **how)
    sealed = json.loads((history / SEALED).read_text())
    sealed["rows"][table] = len(rows)
    (history / SEALED).write_text(json.dumps(sealed))
    return folder


def put(column: str, row: int, value: Any) -> Change:
    """Change one value."""

    def change(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        assert values[row] != value
        values[row] = value
        index = table.schema.get_field_index(column)
        return table.set_column(
            index, table.schema.field(index), pa.array(values, table.schema.field(index).type)
        )

    return change


def found(folder: Path) -> set[tuple[str, str]]:
    """Return the damaged columns of the trial: those that Spark finds, and those that one process finds, which reads more columns."""
    (files,) = tables.open_trials(folder, read_manifest(folder))
    (piece,) = splits.plan([files])
    both: list[set[tuple[str, str]]] = []
    for reads in (
        lambda: splits.read(piece, files),
        lambda: read_trial(files.folder, run=folder.name, entry=files.entry),
    ):
        try:
            reads()
            both.append(set())
        except DamagedHistory as error:
            both.append({(d.table, d.column) for d in error.found})
    assert bool(both[0]) == bool(both[1])
    return both[0] | both[1]


@pytest.mark.parametrize("values", VALUES, ids=lambda array: str(array.type))
def test_a_digest_depends_on_the_values_alone(values: pa.Array):
    """Chunks and slices store the same values elsewhere in memory; another order or value is another digest."""
    column = pa.chunked_array([values])
    padded = pa.concat_arrays([values[:1], values, values[:2]])
    assert digest(pa.chunked_array([values[:1], values[1:3], values[3:]])) == digest(column)
    assert digest(pa.chunked_array([padded.slice(1, 4)])) == digest(column)
    assert digest(pa.chunked_array([values[::-1]])) != digest(column)
    assert digest(pa.chunked_array([values[:3]])) != digest(column)
    assert digest(pa.chunked_array([], type=values.type)) == digest(pa.chunked_array([values[:0]]))


def test_values_that_only_lengths_tell_apart_have_other_digests():
    """Their bytes are equal, one after the other."""
    assert digest(pa.chunked_array([["ab", "c"]])) != digest(pa.chunked_array([["a", "bc"]]))
    assert digest(pa.chunked_array([[[1, 2], [3]]])) != digest(pa.chunked_array([[[1], [2, 3]]]))
    assert digest(pa.chunked_array([["", "a"]])) != digest(pa.chunked_array([pa.array([None, "a"])]))


TEXTS = st.text("ab", max_size=2)
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(0, 2)),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXTS),
    (pa.binary(), TEXTS.map(str.encode)),
    (pa.list_(pa.int64()), st.lists(st.integers(0, 2), max_size=2)),
]


@given(st.data())
def test_columns_have_the_same_digest_only_if_they_have_the_same_values(data: st.DataObject):
    """Neither the values before and after a slice matter, nor the chunks."""
    kind, value = data.draw(st.sampled_from(KINDS))
    values = st.none() | value
    size, around = data.draw(st.integers(1, 4)), data.draw(st.lists(values, max_size=3))
    one, other = (data.draw(st.lists(values, min_size=size, max_size=size)) for _ in range(2))
    sliced = pa.array([*around, *other, *around], kind).slice(len(around), size)
    cut = data.draw(st.integers(0, size))
    digests = [digest(pa.chunked_array(c)) for c in ([pa.array(one, kind)], [sliced[:cut], sliced[cut:]])]
    assert (digests[0] == digests[1]) == (one == other)


def test_a_seal_stays_valid():
    """A later version finds the digests that an earlier one has written."""
    assert [digest(pa.chunked_array([values])) for values in VALUES] == [
        "71fba3f5b9da4a74",
        "cf97adeedb59e05b",
        "e024e3f98d2a850c",
        "b38d956581d7e064",
        "b66d6696898837d1",
        "af975f4d89ccf47f",
        "9d4a5ce76f537c72",
    ]


def test_only_whole_blocks_are_compared():
    """A large trial is read in pieces, and a file that was written anew has other ones."""
    rows = pa.table({"seq": list(range(10)), "run": ["run"] * 10})
    blocks = [block_of(rows.slice(start, 4)) for start in (0, 4, 8)]
    assert [block.rows for block in blocks] == [4, 4, 2]
    assert blocks[0].digests.keys() == {"seq"}
    damaged = put("seq", 5, 99)(rows)
    (found,) = changed("tasks", blocks, damaged)
    expected = (
        "tasks.parquet, column seq: is not what was sealed: it was changed after the trial (rows 4 to 7)"
    )
    assert texts([found]) == [expected]
    assert changed("tasks", blocks, damaged.slice(4, 4), 4) == [found]
    assert changed("tasks", blocks, damaged.slice(3, 6), 3) == [found]
    assert changed("tasks", blocks, damaged.slice(5, 5), 5) == []
    assert changed("tasks", blocks, damaged.slice(2, 5), 2) == []
    assert changed("tasks", blocks, rows) == []
    assert recounted("tasks", blocks, 10) == recounted("tasks", None, 9) == recounted("tasks", [], 0) == []
    assert recounted("tasks", [], 9) != []
    (more,) = recounted("tasks", blocks, 11)
    assert texts([more]) == ["tasks.parquet, column seq: is there 11 times, but 10 rows were sealed"]


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("events", "text", "another"),
        ("tasks", "busy_ns", 1),
        ("channels", "used", 1),
        ("frames", "number", 10**6),
        ("events", "data", '{"a": 1}'),
        ("delivery", "corrupted", 1),
        ("latency", "max_ns", 10**9),
    ],
)
def test_a_changed_value_is_named_with_its_table_and_column(
    folder: Path, table: str, column: str, value: object
):
    """Also one that contradicts no other row."""
    assert (table, column) in found(rewritten(folder, table, put(column, 0, value)))


def test_a_file_that_was_written_anew_with_the_same_rows_is_sound(folder: Path):
    """Compression, row groups and dictionaries are none of its values."""
    how: dict[str, Any] = {"row_group_size": 7, "compression": "none", "use_dictionary": False}
    assert found(rewritten(folder, "tasks", lambda t: t, **how)) == set()


def test_the_file_of_another_trial_is_named(folder: Path, tmp_path: Path):
    """Each of its rows is sound."""
    other = write_run(tmp_path / "other" / folder.name, rows=4400, trials=1)
    rows = pq.ParquetFile(other / "history" / TRIAL / "channels.parquet").read()
    assert "channels" in {table for table, _ in found(rewritten(folder, "channels", lambda _: rows))}


def test_a_seal_of_an_earlier_version_has_no_digests(folder: Path):
    """Its trial is judged by the rules alone; one with damaged digests is not judged."""
    path = folder / "history" / TRIAL / SEALED
    sealed = json.loads(path.read_text())
    assert read_seal(path.parent).blocks.keys() == sealed["rows"].keys()
    path.write_text(json.dumps(sealed | {"blocks": {"tasks": [1]}}))
    with pytest.raises(HeadgateError, match=r"history/main-1/sealed\.json: is truncated or damaged"):
        read_seal(path.parent)
    del sealed["blocks"]
    path.write_text(json.dumps(sealed))
    assert read_seal(path.parent).blocks == {}
    assert found(rewritten(folder, "events", put("text", 0, "another"))) == set()
