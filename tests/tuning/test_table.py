"""The table of a study: which row is the best, which are on the front, and what its text and its JSON say."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.api.kinds import TuningStudySpec
from testbed_runtime.core.judgement.detector import Quality
from testbed_runtime.core.judgement.quantities import DASH
from testbed_runtime.core.judgement.recovery import Margin
from testbed_runtime.core.judgement.statistics import Interval
from testbed_runtime.core.judgement.verdict import Verdict
from testbed_runtime.tuning import grid, production, score, table
from testbed_runtime.tuning.score import Cost, costs
from tests.verdicts import run_verdict

QUALITY = Quality(false_failovers_per_day=0.12345, accuracy=0.99, mistake_s=1.0, dead_s=2.0, silent_s=30.0)
RECOVERY, FAILOVERS = {"metric": "recovery.total"}, {"metric": "failovers.count"}


def study(*objectives: dict[str, Any], **changes: Any) -> TuningStudySpec:
    document = {
        "scenarios": [{"name": "killed"}],
        "options": [{"key": "heartbeat.interval", "values": ["1 s", "2 s", "3 s", "5 s"]}],
        "objectives": list(objectives or (RECOVERY, FAILOVERS)),
        **changes,
    }
    return TuningStudySpec.model_validate(document)


def line(number: int, *values: float | None, reference: str = "", **fields: Any) -> score.Line:
    """A row that passed, with these values of its objectives."""
    options = {} if reference else {"heartbeat.interval": f"{number + 1} s"}
    found = tuple(score.Value(v, f"{v:g}") if v is not None else score.Value() for v in values)
    word = fields.pop("verdict", "Pass")
    fields = {"verdict": Verdict(word) if word else None, "whole": True, "runs": (f"run-{number}",), **fields}
    return score.Line(row=grid.Row(number, options, reference), objectives=found, **fields)


def named(one: score.Line, reference: str) -> score.Line:
    """The row of the grid that has the values of a reference, too."""
    return replace(one, row=replace(one.row, reference=reference))


def numbers(lines: list[score.Line]) -> list[int]:
    return [one.row.number for one in lines]


# ---- the best row


@pytest.mark.parametrize(
    ("values", "order"),
    [
        ([(2.0, 1.0), (1.0, 9.0)], [1, 0]),
        ([(1.05, 1.0), (1.0, 9.0)], [0, 1]),
        ([(1.0501, 1.0), (1.0, 9.0)], [1, 0]),
        ([(1.0, 1.0), (1.0, 1.0)], [0, 1]),
        ([(0.0, 5.0), (0.0, 4.0)], [1, 0]),
        ([(1.0, None), (2.0, 1.0)], [1]),
        ([(3.0, 1.0), (1.0, 1.0), (2.0, 1.0)], [1, 2, 0]),
    ],
    ids=["first objective", "equal within 5 %", "more", "number", "zero", "not measured", "in order"],
)
def test_rows_are_ranked_by_the_first_objective_in_which_they_differ(
    values: list[tuple[float | None, ...]], order: list[int]
):
    """A difference of up to 5 % of the best does not count; of equal rows the first one leads."""
    assert numbers(score.ranked(study(), [line(n, *v) for n, v in enumerate(values)])) == order


def test_more_is_better_if_the_objective_says_so():
    """The limit is a lower one then."""
    more = {"metric": "throughput.relative", "direction": "max", "limit": "0.5"}
    lines = [line(n, v) for n, v in enumerate((0.5, 0.9, 0.4, 0.87))]
    assert numbers(score.ranked(study(more), lines)) == [1, 3, 0]
    assert [c.front for c in score.table(study(more), [])] == [False] * 4


@pytest.mark.parametrize(
    "fields", [{"verdict": "Fail"}, {"verdict": "Inconclusive"}, {"whole": False}, {"verdict": ""}], ids=str
)
def test_a_row_that_did_not_pass_everywhere_is_not_ranked(fields: dict[str, Any]):
    """However good its values are."""
    assert numbers(score.ranked(study(), [line(0, 0.1, 0.1, **fields), line(1, 2.0, 2.0)])) == [1]


def test_a_row_at_its_limit_is_within_it():
    """Objectives without a limit, and with another one, count by themselves."""
    limited = study({**RECOVERY, "limit": "2 s"}, FAILOVERS)
    lines = [line(0, 2.0, 50.0), line(1, 2.001, 1.0), line(2, 1.0, 99.0)]
    assert numbers(score.ranked(limited, lines)) == [2, 0]
    second = study(RECOVERY, {**FAILOVERS, "limit": "50"})
    assert numbers(score.ranked(second, lines)) == [1, 0]


def test_a_row_that_is_worse_than_the_defaults_is_preferred_only_if_every_row_is():
    """5 % worse does not matter. A reference that is better than that row is recommended instead."""
    default = line(3, 10.0, 10.0, reference="Default")
    assert numbers(score.ranked(study(), [line(0, 1.0, 10.6), line(1, 9.0, 10.5), default]))[0] == 1
    assert numbers(score.ranked(study(), [line(0, 1.0, 10.6), line(1, 9.0, 10.6), default]))[0] == 0
    assert numbers(score.ranked(study(), [line(0, 11.0, 1.0), default]))[0] == 3
    assert numbers(score.ranked(study(), [line(0, 1.0, 10.6), replace(default, verdict=Verdict.FAIL)])) == [0]
    assert numbers(score.ranked(study(), [default])) == [3]


def test_a_row_is_on_the_front_if_no_other_is_better_and_nowhere_worse():
    """A difference of up to 5 % does not count; a row that did not pass is not on it, and beats none."""
    given = [(1.0, 9.0), (2.0, 2.0), (2.2, 2.0), (9.0, 1.0)]
    lines = [line(n, *v) for n, v in enumerate(given)]
    objectives = study().objectives
    assert [score._on_front(objectives, one, lines) for one in lines] == [True, True, False, True]
    close = [line(0, 2.0, 2.0), line(1, 2.09, 2.0)]
    assert [score._on_front(objectives, one, close) for one in close] == [True, True]
    failed = [line(0, 1.0, 1.0, verdict="Fail"), line(1, 2.0, 2.0)]
    assert [score._on_front(objectives, one, failed) for one in failed] == [False, True]


def test_one_trial_rules_out_rows_that_another_beats_by_half():
    """Not those that it could not judge, and not references."""
    lines = [
        line(0, 2.0, 2.0), line(1, 3.0, 2.0), line(2, 3.001, 2.0), line(3, 9.0, 1.9), line(4, 9.0, 9.0, verdict="Inconclusive"),
        line(5, 9.0, 9.0, verdict="Fail"), line(6, 9.0, 9.0, reference="Default"),
    ]  # fmt: skip
    assert score.survivors(study(), lines) == {0, 1, 3, 4, 6}


# ---- values


def item(value: float | None, **fields: Any) -> dict[str, Any]:
    return {"metric": "latency", "quantile": 0.99, "phase": "", "value": value, "measured": "m", **fields}


LATENCY = {"metric": "latency", "quantile": "p99"}


def outcomes(*runs: list[dict[str, Any]], scenarios: int = 1) -> score.Line:
    """The first row of a study of p99 latency whose runs have these expectations."""
    names = [{"name": f"s-{n}"} for n in range(scenarios)]
    spec = study(LATENCY, scenarios=names)
    planned = grid.planned_runs("study", spec)
    each = [[{"trial": f"main-{n}", **item} for n, item in enumerate(items)] for items in runs]
    found = [
        score.Outcome(run, run_verdict(expectations=items)) for run, items in zip(planned, each, strict=False)
    ]
    return score.table(spec, found)[0]


@pytest.mark.parametrize(
    "other",
    [{"metric": "lag"}, {"quantile": 0.5}, {"quantile": None}, {"phase": "fault"}, {"implied": True}],
    ids=str,
)
def test_only_the_expectation_of_an_objective_is_its_value(other: dict[str, Any]):
    """With its metric, quantile and phase; an implied one was not asked for."""
    assert outcomes([item(1.0), item(9.0, **other)]).values == (1.0,)
    assert outcomes([item(9.0, **other)]).values == (None,)


def test_the_value_is_the_mean_of_the_scenario_where_it_is_worst():
    """With the interval of its trials; one trial has the text of its measurement."""
    found = outcomes([item(1.0), item(2.0)], [item(3.0), item(5.0)], scenarios=2).objectives[0]
    assert (found.number, found.interval, found.text) == (4.0, None, "4.00 s")
    assert [(s.pair, s.value) for s in found.samples] == [(0, 1.0), (1, 2.0), (1000, 3.0), (1001, 5.0)]
    many = outcomes([item(3.0), item(5.0)] * 8).objectives[0]
    assert many.interval is not None
    assert many.text.startswith("4.00 s [3.")
    assert outcomes([item(1.0)]).texts == ("m",)
    assert outcomes([item(2.0), item(2.0)]).texts == ("2.00 s",)
    assert outcomes([item(2.0), item(None)]).texts == (DASH,)


def test_two_bounds_on_one_measurement_are_one_value():
    """An item with `min` and one with `max` judge the same trial."""
    found = outcomes([item(7.0, text=bound, trial="main-1") for bound in ("min", "max")]).objectives[0]
    assert (found.text, [s.value for s in found.samples]) == ("m", [7.0])


def test_a_trial_that_did_not_recover_makes_the_value_a_lower_bound():
    """Its text says so, and its sample cannot be compared."""
    found = outcomes([item(1.0), item(3.0, at_least=True)]).objectives[0]
    assert (found.number, found.bounded, found.text) == (2.0, True, "at least 2.00 s")
    assert [bool(s.reason) for s in found.samples] == [False, True]


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [(0.12345, "per day", "0.123 per day"), (0.999991, "ratio", "99.9991 %"), (2.5, "s", "2.50 s")],
)
def test_a_value_of_the_detector_is_shown_with_its_unit(number: float, unit: str, text: str):
    """The accuracy has many nines."""
    assert score.format_number(number, unit) == text


def test_a_computed_objective_is_that_of_the_rows_detector():
    """A row that Flink refuses has none."""
    around = {"taskManagers": 2, "pauses": {"perDay": "1", "median": "1 s", "p99": "2 s"}}
    spec = study({"metric": "detector.dead"}, surroundings=around)
    found = score.table(spec, [], {1: QUALITY})
    assert [one.values for one in found] == [(None,), (2.0,), (None,), (None,)]
    assert found[1].texts == ("2.00 s",)


# ---- costs


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (Cost(), ""),
        (Cost(price_s=1.5, expired=1), "cost 1.50 s (1 wait)"),
        (Cost(price_s=1.5, expired=2), "cost 1.50 s (2 waits)"),
    ],
)
def test_a_cost_is_shown_in_words(cost: Cost, text: str):
    """Nothing if no wait was decided by the option."""
    assert cost.text == text


def test_an_option_that_no_wait_names_has_no_cost():
    """Nor has a study without trials."""
    assert costs(["heartbeat.interval"], []) == {}
    assert costs(["heartbeat.interval"], [{}]) == {}


# ---- the table


def test_the_json_of_a_study_has_every_row_with_its_numbers():
    """Scripts read values, intervals, prices, margins, and the detector."""
    margin = Margin(option="heartbeat.timeout", value="5 s", kind="heartbeat", budget_s=5.0, waited_s=4.0)
    cost = {"heartbeat.interval": Cost(price_s=1.5, expired=1), "heartbeat.timeout": Cost(margin=margin)}
    first = replace(
        line(0, 2.0, 1.0, costs=cost, best=True, front=True, detector=QUALITY),
        objectives=(
            score.Value(2.0, "2 s", Interval(value=2.0, low=1.5, high=2.5), bounded=True),
            score.Value(1.0, "1"),
        ),
    )
    second = line(1, None, 3.0, verdict="Fail", reason="it failed")
    made = table.to_json(study(), [first, second])
    assert list(made) == ["schema", "answer", "rows"]
    best, failed = made["rows"]
    assert best == {
        "options": {"heartbeat.interval": "1 s"}, "reference": "", "verdict": "Pass", "runs": ["run-0"],
        "objectives": {"recovery.total (min)": "2 s", "failovers.count (min)": "1"},
        "best": True, "front": True, "reason": "",
        "costs": {"heartbeat.interval": "cost 1.50 s (1 wait)", "heartbeat.timeout": "dies at 5.00 s, used 4.00 s"},
        "values": {
            "recovery.total (min)": {"value": 2.0, "interval": {"value": 2.0, "low": 1.5, "high": 2.5}, "atLeast": True},
            "failovers.count (min)": {"value": 1.0, "interval": None, "atLeast": False},
        },
        "detector": {
            "false_failovers_per_day": 0.12345, "accuracy": 0.99, "mistake_s": 1.0, "dead_s": 2.0, "silent_s": 30.0,
        },
        "prices": {"heartbeat.interval": 1.5, "heartbeat.timeout": 0.0},
        "margins": {
            "heartbeat.interval": None,
            "heartbeat.timeout": {
                "option": "heartbeat.timeout", "value": "5 s", "kind": "heartbeat", "budget_s": 5.0, "waited_s": 4.0,
                "who": "", "what": "",
            },
        },
    }  # fmt: skip
    assert (failed["reason"], failed["detector"], failed["best"], failed["front"]) == (
        "it failed",
        None,
        False,
        False,
    )
    assert failed["values"]["recovery.total (min)"] == {"value": None, "interval": None, "atLeast": False}


def test_the_text_of_a_study_is_a_table_and_then_sentences():
    """The best row is bold; the detector's other values are columns; costs are those of the rows that matter."""
    cost = {"heartbeat.interval": Cost(price_s=1.5, expired=1)}
    lines = [
        line(0, 2.0, 1.0, costs=cost, best=True, front=True, detector=QUALITY),
        line(1, 3.0, 1.0, costs=cost),
        line(2, 3.0, 1.0, costs=cost, verdict="Fail", reason="it failed"),
        line(3, 4.0, 1.0, costs=cost, reference="Default", front=True),
    ]
    shown = {"Default": {"heartbeat.interval": "10 s"}}
    real = {0: line(0, 2.5, 1.0), 2: line(2, 3.5, 2.0, verdict="Fail", reason="it really failed")}
    text = table.markdown(study(), lines, real, shown).splitlines()
    assert text[0] == (
        "| heartbeat.interval | verdict | recovery.total (min) | failovers.count (min) "
        "| detector.false-failovers (computed) | detector.accuracy (computed) | detector.dead (computed) "
        "| detector.silent (computed) |  |"
    )
    assert text[1] == f"|{' --- |' * 9}"
    assert text[2] == (
        "| **1 s** | **Pass** | **2** | **1** | **0.123 per day** | **99 %** | **2.00 s** | **30.0 s** | **best, front** |"
    )
    assert text[3] == "| 2 s | Pass | 3 | 1 | – | – | – | – |  |"
    assert text[5] == "| 10 s | Pass | 4 | 1 | – | – | – | – | Flink's defaults, front |"
    price = "heartbeat.interval: cost 1.50 s (1 wait)"
    assert [one for one in text if price in one] == [
        f"- heartbeat.interval=1 s: {price}", f"- heartbeat.interval=3 s: {price}", f"- Flink's defaults: {price}",
    ]  # fmt: skip
    assert "- heartbeat.interval=3 s: Fail: it failed" in text
    assert text[-3:] == [
        "",
        "- confirmed in real runs: heartbeat.interval=1 s: Pass; recovery.total 2.5 (virtual time: 2); "
        "failovers.count 1 (virtual time: 1)",
        "- confirmed in real runs: heartbeat.interval=3 s: Fail: it really failed; recovery.total 3.5 (virtual time: 3); "
        "failovers.count 2 (virtual time: 1)",
    ]


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        ("2000", ["1 s", "2 s (the scenarios as they are, front)", "2500 ms (best)"]),
        ("2 min", ["1 s", "2 s (front)", "2500 ms", "2 min (the scenarios as they are, best)"]),
    ],
)
def test_a_reference_with_the_values_of_a_row_is_that_row(written: str, rows: list[str]):
    """`2000` of a scenario and `2 s` of the grid are one value, so they are one row, which has the marks of both."""
    spec = study(options=[{"key": "heartbeat.interval", "values": ["1 s", "2 s", "2500 ms"]}])
    texts = ("1 s", "2 s", "2500 ms")
    lines = [replace(line(n, 2.0, 1.0), row=grid.Row(n, {"heartbeat.interval": texts[n]})) for n in range(3)]
    same = written == "2000"
    lines[2] = replace(lines[2], best=same)
    lines[1] = replace(lines[1], front=True)
    lines.append(line(3, 2.0, 1.0, reference="Current", best=not same))
    specs = {"killed": {"testbed": {"flinkConfiguration": {"heartbeat.interval": written}}}}
    spec = spec.model_copy(update={"references": ["Current"]})
    found = production.merged(spec, specs, lines)
    shown = production.reference_values(study(references=["Current"]), specs)
    cells = [
        one.replace("*", "").split("|") for one in table.markdown(spec, found, {}, shown).splitlines()[2:]
    ]
    assert [
        f"{cell[1].strip()} ({cell[-2].strip()})".removesuffix(" ()") for cell in cells if len(cell) > 2
    ] == rows


