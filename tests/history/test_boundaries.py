"""Limits and edges of the history's files, of the numbers of its rows, and of the waits that a process records."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed_runtime.core.errors import RemoteProtocolError, UserError
from testbed_runtime.core.values import NS
from testbed_runtime.core.versions import LATEST
from testbed_runtime.core.waits import KINDS, NO_LIMIT, STALL_TICK_S, Limit, Outcome
from testbed_runtime.history import journal as journal_module
from testbed_runtime.history import writer as writer_module
from testbed_runtime.history.damage import Damage, first_of_each
from testbed_runtime.history.journal import Journal
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.history.numbers import PARTS_SCHEMA, SPARSE, add_up, count_part
from testbed_runtime.history.schema import TABLES, columns_of_event
from testbed_runtime.history.sealing import seal
from testbed_runtime.history.segments import MAX_BODY_BYTES, Segment, in_order, parse_batch, scan
from testbed_runtime.history.waits import INT64_MAX, WaitLog
from testbed_runtime.history.writer import CHUNK_ROWS, MemorySink, SegmentWriter
from tests.manifests import run_manifest, trial_entry

HEADER_BYTES = 21
NUMBERED = st.lists(
    st.tuples(
        st.sampled_from(["events", "tasks", "waits"]),
        st.sampled_from(["tm-0", "tm-1"]),
        st.sampled_from(["b", "c"]),
        st.integers(0, 12) | st.integers(0, 5000),
    ),
    min_size=1,
    max_size=14,
)
Numbered = list[tuple[str, str, str, int]]


def rows_of(rows: Numbered) -> dict[str, pa.Table]:
    """The tables of some rows."""
    names = ("process", "boot_id", "seq")
    kinds = pa.schema(list(zip(names, (pa.string(), pa.string(), pa.int64()), strict=True)))
    found = {
        table: [dict(zip(names, row[1:], strict=True)) for row in rows if row[0] == table]
        for table, *_ in rows
    }
    return {table: pa.Table.from_pylist(own, kinds) for table, own in found.items()}


@settings(max_examples=30)
@given(rows=NUMBERED, cut=st.integers(0, 14))
def test_numbers_of_any_parts_add_up_to_those_of_all_rows(rows: Numbered, cut: int):
    """However the rows were divided, and whether their numbers are dense."""
    parts = [count_part(rows_of(part)) for part in (rows[:cut], rows[cut:]) if part]
    expected = []
    for process, boot in sorted({row[1:3] for row in rows}):
        own = [(table, seq) for table, *key, seq in rows if key == [process, boot]]
        tables = sorted({table for table, _ in own})
        again = [t for n, t in enumerate(tables) if max(Counter(s for o, s in own if o in tables[: n + 1]).values()) > 1]  # fmt: skip
        numbers = {seq for _, seq in own}
        expected.append({
            "process": process, "boot_id": boot, "rows": len(own), "distinct": len(numbers), "highest": max(numbers),
            "repeated_in": again[0] if again else "", "tables": tables,
        })  # fmt: skip
    assert add_up(pa.concat_tables(parts)).to_pylist() == expected


@pytest.mark.parametrize(("last", "is_dense"), [(2 * SPARSE - 1, True), (2 * SPARSE, False)])
def test_few_numbers_are_listed_and_many_are_bits(last: int, is_dense: bool):
    """A bitmap has a bit for each number from the first one on."""
    (part,) = count_part(rows_of([("events", "p", "b", 7), ("events", "p", "b", 7 + last)])).to_pylist()
    assert (part["rows"], part["first"], part["numbers"]) == (2, 7, None if is_dense else [7, 7 + last])
    assert part["bitmap"] == ((1 | 1 << last).to_bytes(SPARSE // 4, "little") if is_dense else None)
    assert count_part({}).schema == PARTS_SCHEMA


def header(*, table: int = 0, length: int = 0, magic: bytes = b"HGS1") -> bytes:
    """The header of a segment whose checksum is 0."""
    return magic + length.to_bytes(4, "big") + bytes(4) + bytes(8) + bytes([table])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", ""),
        (header()[:-1], "truncated in a header after 20 bytes"),
        (header(), "the checksum is wrong"),
        (header(length=5) + b"abc", "truncated in a body of 5 bytes after 3 bytes"),
        (header(length=3) + b"abc", "the checksum is wrong"),
        (header(magic=b"HGS2"), "not a segment"),
        (header(table=len(TABLES) - 1), "the checksum is wrong"),
        (header(table=len(TABLES)), "not a segment"),
        (header(length=64 * 1024 * 1024), "truncated in a body of 67108864 bytes after 0 bytes"),
        (header(length=64 * 1024 * 1024 + 1), "not a segment"),
    ],
)
def test_the_rest_of_a_file_says_why_it_is_no_segment(data: bytes, problem: str):
    """The segments before it are read."""
    good = Segment(3, 1, b"body")
    found = scan(good.to_bytes() + data)
    assert (found.segments, found.good_bytes, found.problem) == ((good,), HEADER_BYTES + 4, problem)
    assert (good.size, len(good.to_bytes()), good.table_name) == (25, 25, list(TABLES)[1])
    assert MAX_BODY_BYTES == 64 * 1024 * 1024


def test_a_segment_is_written_as_declared():
    """Big endian, with a checksum of number, table and body."""
    checked = bytes.fromhex("0000000000000102" + "02") + b"body"
    written = b"HGS1" + bytes([0, 0, 0, 4]) + zlib.crc32(checked).to_bytes(4, "big") + checked
    assert Segment(258, 2, b"body").to_bytes() == written


def test_a_gap_and_a_truncated_batch_are_named():
    """With the number that was expected."""
    segments = tuple(Segment(n, 0, b"") for n in (3, 4, 6))
    assert [s.number for s in in_order(segments[:2], 3)] == [3, 4]
    assert [s.number for s in in_order(segments[:2], 4)] == [4]
    with pytest.raises(RemoteProtocolError) as gap:
        list(in_order(segments, 3))
    assert str(gap.value) == "expected history segment 5, got 6"
    with pytest.raises(RemoteProtocolError) as truncated:
        parse_batch(segments[0].to_bytes() + b"HGS")
    assert str(truncated.value) == "history segment at byte 21: truncated in a header after 3 bytes"


def writer() -> SegmentWriter:
    return SegmentWriter(run="r", trial="t", process="tm-0-1", boot_id="b", now_ns=lambda: 42)


def test_a_batch_may_be_exactly_as_large_as_allowed():
    """One byte less leaves the last cut for later."""
    made = writer()
    for _ in range(3):
        made.append("events", {})
        made.append("tasks", {})
        made.cut()
    sizes = [s.size for s in made.pending(10**9)]
    assert [s.number for s in made.pending(sum(sizes[:4]))] == [0, 1, 2, 3]
    assert [s.number for s in made.pending(sum(sizes[:4]) - 1)] == [0, 1]
    assert [s.number for s in made.pending(0)] == [0, 1]


def test_a_spool_that_is_exactly_full_takes_no_more(monkeypatch: pytest.MonkeyPatch):
    """One byte below its limit, it takes another segment."""
    made = writer()
    made.append("tasks", {})
    made.cut()
    size = made.pending(1)[0].size
    for limit, tables in ((size, ["tasks"]), (size + 1, ["tasks", "tasks"])):
        monkeypatch.setattr(writer_module, "SPOOL_SOFT_BYTES", limit)
        monkeypatch.setattr(writer_module, "SPOOL_HARD_BYTES", size + 1)
        made.append("tasks", {})
        made.cut()
        assert [s.table_name for s in made.pending(10**9)] == tables
    assert writer_module.VITAL == ("events", "waits", "delivery", "checkpoints", "faults")


def test_the_limits_of_a_writer():
    """A table gets a segment in time, and keeps its last row when it is full."""
    made = writer()
    asked = [made.append("tasks", {}) for _ in range(4096)]
    assert (asked.index(True), asked.count(True)) == (4095, 1)
    limits = writer_module.MAX_BUFFERED_ROWS, writer_module.SPOOL_SOFT_BYTES, writer_module.SPOOL_HARD_BYTES
    assert limits == (20_000, 8 * 1024 * 1024, 32 * 1024 * 1024)


@pytest.mark.parametrize("rows", [CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_rows_in_memory_are_counted_and_taken_once(rows: int):
    """Those that are an Arrow table already, and the others."""
    buffer = MemorySink(process="p", now_ns=lambda: 1).buffer
    for number in range(rows):
        buffer.append("events", {"text": number})
    assert buffer.count("events") == rows
    assert buffer.take("events").column("text").to_pylist() == [str(n) for n in range(rows)]
    assert (buffer.count("events"), len(buffer.take("events"))) == (0, 0)
    buffer.append("events", {})
    assert buffer.take("events").column("seq").to_pylist() == [rows]


def batch(*numbers: int) -> bytes:
    """A batch of empty tables with these numbers."""
    return b"".join(Segment(n, 0, b"").to_bytes() for n in numbers)


def test_a_trial_has_a_limited_number_of_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The last one below the limit is recorded."""
    assert journal_module.MAX_STREAMS == 1024
    monkeypatch.setattr(journal_module, "MAX_STREAMS", 2)
    journal = Journal(tmp_path)
    assert [journal.append(process, "0", batch(0, 1)) for process in ("a", "b")] == [2, 2]
    with pytest.raises(RemoteProtocolError, match=r"^the limit of 2 streams is reached$"):
        journal.append("c", "0", batch(0))
    assert [journal.expected(process, "0") for process in ("a", "c")] == [2, 0]
    journal.close()
    assert journal.expected("a", "0") == 0


