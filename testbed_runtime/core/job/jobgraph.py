"""The job as the JobManager sees it: vertices, edges, what each vertex does. Plain data, built from the API."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from testbed_runtime.core.job.results import BLOCKING, BOUNDED, EAGER

PARTITIONINGS = ("hash", "rebalance", "forward", "broadcast")

FUNCTIONS: Mapping[str, int] = MappingProxyType({"python": 1, "flat-map": 1, "solution-set-join": 2})
"""The operators that call a Python function, and the number of records that it takes."""

BULK, DELTA = "bulk", "delta"

MIN_RECORD_BYTES = 48
"""The header of a generated record (workload/records.py): source, sequence, key, due time, checksum and their padding. A smaller
`recordBytes` is refused."""


class SourceConfig(Struct, frozen=True):
    """Seeded open loop: record n of the vertex is due at t0 + n / rate, across attempts."""

    kind: str = "generated"
    """`generated`, or `socket` (lines of words from `host:port`, one record a word)."""
    records_per_second: float = 1000.0
    """Rate of the whole vertex; each subtask emits every parallelism-th record."""
    record_bytes: int = 100
    """Bytes of a record without its 4-byte length."""
    keys: int = 1000
    key_skew: float = 0.0
    """Zipf exponent; 0 is uniform."""
    limit: int = 0
    """Records of the whole vertex; 0 means unbounded."""
    splits: int = 0
    """Parts of `limit` that the subtasks request from the JobMaster one after the other; 0: each has a fixed share."""
    socket: str = ""

    def share(self, subtask: int, parallelism: int) -> int:
        """Return how many records a subtask emits; -1 for no limit."""
        return max(0, -((subtask - self.limit) // parallelism)) if self.limit else -1


class OperatorConfig(Struct, frozen=True):
    kind: str = "map"
    """`map`, `keyed-count`, `window` (tumbling, processing time of the due time), `python` (one call a record); inside a delta
    iteration `flat-map` (a record to any number of records) and `solution-set-join`."""
    service_time_s: float = 0.0
    """Service time per record."""
    window_s: float = 5.0
    function: str = ""
    """A reference to a function (core/job/functions.py), its path made absolute."""
    state_ttl_s: float = 0.0
    """How long an entry of the state lives after it was written; 0: forever."""

    @property
    def keyed(self) -> bool:
        """Whether it has keyed state."""
        return self.kind in ("keyed-count", "window")


class SinkConfig(Struct, frozen=True):
    kind: str = "ledger"
    """`ledger` (ranges into checkpoint and history) or `file` (lines, committed with the checkpoint)."""
    delivery: str = "exactly-once"
    """`exactly-once`: committed by the completed checkpoint. `at-least-once`: committed at once."""
    path: str = ""
    service_time_s: float = 0.0


SYNC_SUFFIX = "-sync"
"""The name of a synchronisation task is the name of its iteration's head with this suffix."""


class IterationConfig(Struct, frozen=True):
    """An iteration, as its head, its tail and its synchronisation task know it."""

    head: str
    kind: str = BULK
    """`bulk`: the result of a superstep is the input of the next. `delta`: a solution set, and a workset."""
    max_iterations: int = 1
    criterion: str = ""
    """`file.py:name`: a bulk iteration ends after a superstep in which it is true for no record; empty: it always runs the maximum number of supersteps."""
    step: str = ""
    """The first vertex of the step function."""
    sync: str = ""
    """The vertex of the synchronisation task."""

    @property
    def converges(self) -> bool:
        """Whether the iteration ends when no record is counted in a superstep."""
        return self.kind == DELTA or bool(self.criterion)


class JobVertex(Struct, frozen=True):
    """Exactly one of source, operator, sink, iteration, synchronizes says what it does (a sink may also have no output)."""

    name: str
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str = "default"
    source: SourceConfig | None = None
    operator: OperatorConfig | None = None
    sink: SinkConfig | None = None
    inputs: str = "all"
    """`all` or `any` of the inputs that are deployed on their first record must have one."""
    iteration: IterationConfig | None = None
    """The vertex is the head of this iteration."""
    synchronizes: IterationConfig | None = None
    """The vertex is the synchronisation task of this iteration."""
    feeds_back: IterationConfig | None = None
    """The vertex is the tail of this iteration: its records go to the head, not to a result."""
    max_parallelism_computed: bool = False
    """The max parallelism is the default, so the max parallelism of a restored checkpoint replaces it."""


class JobEdge(Struct, frozen=True):
    source: str
    target: str
    partitioning: str = "hash"
    result: str = BOUNDED
    deployment: str = EAGER
    """One of core.job.results."""


class JobGraph(Struct, frozen=True):
    name: str
    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...]
    seed: int = 1

    @property
    def is_batch(self) -> bool:
        """Whether the job takes no checkpoints and ends with its sources, because it has a blocking result or
        an iteration."""
        return any(e.result == BLOCKING for e in self.edges) or any(v.iteration for v in self.vertices)

    @property
    def channels(self) -> int:
        """Number of input channels of all tasks."""
        return sum(self.producers(edge) * self.vertex(edge.target).parallelism for edge in self.edges)

    def producers(self, edge: JobEdge) -> int:
        """Number of producers of each consumer."""
        return 1 if edge.partitioning == "forward" else self.vertex(edge.source).parallelism

    def vertex(self, name: str) -> JobVertex:
        return next(v for v in self.vertices if v.name == name)

    def inputs(self, name: str) -> tuple[JobEdge, ...]:
        return tuple(e for e in self.edges if e.target == name)

    def outputs(self, name: str) -> tuple[JobEdge, ...]:
        return tuple(e for e in self.edges if e.source == name)
