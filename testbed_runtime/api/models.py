"""The kinds as pydantic models: `Scenario`, with `Testbed` and `Fault` as its parts.

Aliases are camelCase, unknown fields are refused, every list, map and string is bounded (api.limits). Durations are strings in
Flink's syntax. No field is string-or-object, because a structural schema cannot express that. Rules between fields are in
api.validate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from testbed_runtime.api import limits
from testbed_runtime.api.fields import AtText, Duration, FractionText, ReplaceLostText, models_in
from testbed_runtime.api.naming import ApiVersion
from testbed_runtime.core.faults.kinds import FAMILIES, kinds_of
from testbed_runtime.core.faults.vocabulary import Family, Kind, Parameter, Type
from testbed_runtime.core.job.jobgraph import MIN_RECORD_BYTES
from testbed_runtime.core.judgement.metrics import parse_quantile
from testbed_runtime.core.trial.plan import NEVER, REAL_PARALLELISM_MAX, REAL_TASK_MANAGERS_MAX
from testbed_runtime.core.versions import Version

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A DNS label: names become names of pods, files and tests."""
QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?)?$"
"""Kubernetes' quantities for cpu, memory and storage; empty: not set."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=limits.MAX_NAME)]
Text = Annotated[str, StringConstraints(max_length=limits.MAX_TEXT)]
PathText = Annotated[str, StringConstraints(max_length=limits.MAX_PATH)]
Quantity = Annotated[str, StringConstraints(pattern=QUANTITY_PATTERN, max_length=limits.MAX_DURATION_TEXT)]
OptionKey = Annotated[str, StringConstraints(min_length=1, max_length=limits.MAX_OPTION_KEY)]
OptionValue = Annotated[str, StringConstraints(max_length=limits.MAX_OPTION_VALUE)]
FlinkConfiguration = Annotated[dict[OptionKey, OptionValue], Field(max_length=limits.MAX_OPTIONS)]
Scalar = (
    Annotated[int, Field(strict=True)]
    | Annotated[str, StringConstraints(max_length=limits.MAX_TEXT, strict=True)]
)
Margin = (
    Annotated[int, Field(strict=True, ge=0)]
    | Annotated[str, StringConstraints(max_length=limits.MAX_DURATION_TEXT, strict=True)]
)
"""The bound of a difference, such as `20 %` or `500 ms`."""


IN_A_CLUSTER = "x-in-a-cluster"
"""Key in a field's schema: its maximum where processes are real."""


class Part(BaseModel):
    """Base of every part: frozen, strict about unknown fields and types, camelCase outside and Python's names inside."""

    model_config = ConfigDict(
        defer_build=True,
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
    )


def _parts(part: BaseModel) -> set[str]:
    """Return the aliases of the optional fields that hold a part."""
    fields = type(part).model_fields
    return {str(field.alias or name) for name, field in fields.items() if any(models_in(field.annotation))}


def exactly_one(part: BaseModel, names: Iterable[str], what: str = "") -> None:
    """Raise PydanticCustomError unless exactly one of these fields of `part` is set."""
    fields = type(part).model_fields
    aliases = {name: str(fields[name].alias or name) for name in names}
    given = [alias for name, alias in aliases.items() if getattr(part, name) is not None]
    if len(given) == 1:
        return
    found = f"; there are {' and '.join(given)}" if given else "; there is none"
    # `kill:` without a value is null in YAML
    empty = next((aliases[name] for name in aliases if name in part.model_fields_set), "")
    if empty and not given:
        value = f"{empty}: {{}}, or its fields below it" if empty in _parts(part) else "it behind the colon"
        found = f": {empty} has no value (write {value})"
    listed = ", ".join(aliases.values())
    raise PydanticCustomError("exactly_one", f"needs exactly one {what}of {listed}{found}")


# ---- Testbed --------------------------------------------------------------------------------------------------


