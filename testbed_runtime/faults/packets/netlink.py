"""Encode and decode NFQUEUE's netlink messages. Pure; the caller owns the socket.

It uses only the standard library (`socket`, `struct`). The existing bindings are C extensions without wheels: they
need a compiler and a development package wherever an image is built, for five message types.
Layouts: linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_queue.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

FAMILY = 16
"""AF_NETLINK."""
PROTOCOL = 12
"""NETLINK_NETFILTER."""
SOL_NETLINK = 270
NO_ENOBUFS = 5
SO_RCVBUFFORCE = 33

ACCEPT, DROP = 1, 0
SO_TIMESTAMP = 29
"""A socket option: the kernel then timestamps each packet on arrival and reports the time with queued packets."""
HOOK_INPUT, HOOK_OUTPUT = 1, 3
FLAG_FAIL_OPEN = 1
"""A full queue lets packets pass instead of dropping them."""
FLAG_GSO = 4
"""Segments that the network card would split stay together: faster, but a loss then drops up to 64 KiB at once."""
COPY_HEADERS = 128
"""Bytes of each packet that the kernel copies: an IPv6 header with options, and the ports."""
COPY_ALL = 0xFFFF - 4

_NLMSG = struct.Struct("=IHHII")
_NFGEN = struct.Struct(">BBH")
_ATTR = struct.Struct("=HH")
_VERDICT = struct.Struct(">II")
_PACKET_HEADER = struct.Struct(">IHB")
_TIMESTAMP = struct.Struct(">QQ")
_QUEUE = 3 << 8
_PACKET, _SET_VERDICT, _CONFIG = _QUEUE, _QUEUE | 1, _QUEUE | 2
_ERROR = 2
_REQUEST, _ACK = 1, 4
_CMD, _PARAMS, _MAXLEN, _MASK, _FLAGS = 1, 2, 3, 4, 5
_A_HEADER, _A_VERDICT, _A_TIMESTAMP, _A_PAYLOAD, _A_CAP_LEN = 1, 2, 4, 10, 13
_COPY_PACKET = 2
_TYPE_BITS = 0x3FFF


class QueuedPacket(Struct, frozen=True):
    """A queued packet. `payload` starts at the IP header and may be truncated; `length` is the full length. `arrived_s`: CLOCK_REALTIME, 0 when unknown."""

    id: int
    hook: int
    length: int
    payload: bytes
    arrived_s: float = 0.0


class Acknowledged(Struct, frozen=True):
    """The kernel's answer to a message; `error` is an errno, 0 on success."""

    error: int


def _attr(kind: int, data: bytes) -> bytes:
    size = _ATTR.size + len(data)
    return _ATTR.pack(size, kind) + data + bytes(-size % 4)


def _message(kind: int, queue: int, body: bytes, *, sequence: int = 0, flags: int = _REQUEST) -> bytes:
    size = _NLMSG.size + _NFGEN.size + len(body)
    return _NLMSG.pack(size, kind, flags, sequence, 0) + _NFGEN.pack(0, 0, queue) + body


def bind(queue: int, sequence: int) -> bytes:
    """Bind the queue. The kernel answers EBUSY when another process has it."""
    return _message(
        _CONFIG, queue, _attr(_CMD, struct.pack(">BBH", 1, 0, 0)), sequence=sequence, flags=_REQUEST | _ACK
    )


def configure(queue: int, sequence: int, *, copy: int, max_packets: int, gso: bool) -> bytes:
    """Set how many bytes of each packet are copied, how many packets may wait, and whether segments stay together."""
    flags = FLAG_FAIL_OPEN | (FLAG_GSO if gso else 0)
    body = (
        _attr(_PARAMS, struct.pack(">IB", copy, _COPY_PACKET))
        + _attr(_MAXLEN, struct.pack(">I", max_packets))
        + _attr(_FLAGS, struct.pack(">I", flags))
        + _attr(_MASK, struct.pack(">I", FLAG_FAIL_OPEN | FLAG_GSO))
    )
    return _message(_CONFIG, queue, body, sequence=sequence, flags=_REQUEST | _ACK)


def verdict(queue: int, packet: int, *, accept: bool, payload: bytes | None = None) -> bytes:
    """Decide on a packet; with a payload, it passes changed."""
    body = _attr(_A_VERDICT, _VERDICT.pack(ACCEPT if accept else DROP, packet))
    if payload is not None:
        body += _attr(_A_PAYLOAD, payload)
    return _message(_SET_VERDICT, queue, body)


def parse(data: bytes) -> Iterator[QueuedPacket | Acknowledged]:
    """Return the messages of one datagram; unknown and truncated ones are skipped."""
    at = 0
    while at + _NLMSG.size <= len(data):
        size, kind, _, _, _ = _NLMSG.unpack_from(data, at)
        if size < _NLMSG.size or at + size > len(data):
            return
        body = at + _NLMSG.size
        if kind == _ERROR and size >= _NLMSG.size + 4:
            yield Acknowledged(-struct.unpack_from("=i", data, body)[0])
        elif kind == _PACKET:
            packet = _packet(data, body + _NFGEN.size, at + size)
            if packet is not None:
                yield packet
        at += (size + 3) & ~3


def _packet(data: bytes, at: int, end: int) -> QueuedPacket | None:
    header: tuple[int, int] | None = None
    payload, whole, arrived_s = b"", 0, 0.0
    while at + _ATTR.size <= end:
        size, kind = _ATTR.unpack_from(data, at)
        if size < _ATTR.size or at + size > end:
            break
        value = at + _ATTR.size
        kind &= _TYPE_BITS
        if kind == _A_HEADER and size >= _ATTR.size + _PACKET_HEADER.size:
            number, _, hook = _PACKET_HEADER.unpack_from(data, value)
            header = number, hook
        elif kind == _A_TIMESTAMP and size >= _ATTR.size + _TIMESTAMP.size:
            seconds, micros = _TIMESTAMP.unpack_from(data, value)
            arrived_s = seconds + micros / 1e6
        elif kind == _A_PAYLOAD:
            payload = data[value : at + size]
        elif kind == _A_CAP_LEN:
            (whole,) = struct.unpack_from(">I", data, value)
        at += (size + 3) & ~3
    if header is None:
        return None
    return QueuedPacket(header[0], header[1], whole or len(payload), payload, arrived_s)
