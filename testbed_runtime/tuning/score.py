"""The table of a study, its Pareto front and its best row, from the verdicts and recoveries of its runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from testbed_runtime.api.kinds import Objective, TuningStudySpec
from testbed_runtime.api.validate_kinds import limit_of
from testbed_runtime.core.judgement import comparison, detector
from testbed_runtime.core.judgement.detector import Quality
from testbed_runtime.core.judgement.expectations import PHASE_NAMES
from testbed_runtime.core.judgement.metrics import METRICS, NOT_RECOVERED, parse_quantile
from testbed_runtime.core.judgement.quantities import DASH, apart, counted, format_value, seconds
from testbed_runtime.core.judgement.recovery import Margin, TrialRecovery
from testbed_runtime.core.judgement.samplesize import CONFIDENCE
from testbed_runtime.core.judgement.statistics import Interval, mean_interval
from testbed_runtime.core.judgement.verdict import Judged, RunVerdict, Verdict, most_severe
from testbed_runtime.core.waits import PRODUCT, named_today
from testbed_runtime.tuning.grid import CURRENT, DEFAULT, PlannedRun, Row, rows

MATTERS = comparison.MATTERS
"""Values that differ by less than this share are equal when the best row is chosen."""

NO_ROW = "No row passes: nothing is recommended."
HOW_TO_KEEP = {DEFAULT: "; leave the options of the study unset", CURRENT: "; nothing has to be changed"}
"""A hint for the user if a reference is the best."""

RULED_OUT = 0.5
"""After one trial, a row gets no further trials if another row is better by this share in one objective and as good in the others."""


class Cost(Struct, frozen=True, kw_only=True):
    """The price of an option's value, and how close a wait came to its limit."""

    price_s: float = 0.0
    """Seconds of outage that the value decided (waits that expired or fired), per trial."""
    expired: int = 0
    """Number of those waits."""
    margin: Margin | None = None
    """The wait that came closest to the limit without reaching it."""

    @property
    def text(self) -> str:
        """The cost in words: `22.0 s of 22.7 s used, 0.7 s left`, `cost 68.1 s (3 waits)`."""
        found = []
        if self.expired:
            found.append(f"cost {seconds(self.price_s)} ({counted(self.expired, 'wait')})")
        if self.margin is not None:
            limit, used = apart(self.margin.budget_s, self.margin.waited_s)
            limited = f"may die from {limit} on" if self.margin.exceeded else f"dies at {limit}"
            found.append(f"{limited}, used {used}")
        return ", ".join(found)


def costs(keys: Sequence[str], recoveries: Sequence[Mapping[str, Any]]) -> dict[str, Cost]:
    """Return the cost of each option that some wait names. `recoveries`: the content of recovery.json of each run."""
    trials = [trial for run in recoveries for trial in _with_costs(run)]
    found: dict[str, Cost] = {}
    for key in keys:
        spans = [span for trial in trials for span in trial.with_start]
        prices = [p for span in spans for p in span.prices if _names(p.option, named_today(key))]
        margins = [m for span in spans for m in span.margins if _names(m.option, named_today(key))]
        if prices or margins:
            found[key] = Cost(
                price_s=sum(p.seconds for p in prices) / len(trials),
                expired=sum(p.count for p in prices),
                margin=min(margins, key=lambda m: m.left_s, default=None),
            )
    return found


def _with_costs(run: Mapping[str, Any]) -> list[TrialRecovery]:
    """Return the trials of a run that had something to recover from, unlike control trials. If there are none, return all trials, because
    their first start may have waited."""
    known = [TrialRecovery.from_json(value) for value in run.values()]
    return [trial for trial in known if trial.recoveries] or known


def _names(text: str, key: str) -> bool:
    """Return whether an owner's option text names the option: alone, or in a product such as `interval × threshold`."""
    return key in named_today(text).split(PRODUCT)


class Outcome(Struct, frozen=True):
    """The result of one run. `recovery` is the content of recovery.json."""

    run: PlannedRun
    verdict: RunVerdict
    recovery: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    """The faults of its scenario."""


