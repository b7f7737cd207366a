"""What a schema alone cannot say of the kinds, as CEL for the API server; messages name the mend. Pure data.

Only what one object shows: exactly-one, bounds between two fields, what may not change. Job graph and options are judged by api.validate.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from testbed_runtime.api import limits, models
from testbed_runtime.api.naming import MAX_TESTBED_NAME

Rule = dict[str, str]
"""One entry of `x-kubernetes-validations`."""

_SIMPLE_DURATION = "'^[0-9]{1,9} ?(ms|s|m|h|us|ns)$'"
"""Durations that CEL can read; of others only the operator can say which is longer."""
_UNIONS: dict[type[BaseModel], tuple[str, Sequence[str]]] = {
    models.Vertex: ("", ("source", "operator", "sink")),
    models.TargetSpec: ("", ("task_managers", "job_manager")),
    models.RegistrationDelay: ("", ("delay", "attempts")),
    models.NetworkFault: ("kind of network fault of ", ()),
    models.FramesFault: ("kind of frame fault of ", ()),
    models.ProcessFault: ("kind of process fault of ", ()),
    models.PodFault: ("kind of pod fault of ", ()),
    models.JobManagerFault: ("kind of JobManager fault of ", ()),
    models.StoreFault: ("kind of store fault of ", ()),
    models.FaultBody: ("fault kind of ", models.FAMILIES),
}
"""Model → what it is called, and the fields of which exactly one is set; none named: all."""

_OTHERS: dict[str, tuple[Rule, ...]] = {
    "Expectation": (
        {
            "rule": "has(self.equals) ? !has(self.min) && !has(self.max) : has(self.min) || has(self.max)",
            "message": "needs either equals, or min, max or both",
        },
    ),
    "Latency": (
        {
            "rule": f"!self.delay.matches({_SIMPLE_DURATION}) || !self.jitter.matches({_SIMPLE_DURATION})"
            " || duration(self.jitter.replace(' ', '')) <= duration(self.delay.replace(' ', ''))",
            "message": "the jitter is more than the delay, so bytes would come early: make it at most the delay",
        },
    ),
    "ScenarioRunSpec": (
        *(
            {
                "rule": f"self.{field} == oldSelf.{field}",
                "message": f"{field} of a run does not change, only suspend and ttlSecondsAfterFinished do: create another ScenarioRun",
            }
            for field in ("scenario", "scenarioName", "control")
        ),
        *(
            {
                "rule": f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
                "message": f"{field} of a run does not change, only suspend and ttlSecondsAfterFinished do: create another ScenarioRun",
            }
            for field in ("variants", "evaluation")
        ),
        {
            "rule": "!has(self.evaluation) || !has(self.evaluation.executors) || self.evaluation.executors == 0"
            " || (has(self.evaluation.historyClaim) && self.evaluation.historyClaim != '')",
            "message": "executors in pods of their own reach no history without evaluation.historyClaim: name a volume claim that"
            " several nodes can mount, or write executors: 0",
        },
    ),
    "FaultResourceSpec": (
        {
            "rule": "self.plan == oldSelf.plan || oldSelf.plan",
            "message": "a fault that was begun cannot become a plan: delete it, that ends it",
        },
    ),
}

_NAMES = {
    "Testbed": (MAX_TESTBED_NAME, "its pods are named after it"),
    "Fault": (limits.MAX_NAME, "it is named in reports"),
    "Scenario": (limits.MAX_NAME, "its runs are named after it"),
    "ScenarioRun": (limits.MAX_RUN_NAME, "its pods are named after it"),
    "TuningStudy": (limits.MAX_RUN_NAME, "its runs are named after it"),
}
_ROOTS: dict[str, tuple[Rule, ...]] = {
    "Fault": (
        {
            "rule": "!has(oldSelf.status) || !has(oldSelf.status.phase)"
            " || !(oldSelf.status.phase in ['Planned', 'Active']) || self.spec == oldSelf.spec",
            "message": "the spec of a fault that was begun does not change: delete it, that ends it, and create another",
        },
    ),
}
"""What a kind's status has to do with its spec."""


def rules_of(model: type[BaseModel]) -> list[Rule]:
    """Of an object below `spec`."""
    found = [_union(model, *_UNIONS[base]) for base in model.__mro__ if base in _UNIONS]
    return [*found, *_OTHERS.get(model.__name__, ())]


def rules_of_root(kind: str) -> list[Rule]:
    """Of the whole object: its name, and what its status forbids."""
    most, why = _NAMES[kind]
    named = {
        "rule": f"self.metadata.name.size() <= {most} && self.metadata.name.matches('{models.NAME_PATTERN}')",
        "message": f"the name of a {kind} has at most {most} lower-case letters, digits and dashes, a letter first: {why}",
    }
    return [named, *_ROOTS.get(kind, ())]


def _union(model: type[BaseModel], what: str, names: Sequence[str]) -> Rule:
    aliases = [str(model.model_fields[name].alias or name) for name in names or model.model_fields]
    given = ", ".join(f"has(self.{alias})" for alias in aliases)
    return {
        "rule": f"[{given}].filter(given, given).size() == 1",
        "message": f"needs exactly one {what}{', '.join(aliases)}",
    }
