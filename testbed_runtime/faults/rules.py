"""Rules: what a backend's far end is told, as JSON-able dataclasses. Deadlines are absolute, on CLOCK_MONOTONIC of this boot."""

from __future__ import annotations

from dataclasses import dataclass

from testbed_runtime.faults.links import Flow

MEASURE = "measure"
"""Not a fault: the process keeps sightings of frames while the rule lasts."""


@dataclass(frozen=True, slots=True)
class ChannelRule:
    """For the interceptors of one process. Which fields count depends on `kind` (faults.model.KINDS)."""

    rule_id: str
    kind: str
    deadline: float
    flows: tuple[Flow, ...] = ()
    """Frames: directed links, in the direction of the frame."""
    frame_class: str = ""
    delay_s: float = 0.0
    percent: float = 100.0
    direction: str = ""
    """Heartbeats: `request` or `response`."""
    method: str = ""
    attempts: int = 0
    vertex: str = ""
    """Registration: only this vertex; empty: every one."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class FlowRule:
    """For the proxy: how bytes of some flows are treated while the rule lasts."""

    rule_id: str
    kind: str
    deadline: float
    flows: tuple[Flow, ...]
    planes: tuple[str, ...] = ("data",)
    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    """0: no ceiling."""
    gone: tuple[str, ...] = ()
    """network.half-open: whose ends vanish."""
    seed: int = 1
