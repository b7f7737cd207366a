"""Many trials in few rows: expectations, faults and phases of trials that agree are one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec.structs import replace

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement import quantities
from testbed_runtime.core.judgement.verdict import Judged
from testbed_runtime.report.answer import VariantAnswer
from testbed_runtime.report.model import FaultView, TrialView

VALUES_SHOWN = 3
"""Maximum different measured values that a merged row lists."""
LONG = 80
"""If any value has this many characters, only the first one is listed, such as the round trips of many paths."""


def expectations(items: Sequence[Judged]) -> list[Judged]:
    """Merge the judgements of one expectation over the trials of a variant, one row for each verdict and reason."""

    def key(item: Judged) -> tuple[str, ...]:
        return (item.variant, item.text, item.verdict, item.explanation)

    return [_merged(group) for group in grouped((key(item), item) for item in items).values()]


def faults(items: Sequence[FaultView]) -> list[FaultView]:
    """Merge a fault over the trials in which it had the same effect and residue. Its target and its time may differ (`jitter`)."""

    def key(item: FaultView) -> tuple[str, ...]:
        return (item.name, item.kind, item.effect, item.residue, item.backend)

    return [
        replace(
            group[0],
            trial=group[0].trial if len(group) == 1 else f"{len(group)} trials",
            when=_when(group),
            asked=listed(item.asked for item in group),
            measured=listed(item.measured for item in group),
            after=listed(item.after for item in group),
            text=listed(item.text for item in group),
        )
        for group in grouped((key(item), item) for item in items).values()
    ]


def _when(group: Sequence[FaultView]) -> str:
    """Return when a fault started, as a range if the trials differ."""
    texts, times = {item.when for item in group}, [item.at_s or 0.0 for item in group]
    if len(texts) == 1:
        return texts.pop()
    return f"{quantities.seconds(min(times))} to {quantities.seconds(max(times))} after the baseline"


def _merged(group: Sequence[Judged]) -> Judged:
    first = group[0]
    if len(group) == 1:
        return first
    bounds = {item.bounded_by for item in group}
    return replace(
        first,
        trial=f"{len(group)} trials" + (f" of {first.variant}" if first.variant else ""),
        measured=listed(item.measured for item in group),
        bounded_by=bounds.pop() if len(bounds) == 1 else "",
    )


def listed(texts: Iterable[str]) -> str:
    """Join the different texts. If there are many, join the first ones and add the number of the others."""
    found = [text for text in dict.fromkeys(texts) if text]
    shown = 1 if any(len(text) >= LONG for text in found) else VALUES_SHOWN
    more = len(found) - shown
    values = "value" if more == 1 else "values"
    return ", ".join(found[:shown]) + (f", and {more} other {values}" if more > 0 else "")


def by_variant(trials: Sequence[TrialView]) -> list[VariantAnswer]:
    """Return the answers of the variants that had a recovery, one for each fault that began one."""
    found = grouped((t.variant, t.answer) for t in trials if t.answer is not None and not t.is_control)
    answers = [VariantAnswer(variant, tuple(known)) for variant, known in found.items()]
    return [own for answer in answers for own in answer.by_fault]


def longest_s(trial: TrialView) -> float:
    """Return the seconds of a trial's longest recovery; 0 without one."""
    return max((r.total_s for r in trial.answer.recoveries), default=0.0) if trial.answer else 0.0


def slowest(trials: Sequence[TrialView]) -> set[str]:
    """Return for each variant the trial with the longest recovery."""
    known = grouped((t.variant, t) for t in trials if not t.is_control and longest_s(t) > 0)
    return {max(found, key=longest_s).trial for found in known.values()}


def phases(trials: Sequence[TrialView]) -> list[tuple[str, list[tuple[str, tuple[str, ...]]]]]:
    """Return (variant, rows) with the medians of each phase: title, then records/s, p50, p95, p99."""
    groups = grouped((trial.variant, trial) for trial in trials if not trial.is_control)
    return [(variant, _phase_medians(found)) for variant, found in groups.items()]


def _phase_medians(trials: Sequence[TrialView]) -> list[tuple[str, tuple[str, ...]]]:
    rows = []
    for index, phase in enumerate(trials[0].latencies):
        known = [t.latencies[index] for t in trials if t.latencies[index].has_data]
        if known:
            rate = _median(p.throughput.value for p in known)
            latencies = (_median(p.cells[n].value for p in known) for n in range(len(phase.cells)))
            cells = (quantities.count(rate and round(rate)), *map(quantities.seconds, latencies))
            rows.append((phase.title, cells))
    return rows


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None
