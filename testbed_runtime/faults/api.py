"""The fault API of a supervisor or agent container, as routes over its fault agent (the server checks the bearer token).

POST /v1/faults {fault, fault_id, targets, lease_s} · GET /v1/faults · DELETE /v1/faults {fault_id} · POST /v1/faults/renew {fault_id} ·
POST /v1/faults/heal-all · GET /v1/residue · GET /v1/journal?since=n · GET /v1/path?host=…&port=…
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from msgspec import to_builtins

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.agent import FaultAgent
from testbed_runtime.faults.packets.measure import PathReading, summary
from testbed_runtime.faults.probes import MAX_BULK_BYTES, ProbeConnection
from testbed_runtime.ports.network import Address

OPEN_LIMIT_S = 2.0
PINGS = 50
PINGS_LIMIT_S = 3.0
BULK_LIMIT_S = 3.0


class _Inject(msgspec.Struct, frozen=True):
    fault: Fault
    fault_id: str
    targets: list[str]
    lease_s: float | None = None


class _ById(msgspec.Struct, frozen=True):
    fault_id: str


def routes(agent: FaultAgent) -> list[web.RouteDef]:
    async def inject(request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=_Inject)
        handle = await agent.inject(
            body.fault, fault_id=body.fault_id, targets=body.targets, lease_s=body.lease_s
        )
        return web.json_response(to_builtins(handle))

    async def renew(request: web.Request) -> web.Response:
        await agent.renew(msgspec.json.decode(await request.read(), type=_ById).fault_id)
        return web.json_response({})

    async def heal(request: web.Request) -> web.Response:
        await agent.heal(msgspec.json.decode(await request.read(), type=_ById).fault_id)
        return web.json_response({})

    async def heal_all(_: web.Request) -> web.Response:
        await agent.heal_all()
        return web.json_response({})

    async def faults(_: web.Request) -> web.Response:
        return web.json_response({"faults": agent.active()})

    async def residue(_: web.Request) -> web.Response:
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


async def path_of(echo: Address) -> dict[str, Any]:
    """Measure a network path without faults: `{probes, round_trip_s, round_trip_p99_s, bytes_per_s, error}`, None where it failed.

    Takes some 100 ms, at most 8 s. A connection loses no bytes: `lost_percent` counts round trips beyond the limit."""
    probe = await ProbeConnection.open(echo, timeout_s=OPEN_LIMIT_S)
    try:
        times = await probe.round_trips(PINGS, timeout_s=PINGS_LIMIT_S)
        seconds = None
        if len(times) == PINGS:
            seconds = await probe.bulk(MAX_BULK_BYTES, timeout_s=BULK_LIMIT_S)
        found = summary(PathReading(sent=PINGS, answered=len(times), round_trips_s=tuple(times)))
        rate = round(MAX_BULK_BYTES / seconds) if seconds else None
        return {**found, "bytes_per_s": rate, "error": probe.error}
    finally:
        probe.close()


def path_route(echo_ports: Callable[[], tuple[int, ...]]) -> web.RouteDef:
    """Return the route `GET /v1/path`. It measures paths to Headgate's echoes only, so that it is not a port scanner."""

    async def measure_path(request: web.Request) -> web.Response:
        host, port = request.query.get("host", ""), request.query.get("port", "")
        if not host or not port.isdigit() or int(port) not in echo_ports():
            allowed = " or ".join(map(str, echo_ports()))
            raise UserError(
                "port", f"{host}:{port} is not an echo of Headgate", f"write host= and port={allowed}"
            )
        return web.json_response(await path_of((host, int(port))))

    return web.get("/v1/path", measure_path)