class Value(Struct, frozen=True):
    """An objective in one row: the mean over the trials of the scenario where it is worst."""

    number: float | None = None
    text: str = DASH
    interval: Interval | None = None
    bounded: bool = False
    """Whether some trial had not recovered, so that the true value is worse."""
    samples: tuple[comparison.Sample, ...] = ()
    """The values of every trial of every scenario."""


class Line(Struct, frozen=True):
    """One row of the table."""

    row: Row
    verdict: Verdict | None
    """The most severe verdict of its runs; None until one has finished."""
    objectives: tuple[Value, ...]
    runs: tuple[str, ...]
    whole: bool
    """Whether every scenario of the row has run."""
    best: bool = False
    reason: str = ""
    """Which fault broke which expectation in which scenario; empty if all runs pass."""
    front: bool = False
    """Whether the row is on the Pareto front: no row is better in one objective and at least as good in the others."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """Option → its price and its margin."""
    detector: Quality | None = None

    @property
    def values(self) -> tuple[float | None, ...]:
        return tuple(v.number for v in self.objectives)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(v.text for v in self.objectives)

    @property
    def eligible(self) -> bool:
        """Whether it may be recommended: complete, passed, every objective measured and recovered."""
        measured = all(v.number is not None and not v.bounded for v in self.objectives)
        return self.whole and self.verdict is Verdict.PASS and measured


def table(
    spec: TuningStudySpec, outcomes: Sequence[Outcome], detectors: Mapping[int, Quality] | None = None
) -> tuple[Line, ...]:
    """Return every row in order. The front and the best row are marked among those that pass."""
    found = detectors or {}
    lines = [
        _line(spec, row, [o for o in outcomes if o.run.row.number == row.number], found.get(row.number))
        for row in rows(spec)
    ]
    lines = [replace(line, front=_on_front(spec.objectives, line, lines)) for line in lines]
    chosen = best(spec, lines)
    return tuple(replace(line, best=chosen is not None and line.row == chosen.row) for line in lines)


def best(spec: TuningStudySpec, lines: Sequence[Line]) -> Line | None:
    """Return the row to recommend, or None. It is within the limits of the objectives.

    Of the grid, only rows that are no worse than Flink's defaults in any objective count, if there are such rows. Among them the
    first objective decides, between equal ones (MATTERS) the next, then the row's number. A reference that is better than the
    row found in this way, by the same rule, is recommended instead."""
    return next(iter(ranked(spec, lines)), None)


def ranked(spec: TuningStudySpec, lines: Sequence[Line]) -> list[Line]:
    """Return the rows that may be recommended, the best first."""
    left = [line for line in lines if line.eligible and _within(spec.objectives, line)]
    found = []
    while (first := _first(spec.objectives, left, _default(lines))) is not None:
        found.append(first)
        left.remove(first)
    return found


def _first(objectives: Sequence[Objective], candidates: list[Line], default: Line | None) -> Line | None:
    no_worse = [c for c in candidates if default is None or not _worse(objectives, c, default)]
    rows = [c for c in no_worse if c.row.in_grid] or [c for c in candidates if c.row.in_grid]
    first = _leading(objectives, rows)
    if first is None:
        return _leading(objectives, [c for c in candidates if not c.row.in_grid])
    references = no_worse if first in no_worse else candidates
    return _leading(objectives, [first, *(c for c in references if not c.row.in_grid)])


def _leading(objectives: Sequence[Objective], candidates: list[Line]) -> Line | None:
    """Return the row that is better in the first objective in which they differ; of equal rows the one with the smallest number."""
    for index, objective in enumerate(objectives):
        losses = [_loss(objective, c.values[index]) for c in candidates]
        most = min(losses, default=0.0)
        most += MATTERS * abs(most)
        candidates = [c for c, loss in zip(candidates, losses, strict=True) if loss <= most]
    return min(candidates, key=lambda line: line.row.number, default=None)


def _default(lines: Sequence[Line]) -> Line | None:
    """Return the row with Flink's defaults, if it may be recommended."""
    return next((line for line in lines if line.row.reference == DEFAULT and line.eligible), None)


