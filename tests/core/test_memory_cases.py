"""Cases of BufferBuilderAndConsumerTest: a buffer that is read while it is written. All numbers are bytes of four-byte integers."""

from __future__ import annotations

import struct

import pytest

from testbed_runtime.core.errors import FlinkError, LocalProtocolError
from testbed_runtime.core.exchange.memory import Buffer, BufferBuilder, BufferConsumer, MemorySegment

INTS = 10
SIZE = 4 * INTS


class Recycler:
    """Counts the segments that come back."""

    def __init__(self) -> None:
        self.recycled = 0

    def recycle(self, segment: MemorySegment) -> None:
        assert segment.size == SIZE
        self.recycled += 1

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        for segment in segments:
            self.recycle(segment)


def builder(home: Recycler | None = None) -> BufferBuilder:
    return BufferBuilder(MemorySegment(SIZE), home or Recycler())


def ints(*values: int) -> memoryview:
    return memoryview(struct.pack(f">{len(values)}i", *values))


def read(consumer: BufferBuilder | BufferConsumer) -> list[int]:
    """Read everything that was written since the last read."""
    buffer = consumer.build()
    found = [value for (value,) in struct.iter_unpack(">i", buffer.view())]
    buffer.recycle()
    return found


@pytest.mark.parametrize("parts", [[(0, 1, 2, 3, 42)], [(0, 1), (2,), (3, 42)]], ids=["once", "in parts"])
def test_F_136_F_137_what_is_appended_is_read(parts: list[tuple[int, ...]]) -> None:
    """All of it, and the buffer is not full."""
    written = builder()
    for part in parts:
        assert written.append(ints(*part)) == 4 * len(part)
    assert not written.is_full
    assert read(written) == [0, 1, 2, 3, 42]


def test_F_138_what_does_not_fit_goes_into_the_next_buffer() -> None:
    """Ten of eleven integers fill the first one."""
    data, first, second = ints(*range(INTS), 42), builder(), builder()
    assert first.append(data) == SIZE
    assert first.is_full
    assert read(first) == list(range(INTS))
    assert second.append(data, SIZE) == 4
    assert not second.is_full
    assert read(second) == [42]


def test_F_139_each_consumer_reads_on_its_own() -> None:
    """Two queues have the same buffer: what one has read, the other still has."""
    home = Recycler()
    written = builder(home)
    first, second = written.share(2)
    written.append(ints(0, 1))
    assert read(first) == [0, 1]
    written.append(ints(2))
    assert read(first) == [2]
    assert read(second) == [0, 1, 2]
    written.append(ints(3, 42))
    assert read(first) == read(second) == [3, 42]
    first.release()
    assert home.recycled == 0
    second.release()
    assert home.recycled == 1


def test_F_140_an_empty_buffer_has_no_bytes() -> None:
    """It is built all the same."""
    buffer = builder().build()
    assert isinstance(buffer, Buffer)
    assert buffer.size == 0


def test_F_141_a_buffer_is_read_several_times_until_it_is_full() -> None:
    """Each time it has what is new."""
    written = builder()
    written.append(ints(0, 1))
    written.append(ints(2))
    assert read(written) == [0, 1, 2]
    written.append(ints(3, 42))
    written.append(ints(44))
    assert read(written) == [3, 42, 44]
    rest = 0
    while not written.is_full:
        written.append(ints(1337))
        rest += 1
    assert read(written) == [1337] * rest


@pytest.mark.parametrize("writes", [0, INTS // 2, INTS])
def test_F_142_a_reader_learns_with_its_next_read_that_a_buffer_is_finished(writes: int) -> None:
    """Empty, half full or full: a read before the end and the end itself tell it nothing."""
    written = builder()
    for _ in range(writes):
        written.append(ints(42))
    known = [written.finished]
    assert written.build().size == 4 * writes
    known.append(written.known_finished)
    written.finish()
    known.append(written.known_finished)
    assert written.written == 4 * writes
    assert written.finished
    written.finish()  # a second time changes nothing
    with pytest.raises(FlinkError, match="A finished buffer was written to") as refused:
        written.append(ints(42))
    assert refused.value.class_name == "IllegalStateException"
    assert written.build().size == 0
    known.append(written.known_finished)
    assert known == [False, False, False, True]


def test_F_143_the_room_is_what_is_not_written() -> None:
    """All of it at first, none when the buffer is full."""
    written = builder()
    assert written.room == SIZE
    written.append(ints(1, 2, 3))
    assert written.room == SIZE - 12
    written.append(memoryview(bytes(SIZE)))
    assert written.room == 0


@pytest.mark.parametrize(
    ("before", "size", "room"),
    [(0, SIZE // 2, SIZE // 2), (0, 0, 0), (0, -1, 0), (3, 4, 0), (0, SIZE + 1, SIZE)],
    ids=["half", "nothing", "negative", "less than written", "more than there is"],
)
def test_F_144_to_F_147_a_buffer_is_trimmed_to_what_is_possible(before: int, size: int, room: int) -> None:
    """Not below what is written, and not above its segment."""
    written = builder()
    written.append(memoryview(bytes(4 * before)))
    written.trim(size)
    assert written.room == room


def test_F_148_the_segment_returns_when_the_builder_and_all_its_buffers_are_released() -> None:
    """In any order."""
    for builder_first in (True, False):
        home = Recycler()
        written = builder(home)
        written.append(ints(1))
        buffer = written.build()
        releases = [written.release, buffer.recycle]
        for release in releases if builder_first else reversed(releases):
            assert home.recycled == 0
            release()
        assert home.recycled == 1
        with pytest.raises(LocalProtocolError, match="read after it was recycled"):
            written.build()
