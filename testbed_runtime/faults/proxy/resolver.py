"""Address resolution through the proxy: its route for (own process, peer, plane).

The proxy's answers are cached for as long as this process lives: a route keeps its port. A peer that returns under
another address gets another route.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import aiohttp

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.links import logical_name
from testbed_runtime.ports.network import Address, http_url
from testbed_runtime.transport.names import Session, is_numeric

ROUTE_TIMEOUT_S = 5.0
"""The proxy is on the same machine and answers in milliseconds; after this time it is gone."""
MAX_CACHED_ROUTES = 1_024
ROUTE_TTL_S = 2.0
"""How long a route of a proxy that is known by name is cached: it may restart with other routes."""

_Key = tuple[str, str, Address]
"""Peer, plane and advertised address."""


class ProxyResolver:
    """Requests a route from the proxy once per (peer, plane, advertised address). `close` ends its HTTP session.

    Raises ConnectionError when the proxy does not answer: for the caller the peer is unreachable then."""

    def __init__(self, me: str, proxy: Address, token: str) -> None:
        self._me = logical_name(me)
        self._url = http_url(proxy, "/v1/routes")
        self._session = Session(token, aiohttp.ClientTimeout(total=ROUTE_TIMEOUT_S))
        self._routes: dict[_Key, tuple[Address, float]] = {}
        self._ttl_s = float("inf") if is_numeric(proxy[0]) else ROUTE_TTL_S
        self._host = proxy[0]
        self._locks = defaultdict[_Key, asyncio.Lock](asyncio.Lock)
        """First come, first served: messages that wait for the same route keep their order."""

    async def resolve(self, peer: str, plane: str, advertised: Address) -> Address:
        key = (logical_name(peer), plane, (advertised[0], advertised[1]))
        async with self._locks[key]:
            known = self._known(key)
            if known is None:
                known = await self._ask(*key)
                self._routes[key] = known, asyncio.get_running_loop().time() + self._ttl_s
                if len(self._routes) > MAX_CACHED_ROUTES:
                    oldest = next(iter(self._routes))
                    self._routes.pop(oldest)
                    self._locks.pop(oldest)
        return known

    def _known(self, key: _Key) -> Address | None:
        found = self._routes.get(key)
        return None if found is None or found[1] <= asyncio.get_running_loop().time() else found[0]

    async def close(self) -> None:
        """Idempotent."""
        await self._session.close()

    async def _ask(self, peer: str, plane: str, advertised: Address) -> Address:
        body: dict[str, Any] = {
            "source": self._me,
            "destination": peer,
            "plane": plane,
            "upstream": list(advertised),
        }
        try:
            async with self._session.open.put(self._url, json=body) as response:
                answer = await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionRefusedError(f"the proxy does not answer: {error}") from error
        if response.status != 200:
            raise HeadgateError(
                f"the proxy refused a route to {peer}: {answer.get('error', response.status)}"
            )
        return self._host, int(answer["port"])
