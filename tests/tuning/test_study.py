"""Studies: the grid, the scenario of a run, the table and its best row."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed_runtime.api import limits
from testbed_runtime.api.kinds import TuningStudySpec
from testbed_runtime.api.validate_kinds import grid_size, validate_kind
from testbed_runtime.cli.tune import find_scenarios, load_study, with_row
from testbed_runtime.tuning import grid, score
from tests.api.documents import SCENARIO, good

ROOT = Path(__file__).resolve().parents[2]
STUDY: dict[str, Any] = {
    "scenarios": [{"name": "late"}, {"name": "slow"}],
    "options": [
        {"key": "heartbeat.timeout", "values": ["12 s", "5 s"]},
        {"key": "pekko.ask.timeout", "values": ["1 s", "10 s"]},
    ],
    "objectives": [{"metric": "failovers.count"}, {"metric": "throughput.relative", "direction": "max"}],
    "require": [{"metric": "delivery.lost", "equals": 0}],
}


def spec(**changes: Any) -> TuningStudySpec:
    return TuningStudySpec.model_validate({**copy.deepcopy(STUDY), **changes})


def verdict(word: str, **values: float | None) -> dict[str, Any]:
    """As verdict.json, with one value for each metric (`_` for `.`)."""
    return {
        "verdict": word,
        "summary": f"it is {word}",
        "expectations": [
            {"metric": name.replace("_", "."), "quantile": None, "value": value, "measured": f"{value:g}" if value is not None else ""}
            for name, value in values.items()
        ],
    }  # fmt: skip


def lines(study: TuningStudySpec, *verdicts: dict[str, Any]) -> tuple[score.Line, ...]:
    """The verdicts in the order of the runs."""
    planned = grid.planned_runs("study", study)
    return score.table(study, [score.Outcome(p, v) for p, v in zip(planned, verdicts, strict=False)])


def test_the_grid_is_every_combination_over_every_scenario():
    """Rows follow each other whole, and a run's name is its own, short and always the same."""
    planned = grid.planned_runs("a" * limits.MAX_RUN_NAME, spec())
    assert [(p.row.text, p.scenario) for p in planned[:3]] == [
        ("heartbeat.timeout=12 s, pekko.ask.timeout=1 s", "late"),
        ("heartbeat.timeout=12 s, pekko.ask.timeout=1 s", "slow"),
        ("heartbeat.timeout=12 s, pekko.ask.timeout=10 s", "late"),
    ]
    assert len(planned) == grid_size(spec()) == 8
    names = [p.name for p in planned]
    assert len(set(names)) == 8
    assert max(map(len, names)) <= limits.MAX_RUN_NAME
    assert names == [p.name for p in grid.planned_runs("a" * limits.MAX_RUN_NAME, spec())]


def test_a_run_has_the_values_of_its_row_and_tells_what_the_study_asks():
    """Without the scenario's variants; the scenario that was given stays as it was."""
    given = copy.deepcopy(SCENARIO)
    made = grid.scenario_spec(given, spec(), grid.rows(spec())[0])
    assert given == SCENARIO
    assert "variants" not in made
    assert made["testbed"]["flinkConfiguration"] == {
        "heartbeat.interval": "1 s", "heartbeat.timeout": "12 s", "pekko.ask.timeout": "1 s",
    }  # fmt: skip
    assert [e["metric"] for e in made["expect"]] == [
        "delivery.lost",
        "failovers.count",
        "throughput.relative",
    ]
    assert validate_kind({**good("Scenario"), "spec": made}).errors == ()


def test_a_variant_that_is_asked_for_does_not_overrule_the_row():
    """Its other settings stay."""
    given = copy.deepcopy(SCENARIO)
    given["variants"][1]["flinkConfiguration"]["heartbeat.interval"] = "2 s"
    made = grid.scenario_spec(given, spec(variants=["long"]), grid.rows(spec())[0])
    assert made["variants"][1]["flinkConfiguration"] == {"heartbeat.interval": "2 s"}


def test_the_best_row_passes_everywhere_and_is_the_first_by_the_objectives():
    """The first objective decides, the second only between equals; of several runs the worst counts."""
    study = spec()
    ok = [
        verdict("Pass", failovers_count=1.0, throughput_relative=0.9), verdict("Pass", failovers_count=0.0, throughput_relative=0.9),
        verdict("Pass", failovers_count=0.0, throughput_relative=0.8), verdict("Pass", failovers_count=0.0, throughput_relative=0.7),
        verdict("Pass", failovers_count=0.0, throughput_relative=0.9), verdict("Pass", failovers_count=0.0, throughput_relative=0.75),
        verdict("Fail", failovers_count=0.0, throughput_relative=1.0), verdict("Pass", failovers_count=0.0, throughput_relative=1.0),
    ]  # fmt: skip
    found = lines(study, *ok)
    assert [(line.verdict, line.values, line.best) for line in found] == [
        ("Pass", (1.0, 0.9), False), ("Pass", (0.0, 0.7), False), ("Pass", (0.0, 0.75), True), ("Fail", (0.0, 1.0), False),
    ]  # fmt: skip
    assert found[3].reason == "it is Fail"
    assert "**heartbeat" not in score.markdown(study, found)
    assert "| **5 s** | **1 s** | **Pass** | **0** | **0.75** |" in score.markdown(study, found)
    assert score.status_rows(study, found)[2]["objectives"] == {
        "failovers.count (min)": "0", "throughput.relative (max)": "0.75",
    }  # fmt: skip


def test_a_row_that_is_not_whole_or_lacks_a_value_is_never_the_best():
    """Nothing measured is no recommendation."""
    study = spec()
    good_one = verdict("Pass", failovers_count=0.0, throughput_relative=1.0)
    assert not any(line.best for line in lines(study, good_one))
    blank = verdict("Pass", failovers_count=0.0, throughput_relative=None)
    assert not any(line.best for line in lines(study, good_one, blank))
    assert lines(study, good_one, blank)[0].texts == ("0", score.NO_VALUE)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"options": [{"key": "heartbeat.timout", "values": ["1 s"]}]}, "did you mean heartbeat.timeout"),
        ({"options": [{"key": "heartbeat.timeout", "values": ["soon"]}]}, "spec.options[0].values[0]"),
        ({"options": [{"key": "heartbeat.timeout", "values": ["1 s", "1 s"]}]}, "has a value twice"),
        ({"options": [{"key": "rest.port", "values": ["1"]}]}, "changes nothing here"),
        ({"objectives": [{"metric": "recovery.totl"}]}, "did you mean recovery.total"),
        ({"objectives": [{"metric": "job.state"}]}, "spec.objectives[0].metric"),
        ({"budget": {"runs": 7}}, "the grid needs 8 runs, the budget allows 7"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(changes: dict[str, Any], text: str):
    """With the field and the mend."""
    document = {**good("TuningStudy"), "spec": {**copy.deepcopy(STUDY), **changes}}
    assert any(text in str(error) for error in validate_kind(document).errors)


@pytest.mark.parametrize("path", sorted(ROOT.glob("studies/*.yaml")), ids=lambda p: p.stem)
def test_the_studies_of_the_repository_name_scenarios_that_take_every_row(path: Path):
    """Each run's scenario is valid before the first is started."""
    study, document = load_study(path)
    assert document == yaml.safe_load(path.read_text())
    scenarios = find_scenarios(study, ROOT / "scenarios")
    for run in grid.planned_runs(study.metadata.name, study.spec):
        assert with_row(scenarios[run.scenario], study, run).scenario.metadata.name == run.scenario
