"""The operator's clients of a testbed's pods: fault agents and JobManager. Tests replace them with models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.faults.fanout import PACKETS, Agent, FaultFanout, Part
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.ports.hosts import JOB_PATH
from testbed_runtime.ports.network import Address
from testbed_runtime.timeouts import timeout

LOOK_LIMIT_S = 3.0
"""Time limit for asking one agent: a pod that is starting or gone must not delay other objects."""
JOB_LIMIT_S = 2.0
"""A JobManager answers in milliseconds; the operator does not wait for one that is paused."""
OUTAGE_S = 2.0
"""How long a call is repeated. It is short, because the queue retries too."""


class View(Struct, frozen=True):
    """One agent's view of one fault. With an `error` the agent did not answer, and the rest is empty."""

    active: Mapping[str, Any] | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    """The fault's rows in the agent's journal, in order: `{state, measured, text, …}`."""
    error: str = ""

    def row(self, *states: str) -> Mapping[str, Any] | None:
        """Return the newest row in one of these states."""
        return next((r for r in reversed(self.rows) if r["state"] in states), None)

    @property
    def known(self) -> bool:
        return self.active is not None or bool(self.rows)


class Reach(Struct, frozen=True):
    """The current addresses of a testbed's pods, by process, and the testbed's token."""

    hosts: Mapping[str, str]
    token: str


class Agents:
    """Calls to the agents at the pods' addresses. Sessions live as long as one call. Raises faults.http.Unreachable, UserError or
    HeadgateError."""

    async def views(
        self, reach: Reach, agents: Sequence[Agent], *, fault_id: str, name: str
    ) -> Mapping[Agent, View]:
        """Return each agent's view of the fault. Never raises: the view of an agent that does not answer has an `error`."""
        async with _fanout(reach) as fanout:
            found = await asyncio.gather(*(_view(fanout, reach, a, fault_id, name) for a in agents))
        return dict(zip(agents, found, strict=True))

    async def inject(self, reach: Reach, parts: Sequence[Part], *, fault_id: str) -> None:
        async with _fanout(reach) as fanout:
            await fanout.inject(parts, fault_id=fault_id, lease_s=None)

    async def heal(self, reach: Reach, agents: Sequence[Agent], *, fault_id: str) -> None:
        async with _fanout(reach) as fanout:
            await fanout.heal([a for a in agents if reach.hosts.get(a.process)], fault_id)

    async def heal_all(self, reach: Reach, agents: Sequence[Agent]) -> None:
        async with _fanout(reach) as fanout:
            await fanout.heal_all([a for a in agents if reach.hosts.get(a.process)])

    async def capabilities(self, reach: Reach, process: str) -> Mapping[str, Any] | None:
        """Return `{backends, missing}` of the agent container in that pod; None: no answer."""
        host = reach.hosts.get(process)
        if not host:
            return None
        return await _get((host, naming.AGENT_PORT), "/v1/capabilities", reach.token, LOOK_LIMIT_S)


class Jobs:
    """Asks JobManagers for the state of their job."""

    def __init__(self, port: int = naming.JOBMANAGER_PORT) -> None:
        self._port = port

    async def job(self, address: str, token: str) -> Mapping[str, Any] | None:
        """Return the answer to `GET <JOB_PATH>`; None without an answer in time. Never raises.

        `{state, running, total, restarts, checkpoints, placement, registered}`"""
        return await _get((address, self._port), JOB_PATH, token, JOB_LIMIT_S)


async def _get(address: Address, path: str, token: str, limit_s: float) -> Mapping[str, Any] | None:
    client = ControlClient(token, timeout_s=limit_s)
    try:
        return await client.call("GET", address, path)
    except HeadgateError:
        return None
    finally:
        await client.close()


@asynccontextmanager
async def _fanout(reach: Reach) -> AsyncIterator[FaultFanout]:
    def address(agent: Agent) -> tuple[str, int]:
        port = naming.AGENT_PORT if agent.container == PACKETS else naming.SUPERVISOR_PORT
        return reach.hosts.get(agent.process, ""), port

    fanout = FaultFanout(address, reach.token, outage_s=OUTAGE_S)
    try:
        yield fanout
    finally:
        await fanout.close()


async def _view(fanout: FaultFanout, reach: Reach, agent: Agent, fault_id: str, name: str) -> View:
    if not reach.hosts.get(agent.process):
        return View(error=f"the pod of {agent.process} has no address")
    client = fanout.client(agent)
    try:
        async with timeout(LOOK_LIMIT_S):
            active = [f for f in await client.faults() if f["id"] == fault_id]
            rows = [r["row"] for r in await client.journal(0) if r["table"] == "faults"]
    except (HeadgateError, TimeoutError) as error:
        return View(error=str(error) or "no answer in time")
    return View(active[0] if active else None, tuple(r for r in rows if r.get("fault") == name))
