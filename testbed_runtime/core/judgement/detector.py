"""The quality of service of Flink's failure detector: how soon it finds a failure, and how often it is wrong. Pure.

The measures are those of Chen, Toueg and Aguilera ("On the quality of service of failure detectors", 2002): detection time,
mistakes per time (the inverse of the mistake recurrence time), mistake duration, and query accuracy. Here a mistake is a
failover of a TaskManager that is alive. It has two causes:

- A pause (garbage collection, a stopped virtual machine). Its process answers no heartbeat but keeps its connections, so only
  heartbeat.timeout can find it. The detector's last heartbeat is up to one interval old when the pause begins.
- A time in which the TaskManager is unreachable: connections are refused. Each heartbeat in it is a failed call, and
  heartbeat.rpc-failure-threshold consecutive ones are a loss. If the threshold is off, heartbeat.timeout decides as for a pause.

The JobMaster's detector decides: the ResourceManager has one too, but its suspicion fails no task. Lengths are log-normal, given by
median and 99th percentile. Events are independent and rare: at most one at a time for each TaskManager. The time of a call is neglected.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from msgspec import Struct

from testbed_runtime.core.job.heartbeat import RPC_FAILURES_OFF, HeartbeatConfig

DAY_S = 86_400.0
STEPS = 400
"""Phases between a heartbeat and an event that are averaged over."""
_NORMAL = NormalDist()


class Disturbance(Struct, frozen=True, kw_only=True):
    """Harmless events of one TaskManager: their number per day and their log-normal durations."""

    per_day: float
    median_s: float
    p99_s: float

    def longer_than(self, seconds: float) -> float:
        """Return the share of events that last longer than `seconds`, which is above 0."""
        spread = self._spread
        if spread == 0:
            return 1.0 if self.median_s > seconds else 0.0
        return 1 - _NORMAL.cdf(math.log(seconds / self.median_s) / spread)

    def excess(self, seconds: float) -> float:
        """Return the mean time for which events last beyond `seconds`, which is above 0. Shorter events count
        as 0."""
        spread = self._spread
        if spread == 0:
            return max(0.0, self.median_s - seconds)
        cut = math.log(seconds / self.median_s) / spread
        return self.mean_s * _NORMAL.cdf(spread - cut) - seconds * _NORMAL.cdf(-cut)

    @property
    def mean_s(self) -> float:
        return self.median_s * math.exp(self._spread**2 / 2)

    @property
    def _spread(self) -> float:
        return math.log(self.p99_s / self.median_s) / _NORMAL.inv_cdf(0.99)


class Quality(Struct, frozen=True, kw_only=True):
    """The quality of one configuration in one environment."""

    false_failovers_per_day: float
    """Mistakes per day of the whole cluster: λ_M."""
    accuracy: float
    """The probability that a TaskManager that is alive is not suspected at a random time: P_A."""
    mistake_s: float
    """Mean time from a mistake until the TaskManager answers again: T_M."""
    dead_s: float
    """Mean time to find a process that died: its connections are refused."""
    silent_s: float
    """Mean time to find a machine that vanished without closing connections."""


METRICS: dict[str, tuple[str, str, str]] = {
    "detector.false-failovers": ("false_failovers_per_day", "per day", "Failovers per day of TaskManagers that are alive, in the whole cluster."),
    "detector.accuracy": ("accuracy", "ratio", "Probability that a living TaskManager is not suspected at a random time."),
    "detector.dead": ("dead_s", "s", "Mean time to find a TaskManager whose process died."),
    "detector.silent": ("silent_s", "s", "Mean time to find a TaskManager whose machine vanished silently."),
}  # fmt: skip
"""Objective of a study → field of Quality, unit, meaning."""
MORE_IS_BETTER = frozenset({"detector.accuracy"})


def quality(
    config: HeartbeatConfig,
    *,
    task_managers: int,
    pauses: Disturbance | None = None,
    unreachable: Disturbance | None = None,
) -> Quality:
    """Return the quality of a heartbeat configuration in a cluster with these disturbances of each TaskManager."""
    silent = _silence(config)
    refused = _refusal(config)
    mistakes = wrong_s = 0.0
    for event, limits in ((pauses, silent), (unreachable, refused)):
        if event is not None:
            mistakes += event.per_day * sum(event.longer_than(limit) for limit in limits) / len(limits)
            wrong_s += event.per_day * sum(event.excess(limit) for limit in limits) / len(limits)
    return Quality(
        false_failovers_per_day=mistakes * task_managers,
        accuracy=1 - min(1.0, wrong_s / DAY_S),
        mistake_s=wrong_s / mistakes if mistakes else 0.0,
        dead_s=sum(refused) / len(refused),
        silent_s=sum(silent) / len(silent),
    )


def _silence(config: HeartbeatConfig) -> list[float]:
    """Return how long a silence must last to be a loss, for every age of the last heartbeat: timeout − age."""
    return [config.timeout_s - config.interval_s * age for age in _ages()]


def _refusal(config: HeartbeatConfig) -> list[float]:
    """Return how long a TaskManager must be unreachable to be a loss: until the last of the failed calls, or the timeout."""
    silent = _silence(config)
    if config.rpc_failure_threshold == RPC_FAILURES_OFF:
        return silent
    calls = [config.interval_s * (config.rpc_failure_threshold - age) for age in _ages()]
    return [min(pair) for pair in zip(calls, silent, strict=True)]


def _ages() -> list[float]:
    """Return equally likely ages of the last heartbeat when an event begins, in intervals."""
    return [(step + 0.5) / STEPS for step in range(STEPS)]
