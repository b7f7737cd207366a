"""The agent's side of the packet backend: rules at the engine of its network namespace, and probes before, during and after.

It is the same for `nfqueue`, `nftables` and `netem`; only the engine distinguishes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.faults.links import owners_of
from testbed_runtime.core.faults.vocabulary import PACKET_BACKENDS
from testbed_runtime.faults.backend import FaultRequest, Measurement, combined, stopped_within
from testbed_runtime.faults.packets import measure
from testbed_runtime.faults.packets.engine import PacketEngine
from testbed_runtime.faults.packets.machine import Impairment, impairment_of
from testbed_runtime.faults.packets.measure import PathReading
from testbed_runtime.faults.packets.placing import (
    ECHO_PORT,
    ProbePath,
    Surroundings,
    peers_of,
    probe_paths,
    rules_of,
)

BEFORE_PROBES = 100
"""Probes of the series before the fault. They take half a second; the agent's limit for this measurement is 4 s."""
AFTER_PROBES = 50
LATENCY_EVERY_S = 0.005
LOSS_EVERY_S = 0.001
SILENT_PROBES = 20
SILENT_EVERY_S = 0.02
MEASURING_SHARE = 0.6
"""Share of a fault's duration that a series may take: a short fault gets fewer probes and a wider interval."""
CHECK_AGAIN = 3
"""Maximum series after the end of a fault, until one is as before it. At first TCP still retransmits, and other parts of the fault
are still ending."""
TALLY_EVERY_S = 0.2


class Lookup(Protocol):
    """The processes around this engine, looked up again for each fault."""

    async def surroundings(self) -> Surroundings: ...

    async def address(self, name: str) -> str:
        """Return the numeric address of a process by its logical name. Raises HeadgateError when it is unknown."""


@dataclass(slots=True)
class _Held:
    surroundings: Surroundings
    peers: dict[str, tuple[str, ...]]
    paths: list[ProbePath]
    before: dict[str, PathReading] = field(default_factory=dict)


