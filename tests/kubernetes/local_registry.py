"""A container registry in this process that accepts pushes: enough of the OCI distribution API for buildah."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass
class Registry:
    """`tags` has `name:tag` of every pushed manifest."""

    address: str = ""
    tags: set[str] = field(default_factory=set)
    blobs: dict[str, bytes] = field(default_factory=dict)
    upload: bytes = b""


@contextmanager
def serving() -> Iterator[Registry]:
    registry = Registry()

    class Handler(_Handler):
        store = registry

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    store: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        known = self.store.blobs.get(self.path.rsplit("/", 1)[1])
        self._answer(200 if self.path == "/v2/" or known is not None else 404)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        self._body()
        self._answer(202, Location=f"{self.path}one")

    def do_PATCH(self) -> None:
        self.store.upload = self._body()
        self._answer(202, Location=self.path, Range=f"0-{len(self.store.upload) - 1}")

    def do_PUT(self) -> None:
        body, url = self._body(), urlsplit(self.path)
        if "/manifests/" in url.path:
            name, tag = url.path.removeprefix("/v2/").split("/manifests/")
            self.store.tags.add(f"{name}:{tag}")
        else:
            self.store.blobs[parse_qs(url.query)["digest"][0]] = body or self.store.upload
        self._answer(201)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the test's output free of requests."""
