"""The agent's side of the proxy backend: rules at the proxy, and separate probes through it (before, during, after)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, TypeVar

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.links import ANYBODY, any_matches, flows_of, owners_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.faults.backend import FaultRequest, Measurement, Peers, Rule, planes_of, rule_of
from testbed_runtime.faults.http import ControlClient, Unreachable
from testbed_runtime.faults.probes import ProbeConnection
from testbed_runtime.ports.network import Address

MAX_PROBED_PATHS = 4
"""Paths probed for one fault: enough to see it from two sides on both planes."""
PINGS = 5
BEFORE_LIMIT_S = 1.0
QUIET_S = 1.0
"""No answer for this long (or half the fault) means that nothing passes."""
AFTER_LIMIT_S = 2.0
CLEAN_S = 0.002
"""Round trips may be this much longer than before and still count as clean."""
SEEN_SHARE = 0.8
"""Share of the requested delay that must be measured; timers and probes account for the rest."""
BULK_S = 0.3
"""How long a throughput probe lasts under the ceiling, about."""

T = TypeVar("T")


@dataclass(slots=True)
class _Path:
    source: str
    destination: str
    plane: str
    address: Address = ("", 0)
    probe: ProbeConnection | None = None
    before: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.source}->{self.destination}/{self.plane}"


class ProxyBackend:
    """`proxy` returns the control address of the running proxy (None: there is none), `echo` that of the supervisor's echo."""

    def __init__(
        self,
        control: ControlClient,
        proxy: Callable[[], Address | None],
        echo: Callable[[], Address],
        peers: Peers,
    ) -> None:
        self._control = control
        self._proxy = proxy
        self._echo = echo
        self._peers = peers
        self._paths: dict[str, list[_Path]] = {}

    async def prepare(self, request: FaultRequest) -> None:
        paths = self._choose_paths(request)
        self._paths[request.fault_id] = paths
        for path in paths:
            await self._open(path)
            assert path.probe is not None
            path.before = await path.probe.round_trips(PINGS, timeout_s=BEFORE_LIMIT_S)

    async def apply(self, request: FaultRequest) -> float:
        rule = rule_of(request)
        answer = await self._call("PUT", f"/v1/rules/{request.rule_id}", asdict(rule))
        return float(answer["now"])

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        paths = self._paths.get(request.fault_id, [])
        if not paths:
            return Measurement(False, {}, "there is no path to probe: no other process runs")
        found = await asyncio.gather(*(self._observe_path(request, path, stop) for path in paths))
        return Measurement(
            all(m.ok for m in found),
            {"paths": {path.name: dict(m.values) for path, m in zip(paths, found, strict=True)}},
            "; ".join(dict.fromkeys(m.text for m in found if m.text)),
        )

    async def remove(self, request: FaultRequest) -> None:
        await self._call("DELETE", f"/v1/rules/{request.rule_id}")

    async def check(self, request: FaultRequest) -> Measurement:
        """Compare round trips on a new connection with those before the fault."""
        paths = self._paths.pop(request.fault_id, [])
        rule = rule_of(request)
        values: dict[str, Any] = {}
        left: list[str] = []
        try:
            state = await self._call("GET", "/v1/state")
            if request.rule_id in state["rules"]:
                left.append("the rule itself")
            others = [r for name, r in state["rules"].items() if name != request.rule_id]
            for path in paths:
                if _is_hit(path, others):
                    values[path.name] = {"not_probed": "another fault is active on this path"}
                    continue
                values[path.name] = after = await self._check_path(path)
                limit = max(CLEAN_S, expected_delay(rule, path.source, path.destination) / 2)
                if after["round_trip_s"] is None or after["added_s"] > limit:
                    left.append(path.name)
        except Unreachable:
            return Measurement(True, values, "the proxy is gone, and its rules with it")
        finally:
            for path in paths:
                if path.probe is not None:
                    path.probe.close()
        return Measurement(not left, {"paths": values}, f"not as before: {', '.join(left)}" if left else "")

    async def residue(self) -> Mapping[str, Any]:
        if self._proxy() is None:
            return {}
        try:
            state = await self._call("GET", "/v1/state")
        except Unreachable:
            return {}
        found = {key: state[key] for key in ("rules", "held_bytes", "shaped_connections") if state[key]}
        return {"proxy": found} if found else {}

    # ---- one path

    def _choose_paths(self, request: FaultRequest) -> list[_Path]:
        paths = [p for plane in planes_of(request.fault) for p in self._paths_of(request, plane)]
        return paths[:MAX_PROBED_PATHS]

    def _paths_of(self, request: FaultRequest, plane: str) -> list[_Path]:
        # for "every process" take a peer that the fault does not hit and that does communicate on the plane
        hit = owners_of(request.targets)
        names = sorted(self._peers.names(), key=lambda n: (n in hit, (n == JOBMANAGER) != (plane == "rpc")))
        pairs: dict[tuple[str, str], None] = {}
        # of a half-open connection the end that stays is the one to probe from
        direction = "to" if request.fault.kind == "network.half-open" else request.fault.direction
        for own, peer in flows_of(request.targets, direction):
            source = own if own != ANYBODY else next((n for n in names if n != peer), "")
            destination = peer if peer != ANYBODY else next((n for n in names if n != own), "")
            if source and destination and (destination, source) not in pairs:
                pairs[source, destination] = None
        return [_Path(source, destination, plane) for source, destination in pairs]

    async def _open(self, path: _Path) -> None:
        body = {
            "source": path.source,
            "destination": path.destination,
            "plane": path.plane,
            "upstream": list(self._echo()),
        }
        proxy = self._proxy()
        if proxy is None:
            raise HeadgateError("the testbed was created without a proxy")
        answer = await self._call("PUT", "/v1/routes", body)
        path.address = (proxy[0], int(answer["port"]))
        path.probe = await ProbeConnection.open(path.address, timeout_s=BEFORE_LIMIT_S)

    async def _observe_path(self, request: FaultRequest, path: _Path, stop: asyncio.Event) -> Measurement:
        assert path.probe is not None
        if not path.before:
            return Measurement(
                False, {}, f"{path.name} did not answer before the fault, so its effect cannot be measured"
            )
        match request.fault.kind:
            case "network.latency":
                return await _observe_latency(rule_of(request), path, path.probe, stop)
            case "network.bandwidth":
                return await self._observe_bandwidth(rule_of(request), path, stop)
            case "network.reset":
                return await _observe_reset(path.probe, stop)
            case _:
                return await _observe_silence(request.fault, path.probe, stop)

    async def _observe_bandwidth(self, rule: Rule, path: _Path, stop: asyncio.Event) -> Measurement:
        probe = await ProbeConnection.open(path.address, timeout_s=QUIET_S)
        size = max(2_048, int(rule.number("bytes_per_s") * BULK_S))
        seconds = await _unless(stop, probe.bulk(size, timeout_s=BULK_S * 20))
        probe.close()
        if not seconds:
            return Measurement(
                False, {"asked_bytes_per_s": rule.number("bytes_per_s")}, "no throughput was measured"
            )
        rate = size / seconds
        ok = rate <= rule.number("bytes_per_s") * 1.25
        values = {"asked_bytes_per_s": rule.number("bytes_per_s"), "measured_bytes_per_s": round(rate, 1)}
        return Measurement(ok, values, "" if ok else "the ceiling had no effect")

    async def _check_path(self, path: _Path) -> dict[str, Any]:
        """Measure the best of some round trips, which has the least noise from other load."""
        probe = await ProbeConnection.open(path.address, timeout_s=AFTER_LIMIT_S)
        after = await probe.round_trips(PINGS, timeout_s=AFTER_LIMIT_S)
        probe.close()
        if not after:
            return {"round_trip_s": None, "error": probe.error or "no answer"}
        before = min(path.before, default=min(after))
        return {"round_trip_s": round(min(after), 6), "added_s": round(min(after) - before, 6)}

    async def _call(self, method: str, path: str, body: Any = None) -> Mapping[str, Any]:
        proxy = self._proxy()
        if proxy is None:
            raise Unreachable("the testbed was created without a proxy")
        return await self._control.call(method, proxy, path, body)


