"""A Testbed's state, the steps that follow from it, and the status and Events that report both. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headgate_operator import objects
from headgate_operator.plan import conditions
from headgate_operator.plan.conditions import clip, moment, no, unknown, with_conditions, yes
from headgate_operator.plan.model import Emit, overdue
from testbed_runtime.api import naming
from testbed_runtime.api.status import MAX_TARGETS, REJECTED, Condition, TestbedStatus
from testbed_runtime.api.validate_kinds import KindFindings
from testbed_runtime.api.views import Pod, Testbed
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.ids import TASKMANAGER, is_task_manager, ordinal_of

PROBLEMS_SHOWN = 4
"""Maximum different pod problems in a condition's message; further ones are only counted."""
NAMES_SHOWN = 8
"""Maximum pod names in a condition's message; further ones are only counted."""
JOBMANAGER_NOT_REACHED = "JobManagerNotReached"
REPLACING = "Replacing"
NO_ANSWER = "the JobManager does not answer the operator"
FAILED = "FAILED"
WHY_FAILED = (
    "its restart strategy does not allow a restart (without checkpoints, Flink's default is none); "
    "delete and create the Testbed to run the job again"
)
NO_JOB = "the job is not submitted yet, or it ended before this JobManager started"
NOT_STALLED = no("Stalled", "Progressing")


class State(Struct, frozen=True):
    """The pods by logical name, and what the status remembers of them."""

    desired: tuple[str, ...]
    pods: Mapping[str, Pod]
    taken: frozenset[str]
    """Processes whose pod name is still taken by a pod of another Testbed (an earlier one of this name)."""
    incarnations: Mapping[str, int]
    members: frozenset[str]
    lost: Mapping[str, float]
    """Wanted TaskManagers without a live pod, and since when."""
    stale: tuple[str, ...]
    """Live pods with an old configuration or, if they cannot start, with old settings; TaskManagers from the highest ordinal, then the JobManager."""
    old_token: tuple[str, ...]
    """Live pods whose token or certificate is no longer valid: they reject every request, or every connection for data. All are replaced at
    once."""
    old_version: tuple[str, ...]
    """Live pods of an earlier version of Headgate, if one of them is replaced: they may not understand the new ones. All are replaced at once."""

    @property
    def at_once(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.old_token, *self.old_version)))

    def alive(self, process: str) -> bool:
        return process in self.pods and self.pods[process].alive

    def ready(self, process: str) -> bool:
        return process in self.pods and self.pods[process].ready


class Steps(Struct, frozen=True):
    """The actions of this pass, by logical name."""

    make: tuple[str, ...]
    remove: tuple[str, ...]
    """No longer wanted."""
    replace: tuple[str, ...]
    """Deleted now, created again when the name is free."""
    next_s: float | None


def ordinal(process: str) -> int:
    return ordinal_of(process) if is_task_manager(process) else 0


# ---- the status


def rejected(testbed: Testbed, text: str, now: float) -> TestbedStatus:
    """Return the status of a rejected spec. It keeps what is known about the pods of an earlier, accepted spec."""
    status = replace(testbed.status, phase=REJECTED, message=text.partition("\n")[0], configuration="")
    return with_conditions(testbed, status, conditions.refused("Invalid", text), now)


def waiting_for_secret(testbed: Testbed, secret: str, findings: KindFindings, now: float) -> TestbedStatus:
    return _waiting(testbed, "WaitingForSecret", f"waits for Secret {secret}", findings, now)


def names_taken(testbed: Testbed, taken: Sequence[str], findings: KindFindings, now: float) -> TestbedStatus:
    text = (
        f"waits until {', '.join(taken)} of another owner is gone; "
        "if that object is to stay, give this Testbed another name"
    )
    return _waiting(testbed, "NamesTaken", text, findings, now)


def _waiting(testbed: Testbed, reason: str, text: str, findings: KindFindings, now: float) -> TestbedStatus:
    configuration = objects.configuration(testbed.raw)
    status = replace(testbed.status, phase="Starting", message=text, configuration=configuration)
    wanted = [_accepted(findings), no("Ready", reason, text), yes("Reconciling", reason, text), NOT_STALLED]
    return with_conditions(testbed, status, wanted, now)