class TaskManagers(Part):
    """`replaceLost`: `Never`, or the delay after which a lost TaskManager is replaced by its next incarnation."""

    replicas: int = Field(
        2, ge=1, le=limits.MAX_TASKMANAGERS, json_schema_extra={IN_A_CLUSTER: REAL_TASK_MANAGERS_MAX}
    )
    """The number of TaskManagers. The job needs as many slots as the largest parallelism of each slot sharing group, added up."""
    slots: int = Field(1, ge=1, le=limits.MAX_SLOTS)
    """The slots of each TaskManager."""
    replace_lost: ReplaceLostText = NEVER
    """The delay after which a lost TaskManager is replaced by its next incarnation, or `Never`."""


class Source(Part):
    """Open loop: record n of the vertex is due at t0 + n / recordsPerSecond. With `socket`, lines of words from `host:port`."""

    kind: Literal["generated", "socket"] = "generated"
    """`generated` creates records from the seed; `socket` reads words from an address and cannot replay them."""
    records_per_second: int = Field(1000, ge=1, le=limits.MAX_RATE)
    """The rate of the whole vertex, open loop: record n is due at t₀ + n / rate, however slow the job is. Latency counts from the due time."""
    record_bytes: int = Field(100, ge=MIN_RECORD_BYTES, le=limits.MAX_RECORD_BYTES)
    """The size of a record, without its 4-byte length."""
    keys: int = Field(1000, ge=1, le=limits.MAX_KEYS)
    """The number of different keys."""
    key_skew: FractionText = "0"
    """The exponent of the keys' Zipf distribution; 0: uniform. A decimal number in quotes."""
    limit: int = Field(0, ge=0)
    """The number of records of the whole vertex, after which the source ends; 0: unlimited."""
    splits: int = Field(0, ge=0, le=limits.MAX_SPLITS)
    """The number of input splits of a source with a `limit`. Its subtasks request them one at a time from the JobManager (`requestNextInputSplit`); 0: each subtask has a fixed share."""
    socket: PathText = ""
    """With `kind: socket`: `host:port`. The testbed connects to it."""


VERTEX_ROLES = ("source", "operator", "sink", "iteration")
"""The fields of a vertex of which exactly one is set."""


class Iteration(Part):
    """The head of an iteration: an edge with `feedback: true` leads back to it."""

    kind: Literal["bulk", "delta"] = "bulk"
    """`bulk`: the result of a superstep is the input of the next one. `delta`: the records that enter are a solution set by key and the first workset; what the tail changes in the solution set is the next workset, and the solution set is the result."""
    max_iterations: int = Field(ge=1, le=limits.MAX_ITERATIONS)
    """The number of supersteps after which it ends in any case."""
    criterion: PathText = ""
    """With `kind: bulk`: `file.py:name`, a function as in `function`. It gets each record that is fed back; the iteration ends after a superstep in which it returns true for none."""


