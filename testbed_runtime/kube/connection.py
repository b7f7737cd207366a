"""Log in to an API server: the `kubernetes` package's asyncio configuration, and an aiohttp session made from it."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp
import yaml
from msgspec import Struct

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.timeouts import timeout

CONNECTIONS = 100
"""Open connections of one login. Further requests wait, so one busy caller cannot open thousands."""
MAX_LINE_BYTES = 8 * 1024 * 1024
"""One watch event. etcd stores at most 1.5 MiB for an object."""
CLOSING_LIMIT_S = 2.0
"""How long a session that ends waits until its connections are closed."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_UNREADABLE = (yaml.YAMLError, AttributeError, KeyError, TypeError)
"""Errors of `load_kube_config` for a file that is not YAML, or YAML of another shape."""


class LoginFailed(HeadgateError):
    """No usable kubeconfig was found, and this process does not run inside a cluster."""


class Login(Struct, frozen=True):
    """An API server and the credentials for it. `namespace` is the context's or the pod's own."""

    server: str
    namespace: str
    configuration: Any
    """A `kubernetes.aio.client.Configuration`."""
    renew: Callable[[], Awaitable[None]] | None = None
    """Read the credentials again, for example from an exec plugin. Service account tokens renew themselves."""

    @asynccontextmanager
    async def session(self, *, connections: int) -> AsyncIterator[aiohttp.ClientSession]:
        """Yield a session with this login's certificates and proxy."""
        from kubernetes.aio.client.rest import RESTClientObject

        settings = self.configuration
        opened: WeakSet[socket.socket] = WeakSet()

        def open_socket(address: Any) -> socket.socket:
            made = socket.socket(*address[:3])
            opened.add(made)
            return made

        try:
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=connections, ssl=RESTClientObject(settings).ssl_context, socket_factory=open_socket
                ),
                proxy=settings.proxy,
                trust_env=not is_direct(self.server),  # HTTPS_PROXY and NO_PROXY
                headers={"User-Agent": "headgate"},
                read_bufsize=MAX_LINE_BYTES // 2,  # aiohttp accepts lines of twice this size
            ) as session:
                yield session
        finally:
            await _closed(opened)

    async def headers(self) -> dict[str, str]:
        """Return the request headers that carry the token, if there is one."""
        found = (await self.configuration.auth_settings()).values()
        return {setting["key"]: setting["value"] for setting in found if setting["value"]}


async def login(*, kubeconfig: str = "", context: str = "", namespace: str = "") -> Login:
    """Use the given kubeconfig, else `KUBECONFIG`, else the service account in a pod, else `~/.kube/config`.

    Raises LoginFailed."""
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    settings = Configuration()
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "")
    if not chosen and not context and os.environ.get("KUBERNETES_SERVICE_HOST"):
        try:
            config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise LoginFailed(f"the service account of this pod: {error}") from error
        return Login(settings.host, namespace or _pod_namespace() or "default", settings)
    where = chosen or "~/.kube/config"
    try:
        if not _is_file(where):
            raise LoginFailed(f"{where}: no such file (set KUBECONFIG, or pass --kubeconfig and --context)")
        loader = await config.load_kube_config(where, context or None, settings)  # type: ignore[no-untyped-call]
        found = loader.current_context["context"].get("namespace", "")
    except _UNREADABLE as error:
        raise LoginFailed(
            f"{where}: is empty or not a kubeconfig (check KUBECONFIG and --kubeconfig)"
        ) from error
    except (config.ConfigException, OSError, ValueError) as error:
        raise LoginFailed(f"{where}: {error} (check KUBECONFIG, --kubeconfig and --context)") from error
    return Login(
        settings.host, namespace or found or "default", settings, lambda: loader.load_and_set(settings)
    )


def is_direct(server: str) -> bool:
    """Return whether the address of a server is in one of the networks of NO_PROXY, such as `10.0.0.0/8`. Like kubectl, and unlike Python's
    own rules, which compare names only."""
    try:
        address = ipaddress.ip_address(urlsplit(server).hostname or "")
    except ValueError:
        return False
    return any(address in network for network in _networks(getproxies().get("no", "")))


def proxy_hint(server: str) -> str:
    """Return how a server is reached, for the message that it was not: empty if it is reached directly. The proxy's address may have a
    password, so it is not shown."""
    url = urlsplit(server)
    if is_direct(server) or url.scheme not in getproxies() or proxy_bypass(url.hostname or ""):
        return ""
    variable = f"{url.scheme.upper()}_PROXY"
    return f" through {variable} (add {url.hostname} to NO_PROXY to reach it directly)"


def _networks(listed: str) -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    for part in listed.split(","):
        try:
            yield ipaddress.ip_network(part.strip(), strict=False)
        except ValueError:
            continue  # a name


async def _closed(sockets: WeakSet[socket.socket]) -> None:
    """Wait until the sockets are closed. The session does not wait for a TLS connection that was closed before it, such as a watch's, and
    the event loop may end before the server has answered."""
    with suppress(TimeoutError):
        async with timeout(CLOSING_LIMIT_S):
            while any(one.fileno() >= 0 for one in sockets):  # noqa: ASYNC110 - a socket does not tell when it is closed
                await asyncio.sleep(0.01)


def _pod_namespace() -> str:
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else ""


def _is_file(where: str) -> bool:
    """Return whether one of the paths in `where` (as in KUBECONFIG) is a file."""
    return any(Path(part).expanduser().is_file() for part in where.split(os.pathsep))
