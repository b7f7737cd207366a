"""The status of a Fault: from a plan and from what the agents measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headgate_operator.agents import View
from headgate_operator.plan.conditions import Condition, merged, no, rfc3339, seconds, unknown, yes
from headgate_operator.plan.faulttarget import Resolved
from headgate_operator.plan.model import Manifest
from testbed_runtime.api.crd_status import MAX_TARGETS
from testbed_runtime.faults.fanout import Agent

MAX_EVENT_TEXT = 900
"""The API server takes 1024 characters of an Event."""
REFUSALS = (
    "Invalid",
    "Forbidden",
    "Overlap",
    "NoTestbed",
    "TestbedNotReady",
    "AgentNotReady",
    "JobUnknown",
)
STEPS = ((10, 1), (60, 5), (math.inf, 30))
"""(seconds left up to, seconds between two texts)"""
_Views = Mapping[Agent, View]


def waiting(obj: Manifest, reason: str, text: str, now: float) -> dict[str, Any]:
    status = {**_of(obj), "phase": "Pending", "message": text}
    return _with(obj, status, now, [
        yes("Accepted", "Valid"),
        yes("Reconciling", reason, text),
        no("Ready", reason, text),
        no("Stalled", "Waiting"),
        unknown("EffectVerified", "NotInjected"),
        unknown("NoResidue", "NotInjected"),
        no("Complete", "Pending"),
    ])  # fmt: skip


def refused(obj: Manifest, reason: str, text: str, now: float) -> dict[str, Any]:
    status = {**_of(obj), "phase": "Complete", "reason": reason, "message": text, "endedAt": rfc3339(now)}
    return _with(obj, status, now, [
        no("Accepted", reason, text),
        no("Reconciling", reason),
        no("Ready", reason, text),
        yes("Stalled", reason, "nothing was injected; fix the spec, or delete it"),
        unknown("EffectVerified", "NotInjected"),
        yes("NoResidue", "NotInjected"),
        yes("Complete", reason, "nothing was injected"),
    ])  # fmt: skip


def only_planned(obj: Manifest, resolved: Resolved, text: str, now: float) -> dict[str, Any]:
    """`plan: true`."""
    status = {
        **_of(obj),
        **_chosen(obj, resolved, text),
        "phase": "Complete",
        "reason": "Planned",
        "message": text,
    }
    return _with(obj, status, now, [
        yes("Accepted", "Valid"),
        no("Reconciling", "Planned"),
        yes("Ready", "Planned", text),
        no("Stalled", "Planned"),
        unknown("EffectVerified", "NotInjected"),
        yes("NoResidue", "NotInjected"),
        yes("Complete", "Planned", "nothing was injected"),
    ])  # fmt: skip


def planned(
    obj: Manifest, resolved: Resolved, text: str, *, now: float, deadline: float, pods: Mapping[str, str]
) -> dict[str, Any]:
    """Before anything is injected."""
    status = {
        **_of(obj), **_chosen(obj, resolved, text), "phase": "Planned", "message": text, "pods": dict(pods),
        "plannedAt": rfc3339(now), "deadline": rfc3339(deadline),
    }  # fmt: skip
    for name in ("reason", "endedAt", "injectedAt", "held", "verified", "measured", "residue", "problem"):
        status.pop(name, None)
    return _with(obj, status, now, [
        yes("Accepted", "Valid"),
        yes("Reconciling", "Planned", "it is about to be injected"),
        no("Ready", "Planned"),
        no("Stalled", "Planned"),
        unknown("EffectVerified", "NotMeasuredYet"),
        unknown("NoResidue", "NotMeasuredYet"),
        no("Complete", "Planned"),
    ])  # fmt: skip


def active(obj: Manifest, views: _Views, now: float, *, began: bool = False) -> dict[str, Any]:
    """What the agents say now."""
    before = _of(obj)
    injected = began or before.get("phase") == "Active" or any(v.row("injected") for v in views.values())
    if not injected:
        return before
    left = max(0.0, seconds(before["deadline"]) - now)
    status = {**before, "phase": "Active", "remaining": remaining(left), **_measured(views)}
    status.setdefault("injectedAt", rfc3339(now))
    status["held"] = sorted({*(before.get("held") or ()), *(str(a) for a, v in views.items() if v.known)})
    silent = [str(agent) for agent, view in views.items() if view.error]
    text = f"no answer from {', '.join(silent)}" if silent else "the agents hold it"
    return _with(obj, status, now, [
        yes("Accepted", "Valid"),
        yes("Reconciling", "Active", "until its deadline"),
        no("Ready", "AgentsSilent", text) if silent else yes("Ready", "Active", text),
        no("Stalled", "Active"),
        _effect(status, final=False),
        unknown("NoResidue", "NotMeasuredYet"),
        no("Complete", "Active"),
    ])  # fmt: skip


def ended(
    obj: Manifest, views: _Views, now: float, *, reason: str, text: str, verified: bool | None = None
) -> dict[str, Any]:
    status = {
        **_of(obj),
        **_measured(views),
        "phase": "Complete",
        "reason": reason,
        "remaining": "",
        "endedAt": rfc3339(now),
    }
    if verified is not None:
        status["verified"] = verified
    residue, why = _residue(views, reason)
    status["residue"] = residue
    status["message"] = text or _summary(status)
    good = reason == "Ended"
    return _with(obj, status, now, [
        yes("Accepted", "Valid"),
        no("Reconciling", reason),
        yes("Ready", reason, status["message"]) if good else no("Ready", reason, status["message"]),
        no("Stalled", reason),
        _effect(status, final=True),
        why,
        yes("Complete", reason, status["message"]),
    ])  # fmt: skip


def seen(obj: Manifest, now: float) -> dict[str, Any]:
    """The same, for the generation that is there now."""
    return _with(obj, _of(obj), now, [])


def remaining(left_s: float) -> str:
    """Coarse while there is much: each other text is a write to the API server and news for every watch."""
    step = next(step for limit, step in STEPS if left_s <= limit)
    return f"{math.ceil(left_s / step) * step} s"


# ---- inside


def _of(obj: Manifest) -> dict[str, Any]:
    return dict(obj.get("status") or {})


def _chosen(obj: Manifest, resolved: Resolved, text: str) -> dict[str, Any]:
    return {
        "faultId": obj["metadata"]["uid"],
        "kind": resolved.fault.kind,
        "targets": list(resolved.targets),
        "backend": resolved.backend,
        "why": resolved.why,
        "expected": text,
        "asked": _texts({"duration_s": resolved.fault.duration_s, **resolved.fault.params}),
    }


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {k: f"{v:g}" if isinstance(v, float) else str(v) for k, v in values.items() if v is not None}


def _measured(views: _Views) -> dict[str, Any]:
    """Of every agent; with several the names go before the values."""
    rows = {agent: row for agent, v in views.items() if (row := v.row("verified", "unverified")) is not None}
    if not rows:
        return {}
    found: dict[str, str] = {}
    for agent, row in rows.items():
        prefix = f"{agent} " if len(views) > 1 else ""
        found |= {f"{prefix}{k}": v for k, v in _texts(row.get("measured") or {}).items()}
    texts = [str(row["text"]) for row in rows.values() if row.get("text")]
    wrong = any(row["state"] == "unverified" for row in rows.values())
    complete = len(rows) == len(views)
    said: dict[str, Any] = {"measured": _bounded(found), "message": "; ".join(texts)}
    return {**said, "verified": not wrong} if wrong or complete else said


def _bounded(values: Mapping[str, str]) -> dict[str, str]:
    """What the schema takes: a status that is refused would leave the fault as it is for ever."""
    return dict(list(values.items())[:MAX_TARGETS])


def _effect(status: Mapping[str, Any], *, final: bool) -> Condition:
    verified = status.get("verified")
    text = ", ".join(f"{k}={v}" for k, v in (status.get("measured") or {}).items())
    if verified is True:
        return yes("EffectVerified", "Measured", text)
    if verified is False:
        return no("EffectVerified", "NotMeasured", str(status.get("message") or text))
    return unknown("EffectVerified", "NeverMeasured" if final else "NotMeasuredYet")


def _residue(views: _Views, reason: str) -> tuple[dict[str, str], Condition]:
    left: dict[str, str] = {}
    open_: list[str] = []
    for agent, view in views.items():
        row = view.row("clean", "residue")
        if row is not None and row["state"] == "residue":
            left[str(agent)] = str(row.get("text") or row.get("measured"))
        elif row is None and (view.error or view.known):
            open_.append(str(agent))
    if left:
        text = "; ".join(f"{k}: {v}" for k, v in left.items())
        return _bounded(left), no("NoResidue", "Residue", text)
    if open_ and reason != "TestbedGone":
        return {}, unknown("NoResidue", "NotMeasured", f"{', '.join(open_)}: not measured")
    if any(view.known for view in views.values()):
        return {}, yes("NoResidue", "Clean", "measured after its end")
    if views:
        text = "an agent that is started again takes away what it held; nobody measured it"
        return {}, unknown("NoResidue", "NotMeasured", text)
    return {}, yes("NoResidue", "Clean", "nothing stays in a pod that is gone")


def _summary(status: Mapping[str, Any]) -> str:
    verified = status.get("verified")
    if verified is None:
        return "it is over"
    return "its effect was measured" if verified else "its effect was not measured"


def _with(obj: Manifest, status: dict[str, Any], now: float, wanted: Sequence[Condition]) -> dict[str, Any]:
    generation = int(obj["metadata"].get("generation", 0))
    before = (obj.get("status") or {}).get("conditions") or ()
    return {
        **status,
        "observedGeneration": generation,
        "conditions": merged(before, wanted, generation=generation, now=now),
    }
