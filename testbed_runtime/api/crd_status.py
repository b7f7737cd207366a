"""The schema of each kind's status, derived from api.status. Pure."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal

import msgspec

from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.descriptions import docstring_of
from testbed_runtime.api.status import MAX_ROWS, MAX_TARGETS, Condition, Model

Schema = dict[str, Any]

MAX_CONDITIONS = 16

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer", "format": "int64"}
PLAIN: dict[Any, Schema] = {str: TEXT, int: INTEGER, float: {"type": "number"}, bool: {"type": "boolean"}}


def _properties(model: type[Any]) -> Schema:
    """Return the properties of a model."""
    hints, found = typing.get_type_hints(model, include_extras=True), {}
    for field in msgspec.structs.fields(model):
        text = docstring_of(model, field.name, Model if issubclass(model, Model) else model)
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
    if origin is Literal:
        return {**TEXT, "enum": [*arguments]}
    if origin is tuple and arguments[0] is Condition:
        return _conditions()
    if origin is tuple:
        bound = MAX_TARGETS if arguments[0] is str else MAX_ROWS
        return {"type": "array", "items": _schema(arguments[0]), "maxItems": bound}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1]), "maxProperties": MAX_TARGETS}
    return PLAIN[hint] if hint in PLAIN else {"type": "object", "properties": _properties(hint)}


def _conditions() -> Schema:
    """Return the keywords with which the API server merges conditions by type. Each condition has all fields but the generation."""
    fields = _properties(Condition)
    required = [name for name in fields if name != "observedGeneration"]
    merged = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    items = {"type": "object", "properties": fields, "required": required}
    return {"type": "array", "maxItems": MAX_CONDITIONS, **merged, "items": items}


STATUS: dict[str, Schema] = {
    kind: _properties(declared.status) for kind, declared in CUSTOM_RESOURCES.items()
}
