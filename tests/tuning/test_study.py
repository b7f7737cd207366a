"""Studies: the grid, the scenario of a run, the table and its best row."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from msgspec.structs import replace

from testbed_runtime.api import limits
from testbed_runtime.api.kinds import TuningStudySpec
from testbed_runtime.api.validate_kinds import grid_size, validate_kind
from testbed_runtime.cli.study_runs import StudyRuns, with_row
from testbed_runtime.cli.tune import find_scenarios, load_study, scenario_folders
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.judgement.quantities import DASH
from testbed_runtime.core.judgement.recovery import Margin, Price, Recovery, TrialRecovery
from testbed_runtime.core.judgement.verdict import RunVerdict
from testbed_runtime.tuning import grid, production, score, table
from testbed_runtime.tuning.picture import CHARACTER, LINE_HEIGHT, picture
from testbed_runtime.tuning.score import costs
from tests.api.documents import SCENARIO, good
from tests.verdicts import run_verdict

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


def verdict(word: str, **values: float | None) -> RunVerdict:
    """With one value for each metric (`_` for `.`)."""
    items = [
        {"metric": name.replace("_", "."), "value": value, "measured": f"{value:g}" if value is not None else ""}
        for name, value in values.items()
    ]  # fmt: skip
    return run_verdict(word, summary=f"it is {word}", expectations=items)


def lines(study: TuningStudySpec, *verdicts: RunVerdict) -> tuple[score.Line, ...]:
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
    assert found[3].reason == "late: it is Fail"
    assert "**heartbeat" not in table.markdown(study, found)
    assert "| **5 s** | **1 s** | **Pass** | **0** | **0.75** | **best, front** |" in table.markdown(
        study, found
    )
    assert table.status_rows(study, found)[2]["objectives"] == {
        "failovers.count (min)": "0", "throughput.relative (max)": "0.75",
    }  # fmt: skip


def test_a_row_that_is_not_whole_or_lacks_a_value_is_never_the_best():
    """Nothing measured is no recommendation."""
    study = spec()
    good_one = verdict("Pass", failovers_count=0.0, throughput_relative=1.0)
    assert not any(line.best for line in lines(study, good_one))
    blank = verdict("Pass", failovers_count=0.0, throughput_relative=None)
    assert not any(line.best for line in lines(study, good_one, blank))
    assert lines(study, good_one, blank)[0].texts == ("0", DASH)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"options": [{"key": "heartbeat.timout", "values": ["1 s"]}]}, "did you mean heartbeat.timeout"),
        ({"options": [{"key": "heartbeat.timeout", "values": ["soon"]}]}, "spec.options[0].values[0]"),
        ({"options": [{"key": "heartbeat.timeout", "values": ["1 s", "1 s"]}]}, "'1 s' equals '1 s'"),
        (
            {"options": [{"key": "heartbeat.timeout", "values": ["1 s", "2 s", "1000 ms"]}]},
            "'1000 ms' equals '1 s'",
        ),
        ({"options": [{"key": "rest.port", "values": ["1"]}]}, "changes nothing here"),
        ({"objectives": [{"metric": "recovery.totl"}]}, "did you mean recovery.total"),
        ({"objectives": [{"metric": "job.state"}]}, "spec.objectives[0].metric"),
        ({"budget": {"runs": 7}}, "the grid needs 8 runs, the budget allows 7"),
        ({"options": []}, "has 0 items (write at least 1)"),
        (
            {"require": [{"metric": "recovery.total", "versus": "slow", "improvesBy": "1 s"}]},
            "spec.require[0].versus: variant 'slow' does not run in this study",
        ),
        (
            {"objectives": [{"metric": "detector.false-failovers"}], "surroundings": {"taskManagers": 50}},
            "add spec.surroundings with pauses or unreachable",
        ),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(changes: dict[str, Any], text: str):
    """The error names the field and the fix."""
    document = {**good("TuningStudy"), "spec": {**copy.deepcopy(STUDY), **changes}}
    assert any(text in str(error) for error in validate_kind(document).errors)


STUDIES = sorted([*ROOT.glob("studies/*.yaml"), *ROOT.glob("studies/*/study.yaml")])


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.parent.name if p.name == "study.yaml" else p.stem)
def test_the_studies_of_the_repository_name_scenarios_that_take_every_row(path: Path):
    """Each run's scenario is valid before the first is started. They are found beside the study, also by its folder."""
    study, document = load_study(path)
    assert document == yaml.safe_load(path.read_text())
    place = path.parent if path.name == "study.yaml" else path
    scenarios = find_scenarios(study, scenario_folders(place))
    for run in grid.planned_runs(study.metadata.name, study.spec):
        assert with_row(scenarios[run.scenario], study, run).scenario.metadata.name == run.scenario