class Vertex(Part):
    """Exactly one of `source`, `operator`, `sink`, `iteration` says what its subtasks do."""

    name: Name
    """The name in edges, targets and the report. Its subtasks are `name-0`, `name-1`, …"""
    parallelism: int = Field(
        1, ge=1, le=limits.MAX_PARALLELISM, json_schema_extra={IN_A_CLUSTER: REAL_PARALLELISM_MAX}
    )
    """The number of subtasks."""
    max_parallelism: int | None = Field(None, ge=1, le=limits.MAX_KEY_GROUPS)
    """The number of key groups. By default Flink's rule: 1.5 × parallelism, rounded up to a power of two, at least 128."""
    slot_sharing_group: Name = "default"
    """Subtasks of one group share slots; different groups never do. For traffic between processes, give each stage its own group; otherwise its edges stay inside one process."""
    source: Source | None = None
    """Makes the vertex a source."""
    operator: Literal["map", "keyed-count", "window", "python", "flat-map", "solution-set-join"] | None = None
    """Makes the vertex an operator. `map` passes records on, `keyed-count` counts per key and passes them on, `window` counts per key and tumbling window, `python` calls a function for each record. Inside a delta iteration, `flat-map` calls a function that returns any number of records, and `solution-set-join` (the tail) one that takes a candidate and the entry with its key."""
    sink: Literal["ledger", "file"] | None = None
    """Makes the vertex a sink. `ledger` records which records arrived, `file` also writes lines of `(word,count)`."""
    iteration: Iteration | None = None
    """Makes the vertex the head of an iteration: it takes the initial input, feeds the step function (the operators up to the vertex with the `feedback` edge), and emits the result. Its task `<name>-sync` synchronises the supersteps."""
    service_time: Duration = "0 ms"
    """In operators and sinks: how long a subtask is busy with each record."""
    window: Duration = "5 s"
    """Length of the tumbling windows of `operator: window`, by the records' due time."""
    state_ttl: Duration = "0 s"
    """With `operator: keyed-count`: how long the count of a key is kept after its last record (Flink's StateTtlConfig); 0: without end."""
    function: PathText = ""
    """With `operator: python`: `file.py:name`, a file beside the scenario; it can import modules beside it. In a Testbed or a ScenarioRun it is `configmap://<ConfigMap>/file.py:name`; `headgate run --on kubernetes` writes that. It receives a record and returns a record, a new key, or None to drop it. In virtual time it takes no time: write its time into `serviceTime`. For `flat-map` it returns any number of records. For `solution-set-join` it receives a candidate and the entry, and returns the new entry, or None to keep it."""
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once"
    """In sinks: `exactly-once` commits with the completed checkpoint, `at-least-once` immediately."""
    path: PathText = ""
    """With `sink: file`: where its parts are written. The run stores what was committed under `files/<trial>/`."""
    inputs: Literal["all", "any"] = "all"
    """When an input has `deployment: on-first-record`: whether records on `all` such inputs or on `any` of them deploy the vertex."""

    @model_validator(mode="after")
    def _one_role(self) -> Vertex:
        exactly_one(self, VERTEX_ROLES)
        return self


class Edge(Part):
    from_: Name = Field(alias="from")
    """The vertex that sends."""
    to: Name
    """The vertex that receives."""
    partitioning: Literal["hash", "rebalance", "forward", "broadcast"] = "hash"
    """`hash` by key, `rebalance` round robin, `forward` one to one (equal parallelism), `broadcast` to every subtask."""
    result: Literal["pipelined", "pipelined-bounded", "blocking"] = "pipelined-bounded"
    """`pipelined-bounded` limits the buffers of the result, `pipelined` only those of each channel. `blocking` is written to a file of the producer's TaskManager and read when it is complete, again after a failure of the consumer."""
    deployment: Literal["eager", "on-first-record", "on-full-result"] = "eager"
    """When the consumer is deployed: `eager` with its producers, `on-first-record` when a producer has written its first record, `on-full-result` when it has finished (for blocking results only)."""
    feedback: bool = False
    """Closes an iteration: from the last operator of the step function (the tail) to the vertex with `iteration` (the head). Both run in the same slots, and the edge stays in memory."""


class Job(Part):
    vertices: Annotated[list[Vertex], Field(min_length=1, max_length=limits.MAX_VERTICES)]
    """Sources, operators and sinks."""
    edges: Annotated[list[Edge], Field(max_length=limits.MAX_EDGES)] = []
    """The connections between vertices. A cycle is refused unless it is an iteration."""


class Storage(Part):
    """A volume claim; without a size an emptyDir, which lives as long as its pod."""

    size: Quantity = ""
    """Size of a volume claim, as in `10Gi`; empty: an emptyDir, which lives as long as its pod."""
    storage_class_name: Annotated[str, StringConstraints(max_length=limits.MAX_OPTION_KEY)] = ""
    """The storage class of the volume claim; empty: the cluster's default."""


