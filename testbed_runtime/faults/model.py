"""Faults as data: what is asked, of whom, for how long; which backends can do it. Pure; `spec` and the backends share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """Who is hit. Either names, or a selection over the TaskManagers that run a vertex."""

    names: tuple[str, ...] = ()
    """Ordinal names: `tm-0`, `jobmanager`."""
    running: str = ""
    """TaskManagers with a subtask of this vertex."""
    mode: str = "all"
    """`one` (drawn by the seed over sorted names), `all`, `fixed`, `percent` (with `value`)."""
    value: int = 0
    peers: tuple[str, ...] = ()
    """For links: the other end (names or empty for everybody)."""
    peers_running: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `kind` is a key of KINDS, `params` hold that kind's parameters in SI units."""

    name: str
    kind: str
    at_s: float
    duration_s: float
    target: Target = field(default_factory=Target)
    plane: str = "data"
    """`data`, `rpc` or `both`: for network faults."""
    direction: str = "both"
    """Seen from the target: `to` it, `from` it, `both`."""
    params: dict[str, Any] = field(default_factory=dict)
    on_target_restart: str = "Expire"
    """`Reapply`, `Expire`, `Fail`."""
    before_submit: bool = False
    """Injected before the job is submitted; `at_s` is 0 then, and the duration counts from the injection."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    params: dict[str, str]
    """Parameter → what it is, for errors and `headgate faults`."""
    backends: tuple[str, ...]
    """Strongest first; the first that the place allows is taken."""
    effect: str
    """How the effect is measured."""
    doc: str


KINDS: dict[str, Kind] = {
    k.name: k
    for k in (
        Kind("network.latency", {"latency_s": "seconds added", "mode": "one-way | round-trip", "jitter_s": "± seconds, uniform", "correlation": "percent: how far a packet's jitter follows the one before; packet backends only"}, ("netem", "nfqueue", "proxy"), "probe", "Bytes take longer."),
        Kind("network.loss", {"percent": "of packets", "burst": "mean number of packets lost in a row; 1: each packet by itself"}, ("netem", "nfqueue"), "probe", "Packets are lost (packet backends only)."),
        Kind("network.duplicate", {"percent": "of packets"}, ("netem", "nfqueue"), "probe", "Packets arrive twice (packet backends only)."),
        Kind("network.reorder", {"percent": "of packets", "delay_s": "seconds such a packet is held, so that later ones overtake it"}, ("netem", "nfqueue"), "probe", "Packets are overtaken by later ones (packet backends only)."),
        Kind("network.corrupt", {"percent": "of packets"}, ("netem", "nfqueue"), "probe", "One bit of a packet flips; its checksum makes the receiver drop it (packet backends only)."),
        Kind("network.partition", {}, ("nftables", "proxy"), "probe", "Nothing passes; connections stay open."),
        Kind("network.reset", {}, ("proxy",), "tap", "Open connections are reset; new ones too while it lasts."),
        Kind("network.stall", {}, ("proxy",), "probe", "Bytes are accepted and held; they arrive, in order, when it ends."),
        Kind("network.half-open", {}, ("nftables", "proxy"), "probe", "The target's ends of its connections are gone; the others hear nothing of it until the fault ends."),
        Kind("network.bandwidth", {"bytes_per_s": "ceiling"}, ("netem", "proxy"), "probe", "A ceiling on throughput."),
        Kind("frames.delay", {"frame_class": "class of frames", "delay_s": "seconds"}, ("channel",), "tap", "Frames of a class are held back."),
        Kind("frames.drop", {"frame_class": "class of frames", "percent": "of frames"}, ("channel",), "tap", "Frames of a class vanish."),
        Kind("frames.withhold-credit", {}, ("channel",), "tap", "AddCredit frames are kept until the fault ends, then sent."),
        Kind("registration.delay", {"delay_s": "seconds", "attempts": "number of requests answered with not found", "vertex": "only this vertex's partitions"}, ("channel",), "event", "A producer's partitions are registered late."),
        Kind("heartbeats.mute", {"direction": "request | response"}, ("channel",), "event", "Heartbeats in one direction are swallowed."),
        Kind("rpc.delay", {"method": "message name, e.g. SubmitTask", "delay_s": "seconds"}, ("channel",), "event", "The callee's answer takes longer, in its mailbox."),
        Kind("process.kill", {}, ("supervisor",), "process", "SIGKILL; a new incarnation comes by `replaceLost`."),
        Kind("process.pause", {}, ("supervisor",), "process", "SIGSTOP, SIGCONT when it ends."),
        Kind("pod.delete", {}, ("kubernetes",), "process", "The pod is deleted without grace; a new one comes by `replaceLost`."),
        Kind("pod.evict", {}, ("kubernetes",), "process", "The pod is evicted: disruption budgets and its grace period count."),
        Kind("jobmanager.kill", {}, ("supervisor",), "process", "SIGKILL of the JobManager, started again at the end."),
        Kind("jobmanager.pause", {}, ("supervisor",), "process", "SIGSTOP of the JobManager."),
        Kind("store.slow", {"delay_s": "seconds per object"}, ("channel",), "event", "The checkpoint store answers late."),
        Kind("store.failing", {}, ("channel",), "event", "The checkpoint store refuses writes."),
    )
}  # fmt: skip

FRAME_CLASSES = ("buffer", "event", "barrier", "credit", "backlog", "request")
