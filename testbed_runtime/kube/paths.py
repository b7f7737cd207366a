"""API paths and label selectors."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from testbed_runtime.api.resources import resource


def path(
    kind: str,
    namespace: str | None,
    name: str = "",
    *,
    subresource: str = "",
) -> str:
    """Return for example `/api/v1/namespaces/x/pods/y/eviction`; `namespace` None is the whole cluster."""
    found = resource(kind)
    parts = ["apis" if found.group else "api", *found.api_version.split("/")]
    if found.namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (found.plural, name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def selector(labels: Mapping[str, str] | None) -> str:
    """Return a label selector. The value `*` only requires that the label exists."""
    return ",".join(key if value == "*" else f"{key}={value}" for key, value in (labels or {}).items())
