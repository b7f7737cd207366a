"""Parts of manifests that more than one process writes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from testbed_runtime.api import naming
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.resources import manifest, metadata_of
from testbed_runtime.api.views import Resource, Study

CONFIG_MAP_BYTES = 900_000
"""Content of one ConfigMap, which may have 1 MiB with its names."""


def unwatched(found: dict[str, Any]) -> dict[str, Any]:
    """Return a ConfigMap without the label that the operator watches. The operator does not need the ConfigMaps of the command line."""
    del found["metadata"]["labels"][naming.LABEL_MANAGED_BY]
    return found


def with_parts(
    document: Mapping[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return the document of a scenario with `change` applied to its testbed and to each of its variants."""
    spec = dict(document["spec"])
    spec["testbed"] = change(spec.get("testbed") or {})
    if spec.get("variants"):
        spec["variants"] = [change(variant) for variant in spec["variants"]]
    return {**document, "spec": spec}


def config_map(
    owner: Resource, name: str, data: Mapping[str, str], binary: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """Return a ConfigMap that is deleted with its ScenarioRun or TuningStudy."""
    label = CUSTOM_RESOURCES[owner.kind].label
    metadata = metadata_of(
        name, owner.namespace, {label: owner.name}, component=owner.kind.lower(), owner=owner.reference()
    )
    found = manifest("ConfigMap", metadata, data=dict(data))
    if binary:
        found["binaryData"] = {k: base64.b64encode(v).decode() for k, v in binary.items()}
    return found


def scenario_run(
    name: str, namespace: str, spec: Mapping[str, Any], *, study: Study | None = None
) -> dict[str, Any]:
    """Return a ScenarioRun, which belongs to the TuningStudy if one is given."""
    labels = {naming.LABEL_STUDY: study.name} if study else {}
    metadata = metadata_of(
        name, namespace, labels, component="scenariorun", owner=study.reference() if study else None
    )
    return manifest("ScenarioRun", metadata, spec=dict(spec))
