"""The API client against a small HTTP server that plays the API server."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import yaml
from aiohttp import web

from testbed_runtime.kube.api import SYNCED, ApiError, Call, connect
from testbed_runtime.kube.connection import MAX_LINE_BYTES, LoginFailed, is_direct, login, proxy_hint
from tests.transport.encrypted import certificate

NO_RIGHTS = 'pods is forbidden: User "system:serviceaccount:demo:headgate-runner" cannot list resource "pods"'
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers each request with the next of `answers`, the last one again and again. Remembers what it was asked."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.answers: list[Handler] = []
        self.asked: list[web.Request] = []
        self.bodies: list[bytes] = []
        self._folder = folder

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        self.bodies.append(await request.read())
        return await (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request)

    def kubeconfig(self, **user: Any) -> str:
        path = self._folder / "kubeconfig"
        document = {
            "current-context": "here",
            "contexts": [
                {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "demo"}},
                {"name": "other", "context": {"cluster": "c", "user": "u"}},
            ],
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": user or {"token": "secret"}}],
        }
        path.write_text(yaml.safe_dump(document))
        return str(path)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    app = web.Application()
    runner = web.AppRunner(app)
    made = Server("", tmp_path)
    app.router.add_route("*", "/{path:.*}", made.handle)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}"
    yield made
    await runner.cleanup()


def answer(body: Any, *, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return handler


def lines(*events: Any) -> Handler:
    """A watch that sends these events and is then closed."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    return handler


def refusal(code: int, reason: str) -> Any:
    return {"kind": "Status", "code": code, "reason": reason, "message": "no"}


def pod(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


async def test_the_context_gives_server_token_and_namespace(server: Server) -> None:
    """The token is in the request's header; an explicit namespace or context overrides the context's."""
    server.answers = [answer(pod("a", "1"))]
    calls: list[tuple[Call, int]] = []
    async with connect(
        kubeconfig=server.kubeconfig(), on_answer=lambda call, status: calls.append((call, status))
    ) as api:
        assert (api.server, api.namespace) == (server.url, "demo")
        assert await api.get("Pod", "demo", "a") == pod("a", "1")
    assert server.asked[0].headers["Authorization"] == "Bearer secret"
    assert server.asked[0].path == "/api/v1/namespaces/demo/pods/a"
    assert calls == [(Call("get", "", "pods", "demo"), 200)]
    assert (await login(kubeconfig=server.kubeconfig(), context="other")).namespace == "default"
    assert (await login(kubeconfig=server.kubeconfig(), namespace="mine")).namespace == "mine"


@pytest.mark.parametrize(
    "text", [None, "", "contexts: [", "- x", "{}", "current-context: nowhere\ncontexts: []\n"]
)
async def test_a_missing_or_incomplete_kubeconfig_is_named_in_the_error(
    text: str | None, tmp_path: Path
) -> None:
    """The error names the file, so that the user knows which one to fix. An unset secret of a pipeline is an empty file."""
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(LoginFailed, match=f"{path}.*--kubeconfig"):
        await login(kubeconfig=str(path))


@pytest.mark.parametrize(
    ("direct", "server"),
    [
        (True, "https://10.96.0.1:443"),
        (True, "https://[fd00::1]:443"),
        (True, "https://192.168.0.7"),
        (False, "https://11.0.0.1"),
        (False, "https://api.example:6443"),
    ],
)
def test_a_server_in_a_network_of_no_proxy_is_reached_without_the_proxy(
    direct: bool, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kubectl does. Names in NO_PROXY are left to aiohttp."""
    monkeypatch.setenv("no_proxy", ".svc, 10.0.0.0/8,fd00::/8,192.168.0.7,api.example")
    assert is_direct(server) is direct


@pytest.mark.parametrize(
    ("server", "hint"),
    [
        ("https://10.96.0.1:443", ""),
        ("https://11.0.0.1", " through HTTPS_PROXY (add 11.0.0.1 to NO_PROXY to reach it directly)"),
        ("https://api.example:6443", ""),
        ("http://11.0.0.1", ""),
    ],
    ids=["in a network of NO_PROXY", "through the proxy", "a name of NO_PROXY", "another scheme"],
)
def test_a_server_that_is_not_reached_through_a_proxy_is_reported_with_the_variable(
    server: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may set HTTPS_PROXY in every pod, and the proxy does not know the address of the API server's Service."""
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy.example:3128")
    monkeypatch.setenv("no_proxy", ".svc,10.0.0.0/8,api.example")
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.delenv("HTTP_PROXY", raising=False)
    assert proxy_hint(server) == hint


async def test_an_expired_token_of_an_exec_plugin_is_renewed_once(server: Server, tmp_path: Path) -> None:
    """The API server refuses the first token; the plugin gives another one, and the request is repeated with it."""
    count = tmp_path / "count"
    credential = {"expirationTimestamp": "2020-01-01T00:00:00Z", "token": "TOKEN"}
    document = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": credential,
    }
    script = f"echo x >> {count}; echo '{json.dumps(document)}' | sed s/TOKEN/$(wc -l < {count})/"
    plugin = {"apiVersion": document["apiVersion"], "command": "sh", "args": ["-c", script]}
    server.answers = [answer(refusal(401, "Unauthorized"), status=401), answer(pod("a", "1"))]
    async with connect(kubeconfig=server.kubeconfig(exec=plugin)) as api:
        assert await api.get("Pod", "demo", "a") == pod("a", "1")
    assert [r.headers["Authorization"] for r in server.asked] == ["Bearer 1", "Bearer 2"]


async def test_safe_requests_are_retried_and_others_only_after_429(server: Server) -> None:
    """A create with generateName could make two objects, so a 500 is raised at once."""
    server.answers = [
        answer(refusal(500, "InternalError"), status=500),
        answer(refusal(429, "TooManyRequests"), status=429),
        answer(pod("a", "1")),
    ]
    async with connect(kubeconfig=server.kubeconfig()) as api:
        assert await api.get("Pod", "demo", "a") is not None
        assert len(server.asked) == 3
        server.answers = [answer(refusal(500, "InternalError"), status=500)]
        generated = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "a-", "namespace": "demo"},
        }
        with pytest.raises(ApiError, match="InternalError") as caught:
            await api.create(generated)
    assert caught.value.unreachable
    assert len(server.asked) == 4


