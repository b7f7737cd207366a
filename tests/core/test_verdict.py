"""The lattice: what is judged as what, and what wins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.judgement.judge import judge
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.verdict import (
    RunVerdict,
    TrialCause,
    TrialFacts,
    VariantVerdict,
    Verdict,
    controls_of,
    most_severe,
)
from tests.manifests import trial_entry
from tests.metricrows import metric_row

PASS, INCONCLUSIVE, FAIL, ERROR = Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL, Verdict.ERROR


def good_rows(**changes: Any) -> list[MetricRow]:
    """A clean trial with one verified fault; `changes` by metric name with `_` for `.` and `-`: value, dict or None (absent)."""
    rows = {name: metric_row(name, 0) for name in m.SAFETY}
    rows["fault.verified"] = metric_row("fault.verified", 1, text="gc")
    rows["fault.residue"] = metric_row("fault.residue", 0)
    rows["history.missing"] = metric_row("history.missing", 0)
    rows["liveness.at-end"] = metric_row("liveness.at-end", 1)
    rows["recovery.total"] = metric_row("recovery.total", 7.5)
    rows["recovery.detect"] = metric_row("recovery.detect", 4.5, bounded_by="heartbeat.timeout = 5 s")
    rows["failovers.count"] = metric_row("failovers.count", 1)
    rows["job.state"] = metric_row("job.state", text="RUNNING")
    for key, change in changes.items():
        name = next(n for n in rows if n.replace(".", "_").replace("-", "_") == key)
        if change is None:
            del rows[name]
        else:
            rows[name] = replace(rows[name], **(change if isinstance(change, dict) else {"value": change}))
    return list(rows.values())


TRIAL = TrialFacts(trial="main-1", faults=("gc",))
CONTROL = TrialFacts(trial="main-control-1", role="control")
DETECT = Expectation.from_item({"metric": "recovery.detect", "max": "5.5 s"})


def judged(
    rows: list[MetricRow],
    *expectations: Expectation,
    trials: tuple[TrialFacts, ...] = (TRIAL,),
    error: str = "",
) -> RunVerdict:
    """Judge one variant."""
    return judge(trials=trials, expectations={"main": expectations or (DETECT,)}, rows=rows, error=error)


def test_what_holds_passes():
    """And says what bounded it."""
    found = judged(good_rows())
    assert found.verdict is PASS
    asked = next(j for j in found.judged if not j.implied)
    assert (asked.asked, asked.measured, asked.bounded_by) == (
        "at most 5.5 s",
        "4.50 s",
        "heartbeat.timeout = 5 s",
    )
    assert found.to_json()["exitCode"] == 0


def test_a_verdict_on_an_incomplete_history_says_what_is_missing():
    """The text is that of the trial that decides."""
    rows = good_rows(history_missing={"value": 3, "text": "tm-0-1: 3 rows"})
    assert judged(rows).summary.count("tm-0-1: 3 rows") == 1


PRECEDENCE = [
    ("everything holds", {}, PASS, ""),
    ("an expectation does not hold", {"recovery_detect": 6.0}, FAIL, ""),
    ("no value", {"recovery_detect": None}, INCONCLUSIVE, m.NO_DATA),
    ("a value that did not happen", {"recovery_detect": {"value": None, "reason": m.NO_FAILOVER}}, INCONCLUSIVE, m.NO_FAILOVER),
    ("fault not verified", {"fault_verified": 0}, INCONCLUSIVE, m.FAULT_NOT_VERIFIED),
    ("effect never measured", {"fault_verified": None}, INCONCLUSIVE, m.FAULT_NOT_VERIFIED),
    ("an unverified fault outweighs a broken expectation", {"fault_verified": 0, "recovery_detect": 6.0}, INCONCLUSIVE, m.FAULT_NOT_VERIFIED),
    ("safety outweighs an unverified fault", {"fault_verified": 0, "delivery_lost": 1}, FAIL, ""),
    ("one record lost", {"delivery_lost": 1}, FAIL, ""),
    ("one record duplicated", {"delivery_duplicated": 1}, FAIL, ""),
    ("one record corrupted", {"delivery_corrupted": 1}, FAIL, ""),
    ("one record out of order", {"delivery_out_of_order": 1}, FAIL, ""),
    ("one credit violation", {"credit_violations": 1}, FAIL, ""),
    ("not drained", {"delivery_lost": {"value": None, "reason": m.NOT_DRAINED}}, INCONCLUSIVE, m.NOT_DRAINED),
    ("not drained, and yet a duplicate", {"delivery_duplicated": {"value": 1, "reason": m.NOT_DRAINED}}, FAIL, ""),
    ("delivery not known", {"delivery_lost": None}, INCONCLUSIVE, m.NO_DATA),
    ("rows of the history are missing", {"history_missing": 3}, INCONCLUSIVE, m.HISTORY_INCOMPLETE),
    ("missing rows outweigh a broken expectation", {"history_missing": 3, "recovery_detect": 6.0}, INCONCLUSIVE, m.HISTORY_INCOMPLETE),
    ("a proven loss outweighs missing rows", {"history_missing": 3, "delivery_lost": 1}, FAIL, ""),
    ("the rows were not counted", {"history_missing": None}, INCONCLUSIVE, m.NO_DATA),
    ("residue", {"fault_residue": 1}, ERROR, m.RESIDUE),
    ("residue outweighs a loss", {"fault_residue": 1, "delivery_lost": 9}, ERROR, m.RESIDUE),
    ("residue was not checked", {"fault_residue": {"value": None, "reason": m.RESIDUE_NOT_MEASURED}}, INCONCLUSIVE, m.RESIDUE_NOT_MEASURED),
    ("a lease that lapsed", {"fault_verified": {"value": 0, "reason": m.VOIDED}}, INCONCLUSIVE, m.VOIDED),
    ("a function dropped records", {"delivery_lost": {"value": None, "reason": m.FILTERED}}, PASS, ""),
    ("a function dropped records, and yet a duplicate", {"delivery_duplicated": {"value": 1, "reason": m.FILTERED}}, FAIL, ""),
    ("nothing arrives at the end", {"liveness_at_end": 0}, INCONCLUSIVE, m.NO_THROUGHPUT),
    ("nothing arrives at the end, and an expectation does not hold", {"liveness_at_end": 0, "recovery_detect": 6.0}, FAIL, ""),
    ("it is not known whether anything arrives", {"liveness_at_end": {"value": None, "reason": m.NO_DATA}}, INCONCLUSIVE, m.NO_DATA),
    ("whether anything arrives was not measured", {"liveness_at_end": None}, INCONCLUSIVE, m.NO_DATA),
    ("never recovered", {"recovery_total": {"value": 9.0, "reason": m.NOT_RECOVERED}}, INCONCLUSIVE, m.NOT_RECOVERED),
    ("too short to measure how steady it is", {"recovery_total": {"value": 9.0, "reason": m.OBSERVATION_TOO_SHORT}}, PASS, ""),
    ("the job failed", {"job_state": {"text": "FAILED"}}, FAIL, ""),
    ("the job failed, and its fault was not seen", {"job_state": {"text": "FAILED"}, "fault_verified": 0}, INCONCLUSIVE, m.FAULT_NOT_VERIFIED),
    ("the job failed before its fault could begin", {"job_state": {"text": "FAILED"}, "fault_verified": {"value": 0, "reason": m.JOB_ENDED}}, FAIL, ""),
    ("the job finished before its fault could begin", {"job_state": {"text": "FINISHED"}, "fault_verified": {"value": 0, "reason": m.JOB_ENDED}}, INCONCLUSIVE, m.JOB_ENDED),
    ("a bound that breaks the maximum", {"recovery_detect": {"value": 6.0, "reason": m.NOT_RECOVERED}}, FAIL, ""),
    ("a bound below the maximum", {"recovery_detect": {"value": 5.0, "reason": m.NOT_RECOVERED}}, INCONCLUSIVE, m.NOT_RECOVERED),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "verdict", "reason"), PRECEDENCE, ids=[p[0] for p in PRECEDENCE])
def test_the_worst_finding_decides_the_verdict(
    name: str, changes: dict[str, Any], verdict: Verdict, reason: str
):
    """Error > Fail > Inconclusive > Pass, each with its reason."""
    found = judged(good_rows(**changes))
    assert (found.verdict, found.reason) == (verdict, reason), found.summary


def test_a_run_that_failed_is_an_error_whatever_else_was_seen():
    """Also when everything that was recorded looks fine."""
    found = judged(good_rows(), error="the machine is full")
    assert (found.verdict, found.reason) == (ERROR, m.RUN_FAILED)
    assert found.to_json()["exitCode"] == 2


def test_a_trial_that_failed_is_an_error():
    """Its other trials do not outvote it."""
    trials = (TRIAL, TrialFacts(trial="main-2", error="no port"))
    assert judged(good_rows(), trials=trials).verdict is ERROR


def test_a_void_trial_that_was_not_repeated_is_inconclusive():
    """And nothing that it measured is judged."""
    void = TrialFacts(trial="main-1", faults=("gc",), voided=True)
    for measured in (good_rows(recovery_detect=99.0), good_rows(delivery_duplicated=1)):
        assert judged(measured, trials=(void,)).reason == m.VOIDED


def control_row(stable: float) -> MetricRow:
    """The rows belong to the control trial."""
    return metric_row("control.stable", stable, trial="main-control-1")


def test_an_unstable_control_run_makes_everything_but_safety_inconclusive():
    """Whether the expectation holds or not."""
    for value in (4.5, 6.0):
        found = judged([*good_rows(recovery_detect=value), control_row(0)], trials=(CONTROL, TRIAL))
        assert (found.verdict, found.reason) == (INCONCLUSIVE, m.CONTROL_UNSTABLE)
    found = judged([*good_rows(delivery_lost=1), control_row(0)], trials=(CONTROL, TRIAL))
    assert found.verdict is FAIL
    assert judged([*good_rows(), control_row(1)], trials=(CONTROL, TRIAL)).verdict is PASS


def test_a_control_run_without_data_is_not_stable():
    """No evidence is never Pass."""
    assert judged(good_rows(), trials=(CONTROL, TRIAL)).reason == m.CONTROL_UNSTABLE


def test_safety_is_judged_in_the_control_run_too():
    """A record lost without a fault is worse, not better."""
    rows = [*good_rows(), control_row(1), metric_row("delivery.lost", 1, trial="main-control-1")]
    assert judged(rows, trials=(CONTROL, TRIAL)).verdict is FAIL


def test_a_broken_backend_never_passes_even_when_only_safety_was_asked():
    """Nothing happened, so nothing was lost: that proves nothing."""
    lost = Expectation.from_item({"metric": "delivery.lost", "equals": 0})
    found = judged(good_rows(fault_verified=0), lost)
    assert (found.verdict, found.reason) == (INCONCLUSIVE, m.FAULT_NOT_VERIFIED)


def test_nothing_asked_and_nothing_seen_is_inconclusive():
    """An empty run, an empty history."""
    assert judge(trials=(), expectations={}, rows=()).verdict is INCONCLUSIVE
    assert judge(trials=(TRIAL,), expectations={"main": ()}, rows=()).verdict is INCONCLUSIVE


def test_a_job_that_may_fail_need_not_deliver_everything():
    """Only where the scenario speaks of the job; what is proven still counts."""
    state = Expectation.from_item({"metric": "job.state", "equals": "FAILED"})
    changes: dict[str, Any] = {name.replace(".", "_").replace("-", "_"): {"value": None, "reason": m.JOB_FAILED} for name in m.SAFETY}  # fmt: skip
    failed = good_rows(**changes, job_state={"text": "FAILED"})
    assert judged(failed, state).verdict is PASS
    assert judged(failed, state, DETECT).verdict is PASS
    assert judged(failed).verdict is FAIL
    doubled = good_rows(**changes | {"delivery_duplicated": {"value": 1, "reason": m.JOB_FAILED}}, job_state={"text": "FAILED"})  # fmt: skip
    assert judged(doubled, state).verdict is FAIL


def test_duplicates_of_an_at_least_once_sink_fail_only_when_asked():
    """It promises no more."""
    rows = good_rows(delivery_duplicated={"value": 7, "text": "at-least-once"})
    assert judged(rows).verdict is PASS
    none = Expectation.from_item({"metric": "delivery.duplicated", "equals": 0})
    assert judged(rows, none).verdict is FAIL


def test_the_first_scenario_fails_and_the_last_passes():
    """A9: the worst wins wherever it stands."""
    assert most_severe([FAIL, PASS, PASS]) is FAIL
    assert most_severe([PASS, INCONCLUSIVE, FAIL, ERROR, PASS]) is ERROR
    assert most_severe([]) is INCONCLUSIVE
    trials = (TrialFacts(trial="a-1", variant="a"), TrialFacts(trial="b-1", variant="b"))
    rows = [replace(r, trial=t) for t in ("a-1", "b-1") for r in good_rows(fault_verified=None)]
    rows = [replace(r, value=9) if (r.trial, r.metric) == ("a-1", "recovery.detect") else r for r in rows]
    found = judge(trials=trials, expectations={"a": (DETECT,), "b": (DETECT,)}, rows=rows)
    assert found.variants == (VariantVerdict("a", FAIL), VariantVerdict("b", PASS))
    assert found.verdict is FAIL


@given(st.lists(st.sampled_from(list(Verdict)), min_size=1), st.randoms())
def test_the_order_of_verdicts_never_matters(verdicts: list[Verdict], random: Any):
    """And one more verdict never makes it better."""
    shuffled = list(verdicts)
    random.shuffle(shuffled)
    assert most_severe(shuffled) is most_severe(verdicts)
    assert all(most_severe([*verdicts, v]).severity >= most_severe(verdicts).severity for v in Verdict)


def many(values: list[float | None], **more: Any) -> tuple[tuple[TrialFacts, ...], list[MetricRow]]:
    """Create one trial per detection time."""
    trials = tuple(TrialFacts(trial=f"main-{i}") for i in range(len(values)))
    rows = []
    for trial, value in zip(trials, values, strict=True):
        detect = {"value": value} | more
        rows.extend(
            replace(r, trial=trial.trial, **(detect if r.metric == "recovery.detect" else {}))
            for r in good_rows(fault_verified=None)
        )
    return trials, rows


MEDIAN = Expectation.from_item({"metric": "recovery.detect", "quantile": "0.5", "max": "5.5 s"})


def test_a_quantile_over_trials_needs_enough_of_them():
    """2 for the median, 20 for 0.95, 100 for 0.99."""
    assert [m.trials_needed(q) for q in (0.5, 0.9, 0.95, 0.99, 1.0)] == [2, 10, 20, 100, 1]
    trials, rows = many([4.0])
    assert judged(rows, MEDIAN, trials=trials).reason == m.NOT_ENOUGH_TRIALS
    trials, rows = many([4.0, 9.0])
    passed = judged(rows, MEDIAN, trials=trials)
    assert passed.verdict is PASS
    at_least = Expectation.from_item({"metric": "recovery.detect", "quantile": "0.9", "min": "1 s"})
    trials, rows = many([4.0] * 9)
    assert judged(rows, at_least, trials=trials).reason == m.NOT_ENOUGH_TRIALS, "10 for 0.9, and 2 for 0.1"
    low = Expectation.from_item({"metric": "recovery.detect", "quantile": "0.1", "min": "1 s"})
    assert judged(rows, low, trials=trials).reason == m.NOT_ENOUGH_TRIALS, "as many as for 0.9"
    high = Expectation.from_item({"metric": "recovery.detect", "quantile": "0.1", "max": "9 s"})
    assert judged(rows, high, trials=trials).verdict is PASS
    note = next(j.note for j in passed.judged if j.metric == "recovery.detect")
    assert note.startswith("1 of 2 trials are within the bound")
    assert note.endswith("passes with a probability of 75 %")
    trials, rows = many([4.0, 9.0, 9.0])
    assert judged(rows, MEDIAN, trials=trials).verdict is FAIL


def test_a_trial_without_a_value_is_not_left_out_of_a_quantile():
    """That would flatter."""
    trials, rows = many([4.0, None, 4.0])
    assert judged(rows, MEDIAN, trials=trials).reason == m.NO_DATA


def test_without_a_quantile_every_trial_must_hold():
    """The worst one decides."""
    trials, rows = many([4.0, 4.0, 6.0])
    assert judged(rows, trials=trials).verdict is FAIL


BAD_ITEMS = [
    {"metric": "delivery.lots", "equals": 0},
    {"metric": "latency", "max": "1 s"},
    {"metric": "latency", "quantile": "0.42", "max": "1 s"},
    {"metric": "latency", "quantile": "p99", "phase": "warmUp", "max": "1 s"},
    {"metric": "recovery.detect", "phase": "fault", "max": "1 s"},
    {"metric": "recovery.detect", "max": "soon"},
    {"metric": "recovery.detect"},
    {"metric": "recovery.detect", "max": "1 s", "equals": "1 s"},
    {"metric": "recovery.detect", "min": "3 s", "max": "2 s"},
    {"metric": "job.state", "max": "RUNNING"},
    {"metric": "recovery.detect", "quantile": "1.5", "max": "1 s"},
    {"metric": "recovery.detect", "quantile": "0.5", "max": "soon"},
    {"metric": "recovery.detect", "versus": "main", "within": "soon"},
]


@pytest.mark.parametrize("item", BAD_ITEMS, ids=str)
def test_an_expectation_that_cannot_be_judged_is_an_error(item: dict[str, Any]):
    """The verdict gives the reason in words. Validation refuses such an expectation earlier."""
    expectation = Expectation.from_item(item)
    assert expectation.problem
    found = judged(good_rows(), expectation)
    assert (found.verdict, found.reason, found.judged[-1].measured) == (
        ERROR,
        m.AMBIGUOUS,
        expectation.problem,
    )


BOUNDS = [
    ("5.5s", "s", 5.5), ("500 ms", "s", 0.5), ("2 min", "s", 120.0), (3, "s", 3.0), ("95 %", "ratio", 0.95),
    ("0.95", "ratio", 0.95), (2, "count", 2.0), ("20000", "records/s", 20000.0),
    ("20000 records/s", "records/s", 20000.0),
]  # fmt: skip


@pytest.mark.parametrize(("text", "unit", "value"), BOUNDS)
def test_bounds_have_units(text: str, unit: str, value: float):
    """A bare number is in the metric's own unit."""
    assert m.parse_bound(text, unit) == pytest.approx(value)


