"""The sealed trials of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from testbed_runtime.core.documents import HISTORY_FOLDER
from testbed_runtime.core.trial.manifest import RunManifest, TrialEntry
from testbed_runtime.history.reader import read_seal
from testbed_runtime.history.sealing import SEALED


class TrialFiles(Struct, frozen=True):
    """The sealed history of one trial: its entry in the manifest and its folder."""

    run: str
    entry: TrialEntry
    folder: Path
    rows: Mapping[str, int]
    """Rows of each table when it was sealed."""
    problems: tuple[str, ...] = ()
    """Problems that the recorder found when it sealed the trial."""

    @property
    def trial(self) -> str:
        return self.entry.trial


def open_trials(run_folder: Path, manifest: RunManifest) -> list[TrialFiles]:
    """Return the sealed trials of a run. Raises UserError for one without a seal, or with a damaged one.
    Their tables are checked where they are read (`splits.read`)."""
    entries = manifest.counted
    folders = [(entry, run_folder / HISTORY_FOLDER / entry.trial) for entry in entries]
    if manifest.interrupted:  # the trial that was interrupted has no seal
        folders = [(entry, folder) for entry, folder in folders if (folder / SEALED).exists()]
    seals = [(entry, folder, read_seal(folder)) for entry, folder in folders]
    return [
        TrialFiles(manifest.run, entry, folder, seal.rows, tuple(seal.problems))
        for entry, folder, seal in seals
    ]
