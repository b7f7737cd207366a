"""Judge a run: Error > Fail > Inconclusive > Pass, from metric rows, facts about trials, and expectations.

    finding                                            verdict
    the run could not be completed, or left residue    Error
    a safety metric is violated in a trial             Fail, even without an expectation and whatever else holds
    the job failed for good, and no state is expected  Fail, if every fault took effect that could begin
    rows missing, trial void, control unstable,
    fault not verified, no value, too few trials       Inconclusive with that reason
    an expectation is not met                          Fail
    every expectation is met                           Pass; without expectations and evidence, Inconclusive

Missing evidence never leads to Pass. A void trial is not evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement import samplesize
from testbed_runtime.core.judgement.expectations import AT_LEAST_ONCE, Expectation, show
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.verdict import Judged, RunVerdict, TrialFacts, Verdict, most_severe

LEAKED = "buffers.leaked"


def judge(
    *,
    trials: Sequence[TrialFacts],
    expectations: Mapping[str, Sequence[Expectation]],
    rows: Sequence[MetricRow],
    error: str = "",
    healed: str = "",
    looks: int = 1,
    stopped: str = "",
) -> RunVerdict:
    """Judge a run. `expectations` are merged, by variant. `rows` are those of all trials. `error` says why
    the run as a whole failed. `healed` says what stopped the run by healing its faults. `looks` is how often
    the run may look at its comparisons; their intervals are corrected for that. `stopped` is a sentence about
    a run that ended early."""
    variants = list(dict.fromkeys([*expectations, *(t.variant for t in trials)]))
    by_trial: dict[str, list[MetricRow]] = {}
    for row in rows:
        by_trial.setdefault(row.trial, []).append(_finite(row))
    judged: list[Judged] = []
    verdicts: dict[str, Verdict] = {}
    by_variant = {variant: [t for t in trials if t.variant == variant] for variant in variants}
    for variant in variants:
        found = _VariantJudge(variant, by_variant, expectations.get(variant, ()), by_trial, looks).judge()
        verdicts[variant] = most_severe(j.verdict for j in found)
        judged.extend(found)
    if healed:
        judged.insert(0, _run_healed(healed))
    if error:
        judged.insert(0, _run_error("", "", error))
    causes = {
        t.trial: cause for t in trials if not t.voided and (cause := _cause(t, by_trial.get(t.trial, ())))
    }
    return RunVerdict.of(judged, variants=verdicts, causes=causes, stopped=stopped)


def _cause(trial: TrialFacts, rows: Iterable[MetricRow]) -> str:
    """Return the last root cause of a trial, from its history or, without one, as the runner recorded it."""
    return next((r.text for r in rows if r.metric == "job.cause" and r.text), trial.cause)


def _combined(expectation: Expectation, value: float | None, reason: str = "") -> MetricRow:
    """Return a row for a value of several trials."""
    return MetricRow("", "", expectation.metric, expectation.phase, None, value, "", "", reason)


def _finite(row: MetricRow) -> MetricRow:
    """Treat NaN and infinity as missing, so that they cannot satisfy a bound."""
    value = row.value
    return row if value is None or math.isfinite(value) else replace(row, value=None)


def _run_error(variant: str, trial: str, error: str) -> Judged:
    return Judged(
        text="the run completes", metric="", variant=variant, trial=trial, verdict=Verdict.ERROR,
        measured=error, reason=m.RUN_FAILED, implied=True,
    )  # fmt: skip


def _run_healed(healed: str) -> Judged:
    return Judged(
        text="the run completes", metric="", variant="", trial="", verdict=Verdict.INCONCLUSIVE,
        measured=healed, reason=m.HEALED, implied=True,
    )  # fmt: skip


class _VariantJudge:
    """One variant: its trials, control trials and expectations."""

    def __init__(
        self,
        variant: str,
        by_variant: Mapping[str, Sequence[TrialFacts]],
        expectations: Sequence[Expectation],
        rows: Mapping[str, Sequence[MetricRow]],
        looks: int,
    ) -> None:
        self.variant = variant
        self.by_variant = by_variant
        self.trials = by_variant[variant]
        self.expectations = expectations
        self.rows = rows
        self.confidence = samplesize.corrected(looks)
        self.unstable = self._unstable_control(self.trials)

    def judge(self) -> list[Judged]:
        """Judge the variant. A voided trial is not evaluated; if no repetition replaces it, that is reported."""
        live = [t for t in self.trials if t.counts]
        judged = [_run_error(self.variant, t.trial, t.error) for t in self.trials if t.error and not t.voided]
        for trial in self.trials:
            if not trial.voided:
                judged.extend(self._implied(trial, counts=trial in live))
        for expectation in self.expectations:
            if expectation.problem:
                judged.append(self._item(expectation, None, None, Verdict.ERROR, m.AMBIGUOUS))
            elif expectation.versus:
                judged.append(self._versus(expectation, live))
            elif expectation.over_trials:
                judged.append(self._over_trials(expectation, live))
            else:
                judged.extend(self._one(expectation, t) for t in live)
        holes = [t.trial for t in self.trials if t.voided and not t.replaced]
        judged.extend(self._nothing_to_judge(trial, m.VOIDED) for trial in holes)
        if not live and not holes and not judged:
            judged.append(self._nothing_to_judge("", m.NO_DATA))
        return judged

    # ---- built-in checks

    def _implied(self, trial: TrialFacts, *, counts: bool) -> list[Judged]:
        asked = {e.metric for e in self.expectations} if counts else set()
        judged = [j for name in m.SAFETY if name not in asked and (j := self._safety(name, trial, counts))]
        if trial.role == "control" or not counts:
            return judged
        judged += [self._effect(fault, trial) for fault in trial.faults]
        judged += self._residue(trial)
        judged += self._end(trial)
        missing = self._row(trial, "history.missing")
        if missing is None or missing.value is None or missing.value > 0:
            reason = m.HISTORY_INCOMPLETE if missing is not None and missing.value else m.NO_DATA
            judged.append(
                self._implied_item("the history is complete", "history.missing", trial, reason, missing)
            )
        return judged

    def _safety(self, name: str, trial: TrialFacts, counts: bool) -> Judged | None:
        """Judge a safety metric. A violation is always Fail; a missing value matters only if the trial counts."""
        row = self._row(trial, name)
        value = None if row is None else row.value
        expectation = Expectation(metric=name, equals="0")
        if row is not None and row.text == AT_LEAST_ONCE:
            return None
        if value is not None and value > 0:
            return self._item(expectation, trial, row, Verdict.FAIL, "", implied=True)
        if not counts:
            return None
        reason = m.NO_DATA if row is None else row.reason or (m.NO_DATA if value is None else "")
        if name == LEAKED and row is None:
            return None  # recorded before TaskManagers counted their buffers
        if reason in m.NOT_JUDGED or (reason == m.JOB_FAILED and self._expects_a_job_state()):
            # nothing can be judged, which is not a violation; the item has the reason
            return self._item(expectation, trial, row, Verdict.PASS, reason, implied=True)
        verdict = Verdict.INCONCLUSIVE if reason else Verdict.PASS
        return self._item(expectation, trial, row, verdict, reason, implied=True)

    def _expects_a_job_state(self) -> bool:
        """Whether the scenario judges the end of the job itself. A failed job then need not deliver
        everything."""
        return any(e.metric in ("job.state", "job.failure") for e in self.expectations)

    def _effect(self, fault: str, trial: TrialFacts) -> Judged:
        row = next((r for r in self._all(trial, "fault.verified") if r.text == fault), None)
        verified = row is not None and row.value == 1
        reason = "" if verified else _unverified(row)
        return self._implied_item(f"fault {fault} takes effect", "fault.verified", trial, reason, row)

    def _residue(self, trial: TrialFacts) -> list[Judged]:
        row = self._row(trial, "fault.residue")
        if not trial.faults:
            return []
        if row is None or row.value is None:
            text = "faults leave no residue"
            return [self._implied_item(text, "fault.residue", trial, m.RESIDUE_NOT_MEASURED, row)]
        verdict = Verdict.ERROR if row.value > 0 else Verdict.PASS
        item = Expectation(metric="fault.residue", equals="0")
        return [self._item(item, trial, row, verdict, m.RESIDUE if row.value > 0 else "", implied=True)]

    def _end(self, trial: TrialFacts) -> list[Judged]:
        """Check the state in which the faults left the job: it runs, records arrive, and it has recovered.

        A job that failed for good, even if it still cancels its tasks, fails the scenario, because a longer observation
        would show nothing else, unlike with a job that has not recovered yet. If the scenario expects a state of the job,
        only that expectation judges it."""
        state = self._row(trial, "job.state")
        if state is not None and state.text in ("FAILING", "FAILED", "CANCELED"):
            if self._expects_a_job_state():
                return []
            row = replace(state, text=f"{state.text}: {_cause(trial, self._all(trial, 'job.cause'))}")
            why_not = self._why_not(trial)
            if why_not == m.JOB_ENDED:
                why_not = ""  # its own failure kept the fault from beginning
            item = self._implied_item("the job keeps running", "job.state", trial, why_not, row)
            return [item if why_not else replace(item, verdict=Verdict.FAIL)]
        alive = self._row(trial, "liveness.at-end")
        reason = m.NO_DATA if alive is None else alive.reason or ("" if alive.value else m.NO_THROUGHPUT)
        found = [self._implied_item("records arrive at the end", "liveness.at-end", trial, reason, alive)]
        total = self._row(trial, "recovery.total")
        asked = any(
            e.metric == "recovery.total" and not e.versus and (e.max is not None or e.equals is not None)
            for e in self.expectations
        )
        if total is not None and total.reason == m.NOT_RECOVERED and not asked:
            text = "the job recovers from its faults"
            found.append(self._implied_item(text, "recovery.total", trial, m.NOT_RECOVERED, total))
        return found

    def _implied_item(
        self, text: str, metric: str, trial: TrialFacts, reason: str, row: MetricRow | None
    ) -> Judged:
        return Judged(
            text=text, metric=metric, variant=self.variant, trial=trial.trial, reason=reason, implied=True,
            verdict=Verdict.INCONCLUSIVE if reason else Verdict.PASS,
            value=None if row is None else row.value,
            measured=_seen(metric, row),
        )  # fmt: skip

    # ---- expectations

    def _one(self, expectation: Expectation, trial: TrialFacts) -> Judged:
        row = self._row(trial, expectation.metric, expectation.phase, expectation.quantile)
        holds = None if row is None else expectation.holds(row)
        safety = m.METRICS[expectation.metric].safety
        if safety and holds is False:
            return self._item(expectation, trial, row, Verdict.FAIL, "")
        reason = self._why_not(trial) if not safety else ""
        if not reason and holds is None:
            missing = m.NO_OUTAGE if "/" in expectation.phase else m.NO_DATA
            reason = missing if row is None else row.reason or m.NO_DATA
        if not reason and row is not None and not expectation.decided(row, self._clocks_s(trial)):
            reason = m.CLOCKS_DIFFER
        if reason:
            return self._item(expectation, trial, row, Verdict.INCONCLUSIVE, reason)
        return self._item(expectation, trial, row, Verdict.PASS if holds else Verdict.FAIL, "")

    def _over_trials(self, expectation: Expectation, live: Sequence[TrialFacts]) -> Judged:
        """Judge a quantile over one value per trial. A trial without a value makes it Inconclusive: leaving it out would
        make the result look better than it is."""
        quantile = expectation.quantile or 1.0
        reasons = [r for t in live if (r := self._why_not(t))]
        rows = [self._row(t, expectation.metric, expectation.phase) for t in live]
        values = [r.value for r in rows if r is not None and r.value is not None]
        lower = expectation.max is None and expectation.min is not None
        needed = m.trials_needed(quantile)
        if lower and quantile < 1:
            needed = max(needed, m.trials_needed(1 - quantile))
        if not reasons and len(live) < needed:
            reasons = [m.NOT_ENOUGH_TRIALS]
        bounds = [r.reason for r in rows if r is not None and r.reason]
        if not reasons and len(values) < len(live):
            reasons = [*bounds, m.NO_DATA]
        if reasons:
            return self._item(expectation, None, None, Verdict.INCONCLUSIVE, reasons[0])
        value = sorted(values)[max(0, math.ceil(quantile * len(values)) - 1)]
        row = _combined(expectation, value, bounds[0] if bounds else "")
        if not expectation.decided(row, max(map(self._clocks_s, live))):
            return self._item(expectation, None, row, Verdict.INCONCLUSIVE, m.CLOCKS_DIFFER)
        holds = expectation.holds(row)
        within = sum(expectation.holds(replace(row, value=v)) is True for v in values)
        note = samplesize.quantile_note(quantile=quantile, within=within, trials=len(values), lower=lower)
        if holds is None:
            return self._item(expectation, None, row, Verdict.INCONCLUSIVE, row.reason, note=note)
        return self._item(expectation, None, row, Verdict.PASS if holds else Verdict.FAIL, "", note=note)

    def _versus(self, expectation: Expectation, live: Sequence[TrialFacts]) -> Judged:
        """Judge a comparison of means with another variant. It is Inconclusive unless the interval decides it."""
        from testbed_runtime.core.judgement import comparison  # needs numpy, which most commands do without

        others = self.by_variant.get(expectation.versus, ())
        reference = [t for t in others if t.counts]
        if self._unstable_control(others):
            return self._item(expectation, None, None, Verdict.INCONCLUSIVE, m.CONTROL_UNSTABLE)
        reason = next((r for t in (*live, *reference) if (r := self._why_not(t))), "")
        if (
            not reason
            and m.METRICS[expectation.metric].clocks
            and any(map(self._clocks_s, (*live, *reference)))
        ):
            reason = m.CLOCKS_DIFFER
        if reason:
            return self._item(expectation, None, None, Verdict.INCONCLUSIVE, reason)
        key = comparison.Key(expectation.metric, expectation.quantile, expectation.phase)
        first, second = (
            [comparison.sample(key, t.number, self.rows.get(t.trial, ())) for t in trials]
            for trials in (reference, live)
        )
        found = comparison.contrast(
            key, (expectation.versus, first), (self.variant, second), confidence=self.confidence
        )
        holds = comparison.meets(expectation, found)
        reason = "" if holds is not None else comparison.undecided(expectation, found)
        verdict = Verdict.INCONCLUSIVE if holds is None else Verdict.PASS if holds else Verdict.FAIL
        value = None if found.improvement is None else found.improvement.value
        row = _combined(expectation, None)
        judged = self._item(expectation, None, row, verdict, reason, note=found.note)
        return replace(judged, measured=found.text, value=value)

    def _why_not(self, trial: TrialFacts) -> str:
        """Return why only safety counts in this trial; empty if all expectations count."""
        rows = {r.text: r for r in self._all(trial, "fault.verified")}
        for fault in trial.faults:
            row = rows.get(fault)
            if row is None or row.value != 1:
                return _unverified(row)
        missing = self._row(trial, "history.missing")
        if missing is not None and missing.value:
            return m.HISTORY_INCOMPLETE
        return m.CONTROL_UNSTABLE if self.unstable else ""

    def _clocks_s(self, trial: TrialFacts) -> float:
        """Return how many seconds the clocks of the trial's processes differ; 0 if they do not."""
        row = self._row(trial, "clocks.difference")
        return 0.0 if row is None else row.value or 0.0

    def _unstable_control(self, trials: Sequence[TrialFacts]) -> bool:
        own = [t.trial for t in trials if t.role == "control" and not t.voided and not t.error]
        names = dict.fromkeys([*own, *(t.control for t in trials if t.control)])
        rows = [[r for r in self.rows.get(n, ()) if r.metric == "control.stable"] for n in names]
        return any(len(found) != 1 or found[0].value != 1 for found in rows)

    def _nothing_to_judge(self, trial: str, reason: str) -> Judged:
        return Judged(
            text="at least one trial can be judged", metric="", variant=self.variant, trial=trial,
            verdict=Verdict.INCONCLUSIVE, reason=reason, implied=True,
        )  # fmt: skip

    # ---- rows

    def _all(self, trial: TrialFacts, metric: str) -> list[MetricRow]:
        return [r for r in self.rows.get(trial.trial, ()) if r.metric == metric]

    def _row(
        self, trial: TrialFacts, metric: str, phase: str = "", quantile: float | None = None
    ) -> MetricRow | None:
        """Return the only matching row. None if there is none, or if several match and the choice is
        ambiguous."""
        info = m.METRICS[metric]
        name, _, fault = phase.partition("/")
        phase = name if trial.faults == (fault,) else phase  # the rows of an only fault do not name it
        found = [
            r
            for r in self._all(trial, metric)
            if (not info.phased or r.phase == phase) and (not info.quantiles or r.quantile == quantile)
        ]
        return found[0] if len(found) == 1 else None

    def _item(
        self,
        expectation: Expectation,
        trial: TrialFacts | None,
        row: MetricRow | None,
        verdict: Verdict,
        reason: str,
        *,
        implied: bool = False,
        note: str = "",
    ) -> Judged:
        return Judged(
            text=expectation.text, metric=expectation.metric, variant=self.variant,
            trial="" if trial is None else trial.trial, verdict=verdict, quantile=expectation.quantile,
            phase=expectation.phase, asked=expectation.asked,
            measured=expectation.problem or ("" if row is None else self._shown(expectation, trial, row, verdict)),
            value=None if row is None else row.value, reason=reason,
            at_least=row is not None and row.reason in m.LOWER_BOUNDS,
            bounded_by="" if row is None else row.bounded_by, implied=implied, note=note,
        )  # fmt: skip

    def _shown(
        self, expectation: Expectation, trial: TrialFacts | None, row: MetricRow, verdict: Verdict
    ) -> str:
        """Format what was measured. For a job that failed unexpectedly, show its root cause. For a violation
        of safety, show its rows."""
        shown = expectation.shown(row)
        if row.text and m.METRICS[expectation.metric].shows_text(failed=verdict is Verdict.FAIL):
            return f"{shown} ({row.text})"
        if trial is None or verdict is Verdict.PASS or expectation.metric not in ("job.state", "job.failure"):
            return shown
        cause = _cause(trial, self._all(trial, "job.cause"))
        return f"{shown}: {cause}" if cause and shown else shown


def _seen(metric: str, row: MetricRow | None) -> str:
    """Say what the row of a built-in check found. The text of a fault's or a recovery's row is the fault's name."""
    if row is None or metric == "fault.verified":
        seen = None if row is None else row.value
        return "" if seen is None else "verified" if seen == 1 else "unverified"
    return show(row, metric) if metric == "recovery.total" else row.text


def _unverified(row: MetricRow | None) -> str:
    """Return why no effect of a fault was observed. The history decides, not what the runner recorded."""
    known = "" if row is None else row.reason
    return known if known in (m.VOIDED, m.JOB_ENDED) else m.FAULT_NOT_VERIFIED
