"""A stand-alone Fault. Pure.

    Pending → Planned → Active → Complete          (`plan: true`, refused, expired: straight to Complete)

Targets, backend and an absolute deadline are in the status before anything is injected; the agents know the fault by the object's uid
and refuse a known id. So an operator that comes again asks them first, and injects nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate_operator.agents import View
from headgate_operator.plan import faultstatus
from headgate_operator.plan.conditions import is_true, rfc3339, seconds
from headgate_operator.plan.faulttarget import (
    KUBERNETES,
    NotYet,
    Place,
    Resolved,
    as_planned,
    conflict,
    expected,
    forbidden,
    resolve,
)
from headgate_operator.plan.model import Action, Ask, Delete, Emit, Key, Manifest, Plan, SetFinalizers
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.faults.fanout import Agent, Part

PREPARE_S = 5.0
"""From the plan to the injection: agents measure the path before they begin."""
OVERTIME_S = 30.0
"""After the deadline: how long the end and the measurement of what is left may take before that is given up."""
WAIT_LIMIT_S = 600.0
"""For a testbed that is not there or not ready: longer than any start, shorter than anybody waits."""
HEAL_LIMIT_S = 60.0
LOOK_S = 2.0
LOOK_SOON_S = 0.5


@dataclass(frozen=True, slots=True)
class Observed:
    object: Manifest
    place: Place | None = None
    """None: there is no such Testbed."""
    views: Mapping[Agent, View] = field(default_factory=dict)
    """Of the agents that the plan in the status names."""
    others: tuple[Manifest, ...] = ()
    """Other Faults of the same Testbed."""
    namespace_allows: bool = False
    claims: dict[Key, Manifest] = field(default_factory=dict)
    """Context.claims: what was planned since `others` was read."""

    @property
    def status(self) -> Mapping[str, Any]:
        return self.object.get("status") or {}

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))


def plan(observed: Observed, settings: Settings, now: float) -> Plan:
    del settings
    if observed.object["metadata"].get("deletionTimestamp"):
        return _deletion(observed, now)
    if observed.phase == "Complete" and not _wanted_after_all(observed):
        return Plan(status=faultstatus.seen(observed.object, now))
    if observed.phase in ("Planned", "Active"):
        if observed.place is None:
            return _conclude(observed, now, "TestbedGone", "its testbed is gone, and the processes with it")
        return _go_on(observed, observed.place, now)
    return _begin(observed, now)


def is_active(obj: Manifest) -> bool:
    """Whether it acts on its testbed, or is about to."""
    return bool((obj.get("status") or {}).get("phase") in ("Planned", "Active"))


def parts_of(obj: Manifest, place: Place | None) -> tuple[Part, ...]:
    """What the agents hold of it, as the status says; empty before it was planned, and for pod faults."""
    if place is None or not is_active(obj):
        return ()
    try:
        return as_planned(obj, place).parts
    except (HeadgateError, ValueError):
        return ()


def journal_name(obj: Manifest) -> str:
    """Its name in the agents' journals: of this object, not of one of the same name before."""
    return f"{obj['metadata']['name']}-{obj['metadata']['uid'][:8]}"


# ---- before anything is injected


def _begin(observed: Observed, now: float) -> Plan:
    findings = validate_kind(observed.object)
    if findings.errors:
        return _refuse(observed, "Invalid", "\n".join(str(e) for e in findings.errors), now)
    if observed.place is None:
        name = observed.object["spec"]["testbedRef"]["name"]
        return _wait(observed, "NoTestbed", f"there is no Testbed {name!r} in this namespace", now)
    if not (_ready(observed.place) or any(is_active(o) for o in observed.others)):
        return _wait(observed, "TestbedNotReady", "its Testbed is not ready yet", now)
    try:
        resolved = resolve(observed.object, observed.place)
    except NotYet as not_yet:
        return _wait(observed, not_yet.reason, str(not_yet), now)
    except UserError as error:
        return _refuse(observed, "Invalid", str(error), now)
    why = forbidden(resolved, observed.place, observed.namespace_allows)
    if why:
        return _refuse(observed, "Forbidden", why, now)
    why = conflict(resolved, [_as_other(o) for o in observed.others if is_active(o)])
    if why:
        return _refuse(observed, "Overlap", why, now)
    if observed.object["spec"].get("plan"):
        status = faultstatus.only_planned(observed.object, resolved, expected(resolved), now)
        return Plan((Emit("Normal", "Planned", expected(resolved)[: faultstatus.MAX_EVENT_TEXT]),), status)
    return _planned(observed, observed.place, resolved, now)


