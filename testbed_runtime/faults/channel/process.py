"""The holder of the channel backend's rules: one `ChannelFaults` in each process, and the HTTP routes by which the agent reaches it.

Each rule has its own absolute deadline here, so a fault ends even when the supervisor is gone. Nothing runs while no rule is active.
The process mounts the routes on its RPC server, which checks the bearer token:

PUT /v1/channel/rules/{id} (a Rule) · DELETE the same · GET /v1/channel (state) ·
GET /v1/channel/rules/{id} (counters) · GET /v1/channel/sightings?class=… (of the effect tap)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.backend import Rule
from testbed_runtime.faults.channel.calls import (
    CALL_KINDS,
    REGISTRATION_KINDS,
    STORE_KINDS,
    CallCounters,
    CallFaults,
    FaultyStore,
    RegistrationFaults,
    Rules,
)
from testbed_runtime.faults.channel.frames import FRAME_KINDS, EffectTap, FrameFaults
from testbed_runtime.ports.interception import FrameSampler, Interception
from testbed_runtime.ports.storage import BlobStore

if TYPE_CHECKING:
    from aiohttp import web

BASE = "/v1/channel"
MEASURE = "measure"
"""The kind of a rule that is not a fault: the process keeps sightings of frames while this rule lasts."""
MAX_RULES = 64
"""Maximum rules that one process holds at the same time. A scenario has only a few."""
MAX_REMEMBERED = 64
"""Maximum ended rules whose final counters are kept for the measurement after the fault."""


class ChannelFaults:
    """The channel backend of one process. A process entry or the simulation wires it:

    * TaskManager: `interception=faults.interception(sampler)`
    * Rpc: `interceptor=faults.calls`
    * BlobStore: `blobs = faults.store(blobs)`
    * control: `rpc.add_routes(routes(faults))`
    """

    def __init__(self, process: str) -> None:
        self.process = process
        self.frames = FrameFaults()
        self.calls = CallFaults()
        self.registration = RegistrationFaults()
        self.effects = EffectTap()
        self._stores = Rules()
        self._parts: dict[str, FrameFaults | Rules] = {
            **dict.fromkeys(FRAME_KINDS, self.frames),
            **dict.fromkeys(CALL_KINDS, self.calls),
            **dict.fromkeys(REGISTRATION_KINDS, self.registration),
            **dict.fromkeys(STORE_KINDS, self._stores),
            MEASURE: Rules(),
        }
        """The holder of the rules of each kind."""
        self._rules: dict[str, Rule] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ended: dict[str, CallCounters] = {}

    def interception(self, sampler: FrameSampler | None = None) -> Interception:
        """Return the hooks of a TaskManager. The tap offers every frame to `sampler`."""
        self.effects = EffectTap(sampler)
        return Interception(self.frames, self.effects, self.registration)

    def store(self, inner: BlobStore) -> BlobStore:
        return FaultyStore(inner, self._stores)

    def apply(self, rule: Rule) -> None:
        """Start a rule that lasts until its deadline; a rule with the same id is replaced. Raises UserError for an unsupported kind."""
        if len(self._rules) >= MAX_RULES and rule.rule_id not in self._rules:
            raise UserError("fault", f"{self.process} already holds {MAX_RULES} faults", "heal some first")
        loop = asyncio.get_running_loop()
        before = self._rules.get(rule.rule_id)
        # another target restarted, and every target gets the fault again: held calls stay held
        again = (
            before is not None
            and rule.deadline > loop.time()
            and replace(before, deadline=rule.deadline) == rule
        )
        if again:
            self._timers.pop(rule.rule_id).cancel()
        else:
            self.remove(rule.rule_id)
            if rule.deadline <= loop.time():
                return
            self._part(rule.kind).add(rule)
        self._rules[rule.rule_id] = rule
        self._timers[rule.rule_id] = loop.call_at(rule.deadline, self.remove, rule.rule_id)
        if rule.kind == MEASURE and not again:
            self.effects.start()

    def remove(self, rule_id: str) -> None:
        """Heal: everything that is held continues at once. Harmless when no rule has this id."""
        rule = self._rules.pop(rule_id, None)
        if rule is None:
            return
        self._timers.pop(rule_id).cancel()
        part = self._part(rule.kind)
        if isinstance(part, FrameFaults):
            part.remove(rule_id)
        elif (counters := part.remove(rule_id)) is not None:
            self._ended[rule_id] = counters
        if len(self._ended) > MAX_REMEMBERED:
            self._ended.pop(next(iter(self._ended)))
        if rule.kind == MEASURE:
            self.effects.stop()

    def remove_all(self) -> None:
        for rule_id in list(self._rules):
            self.remove(rule_id)

    def counters(self, rule_id: str) -> dict[str, Any] | None:
        """Return the counters of an active or recently ended rule. None for a frame fault, which the taps at both ends measure."""
        counters = self._ended.get(rule_id)
        if (rule := self._rules.get(rule_id)) is not None:
            part = self._part(rule.kind)
            counters = None if isinstance(part, FrameFaults) else part.counters(rule_id)
        return to_builtins(counters) if counters is not None else None

    def state(self) -> dict[str, Any]:
        """Return `{"active": {rule id: {"kind", "counters"}}, "held": frames}`, for the control endpoint and the residue."""
        active = {
            rule_id: {"kind": rule.kind, "counters": self.counters(rule_id)}
            for rule_id, rule in self._rules.items()
            if rule.kind != MEASURE
        }
        return {"active": active, "held": self.frames.held()}

    def _part(self, kind: str) -> FrameFaults | Rules:
        if kind not in self._parts:
            problem = f"{kind} is not a fault kind of the channel backend"
            raise UserError("kind", problem, "see `headgate faults`")
        return self._parts[kind]

    def handle(self, method: str, path: str, query: Mapping[str, str], body: Any = None) -> dict[str, Any]:
        """Answer a call to the control endpoint; `path` is below BASE. Raises UserError, msgspec.ValidationError or KeyError."""
        rule_id, is_rule = path.removeprefix("/rules/"), path.startswith("/rules/")
        match method, path:
            case "PUT", _ if is_rule:
                self.apply(msgspec.convert(body, type=Rule))
                return {"now": asyncio.get_running_loop().time()}
            case "DELETE", _ if is_rule:
                self.remove(rule_id)
                return {"counters": self.counters(rule_id)}
            case "GET", _ if is_rule:
                return {"counters": self.counters(rule_id)}
            case "GET", "/sightings":
                return {"sightings": self.effects.sightings(query.get("class", ""))}
            case "GET", "":
                return self.state()
        raise KeyError(f"{method} {BASE}{path}")


def routes(faults: ChannelFaults) -> list[web.RouteDef]:
    """Return the routes for `rpc_http`'s `add_routes`."""
    from aiohttp import web

    async def handle(request: web.Request) -> web.Response:
        path = request.path.removeprefix(BASE)
        try:
            body = await request.json(loads=msgspec.json.decode) if request.method == "PUT" else None
            return web.json_response(faults.handle(request.method, path, request.query, body))
        except (msgspec.MsgspecError, UserError) as error:
            return web.json_response({"error": str(error)}, status=400)
        except KeyError as error:
            return web.json_response({"error": str(error)}, status=404)

    return [web.route("*", BASE + "{path:.*}", handle)]
