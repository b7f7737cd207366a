"""Expectations and metrics: what can be asked, the bounds at their edges, and how both are worded."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement.expectations import (
    Expectation,
    is_number,
    parse_margin,
    show,
)
from testbed_runtime.core.judgement.quantities import apart, format_value
from tests.metricrows import metric_row


def item(metric: str, **more: Any) -> Expectation:
    return Expectation.from_item({"metric": metric, **more})


PROBLEMS = [
    ("delivery.lots", {"equals": 0}, "unknown metric 'delivery.lots'"),
    ("recovery.detect", {}, "set either `equals`, or `min`, `max` or both"),
    ("recovery.detect", {"max": "1 s", "equals": "1 s"}, "set either `equals`, or `min`, `max` or both"),
    ("recovery.detect", {"min": "1 s", "equals": "1 s"}, "set either `equals`, or `min`, `max` or both"),
    ("recovery.detect", {"phase": "fault", "max": "1 s"}, "recovery.detect has no phases: leave it out"),
    ("lag.max", {"phase": "warmUp", "max": "1 s"}, "unknown phase 'warmUp': use one of baseline, fault, observation, outage, catch-up, recovered"),
    ("latency", {"max": "1 s"}, "latency needs a quantile: use one of 0.5, 0.9, 0.95, 0.99, 0.999, 1.0"),
    ("latency", {"quantile": "0.42", "max": "1 s"}, "latency needs a quantile: use one of 0.5, 0.9, 0.95, 0.99, 0.999, 1.0"),
    ("recovery.detect", {"quantile": "1.5", "max": "1 s"}, "'1.5' is not a quantile: write 0.99, 99 % or p99"),
    ("recovery.detect", {"quantile": "0", "max": "1 s"}, "'0' is not a quantile: write 0.99, 99 % or p99"),
    ("recovery.detect", {"max": "soon"}, "'soon' is not a valid bound: write a time such as 5.5 s or 200 ms"),
    ("recovery.detect", {"min": "soon"}, "'soon' is not a valid bound: write a time such as 5.5 s or 200 ms"),
    ("failovers.count", {"equals": "one"}, "'one' is not a valid bound: write a number such as 3"),
    ("throughput.goodput", {"min": "fast"}, "'fast' is not a valid bound: write a number such as 20000"),
    ("throughput.relative", {"min": "much"}, "'much' is not a valid bound: write a share such as 0.95 or 95 %"),
    ("job.state", {"max": "RUNNING"}, "job.state is a text: use `equals`, without a quantile"),
    ("job.state", {"equals": "RUNNING", "quantile": "0.5"}, "job.state is a text: use `equals`, without a quantile"),
    ("recovery.detect", {"within": "20 %"}, "`improvesBy` and `within` need `versus`: name the variant to compare with"),
    ("recovery.detect", {"versus": "a", "within": "1 s", "improves_by": "1 s"}, "with `versus`, set either `improvesBy` or `within`"),
    ("recovery.detect", {"versus": "a", "within": "1 s", "min": "1 s"}, "with `versus`, leave out `min`, `max` and `equals`: write them in another expectation"),
    ("delivery.committed", {"versus": "a", "improves_by": "1"}, "delivery.committed has no better direction, so it cannot improve: write within instead"),
    ("job.state", {"versus": "a", "within": "1"}, "job.state is a text, which has no mean to compare"),
    ("latency", {"versus": "a", "within": "1 s"}, "latency needs a quantile: use one of 0.5, 0.9, 0.95, 0.99, 0.999, 1.0"),
    ("recovery.detect", {"versus": "a", "within": "1 s", "quantile": "0.5"}, "`versus` compares the means over trials, so recovery.detect takes no quantile: leave it out"),
    ("recovery.detect", {"versus": "a", "within": "-1 s"}, "'-1 s' is negative: write 0 or more, such as 20 %"),
    ("recovery.detect", {"versus": "a", "within": "-1 %"}, "'-1 %' is negative: write 0 or more, such as 20 %"),
    ("job.state", {"equals": "RUNNING"}, ""),
    ("recovery.detect", {"min": "1 s"}, ""),
    ("recovery.detect", {"max": "1 s", "min": "0 s"}, ""),
    ("recovery.detect", {"quantile": "1", "max": "1 s"}, ""),
    ("latency", {"quantile": "p99.9", "phase": "outage/kill", "max": "1 s"}, ""),
    ("latency", {"quantile": "p99", "versus": "a", "within": "0 s"}, ""),
    ("delivery.committed", {"versus": "a", "within": "1 %"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("metric", "more", "problem"), PROBLEMS)
def test_an_expectation_names_its_problem_or_has_none(metric: str, more: dict[str, Any], problem: str):
    """The text says what to write instead."""
    assert item(metric, **more).problem == problem


@pytest.mark.parametrize(
    ("metric", "more", "text"),
    [
        ("latency", {"quantile": "p99", "phase": "during", "max": "2 s"}, "latency p99 (fault) at most 2 s"),
        ("lag.max", {"phase": "before", "min": "0 s", "max": "1 s"}, "lag.max (baseline) at least 0 s and at most 1 s"),
        ("lag.max", {"phase": "after", "min": "1 s"}, "lag.max (observation) at least 1 s"),
        ("job.failure", {"equals": ""}, "job.failure is empty"),
        ("throughput.goodput", {"phase": "fault", "min": "1600", "max": "2000 records/s"},
         "throughput.goodput (fault) at least 1,600 records/s and at most 2000 records/s"),
        ("throughput.relative", {"min": "0.95"}, "throughput.relative at least 95 %"),
        ("latency.relative-to-control", {"quantile": "p99", "max": "12.5"}, "latency.relative-to-control p99 at most 1,250 %"),
        ("throughput.relative", {"min": "0.99999", "max": "120 %"}, "throughput.relative at least 99.999 % and at most 120 %"),
        ("job.state", {"equals": "RUNNING"}, "job.state equals RUNNING"),
        ("recovery.detect", {"versus": "a", "improves_by": "1 s"}, "recovery.detect better than a by at least 1 s"),
        ("recovery.detect", {"versus": "a", "within": "1 s"}, "recovery.detect within 1 s of a"),
    ],
)  # fmt: skip
def test_an_expectation_is_worded_as_it_was_asked(metric: str, more: dict[str, Any], text: str):
    """The phases have short names in scenarios."""
    assert item(metric, **more).text == text


@pytest.mark.parametrize(
    ("metric", "more", "doubts"),
    [
        ("throughput.relative", {"phase": "fault", "min": "95"}, ["min: 95 is 9,500 % (write '95 %' or '0.95')"]),
        ("throughput.relative", {"phase": "fault", "min": "1"}, []),
        ("throughput.relative", {"phase": "fault", "min": "1.01"}, ["min: 1.01 is 101 % (write '1.01 %' or '0.0101')"]),
        ("throughput.relative", {"phase": "fault", "min": "95 %"}, []),
        ("latency.relative", {"quantile": "p99", "max": "10"}, []),
        ("latency.relative", {"quantile": "p99", "max": "11"}, ["max: 11 is 1,100 % (write '11 %' or '0.11')"]),
        ("recovery.detect", {"max": "15"}, ["max: 15 has no unit, so it is 15 s (write '15 s' or '15 ms')"]),
        ("recovery.detect", {"equals": "0"}, []),
        *((name, {"equals": "2.5"}, []) for name in ("network.in-flight", "buffers.pool-deviation", "tasks.buffers-per-record")),
        ("recovery.detect", {"min": "1", "max": "2 s"}, ["min: 1 has no unit, so it is 1 s (write '1 s' or '1 ms')"]),
        ("failovers.count", {"max": "15"}, []),
        ("recovery.detect", {"max": "15", "equals": "1"}, []),
        ("recovery.detect", {"max": "-1 s"}, ["max: -1 s is negative, and no value is (write 0 or more)"]),
        ("recovery.detect", {"quantile": "p95", "max": "2 s"}, []),
        ("recovery.detect", {"quantile": "p99", "max": "2 s"}, [
            "quantile: p99 over trials needs 100, there are 20: the answer will be Inconclusive (write trials: 100, or leave the quantile out)",
        ]),
        ("latency", {"quantile": "p99", "max": "2 s"}, []),
        ("job.state", {"equals": "RUN*"}, []),
        ("job.state", {"equals": "RUNING"}, [
            "equals: job.state is never RUNING (did you mean RUNNING?)",
        ]),
    ],
)  # fmt: skip
def test_a_bound_that_probably_means_something_else_is_doubted(
    metric: str, more: dict[str, Any], doubts: list[str]
):
    """A duration without a unit, a ratio that looks like a percentage. An expectation with a problem has no doubts."""
    assert item(metric, **more).doubts(20) == doubts


@pytest.mark.parametrize(
    ("metric", "more", "doubt"),
    [
        ("job.state", {"equals": "running"}, "equals: job.state is never running (write RUNNING)"),
        ("detection.detector", {"equals": "Jobmaster"}, "equals: detection.detector is never Jobmaster (write JobMaster)"),
        ("detection.detector", {"equals": "TaskExecutor"}, "equals: detection.detector is never TaskExecutor (there are JobMaster, ResourceManager, TaskManager, JobManager, Task)"),
        ("detection.detector", {"equals": "*Manager"}, ""),
        ("job.failure", {"equals": "Jobmaster"}, ""),
        ("failovers.count", {"equals": "1.5"}, "equals: failovers.count is never 1.5 (write a whole number)"),
        ("failovers.count", {"max": "1.5"}, ""),
        ("buffers.pool-deviation", {"equals": "0.5"}, ""),
        ("fault.verified", {"equals": "200 %"}, "equals: 200 % is more than fault.verified can be (write at most 100 %)"),
        ("fault.verified", {"min": "101 %"}, "min: 101 % is more than fault.verified can be (write at most 100 %)"),
        ("fault.verified", {"equals": "50 %"}, "equals: fault.verified is never 50 % (write 0 % or 100 %)"),
        ("fault.verified", {"min": "50 %"}, ""),
        ("fault.verified", {"equals": "100 %"}, ""),
        ("tasks.busy", {"phase": "fault", "max": "101 %"}, "max: 101 % is more than tasks.busy can be (write at most 100 %)"),
        ("tasks.busy", {"phase": "fault", "equals": "99.5 %"}, ""),
        ("throughput.relative", {"phase": "recovered", "max": "110 %"}, ""),
    ],
)  # fmt: skip
def test_a_value_that_the_metric_never_has_is_doubted(metric: str, more: dict[str, Any], doubt: str):
    """The expectation would always fail, or never."""
    assert item(metric, **more).doubts(20) == ([doubt] if doubt else [])


@pytest.mark.parametrize(
    ("metric", "more", "field"),
    [
        ("delivery.lots", {"equals": 0}, "metric"),
        ("recovery.detect", {}, ""),
        ("recovery.detect", {"phase": "fault", "max": "1 s"}, "phase"),
        ("lag.max", {"phase": "warmUp", "max": "1 s"}, "phase"),
        ("latency", {"max": "1 s"}, "quantile"),
        ("recovery.detect", {"quantile": "1.5", "max": "1 s"}, "quantile"),
        ("recovery.detect", {"min": "1 s", "max": "soon"}, "max"),
        ("recovery.detect", {"min": "soon", "max": "late"}, "min"),
        ("recovery.detect", {"equals": "soon"}, "equals"),
        ("recovery.detect", {"versus": "a", "within": "-1 s"}, "within"),
        ("recovery.detect", {"versus": "a", "improves_by": "soon"}, "improvesBy"),
        ("recovery.detect", {"min": "2 s", "max": "1 s"}, ""),
    ],
)
def test_the_field_of_a_problem_is_named(metric: str, more: dict[str, Any], field: str):
    """Empty if the problem is between fields."""
    assert item(metric, **more).problem_field == field


@pytest.mark.parametrize(
    ("trials", "looks", "text"),
    [
        (1, 1, "versus: a comparison needs 6 trials, there is 1: the answer will be Inconclusive (write trials: 6 or more)"),
        (5, 1, "versus: a comparison needs 6 trials, there are 5: the answer will be Inconclusive (write trials: 6 or more)"),
        (6, 1, ""),
        (6, 3, "versus: a comparison with 3 looks needs 7 trials, there are 6: the answer will be Inconclusive (write trials: 7 or more)"),
        (7, 3, ""),
    ],
)  # fmt: skip
def test_a_comparison_over_too_few_trials_is_doubted(trials: int, looks: int, text: str):
    """Below 6 trials there is no interval; each look of a run that may stop early costs confidence."""
    found = item("recovery.total", versus="old", within="5 %").doubts(trials, looks=looks)
    assert found == ([text] if text else [])


@pytest.mark.parametrize(
    ("metric", "asked", "doubted"),
    [("recovery.total", "120 %", True), ("recovery.total", "100 %", False), ("recovery.total", "200 s", False),
     ("throughput.goodput", "120 %", False)],
)  # fmt: skip
def test_an_improvement_by_more_than_everything_is_doubted(metric: str, asked: str, doubted: bool):
    """A time cannot become shorter than nothing; a throughput can more than double."""
    found = item(metric, versus="old", improves_by=asked).doubts(20)
    text = "improvesBy: 120 % is impossible: a value of 0 is an improvement by 100 %"
    assert found == ([text] if doubted else [])


@pytest.mark.parametrize(
    ("metric", "more", "over"),
    [
        ("recovery.detect", {"quantile": "0.5", "max": "1 s"}, True),
        ("recovery.detect", {"max": "1 s"}, False),
        ("latency", {"quantile": "p99", "max": "1 s"}, False),
        ("nothing", {"quantile": "0.5", "max": "1 s"}, False),
    ],
)
def test_a_quantile_is_over_trials_unless_the_metric_has_its_own(
    metric: str, more: dict[str, Any], over: bool
):
    """Latency has quantiles within a trial."""
    assert item(metric, **more).over_trials is over


@pytest.mark.parametrize(
    ("more", "row", "holds"),
    [
        ({"max": "2 s"}, {"value": 2.0}, True),
        ({"max": "2 s"}, {"value": 2.001}, False),
        ({"min": "2 s"}, {"value": 2.0}, True),
        ({"min": "2 s"}, {"value": 1.999}, False),
        ({"min": "1 s", "max": "2 s"}, {"value": 0.5}, False),
        ({"min": "1 s", "max": "2 s"}, {"value": 2.5}, False),
        ({"equals": "2 s"}, {"value": 2.0}, True),
        ({"equals": "2 s"}, {"value": 2.01}, False),
        ({"equals": "2 s"}, {"value": 1.99}, False),
        ({"max": "2 s"}, {"value": None}, None),
        ({"max": "2 s"}, {"value": 1.0, "reason": m.FILTERED}, None),
        ({"max": "2 s"}, {"value": 3.0, "reason": m.FILTERED}, False),
        ({"max": "2 s"}, {"value": 2.0, "reason": m.NOT_RECOVERED}, None),
        ({"equals": "2 s"}, {"value": 2.0, "reason": m.NOT_RECOVERED}, None),
    ],
)
def test_bounds_hold_at_their_edges(more: dict[str, str], row: dict[str, Any], holds: bool | None):
    """Bounds are inclusive. None: the row cannot tell."""
    assert item("recovery.detect", **more).holds(metric_row("recovery.detect", **row)) is holds


def test_a_text_with_a_reason_cannot_tell():
    """Without a reason, stars match anything, also several lines."""
    asked = item("job.cause", equals="a*c")
    assert asked.holds(metric_row("job.cause", text="a\nb c")) is True
    assert asked.holds(metric_row("job.cause", text="a\nb cd")) is False
    assert asked.holds(metric_row("job.cause", text="abc", reason=m.NO_DATA)) is None


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.0, "s", "1.00 s"),
        (0.99995, "s", "1.00 s"),
        (0.9999, "s", "1.00 s"),
        (4.618, "s", "4.62 s"),
        (0.0015, "s", "1.50 ms"),
        (0.0001, "s", "100 µs"),
        (0.000_999_6, "s", "1.00 ms"),
        (9.996, "s", "10.0 s"),
        (10.36, "s", "10.4 s"),
        (1_234.5, "s", "1,234 s"),
        (4_524.0, "s", "75.4 min"),
        (0.000_010_24, "s", "10.2 µs"),
        (0.0, "s", "0 s"),
        (-4.618, "s", "-4.62 s"),
        (0.955, "ratio", "95.5 %"),
        (19_999.6, "records/s", "20,000 records/s"),
        (3.0, "count", "3"),
        (4, "count", "4"),
        (1234567.0, "count", "1,234,567"),
        (0.026_484_4, "count", "0.0265"),
        (99.96, "count", "100"),
        (1234.5, "count", "1,234"),
        (5_242_880.4, "count", "5,242,880"),
        (float("inf"), "count", "inf"),
        (369_824.0, "bytes", "369,824 bytes"),
    ],
)
def test_values_are_shown_with_their_unit(value: float, unit: str, text: str):
    """Three significant digits, the unit that fits, and no digit before the decimal point is lost."""
    assert format_value(value, unit) == text


@pytest.mark.parametrize(
    ("expectation", "value", "text"),
    [
        (item("recovery.total", max="10 s"), 10.36, "10.4 s"),
        (item("recovery.total", max="10 s"), 9.96, "9.96 s"),
        (item("recovery.total", max="10 s"), 9.996, "10.0 s"),
        (item("recovery.total", max="10 s"), 10.004, "10.004 s"),
        (item("recovery.total", min="100 ms"), 0.099_96, "99.96 ms"),
        (item("recovery.total", max="2 h"), 7_200.4, "120.01 min"),
        (item("throughput.relative", phase="fault", min="95 %"), 0.949_96, "94.996 %"),
        (item("throughput.goodput", min="20000"), 19_999.6, "19,999.6 records/s"),
        (item("recovery.unattributed", equals="0"), 0.000_04, "0.004 %"),
        (item("delivery.lost", equals="0"), 1_234, "1,234"),
    ],
)
def test_a_value_beside_its_limit_reads_as_it_was_judged(expectation: Expectation, value: float, text: str):
    """It gets more digits if three of them would be on the other side of the limit."""
    row = metric_row(expectation.metric, value)
    assert expectation.shown(row) == text
    assert expectation.shown(replace(row, reason=m.NOT_RECOVERED)) == f"at least {text}"


def test_a_lower_bound_is_shown_as_one():
    """No value is no text, and a text is shown as it is."""
    row = metric_row("recovery.total", 4.5, reason=m.NOT_RECOVERED)
    assert show(row, "recovery.total") == "at least 4.50 s"
    assert show(replace(row, reason=m.FILTERED), "recovery.total") == "4.50 s"
    assert show(replace(row, value=None), "recovery.total") == ""
    assert show(metric_row("job.state", text="RUNNING"), "job.state") == "RUNNING"


def test_margins_may_be_zero_and_not_negative():
    """A number is one with or without a sign."""
    assert parse_margin("0 %", "s") == (0.0, True)
    assert parse_margin("0 s", "s") == (0.0, False)
    assert parse_margin(" 20 % ", "s") == (pytest.approx(0.2), True)
    with pytest.raises(ValueError, match="'-1 ms' is negative"):
        parse_margin("-1 ms", "s")
    assert [is_number(t) for t in ("1", "-1.5", "1 s", "")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 ns", 1e-9), ("1 us", 1e-6), ("1 µs", 1e-6), ("1 ms", 1e-3), ("1 s", 1), ("1 sec", 1), ("1 MIN", 60), ("1 m", 60),
        ("1 h", 3600), ("+1.5", 1.5), ("-2 s", -2),
    ],
)  # fmt: skip
def test_durations_have_every_unit(text: str, seconds: float):
    """Upper and lower case, with a sign, seconds by default."""
    assert m.parse_bound(text, "s") == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "quantile"),
    [("p99", 0.99), ("P99.9", 0.999), ("99 %", 0.99), ("0.5", 0.5), (1, 1.0), ("100 %", 1.0), (0.123456789, 0.123457)],
)  # fmt: skip
def test_quantiles_are_fractions_or_percentages(text: Any, quantile: float):
    """The largest is 1, the maximum."""
    assert m.parse_quantile(text) == quantile


@pytest.mark.parametrize("text", ["0", "p0", "1.01", "p101", "-1", "most", ""])
def test_a_quantile_outside_of_its_range_is_refused(text: str):
    """The error has three examples."""
    with pytest.raises(ValueError, match=r"write 0\.99, 99 % or p99"):
        m.parse_quantile(text)


# ---- the catalogue of metrics

MORE_IS_BETTER = {
    "throughput.records-per-second", "throughput.slowest-sink", "throughput.fastest-sink", "throughput.goodput", "throughput.relative",
    "throughput.relative-to-control", "liveness.at-end", "checkpoints.completed", "fault.verified",
    "control.stable",
}  # fmt: skip
NEITHER = {
    "delivery.committed", "buffers.used", "buffers.in-pool-usage", "buffers.out-pool-usage", "buffers.gate", "deployment.spread",
    "checkpoints.persisted", "network.push-back", "network.window-limited", "network.window-probes", "network.connections", "backpressure.reach", "tasks.busy",
    "tasks.idle", "stale.rejected", "iteration.supersteps",
}  # fmt: skip
PHASED = {
    "buffers.used", "buffers.in-pool-usage", "buffers.out-pool-usage", "lag.max", "liveness.longest-stall", "tasks.backpressured",
    "tasks.backpressured-sampled", "tasks.buffers-per-record", "tasks.busy", "tasks.cpu-per-record", "tasks.idle", "checkpoints.completed", "checkpoints.failed", "checkpoints.duration", "checkpoints.median-duration",
    "checkpoints.completion", "checkpoints.persisted", "checkpoints.size", "checkpoints.full-size", "checkpoints.alignment",
    "throughput.records-per-second", "throughput.slowest-sink", "throughput.fastest-sink", "throughput.goodput", "throughput.relative",
    "throughput.relative-to-control", "latency", "latency.markers", "latency.relative", "latency.relative-to-control",
}  # fmt: skip


def named(field: str, value: Any = True) -> set[str]:
    return {name for name, metric in m.METRICS.items() if getattr(metric, field) is value}


def test_the_catalogue_knows_directions_phases_quantiles_and_safety():
    """A comparison that takes the wrong direction calls the worse variant the better one."""
    assert named("lower_is_better", False) == MORE_IS_BETTER
    assert named("lower_is_better", None) == NEITHER | {n for n, k in m.METRICS.items() if k.unit == "text"}
    assert named("phased") == PHASED
    assert named("quantiles") == {n for n in PHASED if n.startswith("latency")}
    assert named("detailed") == {
        "buffers.gate",
        "restarts.tasks",
        "network.push-back",
        "iteration.supersteps",
        "clocks.difference",
    }
    assert named("clocks") == {
        n for n in m.METRICS if n.startswith(("latency", "recovery.")) and m.METRICS[n].unit in ("s", "ratio")
    } - {"recovery.unattributed", "recovery.from-events"} | {"lag.max"}
    assert named("safety") == {
        "delivery.lost", "delivery.duplicated", "delivery.corrupted", "delivery.out-of-order", "credit.violations", "buffers.leaked",
    }  # fmt: skip
    assert m.QUANTILES == (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


@pytest.mark.parametrize(("quantile", "trials"), [(0.1, 2), (0.5, 2), (0.51, 3), (0.9, 10), (1.0, 1)])
def test_a_quantile_over_trials_needs_one_at_or_above_it(quantile: float, trials: int):
    """Never fewer than two, but for the maximum."""
    assert m.trials_needed(quantile) == trials


def test_two_durations_that_are_compared_have_one_unit_and_enough_digits():
    """An hour is in minutes, unless the other one is shorter."""
    assert apart(3599.7, 3600.0) == ("3,599.7 s", "3,600.0 s")
    assert apart(3600.0, 4500.0) == ("60.0 min", "75.0 min")
    assert apart(22.69, 22.70) == ("22.69 s", "22.70 s")
    assert apart(0.0, 0.0) == ("0 s", "0 s")
    assert apart(0.1, 0.1 + 1e-15) == ("100.000000000000 ms", "100.000000000001 ms")
    assert apart(0.1, 0.1 + 1e-16) == ("100 ms", "100 ms"), "not more digits than a float has"
