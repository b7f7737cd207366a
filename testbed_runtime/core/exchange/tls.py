"""Which TLS the data port uses: Flink's internal TLS (SSLUtils, NettyConfig), always mutual and TLS 1.2."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.options import ALIASES, Options

INTERNAL = "security.ssl.internal.enabled"
DATA = "taskmanager.data.ssl.enabled"
ALGORITHMS = "security.ssl.algorithms"
HANDSHAKE = "security.ssl.internal.handshake-timeout"
DEFAULT_HANDSHAKE_S = 10.0
"""Netty's default, which Flink keeps with -1."""

CIPHERS = {
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""Java's names of the cipher suites that work with an RSA certificate in TLS 1.2, and OpenSSL's names."""

SKIPPED = ("TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384")
"""Flink's documentation recommends them first, but they need Diffie-Hellman parameters on the server. The next suite of the
list is used, whose handshake differs and whose encryption is the same."""


def is_encrypted(configuration: Mapping[str, str]) -> bool:
    """Whether the TaskManagers encrypt what they exchange, and so need a certificate. The values may be invalid."""
    values = {ALIASES.get(key, key): value.strip().lower() for key, value in configuration.items()}
    return values.get(INTERNAL) == "true" and values.get(DATA, "true") == "true"


class TlsSettings(Struct, frozen=True):
    """The TLS settings of the data port. `ciphers` are OpenSSL's names, in order of preference."""

    ciphers: tuple[str, ...]
    handshake_timeout_s: float | None
    """None: no limit, as Netty reads a timeout of 0."""

    @classmethod
    def read(cls, options: Options) -> TlsSettings | None:
        """Return the TLS configuration of the data port; None without TLS. Raises UserError."""
        if not is_encrypted(options.as_map()):
            return None
        names = [name.strip() for name in options.string(ALGORITHMS).split(",")]
        where, hint = f"flinkConfiguration[{ALGORITHMS}]", f"use {', '.join(CIPHERS)}"
        for name in names:
            if name not in CIPHERS and name not in SKIPPED:
                raise UserError(where, f"{name!r} is not supported", hint)
        ciphers = tuple(CIPHERS[name] for name in names if name in CIPHERS)
        if not ciphers:
            raise UserError(where, "names only TLS_DHE_* suites, which are not supported", hint)
        milliseconds = options.integer(HANDSHAKE)
        if milliseconds < 0:
            return cls(ciphers, DEFAULT_HANDSHAKE_S)
        return cls(ciphers, milliseconds / 1e3 if milliseconds else None)
