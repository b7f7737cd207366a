"""Host names: asked anew for each connection, since a pod that comes again has another address.

`HEADGATE_HOSTS` may name a JSON file `{name: address}` that is read before the system's resolver is asked, for places without a DNS.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from aiohttp.abc import ResolveResult

HOSTS_VARIABLE = "HEADGATE_HOSTS"


def known_hosts() -> Mapping[str, str]:
    """As the file says now; empty without one, or while it is being written."""
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
    """The address to connect to. Raises OSError when the name is not known (yet)."""
    host = known_hosts().get(host, host)
    if is_numeric(host):
        return host
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


class _Resolver(aiohttp.ThreadedResolver):
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return await super().resolve(known_hosts().get(host, host), port, family)


def connector() -> aiohttp.TCPConnector:
    """For an aiohttp session; inside the loop. Names are not cached."""
    return aiohttp.TCPConnector(resolver=_Resolver(), use_dns_cache=False)
