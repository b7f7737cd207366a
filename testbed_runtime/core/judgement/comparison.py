"""Compare groups of trials metric by metric: variants of a run, or several runs. Pure.

A trial is one sample. Trials with the same seed are compared in pairs. The answer follows from the interval of the difference:

    the interval excludes 0                              better or worse, by that interval (of a metric without a better
                                                         direction: higher or lower)
    it lies within the smallest difference that matters  indistinguishable, and no difference that matters is left
    it contains 0 and is wider                           indistinguishable; larger differences remain possible
    too few trials, or values are missing                unknown, with the reason
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from testbed_runtime.core.documents import SCHEMA
from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement import samplesize, statistics
from testbed_runtime.core.judgement.expectations import Expectation, parse_margin
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.quantities import counted, format_value
from testbed_runtime.core.judgement.samplesize import CONFIDENCE
from testbed_runtime.core.judgement.statistics import Interval

BETTER, WORSE, INDISTINGUISHABLE, UNKNOWN = "better", "worse", "indistinguishable", "unknown"
HIGHER, LOWER = "higher", "lower"
"""Used instead of BETTER and WORSE for a metric without a better direction."""
MATTERS = 0.05
"""Differences below this share of the reference do not matter, unless asked otherwise."""
RESOLUTION = {"s": 0.001}
"""Unit → the largest difference that never matters: Flink counts its durations in whole milliseconds."""
ROUNDING = 1e-9
"""Differences below this are the rounding of sums, not of anything that was measured."""
SEED = 1


class Key(Struct, frozen=True):
    """A metric that is compared, with its quantile within a trial and its phase."""

    metric: str
    quantile: float | None = None
    phase: str = ""

    @property
    def title(self) -> str:
        quantile = "" if self.quantile is None else f" p{self.quantile * 100:g}"
        return f"{self.metric}{quantile}{f' ({self.phase})' if self.phase else ''}"

    @property
    def unit(self) -> str:
        return m.METRICS[self.metric].unit

    def matches(self, metric: str, phase: str, quantile: float | None) -> bool:
        info = m.METRICS[self.metric]
        same_phase = not info.phased or phase == self.phase
        same_quantile = not info.quantiles or quantile == self.quantile
        return metric == self.metric and same_phase and same_quantile


HEADLINE = (
    Key("recovery.downtime"), Key("recovery.total"), Key("recovery.detect"), Key("failovers.count"), Key("throughput.goodput"),
    Key("latency", 0.99),
)  # fmt: skip
"""The metrics that are compared in tables of variants and runs."""
ALSO_MAX = 6
"""Further metrics in such a table."""


class Sample(Struct, frozen=True, kw_only=True):
    """The value of one trial. `pair` is its seed: trials with the same seed are compared."""

    pair: int
    value: float | None
    reason: str = ""
    """Why the value is missing or only a lower bound (metrics.LOWER_BOUNDS)."""

    @property
    def bounded(self) -> bool:
        return self.reason in m.LOWER_BOUNDS


def sample(key: Key, pair: int, rows: Sequence[MetricRow]) -> Sample:
    """Return a trial's sample from its metric rows."""
    found = [row for row in rows if key.matches(row.metric, row.phase, row.quantile)]
    if len(found) != 1:
        return Sample(pair=pair, value=None, reason=m.NO_DATA)
    value = found[0].value
    if value is None or not math.isfinite(value):
        return Sample(pair=pair, value=None, reason=found[0].reason or m.NO_DATA)
    return Sample(pair=pair, value=value, reason=found[0].reason)


class Group(Struct, frozen=True, kw_only=True):
    """The trials that are compared together: those of a variant, or of a run."""

    name: str
    trials: Mapping[int, Sequence[MetricRow]]
    """Seed of a trial → its metric rows."""

    def samples(self, key: Key) -> list[Sample]:
        return [sample(key, seed, rows) for seed, rows in self.trials.items()]


class Contrast(Struct, frozen=True, kw_only=True):
    """One metric of a group against the same metric of its reference. Improvements are positive; without a better direction,
    higher values are."""

    key: Key
    name: str
    reference: str
    answer: str
    text: str
    paired: bool = False
    trials: int = 0
    improvement: Interval | None = None
    relative: Interval | None = None
    """The improvement as a share of the reference's mean."""
    equivalent: bool = False
    """Whether the whole interval is within the smallest difference that matters."""
    reason: str = ""
    confidence: float = CONFIDENCE

    @property
    def note(self) -> str:
        """Say how the interval was computed; empty without an interval."""
        if self.improvement is None:
            return ""
        how = "pairs of trials with the same seed" if self.paired else "trials of each side, not paired"
        return f"bootstrap interval of {self.trials} {how}, {self.confidence * 100:.4g} % confidence"

    def to_json(self) -> dict[str, Any]:
        fields = to_builtins(self) | {
            name: interval and interval.to_json()
            for name, interval in (("improvement", self.improvement), ("relative", self.relative))
        }
        del fields["key"], fields["name"], fields["confidence"]
        return {**to_builtins(TableMetric.of(self.key)), "group": self.name, **fields, "note": self.note}


