"""Which TLS the data port uses, from the options."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.exchange.tls import ALGORITHMS, DATA, HANDSHAKE, INTERNAL, TlsSettings, is_encrypted
from testbed_runtime.core.options import Options

GCM = "TLS_RSA_WITH_AES_128_GCM_SHA256"


@pytest.mark.parametrize(
    ("values", "encrypted"),
    [({}, False), ({INTERNAL: "true"}, True), ({INTERNAL: " TRUE "}, True), ({INTERNAL: "true", DATA: "false"}, False), ({DATA: "true"}, False)],
)  # fmt: skip
def test_the_data_port_is_encrypted_with_the_internal_communication(values: dict[str, str], encrypted: bool):
    """Unless it is left out."""
    assert is_encrypted(values) is encrypted
    assert (TlsSettings.read(Options(values)) is not None) is encrypted


@pytest.mark.parametrize(
    ("algorithms", "expected"),
    [
        (GCM, ("AES128-GCM-SHA256",)),
        (f"TLS_DHE_RSA_WITH_AES_128_GCM_SHA256, {GCM}", ("AES128-GCM-SHA256",)),
        (f"{GCM},TLS_RSA_WITH_AES_256_CBC_SHA", ("AES128-GCM-SHA256", "AES256-SHA")),
        ("TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "names only TLS_DHE_"),
        (f"{GCM},TLS_NONE", "'TLS_NONE' is not supported"),
    ],
)
def test_the_suites_are_used_in_their_order(algorithms: str, expected: tuple[str, ...] | str):
    """Those with Diffie-Hellman parameters are skipped, and unknown ones are refused."""
    options = Options({INTERNAL: "true", ALGORITHMS: algorithms})
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            TlsSettings.read(options)
    else:
        found = TlsSettings.read(options)
        assert found is not None
        assert found.ciphers == expected


@pytest.mark.parametrize(
    ("value", "seconds"), [("-1", 10.0), ("1", 0.001), ("2500", 2.5), ("0", None), ("-2", 10.0)]
)
def test_the_handshake_has_a_timeout(value: str, seconds: float | None):
    """In milliseconds. Less than 0 leaves Netty's ten seconds (SSLHandlerFactory), and 0 is no timeout."""
    found = TlsSettings.read(Options({INTERNAL: "true", HANDSHAKE: value}))
    assert found is not None
    assert found.handshake_timeout_s == seconds
