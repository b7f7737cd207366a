"""One fault on many pods: which agent gets which part of it (pure), and the calls that carry it out together.

A place on one machine has one supervisor that holds every fault. In a cluster each pod has an agent of its own:

    process.*, jobmanager.*   the supervisor of each target's pod: it is the parent of the process
    proxy                     the supervisor of the proxy's pod
    channel                   the supervisor of the first target's pod, for all targets: its rules go to whoever sends, and flows of
                              two targets that overlap are hit once, as on one machine
    netem, nfqueue, nftables  the agent container of each pod that receives what the fault touches, as a fault `to` that pod

All parts have the fault's id: an agent refuses an id that it knows, so nothing is injected twice by asking again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from testbed_runtime.core.errors import AgentSilent, HeadgateError
from testbed_runtime.faults.client import FaultClient
from testbed_runtime.faults.http import Unreachable
from testbed_runtime.faults.links import ANYBODY, flows_of, logical_name, owners_of
from testbed_runtime.faults.model import Fault
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.ports.network import Address

JOBMANAGER = "jobmanager"
PROXY = "proxy"
SUPERVISOR, PACKETS = "supervisor", "packets"
PACKET_BACKENDS = ("netem", "nfqueue", "nftables")
OUTAGE_S = 6.0
"""How long a call to an agent that does not answer is repeated: a pod's network is back within seconds, a lease lasts 10 s."""
RETRY_EVERY_S = 0.3

T = TypeVar("T")


# ---- which agent gets what (pure)


@dataclass(frozen=True, slots=True, order=True)
class Agent:
    """Who holds faults in the pod of `process` (`tm-0`, `jobmanager`, `proxy`): its supervisor, or its packet agent."""

    process: str
    container: str = SUPERVISOR

    def __str__(self) -> str:
        return self.process if self.container == SUPERVISOR else f"{self.process}/{self.container}"


@dataclass(frozen=True, slots=True)
class Part:
    """What one agent is asked: the fault as that agent is to see it, and its targets."""

    agent: Agent
    fault: Fault
    targets: tuple[str, ...]


def split(
    fault: Fault, targets: Sequence[str], *, backend: str, task_managers: Sequence[str]
) -> tuple[Part, ...]:
    """The parts of a fault whose targets are resolved (`api.to_core.resolve_targets`). `backend` is what
    `registry.check_fault` chose, `task_managers` are all of the testbed. Raises HeadgateError when nobody is hit."""
    targets = tuple(targets)
    if backend in PACKET_BACKENDS:
        parts = _packet_parts(fault, targets, task_managers)
    elif backend == "proxy":
        parts = (Part(Agent(PROXY), fault, targets),)
    elif fault.kind.startswith("jobmanager."):
        parts = (Part(Agent(JOBMANAGER), fault, (JOBMANAGER,)),)
    elif backend == "channel":
        parts = tuple(Part(Agent(name), fault, targets) for name in owners_of(targets)[:1])
    else:
        parts = tuple(Part(Agent(name), fault, (name,)) for name in owners_of(targets))
    if not parts:
        raise HeadgateError(f"{fault.kind}: it hits nobody ({', '.join(targets) or 'no targets'})")
    return parts


def _packet_parts(fault: Fault, targets: tuple[str, ...], task_managers: Sequence[str]) -> tuple[Part, ...]:
    """Packets are held where they are received. Of a connection that is half open the target's own pod does everything."""
    if fault.kind == "network.half-open":
        return tuple(
            Part(Agent(name, PACKETS), fault, tuple(t for t in targets if owners_of((t,)) == (name,)))
            for name in owners_of(targets)
        )
    everybody = [*task_managers, *([JOBMANAGER] if fault.plane != "data" else [])]
    senders: dict[str, dict[str, None]] = {}
    for source, destination in flows_of(targets, fault.direction):
        receivers = (
            [n for n in everybody if n != source] if destination == ANYBODY else [logical_name(destination)]
        )
        for receiver in receivers:
            senders.setdefault(receiver, {})[source] = None
    seen = _one_way(fault)
    return tuple(
        Part(Agent(receiver, PACKETS), seen, _received(receiver, list(sources)))
        for receiver, sources in senders.items()
    )


def _received(receiver: str, sources: Sequence[str]) -> tuple[str, ...]:
    """Everything that comes in, or what comes from each of these."""
    if ANYBODY in sources:
        return (receiver,)
    return tuple(f"{receiver}->{source}" for source in sources)


def _one_way(fault: Fault) -> Fault:
    """As the receiving pods see it: what comes `to` them, half of a round trip each."""
    params = dict(fault.params)
    if params.get("mode") == "round-trip":
        params["mode"] = "one-way"
        for name in ("latency_s", "jitter_s"):
            if name in params:
                params[name] = params[name] / 2
    return replace(fault, direction="to", params=params)


# ---- the calls


