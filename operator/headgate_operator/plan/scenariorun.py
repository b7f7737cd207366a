"""A ScenarioRun: its recorder, runner and Spark are there while it runs, its status mirrors what the runner says, and nothing of it
stays when it is gone. Pure.

    Suspended → Starting → Running → Evaluating → Complete          (Rejected: Complete at once, Accepted=False)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate_operator import objects_runs
from headgate_operator.plan import runstatus
from headgate_operator.plan.conditions import find, seconds
from headgate_operator.plan.model import (
    Action,
    Ask,
    Create,
    Delete,
    Emit,
    Manifest,
    Patch,
    Plan,
    SetFinalizers,
)
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.validate_kinds import KindFindings, validate_kind

RUNNER_AGAIN_MAX = 5
"""Runner pods that are made again, and starts of one pod's container, before the run is given up."""
SPARK_WARM_S = 120.0
"""How long Spark stays after the last run: the next one of a batch starts within it."""
EVALUATION_FAILED = "EvaluationFailed"
HEAL_LIMIT_S = 60.0
"""A deletion waits no longer for testbeds to be gone, a heal no longer for the runner: the agents hold the deadlines of their faults."""
RUNNER_END_S = 60.0
"""How long a runner may take to end after it has written how its run ended."""
LOOK_AGAIN_S = 5.0
"""While it runs; changes of what has the run's label come by watch, sooner."""
LOOK_SOON_S = 1.0
"""While something is on its way out, or is being healed."""
WARNINGS_TOLD = 16
"""As Events of their own; variants times options could be thousands."""
PRESENT = tuple[str, str]
"""(kind, name)"""


@dataclass(frozen=True, slots=True)
class Observed:
    object: Manifest
    pods: Mapping[str, Manifest] = field(default_factory=dict)
    """By name: the run's own, and the Spark pod it uses."""
    shared: Mapping[PRESENT, Manifest] = field(default_factory=dict)
    """Service and Secret of the Spark pod, service accounts, RoleBindings."""
    present: frozenset[PRESENT] = frozenset()
    """What else of the run is there: Secret, Service, claim."""
    taken: tuple[str, ...] = ()
    """Of the names that it needs, those that objects of somebody else bear: mostly of an earlier run of its name."""
    report: Mapping[str, Any] | None = None
    """`status.json` of ConfigMap `<run>-status`."""
    testbeds: tuple[Manifest, ...] = ()
    unfinished: int = 0
    """Other runs of the namespace that are not Complete and use its warm Spark."""
    last_end: float = 0.0
    """When the newest Complete run of the namespace ended."""
    claim_modes: tuple[str, ...] | None = None
    """Access modes of the history's claim; None: there is no such claim."""
    tokens: tuple[str, str] = ("", "")
    """Fresh ones, for the run and for Spark, where a Secret has to be made."""

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.object["metadata"]["namespace"])

    @property
    def status(self) -> Mapping[str, Any]:
        return self.object.get("status") or {}

    @property
    def runner(self) -> Manifest | None:
        return self.pods.get(naming.runner_name(self.name))


def plan(observed: Observed, settings: Settings, now: float) -> Plan:
    metadata = observed.object["metadata"]
    if metadata.get("deletionTimestamp"):
        return _deletion(observed, now)
    if finished(observed.object):
        return _after_end(observed, now)
    findings = None if _accepted(observed) else validate_kind(observed.object)
    if findings is not None and findings.errors:
        return _rejected(observed, findings, now)
    if _healed(observed) and not observed.status.get("runnerStarts"):
        text = "it was healed before it began"
        return _conclude(observed, now, verdict="Inconclusive", reason="Healed", text=text)
    if observed.object["spec"].get("suspend") and not _started(observed):
        status = runstatus.suspended(observed.object, now)
        return Plan((*_first_events(observed, findings),), status)
    return _running(observed, findings, settings, now)


def finished(run: Manifest) -> bool:
    """Whether its status is final."""
    return bool((run.get("status") or {}).get("phase") == "Complete")


def uses_warm_spark(run: Manifest) -> bool:
    return objects_runs.executors(run) == 0


# ---- while it runs


