"""The kinds as pydantic models: `Scenario`, with `Testbed` and `Fault` as its parts.

Aliases are camelCase, unknown fields are refused, every list, map and string is bounded (api.limits). Durations are strings in
Flink's syntax. No field is string-or-object, because a structural schema cannot express that. Rules between fields are in
api.validate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from testbed_runtime.api import limits
from testbed_runtime.api.fields import AtText, Duration, FractionText, ReplaceLostText
from testbed_runtime.core.faults.kinds import FAMILIES, kinds_of
from testbed_runtime.core.faults.vocabulary import Family, Kind, Parameter, Type
from testbed_runtime.core.trial.plan import NEVER, REAL_PARALLELISM_MAX, REAL_TASK_MANAGERS_MAX
from testbed_runtime.core.versions import Version

API_VERSION = "headgate.dev/v1alpha1"
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A DNS label: names become names of pods, files and tests."""
QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?)?$"
"""Kubernetes' quantities, as far as cpu, memory and storage need them; empty: not given."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=limits.MAX_NAME)]
Text = Annotated[str, StringConstraints(max_length=limits.MAX_TEXT)]
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


def exactly_one(part: BaseModel, names: Iterable[str], what: str = "") -> None:
    """Raise PydanticCustomError unless exactly one of these fields of `part` is set."""
    fields = type(part).model_fields
    aliases = {name: str(fields[name].alias or name) for name in names}
    given = [alias for name, alias in aliases.items() if getattr(part, name) is not None]
    if len(given) != 1:
        found = "none" if not given else " and ".join(given)
        listed = ", ".join(aliases.values())
        raise PydanticCustomError("exactly_one", f"needs exactly one {what}of {listed}; there is {found}")


# ---- Testbed --------------------------------------------------------------------------------------------------


class TaskManagers(Part):
    """`replaceLost`: `Never`, or the delay after which a lost TaskManager is replaced by its next incarnation."""

    replicas: int = Field(
        2, ge=1, le=limits.MAX_TASKMANAGERS, json_schema_extra={IN_A_CLUSTER: REAL_TASK_MANAGERS_MAX}
    )
    slots: int = Field(1, ge=1, le=limits.MAX_SLOTS)
    replace_lost: ReplaceLostText = NEVER


class Source(Part):
    """Open loop: record n of the vertex is due at t0 + n / recordsPerSecond. With `socket`, lines of words from `host:port`."""

    kind: Literal["generated", "socket"] = "generated"
    records_per_second: int = Field(1000, ge=1, le=limits.MAX_RATE)
    record_bytes: int = Field(100, ge=limits.MIN_RECORD_BYTES, le=limits.MAX_RECORD_BYTES)
    keys: int = Field(1000, ge=1, le=limits.MAX_KEYS)
    key_skew: FractionText = "0"
    limit: int = Field(0, ge=0)
    splits: int = Field(0, ge=0, le=limits.MAX_SPLITS)
    socket: Annotated[str, StringConstraints(max_length=limits.MAX_PATH)] = ""


VERTEX_ROLES = ("source", "operator", "sink", "iteration")
"""The fields of a vertex of which exactly one is set."""


class Iteration(Part):
    """The head of an iteration: an edge with `feedback: true` leads back to it."""

    kind: Literal["bulk", "delta"] = "bulk"
    max_iterations: int = Field(ge=1, le=limits.MAX_ITERATIONS)
    criterion: Annotated[str, StringConstraints(max_length=limits.MAX_PATH)] = ""


class Vertex(Part):
    """Exactly one of `source`, `operator`, `sink`, `iteration` says what its subtasks do."""

    name: Name
    parallelism: int = Field(
        1, ge=1, le=limits.MAX_PARALLELISM, json_schema_extra={IN_A_CLUSTER: REAL_PARALLELISM_MAX}
    )
    max_parallelism: int | None = Field(None, ge=1, le=limits.MAX_KEY_GROUPS)
    slot_sharing_group: Name = "default"
    source: Source | None = None
    operator: Literal["map", "keyed-count", "window", "python", "flat-map", "solution-set-join"] | None = None
    sink: Literal["ledger", "file"] | None = None
    iteration: Iteration | None = None
    service_time: Duration = "0 ms"
    window: Duration = "5 s"
    state_ttl: Duration = "0 s"
    function: Annotated[str, StringConstraints(max_length=limits.MAX_PATH)] = ""
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once"
    path: Annotated[str, StringConstraints(max_length=limits.MAX_PATH)] = ""
    inputs: Literal["all", "any"] = "all"

    @model_validator(mode="after")
    def _one_role(self) -> Vertex:
        exactly_one(self, VERTEX_ROLES)
        return self


class Edge(Part):
    from_: Name = Field(alias="from")
    to: Name
    partitioning: Literal["hash", "rebalance", "forward", "broadcast"] = "hash"
    result: Literal["pipelined", "pipelined-bounded", "blocking"] = "pipelined-bounded"
    deployment: Literal["eager", "on-first-record", "on-full-result"] = "eager"
    feedback: bool = False


class Job(Part):
    vertices: Annotated[list[Vertex], Field(min_length=1, max_length=limits.MAX_VERTICES)]
    edges: Annotated[list[Edge], Field(max_length=limits.MAX_EDGES)] = []


class Storage(Part):
    """A volume claim; without a size an emptyDir, which lives as long as its pod."""

    size: Annotated[str, StringConstraints(pattern=QUANTITY_PATTERN, max_length=limits.MAX_DURATION_TEXT)] = (
        ""
    )
    storage_class_name: Annotated[str, StringConstraints(max_length=limits.MAX_OPTION_KEY)] = ""


class Resources(Part):
    """Resources of each TaskManager's container. The memory request is also the limit; cpu has no limit."""

    cpu: Annotated[str, StringConstraints(pattern=QUANTITY_PATTERN, max_length=limits.MAX_DURATION_TEXT)] = (
        "100m"
    )
    memory: Annotated[
        str, StringConstraints(pattern=QUANTITY_PATTERN, max_length=limits.MAX_DURATION_TEXT)
    ] = "512Mi"