async def test_what_is_applied_can_be_read_as_yaml(server: Server) -> None:
    """Characters beyond the basic plane stay as they are: the API server parses an apply as YAML."""
    server.answers = [answer({})]
    async with connect(kubeconfig=server.kubeconfig()) as api:
        metadata = {"name": "a", "namespace": "demo"}
        await api.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"x": "😀\x80"}}
        )
    assert yaml.safe_load(server.bodies[0])["data"] == {"x": "😀\x80"}
    assert server.asked[0].headers["Content-Type"] == "application/apply-patch+yaml"
    assert dict(server.asked[0].query) == {"fieldManager": "headgate-operator", "force": "true"}


async def test_a_field_that_an_older_definition_does_not_know_is_refused(server: Server) -> None:
    """Only in Headgate's kinds. By default the API server drops it and answers 201, and the run would be another one."""
    server.answers = [answer({})]
    async with connect(kubeconfig=server.kubeconfig()) as api:
        for version, kind in (("headgate.dev/v1alpha1", "ScenarioRun"), ("v1", "Pod")):
            metadata = {"name": "a", "namespace": "demo"}
            await api.create({"apiVersion": version, "kind": kind, "metadata": metadata})
    assert [request.query.get("fieldValidation") for request in server.asked] == ["Strict", None]


async def test_a_list_reads_every_page(server: Server) -> None:
    """The pages of a list are joined."""
    server.answers = [
        answer({"metadata": {"continue": "more"}, "items": [pod("a", "1")]}),
        answer({"metadata": {"resourceVersion": "9"}, "items": [pod("b", "2")]}),
    ]
    async with connect(kubeconfig=server.kubeconfig()) as api:
        found = await api.list("Pod", None, labels={"app": "x"})
    assert [(p["kind"], p["metadata"]["name"]) for p in found] == [("Pod", "a"), ("Pod", "b")]
    assert server.asked[1].query["continue"] == "more"
    assert server.asked[0].query["labelSelector"] == "app=x"


async def test_a_watch_resumes_after_an_interruption_and_lists_again_after_410(server: Server) -> None:
    """It resumes from the last version it saw (bookmarks count), also in the middle of a line; 410 makes it list again."""

    async def cut_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"type": "ADDED", "obj')
        return response

    listed = answer({"metadata": {"resourceVersion": "1"}, "items": [pod("a", "1")]})
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}
    server.answers = [
        listed,
        lines({"type": "ADDED", "object": pod("b", "5")}, bookmark),
        cut_off,
        lines({"type": "ERROR", "object": refusal(410, "Expired")}),
        listed,
        lines({"type": "DELETED", "object": pod("a", "8")}),
    ]
    seen = []
    async with connect(kubeconfig=server.kubeconfig()) as api:
        async for event in api.watch("Pod", "demo"):
            seen.append((event.type, event.object.get("metadata", {}).get("name")))
            if event.type == "DELETED":
                break
    listing = [("LISTED", "a"), ("SYNCED", None)]
    assert seen == [*listing, ("ADDED", "b"), *listing, ("DELETED", "a")]
    versions = [r.query.get("resourceVersion") for r in server.asked if "watch" in r.query]
    assert versions == ["1", "7", "7", "1"]


