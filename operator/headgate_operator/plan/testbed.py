"""Decide which pods of a Testbed are created, replaced or deleted now. Pure.

The status stores what the next reconcile needs, and is written before anything is done. `incarnations` has the newest number of
each process. `members` are the processes whose pod was seen and was not deleted by the operator itself: a member without a pod
is lost. `lost` has the time of each loss. A pod is created for each wanted process that is no member and has no pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headgate_operator import objects
from headgate_operator.plan import testbed_status
from headgate_operator.plan.model import (
    Action,
    Apply,
    Create,
    Emit,
    Plan,
    delete,
    has_old_settings,
    with_images_of,
)
from headgate_operator.plan.testbed_status import State, Steps, ordinal
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import TestbedStatus
from testbed_runtime.api.validate_kinds import KindFindings, validate_kind
from testbed_runtime.api.views import Manifest, Pod, Resource, Secret, Testbed, seconds
from testbed_runtime.core.ids import JOBMANAGER, is_task_manager
from testbed_runtime.core.job.messages import TERMINAL_JOB_STATES

SOON_S = 1.0
"""Seconds until the next reconcile, for changes that cause no event: a job that starts, a name that is no longer taken."""
LATER_S = 10.0
"""Interval between queries of a job that is running or has ended."""


class TestbedObserved(Struct, frozen=True):
    __test__ = False

    testbed: Testbed
    pods: tuple[Pod, ...] = ()
    """All pods with the Testbed's label."""
    secret: Secret | None = None
    """The ConfigMap that the testbed's pods mount."""
    config_map: Manifest | None = None
    service: Resource | None = None
    claim: Resource | None = None
    job: Mapping[str, Any] | None = None
    """The JobManager's answer; None: no answer."""
    new_token: str = ""
    certificate: Secret | None = None
    """The Secret with the certificate of the data ports; None also if they do not use TLS."""
    new_certificate: bytes = b""
    runner: Pod | None = None
    """The runner of the run that the Testbed belongs to."""

    @property
    def object(self) -> Manifest:
        return self.testbed.raw

    def secret_uids(self, process: str) -> str:
        """Return the uids of the Secrets that a pod of this process mounts now, as in its annotation."""
        secrets = [self.secret]
        if objects.certificate_of(self.object, process):
            secrets.append(self.certificate)
        return ".".join(s.uid if s else "" for s in secrets)

    @property
    def lacks_certificate(self) -> bool:
        return bool(self.testbed.certificate_secret) and self.certificate is None


def plan(observed: TestbedObserved, settings: Settings, now: float) -> Plan:
    """Plan nothing for a Testbed that is being deleted: garbage collection removes its children."""
    testbed = observed.testbed
    if testbed.terminating:
        return Plan()
    findings = validate_kind(testbed.raw)
    if findings.errors:
        return _rejected(testbed, findings, now)
    if taken := _taken(observed):
        return Plan((), testbed_status.names_taken(testbed, taken, findings, now), SOON_S)
    state = state_of_processes(observed, settings, now)
    own = not testbed.given_secret
    base = _base(observed, create_secret=own and not state.pods)
    missing = observed.secret is None or not (own or observed.secret.token)
    if missing and not (own and state.pods):
        name = testbed.token_secret if own else f"{testbed.token_secret} with a key `token`"
        waiting = testbed_status.waiting_for_secret(testbed, name, findings, now)
        return Plan(tuple(base), waiting, 0.0 if own else SOON_S)
    if observed.new_certificate:
        made = Create(objects.certificate_secret(testbed.raw, observed.new_certificate))
        waiting = testbed_status.waiting_for_secret(testbed, testbed.certificate_secret, findings, now)
        return Plan((*base, made), waiting, 0.0)
    steps = decide(state, testbed, now)
    # the pods that mount a lost Secret are deleted first: see naming.testbed_token_name
    if observed.secret is None or observed.lacks_certificate:
        steps = replace(steps, make=())
    status = testbed_status.of(testbed, state, steps, observed.job, findings, now)
    events = testbed_status.events(testbed, state, steps, status)
    actions = (*base, *_pod_actions(observed, state, steps, settings), *events)
    return Plan(actions, status, _next(steps, state, testbed, observed.job))