def test_a_reference_whose_variants_have_their_own_values_is_a_row_of_its_own():
    """They are not those of the row."""
    spec = study(variants=["long"], references=["Current"])
    variant = {"name": "long", "flinkConfiguration": {"heartbeat.interval": "9 s"}}
    testbed = {"flinkConfiguration": {"heartbeat.interval": "2000"}}
    lines = [line(1, 2.0), line(4, 2.0, reference="Current")]
    assert len(production.merged(spec, {"killed": {"testbed": testbed, "variants": [variant]}}, lines)) == 2
    assert len(production.merged(spec, {"killed": {"testbed": testbed}}, lines)) == 1


def test_a_reference_that_passed_remains_if_the_row_with_its_values_failed():
    """Real processes were measured twice. The row that failed is not recommended."""
    spec = study(references=["Current"])
    lines = [line(1, 2.0, verdict="Fail"), line(4, 2.0, reference="Current", best=True)]
    scenarios = {"killed": {"testbed": {"flinkConfiguration": {"heartbeat.interval": "2000"}}}}
    assert production.merged(spec, scenarios, lines) == tuple(lines)


def test_a_study_without_a_detector_has_no_computed_columns_and_an_objective_is_not_shown_twice():
    """A reference whose values are not known has none in the table; a row without a run has no verdict."""
    lines = [line(0, None, None, verdict="", whole=False), line(1, 4.0, 1.0, reference="Default")]
    text = table.markdown(study(), lines).splitlines()
    assert text[0].count("computed") == 0
    assert text[2:4] == ["| 1 s | – | – | – |  |", "| – | Pass | 4 | 1 | Flink's defaults |"]
    around = {"taskManagers": 2, "pauses": {"perDay": "1", "median": "1 s", "p99": "2 s"}}
    spec = study({"metric": "detector.dead"}, surroundings=around)
    head = table.markdown(spec, [line(0, 2.0, detector=QUALITY)]).splitlines()[0]
    assert (head.count("detector.dead"), head.count("(computed)")) == (1, 3)


