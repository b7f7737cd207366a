"""The content of `timeseries.json`: the drawings of the report as numbers. `checking.timeseries` computes it.

Times are seconds since the start of the trial's first phase."""

from __future__ import annotations

from typing import Annotated, Any, Self

from msgspec import Meta, Struct

from testbed_runtime.core.trial.manifest import FaultEntry

Number = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""A finite number. JSON can express larger ones, which no drawing can show."""
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Curve = list[Amount | None]
"""A value for each bin or column; None without data."""


NOT_MEASURED = "not measured"
"""The effect or the residue of a fault that nothing shows."""


class Span(Struct, frozen=True):
    """A phase, a fault or a restart."""

    kind: str
    name: str
    start_s: Number
    end_s: Number
    text: str


class Mark(Struct, frozen=True):
    """An event or the end of a checkpoint."""

    kind: str
    t_s: Number
    text: str


class Heat(Struct, frozen=True):
    """Records of each column (time) per row (latency). `bounds_s` are the upper bounds of the rows, from `low_s` on."""

    starts_s: list[Number] = []
    low_s: Amount = 0.0
    bounds_s: list[Amount] = []
    columns: list[list[Annotated[int, Meta(ge=0)]]] = []

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.starts_s) or any(len(c) != len(self.bounds_s) for c in self.columns):
            raise ValueError("`columns` has more or fewer columns or rows than `starts_s` and `bounds_s`")


class VertexLoad(Struct, frozen=True):
    """The shares of time of the busiest and the most back-pressured subtask."""

    vertex: str
    busy: Curve
    backpressured: Curve


class Load(Struct, frozen=True):
    """The load of the vertices in each column."""

    starts_s: list[Number] = []
    vertices: list[VertexLoad] = []

    def __post_init__(self) -> None:
        lengths = {len(curve) for vertex in self.vertices for curve in (vertex.busy, vertex.backpressured)}
        if lengths - {len(self.starts_s)}:
            raise ValueError("a curve of `vertices` has more or fewer columns than `starts_s`")


class ChannelWait(Struct, frozen=True):
    """How long, how often and how long at most a channel (`what`) of a sender (`who`) waited for credit."""

    who: str
    what: str
    seconds: float
    count: int
    longest_s: float


class CreditWaits(Struct, frozen=True):
    """The channels that waited longest for credit, and how many others waited."""

    channels: list[ChannelWait] = []
    more: int = 0


class FaultSeen(Struct, frozen=True, kw_only=True):
    """A fault as requested and as measured."""

    fault: str
    kind: str
    targets: list[str] = []
    asked: dict[str, Any] = {}
    measured: dict[str, Any] = {}
    after: dict[str, Any] = {}
    at_s: Number | None = None
    before_submit: bool = False
    duration_s: Number | None = None
    effect: str = NOT_MEASURED
    residue: str = NOT_MEASURED
    backend: str = ""
    why: str = ""
    text: str = ""

    @classmethod
    def planned(cls, fault: FaultEntry) -> Self:
        """Return a fault of which only the request is known."""
        return cls(
            fault=fault.name,
            kind=fault.kind,
            targets=list(fault.targets),
            asked={"params": fault.params, "direction": fault.direction},
            at_s=fault.at_s,
            before_submit=fault.before_submit,
            duration_s=fault.duration_s,
            backend=fault.backend,
            why=fault.why,
        )


class TrialSeries(Struct, frozen=True):
    """The drawings of a trial as numbers."""

    trial: str
    start_ns: int
    bin_s: Annotated[float, Meta(gt=0, le=3600)]
    bins: list[Number]
    series: dict[str, Curve]
    spans: list[Span]
    marks: list[Mark]
    faults: list[FaultSeen]
    problems: list[str]
    heat: Heat = Heat()
    load: Load = Load()
    credit: CreditWaits = CreditWaits()

    def __post_init__(self) -> None:
        if other := [name for name, curve in self.series.items() if len(curve) != len(self.bins)]:
            raise ValueError(f"`series` has more or fewer values of {other[0]:.60} than `bins`")


class Timeseries(Struct, frozen=True):
    """The whole document."""

    trials: list[TrialSeries] = []
