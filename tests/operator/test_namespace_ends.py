"""A namespace that is deleted takes an active run and an active fault with it, although the operator's rights end before they do."""

from __future__ import annotations

import asyncio

import pytest

from testbed_runtime.api import naming
from testbed_runtime.api.status import ACTIVE
from testbed_runtime.kube.api import ApiError
from tests.operator.actors import ModelAgents, Runners, a_fault, a_run
from tests.operator.world import World, a_testbed, simulate

LAB = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab", "finalizers": ["kubernetes"]}}
NO_CONTENT = "unable to create new content in namespace lab because it is being terminated"
CONTROLLER_S = 6.0
"""The namespace controller looks again some seconds after it has deleted the pods."""


async def delete_namespace(world: World) -> None:
    """Do what Kubernetes 1.33 and newer do: the pods go first, then everything else, here with the operator's Roles before the rest."""
    world.api.put(LAB)
    world.api.change("Namespace", "", "lab", {"metadata": {"deletionTimestamp": "2023-11-14T22:14:00Z"}})
    creates = lambda verb, kind, _: verb in ("create", "apply", "event") and kind != "Lease"  # noqa: E731
    world.api.failing.append((creates, ApiError(403, "Forbidden", NO_CONTENT)))
    for pod in world.api.select("Pod", "lab"):
        world.api.remove(("Pod", "lab", pod["metadata"]["name"]), graceful=True)
    while world.api.select("Pod", "lab"):
        await asyncio.sleep(CONTROLLER_S)
    world.api.closed.add("lab")
    for kind, namespace, name in list(world.api.objects):
        if namespace == "lab":
            world.api.remove((kind, namespace, name))


def left(world: World) -> list[str]:
    return [f"{kind} {name}" for kind, namespace, name in world.api.objects if namespace == "lab"]


@pytest.mark.parametrize("readable", [True, False], ids=["read", "not readable"])
def test_a_deleted_namespace_with_an_active_run_and_an_active_fault_ends_by_itself(readable: bool) -> None:
    """Nothing keeps a finalizer that the operator may no longer remove. An operator without the right to read the namespace, as with Roles
    of an older chart, keeps that of the run until it is removed by hand; the fault ends with its pods before the rights do."""

    async def scenario(world: World) -> list[str]:
        agents = ModelAgents(world.api)
        world.agents = agents  # type: ignore[assignment]
        Runners(world, agents, deaf=True).attach()
        world.start()
        world.api.put(a_testbed())
        world.api.put(a_run())
        world.api.put(a_fault(duration="300 s"))
        phase = lambda kind, name: (world.api.one(kind, "lab", name) or {}).get("status", {}).get("phase")  # noqa: E731
        await world.until(lambda: phase("Fault", "slow") == ACTIVE and phase("ScenarioRun", "trial-run") == "Running", limit_s=60)  # fmt: skip
        for kind, name in (("Fault", "slow"), ("ScenarioRun", "trial-run")):
            assert world.api.objects[kind, "lab", name]["metadata"]["finalizers"] == [naming.FINALIZER]
        if not readable:
            unread = lambda _, kind, __: kind == "Namespace"  # noqa: E731
            world.api.failing.append((unread, ApiError(403, "Forbidden", "cannot get namespaces")))
        await delete_namespace(world)
        await asyncio.sleep(120)
        return left(world)

    assert simulate(scenario) == ([] if readable else ["ScenarioRun trial-run"])
