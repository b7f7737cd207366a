"""One direction between two processes of the simulated network: its properties, its faults, and when bytes arrive."""

from __future__ import annotations

from random import Random

from msgspec import Struct

LOOPBACK_LATENCY_S = 50e-6
"""One-way latency, about that of loopback TCP between two processes."""


class LinkProfile(Struct, frozen=True):
    """The properties of one direction. Jitter is uniform in ±`jitter_s`; bandwidth 0 means unlimited."""

    latency_s: float = LOOPBACK_LATENCY_S
    jitter_s: float = 0.0
    bandwidth_bytes_per_s: float = 0.0


class Link:
    """The state of one direction between two processes."""

    __slots__ = ("free_at", "gone", "held", "lost", "profile", "refused", "stalled")

    def __init__(self, profile: LinkProfile) -> None:
        self.profile = profile
        self.free_at = 0.0
        self.lost = False
        self.stalled = False
        self.refused = False
        self.gone = False
        self.held = False
        """Whether data is not delivered: it is lost or stalled."""

    def due(self, now: float, size: int, random: Random) -> float:
        """Return when data that is sent now arrives, given the bandwidth, latency and jitter of the profile."""
        profile = self.profile
        start = max(now, self.free_at)
        if profile.bandwidth_bytes_per_s and size:
            start += size / profile.bandwidth_bytes_per_s
            self.free_at = start
        delay = profile.latency_s
        if profile.jitter_s:
            delay = max(0.0, delay + random.uniform(-profile.jitter_s, profile.jitter_s))
        return start + delay
