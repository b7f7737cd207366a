"""Probes: round trips on a separate connection, through the same path as the connections that a fault hits.

The echo is served by the supervisor next to the probed process (same network), so that a paused or busy process is not mistaken for a
broken network. The processes of the testbed never receive a frame that Flink does not know.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from aiohttp import web

from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.faults.packets.measure import PathReading, summary
from testbed_runtime.ports.network import Address
from testbed_runtime.timeouts import timeout, wait_until
from testbed_runtime.transport.names import numeric

MAX_ECHO_CONNECTIONS = 256
MAX_BULK_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a throughput probe."""
OPEN_LIMIT_S = 2.0
PINGS = 50
PINGS_LIMIT_S = 3.0
BULK_LIMIT_S = 3.0
PATH = "/v1/path"
PATH_LIMIT_S = OPEN_LIMIT_S + PINGS_LIMIT_S + BULK_LIMIT_S + 1.0
"""Time limit for the answer to a path measurement."""
_PING = struct.Struct(">Q")


class _EchoConnection(asyncio.Protocol):
    def __init__(self, server: EchoServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._server.connections) >= MAX_ECHO_CONNECTIONS:
            transport.abort()
            return
        self._server.connections[self] = transport

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._server.connections.pop(self, None)


class EchoServer:
    """Sends back every byte that it receives."""

    def __init__(self) -> None:
        self.connections: dict[_EchoConnection, asyncio.Transport] = {}
        self.address: Address = ("", 0)
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> Address:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _EchoConnection(self), host, port)
        self.address = (host, int(self._server.sockets[0].getsockname()[1]))
        return self.address

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for transport in list(self.connections.values()):
            transport.abort()


class ProbeConnection(asyncio.Protocol):
    """One connection to an echo: numbered pings, each answered in order or not at all."""

    def __init__(self) -> None:
        self.error: str = ""
        """Empty while the connection is open, else `reset`, `closed` or `refused`."""
        self._transport: asyncio.Transport | None = None
        self._next = 0
        self._sent: dict[int, float] = {}
        self._times: dict[int, float] = {}
        self._input = bytearray()
        self._changed = asyncio.Event()
        self._bulk_left = 0

    @classmethod
    async def open(cls, address: Address, *, timeout_s: float) -> ProbeConnection:
        """Connect to an echo. Network errors are not raised: see `error`."""
        probe = cls()
        loop = asyncio.get_running_loop()
        try:
            async with timeout(timeout_s):
                await loop.create_connection(lambda: probe, await numeric(*address), address[1])
        except (OSError, TimeoutError):
            probe.error = "refused"
        return probe

    @property
    def connected(self) -> bool:
        return self._transport is not None and not self.error

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._bulk_left > 0:
            self._bulk_left -= len(data)
            self._changed.set()
            return
        self._input += data
        now = asyncio.get_running_loop().time()
        while len(self._input) >= _PING.size:
            (number,) = _PING.unpack_from(self._input)
            del self._input[: _PING.size]
            if number in self._sent:
                self._times[number] = now - self._sent.pop(number)
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = self.error or ("reset" if exc is not None else "closed")
        self._changed.set()

    def ping(self) -> int:
        """Send a ping and return its number."""
        self._next += 1
        self._sent[self._next] = asyncio.get_running_loop().time()
        if self._transport is not None:
            self._transport.write(_PING.pack(self._next))
        return self._next

    async def answer(self, number: int, *, timeout_s: float) -> float | None:
        """Return the seconds of that ping's round trip; None when it is not answered in time or the connection ended (`error`)."""
        await self._until(lambda: number in self._times, timeout_s)
        return self._times.get(number)

    async def round_trip(self, *, timeout_s: float) -> float | None:
        return await self.answer(self.ping(), timeout_s=timeout_s)

    async def round_trips(self, count: int, *, timeout_s: float) -> list[float]:
        """Measure round trips one after the other, as many as fit into the limit."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        found: list[float] = []
        for _ in range(count):
            seconds = await self.round_trip(timeout_s=max(0.0, end - loop.time()))
            if seconds is None:
                break
            found.append(seconds)
        return found

    async def bulk(self, size: int, *, timeout_s: float) -> float | None:
        """Send `size` bytes and return the seconds until all came back, or None after the limit. Call it only while no ping is pending."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self._bulk_left = min(size, MAX_BULK_BYTES)
        if self._transport is not None:
            self._transport.write(bytes(self._bulk_left))
        done = await self._until(lambda: self._bulk_left <= 0, timeout_s)
        return loop.time() - begin if done else None

    async def closed(self, *, timeout_s: float) -> bool:
        return await self._until(lambda: bool(self.error), timeout_s)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        await wait_until(lambda: condition() or bool(self.error), self._changed, limit_s=timeout_s)
        return condition()


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


async def path_from(agent: Address, echo: Address, control: ControlClient) -> dict[str, Any]:
    """Let an agent measure its path to an echo. Return the result of `path_of`."""
    query = f"host={echo[0]}&port={echo[1]}"
    return dict(await control.call("GET", agent, f"{PATH}?{query}", timeout_s=PATH_LIMIT_S))


def path_route(echo_ports: Callable[[], tuple[int, ...]]) -> web.RouteDef:
    """Return the route `GET PATH`. It measures paths to Headgate's echoes only, so that it is not a port scanner."""

    async def measure_path(request: web.Request) -> web.Response:
        host, port = request.query.get("host", ""), request.query.get("port", "")
        if not host or not port.isdigit() or int(port) not in echo_ports():
            allowed = " or ".join(map(str, echo_ports()))
            raise UserError(
                "port", f"{host}:{port} is not an echo of Headgate", f"write host= and port={allowed}"
            )
        return web.json_response(await path_of((host, int(port))))

    return web.get(PATH, measure_path)