def _ready(place: Place) -> bool:
    """Not asked of a testbed that another Fault acts on: a paused TaskManager is not ready, and faults may meet."""
    return is_true(place.testbed.get("status") or {}, "Ready")


def _as_other(obj: Manifest) -> tuple[str, str, tuple[str, ...]]:
    status = obj["status"]
    return obj["metadata"]["name"], str(status.get("kind", "")), tuple(status.get("targets") or ())


def _planned(observed: Observed, place: Place, resolved: Resolved, now: float) -> Plan:
    """Written down first; the injection follows when the finalizer and the plan are on the object."""
    deadline = now + PREPARE_S + resolved.fault.duration_s
    uids = {name: str(pod["metadata"]["uid"]) for name, pod in place.pods.items()}
    status = faultstatus.planned(
        observed.object, resolved, expected(resolved), now=now, deadline=deadline, pods=uids
    )
    actions = [*_finalizer(observed)]
    text = f"{resolved.fault.kind} on {', '.join(resolved.targets)} by {resolved.why}"
    actions.append(Emit("Normal", "Planned", text[: faultstatus.MAX_EVENT_TEXT]))
    return Plan(tuple(actions), status, 0.0)


def _finalizer(observed: Observed) -> list[Action]:
    finalizers = tuple(observed.object["metadata"].get("finalizers") or ())
    return [] if naming.FINALIZER in finalizers else [SetFinalizers((*finalizers, naming.FINALIZER))]


def _wait(observed: Observed, reason: str, text: str, now: float) -> Plan:
    since = seconds(observed.object["metadata"]["creationTimestamp"])
    if now - since > WAIT_LIMIT_S:
        return _refuse(observed, reason, f"{text}; given up after {WAIT_LIMIT_S:g} s", now)
    return Plan(status=faultstatus.waiting(observed.object, reason, text, now), requeue_after_s=LOOK_S)


def _refuse(observed: Observed, reason: str, text: str, now: float) -> Plan:
    """Nothing was injected and nothing will be."""
    emit = Emit("Warning", reason, text[: faultstatus.MAX_EVENT_TEXT])
    return Plan((emit,), faultstatus.refused(observed.object, reason, text, now))


def _wanted_after_all(observed: Observed) -> bool:
    """It was only planned, and then `plan` was taken away; or its spec was mended after it was refused."""
    planned_only = observed.status.get("reason") in ("Planned", *faultstatus.REFUSALS)
    generation = observed.object["metadata"].get("generation", 0)
    return planned_only and observed.status.get("observedGeneration") != generation


# ---- while it is there


def _go_on(observed: Observed, place: Place, now: float) -> Plan:
    problem = observed.status.get("problem")
    if problem:
        return _conclude(observed, now, "InjectionFailed", str(problem))
    finalizer = _finalizer(observed)
    if (
        finalizer
    ):  # an operator that ended, or a conflict, came between the plan and it: nothing is injected without
        return Plan(tuple(finalizer), None, 0.0)
    resolved = as_planned(observed.object, place)
    if resolved.backend == KUBERNETES:
        return _pods(observed, place, resolved, now)
    return _agents(observed, place, resolved, now)


