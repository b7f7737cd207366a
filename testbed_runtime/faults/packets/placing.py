"""The rules of one engine: effect, packets and duration; which rules cannot be combined; what a probe must see. Pure.

A packet *engine* runs in each network namespace. A `PacketRule` applies to packets that arrive there (`input`) or leave it (`output`).
Latency and loss are held where packets arrive (`faults.fanout` splits a fault so): a sender whose packets wait on its own side has at
most two in flight (TCP's small-queue limit), so a latency there would limit the throughput too.

Rules that match the same packets are combined in the queue: delays add up, each rule loses and damages packets independently, and
the lowest bandwidth limit wins.
Under a partition or a half-open connection no packet passes that another fault could change, and netem carries one fault per device:
those overlaps are refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.faults.links import ANYBODY, flows_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.backend import FaultRequest, planes_of
from testbed_runtime.faults.packets.machine import Impairment, impairment_of

INPUT, OUTPUT = "input", "output"
ECHO_PORT = 6133
"""The UDP port of each engine's echo, which returns probes."""
PROBE_PORTS: Mapping[str, int] = {"data": 6134, "rpc": 6135}
"""The UDP source port of a plane's probes. A rule for the plane covers it, so probes pass through exactly that rule."""


class PacketRule(Struct, frozen=True):
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
    """Raise UserError with both faults' names when a new rule cannot be combined with an active one."""
    for old in active:
        if not touch(new, old):
            continue
        if "nftables" in (old.backend, new.backend):
            why = "no packet passes under one of them, so the effect of the other cannot be measured"
        elif "netem" in (old.backend, new.backend):
            why = "netem carries one fault on a network device"
        else:
            continue
        problem = f"{new.fault} ({new.kind}) and {old.fault} ({old.kind}) overlap on the same packets: {why}"
        hint = "let one end before the other begins, or choose other targets or another plane"
        raise UserError("faults", problem, hint)


def touch(one: PacketRule, other: PacketRule) -> bool:
    """Whether a packet can match both."""
    if one.hook != other.hook:
        return False
    ports = {*one.ports, *one.probe_ports} & {*other.ports, *other.probe_ports}
    peers = not one.peers or not other.peers or set(one.peers) & set(other.peers)
    return bool(ports) and bool(peers)


class Surroundings(Struct, frozen=True):
    """The processes around an engine: `ports` has the TCP ports of each plane (`data`, `rpc`), `echoes` those that answer probes."""

    own: str
    echoes: tuple[str, ...]
    ports: Mapping[str, tuple[int, ...]]


def peers_of(fault: Fault, targets: Sequence[str], own: str) -> dict[str, tuple[str, ...]]:
    """Return the other ends by hook; () is every process. Raises HeadgateError when the fault does not concern this engine."""
    direction = "both" if fault.kind == "network.half-open" else fault.direction
    found: dict[str, dict[str, None]] = {}
    for source, destination in flows_of(targets, direction):
        if destination == own:
            found.setdefault(INPUT, {})[source] = None
        elif source == own:
            found.setdefault(OUTPUT, {})[destination] = None
    if not found:
        raise HeadgateError(
            f"{fault.name}: nothing of it arrives at or leaves {own}; ask the agent of its target"
        )
    return {hook: () if ANYBODY in peers else tuple(sorted(peers)) for hook, peers in found.items()}


def rules_of(
    request: FaultRequest,
    peers: Mapping[str, tuple[str, ...]],
    surroundings: Surroundings,
    *,
    backend: str,
    for_s: float,
) -> list[PacketRule]:
    """Return one rule for each hook, over all planes. `peers` are addresses by hook (`peers_of`, resolved)."""
    fault, planes = request.fault, planes_of(request.fault)
    return [
        PacketRule(
            rule_id=request.rule_id,
            fault=fault.name,
            kind=fault.kind,
            backend=backend,
            for_s=for_s,
            hook=hook,
            peers=addresses,
            ports=tuple(sorted({port for plane in planes for port in surroundings.ports[plane]})),
            probe_ports=tuple(PROBE_PORTS[plane] for plane in planes),
            impairment=impairment_of(fault),
            seed=request.seed * 1_000_003 + zlib.crc32(surroundings.own.encode()),
        )
        for hook, addresses in sorted(peers.items())
    ]


class ProbePath(Struct, frozen=True):
    """A path from this engine to another's echo. `forward`, `backward`: whether this engine's rules affect probes in that direction."""

    prober: str
    echo: str
    plane: str
    forward: bool
    backward: bool

    @property
    def name(self) -> str:
        return f"{self.prober}->{self.echo}/{self.plane}"


def probe_paths(
    fault: Fault, peers: Mapping[str, tuple[str, ...]], surroundings: Surroundings, hit: Sequence[str]
) -> list[ProbePath]:
    """Return a path on each plane to one peer that the fault concerns, preferably one that is not `hit` itself."""
    named = [n for names in peers.values() for n in names]
    able = [
        n
        for n in surroundings.echoes
        if n != surroundings.own and (not named or n in named or () in peers.values())
    ]
    chosen = next((n for n in able if n not in hit), able[0] if able else "")
    if not chosen:
        return []

    def meets(hook: str) -> bool:
        return hook in peers and (not peers[hook] or chosen in peers[hook])

    return [
        ProbePath(surroundings.own, chosen, plane, meets(OUTPUT), meets(INPUT)) for plane in planes_of(fault)
    ]