# ---- the answer


def test_the_answer_compares_the_best_row_with_each_reference():
    """One that failed is named with its reason, one that has not run with nothing, and the best one is not compared with itself."""
    best = line(0, 2.0, 1.0, best=True)
    lines = [best, line(3, 4.0, 1.0, reference="Default"), line(4, 3.0, 1.0, reference="Current")]
    answer = score.conclusion(study(), lines)
    assert answer == [
        "best: heartbeat.interval=1 s",
        "compared with Flink's defaults: recovery.total: 2 instead of 4; failovers.count: 1 in both",
        "compared with the scenarios as they are: recovery.total: 2 instead of 3; failovers.count: 1 in both",
    ]
    failed = [best, line(3, 4.0, 1.0, reference="Default", verdict="Fail", reason="it failed")]
    assert score.conclusion(study(), failed)[1:] == ["Flink's defaults: Fail: it failed"]
    partly = [best, line(3, 4.0, None, reference="Default")]
    assert score.conclusion(study(), partly)[1:] == []
    chosen = [line(0, 9.0, 9.0), line(3, 4.0, 1.0, reference="Default", best=True)]
    assert score.conclusion(study(), chosen)[:1] == [
        "best: Flink's defaults; leave the options of the study unset"
    ]


def test_the_answer_says_when_no_row_is_better_than_the_defaults_in_any_way():
    """A row that is better in one objective and worse in another is a trade."""
    default = line(3, 4.0, 4.0, reference="Default")
    hint = "No row of the grid is better than Flink's defaults"

    def hinted(*rows: score.Line) -> bool:
        return any(text.startswith(hint) for text in score.conclusion(study(), [*rows, default]))

    assert hinted(line(0, 1.0, 9.0, best=True))
    assert not hinted(line(0, 1.0, 4.1, best=True))
    assert hinted(line(0, 1.0, 9.0, best=True), line(1, 1.0, 1.0, verdict="Fail"))
    assert hinted(line(0, 1.0, 9.0, best=True), line(1, 1.0, 1.0, reference="Current"))
    assert hinted(line(0, 3.9, 3.9, best=True))
    assert not hinted(named(line(0, 1.0, 1.0, best=True), "Current"))
    default = named(line(3, 4.0, 4.0), "Default")
    assert hinted(line(0, 3.9, 3.9, best=True))
    assert not hinted(line(0, 1.0, 1.0, best=True))


