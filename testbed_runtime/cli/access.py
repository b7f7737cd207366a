"""Access of the command line to a cluster: kubectl's flags, and errors that say what is missing and how to fix it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.api.refusals import refusal_of
from testbed_runtime.core.errors import HeadgateError, UserError

if TYPE_CHECKING:
    from testbed_runtime.kube.api import Api, ApiError

INSTALL = (
    "install Headgate: kubectl apply -k manifests/, or "
    "helm install headgate ./helm/headgate --namespace headgate-system --create-namespace"
)
FIELD_MANAGER = "headgate-cli"
PATIENCE_S = 5.0
"""Time limit for one request: shorter than in the operator, because a user waits."""
DENIED = re.compile(
    r'User "([^"]*)" cannot (\S+) (?:resource "([^"]*)"(?: in API group "([^"]*)")?|path "([^"]*)")'
    r'(?: in the namespace "([^"]*)")?'
)
"""The text of a request for which the user has no right. Without a namespace it is at the cluster scope."""
UNKNOWN_FIELD = "strict decoding error: unknown field"
ROLES = "docs/kubernetes.md#who-needs-which-rights"
"""An installation that is limited to namespaces has no such roles."""
OLDER = "upgrade Headgate in the cluster (docs/kubernetes.md#upgrade), or use the headgate of its version"
READING = frozenset({"get", "list", "watch"})

Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Namespace in the cluster; the context's own by default.")
]
Context = Annotated[str, typer.Option("--context", help="Context of the kubeconfig.")]
Kubeconfig = Annotated[str, typer.Option("--kubeconfig", help="Path of the kubeconfig.")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="In every namespace.")]


class Access(Struct, frozen=True):
    """How to reach the cluster. An empty field means what kubectl would use."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""

    @property
    def given(self) -> bool:
        return any((self.namespace, self.context, self.kubeconfig))


def access_for(environment: str, namespace: str, context: str, kubeconfig: str) -> Access:
    """Return the access of a command with `--on`. Raises UserError for flags of a cluster where none is used."""
    access = Access(namespace, context, kubeconfig)
    if environment != "kubernetes" and access.given:
        flags = {"--namespace": namespace, "--context": context, "--kubeconfig": kubeconfig}
        given = ", ".join(flag for flag, value in flags.items() if value)
        problem = f"needs a cluster, and this command has --on {environment}"
        raise UserError(given, problem, "add --on kubernetes, or leave it out")
    return access


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
            raise explained(error, server=api.server) from None  # the original error has the whole text


def permitting(text: str) -> str:
    """Return the hint for a refusal by the API server (status 403): the missing right, or what admission requires."""
    denied = DENIED.search(text)
    if denied is None:
        found = refusal_of(text)
        return found.hint if found else "its message names the cause"
    user, verb, resource, group, path, namespace = (part or "" for part in denied.groups())
    if user == "system:anonymous":
        return "log in: the request had no login that the cluster knows; look at KUBECONFIG and --context"
    scope = f"in the namespace {namespace}" if namespace else "in the whole cluster"
    if group == naming.GROUP and namespace:
        role = "headgate-view" if verb in READING else "headgate-edit"
        return f"ask its administrator for the rules of {role} {scope} ({ROLES})"
    right = f"{verb} {path or resource + (f'.{group}' if group else '')}"
    return f"ask its administrator for the right to {right} {scope}"


def explained(error: ApiError, *, server: str) -> HeadgateError:
    """Turn a refusal by the API server into an error with a hint. Pure."""
    status, text = error.status, error.text
    if error.not_found and ("could not find the requested resource" in text or "page not found" in text):
        return UserError("the cluster", "does not have the kinds of headgate.dev", INSTALL)
    if error.forbidden:
        return UserError("the cluster", text, permitting(text))
    if status == 401:
        return UserError("the cluster", "does not accept the credentials", "renew them, or give --context")
    if status == 0:
        reached = text.removeprefix(f"{server}: ")
        return UserError(
            server, f"is not reached: {reached}", "look at KUBECONFIG, --kubeconfig and --context"
        )
    if UNKNOWN_FIELD in text:
        return UserError("the cluster", f"has older definitions of these kinds: {text}", OLDER)
    if error.not_found:
        return UserError("the cluster", text, "look at the name and --namespace")
    return HeadgateError(f"the cluster refused: {error.reason}: {text}")
