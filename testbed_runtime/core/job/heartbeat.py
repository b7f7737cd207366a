"""Heartbeats of one peer: the timeout and the count of failed calls, which lead to one verdict (Flink's
HeartbeatMonitor)."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from testbed_runtime.core.errors import require_option
from testbed_runtime.core.options import Options

RPC_FAILURES_OFF = -1


class HeartbeatConfig(Struct, frozen=True):
    """Times in seconds. `rpc_failure_threshold` is a number of calls; -1 turns it off."""

    interval_s: float
    timeout_s: float
    rpc_failure_threshold: int

    def __post_init__(self) -> None:
        """Raise OptionRefused as Flink's HeartbeatServicesImpl does."""
        text = "The heartbeat interval must be larger than 0."
        require_option(self.interval_s >= 0.001, text, "heartbeat.interval")
        text = "The heartbeat timeout should be larger or equal than the heartbeat interval."
        require_option(
            self.interval_s <= self.timeout_s,
            text,
            "heartbeat.timeout",
            f"make it a few times heartbeat.interval, {self.interval_s:g} s",
        )
        threshold = self.rpc_failure_threshold
        text = "The number of failed heartbeat RPC requests has to be larger than 0 or -1 (deactivated)."
        holds = threshold > 0 or threshold == RPC_FAILURES_OFF
        require_option(holds, text, "heartbeat.rpc-failure-threshold")

    @classmethod
    def of(cls, options: Options) -> HeartbeatConfig:
        return cls(
            interval_s=options.duration("heartbeat.interval"),
            timeout_s=options.duration("heartbeat.timeout"),
            rpc_failure_threshold=options.integer("heartbeat.rpc-failure-threshold"),
        )


class HeartbeatState(Enum):
    """The state of a monitor. It never returns to RUNNING."""

    RUNNING = "RUNNING"
    TIMEOUT = "TIMEOUT"
    UNREACHABLE = "UNREACHABLE"
    CANCELED = "CANCELED"


class HeartbeatMonitor:
    """Any heartbeat (request or answer) resets the timeout; only unreachable recipients count as failed calls."""

    def __init__(self, config: HeartbeatConfig, now: float) -> None:
        self._config = config
        self.state = HeartbeatState.RUNNING
        self.last_seen = now
        self.deadline = now + config.timeout_s
        self.failed_calls = 0

    def on_heartbeat(self, now: float) -> float | None:
        """Count a heartbeat. Return the time of the previous heartbeat if it was long ago: more than half of
        the timeout and 1.5 intervals."""
        if self.state is not HeartbeatState.RUNNING:
            return None
        last, self.last_seen = self.last_seen, now
        self.deadline = now + self._config.timeout_s
        late = max(self._config.timeout_s / 2, 1.5 * self._config.interval_s)
        return last if now - last > late else None

    def on_call_success(self) -> int:
        """Count a call that succeeded. Return the number of calls in a row that had failed before."""
        failed, self.failed_calls = self.failed_calls, 0
        return failed

    def on_unreachable(self) -> bool:
        """Count a call that did not reach the peer. Return True when it crossed the threshold."""
        if self.state is not HeartbeatState.RUNNING or self._config.rpc_failure_threshold == RPC_FAILURES_OFF:
            return False
        self.failed_calls += 1
        if self.failed_calls < self._config.rpc_failure_threshold:
            return False
        self.state = HeartbeatState.UNREACHABLE
        return True

    def on_time(self, now: float) -> bool:
        """Return True, once, when the peer has been silent for the timeout."""
        if self.state is not HeartbeatState.RUNNING or now < self.deadline:
            return False
        self.state = HeartbeatState.TIMEOUT
        return True

    def extend(self, seconds: float) -> None:
        """Extend the deadline by the time in which this process did not run."""
        self.deadline += seconds

    def cancel(self) -> None:
        if self.state is HeartbeatState.RUNNING:
            self.state = HeartbeatState.CANCELED


def timed_out_text(detector: str, role: str, peer: str) -> str:
    """Return Flink's text of a heartbeat timeout. `detector` is JobMaster, ResourceManager or TaskExecutor;
    `role` is the role of the silent peer."""
    if detector == "JobMaster" and role == "TaskManager":
        return f"Heartbeat of TaskManager with id {peer} timed out."
    return f"The heartbeat of {role} with id {peer} timed out."


def unreachable_text(role: str, peer: str) -> str:
    return f"{role} with id {peer} is no longer reachable."


UNREACHABLE_CLASS = {
    "JobMaster": "JobMasterException",
    "ResourceManager": "ResourceManagerException",
    "TaskExecutor": "TaskManagerException",
}
"""The exception for an unreachable peer, by its detector. A timeout is always a TimeoutException."""
