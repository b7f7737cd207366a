"""`headgate heal --all --on kubernetes`: every stand-alone Fault is deleted, every run that goes on is told to heal and stop, every
study that goes on is suspended: it would make the next run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testbed_runtime.api import naming
from testbed_runtime.cli.access import Access, connected
from testbed_runtime.core.errors import HeadgateError

if TYPE_CHECKING:
    from testbed_runtime.kube.api import Api

LOOK_EVERY_S = 0.5
LIMIT_S = 60.0
"""The operator's own: after it the agents' deadlines end what is left."""
OPERATOR_GONE_S = 30.0
"""For an operator that is scaled away: its grace period is 10 s."""


@dataclass(frozen=True, slots=True, order=True)
class Named:
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()} {self.namespace}/{self.name}"


def name_of(kind: str, obj: Mapping[str, Any]) -> Named:
    return Named(kind, obj["metadata"]["namespace"], obj["metadata"]["name"])


def is_active(run: Mapping[str, Any]) -> bool:
    """A ScenarioRun without its verdict: it has, or will have, faults."""
    conditions = run.get("status", {}).get("conditions") or ()
    done = any(c.get("type") == "Complete" and c.get("status") == "True" for c in conditions)
    return not done


async def left(api: Api, namespaces: Iterable[str | None]) -> tuple[Named, ...]:
    """Faults that are there and runs that go on."""
    found: list[Named] = []
    for namespace in namespaces:
        faults = await api.list(naming.API_VERSION, "Fault", namespace)
        runs = await api.list(naming.API_VERSION, "ScenarioRun", namespace)
        found += [name_of("Fault", one) for one in faults]
        found += [name_of("ScenarioRun", one) for one in runs if is_active(one)]
    return tuple(sorted(found))


async def suspend_studies(api: Api, namespaces: Iterable[str | None]) -> None:
    """Those that go on; `spec.suspend: false` lets them make their next runs."""
    for namespace in namespaces:
        for study in await api.list(naming.API_VERSION, "TuningStudy", namespace):
            if is_active(study) and not study["spec"].get("suspend"):
                named = name_of("TuningStudy", study)
                patch = {"spec": {"suspend": True}}
                await api.patch(naming.API_VERSION, named.kind, named.namespace, named.name, patch)


async def ask(api: Api, what: Named) -> None:
    """Once is enough; asking again changes nothing."""
    if what.kind == "Fault":
        await api.delete(naming.API_VERSION, "Fault", what.namespace, what.name)
        return
    patch = {"metadata": {"annotations": {naming.ANNOTATION_HEAL: "all"}}}
    await api.patch(naming.API_VERSION, "ScenarioRun", what.namespace, what.name, patch)


async def heal_all(
    api: Api, namespaces: Iterable[str | None], limit_s: float
) -> tuple[tuple[Named, ...], tuple[Named, ...]]:
    """What was asked, also of what came meanwhile, and what of it was still there at the limit."""
    places = tuple(namespaces)
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    asked: dict[Named, None] = {}
    await suspend_studies(api, places)
    while True:
        remaining = await left(api, places)
        for one in remaining:
            if one not in asked:
                await ask(api, one)
                asked[one] = None
        if not remaining or loop.time() >= end:
            return tuple(asked), remaining
        await asyncio.sleep(LOOK_EVERY_S)


async def heal(
    access: Access, *, all_namespaces: bool, limit_s: float = LIMIT_S
) -> tuple[tuple[Named, ...], str]:
    """What was healed, and where. Raises HeadgateError naming what is not gone after `limit_s`."""
    async with connected(access) as api:
        places: tuple[str | None, ...] = (None,) if all_namespaces else (api.namespace,)
        where = "any namespace" if all_namespaces else f"namespace {api.namespace}"
        found, remaining = await heal_all(api, places, limit_s)
    if remaining:
        names = ", ".join(map(str, remaining))
        raise HeadgateError(
            f"asked, and not confirmed after {limit_s:g} s: {names}. Each agent ends its faults at their deadlines; "
            "is the operator up? kubectl -n headgate-system get pods"
        )
    return found, where
