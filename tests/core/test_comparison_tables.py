"""Tables of groups: means with their intervals, further metrics, and the answers in words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement.comparison import (
    ALSO_MAX,
    Group,
    Key,
    comparison,
    judged_keys,
    with_interval,
)
from testbed_runtime.core.judgement.expectations import Expectation
from tests.core.test_comparison import DETECT, TWO, rows_of
from tests.metricrows import metric_row


def test_a_table_shows_means_intervals_and_what_is_missing():
    """A mean of lower bounds is one too; a missing value leaves no mean."""
    detects = {"plain": [2.0] * 8, "few": [1.0, 3.0], "none": [None] * 8}
    groups = [
        Group(name=name, trials={i: rows_of(f"{name}-{i}", v) for i, v in enumerate(values)})  # type: ignore[arg-type]
        for name, values in detects.items()
    ]
    bounded = [replace(row, reason=m.NOT_RECOVERED) if row.metric == "recovery.detect" else row for row in rows_of("x", 2.0)]  # fmt: skip
    groups.append(Group(name="late", trials=dict.fromkeys(range(8), bounded)))
    once = comparison(
        [Group(name="late", trials={1: bounded}), Group(name="new", trials={1: rows_of("x", 3.0)})],
        keys=(DETECT,),
    )
    assert [c.text for c in once.contrasts] == [
        "unknown: 3.00 s against at least 2.00 s in 1 trial each; an interval needs 6"
    ]
    table = comparison(groups, keys=(DETECT, Key("failovers.count")))
    written = table.to_json()
    assert written["metrics"] == (
        {"metric": "recovery.detect", "quantile": None, "phase": "", "title": "recovery.detect", "unit": "s", "lowerIsBetter": True},
    )  # fmt: skip
    assert (written["schema"], written["confidence"], written["matters"]) == (1, 0.95, 0.05)
    assert written["confidenceEach"] == table.confidence_each == pytest.approx(1 - 0.05 / 3), (
        "one metric, three groups against the first"
    )
    assert [g.trials for g in table.groups] == [8, 2, 8, 8]
    plain, few, none, late = (g["values"][0] for g in written["groups"])
    assert plain == {"mean": 2.0, "low": 2.0, "high": 2.0, "values": (2.0,) * 8, "atLeast": False, "reason": "", "text": "2.00 s"}  # fmt: skip
    assert few == {"mean": 2.0, "low": None, "high": None, "values": (1.0, 3.0), "atLeast": False, "reason": "", "text": "2.00 s"}  # fmt: skip
    assert none == {"mean": None, "low": None, "high": None, "values": (None,) * 8, "atLeast": False, "reason": m.NO_DATA, "text": "–"}  # fmt: skip
    assert late == {"mean": 2.0, "low": 2.0, "high": None, "values": (2.0,) * 8, "atLeast": True, "reason": m.NOT_RECOVERED, "text": "at least 2.00 s"}  # fmt: skip
    assert list(table.summary) == [
        "few against plain: unknown: 2.00 s against 2.00 s in 8 and 2 trials; an interval needs 7",
        "none against plain: the history has no data for this",
        "late and plain are indistinguishable in recovery.detect, within the intervals of the table",
    ]
    assert comparison(groups[2:3]).summary == ()
    first = comparison([groups[0], groups[0]], keys=(DETECT,))
    assert list(first.summary) == ["plain and plain are indistinguishable in recovery.detect"]
    values = {"a": [1.0, 3.0] * 5, "b": [3.0, 1.0] * 5}
    unsure = [Group(name=name, trials={i: [*rows_of(name, 2.0), replace(bounded[0], metric="recovery.total", value=v)] for i, v in enumerate(drawn)}) for name, drawn in values.items()]  # fmt: skip
    assert list(comparison(unsure, keys=(DETECT, Key("recovery.total"))).summary) == [
        "b and a are indistinguishable in recovery.detect, recovery.total, within the intervals of the table"
    ], "one of them is known to be equal"
    spread = comparison(
        [Group(name="a", trials={i: rows_of("a", v) for i, v in enumerate(TWO)})], keys=(DETECT,)
    )
    assert spread.groups[0].values[0].text.startswith("2.0"), "the mean"
    assert with_interval("3", "3", "3") == "3 [3, 3]", "counts have no unit"
    assert " [1." in spread.groups[0].values[0].text, "with its interval"
    empty = comparison([groups[2], groups[2]], keys=(DETECT,))
    assert list(empty.summary) == ["none against none: the history has no data for this"]


def test_the_judged_metrics_are_shown_where_the_groups_differ_and_are_not_compared():
    """Each further comparison would make the intervals of the others wider."""
    judged = [
        Expectation(metric="latency", quantile=0.99, max="1 s"),
        Expectation(metric="delivery.lost", quantile=0.9, equals="0"),
        Expectation(metric="delivery.lost", equals="0"),
        Expectation(metric="job.state", equals="RUNNING"),
        Expectation(metric="nonsense", problem="unknown metric"),
        Expectation(metric="delivery.duplicated", equals="0"),
    ]
    lost, twice = Key("delivery.lost"), Key("delivery.duplicated")
    assert judged_keys(judged) == [Key("latency", 0.99), lost, twice]

    def group(name: str, count: float) -> Group:
        more = [metric_row(k.metric, v) for k, v in ((lost, count), (twice, 0.0))]  # fmt: skip
        return Group(name=name, trials={i: [*rows_of("x", 2.0)[-1:], *more] for i in range(3)})

    table = comparison([group("a", 1.0), group("b", 4.0)], keys=(DETECT,), also=[DETECT, lost, twice])
    assert [metric.title for metric in table.metrics] == ["recovery.detect", "delivery.lost"]
    assert [g.values[1].text for g in table.groups] == ["1", "4"]
    assert [c.key.title for c in table.contrasts] == ["recovery.detect"]
    many = [Key("latency", q, phase) for q in m.QUANTILES for phase in ("baseline", "observation")]
    rows = [[metric_row("latency", v, phase=k.phase, quantile=k.quantile) for k in many] for v in (1.0, 2.0)]  # fmt: skip
    groups = [Group(name=str(i), trials={1: found}) for i, found in enumerate(rows)]
    assert len(comparison(groups, keys=(), also=many).metrics) == ALSO_MAX < len(many)


def test_a_phase_that_repeats_a_row_is_not_listed():
    """Without a fault, the goodput of the observation is that of the whole time."""
    headline, same, other = (
        Key("throughput.goodput", phase=phase) for phase in ("", "observation", "baseline")
    )

    def group(name: str, rate: float) -> Group:
        values = ((headline, rate), (same, rate), (other, rate + 1))
        rows = [metric_row(k.metric, v, phase=k.phase) for k, v in values]
        return Group(name=name, trials={1: rows})

    table = comparison([group("a", 1.0), group("b", 4.0)], keys=(headline,), also=[same, other])
    assert [metric.title for metric in table.metrics] == [
        "throughput.goodput",
        "throughput.goodput (baseline)",
    ]


def test_too_few_trials_are_said_once_for_all_groups():
    """The number of trials is that of the smallest group."""
    groups = [Group(name=n, trials={i: rows_of("x", 2.0) for i in range(c)}) for n, c in (("a", 3), ("b", 1), ("c", 2))]  # fmt: skip
    two = "Confidence intervals for all 2 differences need 7 trials; an expectation with `versus` needs 6."
    few = "Differences may be chance:"
    assert comparison(groups, keys=(DETECT,)).summary == (f"{few} 1 trial is too few. {two}",)
    (said,) = comparison([groups[0], groups[2]], keys=(DETECT,)).summary
    assert said == f"{few} 2 trials are too few. A confidence interval needs 6."
    without = Group(name="d", trials={0: [], 1: []})
    fewer = comparison([groups[0], groups[2], without], keys=(DETECT,)).summary
    assert fewer == (f"{few} 2 trials are too few. {two}",)


def test_one_trial_that_did_not_recover_makes_the_mean_a_lower_bound():
    """The others cannot make up for what it would still have taken."""
    late = [
        replace(row, reason=m.NOT_RECOVERED) if row.metric == "recovery.detect" else row
        for row in rows_of("x", 2.0)
    ]
    trials = {0: late, **{n: rows_of(f"x-{n}", 2.0) for n in range(1, 8)}}
    (found,) = comparison([Group(name="x", trials=trials)], keys=(DETECT,)).groups[0].values
    assert (found.at_least, found.low, found.high, found.text) == (
        True,
        2.0,
        None,
        "at least 2.00 s",
    )
