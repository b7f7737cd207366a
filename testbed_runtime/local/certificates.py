"""The file with the certificate of a testbed on this machine, deleted with the testbed's folder."""

from __future__ import annotations

import datetime
from pathlib import Path

from testbed_runtime.api.certificates import make_certificate


def write_certificate(path: Path) -> None:
    """Create a file of mode 0600 with a new private key and its certificate. Raises UserError if `cryptography` is missing."""
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(make_certificate(datetime.datetime.now(datetime.UTC)))
