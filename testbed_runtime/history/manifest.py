"""The manifest of a run as its readers see it: the file, and what a trial's entry says about the job and its options.

The runner writes it (runner.manifest). Report, evaluation, checks and commands read it here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.jobgraph import PARTITIONINGS
from testbed_runtime.core.job.results import BLOCKING
from testbed_runtime.core.options import Options
from testbed_runtime.core.versions import LATEST, VERSIONS

MANIFEST_SCHEMA = 2
MANIFEST = "manifest.json"

Entry = Mapping[str, Any]
"""A trial in the manifest."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a run's manifest. Raises UserError if it is missing, damaged or of another version."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(str(folder), f"is not the folder of a run: it has no {MANIFEST}", _runs_in(folder))
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(
            str(path), f"is not JSON: {error}", "the run's manifest is damaged; run the scenario again"
        ) from None
    if not isinstance(data, dict) or data.get("schema") != MANIFEST_SCHEMA:
        hint = "it was written by another version of Headgate; run the scenario again"
        raise UserError(str(path), f"does not have schema {MANIFEST_SCHEMA}", hint)
    if problem := _damage(data.get("trials", []), data.get("expectations")):
        raise UserError(str(path), problem, "the run's manifest is damaged; run the scenario again")
    return data


def _runs_in(folder: Path) -> str:
    """Say which folder to name instead of one that is no run. Runs of seeds are one level deeper."""
    inside = sorted(path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{MANIFEST}"))
    return f"name a run in it, such as {inside[-1]}" if inside else "name a folder under headgate-runs/"


def _damage(trials: Any, expectations: Any) -> str:
    """Return the first field that is missing or has a type from which nothing can be read. Empty if there is
    none."""
    if not isinstance(trials, list):
        return "trials is not a list"
    if not isinstance(expectations, dict):
        return f"expectations is {expectations!r:.60}"
    for number, entry in enumerate(trials):
        where = f"trials[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("trial"), str):
            return f"{where} has no name"
        variant = entry.get("variant")
        if not isinstance(variant, str) or not isinstance(expectations.get(variant), list):
            return f"expectations has no list for {variant!r:.60}, the variant of {where}"
        for key, kind in (("configuration", dict), ("job", dict), ("faults", list), ("phases", list)):
            if not isinstance(entry.get(key), kind):
                return f"{where}.{key} is {entry.get(key)!r:.60}"
        for index, phase in enumerate(entry.get("phases") or ()):
            for key in ("start_ns", "end_ns"):
                if not isinstance(phase, dict) or not isinstance(phase.get(key), int):
                    stated = phase.get(key) if isinstance(phase, dict) else phase
                    return f"{where}.phases[{index}].{key} is {stated!r:.60}, not an integer"
    return ""


def options_of(entry: Entry) -> Options:
    """Return the options of a trial. A version that is missing or unknown counts as the newest."""
    version = str(entry.get("flinkVersion") or LATEST)
    known = version if version in VERSIONS else LATEST
    return Options(dict(entry.get("configuration") or {}), flink_version=known)


def _job(entry: Entry) -> Mapping[str, Any]:
    job = entry.get("job")
    return job if isinstance(job, Mapping) else {}


def vertices(entry: Entry) -> list[Mapping[str, Any]]:
    """Return the vertices of a trial's job. Empty if the entry has none."""
    return list(_job(entry).get("vertices") or ())


def parallelism_of(entry: Entry) -> dict[str, int]:
    """Map each vertex to its parallelism."""
    return {v["name"]: int(v.get("parallelism") or 1) for v in vertices(entry)}


def tasks_of(entry: Entry) -> set[str]:
    """Return the subtasks of the manifest's job."""
    return {f"{name}-{i}" for name, count in parallelism_of(entry).items() for i in range(count)}


def blocking_edges(entry: Entry) -> list[Mapping[str, Any]]:
    """Return the edges whose results are read only when they are complete."""
    return [e for e in _job(entry).get("edges") or () if e.get("result") == BLOCKING]


def edges(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Yield the source, the target and the partitioning of each edge."""
    for edge in _job(entry).get("edges") or ():
        source, target = edge.get("source") or edge["from"], edge.get("target") or edge["to"]
        yield source, target, str(edge.get("partitioning") or PARTITIONINGS[0])