def _is_hit(path: _Path, rules: Sequence[Mapping[str, Any]]) -> bool:
    ways = ((path.source, path.destination), (path.destination, path.source))
    return any(
        path.plane in rule["planes"] and any_matches([(f[0], f[1]) for f in rule["flows"]], *way)
        for rule in rules
        for way in ways
    )


def expected_delay(rule: Rule, source: str, destination: str, *, jitter: bool = False) -> float:
    """Return how much longer a round trip between the two takes; with `jitter`, at least."""
    ways = sum(any_matches(rule.flows, *way) for way in ((source, destination), (destination, source)))
    return ways * (rule.number("latency_s") - (rule.number("jitter_s") if jitter else 0.0))


async def _observe_latency(
    rule: Rule, path: _Path, probe: ProbeConnection, stop: asyncio.Event
) -> Measurement:
    expected = expected_delay(rule, path.source, path.destination)
    least = expected_delay(rule, path.source, path.destination, jitter=True)
    loop = asyncio.get_running_loop()
    found: list[float] = []
    while len(found) < PINGS:
        seconds = await _unless(stop, probe.answer(probe.ping(), timeout_s=expected * 4 + QUIET_S))
        if seconds is None or loop.time() >= rule.deadline:  # released early: shorter than the delay
            break
        found.append(seconds)
    return latency_seen(found, path.before, expected=expected, least=least)


