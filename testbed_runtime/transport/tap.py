"""Sample frames for the history's table `frames`, with a rate limit so that recording never slows the exchange."""

from __future__ import annotations

from collections.abc import Callable

from testbed_runtime.ports.storage import HistorySink

ROWS_PER_S = 200.0
"""Maximum rows per second and process. Taps on both sides of a busy exchange then record about 1 MB per minute."""
BURST_ROWS = 400.0
EVERY = 16
"""Near the rate limit only multiples of this number are recorded, so that both sides keep the same frames."""


class HistorySampler:
    """A FrameSampler that writes rows. `now` returns the loop's time in seconds."""

    def __init__(self, history: HistorySink, now: Callable[[], float]) -> None:
        self._history = history
        self._now = now
        self._tokens = BURST_ROWS
        self._filled_at = now()

    def wants(self, number: int) -> bool:
        """Return whether a frame is recorded, by a token bucket. Its upper half serves all frames, its lower half only multiples of EVERY."""
        now = self._now()
        self._tokens = min(BURST_ROWS, self._tokens + (now - self._filled_at) * ROWS_PER_S)
        self._filled_at = now
        floor = 1.0 if number % EVERY == 0 else BURST_ROWS / 2
        if self._tokens < floor:
            return False
        self._tokens -= 1.0
        return True

    def record(
        self, *, side: str, link: str, frame_class: str, channel: bytes, number: int, size: int
    ) -> None:
        self._history.put("frames", (side, link, channel.hex(), frame_class, number, size))