def test_nothing_is_recommended_if_no_row_passes_or_none_is_within_its_limits():
    """A reference that passes is no row of the grid."""
    text = score.conclusion(study(), [line(0, 1.0, 1.0)])
    assert text == ["No row is within the limits of the objectives: nothing is recommended."]
    text = score.conclusion(
        study(), [line(0, 1.0, 1.0, verdict="Fail"), line(3, 1.0, 1.0, reference="Default")]
    )
    assert text == ["No row passes: nothing is recommended."]
    text = score.conclusion(study(), [named(line(0, 1.0, 1.0), "Default")])
    assert text == ["No row is within the limits of the objectives: nothing is recommended."]


@pytest.mark.parametrize(
    ("faults", "text"),
    [((), "killed: s"), (("a",), "killed (fault `a`): s"), (("a", "b"), "killed (faults `a`, `b`): s")],
)
def test_the_reason_of_a_row_names_the_faults_of_its_scenario(faults: tuple[str, ...], text: str):
    """With the summary of the run that failed."""
    (run, *_) = grid.planned_runs("study", study())
    found = score.table(study(), [score.Outcome(run, run_verdict("Fail", summary="s"), {}, faults)])[0]
    assert (found.reason, found.whole, found.runs) == (text, True, (run.name,))


# ---- the grid


