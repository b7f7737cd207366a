"""Which backend carries a fault here, and why; what cannot be done here is refused before anything starts. Pure.

`choose_backend` is the one place that decides. A place says what it offers as `Capabilities`; what it does not offer comes with a reason.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.links import DIRECTIONS
from testbed_runtime.faults.model import FRAME_CLASSES, KINDS, Fault, Kind

PLANES = ("data", "rpc", "both")
MAX_DURATION_S = 24 * 3600.0
"""A fault that outlives a day is a mistake in the unit."""
MAX_DELAY_S = 3600.0
_PACKETS = ("netem", "nfqueue", "nftables")
_PACKET_KINDS = ("network.loss", "network.duplicate", "network.reorder", "network.corrupt")
_NO_PODS = "there are no pods in this place"

BACKENDS: dict[str, str] = {
    "channel": "interceptor in the process's own transport and mailboxes; no privilege",
    "proxy": "userspace proxy in the path of every connection; no privilege",
    "supervisor": "signals from the parent of the process; no privilege",
    "netem": "the kernel's packet scheduler; needs NET_ADMIN and sch_netem",
    "nfqueue": "packets handed to userspace; needs NET_ADMIN and nfnetlink_queue",
    "nftables": "the kernel's packet filter; needs NET_ADMIN",
    "kubernetes": "the cluster's API server; needs leave to delete pods",
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a place offers. `missing` says for each backend that is not there why, and what would mend it."""

    place: str
    backends: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)


LOCAL = Capabilities(
    "local",
    ("channel", "proxy", "supervisor"),
    {
        **dict.fromkeys(
            _PACKETS,
            "the processes of this place share one network interface, so a packet rule would hit every program on this machine; "
            "run it where each TaskManager has a network of its own",
        ),
        "kubernetes": _NO_PODS,
    },
)
SIMULATION = Capabilities(
    "simulation",
    ("channel", "proxy", "supervisor"),
    {
        **dict.fromkeys(_PACKETS, "the simulated network carries byte streams, there are no packets in it"),
        "kubernetes": _NO_PODS,
    },
)


