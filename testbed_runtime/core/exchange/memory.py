"""Segments of network memory, and buffers and builders on top of them. Import them from `core.exchange.buffers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from testbed_runtime.core.errors import FlinkError, LocalProtocolError, RemoteProtocolError
from testbed_runtime.core.exchange.frames import BytesLike, DataType

_NOTHING = memoryview(b"")


class MemorySegment:
    """A fixed-size piece of the network pool's memory. Without `memory` it only counts: its buffers refer to the bytes of
    the producer, as in virtual time, where the jobs are larger than this machine."""

    __slots__ = ("has_memory", "size", "view")

    def __init__(self, size: int, *, memory: bool = True) -> None:
        self.size = size
        self.has_memory = memory
        self.view = memoryview(bytearray(size)) if memory else _NOTHING

    def __len__(self) -> int:
        return self.size


class Home(Protocol):
    """The place to which segments return: a pool, or a part of it."""

    def recycle(self, segment: MemorySegment) -> None: ...

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        """Take several segments back, as `recycle` does one by one."""


class SubpartitionPool(Protocol):
    """A pool that counts the segments of each subpartition."""

    def recycle_of(self, subpartition: int, segment: MemorySegment) -> None: ...

    def recycle_all_of(self, subpartition: int, segments: list[MemorySegment]) -> None: ...


class SubpartitionHome:
    """The home of the segments that a pool gave to one subpartition."""

    __slots__ = ("_index", "_pool")

    def __init__(self, pool: SubpartitionPool, index: int) -> None:
        self._pool = pool
        self._index = index

    def recycle(self, segment: MemorySegment) -> None:
        self._pool.recycle_of(self._index, segment)

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        self._pool.recycle_all_of(self._index, segments)


class Buffer:
    """Bytes with a data type, backed by a segment that returns to its pool. A new buffer has one reference.

    A buffer that was filled at once is queued without a builder."""

    __slots__ = ("_home", "_references", "_segment", "_view", "compressed", "data_type")

    finished: ClassVar = True
    is_full: ClassVar = True
    known_finished: ClassVar = False

    def __init__(
        self,
        view: memoryview,
        data_type: DataType,
        segment: MemorySegment | None = None,
        home: Home | None = None,
        compressed: bool = False,
    ) -> None:
        self._view: memoryview | None = view
        self.data_type = data_type
        self.compressed = compressed
        self._segment = segment
        self._home = home
        self._references = 1

    @classmethod
    def unpooled(cls, data: BytesLike, data_type: DataType) -> Buffer:
        """Create a buffer over heap bytes, for events. Its memory belongs to no pool."""
        return cls(memoryview(data), data_type)

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self._view) if self._view is not None else len(self.view())

    @property
    def is_buffer(self) -> bool:
        return self.data_type.is_buffer

    @property
    def is_volatile(self) -> bool:
        """Whether the bytes change after `recycle`, because the segment's memory is used again."""
        return self._segment is not None and self._segment.has_memory

    @property
    def readable(self) -> int:
        return self.size

    def unread(self) -> bytes:
        return bytes(self.view())

    def build(self) -> Buffer:
        return self

    def build_last(self) -> Buffer:
        return self

    def view(self) -> memoryview:
        """Return the bytes without copying: writable in a buffer allocated for receiving, invalid after `recycle`, and, if they were
        received, after the current callback (see `keep`)."""
        if self._view is None:
            raise LocalProtocolError("a buffer was read after it was recycled")
        return self._view

    def fill_view(self, size: int) -> memoryview:
        """Resize the buffer to `size` bytes and return them for writing. Raises RemoteProtocolError if the segment is
        smaller."""
        segment = self._segment
        if segment is None or size > segment.size:
            raise self._too_large(size)
        self._view = segment.view[:size] if segment.has_memory else memoryview(bytearray(size))
        return self._view

    def refer(self, data: BytesLike) -> None:
        """Let the buffer refer to received bytes instead of copying them."""
        if self._segment is None or len(data) > self._segment.size:
            raise self._too_large(len(data))
        self._view = memoryview(data)

    def keep(self) -> None:
        """Copy the bytes from the memory in which they were received into the segment, unless the buffer was
        recycled: that memory is used again."""
        segment, view = self._segment, self._view
        if segment is not None and view is not None:
            self._view = segment.view[: len(view)]
            self._view[:] = view

    def _too_large(self, size: int) -> RemoteProtocolError:
        room = 0 if self._segment is None else self._segment.size
        return RemoteProtocolError(
            f"A buffer of {size} bytes does not fit into a segment of {room} bytes: taskmanager.memory.segment-size "
            "must be the same at both ends"
        )

    def retain(self) -> Buffer:
        """Add a reference. Each reference must be released with `recycle`."""
        self._references += 1
        return self

    def recycle(self) -> None:
        """Release one reference; the last one returns the segment to its pool. Raises LocalProtocolError if there is
        none left. An event keeps its bytes, because all channels that get it share one buffer."""
        if self._segment is None and not self.data_type.is_buffer:
            return
        self._references -= 1
        if self._references:
            if self._references < 0:
                raise LocalProtocolError("a buffer was recycled twice")
            return
        self._view = None
        segment, home = self._segment, self._home
        if home is not None and segment is not None:
            home.recycle(segment)

    def release(self) -> None:
        self.recycle()

    def cut(self, start: int, end: int) -> Buffer:
        """Return a slice that holds its own reference to this buffer."""
        return Buffer(
            self.view()[start:end], self.data_type, self._segment, _Whole(self.retain()), self.compressed
        )


