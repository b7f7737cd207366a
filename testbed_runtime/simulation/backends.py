"""The fault backends of virtual time: signals to simulated processes, rules on simulated links, rules in the processes themselves.

The agent (deadlines, leases, journal, measuring) is the same as on a real machine; effects are measured here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.faults.backends.base import FaultRequest, Measurement, stopped_within
from testbed_runtime.faults.backends.channel import ChannelFaults
from testbed_runtime.faults.backends.proxy import expected_delay, planes_of, rule_of
from testbed_runtime.faults.backends.rules import ChannelRule, FlowRule
from testbed_runtime.faults.http import Unreachable
from testbed_runtime.faults.links import ANYBODY, Flow, any_matches, owners_of
from testbed_runtime.ports.network import PLANE_DATA, PLANE_RPC, Address
from testbed_runtime.simulation.probe import Echo, round_trip
from testbed_runtime.simulation.processes import JOBMANAGER, Processes
from testbed_runtime.transport.simulated import LOOPBACK_LATENCY_S, LinkProfile, SimulatedFabric

PINGS = 20
PROBE_LIMIT_S = 1.0
SEEN_SHARE = 0.8
SILENT = ("network.partition", "network.stall", "network.half-open")
KINDS = ("network.latency", "network.bandwidth", "network.reset", *SILENT)


class SimNeighbourhood:
    """faults.backends.base.Neighbourhood: a control address is the process's name."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def names(self) -> Sequence[str]:
        return self._processes.names()

    def control(self, name: str) -> Address | None:
        return (name, 0) if self._processes.get(name) is not None else None


class InProcessControl:
    """What `faults.http.ControlClient` is over HTTP: calls go straight to the ChannelFaults of the process."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def call(
        self, method: str, address: Address, path: str, body: Any = None, *, timeout_s: float | None = None
    ) -> Mapping[str, Any]:
        """Raises Unreachable for a process that is gone or paused."""
        del timeout_s
        process = self._processes.get(address[0])
        if process is None or process.state != "running":
            raise Unreachable(f"{address[0]} does not answer")
        # in its context: what the rule arms there is held while it is paused, and dies with it
        return process.rpc.context.copy().run(self._handle, process.faults, method, path, body)

    @staticmethod
    def _handle(faults: ChannelFaults, method: str, path: str, body: Any) -> Mapping[str, Any]:
        path, _, query = path.removeprefix("/v1/channel").partition("?")
        rule_id = path.removeprefix("/rules/")
        match method, path.startswith("/rules/"):
            case "PUT", True:
                faults.apply(msgspec.convert(body, type=ChannelRule))
                return {"now": asyncio.get_running_loop().time()}
            case "DELETE", True:
                faults.remove(rule_id)
                return {"counters": faults.counters(rule_id)}
            case "GET", True:
                return {"counters": faults.counters(rule_id)}
            case "GET", False if path == "/sightings":
                return {"sightings": faults.effects.sightings(query.removeprefix("class="))}
            case "GET", False:
                return faults.state()
        raise HeadgateError(f"there is no {method} {path} in a simulated process")

    async def close(self) -> None:
        """Nothing is open."""


class SimProcessBackend:
    """process.kill, process.pause, jobmanager.kill, jobmanager.pause: the effect is read off the process table."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._hit: dict[str, dict[str, int]] = {}

    async def prepare(self, request: FaultRequest) -> None:
        hit: dict[str, int] = {}
        for name in _names(request):
            process = self._processes.get(name)
            if process is None:
                raise HeadgateError(f"{request.fault.kind}: {name} does not run")
            hit[name] = process.incarnation
        self._hit[request.fault_id] = hit

    async def apply(self, request: FaultRequest) -> float:
        act = self._processes.kill if request.fault.kind.endswith(".kill") else self._processes.pause
        for name in _names(request):
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


def _names(request: FaultRequest) -> tuple[str, ...]:
    return (JOBMANAGER,) if request.fault.kind.startswith("jobmanager.") else owners_of(request.targets)


class Weather:
    """What Rpc messages suffer: latency by link, and links on which messages wait until a time. Given to the Switchboard."""

    def __init__(self) -> None:
        self.rules: dict[str, FlowRule] = {}

    def latency_s(self, source: str, destination: str) -> float:
        """Seconds that a message which is sent now takes."""
        now = asyncio.get_running_loop().time()
        seconds = LOOPBACK_LATENCY_S
        for rule in self.rules.values():
            if not any_matches(rule.flows, source, destination):
                continue
            if rule.kind in SILENT:
                seconds = max(seconds, rule.deadline - now)
            else:
                seconds += rule.latency_s
        return seconds


