"""The effect of a fault on each packet: a seeded machine, `(now, length) -> Fate`. Pure.

Order is kept: a packet is never due before the previous one, whatever its jitter, unless the fault is `reorder`.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any

from msgspec import Struct

from testbed_runtime.core.faults.kinds import per_direction
from testbed_runtime.core.faults.model import Fault

MAX_QUEUE_S = 0.2
"""Under a ceiling, packets that would wait longer are lost, as in a router with a full buffer; this is what slows TCP down."""


TCP, UDP = 6, 17
_V4_MIN, _V6_SIZE = 20, 40
_PORTS = 4
PERCENT = 100.0


class Impairment(Struct, frozen=True):
    """The effect on packets. Shares are between 0 and 1, times in seconds."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    """± around the latency, uniform."""
    correlation: float = 0.0
    """The correlation between the jitter of a packet and that of the previous packet, from 0 to 1."""
    loss: float = 0.0
    burst: float = 1.0
    """Mean number of packets lost in a row (Gilbert–Elliott: everything is lost in the bad state, nothing in the good one)."""
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 0.0
    """How long a packet that others should overtake is held."""
    corrupt: float = 0.0
    bytes_per_s: float = 0.0
    """The bandwidth limit. 0: no limit."""


def impairment_of(fault: Fault) -> Impairment:
    """Return what a fault does to the packets of one direction."""
    params = per_direction(fault.params)
    ratio = _number(params, "percent") / PERCENT
    match fault.kind:
        case "network.latency":
            return Impairment(
                latency_s=_number(params, "latency_s"),
                jitter_s=_number(params, "jitter_s"),
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
"""The default hold time. Many packets of a busy connection arrive within it."""


def _number(params: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    value = params.get(name)
    return default if value is None else float(value)


class Fate(Struct, frozen=True):
    """The effect on one packet. `at` is when it passes."""

    at: float
    lost: bool = False
    corrupted: bool = False
    duplicated: bool = False
    overtaken: bool = False


class Gilbert:
    """The Gilbert–Elliott model: packets are lost in the bad state. `loss` is the long-run share, `burst` the mean length of a loss."""

    def __init__(self, loss: float, burst: float) -> None:
        self._bad = False
        self._leave_bad = 0.0 if loss >= 1.0 else 1.0 / burst
        self._enter_bad = 1.0 if loss >= 1.0 else min(1.0, loss / (burst * (1.0 - loss)))
        self._loss = loss
        self._random_loss = burst <= 1.0

    def lost(self, random: Random) -> bool:
        draw = random.random()
        if self._random_loss:
            return draw < self._loss
        self._bad = draw >= self._leave_bad if self._bad else draw < self._enter_bad
        return self._bad


class Impairer:
    """The machine of one rule in one direction. Each packet draws the same number of random numbers, so the seed fixes the outcome."""

    def __init__(self, impairment: Impairment, seed: int | str) -> None:
        self.impairment = impairment
        self._random = Random(seed)  # noqa: S311 - reproducible, not secret
        self._gilbert = Gilbert(impairment.loss, impairment.burst)
        self._last_due = 0.0
        self._free_at = 0.0
        self._jitter = 0.0

    def packet(self, now: float, length: int) -> Fate:
        """Decide on a packet. `now` is in seconds and never decreases, `length` in bytes."""
        asked, random = self.impairment, self._random
        lost = asked.loss > 0 and self._gilbert.lost(random)
        duplicated = asked.duplicate > 0 and random.random() < asked.duplicate
        corrupted = asked.corrupt > 0 and random.random() < asked.corrupt
        held = asked.reorder > 0 and random.random() < asked.reorder
        due = now + self._delay()
        if lost:
            return Fate(now, lost=True)
        if held:  # does not move `_last_due`: later packets overtake this one
            return Fate(due + asked.reorder_s, False, corrupted, duplicated, overtaken=True)
        unqueued, due = due, max(due, self._last_due)
        if asked.bytes_per_s:
            begin = max(due, self._free_at)
            if begin - unqueued > MAX_QUEUE_S:
                return Fate(now, lost=True)
            due = self._free_at = begin + length / asked.bytes_per_s
        self._last_due = due
        return Fate(due, False, corrupted, duplicated)

    def _delay(self) -> float:
        asked = self.impairment
        if not asked.jitter_s:
            return asked.latency_s
        fresh = self._random.uniform(-1.0, 1.0)
        self._jitter = asked.correlation * self._jitter + (1.0 - asked.correlation) * fresh
        return max(0.0, asked.latency_s + self._jitter * asked.jitter_s)


def together(fates: Sequence[Fate], now: float) -> Fate:
    """Combine the fates of a packet under several rules: lost when one loses it, delays add up, all damage is kept."""
    return Fate(
        sum((fate.at - now for fate in fates), now),
        lost=any(fate.lost for fate in fates),
        corrupted=any(fate.corrupted for fate in fates),
        duplicated=any(fate.duplicated for fate in fates),
        overtaken=any(fate.overtaken for fate in fates),
    )


class Ends(Struct, frozen=True):
    """Sender and receiver of a packet: addresses as text, and ports (0 for a packet without ports)."""

    source: str
    destination: str
    source_port: int
    destination_port: int

    def has_port(self, ports: Collection[int]) -> bool:
        return self.source_port in ports or self.destination_port in ports


def ends_of(packet: bytes) -> Ends | None:
    """Read addresses and ports from a packet's first bytes; None for a packet that is not IP, is a later fragment, or is too short."""
    if not packet:
        return None
    version = packet[0] >> 4
    if version == 4 and len(packet) >= _V4_MIN:
        offset = (packet[0] & 0x0F) * 4
        if int.from_bytes(packet[6:8], "big") & 0x1FFF:
            return None
        source, destination = (
            socket.inet_ntop(socket.AF_INET, packet[12:16]),
            socket.inet_ntop(socket.AF_INET, packet[16:20]),
        )
        protocol = packet[9]
    elif version == 6 and len(packet) >= _V6_SIZE:
        offset, protocol = _V6_SIZE, packet[6]
        source, destination = (
            socket.inet_ntop(socket.AF_INET6, packet[8:24]),
            socket.inet_ntop(socket.AF_INET6, packet[24:40]),
        )
    else:
        return None
    if protocol not in (TCP, UDP) or len(packet) < offset + _PORTS:
        return Ends(source, destination, 0, 0)
    ports = packet[offset : offset + _PORTS]
    return Ends(source, destination, int.from_bytes(ports[:2], "big"), int.from_bytes(ports[2:], "big"))


def with_flipped_bit(packet: bytes) -> bytes:
    """Flip the lowest bit of the last byte: the TCP or UDP checksum no longer matches, the addresses stay."""
    return packet[:-1] + bytes((packet[-1] ^ 1,)) if packet else packet
