"""Keep a ScenarioRun's recorder, runner and Spark while it runs, mirror the runner's report, and leave nothing behind. Pure.

Suspended → Starting → Running → Evaluating → Complete          (Rejected: Complete at once, Accepted=False)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from headgate_operator import objects_runs
from headgate_operator.objects import owner_of
from headgate_operator.plan import admission, runstatus
from headgate_operator.plan.conditions import tail
from headgate_operator.plan.model import (
    MAX_RESTARTS,
    NOT_CREATED,
    Action,
    Ask,
    Create,
    Emit,
    Patch,
    Plan,
    add_finalizer,
    delete,
    drop_finalizer,
    has_old_settings,
    heal_skipped,
    overdue,
    pod_loss_reason,
    problem_of,
    release,
    with_images_of,
)
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import COMPLETE, RECORDER_LOST, SUSPENDED, RunReport, ScenarioRunStatus
from testbed_runtime.api.validate_kinds import KindFindings, validate_kind
from testbed_runtime.api.views import Container, Manifest, Pod, Resource, Run, Testbed, seconds
from testbed_runtime.core.judgement.metrics import HEALED
from testbed_runtime.core.judgement.verdict import Verdict

SPARK_WARM_S = 120.0
"""How long Spark stays after the last run, for the next one of a batch."""
EVALUATION_FAILED = "EvaluationFailed"
HEAL_LIMIT_S = 60.0
"""How long a deletion waits for testbeds to be gone, and a heal for the runner. The agents hold the deadlines of their faults."""
RUNNER_END_S = 60.0
"""How long a runner may take to exit after it has written its verdict."""
LOOK_LATER_S = 30.0
"""Interval at which a run behind an upgrade looks for earlier runs: it lists all runs of its namespace."""
LOOK_AGAIN_S = 5.0
"""Interval between reconciles while the run is active. Changes of objects with its label arrive sooner, by watch."""
LOOK_SOON_S = 1.0
"""Interval between reconciles while something is being deleted or healed."""
MAX_WARNINGS = 16
"""Maximum warnings with an Event of their own. Variants times options could be thousands."""
KindAndName = tuple[str, str]


class Observed(Struct, frozen=True):
    run: Run
    pods: Mapping[str, Pod] = field(default_factory=dict)
    """Pods by name: the run's own, and the Spark pod it uses."""
    shared: Mapping[KindAndName, Resource] = field(default_factory=dict)
    """Service and Secret of the Spark pod, service accounts, RoleBindings."""
    present: frozenset[KindAndName] = frozenset()
    """The existing ones among the run's Secret, Service and claim."""
    taken: tuple[str, ...] = ()
    """Objects of another owner whose names the run needs. The owner is usually an earlier run of the same name."""
    report: RunReport | None = None
    """`status.json` of ConfigMap `<run>-status`."""
    testbeds: tuple[Testbed, ...] = ()
    unfinished: int = 0
    """Other runs of the namespace that are not Complete and use its warm Spark; of a run that has not begun, only those that have."""
    last_end: float = 0.0
    """When the newest Complete run of the namespace ended."""
    others: tuple[Run, ...] = ()
    """The other runs of the namespace, if a quota refuses an object of this one."""
    claim_modes: tuple[str, ...] | None = None
    """Access modes of the history's claim; None: the claim does not exist."""
    tokens: tuple[str, str] = ("", "")
    """New tokens for the run and for Spark, in case a Secret has to be created."""
    namespace_ends: bool = False
    """The namespace is being deleted: its pods and faults end with it, and the operator's rights may end before the run."""

    @property
    def object(self) -> Manifest:
        return self.run.raw

    @property
    def status(self) -> ScenarioRunStatus:
        return self.run.status

    @property
    def runner(self) -> Pod | None:
        return self.pods.get(naming.runner_name(self.run.name))

    @property
    def recorder(self) -> Pod | None:
        return self.pods.get(naming.recorder_name(self.run.name))

    @property
    def is_at_work(self) -> bool:
        return self.runner is not None and self.recorder is not None

    @property
    def spark(self) -> Pod | None:
        return self.pods.get(objects_runs.spark_name(self.run))


