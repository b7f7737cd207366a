"""The certificate of a testbed: self-signed, made when the testbed starts, shared by its TaskManagers, deleted with the testbed."""

from __future__ import annotations

import datetime

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.exchange.tls import INTERNAL

KEY_BITS = 2048
LIFETIME = datetime.timedelta(days=3650)
"""Longer than any testbed exists. Only its own processes trust the certificate, and its key is deleted with the testbed."""
CLOCK_SLACK = datetime.timedelta(hours=1)
"""The certificate is valid from this much earlier, in case the clock is set back later or the clock of another node is behind."""
NAME = "headgate testbed"


def make_certificate(now: datetime.datetime) -> bytes:
    """Return a new private key and its certificate as PEM. The key is RSA, because Flink's default cipher suite needs one.

    Raises UserError if `cryptography` is missing."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ImportError:
        problem = "needs the package cryptography, which is not installed"
        raise UserError(f"flinkConfiguration[{INTERNAL}]", problem, "install headgate[tls]") from None
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
