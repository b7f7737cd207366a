"""What a network path is like before any fault: round trip, loss, throughput, over a connection to an echo of ours.

`GET /v1/path?host=…&port=…` at a supervisor or an agent, behind its token; the echo is the one of another pod or of this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.packets.measure import PathReading, summary
from testbed_runtime.faults.probes import MAX_BULK_BYTES, ProbeConnection
from testbed_runtime.ports.network import Address

OPEN_LIMIT_S = 2.0
PINGS = 50
PINGS_LIMIT_S = 3.0
BULK_LIMIT_S = 3.0


async def path_of(echo: Address) -> dict[str, Any]:
    """`{probes, round_trip_s, round_trip_p99_s, bytes_per_s, error}`; what could not be measured is None. Takes some 100 ms, at most 8 s.

    On a connection nothing is lost: `lost_percent` is of whole round trips within the limit."""
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


def route(echo_ports: Callable[[], tuple[int, ...]]) -> web.RouteDef:
    """Only ports of echoes of ours are measured: this is no port scanner."""

    async def path(request: web.Request) -> web.Response:
        host, port = request.query.get("host", ""), request.query.get("port", "")
        if not host or not port.isdigit() or int(port) not in echo_ports():
            allowed = " or ".join(map(str, echo_ports()))
            raise UserError("port", f"{host}:{port} is no echo of ours", f"write host= and port={allowed}")
        return web.json_response(await path_of((host, int(port))))

    return web.get("/v1/path", path)