def test_duplicates_are_dropped_one_by_one(tmp_path: Path):
    """Also those of a batch that has new segments, and those of an earlier recorder."""
    journal = Journal(tmp_path)
    assert [journal.append("a", "0", batch(*numbers)) for numbers in ((0, 1), (0, 1, 2), (2,))] == [2, 3, 3]
    journal.close()
    again = Journal(tmp_path)
    assert (again.append("a", "0", batch(2, 3)), again.problems) == (4, [])
    again.close()
    (path,) = again.folder.iterdir()
    assert [segment.number for segment in scan(path.read_bytes()).segments] == [0, 1, 2, 3]


@pytest.mark.parametrize(("name", "is_valid"), [("a" * 100, True), ("a" * 101, False), ("-a", False), ("a/b", False), ("", False)])  # fmt: skip
def test_the_name_of_a_stream_is_part_of_a_path(tmp_path: Path, name: str, is_valid: bool):
    """It has up to 100 characters, like that of its process."""
    journal = Journal(tmp_path)
    for process, stream in ((name, "0"), ("p", name)):
        if is_valid:
            assert journal.append(process, stream, batch(0)) == 1
        else:
            with pytest.raises(RemoteProtocolError) as refused:
                journal.append(process, stream, batch(0))
            assert str(refused.value) == f"invalid process or stream name: {process!r}, {stream!r}"
    journal.close()