@pytest.mark.parametrize(("text", "unit"), [("5 %", "s"), ("5 s", "count"), ("much", "ratio"), ("", "count")])
def test_bounds_of_another_unit_are_refused(text: str, unit: str):
    """The error contains an example of a valid value."""
    with pytest.raises(ValueError, match="write"):
        m.parse_bound(text, unit)


def test_texts_are_compared_with_stars_for_anything():
    """Flink's texts carry ids."""
    text = "Heartbeat of TaskManager with id tm-0-1 timed out."
    rows = [*good_rows(), metric_row("detection.text", text=text)]
    for pattern, verdict in (
        ("Heartbeat of TaskManager with id * timed out.", PASS),
        ("*eartbeat of TaskManager with id tm-*", PASS),
        ("Heartbeat of TaskManager with id", FAIL),
        ("heartbeat (.*)", FAIL),
    ):
        asked = Expectation.from_item({"metric": "detection.text", "equals": pattern})
        assert judged(rows, asked).verdict is verdict, pattern


def test_a_quantile_within_a_trial_takes_its_row():
    """The row of that quantile and phase is judged."""
    rows = [
        *good_rows(),
        metric_row("latency", 0.2, quantile=0.5, phase="fault"),
        metric_row("latency", 2.0, quantile=0.99, phase="fault"),
        metric_row("latency", 0.1, quantile=0.99, phase="baseline"),
    ]
    item = {"metric": "latency", "quantile": "p99", "phase": "during", "max": "1 s"}
    found = judged(rows, Expectation.from_item(item))
    assert found.verdict is FAIL
    assert "latency p99 (fault) at most 1 s" in found.summary


