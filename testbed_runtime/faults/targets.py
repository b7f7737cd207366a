"""Resolve the target of a fault to processes or links when the fault is due. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.model import Fault, Target
from testbed_runtime.core.ids import JOBMANAGER


class VertexNotRunning(UserError):
    """No TaskManager runs a subtask of the vertex that a fault names. In a trial, each failover may change this."""


def resolve_targets(
    fault: Fault, *, placement: Mapping[str, str], task_managers: Sequence[str], seed: int
) -> tuple[str, ...]:
    """Return logical names, or `target->peer` links when the fault names peers (the fault's direction is seen from the target).

    `placement` maps `vertex-subtask` to an ordinal name. Raises VertexNotRunning, or UserError when the fault hits no process or no link.
    """
    chosen = _narrow(fault, _candidates(fault.target, placement, task_managers), seed)
    path, vertex = f"faults[{fault.name}].target", fault.target.running
    if not chosen:
        hint = "name a vertex whose subtasks run, or TaskManagers"
        if vertex:
            raise VertexNotRunning(path, f"no TaskManager runs vertex {vertex!r}", hint)
        raise UserError(path, "it selects no process", hint)
    path, vertex = f"{path}.peers", fault.target.peers_running
    peers = _peers(fault.target, placement)
    if not peers and not vertex:
        return tuple(chosen)
    links = tuple(f"{name}->{peer}" for name in chosen for peer in peers if peer != name)
    if not links:
        hint = "name a vertex whose subtasks run elsewhere, or other TaskManagers"
        if not peers:
            raise VertexNotRunning(path, f"no TaskManager runs vertex {vertex!r}", hint)
        raise UserError(path, "there is no link to another process", hint)
    return links


def _candidates(target: Target, placement: Mapping[str, str], task_managers: Sequence[str]) -> list[str]:
    if target.names:
        known = {*task_managers, JOBMANAGER}
        return [name for name in sorted(target.names, key=_ordinal) if name in known]
    if target.running:
        return _running(target.running, placement)
    return list(task_managers)


def _running(vertex: str, placement: Mapping[str, str]) -> list[str]:
    names = {tm for task, tm in placement.items() if task.rpartition("-")[0] == vertex}
    return sorted(names, key=_ordinal)


def _peers(target: Target, placement: Mapping[str, str]) -> list[str]:
    running = _running(target.peers_running, placement) if target.peers_running else []
    return sorted({*target.peers, *running}, key=_ordinal)


def _narrow(fault: Fault, candidates: list[str], seed: int) -> list[str]:
    """Apply the mode. `one`, `fixed` and `percent` draw from the sorted names. The seed and the fault's name seed the draw, so every
    environment gets the same result."""
    target = fault.target
    count = {
        "one": 1,
        "fixed": target.value,
        "percent": -(-len(candidates) * target.value // 100),
    }.get(target.mode, len(candidates))
    if count >= len(candidates):
        return candidates
    drawn = Random(f"{seed}/{fault.name}").sample(candidates, count)  # noqa: S311
    return sorted(drawn, key=_ordinal)


def _ordinal(name: str) -> tuple[str, int]:
    head, _, tail = name.rpartition("-")
    return (head, int(tail)) if tail.isdigit() else (name, -1)
