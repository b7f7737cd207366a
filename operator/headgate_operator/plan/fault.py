"""Inject a stand-alone Fault, follow it, and heal it. Pure.

    Pending → Planned → Active → Complete          (`plan: true`: straight to Complete; refused: Rejected)

Targets, backend and an absolute deadline are in the status before anything is injected; the agents know the fault by the object's uid
and refuse a known id. So an operator that restarts asks them first, and injects nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from headgate_operator.agents import View
from headgate_operator.plan import faultstatus
from headgate_operator.plan.conditions import clip
from headgate_operator.plan.faulttarget import (
    NotYet,
    Resolved,
    TestbedState,
    as_planned,
    conflict,
    expected,
    forbidden,
    resolve,
)
from headgate_operator.plan.model import (
    Action,
    Ask,
    Emit,
    Key,
    Plan,
    add_finalizer,
    delete,
    drop_finalizer,
    heal_skipped,
    release,
)
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.refusals import NOT_ADMITTED
from testbed_runtime.api.status import ACTIVE, COMPLETE, PLANNED, REJECTED, FaultStatus, rfc3339
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.api.views import Fault, Manifest, Pod, seconds
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.faults.vocabulary import POD_BACKEND
from testbed_runtime.faults.fanout import Agent, Part

PREPARE_S = 5.0
"""Time between the plan and the injection, in which agents measure the path."""
OVERTIME_S = 30.0
"""How long after the deadline the operator waits for the agents to heal the fault and measure its residue."""
WAIT_LIMIT_S = 600.0
"""How long a Fault waits for a testbed that does not exist or is not ready: longer than any start takes."""
HEAL_LIMIT_S = 60.0
LOOK_S = 2.0
LOOK_SOON_S = 0.5


class Observed(Struct, frozen=True):
    fault: Fault
    testbed: TestbedState | None = None
    """None: the Testbed does not exist."""
    views: Mapping[Agent, View] = field(default_factory=dict)
    """The answers of the agents that the plan in the status names."""
    others: tuple[Fault, ...] = ()
    """Other Faults of the same Testbed."""
    namespace_allows: bool = False
    claims: dict[Key, Manifest] = field(default_factory=dict)
    """The plans of other Faults made since `others` was read (Context.claims)."""
    namespace_ends: bool = False
    """The namespace is being deleted: the agents end with their pods, and the operator's rights may end before the Fault."""

    @property
    def object(self) -> Manifest:
        return self.fault.raw

    @property
    def status(self) -> FaultStatus:
        return self.fault.status

    @property
    def phase(self) -> str:
        return self.status.phase


def plan(observed: Observed, settings: Settings, now: float) -> Plan:
    del settings
    if observed.namespace_ends:
        return release(observed.fault)
    if observed.fault.terminating:
        return _deletion(observed, now)
    if is_over(observed.fault):
        # there is nothing to heal, so its deletion need not wait
        return Plan(tuple(drop_finalizer(observed.fault)), faultstatus.seen(observed.fault, now))
    if observed.fault.active:
        if observed.testbed is None:
            return _conclude(observed, now, "TestbedGone", "its testbed is gone, and the processes with it")
        return _follow(observed, observed.testbed, now)
    return _begin(observed, now)


def is_over(fault: Fault) -> bool:
    """Whether the fault needs no further action until it is deleted or changed."""
    return fault.status.phase in (COMPLETE, REJECTED) and not _changed_before_injection(fault)


def parts_of(fault: Fault, testbed: TestbedState | None) -> tuple[Part, ...]:
    """Return the parts that the agents hold according to the status; none before the fault was planned, and none for pod faults."""
    if testbed is None or not fault.active:
        return ()
    try:
        return as_planned(fault, testbed).parts
    except (HeadgateError, ValueError):
        return ()


def journal_name(fault: Fault) -> str:
    """Return the fault's name in the agents' journals. It differs from that of an earlier object with the same name."""
    return f"{fault.name}-{fault.uid[:8]}"


