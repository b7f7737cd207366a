"""The kernel's state of a TCP connection on Linux: its queues, its windows, its zero-window probes."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable

from testbed_runtime.ports.network import SocketConnection, SocketState

_BACKOFF = 4
_RWND_LIMITED = 176
_SND_WND = 228
_RCV_WND = 232
_LEAST = _RCV_WND + 4
"""Offsets in `struct tcp_info` of linux/tcp.h, which only grows. The last field exists since Linux 6.2."""
_MAX_BYTES = 512


def parse(raw: bytes) -> tuple[int, int, int, float] | None:
    """Return four values of a `tcp_info`: the receive window, the peer's window, the number of zero-window probes since the peer's
    window closed, and the seconds in which it limited the sender. None if the kernel is too old."""
    if len(raw) < _LEAST:
        return None
    receive_window, peer_window = (struct.unpack_from("=I", raw, at)[0] for at in (_RCV_WND, _SND_WND))
    limited = struct.unpack_from("=Q", raw, _RWND_LIMITED)[0] / 1e6
    # the persist timer backs off once for each probe; without a closed window the counter is that of retransmissions
    return receive_window, peer_window, raw[_BACKOFF] if peer_window == 0 else 0, limited


def read(sock: socket.socket, *, reading: bool, writable: bool) -> SocketState | None:
    """Return the state of a connected socket. None if the kernel does not report it."""
    if sys.platform != "linux":
        return None
    import fcntl
    import termios

    try:
        ports = sock.getsockname()[1], sock.getpeername()[1]
        found = parse(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MAX_BYTES))
        queues = [
            int(struct.unpack("i", fcntl.ioctl(sock, request, bytes(4)))[0])
            for request in (termios.FIONREAD, termios.TIOCOUTQ)  # SIOCINQ, SIOCOUTQ
        ]
    except OSError:
        return None
    if found is None:
        return None
    window, peer_window, probes, limited_s = found
    return SocketState(ports, reading, queues[0], window, writable, queues[1], peer_window, probes, limited_s)


def states(ends: Iterable[tuple[str, object]]) -> list[tuple[str, SocketState]]:
    """Return the peer and the socket state of each connection whose socket can be measured."""
    sockets = [(peer, one.socket_state()) for peer, one in ends if isinstance(one, SocketConnection)]
    return [(peer, state) for peer, state in sockets if state is not None]
