"""Intervals, comparisons of variants, and what a number of trials can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement import samplesize, statistics
from testbed_runtime.core.judgement.comparison import (
    BETTER,
    INDISTINGUISHABLE,
    UNKNOWN,
    WORSE,
    Group,
    Key,
    Sample,
    comparison,
    contrast,
)
from testbed_runtime.core.judgement.expectations import Expectation, parse_margin
from testbed_runtime.core.judgement.verdict import RunVerdict, TrialFacts, Verdict, judge

DETECT = Key("recovery.detect")
GOODPUT = Key("throughput.records-per-second")


def samples(values: Sequence[float | None], *, first: int = 1, reason: str = "") -> list[Sample]:
    return [Sample(pair=first + i, value=v, reason=reason) for i, v in enumerate(values)]


def noisy(mean: float, spread: float, count: int, seed: int) -> list[float]:
    return [float(v) for v in np.random.default_rng(seed).normal(mean, spread, count)]


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.7062), (2, 4.30265), (5, 2.57058), (20, 2.08596), (99, 1.98422)]
)
def test_student_t_agrees_with_the_tables(degrees: int, expected: float):
    """The 97.5 % quantiles of a printed table."""
    assert statistics.student_t(0.975, degrees) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("count", [6, 20])
@pytest.mark.parametrize("shape", ["normal", "exponential"])
def test_intervals_contain_the_truth_about_as_often_as_they_say(shape: str, count: int):
    """300 samples at 95 %: at least 92 % of the normal ones, 86 % of the skewed ones, and not all of them."""
    generator = np.random.default_rng(5)
    truth = {"normal": 0.0, "exponential": 1.0}[shape]
    hits = 0
    for seed in range(300):
        drawn = generator.normal(0, 1, count) if shape == "normal" else generator.exponential(1, count)
        found = statistics.mean_interval([float(v) for v in drawn], confidence=0.95, seed=seed)
        assert found is not None
        hits += found.low <= truth <= found.high
    assert (0.92 if shape == "normal" else 0.86) <= hits / 300 < 1


def test_pairs_remove_what_both_sides_share():
    """Trials that differ by a second each, around means that vary by 10 s: pairs find the second, separate trials do not."""
    base = noisy(20, 10, 12, 1)
    other = [v - 1 + d for v, d in zip(base, noisy(0, 0.1, 12, 2), strict=True)]
    paired = statistics.difference_interval(base, other, paired=True, confidence=0.95, seed=1)
    apart = statistics.difference_interval(base, other, paired=False, confidence=0.95, seed=1)
    assert paired is not None
    assert apart is not None
    assert -1.2 < paired.low < paired.high < -0.8
    assert apart.low < 0 < apart.high


def test_an_interval_needs_as_many_trials_as_a_sign_test():
    """6 at 95 %, more when several intervals hold together."""
    assert [samplesize.trials_for(c) for c in (0.9, 0.95, samplesize.corrected(0.95, 3))] == [5, 6, 7]
    assert statistics.mean_interval([1.0] * 5, confidence=0.95, seed=1) is None


def test_looks_double_and_end_at_the_last_trial():
    """The number of looks decides the correction, so it is small."""
    assert samplesize.looks(5, 20) == (5, 10, 20)
    assert samplesize.looks(3, 20) == (3, 6, 12, 20)
    assert samplesize.looks(4, 4) == (4,)


@pytest.mark.parametrize(("trials", "confidence", "most"), [(7, 1 - 0.05 / 3, 0.03), (11, 0.998, 0.008)])
def test_narrow_error_rates_hold_with_few_trials(trials: int, confidence: float, most: float):
    """The tail of the resampled means ends at the trials themselves, so Student's interval is the least."""
    found = 0
    for seed in range(400):
        values = noisy(0, 1, 2 * trials, seed)
        change = statistics.difference_interval(
            values[:trials], values[trials:], paired=True, confidence=confidence, seed=seed
        )
        assert change is not None
        found += not change.low <= 0 <= change.high
    assert found <= most * 400


def test_sequential_looks_at_equal_variants_rarely_find_a_difference():
    """150 A/A experiments with 3 looks each: the correction keeps false findings at 5 % (plus chance), without it there are more."""
    generator = np.random.default_rng(3)

    def false_findings(confidence: float) -> int:
        found = 0
        for seed in range(150):
            drawn = generator.normal(5, 1, (2, 20))
            for look in samplesize.looks(7, 20):
                change = statistics.difference_interval(
                    list(drawn[0][:look]),
                    list(drawn[1][:look]),
                    paired=True,
                    confidence=confidence,
                    seed=seed,
                )
                if change and not change.low <= 0 <= change.high:
                    found += 1
                    break
        return found

    assert false_findings(samplesize.corrected(0.95, 3)) <= 12
    assert false_findings(0.8) > 30


