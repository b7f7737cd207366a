"""Simulated processes as the fault backends see them: a process table, peers, and rules inside them (links are in `network`).

The agent (deadlines, leases, journal, measurements) is the same as on a real machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.faults.channel.process import BASE
from testbed_runtime.faults.process.backend import STOPPED
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

    async def call(self, method: str, address: Address, path: str, body: Any = None) -> Mapping[str, Any]:
        """Raises Unreachable for a process that is gone or paused, as a real connection would."""
        process = self._processes.get(address[0])
        if process is None or process.state != "running":
            raise Unreachable(f"{address[0]} does not answer")
        # in the process's context: timers of the rule stop while it is paused, and end with it
        path, _, query = path.removeprefix(BASE).partition("?")
        context = process.rpc.context.copy()
        return context.run(process.faults.handle, method, path, dict(parse_qsl(query)), body)

    async def close(self) -> None:
        """Do nothing: no connection is open."""


class SimProcessTable:
    """The ProcessTable of simulated processes. The incarnation is used as the process id."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.paused = processes.paused
        self.signal_kill = processes.kill
        self.pause = processes.pause
        self.resume = processes.resume

    def pid(self, name: str) -> int | None:
        process = self._processes.get(name)
        return None if process is None else process.incarnation

    def state(self, name: str, pid: int) -> str:
        process = self._processes.get(name)
        if process is None or process.incarnation != pid:
            return ""
        return STOPPED if process.state == "paused" else "S"

    async def restart(self, name: str) -> None:
        if self._processes.get(name) is None:
            await self._processes.start(name)
