"""The rights of Headgate's accounts, which rbac.yaml declares. The roles of manifests/ and of the Helm chart are written from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct


class Right(Struct, frozen=True):
    """One verb on one resource, for example `create` on `pods/eviction`. `name` is the only permitted object, empty for all of them."""

    verb: str
    group: str
    resource: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


def rules() -> dict[str, list[dict[str, Any]]]:
    """Return the rules of each role, as in the `rules` of a Role."""
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    )
    return found


def rights(*roles: str) -> tuple[Right, ...]:
    """Return every right that these roles grant."""
    declared = rules()
    return tuple(
        Right(verb, group, resource, name)
        for role in roles
        for rule in declared[role]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ("",))
        for verb in rule["verbs"]
    )
