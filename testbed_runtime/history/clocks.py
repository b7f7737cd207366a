"""Clock offsets between processes (DESIGN §6). The same boot id means offset 0, exactly: no sample is looked at.

Otherwise the sample with the smallest round trip counts: its midpoint is the offset, half of its round trip the uncertainty.
While a control-plane fault is active the estimate is frozen, since then a round trip measures the fault.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offset:
    """Add `offset_ns` to the peer's times to get ours, give or take `uncertainty_ns`."""

    offset_ns: int
    uncertainty_ns: int


EXACT = Offset(0, 0)


class ClockEstimator:
    """One peer's clock as seen from here."""

    def __init__(self, own_boot_id: str, peer_boot_id: str) -> None:
        self.same_clock = bool(own_boot_id) and own_boot_id == peer_boot_id
        self.frozen = False
        self._best: Offset | None = EXACT if self.same_clock else None

    def freeze(self) -> None:
        """A control-plane fault begins."""
        self.frozen = True

    def thaw(self) -> None:
        """The fault has ended and was seen to have ended."""
        self.frozen = False

    def sample(self, *, sent_ns: int, peer_ns: int, received_ns: int) -> bool:
        """A request left at `sent_ns`, the peer answered at its `peer_ns`, the answer came at `received_ns`.
        True: it is the best so far. Raises ValueError when the answer came before the request."""
        round_trip = received_ns - sent_ns
        if round_trip < 0:
            raise ValueError(f"an answer came {-round_trip} ns before its request")
        if self.same_clock or self.frozen:
            return False
        uncertainty = (round_trip + 1) // 2
        if self._best is not None and uncertainty >= self._best.uncertainty_ns:
            return False
        self._best = Offset(sent_ns + round_trip // 2 - peer_ns, uncertainty)
        return True

    @property
    def offset(self) -> Offset | None:
        """None: the peer's times are not comparable (no sample yet)."""
        return self._best