async def test_a_watch_takes_the_largest_objects_that_etcd_stores(server: Server) -> None:
    """1.5 MiB, escaped to twice of that and more."""
    large = pod("a" * (MAX_LINE_BYTES // 2), "2")
    server.answers = [
        answer({"metadata": {"resourceVersion": "1"}}),
        lines({"type": "ADDED", "object": large}),
    ]
    async with connect(kubeconfig=server.kubeconfig()) as api:
        events = [event.object async for event in _first(api.watch("Pod", "demo"), 2)]
    assert events[1] == large


async def test_a_watch_that_is_forbidden_is_an_error(server: Server) -> None:
    """Missing rights are reported; the watch is not retried."""
    server.answers = [
        answer({"metadata": {"resourceVersion": "1"}}),
        answer(refusal(403, "Forbidden"), status=403),
    ]
    async with connect(kubeconfig=server.kubeconfig()) as api:
        with pytest.raises(ApiError, match="Forbidden"):
            [event async for event in api.watch("Pod", "demo")]


async def test_a_server_that_has_just_started_may_forbid_what_it_allows_later(server: Server) -> None:
    """It listens before it has read its roles. A run must not end because of that, neither by its watch nor by its requests."""

    async def killed(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        assert request.transport is not None
        request.transport.abort()
        return response

    forbidden = answer(refusal(403, "Forbidden") | {"message": NO_RIGHTS}, status=403)
    listed = answer({"metadata": {"resourceVersion": "1"}})
    server.answers = [listed, killed, forbidden, lines({"type": "ADDED", "object": pod("a", "2")})]
    async with connect(kubeconfig=server.kubeconfig()) as api:
        assert [event.type async for event in _first(api.watch("Pod", "demo"), 2)] == ["SYNCED", "ADDED"]
        server.answers = [forbidden, answer(pod("b", "3"), status=201)]
        assert await api.create({"apiVersion": "v1", "kind": "Pod", **pod("b", "3")}) == pod("b", "3")
        server.answers = [forbidden]
        api._patience_s = 0.5
        with pytest.raises(ApiError, match="Forbidden"):
            await api.get("Pod", "demo", "a")


@pytest.mark.parametrize(
    ("before", "message"), [(503, "exceeded quota"), (429, NO_RIGHTS)], ids=["quota", "no outage"]
)
async def test_another_refusal_is_final(before: int, message: str, server: Server) -> None:
    """A quota refuses with 403, too, and a server that answers 429 has not just started."""
    refused = answer(refusal(403, "Forbidden") | {"message": message}, status=403)
    server.answers = [answer(refusal(before, "Unavailable"), status=before), refused]
    async with connect(kubeconfig=server.kubeconfig()) as api:
        with pytest.raises(ApiError, match="Forbidden"):
            await api.get("Pod", "demo", "a")
    assert len(server.asked) == 2


async def test_a_server_that_is_not_there_is_an_error_with_its_address(server: Server) -> None:
    """The address in the error shows which server was tried."""
    async with connect(kubeconfig=server.kubeconfig(), patience_s=0.5) as api:
        api.server = "http://127.0.0.1:1"
        with pytest.raises(ApiError, match=r"127\.0\.0\.1:1") as caught:
            await api.get("Pod", "demo", "a")
    assert (caught.value.status, caught.value.reason) == (0, "Unreachable")


async def _first(watch: AsyncIterator[Any], number: int) -> AsyncIterator[Any]:
    async for event in watch:
        yield event
        number -= 1
        if number == 0:
            return


def answer_slowly(listening: socket.socket, certificate_file: Path, watched: Event) -> None:
    """Answer one list over TLS, and the end of the connection only 0.3 s after the watch was asked for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file)
    accepted, _ = listening.accept()
    with context.wrap_socket(accepted, server_side=True) as connection:
        connection.recv(65536)
        page = json.dumps({"items": [], "metadata": {"resourceVersion": "1"}})
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\n\r\n{page}".encode())
        connection.recv(65536)
        watched.set()
        time.sleep(0.3)


def test_a_session_that_ends_right_after_a_watch_leaves_no_connection_open(server: Server, tmp_path: Path):
    """aiohttp closes the watch's connection in the background, and the event loop ends before the server answers."""
    (tmp_path / "certificate.pem").write_bytes(certificate())
    watched = Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = Thread(target=answer_slowly, args=(listening, tmp_path / "certificate.pem", watched))
        answering.start()
        server.url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        kubeconfig = Path(server.kubeconfig())
        document = yaml.safe_load(kubeconfig.read_text())
        document["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
        kubeconfig.write_text(yaml.safe_dump(document))

        async def watch_and_stop() -> bool:
            async with connect(kubeconfig=str(kubeconfig)) as api:
                watch = api.watch("Pod", "demo")
                assert (await anext(watch)).type == SYNCED
                following = asyncio.create_task(anext(watch), name="the watch itself")
                asked = await asyncio.to_thread(watched.wait, 30)
                following.cancel()
                await asyncio.wait({following})
                return asked

        assert asyncio.run(watch_and_stop())
        gc.collect()  # pytest fails the test for a socket that was not closed
        answering.join()