class PacketBackend:
    """The backend `name` on the packet engine."""

    def __init__(self, name: str, engine: PacketEngine, lookup: Lookup) -> None:
        self._name = name
        self._engine = engine
        self._lookup = lookup
        self._held: dict[str, _Held] = {}

    async def prepare(self, request: FaultRequest) -> None:
        surroundings = await self._lookup.surroundings()
        peers = peers_of(request.fault, request.targets, surroundings.own)
        paths = probe_paths(request.fault, peers, surroundings, owners_of(request.targets))
        held = self._held[request.fault_id] = _Held(surroundings, peers, paths)
        series = await asyncio.gather(*(self._probe(path, BEFORE_PROBES, LATENCY_EVERY_S) for path in paths))
        held.before = {path.name: reading for path, reading in zip(paths, series, strict=True)}

    async def apply(self, request: FaultRequest) -> float:
        held = self._held[request.fault_id]
        peers = {hook: await self._addresses(names) for hook, names in held.peers.items()}
        for_s = max(0.001, request.deadline - asyncio.get_running_loop().time())
        rules = rules_of(request, peers, held.surroundings, backend=self._name, for_s=for_s)
        return await self._engine.add(rules)

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        held = self._held[request.fault_id]
        readable = [p for p in held.paths if held.before[p.name].answered]
        if not readable:
            return await self._measure_job_packets(request, stop)
        found = await asyncio.gather(*(self._observe_path(request, held, path, stop) for path in readable))
        measured = combined([path.name for path in readable], found)
        packets = dict(self._engine.counters(request.rule_id))
        return replace(measured, values={**measured.values, "packets": packets})

    async def remove(self, request: FaultRequest) -> None:
        await self._engine.remove(request.rule_id)

    async def check(self, request: FaultRequest) -> Measurement:
        held = self._held.pop(request.fault_id, None)
        if held is None:
            return Measurement(True)
        left: list[str] = []
        values: dict[str, Any] = {}
        for path in held.paths:
            why, values[path.name] = await self._check_path(held, path, impairment_of(request.fault))
            if why:
                left.append(f"{path.name}: {why}")
        if request.rule_id in (await self._engine.residue()).get("rules", ()):
            left.append("the rule itself")
        return Measurement(not left, {"paths": values}, "; ".join(left))

    async def residue(self) -> Mapping[str, Any]:
        """Return the residue of the whole engine. It is the same for each backend, so it is reported once."""
        left = await self._engine.residue()
        return {"packets": left} if left else {}

    # ---- inside

    async def _addresses(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple([await self._lookup.address(name) for name in names])

    async def _probe(
        self, path: ProbePath, count: int, every_s: float, stop: asyncio.Event | None = None
    ) -> PathReading:
        try:
            echo = (await self._lookup.address(path.echo), ECHO_PORT)
        except HeadgateError as error:
            return PathReading(error=str(error))
        return await self._engine.prober.series(echo, path.plane, count=count, every_s=every_s, stop=stop)

    async def _observe_path(
        self, request: FaultRequest, held: _Held, path: ProbePath, stop: asyncio.Event
    ) -> Measurement:
        count, every_s = series_for(request.fault.kind, request.fault.duration_s)
        now = await self._probe(path, count, every_s, stop)
        return judge(request.fault.kind, impairment_of(request.fault), path, held.before[path.name], now)

    async def _measure_job_packets(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        """Judge by the job's own packets when no peer answers probes."""
        tally = self._engine.counters(request.rule_id)
        while tally["packets"] < measure.LATENCY_PROBES and not await stopped_within(stop, TALLY_EVERY_S):
            tally = self._engine.counters(request.rule_id)
        ok = any(tally[name] for name in ("lost", "corrupted", "overtaken", "mean_held_s"))
        text = "" if ok else "no packet met the fault, and there was no other agent that answered probes"
        return Measurement(ok, {"packets": dict(tally)}, text)

    async def _check_path(
        self, held: _Held, path: ProbePath, asked: Impairment
    ) -> tuple[str, dict[str, Any]]:
        """Return the problem (empty: none) and the path's measurements."""
        why, after = "", PathReading()
        before = held.before.get(path.name, PathReading())
        for _ in range(CHECK_AGAIN):
            after = await self._probe(path, AFTER_PROBES, LATENCY_EVERY_S)
            why = measure.residue_of(before, after, (path.forward, path.backward), asked)
            if not why:
                break
        # a path that did not answer before the fault either has no residue
        return why if before.answered else "", measure.summary(after)


def series_for(kind: str, duration_s: float) -> tuple[int, float]:
    """Return how many probes to send and their interval (s), as far as the fault's duration allows."""
    if KINDS[kind].silent:
        count, every_s = SILENT_PROBES, SILENT_EVERY_S
    elif kind == "network.latency":
        count, every_s = measure.LATENCY_PROBES, LATENCY_EVERY_S
    else:
        count, every_s = measure.LOSS_PROBES, LOSS_EVERY_S
    room = int(duration_s * MEASURING_SHARE / every_s)
    return max(1, min(count, room)), every_s


def judge(
    kind: str, asked: Impairment, path: ProbePath, before: PathReading, now: PathReading
) -> Measurement:
    """Judge whether a series shows the requested effect in the directions that this engine holds."""
    ways = (path.forward, path.backward)
    match kind:
        case "network.latency":
            return measure.judge_latency(before, now, ways, asked.latency_s, asked.jitter_s)
        case "network.loss" | "network.corrupt":
            return measure.judge_loss(now, ways, asked.loss or asked.corrupt, asked.burst)
        case "network.duplicate":
            hits = now.forward_duplicates * ways[0] + now.backward_duplicates * ways[1]
            of = now.sent * ways[0] + now.echoed * ways[1]
            return measure.judge_duplicates(hits, of, asked.duplicate)
        case "network.reorder":
            seen = {"probes": now.sent, "overtaken": now.overtaken}
            return Measurement(
                now.overtaken > 0, seen, "" if now.overtaken else "no probe was overtaken by a later one"
            )
        case "network.bandwidth":
            values = {"asked_bytes_per_s": asked.bytes_per_s, **measure.summary(now)}
            return Measurement(now.answered > 0, values, "" if now.answered else "no probe was answered")
    return measure.judge_silence(now)


def backends(engine: PacketEngine, lookup: Lookup) -> dict[str, PacketBackend]:
    """Return the packet backends that this kernel supports, by name."""
    return {
        name: PacketBackend(name, engine, lookup)
        for name in PACKET_BACKENDS
        if name in engine.support.available
    }
