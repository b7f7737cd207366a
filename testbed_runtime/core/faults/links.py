"""Links by logical process names, the directed flows of a fault on them, and the owner of a channel. Pure.

A link `a->b` has the direction of a frame. A *flow* is (from, to) in the direction of the bytes; `*` stands for every process. A target
is a process name (`tm-0`, `jobmanager`) or a link, which narrows it to the bytes between both; a fault's direction is seen from the target.

The wire has no handshake, so a producer does not learn which process connects. A Headgate consumer therefore writes its ordinal into the
InputChannelID that it chooses (Flink's are random), and a producer reads it back for its taps and faults:

0    2        4
| HG | ordinal| 12 bytes of entropy
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.ids import ABSTRACT_ID_BYTES, InputChannelID

Flow: TypeAlias = tuple[str, str]

ANYBODY = "*"
PLANES = ("data", "rpc", "both")
DIRECTIONS = ("to", "from", "both")
_MARK = b"HG"
_OWNER = struct.Struct(">2sH")
ENTROPY_BYTES = ABSTRACT_ID_BYTES - _OWNER.size


def channel_id(ordinal: int, entropy: bytes) -> InputChannelID:
    """Return the id of a channel of TaskManager `tm-<ordinal>`. `entropy` has at least 12 bytes."""
    return InputChannelID(_OWNER.pack(_MARK, ordinal % 2**16) + entropy[:ENTROPY_BYTES])


def owner_of(receiver: InputChannelID) -> str:
    """Return `tm-<ordinal>`, or an empty string for an id that Headgate did not choose."""
    mark, ordinal = _OWNER.unpack_from(receiver)
    return f"tm-{ordinal}" if mark == _MARK else ""


def link(source: str, destination: str) -> str:
    return f"{source}->{destination}"


def logical_name(resource_id: str) -> str:
    """Drop the incarnation: `tm-0-1` → `tm-0`. Other names are returned unchanged."""
    parts = resource_id.split("-")
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        return f"{parts[0]}-{parts[1]}"
    return resource_id


def split_link(link: str) -> Flow:
    """Return both ends of a link by their logical names: `a->b` → (a, b)."""
    source, _, destination = link.partition("->")
    return logical_name(source), logical_name(destination)


def flows_of(targets: Sequence[str], direction: str) -> tuple[Flow, ...]:
    """Return the directed flows that a fault on these targets affects, without repetitions and in order.

    Raises UserError for an unknown direction."""
    if direction not in DIRECTIONS:
        raise UserError("direction", f"{direction!r} is not a direction", "write to, from or both")
    flows: dict[Flow, None] = {}
    for target in targets:
        own, peer = split_link(target) if "->" in target else (logical_name(target), ANYBODY)
        if direction in ("from", "both"):
            flows[own, peer] = None
        if direction in ("to", "both"):
            flows[peer, own] = None
    return tuple(flows)


def flow_matches(flow: Flow, source: str, destination: str) -> bool:
    """Whether `flow` covers bytes from source to destination (logical names)."""
    return flow[0] in (ANYBODY, source) and flow[1] in (ANYBODY, destination)


def any_matches(flows: Iterable[Flow], source: str, destination: str) -> bool:
    return any(flow_matches(flow, source, destination) for flow in flows)


def owners_of(targets: Sequence[str]) -> tuple[str, ...]:
    """Return the processes named as targets (the first end of a link), without repetitions and in order."""
    return tuple(dict.fromkeys(split_link(t)[0] if "->" in t else logical_name(t) for t in targets))
