"""The slices of a run's `trace.json` as spans, the form that OpenTelemetry collectors take. Pure.

Each trial is a trace of its own: the trial is the root, its rounds and waits are children of it, and the segments of the critical path
are children of their round. Ids follow from the names, so a run that is evaluated again has the same ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from testbed_runtime.checking.trace import PATH, ROUNDS
from testbed_runtime.core.waits import Outcome

TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8
FAILED = frozenset({Outcome.EXPIRED, Outcome.FAILED})
"""Outcomes of a wait that are errors of its span."""


class Span(Struct, frozen=True, kw_only=True):
    """One span. Times are nanoseconds since 1970."""

    trace_id: int
    span_id: int
    parent_id: int | None
    """None: the root of the trace."""
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | float]
    failed: bool = False


def first_ns(trace: Mapping[str, Any]) -> int:
    """Return the time at which the first slice of a `trace.json` begins, in nanoseconds of its clock; 0 without any slice."""
    return min((_ns(event["ts"]) for event in trace["traceEvents"] if event["ph"] == "X"), default=0)


def spans(trace: Mapping[str, Any], *, run: str, epoch_ns: int) -> Iterator[list[Span]]:
    """Yield the spans of each trial of a `trace.json`, the root first. `epoch_ns` is the time since 1970 at the zero of the trace's clock."""
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    named = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    names = {(event["pid"], event["tid"]): str(event["args"]["name"]) for event in named}
    for pid in dict.fromkeys(event["pid"] for event in slices):
        own = [event for event in slices if event["pid"] == pid]
        tracks = {tid: name for (process, tid), name in names.items() if process == pid}
        yield _trial(run, tracks.pop(0), own, tracks, epoch_ns)


def _trial(
    run: str, name: str, slices: Sequence[Mapping[str, Any]], tracks: Mapping[int, str], epoch_ns: int
) -> list[Span]:
    """Return the spans of one trial. A round comes before the segments of its critical path."""
    common = {"headgate.run": run, "headgate.trial": name.removeprefix("trial ")}
    trace_id = _id(TRACE_ID_BYTES, run, name)
    root = Span(
        trace_id=trace_id,
        span_id=_id(SPAN_ID_BYTES, run, name),
        parent_id=None,
        name=name,
        start_ns=epoch_ns + _ns(min(event["ts"] for event in slices)),
        end_ns=epoch_ns + _ns(max(event["ts"] + event["dur"] for event in slices)),
        attributes=common,
    )
    found, round_id = [root], root.span_id
    for number, event in enumerate(slices):
        span_id = _id(SPAN_ID_BYTES, run, name, str(number))
        if event["tid"] == ROUNDS:
            round_id = span_id
        own = {f"headgate.{key}": value for key, value in event["args"].items()}
        placed = {"headgate.kind": event["cat"], "headgate.track": tracks[event["tid"]]}
        span = Span(
            trace_id=trace_id,
            span_id=span_id,
            parent_id=round_id if event["tid"] == PATH else root.span_id,
            name=event["name"],
            start_ns=epoch_ns + _ns(event["ts"]),
            end_ns=epoch_ns + _ns(event["ts"] + event["dur"]),
            attributes={**common, **placed, **own},
            failed=event["args"].get("outcome") in FAILED,
        )
        found.append(span)
    return found


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _id(size: int, *names: str) -> int:
    """Return an id that follows from the names and is not 0, which OpenTelemetry does not allow."""
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1
