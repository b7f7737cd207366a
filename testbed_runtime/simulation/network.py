"""network.* faults in virtual time: rules on the fabric's links (data) and the Switchboard's (RPC), checked by probes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.faults.links import ANYBODY, any_matches
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.faults.backend import FaultRequest, Measurement, Rule, planes_of, rule_of
from testbed_runtime.faults.proxy.backend import expected_delay, latency_seen
from testbed_runtime.ports.network import PLANE_DATA, PLANE_RPC
from testbed_runtime.simulation.probe import FabricProbe, Probe, RpcProbe
from testbed_runtime.simulation.processes import Processes
from testbed_runtime.transport.rpc_memory import Switchboard
from testbed_runtime.transport.simulated import LOOPBACK_LATENCY_S, LinkProfile, SimulatedFabric

MAX_PROBED_PATHS = 4
"""Maximum probed paths per fault, as in the proxy."""
PINGS = 5
BEFORE_LIMIT_S = 0.5
QUIET_S = 1.0
"""Without a response for this long (or half of the fault), a path counts as silent."""
AFTER_LIMIT_S = 2.0
CLEAN_S = 0.002
"""Tolerated increase of the round trip after a fault."""
SEEN_SHARE = 0.8
BULK_S = 0.3
"""Approximate duration of a throughput probe under the bandwidth limit."""


class Weather:
    """Network conditions of RPC messages: latency by link, and links on which they wait. Used by the Switchboard."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}

    def latency_s(self, source: str, destination: str) -> float | None:
        """Return the latency in seconds of a message sent now, or None if nothing passes."""
        rules = [rule for rule in self.rules.values() if any_matches(rule.flows, source, destination)]
        if any(KINDS[rule.kind].silent for rule in rules):
            return None
        return LOOPBACK_LATENCY_S + sum(rule.number("latency_s") for rule in rules)


@dataclass(slots=True)
class _Path:
    source: str
    destination: str
    plane: str
    probe: Probe
    before: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.source}->{self.destination}/{self.plane}"


class SimNetworkBackend:
    """A `faults.backend.Backend`; what the `proxy` is on a real machine."""

    def __init__(
        self, fabric: SimulatedFabric, switchboard: Switchboard, weather: Weather, processes: Processes
    ) -> None:
        self._fabric = fabric
        self._switchboard = switchboard
        self._weather = weather
        self._processes = processes
        self._rules: dict[str, Rule] = {}
        self._paths: dict[str, list[_Path]] = {}

    async def prepare(self, request: FaultRequest) -> None:
        fault = request.fault
        if PLANE_RPC in planes_of(fault) and fault.kind in ("network.reset", "network.bandwidth"):
            raise UserError("plane", f"{fault.kind} is simulated on the data plane only", "write data")
        paths = self._paths[request.fault_id] = self._choose_paths(rule_of(request))
        await asyncio.gather(*(_prepare_path(path) for path in paths))

    async def apply(self, request: FaultRequest) -> float:
        rule = rule_of(request)
        self._rules[request.rule_id] = rule
        if PLANE_RPC in rule.planes:
            self._weather.rules[request.rule_id] = rule
        self._reshape()
        return asyncio.get_running_loop().time()

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        paths = self._paths.get(request.fault_id, [])
        if not paths:
            return Measurement(False, {}, "there is no path to probe: no other process is running")
        found = await asyncio.gather(*(_observe(rule_of(request), request.fault, p, stop) for p in paths))
        return Measurement(
            all(m.ok for m in found),
            {"paths": {path.name: dict(m.values) for path, m in zip(paths, found, strict=True)}},
            "; ".join(dict.fromkeys(m.text for m in found if m.text)),
        )

    async def remove(self, request: FaultRequest) -> None:
        self._rules.pop(request.rule_id, None)
        self._weather.rules.pop(request.rule_id, None)
        self._reshape()
        self._switchboard.release()

    async def check(self, request: FaultRequest) -> Measurement:
        """Check that round trips on new connections are back to normal."""
        values: dict[str, Any] = {}
        left: list[str] = []
        for path in self._paths.pop(request.fault_id, []):
            await path.probe.close()
            if self._is_hit(path):
                values[path.name] = {"not_probed": "another fault is active on this path"}
                continue
            after = self._path(path.source, path.destination, path.plane)
            await _prepare_path(after, limit_s=AFTER_LIMIT_S)
            await after.probe.close()
            added = min(after.before) - min(path.before or after.before) if after.before else None
            values[path.name] = {"added_s": added if added is None else round(added, 6)}
            if added is None or added > CLEAN_S:
                left.append(path.name)
        return Measurement(
            not left, {"paths": values}, f"not back to normal: {', '.join(left)}" if left else ""
        )

    async def residue(self) -> Mapping[str, Any]:
        return {"network": sorted(self._rules)} if self._rules else {}

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
                        pairs.setdefault(frozenset((a, b)), (a, b))
            chosen += [self._path(a, b, plane) for a, b in pairs.values()][
                : MAX_PROBED_PATHS // len(rule.planes)
            ]
        return chosen

    def _path(self, source: str, destination: str, plane: str) -> _Path:
        if plane == PLANE_DATA:
            return _Path(source, destination, plane, FabricProbe(self._fabric, source, destination))
        return _Path(source, destination, plane, RpcProbe(self._switchboard, source, destination))

    def _is_hit(self, path: _Path) -> bool:
        ways = ((path.source, path.destination), (path.destination, path.source))
        return any(
            path.plane in rule.planes and any_matches(rule.flows, *way)
            for rule in self._rules.values()
            for way in ways
        )

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
        )


