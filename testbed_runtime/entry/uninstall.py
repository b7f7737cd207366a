"""The Job that Helm runs before it deletes the operator: heal every fault, stop every run and the operator, remove Headgate's
finalizers from the objects that stay in the cluster, and delete what the operator created. Its exit code is always 0."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.api import naming
from testbed_runtime.api.environment import NAMESPACES, names, needed
from testbed_runtime.api.views import Resource
from testbed_runtime.cli import heal
from testbed_runtime.cli.access import Access, connected
from testbed_runtime.cli.heal import OPERATOR_GONE_S
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.entry.harness import complain, run_main
from testbed_runtime.kube.api import DELETED, LISTED, Api, ApiError, WatchEvent
from testbed_runtime.timeouts import timeout

TEST = {naming.LABEL_NAME: naming.MANAGED_BY, naming.LABEL_COMPONENT: "test"}
SET_BY = "the chart's Job sets it"
OF_HELM = "meta.helm.sh/release-name"
"""The annotation with which Helm marks the objects that it installs. The output of `helm template` does not have it."""
NO_RELEASE = (
    "nothing is uninstalled: Helm did not install the operator, so this is no `helm uninstall`. "
    "Delete this Job. To render the chart without it, use `helm template --no-hooks`"
)


class Settings(Struct, frozen=True):
    """The settings of the uninstall. A namespace of None means the whole cluster. `limit_s` is the time limit for healing; everything else
    takes seconds."""

    namespace: str
    deployment: str
    release: str
    namespaces: tuple[str | None, ...]
    limit_s: float


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read the environment of the Job's container, which the chart writes. Raises UserError."""
    namespace, deployment, release, limit = (
        needed(environment, name, SET_BY)
        for name in ("POD_NAMESPACE", "HEADGATE_DEPLOYMENT", "HEADGATE_RELEASE", "HEADGATE_UNINSTALL_LIMIT")
    )
    try:
        limit_s = float(limit)
    except ValueError as error:
        raise UserError("HEADGATE_UNINSTALL_LIMIT", str(error), "write seconds, as in 60") from None
    namespaces = names(environment, NAMESPACES, SET_BY) or (None,)
    return Settings(namespace, deployment, release, namespaces, limit_s)


async def uninstall(api: Api, settings: Settings) -> Sequence[str]:
    """Uninstall. Return what was done, one sentence each."""
    if not await _is_release(api, settings):
        return [NO_RELEASE]
    settings, steps = await _admitted(api, settings)
    found, remaining = await heal.heal_all(api, settings.namespaces, settings.limit_s)
    steps.append(f"healed {len(found) - len(remaining)} of {len(found)}")
    if remaining:
        names = ", ".join(map(str, remaining))
        steps.append(
            f"healing not confirmed after {settings.limit_s:g} s, the agents end these faults at their deadlines: {names}"
        )
    steps += await _stop_operator(api, settings)
    for kind in ("ScenarioRun", "Fault"):
        steps += await _remove_finalizers(api, kind, settings.namespaces)
    created = {naming.LABEL_MANAGED_BY: naming.MANAGED_BY}
    tests = {**TEST, naming.LABEL_INSTANCE: settings.release}
    steps += await _delete(api, "Pod", settings.namespace, tests)
    for namespace in settings.namespaces:
        steps += await _delete(api, "Pod", namespace, created)
        if namespace is None:  # in a namespaced installation, these are the chart's
            steps += await _delete(api, "RoleBinding", namespace, created)
            steps += await _delete(api, "ServiceAccount", namespace, created)
    return steps


async def _is_release(api: Api, settings: Settings) -> bool:
    """Return whether Helm installed the operator. `helm template … | kubectl apply -f -` starts this Job right after the installation.

    Without permission to read the Deployment, as with Roles for an earlier chart, or without a Deployment, the answer is yes."""
    try:
        found = await api.get("Deployment", settings.namespace, settings.deployment)
    except ApiError as error:
        if not error.forbidden:
            raise
        return True
    return found is None or OF_HELM in Resource(found).annotations


