"""The parts that the manifests of Headgate's objects have in common. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed_runtime.api import naming
from testbed_runtime.api.resources import resource


def manifest(kind: str, metadata: Mapping[str, Any], **content: Any) -> dict[str, Any]:
    """Return an object with its content: `spec`, `data`, …"""
    return {"apiVersion": resource(kind).api_version, "kind": kind, "metadata": metadata, **content}


def metadata_of(
    name: str,
    namespace: str,
    labels: Mapping[str, str] | None = None,
    *,
    component: str,
    owner: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return metadata with Kubernetes' recommended labels. The object is deleted with its owner, if it has one."""
    instance = owner["name"] if owner and owner.get("controller") else naming.MANAGED_BY
    recommended = naming.recommended_labels(instance, component)
    found = {"name": name, "namespace": namespace, "labels": {**recommended, **(labels or {})}}
    return {**found, "ownerReferences": [owner]} if owner else found
