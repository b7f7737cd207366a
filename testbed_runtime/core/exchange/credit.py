"""Credit at both ends: the receiver announces free buffers, the sender may send that many (Flink's BufferManager)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError, LocalProtocolError
from testbed_runtime.core.exchange.arrivals import Head
from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool, SegmentRequest
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer, Home, MemorySegment
from testbed_runtime.core.exchange.subpartition import NO_RUN, Polled, Run, SubpartitionView, nothing
from testbed_runtime.core.ids import InputChannelID
from testbed_runtime.core.values import MAX_INT, java_int

_NONE = DataType.NONE
_DATA = DataType.DATA_BUFFER
UNLIMITED_CREDIT = 2**31 - 1
"""Credit of a sender in legacy mode, which never waits for credit."""


class ChannelStats(Struct, frozen=True, gc=False):
    """One sample of a channel, in the columns of the history's table `channels`."""

    credit: int
    announced: int
    used: int
    backlog: int
    queued: int
    floating: int
    exclusive: int


class BufferManager:
    """The receiver's side of one channel: exclusive and floating segments, and the credit not announced yet.

    Invariant: announced + unannounced = initial credit + buffers gained since. Each received data buffer uses one
    announced segment. `on_credit` is called when unannounced credit becomes non-zero.
    """

    __slots__ = (
        "_exclusive",
        "_floating",
        "_network",
        "_on_credit",
        "_on_ready",
        "_pool",
        "_released",
        "_unannounced",
        "announced",
        "initial_credit",
        "required",
        "waiting",
    )

    def __init__(
        self,
        network: NetworkBufferPool,
        pool: LocalBufferPool,
        initial_credit: int,
        on_credit: Callable[[], None],
    ) -> None:
        self._network = network
        self._pool = pool
        self._exclusive: list[MemorySegment] = []
        self._floating: list[MemorySegment] = []
        self._on_credit = on_credit
        self._on_ready: Callable[[], None] | None = None
        self._released = False
        self._unannounced = 0
        self.initial_credit = initial_credit
        self.announced = initial_credit
        """Cumulative credit announced to the sender."""
        self.required = 0
        """Number of buffers needed for the sender's announced backlog."""
        self.waiting = False
        """Whether the manager waits at the pool for a floating segment."""

    @property
    def unannounced(self) -> int:
        return self._unannounced

    @property
    def available(self) -> int:
        return len(self._floating) + len(self._exclusive)

    @property
    def available_floating(self) -> int:
        return len(self._floating)

    @property
    def available_exclusive(self) -> int:
        return len(self._exclusive)

    def stats(self, used: int, backlog: int, queued: int) -> ChannelStats:
        """Return a sample of the channel: its own numbers, and those of its buffers."""
        floating, exclusive = len(self._floating), len(self._exclusive)
        return ChannelStats(self._unannounced, self.announced, used, backlog, queued, floating, exclusive)

    # ---- exclusive segments ----------------------------------------------------------------------------------

    def request_exclusive(self, *, now: float = 0.0, timeout_s: float = 0.0) -> SegmentRequest:
        """Request this channel's exclusive segments; pass the result to `assign_exclusive`."""
        return self._network.request_unpooled(self.initial_credit, now=now, timeout_s=timeout_s)

    def assign_exclusive(self, segments: list[MemorySegment]) -> None:
        if self._exclusive:
            raise FlinkError(
                "IllegalStateException",
                "Bug in input channel setup logic: exclusive buffers have already been set for this input channel.",
            )
        if self._released:
            self._network.recycle_unpooled(segments)
            return
        self._exclusive.extend(segments)

    # ---- buffers for what arrives ------------------------------------------------------------------------------

    def request_buffer(self) -> Buffer | None:
        """Return a segment for an incoming data buffer, floating ones first. None means that the sender had no credit."""
        self.required -= 1
        if self._floating:
            segment = self._floating.pop()
            return Buffer(segment.view, _DATA, segment, self._pool)
        if self._exclusive:
            segment = self._exclusive.pop()
            return Buffer(segment.view, _DATA, segment, self)
        return None

    def receive_run(self, view: memoryview, heads: list[Head]) -> list[Buffer]:
        """Take segments for data buffers, as `request_buffer` and `on_sender_backlog` would one by one. Return the buffers, whose
        bytes stay in `view` until `Buffer.keep`: fewer than `heads` if there is no segment, or none that can hold the payload."""
        buffers: list[Buffer] = []
        floating, exclusive, initial = self._floating, self._exclusive, self.initial_credit
        most = self._network.segment_bytes if self._network.has_memory else 0
        available, required = len(floating) + len(exclusive), self.required
        pool: Home = self._pool
        home: Home
        for start, end, _, backlog, data_type, compressed in heads:
            if not available or end - start > most:
                break
            if floating:
                segment, home = floating.pop(), pool
            else:
                segment, home = exclusive.pop(), self
            buffers.append(Buffer(view[start:end], data_type, segment, home, compressed))
            available -= 1
            required = backlog + initial
            if required > available and not self.waiting:
                self._require(java_int(required))
                available = len(floating) + len(exclusive)
        self.required = required if required <= MAX_INT else java_int(required)
        return buffers

    def request_or_wait(self, callback: Callable[[], None]) -> Buffer | None:
        """Legacy mode: return a segment, or call `callback` once when one is free or the channel is released."""
        self._require(max(1, self.required))
        if self.available:
            return self.request_buffer()
        self._on_ready = callback
        return None

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        for segment in segments:
            self.recycle(segment)

    def recycle(self, segment: MemorySegment) -> None:
        """Return an exclusive segment to its channel. Release a surplus floating segment instead, or count new credit."""
        if self._released:
            self._network.recycle_unpooled([segment])
            return
        floating, exclusive = self._floating, self._exclusive
        exclusive.append(segment)
        if floating and len(floating) + len(exclusive) > self.required:
            self._pool.recycle(floating.pop(0))
        else:
            self._add_credit(1)

    # ---- floating segments ---------------------------------------------------------------------------------

    def on_sender_backlog(self, backlog: int) -> None:
        """Take floating segments for the sender's backlog, and wait for more if there are too few."""
        if not self._released:
            self.required = required = backlog + self.initial_credit
            if required > MAX_INT:
                self.required = required = java_int(required)
            if not self.waiting and len(self._floating) + len(self._exclusive) < required:
                self._gain()

    def _require(self, required: int) -> None:
        self.required = required
        self._gain()

    def _gain(self) -> None:
        gained = self._take_floating()
        if gained:
            self._add_credit(gained)

    def _take_floating(self) -> int:
        gained, pool = 0, self._pool
        needed = self.required - len(self._floating) - len(self._exclusive)
        if needed > 1 and not self.waiting:
            run = pool.request_run(needed)
            self._floating += run
            gained = len(run)
        while gained < needed and not self.waiting and not pool.destroyed:
            segment = pool.request_segment()
            if segment is not None:
                self._floating.append(segment)
                gained += 1
            elif pool.add_listener(self._offered):
                self.waiting = True
        return gained

    def _offered(self, segment: MemorySegment) -> bool:
        """Handle a segment offered by the pool. Return False if it is no longer needed."""
        if self._released:
            return False
        self.waiting = False
        needed = self.required - len(self._floating) - len(self._exclusive)
        if needed <= 0:
            return False
        self._floating.append(segment)
        self._add_credit(1 + (self._take_floating() if needed > 1 else 0))
        return True

    def release_floating(self) -> None:
        """Return all floating segments while a sender without exclusive buffers is blocked by a barrier."""
        self.required = 0
        while self._floating:
            self._pool.recycle(self._floating.pop(0))

    # ---- credit --------------------------------------------------------------------------------------------

    def take_unannounced(self) -> int:
        """Return and reset the unannounced credit, when AddCredit is written."""
        credit, self._unannounced = self._unannounced, 0
        self.announced += credit
        return credit

    def drop_unannounced(self) -> None:
        """Drop unannounced credit before ResumeConsumption without exclusive buffers: the sender restarts at 0 too."""
        self._unannounced = 0

    def _add_credit(self, credit: int) -> None:
        before = self._unannounced
        self._unannounced = before + credit
        if before == 0:
            self._on_credit()
        if self._on_ready is not None:
            self._notify_ready()

    def _notify_ready(self) -> None:
        if self._on_ready is not None:
            ready, self._on_ready = self._on_ready, None
            ready()

    def release(self) -> None:
        """Return exclusive segments to the network pool and floating ones to the gate's pool. Idempotent."""
        if self._released:
            return
        self._released = True
        exclusive, self._exclusive = self._exclusive, []
        if exclusive:
            self._network.recycle_unpooled(exclusive)
        while self._floating:
            self._pool.recycle(self._floating.pop(0))
        self._notify_ready()
        self._on_credit = nothing


