"""The agent's side of the channel backend: rules for the processes concerned, effects from their taps and counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.links import ANYBODY, any_matches, flows_of, owners_of, split_link
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.faults.backend import (
    SEEN_SHARE,
    Control,
    FaultRequest,
    Measurement,
    Peers,
    Rule,
    Unreachable,
    require_running,
    rule_of,
    stopped_within,
)
from testbed_runtime.faults.channel.frames import FRAME_KINDS, MAX_ANSWERED, WITHHOLD
from testbed_runtime.faults.channel.process import BASE, MEASURE
from testbed_runtime.ports.network import Address

POLL_S = 0.1
SETTLED_S = 0.3
"""A frame counts as missing if it was sent this long ago and has not been received."""


class ChannelBackend:
    """Frame faults have rules at the senders and are measured at both ends. Other faults have rules at the targets, whose counters
    measure them."""

    def __init__(
        self, control: Control, peers: Peers, *, own: Callable[[], Sequence[str]] | None = None
    ) -> None:
        """`own` names the processes whose residue is measured here; None: all of them."""
        self._own = own or peers.names
        self._control = control
        self._peers = peers

    async def prepare(self, request: FaultRequest) -> None:
        holders = self._holders(request)
        if not holders:
            raise HeadgateError(f"{request.fault.kind}: no process is running")
        paused = set(request.paused).intersection(self._named(request))
        require_running(n for n in holders if n in paused or self._peers.control(n) is None)

    async def apply(self, request: FaultRequest) -> float:
        rule = channel_rule(request)
        if request.fault.kind in FRAME_KINDS:
            watch = replace(rule, rule_id=_watch_id(request), kind=MEASURE)
            await self._call_each(
                self._witnesses(request), "PUT", f"/rules/{watch.rule_id}", to_builtins(watch)
            )
        answers = await self._call_each(
            self._holders(request), "PUT", f"/rules/{rule.rule_id}", to_builtins(rule)
        )
        missing = [name for name in self._named(request) if name not in answers]
        if missing or not answers:
            raise Unreachable(f"{', '.join(missing) or 'no process'} does not answer")
        return min(float(answer["now"]) for answer in answers.values())

    async def observe(self, request: FaultRequest, stop: asyncio.Event) -> Measurement:
        before: Mapping[str, Mapping[str, Any]] = {}
        while True:
            stopped = stop.is_set()
            if request.fault.kind in FRAME_KINDS:
                found = await self._measure_frames(request)
            else:
                early = stopped and asyncio.get_running_loop().time() < request.deadline - POLL_S
                counters = await self._counters(request)
                found = judge_calls(request.fault, counters, before=before, stopped=stopped, early=early)
                before = {**before, **counters}
            if found.ok or stopped:
                return found
            await stopped_within(stop, POLL_S)

    async def remove(self, request: FaultRequest) -> None:
        """Remove the rules. A process that has ended has none; a paused process ends them at their deadline."""
        names = [n for n in self._holders(request) if self._peers.control(n) is not None]
        await self._call_each(names, "DELETE", f"/rules/{request.rule_id}")
        if request.fault.kind in FRAME_KINDS:
            await self._call_each(self._witnesses(request), "DELETE", f"/rules/{_watch_id(request)}")

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

    # ---- processes

    def _holders(self, request: FaultRequest) -> list[str]:
        """Return the processes that hold the rule: senders of the frames, the JobManager for answers to its heartbeats, else the targets."""
        if request.fault.kind == "heartbeats.mute" and request.fault.params.get("direction") == "response":
            return [JOBMANAGER]
        if request.fault.kind not in FRAME_KINDS:
            return list(owners_of(request.targets))
        return self._ends(flows_of(request.targets, request.fault.direction), 0)

    def _named(self, request: FaultRequest) -> list[str]:
        """Return the holders that the fault names. They must be running; other holders may be missing."""
        if request.fault.kind not in FRAME_KINDS:
            return self._holders(request)
        flows = flows_of(request.targets, request.fault.direction)
        return [flow[0] for flow in flows if flow[0] != ANYBODY]

    def _witnesses(self, request: FaultRequest) -> list[str]:
        """Return the processes whose taps are read: both ends."""
        flows = flows_of(request.targets, request.fault.direction)
        return list(dict.fromkeys([*self._ends(flows, 0), *self._ends(flows, 1)]))

    def _ends(self, flows: Sequence[tuple[str, str]], side: int) -> list[str]:
        found: dict[str, None] = {}
        for flow in flows:
            if flow[side] != ANYBODY:
                found[flow[side]] = None
                continue
            for name in self._peers.names():
                if name not in (JOBMANAGER, flow[1 - side]):
                    found[name] = None
        return list(found)

    # ---- measuring

    async def _counters(self, request: FaultRequest) -> dict[str, dict[str, Any]]:
        answers = await self._call_each(self._holders(request), "GET", f"/rules/{request.rule_id}")
        return {name: dict(a["counters"]) for name, a in answers.items() if a.get("counters")}

    async def _measure_frames(self, request: FaultRequest) -> Measurement:
        rule = channel_rule(request)
        klass = "credit" if rule.kind == WITHHOLD else str(rule.params["frame_class"])
        answers = await self._call_each(self._witnesses(request), "GET", f"/sightings?class={klass}")
        seen = [answer["sightings"] for answer in answers.values()]
        # a full answer lacks the oldest sightings: frames sent before its first sighting cannot be matched
        horizon = max((s[0][5] for s in seen if len(s) >= MAX_ANSWERED), default=0.0)
        sightings = [s for part in seen for s in part if any_matches(rule.flows, *split_link(s[1]))]
        return judge_frames(rule, sightings, asyncio.get_running_loop().time(), horizon=horizon)

    # ---- calls

    async def _states(self, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        return await self._call_each([n for n in names if self._peers.control(n)], "GET", "")

    async def _call_each(
        self, names: Sequence[str], method: str, path: str, body: Any = None
    ) -> dict[str, Mapping[str, Any]]:
        """Return the answers by name. A process that does not answer is left out."""

        async def ask(address: Address) -> Mapping[str, Any] | None:
            try:
                return await self._control.call(method, address, BASE + path, body)
            except Unreachable:
                return None

        known = {name: address for name in names if (address := self._peers.control(name)) is not None}
        answers = await asyncio.gather(*map(ask, known.values()))
        return {name: answer for name, answer in zip(known, answers, strict=True) if answer is not None}


def _watch_id(request: FaultRequest) -> str:
    return request.rule_id + ".watch"


def channel_rule(request: FaultRequest) -> Rule:
    """Return the rule of a fault. A registration fault on `target.running` delays only the partitions of that vertex."""
    rule = rule_of(request)
    match rule.kind:
        case "heartbeats.mute":
            senders = [ANYBODY if name == JOBMANAGER else name for name in owners_of(request.targets)]
            return replace(rule, flows=tuple((name, ANYBODY) for name in senders))
        case "registration.delay":
            vertex = rule.params.get("vertex") or request.fault.target.running
            return replace(rule, params={**rule.params, "vertex": vertex})
    return rule


def judge_calls(
    fault: Fault,
    counters: Mapping[str, Mapping[str, Any]],
    *,
    before: Mapping[str, Mapping[str, Any]],
    stopped: bool,
    early: bool,
) -> Measurement:
    """Judge by the numbers of calls that each process dropped, delayed or refused, now and in the query `before`. Pure.

    `stopped`: the fault is ending. A call that is still held then counts as an effect only if the fault ends `early`, before its own
    duration is over."""
    asked_s = float(fault.params.get("delay_s") or 0.0)
    values: dict[str, Any] = {"counters": dict(counters)}
    if any(took_effect(fault.kind, own, asked_s) for own in counters.values()):
        return Measurement(True, values)
    if early and any(own["holding"] for own in counters.values()):
        return Measurement(True, values, "was still held when the fault was ended early")
    # a process that does not answer may answer again before the fault ends
    if any(_ended_holding(own, counters.get(name), silent=stopped) for name, own in before.items()):
        values["counters"] = {**before, **counters}
        return Measurement(True, values, "was held until its process ended")
    longest_s = max((own["longest_s"] for own in counters.values()), default=0.0)
    if not any(own["delayed"] for own in counters.values()):
        return Measurement(False, values, "nothing arrived that this fault could affect")
    requested = f"{asked_s:g} s" if asked_s else f"{fault.params.get('attempts')} requests"
    why = "" if 0 < asked_s <= fault.duration_s else f"it lasts {fault.duration_s:g} s, so "
    problem = f"{why}the longest delay was {longest_s:.3g} s instead of {requested}"
    return Measurement(False, values, problem)


def _ended_holding(before: Mapping[str, Any], now: Mapping[str, Any] | None, *, silent: bool) -> bool:
    """Return whether a process held a call and has ended since. Its counters have started again then, or it does not answer, which counts
    as its end only if `silent`."""
    return bool(before["holding"]) and (silent if now is None else now["delayed"] < before["delayed"])


def took_effect(kind: str, counters: Mapping[str, Any], asked_s: float) -> bool:
    """Whether a rule's counters show the requested effect."""
    if kind == "heartbeats.mute":
        return bool(counters["swallowed"] > 0)
    if kind == "store.failing":
        return bool(counters["failed"] > 0)
    if counters["given_up"] > 0:
        return True  # a task, a checkpoint or a job that ends before the delay does is an effect too
    if kind == "registration.delay" and not asked_s:
        return bool(counters["delayed"] > counters["holding"] + counters["cut_short"])
    return bool(counters["longest_s"] >= SEEN_SHARE * asked_s > 0)


