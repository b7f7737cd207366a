"""The agent's side of the proxy backend: rules at the proxy, and separate probes through it (before, during, after)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from msgspec import to_builtins

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.faults.links import ANYBODY, flows_of, owners_of
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.faults.backend import (
    FaultRequest,
    Measurement,
    Peers,
    Rule,
    Unreachable,
    combined,
    planes_of,
    rule_of,
)
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.faults.probes import ProbeConnection
from testbed_runtime.faults.proxy.observe import (
    AFTER_LIMIT_S,
    CLEAN_S,
    MAX_PROBED_PATHS,
    PINGS,
    QUIET_S,
    ActiveRules,
    Path,
    expected_delay,
    free_first,
    observe_path,
    sent_again,
    settled_after,
)
from testbed_runtime.ports.network import Address

BEFORE_LIMIT_S = 1.0


@dataclass(slots=True)
class _Path(Path):
    address: Address = ("", 0)
    probe: ProbeConnection = field(default_factory=ProbeConnection)


class ProxyBackend:
    """`proxy` returns the control address of the running proxy (None without one), `echo` that of the supervisor's echo."""

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
        self._rules = ActiveRules()

    async def prepare(self, request: FaultRequest) -> None:
        paths = self._choose_paths(request)
        self._paths[request.fault_id] = paths
        # all at once: one after the other, several paths that do not answer would take longer than the agent waits
        await asyncio.gather(*(self._open(path) for path in paths))

    async def apply(self, request: FaultRequest) -> float:
        rule = rule_of(request)
        # before the call, so that no other fault considers the path free meanwhile
        self._rules.add(request.rule_id, rule)
        answer = await self._call("PUT", f"/v1/rules/{request.rule_id}", to_builtins(rule))
        return float(answer["now"])

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        paths = self._paths.get(request.fault_id, [])
        rule = rule_of(request)
        found = await asyncio.gather(*(self._observe(rule, request, path, stop) for path in paths))
        return combined([path.name for path in paths], found)

    async def _observe(
        self, rule: Rule, request: FaultRequest, path: _Path, stop: asyncio.Event
    ) -> Measurement:
        fault, alone = request.fault, partial(self._alone, path, request.rule_id)
        if fault.kind != "network.bandwidth":
            return await observe_path(rule, fault, path, path.probe, stop, alone=alone)
        probe = await ProbeConnection.open(path.address, timeout_s=QUIET_S)  # no ping may be pending on it
        try:
            return await observe_path(rule, fault, path, probe, stop)
        finally:
            probe.close()

    async def _alone(self, path: _Path, rule_id: str) -> ProbeConnection:
        """Wait until no other fault is active on the path. Return a new probe of the path."""
        await self._rules.alone(path, rule_id)
        path.probe.close()
        path.probe = await ProbeConnection.open(path.address, timeout_s=QUIET_S)
        return path.probe

    async def remove(self, request: FaultRequest) -> None:
        try:
            await self._call("DELETE", f"/v1/rules/{request.rule_id}")
        except HeadgateError:  # the proxy, if there is one, ends the rule at its deadline
            asyncio.get_running_loop().call_at(request.deadline, self._rules.remove, request.rule_id)
            raise
        self._rules.remove(request.rule_id)

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
            others = [
                msgspec.convert(r, Rule) for name, r in state["rules"].items() if name != request.rule_id
            ]
            for path in paths:
                if path.is_hit(others):
                    values[path.name] = {"not_probed": "another fault is active on this path"}
                    continue
                limit = max(CLEAN_S, expected_delay(rule, path) / 2)
                clean, values[path.name] = await settled_after(path, partial(self._after, path), limit)
                if not clean:
                    left.append(path.name)
        except Unreachable:
            return Measurement(True, values, "the proxy is gone, and its rules with it")
        finally:
            for path in paths:
                path.probe.close()
        late = state["sent_again_s"] if KINDS[rule.kind].loses else 0.0
        measured = {"paths": values, **sent_again(late)}
        return Measurement(not left, measured, f"not as before: {', '.join(left)}" if left else "")

    async def residue(self) -> Mapping[str, Any]:
        try:
            state = await self._call("GET", "/v1/state")
        except Unreachable:
            return {}
        found = {key: state[key] for key in ("rules", "held_bytes", "shaped_connections") if state[key]}
        return {"proxy": found} if found else {}

    # ---- one path

    def _choose_paths(self, request: FaultRequest) -> list[_Path]:
        planes = planes_of(request.fault)
        paths = [p for plane in planes for p in free_first(self._paths_of(request, plane), self._rules)]
        return paths[:MAX_PROBED_PATHS]

    def _paths_of(self, request: FaultRequest, plane: str) -> list[_Path]:
        # if the fault hits the connections to every process, take a peer that is no target and communicates on the plane
        hit = owners_of(request.targets)
        names = sorted(self._peers.names(), key=lambda n: (n in hit, (n == JOBMANAGER) != (plane == "rpc")))
        pairs: dict[tuple[str, str], None] = {}
        # probe a half-open connection from the end that stays
        direction = "to" if request.fault.kind == "network.half-open" else request.fault.direction
        for own, peer in flows_of(request.targets, direction):
            source = own if own != ANYBODY else next((n for n in names if n != peer), "")
            destination = peer if peer != ANYBODY else next((n for n in names if n != own), "")
            if source and destination and (destination, source) not in pairs:
                pairs[source, destination] = None
        return [_Path(source, destination, plane) for source, destination in pairs]

    async def _open(self, path: _Path) -> None:
        """Connect a probe and measure round trips before the fault."""
        body = {
            "source": path.source,
            "destination": path.destination,
            "plane": path.plane,
            "upstream": list(self._echo()),
        }
        answer = await self._call("PUT", "/v1/routes", body)
        path.address = (self._address()[0], int(answer["port"]))
        path.probe = await ProbeConnection.open(path.address, timeout_s=BEFORE_LIMIT_S)
        path.before = await path.probe.round_trips(PINGS, timeout_s=BEFORE_LIMIT_S)

    async def _after(self, path: _Path) -> list[float]:
        probe = await ProbeConnection.open(path.address, timeout_s=AFTER_LIMIT_S)
        try:
            return await probe.round_trips(PINGS, timeout_s=AFTER_LIMIT_S)
        finally:
            probe.close()

    async def _call(self, method: str, path: str, body: Any = None) -> Mapping[str, Any]:
        return await self._control.call(method, self._address(), path, body)

    def _address(self) -> Address:
        if (proxy := self._proxy()) is None:
            raise Unreachable("the testbed was created without a proxy")
        return proxy
