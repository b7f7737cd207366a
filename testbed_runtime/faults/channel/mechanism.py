"""The supervisor's side of the `channel` backend: rules to the processes concerned, effects from their taps and counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.faults.channel.frames import FRAME_KINDS
from testbed_runtime.faults.channel.tap import MAX_TOLD
from testbed_runtime.faults.http import Unreachable
from testbed_runtime.faults.links import ANYBODY, any_matches, flows_of, owners_of, split_link
from testbed_runtime.faults.mechanism import (
    Control,
    FaultRequest,
    Measurement,
    Neighbourhood,
    stopped_within,
)
from testbed_runtime.faults.rules import MEASURE, ChannelRule
from testbed_runtime.ports.network import Address

POLL_S = 0.1
JOBMANAGER = "jobmanager"
SETTLED_S = 0.3
"""A frame that was sent this long ago and has not been received is missing."""
SEEN_SHARE = 0.8


class ChannelBackend:
    """Frames: rules at the senders, measured at both ends. Everything else: rules at the targets, measured by their counters."""

    def __init__(
        self, control: Control, people: Neighbourhood, *, own: Callable[[], Sequence[str]] | None = None
    ) -> None:
        """`own` names those whose residue is asked for here; None: everybody's."""
        self._own = own or people.names
        self._control = control
        self._people = people

    async def prepare(self, request: FaultRequest) -> None:
        missing = [name for name in self._holders(request) if self._people.control(name) is None]
        if missing or not self._holders(request):
            raise HeadgateError(f"{request.fault.kind}: {', '.join(missing) or 'nobody'} does not run")

    async def apply(self, request: FaultRequest) -> float:
        rule = rule_of(request)
        if request.fault.kind in FRAME_KINDS:
            watch = replace(rule, rule_id=_watch_id(request), kind=MEASURE)
            await self._everybody(
                self._witnesses(request), "PUT", f"/rules/{watch.rule_id}", asdict(watch), tolerant=True
            )
        answers = await self._everybody(
            self._holders(request), "PUT", f"/rules/{rule.rule_id}", asdict(rule), tolerant=True
        )
        missing = [name for name in self._named(request) if name not in answers]
        if missing or not answers:
            raise Unreachable(f"{', '.join(missing) or 'nobody'} does not answer")
        return min(float(answer["now"]) for answer in answers.values())

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        measure = self._measure_frames if request.fault.kind in FRAME_KINDS else self._measure_counters
        while True:
            found = await measure(request)
            if found.ok or stop.is_set():
                return found
            await stopped_within(stop, POLL_S)

    async def remove(self, request: FaultRequest) -> None:
        """A process that is gone took its rules with it; one that is paused ends them by its own deadline."""
        names = [n for n in self._holders(request) if self._people.control(n) is not None]
        await self._everybody(names, "DELETE", f"/rules/{request.rule_id}", tolerant=True)
        if request.fault.kind in FRAME_KINDS:
            await self._everybody(
                self._witnesses(request), "DELETE", f"/rules/{_watch_id(request)}", tolerant=True
            )

    async def check(self, request: FaultRequest) -> Measurement:
        states = await self._states(self._holders(request))
        left = [name for name, state in states.items() if request.rule_id in state["active"]]
        held = {
            name: state["held"] for name, state in states.items() if state["held"] and not state["active"]
        }
        counters = await self._counters(request)
        ok = not left and not held
        return Measurement(
            ok, {"counters": counters, "held": held}, "" if ok else f"left at {', '.join(left or held)}"
        )

    async def residue(self) -> Mapping[str, Any]:
        states = await self._states(self._own())
        found = {name: state["active"] for name, state in states.items() if state["active"]}
        held = {name: state["held"] for name, state in states.items() if state["held"]}
        return {key: value for key, value in (("channel", found), ("held_frames", held)) if value}

    # ---- who

    def _holders(self, request: FaultRequest) -> list[str]:
        """The processes in which the rule is: senders of the frames, the JobManager for answers to its heartbeats, else the targets."""
        if request.fault.kind == "heartbeats.mute" and request.fault.params.get("direction") == "response":
            return [JOBMANAGER]
        if request.fault.kind not in FRAME_KINDS:
            return list(owners_of(request.targets))
        return self._ends(flows_of(request.targets, request.fault.direction), 0)

    def _named(self, request: FaultRequest) -> list[str]:
        """The holders that the fault names itself; who only stands for anybody may be away."""
        if request.fault.kind not in FRAME_KINDS:
            return self._holders(request)
        flows = flows_of(request.targets, request.fault.direction)
        return [flow[0] for flow in flows if flow[0] != ANYBODY]

    def _witnesses(self, request: FaultRequest) -> list[str]:
        """The processes whose taps are read: both ends."""
        flows = flows_of(request.targets, request.fault.direction)
        return list(dict.fromkeys([*self._ends(flows, 0), *self._ends(flows, 1)]))

    def _ends(self, flows: Sequence[tuple[str, str]], side: int) -> list[str]:
        found: dict[str, None] = {}
        for flow in flows:
            if flow[side] != ANYBODY:
                found[flow[side]] = None
                continue
            for name in self._people.names():
                if name not in (JOBMANAGER, flow[1 - side]):
                    found[name] = None
        return list(found)

    # ---- measuring

    async def _measure_counters(self, request: FaultRequest) -> Measurement:
        """The interceptor's own count of what it swallowed, delayed or refused."""
        counters = await self._counters(request)
        asked = float(request.fault.params.get("delay_s") or 0.0)
        ok = any(took_effect(request.fault.kind, c, asked) for c in counters.values())
        return Measurement(ok, {"counters": counters}, "" if ok else "nothing came that this fault could hit")

    async def _counters(self, request: FaultRequest) -> dict[str, dict[str, Any]]:
        answers = await self._everybody(
            self._holders(request), "GET", f"/rules/{request.rule_id}", tolerant=True
        )
        return {name: dict(a["counters"]) for name, a in answers.items() if a.get("counters")}

    async def _measure_frames(self, request: FaultRequest) -> Measurement:
        rule = rule_of(request)
        klass = "credit" if rule.kind == "frames.withhold-credit" else rule.frame_class
        answers = await self._everybody(
            self._witnesses(request), "GET", f"/sightings?class={klass}", tolerant=True
        )
        told = [answer["sightings"] for answer in answers.values()]
        # a full answer begins in the middle: what was sent before it began cannot be matched
        horizon = max((t[0][5] for t in told if len(t) >= MAX_TOLD), default=0.0)
        sightings = [s for t in told for s in t if any_matches(rule.flows, *split_link(s[1]))]
        return judge_frames(rule, sightings, asyncio.get_running_loop().time(), horizon=horizon)

    # ---- calls

    async def _states(self, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        return await self._everybody([n for n in names if self._people.control(n)], "GET", "", tolerant=True)

    async def _everybody(
        self, names: Sequence[str], method: str, path: str, body: Any = None, *, tolerant: bool = False
    ) -> dict[str, Mapping[str, Any]]:
        """The answers by name. `tolerant`: who does not answer is left out."""

        async def ask(name: str, address: Address) -> Mapping[str, Any] | None:
            try:
                return await self._control.call(method, address, "/v1/channel" + path, body)
            except Unreachable:
                if not tolerant:
                    raise
                return None

        known = [(name, address) for name in names if (address := self._people.control(name)) is not None]
        answers = await asyncio.gather(*(ask(*k) for k in known))
        return {name: a for (name, _), a in zip(known, answers, strict=True) if a is not None}


def _watch_id(request: FaultRequest) -> str:
    return request.rule_id + ".watch"


def rule_of(request: FaultRequest) -> ChannelRule:
    """`target.running` of a registration fault names the vertex too: its partitions are late, nobody else's."""
    fault, params = request.fault, request.fault.params
    return ChannelRule(
        rule_id=request.rule_id,
        kind=fault.kind,
        deadline=request.deadline,
        flows=_flows(request),
        frame_class=str(params.get("frame_class", "")),
        delay_s=float(params.get("delay_s") or 0.0),
        percent=float(params.get("percent", 100.0)),
        direction=str(params.get("direction", "")),
        method=str(params.get("method", "")),
        attempts=int(params.get("attempts") or 0),
        vertex=str(
            params.get("vertex", "") or (fault.target.running if fault.kind == "registration.delay" else "")
        ),
        seed=request.seed,
    )


def _flows(request: FaultRequest) -> tuple[tuple[str, str], ...]:
    if request.fault.kind in FRAME_KINDS:
        return flows_of(request.targets, request.fault.direction)
    if request.fault.kind == "heartbeats.mute":
        return tuple((ANYBODY if n == JOBMANAGER else n, ANYBODY) for n in owners_of(request.targets))
    return ()


def took_effect(kind: str, counters: Mapping[str, Any], asked_s: float) -> bool:
    """Whether the counters of a rule of this kind show that it did what was asked."""
    if kind == "heartbeats.mute":
        return bool(counters["swallowed"] > 0)
    if kind == "store.failing":
        return bool(counters["failed"] > 0)
    if kind == "registration.delay" and (counters["holding"] > 0 or counters["given_up"] > 0):
        return True  # it is late; a job that does not live as long as the delay is what was asked for
    if kind == "registration.delay" and not asked_s:
        return bool(counters["delayed"] > 0)
    return bool(counters["delay_s"] >= SEEN_SHARE * asked_s > 0)


def judge_frames(
    rule: ChannelRule, sightings: Sequence[Sequence[Any]], now: float, *, horizon: float = 0.0
) -> Measurement:
    """Match what was sent (since `horizon`) with what was received, by channel and number: delays, what is missing. Pure."""
    sent = {(s[3], s[2], s[4]): s[5] for s in sightings if s[0] == "sent" and s[5] >= horizon}
    received = {(s[3], s[2], s[4]): s[5] for s in sightings if s[0] == "received"}
    delays = [received[key] - sent[key] for key in sent if key in received]
    missing = sum(1 for key, when in sent.items() if key not in received and when < now - SETTLED_S)
    settled = sum(1 for when in sent.values() if when < now - SETTLED_S)
    values: dict[str, Any] = {"sent": len(sent), "received": len(delays), "missing": missing}
    if delays:
        values["delay_median_s"] = round(median(delays), 6)
    judges: dict[str, Callable[[], bool]] = {
        "frames.delay": lambda: bool(delays) and median(delays) >= SEEN_SHARE * rule.delay_s,
        "frames.drop": lambda: missing > 0 and missing >= settled * rule.percent / 100 / 2,
        "frames.withhold-credit": lambda: missing > 0,
    }
    ok = judges[rule.kind]()
    return Measurement(ok, values, "" if ok else "the taps of both ends do not show the effect")