def plan(observed: Observed, settings: Settings, now: float) -> Plan:
    run = observed.run
    if observed.namespace_ends:
        return release(run)
    if run.terminating:
        return _deletion(observed, now)
    if run.finished:
        return _after_end(observed, settings, now)
    findings = None if run.status.is_true("Accepted") else validate_kind(run.raw)
    if findings is not None and findings.errors:
        return _rejected(observed, findings, now)
    if run.heal_requested and not run.status.runner_starts:
        text = "it was healed before it started"
        return _conclude(observed, now, verdict=Verdict.INCONCLUSIVE, reason=HEALED, text=text)
    if run.suspended and not run.status.runner_starts and observed.runner is None:
        return Plan((*_first_events(findings),), runstatus.suspended(run, now))
    return _running(observed, findings, settings, now)


# ---- while it runs


def _running(observed: Observed, findings: KindFindings | None, settings: Settings, now: float) -> Plan:
    run, report = observed.run, observed.report
    if report is not None and report.phase == COMPLETE and report.verdict:
        return _mirrored_end(observed, report, findings, settings, now)
    if unanswered := _unanswered_heal(observed, now):
        return _conclude(observed, now, verdict=Verdict.INCONCLUSIVE, reason=HEALED, text=unanswered)
    starts = observed.status.runner_starts
    if given_up := pod_loss_reason(observed.runner, starts, "the runner"):
        return _conclude(observed, now, verdict=Verdict.ERROR, reason="RunnerLost", text=given_up)
    # the testbed may use the resources that Spark needs until its last pod is gone
    needed = [pod for pod in (observed.recorder, observed.runner) if pod is not None]
    reason, late = overdue(needed, now)
    if late:
        return _conclude(observed, now, verdict=Verdict.ERROR, reason=reason, text=late)
    queued = not observed.is_at_work and admission.is_queued(observed.others, settings, now)
    waits = not observed.is_at_work and not queued
    if waits and (refused := admission.never_admitted("run", run.status, settings, now)):
        return _conclude(observed, now, verdict=Verdict.ERROR, reason=NOT_CREATED, text=refused)
    if observed.taken:
        status = runstatus.blocked(run, observed.taken, now)
        return Plan((*_first_events(findings),), status, LOOK_SOON_S)
    history, spark = _history(observed), observed.spark
    earlier = spark is not None and is_earlier(spark, run, observed.runner, settings)
    queue = admission.QUEUED if queued else None
    if earlier and observed.unfinished:
        queue = admission.BEHIND_UPGRADE
    status = runstatus.running(
        run,
        report,
        observed.runner,
        now,
        recorder=observed.recorder,
        history=history,
        spark=spark,
        queue=queue,
    )
    if finalizer := add_finalizer(run):
        return Plan((*finalizer, *_first_events(findings)), status, 0.0)
    if spark is not None and earlier:
        replaced = [delete("Pod", spark)] if not (observed.unfinished or spark.terminating) else []
        wait_s = LOOK_LATER_S if observed.unfinished else LOOK_AGAIN_S
        return Plan((*_first_events(findings), *replaced), status, wait_s)
    actions: list[Action] = [
        *_first_events(findings),
        *runstatus.events(run.status, status),
        *map(Create, objects_runs.missing_accounts(observed.run, observed.shared, settings)),
        *_spark_objects(observed),
        *_spark_pod(observed, status, settings, now),
        *_own_objects(observed, settings),
        *_runner(observed, settings),
    ]
    if run.heal_requested:
        actions.append(Ask("heal-all"))
    return Plan(tuple(actions), status, LOOK_SOON_S if run.heal_requested else LOOK_AGAIN_S)


def is_earlier(spark: Pod, run: Run, runner: Pod | None, settings: Settings) -> bool:
    """Return whether the Spark pod has the version from before an upgrade of the installation, and the run will have the new one. Each
    version calls the other one's records damaged, so Spark is replaced after the earlier runs have ended and before this one begins."""
    return not has_begun(run, runner) and spark.image != settings.spark_image


def has_begun(run: Run, runner: Pod | None) -> bool:
    return bool(run.finished or run.status.runner_starts) or (runner is not None and runner.containers_run)


def _mirrored_end(
    observed: Observed, report: RunReport, findings: KindFindings | None, settings: Settings, now: float
) -> Plan:
    failures = _evaluation_failures(report, observed.spark)
    lost = observed.status.recorder_starts > 1 and not settings.recorder_storage
    spark = observed.spark
    never_began = problem_of(spark) if spark is not None and spark.phase == "Pending" else ""
    lost = lost and len(failures) <= 1 and not never_began  # otherwise Spark's own container or pod failed
    if report.evaluation_failure and never_began:
        report = replace(report, text=f"the history was not evaluated: {never_began}")
    status = runstatus.ended(observed.run, report, now, history=_history(observed), record_lost=lost)
    events = [*_first_events(findings), *runstatus.events(observed.status, status)]
    if status.verdict == Verdict.ERROR:
        events += [Emit("Warning", EVALUATION_FAILED, tail(text)) for text in failures]
    return Plan(tuple(events), status, 0.0)


