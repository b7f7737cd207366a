"""Headgate's kinds, each declared once: names, status, columns and what else its definition needs. Pure.

The spec of a kind is its model in api.kinds. This module imports no pydantic, because the pods' client of the API server uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from testbed_runtime.api import limits, naming, status

Column = dict[str, Any]


class CustomResource(Struct, frozen=True, kw_only=True):
    """One of Headgate's kinds, as its CustomResourceDefinition describes it."""

    plural: str
    short_name: str
    status: type[status.Status]
    max_name: int
    name_use: str
    """Why its name is limited, for the message of the rule."""
    columns: Sequence[Column]
    """The columns of `kubectl get`."""
    selectable: Sequence[str] = ()
    """Selectable fields, for `kubectl get run --field-selector status.verdict=Fail`."""
    scale: Mapping[str, str] = {}
    """The paths of its scale subresource."""
    label: str = ""
    """The label by which an object names its owner of this kind."""
    testbed: str = ""
    """The path of the testbed in it, which the admission policies validate."""


def _column(
    name: str, path: str, kind: str = "string", *, wide: bool = False, description: str = ""
) -> Column:
    column: Column = {"name": name, "type": kind, "jsonPath": path, "priority": 1 if wide else 0}
    return {**column, "description": description} if description else column


def _status(*names: str, wide: bool = False) -> list[Column]:
    """Return the columns of these fields of the status, each named like its field."""
    return [_column(name, f".status.{name.lower()}", wide=wide) for name in names]


def _condition(name: str, **how: Any) -> Column:
    return _column(name, f'.status.conditions[?(@.type=="{name}")].status', **how)


def _reason(condition: str) -> Column:
    """Return the column with a condition's reason."""
    return _column("Reason", f'.status.conditions[?(@.type=="{condition}")].reason')


_AGE = _column("Age", ".metadata.creationTimestamp", "date")
CUSTOM_RESOURCES: Mapping[str, CustomResource] = {
    "Testbed": CustomResource(
        plural="testbeds",
        short_name="tb",
        status=status.TestbedStatus,
        max_name=naming.MAX_TESTBED_NAME,
        name_use="its pods are named after it",
        columns=(
            _condition("Ready"),
            _reason("Ready"),
            _column("TaskManagers", ".status.readyTaskManagers", "integer"),
            _column("Wanted", ".spec.taskManagers.replicas", "integer"),
            _column("Job", ".status.jobState"),
            _AGE,
            *_status("Tasks", wide=True),
            _column("Restarts", ".status.restarts", "integer", wide=True),
            _column("Flink", ".spec.flinkVersion", wide=True),
            _column("Run", ".spec.run", wide=True),
            *_status("Message", wide=True),
        ),
        scale={
            "specReplicasPath": ".spec.taskManagers.replicas",
            "statusReplicasPath": ".status.readyTaskManagers",
            "labelSelectorPath": ".status.selector",
        },
        label=naming.LABEL_TESTBED,
        testbed="spec",
    ),
    "Fault": CustomResource(
        plural="faults",
        short_name="flt",
        status=status.FaultStatus,
        max_name=limits.MAX_NAME,
        name_use="it is named in reports",
        columns=(
            *_status("Phase", "Kind", "Target", "Remaining", "Reason"),
            _AGE,
            _column("Testbed", ".spec.testbedRef.name", wide=True),
            *_status("Backend", wide=True),
            _condition("EffectVerified", wide=True),
            _condition("NoResidue", wide=True),
            *_status("Message", wide=True),
        ),
        selectable=(".status.phase",),
    ),
    "Scenario": CustomResource(
        plural="scenarios",
        short_name="scn",
        status=status.ScenarioStatus,
        max_name=limits.MAX_NAME,
        name_use="its runs are named after it",
        columns=(
            _condition("Accepted"),
            _reason("Accepted"),
            _column("Trials", ".spec.trials", "integer"),
            _AGE,
            _column("Flink", ".spec.testbed.flinkVersion", wide=True),
            _column("Hypothesis", ".spec.hypothesis", wide=True),
        ),
        testbed="spec.testbed",
    ),
    "ScenarioRun": CustomResource(
        plural="scenarioruns",
        short_name="run",
        status=status.ScenarioRunStatus,
        max_name=limits.MAX_RUN_NAME,
        name_use="its pods are named after it",
        columns=(
            *_status("Phase", "Progress", "Verdict"),
            _reason("Ready"),
            *_status("Remaining"),
            _column("Updated", ".status.updated", "date", description="When the runner last reported."),
            _AGE,
            _column("Scenario", ".spec.scenarioName", wide=True),
            *_status("Trial", "Message", wide=True),
        ),
        selectable=(".status.phase", ".status.verdict"),
        label=naming.LABEL_RUN,
        testbed="spec.scenario.testbed",
    ),
    "TuningStudy": CustomResource(
        plural="tuningstudies",
        short_name="tune",
        status=status.TuningStudyStatus,
        max_name=limits.MAX_RUN_NAME,
        name_use="its runs are named after it",
        columns=(
            *_status("Phase", "Progress", "Best"),
            _reason("Ready"),
            _AGE,
            *_status("Applied", "Message", wide=True),
        ),
        selectable=(".status.phase",),
        label=naming.LABEL_STUDY,
    ),
}
