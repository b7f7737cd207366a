"""Access of the command line to a cluster: kubectl's flags, and errors that say what is missing and how to fix it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from testbed_runtime.core.errors import HeadgateError, UserError

if TYPE_CHECKING:
    from testbed_runtime.kube.api import Api

INSTALL = (
    "install Headgate: kubectl apply -k manifests/, or "
    "helm install headgate ./helm/headgate --namespace headgate-system --create-namespace"
)
FIELD_MANAGER = "headgate-cli"
PATIENCE_S = 5.0
"""Limit for one request: shorter than in the operator, because a person waits."""

Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Namespace in the cluster; the context's own by default.")
]
Context = Annotated[str, typer.Option("--context", help="Context of the kubeconfig.")]
Kubeconfig = Annotated[str, typer.Option("--kubeconfig", help="Path of the kubeconfig.")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="In every namespace.")]


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the cluster. An empty field means what kubectl would use."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""

    @property
    def given(self) -> bool:
        return any((self.namespace, self.context, self.kubeconfig))


def require_cluster(environment: str, access: Access) -> None:
    """Refuse flags of a cluster for a run that does not use one."""
    if environment != "kubernetes" and access.given:
        raise UserError(
            "--namespace, --context, --kubeconfig",
            f"have no effect on a run with --on {environment}",
            "add --on kubernetes, or leave them out",
        )


@asynccontextmanager
async def connected(access: Access) -> AsyncIterator[Api]:
    """Yield an Api with that login; `api.namespace` is the namespace to use. Errors of the API server say how to fix them."""
    try:
        import kubernetes.aio  # noqa: F401 - the check that the extra is installed

        from testbed_runtime.kube.api import ApiError, connect
    except ModuleNotFoundError as error:
        raise UserError("--on kubernetes", f"{error.name} is missing", "install headgate[operator]") from None
    async with connect(
        kubeconfig=access.kubeconfig,
        context=access.context,
        namespace=access.namespace,
        field_manager=FIELD_MANAGER,
        patience_s=PATIENCE_S,
    ) as api:
        try:
            yield api
        except ApiError as error:
            raise explained(error.status, error.reason, error.text, server=api.server) from error


def explained(status: int, reason: str, text: str, *, server: str) -> HeadgateError:
    """Return the error for what the API server refused, with how to fix it. Pure."""
    if status == 404 and ("could not find the requested resource" in text or "page not found" in text):
        return UserError("the cluster", "knows no kinds of headgate.dev", INSTALL)
    if status == 403:
        return UserError(
            "the cluster", text, "ask its administrator for the role headgate-edit in that namespace"
        )
    if status == 401:
        return UserError("the cluster", "does not accept the login", "renew it, or give --context")
    if status == 0:
        return UserError(server, f"is not reached: {text}", "look at KUBECONFIG, --kubeconfig and --context")
    if status == 404:
        return UserError("the cluster", text, "look at the name and --namespace")
    return HeadgateError(f"the cluster refused: {reason}: {text}")