def kind_of(fault: Fault) -> Kind:
    """Raises UserError with the nearest known kind."""
    kind = KINDS.get(fault.kind)
    if kind is None:
        near = difflib.get_close_matches(fault.kind, KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "`headgate faults` lists the kinds"
        raise UserError(f"faults[{fault.name}].kind", f"there is no fault kind {fault.kind!r}", hint)
    return kind


def choose_backend(
    kind: str, capabilities: Capabilities, *, params: Mapping[str, Any] | None = None
) -> tuple[str, str]:
    """(backend, why): the strongest that the place offers; `params` may rule some out (a correlation is of packets).

    Raises UserError: the kind, the place, why not, and the mend."""
    wanted = kind_of(Fault(name=kind, kind=kind, at_s=0, duration_s=0)).backends
    if (params or {}).get("correlation"):
        wanted = tuple(name for name in wanted if name in _PACKETS)
    skipped: list[str] = []
    for name in wanted:
        if name in capabilities.backends:
            why = f"{name}: {BACKENDS[name]}"
            return name, why + (f"; stronger but not here: {'; '.join(skipped)}" if skipped else "")
        skipped.append(f"{name} ({capabilities.missing.get(name, 'not offered in this place')})")
    reasons = {capabilities.missing.get(name, "not offered in this place") for name in wanted}
    raise UserError(
        f"faults.{kind}",
        f"{kind} cannot be done in the place {capabilities.place!r}: it needs {' or '.join(wanted)}, but {'; '.join(sorted(reasons))}",
        _mend(kind),
    )


def _mend(kind: str) -> str:
    if kind.startswith("pod."):
        return "use process.kill, or run it with --on kubernetes"
    if kind == "network.latency":
        return "leave correlation out, or choose another place"
    if kind in _PACKET_KINDS:
        return (
            "use network.latency or network.bandwidth for the effect that loss has on a TCP connection, or frames.drop to lose "
            "frames of the protocol"
        )
    return "choose another fault kind or another place"


def check_fault(fault: Fault, capabilities: Capabilities) -> tuple[str, str]:
    """Everything that can be said about a fault before anything starts; (backend, why) when it is well.

    Raises UserError with the field's path, the problem and the mend."""
    kind = kind_of(fault)
    path = f"faults[{fault.name}]"
    _check_range(f"{path}.duration", fault.duration_s, 0.0, MAX_DURATION_S, above=True)
    if fault.plane not in PLANES:
        raise UserError(f"{path}.plane", f"{fault.plane!r} is not a plane", "write data, rpc or both")
    if fault.direction not in DIRECTIONS:
        raise UserError(
            f"{path}.direction", f"{fault.direction!r} is not a direction", "write to, from or both"
        )
    for name in fault.params:
        if name not in kind.params:
            raise UserError(
                f"{path}.params.{name}",
                f"{kind.name} has no such parameter",
                f"it has {', '.join(kind.params) or 'none'}",
            )
    _check_params(fault, path)
    return choose_backend(fault.kind, capabilities, params=fault.params)


def _check_params(fault: Fault, path: str) -> None:
    params = fault.params
    needed = {
        "network.latency": ("latency_s",),
        "network.bandwidth": ("bytes_per_s",),
        **dict.fromkeys(_PACKET_KINDS, ("percent",)),
        "frames.delay": ("frame_class", "delay_s"),
        "frames.drop": ("frame_class",),
        "heartbeats.mute": ("direction",),
        "rpc.delay": ("method", "delay_s"),
        "store.slow": ("delay_s",),
    }.get(fault.kind, ())
    for name in needed:
        if params.get(name) in (None, ""):
            raise UserError(f"{path}.params.{name}", f"{fault.kind} needs it", KINDS[fault.kind].params[name])
    for name in ("latency_s", "delay_s", "jitter_s"):
        if name in params:
            _check_range(f"{path}.params.{name}", params[name], 0.0, MAX_DELAY_S)
    if "bytes_per_s" in params:
        _check_range(f"{path}.params.bytes_per_s", params["bytes_per_s"], 0.0, 1e12, above=True)
    if "percent" in params:
        _check_range(f"{path}.params.percent", params["percent"], 0.0, 100.0, above=True)
    if "correlation" in params:
        _check_range(f"{path}.params.correlation", params["correlation"], 0.0, 100.0)
    if "burst" in params:
        _check_range(f"{path}.params.burst", params["burst"], 1.0, 1e6)
    _check_choices(fault, path)


def _check_choices(fault: Fault, path: str) -> None:
    params = fault.params
    _check_choice(f"{path}.params.frame_class", params.get("frame_class"), FRAME_CLASSES)
    _check_choice(f"{path}.params.mode", params.get("mode"), ("one-way", "round-trip"))
    if fault.kind == "heartbeats.mute":
        _check_choice(f"{path}.params.direction", params.get("direction"), ("request", "response"))
    if fault.kind == "registration.delay" and not (params.get("delay_s") or params.get("attempts")):
        raise UserError(
            f"{path}.params", "registration.delay needs delay_s or attempts", "set one of them above 0"
        )
    if fault.kind == "network.latency" and params.get("mode") == "round-trip" and fault.direction != "both":
        raise UserError(
            f"{path}.direction", "a round trip has both directions", "write both, or mode: one-way"
        )
    if fault.kind == "network.latency" and params.get("jitter_s", 0.0) > params["latency_s"]:
        raise UserError(
            f"{path}.params.jitter_s",
            "the jitter is larger than the latency",
            "bytes cannot arrive before they were sent",
        )


def _check_choice(path: str, value: Any, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise UserError(path, f"{value!r} is not one of {', '.join(choices)}", "")


def _check_range(path: str, value: Any, low: float, high: float, *, above: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < low or value > high or (above and value == low):
        bound = "above" if above else "at least"
        raise UserError(
            path, f"{value!r} is out of range", f"write a number {bound} {low:g} and at most {high:g}"
        )
