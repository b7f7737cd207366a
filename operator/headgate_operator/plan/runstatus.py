"""The status of a ScenarioRun: what the runner says, turned into fields, conditions and Events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headgate_operator.plan.conditions import Condition, find, merged, no, rfc3339, unknown, yes
from headgate_operator.plan.model import Emit, Manifest
from testbed_runtime.api import naming

MAX_EVENT_TEXT = 900
"""The API server takes 1024 characters of an Event."""
MAX_TEXT = 4000
MAX_TRIALS = 64
"""Trials whose end is kept in the status; the newest."""
MIRRORED = (
    "trial",
    "trialPhase",
    "trialsDone",
    "trialsTotal",
    "message",
    "jobState",
    "remainingSeconds",
    "verdict",
    "reason",
    "text",
    "updated",
)
MAX_FAULTS = 32
TRIAL_FIELDS = ("name", "jobState", "voided", "reason")
FAULT_FIELDS = ("name", "backend", "why", "verified", "residue")
HEALING = "Healing"
"""The condition that says since when the operator has known of the annotation."""
History = tuple[bool | None, str] | None
"""Whether executors reach the history (None: nobody knows), and why; None: there are no executors."""


def running(
    run: Manifest,
    report: Mapping[str, Any],
    runner: Manifest | None,
    now: float,
    *,
    history: History,
    spark: Manifest | None,
    healing: bool = False,
) -> dict[str, Any]:
    """While the runner is at work, or about to be."""
    before = run.get("status") or {}
    phase = str(report.get("phase") or "Starting")
    status = {**before, **_mirror(before, report), "phase": phase, **_runner_pods(before, runner)}
    status.setdefault("startedAt", rfc3339(now))
    up = container_runs(runner)
    ready = (
        yes("Ready", "Running", "the runner is at work")
        if up
        else no("Ready", "RunnerNotReady", _why(runner))
    )
    if phase == "Evaluating" and not container_runs(spark):
        ready = no("Ready", "SparkNotReady", "the evaluation waits for the Spark pod")
    return _with(run, status, now, [
        yes("Accepted", "Valid"),
        yes("Reconciling", phase, str(report.get("message", ""))),
        ready,
        no("Stalled", "Working"),
        *_measured(report),
        *_history(history),
        *([yes(HEALING, "Asked", "the runner ends its trial and the run")] if healing else []),
        no("Complete", phase),
    ])  # fmt: skip


def blocked(run: Manifest, taken: Sequence[str], now: float) -> dict[str, Any]:
    """Nothing is made under names that others have: their token and their verdict would be taken for this run's."""
    status = {**(run.get("status") or {}), "phase": "Starting"}
    text = f"waits until {', '.join(taken)} of another owner is gone; if that is to stay, give this run another name"
    return _with(run, status, now, [
        yes("Accepted", "Valid"),
        yes("Reconciling", "NamesTaken", text),
        no("Ready", "NamesTaken", text),
        no("Stalled", "NamesTaken"),
        no("Complete", "Starting"),
    ])  # fmt: skip


def suspended(run: Manifest, now: float) -> dict[str, Any]:
    """Nothing was created yet."""
    status = {**(run.get("status") or {}), "phase": "Suspended", "progress": ""}
    text = "spec.suspend is true; it begins when it is false"
    return _with(run, status, now, [
        yes("Accepted", "Valid"),
        no("Reconciling", "Suspended", text),
        no("Ready", "Suspended", text),
        no("Stalled", "Suspended"),
        no("Complete", "Suspended", text),
    ])  # fmt: skip


def rejected(run: Manifest, text: str, now: float) -> dict[str, Any]:
    """What is wrong cannot be mended in place, a run does not change: it is over."""
    status = {
        **(run.get("status") or {}), "phase": "Complete", "progress": "", "verdict": "Error", "reason": "Invalid",
        "text": text[:MAX_TEXT], "completedAt": rfc3339(now),
    }  # fmt: skip
    return _with(run, status, now, [
        no("Accepted", "Invalid", text),
        no("Reconciling", "Invalid"),
        no("Ready", "Invalid", text),
        yes("Stalled", "Invalid", "nothing was created; correct the scenario and create another run"),
        yes("Complete", "Error", "it was not run"),
    ])  # fmt: skip


