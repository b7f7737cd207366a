"""Who talks to whom: logical names and directed flows. Pure.

A *flow* is (from, to) in the direction of the bytes; `*` stands for everybody. A target is a process name (`tm-0`, `jobmanager`)
or a link `a->b`, which narrows it to what passes between a and b; a fault's direction is seen from the target (from a).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from testbed_runtime.core.errors import UserError

Flow: TypeAlias = tuple[str, str]

ANYBODY = "*"
DIRECTIONS = ("to", "from", "both")
_INCARNATION = re.compile(r"^(tm-\d+)-\d+$")


def logical_name(name: str) -> str:
    """`tm-3-2` → `tm-3`: targets bind to the ordinal, whatever its incarnation."""
    found = _INCARNATION.match(name)
    return found[1] if found else name


def split_link(link: str) -> Flow:
    """`a->b` → (a, b), by logical names."""
    source, _, destination = link.partition("->")
    return logical_name(source), logical_name(destination)


def flows_of(targets: Sequence[str], direction: str) -> tuple[Flow, ...]:
    """The directed flows that a fault on these targets touches, each once, in order.

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
    """Whether `flow` speaks of bytes from source to destination (logical names)."""
    return flow[0] in (ANYBODY, source) and flow[1] in (ANYBODY, destination)


def any_matches(flows: Iterable[Flow], source: str, destination: str) -> bool:
    return any(flow_matches(flow, source, destination) for flow in flows)


def owners_of(targets: Sequence[str]) -> tuple[str, ...]:
    """The processes that are named as targets (the first of a link), each once, in order."""
    return tuple(dict.fromkeys(split_link(t)[0] if "->" in t else logical_name(t) for t in targets))
