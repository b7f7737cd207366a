"""Faults that the agents of one testbed's pods hold: one agent beside each process, and one for packets in its pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from testbed_runtime.api import naming
from testbed_runtime.core.errors import FaultHealed, FaultLapsed, HeadgateError
from testbed_runtime.core.faults.lease import LEASE_S
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.faults.fanout import PACKETS, Agent, FaultFanout, Part, knows, split
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.storage import HistorySink

AddressOf = Callable[[str, int], Address]
"""Maps a process name and a port to the address at which the runner reaches it."""


@dataclass(slots=True)
class _ActiveFault:
    fault: Fault
    parts: dict[Agent, Part]
    deadline: float
    renewed: dict[Agent, float] = field(default_factory=dict)
    pods: dict[Agent, str] = field(default_factory=dict)
    """Addresses of the pods whose packet agents hold a part."""


class AgentFaults:
    """The faults of one testbed, at its agents. The agents' journals are recorded in `sink` once it is set."""

    def __init__(self, address: AddressOf, token: str, task_managers: Sequence[str]) -> None:
        self.sink: HistorySink | None = None
        self._address = address
        self._task_managers = task_managers
        self._fanout = FaultFanout(self._agent_address, token)
        self._active: dict[str, _ActiveFault] = {}
        self._used: dict[Agent, None] = {}
        self._journal_lock = asyncio.Lock()

    async def inject(
        self, fault: Fault, *, backend: str, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        """Inject the fault at every agent that has a part in it. Raises HeadgateError if one of them refuses."""
        parts = split(fault, targets, backend=backend, task_managers=self._task_managers)
        loop = asyncio.get_running_loop()
        requested_at = loop.time()
        self._used.update(dict.fromkeys(part.agent for part in parts))
        try:
            handle = await self._fanout.inject(parts, fault_id=fault_id, lease_s=lease_s)
        finally:
            await self.record_journals()
        by_agent = {part.agent: part for part in parts}
        pods = {agent: await self._pod_address(agent) for agent in by_agent if agent.container == PACKETS}
        deadline, now = requested_at + fault.duration_s, loop.time()
        self._active[fault_id] = _ActiveFault(fault, by_agent, deadline, dict.fromkeys(by_agent, now), pods)
        return replace(handle, targets=tuple(targets))

    async def renew(self, fault_id: str) -> None:
        """Renew the lease at every agent. An unreachable agent is tried again next time, until its lease has expired.

        `onTargetRestart` decides what happens for a pod that was replaced. Raises FaultHealed if a user ended the fault, or
        HeadgateError if a part of it has lapsed."""
        active = self._active.get(fault_id)
        if active is None:
            return
        loop = asyncio.get_running_loop()
        failed = await self._fanout.renew(list(active.parts), fault_id)
        for agent in active.parts:
            if agent not in failed:
                active.renewed[agent] = loop.time()
        for agent, error in failed.items():
            await self._not_renewed(active, fault_id, agent, error)
        await self.record_journals()

    async def _not_renewed(
        self, active: _ActiveFault, fault_id: str, agent: Agent, error: HeadgateError
    ) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(error, FaultHealed):
            raise error
        if isinstance(error, Unreachable):
            if now - active.renewed[agent] > LEASE_S:
                raise error
            return
        if await knows(self._fanout.client(agent), active.fault.name):
            raise error
        await self._restarted(active, fault_id, agent, now)

    async def _restarted(self, active: _ActiveFault, fault_id: str, agent: Agent, now: float) -> None:
        """Apply `onTargetRestart` to an agent that no longer knows the fault.

        If a packet agent restarted in the same pod, the target lost the fault although it did not restart: a lapse."""
        rule, remaining = active.fault.on_target_restart, active.deadline - now
        if rule != "Reapply" and await self._same_pod(active, agent):
            raise FaultLapsed(f"the agent of {agent} restarted and no longer holds the fault")
        part = active.parts.pop(agent)
        if rule == "Fail":
            raise HeadgateError(f"the pod of {agent.process} was replaced while the fault was active")
        if rule == "Reapply" and remaining > 0:
            again = replace(part, fault=replace(part.fault, duration_s=remaining))
            await self._fanout.inject([again], fault_id=fault_id, lease_s=LEASE_S)
            active.parts[agent] = part
            active.renewed[agent] = now

    async def heal(self, fault_id: str) -> None:
        """End the fault. Raises FaultLapsed if a packet agent did not hold its part until now."""
        active = self._active.pop(fault_id, None)
        if active is None:
            return
        unreachable: Unreachable | None = None
        try:
            await self._fanout.heal(list(active.parts), fault_id)
        except Unreachable as error:
            unreachable = error
        finally:
            await self.record_journals()
        await self._require_held(active)
        if unreachable is not None and asyncio.get_running_loop().time() < active.deadline:
            raise unreachable  # after the deadline, the agent has ended the fault by itself

    async def _require_held(self, active: _ActiveFault) -> None:
        """Raise FaultLapsed if a packet agent died. Renewals do not always notice this, because a short fault may end before the next one."""
        agents = [agent for agent in active.parts if await self._same_pod(active, agent)]
        held = await asyncio.gather(*(self._fanout.held(agent, active.fault.name) for agent in agents))
        for agent, was_held in zip(agents, held, strict=True):
            if not was_held:
                raise FaultLapsed(f"the agent of {agent} died while it held the fault")

    async def residue(self) -> Mapping[str, Any]:
        """Measure the residue of the faults at the agents that held them. A lost pod has none."""
        residue = await self._fanout.residue(list(self._used))
        await self.record_journals()
        return residue

    async def record_journals(self, agents: Sequence[Agent] = ()) -> None:
        """Record the new journal entries of these agents, by default of all agents that were used."""
        async with self._journal_lock:
            if self.sink is None:
                return
            for item in await self._fanout.journal(list(agents or self._used)):
                self.sink.append(str(item["table"]), **item["row"])

    async def close(self) -> None:
        """Close the connections to the agents."""
        await self._fanout.close()

    def _agent_address(self, agent: Agent) -> Address:
        port = naming.AGENT_PORT if agent.container == PACKETS else naming.SUPERVISOR_PORT
        return self._address(agent.process, port)

    async def _same_pod(self, active: _ActiveFault, agent: Agent) -> bool:
        """Return whether a packet agent's pod is the one in which it accepted the fault."""
        known = active.pods.get(agent, "")
        return known != "" and known == await self._pod_address(agent)

    async def _pod_address(self, agent: Agent) -> str:
        """Return the pod's address; empty if its name cannot be resolved now."""
        host, port = self._address(agent.process, naming.AGENT_PORT)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port)
        except OSError:
            return ""
        return str(found[0][4][0])