def test_scenarios_are_looked_for_beside_the_study_and_may_be_single_files(tmp_path: Path):
    """The working directory does not matter; a scenario beside the study comes before one in a folder above."""
    folder = tmp_path / "studies" / "mine"
    (tmp_path / "scenarios" / "a").mkdir(parents=True)
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text("kind: other\n")
    for path, seed in ((folder / "late.yaml", 1), (tmp_path / "scenarios" / "a" / "scenario.yaml", 2)):
        document = {**good("Scenario"), "metadata": {"name": "late"}}
        document["spec"] = {**document["spec"], "seed": seed}
        path.write_text(yaml.safe_dump(document))
    document = {**good("TuningStudy"), "spec": {**copy.deepcopy(STUDY), "scenarios": [{"name": "late"}]}}
    study = validate_kind(document).resource
    assert find_scenarios(study, scenario_folders(folder))["late"].scenario.spec.seed == 1
    assert find_scenarios(study, scenario_folders(folder / "study.yaml"))["late"].scenario.spec.seed == 1
    one = tmp_path / "scenarios" / "a" / "scenario.yaml"
    assert find_scenarios(study, [one])["late"].scenario.spec.seed == 2
    with pytest.raises(UserError, match=r"the scenario 'late' does not exist in .*--scenarios"):
        find_scenarios(study, [tmp_path / "studies"])


# ---- references, front, costs


def trials(word: str, *detections: float, at_least: bool = False) -> RunVerdict:
    """With one item for each trial."""
    items = [
        {
            "trial": f"main-{n}",
            "metric": "recovery.detect",
            "value": v,
            "measured": f"{v:.2f} s",
            "at_least": at_least,
        }
        for n, v in enumerate(detections)
    ]
    return run_verdict(word, summary=f"it is {word}", expectations=items)


HEARTBEAT: dict[str, Any] = {
    "scenarios": [{"name": "killed"}],
    "options": [{"key": "heartbeat.interval", "values": ["1 s", "5 s"]}],
    "objectives": [{"metric": "recovery.detect"}, {"metric": "detector.false-failovers"}],
    "references": ["Default", "Current"],
    "surroundings": {"taskManagers": 50, "unreachable": {"perDay": "1", "median": "2 s", "p99": "20 s"}},
}
KILLED = {"testbed": {"flinkConfiguration": {"heartbeat.interval": "2 s"}}, "faults": [{"name": "dead"}]}
FAST, SLOW, OWN = (
    [1.4, 1.6, 1.5, 1.7, 1.3, 1.5, 1.4, 1.6],
    [v * 10 for v in (1.5, 1.2, 1.8, 1.4)] * 2,
    [3.0] * 8,
)


def heartbeat_lines(*verdicts: RunVerdict, **changes: Any) -> tuple[TuningStudySpec, tuple[score.Line, ...]]:
    study = TuningStudySpec.model_validate({**HEARTBEAT, **changes})
    planned = grid.planned_runs("study", study)
    outcomes = [score.Outcome(p, v, {}, ("dead",)) for p, v in zip(planned, verdicts, strict=False)]
    return study, score.table(study, outcomes, production.detectors(study, {"killed": KILLED}))


def test_references_are_rows_with_flinks_defaults_and_the_scenarios_own_values():
    """Their runs have none of the studied options, or those of the scenario; the table shows the values."""
    study = TuningStudySpec.model_validate(HEARTBEAT)
    made = [
        grid.scenario_spec(KILLED, study, row)["testbed"]["flinkConfiguration"] for row in grid.rows(study)
    ]
    assert made == [
        {"heartbeat.interval": "1 s"}, {"heartbeat.interval": "5 s"}, {}, {"heartbeat.interval": "2 s"},
    ]  # fmt: skip
    assert production.reference_values(study, {"killed": KILLED}) == {
        "Default": {"heartbeat.interval": "10 s"}, "Current": {"heartbeat.interval": "2 s"},
    }  # fmt: skip
    assert grid_size(study) == 4


