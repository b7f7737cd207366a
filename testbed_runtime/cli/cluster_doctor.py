"""The checks of `headgate doctor` for a cluster: is it reachable, are the kinds and the operator installed, what is permitted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.api import naming, rbac
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.environment import NAMESPACES, names
from testbed_runtime.api.rbac import Right
from testbed_runtime.api.resources import manifest
from testbed_runtime.cli.access import INSTALL, ROLES, Access, connected
from testbed_runtime.core.errors import HeadgateError

if TYPE_CHECKING:
    from testbed_runtime.kube.api import Api

T = TypeVar("T")
GOOD, WARNING, BAD = "ok", "note", "BAD"
LIMIT_S = 10.0
"""Time limit for all checks of a cluster that the user has not named and may not even know of."""
GIVEN_LIMIT_S = 30.0
"""Time limit for all checks of a cluster that the user has named: a busy machine gets more time before it is BAD."""
NEEDED = (
    *(Right(verb, naming.GROUP, "scenarioruns") for verb in ("create", "get", "list", "watch", "patch")),
    *(Right(verb, naming.GROUP, "faults") for verb in ("create", "get", "list", "delete")),
    Right("get", "", "configmaps"),
)
"""The permissions without which commands with `--on kubernetes` fail. A ConfigMap has the report of a run."""


class Finding(Struct, frozen=True):
    """The result of one check. `means` explains it."""

    name: str
    level: str
    found: str
    means: str


def noted(finding: Finding) -> Finding:
    """Return the finding as a note: a problem of another environment is not BAD for the requested one."""
    return replace(finding, level=WARNING) if finding.level == BAD else finding


def findings(access: Access) -> list[Finding]:
    """Check the cluster. Never raises: a failed check is a finding, which is only a note unless the user named a cluster."""
    limit_s = GIVEN_LIMIT_S if access.given else LIMIT_S
    try:
        found = asyncio.run(asyncio.wait_for(_ask(access), limit_s))
        return found if access.given else [noted(one) for one in found]
    except (HeadgateError, TimeoutError, OSError) as error:
        level = BAD if access.given else WARNING
        text = str(error) or f"no answer within {limit_s:g} s"
        return [Finding("Kubernetes", level, "none", f"--on kubernetes is not possible: {text}")]


async def _ask(access: Access) -> list[Finding]:
    async with connected(access) as api:
        found = [Finding("Kubernetes", GOOD, api.server, f"namespace {api.namespace}")]
        # an account that may not read namespaces does not know whether this one exists
        if await _permitted(api.get("Namespace", None, api.namespace), {}) is None:
            fix = f"kubectl create namespace {api.namespace}, or choose another --namespace"
            found.append(Finding("namespace", BAD, f"{api.namespace} does not exist", fix))
        kinds = await _kinds(api)
        found.append(kinds)
        if kinds.level != BAD:
            found += [await _operator(api), await _rights(api)]
        return found


async def _permitted(call: Awaitable[T], otherwise: T) -> T:
    """Return the answer to a request, or `otherwise` if the account has no right to it."""
    from testbed_runtime.kube.api import ApiError

    try:
        return await call
    except ApiError as error:
        if not error.forbidden:
            raise
        return otherwise


async def _kinds(api: Api) -> Finding:
    from testbed_runtime.kube.api import ApiError

    missing, refused = [], []
    for kind in CUSTOM_RESOURCES:
        try:
            await api.list(kind, api.namespace)
        except ApiError as error:
            if error.not_found:
                missing.append(kind)
            elif error.forbidden:
                refused.append(kind)
            else:
                raise
    if missing:
        return Finding("kinds", BAD, f"none of {', '.join(missing)}", INSTALL)
    if refused:  # the API server refuses a kind that is not installed in the same way
        return Finding("kinds", WARNING, "unknown", f"you are not permitted to list {', '.join(refused)}")
    return Finding("kinds", GOOD, ", ".join(CUSTOM_RESOURCES), f"{naming.API_VERSION} is installed")


async def _operator(api: Api) -> Finding:
    found = await _permitted(api.list("Deployment", None, labels=naming.OPERATOR_LABELS), None)
    if found is None:
        return Finding(
            "operator", WARNING, "unknown", "you are not permitted to list the deployments of the cluster"
        )
    ready = [d for d in found if d.get("status", {}).get("readyReplicas")]
    if not ready:
        listed = ", ".join(_full(d) for d in found) or "none"
        spaces = sorted({d["metadata"]["namespace"] for d in found})
        selector = ",".join(f"{key}={value}" for key, value in naming.OPERATOR_LABELS.items())
        look = "; ".join(f"kubectl -n {space} describe deployments,pods -l {selector}" for space in spaces)
        return Finding("operator", BAD, f"not ready: {listed}", f"look at it: {look}" if found else INSTALL)
    serving = [d for d in ready if api.namespace in watched_namespaces(d) or not watched_namespaces(d)]
    if not serving:
        others = ", ".join(f"{_full(d)} watches only {', '.join(watched_namespaces(d))}" for d in ready)
        return Finding("operator", BAD, others, f"add {api.namespace} to watchNamespaces of the Helm release")
    if len(serving) > 1:
        fix = "they act on the same objects: uninstall all but one, or install each with different watchNamespaces"
        return Finding("operator", BAD, f"several: {', '.join(map(_full, serving))}", fix)
    return await _acting(api, serving[0])


async def _acting(api: Api, deployment: Mapping[str, Any]) -> Finding:
    """Check that the operator that serves the namespace has each right that its role declares. A cluster-wide operator with
    `rbac.testbedNamespaces` may only be allowed to watch. A recreated namespace lacks the Roles of an operator that is limited to namespaces."""
    found = _full(deployment)
    wide = not watched_namespaces(deployment)
    acts = rbac.rights("operator-acts", *(("operator-cluster",) if wide else ()))
    account = deployment["spec"]["template"]["spec"].get("serviceAccountName", "default")
    user = f"system:serviceaccount:{deployment['metadata']['namespace']}:{account}"
    lacking = await _permitted(_lacking(api, (*rbac.rights("operator"), *acts), user=user), None)
    if lacking is None:
        unknown = (
            f"reconciles what is applied, if it has rights in {api.namespace}: you are not permitted to ask"
        )
        return Finding("operator", WARNING, found, unknown)
    if not lacking:
        return Finding("operator", GOOD, found, "reconciles what is applied")
    if not set(acts) <= set(lacking):
        fix = (
            "its role is older than this version or was changed: repeat `helm upgrade`, or, with rbac.create=false, "
            "give it the rules of helm/headgate/files/rules"
        )
        return Finding(
            "operator", BAD, f"{found} is not allowed in {api.namespace}: {', '.join(map(str, lacking))}", fix
        )
    if wide:
        fix = (
            f"add {api.namespace} to rbac.testbedNamespaces of the Helm release, or bind the ClusterRole that ends "
            "in -acts to the operator's account there"
        )
    else:
        fix = "its Role or RoleBinding is missing, for example because the namespace was recreated: repeat `helm upgrade`"
    return Finding("operator", BAD, f"{found} has no rights in {api.namespace}", fix)


async def _lacking(api: Api, rights: Sequence[Right], *, user: str = "") -> list[Right]:
    """Return the rights that an account, by default the caller's, does not have in the namespace."""
    kind, where = "SelfSubjectAccessReview", {}
    if user:
        kind, where = "LocalSubjectAccessReview", {"namespace": api.namespace}

    async def allowed(right: Right) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = {"namespace": api.namespace, "verb": right.verb, "group": right.group}
        attributes |= {"resource": resource, "subresource": subresource, "name": right.name}
        spec = {"resourceAttributes": attributes} | ({"user": user} if user else {})
        review = await api.create(manifest(kind, where, spec=spec))
        return bool((review or {}).get("status", {}).get("allowed"))

    first, *others = rights  # alone, because a user is often not permitted to ask
    answers = [await allowed(first)]
    answers += await asyncio.gather(*map(allowed, others))
    return [right for right, answer in zip(rights, answers, strict=True) if not answer]


