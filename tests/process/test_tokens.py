"""Every route of every process refuses requests without the token. The routes come from the applications, so a new one is included."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from testbed_runtime.entry import agent
from testbed_runtime.faults.channel.process import ChannelFaults
from testbed_runtime.faults.channel.process import routes as channel_routes
from testbed_runtime.faults.proxy import server as proxy
from testbed_runtime.history.recording.recorder import Recorder
from testbed_runtime.history.recording.run_recorder import RunRecorder
from testbed_runtime.http import HEALTHZ, READYZ
from testbed_runtime.kube.spark.service import SparkService
from testbed_runtime.store.http import StoreServer
from testbed_runtime.supervisor import api as supervisor
from testbed_runtime.transport.rpc_http import HttpRpc

ROOT = Path(__file__).parents[2]
TOKEN = "secret"
NOTHING: Any = SimpleNamespace(agent=None)
"""A stand-in for the parts that handlers use. No request reaches a handler."""
WITHOUT_TOKEN = {
    "operator/headgate_operator/health.py": {"GET /healthz", "GET /readyz", "GET /metrics"},
    "operator/headgate_operator/webhook.py": {"POST WEBHOOK_PATH"},
}
"""The API server and Prometheus have no token of a testbed. These routes change nothing."""
WITH_TOKEN = {
    "testbed_runtime/http.py",
    "testbed_runtime/history/recording/recorder.py",
    "testbed_runtime/transport/rpc_http.py",
}


def applications(folder: Path) -> Iterator[tuple[str, web.Application]]:
    yield "supervisor", supervisor.application(NOTHING, TOKEN, child="tm-0")
    yield "agent", agent.application(NOTHING, NOTHING, NOTHING, TOKEN)
    yield "proxy", proxy.application(NOTHING, TOKEN)
    yield "store", StoreServer(folder / "store").application(TOKEN)
    yield "recorder", Recorder(folder / "trial", token=TOKEN).application()
    yield "recorder of a run", RunRecorder(folder / "run", token=TOKEN).application()
    yield "spark", SparkService(NOTHING, token=TOKEN, folder=folder).application()


async def check(client: TestClient[Any, Any], app: web.Application) -> int:
    """Request each route, except the probes, without the token and with wrong ones. Return how many there are."""
    asked = 0
    for route in app.router.routes():
        info = route.get_info()
        path = re.sub(r"\{[^}]*\}", "x", info.get("path") or info["formatter"])
        if path in (HEALTHZ, READYZ):
            assert route.method in ("GET", "HEAD")
            continue
        asked += 1
        method = "PUT" if route.method == "*" else route.method
        for given in (None, "Bearer wrong", f"Bearer {TOKEN}x", "Bearer ", TOKEN):
            headers = {} if given is None else {"Authorization": given}
            async with client.request(method, path, headers=headers) as answer:
                assert answer.status == 401, f"{method} {path} with {given}"
    return asked


async def test_every_route_of_every_process_refuses_a_request_without_the_token(tmp_path: Path) -> None:
    """Also with a wrong one, an empty one, and one without `Bearer`."""
    counts = {}
    for name, app in applications(tmp_path):
        async with TestClient(TestServer(app)) as client:
            counts[name] = await check(client, app)
    assert min(counts.values()) >= 2, counts


async def test_every_route_beside_the_rpc_refuses_a_request_without_the_token() -> None:
    """JobManagers and TaskManagers add the routes of faults and counters, and whatever follows."""
    rpc = HttpRpc("tm-0", ("127.0.0.1", 0), TOKEN)
    rpc.add_routes(channel_routes(ChannelFaults("tm-0")))
    await rpc.start()
    try:
        assert rpc._runner is not None
        app = rpc._runner.app
        url = f"http://127.0.0.1:{rpc.address[1]}"
        async with aiohttp.ClientSession(url) as session:
            assert await check(session, app) >= 2
    finally:
        await rpc.close()


@pytest.mark.parametrize("folder", ["testbed_runtime", "operator"])
def test_every_application_is_known(folder: str) -> None:
    """A process with an application of its own would not be in the table above."""
    found = {}
    for file in (ROOT / folder).rglob("*.py"):
        tree = ast.parse(file.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if any(ast.unparse(call.func).endswith("web.Application") for call in calls):
            added = (call for call in calls if ast.unparse(call.func).startswith("app.router.add_"))
            found[file.relative_to(ROOT).as_posix()] = {
                f"{ast.unparse(call.func).rpartition('_')[2].upper()} {_text(call.args[0])}" for call in added
            }
    assert found.keys() == {f for f in {*WITH_TOKEN, *WITHOUT_TOKEN} if f.startswith(folder)}
    assert {file: routes for file, routes in found.items() if file in WITHOUT_TOKEN} == {
        file: routes for file, routes in WITHOUT_TOKEN.items() if file.startswith(folder)
    }


def _text(node: ast.expr) -> str:
    names = {"HEALTHZ": HEALTHZ, "READYZ": READYZ}
    text = ast.unparse(node).strip("'")
    return names.get(text, text)
