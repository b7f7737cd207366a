"""The certificate of a Testbed's data ports: which pods mount it, and when it is made again."""

from __future__ import annotations

import json

from tests.operator.model import Obj
from tests.operator.test_testbed import KEY, incarnation, is_settled, patch, ready
from tests.operator.world import World, simulate

ENCRYPTED = {"flinkConfiguration": {"security.ssl.internal.enabled": "true"}}


def certificates(world: World) -> list[Obj]:
    """The Secrets with a certificate, which have no token."""
    return [s for s in world.api.select("Secret", "lab") if "token" not in (s.get("data") or {})]


def mounts(pod: Obj) -> set[str]:
    return {mount["name"] for container in pod["spec"]["containers"] for mount in container["volumeMounts"]}


def test_only_taskmanagers_mount_the_certificate_of_an_encrypted_testbed() -> None:
    """It is in an immutable Secret of the Testbed alone, which is deleted with it. No other object contains it."""

    async def scenario(world: World) -> None:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "run-token", "namespace": "lab"}}
        world.api.put({**secret, "stringData": {"token": "of-the-run"}})
        await ready(world, **ENCRYPTED, pods={"tokenSecret": "run-token"})
        (made,) = certificates(world)
        uid = world.api.objects[KEY]["metadata"]["uid"]
        assert made["metadata"]["name"] == f"bench-tls-{uid[:8]}"
        assert made["immutable"]
        assert made["metadata"]["ownerReferences"][0]["uid"] == uid
        pods = {pod["metadata"]["name"]: pod for pod in world.api.select("Pod", "lab")}
        assert {name for name, pod in pods.items() if "certificate" in mounts(pod)} == {
            f"bench-tm-{n}" for n in range(3)
        }
        content = made["data"]["certificate.pem"]
        holders = [a for a, obj in world.api.objects.items() if content in json.dumps(obj)]
        assert holders == [("Secret", "lab", made["metadata"]["name"])]
        world.api.remove(KEY)
        await world.until(lambda: not certificates(world), limit_s=60)

    simulate(scenario)


def test_taskmanagers_share_one_certificate_after_it_was_deleted() -> None:
    """Those that mount the lost one are gone before another is made. The JobManager and the store stay."""

    async def scenario(world: World) -> None:
        await ready(world, **ENCRYPTED)
        (lost,) = certificates(world)
        world.api.remove(("Secret", "lab", lost["metadata"]["name"]))
        await world.until(lambda: incarnation(world, "bench-tm-1") == 2, limit_s=60)
        await world.until(lambda: is_settled(world), limit_s=60)
        (new,) = certificates(world)
        created = [pod["metadata"]["annotations"]["headgate.dev/secret-uid"] for pod in task_managers(world)]
        assert {uids.partition(".")[2] for uids in created} == {new["metadata"]["uid"]}
        assert new["metadata"]["uid"] != lost["metadata"]["uid"]
        assert incarnation(world, "bench-jobmanager") == incarnation(world, "bench-store") == 1

    simulate(scenario)


def task_managers(world: World) -> list[Obj]:
    return [pod for pod in world.api.select("Pod", "lab") if "-tm-" in pod["metadata"]["name"]]


def test_tls_that_is_switched_on_replaces_all_taskmanagers_at_once() -> None:
    """One with TLS and one without cannot exchange data, so there is no use in rolling them one by one."""

    async def scenario(world: World) -> None:
        await ready(world)
        assert certificates(world) == []
        patch(world, **ENCRYPTED)
        await world.until(lambda: len(certificates(world)) == 1, limit_s=60)
        await world.until(
            lambda: is_settled(world) and incarnation(world, "bench-jobmanager") == 2, limit_s=60
        )
        assert {incarnation(world, f"bench-tm-{n}") for n in range(3)} == {2}
        assert all("certificate" in mounts(pod) for pod in task_managers(world))

    simulate(scenario)