def _running(observed: Observed, findings: KindFindings | None, settings: Settings, now: float) -> Plan:
    report = observed.report or {}
    if report.get("phase") == "Complete" and report.get("verdict"):
        return _mirrored_end(observed, findings, now)
    if unanswered := _unanswered_heal(observed, now):
        return _conclude(observed, now, verdict="Inconclusive", reason="Healed", text=unanswered)
    given_up = _given_up(observed)
    if given_up:
        return _conclude(observed, now, verdict="Error", reason="RunnerLost", text=given_up)
    if observed.taken:
        status = runstatus.blocked(observed.object, observed.taken, now)
        return Plan((*_first_events(observed, findings),), status, LOOK_SOON_S)
    status = runstatus.running(
        observed.object,
        report,
        observed.runner,
        now,
        history=_history(observed),
        spark=_spark(observed),
        healing=_healed(observed),
    )
    if observed.object["metadata"].get("finalizers") is None or not _has_finalizer(observed):
        finalizers = (*(observed.object["metadata"].get("finalizers") or ()), naming.FINALIZER)
        return Plan((SetFinalizers(finalizers), *_first_events(observed, findings)), status, 0.0)
    actions: list[Action] = [
        *_first_events(observed, findings),
        *runstatus.events(observed.status, status),
        *_namespace_accounts(observed, settings),
        *_spark_objects(observed, settings),
        *_own_objects(observed, settings),
        *_runner(observed, settings),
    ]
    if _healed(observed):
        actions.append(Ask("heal-all"))
    return Plan(tuple(actions), status, LOOK_SOON_S if _healed(observed) else LOOK_AGAIN_S)


def _mirrored_end(observed: Observed, findings: KindFindings | None, now: float) -> Plan:
    report = observed.report or {}
    status = runstatus.ended(observed.object, report, now, history=_history(observed))
    events = [*_first_events(observed, findings), *runstatus.events(observed.status, status)]
    if status["verdict"] == "Error":
        events += [Emit("Warning", EVALUATION_FAILED, _tail(text)) for text in _evaluation_failures(observed)]
    return Plan(tuple(events), status, 0.0)


def _accepted(observed: Observed) -> bool:
    condition = find(observed.status, "Accepted")
    return condition is not None and condition["status"] == "True"


def _started(observed: Observed) -> bool:
    return bool(observed.status.get("runnerStarts")) or observed.runner is not None


def _healed(observed: Observed) -> bool:
    return naming.ANNOTATION_HEAL in (observed.object["metadata"].get("annotations") or {})


def _unanswered_heal(observed: Observed, now: float) -> str:
    """Why a healed run is ended from here; empty while its runner is there to do it, which takes it some seconds."""
    if not _healed(observed):
        return ""
    if not runstatus.container_runs(observed.runner):
        return "it was healed while its runner was not at work"
    healing = find(observed.status, runstatus.HEALING)
    if healing is None or healing["status"] != "True":
        return ""
    if now - seconds(healing["lastTransitionTime"]) <= HEAL_LIMIT_S:
        return ""
    return f"it was healed, and its runner did not end it within {HEAL_LIMIT_S:g} s"


def _has_finalizer(observed: Observed) -> bool:
    return naming.FINALIZER in (observed.object["metadata"].get("finalizers") or ())


def _first_events(observed: Observed, findings: KindFindings | None) -> list[Emit]:
    """What was set and changes nothing is said once, when the run is accepted."""
    if findings is None:
        return []
    found = [Emit("Normal", "Accepted", "the scenario is valid")]
    if findings.without_effect:
        found.append(
            Emit("Normal", "WithoutEffect", f"changes nothing here: {', '.join(findings.without_effect)}")
        )
    found += [Emit("Warning", "Warning", text) for text in findings.warnings[:WARNINGS_TOLD]]
    if (more := len(findings.warnings) - WARNINGS_TOLD) > 0:
        found.append(Emit("Warning", "Warning", f"and {more} more"))
    return found


