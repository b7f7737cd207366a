"""Send the trace of a run to the OpenTelemetry collector that the environment names."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed_runtime.checking.spans import Span, first_ns, spans
from testbed_runtime.core.documents import TRACE_FILE
from testbed_runtime.core.trial.manifest import RunManifest
from testbed_runtime.history.manifest import read_manifest

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""A collector is configured if one of these variables is set. The exporter reads the other ones (headers, certificate, timeout)."""
CERTIFICATES = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
BATCH = 512
"""Spans in one request, as in OpenTelemetry's batch processor."""
SERVICE = "headgate"
LIMIT_S = 30.0
"""A run ends after this time even if the collector has not answered. The exporter's own timeout limits each read, so a collector that
answers byte by byte never exceeds it."""
REASON_MAX = 300
"""Characters of the exporter's message in the line about a failure."""


def export(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Send the trace of a run, if a collector is configured. Return what was done in one line; empty if there was nothing to do.

    Neither a collector that cannot be reached nor an error of the exporter changes a verdict."""
    try:
        return _export(folder, environment)
    except Exception as error:
        return f"the trace was not sent: {type(error).__name__}: {error}"


def _export(folder: Path, environment: Mapping[str, str]) -> str:
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
    found = chain.from_iterable(spans(trace, run=manifest.run, epoch_ns=_epoch_ns(manifest, trace)))
    named = {"service.name": environment.get("OTEL_SERVICE_NAME") or SERVICE}
    return _send(found, Resource.create(named))


def _epoch_ns(manifest: RunManifest, trace: Mapping[str, Any]) -> int:
    """Return the nanoseconds to add to the times of a trace to get those since 1970. The pods of a run record such times. In virtual time,
    the first wait begins when the run started."""
    if manifest.environment == "kubernetes":
        return 0
    if manifest.epoch_ns is not None:
        return manifest.epoch_ns
    return int(datetime.fromisoformat(manifest.started).timestamp()) * 10**9 - first_ns(trace)


def _is_off(environment: Mapping[str, str]) -> bool:
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return disabled or environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none"


def _send(found: Iterable[Span], resource: Resource) -> str:
    """Send the spans in the background, because no timeout of the exporter limits the whole answer of a collector."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    with _complaints() as complaints:
        exporter = OTLPSpanExporter(session=_session())
        waiting, sending = iter(found), _Sending()
        batches = iter(lambda: [_readable(span, resource) for span in islice(waiting, BATCH)], [])
        thread = threading.Thread(target=sending.run, args=(exporter, batches), daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        sending.stopped.set()
        exporter.shutdown()  # type: ignore[no-untyped-call]  # the exporter has no annotation there
    if sending.failure:
        raise sending.failure
    if not thread.is_alive() and not sending.refused:
        complaints = [c for c in complaints if not c.was_retried]
    why = f": {complaints[0].text}" if complaints else ""
    if thread.is_alive():
        return f"the collector was too slow for the whole trace: it got {sending.sent:,} spans{why}"
    if sending.refused:
        return f"the collector did not take the trace; it got {sending.sent:,} spans{why}"
    return f"trace: {sending.sent:,} spans sent to the collector{why}"


def _session() -> requests.Session | None:
    """Return a session that trusts the certificate of OpenTelemetry's variables, or None if they name none. Otherwise requests prefers
    REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE, which many build machines set."""
    if not any(os.environ.get(name) for name in CERTIFICATES):
        return None
    import requests

    class Session(requests.Session):
        def merge_environment_settings(
            self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any
        ) -> Any:
            return super().merge_environment_settings(url, proxies, stream, verify or self.verify, cert)

    return Session()


class _Sending:
    """The progress of a background thread that sends batches of spans."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.sent = 0
        self.refused = False
        self.failure: Exception | None = None

    def run(self, exporter: SpanExporter, batches: Iterable[list[ReadableSpan]]) -> None:
        """Send batch after batch until one is refused or `stopped` is set. An exception becomes `failure`."""
        try:
            self._run(exporter, batches)
        except Exception as error:
            self.failure = error

    def _run(self, exporter: SpanExporter, batches: Iterable[list[ReadableSpan]]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        for batch in batches:
            if self.stopped.is_set():
                return
            if exporter.export(batch) is not SpanExportResult.SUCCESS:
                self.refused = True
                return
            self.sent += len(batch)


class _Complaint(NamedTuple):
    """A warning of the exporter, without what it does about it."""

    text: str
    was_retried: bool


class _Keep(logging.Handler):
    """Appends each warning to a list."""

    def __init__(self, found: list[_Complaint]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        text, retried, _ = record.getMessage().partition(" encountered while exporting")
        self._found.append(_Complaint(" ".join(text.split())[:REASON_MAX], bool(retried)))


@contextmanager
def _complaints() -> Iterator[list[_Complaint]]:
    """Collect the warnings and errors that OpenTelemetry logs, which would otherwise appear on the terminal with every retry."""
    logger, found = logging.getLogger("opentelemetry"), list[_Complaint]()
    handler, before = _Keep(found), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


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
