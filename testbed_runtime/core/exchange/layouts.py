"""The two layouts of a BufferResponse's header, and how to detect that a peer uses the other one."""

from __future__ import annotations

import struct

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange.frames import BytesLike, WireVersion

_HEADS = {
    # partial buffers, backlog, data type, compressed; behind receiver, subpartition and sequence number
    WireVersion.V2: struct.Struct(">20xi4xiBB"),
    WireVersion.V1_20: struct.Struct(">24xiBB"),
}
_HEAD_BYTES = {WireVersion.V2: 38, WireVersion.V1_20: 34}
KNOWN_TYPES = {WireVersion.V2: 14, WireVersion.V1_20: 12}


def other_version(version: WireVersion, head: BytesLike, body_bytes: int) -> WireVersion | None:
    """Return the other version if the header follows its layout and not the layout of `version`. `head` holds
    the first bytes of a body of `body_bytes`."""
    if _follows(version, head, body_bytes):
        return None
    return next(
        (other for other in WireVersion if other is not version and _follows(other, head, body_bytes)), None
    )


def _follows(version: WireVersion, head: BytesLike, body_bytes: int) -> bool:
    """Return whether all known fields of the header are valid in the layout. The size is compared if the bytes reach it."""
    layout, size_at = _HEADS[version], _HEAD_BYTES[version] - 4
    if body_bytes < _HEAD_BYTES[version] or len(head) < layout.size:
        return False
    *partials, backlog, data_type, compressed = layout.unpack_from(head)
    payload = body_bytes - _HEAD_BYTES[version] - 4 * sum(partials)
    if len(head) >= size_at + 4:
        (size,) = struct.unpack_from(">i", head, size_at)
        if size != payload:
            return False
    return (
        min(backlog, payload, *partials) >= 0
        and 0 < data_type < KNOWN_TYPES[version]
        and compressed in (0, 1)
    )


def check_layout(version: WireVersion, head: BytesLike, body_bytes: int) -> None:
    """Raise RemoteProtocolError, with the option to set, if a peer speaks the other version."""
    other = other_version(version, head, body_bytes)
    if other is not None:
        raise RemoteProtocolError(
            f"A buffer has the layout of Flink {other.value}, not of {version.value}: the peer seems to speak {other.value} "
            f"(`--flink-version {other.value}`, or `flinkVersion` in a document)"
        )
