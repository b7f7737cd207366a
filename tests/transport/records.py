"""The length of a record before its bytes, as a stream has it."""

from __future__ import annotations

from testbed_runtime.core.exchange.records import LENGTH_BYTES


def frame_record(data: bytes) -> bytes:
    """Return the length and the bytes of one record."""
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