def test_a_seal_counts_missing_and_repeated_rows(tmp_path: Path):
    """Per stream, in sentences and in numbers."""
    made = writer()
    for number in range(4):
        made.append("events", {"text": number})
        made.cut()
    first, second, third, _ = made.pending(10**9)
    journal = Journal(tmp_path)
    again = [Segment(n, 0, body) for n, body in enumerate((first.body, third.body, third.body))]
    journal.append("a", "0", b"".join(s.to_bytes() for s in again))
    journal.append("b", "0", Segment(0, 0, first.body).to_bytes() + Segment(1, 0, second.body).to_bytes())
    journal.close()
    report = seal(tmp_path, problems=["before"])
    size = sum(s.size for s in again)
    assert report.problems == ["before", "a~0.segments: 1 rows are missing", "a~0.segments: 1 rows are duplicates"]  # fmt: skip
    assert report.streams["a~0.segments"] == {"bytes": size, "rows": 3, "missing": 1}
    assert report.streams["b~0.segments"] == {"bytes": first.size + second.size, "rows": 2, "missing": 0}
    assert report.rows == {table: 5 if table == "events" else 0 for table in TABLES}
    assert {t: [b.rows for b in blocks] for t, blocks in report.blocks.items()} == {
        table: [5] if table == "events" else [] for table in TABLES
    }


def test_a_finding_says_where_it_is():
    """In which row, or in the whole column; one for each rule."""
    rows = [Damage("tasks", "seq", row, "is odd") for row in (-1, 0, 1)]
    assert list(map(str, rows)) == ["tasks.parquet, column seq: is odd", "tasks.parquet, column seq, row 0: is odd", "tasks.parquet, column seq, row 1: is odd"]  # fmt: skip
    assert first_of_each(rows[1:], [], rows) == [rows[1], rows[0]]


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("task.state", {"attempt"}),
        ("note", set()),
        ("nosuch", set()),
        ("job.restored", {"checkpoint"}),
        ("task.restored", {"attempt", "checkpoint"}),
    ],
)
def test_the_declaration_of_an_event_lists_its_columns(kind: str, columns: set[str]):
    """The others are -1 in its rows."""
    assert columns_of_event(kind) == columns