# ---- before anything is injected


def _begin(observed: Observed, now: float) -> Plan:
    findings = validate_kind(observed.object)
    if findings.errors:
        return _refuse(observed, "Invalid", "\n".join(str(e) for e in findings.errors), now)
    if observed.testbed is None:
        name = observed.fault.testbed
        return _wait(observed, "NoTestbed", f"the Testbed {name!r} does not exist in this namespace", now)
    # another Fault may be the reason why the testbed is not ready, for example by pausing a TaskManager
    if not (observed.testbed.resource.status.is_true("Ready") or any(o.active for o in observed.others)):
        return _wait(observed, "TestbedNotReady", "its Testbed is not ready yet", now)
    try:
        resolved = resolve(observed.fault, observed.testbed)
    except NotYet as not_yet:
        return _wait(observed, not_yet.reason, str(not_yet), now)
    except UserError as error:
        return _refuse(observed, "Invalid", str(error), now)
    why = forbidden(resolved, observed.testbed, observed.namespace_allows)
    if why:
        return _refuse(observed, "Forbidden", why, now)
    others = [(o.name, o.status.kind, o.status.targets) for o in observed.others if o.active]
    why = conflict(resolved, others)
    if why:
        return _refuse(observed, "Overlap", why, now)
    if observed.fault.spec.get("plan"):
        status = faultstatus.only_planned(observed.fault, resolved, expected(resolved), now)
        return Plan((Emit("Normal", "Planned", clip(expected(resolved))),), status)
    return _planned(observed, observed.testbed, resolved, now)


def _planned(observed: Observed, testbed: TestbedState, resolved: Resolved, now: float) -> Plan:
    """Write the plan first; the injection follows when the finalizer and the plan are on the object."""
    deadline = now + PREPARE_S + resolved.fault.duration_s
    uids = {name: pod.uid for name, pod in testbed.pods.items()}
    status = faultstatus.planned(
        observed.fault, resolved, expected(resolved), now=now, deadline=deadline, pods=uids
    )
    actions = [*add_finalizer(observed.fault)]
    text = f"{resolved.fault.kind} on {', '.join(resolved.targets)} by {resolved.why}"
    actions.append(Emit("Normal", "Planned", clip(text)))
    return Plan(tuple(actions), status, 0.0)


def _wait(observed: Observed, reason: str, text: str, now: float) -> Plan:
    if now - observed.fault.created > WAIT_LIMIT_S:
        return _refuse(observed, reason, f"{text}; given up after {WAIT_LIMIT_S:g} s", now)
    status = faultstatus.waiting(observed.fault, reason, text, now)
    return Plan(status=status, requeue_after_s=LOOK_S)


def _refuse(observed: Observed, reason: str, text: str, now: float) -> Plan:
    """Reject a fault before anything was injected."""
    emit = Emit("Warning", reason, clip(text))
    return Plan((emit,), faultstatus.refused(observed.fault, reason, text, now))


def _changed_before_injection(fault: Fault) -> bool:
    """Whether `plan` was removed from a fault that was only planned, or the spec of a refused one was corrected."""
    not_injected = fault.status.reason in ("Planned", *faultstatus.REFUSALS)
    return not_injected and fault.status.observed_generation != fault.generation


# ---- while it is there


def _follow(observed: Observed, testbed: TestbedState, now: float) -> Plan:
    if observed.status.problem:
        return _conclude(observed, now, "InjectionFailed", observed.status.problem)
    # the finalizer is missing if the operator ended, or met a conflict, after it wrote the plan: inject nothing without it
    if finalizer := add_finalizer(observed.fault):
        return Plan(tuple(finalizer), None, 0.0)
    resolved = as_planned(observed.fault, testbed)
    if resolved.backend == POD_BACKEND:
        return _pods(observed, testbed, resolved, now)
    return _agents(observed, testbed, resolved, now)


