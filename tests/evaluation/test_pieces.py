"""How a large trial is cut into pieces, and that its pieces give the answer of the whole; what the evaluation's small helpers return."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from benchmarks.histories import write_run
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.grouping import grouped
from testbed_runtime.evaluation import catalogue, pipeline, session, splits, tables, trends
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.history.numbers import COUNTS_SCHEMA, NUMBERS
from testbed_runtime.history.schema import TABLES, Trial
from testbed_runtime.history.validation import DamagedHistory
from tests.manifests import run_manifest, trial_entry

GROUP = 300
"""Rows of a row group."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one trial, whose large tables have several row groups."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "generated", rows=4000, trials=1)
    for table in splits.SAMPLED:
        path = folder / "history" / "main-1" / f"{table}.parquet"
        pq.write_table(pq.read_table(path), path, row_group_size=GROUP)
    return folder


@pytest.fixture
def trial(generated: Path) -> tables.TrialFiles:
    """The trial of the run."""
    (only,) = tables.open_trials(generated, read_manifest(generated))
    return only


class Rows:
    """The part of an RDD that the pipeline uses, in this process. Its rows travel in no particular order."""

    defaultParallelism = 2  # noqa: N815

    def __init__(self, rows: Iterable[Any] = (), tasks: int = 0) -> None:
        self.rows, self.tasks = list(rows), tasks

    @property
    def sparkContext(self) -> Rows:
        return self

    def parallelize(self, rows: Iterable[Any], tasks: int) -> Rows:
        return Rows(rows, tasks)

    def map(self, change: Callable[[Any], Any]) -> Rows:
        return Rows(map(change, self.rows))

    def flatMap(self, change: Callable[[Any], Iterable[Any]]) -> Rows:
        return Rows(chain.from_iterable(map(change, self.rows)))

    def groupBy(self, key: Callable[[Any], Any]) -> Rows:
        return Rows(grouped((key(row), row) for row in reversed(self.rows)).items())

    def collect(self) -> list[Any]:
        return self.rows