class SequenceViewReader:
    """The sender's side of one channel: a subpartition's view and its credit (Flink's
    CreditBasedSequenceNumberingViewReader). Events need no credit."""

    __slots__ = (
        "announced",
        "credit",
        "initial_credit",
        "receiver",
        "registered",
        "subpartition",
        "unlimited",
        "used",
        "view",
    )

    def __init__(
        self, receiver: InputChannelID, subpartition: int, initial_credit: int, *, credit_based: bool = True
    ) -> None:
        if initial_credit < 0:
            raise FlinkError("IllegalArgumentException", "Must be non-negative.")
        self.receiver = receiver
        self.subpartition = subpartition
        self.initial_credit = initial_credit
        self.credit = initial_credit if credit_based else UNLIMITED_CREDIT
        self.unlimited = not credit_based
        """Whether it sends without credit, as in legacy mode."""
        self.announced = initial_credit
        """Cumulative credit received, including the initial credit."""
        self.used = 0
        """Cumulative number of data buffers sent."""
        self.registered = False
        """Whether the reader is in the queue of available readers."""
        self.view: SubpartitionView | None = None

    def add_credit(self, credit: int) -> None:
        self.announced += credit
        if not self.unlimited:
            self.credit += credit
            if self.credit > MAX_INT:
                self.credit = java_int(self.credit)

    def resume_consumption(self) -> None:
        if self.initial_credit == 0 and not self.unlimited:
            self.credit = 0
        (self.view or self._without_view()).subpartition.resume()

    @property
    def needs_backlog_announcement(self) -> bool:
        return self.initial_credit == 0 and self.credit == 0

    def poll(self) -> tuple[Polled, bool] | None:
        """Return the next element and whether another may follow now. Raises FlinkError if a data buffer has no credit."""
        view = self.view
        polled = None if view is None or view.released else view.subpartition.poll()
        if polled is None:
            return None
        if polled.buffer.data_type.is_buffer:
            self.used += 1
            if not self.unlimited:
                self.credit -= 1
                if self.credit < 0:
                    polled.buffer.recycle()
                    raise FlinkError("IllegalStateException", "no credit available")
        next_type = polled.next_type
        more = next_type is not _NONE and (self.credit > 0 or next_type.is_event)
        return polled, more

    def poll_run(self, most: int, most_bytes: int) -> tuple[Run, bool]:
        """Return the next data buffers for which there is credit, and whether an element may follow now. Empty if `poll` has to
        decide."""
        if self.view is None or self.credit <= 0:  # it may have wrapped, as in Java
            return NO_RUN, False
        run, next_type = self.view.poll_run(min(self.credit, most), most_bytes)
        count = len(run.buffers)
        self.used += count
        if not self.unlimited:
            self.credit -= count
        return run, next_type is not _NONE and (self.credit > 0 or next_type.is_event)

    def stats(self) -> ChannelStats:
        subpartition = (self.view or self._without_view()).subpartition
        queued = len(subpartition)
        backlog = subpartition.backlog if queued else 0
        return ChannelStats(self.credit, self.announced, self.used, backlog, queued, 0, 0)

    def _without_view(self) -> NoReturn:
        raise LocalProtocolError("a reader was used before its partition existed")
