"""The manifest of a run, as everything that reads it sees it: what was planned, and what was done.

`runner.manifest` writes the file, `history.manifest` reads and validates it.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.job.jobgraph import PARTITIONINGS
from testbed_runtime.core.job.keygroups import UPPER_BOUND_MAX_PARALLELISM
from testbed_runtime.core.job.results import BLOCKING
from testbed_runtime.core.options import Options
from testbed_runtime.core.trial.plan import CONTROL, NEVER, Role
from testbed_runtime.core.versions import LATEST, VERSIONS

MANIFEST_SCHEMA = 2


class PhaseEntry(Struct, frozen=True):
    name: str
    start_ns: int
    end_ns: int


class FaultEntry(Fault, frozen=True):
    """A fault as planned. `targets`, `backend` and `why` are filled in when it is injected."""

    targets: tuple[str, ...] = ()
    backend: str = ""
    why: str = ""


class VertexEntry(Struct, frozen=True, rename="camel"):
    name: str
    parallelism: Annotated[int, Meta(ge=1, le=UPPER_BOUND_MAX_PARALLELISM)] = 1
    slot_sharing_group: str = "default"
    role: str = ""
    """`source`, `operator` or `sink`."""
    kind: str = ""
    """The kind of its source, operator or sink."""
    records_per_second: float | None = None
    record_bytes: int = 0
    limit: int | None = None
    delivery: str = ""


class EdgeEntry(Struct, frozen=True):
    source: str = field(name="from")
    target: str = field(name="to")
    partitioning: str = PARTITIONINGS[0]
    result: str = ""


class TaskManagersEntry(Struct, frozen=True, rename="camel"):
    replicas: int = 0
    slots: int = 1
    replace_lost: str = NEVER


class JobEntry(Struct, frozen=True, rename="camel"):
    vertices: tuple[VertexEntry, ...] = ()
    edges: tuple[EdgeEntry, ...] = ()
    task_managers: TaskManagersEntry = TaskManagersEntry()


class TrialEntry(Struct, frozen=True, kw_only=True):
    """One trial of the run, or one attempt of it."""

    trial: str
    variant: str
    role: Role
    number: int
    """Trials of different variants with the same number have the same seed."""
    seed: int
    flink_version: str = field(name="flinkVersion", default=LATEST)
    configuration: dict[str, str]
    job: JobEntry
    faults: tuple[FaultEntry, ...]
    phases: tuple[PhaseEntry, ...]
    """The phases that were reached."""
    voided: bool = False
    void_reason: str = ""
    abandoned: bool = False
    """The runner ended during the trial, so it has no sealed history."""
    ended: bool = True
    healed: str = ""
    """Why its faults were ended by hand; empty if they were not."""
    residue: dict[str, Any] = {}
    """Fault → the residue that it left."""
    error: str = ""
    """Why the trial could not be completed; empty if it was."""
    drained: bool | None = None
    stop_refused: str = ""
    job_state: str = ""
    cause: str = ""
    """The last root cause of the job's failure; empty if it ran when the trial ended."""
    paths: dict[str, dict[str, Any]] = {}
    """The network's own round trip and loss before the first fault, by path."""
    noise: float | None = None
    """The noise of its control trial, which the evaluation adds (checking.baseline.with_noise)."""

    @property
    def is_control(self) -> bool:
        return self.role == CONTROL

    @property
    def counts(self) -> bool:
        """Whether it was completed and is not void."""
        return not self.voided and not self.error

    @property
    def options(self) -> Options:
        """The options of its Flink. An unknown version counts as the newest."""
        known = self.flink_version if self.flink_version in VERSIONS else LATEST
        return Options(self.configuration, flink_version=known)

    @property
    def parallelism(self) -> dict[str, int]:
        """The parallelism of each vertex."""
        return {vertex.name: vertex.parallelism for vertex in self.job.vertices}

    @property
    def tasks(self) -> set[str]:
        """The subtasks of its job."""
        return {f"{name}-{i}" for name, count in self.parallelism.items() for i in range(count)}

    @property
    def blocking_edges(self) -> list[EdgeEntry]:
        """The edges whose results are read only when they are complete."""
        return [edge for edge in self.job.edges if edge.result == BLOCKING]

    @property
    def moments(self) -> list[int]:
        """When its phases began and ended."""
        return [moment for phase in self.phases for moment in (phase.start_ns, phase.end_ns)]


class ScenarioEntry(Struct, frozen=True, kw_only=True, rename="camel"):
    """The document of the run."""

    api_version: str = ""
    kind: str = ""
    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {}


class RunManifest(Struct, frozen=True, kw_only=True):
    schema: int = MANIFEST_SCHEMA
    run: str
    expectations: dict[str, list[dict[str, Any]]]
    """The expectations of each variant, as `Expectation.from_item` reads them."""
    trials: tuple[TrialEntry, ...] = ()
    """In the order in which they started."""
    scenario: ScenarioEntry = ScenarioEntry()
    environment: str = field(name="place", default="")
    """`local`, `kubernetes` or `simulation`."""
    seed: int | None = None
    started: str = ""
    """ISO 8601, UTC."""
    epoch_ns: int | None = None
    """Nanoseconds to add to the times of the history to get those since 1970. None if unknown: virtual time has no date."""
    machine: dict[str, Any] = {}
    looks: list[Annotated[int, Meta(ge=1)]] = []
    decided: Annotated[int, Meta(ge=1)] | None = None
    """The number of trials of each variant after which every comparison was decided."""
    interrupted: bool = False
    healed: str = ""
    """Why the run's faults were ended by hand; empty if they were not."""

    @property
    def counted(self) -> list[TrialEntry]:
        """The trials that are evaluated."""
        return [entry for entry in self.trials if entry.counts]

    @property
    def name(self) -> str:
        """The name of the scenario. Empty if the document has none."""
        return str(self.scenario.metadata.get("name") or "")