def _taken(observed: TestbedObserved) -> list[str]:
    """Return the objects of other owners whose names this Testbed needs. The owner is usually an earlier Testbed of the same name, with which
    they are garbage-collected. Until then, the volume claim holds the checkpoints of that earlier Testbed."""
    return [
        f"{obj.kind} {obj.name}"
        for obj in (observed.service, observed.claim)
        if obj is not None and obj.owners and not obj.owned_by(observed.testbed)
    ]


def _rejected(testbed: Testbed, findings: KindFindings, now: float) -> Plan:
    """Report the errors of a rejected spec, and leave the pods of an earlier, accepted spec as they are. The same error has only one Event."""
    text = "\n".join(str(error) for error in findings.errors)
    before = testbed.status.condition("Accepted")
    reported = before is not None and before.status == "False" and before.message == text
    status = testbed_status.rejected(testbed, text, now)
    return Plan(() if reported else (Emit("Warning", "Rejected", text),), status)


def _base(observed: TestbedObserved, *, create_secret: bool) -> list[Action]:
    """Return the actions that create or update the objects which pods need before they start."""
    testbed = observed.object
    wanted = objects.config_map(testbed)
    actions: list[Action] = []
    if observed.config_map is None or observed.config_map.get("data") != wanted["data"]:
        actions.append(Apply(wanted))
    if observed.service is None:
        actions.append(Apply(objects.service(testbed)))
    if observed.secret is None and create_secret:
        actions.append(Create(objects.token_secret(testbed, observed.new_token)))
    claim = objects.store_claim(testbed)
    if claim is not None and observed.claim is None:
        actions.append(Create(claim))
    return actions


# ---- the present state


def state_of_processes(observed: TestbedObserved, settings: Settings, now: float) -> State:
    """Return the state of each process, from its pod and from what the status remembers."""
    testbed, status = observed.testbed, observed.testbed.status
    pods = {pod.process: pod for pod in observed.pods if pod.controller == testbed.uid}
    desired = objects.processes(testbed.spec)
    seen = {p for p, pod in pods.items() if not pod.terminating}
    members = frozenset((seen | set(status.members)) & set(desired))
    before = {name: seconds(since) for name, since in status.lost.items()}
    lost = {
        p: before.get(p, now)
        for p in desired
        if is_task_manager(p) and p in members and not (p in pods and pods[p].alive)
    }
    live = [p for p in rolling_order(desired) if p in pods and pods[p].alive]
    changed = [p for p in live if pods[p].config != objects.pod_hash(testbed.raw, p)]
    stuck = [p for p in live if _is_stuck(observed, pods[p], settings)]
    old = [p for p in live if p not in objects.FIXED and pods[p].image != settings.image]
    ends_old = changed or any(pods[p].without_image for p in stuck)
    return State(
        desired,
        pods,
        frozenset(pod.process for pod in observed.pods if pod.controller != testbed.uid),
        _incarnations(status, pods),
        members,
        lost,
        tuple(p for p in live if p in changed or p in stuck),
        tuple(p for p in live if pods[p].secret_uid != observed.secret_uids(p)),
        tuple(p for p in live if p in changed or p in old) if old and ends_old else (),
    )


def _is_stuck(observed: TestbedObserved, pod: Pod, settings: Settings) -> bool:
    """Return whether the pod cannot start, possibly because of old settings. During a trial it stays: deleting it would void the trial.
    A trial has begun when its job is submitted, which only the JobManager knows, or when a pod was replaced."""
    submitted = (observed.job or {}).get("state") or "NONE"
    in_trial = naming.LABEL_RUN in observed.testbed.labels and (pod.incarnation > 1 or submitted != "NONE")
    return has_old_settings(pod, settings) and not in_trial


