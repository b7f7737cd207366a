"""The host's side of the only link to the node: a pair of interfaces, which disappears with the node."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from typing import Any

from . import settings
from .command import run
from .settings import ClusterError


def refuse_conflict() -> None:
    """Raise ClusterError if this machine already routes the link's addresses elsewhere."""
    routes = json.loads(_ip("-json", "-4", "route", "show", "table", "all") or "[]")
    if (taken := conflict(routes)) is not None:
        raise ClusterError(
            f"the route {taken} of this machine covers {settings.NODE_ADDRESS}, the address of the cluster's node: "
            f"change HOST_ADDRESS and NODE_ADDRESS in tools/cluster/settings.py"
        )


def conflict(routes: list[dict[str, Any]]) -> str | None:
    """Return the first route, except the default and this link's own, that covers the node's address."""
    node = ipaddress.ip_address(settings.NODE_ADDRESS)
    for route in routes:
        aim = route.get("dst", "default")
        if (
            aim != "default"
            and route.get("dev") != settings.HOST_LINK
            and node in ipaddress.ip_network(aim, strict=False)
        ):
            return str(aim)
    return None


def hand_over(pid: int) -> None:
    """Create the pair of interfaces, with one end in the network namespace of process `pid`."""
    address = f"{settings.HOST_ADDRESS}/{settings.LINK_PREFIX}"
    pair = f"link add {settings.HOST_LINK} type veth peer name {settings.NODE_LINK} netns {pid}"
    _ip(*pair.split())
    _ip("address", "add", address, "dev", settings.HOST_LINK)
    _ip("link", "set", settings.HOST_LINK, "up")


def remove() -> None:
    """Remove the link if it exists. The kernel would remove it too, a moment later."""
    subprocess.run(["ip", "link", "delete", settings.HOST_LINK], capture_output=True, check=False)


def _ip(*arguments: str) -> str:
    return run(["ip", *arguments])
