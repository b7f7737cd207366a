"""The one caller of the API server, on a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from testbed_runtime.kube.api import Api, ApiError, Call, WatchEvent, connect
from tests.kubernetes.cluster import Cluster

pytestmark = pytest.mark.cluster


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    async with connect(kubeconfig=cluster.kubeconfig) as connected:
        yield connected


def config_map(namespace: str, **data: str) -> dict[str, object]:
    labels = {"app": "headgate-test"}
    metadata = {"name": "box", "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def test_objects_are_made_changed_and_deleted_and_repeating_is_harmless(
    cluster: Cluster, api: Api
) -> None:
    """Create twice, apply twice (no new version), patch, delete with a foreign uid (nothing), delete twice."""
    with cluster.namespace() as namespace:
        assert await api.get("ConfigMap", namespace, "box") is None
        assert await api.create(config_map(namespace, a="1")) is not None
        assert await api.create(config_map(namespace, a="1")) is None
        first = await api.apply(config_map(namespace, a="2"))
        again = await api.apply(config_map(namespace, a="2"))
        assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
        patched = await api.patch("ConfigMap", namespace, "box", {"data": {"b": "3"}})
        assert patched is not None
        assert patched["data"] == {"a": "2", "b": "3"}
        assert await api.patch("ConfigMap", namespace, "none", {"data": {}}) is None
        old = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}}
        with pytest.raises(ApiError, match="Conflict") as caught:
            await api.patch("ConfigMap", namespace, "box", old)
        assert caught.value.conflict
        await api.delete("ConfigMap", namespace, "box", uid="another")
        assert await api.list("ConfigMap", namespace, labels={"app": "headgate-test"})
        for _ in range(2):
            await api.delete("ConfigMap", namespace, "box")
        assert not await api.list("ConfigMap", namespace, labels={"app": "headgate-test"})


async def test_a_watch_lists_first_then_tells_and_goes_on_after_the_server_ends_it(
    cluster: Cluster, api: Api
) -> None:
    """LISTED, SYNCED, then changes; the server's limit passes in between unnoticed."""
    with cluster.namespace() as namespace:
        await api.create(config_map(namespace, a="1"))
        events: asyncio.Queue[WatchEvent] = asyncio.Queue()

        async def listen() -> None:
            watch = api.watch("ConfigMap", namespace, labels={"app": "headgate-test"}, server_limit_s=1)
            async for event in watch:
                await events.put(event)

        task = asyncio.create_task(listen())
        async with asyncio.timeout(30):
            assert [(await events.get()).type for _ in range(2)] == ["LISTED", "SYNCED"]
            await asyncio.sleep(1.5)  # longer than the server's limit: what is measured is that it passes
            await api.apply(config_map(namespace, a="2"))
            changed = await events.get()
            await api.delete("ConfigMap", namespace, "box")
            gone = await events.get()
        task.cancel()
        assert (changed.type, changed.object["data"], gone.type) == ("MODIFIED", {"a": "2"}, "DELETED")


async def test_the_same_event_is_counted_not_repeated(cluster: Cluster, api: Api) -> None:
    """Object, reason and text make its name."""
    with cluster.namespace() as namespace:
        box = await api.apply(config_map(namespace))
        for text in ("one", "one", "two"):
            await api.event(box, type="Normal", reason="Test", text=text)
        found = await api.list("Event", namespace)
        assert sorted((e["message"], e["count"]) for e in found) == [("one", 2), ("two", 1)]


async def test_a_server_that_is_not_there_is_an_error_after_patience_not_a_hang(cluster: Cluster) -> None:
    """Status 0, reason Unreachable, the server's address in the text; each try was one call as RBAC sees it."""
    tries: list[tuple[Call, int]] = []
    async with connect(
        kubeconfig=cluster.kubeconfig,
        patience_s=0.5,
        on_answer=lambda call, status: tries.append((call, status)),
    ) as api:
        api.server = "https://127.0.0.1:1"
        with pytest.raises(ApiError, match=r"127\.0\.0\.1:1") as caught:
            await api.get("Pod", "default", "x")
    assert caught.value.unreachable
    assert set(tries) == {(Call("get", "", "pods", "default"), 0)}