def test_every_reason_has_words_and_a_fix():
    """The report shows the words; docs/metrics.md also says what to do."""
    reasons = {v for k, v in vars(m).items() if k.isupper() and isinstance(v, str)}
    assert reasons == set(m.REASONS)


def of_trial(trial: str, **changes: Any) -> list[MetricRow]:
    """The good rows under another trial's name."""
    return [replace(r, trial=trial) for r in good_rows(**changes)]


def test_a_voided_trial_that_nothing_replaced_keeps_the_others_from_passing():
    """Two trials were asked for; one alone is half of the evidence."""
    trials = (TRIAL, TrialFacts(trial="main-2-r3", voided=True, faults=("gc",)))
    found = judged(good_rows(), trials=trials)
    assert (found.verdict, found.reason) == (INCONCLUSIVE, m.VOIDED)
    assert [j.trial for j in found.judged if j.reason == m.VOIDED] == ["main-2-r3"]


def test_nothing_of_a_voided_trial_counts():
    """Neither a broken expectation nor a duplicate: its repetition is judged instead."""
    trials = (
        TrialFacts(trial="main-1", voided=True, replaced=True, faults=("gc",)),
        TrialFacts(trial="main-1-r2", faults=("gc",)),
    )
    late = [*good_rows(recovery_detect=60.0), *of_trial("main-1-r2")]
    assert judged(late, trials=trials).verdict is PASS
    twice = [*good_rows(delivery_duplicated=1), *of_trial("main-1-r2")]
    assert judged(twice, trials=trials).verdict is PASS


