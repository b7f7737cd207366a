"""Judge the metric rows of a run that has just ended or of a stored run, and write its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from testbed_runtime.core.documents import COMPARISON_FILE, VERDICT_FILE
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement import comparison
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.judgement.judge import judge
from testbed_runtime.core.judgement.metrics import (
    INDISTINGUISHABLE,
    NOT_ENOUGH_TRIALS,
    RUN_FAILED,
    MetricRow,
)
from testbed_runtime.core.judgement.series import Timeseries
from testbed_runtime.core.judgement.verdict import RunVerdict, TrialFacts, controls_of
from testbed_runtime.core.trial.manifest import RunManifest, TrialEntry
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.results import read_recoveries, read_rows, read_series
from testbed_runtime.runner.manifest import write_json

INTERRUPTED_TEXT = "the run was interrupted before its last trial"


def expectations_of(manifest: RunManifest) -> dict[str, list[Expectation]]:
    """Return the expectations of the variants that have been run."""
    ran = {entry.variant for entry in manifest.trials}
    return {
        variant: [Expectation.from_item(item) for item in items]
        for variant, items in manifest.expectations.items()
        if variant in ran
    }


def verdict_of(manifest: RunManifest, rows: Sequence[MetricRow], *, error: str = "") -> RunVerdict:
    """Judge a run's metric rows. `error`: why the run as a whole failed."""
    if not error and manifest.interrupted:
        error = INTERRUPTED_TEXT
    return judge(
        trials=facts_of(manifest.trials, rows),
        expectations=expectations_of(manifest),
        rows=rows,
        error=error,
        healed=manifest.healed,
        looks=len(manifest.looks),
        stopped=_stopped(manifest),
    )


def _stopped(manifest: RunManifest) -> str:
    """Return why the run ended before its last trial (`stopEarly`). Empty if it did not."""
    if not manifest.decided:
        return ""
    return f"Stopped after {manifest.decided} of {manifest.looks[-1]} trials of each variant: every comparison was decided."


def is_decided(manifest: RunManifest, rows: Sequence[MetricRow]) -> bool:
    """Return whether more trials can no longer change what the run's comparisons show."""
    undecided = (INDISTINGUISHABLE, NOT_ENOUGH_TRIALS)
    return not any(item.reason in undecided for item in verdict_of(manifest, rows).judged)


def compare_variants(manifest: RunManifest, rows: Sequence[MetricRow]) -> comparison.Comparison:
    """Return the run's variants, each against the first one, and the metrics that they judge."""
    judged = [expectation for items in expectations_of(manifest).values() for expectation in items]
    return comparison.comparison(groups_of(manifest, rows), also=comparison.judged_keys(judged))


def groups_of(manifest: RunManifest, rows: Sequence[MetricRow]) -> list[comparison.Group]:
    """Return the trials that count, by variant, in the order of the run. Trials with the same seed are pairs."""
    by_trial = grouped((row.trial, row) for row in rows)
    seeds = {entry.trial: entry.seed for entry in manifest.trials}
    groups: dict[str, dict[int, Sequence[MetricRow]]] = {}
    for trial in facts_of(manifest.trials, rows):
        if trial.counts:
            groups.setdefault(trial.variant, {})[seeds[trial.trial]] = by_trial.get(trial.trial, ())
    return [comparison.Group(name=name, trials=trials) for name, trials in groups.items()]


def facts_of(trials: Sequence[TrialEntry], rows: Sequence[MetricRow]) -> list[TrialFacts]:
    """Return what the verdict needs to know about each trial, including its replacement and its control trial. One that could not be
    judged (checking/unjudged.py) could not be completed."""
    unjudged = {row.trial: row.text for row in rows if row.reason == RUN_FAILED}
    last = {(entry.variant, entry.role, entry.number): entry.trial for entry in trials}
    controls = controls_of(trials)
    return [
        TrialFacts.from_manifest(
            entry,
            replaced=last[entry.variant, entry.role, entry.number] != entry.trial,
            control=controls.get(entry.variant, "") if entry.faults else "",
            unjudged=unjudged.get(entry.trial, ""),
        )
        for entry in trials
    ]


def conclude(
    folder: Path,
    manifest: RunManifest,
    rows: Sequence[MetricRow],
    *,
    error: str = "",
    inconclusive: str = "skip",
) -> tuple[RunVerdict, Path]:
    """Judge, write verdict.json and the report. Return the verdict, and the path of the report."""
    from testbed_runtime.report import write_report
    from testbed_runtime.report.answer import answer_lines

    # without rows, the other results are those of an earlier evaluation
    series, recoveries = (read_series(folder), read_recoveries(folder)) if rows else (Timeseries(), {})
    answer = tuple(answer_lines(manifest.trials, recoveries))
    verdict = replace(verdict_of(manifest, rows, error=error), answer=answer)
    write_json(folder / VERDICT_FILE, verdict.to_json())
    write_json(folder / COMPARISON_FILE, compare_variants(manifest, rows).to_json())
    report = write_report(
        folder,
        manifest=manifest,
        metrics=rows,
        timeseries=series,
        verdict=verdict,
        inconclusive=inconclusive,
    )
    return verdict, report


def reread(folder: Path) -> tuple[RunVerdict, Path]:
    """Judge the metrics in a folder and write its report again."""
    manifest = read_manifest(folder)
    return conclude(folder, manifest, read_rows(folder, manifest))
