"""Build the view of a run that the page, the Markdown and the JUnit file show, from the run's four documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement import quantities
from testbed_runtime.core.judgement.comparison import Comparison
from testbed_runtime.core.judgement.metrics import LOWER_BOUNDS, METRICS, TRIAL_PHASES, MetricRow
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.core.judgement.series import FaultSeen, Timeseries, TrialSeries
from testbed_runtime.core.judgement.verdict import RunVerdict, controls_of
from testbed_runtime.core.options import BY_KEY, Options, equal_values
from testbed_runtime.core.trial.manifest import RunManifest, TrialEntry
from testbed_runtime.report import faultwords, words
from testbed_runtime.report.advice import first_things, limits_of
from testbed_runtime.report.model import Cell, FaultView, PhaseLatency, RunView, Setting, TrialView

LATENCY_QUANTILES = (0.5, 0.95, 0.99)


def build(
    manifest: RunManifest,
    metrics: Sequence[MetricRow],
    timeseries: Timeseries,
    verdict: RunVerdict,
    *,
    recoveries: Mapping[str, TrialRecovery] | None = None,
    comparison: Comparison | None = None,
) -> RunView:
    """Build the view. `recoveries` and `comparison` are the files of those names, if the run has them. Missing parts are tolerated, so that an interrupted run still gets a page."""
    spec = manifest.scenario.spec
    entries = manifest.trials
    series = {found.trial: found for found in timeseries.trials}
    rows = grouped((row.trial, row) for row in metrics)
    known, names = recoveries or {}, [entry.trial for entry in entries]
    views = [_trial(e, rows.get(name, []), series.get(name)) for e, name in zip(entries, names, strict=True)]
    trials = tuple(replace(view, answer=known.get(name)) for view, name in zip(views, names, strict=True))
    faults = tuple(_faults(entries, series))
    return RunView(
        name=manifest.name or manifest.run or "run",
        hypothesis=str(spec.get("hypothesis") or ""),
        source=str(spec.get("source") or ""),
        place=manifest.environment,
        seed="" if manifest.seed is None else str(manifest.seed),
        started=words.moment(manifest.started),
        verdict=verdict.verdict,
        summary=verdict.summary,
        variants=verdict.variants,
        first=tuple(first_things(trials, verdict.judged, faults, entries)),
        trials=trials,
        expectations=verdict.judged,
        faults=faults,
        settings=tuple(_settings(entries)),
        environment=tuple(_environment(manifest, metrics)),
        notes=tuple(limits_of(manifest, trials, metrics)),
        controls=controls_of(entries),
        comparison=comparison or Comparison(),
    )


def find(
    rows: Iterable[MetricRow], metric: str, *, phase: str = "", quantile: float | None = None
) -> MetricRow | None:
    """Return the row of a metric, or None."""
    own = (r for r in rows if r.metric == metric and r.phase == phase)
    return next((r for r in own if quantile is None or r.quantile == quantile), None)


def shown(row: MetricRow | None) -> str:
    """Format a row's value: a dash if it has none, `≥` in front of a lower bound."""
    if row is None:
        return quantities.DASH
    unit = METRICS[row.metric].unit if row.metric in METRICS else ""
    if unit == "text":
        return row.text or quantities.DASH
    if row.value is None:
        return quantities.DASH
    bound = "≥ " if row.reason in LOWER_BOUNDS else ""
    return bound + quantities.format_value(row.value, unit)


def _trial(entry: TrialEntry, rows: Sequence[MetricRow], series: TrialSeries | None) -> TrialView:
    state = find(rows, "job.state")
    baseline = find(rows, "throughput.records-per-second", phase="baseline")
    flags = ["void: its fault ended early"] if entry.voided else []
    flags += ["failed to run"] if entry.error else []
    flags += ["not drained"] if entry.drained is False else []
    return TrialView(
        trial=entry.trial,
        variant=entry.variant,
        role=entry.role,
        job_state=entry.job_state or (state.text if state else ""),
        flags=tuple(flags),
        series=series,
        latencies=tuple(_phase_latency(rows, phase) for phase in TRIAL_PHASES),
        baseline_rate=baseline.value if baseline else None,
        duration_s=_duration_s(entry),
        pressure=tuple(_pressure(rows)),
    )


def _pressure(rows: Sequence[MetricRow]) -> Iterable[tuple[str, str, str]]:
    """Yield the back-pressure by time and by sampling of each phase that has either."""
    for phase in TRIAL_PHASES:
        measures = ("tasks.backpressured", "tasks.backpressured-sampled")
        texts = [row.text if (row := find(rows, name, phase=phase)) else "" for name in measures]
        if any(texts):
            yield words.TRIAL_PHASES[phase][0], texts[0], texts[1] or "no round of samples ended"


