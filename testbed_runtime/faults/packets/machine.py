"""What becomes of each packet: a seeded machine, `(now, length) -> Fate`. Pure.

Order is kept: a packet is never due before the one in front of it, whatever its jitter, unless `reorder` asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from testbed_runtime.faults.packets.model import Impairment

MAX_QUEUE_S = 0.2
"""Under a ceiling: what would wait longer is lost, as at a router whose buffer is full; that is what slows TCP down."""


@dataclass(frozen=True, slots=True)
class Fate:
    """`at`: when it passes; lost packets have `lost`."""

    at: float
    lost: bool = False
    corrupted: bool = False
    duplicated: bool = False
    overtaken: bool = False


class Gilbert:
    """Gilbert–Elliott's two states: lost in the bad one. `loss` is the share in the long run, `burst` the mean length of a loss."""

    def __init__(self, loss: float, burst: float) -> None:
        self._bad = False
        self._leave_bad = 0.0 if loss >= 1.0 else 1.0 / burst
        self._enter_bad = 1.0 if loss >= 1.0 else min(1.0, loss / (burst * (1.0 - loss)))
        self._loss = loss
        self._random_loss = burst <= 1.0

    def lost(self, random: Random) -> bool:
        draw = random.random()
        if self._random_loss:
            return draw < self._loss
        self._bad = draw >= self._leave_bad if self._bad else draw < self._enter_bad
        return self._bad


class Impairer:
    """Of one rule in one direction. Every packet draws the same number of random numbers, so a seed is a history."""

    def __init__(self, impairment: Impairment, seed: int | str) -> None:
        self.impairment = impairment
        self._random = Random(seed)  # noqa: S311 - reproducible, not secret
        self._gilbert = Gilbert(impairment.loss, impairment.burst)
        self._last_due = 0.0
        self._free_at = 0.0
        self._jitter = 0.0

    def packet(self, now: float, length: int) -> Fate:
        """`now` in seconds, never going back; `length` in bytes."""
        asked, random = self.impairment, self._random
        lost = asked.loss > 0 and self._gilbert.lost(random)
        duplicated = asked.duplicate > 0 and random.random() < asked.duplicate
        corrupted = asked.corrupt > 0 and random.random() < asked.corrupt
        held = asked.reorder > 0 and random.random() < asked.reorder
        due = now + self._delay()
        if lost:
            return Fate(now, lost=True)
        if held:  # does not move `_last_due`: those behind it overtake it
            return Fate(due + asked.reorder_s, False, corrupted, duplicated, overtaken=True)
        unqueued, due = due, max(due, self._last_due)
        if asked.bytes_per_s:
            begin = max(due, self._free_at)
            if begin - unqueued > MAX_QUEUE_S:
                return Fate(now, lost=True)
            due = self._free_at = begin + length / asked.bytes_per_s
        self._last_due = due
        return Fate(due, False, corrupted, duplicated)

    def _delay(self) -> float:
        asked = self.impairment
        if not asked.jitter_s:
            return asked.latency_s
        fresh = self._random.uniform(-1.0, 1.0)
        self._jitter = asked.correlation * self._jitter + (1.0 - asked.correlation) * fresh
        return max(0.0, asked.latency_s + self._jitter * asked.jitter_s)


def together(fates: Iterable[Fate], now: float) -> Fate:
    """Of a packet that several rules touch: lost when one loses it, delays add up, each damage stays."""
    at, lost, corrupted, duplicated, overtaken = now, False, False, False, False
    for fate in fates:
        lost = lost or fate.lost
        at += fate.at - now
        corrupted = corrupted or fate.corrupted
        duplicated = duplicated or fate.duplicated
        overtaken = overtaken or fate.overtaken
    return Fate(at, lost, corrupted, duplicated, overtaken)
