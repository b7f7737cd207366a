"""Runs with many trials and variants, multiplied from the synthetic run."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from msgspec.structs import replace

from testbed_runtime.core.documents import COMPARISON_FILE, RECOVERY_FILE
from testbed_runtime.core.judgement.comparison import Comparison, GroupMeans, Mean, TableMetric
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.core.judgement.series import Timeseries
from testbed_runtime.core.judgement.verdict import VariantVerdict, Verdict
from testbed_runtime.report import write_report
from tests.report.conftest import Documents
from tests.report.recoveries import killed, late_producer
from tests.report.synthetic import FAULT_AT, START_S

COMPARED = (("recovery.downtime", "s"), ("recovery.total", "s"), ("failovers.count", "count"))


def multiply(
    documents: Documents, *, variants: int, trials: int
) -> tuple[dict[str, Any], dict[str, TrialRecovery]]:
    """The documents of `write_report` for so many variants and trials, and their recoveries."""
    entry, series = documents.manifest.trials[1], documents.timeseries.trials[1]
    rows = [r for r in documents.metrics if r.trial == entry.trial]
    expected = [e for e in documents.verdict.judged if e.trial == entry.trial]
    entries, metrics, curves, judged = [], [], [], []
    recoveries: dict[str, TrialRecovery] = {}
    random = Random(7)
    for variant in range(variants):
        for number in range(1, trials + 1):
            name, trial = f"timeout-{5 + variant}s", f"timeout-{5 + variant}s-{number}"
            slower = (1 + 0.3 * variant) * random.lognormvariate(0, 0.15)
            entries.append(replace(entry, trial=trial, variant=name, number=number, seed=6 + number))
            metrics += [_changed(r, trial, slower) for r in rows]
            curves.append(replace(series, trial=trial))
            judged += [replace(e, trial=trial, variant=name) for e in expected]
            at_s = START_S + FAULT_AT
            late = variant == 1 and number == 1
            recoveries[trial] = (
                late_producer(trial, at_s=at_s) if late else killed(trial, at_s=at_s, slower=slower)
            )
    variants = tuple(VariantVerdict(v, Verdict.FAIL) for v in dict.fromkeys(e.variant for e in entries))
    verdict = replace(documents.verdict, judged=tuple(judged), variants=variants)
    made = {
        "manifest": replace(documents.manifest, trials=tuple(entries)),
        "metrics": metrics,
        "timeseries": Timeseries(curves),
        "verdict": verdict,
    }
    return made, recoveries


def _changed(row: MetricRow, trial: str, slower: float) -> MetricRow:
    value = row.value
    if value is not None and row.metric.startswith(("recovery.", "latency")):
        value *= slower
    return replace(row, trial=trial, value=value)


def comparison(recoveries: dict[str, TrialRecovery]) -> Comparison:
    """The comparison of their variants."""
    groups: dict[str, list[TrialRecovery]] = {}
    for name, found in recoveries.items():
        groups.setdefault(name.rpartition("-")[0], []).append(found)

    def value(found: list[TrialRecovery], metric: str) -> Mean:
        each = [t.recoveries[0] for t in found]
        values = {
            "recovery.downtime": [r.downtime_s for r in each],
            "recovery.total": [r.total_s for r in each],
            "failovers.count": [float(len(r.rounds)) for r in each],
        }[metric]
        middle = mean(v for v in values if v is not None)
        low, high = middle * 0.9, middle * 1.1
        text = f"{middle:.2f} [{low:.2f}, {high:.2f}] s"
        return Mean(mean=middle, low=low, high=high, values=tuple(values), text=text)

    return Comparison(
        metrics=tuple(TableMetric(metric, unit) for metric, unit in COMPARED),
        groups=tuple(
            GroupMeans(name, len(found), tuple(value(found, metric) for metric, _ in COMPARED))
            for name, found in groups.items()
        ),
        summary=tuple(
            f"{name} against timeout-5s: recovery.downtime 30 % longer" for name in list(groups)[1:]
        ),
    )


def write_many(folder: Path, documents: Documents, *, variants: int, trials: int) -> Path:
    """Write the report of such a run and return its page."""
    made, recoveries = multiply(documents, variants=variants, trials=trials)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({name: found.to_json() for name, found in recoveries.items()})
    (folder / RECOVERY_FILE).write_text(text)
    (folder / COMPARISON_FILE).write_text(json.dumps(comparison(recoveries).to_json()))
    return write_report(folder, **made)
