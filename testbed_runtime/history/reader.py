"""Read a sealed trial from its folder. Every kind of damage leads to a clear error message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from testbed_runtime.core.errors import UserError, first_line
from testbed_runtime.history.journal import SEGMENTS_FOLDER, SUFFIX
from testbed_runtime.history.schema import SCHEMA_VERSION, TABLES, Trial, arrow_schema
from testbed_runtime.history.sealing import SEALED, SealReport, read_sealed
from testbed_runtime.history.validation import DamagedHistory, check_schema, check_sealed, require_sound


def read_trial(
    folder: str | Path, *, run: str = "", trial: str = "", entry: Mapping[str, Any] | None = None
) -> Trial:
    """Read all tables of `<run>/history/<trial>`. `run` and `trial` default to the folder names. Raises UserError for a
    folder that is missing, not sealed, truncated, or of another version.

    With the trial's `entry` in the manifest the rows are validated too (DamagedHistory)."""
    folder = Path(folder)
    report = _report(folder)
    unsealed = [name for name in TABLES if name not in report.rows]
    if unsealed:
        raise UserError(
            str(folder / SEALED), f"has no number of rows of {', '.join(unsealed)}", "run the scenario again"
        )
    tables = {name: _table(folder, name, report.rows[name]) for name in TABLES}
    found = Trial(
        run=run or folder.resolve().parent.parent.name,
        trial=trial or folder.resolve().name,
        tables=tables,
        problems=tuple(report.problems),
    )
    if entry is not None:
        require_sound(found, f"history/{found.trial}", entry)
        if changed := check_sealed(found, report.blocks):
            raise DamagedHistory(f"history/{found.trial}", changed)
    return found


def _report(folder: Path) -> SealReport:
    if not folder.is_dir():
        raise UserError(
            str(folder), "the trial's folder does not exist", "name the folder <run>/history/<trial>"
        )
    try:
        report = read_sealed(folder)
    except (ValueError, msgspec.MsgspecError) as error:
        raise UserError(str(folder / SEALED), f"is damaged: {error}", "run the scenario again") from None
    if report is None:
        raise _not_sealed(folder)
    if report.schema != SCHEMA_VERSION:
        problem = f"has schema version {report.schema}, but this version of headgate reads {SCHEMA_VERSION}"
        raise UserError(str(folder / SEALED), problem, "use the version that recorded it")
    return report


def _not_sealed(folder: Path) -> UserError:
    if any((folder / SEGMENTS_FOLDER).glob("*" + SUFFIX)):
        problem = "the history was recorded but not sealed, because the run was interrupted"
        return UserError(str(folder), problem, "seal it first, or run the scenario again")
    return UserError(str(folder), "contains no history", "name the folder <run>/history/<trial>")


def _table(folder: Path, name: str, rows: int) -> pa.Table:
    path = folder / f"{name}.parquet"
    if not path.exists():
        raise UserError(str(path), "is missing from a sealed trial", "run the scenario again")
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(
            str(path),
            f"is truncated or damaged: {first_line(error)}",
            "restore the file, or run the scenario again",
        ) from None
    if damaged := check_schema(name, table.schema):
        raise DamagedHistory(f"history/{folder.name}", damaged)
    if len(table) != rows:
        hint = "restore the file, or run the scenario again"
        raise UserError(str(path), f"has {len(table)} rows instead of {rows}", hint)
    return table.select(arrow_schema(name).names)
