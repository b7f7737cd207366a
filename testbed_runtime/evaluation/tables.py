"""The sealed trials of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.history.schema import TABLES
from testbed_runtime.history.sealing import SEALED


class TrialFiles(Struct, frozen=True):
    """The sealed history of one trial: its entry in the manifest and its folder."""

    run: str
    entry: Mapping[str, Any]
    folder: Path
    rows: Mapping[str, int]
    """Rows of each table when it was sealed."""
    problems: tuple[str, ...] = ()
    """Problems that the recorder found when it sealed the trial."""

    @property
    def trial(self) -> str:
        return str(self.entry["trial"])

    def shown(self, table: str) -> str:
        """Return the path of a table's file in the run's folder, for messages."""
        return f"history/{self.folder.name}/{table}.parquet"


def open_trials(run_folder: Path, manifest: Mapping[str, Any]) -> list[TrialFiles]:
    """Return the sealed trials of a run. Raises HeadgateError for one without a seal, or with a damaged one.
    Their tables are checked where they are read (`splits.read`)."""
    run = str(manifest.get("run") or run_folder.name)
    entries = [e for e in manifest.get("trials", ()) if not e.get("voided") and not e.get("error")]
    folders = [(entry, run_folder / "history" / str(entry["trial"])) for entry in entries]
    if manifest.get("interrupted"):  # the trial that was interrupted has no seal
        folders = [(entry, folder) for entry, folder in folders if (folder / SEALED).exists()]
    return [_open_trial(run, entry, folder) for entry, folder in folders]


def _open_trial(run: str, entry: Mapping[str, Any], folder: Path) -> TrialFiles:
    shown = f"history/{folder.name}"
    try:
        sealed = json.loads((folder / SEALED).read_text())
        rows = {table: int(sealed["rows"][table]) for table in TABLES}
        problems = tuple(str(p) for p in sealed["problems"])
    except FileNotFoundError:
        raise HeadgateError(
            f"{shown} is not sealed: the run was cut off before this trial ended. Run the scenario again."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise HeadgateError(f"{shown}/{SEALED} is truncated or damaged. Run the scenario again.") from None
    return TrialFiles(run=run, entry=entry, folder=folder, rows=rows, problems=problems)
