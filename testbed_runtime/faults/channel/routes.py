"""The control endpoint of `ChannelFaults`, as routes that a process mounts on its rpc server (which checks the bearer token).

PUT /v1/channel/rules/{id} (a ChannelRule) · DELETE the same · DELETE /v1/channel/rules (all) · GET /v1/channel (state) ·
GET /v1/channel/rules/{id} (counters) · GET /v1/channel/sightings?class=… (of the effect tap)
"""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.channel.process import ChannelFaults
from testbed_runtime.faults.rules import ChannelRule

BASE = "/v1/channel"


def routes(faults: ChannelFaults) -> list[web.RouteDef]:
    """For `rpc_http`'s `add_routes`."""

    async def put_rule(request: web.Request) -> web.Response:
        try:
            rule = msgspec.json.decode(await request.read(), type=ChannelRule)
            faults.apply(rule)
        except (msgspec.MsgspecError, UserError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({"now": asyncio.get_running_loop().time()})

    async def delete_rule(request: web.Request) -> web.Response:
        rule_id = request.match_info["rule"]
        faults.remove(rule_id)
        return web.json_response({"counters": faults.counters(rule_id)})

    async def delete_all(request: web.Request) -> web.Response:
        del request
        faults.remove_all()
        return web.json_response({})

    async def get_state(request: web.Request) -> web.Response:
        del request
        return web.json_response(faults.state())

    async def get_rule(request: web.Request) -> web.Response:
        return web.json_response({"counters": faults.counters(request.match_info["rule"])})

    async def get_sightings(request: web.Request) -> web.Response:
        return web.json_response({"sightings": faults.effects.sightings(request.query.get("class", ""))})

    return [
        web.put(BASE + "/rules/{rule}", put_rule),
        web.delete(BASE + "/rules/{rule}", delete_rule),
        web.get(BASE + "/rules/{rule}", get_rule),
        web.delete(BASE + "/rules", delete_all),
        web.get(BASE, get_state),
        web.get(BASE + "/sightings", get_sightings),
    ]