def _agents(observed: Observed, place: Place, resolved: Resolved, now: float) -> Plan:
    deadline = seconds(observed.status["deadline"])
    failed = _refused_by_agent(observed.views)
    if failed:
        return _conclude(observed, now, "InjectionFailed", failed)
    again = _come_again(observed, place, resolved)
    policy = observed.object["spec"].get("onTargetRestart", "Expire")
    if again and policy == "Fail":
        names = ", ".join(sorted({p.agent.process for p in again}))
        return _conclude(observed, now, "TargetRestarted", f"{names} came again while the fault was active")
    missing = [
        p
        for p in resolved.parts
        if not _view(observed, p).known and not _view(observed, p).error and _to_inject(p, again, policy)
    ]
    if missing and now < deadline:
        return _inject(observed, missing, deadline, now)
    waits = [p for p in resolved.parts if not _over(observed, p, again, now)]
    if waits and now < deadline + OVERTIME_S:
        status = faultstatus.active(observed.object, observed.views, now)
        began = observed.phase == "Planned" and status["phase"] == "Active"
        events = [Emit("Normal", "Injected", f"{resolved.fault.kind} by {resolved.backend}")] if began else []
        return Plan((*events, *_effect_events(observed, status)), status, LOOK_S)
    text = "; ".join(f"{p.agent}: {_view(observed, p).error or 'it did not say how it ended'}" for p in waits)
    return _conclude(observed, now, "AgentsSilent" if waits else _how(observed), text)


def _inject(observed: Observed, missing: Sequence[Part], deadline: float, now: float) -> Plan:
    """What is missing, for what is left: a pod that came again gets no longer fault than the others."""
    ends = deadline
    if observed.status.get("injectedAt"):
        ends = min(deadline, seconds(observed.status["injectedAt"]) + missing[0].fault.duration_s)
    body = {"agents": [str(p.agent) for p in missing], "left_s": max(1.0, ends - now)}
    return Plan((Ask("inject", body),), None, LOOK_SOON_S)


def _view(observed: Observed, part: Part) -> View:
    return observed.views.get(part.agent) or View(error="not asked")


def _to_inject(part: Part, again: Sequence[Part], policy: str) -> bool:
    return policy == "Reapply" if part in again else True


def _come_again(observed: Observed, place: Place, resolved: Resolved) -> list[Part]:
    """Parts whose agent never heard of the fault, or no longer knows of it: its pod is another one than when it was planned, or
    the agent's own container was started again in the same pod."""
    was, held = observed.status.get("pods") or {}, observed.status.get("held") or ()
    found = []
    for part in resolved.parts:
        pod = place.pods.get(part.agent.process)
        uid = pod["metadata"]["uid"] if pod else ""
        view = _view(observed, part)
        another = was.get(part.agent.process) not in (None, uid)
        forgot = str(part.agent) in held and not view.error
        if (another or forgot) and not view.known:
            found.append(part)
    return found


def _over(observed: Observed, part: Part, again: Sequence[Part], now: float) -> bool:
    view = _view(observed, part)
    late = now >= seconds(observed.status["deadline"])
    if part in again:
        return late or observed.object["spec"].get("onTargetRestart") != "Reapply"
    if view.error:
        return False
    if view.known:
        return view.active is None and view.row("clean", "residue") is not None
    return late


def _refused_by_agent(views: Mapping[Agent, View]) -> str:
    found = [(agent, row) for agent, view in views.items() if (row := view.row("failed")) is not None]
    return "; ".join(f"{agent}: {row.get('text', '')}" for agent, row in found)


def _how(observed: Observed) -> str:
    known = [v for v in observed.views.values() if v.known]
    if not known:
        return "TargetRestarted" if observed.phase == "Active" else "NeverInjected"
    return "Ended"


def _effect_events(observed: Observed, status: Mapping[str, Any]) -> list[Emit]:
    before, after = observed.status.get("verified"), status.get("verified")
    if before == after or after is None:
        return []
    measured = ", ".join(f"{k}={v}" for k, v in (status.get("measured") or {}).items())
    if after:
        return [Emit("Normal", "EffectVerified", measured[: faultstatus.MAX_EVENT_TEXT])]
    return [
        Emit("Warning", "EffectNotVerified", str(status.get("message", ""))[: faultstatus.MAX_EVENT_TEXT])
    ]


# ---- pod.delete, pod.evict: by the operator itself, each pod once, by its uid