def _own_objects(observed: Observed, settings: Settings) -> list[Action]:
    run, name = observed.object, observed.name
    recorder = naming.recorder_name(name)
    found: list[Action] = []
    if ("Secret", naming.token_name(name)) not in observed.present:
        found.append(Create(objects_runs.token_secret(run, name, observed.tokens[0])))
    if ("Service", recorder) not in observed.present:
        found.append(Create(objects_runs.recorder_service(run)))
    if settings.recorder_storage and ("PersistentVolumeClaim", recorder) not in observed.present:
        found.append(Create(objects_runs.recorder_claim(run, settings)))
    return [*found, *_pod_again(observed, recorder, objects_runs.recorder_pod(run, settings))]


def _runner(observed: Observed, settings: Settings) -> list[Action]:
    name = naming.runner_name(observed.name)
    found = _pod_again(observed, name, objects_runs.runner_pod(observed.object, settings))
    created = any(isinstance(action, Create) for action in found)
    if created and observed.status.get("runnerStarts"):
        number = observed.status["runnerStarts"]
        text = f"the runner pod is gone; it is made again ({number} of {RUNNER_AGAIN_MAX})"
        found.append(Emit("Warning", "RunnerLost", text))
    elif created:
        found.append(Emit("Normal", "Started", f"runner pod {name} is made"))
    return found


