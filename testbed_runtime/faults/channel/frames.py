"""Frame faults inside a process (delay, drop, withhold credit), and the tap that measures them.

`FrameFaults` is a ports.interception.FrameInterceptor. The frames of one channel on one link keep their order, so a delayed buffer delays
the later frames of its own channel and nothing else. Withheld credits are the exception, since credits commute with the other frames of a
channel; they are dropped when their channel is cancelled. Timers exist only while a frame is held.

`EffectTap` numbers frames as history.schema's `frames` does: the sequence number of a BufferResponse, else the count of the class on its
channel. It always counts (so that both ends agree) and keeps sightings only during a measurement.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from testbed_runtime.core.exchange.frames import (
    AddCredit,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    Frame,
)
from testbed_runtime.core.faults.frame_classes import channel_of, frame_class
from testbed_runtime.core.faults.links import any_matches, split_link
from testbed_runtime.faults.backend import Rule
from testbed_runtime.ports.interception import FrameSampler
from testbed_runtime.timeouts import Timer

WITHHOLD = "frames.withhold-credit"
FRAME_KINDS = ("frames.delay", "frames.drop", WITHHOLD)


@dataclass(slots=True)
class _Held:
    due: float
    rule: str
    """The rule that holds the frame. Empty: the frame only waits for the frames ahead of it."""
    forward: Callable[[], None]


@dataclass(slots=True)
class _Queue:
    """The frames of one channel on one link that wait, in order."""

    frames: deque[_Held] = field(default_factory=deque)
    timer: Timer = field(default_factory=Timer)


@dataclass(slots=True)
class _Withheld:
    channel: bytes
    forward: Callable[[], None]
    drop: Callable[[], None]


@dataclass(slots=True)
class _Active:
    rule: Rule
    random: Random
    withheld: list[_Withheld] = field(default_factory=list)


class FrameFaults:
    """The active frame rules of a process. The pump calls `outgoing`; held frames are forwarded by timers of the loop."""

    def __init__(self) -> None:
        self._rules: dict[str, _Active] = {}
        self._queues: dict[tuple[str, bytes], _Queue] = {}
        self.active = False
        """Whether there are rules or waiting frames. The pump reads it for each frame."""

    def add(self, rule: Rule) -> None:
        self.active = True
        self._rules[rule.rule_id] = _Active(rule, Random(rule.seed))  # noqa: S311 - seeded on purpose

    def remove(self, rule_id: str) -> None:
        """Remove a rule, and forward the frames that it holds, in order."""
        active = self._rules.pop(rule_id, None)
        if active is None:
            return
        for held in active.withheld:
            held.forward()
        active.withheld.clear()
        now = asyncio.get_running_loop().time()
        for key in list(self._queues):
            for waiting in self._queues[key].frames:
                if waiting.rule == rule_id:
                    waiting.due = now
            self._pump(key)
        self.active = bool(self._rules or self._queues)

    def held(self) -> int:
        """Return how many frames wait here now."""
        waiting = sum(len(queue.frames) for queue in self._queues.values())
        return waiting + sum(len(active.withheld) for active in self._rules.values())

    # ---- FrameInterceptor

    def outgoing(
        self, link: str, frame: Frame, forward: Callable[[], None], drop: Callable[[], None]
    ) -> None:
        source, destination = split_link(link)
        klass, channel = frame_class(frame), channel_of(frame)
        if isinstance(frame, CancelPartitionRequest | CloseRequest):
            self._drop_credits(channel)
        delay, rule_id = 0.0, ""
        for active in self._rules.values():
            rule = active.rule
            if not _concerns(rule, frame, klass) or not any_matches(rule.flows, source, destination):
                continue
            if rule.kind == WITHHOLD:
                active.withheld.append(_Withheld(channel, forward, drop))
                return
            if rule.kind == "frames.drop":
                if active.random.random() * 100 < rule.number("percent", 100.0):
                    drop()
                    return
            elif rule.number("delay_s") > delay:
                delay, rule_id = rule.number("delay_s"), rule.rule_id
        self._enqueue((link, channel), _Held(asyncio.get_running_loop().time() + delay, rule_id, forward))

    def _enqueue(self, key: tuple[str, bytes], held: _Held) -> None:
        queue = self._queues.get(key)
        if queue is None and not held.rule:
            held.forward()
            return
        if queue is None:
            queue = self._queues[key] = _Queue()
        queue.frames.append(held)
        if len(queue.frames) == 1:
            queue.timer.set(held.due, self._pump, key)

    def _pump(self, key: tuple[str, bytes]) -> None:
        queue = self._queues.get(key)
        if queue is None:
            return
        now = asyncio.get_running_loop().time()
        while queue.frames and queue.frames[0].due <= now:
            queue.frames.popleft().forward()
        if queue.frames:
            queue.timer.set(queue.frames[0].due, self._pump, key)
        else:
            queue.timer.cancel()
            self._queues.pop(key, None)
            self.active = bool(self._rules or self._queues)

    def _drop_credits(self, channel: bytes) -> None:
        """Drop the withheld credits of a channel that ends (empty: of all channels of the connection), because their receiver is gone."""
        for active in self._rules.values():
            for held in active.withheld:
                if channel in (b"", held.channel):
                    held.drop()
            active.withheld = [h for h in active.withheld if channel not in (b"", h.channel)]


def _concerns(rule: Rule, frame: Frame, klass: str) -> bool:
    if rule.kind == WITHHOLD:
        return isinstance(frame, AddCredit)
    return bool(rule.params.get("frame_class") == klass)


MAX_SIGHTINGS = 20_000
"""Maximum sightings. The newest are kept: about 2 MB, or 2 s at 10,000 frames a second."""
MAX_ANSWERED = 2_000
"""Maximum sightings in one answer: about 200 kB."""
MAX_COUNTED_CHANNELS = 50_000
"""Maximum channels that are counted for each side and class. Beyond it, the oldest counters are dropped (channels of earlier attempts)."""

Sighting: TypeAlias = tuple[str, str, str, str, int, float]
"""(side, link, class, channel hex, number, seconds)."""


class EffectTap:
    """A FrameTap that numbers frames, keeps sightings during a measurement, and offers every frame to `sampler`."""

    def __init__(self, sampler: FrameSampler | None = None) -> None:
        self._sampler = sampler
        self._counts: defaultdict[tuple[str, str], dict[bytes, int]] = defaultdict(dict)
        """The frames of each channel, by side and class."""
        self._sightings: deque[Sighting] = deque(maxlen=MAX_SIGHTINGS)
        self._measuring = 0

    def seen(self, side: str, link: str, frame: Frame) -> None:
        sampler = self._sampler
        if type(frame) is BufferResponse:
            number, size = frame.sequence_number, len(frame.data)
            wanted = sampler is not None and sampler.wants(number)
            if not wanted and not self._measuring:
                return
            klass, channel = frame_class(frame), channel_of(frame)
        else:
            klass, channel = frame_class(frame), channel_of(frame)
            number, size = self._count(side, klass, channel), 0
            wanted = sampler is not None and sampler.wants(number)
        if wanted and sampler is not None:
            sampler.record(side=side, link=link, frame_class=klass, channel=channel, number=number, size=size)
        if self._measuring:
            now = asyncio.get_running_loop().time()
            self._sightings.append((side, link, klass, channel.hex(), number, now))

    def _count(self, side: str, klass: str, channel: bytes) -> int:
        """Return the number of a frame that does not carry its own."""
        counts = self._counts[side, klass]
        counts[channel] = number = counts.get(channel, -1) + 1
        if not number and len(counts) > MAX_COUNTED_CHANNELS:
            counts.pop(next(iter(counts)))
        return number

    def start(self) -> None:
        """Begin to keep sightings. Calls nest."""
        self._measuring += 1

    def stop(self) -> None:
        self._measuring = max(0, self._measuring - 1)
        if not self._measuring:
            self._sightings.clear()

    def sightings(self, klass: str = "") -> list[Sighting]:
        """Return the newest sightings of a frame class (empty: of every class), at most MAX_ANSWERED."""
        found = [s for s in self._sightings if klass in ("", s[2])]
        return found[-MAX_ANSWERED:]
