"""`manifest.json`: what was asked and what was done, written after every step so that a crash keeps what is known."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testbed_runtime.api import models
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.runner.folder import RunFolder
from testbed_runtime.runner.plan import CONTROL, TrialPlan

MANIFEST_SCHEMA = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What the caller knows of the run: the engine has no wall clock and looks at no machine."""

    run: str
    place: str
    started: str
    """ISO 8601, UTC."""
    machine: Mapping[str, Any] = field(default_factory=dict)


class Manifest:
    """The run's record. Every change is on disk (temporary file, then rename) when the call returns."""

    def __init__(self, folder: Path, info: RunInfo, document: Mapping[str, Any]) -> None:
        self.folder = folder
        self.data: dict[str, Any] = {
            "schema": MANIFEST_SCHEMA,
            "run": info.run,
            "scenario": document,
            "place": info.place,
            "seed": document.get("spec", {}).get("seed", 1),
            "started": info.started,
            "machine": dict(info.machine),
            "trials": [],
            "interrupted": False,
        }
        self.save()

    @classmethod
    def open(cls, folder: Path, info: RunInfo, document: Mapping[str, Any]) -> Manifest:
        """A new one, or the one of this run that is in the folder already. Raises UserError for another run's."""
        if not (folder / MANIFEST).exists():
            return cls(folder, info, document)
        found = read_manifest(folder)
        if found["run"] != info.run:
            raise UserError(
                str(folder),
                f"holds the run {found['run']}, not {info.run}",
                "give each run a folder of its own",
            )
        manifest = cls.__new__(cls)
        manifest.folder, manifest.data = folder, {**found, "interrupted": False}
        return manifest

    @property
    def trials(self) -> list[dict[str, Any]]:
        """Their entries, in the order in which they began."""
        entries: list[dict[str, Any]] = self.data["trials"]
        return entries

    async def keep(self, folder: RunFolder) -> None:
        """On disk, and where the run's record is kept."""
        self.save()
        await folder.keep(MANIFEST)

    def save(self) -> None:
        write_json(self.folder / MANIFEST, self.data)

    def trial(self, plan: TrialPlan) -> dict[str, Any]:
        """A new entry, already in the manifest; change it and `save`."""
        entry: dict[str, Any] = {
            "trial": plan.trial,
            "variant": plan.variant,
            "role": plan.role,
            "number": plan.number,
            "seed": plan.seed,
            "flinkVersion": plan.testbed.flink_version,
            "configuration": dict(plan.testbed.flink_configuration),
            "faults": [] if plan.role == CONTROL else [fault_entry(f) for f in plan.faults],
            "phases": [],
            "voided": False,
            "drained": False,
            "job_state": "",
            "job": job_entry(plan.testbed),
            "error": "",
            "residue": {},
            "ended": False,
        }
        self.data["trials"].append(entry)
        self.save()
        return entry


def fault_entry(fault: Fault) -> dict[str, Any]:
    """A fault as asked; targets, backend and why are filled in at its injection."""
    return {
        "name": fault.name,
        "kind": fault.kind,
        "at_s": fault.at_s,
        "before_submit": fault.before_submit,
        "duration_s": fault.duration_s,
        "target": asdict(fault.target),
        "plane": fault.plane,
        "direction": fault.direction,
        "targets": [],
        "params": dict(fault.params),
        "backend": "",
        "why": "",
    }


def note_handle(entry: dict[str, Any], handle: FaultHandle, targets: tuple[str, ...]) -> None:
    """The backend has taken the fault."""
    fault = next(
        f for f in entry["faults"] if f["name"] == handle.fault or handle.fault.endswith(f"/{f['name']}")
    )
    fault.update(targets=list(handle.targets or targets), backend=handle.backend, why=handle.why)


def job_entry(testbed: models.TestbedSpec) -> dict[str, Any]:
    """The job graph for the judges: vertices with their role and rate, edges, and the slots there are."""
    return {
        "vertices": [_vertex_entry(v) for v in testbed.job.vertices],
        "edges": [{"from": e.from_, "to": e.to, "partitioning": e.partitioning} for e in testbed.job.edges],
        "taskManagers": {
            "replicas": testbed.task_managers.replicas,
            "slots": testbed.task_managers.slots,
            "replaceLost": testbed.task_managers.replace_lost,
        },
    }


def _vertex_entry(vertex: models.Vertex) -> dict[str, Any]:
    role = "source" if vertex.source else "sink" if vertex.sink else "operator"
    entry: dict[str, Any] = {
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "role": role,
        "kind": vertex.source.kind if vertex.source else vertex.operator or vertex.sink,
        "slotSharingGroup": vertex.slot_sharing_group,
    }
    if vertex.source:
        entry |= {
            "recordsPerSecond": vertex.source.records_per_second,
            "recordBytes": vertex.source.record_bytes,
            "limit": vertex.source.limit,
        }
    if vertex.sink:
        entry["delivery"] = vertex.delivery
    return entry


def write_json(path: Path, data: Any) -> None:
    """Whole or not at all: a temporary file beside it, flushed to disk, then renamed."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Raises UserError when the folder is no run's, or its manifest is broken."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(
            str(folder),
            "is no folder of a run: it has no manifest.json",
            "name a folder under headgate-runs/",
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(
            str(path), f"is no JSON: {error}", "the run's manifest is damaged; run the scenario again"
        ) from None
    if not isinstance(data, dict) or data.get("schema") != MANIFEST_SCHEMA:
        raise UserError(
            str(path), f"is not of schema {MANIFEST_SCHEMA}", "it was written by another version of Headgate"
        )
    return data
