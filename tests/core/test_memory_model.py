"""A segment that is filled while it is read, against one string of bytes and the positions of its readers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import FlinkError, LocalProtocolError, RemoteProtocolError
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer, BufferBuilder, BufferConsumer, MemorySegment

SIZE = 12


class Home:
    """Counts how often a segment returns."""

    def __init__(self) -> None:
        self.returned = 0

    def recycle(self, segment: MemorySegment) -> None:
        assert segment.size == SIZE
        self.returned += 1

    def recycle_all(self, segments: list[MemorySegment]) -> None:
        for segment in segments:
            self.recycle(segment)


STEPS = st.lists(
    st.tuples(st.sampled_from("aaatbbbrf"), st.integers(0, 5), st.integers(0, SIZE + 2)), max_size=16
)


@given(st.booleans(), st.integers(0, 3), STEPS)
def test_a_builder_and_its_readers_see_one_string_of_bytes(
    memory: bool, shared: int, steps: list[tuple[str, int, int]]
) -> None:
    """Without memory only the bytes are kept. Shared by several queues, each reader has its own position. The segment returns once,
    with the last reference."""
    home = Home()
    builder = BufferBuilder(MemorySegment(SIZE, memory=memory), home)
    readers: list[BufferBuilder | BufferConsumer] = [*builder.share(shared)] if shared else [builder]
    written, limit, read = b"", SIZE, [0] * len(readers)
    taken: list[tuple[Buffer, bytes]] = []
    for kind, amount, number in steps:
        which = number % len(readers)
        match kind:
            case "a" if not builder.finished:
                data = bytes(range(len(written), len(written) + amount + 2))
                offset = min(number, 2)
                count = builder.append(memoryview(data), offset)
                assert count == min(amount + 2 - offset, limit - len(written))
                written += data[offset : offset + count]
            case "t":
                builder.trim(number)
                limit = max(len(written), min(number, SIZE))
                assert builder.is_trimmed is (limit < SIZE)
            case "b":
                buffer = readers[which].build()
                taken.append((buffer, written[read[which] :]))
                read[which] = len(written)
                assert readers[which].known_finished is builder.finished
            case "r" if taken:
                taken.pop(number % len(taken))[0].recycle()
            case "f":
                builder.finish()
        assert builder.room == (0 if builder.finished else limit - len(written))
        for reader, position in zip(readers, read, strict=True):
            assert (reader.unread(), reader.readable) == (written[position:], len(written) - position)
            assert (reader.is_full, reader.finished) == (len(written) >= limit, builder.finished)
        assert [bytes(buffer.view()) for buffer, _ in taken] == [data for _, data in taken]
        assert home.returned == 0
    builder.finish()
    with pytest.raises(FlinkError, match="A finished buffer was written to"):
        builder.append(memoryview(b"x"))
    for reader, position in zip(readers, read, strict=True):
        last = reader.build_last()
        assert bytes(last.view()) == written[position:]
        assert home.returned == 0
        taken.append((last, b""))
    for buffer, _ in taken:
        assert home.returned == 0
        buffer.recycle()
    assert home.returned == 1


@pytest.mark.parametrize("memory", [True, False])
def test_a_buffer_has_its_bytes_until_its_last_reference_is_released(memory: bool) -> None:
    """Slices hold references too. Only a segment with memory is used again."""
    home = Home()
    segment = MemorySegment(SIZE, memory=memory)
    buffer = Buffer(segment.view, DataType.DATA_BUFFER, segment, home)
    buffer.refer(b"abcdef")
    assert (buffer.size, buffer.readable, buffer.unread(), buffer.is_buffer) == (6, 6, b"abcdef", True)
    assert buffer.is_volatile is memory
    assert buffer.build() is buffer.build_last() is buffer
    part = buffer.cut(2, 4)
    buffer.recycle()
    assert (bytes(part.view()), bytes(buffer.view()), home.returned) == (b"cd", b"abcdef", 0)
    part.recycle()
    assert home.returned == 1
    with pytest.raises(LocalProtocolError, match="a buffer was read after it was recycled"):
        buffer.view()
    with pytest.raises(LocalProtocolError, match="a buffer was recycled twice"):
        buffer.recycle()


def test_a_buffer_takes_no_more_bytes_than_its_segment_has() -> None:
    """An event has no segment, keeps its bytes, and is recycled by each channel that gets it."""
    segment = MemorySegment(SIZE)
    for buffer, room in (
        (Buffer(segment.view, DataType.DATA_BUFFER, segment), SIZE),
        (Buffer.unpooled(b"", DataType.EVENT_BUFFER), 0),
    ):
        for call in (buffer.fill_view, lambda size, buffer=buffer: buffer.refer(bytes(size))):
            text = f"A buffer of {room + 1} bytes does not fit into a segment of {room} bytes: taskmanager.memory.segment-size"
            with pytest.raises(RemoteProtocolError, match=text):
                call(room + 1)
    full = Buffer(segment.view, DataType.DATA_BUFFER, segment)
    assert len(full.fill_view(SIZE)) == SIZE
    event = Buffer.unpooled(b"end", DataType.EVENT_BUFFER)
    for _ in range(3):
        event.recycle()
    assert (event.unread(), event.is_volatile, event.is_buffer) == (b"end", False, False)