def test_a_trade_off_has_a_front_and_says_that_nothing_beats_the_defaults():
    """A shorter interval finds failures sooner and has more false failovers: every row is on the front, none is better."""
    study, found = heartbeat_lines(*(trials("Pass", *v) for v in (FAST, [7.5] * 8, SLOW, OWN)))
    assert [line.front for line in found] == [True] * 4
    assert found[0].best
    rates = [line.values[1] for line in found]
    assert rates[0] > rates[3] > rates[1] > rates[2] > 0
    answer = score.conclusion(study, found)
    assert answer[0] == "best: heartbeat.interval=1 s"
    assert "recovery.detect: better by" in answer[1]
    assert answer[-1].startswith("No row of the grid is better than Flink's defaults")


def test_a_row_that_beats_the_defaults_everywhere_is_preferred_to_a_better_trade():
    """1 s is fastest but has more false failovers than the defaults; 5 s is better in both than a worse default."""
    objectives = [{"metric": "recovery.detect"}, {"metric": "failovers.count"}]

    def both(detections: list[float], failovers: float) -> RunVerdict:
        found = trials("Pass", *detections)
        more = [
            replace(item, metric="failovers.count", value=float(failovers), measured=f"{failovers:g}")
            for item in found.judged
        ]
        return replace(found, judged=(*found.judged, *more))

    _, found = heartbeat_lines(
        both(FAST, 3), both([7.5] * 8, 1), both(SLOW, 1), both(OWN, 2), objectives=objectives
    )
    assert [line.best for line in found] == [False, True, False, False]
    assert [line.front for line in found] == [True, True, False, True]


def test_a_reference_that_is_better_than_every_row_within_the_limits_is_the_best():
    """1 s has too many false failovers, and 5 s finds failures later than the scenario's own 2 s: nothing has to be changed."""
    objectives = [{"metric": "recovery.detect"}, {"metric": "detector.false-failovers", "limit": "20"}]
    study, found = heartbeat_lines(
        *(trials("Pass", *v) for v in (FAST, [7.5] * 8, SLOW, OWN)), objectives=objectives
    )
    assert [line.best for line in found] == [False, False, False, True]
    answer = score.conclusion(study, found)
    assert answer[0] == "best: the scenarios as they are; nothing has to be changed"
    ranked = [line.row.text for line in score.ranked(study, found)]
    assert ranked == ["the scenarios as they are", "heartbeat.interval=5 s", "Flink's defaults"], (
        "confirmed in this order"
    )
    assert "recovery.detect: better by" in answer[1]


def test_a_row_beyond_the_limit_of_an_objective_is_not_recommended():
    """The fastest row has too many false failovers; with a limit that no row meets, nothing is recommended."""
    verdicts = [trials("Pass", *v) for v in (FAST, [7.5] * 8, SLOW, OWN)]
    for limit, best in (("10", "heartbeat.interval=5 s"), ("0.001", None)):
        objectives = [{"metric": "recovery.detect"}, {"metric": "detector.false-failovers", "limit": limit}]
        study, found = heartbeat_lines(*verdicts, objectives=objectives)
        assert next((line.row.text for line in found if line.best), None) == best
    assert score.conclusion(study, found)[0].startswith("No row is within the limits of the objectives")


def test_the_picture_has_a_point_for_each_row_and_names_the_best_and_the_references():
    """Valid XML; smaller values are at the left and below; one objective gives no picture."""
    study, found = heartbeat_lines(*(trials("Pass", *v) for v in (FAST, [7.5] * 8, SLOW, OWN)))
    drawn = ElementTree.fromstring(picture(study, found))
    by_row = {str(p[0].text).split(": ")[0]: p for p in drawn.findall("{*}circle")}
    points = [by_row[line.row.text] for line in found]
    across = [float(p.get("cx")) for p in points]
    assert across[0] < across[3] < across[1] < across[2]
    assert float(points[0].get("cy")) < float(points[2].get("cy"))
    texts = [t.text for t in drawn.findall("{*}text")]
    assert {"heartbeat.interval=1 s", "Flink's defaults", "the scenarios as they are"} <= set(texts)
    assert not picture(
        *heartbeat_lines(*[trials("Pass", *FAST)] * 4, objectives=[{"metric": "recovery.detect"}])
    )


