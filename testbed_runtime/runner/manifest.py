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
from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import asdict, replace

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.jobgraph import JobVertex
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.trial.manifest import (
    EdgeEntry,
    FaultEntry,
    JobEntry,
    RunManifest,
    ScenarioEntry,
    TaskManagersEntry,
    TrialEntry,
    VertexEntry,
)
from testbed_runtime.core.trial.plan import CONTROL, NEVER, RunPlan, TestbedPlan, TrialPlan
from testbed_runtime.files import write_whole
from testbed_runtime.history.manifest import (
    MANIFEST,
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
    epoch_ns: int | None = None
    """As in the manifest."""


class Manifest:
    """The run's record. A change is on disk when `save` (temporary file, then rename) returns."""

    def __init__(self, folder: Path, run: RunManifest) -> None:
        self.folder = folder
        self.run = run

    @classmethod
    def open(
        cls, folder: Path, info: RunInfo, plan: RunPlan, document: Mapping[str, Any], *, resume: bool
    ) -> Manifest:
        """Return a new manifest, or with `resume` that of the folder, if it has one. `document` is stored for readers of the report; all
        decisions use the plan. Raises UserError for the manifest of another run."""
        if not resume or not (folder / MANIFEST).exists():
            manifest = cls(folder, _planned(info, plan, document))
            manifest.save()
            return manifest
        found = read_manifest(folder)
        if found.run != info.run:
            problem = f"holds the run {found.run}, not {info.run}"
            raise UserError(str(folder), problem, "give each run a folder of its own")
        return cls(folder, replace(found, interrupted=False))

    def change(self, **fields: Any) -> None:
        self.run = replace(self.run, **fields)

    async def keep(self, folder: RunFolder) -> None:
        """Write the manifest to disk, and store it with the run's record."""
        self.save()
        await folder.keep(MANIFEST)

    def save(self) -> None:
        text = msgspec.json.format(msgspec.json.encode(self.run), indent=1)
        write_whole(self.folder / MANIFEST, text + b"\n")

    def add_trial(self, plan: TrialPlan) -> TrialRecord:
        """Add an entry for a trial. It is on disk after the next `save`."""
        entry = TrialEntry(
            trial=plan.trial,
            variant=plan.variant,
            role=plan.role,
            number=plan.number,
            seed=plan.seed,
            flink_version=plan.testbed.flink_version,
            configuration=dict(plan.testbed.configuration),
            job=job_entry(plan.testbed),
            faults=() if plan.role == CONTROL else tuple(FaultEntry(**asdict(f)) for f in plan.faults),
            phases=(),
            drained=False,
            ended=False,
        )
        self.change(trials=(*self.run.trials, entry))
        return TrialRecord(self, entry)


class TrialRecord:
    """The entry of a trial in the manifest while the trial runs."""

    def __init__(self, manifest: Manifest, entry: TrialEntry) -> None:
        self._manifest = manifest
        self.entry = entry

    def change(self, **fields: Any) -> None:
        """Change fields of the entry. They are on disk after the next `save` of the manifest."""
        self.entry = changed = replace(self.entry, **fields)
        trials = (changed if e.trial == changed.trial else e for e in self._manifest.run.trials)
        self._manifest.change(trials=tuple(trials))

    def void(self) -> None:
        """Close a trial that a dead runner left open: it has no sealed history and is not judged."""
        self.change(voided=True, ended=True, abandoned=True, void_reason=OPEN_TEXT)

    def accepted(self, handle: FaultHandle, targets: tuple[str, ...]) -> None:
        """Record that a backend has accepted a fault."""
        named = (handle.fault, handle.fault.rpartition("/")[2])
        fault = next(f for f in self.entry.faults if f.name in named)
        seen = replace(
            fault, targets=tuple(handle.targets or targets), backend=handle.backend, why=handle.why
        )
        self.change(faults=tuple(seen if f is fault else f for f in self.entry.faults))


def _planned(info: RunInfo, plan: RunPlan, document: Mapping[str, Any]) -> RunManifest:
    return RunManifest(
        run=info.run,
        scenario=convert(document, ScenarioEntry),
        environment=info.environment,
        seed=plan.seed,
        looks=list(plan.looks),
        expectations={t.variant: [expectation_entry(e) for e in t.expectations] for t in plan.trials},
        started=info.started,
        epoch_ns=info.epoch_ns,
        machine=dict(info.machine),
    )


def next_attempt(plan: TrialPlan, entries: Sequence[TrialEntry]) -> TrialPlan | None:
    """Return the next attempt of a trial (`plan` is the first attempt). None if an attempt already counts, or there were enough attempts."""
    key = (plan.variant, plan.role, plan.number)
    own = [e for e in entries if (e.variant, e.role, e.number) == key]
    if not own:
        return plan
    if not own[-1].voided:
        return None
    lapsed = sum(1 for e in own if not e.abandoned)
    if lapsed >= MAX_ATTEMPTS or len(own) >= MAX_REPEATS:
        return None
    return replace(plan, attempt=len(own) + 1)


def expectation_entry(item: Expectation) -> dict[str, Any]:
    """Return an expectation as `Expectation.from_item` reads it."""
    return {
        name: value for name, value in to_builtins(item).items() if value is not None and name != "problem"
    }


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
