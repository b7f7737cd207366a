"""Choose the backend that carries a fault in an environment, and refuse before the run what no backend there can do. Pure.

An environment describes its backends as `Capabilities`: each one that it lacks comes with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults import check
from testbed_runtime.core.faults.kinds import kind_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.faults.vocabulary import BACKENDS, PACKET_BACKENDS, PROCESS_BACKENDS, Kind

_NO_PODS = "the processes of this environment are not pods"


class Capabilities(Struct, frozen=True):
    """The backends of an environment. `missing` contains, for each other backend, why it is not available and how to get it."""

    environment: str
    backends: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    data_only: tuple[str, ...] = ()
    """Kinds that act on the exchange between TaskManagers only."""


LOCAL = Capabilities(
    "local",
    PROCESS_BACKENDS,
    {
        **dict.fromkeys(
            PACKET_BACKENDS,
            "the processes here share one network interface, so a packet rule would hit every program on this machine; "
            "run it where each TaskManager has its own network",
        ),
        "kubernetes": _NO_PODS,
    },
)
SIMULATION = Capabilities(
    "simulation",
    PROCESS_BACKENDS,
    {
        **dict.fromkeys(PACKET_BACKENDS, "the simulated network carries byte streams, not packets"),
        "kubernetes": _NO_PODS,
    },
    data_only=("network.reset", "network.bandwidth"),
)


def choose_backend(
    kind: Kind, capabilities: Capabilities, *, params: Mapping[str, Any] | None = None, path: str = "faults"
) -> tuple[str, str]:
    """Return (backend, reason): the first of the kind's backends that the environment offers and that can carry `params`.

    Raises UserError with `path`, the kind, the environment, the reason and an alternative."""
    narrow = [p for p in kind.parameters if p.backends and p.is_given(params or {})]
    wanted = tuple(name for name in kind.backends if all(name in p.backends for p in narrow))
    reasons = {name: capabilities.missing.get(name, "not offered in this environment") for name in wanted}
    chosen = next((name for name in wanted if name in capabilities.backends), None)
    if chosen is None:
        given = " and ".join(p.name for p in narrow)
        without = any(name in capabilities.backends for name in kind.backends)
        raise UserError(
            path,
            f"{kind.name} is not possible {f'with {given} ' if given else ''}in the environment {capabilities.environment!r}: "
            f"it needs {' or '.join(wanted)}, but {', and '.join(sorted(set(reasons.values())))}",
            f"leave {given} out, or choose another environment" if given and without else kind.instead,
        )
    skipped = [f"{name} ({reasons[name]})" for name in wanted[: wanted.index(chosen)]]
    preferred = f"; preferred but not available here: {'; '.join(skipped)}" if skipped else ""
    return chosen, f"{BACKENDS[chosen]}{preferred}"


def check_fault(fault: Fault, capabilities: Capabilities, path: str = "") -> tuple[str, str]:
    """Validate a fault before the run starts. Return (backend, reason) or raise UserError with `path`, by default its place in a timeline."""
    path = path or f"faults[{fault.name}]"
    for problem in check.problems(fault, path):
        raise problem
    if fault.kind in capabilities.data_only and fault.plane != "data":
        refused = f"{fault.kind} acts on the data plane only in the environment {capabilities.environment!r}"
        raise UserError(f"{path}.plane", refused, "write data, or choose another environment")
    return choose_backend(kind_of(fault), capabilities, params=fault.params, path=path)
