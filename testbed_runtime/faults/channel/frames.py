"""Frame faults of this process: delay, drop, withhold credit. A ports.interception.FrameInterceptor.

Order: everything of one channel that goes over one link passes in its order, so a delayed buffer delays what is behind it in its own
channel and nothing else. Withheld credits are the exception, since credits commute with the other frames of a channel; they are given
back when their channel is cancelled. Timers exist only while something is held.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from testbed_runtime.core.exchange.frames import AddCredit, CancelPartitionRequest, CloseRequest, Frame
from testbed_runtime.core.faults.frame_classes import channel_of, frame_class
from testbed_runtime.faults.links import any_matches, split_link
from testbed_runtime.faults.rules import ChannelRule

FRAME_KINDS = ("frames.delay", "frames.drop", "frames.withhold-credit")


@dataclass(slots=True)
class _Held:
    due: float
    rule: str
    """Empty: only waits for those ahead of it."""
    forward: Callable[[], None]


@dataclass(slots=True)
class _Withheld:
    channel: bytes
    forward: Callable[[], None]
    drop: Callable[[], None]


@dataclass(slots=True)
class FrameCounters:
    """Of one rule."""

    matched: int = 0
    delayed: int = 0
    dropped: int = 0
    withheld: int = 0
    released: int = 0
    forwarded: int = 0


@dataclass(slots=True)
class _Active:
    rule: ChannelRule
    random: Random
    counters: FrameCounters = field(default_factory=FrameCounters)
    withheld: list[_Withheld] = field(default_factory=list)


class FrameFaults:
    """`add` and `remove` rules; `outgoing` is what the pump calls. Forwarding of what is held happens on the loop."""

    def __init__(self) -> None:
        self._rules: dict[str, _Active] = {}
        self._queues: dict[tuple[str, bytes], deque[_Held]] = {}
        self._timers: dict[tuple[str, bytes], asyncio.TimerHandle] = {}

    @property
    def active(self) -> bool:
        return bool(self._rules or self._queues)

    def add(self, rule: ChannelRule) -> None:
        self._rules[rule.rule_id] = _Active(rule, Random(rule.seed))  # noqa: S311 - seeded on purpose

    def remove(self, rule_id: str) -> FrameCounters | None:
        """What the rule holds goes out now, in order."""
        active = self._rules.pop(rule_id, None)
        if active is None:
            return None
        for held in active.withheld:
            active.counters.released += 1
            held.forward()
        active.withheld.clear()
        now = asyncio.get_running_loop().time()
        for key in list(self._queues):
            for waiting in self._queues[key]:
                if waiting.rule == rule_id:
                    waiting.due = now
            self._pump(key)
        return active.counters

    def counters(self, rule_id: str) -> FrameCounters | None:
        active = self._rules.get(rule_id)
        return active.counters if active else None

    def held(self) -> int:
        """Frames that wait here now."""
        return sum(map(len, self._queues.values())) + sum(len(a.withheld) for a in self._rules.values())

    # ---- FrameInterceptor

    def outgoing(
        self, link: str, frame: Frame, forward: Callable[[], None], drop: Callable[[], None]
    ) -> None:
        source, destination = split_link(link)
        klass, channel = frame_class(frame), channel_of(frame)
        if isinstance(frame, CancelPartitionRequest | CloseRequest):
            self._give_back_credits(channel)
        delay, rule_id = 0.0, ""
        for active in self._rules.values():
            rule = active.rule
            if not _concerns(rule, frame, klass) or not any_matches(rule.flows, source, destination):
                continue
            active.counters.matched += 1
            if rule.kind == "frames.withhold-credit":
                active.counters.withheld += 1
                active.withheld.append(_Withheld(channel, forward, drop))
                return
            if rule.kind == "frames.drop":
                if active.random.random() * 100 < rule.percent:
                    active.counters.dropped += 1
                    drop()
                    return
                active.counters.forwarded += 1
            elif rule.delay_s > delay:
                delay, rule_id = rule.delay_s, rule.rule_id
                active.counters.delayed += 1
        self._enqueue((link, channel), _Held(asyncio.get_running_loop().time() + delay, rule_id, forward))

    def _enqueue(self, key: tuple[str, bytes], held: _Held) -> None:
        queue = self._queues.get(key)
        if queue is None and not held.rule:
            held.forward()
            return
        if queue is None:
            queue = self._queues[key] = deque()
        queue.append(held)
        if len(queue) == 1:
            self._arm(key)

    def _arm(self, key: tuple[str, bytes]) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()  # forwarding queued another frame of the same channel
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_at(self._queues[key][0].due, self._pump, key)

    def _pump(self, key: tuple[str, bytes]) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        queue = self._queues.get(key)
        if queue is None:
            return
        now = asyncio.get_running_loop().time()
        while queue and queue[0].due <= now:
            held = queue.popleft()
            active = self._rules.get(held.rule)
            if active is not None:
                active.counters.released += 1
            held.forward()
        if queue:
            self._arm(key)
        else:
            self._queues.pop(key, None)

    def _give_back_credits(self, channel: bytes) -> None:
        """The channel (empty: the connection) ends: a credit after that would be for nobody."""
        for active in self._rules.values():
            for held in active.withheld:
                if channel in (b"", held.channel):
                    held.drop()
            active.withheld = [h for h in active.withheld if channel not in (b"", h.channel)]


def _concerns(rule: ChannelRule, frame: Frame, klass: str) -> bool:
    if rule.kind == "frames.withhold-credit":
        return isinstance(frame, AddCredit)
    return rule.frame_class == klass
