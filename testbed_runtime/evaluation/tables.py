"""The sealed trials of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from testbed_runtime.core.documents import HISTORY_FOLDER
from testbed_runtime.history.reader import read_seal
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


def open_trials(run_folder: Path, manifest: Mapping[str, Any]) -> list[TrialFiles]:
    """Return the sealed trials of a run. Raises UserError for one without a seal, or with a damaged one.
    Their tables are checked where they are read (`splits.read`)."""
    run = str(manifest.get("run") or run_folder.name)
    entries = [e for e in manifest.get("trials", ()) if not e.get("voided") and not e.get("error")]
    folders = [(entry, run_folder / HISTORY_FOLDER / str(entry["trial"])) for entry in entries]
    if manifest.get("interrupted"):  # the trial that was interrupted has no seal
        folders = [(entry, folder) for entry, folder in folders if (folder / SEALED).exists()]
    seals = [(entry, folder, read_seal(folder)) for entry, folder in folders]
    return [TrialFiles(run, entry, folder, seal.rows, tuple(seal.problems)) for entry, folder, seal in seals]