def test_small_and_large_trials_have_the_answers_of_whole_ones(
    trial: tables.TrialFiles, monkeypatch: pytest.MonkeyPatch
):
    """In the order of the trials. A damaged one has the text of its error alone."""
    lost = replace(trial, rows={**trial.rows, "events": trial.rows["events"] + 1})
    few = replace(trial, rows={**trial.rows, "frames": 0})
    (whole,) = splits.plan([trial])
    expected = pipeline.judge_whole(whole, [trial])
    assert (expected.trial, expected.error, bool(expected.rows)) == (0, "", True)
    total = sum(trial.rows.values())
    monkeypatch.setattr(splits, "SPLIT_ROWS", total - 1)
    monkeypatch.setattr(splits, "BUCKET_ROWS", -(-trial.rows["channels"] // 3))
    spark: Any = Rows()
    large, damaged, small = pipeline.judged(spark, [trial, lost, few])
    assert large == expected
    assert damaged == pipeline.JudgedTrial(
        trial=1, error=sealed("events", trial.rows["events"], trial.rows["events"] + 1)
    )
    assert small == pipeline.JudgedTrial(trial=2, error=sealed("frames", trial.rows["frames"], 0))


def sealed(table: str, rows: int, expected: int) -> str:
    """The error for a table that does not have the number of rows that was sealed."""
    hint = "restore it, or run the scenario again"
    return f"history/main-1/{table}.parquet: has {rows} rows, {expected} were sealed ({hint})"


def test_many_small_trials_share_tasks(monkeypatch: pytest.MonkeyPatch):
    """At most sixteen trials a task, and no more tasks than trials."""
    asked: list[int] = []
    whole = [splits.Split(n, {}, whole=True) for n in range(70)]
    monkeypatch.setattr(Rows, "parallelize", lambda _, rows, tasks: asked.append(tasks) or Rows())
    for number in (1, 2, 32, 33, 70):
        monkeypatch.setattr(splits, "plan", lambda _, most=number: whole[:most])
        spark: Any = Rows()
        assert pipeline.judged(spark, []) == []
    assert asked == [1, 2, 2, 3, 5]


@pytest.mark.parametrize("limit", [GROUP - 1, GROUP, GROUP + 1, 2 * GROUP, 3 * GROUP + 1, 10**6])
def test_a_piece_ends_with_the_row_group_that_reaches_the_limit(
    trial: tables.TrialFiles, monkeypatch: pytest.MonkeyPatch, limit: int
):
    """The small tables are one piece of their own."""
    monkeypatch.setattr(splits, "SPLIT_ROWS", min(limit, sum(trial.rows.values()) - 1))
    monkeypatch.setattr(splits, "BUCKET_ROWS", trial.rows["channels"] - 1)
    first, *others = splits.plan([trial, trial])[: len(splits.plan([trial]))]
    assert first == splits.Split(0, {t: None for t in TABLES if t not in splits.SAMPLED}, whole=False)
    size = -(-limit // GROUP)
    expected = []
    for table in splits.SAMPLED:
        groups = range(pq.ParquetFile(trial.folder / f"{table}.parquet").num_row_groups)
        expected += [(table, tuple(groups[n : n + size])) for n in range(0, len(groups), size)]
    assert [next(iter(piece.groups.items())) for piece in others] == expected
    assert {(piece.trial, piece.whole, piece.buckets, len(piece.groups)) for piece in others} == {
        (0, False, 2, 1)
    }


@pytest.mark.parametrize(("rows", "is_whole"), [(splits.SPLIT_ROWS, True), (splits.SPLIT_ROWS + 1, False)])
def test_a_trial_is_split_above_the_limit(trial: tables.TrialFiles, rows: int, is_whole: bool):
    """One with exactly as many rows is read by one task."""
    assert (splits.SPLIT_ROWS, splits.BUCKET_ROWS) == (500_000, 250_000)
    more = replace(
        trial, rows={**trial.rows, "events": rows - sum(trial.rows.values()) + trial.rows["events"]}
    )
    first = splits.plan([more])[0]
    assert (first.whole, list(first.groups) == list(TABLES)) == (is_whole, is_whole)


@pytest.mark.parametrize("row", [0, GROUP - 1, GROUP, GROUP + 7])
def test_damage_in_a_piece_has_the_number_of_its_row_in_the_file(
    generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: int
):
    """Whichever piece it is in."""
    folder = Path(shutil.copytree(generated, tmp_path / generated.name))
    path = folder / "history" / "main-1" / "tasks.parquet"
    rows = pq.read_table(path)
    values = rows.column("role").to_pylist()
    values[row] = "other"
    place = rows.schema.get_field_index("role")
    pq.write_table(
        rows.set_column(place, rows.schema.field(place), pa.array(values)), path, row_group_size=GROUP
    )
    monkeypatch.setattr(splits, "SPLIT_ROWS", GROUP)
    (files,) = tables.open_trials(folder, read_manifest(folder))
    found = []
    for piece in (p for p in splits.plan([files]) if "tasks" in p.groups):
        try:
            splits.read(piece, files)
        except DamagedHistory as damaged:
            found += [d for d in damaged.found if d.column == "role"]
    assert [(d.row, d.problem) for d in found if "schema" in d.problem] == [(row, "is 'other', which is not in the schema")]  # fmt: skip


def test_repeated_rows_of_several_pieces_are_damage_of_their_table():
    """No single piece shows them."""
    counts = [("a", 5, 5, ""), ("b", 7, 4, "tasks"), ("c", 3, 2, "events")]
    rows = [{"process": p, "boot_id": "", "rows": n, "distinct": d, "highest": 9, "repeated_in": t, "tables": []} for p, n, d, t in counts]  # fmt: skip
    assembled = Trial("r", "t", {NUMBERS: pa.Table.from_pylist(rows, COUNTS_SCHEMA)})
    with pytest.raises(DamagedHistory) as damaged:
        splits.check_assembled(assembled, trial_entry())
    assert list(map(str, damaged.value.found)) == [
        "tasks.parquet, column seq: 3 rows of b are repeated", "events.parquet, column seq: 1 rows of c are repeated",
    ]  # fmt: skip


def part(kind: str, payload: bytes, piece: int = 0) -> pipeline.Part:
    return pipeline.Part(0, pipeline.REST, piece, kind, payload)


def test_the_first_error_of_a_trial_is_its_answer(trial: tables.TrialFiles):
    """A damaged history comes before an exception of a checker, whatever the order of the parts is."""
    parts = [part(pipeline.UNJUDGED, b"a"), part(pipeline.ERROR, b"z"), part(pipeline.ERROR, b"y", 1)]
    for order in (parts, parts[::-1]):
        assert pipeline.judge(order, [trial]).error == "y"
    (row,) = pipeline.judge([part(pipeline.UNJUDGED, b"b"), parts[0]], [trial]).rows
    assert (row.trial, row.text) == ("main-1", "a")


def test_a_part_that_is_no_table_passes_through_its_bucket():
    """Only channels and latencies are merged."""
    errors = [part(pipeline.ERROR, b"x"), part("events", b"y")]
    assert list(pipeline.combine(errors)) == errors
    (broken,) = pipeline.combine([part("latency", b"no stream", 3)])
    assert (broken.kind, broken.piece, broken.bucket) == (pipeline.UNJUDGED, 0, pipeline.REST)


@pytest.mark.parametrize(
    ("changes", "opened"),
    [
        ({}, True),
        ({"voided": True}, False),
        ({"error": "port in use"}, False),
        ({"voided": False, "error": ""}, True),
    ],
)
def test_a_trial_that_was_voided_or_failed_is_not_opened(
    generated: Path, changes: dict[str, Any], opened: bool
):
    """The others are, with what their seal says."""
    manifest = read_manifest(generated)
    manifest = replace(manifest, trials=(replace(manifest.trials[0], **changes),))
    found = tables.open_trials(generated, manifest)
    assert [(t.run, t.trial, t.folder, t.problems) for t in found] == [("generated", "main-1", generated / "history" / "main-1", ())][:opened]  # fmt: skip


def test_the_trial_that_was_interrupted_has_no_seal(generated: Path):
    """In another run, a trial without a seal is an error."""
    manifest = read_manifest(generated)
    manifest = replace(manifest, trials=(*manifest.trials, replace(manifest.trials[0], trial="main-2")))
    with pytest.raises(UserError, match=r"^history/main-2: does not exist"):
        tables.open_trials(generated, manifest)
    found = tables.open_trials(generated, replace(manifest, interrupted=True))
    assert [(t.run, t.trial) for t in found] == [("generated", "main-1")]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb", "RuntimeError: a"),
        ("\n  \n  a  \nb", "RuntimeError: a"),
        ("", "RuntimeError: no message"),
        ("x\nTraceback (most recent call last):\n  File\nValueError: y\nz", "ValueError: y"),
        ("x\nTraceback (most recent call last):\n  File", "x"),
        ("y" * 700, "RuntimeError: " + "y" * 586),
        ("x\nTraceback (most recent call last):\n" + "y" * 700, "y" * 600),
    ],
)
def test_an_error_is_one_line(text: str, line: str):
    """It has up to 600 characters."""
    assert session.one_line(RuntimeError(text)) == line
    assert session.one_line(HeadgateError("a\n" + "b" * 700)) == "a\n" + "b" * 598


def test_a_scratch_folder_is_removed_by_its_process_or_by_another():
    """Those of other processes stay."""
    with session.scratch_folder() as own:
        assert own.is_dir()
        (own / "file").write_text("")
        session.remove_scratch(os.getpid() + 1)
        assert own.is_dir()
    assert not own.exists()
    with session.scratch_folder() as killed:
        session.remove_scratch(os.getpid())
        assert not killed.exists()


def test_a_catalogue_without_a_table_says_what_to_do(tmp_path: Path):
    """A table is read with the types of its columns."""
    spark: Any = None
    with pytest.raises(HeadgateError) as missing:
        trends.trend(spark, tmp_path, "prices")
    assert str(missing.value) == f"{tmp_path} has no prices: evaluate a run first"
    columns = pa.schema([("a", pa.string()), ("b", pa.float64()), ("c", pa.int64())])
    assert trends._ddl(columns) == "`a` string, `b` double, `c` bigint"
    assert catalogue.folder_of(tmp_path / "a" / ".." / "b") == tmp_path / ".catalogue"


@pytest.mark.parametrize(
    ("manifest", "entry", "columns"),
    [
        ({}, {}, ("", "", "", "main", "fault", 1, "2.x")),
        (
            {"scenario": {"metadata": {"name": "late"}}, "place": "local", "started": "2026-11-22"},
            {"variant": "short", "role": "control", "number": 3, "flinkVersion": "1.17"},
            ("late", "local", "2026-11-22", "short", "control", 3, "1.17"),
        ),
        ({"scenario": {"metadata": {}}}, {"number": 4}, ("", "", "", "main", "fault", 4, "2.x")),
    ],
)
def test_the_catalogue_names_the_trial_of_each_row(
    manifest: dict[str, Any], entry: dict[str, Any], columns: tuple[Any, ...]
):
    """An earlier version wrote less into its manifest."""
    found = catalogue._trial_columns(run_manifest(**manifest), trial_entry(entry))
    names = ("scenario", "environment", "started", "variant", "role", "number", "flink_version")
    assert found == dict(zip(names, columns, strict=True))
