"""One direction of a proxied connection under a fault's latency, jitter, bandwidth or stall: when each byte may pass. Pure:
bytes and `now` in, due bytes out.

Order is exact: no byte overtakes another, and the end of the stream (orderly or reset) is queued behind the bytes. A change of shape
also applies to bytes that are already held, so a healed flow releases everything at once, in order.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from msgspec import Struct

from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.faults.links import any_matches
from testbed_runtime.core.faults.retransmission import resumes_at
from testbed_runtime.faults.backend import Rule

HOLD_MAX_BYTES = 16 * 1024 * 1024
"""Bytes held in one direction of a connection before reading stops: more than any TCP window, so that latency alone never throttles."""
SLICE_S = 0.005
"""Under a ceiling bytes are sent in slices of this duration, so that the rate is even instead of bursts of 64 KiB."""
MIN_SLICE_BYTES = 512


class End(enum.Enum):
    """How a direction of a stream ended."""

    EOF = "eof"
    RESET = "reset"


class Shape(Struct, frozen=True):
    """The combined effect of all active rules on a flow."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    blocked: bool = False
    """In a partition, no byte is passed on."""
    stalled: bool = False
    """Whether bytes are read and held until the end of the fault."""
    void: bool = False
    """Whether bytes are read and discarded, as at a vanished end of a half-open connection."""
    reset: bool = False

    @property
    def clear(self) -> bool:
        return self == CLEAR


CLEAR = Shape()


def shape_of(rules: Iterable[Rule], source: str, destination: str, plane: str) -> Shape:
    """Combine rules: latencies add up, the lowest ceiling wins, partition, stall and reset hold when one rule asks for them."""
    latency = jitter = ceiling = 0.0
    kinds: set[str] = set()
    for rule in rules:
        if plane not in rule.planes or not any_matches(rule.flows, source, destination):
            continue
        kinds.add(rule.kind)
        latency += rule.number("latency_s")
        jitter += rule.number("jitter_s")
        if own := rule.number("bytes_per_s"):
            ceiling = min(ceiling or own, own)
    return Shape(
        latency_s=latency,
        jitter_s=jitter,
        bytes_per_s=ceiling,
        blocked=any(KINDS[kind].loses for kind in kinds),
        stalled="network.stall" in kinds,
        void="network.half-open" in kinds,
        reset="network.reset" in kinds,
    )


@dataclass(slots=True)
class _Held:
    data: bytes | memoryview | End
    arrived: float
    jitter: float
    """Between −1 and 1, drawn on arrival."""


class FlowShaper:
    """`push` and `end` take arriving bytes, `pull` returns the due ones, `next_time` says when to pull again (None: after a reshape)."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._queue: deque[_Held] = deque()
        self._held_bytes = 0
        self._free_at = 0.0
        self._last_due = 0.0
        self.resumes_at = 0.0
        """When TCP retransmits what a partition has lost."""
        self.shape = CLEAR

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def idle(self) -> bool:
        """Whether nothing is held and the shape has no effect, so that bytes may bypass the shaper."""
        return not self._queue and self.shape.clear

    @property
    def wants_more(self) -> bool:
        """Whether the relay may read more from this side. In a partition, it first reads the bytes that are lost."""
        return not (self.shape.blocked and self._queue) and self._held_bytes < HOLD_MAX_BYTES

    def reshape(self, shape: Shape, now: float) -> None:
        """Apply a shape at once, to held bytes too. What a partition has lost waits until TCP sends it again."""
        if self.shape.blocked and not shape.blocked and self._queue:
            self.resumes_at = resumes_at(self._queue[0].arrived, now)
        if shape.bytes_per_s != self.shape.bytes_per_s:
            self._free_at = 0.0
        self.shape = shape
        self._last_due = 0.0

    def push(self, data: bytes, now: float) -> None:
        if self.shape.void:
            return
        jitter = self._random.uniform(-1.0, 1.0) if self.shape.jitter_s else 0.0
        self._held_bytes += len(data)
        for part in _slices(data, self.shape.bytes_per_s):
            self._queue.append(_Held(part, now, jitter))

    def end(self, how: End, now: float) -> None:
        """Queue the end of the stream behind everything that is held."""
        self._queue.append(_Held(how, now, 0.0))

    def discard(self) -> None:
        """Discard held bytes: a reset overtakes them."""
        self._queue.clear()
        self._held_bytes = 0

    def pull(self, now: float, limit: int = HOLD_MAX_BYTES) -> list[bytes | memoryview | End]:
        """Return the bytes that are due by `now`, in order. Stops after `limit` bytes (then pull again)."""
        due: list[bytes | memoryview | End] = []
        pulled = 0
        while (
            pulled < limit and self._queue and (when := self._due(self._queue[0])) is not None and when <= now
        ):
            held = self._queue.popleft()
            pulled += 0 if isinstance(held.data, End) else len(held.data)
            self._last_due = when
            if not isinstance(held.data, End):
                self._held_bytes -= len(held.data)
                if self.shape.bytes_per_s:
                    self._free_at = when
            due.append(held.data)
        return due

    def next_time(self) -> float | None:
        """Return when the head is due; None when nothing is held, or only a change of shape releases it."""
        return self._due(self._queue[0]) if self._queue else None

    def _due(self, held: _Held) -> float | None:
        shape = self.shape
        if shape.blocked or shape.stalled:
            return None
        delay = max(0.0, shape.latency_s + held.jitter * shape.jitter_s)
        when = max(held.arrived + delay, self._last_due, self.resumes_at)
        if shape.bytes_per_s and not isinstance(held.data, End):
            when = max(when, self._free_at) + len(held.data) / shape.bytes_per_s
        return when


def _slices(data: bytes, bytes_per_s: float) -> Iterable[bytes | memoryview]:
    if not bytes_per_s:
        return (data,)
    size = max(MIN_SLICE_BYTES, int(bytes_per_s * SLICE_S))
    view = memoryview(data)
    return [view[at : at + size] for at in range(0, len(view), size)]
