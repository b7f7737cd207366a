"""The status models: one declaration for the operator, the runner and the CRDs."""

from __future__ import annotations

import msgspec
import pytest

from testbed_runtime.api import crd_status
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.status import (
    FaultResult,
    RunReport,
    ScenarioRunStatus,
    StudyReport,
    TrialResult,
    TuningStudyStatus,
    carried,
    read,
    to_json,
)


def test_a_report_survives_its_json() -> None:
    """Names are in camelCase, fields with their default are left out, and lists are lists."""
    trial = TrialResult(name="main-1", job_state="FINISHED")
    report = RunReport(phase="Running", trials_total=3, trials=(trial,), remaining_seconds=1.5)
    assert to_json(report) == {
        "phase": "Running",
        "trialsTotal": 3,
        "trials": [{"name": "main-1", "jobState": "FINISHED"}],
        "remainingSeconds": 1.5,
    }
    assert read(RunReport, to_json(report)) == report


def test_a_residue_is_unknown_until_it_is_measured() -> None:
    """Empty means that it was measured and nothing was left."""
    assert to_json(FaultResult(name="kill")) == {"name": "kill"}
    assert to_json(FaultResult(name="kill", residue="")) == {"name": "kill", "residue": ""}


def test_a_report_of_another_shape_is_refused_and_unknown_fields_are_ignored() -> None:
    """A runner may be newer than the operator."""
    assert read(RunReport, {"phase": "Running", "later": 1}) == RunReport(phase="Running")
    with pytest.raises(ValueError, match="trialsDone"):
        read(RunReport, {"trialsDone": "three"})


@pytest.mark.parametrize(
    ("report", "status"), [(RunReport, ScenarioRunStatus), (StudyReport, TuningStudyStatus)]
)
def test_every_field_that_is_carried_over_is_one_of_the_status(report, status) -> None:
    """The operator keeps the phase, the generation and the conditions as its own."""
    names = {field.name for field in msgspec.structs.fields(status)}
    assert set(carried(report())) <= names - {"phase", "observed_generation", "conditions"}


@pytest.mark.parametrize("kind", sorted(CUSTOM_RESOURCES))
def test_the_schema_of_the_definitions_has_every_field_of_the_model(kind: str) -> None:
    """Each with a type, as a structural schema requires."""
    schema = crd_status.STATUS[kind]
    assert set(schema) == {
        field.encode_name for field in msgspec.structs.fields(CUSTOM_RESOURCES[kind].status)
    }
    assert all("type" in field for field in schema.values())