def survivors(spec: TuningStudySpec, lines: Sequence[Line]) -> set[int]:
    """Return the numbers of the rows that one trial does not rule out: the references, rows that one trial cannot judge, and
    rows that no other row beats by far."""
    return {
        line.row.number
        for line in lines
        if line.row.reference
        or line.verdict is Verdict.INCONCLUSIVE
        or _on_front(spec.objectives, line, lines, RULED_OUT)
    }


def _within(objectives: Sequence[Objective], line: Line) -> bool:
    """Return whether every objective is within its limit."""
    for objective, value in zip(objectives, line.values, strict=True):
        limit = limit_of(objective)
        if limit is not None and _loss(objective, value) > _loss(objective, limit):
            return False
    return True


def _worse(objectives: Sequence[Objective], line: Line, than: Line, matters: float = MATTERS) -> bool:
    """Return whether some objective is worse than in the other row, by more than this share."""
    for objective, value, other in zip(objectives, line.values, than.values, strict=True):
        least = _loss(objective, other)
        if _loss(objective, value) - least > matters * abs(least):
            return True
    return False


def _loss(objective: Objective, value: float | None) -> float:
    """Return the value of an objective so that less is better. A missing one is the worst."""
    if value is None:
        return float("inf")
    return value if objective.direction == "min" else -value


def _on_front(
    objectives: Sequence[Objective], line: Line, lines: Sequence[Line], matters: float = MATTERS
) -> bool:
    if not line.eligible:
        return False
    return not any(
        _worse(objectives, line, other, matters) and not _worse(objectives, other, line, 0.0)
        for other in lines
        if other.eligible and other is not line
    )


# ---- one row


def _line(spec: TuningStudySpec, row: Row, outcomes: Sequence[Outcome], quality: Quality | None) -> Line:
    verdict = most_severe(o.verdict.verdict for o in outcomes) if outcomes else None
    bad = next((o for o in outcomes if o.verdict.verdict is verdict is not Verdict.PASS), None)
    return Line(
        row=row,
        verdict=verdict,
        objectives=tuple(_value(objective, outcomes, quality) for objective in spec.objectives),
        runs=tuple(o.run.name for o in outcomes),
        whole=len(outcomes) == len(spec.scenarios),
        reason=_why(bad) if bad else "",
        costs=costs([option.key for option in spec.options], [o.recovery for o in outcomes]),
        detector=quality,
    )


def _why(outcome: Outcome) -> str:
    """Name the scenario, its faults, and what failed first."""
    names = ", ".join(f"`{name}`" for name in outcome.faults)
    faults = f" ({'faults' if len(outcome.faults) > 1 else 'fault'} {names})" if names else ""
    return f"{outcome.run.scenario}{faults}: {outcome.verdict.summary}"


def _value(objective: Objective, outcomes: Sequence[Outcome], quality: Quality | None) -> Value:
    if objective.metric in detector.METRICS:
        return _computed(objective.metric, quality)
    by_scenario = [_items(objective, outcome.verdict) for outcome in outcomes]
    items = [item for found in by_scenario for item in found]
    if not items or any(item.value is None for item in items):
        return Value()

    def mean(found: Sequence[Judged]) -> float:
        return sum(_values(found)) / len(found)

    choose = max if objective.direction == "min" else min
    shown = choose(filter(None, by_scenario), key=mean)
    bounded = any(item.at_least for item in items)
    interval = mean_interval(_values(shown), confidence=CONFIDENCE, seed=comparison.SEED)
    samples = [
        comparison.Sample(
            pair=number * 1000 + i,
            value=item.value,
            reason=NOT_RECOVERED if item.at_least else "",
        )
        for number, found in enumerate(by_scenario)
        for i, item in enumerate(found)
    ]
    text = _text(objective, mean(shown), shown, interval, bounded)
    return Value(mean(shown), text, interval, bounded, tuple(samples))


def _values(items: Sequence[Judged]) -> list[float]:
    return [item.value for item in items if item.value is not None]


def _computed(metric: str, quality: Quality | None) -> Value:
    name, unit, _ = detector.METRICS[metric]
    if quality is None:
        return Value()
    number = float(getattr(quality, name))
    return Value(number, format_number(number, unit))


def format_number(number: float, unit: str) -> str:
    """Format a value of a detector metric."""
    if unit == "per day":
        return f"{number:.3g} per day"
    return f"{number * 100:.6g} %" if unit == "ratio" else format_value(number, unit)


