"""The operator's face of the fault agents in a testbed's pods. `HttpAgents` is the real one; tests have a model of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.faults.fanout import PACKETS, Agent, FaultFanout, Part
from testbed_runtime.faults.http import ControlClient

LOOK_LIMIT_S = 3.0
"""For a look at one agent: a pod that is starting or gone must not hold up the others' keys."""
OUTAGE_S = 2.0
"""The queue asks again, so a call itself is not repeated for long."""


@dataclass(frozen=True, slots=True)
class View:
    """What one agent says of one fault. `error`: it did not answer, and the rest is empty."""

    active: Mapping[str, Any] | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    """Of the fault in its journal, in order: `{state, measured, text, …}`."""
    error: str = ""

    def row(self, *states: str) -> Mapping[str, Any] | None:
        """The newest in one of these states."""
        return next((r for r in reversed(self.rows) if r["state"] in states), None)

    @property
    def known(self) -> bool:
        return self.active is not None or bool(self.rows)


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the agents of a testbed are: addresses of its pods now, by process, and its token."""

    hosts: Mapping[str, str]
    token: str


class Agents(Protocol):
    """Calls to agents. Raises faults.http.Unreachable, UserError or HeadgateError."""

    async def views(
        self, reach: Reach, agents: Sequence[Agent], *, fault_id: str, name: str
    ) -> Mapping[Agent, View]:
        """Never raises: who does not answer has an `error`."""

    async def inject(self, reach: Reach, parts: Sequence[Part], *, fault_id: str) -> None: ...

    async def heal(self, reach: Reach, agents: Sequence[Agent], *, fault_id: str) -> None: ...

    async def heal_all(self, reach: Reach, agents: Sequence[Agent]) -> None: ...

    async def capabilities(self, reach: Reach, process: str) -> Mapping[str, Any] | None:
        """Of the agent container in that pod: `{backends, missing}`; None: no answer."""


class HttpAgents:
    """By HTTP to the pods' addresses; sessions live as long as one call."""

    async def views(
        self, reach: Reach, agents: Sequence[Agent], *, fault_id: str, name: str
    ) -> Mapping[Agent, View]:
        fanout = _fanout(reach)
        try:
            found = await asyncio.gather(*(_view(fanout, reach, a, fault_id, name) for a in agents))
        finally:
            await fanout.close()
        return dict(zip(agents, found, strict=True))

    async def inject(self, reach: Reach, parts: Sequence[Part], *, fault_id: str) -> None:
        fanout = _fanout(reach)
        try:
            await fanout.inject(parts, fault_id=fault_id, lease_s=None)
        finally:
            await fanout.close()

    async def heal(self, reach: Reach, agents: Sequence[Agent], *, fault_id: str) -> None:
        fanout = _fanout(reach)
        try:
            await fanout.heal([a for a in agents if reach.hosts.get(a.process)], fault_id)
        finally:
            await fanout.close()

    async def heal_all(self, reach: Reach, agents: Sequence[Agent]) -> None:
        fanout = _fanout(reach)
        try:
            await fanout.heal_all([a for a in agents if reach.hosts.get(a.process)])
        finally:
            await fanout.close()

    async def capabilities(self, reach: Reach, process: str) -> Mapping[str, Any] | None:
        host = reach.hosts.get(process)
        if not host:
            return None
        client = ControlClient(reach.token, timeout_s=LOOK_LIMIT_S)
        try:
            return await client.call("GET", (host, naming.AGENT_PORT), "/v1/capabilities")
        except HeadgateError:
            return None
        finally:
            await client.close()


def _fanout(reach: Reach) -> FaultFanout:
    def address(agent: Agent) -> tuple[str, int]:
        port = naming.AGENT_PORT if agent.container == PACKETS else naming.SUPERVISOR_PORT
        return reach.hosts.get(agent.process, ""), port

    return FaultFanout(address, reach.token, outage_s=OUTAGE_S)


async def _view(fanout: FaultFanout, reach: Reach, agent: Agent, fault_id: str, name: str) -> View:
    if not reach.hosts.get(agent.process):
        return View(error=f"the pod of {agent.process} has no address")
    client = fanout.client(agent)
    try:
        async with asyncio.timeout(LOOK_LIMIT_S):
            active = [f for f in await client.faults() if f["id"] == fault_id]
            rows = [r["row"] for r in await client.journal(0) if r["table"] == "faults"]
    except (HeadgateError, TimeoutError) as error:
        return View(error=str(error) or "no answer in time")
    return View(active[0] if active else None, tuple(r for r in rows if r.get("fault") == name))
