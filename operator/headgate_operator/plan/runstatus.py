"""The status of a ScenarioRun: the runner's report, turned into fields, conditions and Events. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headgate_operator.plan import conditions
from headgate_operator.plan.conditions import clip, no, unknown, with_conditions, yes
from headgate_operator.plan.model import Emit, is_new, problem_of
from testbed_runtime.api import naming
from testbed_runtime.api.status import (
    COMPLETE,
    EVALUATING,
    MAX_TEXT,
    MAX_TRIALS,
    RECORDER_LOST,
    SUSPENDED,
    Condition,
    FaultResult,
    RunReport,
    ScenarioRunStatus,
    carried,
    rfc3339,
)
from testbed_runtime.api.views import Pod, Run
from testbed_runtime.core.judgement.metrics import HISTORY_INCOMPLETE, NO_DATA
from testbed_runtime.core.judgement.verdict import Verdict

MAX_FAULTS = 32
HEALING = "Healing"
"""The condition that records when the operator first saw the heal annotation."""
KEEP_RECORD = "set recorder.storage.size in the installation, so that each run has a volume for it"
RECORD_LOST = f"the record went with the recorder's pod, which was lost. To keep the record, {KEEP_RECORD}"
History = tuple[bool | None, str] | None
"""Whether executors can read the history (None: unknown), and why. The whole value is None if the run has no executors."""


def running(
    run: Run,
    report: RunReport | None,
    runner: Pod | None,
    now: float,
    *,
    recorder: Pod | None = None,
    history: History,
    spark: Pod | None,
    queue: Condition | None = None,
) -> ScenarioRunStatus:
    """Return the status while the runner is at work, or about to be. `queue`: the condition of a run that waits for another one."""
    before = run.status
    between = report is not None and report.phase == "Running" and not report.trial_phase
    waits = run.suspended and between
    phase = SUSPENDED if waits else (report.phase if report else "") or "Starting"
    status = replace(_mirrored(before, report), phase=phase, started_at=before.started_at or rfc3339(now))
    if runner is not None and is_new(runner, before.runner_uid):
        status = replace(status, runner_starts=before.runner_starts + 1, runner_uid=runner.uid)
    if recorder is not None and is_new(recorder, before.recorder_uid):
        status = replace(status, recorder_starts=before.recorder_starts + 1, recorder_uid=recorder.uid)
    # Spark without a node may get the testbed's resources later; Spark without its image fails the run at its end
    trouble = problem_of(runner, recorder, spark if spark is not None and spark.without_image else None)
    if phase == EVALUATING and not (spark is not None and spark.containers_run):
        trouble = problem_of(spark)
        ready = no("Ready", "SparkNotReady", trouble or "the evaluation waits for the Spark pod")
    elif waits:
        ready = no("Ready", SUSPENDED, report.message if report else "")
    elif runner is None or not runner.containers_run:
        why = (
            "there is no runner pod yet" if runner is None else f"pod {runner.name}: {runner.why_not_running}"
        )
        ready = no("Ready", "RunnerNotReady", why)
    elif problem := problem_of(recorder):
        ready = no("Ready", "RecorderNotReady", problem)
    else:
        ready = yes("Ready", "Running", "the runner is at work")
    reconciling = yes("Reconciling", phase, report.message if report else "")
    if waits or queue:
        reconciling = queue or no("Reconciling", SUSPENDED)
    # a user has to fix a problem, so it takes precedence over the runner's progress
    message = trouble or (report.message if report else queue.message if queue else "")
    status = replace(status, message=clip(message))
    healing = [yes(HEALING, "Asked", "the runner ends its trial and the run")] if run.heal_requested else []
    return with_conditions(run, status, [
        yes("Accepted", "Valid"),
        reconciling,
        ready,
        no("Stalled", "Working"),
        *_measured(report.faults if report else ()),
        *_history(history),
        *healing,
        no(COMPLETE, phase),
    ], now)  # fmt: skip


def blocked(run: Run, taken: Sequence[str], now: float) -> ScenarioRunStatus:
    """Return the status while other objects have names that this run needs. The run waits, because the token and the verdict in these objects
    would be mistaken for its own."""
    text = (
        f"waits until {', '.join(taken)} of another owner is gone; "
        "if that object is to stay, give this run another name"
    )
    return with_conditions(run, replace(run.status, phase="Starting", message=text), [
        yes("Accepted", "Valid"),
        yes("Reconciling", "NamesTaken", text),
        no("Ready", "NamesTaken", text),
        no("Stalled", "NamesTaken"),
        no(COMPLETE, "Starting"),
    ], now)  # fmt: skip


def suspended(run: Run, now: float) -> ScenarioRunStatus:
    """Return the status of a run for which nothing was created yet."""
    text = "spec.suspend is true; set it to false to start the run"
    return with_conditions(run, replace(run.status, phase=SUSPENDED, progress="", message=text), [
        yes("Accepted", "Valid"),
        no("Reconciling", "Suspended", text),
        no("Ready", "Suspended", text),
        no("Stalled", "Suspended"),
        no(COMPLETE, "Suspended", text),
    ], now)  # fmt: skip


def rejected(run: Run, text: str, now: float) -> ScenarioRunStatus:
    """Return the final status of an invalid run. Its spec is immutable, so it cannot be corrected."""
    status = replace(
        run.status, phase=COMPLETE, progress="", verdict=Verdict.ERROR, reason="Invalid", text=text[:MAX_TEXT],
        completed_at=rfc3339(now),
    )  # fmt: skip
    return with_conditions(run, status, [
        *conditions.refused("Invalid", text, "nothing was created; correct the scenario and create another run"),
        yes(COMPLETE, "Error", "the run was not started"),
    ], now)  # fmt: skip


def ended(
    run: Run, report: RunReport, now: float, *, history: History, record_lost: bool = False
) -> ScenarioRunStatus:
    """Return the final status: `report` has a verdict. `record_lost`: the record was lost with an earlier recorder
    pod."""
    if record_lost and _without_data(report):
        inconclusive = Verdict.INCONCLUSIVE
        text = f"{RECORD_LOST}. The runner reported: {report.reason or report.verdict}: {report.text}"
        report = replace(report, verdict=inconclusive, reason=RECORDER_LOST, text=text[:MAX_TEXT])
    before, verdict, reason, text = run.status, report.verdict, report.reason or report.verdict, report.text
    completed = before.completed_at or rfc3339(now)
    status = replace(
        _mirrored(before, report), phase=COMPLETE, active_faults=(), completed_at=completed, started_at=before.started_at or completed,
        report=naming.report_name(run.name), remaining="", remaining_seconds=None,
    )  # fmt: skip
    judged = verdict in (Verdict.PASS, Verdict.FAIL)
    return with_conditions(run, status, [
        *conditions.ended(reason, text, well=judged),
        *_measured(report.faults),
        *_history(history),
        *([no(HEALING, COMPLETE)] if before.condition(HEALING) else []),
        yes(COMPLETE, verdict, text),
    ], now)  # fmt: skip


def _without_data(report: RunReport) -> bool:
    """Return whether a missing record explains this verdict."""
    if report.evaluation_failure:
        return True
    return report.verdict == Verdict.INCONCLUSIVE and report.reason in (NO_DATA, HISTORY_INCOMPLETE)


def deleting(run: Run, testbeds: Sequence[str], now: float) -> ScenarioRunStatus:
    what = (
        f"{', '.join(testbeds)} {'is' if len(testbeds) == 1 else 'are'}" if testbeds else "the runner pod is"
    )
    return with_conditions(run, run.status, [yes("Reconciling", "Deleting", f"waits until {what} gone")], now)


def seen(run: Run, now: float) -> ScenarioRunStatus:
    """Return the same status for the present generation: suspend and TTL may change."""
    if run.status.observed_generation == run.generation:
        return run.status
    return with_conditions(run, run.status, [], now)


# ---- Events


def events(before: ScenarioRunStatus, after: ScenarioRunStatus) -> list[Emit]:
    """Return an Event for each change that a user would look for."""
    found: list[Emit] = []
    if after.trial and after.trial != before.trial:
        found.append(Emit("Normal", "TrialStarted", f"{after.trial} ({after.progress} done)"))
    voided = {t.name for t in before.trials if t.voided}
    found += [
        Emit("Warning", "TrialVoided", clip(f"{trial.name}: {trial.reason}"))
        for trial in after.trials
        if trial.voided and trial.name not in voided
    ]
    earlier = {fault.name: fault for fault in before.faults}
    for fault in after.faults:
        found += _fault_events(earlier.get(fault.name), fault)
    if after.phase == EVALUATING and before.phase != EVALUATING:
        found.append(Emit("Normal", "Evaluating", "the trials are done"))
    if after.phase == COMPLETE and before.phase != COMPLETE:
        bad = after.verdict in (Verdict.ERROR, Verdict.FAIL)
        text = " ".join(f"{after.verdict} {after.reason}: {after.text}".split())
        found.append(
            Emit("Warning" if bad else "Normal", COMPLETE, clip(text.replace(" :", ":").rstrip(": ")))
        )
    return found


def _fault_events(before: FaultResult | None, after: FaultResult) -> list[Emit]:
    found: list[Emit] = []
    if after.verified is not None and (before is None or after.verified is not before.verified):
        verified = Emit("Normal", "EffectVerified", clip(f"{after.name} by {after.backend}"))
        failed = Emit("Warning", "EffectNotVerified", clip(f"{after.name}: {after.why}"))
        found.append(verified if after.verified else failed)
    if after.residue and not (before and before.residue):
        found.append(Emit("Warning", "Residue", clip(f"{after.name}: {after.residue}")))
    return found


# ---- parts of a status


def _mirrored(before: ScenarioRunStatus, report: RunReport | None) -> ScenarioRunStatus:
    """Return the status with the runner's report, within bounds."""
    if report is None:
        return before
    status = replace(before, **carried(report))
    left = report.remaining_seconds
    return replace(
        status,
        text=status.text[:MAX_TEXT],
        trials=status.trials[-MAX_TRIALS:],
        active_faults=status.active_faults[:MAX_FAULTS],
        faults=status.faults[:MAX_FAULTS],
        progress=f"{report.trials_done}/{report.trials_total}" if report.trials_total else before.progress,
        remaining="" if left is None else f"{max(0.0, left):.0f} s",
    )


