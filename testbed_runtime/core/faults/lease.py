"""How long a fault may last: until an absolute deadline and, inside a run, as long as the runner renews its lease.

The supervisor next to the process (and in-process backends) hold the lease, not the client that requested the fault.

    ACTIVE --heal--> HEALED        ended on request
    ACTIVE --poll--> EXPIRED       the absolute deadline passed: the ordinary end
    ACTIVE --poll--> LAPSED        not renewed for `lease_s`: the trial is void
"""

from __future__ import annotations

import enum

from msgspec import Struct

LEASE_S = 10.0
"""Seconds without renewal after which a fault of a run ends."""
RENEW_EVERY_S = 3.0
"""How often a runner renews: three chances within a lease."""
MAX_FAULTS = 256
"""Maximum number of faults in one table. More is a bug in the caller, not a scenario."""


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


class Ended(Struct, frozen=True):
    """A fault whose backend must remove it now."""

    fault_id: str
    state: LeaseState


class LeaseTable:
    """The leases of one holder, in the order of injection."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, fault_id: str, *, now: float, deadline: float, lease_s: float | None = None) -> Lease:
        """Add a lease. Raises ValueError if the id is already active or the table is full."""
        if fault_id in self._leases:
            raise ValueError(f"fault {fault_id} is active already")
        if len(self._leases) >= MAX_FAULTS:
            raise ValueError(f"{MAX_FAULTS} faults are active already: heal some of them first")
        lease = Lease(now=now, deadline=deadline, lease_s=lease_s)
        self._leases[fault_id] = lease
        return lease

    def renew(self, fault_id: str, now: float) -> bool:
        lease = self._leases.get(fault_id)
        return lease is not None and lease.renew(now)

    def heal(self, fault_id: str, now: float) -> Ended | None:
        """End a fault and return it, for the caller to remove it. None if the fault does not exist (any
        more)."""
        lease = self._leases.pop(fault_id, None)
        return None if lease is None else Ended(fault_id, lease.heal(now))

    def heal_all(self, now: float) -> list[Ended]:
        """End every fault, the newest first."""
        return [ended for fault_id in reversed(list(self._leases)) if (ended := self.heal(fault_id, now))]

    def due(self, now: float) -> list[Ended]:
        """Remove and return the faults that expired or lapsed by `now`."""
        ended = [
            Ended(f, lease.state)
            for f, lease in self._leases.items()
            if lease.poll(now) is not LeaseState.ACTIVE
        ]
        for item in ended:
            del self._leases[item.fault_id]
        return ended

    @property
    def active(self) -> list[str]:
        return list(self._leases)

    @property
    def next_time(self) -> float | None:
        times = [lease.next_time for lease in self._leases.values() if lease.next_time is not None]
        return min(times, default=None)
