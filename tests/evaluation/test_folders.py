"""A damaged run folder is reported in one line, with the file and how to fix it."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.trial.manifest import MANIFEST_SCHEMA
from testbed_runtime.evaluation import session, splits, tables, worker
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.history.reader import read_trial
from testbed_runtime.history.schema import TABLES
from tests.report import synthetic

TRIAL = "short-timeout-1"


@pytest.fixture
def folder(run_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def said(folder: Path) -> str:
    """Return the message of a history that cannot be read."""
    with pytest.raises(HeadgateError) as caught:
        read_all(folder)
    return str(caught.value)


def read_all(folder: Path) -> None:
    """Read the histories as the tasks of the evaluation do, and as one process does. Both find the same."""
    both: list[str] = []
    for read in (read_pieces, read_trials):
        try:
            read(folder)
        except HeadgateError as error:
            both.append(str(error))
    assert len(set(both)) < 2
    if both:
        raise HeadgateError(both[0])


def read_trials(folder: Path) -> None:
    manifest = read_manifest(folder)
    for entry in manifest.trials:
        read_trial(folder / "history" / entry.trial, run=manifest.run, entry=entry)


def read_pieces(folder: Path) -> None:
    trials = tables.open_trials(folder, read_manifest(folder))
    for piece in splits.plan(trials):
        splits.read(piece, trials[piece.trial])


def test_a_sealed_run_opens_with_all_its_trials(folder: Path):
    """In the order of the manifest, voided and failed ones left out."""
    manifest = read_manifest(folder)
    assert [t.trial for t in tables.open_trials(folder, manifest)] == [p.trial for p in synthetic.PLANS]
    first, second, third, last = manifest.trials
    fewer = (replace(first, voided=True), second, replace(third, error="port in use"), last)
    opened = tables.open_trials(folder, replace(manifest, trials=fewer))
    assert [t.trial for t in opened] == ["short-timeout-1", "long-timeout-1"]


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_truncated_table_is_named(folder: Path, table: str):
    """Cut anywhere, even in the middle of the data."""
    path = folder / "history" / TRIAL / f"{table}.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert said(folder).startswith(f"history/{TRIAL}/{table}.parquet: is truncated or damaged: ")


def test_damage_in_the_middle_of_the_data_is_found(folder: Path):
    """The footer is whole, a page is not."""
    path = folder / "history" / TRIAL / "tasks.parquet"
    data = bytearray(path.read_bytes())
    data[4:3000] = bytes(2996)
    path.write_bytes(data)
    assert "tasks.parquet: is truncated or damaged" in said(folder)


def test_missing_rows_missing_tables_and_missing_columns_are_distinguished(folder: Path):
    """Each with what to do."""
    path = folder / "history" / TRIAL / "events.parquet"
    events = pq.read_table(path)
    pq.write_table(events.slice(1), path)
    assert f"events.parquet: has {len(events) - 1} rows, {len(events)} were sealed" in said(folder)
    pq.write_table(events.drop_columns(["text"]), path)
    assert "events.parquet, column text: is missing; another version of Headgate wrote the file" in said(
        folder
    )
    path.unlink()
    assert "events.parquet: is missing from a sealed trial" in said(folder)


def test_a_trial_that_was_never_sealed_is_reported(folder: Path):
    """The run was cut off; of an interrupted run the other trials count."""
    sealed = folder / "history" / TRIAL / "sealed.json"
    sealed.write_text("{")
    assert f"history/{TRIAL}/sealed.json: is truncated or damaged" in said(folder)
    sealed.unlink()
    assert f"history/{TRIAL}: is not sealed" in said(folder)
    manifest = replace(read_manifest(folder), interrupted=True)
    assert TRIAL not in [t.trial for t in tables.open_trials(folder, manifest)]


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replaced_by_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def linked(target: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return change


def with_text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def changed(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change the values in a JSON file."""

    def of(path: Path) -> None:
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return of


UNREADABLE: list[tuple[str, Callable[[Path], object], str]] = [
    ("tasks.parquet", replaced_by_a_folder, "is truncated or damaged: "),
    ("tasks.parquet", replaced_by_a_fifo, "is truncated or damaged: it is not a regular file"),
    ("tasks.parquet", linked("/dev/zero"), "is truncated or damaged: it is not a regular file"),
    ("tasks.parquet", linked("tasks.parquet"), "is truncated or damaged: "),
    ("tasks.parquet", linked("nowhere"), "is missing from a sealed trial"),
    ("tasks.parquet", with_text(""), "is truncated or damaged: "),
    ("tasks.parquet", with_text("task,vertex"), "is truncated or damaged: "),
    ("sealed.json", replaced_by_a_folder, "is truncated or damaged: "),
    ("sealed.json", replaced_by_a_fifo, "is truncated or damaged: it is not a regular file"),
    (
        "sealed.json",
        changed(lambda seal: seal["rows"].update(tasks=-5)),
        "is truncated or damaged: rows[...]: Expected `int` >= 0",
    ),
    ("sealed.json", with_text(""), "is truncated or damaged: "),
    ("sealed.json", with_text("[" * 100_000), "is truncated or damaged: "),
    ("sealed.json", changed(lambda seal: seal["rows"].update(tasks="5")), "is truncated or damaged: "),
    ("sealed.json", changed(lambda seal: seal["rows"].pop("tasks")), "has no number of rows of tasks"),
    (
        "sealed.json",
        changed(lambda seal: seal.update(blocks={"events": []})),
        "has no digests of channels, tasks, ",
    ),
    ("sealed.json", changed(lambda seal: seal.update(schema=2)), "has schema version 2"),
]


