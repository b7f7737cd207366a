"""The record of a run: `manifest.json` and the folder that holds it.

The manifest says what was planned and what was done. It is written after every step, so that nothing that is known is lost in
a crash. From it a later runner of the same run decides where to continue: a trial that ended stays; a trial that was open is
void, because nothing renewed its leases, and is repeated under a new id. So nothing is injected twice within a trial.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field, to_builtins
from msgspec.structs import asdict, replace

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.job.jobgraph import JobVertex
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.trial.manifest import (
    EdgeEntry,
    FaultEntry,
    JobEntry,
    RunManifest,
    TaskManagersEntry,
    VertexEntry,
)
from testbed_runtime.core.trial.plan import CONTROL, NEVER, RunPlan, TestbedPlan, TrialPlan
from testbed_runtime.files import write_whole
from testbed_runtime.history.manifest import (
    MANIFEST,
    MANIFEST_SCHEMA,
    manifest_data,
    manifest_of,
    read_manifest,
)
from testbed_runtime.ports.hosts import FaultHandle

MAX_ATTEMPTS = 3
"""Maximum attempts of one trial. If its faults lapse or its pods are removed three times, that is no coincidence."""
MAX_REPEATS = 10
"""Maximum attempts of one trial, including those that a dead runner left open: more than the restarts that an operator grants."""
OPEN_TEXT = "the runner ended during this trial"


class RunFolder:
    """The storage of a run's record. `path` is a local folder that the engine writes to. On one machine that folder is the
    record; in a pod it is a copy of what the recorder stores (`kube.recorder`)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def keep(self, *names: str) -> None:
        """Store these files of the folder (relative, `/`-separated) so that they outlive this process. Files that do not exist
        are skipped. Raises HeadgateError when they cannot be stored."""

    async def restore(self, *names: str) -> None:
        """Copy the files that an earlier process of this run stored under these names into the folder. Names that were never
        stored are skipped. Raises HeadgateError when that cannot be determined."""


class RunInfo(Struct, frozen=True):
    """The facts about a run that its caller knows: the engine has no wall clock and inspects no machine."""

    run: str
    environment: str
    """`local`, `kubernetes` or `simulation`; in the manifest under its first name, `place`."""
    started: str
    """ISO 8601, UTC."""
    machine: Mapping[str, Any] = field(default_factory=dict)


class Manifest:
    """The run's record. Every change is on disk (temporary file, then rename) when the call returns."""

    def __init__(self, folder: Path, info: RunInfo, plan: RunPlan, document: Mapping[str, Any]) -> None:
        """`document` is stored for readers of the report; all decisions use the plan."""
        self.folder = folder
        self.data: dict[str, Any] = {
            "schema": MANIFEST_SCHEMA,
            "run": info.run,
            "scenario": document,
            "place": info.environment,
            "seed": plan.seed,
            "looks": list(plan.looks),
            "expectations": {t.variant: [expectation_entry(e) for e in t.expectations] for t in plan.trials},
            "started": info.started,
            "machine": dict(info.machine),
            "trials": [],
            "interrupted": False,
        }
        self.save()

    @classmethod
    def open(cls, folder: Path, info: RunInfo, plan: RunPlan, document: Mapping[str, Any]) -> Manifest:
        """Return this run's manifest from the folder, or a new one. Raises UserError for the manifest of another run."""
        if not (folder / MANIFEST).exists():
            return cls(folder, info, plan, document)
        found = read_manifest(folder)
        if found.run != info.run:
            problem = f"holds the run {found.run}, not {info.run}"
            raise UserError(str(folder), problem, "give each run a folder of its own")
        manifest = cls.__new__(cls)
        manifest.folder, manifest.data = folder, {**manifest_data(folder), "interrupted": False}
        return manifest

    @property
    def trials(self) -> list[dict[str, Any]]:
        """Entries of the trials, in the order in which they started."""
        entries: list[dict[str, Any]] = self.data["trials"]
        return entries

    def read(self) -> RunManifest:
        """Return the manifest as its readers see it."""
        return manifest_of(self.data)

    async def keep(self, folder: RunFolder) -> None:
        """Write the manifest to disk, and store it with the run's record."""
        self.save()
        await folder.keep(MANIFEST)

    def save(self) -> None:
        write_json(self.folder / MANIFEST, self.data)

    def trial(self, plan: TrialPlan) -> dict[str, Any]:
        """Add an entry for a trial and return it; change it and `save`."""
        entry: dict[str, Any] = {
            "trial": plan.trial,
            "variant": plan.variant,
            "role": plan.role,
            "number": plan.number,
            "seed": plan.seed,
            "flinkVersion": plan.testbed.flink_version,
            "configuration": dict(plan.testbed.configuration),
            "faults": [] if plan.role == CONTROL else [fault_entry(f) for f in plan.faults],
            "phases": [],
            "voided": False,
            "drained": False,
            "stop_refused": "",
            "job_state": "",
            "cause": "",
            "job": to_builtins(job_entry(plan.testbed)),
            "error": "",
            "residue": {},
            "ended": False,
        }
        self.data["trials"].append(entry)
        self.save()
        return entry