def judge_frames(
    rule: Rule, sightings: Sequence[Sequence[Any]], now: float, *, horizon: float = 0.0
) -> Measurement:
    """Match frames sent (since `horizon`) and received by channel and number, and judge delays and missing frames. Pure."""
    sent = {(s[3], s[2], s[4]): s[5] for s in sightings if s[0] == "sent" and s[5] >= horizon}
    received = {(s[3], s[2], s[4]): s[5] for s in sightings if s[0] == "received"}
    delays = [received[key] - sent[key] for key in sent if key in received]
    missing = sum(1 for key, when in sent.items() if key not in received and when < now - SETTLED_S)
    settled = sum(1 for when in sent.values() if when < now - SETTLED_S)
    values: dict[str, Any] = {"sent": len(sent), "received": len(delays), "missing": missing}
    if delays:
        values["delay_median_s"] = round(median(delays), 6)
    judges: dict[str, Callable[[], bool]] = {
        "frames.delay": lambda: bool(delays) and median(delays) >= SEEN_SHARE * rule.number("delay_s"),
        "frames.drop": lambda: missing > 0 and missing >= settled * rule.number("percent", 100.0) / 100 / 2,
        WITHHOLD: lambda: missing > 0,
    }
    ok = judges[rule.kind]()
    text = "" if ok else "the taps of both ends do not show the effect"
    if not ok and rule.kind == "frames.delay" and missing and not delays:
        waited_s = now - min(when for key, when in sent.items() if key not in received)
        asked_s = rule.number("delay_s")
        if waited_s < asked_s:
            text = f"it ended after it had held frames for {waited_s:.3g} s instead of {asked_s:g} s"
    return Measurement(ok, values, text)
