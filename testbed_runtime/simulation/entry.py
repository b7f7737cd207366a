"""Run a compiled scenario in virtual time, from testbeds to verdict and report: the core of `headgate simulate`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.baseline import with_noise
from testbed_runtime.checking.metrics import control_metrics, trial_metrics
from testbed_runtime.checking.reduced import reduced
from testbed_runtime.checking.timeseries import trial_timeseries
from testbed_runtime.checking.trace import trace, trace_events
from testbed_runtime.checking.unjudged import described, unjudged
from testbed_runtime.core.documents import (
    HISTORY_FOLDER,
    METRICS_FILE,
    RECOVERY_FILE,
    TIMESERIES_FILE,
    TRACE_FILE,
    versioned,
)
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.series import TrialSeries
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.history.reader import read_trial
from testbed_runtime.history.schema import Trial
from testbed_runtime.runner.engine import Runner, RunRequest, RunResult
from testbed_runtime.runner.manifest import write_json
from testbed_runtime.runner.progress import Progress
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.simulation.testbed import SimTestbedHost


class DirectEvaluator:
    """A `ports.hosts.Evaluator` without Spark: calls the functions of `checking` for one trial after the other.
    They get the same reduced columns as in Spark, so that a simulation needs no column that a real run does not have."""

    async def evaluate(self, folder: Path) -> list[MetricRow]:
        manifest = read_manifest(folder)
        entries = manifest.counted
        rows: list[MetricRow] = []
        series: list[TrialSeries] = []
        answers: dict[str, Any] = {}
        traced: list[list[dict[str, Any]]] = []

        @lru_cache(maxsize=1)  # read each control trial first, for its noise
        def read(name: str) -> Trial:
            entry = next(entry for entry in entries if entry.trial == name)
            whole = read_trial(folder / HISTORY_FOLDER / name, run=manifest.run, trial=name, entry=entry)
            return reduced(whole)

        for number, entry in enumerate(with_noise(entries, lambda e: read(e.trial)), start=1):
            try:
                trial = read(entry.trial)
                answer = trial_recovery(trial, entry)
                found = trial_metrics(trial, entry, recovery=answer), trial_timeseries(trial, entry)
                events = trace_events(trial, answer, pid=number)
            except HeadgateError:
                raise
            except Exception as error:
                rows += unjudged(manifest.run, entry.trial, described(error))
                continue
            answers[entry.trial] = answer.to_json()
            rows += found[0]
            series.append(found[1])
            traced.append(events)
        rows += control_metrics(rows, entries)
        write_json(folder / RECOVERY_FILE, answers)
        write_json(folder / TRACE_FILE, trace(traced))
        write_json(folder / METRICS_FILE, to_builtins(rows))
        write_json(folder / TIMESERIES_FILE, versioned({"trials": to_builtins(series)}))
        return rows


def simulate(request: RunRequest, progress: Progress) -> RunResult:
    """Run it. Raises UserError before anything starts if it cannot be simulated."""
    host = SimTestbedHost(request.folder)
    runner = Runner(request, host=host, evaluator=DirectEvaluator(), progress=progress)
    return run_virtual(runner.run())
