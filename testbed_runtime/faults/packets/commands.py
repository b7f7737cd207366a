"""Run the kernel's tools as child processes in this network namespace, and find out what this kernel supports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.vocabulary import PACKET_BACKENDS
from testbed_runtime.faults.packets import netlink, rules
from testbed_runtime.timeouts import timeout

COMMAND_LIMIT_S = 5.0
"""A tool answers in milliseconds, but kube-proxy or a CNI plugin may hold the lock of the tables for a while."""
CAP_NET_ADMIN = 12
PROBE_TABLE = f"{rules.TABLE_PREFIX}probe"
PROBE_DEVICE = "headgate1"
PROBE_CHAIN = "HEADGATE-PROBE"


class Result(Struct, frozen=True):
    code: int
    output: str


class PacketSupport(Struct, frozen=True):
    """The packet backends of this kernel. For each available backend: how it works here. For each other one: why it is not available and how
    to get it."""

    available: Mapping[str, str]
    missing: Mapping[str, str]


async def run(argv: Sequence[str], text: str = "") -> Result:
    """Run a command. Return exit code and output (both streams). Raises HeadgateError when it cannot start or takes too long."""
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise HeadgateError(f"{argv[0]} cannot be started: {error.strerror}") from error
    try:
        async with timeout(COMMAND_LIMIT_S):
            output, _ = await child.communicate(text.encode())
    except TimeoutError:
        raise HeadgateError(f"{argv[0]} took longer than {COMMAND_LIMIT_S:g} s") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    return Result(child.returncode or 0, output.decode(errors="replace").strip())


async def run_checked(argv: Sequence[str], text: str = "") -> str:
    """Run a command and return its output. Raises HeadgateError with the output when it fails."""
    result = await run(argv, text)
    if result.code:
        raise HeadgateError(
            f"`{' '.join(argv)}` failed: {result.output.splitlines()[0] if result.output else f'exit code {result.code}'}"
        )
    return result.output


async def nft(text: str) -> None:
    await run_checked(("nft", "-f", "-"), text)


def has_net_admin() -> bool:
    """Whether this process may change its network namespace."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return os.geteuid() == 0
    return bool(int(line.split()[1], 16) >> CAP_NET_ADMIN & 1)


async def support() -> PacketSupport:
    """Try each backend with real rules, and remove them again."""
    if not has_net_admin():
        why = "this process may not change its network (no NET_ADMIN): run as root, or add the agent container (spec.pods.packetFaults: true)"
        return PacketSupport({}, dict.fromkeys(PACKET_BACKENDS, why))
    available: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name, look in (("netem", _netem), ("nfqueue", _nfqueue), ("nftables", _nftables)):
        how, why = await look()
        if how:
            available[name] = how
        else:
            missing[name] = why
    return PacketSupport(available, missing)


async def _netem() -> tuple[str, str]:
    if shutil.which("tc") is None or shutil.which("ip") is None:
        return "", "tc is missing: install iproute2"
    made = await run(("ip", "link", "add", PROBE_DEVICE, "type", "ifb"))
    if made.code:
        return "", f"this kernel has no ifb device (ip says: {_last(made.output)}); nfqueue serves instead"
    result = await run(("tc", "qdisc", "add", "dev", PROBE_DEVICE, "root", "netem", "delay", "1us"))
    await run(("ip", "link", "del", PROBE_DEVICE))
    if result.code == 0:
        return "tc", ""
    return "", f"this kernel has no sch_netem (tc says: {_last(result.output)}); nfqueue serves instead"


async def _nfqueue() -> tuple[str, str]:
    with contextlib.closing(socket.socket(netlink.FAMILY, socket.SOCK_RAW, netlink.PROTOCOL)) as queue:
        queue.settimeout(1.0)
        queue.send(netlink.bind(rules.QUEUE_NUMBER - 1, 1))
        try:
            result = [m for m in netlink.parse(queue.recv(4096)) if isinstance(m, netlink.Acknowledged)]
        except OSError:
            result = []
    if not result or result[0].error:
        why = os.strerror(result[0].error) if result else "no answer"
        return "", f"this kernel has no nfnetlink_queue ({why}): load the module, or use another node"
    if shutil.which("nft") is not None:
        tried = await run(
            ("nft", "-f", "-"),
            f"table inet {PROBE_TABLE} {{ chain c {{ queue num {rules.QUEUE_NUMBER - 1} bypass; }}; }}\n",
        )
        if tried.code == 0:
            await run(("nft", "delete", "table", "inet", PROBE_TABLE))
            return "nft", ""
    words = ""
    for tool in rules.IPTABLES:
        if shutil.which(tool) is None:
            continue
        works, words = await _iptables_queue(tool)
        if works:
            return tool, ""
    if words:
        return "", f"nft has no `queue` here, and iptables says: {words}"
    return "", f"nft has no `queue` here, and there is none of {', '.join(rules.IPTABLES)}: install iptables"


async def _iptables_queue(tool: str) -> tuple[bool, str]:
    """Return whether the tool accepts a queueing rule in an unused chain, and its output."""
    base = (tool, "-w", str(rules.LOCK_WAIT_S), "-t", rules.IPTABLES_TABLE)
    await run((*base, "-N", PROBE_CHAIN))
    number = str(rules.QUEUE_NUMBER - 1)
    tried = await run((*base, "-A", PROBE_CHAIN, "-j", "NFQUEUE", "--queue-num", number, "--queue-bypass"))
    await run((*base, "-F", PROBE_CHAIN))
    await run((*base, "-X", PROBE_CHAIN))
    return tried.code == 0, _last(tried.output)


async def _nftables() -> tuple[str, str]:
    if shutil.which("nft") is None:
        return "", "nft is missing: install nftables"
    text = f"table inet {PROBE_TABLE} {{ set s {{ type inet_service; flags timeout; }}; chain c {{ tcp dport @s counter drop; }}; }}\n"
    tried = await run(("nft", "-f", "-"), text)
    await run(("nft", "delete", "table", "inet", PROBE_TABLE))
    if tried.code == 0:
        return "nft", ""
    return "", f"this kernel has no nf_tables with sets (nft says: {_last(tried.output)})"


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing"