def ended(run: Manifest, report: Mapping[str, Any], now: float, *, history: History) -> dict[str, Any]:
    """There is a verdict."""
    before = run.get("status") or {}
    verdict = str(report["verdict"])
    status = {
        **before, **_mirror(before, report), "phase": "Complete", "completedAt": before.get("completedAt") or rfc3339(now),
        "report": naming.report_name(run["metadata"]["name"]), "remaining": "",
    }  # fmt: skip
    status.setdefault("startedAt", status["completedAt"])
    text = str(report.get("text", ""))
    good = verdict in ("Pass", "Fail")
    return _with(run, status, now, [
        yes("Accepted", "Valid"),
        no("Reconciling", "Complete"),
        yes("Ready", verdict, text) if good else no("Ready", str(report.get("reason") or verdict), text),
        no("Stalled", "Complete"),
        *_measured(report),
        *_history(history),
        *([no(HEALING, "Complete")] if find(before, HEALING) else []),
        yes("Complete", verdict, text),
    ])  # fmt: skip


def deleting(run: Manifest, testbeds: Sequence[str], now: float) -> dict[str, Any]:
    status = dict(run.get("status") or {})
    text = (
        f"waits until {', '.join(testbeds)} {'is' if len(testbeds) == 1 else 'are'} gone"
        if testbeds
        else "waits until the runner pod is gone"
    )
    return _with(run, status, now, [yes("Reconciling", "Deleting", text)])


def seen(run: Manifest, now: float) -> dict[str, Any]:
    """The same, for the generation that is there now (suspend and TTL may change)."""
    status = dict(run.get("status") or {})
    if status.get("observedGeneration") == run["metadata"].get("generation", 0):
        return status
    return _with(run, status, now, [])


# ---- Events


def events(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Emit]:
    """What changed and a user would look for."""
    found: list[Emit] = []
    if after.get("trial") and after.get("trial") != before.get("trial"):
        found.append(Emit("Normal", "TrialStarted", f"{after['trial']} ({after.get('progress', '')} done)"))
    old = {t["name"]: t for t in before.get("trials") or ()}
    found += [
        Emit("Warning", "TrialVoided", _clip(f"{trial['name']}: {trial.get('reason', '')}"))
        for trial in after.get("trials") or ()
        if trial.get("voided") and not (old.get(trial["name"]) or {}).get("voided")
    ]
    found += _fault_events(before.get("faults") or (), after.get("faults") or ())
    if after.get("phase") == "Evaluating" and before.get("phase") != "Evaluating":
        found.append(Emit("Normal", "Evaluating", "the trials are done"))
    if after.get("phase") == "Complete" and before.get("phase") != "Complete":
        kind = "Warning" if after.get("verdict") in ("Error", "Fail") else "Normal"
        text = f"{after.get('verdict')} {after.get('reason') or ''}: {after.get('text') or ''}"
        found.append(Emit(kind, "Complete", _clip(" ".join(text.split()).replace(" :", ":").rstrip(": "))))
    return found


