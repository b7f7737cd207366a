"""The manifest of a run as its readers see it: the file, and what a trial's entry says about the job and its options.

The runner writes it (runner.manifest). Report, evaluation, checks and commands read it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.job.jobgraph import PARTITIONINGS
from testbed_runtime.core.job.keygroups import UPPER_BOUND_MAX_PARALLELISM
from testbed_runtime.core.job.results import BLOCKING
from testbed_runtime.core.options import Options
from testbed_runtime.core.versions import LATEST, VERSIONS
from testbed_runtime.files import field_of, read_document

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
        data = read_document(path)
    except (OSError, ValueError) as error:
        raise UserError(
            str(path), f"is not JSON: {error}", "the run's manifest is damaged; run the scenario again"
        ) from None
    if not isinstance(data, dict) or data.get("schema") != MANIFEST_SCHEMA:
        hint = "it was written by another version of Headgate; run the scenario again"
        raise UserError(str(path), f"does not have schema {MANIFEST_SCHEMA}", hint)
    if problem := _damage(data):
        raise UserError(str(path), problem, "the run's manifest is damaged; run the scenario again")
    return data


def _runs_in(folder: Path) -> str:
    """Say which folder to name instead of one that is no run. Runs of seeds are two levels deeper."""
    inside = sorted(path.parent for depth in ("*", "*/*", "*/*/*") for path in folder.glob(f"{depth}/{MANIFEST}"))
    return f"name a run in it, such as {inside[-1]}" if inside else "name a folder under headgate-runs/"


class _Phase(Struct, frozen=True):
    name: str
    start_ns: int
    end_ns: int


class _Fault(Struct, frozen=True):
    name: str
    kind: str
    at_s: float = 0.0
    duration_s: float | None = None
    params: dict[str, Any] = {}


class _Vertex(Struct, frozen=True):
    name: str
    parallelism: Annotated[int, Meta(ge=1, le=UPPER_BOUND_MAX_PARALLELISM)] = 1


class _Edge(Struct, frozen=True):
    source: str = field(name="from")
    target: str = field(name="to")
    partitioning: str = ""
    result: str = ""


class _Job(Struct, frozen=True):
    vertices: list[_Vertex] = []
    edges: list[_Edge] = []


class _Trial(Struct, frozen=True):
    trial: str
    variant: str
    configuration: dict[str, Any]
    job: _Job
    faults: list[_Fault]
    phases: list[_Phase]
    role: Literal["control", "fault"]
    number: int
    seed: int


class _Scenario(Struct, frozen=True):
    metadata: dict[str, Any] = {}


class _Run(Struct, frozen=True):
    """The fields of a manifest that its readers need. It may have more."""

    run: str
    expectations: dict[str, list[dict[str, Any]]]
    trials: list[_Trial] = []
    scenario: _Scenario | None = None
    machine: dict[str, Any] = {}
    looks: list[Annotated[int, Meta(ge=1)]] = []
    decided: Annotated[int, Meta(ge=1)] | None = None


def _damage(data: Mapping[str, Any]) -> str:
    """Return the first field that is missing or has a type that cannot be read. Empty if all fields are sound."""
    try:
        found = msgspec.convert(data, _Run)
    except msgspec.ValidationError as error:
        return field_of(error)
    if found.decided and not found.looks:
        return f"decided: is {found.decided}, but `looks` is empty"
    for number, trial in enumerate(found.trials):
        if trial.variant not in found.expectations:
            return f"expectations has no list for {trial.variant!r:.60}, the variant of trials[{number}]"
        try:
            TopologicalSorter(grouped((edge.target, edge.source) for edge in trial.job.edges)).prepare()
        except CycleError as error:
            return f"trials[{number}].job.edges: there is a cycle {' → '.join(error.args[1])!r:.200}"
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
        yield edge["from"], edge["to"], str(edge.get("partitioning") or PARTITIONINGS[0])