def _text(
    objective: Objective,
    mean: float,
    items: Sequence[Judged],
    interval: Interval | None,
    bounded: bool,
) -> str:
    if len(items) == 1:
        return items[0].measured or str(mean)
    unit = METRICS[objective.metric].unit
    text = ("at least " if bounded else "") + format_value(mean, unit)
    if interval is None or bounded:
        return text
    low, high = format_value(interval.low, unit), format_value(interval.high, unit)
    return text if low == high else f"{text} [{low}, {high}]"


def _items(objective: Objective, verdict: RunVerdict) -> list[Judged]:
    wanted, phase = quantile_of(objective), PHASE_NAMES.get(objective.phase or "", objective.phase or "")
    found = {
        item.trial: item  # two bounds judge one value
        for item in verdict.judged
        if (item.metric, item.quantile, item.phase) == (objective.metric, wanted, phase) and not item.implied
    }
    return list(found.values())


def quantile_of(objective: Objective) -> float | None:
    """Return the objective's quantile as a number: 0.99 for `0.99`, `p99` and `99 %`."""
    return parse_quantile(objective.quantile) if objective.quantile else None


# ---- against the references


def against(spec: TuningStudySpec, line: Line, reference: Line) -> Iterator[str]:
    """Say for each objective how the line differs from a reference, over all trials of all scenarios in pairs."""
    for index, objective in enumerate(spec.objectives):
        own, other = line.objectives[index], reference.objectives[index]
        name = name_of(objective)
        both = f"{own.text} instead of {other.text}" if own.text != other.text else f"{own.text} in both"
        if objective.metric in detector.METRICS or own.number is None or other.number is None:
            yield f"{name}: {both}"
            continue
        key = comparison.Key(objective.metric, quantile_of(objective), objective.phase or "")
        made = comparison.contrast(key, (reference.row.text, other.samples), (line.row.text, own.samples))
        yield f"{name}: {both if made.answer == comparison.UNKNOWN else made.text}"


def conclusion(spec: TuningStudySpec, lines: Sequence[Line]) -> list[str]:
    """Return the answer of the study in sentences."""
    chosen = next((line for line in lines if line.best), None)
    if chosen is None:
        passing = any(line.eligible and line.row.in_grid for line in lines)
        if passing:
            return ["No row is within the limits of the objectives: nothing is recommended."]
        reasons = Counter(line.reason for line in lines if line.reason).most_common(1)
        return [
            NO_ROW,
            *(f"{count} of {len(lines)} rows: {reason}" for reason, count in reasons),
        ]
    found = [f"best: {chosen.row.full_text}{HOW_TO_KEEP.get(chosen.row.reference, '')}"]
    references = {line.row.reference: line for line in lines if line.row.reference}
    for name in (DEFAULT, CURRENT):
        other = references.get(name)
        if other is None or other.best:
            continue
        if other.verdict is not Verdict.PASS:
            found.append(f"{other.row.text}: {other.verdict or DASH}: {other.reason}")
        elif other.eligible:
            found.append(f"compared with {other.row.text}: {'; '.join(against(spec, chosen, other))}")
    default = references.get(DEFAULT)
    if default is not None and default.eligible and not _beats(spec.objectives, lines, default):
        found.append(
            "No row of the grid is better than Flink's defaults in one objective without being worse in another. "
            "The rows of the front show what each choice costs."
        )
    return found


def _beats(objectives: Sequence[Objective], lines: Sequence[Line], default: Line) -> bool:
    """Return whether some row of the grid is better than the defaults in one objective and not worse in any."""
    return any(
        line.eligible
        and line.row.in_grid
        and _worse(objectives, default, line)
        and not _worse(objectives, line, default)
        for line in lines
    )


def name_of(objective: Objective) -> str:
    """Return what is measured, such as `latency p99 fault`."""
    return " ".join(filter(None, (objective.metric, objective.quantile, objective.phase)))


def title(objective: Objective) -> str:
    """Return the title of a column, such as `latency p99 fault (min)`."""
    return f"{name_of(objective)} ({objective.direction})"
