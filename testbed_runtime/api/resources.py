"""The kinds that Headgate uses, with their API versions and plurals. A table instead of discovery, so that RBAC can list every call."""

from __future__ import annotations

from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.core.errors import HeadgateError


class Resource(Struct, frozen=True):
    """`plural` is the name in paths and in RBAC rules."""

    api_version: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group, `""` for the core group, as in RBAC rules."""
        return self.api_version.rpartition("/")[0]


_RESOURCES: dict[str, Resource] = {
    "Pod": Resource("v1", "pods"),
    "Service": Resource("v1", "services"),
    "ConfigMap": Resource("v1", "configmaps"),
    "Secret": Resource("v1", "secrets"),
    "Event": Resource("v1", "events"),
    "ServiceAccount": Resource("v1", "serviceaccounts"),
    "PersistentVolumeClaim": Resource("v1", "persistentvolumeclaims"),
    "PersistentVolume": Resource("v1", "persistentvolumes", namespaced=False),
    "Namespace": Resource("v1", "namespaces", namespaced=False),
    "Node": Resource("v1", "nodes", namespaced=False),
    "Deployment": Resource("apps/v1", "deployments"),
    "Job": Resource("batch/v1", "jobs"),
    "Lease": Resource("coordination.k8s.io/v1", "leases"),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies"),
    "Role": Resource(naming.RBAC_VERSION, "roles"),
    "RoleBinding": Resource(naming.RBAC_VERSION, "rolebindings"),
    "ClusterRole": Resource(naming.RBAC_VERSION, "clusterroles", namespaced=False),
    "ClusterRoleBinding": Resource(naming.RBAC_VERSION, "clusterrolebindings", namespaced=False),
    "SelfSubjectAccessReview": Resource(
        "authorization.k8s.io/v1", "selfsubjectaccessreviews", namespaced=False
    ),
    "LocalSubjectAccessReview": Resource("authorization.k8s.io/v1", "localsubjectaccessreviews"),
    "CustomResourceDefinition": Resource(
        "apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False
    ),
    **{kind: Resource(naming.API_VERSION, found.plural) for kind, found in CUSTOM_RESOURCES.items()},
}


def resource(kind: str) -> Resource:
    """Return the resource of a kind. Raises HeadgateError if it is not in this table."""
    found = _RESOURCES.get(kind)
    if found is None:
        raise HeadgateError(f"{kind}: not in the table of {__name__}; add it there")
    return found
