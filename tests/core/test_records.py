"""Records across buffers."""

from __future__ import annotations

import struct
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange.records import (
    LENGTH_BYTES,
    MAX_RECORD_BYTES,
    SPILL_BYTES,
    RecordDeserializer,
    frame_fixed,
)
from tests.transport.records import frame_record


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, position, turn = [], 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        turn += 1
        pieces.append(data[position : position + size])
        position += size
    return pieces


@settings(max_examples=80, deadline=None)
@given(
    records=st.lists(st.binary(max_size=40), max_size=12),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=10),
)
def test_records_survive_any_cut(records: list[bytes], sizes: list[int]) -> None:
    """Wherever buffers end, within a length too, the records are those that were written."""
    deserializer = RecordDeserializer()
    found: list[bytes] = []
    for piece in cut(b"".join(map(frame_record, records)), sizes):
        found += [bytes(record) for record in deserializer.feed(piece)]
    assert found == records
    assert deserializer.pending == 0
    assert deserializer.records == len(records)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 20),
    size=st.integers(1, 30),
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=10),
)
def test_fixed_records_survive_any_cut(count: int, size: int, sizes: list[int]) -> None:
    """The array path gives the same records as the path by record."""
    records = np.frombuffer(np.random.default_rng(count * size).bytes(count * size), dtype=np.uint8).reshape(
        count, size
    )
    framed = frame_fixed(np.ascontiguousarray(records).view(f"V{size}").reshape(count)).tobytes()
    assert framed == b"".join(frame_record(row.tobytes()) for row in records)
    deserializer = RecordDeserializer()
    found = [deserializer.feed_fixed([piece], size) for piece in cut(framed, sizes)]
    assert b"".join(memory[LENGTH_BYTES:].tobytes() for memory, _ in found) == framed
    assert sum(number for _, number in found) == count
    assert deserializer.pending == 0
    assert deserializer.records == count


def test_fixed_records_are_the_callers_own() -> None:
    """The buffer may be recycled as soon as they are read."""
    data = bytearray(frame_fixed(np.arange(4, dtype=">i4")))
    found, count = RecordDeserializer().feed_fixed([data], 4)
    data[:] = bytes(len(data))
    assert (
        found[LENGTH_BYTES:].reshape(count, 8)[:, LENGTH_BYTES:].tobytes()
        == np.arange(4, dtype=">i4").tobytes()
    )


def test_a_whole_record_is_a_view_into_its_buffer() -> None:
    """No copy is made of what lies in one buffer."""
    data = bytearray(frame_record(b"abc"))
    (record,) = RecordDeserializer().feed(data)
    assert record.obj is data


def test_a_record_has_up_to_64_mib() -> None:
    """So many bytes may follow; no other length is refused."""
    for length in (0, 64 * 1024 * 1024):
        RecordDeserializer().feed(struct.pack(">i", length))
    with pytest.raises(RemoteProtocolError, match=r"^A record cannot have 67108865 bytes: the stream is"):
        RecordDeserializer().feed(struct.pack(">i", 64 * 1024 * 1024 + 1))


@pytest.mark.parametrize("length", [-1, MAX_RECORD_BYTES + 1])
def test_an_impossible_length_is_an_error_of_the_peer(length: int) -> None:
    """A torn stream is noticed at once, whole and in pieces."""
    data = struct.pack(">i", length) + b"abcd"
    with pytest.raises(RemoteProtocolError):
        RecordDeserializer().feed(data)
    deserializer = RecordDeserializer()
    for i in range(3):
        deserializer.feed(data[i : i + 1])
    with pytest.raises(RemoteProtocolError):
        deserializer.feed(data[3:4])


def test_a_fixed_record_of_another_size_is_an_error() -> None:
    """The array path checks every length."""
    with pytest.raises(RemoteProtocolError, match="A record has 3 bytes instead of 4"):
        RecordDeserializer().feed_fixed([frame_record(b"abc") + frame_record(b"abcd") + b"\x00"], 4)
    with pytest.raises(RemoteProtocolError, match="A record has 5 bytes instead of 4"):
        RecordDeserializer().feed_fixed([frame_record(b"abcde")[:8]], 4)


def test_an_unfinished_record_can_be_forgotten() -> None:
    """After its channel failed the deserializer starts afresh."""
    deserializer = RecordDeserializer()
    deserializer.feed(frame_record(b"abcdef")[:7])
    assert deserializer.pending == 7
    deserializer.clear()
    assert [bytes(r) for r in deserializer.feed(frame_record(b"x"))] == [b"x"]


def test_A_40_what_waits_in_a_file_is_part_of_the_incomplete_record() -> None:
    """A spilled record that is read in the middle: its length and all bytes so far, and it goes on."""
    record = np.random.default_rng(7).bytes(SPILL_BYTES + 1)
    framed = frame_record(record)
    deserializer = RecordDeserializer(BytesIO)
    for start in range(0, 4 * 1024 * 1024, 1024 * 1024):
        assert deserializer.feed(framed[start : start + 1024 * 1024]) == []
    assert deserializer.incomplete == framed[: 4 * 1024 * 1024]
    assert deserializer.feed(framed[4 * 1024 * 1024 :]) == [record]
    assert deserializer.incomplete == b""


@pytest.mark.parametrize(("size", "spilled"), [(SPILL_BYTES, 0), (SPILL_BYTES + 1, 1)])
def test_a_record_above_five_mebibytes_waits_in_a_file(size: int, spilled: int) -> None:
    """Flink's threshold: only the four bytes of the length stay in memory, and the file is closed with the record."""
    files: list[BytesIO] = []
    deserializer = RecordDeserializer(lambda: files.append(BytesIO()) or files[-1])
    record = np.random.default_rng(7).bytes(size)
    pieces = cut(frame_record(b"before") + frame_record(record) + frame_record(b"after"), [32 * 1024])
    found: list[bytes] = []
    in_memory = 0
    for piece in pieces:
        found += [bytes(each) for each in deserializer.feed(piece)]
        in_memory = max(in_memory, len(deserializer._carry))
    assert found == [b"before", record, b"after"]
    assert deserializer.spilled == len(files) == spilled
    assert all(file.closed for file in files)
    assert in_memory < 64 * 1024 if spilled else in_memory > size - 64 * 1024
    assert deserializer.pending == 0
