"""Resolve host names for each connection, because a recreated pod has another address. Also HTTP sessions that do this.

In environments without DNS, `HEADGATE_HOSTS` names a JSON file `{name: address}` that takes precedence over the system's
resolver.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import ResolveResult

HOSTS_VARIABLE = "HEADGATE_HOSTS"


def known_hosts() -> Mapping[str, str]:
    """Return the current content of the hosts file. Empty without a file, or while it is being written."""
    path = os.environ.get(HOSTS_VARIABLE, "")
    if not path:
        return {}
    try:
        return dict(json.loads(Path(path).read_bytes()))
    except (OSError, ValueError):
        return {}


def is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def numeric(host: str, port: int) -> str:
    """Return the address to connect to. Raises OSError if the name cannot be resolved (yet)."""
    host = known_hosts().get(host, host)
    if is_numeric(host):
        return host
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


def connector() -> aiohttp.TCPConnector:
    """Return a connector for an aiohttp session that does not cache names. Call it inside the loop."""
    import aiohttp

    class Resolver(aiohttp.ThreadedResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            return await super().resolve(known_hosts().get(host, host), port, family)

    return aiohttp.TCPConnector(resolver=Resolver(), use_dns_cache=False)


class Session:
    """An HTTP session with the token. The first request opens it, `close` ends it."""

    def __init__(self, token: str, timeout: aiohttp.ClientTimeout) -> None:
        self._headers = {"Authorization": f"Bearer {token}"}
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    @property
    def open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers, timeout=self._timeout, connector=connector()
            )
        return self._session

    async def close(self) -> None:
        """Idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None