def contrast(
    key: Key,
    reference: tuple[str, Sequence[Sample]],
    other: tuple[str, Sequence[Sample]],
    *,
    confidence: float = CONFIDENCE,
    matters: float = MATTERS,
) -> Contrast:
    """Compare two groups of samples. `matters` is a share of the reference's mean."""
    base = Contrast(
        key=key, name=other[0], reference=reference[0], answer=UNKNOWN, text="", confidence=confidence
    )
    first, second, paired = _aligned(reference[1], other[1])
    missing = next((s.reason or m.NO_DATA for s in (*first, *second) if s.value is None), "")
    unusable = missing or next((s.reason for s in (*first, *second) if s.reason and not s.bounded), "")
    if unusable or not first or not second:
        reason = unusable or m.NO_DATA
        return replace(base, reason=reason, text=m.reason_text(reason))
    values = [[s.value for s in group if s.value is not None] for group in (first, second)]
    trials = min(len(first), len(second))
    base = replace(base, paired=paired, trials=trials)
    found: list[Interval | None] = []
    for relative in (False, True):
        change = statistics.difference_interval(
            *values, paired=paired, relative=relative, confidence=confidence, seed=SEED
        )
        found.append(_improvement(key, _opened(change, first, second)))
    if found[0] is None:
        text = _too_few(key, first, second, samplesize.trials_for(confidence))
        return replace(base, reason=m.NOT_ENOUGH_TRIALS, text=text)
    limit = max(matters * abs(sum(values[0]) / len(values[0])), RESOLUTION.get(key.unit, 0.0))
    return _answered(replace(base, improvement=found[0], relative=found[1]), found[0], limit)


def _aligned(
    first: Sequence[Sample], second: Sequence[Sample]
) -> tuple[Sequence[Sample], Sequence[Sample], bool]:
    """Return the samples of the pairs that both groups have, in the same order, and True, if these are most
    of the pairs. Otherwise return both groups unchanged and False. A void trial drops its pair."""
    left, right = ({s.pair: s for s in group} for group in (first, second))
    common = sorted(left.keys() & right.keys())
    if len(left) == len(first) and len(right) == len(second) and len(common) > max(len(left), len(right)) / 2:
        return [left[p] for p in common], [right[p] for p in common], True
    return first, second, False


def _opened(change: Interval | None, first: Sequence[Sample], second: Sequence[Sample]) -> Interval | None:
    """Remove the bound of the interval on the side where the true value may exceed the observed one."""
    if change is None:
        return None
    low = -math.inf if any(s.bounded for s in first) else change.low
    high = math.inf if any(s.bounded for s in second) else change.high
    return replace(change, low=low, high=high)


def _improvement(key: Key, change: Interval | None) -> Interval | None:
    lower_is_better = m.METRICS[key.metric].lower_is_better
    return change.negated() if change is not None and lower_is_better else change


def _answered(found: Contrast, gain: Interval, limit: float) -> Contrast:
    unit = found.key.unit
    neutral = m.METRICS[found.key.metric].lower_is_better is None
    span = f"between {_signed(gain.low, unit)} and {_signed(gain.high, unit)}"
    most = max(-gain.low, gain.high, 0.0)
    if most <= limit:
        none = most < ROUNDING
        size = "no trial differs" if none else f"the difference is at most {format_value(most, unit)}"
        text, equivalent = f"indistinguishable: {size}", not (none and unit == "count")
        return replace(found, answer=INDISTINGUISHABLE, text=text, equivalent=equivalent)
    if gain.low <= 0 <= gain.high:
        text = f"indistinguishable: the {'difference' if neutral else 'improvement'} is {span}"
        return replace(found, answer=INDISTINGUISHABLE, text=text)
    more, less = (HIGHER, LOWER) if neutral else (BETTER, WORSE)
    answer = more if gain.low > 0 else less
    share = f" ({abs(found.relative.value) * 100:.0f} %)" if found.relative else ""
    low, high = (_size(value, unit) for value in sorted((abs(gain.low), abs(gain.high))))
    span = f", between {low} and {high}" if low != high else ""
    text = f"{answer} by {format_value(abs(gain.value), unit)}{share}{span}"
    return replace(found, answer=answer, text=text)


def _too_few(key: Key, first: Sequence[Sample], second: Sequence[Sample], needed: int) -> str:
    """Say what was measured, and that it may be due to chance."""
    shown = f"{_mean(key, second)} against {_mean(key, first)}"
    counts = " and ".join(dict.fromkeys(str(len(group)) for group in (first, second)))
    trials = "trial" if counts == "1" else "trials"
    each = " each" if len(first) == len(second) else ""
    return f"unknown: {shown} in {counts} {trials}{each}; an interval needs {needed}"


