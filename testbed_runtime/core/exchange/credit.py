"""Credit at both ends: the receiver's buffers that are promised, the sender's permission to send (flink-facts §2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from testbed_runtime.core.errors import FlinkError, LocalProtocolError
from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool, SegmentRequest
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer, MemorySegment
from testbed_runtime.core.exchange.subpartition import Polled, SubpartitionView
from testbed_runtime.core.ids import InputChannelID

UNLIMITED_CREDIT = 2**31 - 1
"""Of a sender in legacy mode: it never waits for credit."""


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """One sample of a channel, in the columns of the history's table `channels`."""

    credit: int
    announced: int
    used: int
    backlog: int
    queued: int
    floating: int
    exclusive: int


class BufferManager:
    """The receiver's side of one channel: exclusive and floating segments, and the credit that is not announced yet.

    Conservation: announced + unannounced = initial credit + buffers gained since, and each data buffer received takes
    one announced segment. `on_credit` is called when unannounced credit appears where there was none.
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
        self._exclusive: deque[MemorySegment] = deque()
        self._floating: deque[MemorySegment] = deque()
        self._on_credit = on_credit
        self._on_ready: Callable[[], None] | None = None
        self._released = False
        self._unannounced = 0
        self.initial_credit = initial_credit
        self.announced = initial_credit
        """Cumulative, as the sender knows it."""
        self.required = 0
        """Buffers that should be here for what the sender has announced."""
        self.waiting = False
        """Registered at the pool for a floating segment."""

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

    # ---- exclusive segments ----------------------------------------------------------------------------------

    def request_exclusive(self, *, now: float = 0.0, timeout_s: float = 0.0) -> SegmentRequest:
        """Ask for this channel's exclusive segments; what it gives goes to `assign_exclusive`."""
        return self._network.request_unpooled(self.initial_credit, now=now, timeout_s=timeout_s)

    def assign_exclusive(self, segments: list[MemorySegment]) -> None:
        if self._exclusive:
            raise LocalProtocolError(
                "Bug in input channel setup logic: exclusive buffers have already been set for this input channel."
            )
        if self._released:
            self._network.recycle_unpooled(segments)
            return
        self._exclusive.extend(segments)

    # ---- buffers for what arrives ------------------------------------------------------------------------------

    def request_buffer(self) -> Buffer | None:
        """A segment for an incoming data buffer, floating first. None: the sender had no credit."""
        self.required -= 1
        if self._floating:
            segment = self._floating.popleft()
            return Buffer(segment.view, DataType.DATA_BUFFER, segment, self._pool.recycle)
        if self._exclusive:
            segment = self._exclusive.popleft()
            return Buffer(segment.view, DataType.DATA_BUFFER, segment, self._recycle_exclusive)
        return None

    def request_or_wait(self, callback: Callable[[], None]) -> Buffer | None:
        """Legacy mode, where the sender waits for no credit: a segment, else `callback` is called once when there is one
        (or the channel is released)."""
        self._require(max(1, self.required))
        if self.available:
            return self.request_buffer()
        self._on_ready = callback
        return None

    def _recycle_exclusive(self, segment: MemorySegment) -> None:
        """Home to its own channel; for it one surplus floating segment goes back, else it is new credit."""
        if self._released:
            self._network.recycle_unpooled([segment])
            return
        self._exclusive.append(segment)
        if self._floating and self.available > self.required:
            self._pool.recycle(self._floating.popleft())
        else:
            self._add_credit(1)

    # ---- floating segments ---------------------------------------------------------------------------------

    def on_sender_backlog(self, backlog: int) -> None:
        """What waits at the sender: take as many floating segments as are there, and wait for more."""
        if not self._released:
            self.required = required = backlog + self.initial_credit
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
        gained = 0
        while not self.waiting and self.available < self.required and not self._pool.destroyed:
            segment = self._pool.request_segment()
            if segment is not None:
                self._floating.append(segment)
                gained += 1
            elif self._pool.add_listener(self._offered):
                self.waiting = True
        return gained

    def _offered(self, segment: MemorySegment) -> bool:
        """The pool has a segment. False: not needed any more, the next may have it."""
        self.waiting = False
        if self._released or self.available >= self.required:
            return False
        self._floating.append(segment)
        self._add_credit(1 + self._take_floating())
        return True

    def release_floating(self) -> None:
        """Without exclusive buffers the sender blocks after a barrier: give everything back until it goes on."""
        self.required = 0
        while self._floating:
            self._pool.recycle(self._floating.popleft())

    # ---- credit --------------------------------------------------------------------------------------------

    def take_unannounced(self) -> int:
        """Get and reset, at the moment of writing AddCredit."""
        credit, self._unannounced = self._unannounced, 0
        self.announced += credit
        return credit

    def drop_unannounced(self) -> None:
        """Before ResumeConsumption without exclusive buffers: the sender starts from 0 too."""
        self._unannounced = 0

    def _add_credit(self, credit: int) -> None:
        before, self._unannounced = self._unannounced, self._unannounced + credit
        if before == 0:
            self._on_credit()
        self._tell_ready()

    def _tell_ready(self) -> None:
        if self._on_ready is not None:
            ready, self._on_ready = self._on_ready, None
            ready()

    def release(self) -> None:
        """Exclusive segments go to the network pool, floating ones to the gate's. Idempotent."""
        if self._released:
            return
        self._released = True
        exclusive, self._exclusive = list(self._exclusive), deque()
        if exclusive:
            self._network.recycle_unpooled(exclusive)
        while self._floating:
            self._pool.recycle(self._floating.popleft())
        self._tell_ready()


