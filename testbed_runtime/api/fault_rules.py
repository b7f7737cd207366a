"""Class B of faults: names, time, targets that exist, parameters that mean something."""

from __future__ import annotations

from collections.abc import Iterator

from testbed_runtime.api import models, to_core
from testbed_runtime.api.job_rules import nearest
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job import messages
from testbed_runtime.core.options import parse_duration
from testbed_runtime.faults.model import Fault

LINK_FAMILIES = ("network", "frames")
"""Kinds that hit links, so that `peers` means something."""
ASKED_METHODS = tuple(
    sorted(
        name
        for name in vars(messages)
        if isinstance(getattr(messages, name), type)
        and getattr(messages, name).__module__ == messages.__name__
    )
)
"""Messages that `rpc.delay` can name."""


def problems(setting: to_core.Setting, path: str, timeline: models.Timeline) -> list[UserError]:
    """Everything that is wrong with the faults of a setting at `path` (`spec` or `spec.variants[i]`)."""
    found: list[UserError] = []
    seen: set[str] = set()
    for index, spec in enumerate(setting.faults):
        where = f"{path}.faults[{index}]"
        if spec.name in seen:
            found.append(
                UserError(f"{where}.name", f"{spec.name!r} is there twice", "each fault has its own name")
            )
        seen.add(spec.name)
        fault = to_core.fault(spec)
        found += [
            *_time(fault, where, timeline),
            *_target(spec, fault, where, setting.testbed),
            *_params(fault, where, setting.testbed),
        ]
    return found


def alone(spec: models.FaultSpec, path: str, testbed: models.TestbedSpec | None = None) -> list[UserError]:
    """Of one fault outside a timeline at `path`; names and vertices are looked up in its testbed when that is known."""
    fault = to_core.fault(spec)
    return [*_length(fault, path), *_target(spec, fault, path, testbed), *_params(fault, path, testbed)]


def _length(fault: Fault, where: str) -> Iterator[UserError]:
    if fault.duration_s <= 0:
        yield UserError(f"{where}.duration", "must be more than 0", "a fault has an end, e.g. '2 s'")


def _time(fault: Fault, where: str, timeline: models.Timeline) -> Iterator[UserError]:
    yield from _length(fault, where)
    observation = parse_duration(timeline.observation)
    end = fault.at_s + fault.duration_s
    if not fault.before_submit and end > observation:
        yield UserError(
            f"{where}.duration",
            f"the fault ends {end:g} s after the baseline, the observation only lasts {observation:g} s",
            "make spec.timeline.observation longer, or the fault shorter",
        )


def _target(
    spec: models.FaultSpec, fault: Fault, where: str, testbed: models.TestbedSpec | None
) -> Iterator[UserError]:
    family = fault.kind.partition(".")[0]
    managers = spec.target.task_managers if spec.target else None
    if family == "jobmanager" and managers is not None:
        yield UserError(f"{where}.target", f"{fault.kind} hits the JobManager", "leave target out")
    if family == "process" and managers is None:
        yield UserError(
            f"{where}.target", f"{fault.kind} needs TaskManagers", "write target: {taskManagers: {mode: one}}"
        )
    if family == "pod" and spec.target is None:
        yield UserError(
            f"{where}.target", f"{fault.kind} needs its pods", "write target: {taskManagers: {mode: one}}"
        )
    if spec.target and spec.target.peers and family not in LINK_FAMILIES:
        yield UserError(f"{where}.target.peers", f"{fault.kind} hits processes, not links", "leave peers out")
    if managers is not None:
        yield from _selection(managers, f"{where}.target.taskManagers", testbed)
    if spec.target and spec.target.peers:
        yield from _known(spec.target.peers, f"{where}.target.peers", testbed)
    if fault.before_submit and (fault.target.running or fault.target.peers_running):
        yield UserError(
            f"{where}.target",
            "nothing runs before the job is submitted, so running selects nobody",
            "write names, or all TaskManagers",
        )


def _selection(
    chosen: models.TaskManagerSelection, where: str, testbed: models.TestbedSpec | None
) -> Iterator[UserError]:
    yield from _known(chosen, where, testbed)
    if chosen.names and chosen.running:
        yield UserError(where, "has both names and running", "keep one of them")
    needs_value = chosen.mode in ("fixed", "percent")
    if needs_value and chosen.value is None:
        yield UserError(f"{where}.value", f"mode {chosen.mode} needs a value")
    if not needs_value and chosen.value is not None:
        yield UserError(
            f"{where}.value", f"mode {chosen.mode} takes no value", "leave it out, or write mode: fixed"
        )
    if chosen.mode == "percent" and (chosen.value or 0) > 100:
        yield UserError(f"{where}.value", f"{chosen.value} % is more than all")


def _known(
    chosen: models.TaskManagerSelection | models.Peers, where: str, testbed: models.TestbedSpec | None
) -> Iterator[UserError]:
    if testbed is None:
        return
    vertices = [v.name for v in testbed.job.vertices]
    if chosen.running is not None and chosen.running not in vertices:
        yield UserError(
            f"{where}.running", f"there is no vertex {chosen.running!r}", nearest(chosen.running, vertices)
        )
    names = to_core.task_manager_names(testbed)
    for index, name in enumerate(chosen.names):
        if name not in names and not (isinstance(chosen, models.Peers) and name == to_core.JOBMANAGER):
            yield UserError(
                f"{where}.names[{index}]", f"there is no {name!r}", f"there are {names[0]} to {names[-1]}"
            )


def _params(fault: Fault, where: str, testbed: models.TestbedSpec | None) -> Iterator[UserError]:
    family, _, kind = fault.kind.partition(".")
    vertices = [v.name for v in testbed.job.vertices] if testbed else []
    vertex = fault.params.get("vertex")
    if testbed and vertex is not None and vertex not in vertices:
        path = f"{where}.{family}.{kind}.vertex"
        yield UserError(path, f"there is no vertex {vertex!r}", nearest(vertex, vertices))
    if fault.kind == "rpc.delay" and fault.params["method"] not in ASKED_METHODS:
        yield UserError(
            f"{where}.rpc.delay.method",
            f"there is no message {fault.params['method']!r}",
            nearest(fault.params["method"], list(ASKED_METHODS)),
        )
    for name in ("latency_s", "delay_s"):
        if fault.params.get(name) == 0:
            yield UserError(
                f"{where}.{family}.{kind}.delay", "must be more than 0", "a delay of 0 changes nothing"
            )
    if fault.params.get("jitter_s", 0) > fault.params.get("latency_s", 0):
        yield UserError(
            f"{where}.{family}.{kind}.jitter",
            "is more than the delay, so bytes would come early",
            "make it at most the delay",
        )
    if fault.params.get("correlation") and not fault.params.get("jitter_s"):
        yield UserError(
            f"{where}.{family}.{kind}.correlation",
            "is of the jitter, and there is none",
            "write a jitter, as in '5 ms'",
        )