def test_the_scenario_of_a_row_keeps_what_the_study_does_not_ask_for():
    """Trials and early stops are the study's; an expectation against a variant goes with the variants."""
    given = {
        "testbed": {}, "trials": 3, "stopEarly": True, "variants": [{"name": "v"}],
        "expect": [{"metric": "lag", "max": "1 s", "versus": "v"}, {"metric": "lag", "max": "9 s"}],
    }  # fmt: skip
    row = grid.rows(study())[0]
    made = grid.scenario_spec(given, study(FAILOVERS), row)
    assert made["testbed"] == {"flinkConfiguration": {"heartbeat.interval": "1 s"}}
    assert (made["trials"], "stopEarly" in made, "variants" in made) == (3, False, False)
    assert [(e["metric"], e.get("max")) for e in made["expect"]] == [
        ("lag", "9 s"),
        ("failovers.count", None),
    ]
    kept = grid.scenario_spec(given, study(FAILOVERS, variants=["v"]), row)
    assert (kept["stopEarly"], len(kept["variants"]), len(kept["expect"])) == (True, 1, 3)
    counted = grid.scenario_spec(given, study(FAILOVERS, variants=["v"], trials=5), row)
    assert (counted["trials"], "stopEarly" in counted) == (5, False)


def test_a_requirement_replaces_the_expectation_of_a_scenario_and_of_its_variants_and_an_objective_does_not():
    """A requirement must hold everywhere; an objective only has to be measured."""
    own = {"metric": "failovers.count", "max": 7}
    given = {
        "testbed": {}, "expect": [own, {"metric": "delivery.lost", "max": 3}],
        "variants": [{"name": "v", "expect": [{"metric": "delivery.lost", "max": 9}, own]}, {"name": "w"}],
    }  # fmt: skip
    spec = study(FAILOVERS, variants=["v", "w"], require=[{"metric": "delivery.lost", "equals": 0}])
    made = grid.scenario_spec(given, spec, grid.rows(spec)[0])
    assert made["expect"] == [own, {"metric": "delivery.lost", "equals": 0}]
    assert made["variants"] == [{"name": "v", "expect": [own]}, {"name": "w"}]


