"""Faults that meet on the same packets: composed, or refused with both names. Pure.

In the queue they are composed: delays add up, each loses and damages for itself, the lowest ceiling counts. Under a partition or a
half-open connection nothing passes that another fault could change, and netem carries one fault a device; those are refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.packets.model import CUTTING, PacketRule


def check_overlap(new: PacketRule, active: Iterable[PacketRule]) -> None:
    """Raises UserError with both faults' names when the new one cannot hold beside one that is active."""
    for old in active:
        if not touch(new, old):
            continue
        if old.kind in CUTTING or new.kind in CUTTING:
            why = "nothing passes under one of them, so the other has no effect that could be measured"
        elif "netem" in (old.mechanism, new.mechanism):
            why = "netem carries one fault on a network device"
        else:
            continue
        raise UserError(
            "faults",
            f"{new.fault} ({new.kind}) and {old.fault} ({old.kind}) overlap on the same packets: {why}",
            "let one end before the other begins, or choose other targets or another plane",
        )


def touch(one: PacketRule, other: PacketRule) -> bool:
    """Whether a packet can match both."""
    if one.hook != other.hook:
        return False
    ports = {*one.ports, *one.probe_ports} & {*other.ports, *other.probe_ports}
    peers = not one.peers or not other.peers or set(one.peers) & set(other.peers)
    return bool(ports) and bool(peers)
