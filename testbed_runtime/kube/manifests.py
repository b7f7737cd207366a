"""Parts of manifests that more than one process writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed_runtime.api import naming


def owner_reference(owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference that makes `owner` the controller of an object, which is deleted together with it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }


def scenario_run(
    name: str,
    namespace: str,
    spec: Mapping[str, Any],
    *,
    study: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a ScenarioRun, which belongs to the TuningStudy if one is given."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "labels": {naming.LABEL_MANAGED_BY: naming.MANAGED_BY},
    }
    if study is not None:
        metadata["labels"][naming.LABEL_STUDY] = study["metadata"]["name"]
        metadata["ownerReferences"] = [owner_reference(study)]
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "ScenarioRun",
        "metadata": metadata,
        "spec": dict(spec),
    }