class Resources(Part):
    """Resources of each TaskManager's container. The memory request is also the limit; cpu has no limit."""

    cpu: Quantity = "100m"
    """The CPU request; no limit is set."""
    memory: Quantity = "512Mi"
    """The memory request, and the limit."""


class Pods(Part):
    """Settings for Kubernetes; they have no effect in other environments."""

    packet_faults: bool = False
    """Add an agent container to each pod that injects packet faults. It needs NET_ADMIN, which the pod security level `restricted` refuses."""
    proxy: bool = False
    """Put a proxy pod on the path of every connection, for network faults without privileges."""
    storage: Storage = Storage()
    """The volume of the checkpoint store."""
    resources: Resources = Resources()
    """Resources of each TaskManager's container."""
    node_selector: Annotated[dict[OptionKey, OptionValue], Field(max_length=limits.MAX_LABELS)] = {}
    """Labels of the nodes on which the pods may run."""
    token_secret: Annotated[str, StringConstraints(max_length=limits.MAX_OPTION_KEY)] = ""
    """The Secret with the token of the testbed's endpoints; empty: one is created. Set by the runner."""


class TestbedSpec(Part):
    """A JobManager, TaskManagers and one job. `engine: headgate`: Headgate's own processes."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    flink_version: Version = "2.x"
    """The Flink version to reproduce: frame layout, request backoff, heartbeat threshold, defaults, error texts."""
    engine: Literal["headgate"] = "headgate"
    """Headgate's own processes; no other engine exists yet."""
    task_managers: TaskManagers = TaskManagers()
    """The TaskManagers, `tm-0`, `tm-1`, …"""
    flink_configuration: FlinkConfiguration = {}
    """Flink options, as strings in Flink's syntax: see options."""
    job: Job
    """The job graph."""
    pods: Pods = Pods()
    """Settings for Kubernetes, where the processes are pods. They have no effect in other environments."""


# ---- Fault ----------------------------------------------------------------------------------------------------


class TaskManagerSelection(Part):
    """TaskManagers by `names` (`tm-0`), or those that run a subtask of vertex `running`; neither: all. `mode` narrows the selection."""

    names: Annotated[list[Name], Field(max_length=limits.MAX_NAMES)] = []
    """Names such as `tm-0`. Without `names` and `running`: all TaskManagers."""
    running: Name | None = None
    """Those that run a subtask of this vertex when the fault is injected."""
    mode: Literal["one", "all", "fixed", "percent"] = "all"
    """Narrows the selection: `one` and `fixed` draw from the seed, `percent` takes a share (rounded up)."""
    value: int | None = Field(None, ge=1, le=limits.MAX_TASKMANAGERS)
    """The number for `fixed`, the percentage for `percent`."""


class Peers(Part):
    """The other end of a link; all processes if empty."""

    names: Annotated[list[Name], Field(max_length=limits.MAX_NAMES)] = []
    """`tm-0`, …, or `jobmanager`."""
    running: Name | None = None
    """TaskManagers that run a subtask of this vertex."""


class JobManagerTarget(Part):
    """The JobManager; there is one."""


class TargetSpec(Part):
    """Exactly one of `taskManagers`, `jobManager`; `peers` narrows network and frame faults to some links."""

    task_managers: TaskManagerSelection | None = None
    """TaskManagers. Either this or `jobManager`."""
    job_manager: JobManagerTarget | None = None
    """The JobManager: write `{}`."""
    peers: Peers | None = None
    """In network and frame faults: only the links between the target and these processes."""

    @model_validator(mode="after")
    def _one_side(self) -> TargetSpec:
        exactly_one(self, ("task_managers", "job_manager"))
        return self


class Nothing(Part):
    """A fault kind without parameters: write `{}`."""


KIND_OF_MODEL: dict[type[BaseModel], Kind] = {}
"""The model of a kind with parameters → its declaration."""


