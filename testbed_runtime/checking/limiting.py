"""The fault on the exchange that limits a catch-up: it limits or delays a link that carries late records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct

from testbed_runtime.checking.common import job_shape
from testbed_runtime.checking.faults import FaultEffect, targets_of
from testbed_runtime.core.faults.links import ANYBODY, logical_name, split_link
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.columns import ints, vertex_of
from testbed_runtime.history.schema import Trial

_BARRIERS = ("barrier", "event")
"""Classes of frames that a task with several inputs waits for without reading its other inputs."""


def limiting_fault(
    effects: Iterable[FaultEffect],
    span: tuple[int, int],
    places: Collection[str],
    *,
    size: FaultSizes,
    own: str,
) -> FaultEffect | None:
    """Return the fault that was active longest, if that was at least half of the span. Among equals, return
    `own`, the fault of the outage. The fault must hit one of the TaskManagers in `places`. Faults that are
    too small to explain so long a span do not count."""
    start, end = span
    injected = [e for e in effects if e.injected_ns is not None and size.explains(e, end - start)]
    narrow = [e for e in injected if _narrows(e, size.frame_class(e)) and _hits(e, places)]
    lasted = [(min(e.ended_ns or end, end) - max(e.begun_ns, start), e) for e in narrow]
    found = [(ns, e) for ns, e in lasted if 2 * ns >= end - start >= NS]
    return max(found, key=lambda one: (one[0], one[1].fault == own), default=(0, None))[1]


class FaultSizes(Struct, frozen=True):
    """The sizes of the faults of a trial, compared with a catch-up. A fault of unknown size counts as large
    enough."""

    params: Mapping[str, Mapping[str, Any]]
    delays: Mapping[str, int]
    """The delay that each fault adds to what passes."""
    starved: bool = False
    """A sender waited for credit most of the time."""
    carried: float = 0.0
    """The largest number of bytes per second that the tasks of one TaskManager received or sent; 0 if
    unknown."""

    def frame_class(self, effect: FaultEffect) -> str:
        """Return the class of the frames on which a fault acts. Empty if it acts on all."""
        return str(self.params.get(effect.fault, {}).get("frame_class") or "")

    def explains(self, effect: FaultEffect, span_ns: int) -> bool:
        """Return whether a fault can explain a catch-up of this length. A latency prolongs it only by the delay itself, unless senders lack
        credit or a task waits for late barriers. A bandwidth limit explains it only if the traffic comes near the limit."""
        delay_ns = self.delays.get(effect.fault, 0)
        if delay_ns and not self.starved and self.frame_class(effect) not in _BARRIERS:
            return 2 * delay_ns >= span_ns
        ceiling = float(self.params.get(effect.fault, {}).get("bytes_per_second") or 0)
        return 2 * self.carried >= ceiling or not self.carried


def carried_bytes(trial: Trial, span: tuple[int, int], places: Collection[str]) -> float:
    """Return the largest number of bytes per second that the tasks of one TaskManager received or sent in the
    span; 0 without samples."""
    table = trial.table("tasks")
    t_ns = ints(table, "t_ns")
    inside = table.filter((t_ns >= span[0]) & (t_ns <= span[1]))
    counters = ("bytes_in", "bytes_out")
    asked = [(counter, edge) for counter in counters for edge in ("min", "max")]
    sums: dict[tuple[str, str], int] = {}
    for row in inside.group_by(["process", "task", "attempt"]).aggregate(asked).to_pylist():
        for counter in counters:
            key = logical_name(row["process"]), counter
            sums[key] = sums.get(key, 0) + (row[f"{counter}_max"] or 0) - (row[f"{counter}_min"] or 0)
    return max((n for (place, _), n in sums.items() if place in places), default=0) / (span[1] - span[0]) * NS


def places_of_behind(
    trial: Trial, entry: TrialEntry, span: tuple[int, int], behind: Collection[str]
) -> frozenset[str]:
    """Return the TaskManagers that ran the subtasks in `behind`, and all vertices upstream of them, during
    the span. Return those that ran any tasks of the job if no subtask is known to be behind."""
    table = trial.table("tasks")
    t_ns = ints(table, "t_ns")
    rows = table.filter((t_ns >= span[0]) & (t_ns <= span[1])).select(["process", "task"])
    ran = set(zip(*(rows.column(name).to_pylist() for name in ("process", "task")), strict=True))
    before = job_shape(entry).before(map(vertex_of, behind))
    chosen = {p for p, task in ran if not behind or task in behind or vertex_of(task) in before}
    return frozenset(logical_name(process) for process in chosen)


def _narrows(effect: FaultEffect, frame_class: str) -> bool:
    """Return whether a fault delays records that pass. A second copy of a packet does not, nor does a dropped frame, unless the sender
    lacks its credit."""
    if effect.kind == "frames.drop":
        return frame_class == "credit"
    if effect.kind == "frames.delay":
        return frame_class != "request"
    return effect.kind != "network.duplicate"


def _hits(effect: FaultEffect, places: Collection[str]) -> bool:
    """Return whether both ends of one of the fault's targets are at these places. A fault without targets
    hits every TaskManager."""
    anywhere = {*places, ANYBODY, ""}
    return any(anywhere.issuperset(split_link(target)) for target in targets_of(effect) or ("",))
