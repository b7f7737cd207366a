"""One fault on many pods: which agent gets which part of it (pure), and the calls that inject the parts together.

On one machine one supervisor holds every fault. In a cluster each pod has its own agent:

    process.*, jobmanager.*   the supervisor of each target's pod: it is the parent of the process
    proxy                     the supervisor of the proxy's pod
    channel                   the supervisor of the first target's pod, for all targets: its rules go to the senders, and flows of
                              two targets that overlap are hit once, as on one machine
    netem, nfqueue, nftables  the agent container of each pod that receives what the fault touches, as a fault `to` that pod

All parts have the fault's id. An agent refuses an id that it knows, so a repeated call injects nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from testbed_runtime.core.errors import AgentSilent, FaultNotApplied, HeadgateError
from testbed_runtime.core.faults.kinds import per_direction
from testbed_runtime.core.faults.links import ANYBODY, flows_of, logical_name, owners_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.faults.vocabulary import PACKET_BACKENDS
from testbed_runtime.core.ids import JOBMANAGER, PROXY, SUPERVISOR
from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.faults.http import FaultClient
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.ports.network import Address
from testbed_runtime.timeouts import repeated

PACKETS = "packets"
OUTAGE_S = 6.0
"""How long a call to an agent that does not answer is repeated: a pod's network is back within seconds, a lease lasts 10 s."""
RETRY_EVERY_S = 0.3

T = TypeVar("T")


# ---- which agent gets what (pure)


class Agent(Struct, frozen=True, order=True):
    """The holder of faults in the pod of `process` (`tm-0`, `jobmanager`, `proxy`): its supervisor, or its packet agent."""

    process: str
    container: str = SUPERVISOR

    def __str__(self) -> str:
        return self.process if self.container == SUPERVISOR else f"{self.process}/{self.container}"


class Part(Struct, frozen=True):
    """The part of a fault for one agent: the fault from its point of view, and its targets."""

    agent: Agent
    fault: Fault
    targets: tuple[str, ...]


def split(
    fault: Fault, targets: Sequence[str], *, backend: str, task_managers: Sequence[str]
) -> tuple[Part, ...]:
    """Return the parts of a fault whose targets are resolved. `backend` is the choice of `registry.check_fault`, `task_managers`
    are all TaskManagers of the testbed. Raises HeadgateError when the fault hits no process."""
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
        raise HeadgateError(f"{fault.kind}: it hits no process ({', '.join(targets) or 'no targets'})")
    return parts


