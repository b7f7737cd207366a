"""Intervals, comparisons of variants, and what a number of trials can show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement import samplesize, statistics
from testbed_runtime.core.judgement.comparison import (
    BETTER,
    HEADLINE,
    INDISTINGUISHABLE,
    UNKNOWN,
    WORSE,
    Contrast,
    Group,
    Key,
    Sample,
    comparison,
    contrast,
    meets,
    sample,
)
from testbed_runtime.core.judgement.expectations import Expectation, parse_margin
from testbed_runtime.core.judgement.judge import judge
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.verdict import RunVerdict, TrialFacts, Verdict
from tests.metricrows import metric_row

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
    assert [samplesize.trials_for(c) for c in (0.9, 0.95, samplesize.corrected(3))] == [5, 6, 7]
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

    assert false_findings(samplesize.corrected(3)) <= 12
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


def test_less_than_one_failover_of_a_trial_matters():
    """Only durations have a difference below which nothing matters."""
    pair = ("a", samples(noisy(1.0, 0.01, 10, 1))), ("b", samples(noisy(0.5, 0.01, 10, 2)))
    assert contrast(Key("failovers.count"), *pair).answer == BETTER


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


def rows_of(trial: str, detect: float) -> list[MetricRow]:
    values: dict[str, float] = dict.fromkeys(m.SAFETY, 0) | {"history.missing": 0, "recovery.detect": detect}
    return [metric_row(name, value, trial=trial) for name, value in values.items()]


def test_every_headline_is_a_metric_with_rows():
    """They are recovery, throughput and latency. A quantile is named only where the metric has some."""
    known = [m.METRICS[key.metric] for key in HEADLINE]
    assert [(i.unit, i.quantiles) for i in known] == [("s", False)] * 3 + [
        ("count", False),
        ("records/s", False),
        ("s", True),
    ]
    assert [key.quantile for key in HEADLINE] == [None] * 5 + [0.99]


def test_a_table_has_every_group_and_one_sentence_for_each():
    """comparison.json: the first group is the reference; with several metrics each interval is wider."""
    groups = [
        Group(
            name=name, trials={i: rows_of(f"{name}-{i}", v) for i, v in enumerate(noisy(mean, 0.1, 10, seed))}
        )
        for name, mean, seed in (("slow", 2, 1), ("again", 2, 2), ("fast", 1, 3))
    ]
    table = comparison(groups)
    assert [g.name for g in table.groups] == ["slow", "again", "fast"]
    assert [c.answer for c in table.contrasts] == [INDISTINGUISHABLE, BETTER]
    assert table.confidence_each == pytest.approx(0.975)
    assert table.summary[0].startswith("again and slow are indistinguishable in recovery.detect")
    assert table.summary[1].startswith("fast against slow: recovery.detect: better by")
    previous = comparison(groups, each_with_previous=True).contrasts
    assert [(c.reference, c.name) for c in previous] == [("slow", "again"), ("again", "fast")]


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
    ("before", "after", "answer", "text"),
    [
        ([5e3] * 8, [1e5] * 8, "higher", "higher by 95,000 bytes (1900 %)"),
        ([1e5] * 8, [5e3] * 8, "lower", "lower by 95,000 bytes (95 %)"),
        ([0.0, 1e5] * 4, [1e5, 0.0] * 4, INDISTINGUISHABLE, "indistinguishable: the difference is between"),
    ],
)
def test_a_metric_without_a_better_direction_is_only_higher_or_lower(
    before: list[float], after: list[float], answer: str, text: str
):
    """More channel state is no improvement, and less is none either."""
    key = Key("checkpoints.persisted")
    found = contrast(key, ("a", samples(before)), ("b", samples(after)))
    assert found.answer == answer
    assert found.text.startswith(text)
    rows = [
        Group(
            name=name,
            trials={n: [metric_row(key.metric, v)] for n, v in enumerate(values)},
        )
        for name, values in (("a", before), ("b", after))
    ]
    assert answer in comparison(rows, keys=(key,)).summary[0]


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
        ({"within": "10 %"}, [0.0] * 8, [0.0] * 8, Verdict.INCONCLUSIVE, m.NO_SHARE),
        ({"improves_by": "10 %"}, [0.0, 1.0] * 4, [0.5] * 8, Verdict.INCONCLUSIVE, m.NO_SHARE),
        ({"within": "10 ms"}, [0.0] * 8, [0.0] * 8, Verdict.PASS, ""),
    ],
)
def test_a_comparison_passes_or_fails_only_if_the_interval_decides(
    item: dict[str, str], slow: list[float], fast: list[float], verdict: Verdict, reason: str
):
    """Chance is no verdict: between Pass and Fail there is Indistinguishable."""
    found = next(j for j in judged(slow, fast, versus(**item)).judged if j.metric == "recovery.detect")
    assert (found.verdict, found.reason) == (verdict, reason)
    assert found.measured


@pytest.mark.parametrize(("stable", "verdict"), [(1, Verdict.PASS), (0, Verdict.INCONCLUSIVE)])
def test_a_comparison_needs_a_stable_control_run_of_the_other_variant(stable: float, verdict: Verdict):
    """A reference that varies by itself shows no improvement."""
    trials = [TrialFacts(trial="slow-control-1", variant="slow", role="control")]
    rows = [replace(rows_of("slow-control-1", 1)[-1], metric="control.stable", value=stable)]
    for variant, values in (("slow", TWO), ("fast", ONE)):
        for number, value in enumerate(values, 1):
            trials.append(TrialFacts(trial=f"{variant}-{number}", variant=variant, number=number))
            rows += rows_of(f"{variant}-{number}", value)
    run = judge(trials=trials, expectations={"fast": (versus(improves_by="20 %"),)}, rows=rows)
    found = next(j for j in run.judged if j.metric == "recovery.detect")
    assert (found.verdict, found.reason) == (verdict, "" if stable else m.CONTROL_UNSTABLE)


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
        ({"improves_by": "20 %", "metric": "job.state"}, "is a text, which has no mean"),
        ({"within": "20 %", "metric": "job.state"}, "is a text, which has no mean"),
        ({"improves_by": "20 %", "metric": "buffers.used"}, "no better direction"),
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


# ---- edges and words


def gained(low: float, high: float, *, share: float = 0.1) -> Contrast:
    """A contrast in seconds with this interval of the improvement, and the same in shares of ten seconds."""
    found = statistics.Interval(value=(low + high) / 2, low=low, high=high)
    relative = statistics.Interval(value=found.value * share, low=low * share, high=high * share)
    return Contrast(
        key=DETECT,
        name="b",
        reference="a",
        answer="",
        text="",
        trials=8,
        improvement=found,
        relative=relative,
    )


@pytest.mark.parametrize(
    ("asked", "low", "high", "met"),
    [
        ({"improves_by": "1 s"}, 1, 2, True),
        ({"improves_by": "1 s"}, 0.9, 1, None),
        ({"improves_by": "1 s"}, 0.5, 0.9, False),
        ({"improves_by": "10 %"}, 1, 2, True),
        ({"improves_by": "11 %"}, 1, 2, None),
        ({"improves_by": "0 s"}, 0, 1, None),
        ({"improves_by": "0 s"}, -1, 0, False),
        ({"improves_by": "0 s"}, 0.1, 1, True),
        ({"within": "1 s"}, -1, 1, True),
        ({"within": "1 s"}, -1.1, 1, None),
        ({"within": "1 s"}, -1, 1.1, None),
        ({"within": "1 s"}, 1, 2, None),
        ({"within": "1 s"}, 1.1, 2, False),
        ({"within": "1 s"}, -2, -1, None),
        ({"within": "1 s"}, -2, -1.1, False),
        ({"within": "0 s"}, 0, 0, True),
    ],
)
def test_a_bound_on_a_difference_is_met_at_its_edge(
    asked: dict[str, str], low: float, high: float, met: bool | None
):
    """An interval that touches the bound meets it; no improvement at all meets nothing."""
    assert meets(versus(**asked), gained(low, high)) is met


def test_a_bound_without_an_interval_is_not_decided():
    """Also equal counts do not bound a rare difference."""
    assert meets(versus(within="1 s"), replace(gained(0, 1), improvement=None)) is None
    assert meets(versus(within="1 %"), replace(gained(0, 1), relative=None)) is None
    counts = replace(gained(0, 0), key=Key("failovers.count"))
    assert meets(versus(within="1"), counts) is None
    assert meets(versus(within="1"), replace(gained(0, 1), key=Key("failovers.count"))) is True


SAME = noisy(2, 0, 8, 1)


@pytest.mark.parametrize(
    ("reference", "other", "text"),
    [
        (samples(SAME), samples([1.0] * 8), "better by 1.00 s (50 %)"),
        (samples(SAME), samples([3.0] * 8), "worse by 1.00 s (50 %)"),
        (samples(SAME), samples(SAME), "indistinguishable: no trial differs"),
        (samples(SAME), samples([v + 8e-11 for v in SAME]), "indistinguishable: no trial differs"),
        (samples(SAME), samples([1.95] * 8), "indistinguishable: the difference is at most 50.0 ms"),
        (samples(SAME), samples([2.05] * 8), "indistinguishable: the difference is at most 50.0 ms"),
        (samples(SAME, reason=m.NOT_RECOVERED), samples([1.0] * 8), "better by 1.00 s (50 %), between 1.00 s and more than was observed"),
        (samples([1.0] * 8), samples(SAME, reason=m.NOT_RECOVERED), "worse by 1.00 s (100 %), between 1.00 s and more than was observed"),
        (samples([3.0] * 8), samples(SAME, reason=m.NOT_RECOVERED), "indistinguishable: the improvement is between an unknown value and 1.00 s"),
        (samples([2.5] * 8), samples(SAME, reason=m.NOT_RECOVERED), "indistinguishable: the improvement is between an unknown value and 500 ms"),
        (samples(SAME), samples(SAME, reason=m.NOT_RECOVERED), "indistinguishable: the improvement is between an unknown value and 0 s"),
        (samples([10.0] * 8), samples([9.5] * 8), "indistinguishable: the difference is at most 500 ms"),
        (samples([10.0] * 8), samples([9.51] * 8), "indistinguishable: the difference is at most 490 ms"),
        (samples([10.0] * 8), samples([10.49] * 8), "indistinguishable: the difference is at most 490 ms"),
        (samples([0.0] * 8), samples([0.0] * 8), "indistinguishable: no trial differs"),
        (samples([0.0] * 8), samples([0.0009] * 8), "indistinguishable: the difference is at most 900 µs"),
        (samples([0.0] * 8), samples([0.0011] * 8), "worse by 1.10 ms"),
        (samples([2.0]), samples([1.0]), "unknown: 1.00 s against 2.00 s in 1 trial each; an interval needs 6"),
        (samples([2.0] * 4), samples([1.0] * 3), "unknown: 1.00 s against 2.00 s in 3 trials each; an interval needs 6"),
        (samples([2.0] * 4), samples([1.0], first=9), "unknown: 1.00 s against 2.00 s in 4 and 1 trials; an interval needs 6"),
        (samples(SAME), [], m.reason_text(m.NO_DATA)),
        ([], samples(SAME), m.reason_text(m.NO_DATA)),
        (samples([None] * 8, reason=m.NO_FAILOVER), samples(SAME), m.reason_text(m.NO_FAILOVER)),
        (samples(SAME, reason=m.FILTERED), samples(SAME), m.reason_text(m.FILTERED)),
    ],
)  # fmt: skip
def test_an_answer_is_worded_with_its_size_and_its_interval(
    reference: list[Sample], other: list[Sample], text: str
):
    """An open end is said, a difference without spread has no interval."""
    assert contrast(DETECT, ("a", reference), ("b", other)).text == text


def test_an_interval_around_zero_is_shown_with_its_sign():
    """A negative improvement is a loss."""
    low, high = [1.0, 3.0] * 5, [3.0, 1.0] * 5
    found = contrast(DETECT, ("a", samples(low)), ("b", samples(high)))
    assert found.improvement is not None
    shown = found.improvement.high
    assert found.improvement.low == pytest.approx(-shown, rel=0.1)
    assert found.text.startswith("indistinguishable: the improvement is between −1.")
    assert f" and {shown:.2f} s" in found.text


def test_a_contrast_says_how_its_interval_was_made():
    """Pairs, or trials of each side. Without an interval there is nothing to say."""
    assert contrast(DETECT, ("a", samples([2.0])), ("b", samples([1.0]))).note == ""
    paired = contrast(DETECT, ("a", samples(SAME)), ("b", samples([1.0] * 8)))
    apart = contrast(DETECT, ("a", samples(SAME)), ("b", samples([1.0] * 8, first=50)), confidence=0.975)
    assert paired.note == "bootstrap interval of 8 pairs of trials with the same seed, 95 % confidence"
    assert apart.note == "bootstrap interval of 8 trials of each side, not paired, 97.5 % confidence"
    half = contrast(DETECT, ("a", samples(SAME)), ("b", samples([1.0] * 8, first=5)))
    assert (half.paired, half.trials) == (False, 8), "four common seeds of eight are not more than half"
    twice = contrast(DETECT, ("a", samples(SAME)), ("b", [*samples([1.0] * 8), *samples([1.0])]))
    assert not twice.paired, "a seed that occurs twice has no pair"


def test_a_sample_is_the_only_matching_row_with_a_finite_value():
    """Phase and quantile decide only for metrics that have them."""
    key = Key("latency", 0.99, "fault")
    assert (key.title, DETECT.title, Key("lag.max", None, "fault").title) == (
        "latency p99 (fault)",
        "recovery.detect",
        "lag.max (fault)",
    )
    one = metric_row("latency", 2.0, phase="fault", quantile=0.99)
    others = [replace(one, phase="baseline"), replace(one, quantile=0.5), replace(one, quantile=None), replace(one, metric="lag.max")]  # fmt: skip
    assert sample(key, 3, [*others, one]) == Sample(pair=3, value=2.0)
    assert sample(key, 3, others) == Sample(pair=3, value=None, reason=m.NO_DATA)
    assert sample(key, 3, [one, one]) == Sample(pair=3, value=None, reason=m.NO_DATA)
    assert sample(key, 3, [replace(one, value=float("inf"))]) == Sample(pair=3, value=None, reason=m.NO_DATA)
    missing = sample(key, 3, [replace(one, value=None, reason=m.NO_FAULT)])
    assert missing == Sample(pair=3, value=None, reason=m.NO_FAULT)
    detect = metric_row("recovery.detect", 1.0, phase="any", quantile=0.5, reason=m.NOT_RECOVERED)
    assert sample(DETECT, 1, [detect]) == Sample(pair=1, value=1.0, reason=m.NOT_RECOVERED)
    assert sample(DETECT, 1, [detect]).bounded


def test_a_contrast_is_written_with_every_field():
    """comparison.json is read by the report and by scripts."""
    found = contrast(Key("latency", 0.99, "fault"), ("a", samples(SAME)), ("b", samples([1.0] * 8)))
    assert found.to_json() == {
        "metric": "latency", "quantile": 0.99, "phase": "fault", "title": "latency p99 (fault)", "unit": "s", "lowerIsBetter": True, "group": "b", "reference": "a",
        "answer": BETTER, "text": "better by 1.00 s (50 %)", "paired": True, "trials": 8,
        "improvement": {"value": 1.0, "low": 1.0, "high": 1.0}, "relative": {"value": 0.5, "low": 0.5, "high": 0.5},
        "equivalent": False, "reason": "", "note": found.note,
    }  # fmt: skip
    nothing = contrast(DETECT, ("a", samples(SAME)), ("b", [])).to_json()
    assert (nothing["paired"], nothing["trials"], nothing["equivalent"]) == (False, 0, False)
    unknown = contrast(DETECT, ("a", samples([2.0])), ("b", samples([1.0]))).to_json()
    assert (unknown["improvement"], unknown["relative"], unknown["reason"]) == (
        None,
        None,
        m.NOT_ENOUGH_TRIALS,
    )


def test_a_relative_difference_needs_a_reference_of_one_sign():
    """A share of 0, or of values around 0, means nothing."""
    for reference in ([0.0] * 8, [-1.0, 1.0] * 4, [0.0, 1.0] * 4):
        other = [5.0] * 8
        change = {"paired": True, "confidence": 0.95, "seed": 1}
        assert statistics.difference_interval(reference, other, relative=True, **change) is None
        assert statistics.difference_interval(reference, other, **change) is not None
    found = statistics.difference_interval(
        [2.0] * 8, [3.0] * 8, paired=False, relative=True, confidence=0.95, seed=1
    )
    assert found == statistics.Interval(value=0.5, low=0.5, high=0.5)


def test_the_interval_of_a_skewed_sample_is_the_known_one():
    """BCa over 10,000 resamples is wider on the long side: the reach of Student's t is the least, 2.262 standard errors."""
    values = [1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.2, 3.0, 4.5, 9.0]
    found = statistics.mean_interval(values, confidence=0.95, seed=1)
    assert found is not None
    error = float(np.std(values, ddof=1)) / 10**0.5
    assert found.value == pytest.approx(2.66)
    assert found.low == pytest.approx(2.66 - 2.26216 * error, abs=1e-4), "the bootstrap's lower end is nearer"
    assert 2.66 + 1.2 * 2.26216 * error < found.high < 2.66 + 2 * 2.26216 * error
    mirrored = statistics.mean_interval([-v for v in values], confidence=0.95, seed=1)
    assert mirrored is not None
    assert -2.66 - 2 * 2.26216 * error < mirrored.low < -2.66 - 1.2 * 2.26216 * error
    assert mirrored.high == pytest.approx(-2.66 + 2.26216 * error, abs=1e-4)


