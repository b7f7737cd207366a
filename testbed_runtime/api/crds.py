"""The five kinds as CustomResourceDefinitions: from the models, with CEL, status, columns and the texts of `kubectl explain`. Pure.

A structural schema has no $ref and no anyOf: parts are written out where they stand, an optional field is one that may be left out,
integer-or-text is Kubernetes' int-or-string.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from testbed_runtime.api import crd_rules, crd_status, kinds, limits
from testbed_runtime.api.descriptions import meaning
from testbed_runtime.api.models import Part
from testbed_runtime.api.naming import GROUP, LABEL_MANAGED_BY, MANAGED_BY, PLURALS, VERSION

Schema = dict[str, Any]

KEPT = (
    "type",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "maxProperties",
)
"""What is taken over from a JSON schema as it stands."""
FILLED_IN = ("TaskManagers", "Timeline", "Budget")
"""Parts that the API server writes out when they are left out: what others look at, or a reader wants to see."""
MAX_EXACT = 2**53
"""Bounds above it do not survive a JSON number; `format: int64` bounds those."""


def definitions() -> list[Schema]:
    """One for each kind, in the order of naming.PLURALS."""
    return [_definition(kind, plural) for kind, plural in PLURALS.items()]


def file_name(definition: Schema) -> str:
    """`testbeds.yaml`."""
    return f"{definition['spec']['names']['plural']}.yaml"


def _definition(kind: str, plural: str) -> Schema:
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(kind)},
        "subresources": _subresources(kind),
        "additionalPrinterColumns": crd_status.COLUMNS[kind],
    }
    if kind in crd_status.SELECTABLE:
        version["selectableFields"] = [{"jsonPath": path} for path in crd_status.SELECTABLE[kind]]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {LABEL_MANAGED_BY: MANAGED_BY}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [crd_status.SHORT_NAMES[kind]],
                "categories": ["headgate"],
            },
            "versions": [version],
        },
    }


def _subresources(kind: str) -> Schema:
    if kind != "Testbed":
        return {"status": {}}
    scale = {
        "specReplicasPath": ".spec.taskManagers.replicas",
        "statusReplicasPath": ".status.readyTaskManagers",
        "labelSelectorPath": ".status.selector",
    }
    return {"status": {}, "scale": scale}


def _root(kind: str) -> Schema:
    model = kinds.KINDS[kind]
    spec = model.model_fields["spec"].annotation
    assert inspect.isclass(spec)
    assert issubclass(spec, Part)
    return {
        "type": "object",
        "description": _first_paragraph(spec),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": meaning(model, "api_version")},
            "kind": {"type": "string", "description": meaning(model, "kind")},
            "metadata": {"type": "object"},
            "spec": {**_Writer(spec).object(spec), "description": meaning(model, "spec")},
            "status": {
                "type": "object",
                "description": "What became of it; written by the operator.",
                "properties": crd_status.STATUS[kind],
            },
        },
        "x-kubernetes-validations": crd_rules.rules_of_root(kind),
    }


def _first_paragraph(model: type[Part]) -> str:
    return " ".join((inspect.getdoc(model) or "").partition("\n\n")[0].split())


class _Writer:
    """Writes parts out: pydantic's JSON schema says the bounds, the models say which part stands where."""

    def __init__(self, root: type[Part]) -> None:
        whole = root.model_json_schema(by_alias=True)
        self._models = {m.__name__: m for m in _models_below(root)}
        self._schemas: dict[str, Schema] = {**whole.get("$defs", {}), root.__name__: whole}

    def object(self, model: type[BaseModel]) -> Schema:
        """A part with its fields, what is required and its rules."""
        said = self._schemas[model.__name__]
        properties: Schema = {}
        for name, info in model.model_fields.items():
            alias = str(info.alias or name)
            properties[alias] = {
                **self._value(said["properties"][alias]),
                "description": meaning(model, name),
            }
        schema: Schema = {"type": "object"}
        if properties:
            schema["properties"] = properties
        if said.get("required"):
            schema["required"] = said["required"]
        rules = crd_rules.rules_of(model)
        return {**schema, "x-kubernetes-validations": rules} if rules else schema

    def _value(self, said: Schema) -> Schema:
        choices = [c for c in said.get("anyOf", ()) if c.get("type") != "null"]
        if len(choices) == 1:
            return self._value(choices[0])
        if choices:
            return {"x-kubernetes-int-or-string": True, "maxLength": limits.MAX_TEXT}
        if "$ref" in said:
            return self._part(said)
        return self._plain(said)

    def _part(self, said: Schema) -> Schema:
        name = said["$ref"].rpartition("/")[2]
        schema = self.object(self._models[name])
        return {**schema, "default": {}} if name in FILLED_IN and "default" in said else schema

    def _plain(self, said: Schema) -> Schema:
        schema = {key: said[key] for key in KEPT if key in said}
        if "const" in said:
            schema["enum"] = [said["const"]]
        if schema["type"] == "integer":
            schema["format"] = "int64"
            if schema.get("maximum", 0) > MAX_EXACT:
                del schema["maximum"]
        if "items" in said:
            schema["items"] = self._value(said["items"])
        if schema["type"] == "object":
            schema.update(self._map(said))
        if said.get("default") not in (None, "", [], {}):
            schema["default"] = said["default"]
        return schema

    def _map(self, said: Schema) -> Schema:
        keys = said.get("propertyNames", {})
        low, high = keys.get("minLength", 0), keys.get("maxLength", limits.MAX_OPTION_KEY)
        return {
            "additionalProperties": self._value(said["additionalProperties"]),
            "x-kubernetes-validations": [
                {
                    "rule": f"self.all(key, key.size() >= {low} && key.size() <= {high})",
                    "message": f"a key has {low} to {high} characters",
                }
            ],
        }


def _models_below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Itself and every model in its fields."""
    yield model
    for info in model.model_fields.values():
        for part in _parts_in(info.annotation):
            yield from _models_below(part)


def _parts_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for inner in typing.get_args(annotation):
        yield from _parts_in(inner)