def _duration_s(entry: TrialEntry) -> float:
    moments = entry.moments
    return (max(moments) - min(moments)) / 1e9 if moments else 0.0


def _phase_latency(rows: Sequence[MetricRow], phase: str) -> PhaseLatency:
    def cell(metric: str, relative: str, quantile: float | None = None) -> Cell:
        row = find(rows, metric, phase=phase, quantile=quantile)
        against = find(rows, relative, phase=phase, quantile=quantile)
        return Cell(shown(row), row.value if row else None, against.value if against else None)

    rate = cell("throughput.records-per-second", "throughput.relative-to-control")
    rate = Cell(quantities.count(rate.value and round(rate.value)), rate.value, rate.against_control)
    latencies = tuple(cell("latency", "latency.relative-to-control", q) for q in LATENCY_QUANTILES)
    return PhaseLatency(phase, words.TRIAL_PHASES[phase][0], rate, latencies)


def _faults(entries: Sequence[TrialEntry], series: Mapping[str, TrialSeries]) -> Iterable[FaultView]:
    """Yield each fault of each fault trial: requested and measured. Without a history, only what was requested."""
    for entry in entries:
        if entry.is_control:
            continue
        known = series.get(entry.trial)
        for fault in known.faults if known else map(FaultSeen.planned, entry.faults):
            yield FaultView(
                trial=entry.trial,
                name=fault.fault,
                kind=fault.kind,
                when=_when(fault),
                at_s=fault.at_s,
                asked=faultwords.asked(fault),
                measured=faultwords.measured(fault.measured),
                after=faultwords.after(fault.after),
                effect=fault.effect,
                residue=fault.residue,
                backend=fault.backend or quantities.DASH,
                why=fault.why,
                text=fault.text,
            )


def _when(fault: FaultSeen) -> str:
    """Say when the fault started, for example `2 s after the baseline`. Empty if that is unknown."""
    if fault.before_submit or fault.asked.get("before_submit"):
        return "from before the job is submitted"
    if not fault.at_s:
        return "" if fault.at_s is None else "at the end of the baseline"
    return f"{words.seconds_short(round(fault.at_s, 3))} after the baseline"


def _settings(entries: Sequence[TrialEntry]) -> Iterable[Setting]:
    """Yield the keys that any variant sets, with their values per variant (taken from its first trial)."""
    by_variant: dict[str, TrialEntry] = {}
    for entry in entries:
        by_variant.setdefault(entry.variant, entry)
    options = [entry.options for entry in by_variant.values()]
    for key in sorted({key for o in options for key in o.as_map()}):
        by_version = (Options({}, flink_version=o.flink_version) for o in options)
        defaults = {(key in BY_KEY and o.text(key)) or quantities.DASH for o in by_version}
        default = defaults.pop() if len(defaults) == 1 else "by version"
        values = tuple(
            o.as_map().get(key) or (key in BY_KEY and o.text(key)) or quantities.DASH for o in options
        )
        differs = any(not equal_values(key, v, default) for v in values)
        yield Setting(key, values, default, differs=differs, by_variant=len(set(values)) > 1)


def network_of(manifest: RunManifest) -> Iterable[tuple[str, str]]:
    """Yield the network's own round trip and loss per path before the first fault: the medians over all trials."""
    paths = (path for entry in manifest.trials for path in entry.paths.items())
    readings = grouped((name, path) for name, path in paths if path.get("round_trip_s") is not None)
    for name, found_there in readings.items():
        trip = median(float(r["round_trip_s"]) for r in found_there)
        rates = [float(r["bytes_per_s"]) for r in found_there if r.get("bytes_per_s")]
        lost = median(float(r.get("lost_percent") or 0.0) for r in found_there)
        rate = f", {median(rates) / 1e6:.0f} MB/s round trip" if rates else ""
        found = f"round trip {quantities.seconds(trip)}, {lost:g} % lost{rate}"
        yield f"Network before the faults, {name}", found


def _environment(manifest: RunManifest, metrics: Sequence[MetricRow]) -> Iterable[tuple[str, str]]:
    yield "Environment", manifest.environment or quantities.DASH
    versions = sorted({entry.flink_version for entry in manifest.trials})
    yield "Flink behaviour", ", ".join(versions) or quantities.DASH
    for key, value in manifest.machine.items():
        name = words.spaced(str(key).removesuffix("_bytes")).replace("Load 1min", "Load average of 1 minute")
        yield name, words.value_of(str(key), value)
    yield from network_of(manifest)
    stalls = [r.value for r in metrics if r.metric == "loop.stall" and r.value is not None]
    if stalls:
        yield "Noise: longest stall of a testbed process", quantities.seconds(max(stalls))
    missing = [r.value for r in metrics if r.metric == "history.missing" and r.value is not None]
    if missing:
        yield "History rows shed or lost", quantities.count(sum(missing))
