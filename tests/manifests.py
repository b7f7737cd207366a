"""Manifests and entries of trials with the fields that a test is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from testbed_runtime.core.trial.manifest import RunManifest, TrialEntry

_TRIAL: Mapping[str, Any] = {
    "trial": "main-1", "variant": "main", "role": "fault", "number": 1, "seed": 1,
    "configuration": {}, "job": {}, "faults": [], "phases": [],
}  # fmt: skip
_FAULT: Mapping[str, Any] = {"kind": "", "at_s": 0.0, "duration_s": 0.0}


def trial_entry(fields: Mapping[str, Any] | None = None, **more: Any) -> TrialEntry:
    """Return an entry with these fields, as the manifest has them."""
    return msgspec.convert(_filled({**(fields or {}), **more}), TrialEntry)


def run_manifest(trials: Iterable[Mapping[str, Any]] = (), **more: Any) -> RunManifest:
    """Return a manifest with these trials. Without `expectations`, none are asked for."""
    return msgspec.convert(
        {"run": "r", "expectations": {}, "trials": [_filled(t) for t in trials], **more}, RunManifest
    )


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what the manifest always has. A phase without an end ended at once."""
    job = fields.get("job", {})
    vertices = [{"name": "", **vertex} for vertex in job.get("vertices", ())]
    phases = [
        {"start_ns": 0, "end_ns": phase.get("start_ns", 0), **phase} for phase in fields.get("phases", ())
    ]
    faults = [{**_FAULT, **fault} for fault in fields.get("faults", ())]
    return {**_TRIAL, **fields, "job": {**job, "vertices": vertices}, "phases": phases, "faults": faults}
