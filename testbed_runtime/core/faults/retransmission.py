"""Compute when TCP sends again the bytes that a partition has lost, and the handshakes of connections, as
Linux does. Pure.

Measured with real sockets between two network namespaces whose packets were dropped (Linux 6.18): a byte that
is lost at 0 s is sent again after 0.21, 0.42, 0.84, 1.7, 3.4, 6.7, 13.5 s, … Nothing that arrives in the
other direction makes it earlier."""

from __future__ import annotations

FIRST_S = 0.21
"""The minimum retransmission timeout (TCP_RTO_MIN, 200 ms) of a path with a short round trip, plus the
granularity of the timer. A tail-loss probe is sent first, so the same timeout runs twice before it
doubles."""
PROBES = 1
HANDSHAKE_S = 1.0
"""The timeout of a SYN (TCP_TIMEOUT_INIT)."""
EQUAL_HANDSHAKES = 4
"""Number of equal timeouts of a SYN before they double (net.ipv4.tcp_syn_linear_timeouts; 0 before Linux
6.5)."""
MAX_S = 120.0
"""TCP_RTO_MAX."""


def resumes_at(lost: float, ends: float) -> float:
    """Return when bytes arrive that were first sent at `lost`, if nothing passes before `ends`."""
    return _repeated(lost, ends, FIRST_S, PROBES)


def connects_at(began: float, ends: float) -> float:
    """Return when a handshake that began at `began` passes, if nothing passes before `ends`."""
    return _repeated(began, ends, HANDSHAKE_S, EQUAL_HANDSHAKES)


def _repeated(first: float, ends: float, timeout_s: float, equal: int) -> float:
    at, number = first, 0
    while at < ends:
        at += min(timeout_s * 2 ** max(0, number - equal), MAX_S)
        number += 1
    return at
