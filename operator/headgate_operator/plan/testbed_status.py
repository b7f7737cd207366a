"""The status of a Testbed, and the Events that its changes are worth. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate_operator import objects
from headgate_operator.plan.conditions import (
    Condition,
    is_true,
    merged,
    moment,
    no,
    unknown,
    yes,
)
from headgate_operator.plan.model import Emit
from headgate_operator.plan.testbed_state import State, Steps
from testbed_runtime.api import naming
from testbed_runtime.api.crd_status import MAX_TARGETS
from testbed_runtime.api.validate_kinds import KindFindings

PROBLEMS_SHOWN = 4
"""Pods whose problem is told in a condition's message; the rest is counted."""
JOBMANAGER_NOT_REACHED = "JobManagerNotReached"
NO_ANSWER = "the JobManager does not answer the operator"
NOT_STALLED = no("Stalled", "Progressing")


def rejected(testbed: Mapping[str, Any], text: str, now: float) -> dict[str, Any]:
    """Nothing else is known of it but what an earlier, accepted spec left."""
    wanted = [
        no("Accepted", "Invalid", text),
        no("Ready", "NotAccepted", "see Accepted"),
        no("Reconciling", "NotAccepted"),
        NOT_STALLED,
    ]
    said = {"phase": "Rejected", "message": text.partition("\n")[0]}
    return {**_kept(testbed), **said, "conditions": _merge(testbed, wanted, now)}


def waiting_for_secret(
    testbed: Mapping[str, Any], secret: str, findings: KindFindings, now: float
) -> dict[str, Any]:
    return _waiting(testbed, "WaitingForSecret", f"waits for Secret {secret}", findings, now)


def names_taken(
    testbed: Mapping[str, Any], taken: Sequence[str], findings: KindFindings, now: float
) -> dict[str, Any]:
    text = (
        f"waits until {', '.join(taken)} of another owner is gone; "
        "if that object is to stay, give this Testbed another name"
    )
    return _waiting(testbed, "NamesTaken", text, findings, now)


def _waiting(
    testbed: Mapping[str, Any], reason: str, text: str, findings: KindFindings, now: float
) -> dict[str, Any]:
    wanted = [_accepted(findings), no("Ready", reason, text), yes("Reconciling", reason, text), NOT_STALLED]
    return {
        **_kept(testbed),
        "phase": "Starting",
        "message": text,
        "conditions": _merge(testbed, wanted, now),
    }


def of(  # noqa: PLR0917 - what a status is made of
    testbed: Mapping[str, Any],
    state: State,
    steps: Steps,
    job: Mapping[str, Any] | None,
    findings: KindFindings,
    now: float,
) -> dict[str, Any]:
    """As it is to be written before `steps` are done."""
    taken_away = {*steps.make, *steps.remove, *steps.replace}
    incarnations = {**state.incarnations, **{p: state.incarnations.get(p, 0) + 1 for p in steps.make}}
    managers = [p for p in state.desired if p.startswith("tm-")]
    wanted = [
        _accepted(findings),
        ready := _ready(state, job),
        _reconciling(state, steps),
        NOT_STALLED,
        _job_running(testbed["spec"], job),
    ]
    return {
        **_kept(testbed),
        "phase": _phase(ready, state, steps),
        "message": "" if ready.status == "True" else ready.message,
        "taskManagers": sum(p.startswith("tm-") for p in state.pods),
        "readyTaskManagers": sum(state.ready(p) for p in managers),
        "selector": selector(testbed["metadata"]["name"]),
        "incarnations": incarnations,
        "members": sorted(state.members - taken_away),
        "lost": {p: moment(since) for p, since in state.lost.items() if p not in taken_away},
        **_job_fields(job),
        "warnings": _warnings(findings),
        "conditions": _merge(testbed, wanted, now),
    }