def _mean(key: Key, group: Sequence[Sample]) -> str:
    """Return the mean of samples that all have a value. If a trial did not recover, it is only a lower
    bound."""
    least = "at least " if any(s.bounded for s in group) else ""
    return least + format_value(sum(s.value or 0.0 for s in group) / len(group), key.unit)


def _size(value: float, unit: str) -> str:
    return format_value(value, unit) if math.isfinite(value) else "more than was observed"


def _signed(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "an unknown value"
    return ("−" if value < 0 else "") + format_value(abs(value), unit)


# ---- Expectations


def meets(expectation: Expectation, found: Contrast) -> bool | None:
    """Return whether the contrast meets the expectation (`improves_by` or `within`). None if it does not
    decide that."""
    asked = expectation.within if expectation.improves_by is None else expectation.improves_by
    margin, relative = parse_margin(str(asked), found.key.unit)
    gain = found.relative if relative else found.improvement
    if gain is None:
        return None
    if expectation.improves_by is not None:
        if gain.low >= margin and gain.low > 0:
            return True
        return False if gain.high < margin or gain.high <= 0 else None
    if found.key.unit == "count" and gain.low == gain.high == 0:
        return None  # equal counts in a few trials do not bound a rare difference
    if -margin <= gain.low and gain.high <= margin:
        return True
    return False if gain.low > margin or gain.high < -margin else None


def undecided(expectation: Expectation, found: Contrast) -> str:
    """Return the reason why `meets` does not decide."""
    share = expectation.asked_share and found.relative is None and found.improvement is not None
    return found.reason or (m.NO_SHARE if share else m.INDISTINGUISHABLE)


# ---- Tables


class TableMetric(Struct, frozen=True, rename="camel"):
    """A compared metric, as comparison.json has it."""

    title: str
    unit: str = ""
    metric: str = ""
    quantile: float | None = None
    phase: str = ""
    lower_is_better: bool | None = None

    @classmethod
    def of(cls, key: Key) -> Self:
        lower = m.METRICS[key.metric].lower_is_better
        return cls(key.title, key.unit, key.metric, key.quantile, key.phase, lower)


class Mean(Struct, frozen=True, kw_only=True, rename="camel"):
    """A group's mean of one metric, with its interval."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    values: tuple[float | None, ...] = ()
    """The value of each trial."""
    at_least: bool = False
    """A trial had not recovered, so the mean is a lower bound."""
    reason: str = ""
    text: str


class GroupMeans(Struct, frozen=True):
    name: str
    trials: int
    values: tuple[Mean, ...]
    """One for each metric of the table."""


class Comparison(Struct, frozen=True, kw_only=True, rename="camel"):
    """The means of each group, and each group compared with another one, as comparison.json has them."""

    metrics: tuple[TableMetric, ...] = ()
    groups: tuple[GroupMeans, ...] = ()
    contrasts: tuple[Contrast, ...] = ()
    summary: tuple[str, ...] = ()
    confidence: float = CONFIDENCE
    """The confidence of all contrasts together, and of each mean."""
    confidence_each: float = CONFIDENCE
    """The confidence of each contrast."""
    matters: float = MATTERS

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the comparison with this content, without its contrasts. Raises ValueError, which names the field."""
        return convert({**data, "contrasts": ()}, cls)

    def to_json(self) -> dict[str, Any]:
        fields = to_builtins(replace(self, contrasts=()))
        return {"schema": SCHEMA, **fields, "contrasts": [found.to_json() for found in self.contrasts]}


def comparison(
    groups: Sequence[Group],
    *,
    keys: Sequence[Key] = HEADLINE,
    also: Sequence[Key] = (),
    each_with_previous: bool = False,
    matters: float = MATTERS,
) -> Comparison:
    """Compare each group with the first one (or the previous one).

    All differences together have a confidence of CONFIDENCE (Bonferroni). Each mean has that confidence by
    itself. `also`: metrics that are shown where the groups differ, but not compared, because each comparison
    widens the intervals of the others."""
    shown = [key for key in keys if any(s.value is not None for g in groups for s in g.samples(key))]
    listed = [*shown, *_differing(groups, [key for key in also if key not in keys], shown)]
    pairs = [(groups[i - 1] if each_with_previous else groups[0], groups[i]) for i in range(1, len(groups))]
    each = samplesize.corrected(len(shown) * len(pairs))
    contrasts = [
        contrast(key, (a.name, a.samples(key)), (b.name, b.samples(key)), confidence=each, matters=matters)
        for a, b in pairs
        for key in shown
    ]
    return Comparison(
        metrics=tuple(map(TableMetric.of, listed)),
        groups=tuple(_group(g, listed) for g in groups),
        contrasts=tuple(contrasts),
        summary=tuple(_summaries([(a.name, b.name) for a, b in pairs], contrasts)),
        confidence_each=each,
        matters=matters,
    )


def judged_keys(expectations: Sequence[Expectation]) -> list[Key]:
    """Return the numeric metrics that these expectations judge, without repetitions and in their order."""
    found = [
        Key(e.metric, e.quantile if m.METRICS[e.metric].quantiles else None, e.phase)
        for e in expectations
        if not e.problem and m.METRICS[e.metric].unit != "text"
    ]
    return list(dict.fromkeys(found))


def _differing(groups: Sequence[Group], keys: Sequence[Key], shown: Sequence[Key]) -> list[Key]:
    """Return the first ALSO_MAX metrics whose means, as they are shown, differ between the groups. A phase that repeats the row of a
    metric in `shown` is left out: without a fault, the observation is the whole time."""

    def texts(key: Key) -> tuple[str, ...]:
        return tuple(_value(g.samples(key), key).text for g in groups)

    known = {(key.metric, key.quantile, texts(key)) for key in shown}
    found = [
        key for key in keys if len({*texts(key)}) > 1 and (key.metric, key.quantile, texts(key)) not in known
    ]
    return found[:ALSO_MAX]


def _group(group: Group, keys: Sequence[Key]) -> GroupMeans:
    return GroupMeans(group.name, len(group.trials), tuple(_value(group.samples(key), key) for key in keys))


def _value(samples: Sequence[Sample], key: Key) -> Mean:
    values = [s.value for s in samples if s.value is not None]
    whole = len(values) == len(samples) and bool(values)
    interval = statistics.mean_interval(values, confidence=CONFIDENCE, seed=SEED) if whole else None
    mean = sum(values) / len(values) if whole else None
    bounded = any(s.bounded for s in samples)
    text = "–" if mean is None else ("at least " if bounded else "") + format_value(mean, key.unit)
    if interval and not bounded:
        ends = [format_value(value, key.unit) for value in (interval.low, interval.high)]
        text = with_interval(text, *ends) if ends[0] != ends[1] else text
    return Mean(
        mean=mean,
        low=None if interval is None else interval.low,
        high=None if interval is None or bounded else interval.high,
        values=tuple(s.value for s in samples),
        at_least=bounded,
        reason=next((s.reason for s in samples if s.reason), ""),
        text=text,
    )


def with_interval(value: str, low: str, high: str) -> str:
    """Return `1.91 [1.87, 1.94] s`, or `1.02 s [980 ms, 1.06 s]` if the units differ."""
    numbers, units = zip(*(text.rpartition(" ")[::2] for text in (value, low, high)), strict=True)
    if len(set(units)) > 1 or not all(numbers):
        return f"{value} [{low}, {high}]"
    return f"{numbers[0]} [{numbers[1]}, {numbers[2]}] {units[0]}"


def _summaries(pairs: Sequence[tuple[str, str]], contrasts: Sequence[Contrast]) -> list[str]:
    """Return one sentence about each pair of groups, or one for all pairs if there are too few trials."""
    few = [c.trials for c in contrasts if c.reason == m.NOT_ENOUGH_TRIALS]
    if few and all(c.answer == UNKNOWN for c in contrasts):
        fewest, needed = min(few), samplesize.trials_for(contrasts[0].confidence)
        there = (
            f"Differences may be chance: {counted(fewest, 'trial')} {'is' if fewest == 1 else 'are'} too few."
        )
        if (alone := samplesize.trials_for(CONFIDENCE)) == needed:
            return [f"{there} A confidence interval needs {needed}."]
        # an expectation is judged by its own interval, so it needs fewer trials than this table
        together = f"Confidence intervals for all {len(contrasts)} differences need {needed} trials"
        return [f"{there} {together}; an expectation with `versus` needs {alone}."]
    return [_summary(reference, name, contrasts) for reference, name in pairs]


def _summary(reference: str, name: str, contrasts: Sequence[Contrast]) -> str:
    """Return the result for two groups in one sentence."""
    own = [c for c in contrasts if c.reference == reference and c.name == name]
    decided = [f"{c.key.title}: {c.text}" for c in own if c.answer not in (INDISTINGUISHABLE, UNKNOWN)]
    if decided:
        return f"{name} against {reference}: {'; '.join(decided)}"
    known = [c for c in own if c.answer == INDISTINGUISHABLE]
    if known:
        most = "" if all(c.equivalent for c in known) else ", within the intervals of the table"
        return (
            f"{name} and {reference} are indistinguishable in {', '.join(c.key.title for c in known)}{most}"
        )
    why = own[0].text if own else m.reason_text(m.NO_DATA)
    return f"{name} against {reference}: {why}"
