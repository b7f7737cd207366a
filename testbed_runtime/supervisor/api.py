"""The supervisor's HTTP API: processes and the fault API (`faults.http`). Everything except the probes needs the token.

GET /healthz · GET /readyz (503 and the reason) · GET /v1/processes · PUT /v1/processes/{name} (a ChildSpec) · POST /v1/processes/{name}/stop
"""

from __future__ import annotations

import msgspec
from aiohttp import web
from msgspec import to_builtins

from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.http import fault_routes
from testbed_runtime.faults.probes import path_route
from testbed_runtime.http import service
from testbed_runtime.supervisor.supervisor import ChildSpec, Supervisor

MAX_GRACE_S = 30.0


def application(supervisor: Supervisor, token: str, *, child: str = "") -> web.Application:
    """`child` is the process whose readiness `/readyz` reports, in a pod."""

    async def readyz(_: web.Request) -> web.Response:
        why = await supervisor.unready(child) if child else ""
        return web.json_response({"ready": not why, "why": why}, status=503 if why else 200)

    async def processes(_: web.Request) -> web.Response:
        return web.json_response({"processes": [to_builtins(state) for state in supervisor.states()]})

    async def put_process(request: web.Request) -> web.Response:
        spec = msgspec.json.decode(await request.read(), type=ChildSpec)
        if spec.name != request.match_info["name"]:
            raise UserError("name", f"{spec.name!r} is not the name in the path", "use the same one")
        return web.json_response(to_builtins(await supervisor.launch(spec)))

    async def stop(request: web.Request) -> web.Response:
        grace_s = min(MAX_GRACE_S, float(request.query.get("grace_s", "3")))
        await supervisor.stop(request.match_info["name"], grace_s)
        return web.json_response({})

    routes = [
        web.get("/v1/processes", processes),
        web.put("/v1/processes/{name}", put_process),
        web.post("/v1/processes/{name}/stop", stop),
        path_route(lambda: (supervisor.echo.address[1],)),
        *fault_routes(supervisor.agent),
    ]
    return service(token, routes, ready=readyz)