def _job_fields(job: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the JobManager said of the job; unknown is said, numbers of an earlier answer do not linger."""
    if job is None:
        return {"jobState": "UNKNOWN", "tasks": "", "placement": {}}
    placement = job.get("placement") or {}
    return {
        "jobState": str(job.get("state") or "NONE"),
        "tasks": f"{job.get('running', 0)}/{job.get('total', 0)}",
        "restarts": int(job.get("restarts") or 0),
        "checkpoints": int(job.get("checkpoints") or 0),
        "placement": {str(task): str(where) for task, where in list(placement.items())[:MAX_TARGETS]},
    }


def _warnings(findings: KindFindings) -> list[str]:
    idle = (f"{key}: has no effect here" for key in findings.without_effect)
    return [*findings.warnings, *idle][:MAX_TARGETS]


def selector(name: str) -> str:
    """Of a Testbed's TaskManagers, for the scale subresource."""
    return f"{naming.LABEL_TESTBED}={name},{naming.LABEL_ROLE}={objects.TASKMANAGER_ROLE}"


def _kept(testbed: Mapping[str, Any]) -> dict[str, Any]:
    before = dict(testbed.get("status") or {})
    return {**before, "observedGeneration": testbed["metadata"].get("generation", 0)}


def _merge(testbed: Mapping[str, Any], wanted: Sequence[Condition], now: float) -> list[dict[str, Any]]:
    before = (testbed.get("status") or {}).get("conditions") or ()
    return merged(before, wanted, generation=testbed["metadata"].get("generation", 0), now=now)


def _accepted(findings: KindFindings) -> Condition:
    return yes("Accepted", "Valid", "\n".join(findings.warnings))


def _ready(state: State, job: Mapping[str, Any] | None) -> Condition:
    missing = [p for p in state.desired if not state.ready(p)]
    if not missing and job is None:
        return no("Ready", JOBMANAGER_NOT_REACHED, NO_ANSWER)
    if not missing:
        return yes("Ready", "AllReady", f"{len(state.desired)} pods are ready")
    if state.lost and set(missing) <= set(state.lost):
        return no("Ready", "TaskManagerLost", f"lost: {', '.join(state.lost)}")
    told = [f"{p}: {state.pods[p].problem}" for p in missing if p in state.pods and state.pods[p].problem]
    more = f" (and {len(told) - PROBLEMS_SHOWN} more)" if len(told) > PROBLEMS_SHOWN else ""
    problems = "; ".join(told[:PROBLEMS_SHOWN]) + more
    text = f"not ready: {', '.join(missing)}"
    return no("Ready", "PodsNotReady", f"{text}. {problems}" if problems else text)


def _reconciling(state: State, steps: Steps) -> Condition:
    if steps.replace or state.stale or state.estranged:
        return yes("Reconciling", "Replacing", f"still to be replaced: {', '.join(state.stale)}".rstrip(": "))
    leaving = [p for p in state.pods if p not in state.desired]
    if steps.make or steps.remove or leaving:
        return yes("Reconciling", "Scaling", "pods are made or taken away")
    if any(not state.ready(p) for p in state.desired if p not in state.lost):
        return yes("Reconciling", "Starting", "pods are not ready yet")
    return no("Reconciling", "Settled")


def _job_running(spec: Mapping[str, Any], job: Mapping[str, Any] | None) -> Condition:
    if job is None:
        return unknown("JobRunning", JOBMANAGER_NOT_REACHED, NO_ANSWER)
    state = str(job.get("state") or "none")
    if state == "RUNNING":
        return yes("JobRunning", "Running", f"{job.get('running', 0)} of {job.get('total', 0)} tasks run")
    if state == "none" and spec.get("jobState") == "suspended":
        return no("JobRunning", "Suspended", "no job is submitted yet")
    return no("JobRunning", "NotRunning", f"state {state}")


def _phase(ready: Condition, state: State, steps: Steps) -> str:
    if steps.replace or state.stale:
        return "Rolling"
    if ready.status == "True":
        return "Ready"
    return "Degraded" if ready.reason == "TaskManagerLost" else "Starting"


# ---- Events


def events(testbed: Mapping[str, Any], state: State, steps: Steps, status: Mapping[str, Any]) -> list[Emit]:
    """Each change that somebody would grep for, once."""
    before = testbed.get("status") or {}
    found = [*_losses(before, state), *_makings(testbed, before, state, steps)]
    if is_true(status, "Ready") and not is_true(before, "Ready"):
        found.append(Emit("Normal", "Ready", f"generation {status['observedGeneration']} is ready"))
    if is_true(status, "JobRunning") and not is_true(before, "JobRunning"):
        restarts = status["restarts"]
        found.append(Emit("Normal", "JobRunning", f"the job runs ({restarts} restarts so far)"))
    return found


def _losses(before: Mapping[str, Any], state: State) -> list[Emit]:
    known = before.get("lost") or {}
    found = []
    for process in state.lost:
        if process in known:
            continue
        pod = state.pods.get(process)
        why = "its pod was deleted" if pod is None or pod.terminating else pod.problem or "its pod ended"
        text = f"{process} (incarnation {state.incarnations.get(process, 0)}): {why}"
        found.append(Emit("Warning", "TaskManagerLost", text))
    return found


def _makings(testbed: Mapping[str, Any], before: Mapping[str, Any], state: State, steps: Steps) -> list[Emit]:
    found = []
    if not before.get("incarnations"):
        return [Emit("Normal", "Creating", f"{len(steps.make)} pods")] if steps.make else []
    for process in steps.make:
        number = state.incarnations.get(process, 0) + 1
        reason = "PodReplaced" if number > 1 else "ScaledUp"
        found.append(Emit("Normal", reason, f"{process} is made, incarnation {number}"))
    found += [Emit("Normal", "ScaledDown", f"{p} is taken away") for p in steps.remove]
    generation = testbed["metadata"].get("generation", 0)
    for process in steps.replace:
        if state.alive(process):
            text = f"{process} is made again for generation {generation}"
            found.append(Emit("Normal", "Replacing", text))
    return found
