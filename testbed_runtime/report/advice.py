"""Choose, by fixed rules, the sentences of "What to look at first" and "What this run cannot tell"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement import quantities
from testbed_runtime.core.judgement.metrics import LOWER_BOUNDS, NOT_DRAINED, RUN_FAILED, MetricRow, fix_of
from testbed_runtime.core.judgement.verdict import Judged, Verdict
from testbed_runtime.core.trial.manifest import RunManifest, TrialEntry
from testbed_runtime.report import aggregate, words
from testbed_runtime.report.answer import close_margins, margin_words
from testbed_runtime.report.model import FULL_TRIALS, FaultView, TrialView

FIRST_MAX = 6
NOTABLE_SLOWDOWN = 1.5
"""p99 latency gets a sentence if it is at least this many times that of the control run."""
_GUESS = re.compile(r"\. This (?:is usually caused by|can either mean|indicates)")
"""Matches the possible reason that Flink appends to an error."""


def first_things(
    trials: Sequence[TrialView],
    expectations: Sequence[Judged],
    faults: Sequence[FaultView],
    entries: Sequence[TrialEntry],
) -> list[str]:
    """Return at most FIRST_MAX sentences: what broke, which option cost most, what weakens the result."""
    judged = any(i.metric == "fault.verified" for i in expectations)
    undecided = {i.trial for i in expectations if i.verdict is not Verdict.PASS and i.reason == NOT_DRAINED}
    weak = _weak(() if judged else faults, entries, undecided)
    merged = aggregate.expectations(expectations) if len(trials) > FULL_TRIALS else expectations
    costs = list(_costs(trials))
    failed = list(_broken(merged, (Verdict.ERROR, Verdict.FAIL)))
    broken = [*failed, *_broken(merged, (Verdict.INCONCLUSIVE,))]
    room = max(FIRST_MAX - len(costs), FIRST_MAX // 2)  # the cost keeps its place beside failures
    if len(broken) > room:
        broken[room - 1 :] = [f"{len(broken) - room + 1} more did not pass; see the expectations."]
    # the cost explains what failed; what is unknown because of it comes after
    first = len(failed) or len(broken)
    found = [*broken[:first], *costs, *broken[first:], *weak, *_slow(trials)]
    unique = list(dict.fromkeys(found))
    return unique[:FIRST_MAX] or ["Nothing stands out: every expectation passed, and there was no failover."]


def _broken(expectations: Sequence[Judged], verdicts: Sequence[Verdict]) -> Iterable[str]:
    """Yield a sentence for each reason why an expectation did not pass. Without a Fail or an Error, an Inconclusive one also says what to
    do about it."""
    undecided = not any(i.verdict in (Verdict.ERROR, Verdict.FAIL) for i in expectations)
    for verdict in verdicts:
        for where, items in _by_reason(i for i in expectations if i.verdict is verdict):
            item = items[0]
            if item.reason == RUN_FAILED and item.measured:
                yield f"Error: {where} could not be completed: {item.measured.removesuffix('.')}."
                continue
            measured = f"measured {item.measured}" if item.measured else ""
            why = "; ".join(part for part in (measured, item.explanation) if part)
            more = f", and {len(items) - 1} more for the same reason" if len(items) > 1 else ""
            fix = f" {fix_of(item.reason)}".rstrip() if undecided else ""
            yield (
                f"{verdict} in {where}: {item.text}"
                + (f" ({why.removesuffix('.')})" if why else "")
                + f"{more}.{fix}"
            )


def _by_reason(items: Iterable[Judged]) -> Iterable[tuple[str, list[Judged]]]:
    """Group the items of one trial that share a reason. An item without a reason forms its own group."""
    of = ((i.where or "the run", number, i) for number, i in enumerate(items))
    groups = grouped(((where, item.explanation or str(number)), item) for where, number, item in of)
    return [(where, found) for (where, _), found in groups.items()]


def _costs(trials: Sequence[TrialView]) -> Iterable[str]:
    """Yield one sentence per variant, or per fault of a variant with several: what cost most, and a second one if another wait came close to
    its limit."""
    for answer in aggregate.by_variant(trials):
        where = f"{answer.variant}{answer.after}"
        price = next(iter(answer.prices), None)
        if price is not None:
            mean = " on average" if len(answer.recoveries) > 1 else ""
            spent = "went to" if price.option else "was spent waiting for"
            spent += " the" if price.words.startswith("end of ") else ""
            own, whole = quantities.seconds(price.seconds), quantities.seconds(answer.total_s)
            share = words.percent(price.seconds / answer.total_s)
            yield f"{where}: {own} of {whole}{mean} ({share}) {spent} {price.words}."
        for margin in close_margins(answer)[:1]:
            yield f"{where}: close to its limit: {margin_words(margin)}."


def _weak(
    faults: Sequence[FaultView], entries: Sequence[TrialEntry], undecided: Container[Any]
) -> Iterable[str]:
    """Yield what weakens the result. `undecided`: the trials of which an expectation already says that they were not drained."""
    for fault in faults:
        if fault.effect != "verified":
            yield f"Fault {words.named(fault.name)} in {fault.trial} was not observed to take effect ({fault.effect})."
        if fault.residue == "residue":
            yield f"Fault {words.named(fault.name)} in {fault.trial} left residue behind."
    for entry in entries:
        if entry.voided:
            yield f"Trial {entry.trial} is void and was not evaluated."
        known = entry.trial in undecided and not entry.stop_refused
        if entry.drained is False and not entry.error and not known:
            yield _undrained(entry)


def _undrained(entry: TrialEntry) -> str:
    """Return a sentence about why it is unknown which records should have arrived."""
    if entry.job_state == "FAILED":
        first = _GUESS.split(entry.cause)[0]
        cause = f": {first}" if first else ""
        text = f"The job of {entry.trial} failed, so its delivery cannot be judged{cause}"
        return text.rstrip(".") + "."
    why = (
        f"was not drained: {entry.stop_refused} Its"
        if entry.stop_refused
        else "was not drained in time, so its"
    )
    return f"Trial {entry.trial} {why} delivery cannot be judged."


def _slow(trials: Sequence[TrialView]) -> Iterable[str]:
    """Yield a sentence about the phase that was slowest in comparison with the control run."""
    found = [(t.trial, phase) for t in trials if not t.is_control for phase in t.latencies]
    ratios = [(p.cells[-1].against_control or 0.0, name, p) for name, p in found if p.phase != "baseline"]
    worst = max(ratios, key=lambda one: one[0], default=None)
    if worst and worst[0] >= NOTABLE_SLOWDOWN:
        ratio, trial, phase = worst
        shown, times = phase.cells[-1].shown, words.times(ratio)
        yield f"{trial}: p99 latency in the {phase.title.lower()} phase was {shown}, {times} that of the control run."


def limits_of(
    manifest: RunManifest, trials: Sequence[TrialView], metrics: Sequence[MetricRow]
) -> Iterable[str]:
    """Yield the sentences of "What this run cannot tell"."""
    if manifest.interrupted:
        yield "The run was interrupted. The report shows what was recorded until then."
    of_variant = Counter(trial.variant for trial in trials if not trial.is_control)
    if max(of_variant.values(), default=0) == 1:
        yield "There is one trial per variant: times are single observations, not distributions."
    if not any(t.is_control for t in trials):
        yield "There was no control run, so the effect of the fault cannot be separated from noise of the machine."
    yield from _limits_of_values(metrics)
    for series in (t.series for t in trials if t.series):
        for problem in series.problems:
            yield f"History of {series.trial}: {problem}"
    if manifest.environment == "local":
        yield "All processes share one machine: absolute rates and latencies describe it, not a cluster."
    if manifest.environment == "simulation":
        yield "Times are virtual. Processing a record takes no time unless `headgate.simulation.cost` or `serviceTime` is set."
    yield "Latency quantiles come from histograms whose buckets grow by 25 %, so they may be off by up to 12.5 %."


def _limits_of_values(metrics: Sequence[MetricRow]) -> Iterable[str]:
    """Yield what limits the measured values: an early end, missing rows, clocks that differ."""
    bounds = sorted({r.metric for r in metrics if r.reason in LOWER_BOUNDS})
    if bounds:
        yield f"These values are only lower bounds, because the observation ended first: {', '.join(bounds)}."
    missing = sum(r.value or 0 for r in metrics if r.metric == "history.missing")
    if missing:
        yield f"{quantities.count(missing)} history rows are missing."
    clocks = [r for r in metrics if r.metric == "clocks.difference" and r.value]
    if clocks:
        worst = max(clocks, key=lambda r: r.value or 0.0)
        most = f"{quantities.seconds(worst.value)} ({worst.text})"
        yield f"The clocks of the processes differ by up to {most}: latencies, lags and recovery times are no more exact than that."