def test_one_control_run_serves_every_variant_with_its_settings():
    """It is shared when configuration, version and job are the same, and an unstable one is unstable for all of them. A variant with a
    control run uses its own, the first that is not void. One without faults needs none."""
    fault = [{"name": "gc"}]
    entries = [
        trial_entry(trial="a-control-0", variant="a", role="control", voided=True),
        trial_entry(trial="a-control-1", variant="a", role="control"),
        trial_entry(trial="a-1", variant="a", faults=fault),
        trial_entry(trial="b-1", variant="b", faults=fault),
        trial_entry(trial="c-1", variant="c", faults=fault, configuration={"heartbeat.timeout": "12 s"}),
        trial_entry(trial="d-1", variant="d", faults=fault, flinkVersion="1.20"),
        trial_entry(trial="e-1", variant="e", faults=fault, job={"vertices": [{"name": "a"}]}),
        trial_entry(trial="f-1", variant="f", faults=fault),
        trial_entry(trial="f-control-1", variant="f", role="control"),
        trial_entry(trial="f-control-2", variant="f", role="control"),
        trial_entry(trial="g-1", variant="g"),
    ]
    assert controls_of(entries) == {"a": "a-control-1", "b": "a-control-1", "f": "f-control-1"}
    shared = TrialFacts(trial="main-1", faults=("gc",), control="a-control-1")
    steady = metric_row("control.stable", 1, trial="a-control-1")
    assert judged([*good_rows(), steady], trials=(shared,)).verdict is PASS
    found = judged([*good_rows(), replace(steady, value=0)], trials=(shared,))
    assert (found.verdict, found.reason) == (INCONCLUSIVE, m.CONTROL_UNSTABLE)


