"""A run's trace, sent to an OTLP receiver on this machine."""

from __future__ import annotations

import gzip
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from testbed_runtime.cli import environments, loading, telemetry
from testbed_runtime.core.trial.manifest import MANIFEST_SCHEMA
from tests.kubernetes import local_registry

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
STARTED = "2026-01-01T00:00:00+00:00"
STARTED_NS = 1_767_225_600 * 10**9


class Collector:
    """Receives OTLP over HTTP as a collector does, and keeps what arrived."""

    def __init__(self, status: int = 200) -> None:
        self.first: int | None = None
        """The status of the first answer, if it is another one."""
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[Any] = []
        self.status = status
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                collector.headers.append(self.headers)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.first or collector.status)
                collector.first = None
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, name="collector")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    """A collector that answers with the status in the parameter."""
    made = Collector(getattr(request, "param", 200))
    made.thread.start()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def name(kind: str, tid: int, text: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": 1, "tid": tid, "args": {"name": text}}


def slice_of(tid: int, ts: float, dur: float, text: str, kind: str, **args: Any) -> dict[str, Any]:
    return {"name": text, "cat": kind, "ph": "X", "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


EVENTS = [
    name("thread_name", 1, "rounds"), name("thread_name", 2, "critical path"), name("thread_name", 3, "JobMaster"),
    name("process_name", 0, "trial main-1"),
    slice_of(1, 1_000_000.0, 2_000_000.0, "recovery from dead: round 1", "round", ended_by="running"),
    slice_of(2, 1_000_000.0, 1_500_000.0, "heartbeat.timeout = 1500 ms", "heartbeat", option="heartbeat.timeout"),
    slice_of(2, 2_500_000.0, 500_000.0, "a slot for each task", "slot"),
    slice_of(3, 900_000.0, 1_600_000.0, "heartbeat tm-1", "heartbeat", outcome="expired", budget_s=1.5),
]  # fmt: skip


def run_folder(folder: Path, events: list[dict[str, Any]] | None = None, **more: Any) -> Path:
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "run": "killed-1",
        "started": STARTED,
        "expectations": {},
        **more,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "trace.json").write_text(json.dumps({"traceEvents": EVENTS if events is None else events}))
    return folder


def test_a_run_is_a_trace_of_its_rounds_waits_and_critical_path(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """The trial is the root. Its first wait began when the run started; an expired wait is an error of its span."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    assert telemetry.export(run_folder(tmp_path)) == "trace: 5 spans sent to the collector"
    found = {span.name: span for span in collector.spans}
    root, part, wait = found["trial main-1"], found["recovery from dead: round 1"], found["heartbeat tm-1"]
    path = found["heartbeat.timeout = 1500 ms"]
    assert len({span.trace_id for span in collector.spans}) == 1
    assert len({span.span_id for span in collector.spans}) == 5
    assert (root.parent_span_id, part.parent_span_id, path.parent_span_id) == (
        b"",
        root.span_id,
        part.span_id,
    )
    assert wait.parent_span_id == root.span_id
    assert root.start_time_unix_nano == wait.start_time_unix_nano == STARTED_NS
    assert part.start_time_unix_nano == STARTED_NS + 100_000_000
    assert part.end_time_unix_nano == root.end_time_unix_nano == STARTED_NS + 2_100_000_000
    assert {a.key: a.value.string_value or a.value.double_value for a in wait.attributes} == {
        "headgate.run": "killed-1",
        "headgate.trial": "main-1",
        "headgate.kind": "heartbeat",
        "headgate.track": "JobMaster",
        "headgate.outcome": "expired",
        "headgate.budget_s": 1.5,
    }
    assert (wait.status.code, path.status.code) == (
        wait.status.STATUS_CODE_ERROR,
        path.status.STATUS_CODE_UNSET,
    )
    assert collector.headers[0]["authorization"] == "secret"
    resource = {
        a.key: a.value.string_value for a in collector.requests[0].resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "headgate"


def test_a_run_that_is_sent_again_has_the_same_ids(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """They follow from the names of run and trial, so a backend that has the trace replaces it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.address}/v1/traces")
    for _ in range(2):
        telemetry.export(run_folder(tmp_path))
    first, second = (
        [s.span_id for s in r.resource_spans[0].scope_spans[0].spans] for r in collector.requests
    )
    assert first == second


def test_many_spans_are_sent_in_batches(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """1,200 waits and the trial, at most 512 in a request."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    waits = [slice_of(3, float(n), 1.0, f"wait {n}", "slot") for n in range(1200)]
    assert (
        telemetry.export(run_folder(tmp_path, EVENTS[:4] + waits))
        == "trace: 1,201 spans sent to the collector"
    )
    sizes = [len(r.resource_spans[0].scope_spans[0].spans) for r in collector.requests]
    assert sizes == [512, 512, 177]


@pytest.mark.parametrize("collector", [400], indirect=True)
def test_a_collector_that_refuses_the_trace_is_named_and_changes_nothing_else(
    tmp_path: Path,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    """The line has the collector's reason; no exception, and the exporter prints nothing of its own."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    assert telemetry.export(run_folder(tmp_path)) == (
        "the collector did not take the trace; it got 0 spans: Failed to export spans batch code: 400, reason: Bad Request"
    )
    assert capfd.readouterr() == ("", "")


def test_a_trace_that_is_sent_at_the_second_try_is_no_failure(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """The line leaves out the warning about the first try."""
    collector.first = 503
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    assert telemetry.export(run_folder(tmp_path)) == "trace: 5 spans sent to the collector"
    assert len(collector.requests) == 2


def test_a_collector_that_answers_byte_by_byte_does_not_keep_a_run_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The exporter's timeout is one of each read, so only the limit of the whole answer ends the wait."""
    monkeypatch.setattr(telemetry, "LIMIT_S", 0.3)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while not over.wait(0.05):
                    connection.sendall(b"x")

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
        line = telemetry.export(run_folder(tmp_path))
        over.set()
        thread.join()
    assert line == "the collector was too slow for the whole trace: it got 0 spans"


def test_a_setting_that_the_exporter_ignores_is_named(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """The trace is sent with the default, and the line says so."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")
    assert telemetry.export(run_folder(tmp_path)) == (
        "trace: 5 spans sent to the collector: Invalid timeout value '10s', using default of 10 seconds"
    )


def test_a_trace_that_cannot_be_read_costs_no_verdict(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """Whatever fails, the caller gets a line and no exception."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    folder = run_folder(tmp_path, [*EVENTS, {"ph": "X"}])
    assert telemetry.export(folder) == "the trace was not sent: KeyError: 'ts'"
    (folder / "trace.json").write_text("{")
    assert telemetry.export(folder).startswith("the trace was not sent: JSONDecodeError")


def test_an_error_of_the_exporter_does_not_cost_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The run is judged already. Its log says what happened, though the exporter runs in a thread of its own."""

    def fail(*_: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(OTLPSpanExporter, "export", fail)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert telemetry.export(run_folder(tmp_path)) == "the trace was not sent: ConnectionError: no route"


def test_the_certificate_of_the_collector_is_trusted_beside_another_bundle(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """A build machine often has a bundle of its own in REQUESTS_CA_BUNDLE. It does not replace the certificate that was named for this purpose."""
    tls, other = local_registry.certificate(tmp_path, "127.0.0.1"), tmp_path / "other"
    other.mkdir()
    local_registry.certificate(other, "127.0.0.1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other / "ca.crt"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.crt"))
    plain = collector.server.socket
    with tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) as collector.server.socket:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.replace("http:", "https:"))
        assert telemetry.export(run_folder(tmp_path)) == "trace: 5 spans sent to the collector"


def test_a_run_in_pods_keeps_its_times(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch):
    """They are those of the nodes' clocks. The run's object is created long before its first wait, while images are pulled."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    later_us = (STARTED_NS + 90 * 10**9) / 1e3
    folder = run_folder(tmp_path, [*EVENTS[:4], slice_of(3, later_us, 1e6, "heartbeat tm-1", "heartbeat")])
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "place": "kubernetes"}))
    telemetry.export(folder)
    assert {span.start_time_unix_nano for span in collector.spans} == {STARTED_NS + 90 * 10**9}


