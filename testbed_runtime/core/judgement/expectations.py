"""One item of `expect`: the bound on a metric, whether a row satisfies it, and how both are worded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.errors import nearest
from testbed_runtime.core.judgement.metrics import (
    LOWER_BOUNDS,
    METRICS,
    MILESTONE_PHASES,
    QUANTILES,
    TRIAL_PHASES,
    Metric,
    MetricRow,
    is_phase,
    parse_bound,
    parse_quantile,
    trials_needed,
)
from testbed_runtime.core.judgement.quantities import format_value, more_exact
from testbed_runtime.core.judgement.samplesize import corrected, trials_for

AT_LEAST_ONCE = "at-least-once"
"""The `text` of a duplicates row when the sinks guarantee no more. Duplicates alone are no violation then."""
RATIO_MOST = 10.0
"""A larger bound on a ratio that can exceed 1 (latency against its baseline) is probably meant as a
percentage."""
NEEDS_BOUND = "set either `equals`, or `min`, `max` or both"
PHASE_NAMES = {"before": "baseline", "during": "fault", "after": "observation"}
"""Other words for a phase, with the phase's name."""


class Expectation(Struct, frozen=True, kw_only=True):
    """An expectation: `min`, `max` (or both) or `equals`, as written. In text metrics, `*` in `equals`
    matches any text.

    `phase` is a phase that `metrics.is_phase` knows. Empty stands for the time from the first fault on."""

    metric: str
    min: str | None = None
    max: str | None = None
    equals: str | None = None
    quantile: float | None = None
    phase: str = ""
    versus: str = ""
    """The variant to compare with. The bound on the difference of the means is then `improves_by` or
    `within`."""
    improves_by: str | None = None
    within: str | None = None
    problem: str = ""
    """Why the expectation cannot be judged; empty if it can."""
    problem_field: str = ""
    """The field of a document that has the problem. Empty if the problem is in no single field."""

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> Expectation:
        """Build an expectation from an `expect` item of a scenario. Never raises; `problem` says what is wrong with it."""
        quantile, problem = None, ("", "")
        try:
            if item.get("quantile") is not None:
                quantile = parse_quantile(item["quantile"])
        except ValueError as error:
            problem = ("quantile", str(error))
        phase = str(item.get("phase") or "")
        draft = cls(
            metric=str(item.get("metric", "")),
            min=_text(item.get("min")),
            max=_text(item.get("max")),
            equals=_text(item.get("equals")),
            quantile=quantile,
            phase=PHASE_NAMES.get(phase, phase),
            versus=str(item.get("versus") or ""),
            improves_by=_text(item.get("improves_by")),
            within=_text(item.get("within")),
        )
        field, text = problem if problem[1] else draft.check()
        return replace(draft, problem=text, problem_field=field)

    def check(self) -> tuple[str, str]:
        """Return the wrong field, or an empty string for several fields, and the problem in words. Both are
        empty if the expectation is valid."""
        info = METRICS.get(self.metric)
        if info is None:
            return "metric", f"unknown metric {self.metric!r}"
        compared = bool(self.versus) or self.improves_by is not None or self.within is not None
        if compared and (problem := self._check_comparison())[1]:
            return problem
        if not compared and (self.equals is None) == (self.min is None and self.max is None):
            return "", NEEDS_BOUND
        if self.phase and not info.phased:
            return "phase", f"{self.metric} has no phases: leave it out"
        if self.phase and not is_phase(self.phase):
            known = ", ".join((*TRIAL_PHASES, *MILESTONE_PHASES))
            return "phase", f"unknown phase {self.phase!r}: use one of {known}"
        if info.quantiles and self.quantile not in QUANTILES:
            return "quantile", f"{self.metric} needs a quantile: use one of {', '.join(map(str, QUANTILES))}"
        return ("", "") if compared else self._check_bounds(info.unit)

    def _check_comparison(self) -> tuple[str, str]:
        info = METRICS[self.metric]
        if not self.versus:
            return "versus", "`improvesBy` and `within` need `versus`: name the variant to compare with"
        if (self.improves_by is None) == (self.within is None):
            return "", "with `versus`, set either `improvesBy` or `within`"
        if (self.min, self.max, self.equals) != (None, None, None):
            return "", "with `versus`, leave out `min`, `max` and `equals`: write them in another expectation"
        if info.unit == "text":
            return "versus", f"{self.metric} is a text, which has no mean to compare"
        if info.lower_is_better is None and self.within is None:
            problem = f"{self.metric} has no better direction, so it cannot improve: write within instead"
            return "improvesBy", problem
        if self.quantile is not None and not info.quantiles:
            problem = (
                f"`versus` compares the means over trials, so {self.metric} takes no quantile: leave it out"
            )
            return "quantile", problem
        field, margin = (
            ("within", self.within) if self.improves_by is None else ("improvesBy", self.improves_by)
        )
        try:
            parse_margin(str(margin), info.unit)
        except ValueError as error:
            return field, str(error)
        return "", ""

    def _check_bounds(self, unit: str) -> tuple[str, str]:
        if unit == "text":
            if self.equals is None or self.quantile is not None:
                return "", f"{self.metric} is a text: use `equals`, without a quantile"
            return "", ""
        values = []
        for field, bound in self._bounds():
            try:
                values.append(parse_bound(bound, unit))
            except ValueError as error:
                return field, str(error)
        if len(values) > 1 and values[0] > values[1]:
            return "", f"no value is at least {self.min} and at most {self.max}: swap `min` and `max`"
        return "", ""

    def _bounds(self) -> list[tuple[str, str]]:
        """Return the bounds that are set, with their fields."""
        named = (("min", self.min), ("max", self.max), ("equals", self.equals))
        return [(field, bound) for field, bound in named if bound is not None]

    def doubts(self, trials: int, *, looks: int = 1) -> list[str]:
        """Return what is valid but probably means something else, each with its field: a ratio far above 1, a
        duration without a unit, a value that the metric never has, a quantile or a comparison over too few of
        the variant's trials. `looks`: how often a sequential comparison looks."""
        info = METRICS.get(self.metric)
        if info is None or self.problem:
            return []
        there = "there is 1" if trials == 1 else f"there are {trials}"
        inconclusive = f"{there}: the answer will be Inconclusive"
        found = []
        if self.over_trials and trials < (needed := trials_needed(self.quantile or 0)):
            p = f"p{(self.quantile or 0) * 100:g}"
            hint = f"write trials: {needed}, or leave the quantile out"
            found.append(f"quantile: {p} over trials needs {needed}, {inconclusive} ({hint})")
        if self.versus and trials < (needed := trials_for(corrected(looks))):
            often = f" with {looks} looks" if looks > 1 else ""
            hint = f"write trials: {needed} or more"
            found.append(f"versus: a comparison{often} needs {needed} trials, {inconclusive} ({hint})")
        most = self.improves_by
        if most and info.lower_is_better and self.asked_share and parse_margin(most, "ratio")[0] > 1:
            found.append(f"improvesBy: {most} is impossible: a value of 0 is an improvement by 100 %")
        for field, bound in self._bounds():
            found += [f"{field}: {doubt}" for doubt in _doubts(info, field, bound)]
        return found

    @property
    def over_trials(self) -> bool:
        """Whether the quantile is taken over trials."""
        info = METRICS.get(self.metric)
        return self.quantile is not None and info is not None and not info.quantiles

    @property
    def asked_share(self) -> bool:
        """Whether the bound on a difference is a share of the other variant's mean."""
        return str(self.within if self.improves_by is None else self.improves_by).strip().endswith("%")

    @property
    def asked(self) -> str:
        """The bound in words: `at most 5.5 s`."""
        if self.versus:
            if self.improves_by is not None:
                return f"better than {self.versus} by at least {self.improves_by}"
            return f"within {self.within} of {self.versus}"
        if self.equals is not None:
            return f"equals {self._bound(self.equals)}" if self.equals else "is empty"
        parts = [f"at least {self._bound(self.min)}"] if self.min is not None else []
        return " and ".join([*parts, f"at most {self._bound(self.max)}"] if self.max is not None else parts)

    def _bound(self, written: str) -> str:
        """Return a bound as written. A bare number of a metric with a unit gets the unit, as the measured value has."""
        info = METRICS.get(self.metric)
        if info is None or info.unit not in ("records/s", "bytes", "ratio") or not is_number(written):
            return written
        if info.unit == "ratio":
            return f"{float(written) * 100:,.10g} %"
        return format_value(float(written), info.unit)

    @property
    def text(self) -> str:
        """The whole expectation in words: `latency p99 (fault) at most 2 s`."""
        quantile = "" if self.quantile is None else f" p{self.quantile * 100:g}"
        phase = f" ({self.phase})" if self.phase else ""
        return f"{self.metric}{quantile}{phase} {self.asked}"

    def holds(self, row: MetricRow) -> bool | None:
        """Return whether the row satisfies the expectation, or None if the row cannot tell.

        A lower bound can violate a `max` and satisfy a `min`. With any other reason a value can violate the expectation
        but never satisfy it."""
        if METRICS[self.metric].unit == "text":
            return None if row.reason else _matches(str(self.equals), row.text)
        value = row.value
        if value is None:
            return None
        if row.reason in LOWER_BOUNDS:
            return self._holds_bound(value)
        holds = self._holds_value(value)
        return None if holds and row.reason else holds

    def shown(self, row: MetricRow) -> str:
        """Format a row's value beside this expectation, with enough digits to agree with the judgement:
        10.004 s is not at most 10 s."""
        unit = METRICS[self.metric].unit
        if (
            self.versus
            or self.problem
            or unit == "text"
            or not math.isfinite(row.value or 0.0)
            or row.value is None
        ):
            return show(row, self.metric)
        judged = self._holds_value(row.value)
        texts = more_exact(row.value, unit)
        exact = next((t for t in texts if self._holds_value(read_value(t, unit)) is judged), "")
        return _bounded(row, exact) or show(row, self.metric)

    def decided(self, row: MetricRow, clocks_s: float) -> bool:
        """Whether clocks that differ by `clocks_s` cannot change the result of `holds` for the row. A ratio
        of times that differing clocks distort by an unknown share is never decided."""
        info = METRICS[self.metric]
        if not info.clocks or not clocks_s or row.value is None:
            return True
        ends = [replace(row, value=row.value + shift) for shift in (-clocks_s, clocks_s)]
        return info.unit == "s" and len({self.holds(one) for one in (row, *ends)}) == 1

    def _holds_value(self, value: float) -> bool:
        unit = METRICS[self.metric].unit
        if self.equals is not None:
            return abs(value - parse_bound(self.equals, unit)) < 1e-9
        above = self.min is None or value >= parse_bound(self.min, unit)
        return above and (self.max is None or value <= parse_bound(self.max, unit))

    def _holds_bound(self, at_least: float) -> bool | None:
        unit = METRICS[self.metric].unit
        most = self.max if self.equals is None else self.equals
        if most is not None and at_least > parse_bound(most, unit):
            return False
        if most is None and self.min is not None and at_least >= parse_bound(self.min, unit):
            return True
        return None


