"""Send the trace of a run to the OpenTelemetry collector that the environment names."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed_runtime.checking.spans import Span, spans
from testbed_runtime.core.documents import TRACE_FILE
from testbed_runtime.history.manifest import read_manifest

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""A collector is configured if one of these variables is set. The exporter reads the other ones (headers, certificate, timeout)."""
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
BATCH = 512
"""Spans in one request, as in OpenTelemetry's batch processor."""
SERVICE = "headgate"
LIMIT_S = 30.0
"""No further request is sent after this time, because a run does not end before its trace is sent."""


def export(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Send the trace of a run, if a collector is configured. Return what was done in one line; empty if there was nothing to do.

    A collector that cannot be reached changes no verdict."""
    if not any(environment.get(name) for name in ENDPOINTS) or _is_off(environment):
        return ""
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), PROTOCOL)
    if protocol != PROTOCOL:
        return f"the trace was not sent: OTEL_EXPORTER_OTLP_PROTOCOL is {protocol} (set it to {PROTOCOL})"
    try:
        trace = json.loads((folder / TRACE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"no trace was sent to the collector: the run has no {TRACE_FILE} on this machine"
    try:
        from opentelemetry.sdk.resources import Resource
    except ImportError:
        return "the trace was not sent: OpenTelemetry is not installed (pip install 'headgate[otel]')"
    manifest = read_manifest(folder)
    started_ns = int(datetime.fromisoformat(manifest.started).timestamp()) * 10**9
    found = chain.from_iterable(spans(trace, run=manifest.run, started_ns=started_ns))
    named = {"service.name": environment.get("OTEL_SERVICE_NAME") or SERVICE}
    return _send(found, Resource.create(named))


def _is_off(environment: Mapping[str, str]) -> bool:
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return disabled or environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none"


def _send(found: Iterable[Span], resource: Resource) -> str:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    exporter = OTLPSpanExporter()
    waiting, sent, begun = iter(found), 0, time.monotonic()
    try:
        while batch := [_readable(span, resource) for span in islice(waiting, BATCH)]:
            if time.monotonic() - begun > LIMIT_S:
                return f"the collector was too slow for the whole trace: it got {sent:,} spans"
            if exporter.export(batch) is not SpanExportResult.SUCCESS:
                return f"the collector did not take the trace; it got {sent:,} spans"
            sent += len(batch)
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]  # the exporter has no annotation there
    return f"trace: {sent:,} spans sent to the collector"


def _readable(span: Span, resource: Resource) -> ReadableSpan:
    """Return the span as the exporter takes it."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    def context(span_id: int) -> Any:
        return SpanContext(
            span.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )

    return ReadableSpan(
        span.name,
        context=context(span.span_id),
        parent=None if span.parent_id is None else context(span.parent_id),
        resource=resource,
        attributes=span.attributes,
        status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope(SERVICE),
    )
