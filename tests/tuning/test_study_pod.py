"""The study pod against a model of the API server: runs made, counted once, the best row applied, through the death of any process in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from testbed_runtime.api import kinds, naming
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.core.judgement.recovery import Price, Recovery, TrialRecovery
from testbed_runtime.kube.api import ApiError
from testbed_runtime.kube.study import Study
from testbed_runtime.tuning import grid
from tests.api.documents import SCENARIO, good
from tests.operator.model import ModelApi
from tests.verdicts import run_verdict
from tests.waiting import until

LAB = "lab"
LIMIT_S = 10.0


def model(api: ModelApi | None = None, **spec: Any) -> ModelApi:
    """A Scenario, a Testbed and a study of three values over it."""
    api = api or ModelApi()
    api.put({**good("Scenario"), "metadata": {"name": "late", "namespace": LAB}})
    api.put({**good("Testbed"), "metadata": {"name": "prod", "namespace": LAB}})
    wanted = {
        "scenarios": [{"name": "late"}],
        "options": [{"key": "heartbeat.timeout", "values": ["5 s", "8 s", "12 s"]}],
        "objectives": [{"metric": "recovery.total"}],
        "apply": {"name": "prod"},
        "budget": {"parallel": 2, "runs": 3},
        **spec,
    }
    study = {**good("TuningStudy"), "metadata": {"name": "knobs", "namespace": LAB}, "spec": wanted}
    assert validate_kind(study).errors == ()
    api.put(study)
    return api


def runs(api: ModelApi) -> list[dict[str, Any]]:
    return api.select("ScenarioRun", LAB)


def finish(
    api: ModelApi,
    run: dict[str, Any],
    *,
    verdict: str = "Pass",
    seconds: float | None = 1.0,
    recovery: str = "{}",
    text: str = "",
) -> None:
    """As the runner's pod and the operator do. `text`: another content of verdict.json."""
    name = run["metadata"]["name"]
    item = {"metric": "recovery.total", "value": seconds, "measured": f"{seconds} s"}
    text = text or json.dumps(run_verdict(verdict, summary=verdict, expectations=[item]).to_json())
    api.put(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": naming.report_name(name), "namespace": LAB},
            "data": {"verdict.json": text, "recovery.json": recovery},
        }
    )
    api.change("ScenarioRun", LAB, name, {"status": {"phase": "Complete", "verdict": verdict}})


def said(api: ModelApi) -> dict[str, Any]:
    found = api.one("ConfigMap", LAB, "knobs-status")
    return json.loads(found["data"]["status.json"]) if found else {}


def study(api: ModelApi) -> Study:
    return Study(api, LAB, "knobs", poll_s=0.0)  # type: ignore[arg-type]


async def study_of(api: ModelApi, count: int, *, verdict: str = "Pass") -> None:
    """Follow the study to its end. Its runs are `count`, all at once, and end with this verdict."""
    task = asyncio.create_task(study(api).run())
    await until(lambda: len(runs(api)) == count)
    for run in runs(api):
        finish(api, run, verdict=verdict)
    await asyncio.wait_for(task, LIMIT_S)


def spec_of(api: ModelApi) -> kinds.TuningStudySpec:
    wanted = validate_kind(api.select("TuningStudy", LAB)[0]).resource
    assert isinstance(wanted, kinds.TuningStudy)
    return wanted.spec