@pytest.mark.parametrize(("name", "damage", "problem"), UNREADABLE)
def test_a_file_that_cannot_be_read_is_named(
    folder: Path, name: str, damage: Callable[[Path], object], problem: str
):
    """Whatever is in its place, and whatever a seal lacks: a seal without the digests of a table would accept any rows."""
    damage(folder / "history" / TRIAL / name)
    assert said(folder).startswith(f"history/{TRIAL}/{name}: {problem}")


@pytest.mark.parametrize("later", [True, False])
def test_a_later_version_may_have_written_more(folder: Path, later: bool):
    """Columns, tables and keys that this version does not know are left out."""
    history = folder / "history" / TRIAL
    for path in history.glob("*.parquet"):
        rows = pq.ParquetFile(path).read()
        if later:
            rows = rows.append_column("heap", pa.array([1.5] * len(rows)))
        pq.write_table(rows.select(rows.column_names[::-1]), path, compression="snappy")
    (history / "gpu.parquet").write_text("")
    changed(lambda seal: seal.update(heap=1))(history / "sealed.json")
    read_all(folder)


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "it has no manifest"), ("{", "is not JSON"), ("[]", "does not have schema")],
)
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, text: str | None, problem: str):
    """The request fails with one line, before Spark starts."""
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    first, last = answers(tmp_path)
    assert first["stage"] == "histories"
    assert last["result"] == "failed"
    assert problem in last["error"]
    assert "\n" not in last["error"]


def test_a_run_without_a_trial_is_refused(tmp_path: Path):
    """Before Spark starts."""
    (tmp_path / "manifest.json").write_text(
        json.dumps({"schema": MANIFEST_SCHEMA, "run": "r", "trials": [], "expectations": {}})
    )
    assert "There is no trial to evaluate" in answers(tmp_path)[-1]["error"]


def answers(folder: Path) -> list[dict[str, Any]]:
    """The worker's answers to one request, with a Spark that must not be started."""

    def no_spark() -> Any:
        raise AssertionError("Spark was started")

    out = io.StringIO()
    worker.serve(no_spark, [json.dumps({"folder": str(folder)})], out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_an_evaluation_whose_spark_died_has_no_answer_and_ends_the_worker(monkeypatch: pytest.MonkeyPatch):
    """So that the parent asks another worker again. A Spark that is alive has an answer: its evaluation failed."""

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("no such column")

    def dead() -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    class Alive:
        def range(self, _: int) -> Alive:
            return self

        def count(self) -> int:
            return 1

    monkeypatch.setattr(worker, "evaluate", broken)
    out = io.StringIO()
    with pytest.raises(ConnectionRefusedError):
        worker.serve(dead, ['{"folder": "x"}'], out)
    assert out.getvalue() == ""
    worker.serve(Alive, ['{"folder": "x"}'], out)  # type: ignore[arg-type]
    assert json.loads(out.getvalue()) == {"result": "failed", "error": "ValueError: no such column"}


def test_a_catalogue_is_read_job_by_job_and_a_missing_table_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """As long as no run has had a recovery, there are metrics and no prices."""

    class Found:
        def __init__(self, name: str) -> None:
            self.name = name

        def toArrow(self) -> Found:
            return self

        def to_pylist(self) -> list[dict[str, Any]]:
            return [{"of": self.name, "number": number} for number in (1, 2)]

    monkeypatch.setattr(worker.trends, "trend", lambda spark, folder, name: Found(name))
    (tmp_path / "metrics").mkdir()
    out = io.StringIO()
    worker.serve(lambda: None, [json.dumps({"trends": str(tmp_path)})], out)  # type: ignore[arg-type,return-value]
    rows = [{"job": "metrics", "row": {"of": "metrics", "number": number}} for number in (1, 2)]
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [*rows, {"result": "done"}]


def test_a_python_error_inside_spark_becomes_its_own_line():
    """The error of the worker, not the plan around it."""
    text = 'An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File "x.py", line 1, in f\n    h = {1: g()}\n        ^^^\nKeyError: 3\n\nDuring: x'
    assert session.one_line(RuntimeError(text)) == "KeyError: 3"
    assert session.one_line(ConnectionRefusedError(111, "Connection refused")).startswith(
        "The Spark driver has ended"
    )
    assert session.one_line(ValueError("")) == "ValueError: no message"