def _unanswered_heal(observed: Observed, now: float) -> str:
    """Return why the operator itself has to end a healed run. Empty while the runner can still end it, which takes some seconds."""
    if not observed.run.heal_requested:
        return ""
    if observed.runner is None or not observed.runner.containers_run:
        return "it was healed while its runner was not at work"
    healing = observed.status.condition(runstatus.HEALING)
    if healing is None or not healing.is_true:
        return ""
    if now - seconds(healing.last_transition_time) <= HEAL_LIMIT_S:
        return ""
    return f"it was healed, and its runner did not end it within {HEAL_LIMIT_S:g} s"


def _first_events(findings: KindFindings | None) -> list[Emit]:
    """Return the Events of a run that was just accepted. `findings` is None for a run that was accepted earlier."""
    if findings is None:
        return []
    found = [Emit("Normal", "Accepted", "the scenario is valid")]
    if findings.without_effect:
        text = f"no effect here: {', '.join(findings.without_effect)}"
        found.append(Emit("Normal", "WithoutEffect", text))
    found += [Emit("Warning", "Warning", text) for text in findings.warnings[:MAX_WARNINGS]]
    if (more := len(findings.warnings) - MAX_WARNINGS) > 0:
        found.append(Emit("Warning", "Warning", f"and {more} more"))
    return found


def _own_objects(observed: Observed, settings: Settings) -> list[Action]:
    run = observed.run
    recorder = naming.recorder_name(run.name)
    found: list[Action] = []
    if ("Secret", naming.token_name(run.name)) not in observed.present:
        found.append(Create(objects_runs.token_secret(run, run.name, observed.tokens[0])))
    if ("Service", recorder) not in observed.present:
        found.append(Create(objects_runs.recorder_service(run)))
    if settings.recorder_storage and ("PersistentVolumeClaim", recorder) not in observed.present:
        found.append(Create(objects_runs.recorder_claim(run, settings)))
    manifest = objects_runs.recorder_pod(run, _as_its_peer(observed, observed.runner, settings))
    made = _ensure_pod(observed, recorder, manifest, settings)
    return [*found, *made, *_recorder_events(observed, made, settings)]


def _recorder_events(observed: Observed, made: Sequence[Action], settings: Settings) -> list[Action]:
    """Report that a recorder's pod is recreated, and the consequences for the record."""
    if not observed.status.recorder_starts or not any(isinstance(action, Create) for action in made):
        return []
    lost = f"the record went with it. To keep the record, {runstatus.KEEP_RECORD}"
    kept = "the record is on its volume" if settings.recorder_storage else lost
    text = f"the recorder's pod is gone, creating it again; {kept}"
    return [Emit("Warning", RECORDER_LOST, text)]


def _runner(observed: Observed, settings: Settings) -> list[Action]:
    name = naming.runner_name(observed.run.name)
    manifest = objects_runs.runner_pod(observed.run, _as_its_peer(observed, observed.recorder, settings))
    found = _ensure_pod(observed, name, manifest, settings)
    created = any(isinstance(action, Create) for action in found)
    starts = observed.status.runner_starts
    if created and starts:
        text = f"the runner pod is gone; creating it again ({starts} of {MAX_RESTARTS})"
        found.append(Emit("Warning", "RunnerLost", text))
    elif created:
        found.append(Emit("Normal", "Started", f"creating runner pod {name}"))
    return found


def _as_its_peer(observed: Observed, peer: Pod | None, settings: Settings) -> Settings:
    """Return the settings with the image of the run's other pod: the run keeps its version across an upgrade of the installation."""
    begun = has_begun(observed.run, observed.runner)
    return with_images_of([peer], settings) if begun and peer is not None else settings


def _ensure_pod(observed: Observed, name: str, manifest: Manifest, settings: Settings) -> list[Action]:
    """Create a pod that does not exist. Delete a pod that ended on its own, has old settings, or is of the version before an upgrade although
    the run has not begun, so that the next pass recreates it."""
    pod = observed.pods.get(name)
    if pod is None:
        return [Create(manifest)]
    old = pod.image != Pod(manifest).image and not has_begun(observed.run, observed.runner)
    useless = old or pod.ended or has_old_settings(pod, settings)
    return [delete("Pod", pod)] if useless and not pod.terminating else []