def test_a_risk_is_a_binomial_probability():
    """Checked against the closed forms."""
    assert samplesize.binomial_cdf(0, 10, 0.1) == pytest.approx(0.9**10)
    assert samplesize.binomial_cdf(9, 10, 0.1) == pytest.approx(1 - 0.1**10)
    assert [samplesize.binomial_cdf(k, 3, 1.0) for k in (2, 3)] == [0.0, 1.0]
    assert samplesize.binomial_cdf(1, 3, 0.5) == pytest.approx(0.5)
    assert samplesize.share_shown(within=0, trials=5) == 0.0
    assert samplesize.share_shown(within=5, trials=5) == pytest.approx(0.05**0.2)
    assert samplesize.corrected(0) == samplesize.corrected(1) == pytest.approx(0.95)
    assert samplesize.looks(9, 4) == (4,)
    assert samplesize.looks(3, 20) == (3, 6, 12, 20)
    assert [samplesize.trials_for(confidence) for confidence in (0.5, 0.75, 0.95, 0.99)] == [2, 3, 6, 8]
    assert samplesize.false_pass_risk(quantile=1.0, trials=3) == 1.0
    assert samplesize.false_pass_risk(quantile=0.01, trials=10) == pytest.approx(1 - 0.99**10)
    note = samplesize.quantile_note(quantile=0.95, within=19, trials=20)
    assert note == (
        "19 of 20 trials are within the bound: with 95 % confidence at least 78 % of all trials are. "
        "A system that just misses this p95 passes with a probability of 74 %"
    )
    assert samplesize.quantile_note(quantile=1.0, within=3, trials=3) == (
        "3 of 3 trials are within the bound: with 95 % confidence at least 37 % of all trials are"
    )
