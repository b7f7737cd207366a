"""The kinds that Headgate uses, with their API versions and plurals, and what the manifests of their objects have in common. Pure.

A table instead of discovery, so that RBAC can list every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.core.errors import HeadgateError


class ResourceType(Struct, frozen=True):
    """`plural` is the name in paths and in RBAC rules."""

    api_version: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group, `""` for the core group, as in RBAC rules."""
        return self.api_version.rpartition("/")[0]


_RESOURCES: dict[str, ResourceType] = {
    "Pod": ResourceType("v1", "pods"),
    "Service": ResourceType("v1", "services"),
    "ConfigMap": ResourceType("v1", "configmaps"),
    "Secret": ResourceType("v1", "secrets"),
    "Event": ResourceType("v1", "events"),
    "ServiceAccount": ResourceType("v1", "serviceaccounts"),
    "PersistentVolumeClaim": ResourceType("v1", "persistentvolumeclaims"),
    "PersistentVolume": ResourceType("v1", "persistentvolumes", namespaced=False),
    "Namespace": ResourceType("v1", "namespaces", namespaced=False),
    "Node": ResourceType("v1", "nodes", namespaced=False),
    "Deployment": ResourceType("apps/v1", "deployments"),
    "Job": ResourceType("batch/v1", "jobs"),
    "Lease": ResourceType("coordination.k8s.io/v1", "leases"),
    "PodDisruptionBudget": ResourceType("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ResourceType("networking.k8s.io/v1", "networkpolicies"),
    "Role": ResourceType(naming.RBAC_VERSION, "roles"),
    "RoleBinding": ResourceType(naming.RBAC_VERSION, "rolebindings"),
    "ClusterRole": ResourceType(naming.RBAC_VERSION, "clusterroles", namespaced=False),
    "ClusterRoleBinding": ResourceType(naming.RBAC_VERSION, "clusterrolebindings", namespaced=False),
    "SelfSubjectAccessReview": ResourceType(
        "authorization.k8s.io/v1", "selfsubjectaccessreviews", namespaced=False
    ),
    "LocalSubjectAccessReview": ResourceType("authorization.k8s.io/v1", "localsubjectaccessreviews"),
    "CustomResourceDefinition": ResourceType(
        "apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False
    ),
    **{kind: ResourceType(naming.API_VERSION, found.plural) for kind, found in CUSTOM_RESOURCES.items()},
}


def resource_type(kind: str) -> ResourceType:
    """Return the entry of a kind. Raises HeadgateError if it is not in this table."""
    found = _RESOURCES.get(kind)
    if found is None:
        raise HeadgateError(f"{kind}: not in the table of {__name__}; add it there")
    return found


def manifest(kind: str, metadata: Mapping[str, Any], **content: Any) -> dict[str, Any]:
    """Return an object with its content: `spec`, `data`, …"""
    return {"apiVersion": resource_type(kind).api_version, "kind": kind, "metadata": metadata, **content}


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