def open_entries(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the trials that started and did not end."""
    return [entry for entry in entries if not entry.get("ended", True)]


def void_open(entry: dict[str, Any]) -> None:
    """Close a trial as void: it has no sealed history and is not judged."""
    entry.update(voided=True, ended=True, abandoned=True, void_reason=OPEN_TEXT)


def next_attempt(plan: TrialPlan, entries: Sequence[Mapping[str, Any]]) -> TrialPlan | None:
    """Return the next attempt of a trial (`plan` is the first attempt). None if an attempt already counts, or there were enough attempts."""
    key = (plan.variant, plan.role, plan.number)
    own = [e for e in entries if (e["variant"], e["role"], e["number"]) == key]
    if not own:
        return plan
    if not own[-1].get("voided"):
        return None
    lapsed = sum(1 for e in own if not e.get("abandoned"))
    if lapsed >= MAX_ATTEMPTS or len(own) >= MAX_REPEATS:
        return None
    return replace(plan, attempt=len(own) + 1)


def expectation_entry(item: Expectation) -> dict[str, Any]:
    """Return an expectation as `Expectation.from_item` reads it."""
    return {
        name: value for name, value in to_builtins(item).items() if value is not None and name != "problem"
    }


def fault_entry(fault: Fault) -> dict[str, Any]:
    """Return a fault as planned; targets, backend and why are filled in when it is injected."""
    entry: dict[str, Any] = to_builtins(FaultEntry(**asdict(fault)))
    return entry


def note_handle(entry: dict[str, Any], handle: FaultHandle, targets: tuple[str, ...]) -> None:
    """Record that a backend has accepted the fault."""
    fault = next(
        f for f in entry["faults"] if f["name"] == handle.fault or handle.fault.endswith(f"/{f['name']}")
    )
    fault.update(targets=list(handle.targets or targets), backend=handle.backend, why=handle.why)


def job_entry(testbed: TestbedPlan) -> JobEntry:
    """Return the job graph for the evaluation: vertices with their role and rate, edges, and the available slots."""
    edges = (EdgeEntry(e.source, e.target, e.partitioning, e.result) for e in testbed.job.edges)
    managers = TaskManagersEntry(testbed.replicas, testbed.slots, _replace_lost(testbed.replace_lost_s))
    return JobEntry(tuple(map(_vertex_entry, testbed.job.vertices)), tuple(edges), managers)


def _replace_lost(after_s: float | None) -> str:
    """Return the value of `replaceLost` as a document has it."""
    if after_s is None:
        return NEVER
    return f"{after_s:g} s" if after_s.is_integer() else f"{after_s * 1e3:g} ms"


def _vertex_entry(vertex: JobVertex) -> VertexEntry:
    entry = VertexEntry(vertex.name, vertex.parallelism, vertex.slot_sharing_group)
    if source := vertex.source:
        return replace(
            entry,
            role="source",
            kind=source.kind,
            records_per_second=source.records_per_second,
            record_bytes=source.record_bytes,
            limit=source.limit,
        )
    if vertex.sink:
        return replace(entry, role="sink", kind=vertex.sink.kind, delivery=vertex.sink.delivery)
    kind = vertex.operator.kind if vertex.operator else "iteration" if vertex.iteration else ""
    kind = kind or ("synchronization" if vertex.synchronizes else "")
    return replace(entry, role="operator", kind=kind) if kind else entry


def indented(data: Any) -> str:
    """Return data as indented JSON. The text is that of `json.dumps(data, indent=1)`, whose encoder is slow because it is
    written in Python."""
    try:
        return msgspec.json.format(json.dumps(data, ensure_ascii=False), indent=1)
    # data with a NaN or half of a surrogate pair, which msgspec does not support
    except (msgspec.DecodeError, UnicodeEncodeError):
        return json.dumps(data, indent=1, ensure_ascii=False)


def write_json(path: Path, data: Any) -> None:
    """Write a file that is complete and on the disk when the call returns."""
    write_whole(path, f"{indented(data)}\n".encode())