def _agents(observed: Observed, testbed: TestbedState, resolved: Resolved, now: float) -> Plan:
    deadline = _deadline(observed)
    failed = _refused_by_agent(observed.views)
    if failed:
        return _conclude(observed, now, "InjectionFailed", failed)
    again = _restarted(observed, testbed, resolved)
    policy = observed.fault.on_target_restart
    if again and policy == "Fail":
        names = ", ".join(sorted({p.agent.process for p in again}))
        return _conclude(observed, now, "TargetRestarted", f"{names} restarted while the fault was active")
    missing = [
        p
        for p in resolved.parts
        if not _view(observed, p).known
        and not _view(observed, p).error
        and (p not in again or policy == "Reapply")
    ]
    if missing and now < deadline:
        return _inject(observed, missing, deadline, now)
    waits = [p for p in resolved.parts if not _has_ended(observed, p, again, now)]
    if waits and now < deadline + OVERTIME_S:
        status = faultstatus.active(observed.fault, observed.views, now)
        began = observed.phase == PLANNED and status.phase == ACTIVE
        events = [Emit("Normal", "Injected", f"{resolved.fault.kind} by {resolved.backend}")] if began else []
        return Plan((*events, *_effect_events(observed, status)), status, LOOK_S)
    text = "; ".join(f"{p.agent}: {_view(observed, p).error or 'it did not report the end'}" for p in waits)
    return _conclude(observed, now, "AgentsSilent" if waits else _end_reason(observed), text)


def _inject(observed: Observed, missing: Sequence[Part], deadline: float, now: float) -> Plan:
    """Inject the missing parts for the remaining time, so that a restarted pod has the fault no longer than the others."""
    ends = deadline
    if observed.status.injected_at:
        ends = min(deadline, seconds(observed.status.injected_at) + missing[0].fault.duration_s)
    body = {"agents": [str(p.agent) for p in missing], "left_s": max(1.0, ends - now)}
    return Plan((Ask("inject", body),), None, LOOK_SOON_S)


def _view(observed: Observed, part: Part) -> View:
    return observed.views.get(part.agent) or View(error="not asked")


def _deadline(observed: Observed) -> float:
    return seconds(observed.status.deadline or "")


def _restarted(observed: Observed, testbed: TestbedState, resolved: Resolved) -> list[Part]:
    """Return the parts whose agent does not know the fault because it restarted.

    Either its pod is not the one of the plan, or the agent's container restarted in the same pod."""
    planned, held = observed.status.pods, observed.status.held
    found = []
    for part in resolved.parts:
        pod = testbed.pods.get(part.agent.process)
        uid = pod.uid if pod else ""
        view = _view(observed, part)
        another = planned.get(part.agent.process) not in (None, uid)
        forgot = str(part.agent) in held and not view.error
        if (another or forgot) and not view.known:
            found.append(part)
    return found


def _has_ended(observed: Observed, part: Part, again: Sequence[Part], now: float) -> bool:
    view = _view(observed, part)
    late = now >= _deadline(observed)
    if part in again:
        return late or observed.fault.on_target_restart != "Reapply"
    if view.error:
        return False
    if view.known:
        return view.active is None and view.row("clean", "residue") is not None
    return late


def _refused_by_agent(views: Mapping[Agent, View]) -> str:
    found = [(agent, row) for agent, view in views.items() if (row := view.row("failed")) is not None]
    return "; ".join(f"{agent}: {row.get('text', '')}" for agent, row in found)


def _end_reason(observed: Observed) -> str:
    known = [v for v in observed.views.values() if v.known]
    if not known:
        return "TargetRestarted" if observed.phase == ACTIVE else "NeverInjected"
    return "Ended"


def _effect_events(observed: Observed, status: FaultStatus) -> list[Emit]:
    if status.verified is None or status.verified == observed.status.verified:
        return []
    if status.verified:
        text = f"{status.kind} on {status.target} by {status.backend}: the measured values are in status.measured"
        return [Emit("Normal", "EffectVerified", clip(text))]
    return [Emit("Warning", "EffectNotVerified", clip(status.message))]