CAUSE = "PythonFunction: No module named 'x' (functions.py:3)."


@pytest.mark.parametrize(
    ("leaked", "verdict"),
    [
        (0, PASS),
        (3, FAIL),
        ({"value": None, "reason": m.NOT_COUNTED}, PASS),
        (None, PASS),
    ],
)
def test_a_leaked_buffer_fails_every_run_and_none_is_claimed_that_was_not_counted(
    leaked: Any, verdict: Verdict
):
    """Histories without the count (of killed TaskManagers, or recorded earlier) do not fail."""
    found = judged(good_rows(buffers_leaked=leaked))
    assert found.verdict is verdict


@pytest.mark.parametrize(("value", "shown"), [(1, " (column bitmap of delivery: x)"), (0, "")])
def test_a_violation_of_safety_is_shown_with_its_rows(value: int, shown: str):
    """The reason of the verdict names them too. Without a violation there are none to show."""
    text = "column bitmap of delivery: x"
    found = judged(good_rows(delivery_lost={"value": value, "text": text}))
    (item,) = [j for j in found.judged if j.metric == "delivery.lost"]
    assert item.measured.endswith(shown)
    assert (text in item.measured) is bool(value)
    assert (text in found.summary) is bool(value)


def test_a_failed_job_is_named_with_its_root_cause():
    """It fails the scenario. The cause stands in the summary, once, and in verdict.json."""
    failed = {"job_state": {"text": "FAILED"}, "delivery_lost": {"value": None, "reason": m.JOB_FAILED}}
    rows = [*good_rows(**failed), metric_row("job.cause", text=CAUSE)]
    found = judged(rows)
    assert found.verdict is FAIL
    assert found.summary == f"the job keeps running in main-1: measured FAILED: {CAUSE}"
    assert found.causes == (TrialCause("main-1", CAUSE),)
    runs = next(j for j in found.judged if j.text == "the job keeps running")
    assert (runs.reason, runs.measured) == ("", f"FAILED: {CAUSE}")


