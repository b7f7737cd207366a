"""The schema of each kind's status, derived from api.status, and the columns of `kubectl get`. Pure."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any

import msgspec

from testbed_runtime.api.descriptions import docstring_of
from testbed_runtime.api.status import MAX_ROWS, MAX_TARGETS, MODELS, Condition, Model

Schema = dict[str, Any]

MAX_CONDITIONS = 16
MAX_MESSAGE = 32_768
"""Kubernetes' own bound of a condition's message."""

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer", "format": "int64"}
PLAIN: dict[Any, Schema] = {
    str: TEXT,
    int: INTEGER,
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
CONDITIONS: Schema = {
    "type": "array",
    "maxItems": MAX_CONDITIONS,
    "description": "The conditions, by type: status, reason and the time of the last change.",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string", "maxLength": 1024},
            "message": {"type": "string", "maxLength": MAX_MESSAGE},
            "observedGeneration": INTEGER,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
    },
}


def _properties(model: type[Any]) -> Schema:
    """Return the properties of a model."""
    hints, found = typing.get_type_hints(model, include_extras=True), {}
    for field in msgspec.structs.fields(model):
        text = docstring_of(model, field.name, Model)
        described = {"description": text} if text else {}
        found[field.encode_name] = {**_schema(hints[field.name]), **described}
    return found


def _schema(hint: Any) -> Schema:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        schema = _schema(arguments[0])
        for meta in arguments[1:]:
            schema = {**schema, **(meta.extra_json_schema or {})}
        return schema
    if origin in (UnionType, typing.Union):
        (inner,) = (a for a in arguments if a is not type(None))
        return _schema(inner)
    if origin is tuple and arguments[0] is Condition:
        return CONDITIONS
    if origin is tuple:
        bound = MAX_TARGETS if arguments[0] is str else MAX_ROWS
        return {"type": "array", "items": _schema(arguments[0]), "maxItems": bound}
    if origin is Mapping:
        return {
            "type": "object",
            "additionalProperties": _schema(arguments[1]),
            "maxProperties": MAX_TARGETS,
        }
    return PLAIN[hint] if hint in PLAIN else {"type": "object", "properties": _properties(hint)}


STATUS: dict[str, Schema] = {kind: _properties(model) for kind, model in MODELS.items()}


def _column(
    name: str, path: str, kind: str = "string", *, wide: bool = False, description: str = ""
) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path, "priority": 1 if wide else 0}
    return {**column, "description": description} if description else column


def _condition(name: str, **how: Any) -> Schema:
    return _column(name, f'.status.conditions[?(@.type=="{name}")].status', **how)


def _reason(condition: str) -> Schema:
    """Return the column with a condition's reason."""
    return _column("Reason", f'.status.conditions[?(@.type=="{condition}")].reason')


_AGE = _column("Age", ".metadata.creationTimestamp", "date")
COLUMNS: dict[str, list[Schema]] = {
    "Testbed": [
        _condition("Ready"),
        _reason("Ready"),
        _column("TaskManagers", ".status.readyTaskManagers", "integer"),
        _column("Wanted", ".spec.taskManagers.replicas", "integer"),
        _column("Job", ".status.jobState"),
        _AGE,
        _column("Tasks", ".status.tasks", wide=True),
        _column("Restarts", ".status.restarts", "integer", wide=True),
        _column("Flink", ".spec.flinkVersion", wide=True),
        _column("Run", ".spec.run", wide=True),
        _column("Message", ".status.message", wide=True),
    ],
    "Fault": [
        _column("Phase", ".status.phase"),
        _column("Kind", ".status.kind"),
        _column("Target", ".status.target"),
        _column("Remaining", ".status.remaining"),
        _column("Reason", ".status.reason"),
        _AGE,
        _column("Testbed", ".spec.testbedRef.name", wide=True),
        _column("Backend", ".status.backend", wide=True),
        _condition("EffectVerified", wide=True),
        _condition("NoResidue", wide=True),
        _column("Message", ".status.message", wide=True),
    ],
    "Scenario": [
        _condition("Accepted"),
        _reason("Accepted"),
        _column("Trials", ".spec.trials", "integer"),
        _AGE,
        _column("Flink", ".spec.testbed.flinkVersion", wide=True),
        _column("Hypothesis", ".spec.hypothesis", wide=True),
    ],
    "ScenarioRun": [
        _column("Phase", ".status.phase"),
        _column("Progress", ".status.progress"),
        _column("Verdict", ".status.verdict"),
        _column("Reason", ".status.reason"),
        _column("Remaining", ".status.remaining"),
        _column("Updated", ".status.updated", "date", description="When the runner last reported."),
        _AGE,
        _column("Scenario", ".spec.scenarioName", wide=True),
        _column("Trial", ".status.trial", wide=True),
        _column("Message", ".status.message", wide=True),
    ],
    "TuningStudy": [
        _column("Phase", ".status.phase"),
        _column("Progress", ".status.progress"),
        _column("Best", ".status.best"),
        _reason("Ready"),
        _AGE,
        _column("Applied", ".status.applied", wide=True),
        _column("Message", ".status.message", wide=True),
    ],
}

SHORT_NAMES = {
    "Testbed": "tb",
    "Fault": "flt",
    "Scenario": "scn",
    "ScenarioRun": "run",
    "TuningStudy": "tune",
}
SELECTABLE = {
    "Fault": (".status.phase",),
    "ScenarioRun": (".status.phase", ".status.verdict"),
    "TuningStudy": (".status.phase",),
}
"""Selectable fields, for `kubectl get run --field-selector status.verdict=Fail`."""