def of(  # noqa: PLR0917 - all parts of a status
    testbed: Testbed,
    state: State,
    steps: Steps,
    job: Mapping[str, Any] | None,
    findings: KindFindings,
    now: float,
) -> TestbedStatus:
    """Return the status that is written before `steps` are done."""
    deleted_or_new = {*steps.make, *steps.remove, *steps.replace}
    ready = _ready(state, steps, job)
    overdue_reason, late = overdue(state.pods.values(), now)
    status = replace(
        testbed.status,
        phase=_phase(ready, state, steps),
        message="" if ready.is_true else ready.message,
        task_managers=sum(is_task_manager(p) for p in state.pods),
        ready_task_managers=sum(state.ready(p) for p in state.desired if is_task_manager(p)),
        selector=selector(testbed.name),
        configuration=objects.configuration(testbed.raw),
        incarnations={**state.incarnations, **{p: state.incarnations.get(p, 0) + 1 for p in steps.make}},
        members=tuple(sorted(state.members - deleted_or_new)),
        lost={p: moment(since) for p, since in state.lost.items() if p not in deleted_or_new},
        warnings=findings.notes[:MAX_TARGETS],
        **_job_fields(job),
    )
    wanted = [
        _accepted(findings),
        ready,
        no("Reconciling", overdue_reason) if late else _reconciling(state, steps),
        yes("Stalled", overdue_reason, clip(late)) if late else NOT_STALLED,
        _job_running(testbed, job),
    ]
    return with_conditions(testbed, status, wanted, now)


def _job_fields(job: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the status fields from the JobManager's answer. Without an answer, the state is UNKNOWN and an earlier placement is dropped."""
    if job is None:
        return {"job_state": "UNKNOWN", "tasks": "", "placement": {}}
    placement = job.get("placement") or {}
    return {
        "job_state": str(job.get("state") or "NONE"),
        "tasks": f"{job.get('running', 0)}/{job.get('total', 0)}",
        "restarts": int(job.get("restarts") or 0),
        "checkpoints": int(job.get("checkpoints") or 0),
        "placement": {str(task): str(where) for task, where in list(placement.items())[:MAX_TARGETS]},
    }


def selector(name: str) -> str:
    """Return the selector of a Testbed's TaskManagers, for the scale subresource."""
    return f"{naming.LABEL_TESTBED}={name},{naming.LABEL_ROLE}={TASKMANAGER}"


def _accepted(findings: KindFindings) -> Condition:
    return yes("Accepted", "Valid", "\n".join(findings.warnings))


def _ready(state: State, steps: Steps, job: Mapping[str, Any] | None) -> Condition:
    missing = [p for p in state.desired if not state.ready(p)]
    if not missing and job is None:
        return no("Ready", JOBMANAGER_NOT_REACHED, NO_ANSWER)
    if not missing and _is_replacing(state, steps):
        return no("Ready", REPLACING, _to_replace(state))
    if not missing:
        return yes("Ready", "AllReady", f"{len(state.desired)} pods are ready")
    if state.lost and set(missing) <= set(state.lost):
        return no("Ready", "TaskManagerLost", f"lost: {_few([*state.lost])}")
    known = ((state.pods[process].problem, process) for process in missing if process in state.pods)
    problems = grouped(pair for pair in known if pair[0])  # many pods often have the same one
    listed = [f"{_few(processes)}: {problem}" for problem, processes in problems.items()]
    more = f" (and {len(listed) - PROBLEMS_SHOWN} more)" if len(listed) > PROBLEMS_SHOWN else ""
    shown = "; ".join(listed[:PROBLEMS_SHOWN]) + more
    text = f"not ready: {_few(missing)}"
    return no("Ready", "PodsNotReady", f"{text}. {shown}" if shown else text)


def _few(names: Sequence[str]) -> str:
    """Return the names, or the first ones and how many more there are."""
    if len(names) <= NAMES_SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:NAMES_SHOWN])} and {len(names) - NAMES_SHOWN} more"


def _is_replacing(state: State, steps: Steps) -> bool:
    return bool(steps.replace or state.stale or state.at_once)


def _to_replace(state: State) -> str:
    pending = ", ".join(dict.fromkeys((*state.stale, *state.at_once)))
    return f"still to be replaced: {pending}".rstrip(": ")


