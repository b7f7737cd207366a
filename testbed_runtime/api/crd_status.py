"""Status of each kind as the planners write it, and what `kubectl get` shows of it. Pure data."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

MAX_CONDITIONS = 16
MAX_ROWS = 1_100
"""Trials of a run (100 of each of its variants, in most of them far fewer) or rows of a study."""
MAX_TARGETS = 256
MAX_MESSAGE = 32_768
"""Kubernetes' own bound of a condition's message."""

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer", "format": "int64"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
TEXTS: Schema = {"type": "array", "items": TEXT, "maxItems": MAX_TARGETS}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


def _map(value: Schema) -> Schema:
    return {"type": "object", "additionalProperties": value, "maxProperties": MAX_TARGETS}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item, "maxItems": MAX_ROWS}


def _said(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


CONDITIONS: Schema = {
    "type": "array",
    "maxItems": MAX_CONDITIONS,
    "description": "What holds, since when and why; by type.",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": _object(
        ("type", "status", "reason", "message", "lastTransitionTime"),
        type={"type": "string", "maxLength": 316},
        status={"type": "string", "enum": ["True", "False", "Unknown"]},
        reason={"type": "string", "maxLength": 1024},
        message={"type": "string", "maxLength": MAX_MESSAGE},
        observedGeneration=INTEGER,
        lastTransitionTime=TIME,
    ),
}
_COMMON: dict[str, Schema] = {
    "observedGeneration": _said(INTEGER, "The generation of the spec that this status is about."),
    "conditions": CONDITIONS,
    "phase": _said(TEXT, "Where it stands, in a word."),
    "message": _said(TEXT, "Where it stands, in a sentence."),
}
_VERDICT: dict[str, Schema] = {
    "verdict": _said(TEXT, "`Pass`, `Fail`, `Inconclusive` or `Error`; there when it is complete."),
    "reason": _said(TEXT, "Why the verdict is not `Pass`, in a word."),
    "text": _said(TEXT, "The verdict in a sentence."),
}

STATUS: dict[str, dict[str, Schema]] = {
    "Testbed": {
        **_COMMON,
        "selector": _said(TEXT, "Label selector of the TaskManager pods, for the scale subresource."),
        "taskManagers": _said(INTEGER, "TaskManager pods that are there."),
        "readyTaskManagers": _said(INTEGER, "TaskManagers that are registered and not paused."),
        "incarnations": _said(_map(INTEGER), "Newest pod of each TaskManager, numbered from 1."),
        "lost": _said(_map(TEXT), "TaskManagers whose pod is gone or has ended, and since when."),
        "members": _said(
            TEXTS, "Processes whose pod was seen and was not taken away on purpose: without a pod, lost."
        ),
        "jobState": _said(TEXT, "State of the job at the JobManager."),
        "tasks": _said(TEXT, "Running tasks of all tasks, as in `6/6`."),
        "restarts": _said(INTEGER, "Failovers of the job."),
        "checkpoints": _said(INTEGER, "Completed checkpoints of the job."),
        "placement": _said(_map(TEXT), "Subtask to TaskManager, of the newest attempt."),
        "warnings": _said(TEXTS, "What is accepted and may not be meant."),
    },
    "Fault": {
        **_COMMON,
        "faultId": _said(TEXT, "The id by which agents know it."),
        "kind": _said(TEXT, "As in `network.latency`."),
        "backend": _said(TEXT, "What carries it."),
        "why": _said(TEXT, "Why this backend."),
        "targets": _said(TEXTS, "Who is hit, by logical name."),
        "expected": _said(TEXT, "The effect that is expected."),
        "deadline": _said(TIME, "When it ends by itself."),
        "injectedAt": _said(TIME, "When agents began it."),
        "endedAt": _said(TIME, "When it was seen to be over."),
        "remaining": _said(TEXT, "Until its deadline, rounded up."),
        "asked": _said(_map(TEXT), "What was asked, in SI units."),
        "measured": _said(_map(TEXT), "What was measured, in SI units."),
        "verified": _said(BOOLEAN, "The effect that was asked for was measured."),
        "plannedAt": _said(TIME, "When targets and backend were chosen, before anything was injected."),
        "pods": _said(_map(TEXT), "Process to the uid of its pod when it was planned."),
        "held": _said(
            TEXTS, "Agents that were seen to hold it: one that knows nothing of it any more came again."
        ),
        "reason": _said(TEXT, "How it ended, in a word."),
        "problem": _said(TEXT, "Why an agent refused it."),
        "residue": _said(_map(TEXT), "What was left of it after its end; empty: nothing."),
    },
    "Scenario": {
        **_COMMON,
        "variants": _said(TEXTS, "Its variants."),
        "warnings": _said(TEXTS, "What is accepted and may not be meant."),
    },
    "ScenarioRun": {
        **_COMMON,
        **_VERDICT,
        "trial": _said(TEXT, "The trial that is open."),
        "trialPhase": _said(TEXT, "Where that trial stands."),
        "trialsDone": _said(INTEGER, "Trials that are over and count."),
        "trialsTotal": _said(INTEGER, "Trials that were asked for."),
        "progress": _said(TEXT, "Trials done of all, as in `1/3`."),
        "remainingSeconds": _said(NUMBER, "Of what was planned, until the end of the last trial."),
        "remaining": _said(TEXT, "The same, to be read."),
        "jobState": _said(TEXT, "State of the job of the open trial."),
        "recovery": _said(_map(NUMBER), "Seconds of each phase of the recovery, of the last trial judged."),
        "trials": _list(_object(name=TEXT, jobState=TEXT, voided=BOOLEAN, reason=TEXT)),
        "faults": _list(_object(name=TEXT, backend=TEXT, why=TEXT, verified=BOOLEAN, residue=TEXT)),
        "runnerStarts": _said(INTEGER, "How often the runner's pod was made."),
        "runnerUid": _said(TEXT, "Uid of the runner's newest pod."),
        "report": _said(TEXT, "ConfigMap with the report."),
        "startedAt": TIME,
        "completedAt": TIME,
        "updated": _said(TIME, "When the runner said this."),
    },
    "TuningStudy": {
        **_COMMON,
        "runsDone": _said(INTEGER, "Runs that are complete."),
        "runsTotal": _said(INTEGER, "Runs of the grid."),
        "progress": _said(TEXT, "Runs done of all, as in `4/12`."),
        "best": _said(TEXT, "The best row: its option values, as in `key=value, key=value`."),
        "applied": _said(TEXT, "The Testbed that was given the best row."),
        "podUid": _said(TEXT, "Uid of the study's newest pod."),
        "podStarts": _said(INTEGER, "How often the study's pod was made."),
        "table": _said(
            _list(
                _object(
                    options=_map(TEXT),
                    verdict=TEXT,
                    objectives=_map(TEXT),
                    runs=TEXTS,
                    best=BOOLEAN,
                    reason=TEXT,
                )
            ),
            "One row for each combination of values.",
        ),
        "startedAt": TIME,
        "completedAt": TIME,
        "updated": _said(TIME, "When the study's pod said this."),
    },
}


def _column(
    name: str, path: str, kind: str = "string", *, wide: bool = False, description: str = ""
) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path, "priority": 1 if wide else 0}
    return {**column, "description": description} if description else column


def _condition(name: str, **how: Any) -> Schema:
    return _column(name, f'.status.conditions[?(@.type=="{name}")].status', **how)


_AGE = _column("Age", ".metadata.creationTimestamp", "date")
COLUMNS: dict[str, list[Schema]] = {
    "Testbed": [
        _condition("Ready"),
        _column("TaskManagers", ".status.readyTaskManagers", "integer"),
        _column("Wanted", ".spec.taskManagers.replicas", "integer"),
        _column("Job", ".status.jobState"),
        _AGE,
        _column("Tasks", ".status.tasks", wide=True),
        _column("Restarts", ".status.restarts", "integer", wide=True),
        _column("Flink", ".spec.flinkVersion", wide=True),
        _column("Run", ".spec.run", wide=True),
        _column("Message", ".status.message", wide=True),
    ],
    "Fault": [
        _column("Phase", ".status.phase"),
        _column("Kind", ".status.kind"),
        _column("Target", ".status.targets"),
        _column("Remaining", ".status.remaining"),
        _AGE,
        _column("Testbed", ".spec.testbedRef.name", wide=True),
        _column("Backend", ".status.backend", wide=True),
        _condition("EffectVerified", wide=True),
        _condition("NoResidue", wide=True),
        _column("Message", ".status.message", wide=True),
    ],
    "Scenario": [
        _condition("Accepted"),
        _column("Trials", ".spec.trials", "integer"),
        _AGE,
        _column("Flink", ".spec.testbed.flinkVersion", wide=True),
        _column("Hypothesis", ".spec.hypothesis", wide=True),
    ],
    "ScenarioRun": [
        _column("Phase", ".status.phase"),
        _column("Progress", ".status.progress"),
        _column("Verdict", ".status.verdict"),
        _column("Remaining", ".status.remaining"),
        _AGE,
        _column("Scenario", ".spec.scenarioName", wide=True),
        _column("Trial", ".status.trial", wide=True),
        _column("Reason", ".status.reason", wide=True),
        _column("Message", ".status.message", wide=True),
    ],
    "TuningStudy": [
        _column("Phase", ".status.phase"),
        _column("Progress", ".status.progress"),
        _column("Best", ".status.best"),
        _AGE,
        _column("Applied", ".status.applied", wide=True),
        _column("Message", ".status.message", wide=True),
    ],
}

SHORT_NAMES = {
    "Testbed": "tb",
    "Fault": "flt",
    "Scenario": "scn",
    "ScenarioRun": "run",
    "TuningStudy": "tune",
}
SELECTABLE = {
    "Fault": (".status.phase",),
    "ScenarioRun": (".status.phase", ".status.verdict"),
    "TuningStudy": (".status.phase",),
}
"""For `kubectl get run --field-selector status.verdict=Fail`."""
