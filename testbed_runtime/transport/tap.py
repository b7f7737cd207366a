"""Sample frames for the history's table `frames`, with a rate limit so that recording never slows the exchange."""

from __future__ import annotations

from collections.abc import Callable

from testbed_runtime.core.exchange.frames import BufferResponse, Frame
from testbed_runtime.core.faults.frame_classes import channel_of, frame_class
from testbed_runtime.ports.storage import HistorySink

ROWS_PER_S = 200.0
"""Maximum rows per second and process. Taps on both sides of a busy exchange then record about 1 MB per minute."""
BURST_ROWS = 400.0
EVERY = 16
"""Near the rate limit only multiples of this number are recorded, so that both sides keep the same frames."""
MAX_COUNTERS = 10_000
"""Maximum counters of (side, channel, class). The oldest, of former attempts, are dropped."""


class HistoryTap:
    """A FrameTap that records samples. `now` returns the loop's time in seconds."""

    def __init__(
        self, history: HistorySink, now: Callable[[], float], *, rows_per_s: float = ROWS_PER_S
    ) -> None:
        self._history = history
        self._now = now
        self._rate = rows_per_s
        self._tokens = BURST_ROWS
        self._filled_at = now()
        self._counts: dict[tuple[str, bytes, str], int] = {}
        self.skipped = 0
        """Number of frames that were not recorded."""

    def seen(self, side: str, link: str, frame: Frame) -> None:
        klass, channel = frame_class(frame), channel_of(frame)
        if isinstance(frame, BufferResponse):
            number, size = frame.sequence_number, len(frame.data)
        else:
            number, size = self._count(side, channel, klass), 0
        if not self._may_record(number):
            self.skipped += 1
            return
        self._history.append(
            "frames", side=side, link=link, channel=channel.hex(), frame_class=klass, number=number, size=size
        )

    def _count(self, side: str, channel: bytes, klass: str) -> int:
        key = (side, channel, klass)
        number = self._counts.pop(key, 0)
        self._counts[key] = number + 1
        if len(self._counts) > MAX_COUNTERS:
            self._counts.pop(next(iter(self._counts)))
        return number

    def _may_record(self, number: int) -> bool:
        """Apply a token bucket: its upper half serves all frames, the lower half only multiples of EVERY."""
        now = self._now()
        self._tokens = min(BURST_ROWS, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        floor = 1.0 if number % EVERY == 0 else BURST_ROWS / 2
        if self._tokens < floor:
            return False
        self._tokens -= 1.0
        return True