def _reconciling(state: State, steps: Steps) -> Condition:
    if _is_replacing(state, steps):
        return yes("Reconciling", REPLACING, _to_replace(state))
    leaving = [p for p in state.pods if p not in state.desired]
    if steps.make or steps.remove or leaving:
        return yes("Reconciling", "Scaling", "pods are being created or deleted")
    if any(not state.ready(p) for p in state.desired if p not in state.lost):
        return yes("Reconciling", "Starting", "pods are not ready yet")
    return no("Reconciling", "Settled")


def _job_running(testbed: Testbed, job: Mapping[str, Any] | None) -> Condition:
    if job is None:
        return unknown("JobRunning", JOBMANAGER_NOT_REACHED, NO_ANSWER)
    state = str(job.get("state") or "NONE")
    if state == "RUNNING":
        running = job.get("running", 0)
        text = f"{running} of {job.get('total', 0)} tasks are running"
        return yes("JobRunning", "Running", text) if running else no("JobRunning", "Deploying", text)
    if state == "NONE" and not testbed.submits_job:
        return no("JobRunning", "Suspended", "no job is submitted yet")
    if state == "NONE":
        return no("JobRunning", "NotRunning", f"state {state}: {NO_JOB}")
    cause = job.get("cause")
    return no("JobRunning", "NotRunning", clip(f"state {state}: {cause}") if cause else f"state {state}")


def _phase(ready: Condition, state: State, steps: Steps) -> str:
    if steps.replace or state.stale:
        return "Rolling"
    if ready.is_true:
        return "Ready"
    return "Degraded" if ready.reason == "TaskManagerLost" else "Starting"


# ---- Events


def events(testbed: Testbed, state: State, steps: Steps, status: TestbedStatus) -> list[Emit]:
    """Return an Event for each change that a user would look for."""
    before = testbed.status
    found = [*_losses(before, state), *_pod_events(testbed, state, steps)]
    stalled = status.condition("Stalled")
    if stalled and stalled.is_true and not before.is_true("Stalled"):
        found.append(Emit("Warning", stalled.reason, stalled.message))
    if status.is_true("Ready") and not before.is_true("Ready"):
        found.append(Emit("Normal", "Ready", f"generation {status.observed_generation} is ready"))
    if status.is_true("JobRunning") and not before.is_true("JobRunning"):
        # without the number of restarts, so that the Events of a job that restarts again and again are counted as one
        found.append(Emit("Normal", "JobRunning", "the job is running"))
    if status.job_state == FAILED and before.job_state != FAILED and testbed.submits_job:
        found.append(Emit("Warning", "JobFailed", f"the job failed and does not restart: {WHY_FAILED}"))
    return found


def _losses(before: TestbedStatus, state: State) -> list[Emit]:
    found = []
    for process in state.lost:
        if process in before.lost:
            continue
        pod = state.pods.get(process)
        why = "its pod was deleted" if pod is None or pod.terminating else pod.problem or "its pod ended"
        text = f"{process} (incarnation {state.incarnations.get(process, 0)}): {why}"
        found.append(Emit("Warning", "TaskManagerLost", text))
    return found


def _pod_events(testbed: Testbed, state: State, steps: Steps) -> list[Emit]:
    if not testbed.status.incarnations:
        return [Emit("Normal", "Creating", f"{len(steps.make)} pods")] if steps.make else []
    found = []
    for process in steps.make:
        number = state.incarnations.get(process, 0) + 1
        reason = "PodReplaced" if number > 1 else "ScaledUp"
        found.append(Emit("Normal", reason, f"creating {process}, incarnation {number}"))
    found += [Emit("Normal", "ScaledDown", f"deleting {p}") for p in steps.remove]
    found += [
        Emit("Normal", "Replacing", f"replacing {p}{_why_replaced(testbed, state, p)}")
        for p in steps.replace
        if state.alive(p)
    ]
    return found


def _why_replaced(testbed: Testbed, state: State, process: str) -> str:
    if state.pods[process].config != objects.pod_hash(testbed.raw, process):
        return f" for generation {testbed.generation}"
    if process in state.old_token:
        return ": its token or certificate is no longer valid"
    if process in state.old_version:
        return ": it is of an earlier version than the pods that are created now"
    return ": it could not start, and the settings of the installation may have changed"
