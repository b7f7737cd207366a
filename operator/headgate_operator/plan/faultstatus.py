"""The status of a Fault: from its plan and from the agents' measurements. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from headgate_operator.agents import View
from headgate_operator.plan import conditions
from headgate_operator.plan.conditions import moment, no, unknown, with_conditions, yes
from headgate_operator.plan.faulttarget import Resolved, kind_of
from testbed_runtime.api.status import (
    ACTIVE,
    COMPLETE,
    MAX_TARGETS,
    PLANNED,
    REJECTED,
    Condition,
    FaultStatus,
    rfc3339,
)
from testbed_runtime.api.views import Fault, seconds
from testbed_runtime.faults.fanout import Agent

REFUSALS = ("Invalid", "Forbidden", "Overlap", "NoTestbed", "TestbedNotReady", "AgentNotReady", "JobUnknown")
TARGETS_SHOWN = 4
"""Targets in the column of `kubectl get`; the others are counted."""
LEFT_BEHIND = "the condition NoResidue names what the fault left; delete the Testbed, then this Fault"
STEPS = ((10, 1), (60, 5), (math.inf, 30))
"""(seconds left up to, seconds between two values of `remaining`)"""
_Views = Mapping[Agent, View]


def waiting(fault: Fault, reason: str, text: str, now: float) -> FaultStatus:
    status = replace(fault.status, phase="Pending", kind=kind_of(fault), reason=reason, message=text)
    return with_conditions(fault, status, [
        yes("Accepted", "Valid"),
        yes("Reconciling", reason, text),
        no("Ready", reason, text),
        no("Stalled", "Waiting"),
        unknown("EffectVerified", "NotInjected"),
        unknown("NoResidue", "NotInjected"),
        no(COMPLETE, "Pending"),
    ], now)  # fmt: skip


def refused(fault: Fault, reason: str, text: str, now: float) -> FaultStatus:
    """Return the status of a Fault that is not injected: it failed, so it is neither Complete nor free of residue."""
    status = replace(
        fault.status, phase=REJECTED, kind=kind_of(fault), reason=reason, message=text, ended_at=rfc3339(now)
    )
    return with_conditions(fault, status, [
        *conditions.refused(reason, text, f"nothing was injected; fix the spec, or delete it: {text}"),
        unknown("EffectVerified", "NotInjected"),
        unknown("NoResidue", "NotInjected"),
        no(COMPLETE, reason, "nothing was injected"),
    ], now)  # fmt: skip


def only_planned(fault: Fault, resolved: Resolved, text: str, now: float) -> FaultStatus:
    """Return the status of a Fault with `plan: true`."""
    status = replace(_chosen(fault, resolved, text), phase=COMPLETE, reason="Planned", message=text)
    return with_conditions(fault, status, [
        yes("Accepted", "Valid"),
        no("Reconciling", "Planned"),
        yes("Ready", "Planned", text),
        no("Stalled", "Planned"),
        unknown("EffectVerified", "NotInjected"),
        unknown("NoResidue", "NotInjected"),
        yes(COMPLETE, "Planned", "nothing was injected"),
    ], now)  # fmt: skip


def planned(
    fault: Fault, resolved: Resolved, text: str, *, now: float, deadline: float, pods: Mapping[str, str]
) -> FaultStatus:
    """Return the status that is written before anything is injected. Results of an earlier attempt are reset."""
    status = replace(
        _chosen(fault, resolved, text), phase=PLANNED, message=text, pods=dict(pods), planned_at=rfc3339(now),
        deadline=moment(deadline), reason="", ended_at=None, injected_at=None, held=(), verified=None, measured={},
        residue={}, problem="",
    )  # fmt: skip
    return with_conditions(fault, status, [
        yes("Accepted", "Valid"),
        yes("Reconciling", "Planned", "it is about to be injected"),
        no("Ready", "Planned"),
        no("Stalled", "Planned"),
        unknown("EffectVerified", "NotMeasuredYet"),
        unknown("NoResidue", "NotMeasuredYet"),
        no(COMPLETE, "Planned"),
    ], now)  # fmt: skip


def active(fault: Fault, views: _Views, now: float, *, began: bool = False) -> FaultStatus:
    """Return the status with what the agents report now."""
    before = fault.status
    injected = began or before.phase == ACTIVE or any(v.row("injected") for v in views.values())
    if not injected:
        return before
    deadline = _deadline(before, views, now)
    status = replace(
        _with_measurements(before, views),
        phase=ACTIVE,
        deadline=moment(deadline),
        remaining=remaining(max(0.0, deadline - now)),
        injected_at=before.injected_at or moment(now),
        held=tuple(sorted({*before.held, *(str(agent) for agent, view in views.items() if view.known)})),
    )
    silent = [str(agent) for agent, view in views.items() if view.error]
    text = f"no answer from {', '.join(silent)}" if silent else "the agents hold it"
    return with_conditions(fault, status, [
        yes("Accepted", "Valid"),
        yes("Reconciling", "Active", "until its deadline"),
        no("Ready", "AgentsSilent", text) if silent else yes("Ready", "Active", text),
        no("Stalled", "Active"),
        _effect(status, final=False),
        unknown("NoResidue", "NotMeasuredYet"),
        no(COMPLETE, "Active"),
    ], now)  # fmt: skip


def _deadline(before: FaultStatus, views: _Views, now: float) -> float:
    """Return when the last agent ends the fault. Until agents hold it, the plan's deadline includes the time to prepare."""
    planned = seconds(before.deadline or "")
    if before.injected_at:
        return planned
    left = [float(v.active["remaining_s"]) for v in views.values() if v.active and "remaining_s" in v.active]
    return min(planned, now + max(left)) if left else planned


