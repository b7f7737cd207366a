"""Who a packet is from and to, read from its first bytes. Pure."""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import dataclass

TCP, UDP = 6, 17
_V4_MIN, _V6_SIZE = 20, 40
_PORTS = 4


@dataclass(frozen=True, slots=True)
class Ends:
    """Addresses as text, ports (0 when there are none)."""

    source: str
    destination: str
    protocol: int
    source_port: int
    destination_port: int

    def has_port(self, ports: Collection[int]) -> bool:
        return self.source_port in ports or self.destination_port in ports


def ends_of(packet: bytes) -> Ends | None:
    """None: not an IP packet, a later fragment, or cut too short."""
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
        return Ends(source, destination, protocol, 0, 0)
    ports = packet[offset : offset + _PORTS]
    return Ends(
        source, destination, protocol, int.from_bytes(ports[:2], "big"), int.from_bytes(ports[2:], "big")
    )


def with_flipped_bit(packet: bytes) -> bytes:
    """The last byte's lowest bit: the checksum of TCP or UDP no longer fits, the addresses do."""
    return packet[:-1] + bytes((packet[-1] ^ 1,)) if packet else packet
