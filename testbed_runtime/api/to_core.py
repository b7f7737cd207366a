"""Parts of a document as data of core: variants with their settings merged, faults, expectations. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from testbed_runtime.api import fields, models
from testbed_runtime.core.faults.kinds import FAMILIES
from testbed_runtime.core.faults.model import Fault, Target
from testbed_runtime.core.faults.vocabulary import Type
from testbed_runtime.core.ids import JOBMANAGER
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
        expect=merge_expectations(spec.expect, variant.expect),
        control=spec.control if variant.control is None else variant.control,
    )


def merge_expectations(
    base: Iterable[models.Expectation], own: Iterable[models.Expectation]
) -> tuple[models.Expectation, ...]:
    """A variant's item about the same metric, quantile and phase replaces the scenario's; others are added."""
    merged = {(e.metric, e.quantile, e.phase): e for e in base}
    merged.update({(e.metric, e.quantile, e.phase): e for e in own})
    return tuple(merged.values())


# ---- Faults ---------------------------------------------------------------------------------------------------


def fault(spec: models.FaultSpec) -> Fault:
    """Return the fault as core.faults knows it, with its parameters in SI units."""
    before_submit = spec.at == fields.AT_DEPLOY
    return Fault(
        name=spec.name,
        kind=spec.kind.name,
        at_s=0.0 if before_submit else parse_duration(spec.at),
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


# ---- Expectations ---------------------------------------------------------------------------------------------


def expectation(item: models.Expectation) -> Expectation:
    """Return an expectation as core.judgement judges it. If it is invalid, its `problem` says why."""
    return Expectation.from_item(item.model_dump(exclude_none=True))