def test_labels_of_rows_with_equal_values_are_not_drawn_over_each_other():
    """The best row often is like a reference. The longest label of an axis is inside the picture."""
    study, found = heartbeat_lines(*(trials("Pass", *v) for v in (FAST, [7.5] * 8, SLOW, OWN)))
    found = tuple(
        replace(line, objectives=(found[0].objectives if index == 3 else line.objectives))
        for index, line in enumerate(found)
    )
    drawn = ElementTree.fromstring(picture(study, found)).findall("{*}text")
    named = {t.text: t for t in drawn}
    best, current = named["heartbeat.interval=1 s"], named["the scenarios as they are"]
    assert best.get("x") == current.get("x")
    assert abs(float(best.get("y")) - float(current.get("y"))) >= LINE_HEIGHT
    ends = [t for t in drawn if "per day" in str(t.text) and t.get("text-anchor") == "end"]
    assert all(float(t.get("x")) - CHARACTER * len(str(t.text)) > 16 for t in ends)


def test_a_long_row_is_labelled_with_its_values():
    """Its keys would not fit beside its point; they are in the point's title."""
    options = [
        {"key": "heartbeat.interval", "values": ["1 s"]},
        {"key": "taskmanager.network.partition-request-timeout", "values": ["10 s", "20 s"]},
    ]
    study, found = heartbeat_lines(
        *(trials("Pass", *v) for v in (FAST, [7.5] * 8, SLOW, OWN)), options=options
    )
    drawn = ElementTree.fromstring(picture(study, found))
    assert "best: 1 s, 10 s" in [t.text for t in drawn.findall("{*}text")]
    assert any("heartbeat.interval=1 s" in str(t.text) for t in drawn.findall(".//{*}title"))


def test_the_reason_of_a_row_is_that_of_its_worst_verdict():
    """Not that of the first run that did not pass."""
    study = TuningStudySpec.model_validate({**HEARTBEAT, "scenarios": [{"name": "killed"}, {"name": "late"}]})
    verdicts = [
        run_verdict("Inconclusive", summary="few trials"),
        run_verdict("Fail", summary="too slow"),
    ]
    planned = [p for p in grid.planned_runs("study", study) if p.row.number == 0]
    outcomes = [score.Outcome(p, v) for p, v in zip(planned, verdicts, strict=True)]
    line = score.table(study, outcomes)[0]
    assert (line.verdict, line.reason) == ("Fail", "late: too slow")


@pytest.mark.parametrize(("own", "hint"), [([], "it has none"), ([{"name": "slow"}], "it has slow")])
def test_a_variant_that_a_scenario_lacks_is_named_before_anything_runs(
    tmp_path: Path, own: list[dict[str, str]], hint: str
):
    """Otherwise every row would be an Error."""
    scenario = {**good("Scenario"), "metadata": {"name": "late"}}
    scenario["spec"] = {**scenario["spec"], "variants": own}
    (tmp_path / "late.yaml").write_text(yaml.safe_dump(scenario))
    spec = {**copy.deepcopy(STUDY), "scenarios": [{"name": "late"}], "variants": ["fast"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**good("TuningStudy"), "spec": spec}))
    study, _ = load_study(tmp_path)
    with pytest.raises(
        UserError, match=rf"spec.variants\[0\]: scenario 'late' has no variant 'fast' \({hint}"
    ):
        find_scenarios(study, [tmp_path])


def test_a_quantile_over_too_few_trials_is_a_warning_before_anything_runs(tmp_path: Path):
    """Otherwise every row is Inconclusive at the end."""
    scenario = {**good("Scenario"), "metadata": {"name": "late"}}
    (tmp_path / "late.yaml").write_text(yaml.safe_dump(scenario))
    spec = {**copy.deepcopy(STUDY), "scenarios": [{"name": "late"}], "trials": 2}
    spec["objectives"] = [{"metric": "recovery.downtime", "quantile": "p95"}]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**good("TuningStudy"), "spec": spec}))
    study, _ = load_study(tmp_path)
    runs = StudyRuns(study=study, scenarios=find_scenarios(study, [tmp_path]), out=tmp_path, jobs=1)
    (found,) = [d for d in runs.doubts() if "quantile" in d]
    assert "p95 over trials needs 20, there are 2" in found


