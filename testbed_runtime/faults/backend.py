"""The interface of a backend, the rule that its holder applies, and a measurement.

A holder is the component that carries out a fault: the interceptor of a process, the proxy, or a packet engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from testbed_runtime.core.errors import FaultNotApplied, HeadgateError
from testbed_runtime.core.faults.kinds import per_direction
from testbed_runtime.core.faults.links import Flow, flows_of, owners_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.ports.network import Address
from testbed_runtime.timeouts import timeout

SEEN_SHARE = 0.8
"""Share of the requested delay that must be measured; timers and probes account for the rest."""


class Unreachable(HeadgateError):
    """A control endpoint did not answer."""


class FaultRequest(Struct, frozen=True):
    """One fault on resolved targets (process names or `a->b` links). `deadline` is absolute, on the loop's clock."""

    fault_id: str
    fault: Fault
    targets: tuple[str, ...]
    deadline: float
    seed: int = 1
    paused: tuple[str, ...] = ()
    """Processes that other faults of the agent have paused."""

    @property
    def rule_id(self) -> str:
        """The id, quoted for the path of a URL."""
        return "".join(c if c.isalnum() or c in "-_." else "~" for c in self.fault_id)


class Measurement(Struct, frozen=True):
    """`ok`: the effect was measured (during the fault), or no residue was found (after it). `values` go into JSON."""

    ok: bool
    values: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


def combined(paths: Sequence[str], found: Sequence[Measurement]) -> Measurement:
    """Return one measurement of several paths, given with their names."""
    if not paths:
        return Measurement(False, {}, "there is no path to probe: no other process is running")
    values = {path: dict(m.values) for path, m in zip(paths, found, strict=True)}
    text = "; ".join(dict.fromkeys(m.text for m in found if m.text))
    return Measurement(all(m.ok for m in found), {"paths": values}, text)


class Rule(Struct, frozen=True):
    """The part of a fault that its holder needs: flows and parameters. Travels as JSON."""

    rule_id: str
    kind: str
    deadline: float
    """Absolute, on CLOCK_MONOTONIC of this boot: the holder ends the rule then, whether or not the agent is alive."""
    flows: tuple[Flow, ...] = ()
    """Directed links, in the direction of the bytes."""
    planes: tuple[str, ...] = ("data",)
    params: dict[str, Any] = field(default_factory=dict)
    """The parameters of the fault for one direction, as `per_direction` returns them."""
    gone: tuple[str, ...] = ()
    """With network.half-open: the processes whose ends of connections vanish."""
    seed: int = 1

    def number(self, key: str, default: float = 0.0) -> float:
        """Return a numeric parameter; the default when the fault does not have it."""
        return float(self.params.get(key) or default)


def rule_of(request: FaultRequest) -> Rule:
    """Return the rule that carries a fault. A half-open connection always concerns both directions, regardless of the direction of the fault."""
    fault = request.fault
    half_open = fault.kind == "network.half-open"
    return Rule(
        rule_id=request.rule_id,
        kind=fault.kind,
        deadline=request.deadline,
        flows=flows_of(request.targets, "both" if half_open else fault.direction),
        planes=planes_of(fault),
        params=per_direction(fault.params),
        gone=owners_of(request.targets) if half_open else (),
        seed=request.seed,
    )


def planes_of(fault: Fault) -> tuple[str, ...]:
    return ("data", "rpc") if fault.plane == "both" else (fault.plane,)


class Peers(Protocol):
    """The supervisor's view of its children: which run, and how to reach them."""

    def names(self) -> Sequence[str]:
        """Return the logical names of the JobManager and the TaskManagers that run, in order."""

    def control(self, name: str) -> Address | None:
        """Return the control endpoint of a process by its logical name; None without one."""


class Control(Protocol):
    """Calls to the control endpoints of processes: over HTTP, or directly in a simulation."""

    async def call(self, method: str, address: Address, path: str, body: Any = None) -> Mapping[str, Any]:
        """Raises faults.http.Unreachable."""


class Backend(Protocol):
    """The calls of the agent to a backend. The holder knows the deadline too, so the fault ends even when the agent dies."""

    async def prepare(self, request: FaultRequest) -> None:
        """Measure the state before the fault. Raises HeadgateError when the fault is not possible."""

    async def apply(self, request: FaultRequest) -> float:
        """Begin the fault and return the time (of the loop). Raises HeadgateError; the agent then calls `remove`, which undoes a partial start."""

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        """Measure the effect until it is certain. Once `stop` is set, return what is known at once, or within a second."""

    async def remove(self, request: FaultRequest) -> None:
        """End the fault. Harmless when it already ended or never began."""

    async def check(self, request: FaultRequest) -> Measurement:
        """Measure the residue after the end."""

    async def residue(self) -> Mapping[str, Any]:
        """Return active faults and residue; `{}` is clean."""


def require_running(missing: Iterable[str]) -> None:
    """Raise FaultNotApplied if a fault needs a process that does not run: `missing` names them."""
    names = ["the JobManager" if name == JOBMANAGER else name for name in missing]
    if names:
        raise FaultNotApplied(
            f"not applied: {', '.join(names)} {'was' if len(names) == 1 else 'were'} not running"
        )


async def stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    """Wait for this many seconds. Return True as soon as `stop` is set."""
    try:
        async with timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