# ---- Spark and accounts


def _spark_objects(observed: Observed) -> list[Action]:
    """Create the Spark pod's Service and its token; add this run as an owner of the shared ones."""
    run = observed.run
    name = objects_runs.spark_name(run)
    wanted = {
        ("Secret", naming.token_name(name)): objects_runs.spark_secret(run, observed.tokens[1]),
        ("Service", name): objects_runs.spark_service(run),
    }
    found: list[Action] = []
    for key, manifest in wanted.items():
        existing = observed.shared.get(key)
        found += [Create(manifest)] if existing is None else _join_owners(run, existing, key[0])
    return found


def _spark_pod(observed: Observed, status: ScenarioRunStatus, settings: Settings, now: float) -> list[Action]:
    """Keep a Spark pod while the run continues. A run that is suspended between two trials may stay suspended for days, so it gets none."""
    run, pod = observed.run, observed.spark
    if status.phase != SUSPENDED:
        manifest = objects_runs.spark_pod(run, settings)
        found = _ensure_pod(observed, objects_runs.spark_name(run), manifest, settings)
        return found + (_join_owners(run, pod, "Pod") if pod is not None else [])
    # use `run.status`, which shows whether the other runs were counted, and not the new `status`
    if pod is None or pod.terminating or observed.unfinished or run.status.phase != SUSPENDED:
        return []
    since = run.status.condition("Reconciling")
    idle_since = max(observed.last_end, seconds(since.last_transition_time) if since else now)
    return [delete("Pod", pod)] if now >= idle_since + SPARK_WARM_S else []


def _join_owners(run: Run, existing: Resource, kind: str) -> list[Action]:
    """Add the run to the owners. The resource version makes a concurrent change a conflict, because a patch replaces the list."""
    if existing.owned_by(run):
        return []
    owners = [*existing.owners, owner_of(run, controller=False)]
    version = existing.metadata.get("resourceVersion")
    patch = {"metadata": {"ownerReferences": owners, "resourceVersion": version}}
    return [Patch(kind, run.namespace, existing.name, patch)]


def _history(observed: Observed) -> runstatus.History:
    """Return whether executors on other nodes can read the history, and why."""
    if not observed.run.executors:
        return None
    claim = observed.run.history_claim
    if observed.claim_modes is None:
        return False, f"the claim {claim!r} does not exist in the namespace; create it, or set executors: 0"
    if "ReadWriteMany" in observed.claim_modes or "ReadOnlyMany" in observed.claim_modes:
        return True, f"claim {claim!r} can be mounted on several nodes"
    modes = ", ".join(observed.claim_modes) or "none"
    return None, f"claim {claim!r} has {modes}: executors can read it only on the driver's node"


def _evaluation_failures(report: RunReport, spark: Pod | None) -> list[str]:
    """Return the runner's error with the end of Spark's log, and how Spark's container ended, if it ended.

    Only the runner knows that the evaluation failed: the phase Evaluating may have been too short for the operator to see."""
    if not report.evaluation_failure:
        return []
    containers = spark.containers if spark else ()
    return [report.evaluation_failure, *(text for container in containers if (text := _failure(container)))]


def _failure(container: Container) -> str:
    """Return the reason (OOMKilled, …), the exit code and the end of the log; empty if it never failed."""
    for ended in container.terminations:
        if ended.message or ended.exit_code:
            code = f" with exit code {ended.exit_code}" if ended.exit_code is not None else ""
            return f"Spark's container ended{code} ({ended.reason or 'Error'}): {ended.message}"
    return ""


# ---- the end


def _rejected(observed: Observed, findings: KindFindings, now: float) -> Plan:
    text = "\n".join(str(error) for error in findings.errors)
    status = runstatus.rejected(observed.run, text, now)
    return Plan((Emit("Warning", "Rejected", tail(text)),), status, 0.0)


def _conclude(observed: Observed, now: float, *, verdict: Verdict, reason: str, text: str) -> Plan:
    """End the run without its runner."""
    report = replace(observed.report or RunReport(), verdict=str(verdict), reason=reason, text=text)
    status = runstatus.ended(observed.run, report, now, history=_history(observed))
    kind = "Warning" if verdict is Verdict.ERROR else "Normal"
    actions: list[Action] = [Emit(kind, reason, tail(text))]
    if observed.runner is not None:
        actions.append(delete("Pod", observed.runner))
    return Plan(tuple(actions), status, 0.0)


