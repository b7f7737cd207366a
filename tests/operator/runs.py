"""A ScenarioRun with its pods and what it shares, as the operator's plan observes them."""

from __future__ import annotations

from typing import Any

from headgate_operator import objects_runs
from headgate_operator.plan import scenariorun
from headgate_operator.plan.model import Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import RunReport, ScenarioRunStatus, read, rfc3339
from testbed_runtime.api.views import Pod, Resource, Run
from tests.operator.actors import a_run
from tests.operator.test_scenario_study import NOW, SETTINGS

Obj = dict[str, Any]
RUNNER, RECORDER = "trial-run-runner", "trial-run-recorder"
SPARK = objects_runs.SPARK_NAME
ACCEPTED = [{"type": "Accepted", "status": "True", "reason": "Valid", "message": ""}]


def made(
    status: Obj | None = None, *, annotations: Obj | None = None, labels: Obj | None = None, **spec: Any
) -> Obj:
    """An accepted run with its finalizer."""
    found = a_run(**spec)
    found["metadata"] |= {
        "uid": "u", "generation": 1, "finalizers": ["other", naming.FINALIZER], "annotations": annotations or {}, "labels": labels or {},
    }  # fmt: skip
    found["status"] = {"phase": "Running", "conditions": ACCEPTED, "observedGeneration": 1, **(status or {})}
    return found


def a_pod(
    name: str, phase: str = "Running", *, owner: str = "u", status: Obj | None = None, **metadata: Any
) -> Pod:
    given = {
        "name": name,
        "namespace": "lab",
        "uid": f"{name}-uid",
        "creationTimestamp": rfc3339(NOW),
        "resourceVersion": "7",
        "annotations": {naming.ANNOTATION_IMAGES: SETTINGS.spark_image},
    }
    return Pod({
        "kind": "Pod", "metadata": {**given, "ownerReferences": [{"uid": owner}], **metadata},
        "status": {"phase": phase, **(status or {})},
    })  # fmt: skip


def pods(**changed: Pod | None) -> dict[str, Pod]:
    """Recorder, runner and Spark, all at work; `changed` by role."""
    names = {"recorder": RECORDER, "runner": RUNNER, "spark": SPARK}
    found = {role: a_pod(name) for role, name in names.items()} | changed
    return {names[role]: pod for role, pod in found.items() if pod is not None}


def shared(owner: str = "u") -> dict[tuple[str, str], Resource]:
    """The accounts and what the Spark pod has, which belong to this run."""
    keys = [("Secret", naming.token_name(SPARK)), ("Service", SPARK)]
    keys += [(m["kind"], m["metadata"]["name"]) for m in objects_runs.accounts(Run(made()), SETTINGS)]
    return {
        (kind, name): Resource({"kind": kind, "metadata": {"name": name, "resourceVersion": "7", "ownerReferences": [{"uid": owner}]}})
        for kind, name in keys
    }  # fmt: skip


PRESENT = frozenset({("Secret", naming.token_name("trial-run")), ("Service", RECORDER)})


def look(raw: Obj, *, now: float = NOW, settings: Settings = SETTINGS, **more: Any) -> Plan:
    given = {"pods": pods(), "shared": shared(), "present": PRESENT, **more}
    return scenariorun.plan(scenariorun.Observed(Run(raw), **given), settings, now)


def status_of(plan: Plan) -> ScenarioRunStatus:
    assert isinstance(plan.status, ScenarioRunStatus)
    return plan.status


def report(**fields: Any) -> RunReport:
    return read(RunReport, {"phase": "Running", **fields})


KNOWN = {
    "runnerStarts": 1,
    "runnerUid": f"{RUNNER}-uid",
    "recorderStarts": 1,
    "recorderUid": f"{RECORDER}-uid",
}
