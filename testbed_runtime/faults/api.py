"""The fault API of a supervisor, as routes over its agent (the supervisor checks the bearer token).

POST /v1/faults {fault, fault_id, targets, lease_s} · GET /v1/faults · DELETE /v1/faults {fault_id} · POST /v1/faults/renew {fault_id} ·
POST /v1/faults/heal-all · GET /v1/residue · GET /v1/journal?since=n
"""

from __future__ import annotations

from dataclasses import asdict

import msgspec
from aiohttp import web

from testbed_runtime.faults.agent import FaultAgent
from testbed_runtime.faults.model import Fault


class _Inject(msgspec.Struct):
    fault: Fault
    fault_id: str
    targets: list[str]
    lease_s: float | None = None


class _ById(msgspec.Struct):
    fault_id: str


def routes(agent: FaultAgent) -> list[web.RouteDef]:
    async def inject(request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=_Inject)
        handle = await agent.inject(
            body.fault, fault_id=body.fault_id, targets=body.targets, lease_s=body.lease_s
        )
        return web.json_response(asdict(handle))

    async def renew(request: web.Request) -> web.Response:
        await agent.renew(msgspec.json.decode(await request.read(), type=_ById).fault_id)
        return web.json_response({})

    async def heal(request: web.Request) -> web.Response:
        await agent.heal(msgspec.json.decode(await request.read(), type=_ById).fault_id)
        return web.json_response({})

    async def heal_all(request: web.Request) -> web.Response:
        del request
        await agent.heal_all()
        return web.json_response({})

    async def faults(request: web.Request) -> web.Response:
        del request
        return web.json_response({"faults": agent.active()})

    async def residue(request: web.Request) -> web.Response:
        del request
        return web.json_response({"residue": await agent.residue()})

    async def journal(request: web.Request) -> web.Response:
        since = int(request.query.get("since", "0"))
        return web.json_response({"rows": agent.journal.since(since)})

    return [
        web.post("/v1/faults", inject),
        web.get("/v1/faults", faults),
        web.delete("/v1/faults", heal),
        web.post("/v1/faults/renew", renew),
        web.post("/v1/faults/heal-all", heal_all),
        web.get("/v1/residue", residue),
        web.get("/v1/journal", journal),
    ]
