"""Turn a trial's segments into one Parquet file per table: `<trial folder>/<table>.parquet`, plus `sealed.json`.

`sealed.json` is written last and marks the folder as complete. The segments are kept until then, so that a full disk or
an interruption loses nothing. Sealing again returns the same result; different content is refused.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Meta, Struct

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.files import read_document, sync, write_whole
from testbed_runtime.history.digests import Block, block_of
from testbed_runtime.history.journal import SEGMENTS_FOLDER, SUFFIX, RecordingError
from testbed_runtime.history.schema import SCHEMA_VERSION, TABLES, Trial, arrow_schema
from testbed_runtime.history.segments import scan

SEALED = "sealed.json"
ROW_GROUP_ROWS = 65_536
"""Rows per row group. Writing each segment (200 ms) as it is would create thousands of tiny row groups."""


class SealingError(HeadgateError):
    """The folder is already sealed, with different content."""


class SealReport(Struct, frozen=True, kw_only=True):
    """The contents of the tables. `streams` maps a file name to bytes, rows and missing rows; `problems` are sentences. `blocks` maps a
    table to the digests of its rows; earlier versions wrote none."""

    schema: int
    rows: dict[str, Annotated[int, Meta(ge=0)]]
    streams: dict[str, dict[str, int]]
    problems: list[str]
    blocks: dict[str, list[Block]] = {}


def read_sealed(folder: Path) -> SealReport | None:
    """Return the report of a sealed folder, or None if it is not sealed."""
    path = folder / SEALED
    if not path.exists():
        return None
    return msgspec.convert(read_document(path), SealReport)


def seal(folder: Path, *, problems: list[str] | None = None) -> SealReport:
    """Seal the segments of a trial's folder. The truncated end of a killed process or recorder is tolerated and reported.
    Raises SealingError if the folder was sealed with different content, and RecordingError if writing fails."""
    files = sorted((folder / SEGMENTS_FOLDER).glob("*" + SUFFIX))
    before = read_sealed(folder)
    if before is not None:
        return _sealed_before(folder, before, files)
    try:
        report = _write(folder, files, list(problems or []))
        _mark_sealed(folder, report)
    except OSError as error:
        for table in TABLES:  # disk space may be short
            (folder / f"{table}.parquet").unlink(missing_ok=True)
        raise RecordingError(
            f"cannot seal the history in {folder}: {error.strerror or error}. The segments are kept in "
            f"{folder / SEGMENTS_FOLDER}; free some space and evaluate the run again"
        ) from error
    shutil.rmtree(folder / SEGMENTS_FOLDER, ignore_errors=True)
    return report


def _mark_sealed(folder: Path, report: SealReport) -> None:
    text = msgspec.json.format(msgspec.json.encode(report, order="sorted"), indent=1)
    write_whole(folder / SEALED, text)


def write_trial(folder: Path, trial: Trial) -> SealReport:
    """Write the same files for a trial in memory (simulation, tests)."""
    folder.mkdir(parents=True, exist_ok=True)
    report = SealReport(schema=SCHEMA_VERSION, rows={}, streams={}, problems=list(trial.problems))
    for table in TABLES:
        rows = trial.table(table)
        with _TableWriter(folder, table) as writer:
            writer.add(rows)
        report.rows[table] = len(rows)
        report.blocks[table] = writer.blocks
    _mark_sealed(folder, report)
    return report


def _sealed_before(folder: Path, before: SealReport, files: list[Path]) -> SealReport:
    other = [f.name for f in files if before.streams.get(f.name, {}).get("bytes") != f.stat().st_size]
    if other:
        raise SealingError(
            f"{folder} is already sealed; {', '.join(other)} was added or changed later and is not included"
        )
    shutil.rmtree(folder / SEGMENTS_FOLDER, ignore_errors=True)
    return before


def _write(folder: Path, files: list[Path], problems: list[str]) -> SealReport:
    report = SealReport(schema=SCHEMA_VERSION, rows=dict.fromkeys(TABLES, 0), streams={}, problems=problems)
    with contextlib.ExitStack() as files_of_tables:
        writers = {table: files_of_tables.enter_context(_TableWriter(folder, table)) for table in TABLES}
        for path in files:
            seqs: list[Any] = []
            found = scan(path.read_bytes())
            if found.problem:
                report.problems.append(f"{path.name}: {found.problem}; read up to byte {found.good_bytes}")
            for segment in found.segments:
                rows = segment.rows()
                seqs.append(rows.column("seq").to_numpy())
                writers[segment.table_name].add(rows)
                report.rows[segment.table_name] += len(rows)
            report.streams[path.name] = _account(path, seqs, report)
    report.blocks.update({table: writer.blocks for table, writer in writers.items()})
    return report


def _account(path: Path, seqs: list[Any], report: SealReport) -> dict[str, int]:
    numbers = np.concatenate(seqs) if seqs else np.zeros(0, dtype=np.int64)
    distinct = len(np.unique(numbers))
    missing = int(numbers.max()) + 1 - distinct if distinct else 0
    if missing:
        report.problems.append(f"{path.name}: {missing} rows are missing")
    if distinct != len(numbers):
        report.problems.append(f"{path.name}: {len(numbers) - distinct} rows are duplicates")
    return {"bytes": path.stat().st_size, "rows": len(numbers), "missing": missing}


class _TableWriter:
    """Writes one Parquet file in row groups: first to a temporary file, which is renamed when it is complete."""

    def __init__(self, folder: Path, table: str) -> None:
        self._path = folder / f"{table}.parquet"
        self._temporary = folder / f".{table}.parquet.tmp"
        self._schema = arrow_schema(table)
        self._gathered: list[pa.Table] = []
        self._count = 0
        self.blocks: list[Block] = []
        self._writer = pq.ParquetWriter(self._temporary, self._schema, compression="zstd")

    def __enter__(self) -> _TableWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Complete the file. After a failure, delete it instead."""
        try:
            if kind is None:
                self._put_group()
                self._writer.close()
                sync(self._temporary)
                self._temporary.replace(self._path)
        finally:
            with contextlib.suppress(OSError):  # the disk may be full; the file is deleted anyway
                self._writer.close()
            self._temporary.unlink(missing_ok=True)

    def add(self, rows: pa.Table) -> None:
        self._gathered.append(rows)
        self._count += len(rows)
        if self._count >= ROW_GROUP_ROWS:
            self._put_group()

    def _put_group(self) -> None:
        if self._count:
            rows = pa.concat_tables(self._gathered).cast(self._schema)
            self._writer.write_table(rows, ROW_GROUP_ROWS)
            starts = range(0, len(rows), ROW_GROUP_ROWS)
            self.blocks += [block_of(rows.slice(start, ROW_GROUP_ROWS)) for start in starts]
        self._gathered = []
        self._count = 0
