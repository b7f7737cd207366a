"""Rules that a schema alone cannot express, as CEL for the API server. Each message says how to fix the object. Pure data.

The rules cover what a single object shows: exactly-one, bounds between two fields, immutable fields. api.validate checks the job graph
and the options.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel

from testbed_runtime.api import models
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.kinds import TuningStudySpec
from testbed_runtime.core.faults.kinds import FAMILIES
from testbed_runtime.core.faults.vocabulary import Kind
from testbed_runtime.core.judgement.expectations import NEEDS_BOUND

Rule = dict[str, str]
"""One entry of `x-kubernetes-validations`."""

_SIMPLE_DURATION = "'^[0-9]{1,9} ?(ms|s|m|h|us|ns)$'"
"""The pattern of durations that CEL can read. Only the operator can compare other durations."""
_UNIONS: dict[type[BaseModel], tuple[str, Sequence[str]]] = {
    models.Vertex: ("", models.VERTEX_ROLES),
    models.TargetSpec: ("", ("task_managers", "job_manager")),
    models.FaultBody: ("fault kind of ", tuple(FAMILIES)),
}
"""Model → its name in the message, and the fields of which exactly one is set (none: all of them)."""
for _name, _model in models.FAULT_MODELS.items():
    if len(_model.model_fields) > 1:
        _UNIONS[_model] = (f"kind of {FAMILIES[_name].title} of ", ())

_CHANGEABLE = ("budget", "apply", "suspend")
"""Fields of a TuningStudy that decide neither what its runs are nor how they are compared."""


def _same(path: str) -> str:
    """Return the rule that a field of an object keeps its value, or stays without one."""
    before, after = f"oldSelf.{path}", f"self.{path}"
    return f"has({after}) == has({before}) && (!has({after}) || {after} == {before})"


def _unchangeable(field: str, rule: str) -> Rule:
    """Return the rule for a field of a ScenarioRun that does not change."""
    advice = (
        "of a run cannot change, only suspend and ttlSecondsAfterFinished can: create another ScenarioRun"
    )
    return {"rule": rule, "message": f"{field} {advice}"}


_OTHERS: dict[str, list[Rule]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)
_OTHERS["Expectation"][0]["message"] = NEEDS_BOUND
_OTHERS["ScenarioRunSpec"] = [
    *(
        _unchangeable(field, f"self.{field} == oldSelf.{field}")
        for field in ("scenario", "scenarioName", "control")
    ),
    *(_unchangeable(field, _same(field)) for field in ("variants", "evaluation")),
    *_OTHERS["ScenarioRunSpec"],
]
_FIXED = [_same(f"spec.{field}") for field in TuningStudySpec.model_fields if field not in _CHANGEABLE]
_OTHERS["TuningStudy"] = [
    {
        "rule": f"!has(oldSelf.status) || !has(oldSelf.status.startedAt) || ({' && '.join(_FIXED)})",
        "message": "of a study that has begun, only budget, apply and suspend can change, because all rows must be measured alike: "
        "delete it, and create it again",
    }
]
"""The rules of crd_rules.yaml, and those for fields that never change, or not after the beginning of a study."""


def _of_kind(kind: Kind, model: type[BaseModel]) -> list[Rule]:
    """Return the rules between a kind's parameters that CEL can express."""
    rules = [_union(model, "", kind.one_of)] if kind.one_of else []
    for constraint in kind.constraints:
        if constraint.at_most:
            small, large = f"self.{constraint.field}", f"self.{constraint.at_most}"
            rules.append(
                {
                    "rule": f"!has({large}) || !has({small}) || !{large}.matches({_SIMPLE_DURATION}) || !{small}.matches({_SIMPLE_DURATION})"
                    f" || duration({small}.replace(' ', '')) <= duration({large}.replace(' ', ''))",
                    "message": f"{constraint.field} {constraint.problem}: {constraint.hint}",
                }
            )
    return rules


def rules_of(model: type[BaseModel]) -> list[Rule]:
    """Return the rules of an object below `spec`."""
    found = [_union(model, *_UNIONS[base]) for base in model.__mro__ if base in _UNIONS]
    kind = models.KIND_OF_MODEL.get(model)
    return [*found, *(_of_kind(kind, model) if kind else ()), *_OTHERS.get(model.__name__, ())]


def rules_of_root(kind: str) -> list[Rule]:
    """Return the rules for the whole object: its name, and changes that its status forbids."""
    declared = CUSTOM_RESOURCES[kind]
    most, why = declared.max_name, declared.name_use
    named = {
        "rule": f"self.metadata.name.size() <= {most} && self.metadata.name.matches('{models.NAME_PATTERN}')",
        "message": f"the name of a {kind} has at most {most} lower-case letters, digits and dashes, a letter first: {why}",
    }
    return [named, *_OTHERS.get(kind, ())]


def _union(model: type[BaseModel], what: str, names: Sequence[str]) -> Rule:
    aliases = [str(model.model_fields[name].alias or name) for name in names or model.model_fields]
    given = ", ".join(f"has(self.{alias})" for alias in aliases)
    return {
        "rule": f"[{given}].filter(given, given).size() == 1",
        "message": f"needs exactly one {what}{', '.join(aliases)}",
    }
