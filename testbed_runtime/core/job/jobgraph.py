"""The job as the JobManager sees it: vertices, edges, what each vertex does. Plain data, built from the API."""

from __future__ import annotations

from dataclasses import dataclass

from testbed_runtime.core.job.results import BOUNDED, EAGER

PARTITIONINGS = ("hash", "rebalance", "forward", "broadcast")

MIN_RECORD_BYTES = 48
"""The header of a generated record (workload/records.py): a smaller `recordBytes` is refused."""


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Seeded open loop: record n of the vertex is due at t0 + n / rate, across attempts."""

    kind: str = "generated"
    """`generated`, or `socket` (lines of words from `host:port`, one record a word)."""
    records_per_second: float = 1000.0
    """Rate of the whole vertex; each subtask emits every parallelism-th record."""
    record_bytes: int = 100
    """Without the 4-byte length."""
    keys: int = 1000
    key_skew: float = 0.0
    """Zipf exponent; 0 is uniform."""
    limit: int = 0
    """Records of the whole vertex; 0 means unbounded."""
    splits: int = 0
    """Parts of `limit` that the subtasks request from the JobMaster one after the other; 0: each has a fixed share."""
    socket: str = ""


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    kind: str = "map"
    """`map`, `keyed-count`, `window` (tumbling, processing time of the due time), `python` (one call a record)."""
    service_time_s: float = 0.0
    """Service time per record."""
    window_s: float = 5.0
    function: str = ""
    """`file.py:name` beside the scenario, made absolute by the runner."""
    state_ttl_s: float = 0.0
    """How long an entry of the state lives after it was written; 0: without end."""

    @property
    def keyed(self) -> bool:
        """Whether it has keyed state."""
        return self.kind in ("keyed-count", "window")


@dataclass(frozen=True, slots=True)
class SinkConfig:
    kind: str = "ledger"
    """`ledger` (ranges into checkpoint and history) or `file` (lines, committed with the checkpoint)."""
    delivery: str = "exactly-once"
    """`exactly-once`: committed by the completed checkpoint. `at-least-once`: committed at once."""
    path: str = ""
    service_time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobVertex:
    """Exactly one of source, operator, sink says what it does (a sink may also have no output)."""

    name: str
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str = "default"
    source: SourceConfig | None = None
    operator: OperatorConfig | None = None
    sink: SinkConfig | None = None
    inputs: str = "all"
    """`all` or `any` of the inputs that are deployed on their first record must have one."""


@dataclass(frozen=True, slots=True)
class JobEdge:
    source: str
    target: str
    partitioning: str = "hash"
    result: str = BOUNDED
    deployment: str = EAGER
    """One of core.job.results."""


@dataclass(frozen=True, slots=True)
class JobGraph:
    name: str
    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...]
    seed: int = 1

    def vertex(self, name: str) -> JobVertex:
        return next(v for v in self.vertices if v.name == name)

    def inputs(self, name: str) -> tuple[JobEdge, ...]:
        return tuple(e for e in self.edges if e.target == name)

    def outputs(self, name: str) -> tuple[JobEdge, ...]:
        return tuple(e for e in self.edges if e.source == name)
