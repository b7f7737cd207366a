"""Pools of network memory: one per TaskManager, and one per gate and partition (Flink's LocalBufferPool)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange import sizing
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer, BufferBuilder, Home, MemorySegment, SubpartitionHome
from testbed_runtime.core.values import MAX_INT

Callback: TypeAlias = Callable[[], None]
SegmentListener: TypeAlias = Callable[[MemorySegment], bool]
"""Called with a segment of a pool. Returns whether the listener keeps the segment."""

POOL_DESTROYED = "Buffer pool has already been destroyed."
NO_CHANNEL = -1


class NetworkBufferPool:
    """All segments of a TaskManager. A segment's memory is allocated when it is first requested."""

    __slots__ = (
        "_all_full",
        "_batches",
        "_counted",
        "_created",
        "_free",
        "_last_usage",
        "_redistributing",
        "_timeout_key",
        "_waiters",
        "_warnings",
        "generation",
        "pools",
        "required",
        "segment_bytes",
        "total",
    )

    def __init__(
        self,
        total: int,
        segment_bytes: int,
        *,
        memory: bool = True,
        timeout_key: str = sizing.BUFFERS_TIMEOUT,
    ) -> None:
        """Without `memory` segments only count (see MemorySegment). `timeout_key` names the option in the text of a timeout."""
        self._timeout_key = timeout_key
        self.total = total
        self._counted = None if memory else MemorySegment(segment_bytes, memory=False)
        """The segment that stands for all segments if they only count."""
        self._batches = 0
        self.segment_bytes = segment_bytes
        self.required = 0
        """Number of guaranteed segments: those that pools require, and exclusive ones."""
        self.pools: list[LocalBufferPool] = []
        self._free: list[MemorySegment] = []
        self._created = 0
        self._waiters: list[Callback] = []
        self._last_usage = 0
        self.generation = 0
        """Counts the changes of the pools and their sizes."""
        self._warnings: list[str] = []
        self._redistributing = False
        self._all_full = False
        """Whether every pool has had its maximum size since the last redistribution."""

    @property
    def free(self) -> int:
        """Number of free segments."""
        return self.total - self._created + len(self._free)

    @property
    def has_memory(self) -> bool:
        return self._counted is None

    @property
    def is_available(self) -> bool:
        return bool(self._free) or self._created < self.total

    @property
    def outstanding(self) -> int:
        """Number of segments in use. After all tasks have ended, anything but 0 is a leak."""
        return self.total - self.free

    def when_available(self, callback: Callback) -> None:
        """Call back once when a segment is free, immediately if one is. The last callback that was added is
        called first, as by Flink's CompletableFuture. A caller that finds no segment left has to add its
        callback again."""
        if self.is_available:
            callback()
        else:
            self._waiters.append(callback)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Redistribute segments once at the end instead of for every channel of a gate."""
        self._batches += 1
        try:
            yield
        finally:
            self._batches -= 1
            self._notify()
            self._redistribute()

    def create_buffer_pool(
        self,
        required: int,
        maximum: int,
        *,
        subpartitions: int = 0,
        max_buffers_per_channel: int = MAX_INT,
        max_overdraft: int = 0,
    ) -> LocalBufferPool:
        """Create a pool. Raises FlinkError IOException if not all required segments can be guaranteed."""
        self._promise(required)
        pool = LocalBufferPool(
            self,
            required,
            maximum,
            subpartitions=subpartitions,
            max_buffers_per_channel=max_buffers_per_channel,
            max_overdraft=max_overdraft,
        )
        pool.refresh()
        self.pools.append(pool)
        self._redistribute()
        return pool

    def remove(self, pool: LocalBufferPool) -> None:
        """Remove a pool. Called by the pool when it is destroyed."""
        self.pools.remove(pool)
        self.required -= pool.required
        self._redistribute()

    def request(self) -> MemorySegment | None:
        """Return a free segment, or None."""
        if self._free:
            return self._free.pop()
        if self._created < self.total:
            self._created += 1
            return self._counted or MemorySegment(self.segment_bytes)
        return None

    def request_unpooled(self, count: int, *, now: float = 0.0, timeout_s: float = 0.0) -> SegmentRequest:
        """Reserve exclusive segments at once; the request's `poll` collects them. Raises FlinkError IOException if there
        can never be enough."""
        if count < 0:
            raise FlinkError("IllegalArgumentException", "Number of buffers to request must be non-negative.")
        if count:
            self._promise(count)
            self._redistribute()
        return SegmentRequest(self, count, now + timeout_s, timeout_s)

    def recycle(self, segment: MemorySegment) -> None:
        """Take a segment back."""
        self._free.append(segment)
        self._notify()

    def recycle_unpooled(self, segments: list[MemorySegment], *, promised: int | None = None) -> None:
        """Take exclusive segments back, and release `promised` reservations (default: one per segment). Pools that wait are served
        before others grow."""
        self._free.extend(segments)
        self._notify()
        self.required -= len(segments) if promised is None else promised
        if not self._all_full:  # otherwise no pool can grow
            self._redistribute()

    def on_resized(self) -> None:
        """Note a changed pool size. Unless this network pool changed it, the next redistribution may change it again."""
        if not self._redistributing:
            self._all_full = False

    def drain_warnings(self) -> list[str]:
        """Return Flink's messages about memory usage since the last call, and clear them."""
        drained, self._warnings = self._warnings, []
        return drained

    def timeout_error(self, timeout_s: float) -> FlinkError:
        return sizing.request_timeout(self.total, self.segment_bytes, timeout_s, self._timeout_key)

    def _promise(self, count: int) -> None:
        if self.required + count > self.total:
            raise sizing.insufficient_buffers(
                count, self.total - self.required, self.total, self.segment_bytes
            )
        self.required += count

    def _redistribute(self) -> None:
        """Distribute segments that are not reserved among the pools, in proportion to how far each may grow."""
        if self._batches:
            return
        resizable = [p for p in self.pools if p.maximum > p.required]
        available = self.total - self.required
        capacity = [min(available, p.maximum - p.required) for p in resizable]
        whole = sum(capacity)
        distribute = min(available, whole)
        self._all_full = sum(p.maximum - p.required for p in resizable) <= available
        self._redistributing = True
        self.generation += 1
        given = cumulated = 0
        for pool, mine in zip(resizable, capacity, strict=True):
            cumulated += mine
            share = distribute * cumulated // whole - given if whole else 0
            given += share
            pool.set_num_buffers(pool.required + share)
        self._redistributing = False
        self._note_usage()
        self._notify()

    def _note_usage(self) -> None:
        wanted = sum(p.maximum if p.maximum < MAX_INT else 2 * p.required for p in self.pools)
        usage = wanted * 100 // self.total if self.total else 0
        if usage == self._last_usage:
            return
        if usage >= 100:
            self._warnings.append(sizing.usage_too_high(usage, self.total, wanted, self.segment_bytes))
        elif self._last_usage >= 100:
            self._warnings.append(sizing.usage_back_to_normal(usage))
        self._last_usage = usage

    def _notify(self) -> None:
        if self._waiters and self.is_available and not self._redistributing and not self._batches:
            waiters, self._waiters = self._waiters, []
            while waiters:
                waiters.pop()()


