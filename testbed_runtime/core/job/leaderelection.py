"""Leader election by a lease, as Flink's KubernetesLeaderElector does it with fabric8's LeaderElector.

A lease is a record that expires. The leader renews it every retry-period and gives its leadership up when it could not for
renew-deadline; another contender takes the lease over when it was not renewed for lease-duration. Sans-IO: the caller reads
and writes the record.

    CONTENDING --on_written--> LEADING     grantLeadership, with a new leader session id
    LEADING    --expired-----> CONTENDING  revokeLeadership: the process was paused, or the lease could not be written
    LEADING    --attempt: None--> CONTENDING  revokeLeadership: another contender has the lease
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.options import Options

HIGH_AVAILABILITY = "high-availability.type"
LEASE_DURATION = "high-availability.kubernetes.leader-election.lease-duration"
RENEW_DEADLINE = "high-availability.kubernetes.leader-election.renew-deadline"
RETRY_PERIOD = "high-availability.kubernetes.leader-election.retry-period"
KUBERNETES = "kubernetes"
LEASE_KEY = "leader/lease"
"""The Lease in the checkpoint store. All components of a JobManager share it, as in Flink from 1.15 on."""
INFORMATION_KEY = "leader/information"
"""The LeaderInformation in the checkpoint store. In Flink, it is in the same ConfigMap as the lease."""
JITTER_FACTOR = 1.2
"""A contender waits between 1 and 1 + JITTER_FACTOR retry periods; the leader waits one (LeaderElector.jitter)."""
LATE = 0.5
"""Share of renew-deadline after which a renewal is late."""


class LeaderElectionConfig(Struct, frozen=True):
    """Seconds."""

    lease_duration_s: float = 15.0
    renew_deadline_s: float = 15.0
    retry_period_s: float = 5.0

    @classmethod
    def of(cls, options: Options) -> LeaderElectionConfig | None:
        """Return the configuration; None without high availability."""
        if options.string(HIGH_AVAILABILITY) != KUBERNETES:
            return None
        return cls(
            lease_duration_s=options.duration(LEASE_DURATION),
            renew_deadline_s=options.duration(RENEW_DEADLINE),
            retry_period_s=options.duration(RETRY_PERIOD),
        )


class Lease(Struct, frozen=True):
    """The record of the lease (LeaderElectionRecord). Times are seconds of the clock that all processes of a
    testbed share."""

    holder: str
    """Identity of the leader; empty when it was released."""
    acquired_s: float
    renewed_s: float
    transitions: int = 0


class LeaderInformation(Struct, frozen=True):
    """The record that the leader publishes once its services run: its leader session id. Its address does not change."""

    leader: str


class LeaderElector:
    """One contender. Before each attempt, ask `expired`. Then write what `attempt` returns, and call
    `on_written`.

    A renewal counts from its beginning: that time is in the record, and other contenders judge by it."""

    def __init__(self, config: LeaderElectionConfig, identity: str) -> None:
        self.config = config
        self.identity = identity
        self.leading = False
        self.renewed_s = 0.0
        """When the last renewal that succeeded began."""
        self.free_s: float | None = None
        """When the lease of another contender expires."""

    def expired(self, now: float) -> bool:
        """Return True, once, when the leader could not renew its lease for renew-deadline (LeaderElector.renewWithTimeout)."""
        if not self.leading or now - self.renewed_s < self.config.renew_deadline_s:
            return False
        self.leading = False
        return True

    def attempt(self, found: Lease | None, now: float) -> Lease | None:
        """Return the record that replaces the record that was found. None if another contender has the lease,
        which ends this contender's leadership (LeaderElector.tryAcquireOrRenew)."""
        if found is None:
            return Lease(self.identity, now, now)
        if found.holder == self.identity:
            return replace(found, renewed_s=now)
        free_s = found.renewed_s + self.config.lease_duration_s
        if found.holder and free_s > now:
            self.free_s = free_s
            self.leading = False
            return None
        return Lease(self.identity, now, now, found.transitions + 1)

    def on_written(self, lease: Lease) -> float | None:
        """Note that the record was written. Return the time of the previous renewal if more than half of
        renew-deadline has passed since then."""
        before, self.renewed_s = self.renewed_s, lease.renewed_s
        was_leading, self.leading = self.leading, True
        late = was_leading and lease.renewed_s - before > LATE * self.config.renew_deadline_s
        return before if late else None

    def release(self, found: Lease | None, now: float) -> Lease | None:
        """Return the record that frees the lease for the next contender. None if it is not this contender's (LeaderElector.release)."""
        if found is None or found.holder != self.identity:
            return None
        return Lease("", now, now, found.transitions)

    def pause_s(self, chance: float) -> float:
        """Return how long to wait for the next attempt. `chance` is drawn from [0, 1)."""
        period_s = self.config.retry_period_s
        return period_s if self.leading else period_s * (1 + JITTER_FACTOR * chance)


def revoked_text(job: str, why: str) -> str:
    """Return the text with which a job restarts under the next leader (TaskExecutor.JobLeaderListenerImpl, and the reason)."""
    return f"Job leader for job id {job} lost leadership. {why}"
