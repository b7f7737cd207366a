"""The checks that a verdict lists, and the words and fields of verdict.json."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.judgement.judge import judge
from testbed_runtime.core.judgement.verdict import RunVerdict, TrialFacts, controls_of
from tests.core.test_verdict import (
    CONTROL,
    DETECT,
    FAIL,
    INCONCLUSIVE,
    PASS,
    TRIAL,
    control_row,
    good_rows,
    judged,
    many,
)
from tests.manifests import trial_entry
from tests.metricrows import metric_row


def words(found: RunVerdict) -> dict[str, tuple[str, str, str]]:
    """Text → verdict, reason and what was measured, of everything that was judged."""
    return {j.text: (str(j.verdict), j.reason, j.measured) for j in found.judged}


def test_every_check_of_a_good_trial_is_listed():
    """Safety, the effect of the fault, no residue, records at the end; nothing about what is as it should be and not asked."""
    found = judged(good_rows())
    assert words(found) == {
        **{f"{name} equals 0": ("Pass", "", "0") for name in m.SAFETY},
        "fault gc takes effect": ("Pass", "", "verified"),
        "fault.residue equals 0": ("Pass", "", "0"),
        "records arrive at the end": ("Pass", "", ""),
        "recovery.detect at most 5.5 s": ("Pass", "", "4.50 s"),
    }
    assert found.summary == "All 10 expectations passed."
    assert [j.implied for j in found.judged] == [True] * 9 + [False]
    assert found.to_json()["expectations"][-1] == {
        "text": "recovery.detect at most 5.5 s", "metric": "recovery.detect", "variant": "main", "trial": "main-1", "verdict": "Pass",
        "quantile": None, "phase": "", "asked": "at most 5.5 s", "measured": "4.50 s", "value": 4.5, "at_least": False, "reason": "", "explanation": "",
        "bounded_by": "heartbeat.timeout = 5 s", "implied": False, "note": "",
    }  # fmt: skip
    assert found.to_json() | {"expectations": []} == {
        "schema": 1, "verdict": "Pass", "exitCode": 0, "reason": "", "summary": "All 10 expectations passed.", "stopped": "",
        "variants": ({"variant": "main", "verdict": "Pass"},), "expectations": [], "causes": (), "answer": (),
    }  # fmt: skip


CHECKS = [
    ({"fault_verified": 0}, "fault gc takes effect", ("Inconclusive", m.FAULT_NOT_VERIFIED, "unverified")),
    ({"fault_verified": {"value": None}}, "fault gc takes effect", ("Inconclusive", m.FAULT_NOT_VERIFIED, "")),
    ({"fault_verified": None}, "fault gc takes effect", ("Inconclusive", m.FAULT_NOT_VERIFIED, "")),
    ({"fault_verified": {"value": 0, "reason": m.VOIDED}}, "fault gc takes effect", ("Inconclusive", m.VOIDED, "unverified")),
    ({"fault_residue": 1}, "fault.residue equals 0", ("Error", m.RESIDUE, "1")),
    ({"fault_residue": None}, "faults leave no residue", ("Inconclusive", m.RESIDUE_NOT_MEASURED, "")),
    ({"history_missing": 1}, "the history is complete", ("Inconclusive", m.HISTORY_INCOMPLETE, "")),
    ({"history_missing": {"value": None}}, "the history is complete", ("Inconclusive", m.NO_DATA, "")),
    ({"history_missing": None}, "the history is complete", ("Inconclusive", m.NO_DATA, "")),
    ({"liveness_at_end": 0}, "records arrive at the end", ("Inconclusive", m.NO_THROUGHPUT, "")),
    ({"liveness_at_end": None}, "records arrive at the end", ("Inconclusive", m.NO_DATA, "")),
    ({"job_state": {"text": "CANCELED"}}, "the job keeps running", ("Fail", "", "CANCELED: ")),
    ({"job_state": {"text": "FAILING"}}, "the job keeps running", ("Fail", "", "FAILING: ")),
    ({"recovery_total": {"value": 9.0, "reason": m.NOT_RECOVERED}}, "the job recovers from its faults", ("Inconclusive", m.NOT_RECOVERED, "at least 9.00 s")),
    ({"delivery_lost": 2}, "delivery.lost equals 0", ("Fail", "", "2")),
    ({"delivery_lost": {"value": 2, "reason": m.NOT_DRAINED}}, "delivery.lost equals 0", ("Fail", "", "2")),
    ({"delivery_lost": {"value": 0, "reason": m.NOT_DRAINED}}, "delivery.lost equals 0", ("Inconclusive", m.NOT_DRAINED, "0")),
    ({"delivery_lost": None}, "delivery.lost equals 0", ("Inconclusive", m.NO_DATA, "")),
    ({"buffers_leaked": {"value": None, "reason": m.NOT_COUNTED}}, "buffers.leaked equals 0", ("Pass", m.NOT_COUNTED, "")),
    ({"credit_violations": {"value": None, "reason": m.NOT_SAMPLED}}, "credit.violations equals 0", ("Pass", m.NOT_SAMPLED, "")),
    ({"recovery_detect": 6.0}, "recovery.detect at most 5.5 s", ("Fail", "", "6.00 s")),
    ({"recovery_detect": None}, "recovery.detect at most 5.5 s", ("Inconclusive", m.NO_DATA, "")),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "text", "item"), CHECKS)
def test_each_check_says_what_it_found(changes: dict[str, Any], text: str, item: tuple[str, str, str]):
    """Its verdict, its reason and the measured value. Only the expectation of the scenario is not built in."""
    found = judged(good_rows(**changes))
    assert words(found)[text] == item
    assert [j.text for j in found.judged if not j.implied] == [DETECT.text]


def test_a_trial_without_faults_has_no_residue_to_check():
    """And no effect."""
    found = judged(good_rows(), trials=(TrialFacts(trial="main-1"),))
    assert not [j for j in found.judged if j.metric in ("fault.residue", "fault.verified")]


def test_of_a_control_trial_only_a_violation_of_safety_is_listed():
    """The rows that it lacks are no gap in the evidence."""
    rows = [*good_rows(), control_row(1), metric_row("delivery.lost", None, trial="main-control-1")]
    found = judged(rows, trials=(CONTROL, TRIAL))
    assert {j.trial for j in found.judged} == {"main-1"}
    broken = judged(
        [*rows, metric_row("delivery.duplicated", 1, trial="main-control-1")], trials=(CONTROL, TRIAL)
    )
    assert [(j.trial, str(j.verdict)) for j in broken.judged if j.trial != "main-1"] == [
        ("main-control-1", "Fail")
    ]


SUMMARIES = [
    ({"recovery_detect": 6.0}, "recovery.detect at most 5.5 s in main-1: measured 6.00 s."),
    ({"recovery_detect": None}, "recovery.detect at most 5.5 s in main-1: the history has no data for this."),
    ({"delivery_lost": 2, "recovery_detect": 6.0}, "delivery.lost equals 0 in main-1: measured 2 (and 1 more)."),
    ({"fault_residue": 2}, "fault.residue equals 0 in main-1: 2."),
    ({"fault_verified": 0, "recovery_detect": 6.0}, "fault gc takes effect in main-1: the fault was not observed to take effect (and 1 more)."),
    (
        {"buffers_leaked": {"value": None, "reason": m.NOT_COUNTED}, "delivery_lost": {"value": None, "reason": m.FILTERED}},
        "All 10 expectations passed. Not judged: delivery.lost (a function of the scenario dropped records, so it is unknown "
        "which records should have arrived); buffers.leaked ("
        + m.reason_text(m.NOT_COUNTED)
        + ").",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "summary"), SUMMARIES)
def test_the_summary_is_the_first_thing_that_decided(changes: dict[str, Any], summary: str):
    """With its place, its reason or value, and how many more there are."""
    assert judged(good_rows(**changes)).summary == summary


def test_the_last_failure_of_the_summary_is_that_of_the_trial_that_decided():
    """A trial whose job did not fail has none. For the run as a whole, it is that of the first trial whose job failed, with its name."""
    trials = (
        TrialFacts(trial="main-1", cause="first"),
        TrialFacts(trial="main-2", cause="second"),
        TrialFacts(trial="main-3"),
    )
    rows = [metric_row(r.metric, r.value, trial=t.trial, text=r.text) for t in trials for r in good_rows()]

    def late(trial: str) -> str:
        slow = (trial, "recovery.detect")
        changed = [replace(r, value=6.0) if (r.trial, r.metric) == slow else r for r in rows]
        return judged(changed, trials=trials).summary

    assert late("main-2").endswith("measured 6.00 s. Last failure of the job: second")
    assert late("main-3").endswith("measured 6.00 s.")
    failed = judged(rows, trials=trials, error="the machine is full")
    assert (
        failed.summary
        == "the run could not be completed: the machine is full. Last failure of the job in main-1: first"
    )


def test_a_run_that_ends_early_says_so():
    """Healed faults are Inconclusive, an error is an error, and nothing at all is nothing to judge."""
    healed = judge(
        trials=(TRIAL,),
        expectations={"main": (DETECT,)},
        rows=good_rows(),
        healed="by the user",
        stopped="It decided.",
    )
    assert (healed.verdict, healed.reason) == (INCONCLUSIVE, m.HEALED)
    assert healed.summary == f"the run completes: {m.reason_text(m.HEALED)}. It decided."
    assert healed.to_json()["stopped"] == "It decided."
    assert [(j.text, j.implied) for j in healed.judged if j.reason == m.HEALED] == [
        ("the run completes", True)
    ]
    failed = judged(good_rows(), error="the machine is full")
    assert failed.summary == "the run could not be completed: the machine is full."
    assert failed.to_json()["expectations"][0] == {
        "text": "the run completes", "metric": "", "variant": "", "trial": "", "verdict": "Error", "quantile": None, "phase": "",
        "asked": "", "measured": "the machine is full", "value": None, "at_least": False, "reason": m.RUN_FAILED,
        "explanation": m.reason_text(m.RUN_FAILED), "bounded_by": "", "implied": True, "note": "",
    }  # fmt: skip
    nothing = judge(trials=(), expectations={}, rows=())
    assert (nothing.verdict, nothing.summary, nothing.reason) == (
        INCONCLUSIVE,
        "There was nothing to judge.",
        "",
    )
    empty = judge(trials=(), expectations={"main": (DETECT,)}, rows=())
    assert [(j.text, j.reason, j.implied) for j in empty.judged] == [
        ("at least one trial can be judged", m.NO_DATA, True)
    ]
    assert empty.summary == "at least one trial can be judged in main: the history has no data for this."


def test_the_facts_of_a_trial_come_from_the_manifest():
    """With a default for each that is missing."""
    assert TrialFacts.from_manifest(trial_entry(trial="t")) == TrialFacts(trial="t")
    entry = trial_entry(
        trial="t", variant="v", role="control", voided=True, error="e", faults=[{"name": "gc"}], cause="c", number=3
    )  # fmt: skip
    assert TrialFacts.from_manifest(entry, replaced=True, control="x") == TrialFacts(
        trial="t", variant="v", role="control", voided=True, replaced=True, control="x", error="e", faults=("gc",), cause="c", number=3,
    )  # fmt: skip
    counts = {"role": {"role": "control"}, "voided": {"voided": True}, "error": {"error": "e"}}
    assert TrialFacts(trial="t").counts
    assert not any(TrialFacts(trial="t", **more).counts for more in counts.values())


def test_a_failed_trial_is_an_error_unless_it_was_void():
    """A void trial that failed too is only void."""
    found = judged([], trials=(TrialFacts(trial="main-1", voided=True, error="e"),))
    assert [(j.reason, str(j.verdict)) for j in found.judged] == [(m.VOIDED, "Inconclusive")]
    failed = judged([], trials=(TrialFacts(trial="main-1", error="e"),))
    assert [(j.reason, j.trial, j.measured) for j in failed.judged] == [(m.RUN_FAILED, "main-1", "e")]
    unused = [
        trial_entry(trial="c", role="control", error="e"),
        trial_entry(trial="d", role="control", voided=True),
    ]
    assert controls_of([*unused, trial_entry(trial="a", faults=[{"name": "gc"}])]) == {}


def test_a_control_run_that_failed_or_is_void_is_not_asked():
    """And two rows about its stability are as bad as none."""
    for more in ({"voided": True, "replaced": True}, {"error": "e"}):
        facts = TrialFacts(trial="main-control-1", role="control", **more)
        asked = [j for j in judged(good_rows(), trials=(facts, TRIAL)).judged if not j.implied]
        assert [j.verdict for j in asked] == [PASS]
    twice = judged([*good_rows(), control_row(1), control_row(1)], trials=(CONTROL, TRIAL))
    assert twice.reason == m.CONTROL_UNSTABLE


def test_numbers_that_are_not_finite_are_no_values():
    """NaN would satisfy nothing and violate nothing."""
    for value in (float("nan"), float("inf")):
        assert judged(good_rows(recovery_detect=value)).reason == m.NO_DATA


def test_the_quantile_over_trials_is_the_value_at_its_rank():
    """The third of four for p75; a lower bound among them is one for the quantile too."""
    asked = Expectation.from_item({"metric": "recovery.detect", "quantile": "0.75", "max": "3 s"})
    trials, rows = many([4.0, 1.0, 3.0, 2.0])
    (found,) = [j for j in judged(rows, asked, trials=trials).judged if not j.implied]
    assert (found.verdict, found.value, found.measured, found.trial, found.quantile) == (
        PASS,
        3.0,
        "3.00 s",
        "",
        0.75,
    )
    assert found.note.startswith("3 of 4 trials are within the bound")
    trials, rows = many([4.0, 1.0, 3.0, 2.0], reason=m.NOT_RECOVERED)
    (found,) = [j for j in judged(rows, asked, trials=trials).judged if not j.implied]
    assert (found.verdict, found.reason, found.measured) == (INCONCLUSIVE, m.NOT_RECOVERED, "at least 3.00 s")
    trials, rows = many([4.0, 5.0, 6.0, 2.0])
    (found,) = [j for j in judged(rows, asked, trials=trials).judged if not j.implied]
    assert (found.verdict, found.value) == (FAIL, 5.0)
    least = Expectation.from_item({"metric": "recovery.detect", "quantile": "0.5", "min": "2 s"})
    trials, rows = many([1.0, 2.0])
    (found,) = [j for j in judged(rows, least, trials=trials).judged if not j.implied]
    assert (found.verdict, found.value) == (FAIL, 1.0)


def test_details_and_least_values_are_shown():
    """The text of a detailed metric stands beside its value. A least value of every trial needs one trial only."""
    gate = [
        *good_rows(),
        metric_row("buffers.gate", 16, text="a 4 × 2 + 8"),
        metric_row("buffers.used", 0.5, text="tm-0 50 %", phase="fault"),
    ]
    items = [
        {"metric": "buffers.gate", "max": "20"},
        {"metric": "buffers.used", "phase": "fault", "max": "60 %"},
    ]
    asked = [j.measured for j in judged(gate, *map(Expectation.from_item, items)).judged if not j.implied]
    assert asked == ["16 (a 4 × 2 + 8)", "50.0 %"]
    least = Expectation.from_item({"metric": "recovery.detect", "quantile": "1", "min": "4 s"})
    trials, rows = many([4.0])
    (found,) = [j for j in judged(rows, least, trials=trials).judged if not j.implied]
    assert (found.verdict, found.note) == (
        PASS,
        "1 of 1 trials are within the bound: with 95 % confidence at least 5 % of all trials are",
    )


def test_a_pass_names_the_trials_in_which_something_was_not_judged():
    """Each reason has its own metrics. Trials are named if there are others in which they were judged."""
    lost = {"value": None, "reason": m.FILTERED}
    rows = [
        *good_rows(delivery_lost=lost),
        *(replace(r, trial="main-2") for r in good_rows() if r.trial == "main-1"),
    ]
    other = TrialFacts(trial="main-2", faults=("gc",))
    summary = judged(rows, trials=(TRIAL, other)).summary
    assert "Not judged: delivery.lost in main-1 (a function of the scenario" in summary


def test_metrics_that_were_not_judged_in_different_trials_are_named_apart():
    """The reason is the same."""
    unknown = {"value": None, "reason": m.FILTERED}
    rows = [
        *(r for r in good_rows(delivery_lost=unknown)),
        *(replace(r, trial="main-2") for r in good_rows(delivery_duplicated=unknown) if r.trial == "main-1"),
    ]
    summary = judged(rows, trials=(TRIAL, TrialFacts(trial="main-2", faults=("gc",)))).summary
    assert "Not judged: delivery.lost in main-1 (a function" in summary
    assert "; delivery.duplicated in main-2 (a function" in summary