def test_a_row_is_named_by_the_options_that_tell_it_from_others():
    """An option with one value is the same in every row; the recommendation has it too, because the row was tried with it."""
    fixed = {"key": "restart-strategy.type", "values": ["fixed-delay"]}
    study = spec(options=[{"key": "heartbeat.timeout", "values": ["12 s", "24 s"]}, fixed])
    found = lines(study, *[verdict("Pass", failovers_count=0.0, throughput_relative=1.0)] * 4)
    assert [line.row.text for line in found] == ["heartbeat.timeout=12 s", "heartbeat.timeout=24 s"]
    assert (
        score.conclusion(study, found)[0] == "best: heartbeat.timeout=12 s, restart-strategy.type=fixed-delay"
    )


def test_a_row_that_did_not_recover_is_never_recommended():
    """Its value is a lower bound, although the verdict may be Pass."""
    _, found = heartbeat_lines(trials("Pass", *FAST, at_least=True), trials("Pass", *[7.5] * 8))
    assert found[0].objectives[0].bounded
    assert [line.best for line in found[:2]] == [False, True]


def test_a_failing_row_names_the_scenario_and_its_fault():
    """In the table's text and in the status."""
    study, found = heartbeat_lines(trials("Fail", *FAST), *(trials("Pass", *v) for v in (OWN, SLOW, OWN)))
    assert found[0].reason == "killed (fault `dead`): it is Fail"
    assert "- heartbeat.interval=1 s: Fail: killed (fault `dead`): it is Fail" in table.markdown(study, found)
    assert table.status_rows(study, found)[0]["reason"] == found[0].reason


def test_rows_that_fail_for_the_same_reason_share_a_line():
    """The reason may be a long message of Flink's."""
    failed = trials("Fail", *FAST)
    study, found = heartbeat_lines(failed, failed, *(trials("Pass", *v) for v in (SLOW, OWN)))
    text = "- heartbeat.interval=1 s; heartbeat.interval=5 s: Fail: killed (fault `dead`): it is Fail"
    assert text in table.markdown(study, found).splitlines()


def test_one_trial_rules_out_only_rows_that_are_far_worse():
    """The references stay; a row that is beaten by half in one objective and equal in the other does not."""
    objectives = [{"metric": "recovery.detect"}]
    study, found = heartbeat_lines(*(trials("Pass", v) for v in (1.5, 4.0, 15.0, 2.0)), objectives=objectives)
    assert score.survivors(study, found) == {0, 2, 3}


def test_objectives_have_phases():
    """The value of the asked phase counts, and the row of the scenario asks for it."""
    objective = {"metric": "latency", "quantile": "p99", "phase": "baseline"}
    study = spec(objectives=[objective])
    made = grid.scenario_spec(SCENARIO, study, grid.rows(study)[0])
    assert made["expect"][-1] == {**objective, "min": "0 s"}
    items = [
        {"metric": "latency", "quantile": 0.99, "phase": phase, "value": value, "measured": f"{value} s"}
        for phase, value in (("baseline", 0.1), ("fault", 9.0))
    ]
    found = lines(study, *[run_verdict(expectations=items)] * 2)
    assert (found[0].values, score.title(study.objectives[0])) == ((0.1,), "latency p99 baseline (min)")


def recovery(
    kind: str, *, prices: tuple[Price, ...] = (), margins: tuple[Margin, ...] = ()
) -> dict[str, Any]:
    """As recovery.json with one trial."""
    made = Recovery(fault=kind, effect_ns=0, end_ns=10**10, prices=prices, margins=margins)
    return {"main-1": TrialRecovery(trial="main-1", recoveries=(made,)).to_json()}