def test_a_requirement_may_have_several_items_and_replaces_every_spelling_of_a_quantile():
    """As in a scenario: a bound in an item of its own counts, and `p99` is `0.99`."""
    bounds = [{"metric": "failovers.count", "min": 1}, {"metric": "failovers.count", "max": 2}]
    latency = {"metric": "latency", "quantile": "p99", "max": "2 s"}
    given = {
        "testbed": {},
        "expect": [],
        "variants": [{"name": "v", "expect": [{**latency, "quantile": "0.99"}]}],
    }
    spec = study(FAILOVERS, variants=["v"], require=[*bounds, latency])
    made = grid.scenario_spec(given, spec, grid.rows(spec)[0])
    assert made["expect"] == [*bounds, latency]
    assert made["variants"] == [{"name": "v", "expect": []}]


def test_a_variants_value_of_a_studied_option_is_left_only_to_the_scenarios_as_they_are():
    """An option may have several names."""
    studied = study(
        options=[{"key": "pekko.ask.timeout", "values": ["1 s"]}], variants=["v"], references=["Current"]
    )
    own = {"akka.ask.timeout": "9 s", "heartbeat.interval": "1 s"}
    given = {"testbed": {}, "variants": [{"name": "v", "flinkConfiguration": own}]}
    first, current = (
        grid.scenario_spec(given, studied, row)["variants"][0]["flinkConfiguration"]
        for row in grid.rows(studied)
    )
    assert (first, current) == ({"heartbeat.interval": "1 s"}, own)


def test_the_faults_of_a_scenario_are_named_once():
    """Also those of its variants."""
    faults = [{"name": "a"}, {"name": "b"}]
    given = {"faults": faults, "variants": [{"faults": [{"name": "b"}, {"name": "c"}]}, {}]}
    assert grid.faults_of(given) == ("a", "b", "c")
    assert grid.faults_of({}) == ()