async def _admitted(api: Api, settings: Settings) -> tuple[Settings, list[str]]:
    """Return the settings without the namespaces that refuse a list, such as deleted ones, and a sentence about each of them."""
    steps, admitted = [], []
    for namespace in settings.namespaces:
        try:
            await api.list("Fault", namespace)
            admitted.append(namespace)
        except ApiError as error:
            if namespace is None or not error.forbidden:
                raise
            steps.append(
                f"namespace {namespace}: skipped, it does not exist or refuses the uninstall: {error}"
            )
    return replace(settings, namespaces=tuple(admitted)), steps


async def _delete(api: Api, kind: str, namespace: str | None, labels: Mapping[str, str]) -> list[str]:
    """Delete the objects with these labels. Continue after a failed request, which becomes a step."""
    steps = []
    try:
        listed = await api.list(kind, namespace, labels=labels)
    except ApiError as error:
        return [f"{kind.lower()}s of {namespace or 'all namespaces'}: not listed: {error}"]
    for found in map(Resource, listed):
        named = f"{kind.lower()} {found.path}"
        try:
            await api.delete(kind, found.namespace, found.name)
            steps.append(f"{named}: deleted")
        except ApiError as error:
            steps.append(f"{named}: not deleted: {error}")
    return steps


async def _stop_operator(api: Api, settings: Settings) -> list[str]:
    """Stop the operator, which would restore its finalizers, and wait until its pods are gone. A pod on a lost node never goes. The uninstall
    then continues, because Helm removes the operator anyway."""
    patch = {"spec": {"replicas": 0}}
    await api.patch("Deployment", settings.namespace, settings.deployment, patch)
    running: frozenset[str] = frozenset()
    with contextlib.suppress(TimeoutError):
        async with timeout(OPERATOR_GONE_S):
            labels = {**naming.OPERATOR_LABELS, naming.LABEL_INSTANCE: settings.release}
            async for event in api.watch("Pod", settings.namespace, labels=labels):
                running = _pods_after(running, event)
                if event.type != LISTED and not running:
                    return []
    return [f"the operator's pods were not gone after {OPERATOR_GONE_S:g} s: {', '.join(sorted(running))}"]


def _pods_after(running: frozenset[str], event: WatchEvent) -> frozenset[str]:
    name = event.object.get("metadata", {}).get("name")
    if name is None:
        return running
    return running - {name} if event.type == DELETED else running | {name}


async def _remove_finalizers(api: Api, kind: str, namespaces: Sequence[str | None]) -> list[str]:
    """Remove Headgate's finalizer from the objects of a kind. Continue after a failed request, which becomes a step."""
    steps = []
    for namespace in namespaces:
        for found in map(Resource, await api.list(kind, namespace)):
            if naming.FINALIZER in found.finalizers:
                kept = [f for f in found.finalizers if f != naming.FINALIZER]
                patch = {"metadata": {"finalizers": kept}}
                try:
                    await api.patch(kind, found.namespace, found.name, patch)
                    steps.append(f"{heal.name_of(found)}: finalizer removed")
                except ApiError as error:
                    steps.append(f"{heal.name_of(found)}: finalizer not removed: {error}")
    return steps


async def _main(settings: Settings) -> None:
    async with connected(Access(namespace=settings.namespace)) as api:
        for line in await uninstall(api, settings):
            sys.stderr.write(f"{line}\n")


def main() -> None:
    """Never block an uninstall: errors are only reported."""

    async def work() -> int:
        try:
            await _main(from_environment(os.environ))
        except (HeadgateError, TimeoutError, OSError) as error:
            complain(f"the uninstall is incomplete: {str(error) or type(error).__name__}")
        return 0

    run_main(work)


if __name__ == "__main__":
    main()
