"""What one engine does to packets, on which of them and for how long; and which rules cannot hold together. Pure.

A packet *engine* runs in each network namespace. A `PacketRule` applies to packets that arrive there (`input`) or leave it (`output`).
Rules apply on the receiving side wherever an engine runs: a sender whose packets wait in a queue on its own side has at most two in
flight (TCP's small-queue limit), so latency would also limit throughput.

Rules that meet on the same packets are composed in the queue: delays add up, each loses and damages independently, the lowest ceiling wins.
Under a partition or a half-open connection no packet passes that another fault could change, and netem carries one fault per device:
those overlaps are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.packets.machine import Impairment

INPUT, OUTPUT = "input", "output"
ECHO_PORT = 6133
"""The UDP port of each engine's echo, which returns probes."""
PROBE_PORTS: Mapping[str, int] = {"data": 6134, "rpc": 6135}
"""The UDP source port of a plane's probes. A rule for the plane covers it, so probes pass through exactly that rule."""


@dataclass(frozen=True, slots=True)
class PacketRule:
    """A rule of one engine. It matches TCP packets with one of `ports` at either end, and probes of the same planes."""

    rule_id: str
    fault: str
    kind: str
    backend: str
    """`nfqueue`, `nftables` or `netem`."""
    for_s: float
    """Duration from the rule's arrival at the engine, by the engine's clock."""
    hook: str = INPUT
    peers: tuple[str, ...] = ()
    """Addresses of the other ends; empty: every process."""
    ports: tuple[int, ...] = ()
    probe_ports: tuple[int, ...] = ()
    impairment: Impairment = field(default_factory=Impairment)
    seed: int = 1


def check_overlap(new: PacketRule, active: Iterable[PacketRule]) -> None:
    """Raise UserError with both faults' names when a new rule cannot hold together with an active one."""
    for old in active:
        if not touch(new, old):
            continue
        if "nftables" in (old.backend, new.backend):
            why = "no packet passes under one of them, so the effect of the other cannot be measured"
        elif "netem" in (old.backend, new.backend):
            why = "netem carries one fault on a network device"
        else:
            continue
        raise UserError(
            "faults",
            f"{new.fault} ({new.kind}) and {old.fault} ({old.kind}) overlap on the same packets: {why}",
            "let one end before the other begins, or choose other targets or another plane",
        )


def touch(one: PacketRule, other: PacketRule) -> bool:
    """Whether a packet can match both."""
    if one.hook != other.hook:
        return False
    ports = {*one.ports, *one.probe_ports} & {*other.ports, *other.probe_ports}
    peers = not one.peers or not other.peers or set(one.peers) & set(other.peers)
    return bool(ports) and bool(peers)
