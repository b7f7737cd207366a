"""How long a job may take until all its tasks run, from the budgets of its options and the faults before its submission."""

from __future__ import annotations

from msgspec import Struct

from testbed_runtime.core.exchange.backoff import remote_backoff
from testbed_runtime.core.job.results import BLOCKING
from testbed_runtime.core.judgement.quantities import seconds
from testbed_runtime.core.options import Options
from testbed_runtime.core.trial.plan import TrialPlan

BASE_S = 60.0
"""Limit for a job without faults on an idle machine: processes, imports and the first schedule."""
MOST_S = 7200.0
"""Limit of the limit. A job that needs longer to start than any trial lasts is an error."""
RETRIGGERS_MAX = 1_000
MESSAGES_PER_TASK = 4
"""Messages that the JobMaster handles for each task until it runs: the deployment, its answer, and the reports INITIALIZING
and RUNNING."""


class StartLimit(Struct, frozen=True):
    """The limit, and its parts in words."""

    seconds: float
    parts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.seconds:g} s" + (f" ({', '.join(self.parts)})" if self.parts else "")


def start_limit(plan: TrialPlan) -> StartLimit:
    """Return the limit of a trial. A fault before the submission delays the job by its duration, and then by one more
    deployment: the one that was under way when it ended may spend its whole budget first."""
    options = Options(dict(plan.testbed.configuration), flink_version=plan.testbed.flink_version)
    tasks = sum(v.parallelism for v in plan.testbed.job.vertices)
    service = tasks * (
        MESSAGES_PER_TASK * options.duration("headgate.jobmanager.service-time")
        + options.duration("headgate.taskmanager.service-time")
    )
    parts = [("service time of the deployments", service)]
    if any(edge.result == BLOCKING for edge in plan.testbed.job.edges):
        sources = [v.source for v in plan.testbed.job.vertices if v.source is not None]
        parts.append(("blocking results", max(s.limit / s.records_per_second for s in sources)))
    early = [f.at_s + f.duration_s for f in plan.faults if f.before_submit]
    if early:
        parts += [
            ("faults before the submission", max(early)),
            (options.name_of("pekko.ask.timeout"), options.duration("pekko.ask.timeout")),
            ("partition requests", partition_budget_s(options)),
            ("slot.request.timeout", options.duration("slot.request.timeout")),
            ("restart delay", _restart_delay_s(options)),
        ]
    known = [(name, limit) for name, limit in parts if limit > 0]
    total = min(MOST_S, BASE_S + sum(limit for _, limit in known))
    words = tuple(f"{name} {seconds(limit)}" for name, limit in known)
    return StartLimit(round(total, 3), ("base " + f"{BASE_S:g} s", *words) if words else ())


def partition_budget_s(options: Options) -> float:
    """Return how long a consumer waits for a partition before it fails."""
    backoff, total = remote_backoff(options), 0.0
    for _ in range(RETRIGGERS_MAX):
        delay = backoff.retrigger()
        if options.requests_wait_at_producer:
            total += backoff.listener_timeout
        if delay is None:
            break
        total += delay
    return min(total, MOST_S)


def _restart_delay_s(options: Options) -> float:
    keys = {
        "fixed-delay": "restart-strategy.fixed-delay.delay",
        "failure-rate": "restart-strategy.failure-rate.delay",
        "exponential-delay": "restart-strategy.exponential-delay.max-backoff",
    }
    key = keys.get(options.string("restart-strategy.type"))
    return options.duration(key) if key else 1.0
