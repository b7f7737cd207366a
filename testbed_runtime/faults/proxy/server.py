"""The holder of the proxy backend's rules: routes (one listener each), rules with their own deadlines, relays, and its control endpoint.

The control endpoint is HTTP with the testbed's bearer token:

PUT /v1/routes {source, destination, plane, upstream: [host, port]} → {port} · PUT /v1/rules/{id} (a Rule) · DELETE the same ·
GET /v1/state
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.links import logical_name
from testbed_runtime.core.faults.retransmission import connects_at
from testbed_runtime.faults.backend import Rule
from testbed_runtime.faults.proxy.relay import Relay
from testbed_runtime.http import service
from testbed_runtime.ports.network import Address
from testbed_runtime.timeouts import cancel_all, timeout
from testbed_runtime.transport.names import numeric

MAX_DESCRIPTORS = 960
"""Maximum sockets: one for each route's listener, and two for each connection. The loop's select() allows 1,024. This is enough for 17
processes of which each communicates with all others."""
MAX_RULES = 256
CONNECT_TIMEOUT_S = 30.0
BACKLOG = 128
MAX_PORTS_TRIED = 64
"""Maximum ports that are tried for one route, one after the other."""


class RouteKey(Struct, frozen=True):
    source: str
    destination: str
    plane: str
    upstream: Address


@dataclass(slots=True)
class Route:
    key: RouteKey
    port: int
    server: asyncio.Server | None = None
    connections: int = 0


@dataclass(slots=True)
class RuleState:
    rule: Rule
    timer: asyncio.TimerHandle


class Proxy:
    """Routes, rules and relays of one testbed. `close` ends them all. All methods belong to one loop; names are logical."""

    def __init__(self, *, host: str = "127.0.0.1", seed: int = 1, first_port: int = 0) -> None:
        """Routes listen on free ports, or on the first free ones from `first_port` on."""
        self._next_port = first_port
        self._host = host
        self._seed = seed
        self._routes: dict[RouteKey, Route] = {}
        self._rules: dict[str, RuleState] = {}
        self._relays: dict[Relay, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = 0
        self._unblocked = asyncio.Event()
        self._lock = asyncio.Lock()

    async def route(self, key: RouteKey) -> Route:
        """Return the route of a key; the same key gets the same port. Raises UserError when there are too many."""
        async with self._lock:
            known = self._routes.get(key)
            if known is not None:
                return known
            if self._full:
                raise UserError(
                    "routes", "the proxy has reached its limit of routes", "use a smaller testbed"
                )
            route = Route(key, 0)
            route.server = await self._listen(route)
            route.port = int(route.server.sockets[0].getsockname()[1])
            self._routes[key] = route
            return route

    async def _listen(self, route: Route) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        for _ in range(MAX_PORTS_TRIED):
            port, self._next_port = self._next_port, self._next_port + 1 if self._next_port else 0
            with contextlib.suppress(OSError):
                return await loop.create_server(
                    lambda: self._accept(route), self._host, port, backlog=BACKLOG, reuse_address=True
                )
        raise UserError("routes", f"no port below {self._next_port} is free", "use a smaller testbed")

    def apply(self, rule: Rule) -> None:
        """Apply a rule at once, to open connections too. It ends at its deadline."""
        if len(self._rules) >= MAX_RULES and rule.rule_id not in self._rules:
            raise UserError("fault", f"the proxy already holds {MAX_RULES} rules", "heal some first")
        loop = asyncio.get_running_loop()
        if rule.deadline <= loop.time():
            self.remove(rule.rule_id)
            return
        replaced = self._rules.get(rule.rule_id)
        if replaced is not None:
            replaced.timer.cancel()  # replace the rule without healing it in between, so that no held bytes leak
        self._rules[rule.rule_id] = RuleState(rule, loop.call_at(rule.deadline, self.remove, rule.rule_id))
        self._reshape()

    def remove(self, rule_id: str) -> None:
        """End a rule and send the bytes that it held, in order. Harmless when the rule does not exist."""
        state = self._rules.pop(rule_id, None)
        if state is None:
            return
        state.timer.cancel()
        self._reshape()

    def state(self) -> dict[str, Any]:
        """Return the state for the control endpoint, the measurement and the residue. Bytes that wait for TCP to retransmit them are not residue."""
        now = asyncio.get_running_loop().time()
        settled = [relay for relay in self._relays if relay.resumes_at <= now]
        return {
            "routes": len(self._routes),
            "rules": {rule_id: to_builtins(state.rule) for rule_id, state in self._rules.items()},
            "connections": len(self._relays),
            "held_bytes": sum(relay.held_bytes for relay in settled),
            "shaped_connections": sum(
                1 for r in settled if not (r.forward.shaper.idle and r.backward.shaper.idle)
            ),
            "sent_again_s": max([0.0, *(relay.resumes_at - now for relay in self._relays)]),
        }

    async def close(self) -> None:
        """Close every listener and connection and end every task. Idempotent."""
        for state in self._rules.values():
            state.timer.cancel()
        self._rules.clear()
        for route in self._routes.values():
            if route.server is not None:
                route.server.close()
        self._routes.clear()
        for relay in list(self._relays):
            relay.reset()
        await cancel_all(*self._tasks)

    # ---- inside

    @property
    def _full(self) -> bool:
        return len(self._routes) + 2 * len(self._relays) >= MAX_DESCRIPTORS

    def _active(self) -> list[Rule]:
        return [state.rule for state in self._rules.values()]

    def _reshape(self) -> None:
        rules = self._active()
        for relay in list(self._relays):
            relay.shape(rules)
        self._unblocked.set()
        self._unblocked = asyncio.Event()

    def _accept(self, route: Route) -> asyncio.Protocol:
        key = route.key
        relay = Relay(
            key.source,
            key.destination,
            key.plane,
            seed=f"{self._seed}/{key.source}/{key.destination}/{key.plane}/{route.connections}",
            on_closed=self._forget,
        )
        route.connections += 1
        relay.near.read(False)
        relay.near.on_made = lambda: self._begin(relay, key.upstream)
        return relay.near

    def _begin(self, relay: Relay, upstream: Address) -> None:
        """Connect the far socket, now that the near one is open."""
        self._relays[relay] = None
        self._numbers += 1
        task = asyncio.get_running_loop().create_task(
            self._connect(relay, upstream), name=f"relay-{self._numbers}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, relay: Relay, upstream: Address) -> None:
        """Open the far socket once a handshake passes. A refusal there becomes a reset here."""
        if self._full:
            relay.reset()
            return
        relay.shape(self._active())
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not relay.may_connect:
            if relay.was_reset or relay.near.lost:
                return
            await self._unblocked.wait()
            await asyncio.sleep(connects_at(began, loop.time()) - loop.time())
        try:
            async with timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: relay.far, await numeric(*upstream), upstream[1])
        except (OSError, TimeoutError):
            relay.reset()
            return
        if relay.was_reset or relay.near.lost:
            relay.far.reset()
            return
        relay.shape(self._active())
        relay.connected()

    def _forget(self, relay: Relay) -> None:
        self._relays.pop(relay, None)


def application(proxy: Proxy, token: str) -> web.Application:
    async def put_route(request: web.Request) -> web.Response:
        key = msgspec.json.decode(await request.read(), type=RouteKey)
        source, destination = logical_name(key.source), logical_name(key.destination)
        route = await proxy.route(replace(key, source=source, destination=destination))
        return web.json_response({"port": route.port})

    async def put_rule(request: web.Request) -> web.Response:
        proxy.apply(msgspec.json.decode(await request.read(), type=Rule))
        return web.json_response({"now": asyncio.get_running_loop().time()})

    async def delete_rule(request: web.Request) -> web.Response:
        proxy.remove(request.match_info["rule"])
        return web.json_response({})

    async def get_state(_: web.Request) -> web.Response:
        return web.json_response(proxy.state())

    routes = [
        web.put("/v1/routes", put_route),
        web.put("/v1/rules/{rule}", put_rule),
        web.delete("/v1/rules/{rule}", delete_rule),
        web.get("/v1/state", get_state),
    ]
    return service(token, routes)
