"""The tap by which the effect of a frame fault is measured: numbers of frames on both sides, matched by channel and number.

Numbers as in history.schema `frames`: the sequence number of a BufferResponse, else the count of the class on its channel. Counting goes
on always (so that both ends agree), sightings are kept only while a measurement is on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeAlias

from testbed_runtime.core.exchange.frames import BufferResponse, Frame
from testbed_runtime.core.faults.frame_classes import channel_of, frame_class
from testbed_runtime.ports.interception import FrameTap

MAX_SIGHTINGS = 20_000
"""Newest kept; about 2 MB, and at 10,000 frames a second still 2 s."""
MAX_TOLD = 2_000
"""Sightings in one answer: about 200 kB."""
MAX_COUNTED_CHANNELS = 50_000
"""Counters kept; beyond it the oldest are forgotten (channels of attempts long gone)."""

Sighting: TypeAlias = tuple[str, str, str, str, int, float]
"""(side, link, class, channel hex, number, seconds)."""


class EffectTap:
    """A FrameTap before the one that samples into the history (`inner`)."""

    def __init__(self, inner: FrameTap | None = None) -> None:
        self._inner = inner
        self._counts: dict[tuple[str, bytes, str], int] = {}
        self._sightings: deque[Sighting] = deque(maxlen=MAX_SIGHTINGS)
        self._measuring = 0

    def seen(self, side: str, link: str, frame: Frame) -> None:
        if self._inner is not None:
            self._inner.seen(side, link, frame)
        if isinstance(frame, BufferResponse) and not self._measuring:
            return  # it carries its own number
        klass, channel = frame_class(frame), channel_of(frame)
        number = (
            frame.sequence_number if isinstance(frame, BufferResponse) else self._count(side, channel, klass)
        )
        if self._measuring:
            now = asyncio.get_running_loop().time()
            self._sightings.append((side, link, klass, channel.hex(), number, now))

    def start(self) -> None:
        """Begin to keep sightings; nests."""
        self._measuring += 1

    def stop(self) -> None:
        self._measuring = max(0, self._measuring - 1)
        if not self._measuring:
            self._sightings.clear()

    def sightings(self, klass: str = "") -> list[Sighting]:
        """The newest of a class (empty: of every class), at most MAX_TOLD."""
        found = [s for s in self._sightings if klass in ("", s[2])]
        return found[-MAX_TOLD:]

    def _count(self, side: str, channel: bytes, klass: str) -> int:
        key = (side, channel, klass)
        number = self._counts.pop(key, 0)
        self._counts[key] = number + 1  # to the end: the oldest is the first to be forgotten
        if len(self._counts) > MAX_COUNTED_CHANNELS:
            self._counts.pop(next(iter(self._counts)))
        return number
