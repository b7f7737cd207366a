"""A fault kind (`network.latency`) as one writes it in a document: its place, and the names of its fields."""

from __future__ import annotations

import typing

from pydantic.fields import FieldInfo

from testbed_runtime.api import models


def place_of(kind: str) -> tuple[str, str]:
    """`network.half-open` → (`network`, `halfOpen`). Raises KeyError for a kind that no document can hold."""
    return kind.partition(".")[0], str(_field(kind).alias)


def fields_of(kind: str) -> tuple[str, ...]:
    """Names of the fields below it: (`delay`, `mode`, `jitter`); none for kinds that are written as `{}`."""
    return tuple(str(field.alias) for field in _part(_field(kind)).model_fields.values())


def _field(kind: str) -> FieldInfo:
    family, _, name = kind.partition(".")
    return _part(models.FaultSpec.model_fields[family]).model_fields[name.replace("-", "_")]


def _part(field: FieldInfo) -> type[models.Part]:
    """The model of a field, which may be optional."""
    annotation = field.annotation
    found = [
        a
        for a in (annotation, *typing.get_args(annotation))
        if isinstance(a, type) and issubclass(a, models.Part)
    ]
    return found[0]
