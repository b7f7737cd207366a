"""Read the manifest of a run."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import msgspec

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.trial.manifest import MANIFEST_SCHEMA, RunManifest
from testbed_runtime.files import field_of, read_document

MANIFEST = "manifest.json"


def read_manifest(folder: Path) -> RunManifest:
    """Read a run's manifest. Raises UserError if it is missing, damaged or of another version."""
    data = manifest_data(folder)
    try:
        return manifest_of(data)
    except ValueError as error:
        problem = field_of(error) if isinstance(error, msgspec.ValidationError) else str(error)
        hint = "the run's manifest is damaged; run the scenario again"
        raise UserError(str(folder / MANIFEST), problem, hint) from None


def manifest_data(folder: Path) -> dict[str, Any]:
    """Return the content of a run's manifest, of which only the schema is checked. Raises UserError like `read_manifest`."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(str(folder), f"is not the folder of a run: it has no {MANIFEST}", _runs_in(folder))
    try:
        data = read_document(path)
    except (OSError, ValueError) as error:
        raise UserError(
            str(path), f"is not JSON: {error}", "the run's manifest is damaged; run the scenario again"
        ) from None
    if not isinstance(data, dict) or data.get("schema") != MANIFEST_SCHEMA:
        hint = "it was written by another version of Headgate; run the scenario again"
        raise UserError(str(path), f"does not have schema {MANIFEST_SCHEMA}", hint)
    return data


def manifest_of(data: Mapping[str, Any]) -> RunManifest:
    """Return the manifest with this content. Raises ValueError with the field that is wrong; msgspec's ValidationError is one."""
    found = msgspec.convert(data, RunManifest)
    if found.decided and not found.looks:
        raise ValueError(f"decided: is {found.decided}, but `looks` is empty")
    for number, trial in enumerate(found.trials):
        if trial.variant not in found.expectations:
            raise ValueError(
                f"expectations has no list for {trial.variant!r:.60}, the variant of trials[{number}]"
            )
        try:
            TopologicalSorter(grouped((edge.target, edge.source) for edge in trial.job.edges)).prepare()
        except CycleError as error:
            raise ValueError(
                f"trials[{number}].job.edges: there is a cycle {' → '.join(error.args[1])!r:.200}"
            ) from None
    return found


def _runs_in(folder: Path) -> str:
    """Say which folder to name instead of one that is no run. Runs of seeds are one or two levels deeper."""
    depths = (sorted(folder.glob(f"{depth}/{MANIFEST}")) for depth in ("*", "*/*", "*/*/*"))
    inside = next(filter(None, depths), [])
    return (
        f"name a run in it, such as {inside[-1].parent}" if inside else "name a folder under headgate-runs/"
    )
