"""Turn a trial's tables into what the report draws: series in bins of 250 ms, spans, marks, faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from testbed_runtime.checking.common import data, task_series
from testbed_runtime.checking.faults import sent_again_ns_of
from testbed_runtime.checking.latency import Histogram, merged_buckets
from testbed_runtime.checking.load import credit_waits, heat, progress_curves, rate_curve, vertex_load
from testbed_runtime.core.judgement.quantities import seconds
from testbed_runtime.core.judgement.series import NOT_MEASURED, FaultSeen, Mark, Span, TrialSeries
from testbed_runtime.core.trial.manifest import FaultEntry, TrialEntry
from testbed_runtime.history.columns import Ints, filled_buckets, ints, parsed, targets_in
from testbed_runtime.history.schema import Trial

BIN_NS = 250_000_000
"""Width of a bin: the window of the latency rows, and 2.5 samples of `tasks`."""
BINS_MAX = 20_000
"""Maximum bins of one trial (83 minutes). Limits the damage of a broken timestamp."""
MARKS_MAX = 2_000
"""Maximum marks of one trial. More would be indistinguishable on the page."""
TEXT_MAX = 400
"""Maximum characters of a text in the report."""


_MARKED_EVENTS = (
    "job.state", "leadership", "taskmanager.lost", "taskmanager.registered", "process.exit", "sink.first-record", "failover.attempt", "note",
)  # fmt: skip
_FINAL_FAULT_STATES = ("clean", "residue", "failed", "voided")


def trial_timeseries(trial: Trial, entry: TrialEntry) -> TrialSeries:
    """Return what the report draws of a trial. A bin without data is None."""
    start, end = _limits(trial, entry)
    edges = np.arange(start, max(end, start + 1) + BIN_NS, BIN_NS, dtype=np.int64)[: BINS_MAX + 1]
    p50, p99 = _latency(trial.table("latency"), edges)
    events, faults, tasks = trial.rows("events"), trial.rows("faults"), trial.table("tasks")
    marks = _event_marks(events, start, end) + _checkpoint_marks(trial.rows("checkpoints"), start)
    return TrialSeries(
        trial=trial.trial,
        start_ns=start,
        heat=heat(trial.table("latency"), edges),
        load=vertex_load(tasks, edges),
        credit=credit_waits(trial),
        bin_s=BIN_NS / 1e9,
        bins=[float(t - start) / 1e9 for t in edges[:-1]],
        series={
            "throughput": rate_curve([(s.t_ns, s.records_in) for s in task_series(trial, "sink")], edges),
            "emitted": rate_curve([(s.t_ns, s.records_out) for s in task_series(trial, "source")], edges),
            **progress_curves(trial, entry, edges),
            "latency_p50_s": p50,
            "latency_p99_s": p99,
        },
        spans=_phase_spans(entry, start) + _fault_spans(faults, start, end) + _failovers(events, start, end),
        marks=marks[:MARKS_MAX],
        faults=_faults(faults, entry),
        problems=list(trial.problems),
    )


def _limits(trial: Trial, entry: TrialEntry) -> tuple[int, int]:
    """Return the start and end of the trial, from its phases or else from its rows."""
    moments = entry.moments
    if not moments:
        moments = [int(t) for name in ("tasks", "events") for t in ints(trial.table(name), "t_ns")]
    return (min(moments), max(moments)) if moments else (0, 0)


def _latency(latency: pa.Table, edges: Ints) -> tuple[list[float | None], list[float | None]]:
    """Return the median and 99th percentile of each bin, from the merged histograms of its windows."""
    # A window belongs to the bin that contains its middle: windows are not aligned with the bins.
    bins = np.searchsorted(edges, ints(latency, "window_start_ns") + BIN_NS // 2, side="right") - 1
    count, filled, most = len(edges) - 1, filled_buckets(latency), ints(latency, "max_ns")
    bins[bins >= count] = -1
    sums = merged_buckets(filled, bins, count)
    known = np.unique(filled[0])  # the rows with records
    known = known[bins[known] >= 0]
    largest = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(largest, bins[known], most[known])
    merged = {p: Histogram(sums[p], int(largest[p])) for p in np.unique(bins[known]).tolist()}
    return _quantiles(merged, count, 0.5), _quantiles(merged, count, 0.99)


def _quantiles(merged: Mapping[int, Histogram], bins: int, quantile: float) -> list[float | None]:
    """Return a quantile of each bin in seconds, or the maximum if the bin has too few records."""
    found = []
    for position in range(bins):
        histogram = merged.get(position)
        value = None
        if histogram is not None:
            value = histogram.quantile(quantile)
            value = histogram.max_ns / 1e9 if value is None else value
        found.append(None if value is None else round(value, 6))
    return found


def _since(moment: int, start: int) -> float:
    return round((moment - start) / 1e9, 4)


def _span(kind: str, name: str, times: tuple[int, int], start: int, text: str = "") -> Span:
    begun, ended = times
    return Span(kind, name, _since(begun, start), _since(ended, start), text)


def _phase_spans(entry: TrialEntry, start: int) -> list[Span]:
    failed = entry.job_state in ("FAILED", "CANCELED")
    named = [("ended" if failed and p.name == "drain" else p.name, p) for p in entry.phases]
    return [_span("phase", name, (phase.start_ns, phase.end_ns), start) for name, phase in named]


def _fault_spans(faults: list[dict[str, Any]], start: int, end: int) -> list[Span]:
    """Return one span per fault: the effect, from `injected` to its end, which is the first of `ended`, `clean`, `residue`, `failed`,
    `voided`, and until TCP has retransmitted what it had dropped."""
    begun: dict[str, tuple[int, str]] = {}
    ended: dict[str, int] = {}
    late = {row["fault"]: t_ns for row in faults if (t_ns := sent_again_ns_of(row))}
    for row in faults:
        name = row["fault"]
        if row["state"] == "injected" and name not in begun:
            begun[name] = row["t_ns"], f"{row['kind']} on {', '.join(targets_in(row['targets']) or ())}"
        elif name in begun and row["state"] in ("ended", *_FINAL_FAULT_STATES):
            ended.setdefault(name, row["t_ns"])
    ended |= {name: max(t_ns, min(t_ns + late.get(name, 0), end)) for name, t_ns in ended.items()}
    return [
        _span("fault", name, (t_ns, ended.get(name, end)), start, text)
        for name, (t_ns, text) in sorted(begun.items())
    ]


def _failovers(events: list[dict[str, Any]], start: int, end: int) -> list[Span]:
    """Return one span per restart, from `failover.started` to `failover.deployed` or the end of the trial."""
    deployed = {e["subject"]: e["t_ns"] for e in events if e["kind"] == "failover.deployed"}
    restarts = [(e, e["subject"]) for e in events if e["kind"] == "failover.started"]
    return [
        _span(
            "failover",
            f"restart {number}",
            (e["t_ns"], deployed.get(number, end)),
            start,
            (e["text"] or "")[:TEXT_MAX],
        )
        for e, number in restarts
    ]


def _event_marks(events: list[dict[str, Any]], start: int, end: int) -> list[Mark]:
    marks = []
    for event in events:
        if event["kind"] not in _MARKED_EVENTS or not start <= event["t_ns"] <= end:
            continue  # outside the phases the testbed itself starts and stops
        to = data(event).get("to") if event["kind"] == "job.state" else None
        words = event["subject"] if to is None else f"job: {to}"  # a trial has one, whose id says nothing
        text = f"{words}. {event['text']}"[:TEXT_MAX] if event["text"] else words
        marks.append(Mark(event["kind"], _since(event["t_ns"], start), text))
    return marks


def _checkpoint_marks(checkpoints: list[dict[str, Any]], start: int) -> list[Mark]:
    marks = []
    for row in checkpoints:
        if row["state"] in ("completed", "failed") and row["t_ns"] >= start:
            text = f"checkpoint {row['checkpoint']} {row['state']}"
            text += f" after {seconds(row['duration_ns'] / 1e9)}" if row["duration_ns"] else ""
            text += f": {row['reason']}" if row["reason"] else ""
            marks.append(Mark(f"checkpoint.{row['state']}", _since(row["t_ns"], start), text))
    return marks


def _faults(faults: list[dict[str, Any]], entry: TrialEntry) -> list[FaultSeen]:
    """Return each fault: what the manifest requested and what the history recorded."""
    asked = {fault.name: fault for fault in entry.faults}
    names = [*asked, *sorted({r["fault"] for r in faults} - set(asked))]
    rows = {name: [r for r in faults if r["fault"] == name] for name in names}
    return [_one_fault(name, asked.get(name), own) for name, own in rows.items()]


def _one_fault(name: str, asked: FaultEntry | None, rows: list[dict[str, Any]]) -> FaultSeen:
    measured: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for row in rows:
        values = parsed(row["measured"])
        into = after if row["state"] in ("clean", "residue") else measured
        into |= {key: _joined(into.get(key), value) for key, value in values.items()}
    if after.get("counters"):  # counters are cumulative, so the last ones cover the whole fault
        measured["counters"] = after["counters"]
    newest = rows[-1] if rows else {}
    targets = list(dict.fromkeys(t for row in rows for t in targets_in(row["targets"]) or ()))
    recorded = next((parsed(r["asked"]) for r in rows if r["asked"]), {})
    texts = dict.fromkeys(_text(r) for r in rows if r["text"] and r["state"] != "asked")
    found = FaultSeen.planned(asked) if asked else FaultSeen(fault=name, kind=newest.get("kind", ""))
    return replace(
        found,
        backend=newest.get("backend") or found.backend,
        targets=targets or found.targets,
        asked=recorded or found.asked,
        measured=measured,
        after=after,
        effect=_effect(rows),
        residue=_combined(rows, "clean", "residue"),
        text="; ".join(texts)[:TEXT_MAX],
    )


def _joined(old: Any, new: Any) -> Any:
    """Merge what several agents measured for one fault, each for its own targets."""
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new


def _effect(rows: list[dict[str, Any]]) -> str:
    """Return whether the fault was seen to take effect, or that it never began."""
    states = {row["state"] for row in rows}
    if "failed" in states and "injected" not in states:
        return "not applied"
    return _combined(rows, "verified", "unverified")


def _combined(rows: list[dict[str, Any]], good: str, bad: str) -> str:
    """Combine the last state reported for each set of targets: `bad` if any of them is."""
    last = {row["targets"]: row["state"] for row in rows if row["state"] in (good, bad)}
    return bad if bad in last.values() else good if last else NOT_MEASURED


def _text(row: Mapping[str, Any]) -> str:
    return f"ended: {row['text']}" if row["state"] == "ended" else str(row["text"])
