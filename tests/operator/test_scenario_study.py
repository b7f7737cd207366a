"""A Scenario only says what it is; a TuningStudy has a pod and mirrors its table. Tables of the pure planners."""

from __future__ import annotations

from typing import Any

from headgate_operator import objects_runs
from headgate_operator.plan import scenario, study
from headgate_operator.plan.model import Create, Delete, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import MAX_TARGETS, StudyReport, read, to_json
from testbed_runtime.api.views import Pod, Study
from tests.operator.actors import a_run
from tests.operator.world import find, kstatus

NOW = 1_700_000_000.0
SETTINGS = Settings()


def a_scenario(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "Scenario",
        "metadata": {"name": "idle", "namespace": "lab", "uid": "u", "generation": 3},
        "spec": {**a_run()["spec"]["scenario"], **spec},
    }


def a_study(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    wanted = {
        "scenarios": [{"name": "late"}],
        "options": [{"key": "heartbeat.timeout", "values": ["5 s", "10 s"]}],
        "objectives": [{"metric": "recovery.total"}],
        **spec,
    }
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "TuningStudy",
        "metadata": {"name": "knobs", "namespace": "lab", "uid": "u", "generation": 1},
        "spec": wanted,
        "status": status or {},
    }


def written(plan: Plan) -> dict[str, Any]:
    """Return the status as it is written to the API server."""
    return {} if plan.status is None else to_json(plan.status)


def condition(plan: Plan, type_: str) -> str:
    found = find(written(plan), type_)
    return f"{found['status']}/{found['reason']}" if found else ""


def test_a_scenario_does_nothing_but_say_that_it_is_accepted() -> None:
    """No action, whatever it asks for."""
    made = scenario.plan(scenario.Observed(a_scenario()), SETTINGS, NOW)
    assert made.actions == ()
    assert condition(made, "Accepted") == "True/Valid"
    assert written(made)["observedGeneration"] == 3


def test_a_scenario_with_a_mistake_has_the_command_lines_text() -> None:
    """An option that is a typo away from a known one."""
    data = a_scenario()
    data["spec"]["testbed"] = {**data["spec"]["testbed"], "flinkConfiguration": {"heartbeat.timeuot": "5 s"}}
    made = scenario.plan(scenario.Observed(data), SETTINGS, NOW)
    found = find(written(made), "Accepted")
    assert made.actions == ()
    assert found is not None
    assert found["status"] == "False"
    assert "did you mean heartbeat.timeout?" in found["message"]
    assert kstatus({**data, "status": written(made)}) == "Failed"


def test_thousands_of_warnings_fit_the_status() -> None:
    """Every variant has unknown options: a status that the API server refuses would leave the Scenario without one."""
    made = a_scenario()
    made["spec"]["variants"] = [
        {"name": f"v{n}", "flinkConfiguration": {f"my.own.option-{n}-{m}": "1" for m in range(20)}}
        for n in range(16)
    ]
    status = written(scenario.plan(scenario.Observed(made), SETTINGS, NOW))
    assert status is not None
    assert len(status["warnings"]) == MAX_TARGETS


def test_a_scenario_that_did_not_change_is_not_written_again() -> None:
    """The same status a minute later, times included."""
    first = scenario.plan(scenario.Observed(a_scenario()), SETTINGS, NOW)
    again = {**a_scenario(), "status": written(first)}
    assert scenario.plan(scenario.Observed(again), SETTINGS, NOW + 60).status == first.status


def test_a_study_gets_one_pod_under_an_account_of_its_own() -> None:
    """And the account and its binding, where they are not there."""
    made = study.plan(study.Observed(Study(a_study())), SETTINGS, NOW)
    created = {a.manifest["kind"]: a.manifest for a in made.actions if isinstance(a, Create)}
    assert set(created) == {"Pod", "ServiceAccount", "RoleBinding"}
    assert created["Pod"]["spec"]["serviceAccountName"] == naming.STUDY_ACCOUNT
    assert created["Pod"]["spec"]["containers"][0]["command"][-1] == "testbed_runtime.entry.study"


def test_a_studys_pod_under_another_account_is_made_again() -> None:
    """An older release ran it as the runner, which may make no runs any more."""
    pod = objects_runs.study_pod(Study(a_study()), SETTINGS)
    pod["metadata"]["uid"] = "u-1"
    there = study.plan(study.Observed(Study(a_study()), Pod(pod)), SETTINGS, NOW)
    assert not [a for a in there.actions if isinstance(a, Delete)]
    pod["spec"]["serviceAccountName"] = naming.RUNNER_ACCOUNT
    again = study.plan(study.Observed(Study(a_study()), Pod(pod)), SETTINGS, NOW)
    assert [a.uid for a in again.actions if isinstance(a, Delete)] == ["u-1"]


def test_a_namespaced_installation_makes_no_accounts() -> None:
    """The chart did."""
    made = study.plan(study.Observed(Study(a_study())), Settings(namespaces=("lab",)), NOW)
    assert {a.manifest["kind"] for a in made.actions if isinstance(a, Create)} == {"Pod"}


def test_a_studys_table_is_mirrored_and_final_when_it_is_complete() -> None:
    """Progress while it runs; then Complete with the best row."""
    rows = [{"options": {"heartbeat.timeout": "5 s"}, "verdict": "Pass", "best": True}]
    report = {"phase": "Running", "runsDone": 1, "runsTotal": 2, "table": rows}
    made = study.plan(study.Observed(Study(a_study()), report=read(StudyReport, report)), SETTINGS, NOW)
    assert written(made)["progress"] == "1/2"
    done = {**report, "phase": "Complete", "runsDone": 2, "best": "heartbeat.timeout=5 s"}
    made = study.plan(study.Observed(Study(a_study()), report=read(StudyReport, done)), SETTINGS, NOW)
    assert condition(made, "Complete") == "True/TableComplete"
    assert written(made)["table"] == rows
    over = study.plan(study.Observed(Study(a_study(written(made)))), SETTINGS, NOW + 9)
    assert over.actions == ()
    assert over.status == made.status
    assert kstatus({**a_study(), "status": written(over)}) == "Current"


def test_a_studys_pod_that_failed_is_removed_and_made_again_five_times() -> None:
    """Then the study is Complete with reason PodLost."""
    pod = {"metadata": {"name": "knobs-study", "namespace": "lab", "uid": "p"}, "status": {"phase": "Failed"}}
    made = study.plan(study.Observed(Study(a_study()), Pod(pod)), SETTINGS, NOW)
    assert any(isinstance(a, Delete) and a.uid == "p" for a in made.actions)
    lost = study.plan(study.Observed(Study(a_study({"podStarts": 6}))), SETTINGS, NOW)
    assert condition(lost, "Complete") == "True/PodLost"
    assert kstatus({**a_study(), "status": written(lost)}) == "Failed"


def test_a_study_with_a_grid_above_its_budget_is_rejected() -> None:
    """With the number that it needs; nothing is created."""
    made = study.plan(study.Observed(Study(a_study(budget={"runs": 1}))), SETTINGS, NOW)
    found = find(written(made), "Accepted")
    assert not [a for a in made.actions if isinstance(a, Create)]
    assert found is not None
    assert "needs 2 runs" in found["message"]
    assert kstatus({**a_study(), "status": written(made)}) == "Failed"
