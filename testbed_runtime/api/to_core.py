"""Parts of a document as data of core: variants with their settings merged, faults, targets, expectations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from testbed_runtime.api import fields, models
from testbed_runtime.core import ids
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.kinds import FAMILIES
from testbed_runtime.core.faults.model import Fault, Target
from testbed_runtime.core.faults.vocabulary import Type
from testbed_runtime.core.ids import JOBMANAGER as JOBMANAGER  # noqa: PLC0414 - re-exported
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.options import parse_duration

MAIN_VARIANT = "main"
"""The variant of a scenario without variants."""


# ---- Variants -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """One variant, merged with the scenario: the source of its control trial and its trials."""

    name: str
    testbed: models.TestbedSpec
    faults: tuple[models.FaultSpec, ...]
    expect: tuple[models.Expectation, ...]
    control: bool


def settings(spec: models.ScenarioSpec) -> list[Setting]:
    """Return the merged variants in the order of the document; without variants one called `main`."""
    if not spec.variants:
        return [Setting(MAIN_VARIANT, spec.testbed, tuple(spec.faults), tuple(spec.expect), spec.control)]
    return [_merged(spec, variant) for variant in spec.variants]


def _merged(spec: models.ScenarioSpec, variant: models.Variant) -> Setting:
    changes: dict[str, Any] = {
        "flink_configuration": {**spec.testbed.flink_configuration, **variant.flink_configuration}
    }
    for part in ("flink_version", "task_managers", "job"):
        if getattr(variant, part) is not None:
            changes[part] = getattr(variant, part)
    return Setting(
        name=variant.name,
        testbed=spec.testbed.model_copy(update=changes),
        faults=tuple(spec.faults if variant.faults is None else variant.faults),
        expect=merge_expectations((e for e in spec.expect if e.versus != variant.name), variant.expect),
        control=spec.control if variant.control is None else variant.control,
    )


def merge_expectations(
    base: Iterable[models.Expectation], own: Iterable[models.Expectation]
) -> tuple[models.Expectation, ...]:
    """A variant's item about the same metric, quantile, phase and other variant replaces the scenario's; others are added."""
    merged = {e.key: e for e in base}
    merged.update({e.key: e for e in own})
    return tuple(merged.values())


def task_manager_names(testbed: models.TestbedSpec) -> tuple[str, ...]:
    """Return the names of the testbed's TaskManagers, in order."""
    return ids.task_manager_names(testbed.task_managers.replicas)


# ---- Faults ---------------------------------------------------------------------------------------------------


def fault(spec: models.FaultSpec, *, seed: int | None = None) -> Fault:
    """Return the fault as core.faults knows it, with its parameters in SI units. `seed` is that of the trial and draws how far
    within `jitter` the fault begins; without a seed it is at the end of it."""
    before_submit = spec.at == fields.AT_DEPLOY
    share = 1.0 if seed is None else Random(f"{seed}/{spec.name}/at").random()  # noqa: S311
    return Fault(
        name=spec.name,
        kind=spec.kind.name,
        at_s=0.0 if before_submit else parse_duration(spec.at) + share * parse_duration(spec.jitter),
        duration_s=parse_duration(spec.duration),
        target=_target(spec.target, spec.kind.family),
        plane=spec.plane,
        direction=spec.direction,
        params=_params(spec),
        on_target_restart=spec.on_target_restart,
        before_submit=before_submit,
    )


def _params(spec: models.FaultSpec) -> dict[str, Any]:
    """The kind's parameters by Parameter.key; those that may be left out and are, are not in it."""
    params: dict[str, Any] = {}
    for parameter in spec.kind.parameters:
        value = getattr(spec.parameters, parameter.name)
        if value is not None:
            params[parameter.key] = parse_duration(value) if parameter.type is Type.DURATION else value
    return params


def _target(target: models.TargetSpec | None, family: str) -> Target:
    if target is None:
        return Target(names=(JOBMANAGER,)) if FAMILIES[family].jobmanager_only else Target()
    peers = target.peers or models.Peers()
    if target.task_managers is None:
        return Target(names=(JOBMANAGER,), peers=tuple(peers.names), peers_running=peers.running or "")
    chosen = target.task_managers
    return Target(
        names=tuple(chosen.names),
        running=chosen.running or "",
        mode=chosen.mode,
        value=chosen.value or 0,
        peers=tuple(peers.names),
        peers_running=peers.running or "",
    )


# ---- Targets --------------------------------------------------------------------------------------------------


def resolve_targets(
    fault: Fault, *, placement: Mapping[str, str], task_managers: Sequence[str], seed: int
) -> tuple[str, ...]:
    """Return logical names, or `target->peer` links when the fault names peers (the fault's direction is seen from the target).

    `placement` maps `vertex-subtask` to an ordinal name. Raises UserError when the fault hits no process.
    """
    chosen = _narrow(fault, _candidates(fault.target, placement, task_managers), seed)
    if not chosen:
        running = fault.target.running
        problem = f"no TaskManager runs vertex {running!r}" if running else "it selects no process"
        raise UserError(
            f"faults[{fault.name}].target", problem, "name a vertex whose subtasks run, or TaskManagers"
        )
    peers = _peers(fault.target, placement)
    if not peers:
        return tuple(chosen)
    return tuple(f"{name}->{peer}" for name in chosen for peer in peers if peer != name)


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
    """`one`, `fixed` and `percent` draw by the seed and the fault's name, over sorted names: the result is the same in every environment."""
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


# ---- Expectations ---------------------------------------------------------------------------------------------


def expectation(item: models.Expectation) -> Expectation:
    """Return an expectation as core.judgement judges it. If it is invalid, its `problem` says why."""
    return Expectation.from_item(item.model_dump(exclude_none=True))