class SegmentRequest:
    """A request for exclusive segments that may not be free yet. Call `poll` until it returns them; it times out at
    `next_deadline`."""

    __slots__ = ("_collected", "_pool", "_timeout_s", "count", "next_deadline")

    def __init__(self, pool: NetworkBufferPool, count: int, deadline: float, timeout_s: float) -> None:
        self._pool = pool
        self._collected: list[MemorySegment] = []
        self._timeout_s = timeout_s
        self.count = count
        self.next_deadline = deadline

    def poll(self, now: float = 0.0) -> list[MemorySegment] | None:
        """Return all segments, or None (poll again when the pool is available). Raises FlinkError IOException after the
        deadline."""
        while len(self._collected) < self.count:
            segment = self._pool.request()
            if segment is None:
                if now >= self.next_deadline:
                    self.cancel()
                    raise self._pool.timeout_error(self._timeout_s)
                return None
            self._collected.append(segment)
        collected, self._collected = self._collected, []
        return collected

    def cancel(self) -> None:
        """Return the collected segments and cancel the reservation."""
        collected, self._collected = self._collected, []
        self._pool.recycle_unpooled(collected, promised=self.count)
        self.count = 0


class LocalBufferPool:
    """The pool of one gate or partition. The network pool sets its size between `required` and `maximum`.

    It keeps one free segment whenever possible, so that `is_available` is known without a request.
    """

    __slots__ = (
        "_available",
        "_by_channel",
        "_homes",
        "_listeners",
        "_max_per_channel",
        "_network",
        "_saturated",
        "_waiters",
        "_waiting_for_network",
        "destroyed",
        "limits_requests",
        "max_overdraft",
        "maximum",
        "requested",
        "required",
        "segment_bytes",
        "size",
    )

    def __init__(
        self,
        network: NetworkBufferPool,
        required: int,
        maximum: int,
        *,
        subpartitions: int = 0,
        max_buffers_per_channel: int = MAX_INT,
        max_overdraft: int = 0,
    ) -> None:
        if required <= 0:
            text = f"Required number of memory segments ({required}) should be larger than 0."
            raise FlinkError("IllegalArgumentException", text)
        if maximum < required:
            text = f"Maximum number of memory segments ({maximum}) should not be smaller than minimum ({required})."
            raise FlinkError("IllegalArgumentException", text)
        if subpartitions and max_buffers_per_channel <= 0:
            text = f"Maximum number of buffers for each channel ({max_buffers_per_channel}) should be larger than 0."
            raise FlinkError("IllegalArgumentException", text)
        if subpartitions and max_overdraft < 0:
            text = f"Maximum number of overdraft buffers for each gate ({max_overdraft}) should not be less than 0."
            raise FlinkError("IllegalArgumentException", text)
        self._network = network
        self.segment_bytes = network.segment_bytes
        self.required = required
        self.maximum = maximum
        self.size = required
        self.max_overdraft = max_overdraft
        self.requested = 0
        """Number of segments taken from the network pool: free, in use, and overdraft. As in Flink, without reserved ones."""
        self.destroyed = False
        self._available: list[MemorySegment] = []
        """Free segments. The one that returned last is taken first: it may still be in the processor's cache."""
        self._listeners: deque[SegmentListener] = deque()
        self._waiters: deque[Callback] = deque()
        self._waiting_for_network = False
        self._max_per_channel = max_buffers_per_channel
        self.limits_requests = False
        """Whether a subpartition with its maximum gets no segment, instead of only making the pool unavailable."""
        self._by_channel = [0] * subpartitions
        self._saturated = 0
        self._homes: list[SubpartitionHome | None] = [None] * subpartitions
        """Created on first use: an all-to-all job has many subpartitions without data."""

    # ---- state ---------------------------------------------------------------------------------------------

    @property
    def available_segments(self) -> int:
        """Number of free segments in this pool."""
        return len(self._available)

    @property
    def is_available(self) -> bool:
        """Whether a segment is free and no subpartition has reached its maximum, or a request would raise: nothing has to wait."""
        return not (self._saturated or not self._available) or self.destroyed

    @property
    def can_overdraw(self) -> bool:
        """Whether the pool may have another segment beyond its size."""
        return self.requested - self.size < self.max_overdraft

    @property
    def overdraft(self) -> int:
        """Number of segments beyond the pool's size."""
        return max(0, self.requested - self.size)

    @property
    def used(self) -> int:
        """Number of segments in use."""
        return max(0, self.requested - len(self._available))

    def when_available(self, callback: Callback) -> None:
        """Call back once when the pool is available or destroyed, immediately if it already is."""
        if self.is_available:
            callback()
        else:
            self._waiters.append(callback)

    @property
    def has_memory(self) -> bool:
        """Whether the pool's segments have memory, or only count."""
        return self._network.has_memory

    # ---- requests ------------------------------------------------------------------------------------------

    def request(self) -> Buffer | None:
        """Return a whole segment as a buffer, or None. Raises FlinkError CancelTaskException if the pool was destroyed."""
        segment = self.request_segment()
        if segment is None:
            return None
        return Buffer(segment.view, DataType.DATA_BUFFER, segment, self)

    def request_builder(self, subpartition: int = NO_CHANNEL) -> BufferBuilder | None:
        """Return a builder for a subpartition, or None. Raises FlinkError CancelTaskException if the pool was destroyed."""
        segment = self.request_segment(subpartition)
        if segment is None:
            return None
        return BufferBuilder(segment, self if subpartition == NO_CHANNEL else self.home_of(subpartition))

    def home_of(self, subpartition: int) -> Home:
        """Return the home to which the segments of a subpartition return."""
        home = self._homes[subpartition]
        if home is None:
            home = self._homes[subpartition] = SubpartitionHome(self, subpartition)
        return home

    def request_run(self, most: int, subpartition: int = NO_CHANNEL) -> list[MemorySegment]:
        """Return up to `most` free segments, as `request_segment` would one by one until the pool is not available."""
        available = self._available
        count = min(most, len(available))
        if subpartition != NO_CHANNEL:
            count = min(count, self._max_per_channel - self._by_channel[subpartition])
        if count <= 0 or self._saturated:
            return []
        run = available[: -count - 1 : -1]
        del available[-count:]
        if subpartition != NO_CHANNEL:
            self._by_channel[subpartition] += count
            if self._by_channel[subpartition] == self._max_per_channel:
                self._saturated += 1
        if not available:
            self.refresh()
        return run

    def request_segment(self, subpartition: int = NO_CHANNEL) -> MemorySegment | None:
        if self.destroyed:
            raise FlinkError("CancelTaskException", POOL_DESTROYED)
        if self.limits_requests and self._is_at_limit(subpartition):
            return None
        if self._available:
            segment = self._available.pop()
        else:
            overdrawn = self._overdraw()
            if overdrawn is None:
                return None
            segment = overdrawn
        if subpartition != NO_CHANNEL:
            self._by_channel[subpartition] += 1
            if self._by_channel[subpartition] == self._max_per_channel:
                self._saturated += 1
        if not self._available:
            self.refresh()
        return segment

    def _is_at_limit(self, subpartition: int) -> bool:
        return subpartition != NO_CHANNEL and self._by_channel[subpartition] >= self._max_per_channel

    def reserve_segments(self, count: int) -> bool:
        """Take `count` segments from the network pool now, before other pools can. Return False if they are not free yet.
        Raises FlinkError IllegalArgumentException above `required`, and CancelTaskException if the pool was destroyed."""
        if count > self.required:
            text = "Can not reserve more segments than number of required segments."
            raise FlinkError("IllegalArgumentException", text)
        if self.destroyed:
            raise FlinkError("CancelTaskException", POOL_DESTROYED)
        missing = count - self.requested
        if missing > self._network.free:
            return False
        reserved = (self._network.request() for _ in range(missing))
        self._available.extend(segment for segment in reserved if segment is not None)
        self._wake()
        return True

    def add_listener(self, listener: SegmentListener) -> bool:
        """Offer the next free segment to this listener, once. Return False if one is free now (request it) or the pool was
        destroyed."""
        if self._available or self.destroyed:
            return False
        self._listeners.append(listener)
        return True

    # ---- segments come back ---------------------------------------------------------------------------------

    def recycle(self, segment: MemorySegment) -> None:
        """Take a segment back: return it to the network pool if there are too many, pass it to a listener, or keep it."""
        if self.destroyed or self.requested > self.size:
            self.requested -= 1
            self._network.recycle(segment)
        elif not self._listeners or not self._offer(segment):
            self._available.append(segment)
        if self._waiters:
            self._wake()

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        """Take several segments back. A single listener takes what it needs of them at once; several take turns."""
        if self.destroyed or self.requested > self.size or len(self._listeners) > 1:
            for segment in segments:
                self.recycle(segment)
            return
        if self._listeners:
            first, *others = segments
            self._available += others
            if not self._offer(first):
                self._available.append(first)
        else:
            self._available += segments
        if self._waiters:
            self._wake()

    def recycle_of(self, subpartition: int, segment: MemorySegment) -> None:
        """Take a segment of a subpartition back."""
        if self._by_channel[subpartition] == self._max_per_channel:
            self._saturated -= 1
        self._by_channel[subpartition] -= 1
        if self._listeners or self._waiters or self.destroyed or self.requested > self.size:
            self.recycle(segment)
        else:
            self._available.append(segment)

    def recycle_all_of(self, subpartition: int, segments: list[MemorySegment]) -> None:
        """Take several segments of a subpartition back."""
        held, most = self._by_channel[subpartition], self._max_per_channel
        left = self._by_channel[subpartition] = held - len(segments)
        if left < most <= held:
            self._saturated -= 1
        if self._listeners or self.destroyed or self.requested > self.size:
            self.recycle_all(segments)
            return
        self._available += segments
        if self._waiters:
            self._wake()

    def _offer(self, segment: MemorySegment) -> bool:
        while self._listeners:
            if self._listeners.popleft()(segment):
                return True
        return False

    # ---- size ----------------------------------------------------------------------------------------------

    def set_num_buffers(self, count: int) -> None:
        """Set the size, as decided by the network pool. Surplus free segments are returned now, others when recycled."""
        if count < self.required:
            text = f"Buffer pool needs at least {self.required} buffers, but tried to set to {count}"
            raise FlinkError("IllegalArgumentException", text)
        self.size = min(count, self.maximum)
        self._network.on_resized()
        while self.requested > self.size and self._available:
            self.requested -= 1
            self._network.recycle(self._available.pop(0))
        self.refresh()

    def refresh(self) -> None:
        """Keep one free segment if the size allows it. If the network pool has none, wait for it."""
        while not self.destroyed and not self._available and self.requested < self.size:
            segment = self._network.request()
            if segment is None:
                if not self._waiting_for_network:
                    self._waiting_for_network = True
                    self._network.when_available(self._network_available)
                return
            self.requested += 1
            self._available.append(segment)  # listeners are offered recycled segments only
        self._wake()

    def destroy(self) -> None:
        """Return the free segments now and the others when they are recycled. Idempotent."""
        if self.destroyed:
            return
        self.destroyed = True
        self._listeners.clear()
        available, self._available = self._available, []
        for segment in available:
            self.requested -= 1
            self._network.recycle(segment)
        self._network.remove(self)
        while self._waiters:
            self._waiters.popleft()()

    def _network_available(self) -> None:
        self._waiting_for_network = False
        self.refresh()

    def _overdraw(self) -> MemorySegment | None:
        """Take a segment beyond the size, so that a started record can be finished while the pool is unavailable."""
        if self.requested < self.size or not self.can_overdraw:
            return None
        segment = self._network.request()
        if segment is not None:
            self.requested += 1
        return segment

    def _wake(self) -> None:
        waiters, available = self._waiters, self._available
        while waiters and available and not self._saturated:
            waiters.popleft()()
