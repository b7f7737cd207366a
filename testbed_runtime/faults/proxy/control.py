"""The proxy's control endpoint: HTTP on loopback with the testbed's bearer token.

PUT /v1/routes {source, destination, plane, upstream: [host, port]} → {port} · PUT /v1/rules/{id} (a FlowRule) · DELETE the same ·
DELETE /v1/rules (all) · GET /v1/state
"""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from testbed_runtime.faults.http import bad_input, bearer_token
from testbed_runtime.faults.links import logical_name
from testbed_runtime.faults.proxy.server import Proxy, RouteKey
from testbed_runtime.faults.rules import FlowRule


class _RouteBody(msgspec.Struct):
    source: str
    destination: str
    plane: str
    upstream: tuple[str, int]


def application(proxy: Proxy, token: str) -> web.Application:
    async def put_route(request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=_RouteBody)
        key = RouteKey(
            logical_name(body.source),
            logical_name(body.destination),
            body.plane,
            (body.upstream[0], body.upstream[1]),
        )
        route = await proxy.route(key)
        return web.json_response({"port": route.port})

    async def put_rule(request: web.Request) -> web.Response:
        proxy.apply(msgspec.json.decode(await request.read(), type=FlowRule))
        return web.json_response({"now": asyncio.get_running_loop().time()})

    async def delete_rule(request: web.Request) -> web.Response:
        proxy.remove(request.match_info["rule"])
        return web.json_response({})

    async def delete_all(request: web.Request) -> web.Response:
        del request
        proxy.remove_all()
        return web.json_response({})

    async def get_state(request: web.Request) -> web.Response:
        del request
        return web.json_response(proxy.state())

    app = web.Application(middlewares=[bearer_token(token), bad_input])
    app.add_routes(
        [
            web.put("/v1/routes", put_route),
            web.put("/v1/rules/{rule}", put_rule),
            web.delete("/v1/rules/{rule}", delete_rule),
            web.delete("/v1/rules", delete_all),
            web.get("/v1/state", get_state),
        ]
    )
    return app