class Clock:
    """A clock that tests move, and the waits that were recorded."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.sink = MemorySink(process="p", now_ns=lambda: 0)
        self.log = WaitLog(self.sink, "p", lambda: self.now_s)

    def rows(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.sink.buffer.table("waits").to_pylist()
        return found


def test_a_wait_is_one_row_with_everything_that_is_known():
    """Its second end changes nothing."""
    clock = Clock()
    first = clock.log.begin("slot", "JobMaster", "tm-0", since_s=8.0)
    second = clock.log.begin("partition", "map-0", "src-0", attempt=2, limit=Limit("an.option", "3 s", 3.0), after=(first,), cause="why")  # fmt: skip
    clock.now_s = 12.5
    second.end(Outcome.EXPIRED)
    second.end(Outcome.FAILED, cause="again")
    first.end(cause="done", at_s=11.0)
    expired, slot = clock.rows()
    names = ("wait", "kind", "who", "what", "attempt", "start_ns", "t_ns", "option", "value", "budget_ns", "outcome", "cause", "after")  # fmt: skip
    assert [expired[n] for n in names] == [
        "p/2", "partition", "map-0", "src-0", 2, 10 * NS, 12.5 * NS, "an.option", "3 s", 3 * NS, "expired", "why", "p/1",
    ]  # fmt: skip
    assert [slot[n] for n in names] == ["p/1", "slot", "JobMaster", "tm-0", -1, 8 * NS, 11 * NS, NO_LIMIT.option, NO_LIMIT.value, -1, "completed", "done", ""]  # fmt: skip


@pytest.mark.parametrize(("lasted_s", "rows"), [(0.499, 0), (0.5, 1)])
def test_a_wait_that_is_too_short_is_dropped(lasted_s: float, rows: int):
    """It is not recorded later either."""
    clock = Clock()
    wait = clock.log.begin("slot", "JobMaster")
    clock.now_s += lasted_s
    wait.end(at_least_s=0.5)
    wait.end()
    clock.log.close()
    assert len(clock.rows()) == rows


def test_a_budget_is_at_most_what_a_row_can_hold():
    """Options may be longer; a stall begins before the tick that it missed."""
    clock = Clock()
    clock.log.begin("slot", "JobMaster", limit=Limit("an.option", "long", 1e12)).end()
    clock.log.stalled("tm-0", 2.0)
    budget, stalled = clock.rows()
    assert (budget["budget_ns"], INT64_MAX) == (2**63 - 1, 2**63 - 1)
    assert (stalled["start_ns"], stalled["t_ns"]) == (round((8 - STALL_TICK_S / 2) * NS), 10 * NS)


def test_the_longest_wait_of_a_component_is_described():
    """With what it waits for and what limits it, if anything does."""
    clock = Clock()
    assert clock.log.longest("JobMaster") == ""
    clock.log.begin("slot", "JobMaster")
    clock.log.begin("partition", "map-0", since_s=1.0)
    clock.now_s = 11.0
    assert clock.log.longest("JobMaster") == f"{KINDS['slot'].doc} (for 1.0 s)"
    clock.log.begin("slot", "JobMaster", "tm-0", limit=Limit("an.option", "3 s", 3.0), since_s=9.5)
    assert clock.log.longest("JobMaster") == f"{KINDS['slot'].doc}: tm-0 (for 1.5 s, an.option = 3 s)"
    clock.log.cancel()
    assert clock.log.longest("JobMaster") == ""
    clock.log.begin("slot", "JobMaster")
    clock.log.close()
    assert [row["outcome"] for row in clock.rows()] == ["cancelled"] * 3 + ["open"]


JOB = {
    "vertices": [{"name": "a", "parallelism": 2}, {"name": "b"}],
    "edges": [
        {"from": "a", "to": "b", "result": "blocking"},
        {"from": "b", "to": "c", "partitioning": "forward"},
    ],
}


def test_the_entry_of_a_trial_describes_its_job():
    """A vertex has one subtask by default, and an edge the first partitioning."""
    entry = trial_entry(job=JOB)
    assert [vertex.name for vertex in entry.job.vertices] == ["a", "b"]
    assert entry.parallelism == {"a": 2, "b": 1}
    assert entry.tasks == {"a-0", "a-1", "b-0"}
    assert entry.blocking_edges == list(entry.job.edges[:1])
    assert [(edge.source, edge.target, edge.partitioning) for edge in entry.job.edges] == [
        ("a", "b", "hash"), ("b", "c", "forward"),
    ]  # fmt: skip
    none = trial_entry(job={})
    assert (none.parallelism, none.tasks, none.blocking_edges, none.job.edges) == ({}, set(), [], ())


@pytest.mark.parametrize(("version", "known"), [("", LATEST), ("1.12", "1.12"), ("0.9", LATEST)])
def test_the_options_of_a_trial_are_those_of_its_version(version: str, known: str):
    """An unknown version counts as the newest one."""
    found = trial_entry(flinkVersion=version, configuration={"heartbeat.timeout": "7 s"}).options
    assert (found.flink_version, found.duration("heartbeat.timeout")) == (known, 7.0)
    assert trial_entry().options.flink_version == LATEST


MANIFEST = {
    "schema": 2, "run": "r", "expectations": {"main": []},
    "trials": [{
        "trial": "main-1", "variant": "main", "configuration": {}, "job": {"vertices": [{"name": "a"}]}, "faults": [], "phases": [],
        "role": "fault", "number": 1, "seed": 1,
    }],
}  # fmt: skip
DAMAGED = "the run's manifest is damaged; run the scenario again"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"trials": [{**MANIFEST["trials"][0], "variant": "x" * 70}]}, f"expectations has no list for {'x' * 59!r:.60}, the variant of trials[0]"),
        ({"trials": [{**MANIFEST["trials"][0], "role": "other"}]}, "trials[0].role: Invalid enum value 'other'"),
        ({"trials": [{**MANIFEST["trials"][0], "job": {"vertices": [{"name": "a", "parallelism": 0}]}}]}, "trials[0].job.vertices[0].parallelism: Expected `int` >= 1"),
        ({"trials": [{**MANIFEST["trials"][0], "job": {"vertices": [{"name": "a", "parallelism": 32769}]}}]}, "trials[0].job.vertices[0].parallelism: Expected `int` <= 32768"),
        ({"trials": [{**MANIFEST["trials"][0], "job": {"edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "a"}]}}]}, "trials[0].job.edges: there is a cycle 'b → a → b'"),
        ({"run": None}, "run: Expected `str`, got `null`"),
        ({"looks": [1.5]}, "looks[0]: Expected `int`, got `float`"),
        ({"scenario": {"metadata": "x"}}, "scenario.metadata: Expected `object`, got `str`"),
        ({"scenario": {"spec": []}}, "scenario.spec: Expected `object`, got `array`"),
        ({}, ""),
    ],
)  # fmt: skip
def test_the_first_damaged_field_of_a_manifest_is_named(
    tmp_path: Path, change: dict[str, object], problem: str
):
    """With its place and what it should be."""
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST | change))
    if not problem:
        found = read_manifest(tmp_path)
        assert found == run_manifest(MANIFEST["trials"], expectations={"main": []})
        assert [(trial.trial, trial.tasks) for trial in found.trials] == [("main-1", {"a-0"})]
        return
    with pytest.raises(UserError) as damaged:
        read_manifest(tmp_path)
    assert str(damaged.value) == f"{tmp_path / 'manifest.json'}: {problem} ({DAMAGED})"


def test_a_folder_of_runs_names_the_last_run_in_it(tmp_path: Path):
    """Those of seeds are deeper, and are named if there are no others."""
    named = []
    for run in ("b-seeds/seed-1/b", "b/seed-1", "a"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "manifest.json").write_text("{}")
        with pytest.raises(UserError, match=r"is not the folder of a run: it has no manifest\.json") as above:
            read_manifest(tmp_path)
        named.append(above.value.hint)
    assert named == [
        f"name a run in it, such as {tmp_path / run}" for run in ("b-seeds/seed-1/b", "b/seed-1", "a")
    ]
    with pytest.raises(UserError) as empty:
        read_manifest(tmp_path / "nosuch")
    assert str(empty.value).endswith("it has no manifest.json (name a folder under headgate-runs/)")