async def _prepare_path(path: _Path, *, limit_s: float = BEFORE_LIMIT_S) -> None:
    await path.probe.open(limit_s=limit_s)
    for _ in range(PINGS):
        seconds = await path.probe.ping(limit_s=limit_s)
        if seconds is None:
            return
        path.before.append(seconds)


async def _observe(rule: Rule, fault: Fault, path: _Path, stop: asyncio.Event) -> Measurement:
    if not path.before:
        return Measurement(
            False, {}, f"{path.name} did not respond before the fault, so its effect cannot be measured"
        )
    match fault.kind:
        case "network.latency":
            return await _observe_latency(rule, path, stop)
        case "network.bandwidth":
            return await _observe_bandwidth(rule, path, stop)
        case "network.reset":
            return await _observe_reset(path)
        case _:
            return await _observe_silence(min(QUIET_S, fault.duration_s / 2), path, stop)


async def _observe_latency(rule: Rule, path: _Path, stop: asyncio.Event) -> Measurement:
    expected = expected_delay(rule, path.source, path.destination)
    least = expected_delay(rule, path.source, path.destination, jitter=True)
    loop = asyncio.get_running_loop()
    found: list[float] = []
    while len(found) < PINGS:
        seconds = await _unless(stop, path.probe.ping(limit_s=expected * 4 + QUIET_S))
        if (
            seconds is None or loop.time() >= rule.deadline
        ):  # a response released at the fault's end is too fast
            break
        found.append(seconds)
    return latency_seen(found, path.before, expected=expected, least=least)


async def _observe_bandwidth(rule: Rule, path: _Path, stop: asyncio.Event) -> Measurement:
    assert isinstance(path.probe, FabricProbe)
    size = max(2_048, int(rule.number("bytes_per_s") * BULK_S))
    seconds = await _unless(stop, path.probe.bulk(size, limit_s=BULK_S * 20))
    if not seconds:
        return Measurement(
            False, {"asked_bytes_per_s": rule.number("bytes_per_s")}, "no throughput was measured"
        )
    rate = size / seconds
    values = {"asked_bytes_per_s": rule.number("bytes_per_s"), "measured_bytes_per_s": round(rate, 1)}
    ok = rate <= rule.number("bytes_per_s") * 1.25
    return Measurement(ok, values, "" if ok else "the bandwidth limit was not in effect")


async def _observe_reset(path: _Path) -> Measurement:
    assert isinstance(path.probe, FabricProbe)
    over = await path.probe.until_over(limit_s=QUIET_S)
    text = "" if over else "the probe's connection was not reset"
    return Measurement(over, {"connection": "reset" if over else "open"}, text)


async def _observe_silence(quiet_s: float, path: _Path, stop: asyncio.Event) -> Measurement:
    """Check that a ping gets no response while the connection stays open."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    seconds = await _unless(stop, path.probe.ping(limit_s=quiet_s))
    silent_for = loop.time() - begin
    values = {"silent_for_s": round(silent_for, 6), "answered_after_s": seconds}
    if seconds is not None or path.probe.over:
        return Measurement(False, values, "a probe got a response, or its connection ended")
    ok = silent_for >= quiet_s * SEEN_SHARE
    return Measurement(ok, values, "" if ok else "the fault ended before it could be measured")


async def _unless(stop: asyncio.Event, measuring: Coroutine[Any, Any, float | None]) -> float | None:
    """Return the result of the measurement, or None if `stop` was set first."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(measuring, name="probe")
    stopper = loop.create_task(stop.wait(), name="probe-stop")
    try:
        await asyncio.wait((task, stopper), return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        stopper.cancel()
        await asyncio.gather(task, stopper, return_exceptions=True)
    return None if task.cancelled() else task.result()
