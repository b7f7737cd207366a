"""Rows to segments: defaults, bounds, and what is shed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import LocalProtocolError, RemoteProtocolError
from testbed_runtime.history import writer as writer_module
from testbed_runtime.history.schema import TABLES, arrow_schema
from testbed_runtime.history.segments import Segment, in_order, parse_batch, scan
from testbed_runtime.history.writer import MemoryHistory, MemorySink, SegmentWriter


def new_writer() -> SegmentWriter:
    return SegmentWriter(run="r", trial="t", process="tm-0-1", boot_id="b", now_ns=lambda: 42)


def rows_of(segments: list[Segment], table: str) -> list[dict[str, Any]]:
    """All rows of one table."""
    return [r for s in segments if s.table_name == table for r in s.rows().to_pylist()]


def test_a_row_gets_the_common_columns_and_defaults():
    """No column that Headgate writes is null; attempt and checkpoint are -1 where they do not apply."""
    memory = MemoryHistory(run="r", trial="t", boot_id="b")
    memory.sink("tm-0-1", lambda: 42).append("events", kind="note", data={"b": 1, "a": [2]})
    assert memory.tables()["events"].to_pylist() == [
        {
            "run": "r", "trial": "t", "process": "tm-0-1", "boot_id": "b", "seq": 0, "t_ns": 42, "kind": "note",
            "subject": "", "attempt": -1, "checkpoint": -1, "text": "", "data": '{"a": [2], "b": 1}',
        }
    ]  # fmt: skip


def test_a_long_memory_is_kept_as_arrow_tables_in_order():
    """1,024 rows become a chunk: 2,500 rows are two chunks and 452 rows, and read as one table."""
    memory = MemoryHistory()
    sink = memory.sink("p", lambda: 1)
    for number in range(2_500):
        sink.append("tasks", task="t", records_in=number)
    assert sink.buffer.count("tasks") == 2_500
    numbers = memory.tables()["tasks"].column("records_in")
    assert [len(chunk) for chunk in numbers.chunks] == [1_024, 1_024, 452]
    assert numbers.to_pylist() == list(range(2_500))


@pytest.mark.parametrize("table", list(TABLES))
def test_every_table_takes_an_empty_row(table: str):
    """And has the schema that readers expect."""
    memory = MemoryHistory()
    memory.sink("p", lambda: 1).append(table, t_ns=7)
    found = memory.tables()[table]
    assert found.schema.equals(arrow_schema(table))
    assert found.column("t_ns").to_pylist() == [7]
    assert all(found.column(n).null_count == 0 for n in found.column_names)


def test_rows_are_numbered_across_tables():
    """So that one missing row shows."""
    memory = MemoryHistory()
    sink = memory.sink("p", lambda: 1)
    sink.append("events")
    sink.append("tasks")
    sink.append("events")
    tables = memory.tables()
    assert tables["events"].column("seq").to_pylist() == [0, 2]
    assert tables["tasks"].column("seq").to_pylist() == [1]


def test_an_unknown_column_is_an_error_of_the_writer():
    """Never dropped in silence."""
    sink = MemoryHistory().sink("p", lambda: 1)
    with pytest.raises(LocalProtocolError, match="colour"):
        sink.append("events", colour="red")
    with pytest.raises(LocalProtocolError, match="weather"):
        sink.append("weather")


def test_a_value_of_a_wrong_type_leaves_no_half_row():
    """The columns stay of equal length."""
    memory = MemoryHistory()
    sink = memory.sink("p", lambda: 1)
    with pytest.raises(ValueError, match="many"):
        sink.append("tasks", task="a", records_in="many")
    sink.append("tasks", task="b", records_in=3)
    assert memory.tables()["tasks"].column("task").to_pylist() == ["b"]


async def test_what_a_memory_sink_was_given_is_there_before_any_flush():
    """A flush waits for nothing: the rows are in the tables at once."""
    memory = MemoryHistory()
    sink = memory.sink("p", lambda: 1)
    sink.append("tasks", task="a")
    before = memory.tables()["tasks"].column("task").to_pylist()
    assert (before, await sink.flush()) == (["a"], True)


def test_a_cut_makes_one_segment_a_table_and_numbers_them():
    """Segments are numbered from 0 without gaps."""
    writer = new_writer()
    assert (writer.buffered, writer.pending(10**9)) == (False, [])
    for table in ("tasks", "events", "tasks"):
        writer.append(table, {})
    assert writer.buffered
    writer.cut()
    segments = writer.pending(10**9)
    assert [(s.number, s.table_name) for s in segments] == [(0, "events"), (1, "tasks")]
    assert len(rows_of(segments, "tasks")) == 2
    writer.cut()
    assert writer.next_number == 2


def test_segments_stay_until_they_are_acknowledged():
    """And are offered again after a reconnect."""
    writer = new_writer()
    writer.append("events", {})
    writer.cut()
    assert writer.pending(10**9) == writer.pending(10**9)
    writer.acknowledged(1)
    assert (writer.buffered, writer.pending(10**9)) == (False, [])


def test_a_batch_holds_whole_cuts():
    """Half a cut, and then SIGKILL, would look like rows lost in the middle."""
    writer = new_writer()
    for _ in range(3):
        writer.append("events", {})
        writer.append("tasks", {})
        writer.cut()
    assert [s.number for s in writer.pending(1)] == [0, 1]
    writer.acknowledged(2)
    assert [s.number for s in writer.pending(1)] == [2, 3]
    assert [s.number for s in writer.pending(10**9)] == [2, 3, 4, 5]


def test_what_is_shed_is_counted_and_the_count_is_recorded(monkeypatch: pytest.MonkeyPatch):
    """A trial with shed rows is Inconclusive."""
    monkeypatch.setattr(writer_module, "MAX_BUFFERED_ROWS", 10)
    writer = new_writer()
    for _ in range(25):
        writer.append("tasks", {})
    writer.cut()
    segments = writer.pending(10**9)
    assert len(rows_of(segments, "tasks")) == 10
    (shed,) = rows_of(segments, "events")
    assert (shed["kind"], shed["data"]) == ("history.shed", '{"rows": 15, "table": "tasks"}')


def test_a_full_spool_sheds_samples_before_events(monkeypatch: pytest.MonkeyPatch):
    """Events are judged and samples are only drawn, so samples are dropped first."""
    monkeypatch.setattr(writer_module, "SPOOL_SOFT_BYTES", 1)
    writer = new_writer()
    for _ in range(2):
        writer.append("events", {})
        writer.append("tasks", {})
        writer.cut()
    segments = writer.pending(10**9)
    assert [s.table_name for s in segments] == ["events", "events"]
    writer.acknowledged(2)
    writer.cut()
    assert len(rows_of(writer.pending(10**9), "tasks")) == 2


def test_beyond_the_hard_bound_nothing_is_cut(monkeypatch: pytest.MonkeyPatch):
    """The process under test keeps its memory."""
    monkeypatch.setattr(writer_module, "SPOOL_SOFT_BYTES", 1)
    monkeypatch.setattr(writer_module, "SPOOL_HARD_BYTES", 1)
    monkeypatch.setattr(writer_module, "MAX_BUFFERED_ROWS", 5)
    writer = new_writer()
    for _ in range(40):
        writer.append("events", {})
        writer.cut()
    assert len(writer.pending(10**9)) == 1
    writer.acknowledged(1)
    writer.cut()
    shed = rows_of(writer.pending(10**9), "events")[-1]
    assert (shed["kind"], shed["data"]) == ("history.shed", '{"rows": 34, "table": "events"}')


def test_a_value_beyond_its_column_costs_its_segment_and_no_more():
    """Counted as shed; the process goes on."""
    writer = new_writer()
    writer.append("tasks", {"attempt": 2**40})
    writer.append("events", {})
    writer.cut()
    writer.cut()
    segments = writer.pending(10**9)
    assert [s.table_name for s in segments] == ["events", "events"]
    shed = rows_of(segments, "events")[-1]
    assert (shed["kind"], shed["data"]) == ("history.shed", '{"rows": 1, "table": "tasks"}')


def test_a_table_with_many_rows_asks_to_be_cut():
    """Before its time."""
    writer = new_writer()
    asked = [writer.append("tasks", {}) for _ in range(writer_module.SEGMENT_ROWS)]
    assert asked.count(True) == 1
    assert asked[-1]


def some_segments(count: int) -> list[Segment]:
    """With real bodies."""
    writer = new_writer()
    for number in range(count):
        writer.append("events", {"text": str(number)})
        writer.cut()
    return writer.pending(10**9)


def test_segments_survive_the_way_to_bytes_and_back():
    """Rows and numbers."""
    segments = some_segments(3)
    found = parse_batch(b"".join(s.to_bytes() for s in segments))
    assert list(found) == segments
    assert [s.size for s in found] == [len(s.to_bytes()) for s in segments]


@given(st.data())
def test_a_torn_tail_never_costs_what_was_before_it(data: st.DataObject):
    """Wherever it is cut."""
    segments = some_segments(3)
    whole = b"".join(s.to_bytes() for s in segments)
    cut = data.draw(st.integers(0, len(whole)))
    found = scan(whole[:cut])
    ends = [sum(s.size for s in segments[: i + 1]) for i in range(3)]
    complete = sum(1 for end in ends if end <= cut)
    assert len(found.segments) == complete
    assert found.good_bytes == ([0, *ends][complete])
    assert bool(found.problem) == (cut not in (0, *ends))


@given(st.integers(0, 2**31), st.integers(1, 255))
def test_a_flipped_bit_is_never_read_as_a_row(position: int, mask: int):
    """The checksum covers number, table and rows; magic and length are checked."""
    (segment,) = some_segments(1)
    raw = bytearray(segment.to_bytes())
    raw[position % len(raw)] ^= mask
    found = scan(bytes(raw))
    assert found.segments == ()
    assert found.problem


def test_a_batch_with_a_torn_segment_is_refused():
    """A process sends whole ones."""
    (segment,) = some_segments(1)
    with pytest.raises(RemoteProtocolError, match="truncated"):
        parse_batch(segment.to_bytes()[:-1])


def test_duplicates_are_dropped_and_gaps_refused():
    """The segment's number decides."""
    segments = tuple(some_segments(3))
    assert [s.number for s in in_order(segments, 2)] == [2]
    assert list(in_order(segments, 3)) == []
    with pytest.raises(RemoteProtocolError, match="expected history segment 1"):
        list(in_order(segments[2:], 1))


def test_a_body_that_is_no_arrow_stream_says_so():
    """The sealing process sees Arrow's own error."""
    with pytest.raises(pa.ArrowInvalid):
        Segment(0, 0, b"nonsense").rows()


def test_a_whole_row_is_the_row_with_names():
    """A sink in memory takes the values of every column in order, too."""
    named, whole = (MemorySink(process="tm-0-1", now_ns=lambda: 5) for _ in range(2))
    row = ("count-0", "count", "operator", 1, 2, 3, 4, 5, 6, 7, 8, 9)
    named.append("tasks", **dict(zip((name for name, _ in TABLES["tasks"]), row, strict=True)))
    whole.put("tasks", row)
    assert whole.buffer.table("tasks").equals(named.buffer.table("tasks"))
    assert whole.buffer.table("tasks").column("lag_ns").to_pylist() == [9]