def test_an_unexpected_state_is_shown_with_its_root_cause():
    """An expectation of `job.state` that does not hold says why the job failed. One that holds stays short."""
    rows = [*good_rows(job_state={"text": "FAILED"}), metric_row("job.cause", text=CAUSE)]
    running = judged(rows, Expectation.from_item({"metric": "job.state", "equals": "RUNNING"}))
    assert running.verdict is FAIL
    assert CAUSE in running.summary
    assert running.summary.count(CAUSE) == 1
    assert not running.summary.endswith("..")
    asked = next(j for j in running.judged if not j.implied)
    assert asked.measured == f"FAILED: {CAUSE}"
    failed = judged(rows, Expectation.from_item({"metric": "job.state", "equals": "FAILED"}))
    assert failed.verdict is PASS
    assert next(j for j in failed.judged if not j.implied).measured == "FAILED"
    unknown = judged(rows[:-1], Expectation.from_item({"metric": "job.state", "equals": "RUNNING"}))
    assert unknown.judged[-1].measured == "FAILED"


def test_a_job_that_did_not_recover_is_shown_with_its_seconds():
    """The row's text is the fault's name, which is no measurement."""
    late = {"value": 25.0, "text": "gc", "reason": m.NOT_RECOVERED}
    found = judged(good_rows(recovery_total=late))
    recovers = next(j for j in found.judged if j.text == "the job recovers from its faults")
    assert (recovers.verdict, recovers.measured) == (INCONCLUSIVE, "at least 25.0 s")


