"""The fault on the exchange that limits a catch-up: it makes a link narrow or slow over which records pass that are behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from testbed_runtime.checking.common import NS, Entry, JobShape, job_shape
from testbed_runtime.checking.faults import FaultEffect, targets_of
from testbed_runtime.core.faults.links import ANYBODY, logical_name, split_link
from testbed_runtime.history.columns import ints
from testbed_runtime.history.schema import Trial


def limiting_fault(
    effects: Iterable[FaultEffect],
    span: tuple[int, int],
    places: Collection[str],
    *,
    classes: Mapping[str, str],
    own: str,
) -> FaultEffect | None:
    """Return the one that lasted longest, for half of the span or more, or `own`, that of the outage, if it lasted as long.
    `places`: the TaskManagers that it must hit. `classes`: of the frames on which each fault acts."""
    start, end = span
    lasted = [
        (min(e.ended_ns or end, end) - max(e.begun_ns, start), e)
        for e in effects
        if e.injected_ns is not None and _narrows(e, classes.get(e.fault, "")) and _hits(e, places)
    ]
    found = [(ns, e) for ns, e in lasted if 2 * ns >= end - start >= NS]
    return max(found, key=lambda one: (one[0], one[1].fault == own), default=(0, None))[1]


def frame_classes(entry: Entry) -> dict[str, str]:
    """Map the faults of a trial that act on one class of frames to that class."""
    classes = {str(f["name"]): (f.get("params") or {}).get("frame_class") for f in entry.get("faults") or ()}
    return {name: str(chosen) for name, chosen in classes.items() if chosen}


def places_of_behind(
    trial: Trial, entry: Entry, span: tuple[int, int], behind: Collection[str]
) -> frozenset[str]:
    """Return the TaskManagers that ran the subtasks in `behind` and all vertices before them during the span: all those that ran tasks
    of the job if no subtask is known to be behind."""
    table = trial.table("tasks")
    t_ns = ints(table, "t_ns")
    rows = table.filter((t_ns >= span[0]) & (t_ns <= span[1])).select(["process", "task"])
    ran = set(zip(*(rows.column(name).to_pylist() for name in ("process", "task")), strict=True))
    before = _before(job_shape(trial, entry), {task.rpartition("-")[0] for task in behind})
    chosen = {p for p, task in ran if not behind or task in behind or task.rpartition("-")[0] in before}
    return frozenset(logical_name(process) for process in chosen)


def _before(shape: JobShape, vertices: Iterable[str]) -> set[str]:
    """Return the vertices from which records reach these."""
    found, todo = set[str](), list(vertices)
    while todo:
        vertex = todo.pop()
        new = {origin for origin, target, _ in shape.edges if target == vertex} - found
        found |= new
        todo += new
    return found


def _narrows(effect: FaultEffect, frame_class: str) -> bool:
    """Return whether a fault delays records that pass. A second copy of a packet does not, nor does a dropped frame, unless the sender
    lacks its credit."""
    if effect.kind == "frames.drop":
        return frame_class == "credit"
    if effect.kind == "frames.delay":
        return frame_class != "request"
    return effect.kind != "network.duplicate"


def _hits(effect: FaultEffect, places: Collection[str]) -> bool:
    """Return whether both ends of one of its targets are at these places. One without targets hits every TaskManager."""
    anywhere = {*places, ANYBODY, ""}
    return any(anywhere.issuperset(split_link(target)) for target in targets_of(effect) or ("",))