def latency_seen(
    found: Sequence[float], before: Sequence[float], *, expected: float, least: float
) -> Measurement:
    """Judge a latency by round trips during and before the fault, in seconds.

    The values are medians; the verdict compares the best of each, which has the least noise from other load."""
    usual = median(before) if before else 0.0
    added = median(found) - usual if found else 0.0
    surely = min(found) - min(before, default=0.0) if found else 0.0
    ok = bool(found) and expected > 0 and surely >= SEEN_SHARE * least
    values = {
        "asked_round_trip_s": round(expected, 6),
        "added_round_trip_s": round(added, 6),
        "before_s": round(usual, 6),
        "probes": len(found),
    }
    return Measurement(ok, values, "" if ok else "round trips did not become as much longer as requested")


async def _observe_silence(fault: Fault, probe: ProbeConnection, stop: asyncio.Event) -> Measurement:
    """Partition, stall, half-open: a ping stays unanswered and the connection is not closed."""
    quiet = min(QUIET_S, fault.duration_s / 2)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    seconds = await _unless(stop, probe.answer(probe.ping(), timeout_s=quiet))
    silent_for = loop.time() - begin
    values = {
        "silent_for_s": round(silent_for, 6),
        "answered_after_s": seconds,
        "connection": probe.error or "open",
    }
    if seconds is not None:
        return Measurement(False, values, "a probe was answered")
    if probe.error:
        return Measurement(False, values, f"the probe's connection was {probe.error}")
    ok = silent_for >= quiet * SEEN_SHARE
    return Measurement(ok, values, "" if ok else "the fault ended before it could be measured")


async def _observe_reset(probe: ProbeConnection, stop: asyncio.Event) -> Measurement:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await _unless(stop, probe.closed(timeout_s=QUIET_S))
    ok = probe.error == "reset"
    values = {"connection": probe.error or "open", "after_s": round(loop.time() - begin, 6)}
    return Measurement(ok, values, "" if ok else "the probe's connection was not reset")


async def _unless(stop: asyncio.Event, measuring: Coroutine[Any, Any, T]) -> T | None:
    """Return the measurement's result, or None when `stop` is set first."""
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
