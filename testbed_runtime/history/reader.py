"""Read a sealed trial from its folder. Every kind of damage leads to a clear error message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from testbed_runtime.core.documents import HISTORY_FOLDER
from testbed_runtime.core.errors import UserError, first_line
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.files import field_of, require_regular
from testbed_runtime.history.journal import SEGMENTS_FOLDER, SUFFIX
from testbed_runtime.history.schema import SCHEMA_VERSION, TABLES, Trial, arrow_schema
from testbed_runtime.history.sealing import SEALED, SealReport, read_sealed
from testbed_runtime.history.validation import DamagedHistory, check_schema, check_sealed, require_sound

RESTORE = "restore it, or run the scenario again"


def read_trial(
    folder: str | Path, *, run: str = "", trial: str = "", entry: TrialEntry | None = None
) -> Trial:
    """Read all tables of `<run>/history/<trial>`. `run` and `trial` default to the folder names. Raises UserError for a
    folder that is missing, not sealed, truncated, or of another version.

    With the trial's `entry` in the manifest the rows are validated too (DamagedHistory)."""
    folder = Path(folder)
    report = read_seal(folder)
    columns = {name: arrow_schema(name).names for name in TABLES}
    tables = {name: read_rows(folder, name, report.rows[name], columns[name])[0] for name in TABLES}
    found = Trial(
        run=run or folder.resolve().parent.parent.name,
        trial=trial or folder.resolve().name,
        tables=tables,
        problems=tuple(report.problems),
    )
    if entry is not None:
        require_sound(found, entry)
        if changed := check_sealed(found, report.blocks):
            raise DamagedHistory(found.trial, changed)
    return found


def read_seal(folder: Path) -> SealReport:
    """Read the seal of `<run>/history/<trial>`. Raises UserError if it is missing, damaged, incomplete or of another version."""
    where = f"{HISTORY_FOLDER}/{folder.name}"
    if not folder.is_dir():
        raise UserError(where, "does not exist, so the trial is not sealed", "run the scenario again")
    try:
        report = read_sealed(folder)
    except (OSError, ValueError) as error:
        why = field_of(error) if isinstance(error, msgspec.ValidationError) else first_line(error)
        problem = f"is truncated or damaged: {why}"
        raise UserError(f"{where}/{SEALED}", problem, "run the scenario again") from None
    if report is None:
        raise _not_sealed(folder, where)
    if report.schema != SCHEMA_VERSION:
        problem = f"has schema version {report.schema}, but this version of headgate reads {SCHEMA_VERSION}"
        raise UserError(f"{where}/{SEALED}", problem, "use the version that recorded it")
    for what, of_table in (("number of rows", report.rows), ("digests", report.blocks or report.rows)):
        if missing := ", ".join(name for name in TABLES if name not in of_table):
            raise UserError(f"{where}/{SEALED}", f"has no {what} of {missing}", "run the scenario again")
    return report


def _not_sealed(folder: Path, where: str) -> UserError:
    if any((folder / SEGMENTS_FOLDER).glob("*" + SUFFIX)):
        problem = "was recorded but is not sealed, because the run was interrupted"
        return UserError(where, problem, "seal it first, or run the scenario again")
    return UserError(
        where, "is not sealed: the run was cut off before this trial ended", "run the scenario again"
    )


def open_table(folder: Path, name: str) -> pq.ParquetFile:
    """Open the file of a table. Raises UserError if it is missing or damaged, and DamagedHistory if it lacks columns."""
    path = folder / f"{name}.parquet"
    try:
        require_regular(path.stat().st_mode)
        file = pq.ParquetFile(path, memory_map=True)
    except FileNotFoundError:
        where = f"{HISTORY_FOLDER}/{folder.name}/{name}.parquet"
        raise UserError(where, "is missing from a sealed trial", RESTORE) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(folder, name, error) from None
    if damaged := check_schema(name, file.schema_arrow):
        file.close()
        raise DamagedHistory(folder.name, damaged)
    return file


def unreadable(folder: Path, name: str, error: Exception) -> UserError:
    """Return the error for a file of a table that could not be read."""
    problem = f"is truncated or damaged: {first_line(error)}"
    return UserError(f"{HISTORY_FOLDER}/{folder.name}/{name}.parquet", problem, RESTORE)


def require_rows(folder: Path, name: str, rows: int, sealed: int) -> None:
    """Raise UserError if a table does not have the number of rows that was sealed."""
    if rows != sealed:
        problem = f"has {rows} rows, {sealed} were sealed"
        raise UserError(f"{HISTORY_FOLDER}/{folder.name}/{name}.parquet", problem, RESTORE)


def read_rows(
    folder: Path, name: str, sealed: int, columns: list[str], groups: Sequence[int] | None = None
) -> tuple[pa.Table, int]:
    """Return these columns of a table, and the number of the first row. By default all row groups are read, and their rows are compared
    with the sealed number."""
    with open_table(folder, name) as file:
        if groups is None:
            require_rows(folder, name, file.metadata.num_rows, sealed)
            groups = range(file.num_row_groups)
        first = sum(file.metadata.row_group(n).num_rows for n in range(groups[0])) if groups else 0
        try:
            rows = file.read_row_groups(list(groups), columns=columns, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(folder, name, error) from None
    return rows.select(columns), first