def _doubts(info: Metric, field: str, bound: str) -> Iterator[str]:
    """Yield the reasons why a bound on this metric is probably a mistake."""
    if info.unit == "text":
        if info.values and bound and not any(_matches(bound, value) for value in info.values):
            # `running` is meant as RUNNING
            meant = next((f"write {v}" for v in info.values if v.lower() == bound.lower()), "")
            hint = meant or nearest(bound, info.values)
            yield f"{info.name} is never {bound} ({hint})"
        return
    value = parse_bound(bound, info.unit)
    if value < 0:
        yield f"{bound} is negative, and no value is (write 0 or more)"
    elif is_number(bound) and info.unit == "ratio" and value > (RATIO_MOST if info.lower_is_better else 1.0):
        yield f"{bound} is {value * 100:,.10g} % (write '{bound} %' or '{value / 100:g}')"
    elif is_number(bound) and info.unit == "s" and value != 0:
        yield f"{bound} has no unit, so it is {bound} s (write '{bound} s' or '{bound} ms')"
    elif value > info.most:  # only shares have a largest value
        yield f"{bound} is more than {info.name} can be (write at most {info.most * 100:g} %)"
    elif field == "equals" and info.whole and value != int(value):
        kind = "0 % or 100 %" if info.unit == "ratio" else "a whole number"
        yield f"{info.name} is never {bound} (write {kind})"


def is_number(text: str) -> bool:
    """Whether a bound is a bare number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def show(row: MetricRow, metric: str) -> str:
    """Format a row's value: `4.62 s`, `95.0 %`, `3`, or its text."""
    unit = METRICS[metric].unit
    if unit == "text":
        return row.text
    return _bounded(row, "" if row.value is None else format_value(row.value, unit))


def _bounded(row: MetricRow, text: str) -> str:
    return f"at least {text}" if text and row.reason in LOWER_BOUNDS else text


def read_value(text: str, unit: str) -> float:
    """Return the value that a reader understands from a formatted value."""
    return parse_bound(text.replace(",", ""), unit)


def parse_margin(text: str, unit: str) -> tuple[float, bool]:
    """Parse the bound of a difference. `20 %` is relative to the other variant's mean, `500 ms` is absolute.
    Return the value and whether it is relative. Raises ValueError."""
    if text.strip().endswith("%"):
        return _at_least_zero(parse_bound(text, "ratio"), text), True
    return _at_least_zero(parse_bound(text, unit), text), False


def _at_least_zero(value: float, text: str) -> float:
    if value < 0:
        raise ValueError(f"{text!r} is negative: write 0 or more, such as 20 %")
    return value