def test_a_quantile_over_trials_states_its_false_pass_risk():
    """p95 over 20 trials passes at 19 of 20, and a system that just misses it passes in 74 % of the cases."""
    assert samplesize.false_pass_risk(quantile=0.95, trials=20) == pytest.approx(0.7358, abs=1e-4)
    assert samplesize.false_pass_risk(quantile=0.5, trials=2) == pytest.approx(0.75)
    assert samplesize.false_pass_risk(quantile=0.05, trials=2, lower=True) == pytest.approx(0.9025)
    assert "passes with" not in samplesize.quantile_note(quantile=1, within=3, trials=3)
    assert samplesize.share_shown(within=59, trials=59) == pytest.approx(0.9505, abs=1e-4)
    assert samplesize.share_shown(within=19, trials=20) == pytest.approx(0.7839, abs=1e-4)


# ---- answers


@pytest.mark.parametrize(
    ("reference", "other", "answer"),
    [
        (noisy(2, 0.2, 10, 1), noisy(1, 0.2, 10, 2), BETTER),
        (noisy(1, 0.2, 10, 1), noisy(2, 0.2, 10, 2), WORSE),
        (noisy(2, 0.4, 10, 1), noisy(2, 0.4, 10, 2), INDISTINGUISHABLE),
        ([2.0] * 10, [2.0] * 10, INDISTINGUISHABLE),
        ([2.0] * 5, [1.0] * 5, UNKNOWN),
        ([2.0] * 10, [1.0] * 9 + [None], UNKNOWN),
    ],
)
def test_the_interval_decides_the_answer(reference: list[float], other: list[float | None], answer: str):
    """Less is better for a detection; too few trials or a missing value give no answer."""
    assert contrast(DETECT, ("a", samples(reference)), ("b", samples(other))).answer == answer


def test_more_is_better_for_throughput():
    """The same numbers, the other answer."""
    found = contrast(GOODPUT, ("a", samples(noisy(900, 9, 8, 1))), ("b", samples(noisy(1000, 9, 8, 2))))
    assert found.answer == BETTER
    assert found.improvement is not None
    assert 80 < found.improvement.value < 120


def test_a_small_difference_does_not_matter():
    """A certain 1 % is within the 5 % that matter: indistinguishable and equivalent; with 0.1 % it is better."""
    pair = ("a", samples(noisy(100, 0.1, 10, 1))), ("b", samples(noisy(99, 0.1, 10, 2)))
    found = contrast(DETECT, *pair)
    assert (found.answer, found.equivalent) == (INDISTINGUISHABLE, True)
    assert contrast(DETECT, *pair, matters=0.001).answer == BETTER


def test_a_trial_that_did_not_recover_opens_the_interval():
    """Its value is a lower bound: the reference may be any amount worse, and a variant that did not recover is never better."""
    slow = samples(noisy(9, 0.1, 8, 1), reason=m.NOT_RECOVERED)
    fast = samples(noisy(1, 0.1, 8, 2))
    better = contrast(DETECT, ("slow", slow), ("fast", fast))
    assert better.answer == BETTER
    assert better.to_json()["improvement"]["high"] is None
    assert "more than was observed" in better.text
    assert contrast(DETECT, ("fast", fast), ("slow", slow)).answer == WORSE
    assert contrast(DETECT, ("slow", slow), ("slow", slow)).answer == INDISTINGUISHABLE


def test_equal_counts_in_a_few_trials_do_not_bound_a_rare_difference():
    """No failover in six trials says little about one in three: indistinguishable, but not equivalent."""
    same = samples([0.0] * 6)
    found = contrast(Key("failovers.count"), ("a", same), ("b", same))
    assert (found.answer, found.equivalent) == (INDISTINGUISHABLE, False)


def test_a_void_trial_drops_its_pair_only():
    """Seven common seeds of eight stay pairs; different seeds are compared unpaired."""
    whole, missing = samples(noisy(2, 0.1, 8, 1)), samples(noisy(2, 0.1, 8, 1))[1:]
    found = contrast(DETECT, ("a", whole), ("b", missing))
    assert (found.paired, found.trials) == (True, 7)
    assert not contrast(DETECT, ("a", whole), ("b", samples(noisy(2, 0.1, 8, 3), first=50))).paired


def rows_of(trial: str, detect: float) -> list[dict[str, Any]]:
    values: dict[str, float] = dict.fromkeys(m.SAFETY, 0) | {"history.missing": 0, "recovery.detect": detect}
    return [
        {"run": "r", "trial": trial, "metric": name, "phase": "", "quantile": None, "value": value, "text": "",
         "bounded_by": "", "reason": ""}
        for name, value in values.items()
    ]  # fmt: skip