def _pod_again(observed: Observed, name: str, manifest: Manifest) -> list[Action]:
    """A pod that is gone is made; one that ended on its own is removed first."""
    pod = observed.pods.get(name)
    if pod is None:
        return [Create(manifest)]
    ended = (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")
    if ended and not pod["metadata"].get("deletionTimestamp"):
        return [_delete_pod(pod)]
    return []


def _delete_pod(pod: Manifest, *, grace_s: int | None = None) -> Delete:
    metadata = pod["metadata"]
    return Delete("v1", "Pod", metadata["namespace"], metadata["name"], metadata.get("uid", ""), grace_s)


def _given_up(observed: Observed) -> str:
    """Why the run does not go on, empty when it does."""
    pods = int(observed.status.get("runnerStarts") or 0)
    runner = observed.runner
    if runner is None:
        lost = pods > RUNNER_AGAIN_MAX
        return f"the runner pod was lost {pods} times" if lost else ""
    for container in (runner.get("status") or {}).get("containerStatuses") or ():
        if container.get("restartCount", 0) > RUNNER_AGAIN_MAX:
            text = _tail(_last_words(container))
            return f"the runner ended {container['restartCount']} times; at last it said: {text}"
    return ""


# ---- Spark and accounts


def _spark_objects(observed: Observed, settings: Settings) -> list[Action]:
    """The pod, its Service and its token; shared ones get this run as one more owner."""
    run = observed.object
    name = objects_runs.spark_name(run)
    pod = observed.pods.get(name)
    wanted = {
        ("Secret", naming.token_name(name)): objects_runs.spark_secret(run, observed.tokens[1]),
        ("Service", name): objects_runs.spark_service(run),
    }
    found: list[Action] = []
    for key, manifest in wanted.items():
        there = observed.shared.get(key)
        found += [Create(manifest)] if there is None else _owned_too(run, there, *key)
    found += _pod_again(observed, name, objects_runs.spark_pod(run, settings))
    return found + (_owned_too(run, pod, "Pod", name) if pod is not None else [])


def _owned_too(run: Manifest, there: Manifest, kind: str, name: str) -> list[Action]:
    """A patch replaces the whole list: of two runs that join at once, the second reads again what the first made of it."""
    owners = list(there["metadata"].get("ownerReferences") or ())
    if any(owner["uid"] == run["metadata"]["uid"] for owner in owners):
        return []
    owners.append(objects_runs.owner_of(run, controller=False))
    version = there["metadata"].get("resourceVersion")
    patch = {"metadata": {"ownerReferences": owners, "resourceVersion": version}}
    return [Patch("v1", kind, run["metadata"]["namespace"], name, patch)]


def _namespace_accounts(observed: Observed, settings: Settings) -> list[Action]:
    """In a namespaced installation the chart makes them; there the operator may not."""
    if not settings.cluster_wide:
        return []
    names = [naming.RUNNER_ACCOUNT]
    if objects_runs.executors(observed.object):
        names.append(naming.SPARK_ACCOUNT)
    found: list[Action] = []
    for name in names:
        if ("ServiceAccount", name) not in observed.shared:
            found.append(Create(objects_runs.account(observed.namespace, name)))
        if ("RoleBinding", name) not in observed.shared:
            found.append(Create(objects_runs.role_binding(observed.namespace, name)))
    return found


def _history(observed: Observed) -> tuple[bool | None, str] | None:
    """Whether executors on other nodes reach the history: (yes, no or unknown, why); None: it has no executors."""
    if not objects_runs.executors(observed.object):
        return None
    claim = observed.object["spec"]["evaluation"].get("historyClaim", "")
    if observed.claim_modes is None:
        return False, f"there is no claim {claim!r} in the namespace; make it, or write executors: 0"
    if "ReadWriteMany" in observed.claim_modes or "ReadOnlyMany" in observed.claim_modes:
        return True, f"claim {claim!r} can be mounted on several nodes"
    modes = ", ".join(observed.claim_modes) or "none"
    return None, f"claim {claim!r} has {modes}: executors reach it only on the driver's node"


def _spark(observed: Observed) -> Manifest | None:
    return observed.pods.get(objects_runs.spark_name(observed.object))


def _evaluation_failures(observed: Observed) -> list[str]:
    """What the runner was told, with the end of Spark's log, and how Spark's container ended if it did. Only the runner knows that it
    was the evaluation: the phase may have been too short to be seen from here."""
    told = str((observed.report or {}).get("evaluationFailure") or "")
    if not told:
        return []
    containers = ((_spark(observed) or {}).get("status") or {}).get("containerStatuses") or ()
    return [told, *(words for container in containers if (words := _end_of(container)))]


def _end_of(container: Mapping[str, Any]) -> str:
    """The reason (OOMKilled, …) and exit code, then the last words; empty for one that never ended badly."""
    for where in ("state", "lastState"):
        ended = (container.get(where) or {}).get("terminated") or {}
        if ended and (ended.get("message") or ended.get("exitCode")):
            code = f" with exit code {ended['exitCode']}" if "exitCode" in ended else ""
            return f"Spark's container ended{code} ({ended.get('reason') or 'Error'}): {ended.get('message', '')}"
    return ""


def _last_words(container: Mapping[str, Any]) -> str:
    """What the kubelet kept of the end of a container's log."""
    for where in ("state", "lastState"):
        ended = (container.get(where) or {}).get("terminated") or {}
        if ended.get("message"):
            return str(ended["message"])
    return ""


def _tail(text: str) -> str:
    """The end that fits an Event beside a sentence."""
    return text if len(text) <= runstatus.MAX_EVENT_TEXT else f"…{text[-runstatus.MAX_EVENT_TEXT :]}"


# ---- the end


def _rejected(observed: Observed, findings: KindFindings, now: float) -> Plan:
    text = "\n".join(str(error) for error in findings.errors)
    status = runstatus.rejected(observed.object, text, now)
    return Plan((Emit("Warning", "Rejected", _tail(text)),), status, 0.0)


def _conclude(observed: Observed, now: float, *, verdict: str, reason: str, text: str) -> Plan:
    """The operator ends it: nobody else can."""
    report = {**(observed.report or {}), "verdict": verdict, "reason": reason, "text": text}
    status = runstatus.ended(observed.object, report, now, history=_history(observed))
    kind = "Warning" if verdict == "Error" else "Normal"
    actions: list[Action] = [Emit(kind, reason, _tail(text))]
    if observed.runner is not None:
        actions.append(_delete_pod(observed.runner))
    return Plan(tuple(actions), status, 0.0)


def _after_end(observed: Observed, now: float) -> Plan:
    """Testbeds that nobody needs go; Spark two minutes after the last run; the run itself when its time has passed."""
    ended = seconds(observed.status["completedAt"]) if observed.status.get("completedAt") else now
    ttl = observed.object["spec"].get("ttlSecondsAfterFinished")
    if ttl is not None and now >= ended + ttl:
        metadata = observed.object["metadata"]
        gone = Delete(
            naming.API_VERSION, "ScenarioRun", metadata["namespace"], metadata["name"], metadata["uid"]
        )
        return Plan((Emit("Normal", "Expired", f"it ended {ttl} s ago"), gone))
    actions: list[Action] = []
    again: list[float] = []
    actions += _overstaying(observed, ended + RUNNER_END_S - now, again)
    if observed.testbeds and not _alive(observed.runner):
        actions += [Ask("heal-all"), *_delete_testbeds(observed)]
        again.append(LOOK_SOON_S)
    actions += [*_cool(observed, now, again), *_studied(observed)]
    if ttl is not None:
        again.append(ended + ttl - now)
    status = runstatus.seen(observed.object, now)
    return Plan(tuple(actions), status, max(0.0, min(again)) if again else None)


def _overstaying(observed: Observed, left_s: float, again: list[float]) -> list[Action]:
    """A runner that has said its last word and does not end would keep what it made."""
    runner = observed.runner
    if runner is None or not _alive(runner) or runner["metadata"].get("deletionTimestamp"):
        return []
    if left_s > 0:
        again.append(left_s)
        return []
    text = f"the runner had not ended {RUNNER_END_S:g} s after its run; its pod is deleted"
    return [Emit("Warning", "RunnerHangs", text), _delete_pod(runner)]


def _studied(observed: Observed) -> list[Action]:
    """Of a study's run the report is enough: with hundreds of them their recorders would leave no room for the next one."""
    recorder = observed.pods.get(naming.recorder_name(observed.name))
    of_study = naming.LABEL_STUDY in (observed.object["metadata"].get("labels") or {})
    if not of_study or recorder is None or recorder["metadata"].get("deletionTimestamp"):
        return []
    return [_delete_pod(recorder)]


def _alive(pod: Manifest | None) -> bool:
    return pod is not None and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _delete_testbeds(observed: Observed) -> list[Action]:
    return [
        Delete(naming.API_VERSION, "Testbed", observed.namespace, t["metadata"]["name"], t["metadata"]["uid"])
        for t in observed.testbeds
        if not t["metadata"].get("deletionTimestamp")
    ]


def _cool(observed: Observed, now: float, again: list[float]) -> list[Action]:
    """Spark goes: the run's own at once, the namespace's warm one after SPARK_WARM_S without an unfinished run."""
    name = objects_runs.spark_name(observed.object)
    pod = observed.pods.get(name)
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return []
    if uses_warm_spark(observed.object):
        if observed.unfinished:
            return []
        left = observed.last_end + SPARK_WARM_S - now
        if left > 0:
            again.append(left)
            return []
    return [_delete_pod(pod)]  # its Service and its token go with the last run that owns them


# ---- deletion


def _deletion(observed: Observed, now: float) -> Plan:
    """The runner first, so that it injects nothing more; then its Testbeds; then the finalizer is let go."""
    metadata = observed.object["metadata"]
    if not _has_finalizer(observed):
        return Plan()
    rest = tuple(f for f in metadata["finalizers"] if f != naming.FINALIZER)
    annotations = metadata.get("annotations") or {}
    if annotations.get(naming.ANNOTATION_SKIP_HEAL) == "true":
        text = f"let go without healing, as {naming.ANNOTATION_SKIP_HEAL} asks"
        return Plan((Emit("Warning", "HealSkipped", text), SetFinalizers(rest)))
    waits = now - seconds(metadata["deletionTimestamp"])
    left = [t["metadata"]["name"] for t in observed.testbeds]
    runner = observed.runner
    if not left and runner is None:
        return Plan((SetFinalizers(rest),))
    if waits > HEAL_LIMIT_S:
        what = ", ".join(left) or "the runner pod"
        text = f"{what} not gone after {HEAL_LIMIT_S:g} s; let go, the agents end every fault at its deadline"
        return Plan((Emit("Warning", "DeletionTimedOut", text), SetFinalizers(rest)))
    actions: list[Action] = []
    if runner is not None and not runner["metadata"].get("deletionTimestamp"):
        actions.append(_delete_pod(runner, grace_s=1))
    actions += _delete_testbeds(observed)
    if left:
        actions.append(Ask("heal-all"))
    return Plan(tuple(actions), runstatus.deleting(observed.object, left, now), LOOK_SOON_S)
