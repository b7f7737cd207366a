"""How long a fault may last: until an absolute deadline and, inside a run, as long as the runner renews its lease.

The supervisor next to the process (and in-process backends) hold the lease, not the client that requested the fault.

    ACTIVE --heal--> HEALED        ended on request
    ACTIVE --poll--> EXPIRED       the absolute deadline passed: the ordinary end
    ACTIVE --poll--> LAPSED        not renewed for `lease_s`: the trial is void
"""

from __future__ import annotations

import enum

LEASE_S = 10.0
"""Seconds without renewal after which a fault of a run ends."""
RENEW_EVERY_S = 3.0
"""How often a runner renews: three chances within a lease."""


class LeaseState(enum.Enum):
    ACTIVE = "active"
    HEALED = "healed"
    EXPIRED = "expired"
    LAPSED = "lapsed"


class Lease:
    """One fault's deadline and lease. Times are the holder's loop time in seconds; `now` never goes back."""

    __slots__ = ("deadline", "lease_s", "renewed_at", "state")

    def __init__(self, *, now: float, deadline: float, lease_s: float | None = None) -> None:
        """`deadline` is absolute. Without `lease_s` the fault is stand-alone, and only its deadline ends it."""
        if lease_s is not None and lease_s <= 0:
            raise ValueError(f"lease_s must be more than 0, got {lease_s}")
        self.deadline = deadline
        self.lease_s = lease_s
        self.renewed_at = now
        self.state = LeaseState.ACTIVE

    @property
    def active(self) -> bool:
        return self.state is LeaseState.ACTIVE

    @property
    def next_time(self) -> float | None:
        """When to poll next; None once the fault has ended."""
        if not self.active:
            return None
        return self.deadline if self.lease_s is None else min(self.deadline, self.renewed_at + self.lease_s)

    def poll(self, now: float) -> LeaseState:
        """Return the state at `now`. The deadline is checked first: a fault that lasted its full time did not lapse."""
        if not self.active:
            return self.state
        lapse_at = None if self.lease_s is None else self.renewed_at + self.lease_s
        if now >= self.deadline and (lapse_at is None or self.deadline <= lapse_at):
            self.state = LeaseState.EXPIRED
        elif lapse_at is not None and now >= lapse_at:
            self.state = LeaseState.LAPSED
        return self.state

    def renew(self, now: float) -> bool:
        """Renew the lease. Return False if the fault has ended: a late renewal does not bring it back."""
        if self.poll(now) is not LeaseState.ACTIVE:
            return False
        self.renewed_at = now
        return True

    def heal(self, now: float) -> LeaseState:
        """End the fault now. Does nothing if it has already ended: the first reason stays."""
        if self.poll(now) is LeaseState.ACTIVE:
            self.state = LeaseState.HEALED
        return self.state
