"""Compare events that follow from the end of a wait with the waits: each has the end that the event says."""

from __future__ import annotations

from collections.abc import Iterator

from testbed_runtime.core.waits import JOBMASTER_NAME, RM_NAME
from testbed_runtime.history.columns import TOLERANCE_NS, Waits, deployments, events, parsed, waits_of
from testbed_runtime.history.contradictions.executions import recorded_to_its_end
from testbed_runtime.history.damage import Damage, first_of_each, no_row
from testbed_runtime.history.schema import Trial

ENDING = ("failover.failure", "failover.started", "taskmanager.lost")
"""Events with the kind of the wait that they ended."""
BY_JOBMANAGER = frozenset(("heartbeat", "checkpoint", "deployment"))
"""Those that the JobManager records itself, before the event. A TaskManager that is killed loses its last ones."""


def check_ended(trial: Trial) -> list[Damage]:
    """Return the events whose wait is missing, at most one for each rule. A JobManager that was killed loses its last rows."""
    waits = waits_of(trial)
    if not deployments(trial) or not waits or not recorded_to_its_end(trial):
        return []
    return first_of_each((_ended(trial, waits), _delayed(trial, waits)))


def _ended(trial: Trial, waits: Waits) -> Iterator[Damage]:
    """Yield an event that ended a wait of a kind of which none ended then."""
    ends: dict[str, list[int]] = {}
    for _, r in waits:
        ends.setdefault(r["kind"], []).append(r["t_ns"])
    for _, event in events(trial, *ENDING):
        data = parsed(event["data"])
        kind = str(data.get("wait"))
        if kind not in BY_JOBMANAGER or data.get("detector") not in (JOBMASTER_NAME, RM_NAME):
            continue
        if not any(abs(t_ns - event["t_ns"]) <= TOLERANCE_NS for t_ns in ends.get(kind, ())):
            problem = f"has no {kind} that ended with {event['kind']} of {event['subject']} (data in events)"
            yield no_row("waits", problem)


def _delayed(trial: Trial, waits: Waits) -> Iterator[Damage]:
    """Yield a restart that the restart strategy delayed, and that did not wait."""
    delayed = {
        str(r["attempt"]) for _, r in waits if r["kind"] == "restart-delay" and r["who"] == JOBMASTER_NAME
    }
    for _, event in events(trial, "failover.started"):
        data = parsed(event["data"])
        seconds = data.get("delay_s")
        if isinstance(seconds, int | float) and seconds > 0 and event["subject"] not in delayed:
            problem = f"has no restart-delay of restart {event['subject']}, which was delayed by {seconds:g} s (failover.started in events)"
            yield no_row("waits", problem)
