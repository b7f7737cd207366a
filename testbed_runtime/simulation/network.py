"""network.* faults in virtual time: rules on the fabric's links (data) and the Switchboard's (RPC), checked by probes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.faults.links import ANYBODY, any_matches
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.faults.backend import FaultRequest, Measurement, Rule, combined, rule_of
from testbed_runtime.faults.proxy.observe import (
    AFTER_LIMIT_S,
    CLEAN_S,
    MAX_PROBED_PATHS,
    PINGS,
    ActiveRules,
    Path,
    free_first,
    judge_after,
    observe_path,
    sent_again,
)
from testbed_runtime.ports.network import PLANE_DATA, PLANE_RPC
from testbed_runtime.simulation.probe import FabricProbe, RpcProbe
from testbed_runtime.simulation.processes import Processes
from testbed_runtime.transport.links import LOOPBACK_LATENCY_S, LinkProfile
from testbed_runtime.transport.rpc_memory import Switchboard
from testbed_runtime.transport.simulated import SimulatedFabric

BEFORE_LIMIT_S = 0.5


class RpcConditions:
    """Network conditions of RPC messages: latency by link, and links on which they wait. Used by the Switchboard."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}

    def latency_s(self, source: str, destination: str) -> float | None:
        """Return the latency in seconds of a message sent now, or None if nothing passes."""
        if not self.rules:
            return LOOPBACK_LATENCY_S
        rules = [rule for rule in self.rules.values() if any_matches(rule.flows, source, destination)]
        if any(KINDS[rule.kind].silent for rule in rules):
            return None
        return LOOPBACK_LATENCY_S + sum(rule.number("latency_s") for rule in rules)


@dataclass(slots=True, kw_only=True)
class _Path(Path):
    probe: FabricProbe | RpcProbe


class SimNetworkBackend:
    """The `faults.backend.Backend` that replaces the proxy of real environments."""

    def __init__(
        self,
        fabric: SimulatedFabric,
        switchboard: Switchboard,
        conditions: RpcConditions,
        processes: Processes,
    ) -> None:
        self._fabric = fabric
        self._switchboard = switchboard
        self._rpc_conditions = conditions
        self._processes = processes
        self._rules = ActiveRules()
        self._paths: dict[str, list[_Path]] = {}
        self._sent_again: dict[str, float] = {}
        """How long after the end of a fault TCP retransmits the last lost bytes."""

    async def prepare(self, request: FaultRequest) -> None:
        paths = self._paths[request.fault_id] = self._choose_paths(rule_of(request))
        await asyncio.gather(*(_prepare_path(path) for path in paths))

    async def apply(self, request: FaultRequest) -> float:
        rule = rule_of(request)
        self._rules.add(request.rule_id, rule)
        if PLANE_RPC in rule.planes:
            self._rpc_conditions.rules[request.rule_id] = rule
        self._reshape()
        return asyncio.get_running_loop().time()

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        paths = self._paths.get(request.fault_id, [])
        rule = rule_of(request)
        found = await asyncio.gather(
            *(
                observe_path(
                    rule, request.fault, p, p.probe, stop, alone=partial(self._alone, p, request.rule_id)
                )
                for p in paths
            )
        )
        return combined([path.name for path in paths], found)

    async def _alone(self, path: _Path, rule_id: str) -> FabricProbe | RpcProbe:
        """Wait until no other fault is active on the path. Return a new probe of the path."""
        await self._rules.alone(path, rule_id)
        await path.probe.close()
        path.probe = self._path(path.source, path.destination, path.plane).probe
        await path.probe.open()
        return path.probe

    async def remove(self, request: FaultRequest) -> None:
        for path in self._paths.get(request.fault_id, ()):  # what they have lost delays nothing
            await path.probe.close()
        self._rules.remove(request.rule_id)
        self._rpc_conditions.rules.pop(request.rule_id, None)
        self._reshape()
        rule = rule_of(request)
        lost = rule.flows if KINDS[rule.kind].loses else ()
        messages = self._switchboard.release(lost=lost if PLANE_RPC in rule.planes else ())
        data = self._fabric.resumes_at(lost) if PLANE_DATA in rule.planes else 0.0
        late = max(messages, data) - asyncio.get_running_loop().time()
        self._sent_again[request.fault_id] = max(0.0, late)

    async def check(self, request: FaultRequest) -> Measurement:
        """Check that round trips on new connections are back to normal."""
        values: dict[str, Any] = {}
        left: list[str] = []
        for path in self._paths.pop(request.fault_id, []):
            if self._rules.hit(path):
                values[path.name] = {"not_probed": "another fault is active on this path"}
                continue
            after = self._path(path.source, path.destination, path.plane)
            await _prepare_path(after, limit_s=AFTER_LIMIT_S)
            await after.probe.close()
            clean, values[path.name] = judge_after(path, after.before, CLEAN_S)
            if not clean:
                left.append(path.name)
        measured = {"paths": values, **sent_again(self._sent_again.pop(request.fault_id, 0.0))}
        return Measurement(not left, measured, f"not back to normal: {', '.join(left)}" if left else "")

    async def residue(self) -> Mapping[str, Any]:
        return {"network": names} if (names := self._rules.names()) else {}

    # ---- paths

    def _choose_paths(self, rule: Rule) -> list[_Path]:
        """Choose both planes of the first links that the rule affects, each pair once."""
        chosen: list[_Path] = []
        for plane in rule.planes:
            names = [n for n in self._processes.names() if plane == PLANE_RPC or n != JOBMANAGER]
            pairs: dict[frozenset[str], tuple[str, str]] = {}
            for a in names:
                for b in names:
                    if a != b and any_matches(rule.flows, a, b):
                        # probe a half-open connection from the end that stays
                        pairs.setdefault(frozenset((a, b)), (b, a) if a in rule.gone else (a, b))
            paths = free_first([self._path(a, b, plane) for a, b in pairs.values()], self._rules)
            chosen += paths[: MAX_PROBED_PATHS // len(rule.planes)]
        return chosen

    def _path(self, source: str, destination: str, plane: str) -> _Path:
        if plane == PLANE_DATA:
            return _Path(source, destination, plane, probe=FabricProbe(self._fabric, source, destination))
        return _Path(source, destination, plane, probe=RpcProbe(self._switchboard, source, destination))

    # ---- links

    def _reshape(self) -> None:
        """Set every link to the combination of all active rules."""
        names = [*self._processes.names(), *(n for r in self._rules.values() for f in r.flows for n in f)]
        known = [n for n in dict.fromkeys([*names, *self._fabric.names()]) if n != ANYBODY]
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
        ceilings = [ceiling for r in rules if (ceiling := r.number("bytes_per_s"))]
        profile = LinkProfile(
            LOOPBACK_LATENCY_S + sum(r.number("latency_s") for r in rules),
            sum(r.number("jitter_s") for r in rules),
            min(ceilings, default=0.0),
        )
        self._fabric.shape(source, destination, profile)
        kinds = {r.kind for r in rules}
        self._fabric.hold(
            source,
            destination,
            lost=bool(kinds & {"network.partition", "network.half-open"}),
            stalled="network.stall" in kinds,
            refused="network.reset" in kinds,
            gone=any(source in r.gone for r in rules),
        )


async def _prepare_path(path: _Path, *, limit_s: float = BEFORE_LIMIT_S) -> None:
    await path.probe.open()
    for _ in range(PINGS):
        seconds = await path.probe.round_trip(timeout_s=limit_s)
        if seconds is None:
            return
        path.before.append(seconds)