async def test_a_study_makes_its_runs_few_at_a_time_and_applies_the_best_row() -> None:
    """Owned, labelled, with the row's value in the copy of the Scenario; a restarted pod counts nothing twice."""
    api = model()
    first = asyncio.create_task(study(api).run())
    await until(lambda: len(runs(api)) == 2)
    await until(lambda: said(api).get("runsTotal") == 3)
    made = runs(api)[0]
    assert made["metadata"]["labels"][naming.LABEL_STUDY] == "knobs"
    assert made["metadata"]["ownerReferences"][0]["kind"] == "TuningStudy"
    assert made["spec"]["scenario"]["testbed"]["flinkConfiguration"]["heartbeat.timeout"] in ("5 s", "8 s")
    assert validate_kind(made).errors == ()
    finish(api, made, seconds=4.0)
    await until(lambda: len(runs(api)) == 3)

    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    again = asyncio.create_task(study(api).run())
    values = {"5 s": 4.0, "8 s": 2.0, "12 s": 3.0}
    for run in runs(api)[1:]:
        option = run["spec"]["scenario"]["testbed"]["flinkConfiguration"]["heartbeat.timeout"]
        finish(api, run, seconds=values[option])
    await asyncio.wait_for(again, LIMIT_S)
    assert len(runs(api)) == 3
    found = said(api)
    assert (found["phase"], found["reason"], found["runsDone"]) == ("Complete", "TableComplete", 3)
    assert (found["best"], found["applied"]) == ("heartbeat.timeout=8 s", "prod")
    testbed = api.one("Testbed", LAB, "prod")
    assert testbed is not None
    assert testbed["spec"]["flinkConfiguration"] == {"heartbeat.interval": "1 s", "heartbeat.timeout": "8 s"}
    assert [row.get("best", False) for row in found["table"]] == [False, True, False]


class Strict(ModelApi):
    """Refuses a run whose heartbeat.timeout is 5 s, as a webhook does if that is below heartbeat.interval."""

    def __init__(self, refusal: ApiError) -> None:
        super().__init__()
        self._refusal = refusal

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        if manifest["spec"]["scenario"]["testbed"]["flinkConfiguration"]["heartbeat.timeout"] == "5 s":
            raise self._refusal
        return await super().create(manifest)