def test_a_run_on_one_machine_has_the_times_at_which_its_waits_happened(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """The manifest relates the monotonic clock of the history to the date, so the first wait does not begin when the run started."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    before = time.time_ns()
    _, info = environments.new_run(tmp_path, loading.load(SCENARIOS / "02-taskmanager-killed"), "local")
    assert info.epoch_ns is not None
    assert before <= info.epoch_ns + time.monotonic_ns() <= time.time_ns() + 10**9
    telemetry.export(run_folder(tmp_path, epoch_ns=info.epoch_ns))
    assert min(span.start_time_unix_nano for span in collector.spans) == info.epoch_ns + 900_000_000


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, ""),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "the trace was not sent: OTEL_EXPORTER_OTLP_PROTOCOL is grpc (set it to http/protobuf)",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"},
            "no trace was sent to the collector: the run has no trace.json on this machine",
        ),
    ],
)
def test_without_a_collector_or_a_trace_nothing_is_sent(
    tmp_path: Path, environment: dict[str, str], text: str
):
    """And the line says why, if a collector is configured."""
    assert telemetry.export(tmp_path, environment) == text


def test_a_run_without_waits_has_no_spans(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """A trial that never started."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    assert telemetry.export(run_folder(tmp_path, [])) == "trace: 0 spans sent to the collector"
    assert collector.requests == []


def test_without_the_optional_package_the_line_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The exporter is an extra of the distribution."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    line = telemetry.export(run_folder(tmp_path), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})
    assert line == "the trace was not sent: OpenTelemetry is not installed (pip install 'headgate[otel]')"