def _incarnations(status: TestbedStatus, pods: Mapping[str, Pod]) -> dict[str, int]:
    """Return the newest number of each process. This includes pods that are missing from a lost status, so that no id is used twice."""
    numbers = dict(status.incarnations)
    for process, pod in pods.items():
        numbers[process] = max(numbers.get(process, 0), pod.incarnation)
    return numbers


def rolling_order(processes: Sequence[str]) -> list[str]:
    """Return TaskManagers from the highest ordinal, then the others; the JobManager last."""
    return sorted(processes, key=lambda p: (p == JOBMANAGER, not is_task_manager(p), -ordinal(p)))


# ---- the steps


def decide(state: State, testbed: Testbed, now: float) -> Steps:
    """Roll at most one pod at a time. Lost and unwanted pods do not wait for that."""
    unwanted = [p for p, pod in state.pods.items() if p not in state.desired and not pod.terminating]
    remove = sorted(unwanted, key=ordinal, reverse=True)
    delay = testbed.replace_lost_s
    due = {p for p, since in state.lost.items() if delay is not None and now >= since + delay}
    make, dead = [], []
    for process in state.desired:
        if state.alive(process) or (process in state.lost and process not in due):
            continue
        pod = state.pods.get(process)
        if pod is None and process not in state.taken:
            make.append(process)
        elif pod is not None and not pod.terminating:
            dead.append(process)
    waits = [since + delay - now for p, since in state.lost.items() if delay is not None and p not in due]
    blocked = any(p in state.taken for p in state.desired)
    rolled = state.at_once or _roll(state, quiet=not (make or dead or remove))
    pods_to_replace = tuple(dict.fromkeys((*dead, *rolled)))
    pause = min([*waits, *([SOON_S] if blocked else [])], default=None)
    return Steps(tuple(make), tuple(remove), pods_to_replace, pause)


def _roll(state: State, *, quiet: bool) -> tuple[str, ...]:
    """Return the next pod to replace because of a changed configuration. A pod that is not ready is replaced first. Otherwise all other
    pods have to be ready, so that at most one is missing."""
    broken = [p for p in state.stale if not state.ready(p)]
    if broken:
        return (broken[0],)
    settled = all(state.ready(p) for p in state.desired if p not in state.lost)
    return state.stale[:1] if quiet and settled else ()


def _pod_actions(observed: TestbedObserved, state: State, steps: Steps, settings: Settings) -> list[Action]:
    deletes = [delete("Pod", state.pods[process]) for process in (*steps.remove, *steps.replace)]
    settings = _as_its_peers(observed, state, steps, settings)
    creates = [
        Create(
            objects.pod(
                observed.object,
                process,
                incarnation=state.incarnations.get(process, 0) + 1,
                secret_uid=observed.secret_uids(process),
                settings=settings,
            )
        )
        for process in steps.make
    ]
    return [*deletes, *creates]


def _as_its_peers(observed: TestbedObserved, state: State, steps: Steps, settings: Settings) -> Settings:
    """Return the settings with the images of the pods that stay, or of the run's runner. After an upgrade of the installation, these may not
    understand a pod of the new version."""
    stay = [p for p in state.desired if p not in objects.FIXED and p not in steps.replace and state.alive(p)]
    peers = [*(state.pods[p] for p in stay), *([observed.runner] if observed.runner else [])]
    return with_images_of(peers, settings)


def _next(steps: Steps, state: State, testbed: Testbed, job: Mapping[str, Any] | None) -> float:
    """Return the seconds until the JobManager is asked again; changes of pods arrive as events."""
    answer = job or {}
    settled = (
        answer.get("running")
        if answer.get("state") == "RUNNING"
        else answer.get("state") in TERMINAL_JOB_STATES
    )
    starting = testbed.submits_job and not settled
    soon = state.alive(JOBMANAGER) and (job is None or starting)
    look_again = SOON_S if soon else LATER_S
    return min(look_again, steps.next_s if steps.next_s is not None else LATER_S)