def _packet_parts(fault: Fault, targets: tuple[str, ...], task_managers: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts for packet agents. Packets are held where they are received; the target's pod alone makes a half-open connection."""
    if fault.kind == "network.half-open":
        return tuple(
            Part(Agent(name, PACKETS), fault, tuple(t for t in targets if owners_of((t,)) == (name,)))
            for name in owners_of(targets)
        )
    processes = [*task_managers, *([JOBMANAGER] if fault.plane != "data" else [])]
    senders: dict[str, dict[str, None]] = {}
    for source, destination in flows_of(targets, fault.direction):
        receivers = (
            [n for n in processes if n != source] if destination == ANYBODY else [logical_name(destination)]
        )
        for receiver in receivers:
            senders.setdefault(receiver, {})[source] = None
    # as the receiving pods see it: `to` them, half of a round trip each
    seen = replace(fault, direction="to", params=per_direction(fault.params))
    return tuple(
        Part(Agent(receiver, PACKETS), seen, _received(receiver, list(sources)))
        for receiver, sources in senders.items()
    )


def _received(receiver: str, sources: Sequence[str]) -> tuple[str, ...]:
    """Return the receiver's targets: all incoming packets, or those from each of these sources."""
    if ANYBODY in sources:
        return (receiver,)
    return tuple(f"{receiver}->{source}" for source in sources)


# ---- the calls


class FaultFanout:
    """The agents of one testbed. `address` returns the address of an agent (a DNS name is fine). `close` ends every session.

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
        """Inject all parts or none: when one fails the others are undone. Raises its UserError, FaultNotApplied,
        HeadgateError or AgentSilent."""
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
        """Inject one part. When an answer is lost, repeat the call only if the agent does not know the fault."""
        client = self.client(part.agent)
        asked = False

        async def once() -> FaultHandle:
            nonlocal asked
            if asked and (known := await self._known(client, part, fault_id)) is not None:
                return known
            asked = True
            return await client.inject(part.fault, fault_id=fault_id, targets=part.targets, lease_s=lease_s)

        return await self._with_retries(once)

    async def _known(self, client: FaultClient, part: Part, fault_id: str) -> FaultHandle | None:
        """Return the handle of a fault whose injection was not answered; None when the call never arrived."""
        for active in await client.faults():
            if active["id"] == fault_id:
                return FaultHandle(fault_id, str(active["backend"]), "", part.targets)
        if await knows(client, part.fault.name):
            raise HeadgateError(f"{part.fault.kind} at {part.agent} was asked for and did not stay")
        return None

    async def renew(self, agents: Sequence[Agent], fault_id: str) -> Mapping[Agent, HeadgateError]:
        """Renew every lease. Return the agents that refused or did not answer, with their errors (FaultHealed after `heal_all`)."""
        answers = await self._ask_each(agents, lambda client: client.renew(fault_id))
        return {agent: answer for agent, answer in answers.items() if isinstance(answer, HeadgateError)}

    async def held(self, agent: Agent, name: str) -> bool:
        """Return whether the agent has had a fault of that name since its last restart. False if the agent does not answer."""
        try:
            return await self._with_retries(lambda: knows(self.client(agent), name))
        except Unreachable:
            return False

    async def heal(self, agents: Sequence[Agent], fault_id: str) -> None:
        """Heal every part even when one fails, then raise the first error. The deadline ends a part that was not healed."""
        await self._call_all(agents, lambda client: client.heal(fault_id))

    async def heal_all(self, agents: Sequence[Agent]) -> None:
        """Heal every fault of these agents, also those of other runs."""
        await self._call_all(agents, lambda client: client.heal_all())

    async def residue(self, agents: Sequence[Agent]) -> dict[str, Any]:
        """Return the residue by agent; `{}` is clean. An agent that does not answer counts as residue, since its state is unknown."""
        answers = await self._ask_each(agents, lambda client: client.residue())
        return {
            str(agent): {"not_measured": str(left)} if isinstance(left, HeadgateError) else dict(left)
            for agent, left in answers.items()
            if left
        }

    async def journal(self, agents: Sequence[Agent]) -> list[Mapping[str, Any]]:
        """Return the rows ({table, row}) since the last call, ordered by time. The rows of an agent that does not answer follow with a
        later call. The journal of an agent that restarted is read from its first row."""

        async def one(agent: Agent) -> Sequence[Mapping[str, Any]]:
            try:
                return await self._new_rows(agent)
            except HeadgateError:
                return ()

        found = await asyncio.gather(*(one(agent) for agent in agents))
        return sorted((row for rows in found for row in rows), key=lambda r: int(r["row"].get("t_ns", 0)))

    async def _new_rows(self, agent: Agent) -> Sequence[Mapping[str, Any]]:
        """Return the new rows of an agent. The last known row is requested again: if the agent does not have it, it has restarted."""
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

    async def _call_all(
        self, agents: Sequence[Agent], call: Callable[[FaultClient], Awaitable[None]]
    ) -> None:
        for answer in (await self._ask_each(agents, call)).values():
            if isinstance(answer, HeadgateError):
                raise answer

    async def _ask_each(
        self, agents: Sequence[Agent], call: Callable[[FaultClient], Awaitable[T]]
    ) -> dict[Agent, T | HeadgateError]:
        """Return the answer of each agent, or its error."""

        async def one(agent: Agent) -> T | HeadgateError:
            try:
                return await self._with_retries(lambda: call(self.client(agent)))
            except HeadgateError as error:
                return error

        return dict(zip(agents, await asyncio.gather(*map(one, agents)), strict=True))

    async def _with_retries(self, call: Callable[[], Awaitable[T]]) -> T:
        return await repeated(
            call, lambda e: isinstance(e, Unreachable), limit_s=self._outage_s, every_s=RETRY_EVERY_S
        )


async def knows(client: FaultClient, name: str) -> bool:
    """Return whether the agent has had a fault of that name since its last restart."""
    rows = await client.journal(0)
    return any(r["table"] == "faults" and r["row"].get("fault") == name for r in rows)


def _with_agent(parts: Sequence[Part], results: Sequence[object]) -> BaseException:
    """Return the first problem. FaultNotApplied comes last. If an agent does not answer, the error names the agent."""
    found = sorted(zip(parts, results, strict=True), key=lambda pair: isinstance(pair[1], FaultNotApplied))
    for part, result in found:
        if isinstance(result, Unreachable):
            return AgentSilent(f"{part.fault.kind}: the agent of {part.agent} does not answer: {result}")
        if isinstance(result, BaseException):
            return result
    raise AssertionError("no part failed")
