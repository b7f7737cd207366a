"""Segments of network memory and what is read from and written to them. Everybody imports these from `core.buffers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from testbed_runtime.core.errors import LocalProtocolError, RemoteProtocolError
from testbed_runtime.core.exchange.frames import BytesLike, DataType


class MemorySegment:
    """A fixed piece of memory of the network pool."""

    __slots__ = ("memory", "view")

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)
        self.view = memoryview(self.memory)

    def __len__(self) -> int:
        return len(self.memory)


Recycler: TypeAlias = Callable[[MemorySegment], None]


class Buffer:
    """Bytes with a type and an owner who wants the segment back. One reference at birth."""

    __slots__ = ("_recycler", "_references", "_segment", "_view", "compressed", "data_type")

    def __init__(
        self,
        view: memoryview,
        data_type: DataType,
        segment: MemorySegment | None = None,
        recycler: Recycler | None = None,
        *,
        compressed: bool = False,
    ) -> None:
        self._view: memoryview | None = view
        self.data_type = data_type
        self.compressed = compressed
        self._segment = segment
        self._recycler = recycler
        self._references = 1

    @classmethod
    def unpooled(cls, data: BytesLike, data_type: DataType) -> Buffer:
        """Over bytes of the heap: events, whose memory nobody wants back."""
        return cls(memoryview(data), data_type)

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.view())

    @property
    def is_buffer(self) -> bool:
        return self.data_type.is_buffer

    @property
    def is_recycled(self) -> bool:
        return self._references == 0

    def view(self) -> memoryview:
        """The bytes, in place. Writable in a buffer that was allocated for receiving; not valid after `recycle`."""
        if self._view is None:
            raise LocalProtocolError("a buffer was read after it was recycled")
        return self._view

    def fill_view(self, size: int) -> memoryview:
        """Make it `size` bytes long and give them for writing. Larger than the segment: RemoteProtocolError."""
        if self._segment is None or size > len(self._segment.view):
            room = 0 if self._segment is None else len(self._segment.view)
            raise RemoteProtocolError(
                f"A buffer of {size} bytes does not fit into a segment of {room} bytes: taskmanager.memory.segment-size "
                "must be the same at both ends"
            )
        self._view = self._segment.view[:size]
        return self._view

    def retain(self) -> Buffer:
        """One more holder, who recycles too."""
        self._references += 1
        return self

    def recycle(self) -> None:
        """Give up one reference; with the last the segment goes home. Once more than held: LocalProtocolError."""
        self._references -= 1
        if self._references:
            if self._references < 0:
                raise LocalProtocolError("a buffer was recycled twice")
            return
        self._view = None
        segment, recycler = self._segment, self._recycler
        if recycler is not None and segment is not None:
            self._segment = self._recycler = None
            recycler(segment)

    def cut(self, start: int, end: int) -> Buffer:
        """A part of it, with a reference of its own to this buffer."""
        parent = self.retain()
        return Buffer(
            self.view()[start:end],
            self.data_type,
            self._segment,
            lambda _segment: parent.recycle(),
            compressed=self.compressed,
        )


class BufferBuilder:
    """A segment while a producer fills it and a consumer already reads it; an event is one that was born finished.

    The queue that holds it owns one reference, each Buffer built from it another.
    """

    __slots__ = (
        "_limit",
        "_read",
        "_recycler",
        "_references",
        "_segment",
        "_view",
        "data_type",
        "finished",
        "is_buffer",
        "known_finished",
        "written",
    )

    def __init__(
        self,
        segment: MemorySegment | None,
        recycler: Recycler | None,
        *,
        event: BytesLike = b"",
        data_type: DataType = DataType.DATA_BUFFER,
    ) -> None:
        """Over a segment, empty; without one, over the bytes of an event."""
        self._segment = segment
        self._recycler = recycler
        self._view = memoryview(event) if segment is None else segment.view
        self._limit = len(self._view)
        self._references = 1
        self._read = 0
        self.written = self._limit if segment is None else 0
        self.finished = segment is None
        self.known_finished = self.finished
        """An earlier build saw it finished; an event is born so."""
        self.data_type = data_type
        self.is_buffer = data_type.is_buffer

    @classmethod
    def of_event(cls, data: BytesLike, data_type: DataType) -> BufferBuilder:
        """An event: finished, without a segment."""
        return cls(None, None, event=data, data_type=data_type)

    @property
    def room(self) -> int:
        """Bytes that may still be appended."""
        return 0 if self.finished else self._limit - self.written

    @property
    def readable(self) -> int:
        """Bytes written and not yet built."""
        return self.written - self._read

    def append(self, data: memoryview, offset: int = 0) -> int:
        """Copy from data[offset:] as much as there is room for; the bytes copied. The only copy on the producer's side."""
        start = self.written
        count = min(len(data) - offset, self._limit - start)
        end = start + count
        self._view[start:end] = data[offset : offset + count]
        self.written = end
        return count

    def trim(self, limit: int) -> None:
        """Let it be full at `limit` bytes, never below what is written nor above the segment."""
        self._limit = max(self.written, min(limit, len(self._view)))

    def finish(self) -> None:
        """Nothing is appended any more."""
        self.finished = True

    def build(self) -> Buffer:
        """What was written since the last build, as a Buffer that shares the segment."""
        start, end = self._read, self.written
        self._read = end
        self.known_finished = self.finished
        if self._segment is None:
            return Buffer(self._view[start:end], self.data_type)
        self._references += 1
        return Buffer(self._view[start:end], self.data_type, self._segment, self._unreference)

    def build_last(self) -> Buffer:
        """`build` and `release` in one, for a finished builder: the queue's reference passes to the Buffer."""
        if self._references > 1 or self._segment is None:
            buffer = self.build()
            self.release()
            return buffer
        start, self._read = self._read, self.written
        self.known_finished = True
        recycler, self._recycler = self._recycler, None
        return Buffer(self._view[start : self.written], self.data_type, self._segment, recycler)

    def release(self) -> None:
        """The queue lets go of it. Only once."""
        if self._segment is not None:
            self._unreference(self._segment)

    def _unreference(self, segment: MemorySegment) -> None:
        self._references -= 1
        if self._references == 0 and self._recycler is not None:
            recycler, self._recycler = self._recycler, None
            recycler(segment)
