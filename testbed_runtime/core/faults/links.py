"""Links by logical process names, `a->b` in the direction of a frame; and whose a channel is.

The wire has no handshake: a producer does not learn who connects. So a consumer of ours writes its ordinal into the
InputChannelID that it chooses (Flink's are random), and a producer reads it back for its taps and faults:

0    2        4
| HG | ordinal| 12 bytes of entropy
"""

from __future__ import annotations

import struct

from testbed_runtime.core.ids import ABSTRACT_ID_BYTES, InputChannelID

_MARK = b"HG"
_OWNER = struct.Struct(">2sH")
ENTROPY_BYTES = ABSTRACT_ID_BYTES - _OWNER.size


def channel_id(ordinal: int, entropy: bytes) -> InputChannelID:
    """An id of a channel of TaskManager `tm-<ordinal>`; `entropy` has 12 bytes or more."""
    return InputChannelID(_OWNER.pack(_MARK, ordinal % 2**16) + entropy[:ENTROPY_BYTES])


def owner_of(receiver: InputChannelID) -> str:
    """`tm-<ordinal>`, or empty when the id is not one of ours."""
    mark, ordinal = _OWNER.unpack_from(receiver)
    return f"tm-{ordinal}" if mark == _MARK else ""


def link(source: str, destination: str) -> str:
    return f"{source}->{destination}"


def logical_name(resource_id: str) -> str:
    """`tm-0-1` → `tm-0`; any other name stays as it is."""
    parts = resource_id.split("-")
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        return f"{parts[0]}-{parts[1]}"
    return resource_id