class SimNetworkBackend:
    """network.* on the links of the fabric and of the Switchboard; measured by pings on a connection of their own."""

    def __init__(self, fabric: SimulatedFabric, weather: Weather, processes: Processes) -> None:
        self._fabric = fabric
        self._weather = weather
        self._processes = processes
        self._rules: dict[str, FlowRule] = {}
        self._before: dict[str, dict[Flow, float]] = {}

    async def prepare(self, request: FaultRequest) -> None:
        if request.fault.kind not in KINDS:
            raise UserError("kind", f"{request.fault.kind} is not simulated", "run it on this machine")
        if PLANE_RPC in planes_of(request.fault) and request.fault.kind in (
            "network.reset",
            "network.bandwidth",
        ):
            raise UserError(
                "plane", f"{request.fault.kind} is simulated on the data plane only", "write data"
            )
        self._before[request.fault_id] = {
            link: await self._median(link) or 0.0 for link in self._links(rule_of(request))
        }

    async def apply(self, request: FaultRequest) -> float:
        rule = rule_of(request)
        self._rules[request.rule_id] = rule
        if PLANE_RPC in rule.planes:
            self._weather.rules[request.rule_id] = rule
        self._reshape()
        return asyncio.get_running_loop().time()

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        rule = rule_of(request)
        found: dict[str, Any] = {}
        ok = bool(self._links(rule))
        for link, before in self._before[request.fault_id].items():
            if await stopped_within(stop, 0.0) and not found:
                return Measurement(False, {}, "the fault ended before it could be measured")
            during = await self._median(link)
            found["->".join(link)] = {"before_s": before, "during_s": during}
            ok = ok and self._took_effect(rule, link, before, during)
        return Measurement(ok, {"links": found}, "" if ok else "the pings do not show the effect")

    def _took_effect(self, rule: FlowRule, link: Flow, before: float, during: float | None) -> bool:
        if rule.kind in (*SILENT, "network.reset"):
            return during is None
        if during is None:
            return False
        if rule.kind == "network.latency":
            return during - before >= SEEN_SHARE * expected_delay(rule, *link, jitter=True) > 0
        return during > before

    async def remove(self, request: FaultRequest) -> None:
        self._rules.pop(request.rule_id, None)
        self._weather.rules.pop(request.rule_id, None)
        self._reshape()

    async def check(self, request: FaultRequest) -> Measurement:
        before = self._before.pop(request.fault_id, {})
        after = {link: await self._median(link) for link in before}
        left = ["->".join(k) for k, v in after.items() if v is None or v > before[k] * 2 + 1e-4]
        values = {"->".join(k): v for k, v in after.items()}
        return Measurement(not left, {"links": values}, f"not as before: {', '.join(left)}" if left else "")

    async def residue(self) -> Mapping[str, Any]:
        return {"network": sorted(self._rules)} if self._rules else {}

    def _links(self, rule: FlowRule) -> list[Flow]:
        names = list(self._processes.names())
        return [
            (a, b)
            for a in names
            for b in names
            if a != b
            and PLANE_DATA in rule.planes
            and JOBMANAGER not in (a, b)
            and any_matches(rule.flows, a, b)
        ] or [(a, b) for a in names for b in names if a != b and any_matches(rule.flows, a, b)]

    def _reshape(self) -> None:
        """Every link as the active rules want it: composed, never flushed."""
        names = [*self._processes.names(), *(n for r in self._rules.values() for f in r.flows for n in f)]
        known = [n for n in dict.fromkeys(names) if n != ANYBODY]
        for source in known:
            for destination in known:
                if source != destination:
                    self._shape(source, destination)

    def _shape(self, source: str, destination: str) -> None:
        rules = [
            r
            for r in self._rules.values()
            if PLANE_DATA in r.planes and any_matches(r.flows, source, destination)
        ]
        ceilings = [r.bytes_per_s for r in rules if r.bytes_per_s]
        self._fabric.shape(
            source,
            destination,
            LinkProfile(
                LOOPBACK_LATENCY_S + sum(r.latency_s for r in rules),
                sum(r.jitter_s for r in rules),
                min(ceilings, default=0.0),
            ),
        )
        kinds = {r.kind for r in rules}
        self._fabric.heal(source, destination)
        if kinds & {"network.partition", "network.half-open"}:
            self._fabric.partition(source, destination)
        if "network.stall" in kinds:
            self._fabric.stall(source, destination)
        if "network.reset" in kinds:
            self._fabric.refuse(source, destination)

    async def _median(self, link: Flow) -> float | None:
        """Median round trip of PINGS on a connection of its own; None: no answer, or no connection."""
        async with Echo.on(self._fabric, link[1]) as address:
            times = await round_trip(self._fabric, link[0], address, count=PINGS, limit_s=PROBE_LIMIT_S)
        return median(times) if times else None