def _parameter_type(parameter: Parameter) -> Any:
    """The annotation of a parameter, with its bounds."""
    match parameter.type:
        case Type.DURATION:
            return Duration
        case Type.INTEGER:
            return Annotated[int, Field(ge=int(parameter.low), le=int(parameter.high))]
        case Type.CHOICE:
            return Literal[tuple(parameter.choices)]
        case Type.VERTEX:
            return Name
        case Type.MESSAGE:
            return Annotated[str, StringConstraints(min_length=1, max_length=limits.MAX_NAME)]


def _fields(parameters: Iterable[Parameter]) -> dict[str, Any]:
    """The fields of a kind's model, for create_model."""
    fields: dict[str, Any] = {}
    for parameter in parameters:
        annotation = _parameter_type(parameter)
        default = ... if parameter.required else parameter.default
        if default is None:
            annotation = annotation | None
        fields[parameter.name] = (annotation, Field(default, description=parameter.doc))
    return fields


def _kind_model(kind: Kind) -> type[Part]:
    if not kind.parameters:
        return Nothing

    def one_of(part: Part) -> Part:
        if kind.one_of and sum(getattr(part, name) is not None for name in kind.one_of) != 1:
            raise PydanticCustomError("exactly_one", f"needs exactly one of {', '.join(kind.one_of)}")
        return part

    name = "".join(word.capitalize() for word in kind.name.replace("-", ".").split("."))
    validators: dict[str, Any] = {"one_of": model_validator(mode="after")(one_of)}
    model = create_model(name, __base__=Part, __validators__=validators, **_fields(kind.parameters))
    KIND_OF_MODEL[model] = kind
    return model


def _family_model(family: Family) -> type[Part]:
    """The model below a family's field: one field for each kind, of which exactly one is set."""
    kinds = kinds_of(family.name)
    alone = len(kinds) == 1
    fields: dict[str, Any] = {}
    for kind in kinds:
        model = _kind_model(kind)
        fields[kind.field] = (
            model if alone else model | None,
            Field(... if alone else None, description=kind.usage),
        )

    def one_kind(part: Part) -> Part:
        if not alone:
            exactly_one(part, fields, f"kind of {family.title} ")
        return part

    validators: dict[str, Any] = {"one_kind": model_validator(mode="after")(one_kind)}
    name = f"{family.name.capitalize()}Fault"
    return create_model(name, __base__=Part, __validators__=validators, **fields)


FAULT_MODELS: Mapping[str, type[Part]] = {name: _family_model(family) for name, family in FAMILIES.items()}
"""Family → its model. The kinds and their parameters are declared in core.faults.kinds."""


class FaultHead(Part):
    """When a fault begins in a timeline."""

    name: Name
    """Its name in the report."""
    at: AtText = "0 s"
    """When it begins, counted from the end of the baseline; `deploy`: before the job is submitted."""
    jitter: Duration = "0 s"
    """Begin up to this much later; the delay is drawn from the trial's seed. The faults of different trials then meet timers such as heartbeats at different moments."""


class FaultCommon(Part):
    """The fields of every kind of fault."""

    duration: Duration
    """After this time the fault ends by itself. A killed TaskManager is replaced only by `replaceLost`; for `jobmanager.kill` it is how long the JobManager stays down."""
    target: TargetSpec | None = None
    """The processes that the fault affects. Leave it out for the JobManager's own faults. Faults on processes and pods need it; without it, the others hit every TaskManager."""
    plane: Literal["data", "rpc", "both"] = "data"
    """In network faults: the exchange between TaskManagers (`data`), the RPC between processes, or both. A fault on links of the JobManager needs `rpc` or `both`."""
    direction: Literal["to", "from", "both"] = "both"
    """In network and frame faults, seen from the target."""
    on_target_restart: Literal["Reapply", "Expire", "Fail"] = "Expire"
    """How a fault inside a process (frames, registration, heartbeats, rpc, store, pause) continues when that process restarts: `Expire` ends it, `Reapply` begins it again, `Fail` marks it failed and ends it. Network faults of the proxy are on the path and stay; packet faults follow the agent that holds them."""


