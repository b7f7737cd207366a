"""Keep a TuningStudy's pod until its table is complete; the pod creates the runs and applies the best row. Pure."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from headgate_operator import objects_runs
from headgate_operator.plan import admission, conditions
from headgate_operator.plan.conditions import clip, no, with_conditions, yes
from headgate_operator.plan.model import (
    NOT_CREATED,
    Action,
    Create,
    Emit,
    Plan,
    delete,
    has_old_settings,
    is_new,
    overdue,
    pod_loss_reason,
    problem_of,
)
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import (
    COMPLETE,
    REJECTED,
    SUSPENDED,
    StudyReport,
    TuningStudyStatus,
    carried,
    rfc3339,
)
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.api.views import Manifest, Pod, Run, Study

LOOK_S = 5.0


class Observed(Struct, frozen=True):
    study: Study
    pod: Pod | None = None
    report: StudyReport | None = None
    """`status.json` of ConfigMap `<study>-status`."""
    shared: frozenset[tuple[str, str]] = frozenset()
    """(kind, name) of the accounts that exist."""
    others: tuple[Run, ...] = ()
    """The runs of the namespace, if a quota refuses an object of this study."""

    @property
    def object(self) -> Manifest:
        return self.study.raw


def plan(observed: Observed, settings: Settings, now: float) -> Plan:
    study, report = observed.study, observed.report or StudyReport()
    if study.terminating:
        return Plan()
    if study.status.phase == COMPLETE:
        return Plan(status=with_conditions(study, study.status, [], now))
    findings = validate_kind(study.raw)
    if findings.errors:
        text = "\n".join(str(error) for error in findings.errors)
        return Plan((Emit("Warning", "Rejected", clip(text)),), _rejected(study, text, now))
    if report.phase == COMPLETE:
        return _ended(study, report, now)
    if study.suspended and observed.pod is None:
        return Plan(status=_in_progress(observed, report, "Suspended", now))
    if lost := pod_loss_reason(observed.pod, study.status.pod_starts, "the study"):
        return _given_up(observed, report, "PodLost", lost, now)
    reason, late = overdue([observed.pod] if observed.pod is not None else [], now)
    if late:
        return _given_up(observed, report, reason, late, now)
    queued = observed.pod is None and admission.is_queued(observed.others, settings, now)
    waits = observed.pod is None and not queued
    if waits and (refused := admission.never_admitted("study", study.status, settings, now)):
        return _given_up(observed, report, NOT_CREATED, refused, now)
    accounts = objects_runs.missing_accounts(study, observed.shared, settings)
    actions = [*map(Create, accounts), *_pod(observed, settings)]
    status = _in_progress(observed, report, report.phase or "Starting", now, queued=queued)
    pod = observed.pod
    if pod is not None and pod.image != settings.image and pod.uid == status.pod_uid:  # it will not be lost
        status = replace(status, pod_starts=status.pod_starts - 1, pod_uid="")
    return Plan(tuple(actions), status, LOOK_S)


def _given_up(observed: Observed, report: StudyReport, reason: str, text: str, now: float) -> Plan:
    ended = _ended(observed.study, replace(report, reason=reason, message=text), now)
    pod = observed.pod
    return ended if pod is None else replace(ended, actions=(*ended.actions, delete("Pod", pod)))


def _pod(observed: Observed, settings: Settings) -> list[Action]:
    pod = observed.pod
    if pod is None:
        name = objects_runs.study_pod_name(observed.study.name)
        again = observed.study.status.pod_starts > 0
        event = (
            Emit("Warning", "PodLost", f"the study's pod is gone; creating {name} again")
            if again
            else Emit("Normal", "Started", f"creating pod {name}")
        )
        return [Create(objects_runs.study_pod(observed.study, settings)), event]
    if pod.terminating:
        return []
    if pod.image != settings.image:
        text = f"replacing {pod.name}: it may not understand the reports of runs after the upgrade of the installation"
        return [delete("Pod", pod), Emit("Normal", "Replacing", text)]
    account = pod.spec.get("serviceAccountName", naming.STUDY_ACCOUNT)
    useless = pod.ended or account != naming.STUDY_ACCOUNT or has_old_settings(pod, settings)
    return [delete("Pod", pod)] if useless else []


# ---- status


def _in_progress(
    observed: Observed, report: StudyReport, phase: str, now: float, *, queued: bool = False
) -> TuningStudyStatus:
    """Return the status of a study that is not complete. A pod is counted when it is first seen at work. `queued`: the study waits for the
    resources of a run."""
    study, pod = observed.study, observed.pod
    before = study.status
    problem = problem_of(pod)
    status = replace(_mirrored(before, observed.report), phase=phase, message=clip(problem) or report.message)
    if pod is not None and is_new(pod, before.pod_uid):
        status = replace(status, pod_starts=before.pod_starts + 1, pod_uid=pod.uid)
    is_suspended = phase == SUSPENDED
    if not is_suspended:
        status = replace(status, started_at=before.started_at or rfc3339(now))
    if problem:
        ready = no("Ready", "PodsNotReady", problem)
    elif pod is not None and pod.phase == "Running" and not is_suspended:
        ready = yes("Ready", "Running", report.message)
    else:
        ready = no("Ready", phase, report.message)
    reconciling = no("Reconciling", phase) if is_suspended else yes("Reconciling", phase, status.message)
    return with_conditions(study, status, [
        yes("Accepted", "Valid"),
        admission.QUEUED if queued else reconciling,
        ready,
        no("Stalled", phase),
        no(COMPLETE, phase),
    ], now)  # fmt: skip


def _ended(study: Study, report: StudyReport, now: float) -> Plan:
    reason, text = report.reason or "TableComplete", report.message
    succeeded = reason == "TableComplete"
    status = replace(_mirrored(study.status, report), phase=COMPLETE, completed_at=rfc3339(now))
    status = with_conditions(study, status, [
        *conditions.ended(reason, text, well=succeeded),
        yes(COMPLETE, reason, text),
    ], now)  # fmt: skip
    best = f"; best: {status.best}" if status.best else ""
    applied = f"; applied to {status.applied}" if status.applied else ""
    runs = f"{status.progress} runs" if status.progress else ""  # none before the scenarios are read
    summary = "; ".join(part for part in (f"{runs}{best}{applied}", text) if part)
    return Plan((Emit("Normal" if succeeded else "Warning", COMPLETE, clip(summary)),), status)


def _rejected(study: Study, text: str, now: float) -> TuningStudyStatus:
    return with_conditions(study, replace(study.status, phase=REJECTED, message=text), [
        *conditions.refused("Invalid", text),
        no(COMPLETE, "Invalid"),
    ], now)  # fmt: skip


def _mirrored(before: TuningStudyStatus, report: StudyReport | None) -> TuningStudyStatus:
    if report is None:
        return before
    total = report.runs_total
    progress = f"{report.runs_done}/{total}" if total else before.progress
    return replace(before, **carried(report), progress=progress)
