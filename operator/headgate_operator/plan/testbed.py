"""A Testbed's pods: which are to be made, replaced or taken away now. Pure.

What has to be remembered stands in the status, written before anything is done: `incarnations` (the newest number of each
process), `members` (processes whose pod was seen, and that we did not take away ourselves: one of these without a pod is lost)
and `lost` (since when). A process that is wanted, is no member and has no pod is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate_operator import objects
from headgate_operator.plan import conditions, testbed_status
from headgate_operator.plan.model import Action, Apply, Create, Delete, Emit, Plan
from headgate_operator.plan.podview import PodView, view
from headgate_operator.plan.testbed_state import State, Steps
from headgate_operator.settings import Settings
from testbed_runtime.api.fields import NEVER
from testbed_runtime.api.validate_kinds import KindFindings, validate_kind
from testbed_runtime.core.options import parse_duration

SOON_S = 1.0
"""Until the next look at what no event tells of: a job that starts, a name that is still taken."""
LATER_S = 10.0
"""Between looks at a job that runs, or is over."""
SETTLED_JOBS = frozenset({"RUNNING", "FINISHED", "FAILED", "CANCELED"})
"""States of a job that is not on its way to another one at once."""


@dataclass(frozen=True, slots=True)
class TestbedObserved:
    """`pods`: all that bear the testbed's label. `secret`: the one its pods get their token from. `job`: None is unknown."""

    __test__ = False

    object: Mapping[str, Any]
    pods: tuple[Mapping[str, Any], ...] = ()
    secret: Mapping[str, Any] | None = None
    config_map: Mapping[str, Any] | None = None
    service: Mapping[str, Any] | None = None
    claim: Mapping[str, Any] | None = None
    job: Mapping[str, Any] | None = None
    new_token: str = ""


def plan(observed: TestbedObserved, settings: Settings, now: float) -> Plan:
    """A Testbed that is being deleted needs nothing: its children are collected. One that is not accepted creates nothing."""
    testbed = observed.object
    if testbed["metadata"].get("deletionTimestamp"):
        return Plan()
    findings = validate_kind(testbed)
    if findings.errors:
        return _rejected(observed, findings, now)
    if taken := _taken(observed):
        return Plan((), testbed_status.names_taken(testbed, taken, findings, now), SOON_S)
    state = look(observed, now)
    own = not (testbed["spec"].get("pods") or {}).get("tokenSecret")
    base = _base(observed, create_secret=own and not state.pods)
    if observed.secret is None and not (own and state.pods):
        status = testbed_status.waiting_for_secret(testbed, objects.token_secret_name(testbed), findings, now)
        return Plan(tuple(base), status, 0.0 if own else SOON_S)
    steps = decide(state, testbed["spec"], now)
    if (
        observed.secret is None
    ):  # the pods that mount the lost one are deleted first: see naming.testbed_token_name
        steps = replace(steps, make=())
    status = testbed_status.of(observed.object, state, steps, observed.job, findings, now)
    events = testbed_status.events(testbed, state, steps, status)
    actions = (*base, *_pod_actions(observed, state, steps, settings), *events)
    return Plan(actions, status, _next(steps, state, testbed["spec"], observed.job))


def _taken(observed: TestbedObserved) -> list[str]:
    """Return the objects that have a name of this Testbed's and another owner: usually an earlier Testbed of its name.

    They are collected with their owner. Until then the claim holds the checkpoints of that Testbed."""
    uid = observed.object["metadata"]["uid"]
    found = []
    for obj in (observed.service, observed.claim):
        owners = (obj or {}).get("metadata", {}).get("ownerReferences") or ()
        if obj is not None and owners and all(o["uid"] != uid for o in owners):
            found.append(f"{obj['kind']} {obj['metadata']['name']}")
    return found


def _rejected(observed: TestbedObserved, findings: KindFindings, now: float) -> Plan:
    """Pods of an earlier, accepted spec stay as they are."""
    text = "\n".join(str(error) for error in findings.errors)
    status = testbed_status.rejected(observed.object, text, now)
    before = conditions.find(observed.object.get("status") or {}, "Accepted")
    told = before is not None and before["status"] == "False" and before["message"] == text
    return Plan(() if told else (Emit("Warning", "Rejected", text),), status)


def _base(observed: TestbedObserved, *, create_secret: bool) -> list[Action]:
    """What pods need before they start; applied only where something is missing or differs."""
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


# ---- what is there