def test_a_trial_that_never_ran_has_its_cause_from_the_runner():
    """Its history is not evaluated, so there is no row."""
    trial = TrialFacts.from_manifest(trial_entry(trial="main-1", error="the job is RESTARTING", cause=CAUSE))
    found = judged([], trials=(trial,))
    assert found.verdict is ERROR
    assert CAUSE in found.summary


def test_a_pass_says_what_was_not_judged():
    """A function that drops records hides losses. The verdict stands, but it must not look complete."""
    found = judged(good_rows(delivery_lost={"value": None, "reason": m.FILTERED}))
    assert found.verdict is PASS
    assert "Not judged: delivery.lost (a function of the scenario dropped records" in found.summary
    assert "Not judged" not in judged(good_rows()).summary
    asked = Expectation.from_item({"metric": "delivery.lost", "equals": "0"})
    found = judged(good_rows(delivery_lost={"value": None, "reason": m.FILTERED}), asked)
    assert (found.verdict, found.reason) == (INCONCLUSIVE, m.FILTERED)


def test_a_recovery_that_is_asked_for_is_judged_once():
    """The expectation itself is Inconclusive or fails; the built-in check adds nothing."""
    rows = good_rows(recovery_total={"value": 9.0, "reason": m.NOT_RECOVERED})
    found = judged(rows, Expectation.from_item({"metric": "recovery.total", "max": "8 s"}))
    assert [(j.verdict, j.at_least) for j in found.judged if j.metric == "recovery.total"] == [(FAIL, True)]