# ---- pod.delete and pod.evict: the operator itself deletes each pod once, by its uid


def _pods(observed: Observed, testbed: TestbedState, resolved: Resolved, now: float) -> Plan:
    deadline = _deadline(observed)
    wanted = {name: uid for name, uid in observed.status.pods.items() if name in resolved.targets}
    left = {name: pod for name, uid in wanted.items() if (pod := _same(testbed, name, uid)) is not None}
    if not left:
        injected = observed.status.injected_at
        measured = {
            "pods": sorted(wanted),
            "after_s": round(now - seconds(injected), 3) if injected else None,
        }
        return _conclude(observed, now, "Ended", "", verified=bool(wanted), measured=measured)
    if now >= deadline:
        refused = observed.status.condition("Stalled")
        why = f": {refused.message}" if refused is not None and refused.reason == NOT_ADMITTED else ""
        text = f"{', '.join(sorted(left))} not gone by the deadline{why}"
        return _conclude(observed, now, "NotEvicted", text, verified=False)
    actions = [_removal(pod, resolved.fault.kind) for pod in left.values() if not pod.terminating]
    status = faultstatus.active(observed.fault, {}, now, began=True)
    return Plan(tuple(actions), status, LOOK_S)


def _same(testbed: TestbedState, name: str, uid: str) -> Pod | None:
    pod = testbed.pods.get(name)
    return pod if pod is not None and pod.uid == uid else None


def _removal(pod: Pod, kind: str) -> Action:
    if kind == "pod.evict":
        return Ask("evict", {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid})
    return delete("Pod", pod, grace_s=0)


# ---- the end


def _conclude(
    observed: Observed,
    now: float,
    reason: str,
    text: str,
    *,
    verified: bool | None = None,
    measured: Mapping[str, Any] | None = None,
) -> Plan:
    """End the fault. Agents that may still hold it are asked once more to heal it; they end it at its deadline in any case."""
    status = faultstatus.ended(
        observed.fault, observed.views, now, reason=reason, text=text, verified=verified, measured=measured
    )
    kind = "Normal" if reason in ("Ended", "TestbedGone") else "Warning"
    summary = f"{reason}: {text}" if text else f"{reason}; {status.message}".rstrip("; ")
    actions: list[Action] = [*_effect_events(observed, status), Emit(kind, COMPLETE, clip(summary))]
    if any(v.active is not None for v in observed.views.values()):
        actions.append(Ask("heal"))
    if status.residue:
        text = "; ".join(f"{agent}: {left}" for agent, left in status.residue.items())
        actions.append(Emit("Warning", "Residue", clip(text)))
    return Plan(tuple(actions), status)


def _deletion(observed: Observed, now: float) -> Plan:
    """Heal the fault and measure its residue before the object is deleted."""
    fault = observed.fault
    if naming.FINALIZER not in fault.finalizers:
        return Plan()
    if skipped := heal_skipped(fault):
        return release(fault, skipped)
    pods = observed.testbed.pods if observed.testbed else {}
    held = [a for a, view in observed.views.items() if a.process in pods and _may_hold(view)]
    if not held:
        left = [row for v in observed.views.values() if (row := v.row("residue")) is not None]
        words = "; ".join(map(faultstatus.residue_text, left))
        return release(fault, *([Emit("Warning", "Residue", clip(words))] if left else []))
    if now - fault.deleted > HEAL_LIMIT_S:
        text = (
            f"{', '.join(map(str, held))} not healed within {HEAL_LIMIT_S:g} s; finalizer removed, its deadline ends it there "
            f"({observed.status.deadline or rfc3339(now)})"
        )
        return release(fault, Emit("Warning", "HealTimedOut", text))
    return Plan((Ask("heal"),), None, LOOK_SOON_S)


def _may_hold(view: View) -> bool:
    """Whether the agent may still hold the fault, because it does not answer or has not measured the end of the fault."""
    if view.error:
        return True
    return view.active is not None or (view.known and view.row("clean", "residue", "failed") is None)