if TYPE_CHECKING:
    _FaultFamilies = FaultCommon
else:
    _FaultFamilies = create_model(
        "_FaultFamilies",
        __base__=FaultCommon,
        **{
            name: (model | None, Field(None, description=FAMILIES[name].doc))
            for name, model in FAULT_MODELS.items()
        },
    )


class FaultBody(_FaultFamilies):
    """The effect, targets and duration of a fault: the same in a timeline and alone."""

    @model_validator(mode="after")
    def _one_family(self) -> Self:
        exactly_one(self, FAMILIES, "fault kind ")
        return self

    @property
    def kind(self) -> Kind:
        """The one kind that is written."""
        family = next(name for name in FAMILIES if getattr(self, name) is not None)
        part = getattr(self, family)
        return next(kind for kind in kinds_of(family) if getattr(part, kind.field) is not None)

    @property
    def parameters(self) -> Part:
        """The object written below the kind."""
        kind = self.kind
        part: Part = getattr(getattr(self, kind.family), kind.field)
        return part


class FaultSpec(FaultBody, FaultHead):
    """One fault. `at` counts from the end of the baseline; `at: deploy` injects it before the job is submitted."""


# ---- Scenario -------------------------------------------------------------------------------------------------


class Timeline(Part):
    """`observation` counts from the end of the baseline and holds the faults; `drain` is a limit, not a length."""

    warm_up: Duration = "3 s"
    """How long the job runs before the baseline. It starts when all tasks run, and is not judged."""
    baseline: Duration = "4 s"
    """How long the job runs before the first fault, as the reference for throughput, lag and latency."""
    observation: Duration = "10 s"
    """The time from the end of the baseline to the drain. Every fault must end within it, and the recovery should."""
    drain: Duration = "10 s"
    """The time limit of the drain with its final checkpoint. If the job is not drained, it is unknown what was lost, so delivery is Inconclusive."""


class Expectation(Part):
    """`min`, `max` (one or both) or `equals`; with `versus`: `improvesBy` or `within`. A value is an integer, or a string such as
    `5.5 s`, `95 %`, `RUNNING`."""

    metric: Annotated[str, StringConstraints(min_length=1, max_length=limits.MAX_NAME * 2)]
    """The metric: see metrics."""
    quantile: Annotated[str, StringConstraints(max_length=limits.MAX_DURATION_TEXT)] | None = None
    """`0.99`, `p99` or `99 %`. For latencies it is taken within each trial, for other metrics over the trials."""
    phase: Annotated[str, StringConstraints(max_length=limits.MAX_NAME)] | None = None
    """`baseline`, `fault` or `observation` of the timeline, or `outage`, `catch-up` or `recovered` as they happened (`outage/<fault>` selects one of several faults), for metrics that have phases. By default everything from the first fault to the drain."""
    min: Scalar | None = None
    """The smallest value allowed, with the unit of the metric: `10 s`, `95 %`, `3`. A time without a unit is in seconds."""
    max: Scalar | None = None
    """The largest value allowed."""
    equals: Scalar | None = None
    """The only value allowed. For a text, a pattern in which `*` matches any text."""
    versus: Name | None = None
    """The variant to compare with, by the mean over trials. The confidence interval of the difference decides. The expectation does not apply to that variant itself."""
    improves_by: Margin | None = None
    """With `versus`: better by at least this, as a share of the other mean (`20 %`) or absolute (`500 ms`)."""
    within: Margin | None = None
    """With `versus`: different by at most this, in either direction."""

    @property
    def key(self) -> tuple[str, str | float | None, str | None, str | None]:
        """The subject of the expectation. A variant's expectations replace those of the scenario with the same key."""
        quantile: str | float | None = self.quantile
        with suppress(ValueError):  # `p99` is `0.99`
            quantile = None if quantile is None else parse_quantile(quantile)
        return self.metric, quantile, self.phase, self.versus


