"""A container registry in this process: enough of the OCI distribution API for buildah, Helm and containerd."""

from __future__ import annotations

import hashlib
import secrets
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, urlsplit

CHUNK_BYTES = 1 << 20
DIGEST = "Docker-Content-Digest"


@dataclass
class Registry:
    """`tags`: the digest of every pushed manifest by `name:tag`. `types`: its media type by digest. `pulled`: the digests that were fetched."""

    folder: Path
    address: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    pulled: set[str] = field(default_factory=set)

    def blob(self, digest: str) -> Path:
        """Return the file of a layer, a configuration or a manifest."""
        return self.folder / digest.replace(":", "-")


def certificate(folder: Path, address: str) -> ssl.SSLContext:
    """Write a certificate for the address, `ca.crt`, and its key, and return the server's side of TLS."""
    certified, key = folder / "ca.crt", folder / "ca.key"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={address}",
    ]
    files = ["-addext", f"subjectAltName=IP:{address}", "-keyout", str(key), "-out", str(certified)]
    subprocess.run([*request, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified, key)
    return context


@contextmanager
def serving(
    folder: Path, host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None
) -> Iterator[Registry]:
    """Serve a registry that keeps its blobs in `folder`, on a free port of `host`."""
    folder.mkdir(parents=True)
    registry = Registry(folder)
    with ThreadingHTTPServer((host, 0), partial(_Handler, registry)) as server:
        if tls:  # the handshake belongs to the connection's thread
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        registry.address = f"{host}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, registry: Registry, *arguments: object) -> None:
        self.registry = registry
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        name, _, last = self.path.removeprefix("/v2/").rpartition("/")
        if self.path == "/v2/":
            self._answer(200)
        elif name.endswith("/manifests"):
            self._manifest(f"{name.removesuffix('/manifests')}:{last}")
        else:
            self._file(self.registry.blob(last), {DIGEST: last})

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(202, Location=f"{urlsplit(self.path).path}{secrets.token_hex(8)}")

    def do_PATCH(self) -> None:
        with self._upload().open("ab") as upload:
            self._body(upload)
            end = upload.tell()
        self._answer(202, Location=self.path, Range=f"0-{end - 1}")

    def do_PUT(self) -> None:
        with self._upload().open("ab") as upload:
            self._body(upload)
        url = urlsplit(self.path)
        if "/manifests/" in url.path:
            name, tag = url.path.removeprefix("/v2/").split("/manifests/")
            digest = "sha256:" + hashlib.sha256(self._upload().read_bytes()).hexdigest()
            self.registry.types[digest] = self.headers["Content-Type"]
            if tag != digest:
                self.registry.tags[f"{name}:{tag}"] = digest
        else:
            [digest] = parse_qs(url.query)["digest"]
        self._upload().rename(self.registry.blob(digest))
        self._answer(201, **{DIGEST: digest, "Location": self.path})

    def _upload(self) -> Path:
        """Return the file of an upload that is under way."""
        return self.registry.folder / f"upload-{urlsplit(self.path).path.rpartition('/')[2]}"

    def _manifest(self, reference: str) -> None:
        digest = self.registry.tags.get(reference, reference.partition(":")[2])
        if self.command == "GET" and self.registry.blob(digest).exists():
            self.registry.pulled.add(digest)
        media_type = self.registry.types.get(digest, "")
        self._file(self.registry.blob(digest), {DIGEST: digest, "Content-Type": media_type})

    def _file(self, path: Path, headers: dict[str, str]) -> None:
        if not path.exists():
            self._answer(404)
            return
        self._answer(200, **headers, **{"Content-Length": str(path.stat().st_size)})
        if self.command == "GET":
            with path.open("rb") as content:
                while chunk := content.read(CHUNK_BYTES):
                    self.wfile.write(chunk)

    def _body(self, target: BinaryIO) -> None:
        if self.headers.get("Transfer-Encoding") != "chunked":
            self._copy(int(self.headers.get("Content-Length", 0)), target)
            return
        while size := int(self.rfile.readline(), 16):
            self._copy(size, target)
            self.rfile.readline()
        self.rfile.readline()

    def _copy(self, size: int, target: BinaryIO) -> None:
        while size > 0 and (part := self.rfile.read(min(size, CHUNK_BYTES))):
            target.write(part)
            size -= len(part)

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the test's output free of requests."""