def look(observed: TestbedObserved, now: float) -> State:
    """The state of each process, from its pod and from what the status remembers."""
    testbed, status = observed.object, observed.object.get("status") or {}
    uid = testbed["metadata"]["uid"]
    views = [view(pod) for pod in observed.pods]
    pods = {v.process: v for v in views if v.owner == uid}
    desired = objects.processes(testbed["spec"])
    seen = {p for p, v in pods.items() if not v.terminating}
    members = frozenset((seen | set(status.get("members") or ())) & set(desired))
    before = {name: conditions.seconds(since) for name, since in (status.get("lost") or {}).items()}
    lost = {
        p: before.get(p, now)
        for p in desired
        if p.startswith("tm-") and p in members and not (p in pods and pods[p].alive)
    }
    secret_uid = observed.secret["metadata"]["uid"] if observed.secret else ""
    live = [p for p in rolling_order(desired) if p in pods and pods[p].alive]
    return State(
        desired,
        pods,
        frozenset(v.process for v in views if v.owner != uid),
        _incarnations(status, pods),
        members,
        lost,
        tuple(p for p in live if pods[p].config != objects.pod_hash(testbed, p)),
        tuple(p for p in live if pods[p].secret_uid != secret_uid),
    )


def _incarnations(status: Mapping[str, Any], pods: Mapping[str, PodView]) -> dict[str, int]:
    """The newest of what was written down and of what is there: a status that was wiped does not bring ids twice."""
    numbers = {name: int(number) for name, number in (status.get("incarnations") or {}).items()}
    for process, pod in pods.items():
        numbers[process] = max(numbers.get(process, 0), pod.incarnation)
    return numbers


def rolling_order(processes: Sequence[str]) -> list[str]:
    """TaskManagers from the highest ordinal, then the others; the JobManager last."""
    return sorted(processes, key=lambda p: (p == objects.JOBMANAGER, not p.startswith("tm-"), -_ordinal(p)))


def _ordinal(process: str) -> int:
    return int(process.removeprefix("tm-")) if process.startswith("tm-") else 0


# ---- what is to be done


def decide(state: State, spec: Mapping[str, Any], now: float) -> Steps:
    """At most one pod is rolled at a time; what is lost or not wanted any more does not wait for that."""
    unwanted = [p for p, pod in state.pods.items() if p not in state.desired and not pod.terminating]
    remove = sorted(unwanted, key=_ordinal, reverse=True)
    delay = replace_after(spec)
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
    rolled = state.estranged or _roll(state, quiet=not (make or dead or remove))
    replace = tuple(dict.fromkeys((*dead, *rolled)))
    pause = min([*waits, *([SOON_S] if blocked else [])], default=None)
    return Steps(tuple(make), tuple(remove), replace, pause)


def _roll(state: State, *, quiet: bool) -> tuple[str, ...]:
    """The next one to be replaced because of a changed configuration. One that is not ready serves nothing and goes first;
    else everything else has to be ready, so that at most one is missing."""
    broken = [p for p in state.stale if not state.ready(p)]
    if broken:
        return (broken[0],)
    settled = all(state.ready(p) for p in state.desired if p not in state.lost)
    return state.stale[:1] if quiet and settled else ()


def replace_after(spec: Mapping[str, Any]) -> float | None:
    """Seconds; None: never."""
    text = str((spec.get("taskManagers") or {}).get("replaceLost", NEVER))
    return None if text == NEVER else parse_duration(text)


def _pod_actions(observed: TestbedObserved, state: State, steps: Steps, settings: Settings) -> list[Action]:
    testbed = observed.object
    secret_uid = observed.secret["metadata"]["uid"] if observed.secret else ""
    deletes = [
        Delete("v1", "Pod", testbed["metadata"]["namespace"], state.pods[p].name, state.pods[p].uid)
        for p in (*steps.remove, *steps.replace)
    ]
    creates = [
        Create(
            objects.pod(
                testbed,
                process,
                incarnation=state.incarnations.get(process, 0) + 1,
                secret_uid=secret_uid,
                settings=settings,
            )
        )
        for process in steps.make
    ]
    return [*deletes, *creates]


def _next(steps: Steps, state: State, spec: Mapping[str, Any], job: Mapping[str, Any] | None) -> float:
    """Return the seconds until the JobManager is asked again; changes of pods arrive as events."""
    job_state = (job or {}).get("state")
    starting = spec.get("jobState", "running") == "running" and job_state not in SETTLED_JOBS
    soon = state.alive(objects.JOBMANAGER) and (job is None or starting)
    look_again = SOON_S if soon else LATER_S
    return min(look_again, steps.next_s if steps.next_s is not None else LATER_S)
