"""Both watches after the API server has lost the version that they saw last (410 Gone)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headgate_operator import watching
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.kube.api import LISTED, SYNCED, connect
from testbed_runtime.timeouts import polled
from tests.kubernetes.cluster import LAYOUT, Cluster, tool
from tools.cluster import state

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive]  # stops the API server

LIMIT_S = 120.0
EVERY_S = 0.2
ADVANCE_AND_COMPACT = """
import json, urllib.request
def etcd(call, **body):
    request = urllib.request.Request("http://127.0.0.1:2379/v3/kv/" + call, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request, timeout=10))
for _ in range(3):
    put = etcd("put", key="aGVhZGdhdGU=", value="aGVhZGdhdGU=")
etcd("compaction", revision=put["header"]["revision"], physical=True)
"""
"""Write a key until the last revision is newer than the next one of any watch, and remove all older revisions."""


def config_map(namespace: str, name: str) -> dict[str, Any]:
    labels = {naming.LABEL_MANAGED_BY: naming.MANAGED_BY}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def until(condition: Callable[[], bool]) -> None:
    async def met() -> bool:
        return condition()

    assert await polled(met, limit_s=LIMIT_S, every_s=EVERY_S)


async def test_both_watches_list_again_after_the_server_has_lost_their_version(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """The server is killed, and etcd is compacted while it is down. Later objects arrive."""
    if not cluster.own:
        pytest.skip("only the API server of the test cluster's own node can be killed")
    # which kopf's login reads, and the `kubernetes` package sets at its import
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", cluster.kubeconfig)
    with cluster.namespace() as namespace:
        by_kopf: list[tuple[str | None, str]] = []
        by_api: list[tuple[str | None, str]] = []

        def on_event(type_: str | None, obj: Mapping[str, Any]) -> None:
            by_kopf.append((type_, obj["metadata"]["name"]))

        async def watch() -> None:
            while True:  # as the operator does: a server that has just started may forbid a watch
                with contextlib.suppress(Exception):
                    await watching.watch(handlers, Settings(namespaces=(namespace,)))
                await asyncio.sleep(EVERY_S)

        async def follow() -> None:
            labels = {naming.LABEL_MANAGED_BY: naming.MANAGED_BY}
            async for event in api.watch("ConfigMap", namespace, labels=labels):
                name = event.object.get("metadata", {}).get("name", "")
                by_api.append((event.type, name))

        async with connect(kubeconfig=cluster.kubeconfig, patience_s=LIMIT_S) as api:
            await api.create(config_map(namespace, "before"))
            handlers = watching.registry(("ConfigMap",), on_event)
            tasks = [
                asyncio.create_task(watch()),
                asyncio.create_task(follow()),
            ]
            try:
                await until(lambda: (None, "before") in by_kopf and (SYNCED, "") in by_api)
                os.kill(state.programs(LAYOUT)["kube-apiserver"], signal.SIGKILL)
                await asyncio.to_thread(tool, "exec", sys.executable, "-c", ADVANCE_AND_COMPACT)
                await api.create(config_map(namespace, "after"))
                await until(lambda: all("after" in {name for _, name in seen} for seen in (by_kopf, by_api)))
                assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        assert by_kopf.count((None, "before")) >= 2, by_kopf
        assert by_api.count((LISTED, "before")) == by_api.count((SYNCED, "")) == 2, by_api