@pytest.mark.parametrize(
    ("status", "words"),
    [(400, 'admission webhook "headgate" denied the request: '), (422, ""), (403, 'admission webhook "other" denied the request: '),
     (403, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ")],
)  # fmt: skip
async def test_a_row_whose_run_is_refused_is_an_error_and_the_others_run(status: int, words: str) -> None:
    """The pod would otherwise end with the refusal, again and again."""
    api = model(Strict(ApiError(status, "", f"{words}Flink does not start")))
    await study_of(api, 2)
    found = said(api)
    assert (found["reason"], found["best"]) == ("TableComplete", "heartbeat.timeout=8 s")
    row = next(row for row in found["table"] if row["options"]["heartbeat.timeout"] == "5 s")
    assert row["verdict"] == "Error"
    assert "Flink does not start" in row["reason"]


async def test_a_row_whose_report_cannot_be_read_is_an_error_and_the_others_run() -> None:
    """Another version of Headgate wrote it. The pod would otherwise end with that, again and again."""
    api = model(budget={"parallel": 3})
    task = asyncio.create_task(study(api).run())
    await until(lambda: len(runs(api)) == 3)
    first, *others = runs(api)
    finish(api, first, text='{"verdict": "Perfect"}')
    for run in others:
        finish(api, run)
    await asyncio.wait_for(task, LIMIT_S)
    rows = said(api)["table"]
    assert sorted(row["verdict"] for row in rows) == ["Error", "Pass", "Pass"]
    assert any(
        "cannot read the report's verdict.json: Invalid enum value 'Perfect'" in row["reason"] for row in rows
    )


async def test_nothing_is_applied_when_no_row_passes() -> None:
    """And it is said why."""
    api = model(budget={"parallel": 3})
    await study_of(api, 3, verdict="Fail")
    assert said(api)["reason"] == "NoRowPasses"
    assert (
        said(api)["message"]
        == "No row passes: nothing is recommended. 3 of 3 rows: late (fault `slow`): Fail"
    )
    assert "applied" not in said(api)
    testbed = api.one("Testbed", LAB, "prod")
    assert testbed is not None
    assert testbed["spec"]["flinkConfiguration"]["heartbeat.timeout"] == "5 s"


@pytest.mark.parametrize(
    ("spec", "scenario", "text"),
    [
        (
            {"variants": ["fast"]}, {},
            "spec.variants[0]: scenario 'late' has no variant 'fast' (it has short, long)",
        ),
        (
            {}, {"expect": [{"metric": "delivery.lots", "equals": 0}]},
            "spec.scenarios[0].name: the Scenario 'late' is invalid: spec.expect[0].metric: 'delivery.lots' is not a metric (did you mean "
            "delivery.lost?) (correct it and create the study again)",
        ),
    ],
)  # fmt: skip
async def test_a_study_whose_runs_would_all_be_refused_creates_none(
    spec: dict[str, Any], scenario: dict[str, Any], text: str
) -> None:
    """Otherwise only the reasons of the rows would show why no row passes."""
    api = model(**spec)
    found = api.one("Scenario", LAB, "late")
    assert found is not None
    api.change("Scenario", LAB, "late", {"spec": {**found["spec"], **scenario}})
    await asyncio.wait_for(study(api).run(), LIMIT_S)
    assert (said(api)["reason"], said(api)["message"], runs(api)) == ("Invalid", text, [])


async def test_a_mistake_in_an_edited_scenario_does_not_end_a_study_that_has_runs() -> None:
    """The rows that it has would be lost. The operator refuses the further runs, and their rows say why."""
    api = model()
    task = asyncio.create_task(study(api).run())
    await until(lambda: len(runs(api)) == 2)
    found = api.one("Scenario", LAB, "late")
    assert found is not None
    expect = [{"metric": "delivery.lots", "equals": 0}]
    api.change("Scenario", LAB, "late", {"spec": {**found["spec"], "expect": expect}})
    for run in runs(api):
        finish(api, run)
    await until(lambda: len(runs(api)) == 3)
    finish(api, runs(api)[2], verdict="Error")
    await asyncio.wait_for(task, LIMIT_S)
    assert (said(api)["reason"], said(api)["runsDone"]) == ("TableComplete", 3)


@pytest.mark.parametrize("restarted", [False, True], ids=["same pod", "another pod"])
async def test_a_study_whose_scenario_is_deleted_ends_with_the_rows_that_were_measured(
    restarted: bool,
) -> None:
    """The reason names the field. Another pod has them from the status, to which the operator copies the report."""
    api = model(budget={"parallel": 1, "runs": 3})
    task = asyncio.create_task(study(api).run())
    await until(lambda: runs(api))
    finish(api, runs(api)[0])
    await until(lambda: said(api).get("runsDone") == 1)
    if restarted:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        api.change("TuningStudy", LAB, "knobs", {"status": said(api)})
        task = asyncio.create_task(study(api).run())
    measured = said(api)["table"]
    api.remove(("Scenario", LAB, "late"))
    await asyncio.wait_for(task, LIMIT_S)
    found = said(api)
    assert (found["phase"], found["reason"]) == ("Complete", "Invalid")
    assert found["message"].startswith("spec.scenarios[0].name: namespace lab has no Scenario 'late'")
    assert (found["runsDone"], found["table"]) == (1, measured)
    assert [row["verdict"] for row in measured].count("Pass") == 1


async def test_nothing_is_applied_when_the_scenarios_are_best_as_they_are() -> None:
    """The study has succeeded: its answer is to change nothing."""
    options = [{"key": "heartbeat.timeout", "values": ["6 s", "8 s", "12 s"]}]  # the scenario has 5 s
    api = model(references=["Current"], budget={"parallel": 4, "runs": 4}, options=options)
    task = asyncio.create_task(study(api).run())
    await until(lambda: len(runs(api)) == 4)
    names = [row.name for row in grid.planned_runs("knobs", spec_of(api)) if row.row.reference]
    for run in runs(api):
        is_reference = run["metadata"]["name"] in names
        finish(api, run, seconds=1.0 if is_reference else 4.0)
    await asyncio.wait_for(task, LIMIT_S)
    found = said(api)
    assert (found["phase"], found["reason"], found["best"]) == (
        "Complete",
        "TableComplete",
        "the scenarios as they are",
    )
    assert found["message"].endswith("; nothing has to be changed, so nothing was applied")
    assert "applied" not in found


async def test_the_scenarios_as_they_are_are_the_row_with_their_values() -> None:
    """The scenario has `5 s`, as the first row does: the table has no second row for it, and its values are applied."""
    options = [{"key": "heartbeat.timeout", "values": ["5000 ms", "8 s"]}]
    api = model(references=["Current"], budget={"parallel": 3, "runs": 3}, options=options)
    await study_of(api, 3)
    found = said(api)
    assert [(row["options"], row.get("reference", "")) for row in found["table"]] == [
        ({"heartbeat.timeout": "5000 ms"}, "Current"),
        ({"heartbeat.timeout": "8 s"}, ""),
    ]
    assert (found["best"], found["applied"]) == (
        "heartbeat.timeout=5000 ms (the scenarios as they are)",
        "prod",
    )


async def test_a_suspended_study_makes_no_run_and_goes_on_later() -> None:
    """Runs that are open are counted all the same."""
    api = model(suspend=True)
    task = asyncio.create_task(study(api).run())
    await until(lambda: said(api).get("message", "").startswith("spec.suspend is true"))
    assert (said(api)["phase"], runs(api)) == ("Suspended", [])
    api.change("TuningStudy", LAB, "knobs", {"spec": {"suspend": False}})
    await until(lambda: len(runs(api)) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_study_says_which_run_is_in_its_way_and_goes_on_when_it_is_gone() -> None:
    """A run of somebody else's is not counted, and not touched. Later it has the message of the run that it waits for."""
    api = model()
    foreign = grid.planned_runs("knobs", spec_of(api))[0].name
    api.put({**good("ScenarioRun"), "metadata": {"name": foreign, "namespace": LAB}})
    task = asyncio.create_task(study(api).run())
    await until(lambda: foreign in said(api).get("message", ""))
    assert "delete it" in said(api)["message"]
    assert said(api).get("runsDone", 0) == 0
    api.remove(("ScenarioRun", LAB, foreign))
    await until(lambda: said(api)["message"].startswith(f"waits for {foreign} (and 1 more)"))
    first = next(run for run in runs(api) if run["metadata"]["name"] == foreign)
    api.put({**first, "status": {"phase": "Starting", "message": "pod x: Unschedulable"}})
    await until(lambda: said(api)["message"] == f"waits for {foreign} (and 1 more): pod x: Unschedulable")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_scenario_that_is_not_there_ends_the_study_with_the_field() -> None:
    """Before the first run."""
    api = model(scenarios=[{"name": "lost"}])
    await asyncio.wait_for(study(api).run(), LIMIT_S)
    status = said(api)
    assert (status["phase"], status["reason"]) == ("Complete", "Invalid")
    assert "spec.scenarios[0].name: namespace lab has no Scenario 'lost'" in status["message"]
    assert runs(api) == []


def test_the_scenario_of_these_tests_is_one_of_the_kind() -> None:
    """The copy in a study is a whole Scenario."""
    assert validate_kind({**good("Scenario"), "spec": SCENARIO}).errors == ()


async def test_a_study_in_a_cluster_compares_with_the_defaults_and_reports_costs_and_failures() -> None:
    """The status has the reference row, what the value cost, the fault that broke a row, and the answer in sentences."""
    api = model(references=["Default"], budget={"parallel": 4, "runs": 4})
    task = asyncio.create_task(study(api).run())
    await until(lambda: len(runs(api)) == 4)
    seconds = {"5 s": 4.0, "8 s": 2.0, "12 s": 9.0, "50 s": 6.0}
    for run in runs(api):
        configuration = run["spec"]["scenario"]["testbed"]["flinkConfiguration"]
        value = configuration.get("heartbeat.timeout", "50 s")
        price = Price(
            text="", seconds=seconds[value], kind="heartbeat", option="heartbeat.timeout", value=value
        )
        found = Recovery(fault="gc", effect_ns=0, end_ns=10**10, prices=(price,))
        recovery = {"main-1": TrialRecovery(trial="main-1", recoveries=(found,)).to_json()}
        finish(
            api,
            run,
            seconds=seconds[value],
            verdict="Fail" if value == "12 s" else "Pass",
            recovery=json.dumps(recovery),
        )
    await asyncio.wait_for(task, LIMIT_S)
    status = said(api)
    assert [row.get("reference", "") for row in status["table"]] == ["", "", "", "Default"]
    assert status["table"][1]["costs"] == {"heartbeat.timeout": "cost 2.00 s (1 wait)"}
    assert "(fault" in status["table"][2]["reason"]
    assert status["answer"][0] == "best: heartbeat.timeout=8 s"
    assert status["answer"][1].startswith("compared with Flink's defaults: ")
