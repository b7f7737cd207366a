"""Waits of producers for credit, found by the sampler: data was ready to be sent, and there was no credit for it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from testbed_runtime.core.exchange.credit import ChannelStats
from testbed_runtime.core.options import EXCLUSIVE_BUFFERS, Options
from testbed_runtime.core.waits import Limit
from testbed_runtime.history.waits import WaitLog

MIN_SAMPLES = 3
"""A channel is starved if this many samples in a row found no credit. A single sample may fall between two announcements of credit."""

Key = tuple[str, str, int, str]
"""Side, task, attempt, peer."""


@dataclass(slots=True)
class _Starved:
    since_s: float
    until_s: float
    samples: int = 1


class CreditWaits:
    """One wait per channel and uninterrupted span of samples without credit."""

    def __init__(self, waits: WaitLog, options: Options) -> None:
        self._waits = waits
        self._limit = Limit(EXCLUSIVE_BUFFERS, options.text(EXCLUSIVE_BUFFERS))
        self._starved: dict[Key, _Starved] = {}

    @property
    def waiting(self) -> bool:
        """Whether a channel waited for credit when it was last sampled."""
        return bool(self._starved)

    def sampled(self, key: Key, stats: ChannelStats) -> None:
        """Take a sample of a producer's channel."""
        if stats.credit > 0 or stats.backlog <= 0:
            if key in self._starved:
                self._end(key)
            return
        now, open_ = self._waits.now(), self._starved.get(key)
        if open_ is None:
            self._starved[key] = _Starved(now, now)
        else:
            open_.until_s, open_.samples = now, open_.samples + 1

    def end_others(self, live: Container[Key]) -> None:
        """End the waits of channels that were not sampled any more."""
        for key in [key for key in self._starved if key not in live]:
            self._end(key)

    def _end(self, key: Key) -> None:
        found = self._starved.pop(key)
        if found.samples < MIN_SAMPLES:
            return
        _, task, attempt, peer = key
        wait = self._waits.begin(
            "credit", task, peer, attempt=attempt, limit=self._limit, since_s=found.since_s
        )
        wait.end(at_s=found.until_s)