def _after_end(observed: Observed, settings: Settings, now: float) -> Plan:
    """Delete leftover testbeds, pods that are no longer needed, and the run itself when its TTL has passed."""
    run = observed.run
    completed = run.status.completed_at
    ended = seconds(completed) if completed else now
    if run.ttl_s is not None and now >= ended + run.ttl_s:
        return Plan((Emit("Normal", "Expired", f"it ended {run.ttl_s} s ago"), delete("ScenarioRun", run)))
    actions: list[Action] = []
    again: list[float] = []
    actions += _overdue_runner(observed, ended + RUNNER_END_S - now, again)
    if observed.testbeds and (observed.runner is None or observed.runner.ended):
        actions += [Ask("heal-all"), *_delete_testbeds(observed)]
        again.append(LOOK_SOON_S)
    elif not observed.testbeds and (observed.runner is None or observed.runner.ended):
        # nothing is left to heal, and the deletion of the namespace, which ends the operator's rights first, must not wait
        actions += drop_finalizer(run)
    actions += [*_stop_spark(observed, now, again), *_expired_pods(observed, settings, ended, now, again)]
    if run.ttl_s is not None:
        again.append(ended + run.ttl_s - now)
    return Plan(tuple(actions), runstatus.seen(run, now), max(0.0, min(again)) if again else None)


def _overdue_runner(observed: Observed, left_s: float, again: list[float]) -> list[Action]:
    """Delete a runner that has written its verdict but does not exit, because its objects would remain."""
    runner = observed.runner
    if runner is None or not runner.alive:
        return []
    if left_s > 0:
        again.append(left_s)
        return []
    text = f"the runner had not exited {RUNNER_END_S:g} s after its run; deleting its pod"
    return [Emit("Warning", "RunnerHangs", text), delete("Pod", runner)]


def _expired_pods(
    observed: Observed, settings: Settings, ended: float, now: float, again: list[float]
) -> list[Action]:
    """Delete the recorder and the finished runner when `pods_ttl_s` has passed. The report is in a ConfigMap and stays.

    The pods of a study's runs are deleted at once: hundreds of recorders would leave no room for further runs."""
    pods = [p for p in (observed.recorder, observed.runner) if p is not None and not p.terminating]
    pods = [p for p in pods if p is observed.recorder or p.ended]
    of_study = naming.LABEL_STUDY in observed.run.labels
    if not pods or (settings.pods_ttl_s < 0 and not of_study):
        return []
    left = 0.0 if of_study else ended + settings.pods_ttl_s - now
    if left > 0:
        again.append(left)
        return []
    return [delete("Pod", pod) for pod in pods]


def _delete_testbeds(observed: Observed) -> list[Action]:
    return [delete("Testbed", testbed) for testbed in observed.testbeds if not testbed.terminating]


def _stop_spark(observed: Observed, now: float, again: list[float]) -> list[Action]:
    """Delete the run's own Spark at once, the namespace's warm one after SPARK_WARM_S without an unfinished run."""
    pod = observed.spark
    if pod is None or pod.terminating:
        return []
    if observed.run.uses_warm_spark:
        if observed.unfinished:
            return []
        left = observed.last_end + SPARK_WARM_S - now
        if left > 0:
            again.append(left)
            return []
    return [delete("Pod", pod)]  # its Service and token go with the last run that owns them


# ---- deletion


def _deletion(observed: Observed, now: float) -> Plan:
    """Delete the runner first, so that it injects nothing more; then its Testbeds; then remove the finalizer."""
    run, runner = observed.run, observed.runner
    if naming.FINALIZER not in run.finalizers:
        return Plan()
    if skipped := heal_skipped(run):
        return release(run, skipped)
    left = [testbed.name for testbed in observed.testbeds]
    if not left and runner is None:
        return release(run)
    if now - run.deleted > HEAL_LIMIT_S:
        what = ", ".join(left) or "the runner pod"
        text = (
            f"{what} not gone after {HEAL_LIMIT_S:g} s; finalizer removed, "
            "the agents end every fault at its deadline"
        )
        return release(run, Emit("Warning", "DeletionTimedOut", text))
    actions: list[Action] = []
    if runner is not None and not runner.terminating:
        actions.append(delete("Pod", runner, grace_s=1))
    actions += _delete_testbeds(observed)
    if left:
        actions.append(Ask("heal-all"))
    return Plan(tuple(actions), runstatus.deleting(run, left, now), LOOK_SOON_S)
