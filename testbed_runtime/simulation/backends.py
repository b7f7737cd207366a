"""The fault backends in virtual time: signals to simulated processes, and rules inside them (links are in `network`).

The agent (deadlines, leases, journal, measurements) is the same as on a real machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from testbed_runtime.faults.backend import FaultRequest, Measurement, Unreachable, require_running
from testbed_runtime.faults.channel.process import BASE
from testbed_runtime.faults.process.backend import target_names
from testbed_runtime.ports.network import Address
from testbed_runtime.simulation.processes import Processes


class SimPeers:
    """A faults.backend.Peers in which a control address is the process's name."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def names(self) -> Sequence[str]:
        return self._processes.names()

    def control(self, name: str) -> Address | None:
        return (name, 0) if self._processes.get(name) is not None else None


class InProcessControl:
    """The counterpart of `faults.http.ControlClient`: calls go directly to the ChannelFaults of the process."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def call(
        self, method: str, address: Address, path: str, body: Any = None, *, timeout_s: float | None = None
    ) -> Mapping[str, Any]:
        """Raises Unreachable for a process that is gone or paused, as a real connection would."""
        del timeout_s
        process = self._processes.get(address[0])
        if process is None or process.state != "running":
            raise Unreachable(f"{address[0]} does not answer")
        # in the process's context: timers of the rule stop while it is paused, and end with it
        path, _, query = path.removeprefix(BASE).partition("?")
        context = process.rpc.context.copy()
        return context.run(process.faults.handle, method, path, dict(parse_qsl(query)), body)

    async def close(self) -> None:
        """Nothing is open."""


class SimProcessBackend:
    """process.kill, process.pause, jobmanager.kill, jobmanager.pause: the process table shows the effect."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._hit: dict[str, dict[str, int]] = {}

    async def prepare(self, request: FaultRequest) -> None:
        found = {name: self._processes.get(name) for name in target_names(request)}
        require_running(name for name, process in found.items() if process is None)
        self._hit[request.fault_id] = {n: p.incarnation for n, p in found.items() if p is not None}

    async def apply(self, request: FaultRequest) -> float:
        act = self._processes.kill if request.fault.kind.endswith(".kill") else self._processes.pause
        for name in target_names(request):
            act(name)
        return asyncio.get_running_loop().time()

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        del stop
        states = {name: self._state(name, number) for name, number in self._hit[request.fault_id].items()}
        wanted = "gone" if request.fault.kind.endswith(".kill") else "paused"
        ok = bool(states) and all(state == wanted for state in states.values())
        return Measurement(ok, {"states": states}, "" if ok else f"not {wanted}")

    async def remove(self, request: FaultRequest) -> None:
        for name, number in self._hit.get(request.fault_id, {}).items():
            if request.fault.kind.endswith(".pause"):
                if self._state(name, number) == "paused":
                    self._processes.resume(name)
            elif request.fault.kind == "jobmanager.kill" and self._processes.get(name) is None:
                await self._processes.start(name)

    async def check(self, request: FaultRequest) -> Measurement:
        hit = self._hit.pop(request.fault_id, {})
        states = {name: self._state(name, number) for name, number in hit.items()}
        left = [name for name, state in states.items() if state == "paused"]
        return Measurement(not left, {"states": states}, f"still stopped: {', '.join(left)}" if left else "")

    async def residue(self) -> Mapping[str, Any]:
        paused = list(self._processes.paused())
        return {"paused": paused} if paused else {}

    def _state(self, name: str, incarnation: int) -> str:
        process = self._processes.get(name)
        return "gone" if process is None or process.incarnation != incarnation else process.state