def _measured(faults: Sequence[FaultResult]) -> list[Condition]:
    """Return the conditions on all faults so far. A fault that was not measured is not a success."""
    without_effect = [f.name for f in faults if f.verified is False]
    unverified = [f.name for f in faults if f.verified is None]
    dirty = [f"{f.name}: {f.residue}" for f in faults if f.residue]
    unmeasured = [f.name for f in faults if f.residue is None]
    if without_effect:
        text = f"no effect was measured of {', '.join(without_effect)}"
        effect = no("EffectVerified", "NotMeasured", text)
    elif unverified or not faults:
        effect = unknown("EffectVerified", "NotMeasuredYet", ", ".join(unverified))
    else:
        effect = yes("EffectVerified", "Measured", ", ".join(f.name for f in faults))
    if dirty:
        residue = no("NoResidue", "Residue", "; ".join(dirty))
    elif unmeasured or not faults:
        residue = unknown("NoResidue", "NotMeasuredYet", ", ".join(unmeasured))
    else:
        residue = yes("NoResidue", "Clean", "measured after each fault")
    return [effect, residue]


def _history(history: History) -> list[Condition]:
    if history is None:
        return []
    readable, why = history
    if readable is None:
        return [unknown("HistoryReachable", "OneNode", why)]
    return [yes("HistoryReachable", "Shared", why) if readable else no("HistoryReachable", "NoClaim", why)]