def test_a_table_has_every_group_and_one_sentence_for_each():
    """comparison.json: the first group is the reference; with several metrics each interval is wider."""
    groups = [
        Group(
            name=name, trials={i: rows_of(f"{name}-{i}", v) for i, v in enumerate(noisy(mean, 0.1, 10, seed))}
        )
        for name, mean, seed in (("slow", 2, 1), ("again", 2, 2), ("fast", 1, 3))
    ]
    table = comparison(groups)
    assert [g["name"] for g in table["groups"]] == ["slow", "again", "fast"]
    assert [c["answer"] for c in table["contrasts"]] == [INDISTINGUISHABLE, BETTER]
    assert table["confidenceEach"] == pytest.approx(0.975)
    assert table["summary"][0].startswith("again and slow are indistinguishable in recovery.detect")
    assert table["summary"][1].startswith("fast against slow: recovery.detect: better by")
    previous = comparison(groups, each_with_previous=True)["contrasts"]
    assert [(c["reference"], c["group"]) for c in previous] == [("slow", "again"), ("again", "fast")]


# ---- expectations


def versus(**more: str) -> Expectation:
    return Expectation.from_item({"metric": "recovery.detect", "versus": "slow", **more})


def judged(slow: Sequence[float], fast: Sequence[float], item: Expectation, *, looks: int = 1) -> RunVerdict:
    trials, rows = [], []
    for variant, values in (("slow", slow), ("fast", fast)):
        for number, value in enumerate(values, 1):
            trials.append(TrialFacts(trial=f"{variant}-{number}", variant=variant, number=number))
            rows += rows_of(f"{variant}-{number}", value)
    return judge(trials=trials, expectations={"slow": (), "fast": (item,)}, rows=rows, looks=looks)


TWO, ONE = noisy(2, 0.1, 10, 1), noisy(1, 0.1, 10, 2)


@pytest.mark.parametrize(
    ("item", "slow", "fast", "verdict", "reason"),
    [
        ({"improves_by": "20 %"}, TWO, ONE, Verdict.PASS, ""),
        ({"improves_by": "500 ms"}, TWO, ONE, Verdict.PASS, ""),
        ({"improves_by": "2 s"}, TWO, ONE, Verdict.FAIL, ""),
        ({"improves_by": "50 %"}, TWO, ONE, Verdict.INCONCLUSIVE, m.INDISTINGUISHABLE),
        ({"improves_by": "0 %"}, TWO, noisy(2, 0.1, 10, 3), Verdict.INCONCLUSIVE, m.INDISTINGUISHABLE),
        ({"improves_by": "0 %"}, TWO, TWO, Verdict.FAIL, ""),
        ({"within": "10 %"}, TWO, noisy(2, 0.1, 10, 3), Verdict.PASS, ""),
        ({"within": "10 %"}, TWO, ONE, Verdict.FAIL, ""),
        ({"within": "1 ms"}, TWO, noisy(2, 0.1, 10, 3), Verdict.INCONCLUSIVE, m.INDISTINGUISHABLE),
        ({"within": "10 %"}, TWO[:5], TWO[:5], Verdict.INCONCLUSIVE, m.NOT_ENOUGH_TRIALS),
    ],
)
def test_a_comparison_passes_or_fails_only_if_the_interval_decides(
    item: dict[str, str], slow: list[float], fast: list[float], verdict: Verdict, reason: str
):
    """Chance is no verdict: between Pass and Fail there is Indistinguishable."""
    found = next(j for j in judged(slow, fast, versus(**item)).judged if j.metric == "recovery.detect")
    assert (found.verdict, found.reason) == (verdict, reason)
    assert found.measured


def test_looks_widen_the_interval():
    """Six trials decide at one look, not at three: the correction needs seven."""
    for looks, verdict, reason in ((1, Verdict.PASS, ""), (3, Verdict.INCONCLUSIVE, m.NOT_ENOUGH_TRIALS)):
        run = judged(TWO[:6], ONE[:6], versus(improves_by="20 %"), looks=looks)
        found = next(j for j in run.judged if j.metric == "recovery.detect")
        assert (found.verdict, found.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"improves_by": "20 %", "versus": ""}, "need `versus`"),
        ({}, "either `improvesBy` or `within`"),
        ({"improves_by": "20 %", "max": "3 s"}, "leave out `min`"),
        ({"improves_by": "3 records"}, "not a valid bound"),
        ({"improves_by": "-5 %"}, "negative"),
        ({"improves_by": "20 %", "metric": "job.state"}, "no better direction"),
        ({"improves_by": "20 %", "quantile": "p95"}, "takes no quantile"),
    ],
)
def test_a_comparison_that_cannot_be_judged_says_why(item: dict[str, str], problem: str):
    """The problem names the field to change."""
    assert problem in versus(**item).problem


def test_margins_are_shares_or_values():
    """A percentage is a share of the other mean, whatever the metric's unit."""
    assert parse_margin("20 %", "s") == (pytest.approx(0.2), True)
    assert parse_margin("500 ms", "s") == (0.5, False)
    assert parse_margin("2", "count") == (2, False)