def ended(
    fault: Fault,
    views: _Views,
    now: float,
    *,
    reason: str,
    text: str,
    verified: bool | None = None,
    measured: Mapping[str, Any] | None = None,
) -> FaultStatus:
    """Return the status of a fault that has ended. `verified` and `measured` are set only for a fault that the operator carried out
    itself, without agents."""
    status = _with_measurements(fault.status, views)
    residue, no_residue = _residue(views, reason)
    if verified is not None:
        status = replace(status, verified=verified, measured=_bounded(texts(measured or {})))
    status = replace(
        status,
        phase=COMPLETE,
        reason=reason,
        remaining="",
        ended_at=rfc3339(now),
        residue=residue,
        message=text or _summary(status.verified),
    )
    if residue:
        verdict = (yes("Stalled", "Residue", LEFT_BEHIND), no("Ready", "Residue", no_residue.message))
    elif reason in ("Ended", "TestbedGone"):
        verdict = (no("Stalled", reason), yes("Ready", reason, status.message))
    else:
        verdict = (yes("Stalled", reason, status.message), no("Ready", reason, status.message))
    return with_conditions(fault, status, [
        yes("Accepted", "Valid"),
        no("Reconciling", reason),
        *verdict,
        _effect(status, final=True),
        no_residue,
        yes(COMPLETE, reason, status.message),
    ], now)  # fmt: skip


def seen(fault: Fault, now: float) -> FaultStatus:
    """Return the same status for the present generation."""
    return with_conditions(fault, fault.status, [], now)


def remaining(left_s: float) -> str:
    """Return the remaining seconds, rounded up coarsely while much time is left: each new value is a write to the API server and an event
    for every watch."""
    step = next(step for limit, step in STEPS if left_s <= limit)
    return f"{math.ceil(left_s / step) * step} s"


# ---- parts of a status


def _chosen(fault: Fault, resolved: Resolved, text: str) -> FaultStatus:
    return replace(
        fault.status,
        fault_id=fault.uid,
        kind=resolved.fault.kind,
        targets=resolved.targets,
        target=_shown(resolved.targets),
        backend=resolved.backend,
        why=resolved.why,
        expected=text,
        asked=texts({"duration_s": resolved.fault.duration_s, **resolved.fault.params}),
    )


def _shown(targets: Sequence[str]) -> str:
    more = len(targets) - TARGETS_SHOWN
    return ", ".join(targets[:TARGETS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def texts(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return values as fields of text: an object's fields as `name.field`, a list as `a, b`, a number without noise."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= texts(value, f"{prefix}{key}.")
        elif value is not None:
            found[f"{prefix}{key}"] = _text(value)
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return _words(texts(value))
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(_text(item) for item in value)
    return str(value)


def _words(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in fields.items())


def _with_measurements(status: FaultStatus, views: _Views) -> FaultStatus:
    """Return the status with every agent's measurement; with several agents, names are prefixed with the agent."""
    rows = {agent: row for agent, v in views.items() if (row := v.row("verified", "unverified")) is not None}
    if not rows:
        return status
    found: dict[str, str] = {}
    for agent, row in rows.items():
        prefix = f"{agent} " if len(views) > 1 else ""
        found |= {f"{prefix}{k}": v for k, v in texts(row.get("measured") or {}).items()}
    message = "; ".join(str(row["text"]) for row in rows.values() if row.get("text"))
    wrong = any(row["state"] == "unverified" for row in rows.values())
    decided = wrong or len(rows) == len(views)
    verified = not wrong if decided else status.verified
    return replace(status, measured=_bounded(found), message=message, verified=verified)


def _bounded(values: Mapping[str, str]) -> dict[str, str]:
    """Keep what the schema accepts: a rejected status would leave the fault in its phase forever."""
    return dict(list(values.items())[:MAX_TARGETS])


def _effect(status: FaultStatus, *, final: bool) -> Condition:
    if status.verified is True:
        return yes("EffectVerified", "Measured", "the measured values are in status.measured")
    if status.verified is False:
        return no("EffectVerified", "NotMeasured", status.message or _words(status.measured))
    return unknown("EffectVerified", "NeverMeasured" if final else "NotMeasuredYet")


def _residue(views: _Views, reason: str) -> tuple[dict[str, str], Condition]:
    left: dict[str, str] = {}
    unmeasured: list[str] = []
    for agent, view in views.items():
        row = view.row("clean", "residue")
        if row is not None and row["state"] == "residue":
            left[str(agent)] = residue_text(row)
        elif row is None and (view.error or view.known):
            unmeasured.append(str(agent))
    if left:
        text = "; ".join(f"{k}: {v}" for k, v in left.items())
        return _bounded(left), no("NoResidue", "Residue", text)
    if unmeasured and reason != "TestbedGone":
        return {}, unknown("NoResidue", "NotMeasured", f"{', '.join(unmeasured)}: not measured")
    if any(view.known for view in views.values()):
        return {}, yes("NoResidue", "Clean", "measured after its end")
    if views:
        text = "an agent that restarts removes what it held; this was not measured"
        return {}, unknown("NoResidue", "NotMeasured", text)
    return {}, yes("NoResidue", "Clean", "a pod that is gone leaves nothing behind")


def residue_text(row: Mapping[str, Any]) -> str:
    """Return the residue that a row of the journal reports."""
    return str(row.get("text") or _words(texts(row.get("measured") or {})))


def _summary(verified: bool | None) -> str:
    if verified is None:
        return "it has ended"
    return "its effect was measured" if verified else "its effect was not measured"
