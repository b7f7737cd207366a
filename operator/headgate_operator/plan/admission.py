"""How long a run or a study without its pods waits while the API server refuses one of its objects. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from headgate_operator.plan.conditions import no
from headgate_operator.plan.model import START_LIMIT_S
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.refusals import QUOTA_EXCEEDED
from testbed_runtime.api.status import SUSPENDED, Status
from testbed_runtime.api.views import Run, seconds

QUEUED = no("Reconciling", "Queued", "waits until another run of the namespace frees resources of the quota")
BEHIND_UPGRADE = no(
    "Reconciling",
    "Queued",
    "waits until the runs that began before the upgrade of the installation have ended",
)


def never_admitted(what: str, status: Status, settings: Settings, now: float) -> str:
    """Return why a run or a study without its pods ends: the API server has refused one of its objects for START_LIMIT_S, in which this
    operator was up and the object was not queued."""
    refusal, reconciling = status.refusal, status.condition("Reconciling")
    if refusal is None or (reconciling is not None and not reconciling.is_true):
        return ""
    changed = [seconds(c.last_transition_time) for c in (refusal, reconciling) if c is not None]
    if now - max(settings.since, *changed) <= START_LIMIT_S:
        return ""
    return f"an object of the {what} was not admitted within {START_LIMIT_S:g} s: {refusal.message}"


def is_queued(others: Iterable[Run], settings: Settings, now: float) -> bool:
    """Return whether another run of the namespace will free some of a full quota by itself."""
    return any(_holds_quota(other, settings, now) for other in others)


def _holds_quota(other: Run, settings: Settings, now: float) -> bool:
    """Return whether this run is at work, or has a recorder that is still to be deleted. A run that has lost its runner, and waits for the
    quota itself, is not at work: two such runs would wait for each other."""
    status = other.status
    if not other.finished:
        ready = status.condition("Ready")
        waits = ready is not None and ready.reason == QUOTA_EXCEEDED
        return status.runner_starts > 0 and status.phase != SUSPENDED and not waits
    if not (status.recorder_starts and status.completed_at) or naming.LABEL_STUDY in other.labels:
        return False
    return now < seconds(status.completed_at) + settings.pods_ttl_s