def _fault_events(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[Emit]:
    old = {f["name"]: f for f in before}
    found: list[Emit] = []
    for fault in after:
        was = old.get(fault["name"]) or {}
        if fault.get("verified") is True and was.get("verified") is not True:
            found.append(
                Emit("Normal", "EffectVerified", _clip(f"{fault['name']} by {fault.get('backend', '')}"))
            )
        if fault.get("verified") is False and was.get("verified") is not False:
            found.append(
                Emit("Warning", "EffectNotVerified", _clip(f"{fault['name']}: {fault.get('why', '')}"))
            )
        if fault.get("residue") and not was.get("residue"):
            found.append(Emit("Warning", "Residue", _clip(f"{fault['name']}: {fault['residue']}")))
    return found


def _clip(text: str) -> str:
    return text if len(text) <= MAX_EVENT_TEXT else text[: MAX_EVENT_TEXT - 1] + "…"


# ---- inside


def _mirror(before: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """What the runner wrote, bounded. What it does not write yet stays as it was."""
    if not report:
        return {"progress": before.get("progress", "")}
    found = {key: report[key] for key in MIRRORED if report.get(key) is not None}
    if "text" in found:
        found["text"] = str(found["text"])[:MAX_TEXT]
    done, total = report.get("trialsDone"), report.get("trialsTotal")
    found["progress"] = f"{done or 0}/{total}" if total else before.get("progress", "")
    if report.get("remainingSeconds") is not None:
        found["remaining"] = f"{max(0.0, float(report['remainingSeconds'])):.0f} s"
    if report.get("recovery"):
        found["recovery"] = {k: v for k, v in report["recovery"].items() if v is not None}
    if report.get("trials") is not None:
        found["trials"] = [_known(t, TRIAL_FIELDS) for t in report["trials"][-MAX_TRIALS:]]
    if report.get("faults") is not None:
        found["faults"] = [_known(f, FAULT_FIELDS) for f in report["faults"][:MAX_FAULTS]]
    return found


def _known(item: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """The fields that the status has, texts as texts; what is not known yet is left out."""
    found = {f: item[f] for f in fields if item.get(f) is not None}
    if "residue" in found:
        left = found["residue"]
        found["residue"] = "something was left" if left is True else str(left) if left else ""
    return found


def _measured(report: Mapping[str, Any]) -> list[Condition]:
    """Of every fault so far. Nothing measured is not a success."""
    faults = list(report.get("faults") or ())
    bad = [f["name"] for f in faults if f.get("verified") is False]
    open_ = [f["name"] for f in faults if f.get("verified") is None]
    dirty = [f"{f['name']}: {f['residue']}" for f in faults if f.get("residue")]
    unmeasured = [f["name"] for f in faults if f.get("residue") is None]
    if bad:
        effect = no("EffectVerified", "NotMeasured", f"no effect was measured of {', '.join(bad)}")
    elif open_ or not faults:
        effect = unknown("EffectVerified", "NotMeasuredYet", ", ".join(open_))
    else:
        effect = yes("EffectVerified", "Measured", ", ".join(f["name"] for f in faults))
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
    reached, why = history
    if reached is None:
        return [unknown("HistoryReachable", "OneNode", why)]
    return [yes("HistoryReachable", "Shared", why) if reached else no("HistoryReachable", "NoClaim", why)]


def _runner_pods(before: Mapping[str, Any], runner: Manifest | None) -> dict[str, Any]:
    """How many runner pods there were, counted when one is seen."""
    count, uid = int(before.get("runnerStarts") or 0), before.get("runnerUid", "")
    if runner is not None and runner["metadata"].get("uid", "") != uid:
        return {"runnerStarts": count + 1, "runnerUid": runner["metadata"].get("uid", "")}
    return {"runnerStarts": count, "runnerUid": uid}


def container_runs(pod: Manifest | None) -> bool:
    """Not of one that waits for its next start: its pod's phase is Running all the same."""
    status = (pod or {}).get("status") or {}
    states = [c.get("state") or {} for c in status.get("containerStatuses") or ()]
    stopped = any("waiting" in state or "terminated" in state for state in states)
    return bool(status.get("phase") == "Running") and not stopped


def _why(pod: Manifest | None) -> str:
    """The kubelet's or scheduler's own words for a pod that does not run."""
    if pod is None:
        return "there is no runner pod yet"
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("message"):
            return f"{condition.get('reason', '')}: {condition['message']}"
    return f"the pod is {status.get('phase', 'Pending')}"


def _with(run: Manifest, status: dict[str, Any], now: float, wanted: Sequence[Condition]) -> dict[str, Any]:
    generation = int(run["metadata"].get("generation", 0))
    before = (run.get("status") or {}).get("conditions") or ()
    return {
        **status,
        "observedGeneration": generation,
        "conditions": merged(before, wanted, generation=generation, now=now),
    }
