"""Compute every metric of a trial. Spark, the simulator and the tuner call the same two pure functions:

rows = trial_metrics(trial, entry)                       for each trial, in any order
rows += control_metrics(rows, manifest.trials)           then once per run: comparisons with the control trial
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from testbed_runtime.checking.answer import trial_recovery
from testbed_runtime.checking.baseline import baseline_of, control_noise
from testbed_runtime.checking.busyness import TaskTimes, VertexTime, level, reached_source_s, sampled_within
from testbed_runtime.checking.checkpoints import Checkpoints, check_checkpoints
from testbed_runtime.checking.clocks import clock_difference
from testbed_runtime.checking.common import (
    Answers,
    Window,
    Windows,
    busiest,
    data,
    events,
    stopped_ns,
    windows,
)
from testbed_runtime.checking.completeness import missing_rows
from testbed_runtime.checking.cpu import cpu_per_record, spent_of
from testbed_runtime.checking.credit import check_credit
from testbed_runtime.checking.delivery import check_delivery, stale_rejections
from testbed_runtime.checking.failovers import (
    check_failovers,
    first_cause,
    job_state,
    root_cause,
    terminal_failure,
)
from testbed_runtime.checking.faults import check_faults, residue_of
from testbed_runtime.checking.iterations import supersteps
from testbed_runtime.checking.latency import Histogram, histogram, marker_latencies, shows
from testbed_runtime.checking.pools import deviation, largest_gates, network_pools, usage
from testbed_runtime.checking.progress import (
    alive_at_end,
    all_received,
    by_sink,
    goodput,
    last_arrival,
    progress_of,
    raw_rate,
    silent_sockets,
    sinks_of,
)
from testbed_runtime.checking.recovery import check_recovery, milestones, no_window
from testbed_runtime.checking.sockets import push_backs
from testbed_runtime.core.judgement.expectations import AT_LEAST_ONCE
from testbed_runtime.core.judgement.metrics import (
    JOB_FAILED,
    NO_BASELINE,
    NO_CONTROL,
    NO_DATA,
    NO_FAILOVER,
    NO_FAULT,
    NOT_COUNTED,
    NOT_SAMPLED,
    OVERLOADED,
    QUANTILES,
    MetricRow,
)
from testbed_runtime.core.judgement.quantities import seconds
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.core.judgement.verdict import controls_of
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.history.schema import Trial

CONTROL_SHARE = 0.1
"""A control trial is unstable if its throughput deviates further from its own baseline."""


def trial_metrics(
    trial: Trial, manifest_entry: TrialEntry, *, recovery: TrialRecovery | None = None
) -> list[MetricRow]:
    """Return all rows of one trial. `manifest_entry` is its entry under `trials` in manifest.json, and
    `recovery` its `trial_recovery`, if the caller has it already.

    Never raises for an empty or truncated history: the rows then say why they have no value."""
    answers = Answers(trial)
    found = recovery or trial_recovery(trial, manifest_entry)
    spans = windows(trial, manifest_entry)
    faults = [] if manifest_entry.is_control else [fault.name for fault in manifest_entry.faults]
    spans = replace(spans, milestones=milestones(found, spans.end, faults))
    _delivery(answers, trial, manifest_entry)
    _credit(answers, trial, manifest_entry, spans)
    _buffers(answers, trial, spans)
    _job(answers, trial, spans)
    _failovers(answers, trial, manifest_entry, spans)
    _throughput(answers, trial, manifest_entry, spans)
    _latency(answers, trial, spans)
    _checkpoints(answers, trial, spans)
    _counts(answers, trial)
    _faults(answers, trial, manifest_entry)
    for row in check_recovery(trial, manifest_entry, found):
        name, bound = f"recovery.{row.name}", row.bounded_by
        answers.add(name, row.seconds, text=row.text, bounded_by=bound, reason=row.reason)
    never = {name: no_window(found, name, faults) for name, window in spans.milestones if window is None}
    return [replace(r, reason=never.get(r.phase, r.reason)) for r in answers.rows]


def control_metrics(rows: Sequence[MetricRow], entries: Sequence[TrialEntry]) -> list[MetricRow]:
    """Return latency and throughput of each fault trial relative to its control trial (verdict.controls_of)."""
    by_trial: dict[str, dict[tuple[str, str, float | None], MetricRow]] = {}
    for row in rows:
        by_trial.setdefault(row.trial, {})[row.metric, row.phase, row.quantile] = row
    controls = controls_of(entries)
    found: list[MetricRow] = []
    for entry in entries:
        if not entry.is_control and entry.trial in by_trial:
            control = by_trial.get(controls.get(entry.variant, ""), {})
            found.extend(_against(by_trial[entry.trial], control))
    return found


def _against(
    rows: Mapping[tuple[str, str, float | None], MetricRow],
    control: Mapping[tuple[str, str, float | None], MetricRow],
) -> list[MetricRow]:
    names = {"latency": "latency.relative-to-control", "throughput.goodput": "throughput.relative-to-control"}
    found = []
    for (metric, phase, quantile), row in rows.items():
        if metric in names:
            other = control.get((metric, phase, quantile))
            value, reason = _ratio(row.value, None if other is None else other.value, NO_CONTROL)
            found.append(replace(row, metric=names[metric], value=value, reason=row.reason or reason))
    return found


def _ratio(value: float | None, base: float | None, reason: str) -> tuple[float | None, str]:
    if value is None:
        return None, NO_DATA
    return (value / base, "") if base else (None, reason)


def _delivery(answers: Answers, trial: Trial, entry: TrialEntry) -> None:
    found = check_delivery(trial, entry)
    reason = found.reason
    detail = f"column bitmap of delivery: {found.detail}" if found.examples else found.detail
    answers.add("delivery.lost", found.lost, text=detail, reason=reason)
    # at-least-once allows duplicates after a failover
    asked = entry.options.string("execution.checkpointing.mode")
    allowed = (found.at_least_once or asked == "AT_LEAST_ONCE") and check_failovers(trial).count > 0
    text = AT_LEAST_ONCE if allowed else detail
    answers.add("delivery.duplicated", found.duplicated, text=text, reason=reason)
    answers.add("delivery.corrupted", found.corrupted, text=detail, reason=reason)
    disorder = "column out_of_order of delivery" if found.out_of_order else ""
    answers.add("delivery.out-of-order", found.out_of_order, text=disorder, reason=reason)
    recorded = len(trial.table("delivery"))
    answers.add("delivery.committed", found.committed, reason="" if recorded else NO_DATA)


def _credit(answers: Answers, trial: Trial, entry: TrialEntry, spans: Windows) -> None:
    found = check_credit(trial)
    answers.known("network.in-flight", found.in_flight)
    answers.known("backpressure.reach", reached_source_s(trial))
    _push_back(answers, trial)
    if not entry.options.credit_based:
        answers.add("credit.violations", 0, text="no credit: the legacy mode")
        return
    finished = job_state(trial, spans.end) == "FINISHED"
    reason = JOB_FAILED if terminal_failure(trial) else NOT_SAMPLED if finished else NO_DATA
    if found.samples or found.only_local:
        reason = ""
    detail = f"columns credit, announced, used of channels: {found.detail}" if found.detail else ""
    answers.add("credit.violations", None if reason else found.violations, text=detail, reason=reason)


def _buffers(answers: Answers, trial: Trial, spans: Windows) -> None:
    pools = network_pools(trial)
    leaks = {p.taskmanager: p.leaked for p in pools if p.leaked is not None}
    text = "; ".join(f"{name} {count}" for name, count in leaks.items() if count)
    leaked = sum(leaks.values()) if leaks else None
    answers.add("buffers.leaked", leaked, text=text, reason="" if leaks else NOT_COUNTED)
    for phase, window in spans.by_phase():
        largest = {p.taskmanager: p.largest_share(window) for p in pools} if window else {}
        shares = {name: share for name, share in largest.items() if share is not None}
        text = "; ".join(f"{name} {share:.1%}" for name, share in shares.items())
        answers.known("buffers.used", max(shares.values(), default=None), phase, text=text)
        for side in ("in", "out"):
            used = usage(trial, side, window)
            answers.known(f"buffers.{side}-pool-usage", used.value, phase, text=used.text)
    gates = largest_gates(trial, spans.end)
    text = "; ".join(f"{n} {c} × {e} + {f}" for n, (c, e, f) in gates.items())
    most = max((c * e + f for c, e, f in gates.values()), default=None)
    answers.known("buffers.gate", most, text=text)
    answers.known("buffers.pool-deviation", deviation(trial))


def _job(answers: Answers, trial: Trial, spans: Windows) -> None:
    state = job_state(trial, spans.end)
    failure = terminal_failure(trial)
    reason = "" if events(trial, "job.state") else NO_DATA
    answers.add("job.state", text=state or "", reason="" if state else NO_DATA)
    answers.add("job.failure", text=failure.cause_class if failure else "", reason=reason)
    answers.add("job.cause", text=root_cause(trial, spans.end), reason=reason)


def _failovers(answers: Answers, trial: Trial, entry: TrialEntry, spans: Windows) -> None:
    stopped = stopped_ns(entry, spans)
    found = check_failovers(trial, stopped)
    seen = "" if len(trial.table("events")) else NO_DATA
    causes = "; ".join(dict.fromkeys(c.text for c in found.causes))
    answers.add("failovers.count", None if seen else found.count, text=causes, reason=seen)
    answers.add("restarts.attempts", None if seen else found.attempts, reason=seen)
    cause = first_cause(trial)
    if cause and stopped is not None and cause.t_ns >= stopped:
        cause = None
    reason = "" if cause else NO_FAILOVER
    answers.add("detection.text", text=cause.text if cause else "", reason=reason)
    answers.add("detection.detector", text=cause.detector if cause else "", reason=reason)


def _throughput(answers: Answers, trial: Trial, entry: TrialEntry, spans: Windows) -> None:
    raw = sinks_of(trial)
    tasks = progress_of(trial, baseline=spans.baseline)
    sinks = [t for t in tasks if t.role == "sink"]
    base = baseline_of(trial, entry, spans, sinks)
    times = TaskTimes.read(trial)
    spent = spent_of(trial)
    for phase, window in spans.by_phase():
        answers.known("throughput.records-per-second", raw_rate(raw, window) if window else None, phase)
        _sinks(answers, by_sink(raw, window) if window else {}, phase)
        now = goodput(sinks, window) if window else None
        if base is not None and window == spans.baseline:
            now = base.rate  # without the lost samples at its end
        answers.known("throughput.goodput", now, phase)
        relative, reason = _ratio(now, base.reference if base else None, NO_BASELINE)
        answers.add("throughput.relative", relative, phase=phase, reason=reason)
        answers.known("lag.max", _largest(t.largest_lag(window) for t in tasks) if window else None, phase)
        stall = _largest(t.longest_stall(window) for t in sinks) if window else None
        answers.known("liveness.longest-stall", stall, phase)
        _vertices(answers, times.within(window) if window else [], phase)
        cpu = cpu_per_record(spent, raw, window) if window else None
        answers.known("tasks.cpu-per-record", cpu.seconds if cpu else None, phase)
        answers.known("tasks.buffers-per-record", cpu.buffers if cpu else None, phase)
        _sampled(answers, sampled_within(trial, window) if window else {}, phase)
    control = control_noise(trial, spans) if entry.is_control else None
    noise = control if control is not None else base.noise if base else None
    answers.add("throughput.noise", noise, reason=NO_BASELINE if noise is None else "")
    alive = alive_at_end(sinks, spans)
    received = all_received(sinks)
    state = job_state(trial, spans.end)
    done = state == "FINISHED" or (received is not None and received <= spans.end)
    if done or (alive is False and state == "RUNNING" and silent_sockets(trial, entry, spans.end)):
        alive = True
    busy = "" if alive is not False else _busy_at_end(trial, spans.end)
    reason = OVERLOADED if busy else NO_DATA if alive is None else ""
    text = f"`{busy}` was at work" if busy else ""
    answers.add("liveness.at-end", alive, text=text, reason=reason)
    _control(answers, trial, entry, spans, alive=alive)


def _busy_at_end(trial: Trial, end: int) -> str:
    """Return the vertex that worked for most of the time since the last record arrived at a sink. Empty if none did."""
    last = last_arrival(sinks_of(trial), end)
    vertex, worked_ns = busiest(trial, last, end)
    return vertex if last and 2 * worked_ns > end - last else ""


def _largest(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _vertices(answers: Answers, found: Sequence[VertexTime], phase: str) -> None:
    """Add the shares of the vertex that stands out, and those of all vertices as text."""
    for name, choose in (("backpressured", max), ("busy", max), ("idle", min)):
        levels = [f" {v.level}" if name == "backpressured" else "" for v in found]
        text = "; ".join(
            f"{v.vertex} {v.share(name):.0%}{shown}" for v, shown in zip(found, levels, strict=True)
        )
        value = choose((v.share(name) for v in found), default=None)
        answers.known(f"tasks.{name}", value, phase, text=text)


def _sinks(answers: Answers, found: Mapping[str, float], phase: str) -> None:
    text = "; ".join(f"{vertex} {per_second:.0f}" for vertex, per_second in found.items())
    for name, choose in (("slowest", min), ("fastest", max)):
        answers.known(f"throughput.{name}-sink", choose(found.values(), default=None), phase, text=text)


def _sampled(answers: Answers, found: Mapping[str, float], phase: str) -> None:
    text = "; ".join(f"{vertex} {share:.0%} {level(share)}" for vertex, share in found.items())
    answers.known("tasks.backpressured-sampled", max(found.values(), default=None), phase, text=text)


def _latency(answers: Answers, trial: Trial, spans: Windows) -> None:
    base = histogram(trial, spans.baseline) if spans.baseline else None
    for phase, window in spans.by_phase():
        now: Histogram | None = histogram(trial, window) if window else None
        for quantile in QUANTILES:
            value = now.quantile(quantile) if now else None
            usual = base.quantile(quantile) if base else None
            answers.known("latency", value, phase, quantile=quantile)
            relative, reason = _ratio(value, usual, NO_BASELINE)
            answers.add("latency.relative", relative, phase=phase, quantile=quantile, reason=reason)
        _markers(answers, trial, phase, window)


def _markers(answers: Answers, trial: Trial, phase: str, window: Window | None) -> None:
    found = marker_latencies(trial, window) if window else {}
    sinks = {vertex_of(sink.task) for sink in sinks_of(trial)}
    arrived = [latencies for (_, to), latencies in found.items() if to in sinks]
    every = np.concatenate(arrived) / NS if arrived else np.empty(0)
    medians = {pair: seconds(float(np.median(ns)) / NS) for pair, ns in found.items()}
    text = "; ".join(f"{source} → {to} {shown}" for (source, to), shown in medians.items())
    for quantile in QUANTILES:
        enough = shows(len(every), quantile)
        value = float(np.quantile(every, quantile)) if enough else None
        answers.known("latency.markers", value, phase, quantile=quantile, text=text if enough else "")


def _checkpoints(answers: Answers, trial: Trial, spans: Windows) -> None:
    for phase, window in spans.by_phase():
        found = check_checkpoints(trial, window) if window else Checkpoints()
        answers.known("checkpoints.completed", found.completed, phase)
        answers.known("checkpoints.failed", found.failed, phase)
        answers.known("checkpoints.duration", found.longest_s, phase)
        answers.known("checkpoints.median-duration", found.median_s, phase)
        answers.known("checkpoints.completion", found.completion_s, phase)
        answers.known("checkpoints.persisted", found.persisted_bytes, phase)
        answers.known("checkpoints.size", found.size_bytes, phase)
        answers.known("checkpoints.full-size", found.full_bytes, phase)
        answers.known("checkpoints.alignment", found.alignment_s, phase)


def _push_back(answers: Answers, trial: Trial) -> None:
    found = push_backs(trial)
    whole = [one for one in found if one.complete]
    text = "; ".join(one.text for one in found)
    value = max((one.steps[-1][1] for one in whole), default=None)
    answers.known("network.push-back", value, text=text)
    answers.known("network.window-limited", max((one.limited for one in found), default=None))
    answers.known("network.window-probes", max((one.probes for one in found), default=None))


def _counts(answers: Answers, trial: Trial) -> None:
    seen = "" if len(trial.table("events")) else NO_DATA
    stale = stale_rejections(trial)
    asked = [(e["process"], data(e)) for e in events(trial, "partition.request")]
    requests = [int(found.get("request", 1)) for _, found in asked]
    connections = {(process, str(found["connection"])) for process, found in asked if "connection" in found}
    pairs = Counter((consumer, to.partition("/")[0]) for consumer, to in sorted(connections))
    deployed = [e for e in events(trial, "task.state") if data(e).get("to") == "DEPLOYING"]
    first = {e["subject"]: e["t_ns"] for e in reversed(deployed)}
    spread = (max(first.values()) - min(first.values())) / NS if first else None
    answers.known("deployment.spread", spread)
    again = {e["subject"] for e in deployed if e["attempt"] > 0}
    answers.add("restarts.tasks", None if seen else len(again), text=", ".join(sorted(again)), reason=seen)
    iterated, why = supersteps(trial)
    answers.add("iteration.supersteps", iterated, text=why, reason="" if iterated else NO_DATA)
    stalls = [float(data(e).get("seconds", 0)) for e in events(trial, "loop.stall")]
    counted: dict[str, tuple[float, str]] = {
        "stale.rejected": (sum(stale.values()), ", ".join(f"{v} {k}" for k, v in stale.items())),
        "partition.requests": (len(requests), ""),
        "network.connections": (len(connections), ", ".join(f"{a} → {b} {n}" for (a, b), n in pairs.items())),
        "partition.retries": (sum(1 for r in requests if r > 1), ""),
        "rpc.timeouts": (len(events(trial, "rpc.timeout")), ""),
        "taskmanagers.lost": (len({e["subject"] for e in events(trial, "taskmanager.lost")}), ""),
        "loop.stall": (max(stalls, default=0.0), ""),
    }
    for metric, (value, text) in counted.items():
        answers.add(metric, None if seen else value, text=text, reason=seen)
    clocks = clock_difference(trial)
    answers.add("clocks.difference", None if seen else clocks.seconds, text=clocks.text, reason=seen)
    missing = missing_rows(trial)
    rows, text = (missing.rows, missing.text) if missing else (None, "")
    answers.known("history.missing", rows, text=text)


def _faults(answers: Answers, trial: Trial, entry: TrialEntry) -> None:
    effects = check_faults(trial, entry)
    for effect in effects:
        answers.add("fault.verified", effect.verified, text=effect.fault, reason=effect.reason)
    residue, reason = residue_of(effects) if effects else (None, NO_FAULT)
    answers.add("fault.residue", residue, reason=reason)


def _control(
    answers: Answers, trial: Trial, entry: TrialEntry, spans: Windows, *, alive: bool | None
) -> None:
    """Check a control trial: the job ran without failover, and records kept arriving at the baseline's rate."""
    if not entry.is_control:
        return
    complaints = []
    if not sinks_of(trial):
        complaints.append("no sink recorded any data")
    if job_state(trial, spans.end) not in ("RUNNING", "FINISHED"):
        complaints.append("the job was not running")
    if check_failovers(trial).count:
        complaints.append("there was a failover")
    if alive is False:
        complaints.append("no records arrived at the end")
    base, now = _rates(trial, spans.baseline, spans.judged)
    if base and now is not None and abs(now / base - 1) > CONTROL_SHARE:
        complaints.append(f"throughput was {now / base:.0%} of its baseline")
    answers.add("control.stable", 0.0 if complaints else 1.0, text="; ".join(complaints))


def _rates(trial: Trial, *spans: Window | None) -> tuple[float | None, ...]:
    sinks = sinks_of(trial)
    return tuple(raw_rate(sinks, s) if s and s.end - s.start >= NS else None for s in spans)
