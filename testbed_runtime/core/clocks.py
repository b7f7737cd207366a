"""Estimate the offset of a process's clock from the recorder's from request round trips, as NTP does. Pure.

The clocks of one machine are equal. Those of several nodes are as close as their NTP keeps them. A request that is sent at
`sent_s` and received at `received_s`, and that the recorder answered at `remote_s`, shows the difference up to half of its
round trip: however unequal the two ways are, the true value is within that range.
"""

from __future__ import annotations

from msgspec import Struct

DIFFERENT_S = 0.005
"""Smaller differences are not recorded, because samples and latency buckets are not more precise than this."""
SHARPER = 0.5
"""A known difference is recorded again if its uncertainty has fallen to this share."""
RECORDED_MAX = 10
"""Limit of recorded differences per process."""


class ClockOffset(Struct, frozen=True):
    """Seconds by which a clock is ahead of the recorder's (negative: behind), and how far the true value can be from that."""

    offset_s: float
    uncertainty_s: float

    @classmethod
    def measured(cls, sent_s: float, remote_s: float, received_s: float) -> ClockOffset:
        return cls((sent_s + received_s) / 2 - remote_s, (received_s - sent_s) / 2)

    @property
    def different(self) -> bool:
        """Whether the clocks certainly differ by more than DIFFERENT_S."""
        return abs(self.offset_s) - self.uncertainty_s > DIFFERENT_S


class ClockComparison:
    """Decides which of the measured offsets of a process are worth a row of the history."""

    def __init__(self) -> None:
        self._recorded: ClockOffset | None = None
        self._left = RECORDED_MAX

    def worth_recording(self, found: ClockOffset) -> bool:
        """Whether this offset is the first one that shows a difference, much more exact than the recorded one, or
        contradicts it (the recorder was replaced on another node)."""
        known = self._recorded
        if known is None:
            new = found.different
        else:
            apart = abs(found.offset_s - known.offset_s) > found.uncertainty_s + known.uncertainty_s
            new = apart or found.uncertainty_s <= known.uncertainty_s * SHARPER
        if not new or not self._left:
            return False
        self._recorded = found
        self._left -= 1
        return True
