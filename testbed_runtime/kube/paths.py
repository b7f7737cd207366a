"""The API paths of the kinds that Headgate uses. A table instead of discovery, so that RBAC can list every call."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError


class Resource(Struct, frozen=True):
    """`plural` is the name in paths and in RBAC rules."""

    plural: str
    namespaced: bool = True


_RESOURCES: dict[tuple[str, str], Resource] = {
    ("v1", "Pod"): Resource("pods"),
    ("v1", "Service"): Resource("services"),
    ("v1", "ConfigMap"): Resource("configmaps"),
    ("v1", "Secret"): Resource("secrets"),
    ("v1", "Event"): Resource("events"),
    ("v1", "ServiceAccount"): Resource("serviceaccounts"),
    ("v1", "PersistentVolumeClaim"): Resource("persistentvolumeclaims"),
    ("v1", "PersistentVolume"): Resource("persistentvolumes", namespaced=False),
    ("v1", "Namespace"): Resource("namespaces", namespaced=False),
    ("v1", "Node"): Resource("nodes", namespaced=False),
    ("apps/v1", "Deployment"): Resource("deployments"),
    ("batch/v1", "Job"): Resource("jobs"),
    ("coordination.k8s.io/v1", "Lease"): Resource("leases"),
    ("policy/v1", "PodDisruptionBudget"): Resource("poddisruptionbudgets"),
    ("networking.k8s.io/v1", "NetworkPolicy"): Resource("networkpolicies"),
    (naming.RBAC_VERSION, "Role"): Resource("roles"),
    (naming.RBAC_VERSION, "RoleBinding"): Resource("rolebindings"),
    (naming.RBAC_VERSION, "ClusterRole"): Resource("clusterroles", namespaced=False),
    (naming.RBAC_VERSION, "ClusterRoleBinding"): Resource("clusterrolebindings", namespaced=False),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): Resource(
        "selfsubjectaccessreviews", namespaced=False
    ),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): Resource(
        "customresourcedefinitions", namespaced=False
    ),
    **{(naming.API_VERSION, kind): Resource(plural) for kind, plural in naming.PLURALS.items()},
}


class UnknownKind(HeadgateError):
    """The kind is not in the table of this module."""


def resource(api_version: str, kind: str) -> Resource:
    found = _RESOURCES.get((api_version, kind))
    if found is None:
        raise UnknownKind(
            f"{api_version} {kind}: not in the table of testbed_runtime.kube.paths; add it there"
        )
    return found


def group_of(api_version: str) -> str:
    """Return the API group, `""` for the core group, as in RBAC rules."""
    return api_version.rpartition("/")[0]


def path(
    api_version: str,
    kind: str,
    namespace: str | None,
    name: str = "",
    *,
    subresource: str = "",
) -> str:
    """Return for example `/api/v1/namespaces/x/pods/y/eviction`; `namespace` None is the whole cluster."""
    found = resource(api_version, kind)
    parts = ["api" if "/" not in api_version else "apis", *api_version.split("/")]
    if found.namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (found.plural, name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def selector(labels: Mapping[str, str] | None) -> str:
    """Return a label selector. The value `*` only requires that the label exists."""
    return ",".join(key if value == "*" else f"{key}={value}" for key, value in (labels or {}).items())
