"""One fault as plain data: what happens, to which processes, when and for how long. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class Target(Struct, frozen=True):
    """The processes that a fault hits: names, or a selection of the TaskManagers."""

    names: tuple[str, ...] = ()
    """Ordinal names: `tm-0`, `jobmanager`."""
    running: str = ""
    """Selects the TaskManagers with a subtask of this vertex."""
    mode: str = "all"
    """`one` (drawn by the seed from the sorted names), `all`, `fixed` or `percent` (with `value`)."""
    value: int = 0
    peers: tuple[str, ...] = ()
    """The other ends of the links; empty: every process."""
    peers_running: str = ""


class Fault(Struct, frozen=True):
    """`kind` is a key of kinds.KINDS, `params` holds that kind's parameters in SI units (Parameter.key)."""

    name: str
    kind: str
    at_s: float
    duration_s: float
    target: Target = field(default_factory=Target)
    plane: str = "data"
    """One of links.PLANES, for network faults."""
    direction: str = "both"
    """One of links.DIRECTIONS, seen from the target."""
    params: dict[str, Any] = field(default_factory=dict)
    on_target_restart: str = "Expire"
    """`Reapply`, `Expire` or `Fail`."""
    before_submit: bool = False
    """Whether the fault is injected before the job is submitted. Then `at_s` is 0, and the duration counts
    from the injection."""
