"""Rules for the faults of a document: names, times, targets that exist. The checks of each fault are in core.faults.check."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from testbed_runtime.api import models
from testbed_runtime.api.compile import MergedVariant, compile_fault
from testbed_runtime.api.fields import AT_DEPLOY
from testbed_runtime.api.job_rules import repeated_names
from testbed_runtime.core.errors import UserError, nearest
from testbed_runtime.core.faults import check
from testbed_runtime.core.faults.kinds import kind_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.ids import JOBMANAGER, task_manager_names
from testbed_runtime.core.trial.plan import parse_replace_lost
from testbed_runtime.core.values import parse_duration

KILL, JOBMANAGER_KILL = "process.kill", "jobmanager.kill"
REGISTRATION = "registration.delay"
PAUSE, JOBMANAGER_PAUSE = "process.pause", "jobmanager.pause"
_IN_PROCESS = {"channel", "supervisor"}
"""Backends that act on a running process."""


def problems(setting: MergedVariant, path: str, timeline: models.Timeline) -> list[UserError]:
    """Return everything that is wrong with the faults of a setting at `path` (`spec` or `spec.variants[i]`)."""
    found = list(repeated_names([f.name for f in setting.faults], f"{path}.faults", "fault"))
    for index, spec in enumerate(setting.faults):
        where = f"{path}.faults[{index}]"
        found += alone(spec, where, setting.testbed)
        found += _time(compile_fault(spec), where, timeline)
        if spec.at == AT_DEPLOY and parse_duration(spec.jitter):
            hint = "leave out jitter, or write a time such as 0 s"
            found.append(
                UserError(f"{where}.jitter", f"a fault with `at: {AT_DEPLOY}` cannot have jitter", hint)
            )
        if spec.at == AT_DEPLOY and compile_fault(spec).kind == JOBMANAGER_KILL:
            problem = "the job cannot be submitted to a JobManager that was killed before"
            found.append(
                UserError(f"{where}.at", problem, "write a time such as 0 s, or pause the JobManager")
            )
    return [*found, *_on_stopped(setting, path)]


def doubts(setting: MergedVariant, path: str) -> Iterator[str]:
    """Yield delays that their fault cuts short."""
    for index, spec in enumerate(setting.faults):
        yield from doubts_alone(spec, f"{path}.faults[{index}]")


def doubts_alone(spec: models.FaultSpec, where: str) -> Iterator[str]:
    """Yield a warning about a fault that ends before any call or frame can be delayed by as much as requested."""
    fault = compile_fault(spec)
    for parameter in kind_of(fault).parameters:
        delay_s = fault.params.get(parameter.key)
        if parameter.name != "delay" or delay_s is None or delay_s <= fault.duration_s:
            continue
        ends = "registers every partition" if fault.kind == REGISTRATION else "delays nothing any more"
        yield (
            f"{where}.{fault.kind}.delay: {delay_s:g} s is longer than the fault, which lasts {fault.duration_s:g} s and "
            f"{ends} when it ends (make its duration longer than the delay)"
        )


def _on_stopped(setting: MergedVariant, path: str) -> Iterator[UserError]:
    """Yield faults that certainly need a process which another fault has killed or paused by then."""
    certain = [(i, compile_fault(s)) for i, s in enumerate(setting.faults) if not parse_duration(s.jitter)]
    replaced_s = parse_replace_lost(setting.testbed.task_managers.replace_lost)
    gone_s = math.inf if replaced_s is None else replaced_s
    for (number, fault), (other, stop) in product(certain, certain):
        after_s = fault.at_s - stop.at_s
        begun = other < number if after_s == 0 else after_s > 0
        if not begun or not _selects_stopped(fault, stop, same=after_s == 0):
            continue
        where = f"{path}.faults[{number}].at"
        if _killed(fault, stop, after_s, gone_s):
            problem = f"{fault.name!r} needs a process that {stop.name!r} has killed by then"
            yield UserError(where, problem, f"list it before {stop.name!r}, or start it earlier")
        elif _paused(fault, stop, after_s):
            problem = f"{fault.name!r} needs a process that {stop.name!r} has paused by then"
            hint = f"list it before {stop.name!r}, or start it earlier or after the pause"
            yield UserError(where, problem, hint)


def _killed(fault: Fault, kill: Fault, after_s: float, gone_s: float) -> bool:
    """Return whether the fault acts on a running process while the process that `kill` killed has not been replaced yet."""
    if kill.kind not in (KILL, JOBMANAGER_KILL) or fault.before_submit:
        return False
    dead_s = kill.duration_s if kill.kind == JOBMANAGER_KILL else gone_s
    return (after_s == 0 or after_s < dead_s) and bool(_IN_PROCESS & {*kind_of(fault).backends})


def _paused(fault: Fault, pause: Fault, after_s: float) -> bool:
    """Return whether the target itself has to carry out the fault and is still paused."""
    if pause.kind not in (PAUSE, JOBMANAGER_PAUSE) or fault.before_submit != pause.before_submit:
        return False
    return after_s < pause.duration_s and _carried_by_target(fault)


def _carried_by_target(fault: Fault) -> bool:
    """Return whether the selected processes themselves carry out the fault. Frames to them are dropped or delayed by
    the senders, and answers to heartbeats are muted by the JobManager."""
    muted = fault.kind == "heartbeats.mute" and fault.params.get("direction") == "response"
    return {*kind_of(fault).backends} == {"channel"} and fault.direction != "to" and not muted


def _selects_stopped(fault: Fault, stop: Fault, *, same: bool) -> bool:
    """Return whether a fault certainly selects a process that `stop` killed or paused. `same`: the placement is still the same."""
    if fault.target.mode != "all":
        return False
    if fault.target.names or stop.kind in (JOBMANAGER_KILL, JOBMANAGER_PAUSE):
        return stop.target.mode == "all" and bool({*fault.target.names} & {*stop.target.names})
    if fault.target.running:
        return same and fault.target.running == stop.target.running
    return True


def alone(spec: models.FaultSpec, path: str, testbed: models.TestbedSpec | None = None) -> list[UserError]:
    """Return the problems of a stand-alone fault. Names are looked up in its testbed, if the testbed is known."""
    fault = compile_fault(spec)
    vertices = [v.name for v in testbed.job.vertices] if testbed else None
    return [*_target(spec, fault, path, testbed), *check.problems(fault, path, vertices=vertices)]


def _time(fault: Fault, where: str, timeline: models.Timeline) -> Iterator[UserError]:
    observation = parse_duration(timeline.observation)
    end = fault.at_s + fault.duration_s
    if not fault.before_submit and end > observation:
        problem = f"the fault ends {end:g} s after the baseline, the observation only lasts {observation:g} s"
        hint = "make spec.timeline.observation longer, or the fault shorter"
        yield UserError(f"{where}.duration", problem, hint)


def _target(
    spec: models.FaultSpec, fault: Fault, where: str, testbed: models.TestbedSpec | None
) -> Iterator[UserError]:
    managers = spec.target.task_managers if spec.target else None
    peers = spec.target.peers if spec.target else None
    yield from check.target_problems(
        fault, where, selects=managers is not None, written=spec.target is not None, peers=peers is not None
    )
    if managers is not None:
        yield from _selection(managers, f"{where}.target.taskManagers", testbed)
    if peers is not None:
        yield from _known(peers, f"{where}.target.peers", testbed)
        if not peers.names and not peers.running:
            yield UserError(
                f"{where}.target.peers",
                "names no process, so the fault would affect every link of the target",
                "leave peers out, or write names or running",
            )
        alone = {JOBMANAGER} if managers is None else set(managers.names)
        if len(alone) == 1 and alone == set(peers.names) and not peers.running:
            yield UserError(
                f"{where}.target.peers",
                f"{peers.names[0]!r} is the target itself, and no link leads from a process to itself",
                "name another process",
            )


def _selection(
    chosen: models.TaskManagerSelection, where: str, testbed: models.TestbedSpec | None
) -> Iterator[UserError]:
    yield from _known(chosen, where, testbed)
    if chosen.names and chosen.running:
        yield UserError(where, "has both names and running", "keep one of them")
    needs_value = chosen.mode in ("fixed", "percent")
    if needs_value and chosen.value is None:
        yield UserError(f"{where}.value", f"mode {chosen.mode} needs a value", "write value: 1 or more")
    if not needs_value and chosen.value is not None:
        yield UserError(
            f"{where}.value", f"mode {chosen.mode} takes no value", "leave it out, or write mode: fixed"
        )
    replicas = testbed.task_managers.replicas if testbed else math.inf
    if chosen.mode == "fixed" and (chosen.value or 0) > replicas:
        hint = "there is only 1" if replicas == 1 else f"there are only {replicas}"
        yield UserError(f"{where}.value", f"{chosen.value} is too many TaskManagers", hint)
    if chosen.mode == "percent" and (chosen.value or 0) > 100:
        yield UserError(f"{where}.value", f"{chosen.value} % is more than 100 %", "write 1 to 100")


def _known(
    chosen: models.TaskManagerSelection | models.Peers, where: str, testbed: models.TestbedSpec | None
) -> Iterator[UserError]:
    if testbed is None:
        return
    vertices = [v.name for v in testbed.job.vertices]
    if chosen.running is not None and chosen.running not in vertices:
        problem = f"the vertex {chosen.running!r} does not exist"
        yield UserError(f"{where}.running", problem, nearest(chosen.running, vertices))
    names = task_manager_names(testbed.task_managers.replicas)
    for index, name in enumerate(chosen.names):
        if name not in names and not (isinstance(chosen, models.Peers) and name == JOBMANAGER):
            hint = f"there are {names[0]} to {names[-1]}" if len(names) > 1 else f"there is only {names[0]}"
            yield UserError(f"{where}.names[{index}]", f"{name!r} does not exist", hint)
