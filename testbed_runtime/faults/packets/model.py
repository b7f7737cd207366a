"""What a fault does to packets, where, and for how long. Pure, JSON-able.

A packet *engine* runs in each network namespace; a `PacketRule` tells one engine what to do with packets that arrive there (`input`) or
leave it (`output`). Rules hold on the receiving side wherever there is an engine: a sender whose packets wait in a queue on its own side
has at most two in flight (TCP's small-queue limit), so latency would be a ceiling on throughput too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed_runtime.faults.model import Fault

INPUT, OUTPUT = "input", "output"
ECHO_PORT = 6133
"""UDP, of each engine: sends probes back."""
PROBE_PORTS: Mapping[str, int] = {"data": 6134, "rpc": 6135}
"""UDP, where probes of a plane are sent from: a rule for the plane covers it, so a probe goes through exactly that rule."""
PERCENT = 100.0
CUTTING = ("network.partition", "network.half-open")
"""Kinds in which nothing passes."""


@dataclass(frozen=True, slots=True)
class Impairment:
    """What becomes of packets. Shares are in 0 … 1, times in seconds."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    """± around the latency, uniform."""
    correlation: float = 0.0
    """How far a packet's jitter follows the one before."""
    loss: float = 0.0
    burst: float = 1.0
    """Mean number of packets lost in a row (Gilbert–Elliott: everything is lost in the bad state, nothing in the good one)."""
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 0.0
    """How long a packet is held that others are to overtake."""
    corrupt: float = 0.0
    bytes_per_s: float = 0.0
    """0: no ceiling."""


@dataclass(frozen=True, slots=True)
class PacketRule:
    """For one engine. Matches TCP packets of which one end is one of `ports`, and probes of the same planes."""

    rule_id: str
    fault: str
    kind: str
    mechanism: str
    """`nfqueue`, `nftables`, `netem`."""
    for_s: float
    """From its arrival at the engine; the engine's clock holds it from then on."""
    hook: str = INPUT
    peers: tuple[str, ...] = ()
    """Addresses of the other ends; empty: everybody."""
    ports: tuple[int, ...] = ()
    probe_ports: tuple[int, ...] = ()
    impairment: Impairment = field(default_factory=Impairment)
    seed: int = 1


def impairment_of(fault: Fault) -> Impairment:
    """Of one direction: a round trip's latency is laid half on each."""
    params = fault.params
    share = 0.5 if params.get("mode", "one-way") == "round-trip" else 1.0
    ratio = _number(params, "percent") / PERCENT
    match fault.kind:
        case "network.latency":
            return Impairment(
                latency_s=_number(params, "latency_s") * share,
                jitter_s=_number(params, "jitter_s") * share,
                correlation=_number(params, "correlation") / PERCENT,
            )
        case "network.loss":
            return Impairment(loss=ratio, burst=max(1.0, _number(params, "burst", 1.0)))
        case "network.duplicate":
            return Impairment(duplicate=ratio)
        case "network.reorder":
            return Impairment(reorder=ratio, reorder_s=_number(params, "delay_s", REORDER_S))
        case "network.corrupt":
            return Impairment(corrupt=ratio)
        case "network.bandwidth":
            return Impairment(bytes_per_s=_number(params, "bytes_per_s"))
    return Impairment()


REORDER_S = 0.01
"""Without a `delay_s`: many packets of a busy connection come in this time."""


def _number(params: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    value = params.get(name)
    return default if value is None else float(value)