@pytest.mark.parametrize("item", [{"min": "5 s"}, {"max": "40 s", "phase": ""}])
def test_a_job_that_did_not_recover_never_passes(item: dict[str, str]):
    """Neither a least value nor a bound above what was observed makes a lower bound a Pass."""
    rows = good_rows(recovery_total={"value": 30.0, "reason": m.NOT_RECOVERED})
    asked = Expectation.from_item({"metric": "recovery.total", **item})
    assert judged(rows, asked).verdict is INCONCLUSIVE


@pytest.mark.parametrize(
    ("bounds", "at_least", "holds"),
    [
        ({"min": "2 s"}, 2.0, True),
        ({"min": "2 s"}, 1.9, None),
        ({"min": "2 s", "max": "9 s"}, 3.0, None),
        ({"max": "9 s"}, 9.0, None),
        ({"max": "9 s"}, 9.1, False),
        ({"equals": "9 s"}, 9.1, False),
    ],
)
def test_a_lower_bound_can_reach_a_minimum_and_exceed_a_maximum(
    bounds: dict[str, str], at_least: float, holds: bool | None
):
    """The true value is at least as large as what was observed."""
    row = metric_row("recovery.detect", at_least, reason=m.NOT_RECOVERED)
    assert Expectation(metric="recovery.detect", **bounds).holds(row) is holds


LATENCY = {"metric": "latency", "quantile": 0.99}
RELATIVE = {"metric": "latency.relative", "quantile": 0.99, "max": "2"}
DOUBTS = [
    ("exact clocks", {**LATENCY, "max": "40 ms"}, 0.03, 0.0, PASS, ""),
    ("the bound is out of reach", {**LATENCY, "max": "90 ms"}, 0.03, 0.05, PASS, ""),
    ("the bound is within reach", {**LATENCY, "max": "40 ms"}, 0.03, 0.05, INCONCLUSIVE, m.CLOCKS_DIFFER),
    ("what fails might pass", {**LATENCY, "max": "40 ms"}, 0.06, 0.05, INCONCLUSIVE, m.CLOCKS_DIFFER),
    ("what fails fails anyway", {**LATENCY, "max": "40 ms"}, 0.1, 0.05, FAIL, ""),
    ("at least", {**LATENCY, "min": "20 ms"}, 0.03, 0.05, INCONCLUSIVE, m.CLOCKS_DIFFER),
    ("a ratio of latencies", RELATIVE, 1.1, 0.05, INCONCLUSIVE, m.CLOCKS_DIFFER),
    ("times of one process", {"metric": "checkpoints.duration", "max": "40 ms"}, 0.03, 0.05, PASS, ""),
]


@pytest.mark.parametrize(("case", "item", "value", "clocks", "verdict", "reason"), DOUBTS)
def test_clocks_that_differ_make_a_verdict_inconclusive_only_where_they_could_change_it(
    case: str, item: dict[str, Any], value: float, clocks: float, verdict: Verdict, reason: str
):
    """A latency between two nodes is off by the difference of their clocks."""
    measured = metric_row(item["metric"], value, quantile=item.get("quantile"))
    rows = [*good_rows(), measured, metric_row("clocks.difference", clocks)]
    found = judged(rows, Expectation.from_item(item))
    assert (found.verdict, found.reason) == (verdict, reason), case


def test_a_quantile_over_trials_and_a_comparison_need_equal_clocks():
    """One trial on a node whose clock differs is enough to leave them open."""
    trials = tuple(TrialFacts(trial=f"main-{n}", faults=("gc",)) for n in range(1, 4))
    rows = [replace(one, trial=t.trial) for t in trials for one in good_rows()]
    rows.append(metric_row("clocks.difference", 0.05, trial="main-2"))
    for bound, verdict in (("7.52 s", INCONCLUSIVE), ("8 s", PASS)):
        item = {"metric": "recovery.total", "quantile": 0.5, "max": bound}
        assert judged(rows, Expectation.from_item(item), trials=trials).verdict is verdict
    item = {"metric": "recovery.total", "versus": "other", "within": "1 s"}
    found = judged(rows, Expectation.from_item(item), trials=trials)
    assert (found.verdict, found.reason) == (INCONCLUSIVE, m.CLOCKS_DIFFER)
