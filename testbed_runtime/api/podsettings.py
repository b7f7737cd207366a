"""Settings of every pod that Headgate creates: its security context, and the settings of the installation, such as its scheduling and
its priority. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from testbed_runtime.api import naming
from testbed_runtime.core.errors import UserError

POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": naming.USER_ID,
    "runAsGroup": naming.USER_ID,
    "fsGroup": naming.USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context of every pod."""
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""The security context of every container except the agent."""

VARIABLE = "HEADGATE_PODS"
"""The environment variable with these settings as JSON; the operator hands it on to Spark's driver."""
_SPEC = ("priorityClassName", "runtimeClassName", "tolerations", "affinity", "nodeSelector")
_METADATA = ("annotations", "labels")
PodSettings = Mapping[str, Any]
"""Fields of a pod's spec and metadata, by name; empty ones are left out."""


def read(text: str) -> PodSettings:
    """Read the value of the variable. Raises UserError that names it."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise UserError(VARIABLE, f"is not JSON: {error}", "write an object, as in {}") from None
    known = (*_SPEC, *_METADATA)
    if not isinstance(found, dict) or set(found) - set(known):
        raise UserError(VARIABLE, f"{text!r} is not an object with known fields", f"use {', '.join(known)}")
    return {key: value for key, value in found.items() if value}


def applied(pod: Mapping[str, Any], settings: PodSettings) -> dict[str, Any]:
    """Return the pod with these settings. Labels, annotations and node selectors that it has take precedence."""
    metadata, spec = {**pod["metadata"]}, {**pod["spec"]}
    for key in _METADATA:
        if settings.get(key):
            metadata[key] = {**settings[key], **metadata.get(key, {})}
    for key in _SPEC:
        value = settings.get(key)
        if value:
            spec[key] = {**value, **spec.get(key, {})} if key == "nodeSelector" else value
    return {**pod, "metadata": metadata, "spec": spec}