class FaultFanout:
    """The agents of one testbed. `address` says where an agent is (a name in the network is fine). `close` ends every session.

    Calls are repeated for `outage_s` while an agent does not answer; then faults.http.Unreachable is raised."""

    def __init__(
        self, address: Callable[[Agent], Address], token: str, *, outage_s: float = OUTAGE_S
    ) -> None:
        self._address = address
        self._token = token
        self._outage_s = outage_s
        self._clients: dict[Agent, FaultClient] = {}
        self._last: dict[Agent, Mapping[str, Any]] = {}

    def client(self, agent: Agent) -> FaultClient:
        if agent not in self._clients:
            self._clients[agent] = FaultClient(self._address(agent), self._token)
        return self._clients[agent]

    async def inject(self, parts: Sequence[Part], *, fault_id: str, lease_s: float | None) -> FaultHandle:
        """All of them, or none: what was begun is undone when one cannot. Raises that one's UserError, HeadgateError or AgentSilent."""
        results = await asyncio.gather(
            *(self._inject(part, fault_id, lease_s) for part in parts), return_exceptions=True
        )
        problems = [r for r in results if isinstance(r, BaseException)]
        if problems:
            await asyncio.gather(
                *(self.client(part.agent).heal(fault_id) for part in parts), return_exceptions=True
            )
            raise _with_agent(parts, results)
        first = next(r for r in results if isinstance(r, FaultHandle))
        targets = dict.fromkeys(t for r in results if isinstance(r, FaultHandle) for t in r.targets)
        return replace(first, fault=fault_id, targets=tuple(targets))

    async def _inject(self, part: Part, fault_id: str, lease_s: float | None) -> FaultHandle:
        """Asked again only of an agent that has never heard of it."""
        client = self.client(part.agent)
        asked = False

        async def once() -> FaultHandle:
            nonlocal asked
            if asked and (known := await self._known(client, part, fault_id)) is not None:
                return known
            asked = True
            return await client.inject(part.fault, fault_id=fault_id, targets=part.targets, lease_s=lease_s)

        return await self._patiently(once)

    async def _known(self, client: FaultClient, part: Part, fault_id: str) -> FaultHandle | None:
        """The handle of a fault whose injection was asked but not answered; None: that call never arrived."""
        for active in await client.faults():
            if active["id"] == fault_id:
                return FaultHandle(fault_id, str(active["backend"]), "", part.targets)
        if await knows(client, part.fault.name):
            raise HeadgateError(f"{part.fault.kind} at {part.agent} was asked for and did not stay")
        return None

    async def renew(self, agents: Sequence[Agent], fault_id: str) -> Mapping[Agent, HeadgateError]:
        """Every lease. Who refused or did not answer, with its error (FaultHealed: somebody healed it)."""

        async def one(agent: Agent) -> HeadgateError | None:
            client = self.client(agent)
            try:
                await self._patiently(lambda: client.renew(fault_id))
            except HeadgateError as error:
                return error
            return None

        answers = await asyncio.gather(*(one(agent) for agent in agents))
        return {agent: error for agent, error in zip(agents, answers, strict=True) if error is not None}

    async def held(self, agent: Agent, name: str) -> bool:
        """Whether the agent, in this life of it, had a fault of that name; one that does not answer has not."""
        try:
            return await self._patiently(lambda: knows(self.client(agent), name))
        except Unreachable:
            return False

    async def heal(self, agents: Sequence[Agent], fault_id: str) -> None:
        """All of them, whoever fails. Raises the first error afterwards: its deadline ends that part."""
        await self._everybody(agents, lambda client: client.heal(fault_id))

    async def heal_all(self, agents: Sequence[Agent]) -> None:
        """Every fault of these agents, also those of others."""
        await self._everybody(agents, lambda client: client.heal_all())

    async def residue(self, agents: Sequence[Agent]) -> dict[str, Any]:
        """`{}` is clean; else by agent. One that does not answer is residue too: nobody knows."""

        async def one(agent: Agent) -> Mapping[str, Any]:
            client = self.client(agent)
            try:
                return await self._patiently(client.residue)
            except HeadgateError as error:
                return {"not_measured": str(error)}

        answers = await asyncio.gather(*(one(agent) for agent in agents))
        return {str(agent): dict(left) for agent, left in zip(agents, answers, strict=True) if left}

    async def journal(self, agents: Sequence[Agent]) -> list[Mapping[str, Any]]:
        """Rows ({table, row}) that these agents wrote since the last time, in the order of their times. An agent that does not
        answer is asked for them the next time; one that came again begins at its first row."""

        async def one(agent: Agent) -> Sequence[Mapping[str, Any]]:
            try:
                return await self._news(agent)
            except HeadgateError:
                return ()

        found = await asyncio.gather(*(one(agent) for agent in agents))
        return sorted((row for rows in found for row in rows), key=lambda r: int(r["row"].get("t_ns", 0)))

    async def _news(self, agent: Agent) -> Sequence[Mapping[str, Any]]:
        """The last row that was read is asked for again: an agent that does not have it has begun anew."""
        client = self.client(agent)
        last = self._last.get(agent)
        rows = await client.journal(int(last["number"]) if last else 0)
        if last is not None:
            rows = rows[1:] if rows and rows[0] == last else await client.journal(0)
        if rows:
            self._last[agent] = rows[-1]
        return rows

    async def close(self) -> None:
        """Idempotent."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    async def _everybody(
        self, agents: Sequence[Agent], call: Callable[[FaultClient], Awaitable[None]]
    ) -> None:
        async def one(agent: Agent) -> None:
            client = self.client(agent)
            await self._patiently(lambda: call(client))

        results = await asyncio.gather(*(one(agent) for agent in agents), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._outage_s
        while True:
            try:
                return await call()
            except Unreachable:
                if loop.time() + RETRY_EVERY_S > end:
                    raise
            await asyncio.sleep(RETRY_EVERY_S)


async def knows(client: FaultClient, name: str) -> bool:
    """Whether this life of the agent ever had a fault of that name: one in a pod that came again has not."""
    rows = await client.journal(0)
    return any(r["table"] == "faults" and r["row"].get("fault") == name for r in rows)


def _with_agent(parts: Sequence[Part], results: Sequence[object]) -> BaseException:
    """The first problem; of several agents, with the name of the one whose it is."""
    for part, result in zip(parts, results, strict=True):
        if isinstance(result, Unreachable):
            return AgentSilent(f"{part.fault.kind}: the agent of {part.agent} does not answer: {result}")
        if isinstance(result, BaseException):
            return result
    raise AssertionError("no part failed")
