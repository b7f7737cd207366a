"""Generate the CustomResourceDefinitions of the five kinds from the models, with CEL rules, status, columns and descriptions. Pure.

A structural schema has neither $ref nor anyOf: parts are written out in place, an optional field is one that may be missing, and
integer-or-string is Kubernetes' int-or-string.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from testbed_runtime.api import crd_rules, crd_status, kinds, limits
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES, CustomResource
from testbed_runtime.api.descriptions import meaning
from testbed_runtime.api.fields import RULES, models_in
from testbed_runtime.api.models import IN_A_CLUSTER, Part
from testbed_runtime.api.naming import GROUP, LABEL_MANAGED_BY, MANAGED_BY, VERSION

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
    RULES,
)
"""Keywords that are copied from the JSON schema."""
FILLED_IN = ("TaskManagers", "Timeline", "Budget")
"""Parts that the API server fills in when they are missing, because other components or users read them."""
MAX_EXACT = 2**53
"""Larger bounds cannot be represented exactly as JSON numbers; `format: int64` limits those fields."""


def definitions() -> list[Schema]:
    """Return one definition for each kind, in the order of CUSTOM_RESOURCES."""
    return [_definition(kind, declared) for kind, declared in CUSTOM_RESOURCES.items()]


def file_name(definition: Schema) -> str:
    """Return a name such as `testbeds.yaml`."""
    return f"{definition['spec']['names']['plural']}.yaml"


def _definition(kind: str, declared: CustomResource) -> Schema:
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(kind)},
        "subresources": {"status": {}, **({"scale": dict(declared.scale)} if declared.scale else {})},
        "additionalPrinterColumns": list(declared.columns),
    }
    if declared.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in declared.selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{declared.plural}.{GROUP}", "labels": {LABEL_MANAGED_BY: MANAGED_BY}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": declared.plural,
                "singular": kind.lower(),
                "shortNames": [declared.short_name],
                "categories": ["headgate"],
            },
            "versions": [version],
        },
    }


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
                "description": "The observed state, written by the operator.",
                "properties": crd_status.STATUS[kind],
            },
        },
        RULES: crd_rules.rules_of_root(kind),
    }


def _first_paragraph(model: type[Part]) -> str:
    return " ".join((inspect.getdoc(model) or "").partition("\n\n")[0].split())


class _Writer:
    """Writes out parts: the bounds come from pydantic's JSON schema, the structure from the models."""

    def __init__(self, root: type[Part]) -> None:
        whole = root.model_json_schema(by_alias=True)
        self._models = {m.__name__: m for m in _models_below(root)}
        self._schemas: dict[str, Schema] = {**whole.get("$defs", {}), root.__name__: whole}

    def object(self, model: type[BaseModel]) -> Schema:
        """Return the schema of a part: its fields, which of them are required, and its rules."""
        declared = self._schemas[model.__name__]
        properties: Schema = {}
        for name, info in model.model_fields.items():
            alias = str(info.alias or name)
            field = declared["properties"][alias]
            text = _with_default(meaning(model, name), field)
            properties[alias] = {**self._value(field), "description": text}
        schema: Schema = {"type": "object"}
        if properties:
            schema["properties"] = properties
        if declared.get("required"):
            schema["required"] = declared["required"]
        rules = crd_rules.rules_of(model)
        return {**schema, RULES: rules} if rules else schema

    def _value(self, declared: Schema) -> Schema:
        choices = [c for c in declared.get("anyOf", ()) if c.get("type") != "null"]
        if len(choices) == 1:
            return self._value(choices[0])
        if choices:
            return {"x-kubernetes-int-or-string": True, "maxLength": limits.MAX_TEXT}
        if "$ref" in declared:
            return self._part(declared)
        return self._plain(declared)

    def _part(self, declared: Schema) -> Schema:
        name = declared["$ref"].rpartition("/")[2]
        schema = self.object(self._models[name])
        return {**schema, "default": {}} if name in FILLED_IN and "default" in declared else schema

    def _plain(self, declared: Schema) -> Schema:
        schema = {key: declared[key] for key in KEPT if key in declared}
        if IN_A_CLUSTER in declared:
            schema["maximum"] = declared[IN_A_CLUSTER]
        if "const" in declared:
            schema["enum"] = [declared["const"]]
        if schema["type"] == "integer":
            schema["format"] = "int64"
            if schema.get("maximum", 0) > MAX_EXACT:
                del schema["maximum"]
        if "items" in declared:
            schema["items"] = _without_defaults(self._value(declared["items"]))
        if schema["type"] == "object":
            schema.update(self._map(declared))
        if _has_default(declared):
            schema["default"] = declared["default"]
        return schema

    def _map(self, declared: Schema) -> Schema:
        keys = declared.get("propertyNames", {})
        low, high = keys.get("minLength", 0), keys.get("maxLength", limits.MAX_OPTION_KEY)
        return {
            "additionalProperties": self._value(declared["additionalProperties"]),
            RULES: [
                {
                    "rule": f"self.all(key, key.size() >= {low} && key.size() <= {high})",
                    "message": f"a key has {low} to {high} characters",
                }
            ],
        }


def _has_default(declared: Schema) -> bool:
    return declared.get("default") not in (None, "", [], {})


def _with_default(text: str, declared: Schema) -> str:
    """Return a description with the default, which `kubectl explain` does not show. A nested
    object has no default of its own: its fields have theirs."""
    if not _has_default(declared) or isinstance(declared["default"], dict):
        return text
    shown = json.dumps(declared["default"]).strip('"')
    return f"{text} Default: `{shown}`."


def _without_defaults(schema: Schema) -> Schema:
    """Return the schema of a list's items without defaults. `kubectl apply` compares a list as a whole, so an item that the API server
    has completed would look changed each time. The models have the same defaults."""
    found = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in found:
        found["properties"] = {name: _without_defaults(inner) for name, inner in found["properties"].items()}
    if "items" in found:
        found["items"] = _without_defaults(found["items"])
    return found


def _models_below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the model and every model in its fields."""
    yield model
    for info in model.model_fields.values():
        for part in models_in(info.annotation):
            yield from _models_below(part)
