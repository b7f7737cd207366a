"""The watches of kopf at an API server over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest
from aiohttp import web

from headgate_operator import watching
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.http import serve

CORE = {"pods": "Pod", "configmaps": "ConfigMap", "namespaces": "Namespace", "events": "Event"}
OWN = {declared.plural: kind for kind, declared in CUSTOM_RESOURCES.items()}
KINDS = {**OWN, **CORE}
DEFINITIONS = {"customresourcedefinitions": "CustomResourceDefinition"}
GROUPS = {naming.GROUP: naming.VERSION, "apiextensions.k8s.io": "v1"}
LIMIT_S = 60.0
EVERY_S = 0.1
"""Time between two objects of a watch."""


def resources(names: dict[str, str]) -> web.Response:
    verbs = ["list", "watch", "get", "patch"]
    found = [{"name": n, "singularName": k.lower(), "namespaced": True, "kind": k, "verbs": verbs} for n, k in names.items()]  # fmt: skip
    return web.json_response({"resources": found})


class Server:
    """Watches stay open, and deliver an object now and then, until `fails` is set. Then it refuses the namespace `gone`, and drops every
    other connection."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.all_open, self.fails = asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if "/namespaces/" in path:
            return await self._objects(request)
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/apis":
            groups = [
                {"name": name, "preferredVersion": {"version": version}, "versions": [{"version": version}]}
                for name, version in GROUPS.items()
            ]
            return web.json_response({"groups": groups})
        if path == "/api/v1":
            return resources(CORE)
        return resources(OWN if naming.GROUP in path else DEFINITIONS)

    async def _objects(self, request: web.Request) -> web.StreamResponse:
        if self.fails.is_set() and "/namespaces/gone/" in request.path:
            refused = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no rights"}
            return web.json_response(refused, status=403)
        if self.fails.is_set():
            assert request.transport is not None
            request.transport.abort()
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        self.open.add(request.path)
        if len(self.open) == 2 * (len(OWN) + 2):
            self.all_open.set()
        for number in itertools.count():
            with contextlib.suppress(ConnectionError):
                await response.write(added(request.path, number))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.fails.wait(), EVERY_S)
                break
        return response


def added(path: str, number: int) -> bytes:
    *_, namespace, plural = path.split("/")
    metadata = {
        "name": f"o{number}",
        "namespace": namespace,
        "uid": f"{path}{number}",
        "resourceVersion": "2",
    }
    found = {"kind": KINDS[plural], "apiVersion": "v1", "metadata": metadata}
    return json.dumps({"type": "ADDED", "object": found}).encode() + b"\n"


@contextlib.asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Server, asyncio.Task[None]]]:
    """Yield a server and the watches of two namespaces there, when all of them are open."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # kopf's callbacks raise errors
    server = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    served, (_, port) = await serve(application, ("127.0.0.1", 0))
    there = kopf.ConnectionInfo(server=f"http://127.0.0.1:{port}")

    async def login(**_: object) -> kopf.ConnectionInfo:
        return there

    defaults = watching.kopf_settings

    def impatient() -> Any:
        found = defaults()
        found.networking.error_backoffs = (0.05, 0.05)
        return found

    monkeypatch.setattr(watching, "kopf_settings", impatient)
    monkeypatch.setattr(kopf, "login_via_client", login)
    handlers = watching.registry((*CUSTOM_RESOURCES, "Pod", "ConfigMap"), lambda *_: None)
    watch = asyncio.create_task(watching.watch(handlers, Settings(namespaces=("here", "gone"))))
    try:
        await asyncio.wait_for(server.all_open.wait(), LIMIT_S)
        yield server, watch
    finally:
        server.fails.set()
        watch.cancel()
        await asyncio.wait({watch}, timeout=LIMIT_S / 6)
        await served.cleanup()


def test_a_watch_that_is_refused_ends_all_watches_although_others_find_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kopf itself would wait for these forever, so the operator would see no object any more, and SIGTERM would not end it."""

    async def main() -> None:
        async with watched(monkeypatch) as (server, watch):
            server.fails.set()
            with pytest.raises(Exception, match="no rights"):
                await asyncio.wait_for(asyncio.shield(watch), LIMIT_S / 2)

    asyncio.run(main())


def test_watches_that_deliver_objects_end_before_any_limit_and_leave_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A term ends while objects arrive. The next one begins in the same process, which kopf would otherwise kill 10 minutes later."""

    async def main() -> None:
        async with watched(monkeypatch) as (_, watch):
            monkeypatch.setattr(watching, "STOP_LIMIT_S", LIMIT_S)
            watch.cancel()
            await asyncio.wait({watch}, timeout=LIMIT_S / 2)
            assert watch.done()
            assert not tasks_of_kopf()

    asyncio.run(main())
    assert watching.kopf_settings().process.ultimate_exiting_timeout is None


def tasks_of_kopf() -> list[asyncio.Task[Any]]:
    return [t for t in asyncio.all_tasks() if "kopf" in str(getattr(t.get_coro(), "cr_code", ""))]


def test_watches_that_fail_leave_no_task_when_the_lease_is_lost_while_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both happen when the API server is gone. A task that stayed would be destroyed while it is pending, with errors in the log."""
    stop = watching._stop
    begun = asyncio.Event()

    async def noted(tasks: Any) -> None:
        begun.set()
        await stop(tasks)

    async def main() -> None:
        async with watched(monkeypatch) as (server, watch):
            monkeypatch.setattr(watching, "_stop", noted)
            server.fails.set()
            await asyncio.wait_for(begun.wait(), LIMIT_S / 2)
            watch.cancel()
            await asyncio.wait({watch}, timeout=LIMIT_S / 2)
            assert not tasks_of_kopf()

    asyncio.run(main())
