"""Networks with TLS for tests: a certificate for the whole session, and other certificates."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from testbed_runtime.api.certificates import make_certificate
from testbed_runtime.core.exchange.tls import ALGORITHMS, HANDSHAKE, INTERNAL, TlsSettings
from testbed_runtime.core.options import Options
from testbed_runtime.transport.tcp import TcpNetwork
from testbed_runtime.transport.tls import DataTls


@cache
def certificate(name: str = "testbed") -> bytes:
    """Return the certificate and the key of a testbed: always the same for the same name."""
    del name
    return make_certificate(datetime.now(UTC))


def settings(*, algorithms: str | None = None, handshake_ms: int = -1) -> TlsSettings:
    values = {INTERNAL: "true", HANDSHAKE: str(handshake_ms)}
    found = TlsSettings.read(Options(values | ({ALGORITHMS: algorithms} if algorithms else {})))
    assert found is not None
    return found


def tls(name: str = "testbed", **options) -> DataTls:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.pem"
        path.write_bytes(certificate(name))
        return DataTls.load(path, settings(**options))


def encrypted_network(name: str = "testbed", **options) -> TcpNetwork:
    """A network of one TaskManager of the testbed `name`."""
    return TcpNetwork(tls=tls(name, **options))


async def first_bytes(host: str, port: int) -> bytes:
    """Connect with TLS, but without a certificate, and wait for the first bytes of the other end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        try:
            return await reader.read(1)
        finally:
            writer.close()