class SequenceViewReader:
    """The sender's side of one channel: a subpartition's view, and what it may send (Flink's
    CreditBasedSequenceNumberingViewReader). Events never cost credit."""

    __slots__ = (
        "_unlimited",
        "announced",
        "credit",
        "initial_credit",
        "receiver",
        "registered",
        "subpartition",
        "used",
        "view",
    )

    def __init__(
        self, receiver: InputChannelID, subpartition: int, initial_credit: int, *, credit_based: bool = True
    ) -> None:
        if initial_credit < 0:
            raise LocalProtocolError("Must be non-negative.")
        self.receiver = receiver
        self.subpartition = subpartition
        self.initial_credit = initial_credit
        self.credit = initial_credit if credit_based else UNLIMITED_CREDIT
        self._unlimited = not credit_based
        self.announced = initial_credit
        """Cumulative credit received, the initial one included."""
        self.used = 0
        """Cumulative data buffers sent."""
        self.registered = False
        """In the queue of available readers."""
        self.view: SubpartitionView | None = None

    def add_credit(self, credit: int) -> None:
        self.announced += credit
        if not self._unlimited:
            self.credit += credit

    def resume_consumption(self) -> None:
        if self.initial_credit == 0 and not self._unlimited:
            self.credit = 0
        self._require_view().resume_consumption()

    @property
    def needs_backlog_announcement(self) -> bool:
        return self.initial_credit == 0 and self.credit == 0

    def availability(self) -> tuple[bool, int]:
        """(may send now, backlog)."""
        return self._require_view().availability(credit=self.credit > 0)

    def poll(self) -> tuple[Polled, bool] | None:
        """The next element and whether another may follow now. Raises FlinkError without credit for a data buffer."""
        polled = None if self.view is None else self.view.poll()
        if polled is None:
            return None
        if polled.buffer.data_type.is_buffer:
            self.used += 1
            if not self._unlimited:
                self.credit -= 1
                if self.credit < 0:
                    polled.buffer.recycle()
                    raise FlinkError("IllegalStateException", "no credit available")
        next_type = polled.next_type
        more = next_type is not DataType.NONE and (self.credit > 0 or next_type.is_event)
        return polled, more

    def stats(self) -> ChannelStats:
        view = self._require_view()
        return ChannelStats(
            credit=self.credit,
            announced=self.announced,
            used=self.used,
            backlog=view.subpartition.backlog,
            queued=len(view.subpartition),
            floating=0,
            exclusive=0,
        )

    def _require_view(self) -> SubpartitionView:
        if self.view is None:
            raise LocalProtocolError("a reader was used before its partition was there")
        return self.view
