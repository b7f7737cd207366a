"""`headgate heal --all`: end every fault of Headgate on this machine or in a cluster now.

In a cluster every stand-alone Fault is deleted, every run that is not complete is requested to heal and stop, and every study that
is not complete is suspended, because it would start the next run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.api.status import COMPLETE
from testbed_runtime.cli import access, options
from testbed_runtime.core.errors import HeadgateError, UserError

if TYPE_CHECKING:
    from testbed_runtime.api.views import Resource, Run, Study
    from testbed_runtime.kube.api import Api

POLL_S = 0.5
LIMIT_S = 60.0
"""Time limit for healing, as in the operator. Faults that are still active after it end at their deadlines."""
OPERATOR_GONE_S = 30.0
"""Time limit for an operator to scale down. Its grace period is 10 s."""


def heal(  # noqa: PLR0917 - typer passes by name
    every: Annotated[bool, typer.Option("--all", help="End every fault of every running testbed.")] = False,
    on: options.OnEnvironment = options.Environment.LOCAL,
    namespace: access.Namespace = "",
    all_namespaces: access.AllNamespaces = False,
    context: access.Context = "",
    kubeconfig: access.Kubeconfig = "",
) -> None:
    """End all faults now. In a cluster, Faults are deleted and runs stop with Inconclusive (Healed)."""
    login = access.access_for(on.value, namespace, context, kubeconfig)
    if not every:
        where = "of the namespace" if on is options.Environment.KUBERNETES else "on this machine"
        raise UserError("--all", "is missing", f"write `headgate heal --all`; it ends every fault {where}")
    if on is options.Environment.KUBERNETES:
        in_cluster(login, all_namespaces=all_namespaces)
        return
    from testbed_runtime.local import registry

    for line in registry.heal_all():
        typer.echo(line)


def in_cluster(login: access.Access, *, all_namespaces: bool) -> None:
    """Heal, wait for the end, and print what was healed."""
    healed, where = asyncio.run(heal_cluster(login, all_namespaces=all_namespaces))
    for one in healed:
        typer.echo(f"{one}: healed")
    if not healed:
        typer.echo(f"no fault and no run is active in {where}")


class Named(Struct, frozen=True, order=True):
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()} {self.namespace}/{self.name}"


def name_of(found: Resource) -> Named:
    return Named(found.kind, found.namespace, found.name)


def is_active(found: Run | Study) -> bool:
    """Return whether a run or a study has no result yet, so that it has, or will have, faults."""
    return not found.status.is_true(COMPLETE)


async def active(api: Api, namespaces: Iterable[str | None]) -> tuple[Named, ...]:
    """Return the Faults that exist and the runs that are not complete."""
    from testbed_runtime.api.views import Resource, Run

    found: list[Named] = []
    for namespace in namespaces:
        faults = await api.list("Fault", namespace)
        runs = await api.list("ScenarioRun", namespace)
        found += map(name_of, map(Resource, faults))
        found += [name_of(run) for run in map(Run, runs) if is_active(run)]
    return tuple(sorted(found))


async def suspend_studies(api: Api, namespaces: Iterable[str | None]) -> None:
    """Suspend the studies that are not complete; `spec.suspend: false` lets them continue."""
    from testbed_runtime.api.views import Study

    for namespace in namespaces:
        for study in map(Study, await api.list("TuningStudy", namespace)):
            if is_active(study) and not study.suspended:
                patch = {"spec": {"suspend": True}}
                await api.patch(study.kind, study.namespace, study.name, patch)


async def request_end(api: Api, what: Named) -> None:
    """Request the end of a Fault or a run. Idempotent."""
    if what.kind == "Fault":
        await api.delete("Fault", what.namespace, what.name)
        return
    patch = {"metadata": {"annotations": {naming.ANNOTATION_HEAL: "all"}}}
    await api.patch("ScenarioRun", what.namespace, what.name, patch)


async def heal_all(
    api: Api, namespaces: Iterable[str | None], limit_s: float
) -> tuple[tuple[Named, ...], tuple[Named, ...]]:
    """Request the end of every fault and run, including those that appear during the call. Return all of them, and those that
    remained at the time limit."""
    where = tuple(namespaces)
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    requested: dict[Named, None] = {}
    await suspend_studies(api, where)
    while True:
        remaining = await active(api, where)
        for one in remaining:
            if one not in requested:
                await request_end(api, one)
                requested[one] = None
        if not remaining or loop.time() >= end:
            return tuple(requested), remaining
        await asyncio.sleep(POLL_S)


async def heal_cluster(login: access.Access, *, all_namespaces: bool) -> tuple[tuple[Named, ...], str]:
    """Return what was healed, and in which namespaces. Raises HeadgateError that names what remains after LIMIT_S."""
    async with access.connected(login) as api:
        namespaces: tuple[str | None, ...] = (None,) if all_namespaces else (api.namespace,)
        where = "any namespace" if all_namespaces else f"namespace {api.namespace}"
        found, remaining = await heal_all(api, namespaces, LIMIT_S)
    if remaining:
        names = ", ".join(map(str, remaining))
        raise HeadgateError(
            f"requested, but not confirmed after {LIMIT_S:g} s: {names}. Each agent ends its faults at their deadlines; "
            "check that the operator runs: kubectl -n headgate-system get pods"
        )
    return found, where
