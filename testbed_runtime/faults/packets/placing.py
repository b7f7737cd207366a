"""The rules that one engine holds for a fault, and what a probe from it must then see. Pure.

Each engine holds what concerns its own network namespace: what comes `to` its process on arrival, what goes `from` it on leaving. Who asks
splits a fault so that latency and loss are held where packets arrive (`faults.fanout`): a sender whose packets wait on its own side has at
most two in flight (TCP's small-queue limit), so a latency there would be a ceiling on throughput too.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.links import ANYBODY, flows_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.backend import planes_of
from testbed_runtime.faults.packets.machine import impairment_of
from testbed_runtime.faults.packets.model import INPUT, OUTPUT, PROBE_PORTS, PacketRule


@dataclass(frozen=True, slots=True)
class Surroundings:
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
    fault: Fault,
    peers: Mapping[str, tuple[str, ...]],
    surroundings: Surroundings,
    *,
    backend: str,
    rule_id: str,
    for_s: float,
    seed: int,
) -> list[PacketRule]:
    """Return one rule for each hook, over all planes. `peers` are addresses by hook (`peers_of`, resolved)."""
    planes = planes_of(fault)
    return [
        PacketRule(
            rule_id=rule_id,
            fault=fault.name,
            kind=fault.kind,
            backend=backend,
            for_s=for_s,
            hook=hook,
            peers=addresses,
            ports=tuple(sorted({port for plane in planes for port in surroundings.ports[plane]})),
            probe_ports=tuple(PROBE_PORTS[plane] for plane in planes),
            impairment=impairment_of(fault),
            seed=seed * 1_000_003 + zlib.crc32(surroundings.own.encode()),
        )
        for hook, addresses in sorted(peers.items())
    ]


@dataclass(frozen=True, slots=True)
class ProbePath:
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