class StopEarly(Part):
    """Stop before the last trial, once every comparison (`versus`) is decided."""

    min_trials: int = Field(6, ge=1, le=limits.MAX_TRIALS)
    """The trials of each variant before the first look. Each later look is after twice as many. An interval needs at least 6 trials, or 7 with three looks."""


class Variant(Part):
    """The same scenario under other settings. Merged key by key: flinkConfiguration; item by item (same metric, quantile,
    phase and versus): expect; replaced whole: everything else."""

    name: Name
    """Its name; `--variant` selects it."""
    flink_version: Version | None = None
    """Replaces the scenario's value."""
    flink_configuration: FlinkConfiguration = {}
    """Merged into the scenario's, key by key."""
    task_managers: TaskManagers | None = None
    """Replaces the scenario's value as a whole."""
    job: Job | None = None
    """Replaces the scenario's value as a whole."""
    faults: Annotated[list[FaultSpec], Field(max_length=limits.MAX_FAULTS)] | None = None
    """Replaces the scenario's value as a whole."""
    control: bool | None = None
    """Replaces the scenario's value."""
    expect: Annotated[list[Expectation], Field(max_length=limits.MAX_EXPECTATIONS)] = []
    """Added to the scenario's expectations. They replace the scenario's items with the same metric, quantile, phase and versus."""


class ScenarioSpec(Part):
    """A testbed, a timeline with faults, variants, trials and expectations."""

    hypothesis: Text = ""
    """The expected behaviour, in a sentence. It is shown at the top of the report."""
    source: Text = ""
    """The origin of the question, for example an incident. The report shows it."""
    seed: int = Field(1, ge=0, le=limits.MAX_SEED)
    """Seed of all random choices: the target drawn by `mode: one`, the workload, drops and jitter. The same seed makes the same choices in every environment."""
    testbed: TestbedSpec
    """The processes, the job and its configuration."""
    timeline: Timeline = Timeline()
    """How long each phase of a trial lasts."""
    faults: Annotated[list[FaultSpec], Field(max_length=limits.MAX_FAULTS)] = []
    """The faults to inject, and when."""
    variants: Annotated[list[Variant], Field(max_length=limits.MAX_VARIANTS)] = []
    """The same scenario with other settings. Without variants there is one, called `main`."""
    control: bool = True
    """Before the trials of a variant with faults, run it once without faults, to measure what the machine does on its own."""
    trials: int = Field(1, ge=1, le=limits.MAX_TRIALS)
    """The number of runs of each variant with its faults. A quantile over trials needs enough of them (see metrics)."""
    stop_early: StopEarly | None = None
    """Run fewer trials than `trials` once every expectation with `versus` is decided. Intervals are corrected for the number of looks."""
    expect: Annotated[list[Expectation], Field(max_length=limits.MAX_EXPECTATIONS)] = []
    """The conditions of the verdict Pass. Safety is always judged."""


class Metadata(Part):
    name: Name
    """The name, also of the run's folder: lower-case letters, digits and dashes."""
    namespace: Name | None = None
    """Used in Kubernetes; ignored on one machine."""
    labels: Annotated[dict[OptionKey, OptionValue], Field(max_length=limits.MAX_LABELS)] = {}
    """Used in Kubernetes; ignored on one machine."""
    annotations: Annotated[dict[OptionKey, OptionValue], Field(max_length=limits.MAX_LABELS)] = {}
    """Used in Kubernetes; ignored on one machine."""


class Scenario(Part):
    """The document."""

    api_version: ApiVersion
    """The version of the schema."""
    kind: Literal["Scenario"]
    """The kind of document."""
    metadata: Metadata
    """The name, and other metadata of Kubernetes."""
    spec: ScenarioSpec
    """The testbed, the faults and the expectations."""