def _pods(observed: Observed, place: Place, resolved: Resolved, now: float) -> Plan:
    deadline = seconds(observed.status["deadline"])
    wanted = {
        name: uid for name, uid in (observed.status.get("pods") or {}).items() if name in resolved.targets
    }
    left = {name: pod for name, uid in wanted.items() if (pod := _same(place, name, uid)) is not None}
    if not left:
        return _conclude(observed, now, "Ended", "", verified=bool(wanted))
    if now >= deadline:
        names = ", ".join(sorted(left))
        return _conclude(observed, now, "NotEvicted", f"{names} not gone by the deadline", verified=False)
    actions = [
        _take(pod, resolved.fault.kind)
        for pod in left.values()
        if not pod["metadata"].get("deletionTimestamp")
    ]
    status = faultstatus.active(observed.object, {}, now, began=True)
    return Plan(tuple(actions), status, LOOK_S)


def _same(place: Place, name: str, uid: str) -> Manifest | None:
    pod = place.pods.get(name)
    return pod if pod is not None and pod["metadata"]["uid"] == uid else None


def _take(pod: Manifest, kind: str) -> Action:
    metadata = pod["metadata"]
    if kind == "pod.evict":
        pod_of = {"namespace": metadata["namespace"], "pod": metadata["name"], "uid": metadata["uid"]}
        return Ask("evict", pod_of)
    return Delete("v1", "Pod", metadata["namespace"], metadata["name"], metadata["uid"], 0)


# ---- the end


def _conclude(
    observed: Observed, now: float, reason: str, text: str, *, verified: bool | None = None
) -> Plan:
    """Final. What may still be there is healed once more: it is harmless, and the deadline holds anyway."""
    status = faultstatus.ended(
        observed.object, observed.views, now, reason=reason, text=text, verified=verified
    )
    kind = "Normal" if reason in ("Ended", "TestbedGone") else "Warning"
    summary = f"{reason}: {text}" if text else f"{reason}; {status.get('message', '')}".rstrip("; ")
    actions: list[Action] = [
        *_effect_events(observed, status),
        Emit(kind, "Complete", summary[: faultstatus.MAX_EVENT_TEXT]),
    ]
    if any(v.active is not None for v in observed.views.values()):
        actions.append(Ask("heal"))
    if status.get("residue"):
        actions.append(Emit("Warning", "Residue", str(status["residue"])[: faultstatus.MAX_EVENT_TEXT]))
    return Plan(tuple(actions), status)


def _deletion(observed: Observed, now: float) -> Plan:
    """Heal, and see that nothing is left, before the object goes."""
    metadata = observed.object["metadata"]
    finalizers = tuple(metadata.get("finalizers") or ())
    if naming.FINALIZER not in finalizers:
        return Plan()
    free = SetFinalizers(tuple(f for f in finalizers if f != naming.FINALIZER))
    if (metadata.get("annotations") or {}).get(naming.ANNOTATION_SKIP_HEAL) == "true":
        text = f"let go without healing, as {naming.ANNOTATION_SKIP_HEAL} asks"
        return Plan((Emit("Warning", "HealSkipped", text), free))
    pods = observed.place.pods if observed.place else {}
    held = [a for a, view in observed.views.items() if a.process in pods and _may_hold(view)]
    if not held:
        left = [row for v in observed.views.values() if (row := v.row("residue")) is not None]
        words = "; ".join(str(row.get("text") or row.get("measured")) for row in left)
        event = Emit("Warning", "Residue", words[: faultstatus.MAX_EVENT_TEXT]) if left else None
        return Plan((event, free) if event else (free,))
    if now - seconds(metadata["deletionTimestamp"]) > HEAL_LIMIT_S:
        text = (
            f"{', '.join(map(str, held))} not healed within {HEAL_LIMIT_S:g} s; let go, its deadline ends it there "
            f"({observed.status.get('deadline') or rfc3339(now)})"
        )
        return Plan((Emit("Warning", "HealTimedOut", text), free))
    return Plan((Ask("heal"),), None, LOOK_SOON_S)


def _may_hold(view: View) -> bool:
    """An agent that does not answer may; one that measured the end does not."""
    if view.error:
        return True
    return view.active is not None or (view.known and view.row("clean", "residue", "failed") is None)
