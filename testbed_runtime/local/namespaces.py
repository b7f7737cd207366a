"""Networks on this machine for a testbed with packet faults: a network namespace and an address for each process, joined by a bridge.

Needs root. Every name contains the id of the process that created it, so that a later process can remove what a killed one left
behind (`sweep`). The addresses are private and not reachable from outside this machine.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from testbed_runtime.core.errors import HeadgateError

COMMAND_LIMIT_S = 10.0
"""`ip` answers in milliseconds."""
NETWORKS = tuple(f"10.{second}" for second in range(213, 245))
"""Candidates for the first two bytes of a network's addresses: rarely used, and checked before one is chosen."""
PREFIX_LENGTH = 24
MAX_MEMBERS = 99
DEVICE = "eth0"
_NAME = re.compile(r"^hg(\d+)x[0-9a-f]{2}(-|$)")
_BRIDGE = re.compile(r"^hgb(\d+)x[0-9a-f]{2}$")


class Member(Struct, frozen=True):
    """The network of one process: `namespace` for `ip netns exec`, and its numeric `address`."""

    name: str
    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """Prefix for a command line so that it runs in this network, with the same process id."""
        return ("ip", "netns", "exec", self.namespace)


class LocalNetwork(Struct, frozen=True):
    """`gateway` is this machine's own address on the bridge, for processes that faults never target (recorder, proxy, runner)."""

    id: str
    gateway: str
    members: dict[str, Member]


def why_not() -> str:
    """Return why such networks cannot be created here and how to fix it; empty if they can."""
    if os.geteuid() != 0:
        return "packet faults on one machine need a network namespace for each TaskManager, which only root can create: run it as root (sudo headgate run …)"
    if shutil.which("ip") is None:
        return "packet faults on one machine need `ip` of iproute2: install iproute2"
    ends = [f"hgp{os.getpid()}{end}" for end in "ab"]
    if _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1]):
        return "packet faults on one machine need veth devices, which this kernel or container does not allow: run it on another machine, or with --on kubernetes"
    _ip("link", "del", ends[0])
    return ""


def create(names: Sequence[str]) -> LocalNetwork:
    """Create a bridge and a namespace for each name. Raises HeadgateError, and then leaves nothing behind."""
    sweep()
    if len(names) > MAX_MEMBERS:
        raise HeadgateError(
            f"{len(names)} processes do not fit into one local network, which has {MAX_MEMBERS} addresses"
        )
    unique = f"{os.getpid()}x{secrets.token_hex(1)}"
    base = _free_base()
    members = {
        name: Member(name, f"hg{unique}-{name}", f"{base}.{number}") for number, name in enumerate(names, 10)
    }
    network = LocalNetwork(unique, f"{base}.1", members)
    try:
        _bring_up(network)
    except BaseException:
        remove(network.id)
        raise
    return network


def _bring_up(network: LocalNetwork) -> None:
    bridge = f"hgb{network.id}"
    _must("link", "add", bridge, "type", "bridge")
    _must("addr", "add", f"{network.gateway}/{PREFIX_LENGTH}", "dev", bridge)
    _must("link", "set", bridge, "up")
    for number, member in enumerate(network.members.values()):
        outside = f"hv{network.id}{number}"
        _must("netns", "add", member.namespace)
        _must("link", "add", outside, "type", "veth", "peer", "name", DEVICE, "netns", member.namespace)
        _must("link", "set", outside, "master", bridge, "up")
        inside = ("-n", member.namespace)
        _must(*inside, "addr", "add", f"{member.address}/{PREFIX_LENGTH}", "dev", DEVICE)
        _must(*inside, "link", "set", "lo", "up")
        _must(*inside, "link", "set", DEVICE, "up")
        _must(*inside, "route", "add", "default", "via", network.gateway)


def remove(network_id: str) -> None:
    """Remove the namespaces, with their devices and packet rules, and the bridge. Idempotent; never raises."""
    for name in _namespaces():
        if name.startswith(f"hg{network_id}-"):
            _ip("netns", "del", name)
    _ip("link", "del", f"hgb{network_id}")


def left_behind() -> list[str]:
    """Return the ids of networks whose owner is gone."""
    found: dict[str, None] = {}
    for name in (*_namespaces(), *_bridges()):
        owner = _NAME.match(name) or _BRIDGE.match(name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            found[name.removeprefix("hgb").removeprefix("hg").partition("-")[0]] = None
    return list(found)


def sweep() -> list[str]:
    """Remove the networks that killed runners left behind and return their ids. Without root there cannot be any."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return []
    orphaned = left_behind()
    for network_id in orphaned:
        remove(network_id)
    return orphaned


# ---- inside


def _free_base() -> str:
    taken = _run_ip("-j", "addr").stdout + _run_ip("-j", "route").stdout
    for half in NETWORKS:
        for third in (os.getpid() % 256, (os.getpid() + 1) % 256):
            base = f"{half}.{third}"
            if f'"{base}.' not in taken and f'"{half}.0.0/16' not in taken:
                return base
    raise HeadgateError(
        f"no private network is free for the testbed: all of {NETWORKS[0]}.0.0/16 to {NETWORKS[-1]}.0.0/16 are in use"
    )


def _namespaces() -> list[str]:
    folder = Path("/run/netns")
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def _bridges() -> list[str]:
    return [str(link.get("ifname", "")) for link in json.loads(_run_ip("-j", "link").stdout or "[]")]


def _must(*arguments: str) -> None:
    problem = _ip(*arguments)
    if problem:
        raise HeadgateError(
            f"the testbed's network could not be created: `ip {' '.join(arguments)}`: {problem}"
        )


def _ip(*arguments: str) -> str:
    """Run `ip`. Return what went wrong; empty if nothing did."""
    try:
        done = _run_ip(*arguments)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")


def _run_ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the system's own tool
        ["ip", *arguments],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