def watched_namespaces(deployment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the namespaces that an operator is limited to; empty for the whole cluster. Pure."""
    pod = deployment.get("spec", {}).get("template", {}).get("spec", {})
    values = (
        variable.get("value", "")
        for container in pod.get("containers", ())
        for variable in container.get("env", ())
        if variable["name"] == NAMESPACES
    )
    return names({NAMESPACES: next(values, "")}, NAMESPACES)


def _full(deployment: Mapping[str, Any]) -> str:
    return f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"


async def _rights(api: Api) -> Finding:
    """Check each right of the role `headgate-edit`. Only some of them are needed by commands, the others by kubectl."""
    lacking = await _lacking(api, tuple(dict.fromkeys((*NEEDED, *rbac.rights("edit")))))
    if lacking:
        level = BAD if set(NEEDED) & set(lacking) else WARNING
        means = f"ask for the rules of headgate-edit and the role view in the namespace ({ROLES})"
        verbs: dict[str, list[str]] = {}
        for right in lacking:
            verbs.setdefault(right.resource, []).append(right.verb)
        text = "; ".join(f"{', '.join(found)} {resource}" for resource, found in verbs.items())
        return Finding("rights", level, f"not allowed: {text}", means)
    return Finding("rights", GOOD, "enough", f"runs and faults in namespace {api.namespace}")