def test_a_row_shows_what_its_value_cost_and_how_far_it_is_from_its_limit():
    """Seconds of expired waits per trial, and the closest completed wait; options are found by their old names and in products."""
    key = "pekko.ask.timeout"
    price = Price(text="", seconds=68.1, kind="partition", option="akka.ask.timeout", count=3)
    far, near = (
        Margin(option="pekko.ask.timeout", value="23 s", kind="deployment", budget_s=22.7, waited_s=w)
        for w in (5.0, 22.0)
    )
    found = costs([key], [recovery("late", prices=(price,)), recovery("late", margins=(far, near))])
    assert found[key].price_s == pytest.approx(34.05)
    assert found[key].text == "cost 34.0 s (3 waits), dies at 22.7 s, used 22.0 s"
    beyond = replace(near, waited_s=23.0)
    assert (
        costs([key], [recovery("late", margins=(beyond,))])[key].text == "may die from 22.7 s on, used 23.0 s"
    )
    product = Price(
        text="", seconds=2.0, kind="heartbeat", option="heartbeat.interval × heartbeat.rpc-failure-threshold"
    )
    both = costs(["heartbeat.interval", "heartbeat.timeout"], [recovery("dead", prices=(product,))])
    assert list(both) == ["heartbeat.interval"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"surroundings": None},
            "detector.false-failovers is computed from pauses and outages in production",
        ),
        (
            {"objectives": [{"metric": "detector.accuracy"}]},
            "spec.objectives[0]: detector.accuracy has no quantile and no phase (write direction: max only)",
        ),
        (
            {"surroundings": {"pauses": {"perDay": "1", "median": "2 s", "p99": "1 s"}}},
            "spec.surroundings.pauses.p99: 1 s is not at least the median",
        ),
        ({"budget": {"runs": 3}}, "the grid needs 4 runs"),
        (
            {"objectives": [{"metric": "recovery.detect", "limit": "5 apples"}]},
            "spec.objectives[0].limit: '5 apples'",
        ),
    ],
)
def test_a_detector_objective_that_makes_no_sense_is_refused(changes: dict[str, Any], text: str):
    """The error names the field and how to fix it."""
    document = {**good("TuningStudy"), "spec": {**copy.deepcopy(HEARTBEAT), **changes}}
    errors = [str(error) for error in validate_kind(document).errors]
    assert any(text in error for error in errors), errors


def test_a_row_that_flink_refuses_has_no_false_failovers():
    """A timeout of 50 s is less than an interval of 100 s. The rows around it keep their own numbers."""
    options = [{"key": "heartbeat.interval", "values": ["1 s", "100 s", "5 s"]}]
    study = TuningStudySpec.model_validate({**HEARTBEAT, "options": options, "references": []})
    found = production.detectors(study, {"killed": KILLED})
    assert [row.number in found for row in grid.rows(study)] == [True, False, True]
    fast, slow = found.values()
    assert fast.false_failovers_per_day > slow.false_failovers_per_day > 0


def test_a_reference_that_fails_is_named_with_its_reason():
    """It cannot be compared with, and the reader learns why."""
    verdicts = [trials("Pass", *v) for v in (FAST, [7.5] * 8)]
    study, found = heartbeat_lines(*verdicts, trials("Fail", *SLOW), trials("Pass", *OWN))
    answer = score.conclusion(study, found)
    assert answer[0] == "best: heartbeat.interval=1 s"
    assert answer[1].startswith(f"{found[2].row.text}: Fail: killed (fault `dead`): it is Fail")
    assert answer[2].startswith(f"compared with {found[3].row.text}: recovery.detect: better by")
    assert len(answer) == 3


def test_one_trial_that_did_not_recover_makes_the_mean_a_lower_bound():
    """Its seconds are those until the end of the record."""
    fast = trials("Pass", *FAST)
    items = [replace(item, at_least=number == 3) for number, item in enumerate(fast.judged)]
    bounded = replace(fast, judged=tuple(items))
    _, found = heartbeat_lines(bounded, trials("Pass", *SLOW))
    assert [line.objectives[0].bounded for line in found[:2]] == [True, False]


def test_a_warning_that_several_scenarios_share_is_printed_once_with_their_names(tmp_path: Path):
    """Flink 1.12 reads heartbeat.timeout without a unit, and 2.x warns without one."""
    for name, version in (("old", "1.12"), ("older", "1.12"), ("new", "2.x")):
        scenario = {**good("Scenario"), "metadata": {"name": name}}
        scenario["spec"]["testbed"]["flinkVersion"] = version
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(scenario))
    spec = {**copy.deepcopy(STUDY), "scenarios": [{"name": n} for n in ("old", "older", "new")]}
    spec["options"] = [{"key": "heartbeat.timeout", "values": ["60000", "70 s"]}]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**good("TuningStudy"), "spec": spec}))
    study, _ = load_study(tmp_path)
    runs = StudyRuns(study=study, scenarios=find_scenarios(study, [tmp_path]), out=tmp_path, jobs=1)
    where = "spec.testbed.flinkConfiguration[heartbeat.timeout]"
    assert [d for d in runs.doubts() if "unit" in d] == [
        f"new: {where}: '60000' has no unit, so it is 60000 ms (write '60000 ms')",
        f"old, older: {where}: Flink 1.12 reads whole milliseconds here, without a unit (write '70000')",
    ]
