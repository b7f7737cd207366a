"""What the agent asks of a backend, and what a measurement is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from testbed_runtime.faults.model import Fault
from testbed_runtime.ports.network import Address


@dataclass(frozen=True, slots=True)
class FaultRequest:
    """One fault on resolved targets (process names or `a->b` links). `deadline` is absolute, on the loop's clock."""

    fault_id: str
    fault: Fault
    targets: tuple[str, ...]
    deadline: float
    seed: int = 1

    @property
    def rule_id(self) -> str:
        """The id in a path of a URL."""
        return "".join(c if c.isalnum() or c in "-_." else "~" for c in self.fault_id)


@dataclass(frozen=True, slots=True)
class Measurement:
    """`ok`: the effect is there (while the fault lasts), or nothing is left (after it). `values` are JSON-able."""

    ok: bool
    values: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


class Neighbourhood(Protocol):
    """Who is there and how to reach them: the supervisor's view of its children."""

    def names(self) -> Sequence[str]:
        """Logical names of the JobManager and the TaskManagers that run, in order."""

    def control(self, name: str) -> Address | None:
        """The control endpoint of a process by its logical name; None: there is none."""


class Control(Protocol):
    """Calls to the control endpoints of processes: over HTTP, or straight to them in a simulation."""

    async def call(
        self, method: str, address: Address, path: str, body: Any = None, *, timeout_s: float | None = None
    ) -> Mapping[str, Any]:
        """Raises faults.http.Unreachable."""


class Backend(Protocol):
    """Its far end holds the deadline too: when the agent dies, the fault still ends."""

    async def prepare(self, request: FaultRequest) -> None:
        """Measure how it is before the fault. Raises HeadgateError when the fault cannot be done."""

    async def apply(self, request: FaultRequest) -> float:
        """Begin; when (loop time). Raises HeadgateError; what was begun until then is removed by the agent's `remove`."""

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        """Measure the effect until it is certain, or until `stop` (then at once what is known)."""

    async def remove(self, request: FaultRequest) -> None:
        """End it; harmless when it already ended or never began."""

    async def check(self, request: FaultRequest) -> Measurement:
        """Measure what is left after the end."""

    async def residue(self) -> Mapping[str, Any]:
        """What is active or left anywhere: `{}` is clean."""


async def poll_until(condition: Callable[[], bool], stop: asyncio.Event, *, every_s: float) -> bool:
    """Ask `condition` now and then until it is true or `stop` is set; its last answer."""
    while not condition():
        if await stopped_within(stop, every_s):
            return condition()
    return True


async def stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    """Wait that long, or until `stop` is set (then True)."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