class _Whole:
    """The home of the slices of a buffer."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def recycle(self, segment: MemorySegment) -> None:
        self._buffer.recycle()

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        for segment in segments:
            self.recycle(segment)


def keep_all(buffers: Sequence[Buffer]) -> None:
    """Call `Buffer.keep` of the buffers that are not recycled."""
    for buffer in buffers:
        if buffer._view is not None:  # noqa: SLF001
            buffer.keep()


def recycle_all(buffers: Sequence[Buffer]) -> None:
    """Release one reference of each buffer, as `Buffer.recycle` does for one. Segments with the same home return together."""
    if len(buffers) == 1:
        buffers[0].recycle()
        return
    home: Home | None = None
    segments: list[MemorySegment] = []
    for buffer in buffers:
        segment, its_home = buffer._segment, buffer._home  # noqa: SLF001
        if segment is None or its_home is None or buffer._references != 1:  # noqa: SLF001
            buffer.recycle()
            continue
        if its_home is not home:
            if home is not None:
                home.recycle_all(segments)
            home, segments = its_home, []
        buffer._references = 0  # noqa: SLF001
        buffer._view = None  # noqa: SLF001
        segments.append(segment)
    if home is not None:
        home.recycle_all(segments)


class BufferBuilder:
    """A segment that a producer fills while a consumer already reads it. An event is a builder that is finished from the
    start; several queues can contain it, because nothing about it changes.

    The queue that contains the builder owns one reference; each Buffer built from it owns another.
    """

    __slots__ = (
        "_event",
        "_home",
        "_limit",
        "_parts",
        "_references",
        "_segment",
        "_view",
        "data_type",
        "finished",
        "is_buffer",
        "is_trimmed",
        "known_finished",
        "readable",
        "written",
    )

    known_finished: bool
    """Whether an earlier build saw the builder finished. Always true for events."""
    readable: int
    """Number of bytes written but not yet built."""
    is_trimmed: bool
    """Whether the capacity is smaller than the segment."""

    def __init__(
        self,
        segment: MemorySegment | None,
        home: Home | None,
        *,
        event: BytesLike = b"",
        data_type: DataType = DataType.DATA_BUFFER,
    ) -> None:
        """Create an empty builder over a segment or, without one, over the bytes of an event."""
        self._segment = segment
        self._home = home
        self._parts: list[memoryview] | None = None
        """Bytes that were written but not built, if the segment has no memory."""
        self._references = 1
        self._event: Buffer | None = None
        if segment is None:
            self._view = memoryview(event)
            self._event = Buffer(self._view, data_type)
            self._limit = self.written = len(self._view)
            self.finished = self.known_finished = True
        else:
            self._view = segment.view
            self._limit, self.written = segment.size, 0
            self.finished = self.known_finished = False
            if not segment.has_memory:
                self._parts = []
        self.readable = self.written
        self.data_type = data_type
        self.is_buffer = data_type.is_buffer
        self.is_trimmed = False

    @classmethod
    def of_event(cls, data: BytesLike, data_type: DataType) -> BufferBuilder:
        """Create the builder of an event: finished, without a segment."""
        return cls(None, None, event=data, data_type=data_type)

    @property
    def room(self) -> int:
        """Number of bytes that can still be appended."""
        return 0 if self.finished else self._limit - self.written

    @property
    def is_full(self) -> bool:
        return self.written >= self._limit

    def unread(self) -> bytes:
        """Return a copy of what was written but not yet built."""
        if self._parts is None:
            return bytes(self._view[self.written - self.readable : self.written])
        return b"".join(self._parts)

    def append(self, data: memoryview, offset: int = 0) -> int:
        """Copy as much of data[offset:] as fits and return the number of bytes: the producer's only copy. Raises FlinkError
        IllegalStateException if the builder is finished."""
        if self.finished:
            raise FlinkError("IllegalStateException", "A finished buffer was written to")
        start = self.written
        count = min(len(data) - offset, self._limit - start)
        end = start + count
        if self._parts is None:
            whole = offset == 0 and count == len(data)
            self._view[start:end] = data if whole else data[offset : offset + count]
        else:
            self._parts.append(data[offset : offset + count])
        self.written = end
        self.readable += count
        return count

    def trim(self, limit: int) -> None:
        """Limit the capacity to `limit` bytes, but not below what is written nor above the segment."""
        size = self._limit if self._segment is None else self._segment.size
        self._limit = max(self.written, min(limit, size))
        self.is_trimmed = self._limit < size

    def finish(self) -> None:
        """Mark the builder as finished: nothing more is appended."""
        self.finished = True

    def build(self) -> Buffer:
        """Return what was written since the last build, as a Buffer that shares the segment. An event has one Buffer."""
        if self._event is not None:
            return self._event
        if not self._references:
            raise LocalProtocolError("a buffer was read after it was recycled")
        end = self.written
        start, self.readable = end - self.readable, 0
        self.known_finished = self.finished
        self._references += 1
        return Buffer(self._bytes(start, end), self.data_type, self._segment, self)

    def _bytes(self, start: int, end: int) -> memoryview:
        parts = self._parts
        if parts is None:
            view = self._view
            return view if end - start == len(view) else view[start:end]
        self._parts = []
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def build_last(self) -> Buffer:
        """Combine `build` and `release` for a finished builder: the queue's reference passes to the Buffer."""
        if self._event is not None:
            return self._event
        if self._references > 1 or self._segment is None:
            buffer = self.build()
            self.release()
            return buffer
        start, self.readable = self.written - self.readable, 0
        self.known_finished = True
        home, self._home = self._home, None
        return Buffer(self._bytes(start, self.written), self.data_type, self._segment, home)

    def share(self, consumers: int) -> list[BufferConsumer]:
        """Return readers for this many queues, instead of putting the builder into one. Each owns a reference."""
        self._references = consumers
        return [BufferConsumer(self) for _ in range(consumers)]

    def part(self, start: int) -> Buffer:
        """Return what was written from `start` on, as a Buffer with a reference of its own. It can be read again."""
        self._references += 1
        return Buffer(self._kept(start), self.data_type, self._segment, self)

    def _kept(self, start: int) -> memoryview:
        parts = self._parts
        if parts is None:
            return self._view[start : self.written]
        if len(parts) != 1:
            parts[:] = [memoryview(b"".join(parts))]
        return parts[0][start:] if start else parts[0]

    def release(self) -> None:
        """Release the queue's reference. Call it only once."""
        if self._segment is not None:
            self.recycle(self._segment)

    def recycle(self, segment: MemorySegment) -> None:
        """Release the reference of a Buffer that was built, whose home is the builder."""
        self._references -= 1
        if self._references == 0 and self._home is not None:
            home, self._home = self._home, None
            home.recycle(segment)

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        for segment in segments:
            self.recycle(segment)


class BufferConsumer:
    """A reader of a builder that is in several queues at once, as a record for all subpartitions is (Flink's BufferConsumer).
    The segment returns when all of them have read it."""

    __slots__ = ("_builder", "_read", "known_finished")

    data_type: ClassVar = DataType.DATA_BUFFER
    is_buffer: ClassVar = True

    def __init__(self, builder: BufferBuilder) -> None:
        self._builder = builder
        self._read = 0
        self.known_finished = False

    @property
    def finished(self) -> bool:
        return self._builder.finished

    @property
    def is_full(self) -> bool:
        return self._builder.is_full

    @property
    def readable(self) -> int:
        """Number of bytes written but not yet read here."""
        return self._builder.written - self._read

    def unread(self) -> bytes:
        """Return a copy of what was written but not yet read here."""
        buffer = self._builder.part(self._read)
        data = bytes(buffer.view())
        buffer.recycle()
        return data

    def build(self) -> Buffer:
        start, self._read = self._read, self._builder.written
        self.known_finished = self._builder.finished
        return self._builder.part(start)

    def build_last(self) -> Buffer:
        """Combine `build` and `release` for a finished builder."""
        buffer = self.build()
        self.release()
        return buffer

    def release(self) -> None:
        self._builder.release()
