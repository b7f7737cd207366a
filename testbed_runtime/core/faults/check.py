"""Check the fields of a fault that can be judged without its testbed. Pure.

Documents (api.fault_rules) and agents (faults.registry) apply the same checks; errors name the fields as a document writes them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from testbed_runtime.core.errors import UserError, nearest
from testbed_runtime.core.faults.kinds import FAMILIES, KINDS, kind_of
from testbed_runtime.core.faults.links import DIRECTIONS, PLANES
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.faults.vocabulary import Constraint, Kind, Parameter, Type
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.job.messages import MESSAGES
from testbed_runtime.core.job.rpcnames import METHODS

MAX_DURATION_S = 24 * 3600.0
"""A longer duration is a mistake in the unit."""
_FAULT_FIELDS = ("plane", "direction", "duration", "target")
"""Fields that a constraint may name besides the kind's parameters."""


def problems(fault: Fault, where: str, *, vertices: Collection[str] | None = None) -> Iterator[UserError]:
    """Yield everything that is wrong with a fault at path `where`. Vertex names are checked if `vertices` is
    known.

    Raises UserError if the kind does not exist."""
    kind = kind_of(fault)
    parameters = f"{where}.{kind.path}"
    yield from _range(f"{where}.duration", fault.duration_s, 0.0, MAX_DURATION_S, "s", above=True)
    yield from _one_of(f"{where}.plane", fault.plane, PLANES)
    yield from _one_of(f"{where}.direction", fault.direction, DIRECTIONS)
    known = {parameter.key for parameter in kind.parameters}
    for name in fault.params:
        if name not in known:
            names = ", ".join(p.alias for p in kind.parameters) or "none"
            yield UserError(f"{parameters}.{name}", f"is not a parameter of {kind.name}", f"it has {names}")
    found = [
        e for p in kind.parameters for e in _parameter(fault, p, kind, f"{parameters}.{p.alias}", vertices)
    ]
    yield from found
    if kind.one_of:
        given = [name for name in kind.one_of if kind.parameter(name).is_given(fault.params)]
        if len(given) != 1:
            yield UserError(parameters, f"needs exactly one of {', '.join(kind.one_of)}", kind.doc)
    if not found:
        yield from _constraints(fault, kind.constraints, where, parameters)


def _constraints(
    fault: Fault, constraints: Sequence[Constraint], where: str, parameters: str
) -> Iterator[UserError]:
    for constraint in constraints:
        if not constraint.holds(fault):
            at = where if constraint.field in _FAULT_FIELDS else parameters
            yield UserError(f"{at}.{constraint.field}", constraint.problem, constraint.hint)


def _parameter(
    fault: Fault, parameter: Parameter, kind: Kind, path: str, vertices: Collection[str] | None
) -> Iterator[UserError]:
    value = fault.params.get(parameter.key)
    if value in (None, ""):
        if parameter.required:
            yield UserError(path, f"{kind.name} needs it", parameter.doc)
        return
    match parameter.type:
        case Type.DURATION:
            yield from _range(path, value, parameter.low, parameter.high, "s", above=parameter.above)
        case Type.INTEGER:
            yield from _range(path, value, parameter.low, parameter.high)
        case Type.CHOICE:
            yield from _one_of(path, value, tuple(parameter.choices))
        case Type.VERTEX:
            if vertices is not None and value not in vertices:
                yield UserError(path, f"the vertex {value!r} does not exist", nearest(value, vertices))
        case Type.MESSAGE:
            if value not in MESSAGES:
                yield UserError(
                    path, f"the message {value!r} does not exist", nearest(value, sorted(MESSAGES))
                )


def _one_of(path: str, value: Any, choices: Sequence[str]) -> Iterator[UserError]:
    if value not in choices:
        yield UserError(path, f"{value!r} is not one of {', '.join(choices)}", nearest(str(value), choices))


def _range(
    path: str, value: Any, low: float, high: float, unit: str = "", *, above: bool = False
) -> Iterator[UserError]:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    space = f" {unit}" if unit else ""
    if number and value <= low and above:
        yield UserError(path, f"must be greater than {low:g}", f"for example '2{space}'")
    elif not number or value < low or value > high:
        shown = f"{value:g}" if number else repr(value)
        bound = "more than" if above else "at least"
        hint = f"write {bound} {low:g} and at most {high:g}{space}"
        yield UserError(path, f"{shown}{space} is out of range", hint)


def target_problems(
    fault: Fault, where: str, *, selects: bool, written: bool, peers: bool
) -> Iterator[UserError]:
    """Yield the problems of a target for its kind: a missing target, TaskManagers or peers where they are not allowed."""
    family = FAMILIES[kind_of(fault).family]
    example = "write target: {taskManagers: {mode: one}}"
    if family.jobmanager_only and selects:
        yield UserError(f"{where}.target", f"{fault.kind} hits the JobManager", "leave target out")
    if family.target == "taskManagers" and not selects:
        of_jobmanager = f"{JOBMANAGER}.{fault.kind.partition('.')[2]}"
        other = f", or use {of_jobmanager} for the JobManager" if written and of_jobmanager in KINDS else ""
        yield UserError(f"{where}.target", f"{fault.kind} needs TaskManagers", f"{example}{other}")
    if family.target == "any" and not written:
        yield UserError(f"{where}.target", f"{fault.kind} needs its pods", example)
    if problem := _callee(fault, selects=selects or not written):
        yield UserError(f"{where}.target", *problem)
    if written and not family.jobmanager_only:
        yield from _without_exchange(fault, where, on_jobmanager=not selects)
    if peers and not family.links:
        yield UserError(f"{where}.target.peers", f"{fault.kind} hits processes, not links", "leave peers out")
    if fault.before_submit and (fault.target.running or fault.target.peers_running):
        yield UserError(
            f"{where}.target",
            "nothing runs before the job is submitted, so `running` selects no process",
            "write names, or all TaskManagers",
        )


def _without_exchange(fault: Fault, where: str, *, on_jobmanager: bool) -> Iterator[UserError]:
    """Yield a problem if the target or the only peer of a fault on the exchange between TaskManagers is the
    JobManager."""
    family = FAMILIES[kind_of(fault).family]
    on_data_plane = family.name == "network" and fault.plane == "data"
    only_peer = family.links and fault.target.peers == (JOBMANAGER,) and not fault.target.peers_running
    if (family.exchange or on_data_plane) and (on_jobmanager or only_peer):
        field = "target" if on_jobmanager else "target.peers"
        problem = (
            "the JobManager has no part in the exchange between TaskManagers, so the fault has no effect"
        )
        yield UserError(
            f"{where}.{field}", problem, "write plane: rpc" if on_data_plane else "name TaskManagers"
        )


def _callee(fault: Fault, *, selects: bool) -> tuple[str, str] | None:
    """Return why the target never receives the message that the fault delays, and what to write instead. None
    if it receives the message."""
    method = str(fault.params.get("method") or "")
    gateway = METHODS.get(method, "").partition(".")[0]
    if not gateway or selects == (gateway == "TaskExecutorGateway"):
        return None
    receiver = "the JobManager" if selects else "TaskManagers"
    example = "jobManager: {}" if selects else "taskManagers: {}"
    never = "TaskManagers never receive it" if selects else "the JobManager never receives it"
    return f"{method} is a message to {receiver}, so {never}", f"write target: {{{example}}}"
