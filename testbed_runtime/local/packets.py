"""Packet faults on this machine: a network for each process that a fault can target, an agent in it, and the calls to the agents."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.faults.vocabulary import PACKET_BACKENDS
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.faults.fanout import Agent, FaultFanout, split
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.faults.packets.commands import support
from testbed_runtime.faults.probes import path_from
from testbed_runtime.faults.registry import LOCAL, Capabilities, check_fault
from testbed_runtime.local import namespaces
from testbed_runtime.local.process_host import LocalProcessHost
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.ports.network import Address
from testbed_runtime.process.config import AgentConfig
from testbed_runtime.supervisor.supervisor import AGENT_PREFIX, CONFIG, ChildSpec

OUTAGE_S = 1.0
"""How long calls to an agent are repeated. An agent on this machine answers within milliseconds, and restarts within a second when
it was killed."""
AGENT_RESTART_S = 0.5


def needed(faults: Sequence[Fault]) -> bool:
    """Return whether only a packet backend can inject one of these faults. Other backends need no root."""
    for fault in faults:
        try:
            check_fault(fault, LOCAL)
        except UserError:
            with contextlib.suppress(UserError):
                check_fault(fault, replace(LOCAL, backends=(*LOCAL.backends, *PACKET_BACKENDS)))
                return True
    return False


async def capabilities() -> Capabilities:
    """Return what this machine offers if each process gets its own network, with reasons and hints for what is missing."""
    why = namespaces.why_not()
    if why:
        return replace(LOCAL, missing={**LOCAL.missing, **dict.fromkeys(PACKET_BACKENDS, why)})
    found = await support()
    available = tuple(name for name in PACKET_BACKENDS if name in found.available)
    missing = {k: v for k, v in LOCAL.missing.items() if k not in PACKET_BACKENDS} | dict(found.missing)
    return Capabilities(LOCAL.environment, (*LOCAL.backends, *available), missing)


def offers(capabilities: Capabilities) -> bool:
    """Return whether any packet backend is available."""
    return any(name in capabilities.backends for name in PACKET_BACKENDS)


class LocalPackets:
    """The network and the agents of one testbed. Call `open`, then `launch_agents`, and `close` at the end, also after a failure."""

    def __init__(self, offered: Capabilities, task_managers: Sequence[str]) -> None:
        self._offered = offered
        self._names = tuple(task_managers)
        self._network: namespaces.LocalNetwork | None = None
        self._fanout: FaultFanout | None = None
        self._token = ""
        self._used: dict[Agent, None] = {}
        self._parts: dict[str, tuple[Agent, ...]] = {}

    def open(self) -> None:
        """Create the network. Raises HeadgateError."""
        self._network = namespaces.create((JOBMANAGER, *self._names))

    @property
    def gateway(self) -> str:
        return self._open_network.gateway

    def prefix(self, name: str) -> tuple[str, ...]:
        """Return the prefix that runs a command line in the process's own network; empty if it has none."""
        member = self._open_network.members.get(name)
        return member.prefix if member is not None else ()

    def binds(self, name: str) -> dict[str, Any]:
        """Return the addresses of a process's configuration. A process without its own network listens on the bridge."""
        member = self._open_network.members.get(name)
        if member is None:
            return {"bind": (self.gateway, 0)}
        port = naming.JOBMANAGER_PORT if name == JOBMANAGER else naming.TASKMANAGER_PORT
        return {"bind": (member.address, port), "data_bind": (member.address, naming.DATA_PORT)}

    async def launch_agents(self, processes: LocalProcessHost, seed: int) -> None:
        """Start an agent in each network and wait until it is ready."""
        members = self._open_network.members
        hosts = {name: member.address for name, member in members.items()}
        for name, member in members.items():
            config = AgentConfig(
                name=name,
                bind=(member.address, naming.AGENT_PORT),
                ports=naming.PLANE_PORTS,
                address=member.address,
                device=namespaces.DEVICE,
                hosts=hosts,
                token_file=str(processes.token_file),
                seed=seed,
            )
            argv = (*member.prefix, sys.executable, "-m", "testbed_runtime.entry.agent", CONFIG)
            spec = ChildSpec(
                f"{AGENT_PREFIX}{name}",
                argv,
                config=msgspec.to_builtins(config),
                replace_lost_s=AGENT_RESTART_S,
            )
            await processes.launch(spec)
        self._token = processes.token
        self._fanout = FaultFanout(self._address, processes.token, outage_s=OUTAGE_S)

    def carries(self, fault: Fault) -> bool:
        """Return whether a packet backend injects this fault. Raises UserError if no backend here can."""
        return check_fault(fault, self._offered)[0] in PACKET_BACKENDS

    async def inject(
        self, fault: Fault, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        backend, why = check_fault(fault, self._offered)
        parts = split(fault, targets, backend=backend, task_managers=self._names)
        agents = tuple(part.agent for part in parts)
        self._used |= dict.fromkeys(agents)
        handle = await self._calls.inject(parts, fault_id=fault_id, lease_s=lease_s)
        self._parts[fault_id] = agents
        return replace(handle, why=handle.why or why, targets=tuple(targets))

    def holds(self, fault_id: str) -> bool:
        return fault_id in self._parts

    async def renew(self, fault_id: str) -> None:
        """Raise the first agent's error: FaultHealed, or HeadgateError if its part is no longer active."""
        for error in (await self._calls.renew(self._parts[fault_id], fault_id)).values():
            raise error

    async def heal(self, fault_id: str) -> None:
        await self._calls.heal(self._parts.pop(fault_id, ()), fault_id)

    async def residue(self) -> dict[str, Any]:
        return await self._calls.residue(tuple(self._used)) if self._used else {}

    async def journal(self) -> list[Mapping[str, Any]]:
        """Return the rows that are new since the last call."""
        return await self._calls.journal(tuple(self._used)) if self._used else []

    async def paths(self) -> dict[str, Any]:
        """Measure from the first TaskManager to the second one (or to the JobManager), with the first one's agent."""
        source, destination = self._names[0], [*self._names, JOBMANAGER][1]
        control = ControlClient(self._token)
        echo = (self._open_network.members[destination].address, naming.AGENT_ECHO_PORT)
        try:
            found = await path_from(self._address(Agent(source)), echo, control)
            return {f"{source}->{destination}": found}
        finally:
            await control.close()

    async def close(self) -> None:
        """Remove the networks; the agents end with the supervisor, whose children they are. Idempotent."""
        if self._fanout is not None:
            await self._fanout.close()
        if self._network is not None:
            namespaces.remove(self._network.id)
            self._network = None

    def _address(self, agent: Agent) -> Address:
        return self._open_network.members[agent.process].address, naming.AGENT_PORT

    @property
    def _open_network(self) -> namespaces.LocalNetwork:
        if self._network is None:
            raise HeadgateError("the testbed's network does not exist")
        return self._network

    @property
    def _calls(self) -> FaultFanout:
        if self._fanout is None:
            raise HeadgateError("the packet agents are not running")
        return self._fanout