class Pods(Part):
    """Settings for Kubernetes; they have no effect in other environments."""

    packet_faults: bool = False
    proxy: bool = False
    storage: Storage = Storage()
    resources: Resources = Resources()
    node_selector: Annotated[dict[OptionKey, OptionValue], Field(max_length=limits.MAX_LABELS)] = {}
    token_secret: Annotated[str, StringConstraints(max_length=limits.MAX_OPTION_KEY)] = ""


class TestbedSpec(Part):
    """A JobManager, TaskManagers and one job. `engine: headgate`: Headgate's own processes."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    flink_version: Version = "2.x"
    engine: Literal["headgate"] = "headgate"
    task_managers: TaskManagers = TaskManagers()
    flink_configuration: FlinkConfiguration = {}
    job: Job
    pods: Pods = Pods()


# ---- Fault ----------------------------------------------------------------------------------------------------


class TaskManagerSelection(Part):
    """TaskManagers by `names` (`tm-0`), or those that run a subtask of vertex `running`; neither: all. `mode` narrows the selection."""

    names: Annotated[list[Name], Field(max_length=limits.MAX_NAMES)] = []
    running: Name | None = None
    mode: Literal["one", "all", "fixed", "percent"] = "all"
    value: int | None = Field(None, ge=1, le=limits.MAX_TASKMANAGERS)


class Peers(Part):
    """The other end of a link; everybody when empty."""

    names: Annotated[list[Name], Field(max_length=limits.MAX_NAMES)] = []
    running: Name | None = None


class JobManagerTarget(Part):
    """The JobManager; there is one."""


class TargetSpec(Part):
    """Exactly one of `taskManagers`, `jobManager`; `peers` narrows network and frame faults to some links."""

    task_managers: TaskManagerSelection | None = None
    job_manager: JobManagerTarget | None = None
    peers: Peers | None = None

    @model_validator(mode="after")
    def _one_side(self) -> TargetSpec:
        if (self.task_managers is None) == (self.job_manager is None):
            raise PydanticCustomError("exactly_one", "needs exactly one of taskManagers, jobManager")
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
    at: AtText = "0 s"
    jitter: Duration = "0 s"


class FaultCommon(Part):
    """The fields of every kind of fault."""

    duration: Duration
    target: TargetSpec | None = None
    plane: Literal["data", "rpc", "both"] = "data"
    direction: Literal["to", "from", "both"] = "both"
    on_target_restart: Literal["Reapply", "Expire", "Fail"] = "Expire"


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
    baseline: Duration = "4 s"
    observation: Duration = "10 s"
    drain: Duration = "10 s"


class Expectation(Part):
    """`min`, `max` (one or both) or `equals`; with `versus`: `improvesBy` or `within`. A value is an integer, or a string such as
    `5.5 s`, `95 %`, `RUNNING`."""

    metric: Annotated[str, StringConstraints(min_length=1, max_length=limits.MAX_NAME * 2)]
    quantile: Annotated[str, StringConstraints(max_length=limits.MAX_DURATION_TEXT)] | None = None
    phase: Annotated[str, StringConstraints(max_length=limits.MAX_NAME)] | None = None
    min: Scalar | None = None
    max: Scalar | None = None
    equals: Scalar | None = None
    versus: Name | None = None
    improves_by: Margin | None = None
    within: Margin | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> Expectation:
        bounds = self.min is not None or self.max is not None
        if self.versus is not None:
            if bounds or self.equals is not None or (self.improves_by is None) == (self.within is None):
                raise PydanticCustomError(
                    "exactly_one", "with versus, needs either improvesBy or within, and no other bound"
                )
        elif self.improves_by is not None or self.within is not None:
            raise PydanticCustomError(
                "exactly_one", "improvesBy and within need versus, the variant to compare with"
            )
        elif bounds == (self.equals is not None):
            raise PydanticCustomError("exactly_one", "needs either equals, or min, max or both")
        return self

    @property
    def key(self) -> tuple[str, str | None, str | None, str | None]:
        """The subject of the expectation. Of two expectations with the same key, the more specific one counts."""
        return self.metric, self.quantile, self.phase, self.versus


class StopEarly(Part):
    """Stop before the last trial, once every comparison (`versus`) is decided."""

    min_trials: int = Field(6, ge=1, le=limits.MAX_TRIALS)


class Variant(Part):
    """The same scenario under other settings. Merged key by key: flinkConfiguration; item by item (same metric, quantile,
    phase and versus): expect; replaced whole: everything else."""

    name: Name
    flink_version: Version | None = None
    flink_configuration: FlinkConfiguration = {}
    task_managers: TaskManagers | None = None
    job: Job | None = None
    faults: Annotated[list[FaultSpec], Field(max_length=limits.MAX_FAULTS)] | None = None
    control: bool | None = None
    expect: Annotated[list[Expectation], Field(max_length=limits.MAX_EXPECTATIONS)] = []


class ScenarioSpec(Part):
    """A testbed, a timeline with faults, variants, trials and expectations."""

    hypothesis: Text = ""
    source: Text = ""
    seed: int = Field(1, ge=0, le=limits.MAX_SEED)
    testbed: TestbedSpec
    timeline: Timeline = Timeline()
    faults: Annotated[list[FaultSpec], Field(max_length=limits.MAX_FAULTS)] = []
    variants: Annotated[list[Variant], Field(max_length=limits.MAX_VARIANTS)] = []
    control: bool = True
    trials: int = Field(1, ge=1, le=limits.MAX_TRIALS)
    stop_early: StopEarly | None = None
    expect: Annotated[list[Expectation], Field(max_length=limits.MAX_EXPECTATIONS)] = []


class Metadata(Part):
    name: Name
    namespace: Name | None = None
    labels: Annotated[dict[OptionKey, OptionValue], Field(max_length=limits.MAX_LABELS)] = {}
    annotations: Annotated[dict[OptionKey, OptionValue], Field(max_length=limits.MAX_LABELS)] = {}


class Scenario(Part):
    """The document."""

    api_version: Literal["headgate.dev/v1alpha1"]
    kind: Literal["Scenario"]
    metadata: Metadata
    spec: ScenarioSpec
