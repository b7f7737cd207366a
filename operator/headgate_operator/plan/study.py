"""A TuningStudy: its pod is there until its table is whole; the pod makes the runs and applies the best row. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate_operator import objects_runs
from headgate_operator.plan.conditions import Condition, merged, no, rfc3339, yes
from headgate_operator.plan.model import Action, Create, Delete, Emit, Manifest, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.validate_kinds import validate_kind

AGAIN_MAX = 5
"""Study pods that are made again, and starts of one pod's container, before the study is given up."""
LOOK_S = 5.0
MIRRORED = ("runsDone", "runsTotal", "message", "best", "applied", "table", "updated")
MAX_EVENT_TEXT = 900


@dataclass(frozen=True, slots=True)
class Observed:
    object: Manifest
    pod: Manifest | None = None
    report: Mapping[str, Any] | None = None
    """`status.json` of ConfigMap `<study>-status`."""
    shared: frozenset[tuple[str, str]] = frozenset()
    """(kind, name) of the accounts that are there."""

    @property
    def status(self) -> Mapping[str, Any]:
        return self.object.get("status") or {}


def plan(observed: Observed, settings: Settings, now: float) -> Plan:
    if observed.object["metadata"].get("deletionTimestamp"):
        return Plan()
    if observed.status.get("phase") == "Complete":
        return Plan(status=_seen(observed, now))
    findings = validate_kind(observed.object)
    if findings.errors:
        text = "\n".join(str(error) for error in findings.errors)
        return Plan((Emit("Warning", "Rejected", text[:MAX_EVENT_TEXT]),), _rejected(observed, text, now))
    report = observed.report or {}
    if report.get("phase") == "Complete":
        return _ended(observed, report, now)
    if observed.object["spec"].get("suspend") and observed.pod is None:
        return Plan(status=_going(observed, report, "Suspended", now))
    lost = _given_up(observed)
    if lost:
        return _ended(observed, {**report, "reason": "PodLost", "message": lost}, now)
    actions = [*_accounts(observed, settings), *_pod(observed, settings)]
    phase = str(report.get("phase") or "Starting")
    return Plan(tuple(actions), _going(observed, report, phase, now), LOOK_S)


def _accounts(observed: Observed, settings: Settings) -> list[Action]:
    if not settings.cluster_wide:
        return []
    namespace, name = observed.object["metadata"]["namespace"], naming.STUDY_ACCOUNT
    found: list[Action] = []
    if ("ServiceAccount", name) not in observed.shared:
        found.append(Create(objects_runs.account(namespace, name)))
    if ("RoleBinding", name) not in observed.shared:
        found.append(Create(objects_runs.role_binding(namespace, name)))
    return found


def _pod(observed: Observed, settings: Settings) -> list[Action]:
    pod = observed.pod
    if pod is None:
        name = objects_runs.study_pod_name(observed.object["metadata"]["name"])
        again = int(observed.status.get("podStarts") or 0)
        event = Emit("Warning", "PodLost", f"{name} is made again") if again else None
        create = Create(objects_runs.study_pod(observed.object, settings))
        return [create, event or Emit("Normal", "Started", f"pod {name} is made")]
    metadata = pod["metadata"]
    ended = (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")
    account = (pod.get("spec") or {}).get("serviceAccountName", naming.STUDY_ACCOUNT)
    if (ended or account != naming.STUDY_ACCOUNT) and not metadata.get("deletionTimestamp"):
        return [Delete("v1", "Pod", metadata["namespace"], metadata["name"], metadata["uid"])]
    return []


def _given_up(observed: Observed) -> str:
    starts = int(observed.status.get("podStarts") or 0)
    if observed.pod is None:
        return f"the study's pod was lost {starts} times" if starts > AGAIN_MAX else ""
    for container in (observed.pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("restartCount", 0) > AGAIN_MAX:
            ended = (container.get("lastState") or {}).get("terminated") or {}
            words = str(ended.get("message", ""))[-MAX_EVENT_TEXT:]
            return f"the study's pod ended {container['restartCount']} times; at last it said: {words}"
    return ""


# ---- status


def _going(observed: Observed, report: Mapping[str, Any], phase: str, now: float) -> dict[str, Any]:
    """`podStarts` is counted when another pod is seen: its number of restarts stays with it."""
    before = observed.status
    starts = int(before.get("podStarts") or 0)
    if observed.pod is not None and observed.pod["metadata"].get("uid", "") != before.get("podUid", ""):
        starts += 1
    uid = observed.pod["metadata"].get("uid", "") if observed.pod else before.get("podUid", "")
    status = {**before, **_mirror(before, report), "phase": phase, "podStarts": starts, "podUid": uid}
    suspended = phase == "Suspended"
    if not suspended:
        status.setdefault("startedAt", rfc3339(now))
    up = (observed.pod or {}).get("status", {}).get("phase") == "Running"
    return _with(observed, status, now, [
        yes("Accepted", "Valid"),
        no("Reconciling", phase) if suspended else yes("Reconciling", phase, str(report.get("message", ""))),
        yes("Ready", "Running") if up else no("Ready", phase),
        no("Stalled", phase),
        no("Complete", phase),
    ])  # fmt: skip


def _ended(observed: Observed, report: Mapping[str, Any], now: float) -> Plan:
    before = observed.status
    reason = str(report.get("reason") or "TableComplete")
    good = reason == "TableComplete"
    status = {**before, **_mirror(before, report), "phase": "Complete", "completedAt": rfc3339(now)}
    text = str(report.get("message", ""))
    status = _with(observed, status, now, [
        yes("Accepted", "Valid"),
        no("Reconciling", "Complete"),
        yes("Ready", reason, text) if good else no("Ready", reason, text),
        no("Stalled", "Complete"),
        yes("Complete", reason, text),
    ])  # fmt: skip
    best = f"; best: {status['best']}" if status.get("best") else ""
    applied = f"; applied to {status['applied']}" if status.get("applied") else ""
    words = f"{status.get('progress', '')} runs{best}{applied} {text}".strip()
    return Plan((Emit("Normal" if good else "Warning", "Complete", words[:MAX_EVENT_TEXT]),), status)


def _rejected(observed: Observed, text: str, now: float) -> dict[str, Any]:
    return _with(observed, {**observed.status, "phase": "Rejected", "message": text}, now, [
        no("Accepted", "Invalid", text),
        no("Reconciling", "Invalid"),
        no("Ready", "Invalid", text),
        no("Complete", "Invalid"),
    ])  # fmt: skip


def _mirror(before: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: report[key] for key in MIRRORED if report.get(key) is not None}
    total = report.get("runsTotal")
    found["progress"] = f"{report.get('runsDone') or 0}/{total}" if total else before.get("progress", "")
    return found


def _seen(observed: Observed, now: float) -> dict[str, Any]:
    return _with(observed, dict(observed.status), now, [])


def _with(observed: Observed, status: dict[str, Any], now: float, wanted: list[Condition]) -> dict[str, Any]:
    generation = int(observed.object["metadata"].get("generation", 0))
    before = observed.status.get("conditions") or ()
    listed = merged(before, wanted, generation=generation, now=now)
    return {**status, "observedGeneration": generation, "conditions": listed}
