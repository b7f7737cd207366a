"""One synthetic run, judged without Spark, shared by the tests of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.metrics import control_metrics, trial_metrics
from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.core.judgement.expectations import Expectation
from testbed_runtime.core.judgement.judge import judge
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.core.judgement.series import Timeseries
from testbed_runtime.core.judgement.verdict import RunVerdict, TrialFacts
from testbed_runtime.core.trial.manifest import RunManifest
from testbed_runtime.history.manifest import manifest_of
from tests.report import synthetic

EXPECT: dict[str, list[dict[str, Any]]] = {
    "short-timeout": [
        {"metric": "failovers.count", "equals": 1},
        {"metric": "recovery.detect", "max": "5.5 s"},
        {"metric": "delivery.lost", "equals": 0},
        {"metric": "latency", "quantile": "0.99", "phase": "observation", "max": "1 s"},
    ],
    "long-timeout": [{"metric": "failovers.count", "equals": 0}, {"metric": "delivery.lost", "equals": 0}],
}


@dataclass(frozen=True)
class Documents:
    """The five documents that a report is made of."""

    manifest: RunManifest
    metrics: list[dict[str, Any]]
    timeseries: Timeseries
    verdict: RunVerdict
    recoveries: dict[str, TrialRecovery]


@pytest.fixture(scope="session")
def documents() -> Documents:
    """Build the documents that `headgate run` would write."""
    manifest = manifest_of(synthetic.manifest())
    entries = manifest.trials
    trials = [synthetic.history(plan) for plan in synthetic.PLANS]
    rows = [r for t, e in zip(trials, entries, strict=True) for r in trial_metrics(t, e)]
    rows += control_metrics(rows, entries)
    series = [trial_timeseries(t, e) for t, e in zip(trials, entries, strict=True)]
    verdict = judge(
        trials=[TrialFacts.from_manifest(e) for e in entries],
        expectations={v: [Expectation.from_item(i) for i in items] for v, items in EXPECT.items()},
        rows=rows,
    )
    recoveries = {e.trial: trial_recovery(t, e) for t, e in zip(trials, entries, strict=True)}
    return Documents(manifest, rows, Timeseries(series), verdict, recoveries)
