"""Cases of Flink's SpanningRecordSerializationTest and PartitionRequestServerHandlerTest."""

from __future__ import annotations

from io import BytesIO
from random import Random

import pytest
from test_server import RECEIVER, Producer

from testbed_runtime.core.exchange.frames import BufferResponse, ErrorResponse, NewBufferSize
from testbed_runtime.core.exchange.records import LENGTH_BYTES, SPILL_BYTES, RecordDeserializer
from tests.transport.records import frame_record


def numbers(count: int) -> list[bytes]:
    """Records of 4 bytes."""
    random = Random(42)
    return [random.randbytes(4) for _ in range(count)]


def mixed(count: int) -> list[bytes]:
    """Records of a number and of up to 10 MB in turn."""
    random = Random(42)
    return [
        random.randbytes(4 if i % 2 == 0 else random.randrange(1_000_000, 10_000_000)) for i in range(count)
    ]


@pytest.mark.parametrize(
    ("records", "segment"),
    [
        pytest.param(numbers(10), 1, id="F-100"),
        pytest.param(numbers(64), 64, id="F-101"),
        pytest.param(numbers(248), 31, id="F-102"),
        pytest.param([Random(i).randbytes(i % 200) for i in range(10_000)], 127, id="F-103"),
        pytest.param(mixed(9), 32 * 1024, id="F-104"),
    ],
)
def test_F_100_to_F_104_records_survive_the_segments_that_they_span(
    records: list[bytes], segment: int
) -> None:
    """Numbers in segments of a byte, of a multiple of their size and of another size; random ones; large ones among small ones. Those
    of more than 5 MiB wait in a file."""
    deserializer = RecordDeserializer(BytesIO)
    stream = b"".join(map(frame_record, records))
    found = [
        bytes(record)
        for start in range(0, len(stream), segment)
        for record in deserializer.feed(stream[start : start + segment])
    ]
    assert found == records
    assert (deserializer.pending, deserializer.incomplete) == (0, b"")
    assert deserializer.spilled == sum(len(record) > SPILL_BYTES for record in records)


@pytest.mark.parametrize(
    ("size", "segment", "left_over"),
    [
        pytest.param(4, 1024, b"", id="F-105"),
        pytest.param(4, 1, b"", id="F-106"),
        pytest.param(300, 1, b"", id="F-107"),
        pytest.param(300, 1, bytes((42, 43, 44)), id="F-108"),
    ],
)
def test_F_105_to_F_108_what_is_not_consumed_is_all_that_arrived_of_the_record(
    size: int, segment: int, left_over: bytes
) -> None:
    """Byte by byte, its length too. What is left over after its end stays, and is gone once it is discarded."""
    deserializer = RecordDeserializer()
    framed = frame_record(Random(42).randbytes(size))
    for _ in range(2):
        arrived, records = b"", 0
        for start in range(0, len(framed), segment):
            piece = framed[start : start + segment]
            last = start + segment >= len(framed)
            arrived += piece
            records += len(deserializer.feed(piece + (left_over if last else b"")))
            assert deserializer.incomplete == (left_over if last else arrived)
        assert (len(arrived), records) == (LENGTH_BYTES + size, 1)
        deserializer.clear()
        assert deserializer.incomplete == b""


def test_F_109_F_110_a_buffer_size_reaches_its_reader_and_is_ignored_without_one() -> None:
    """testNewBufferSize: the next buffers have 16 bytes. testReceivingNewBufferSizeBeforeReaderIsCreated: no error is sent."""
    producer = Producer(segment=32)
    producer.receive(NewBufferSize(16, RECEIVER))
    assert producer.send() == []
    producer.request(9)
    producer.partition.emit(0, bytes(32))
    producer.partition.flush_all()
    assert [len(frame.data) for frame in producer.send() if isinstance(frame, BufferResponse)] == [32]
    producer.receive(NewBufferSize(16, RECEIVER))
    for _ in range(2):
        producer.partition.emit(0, bytes(16))
    producer.partition.flush_all()
    frames = producer.send()
    assert [len(frame.data) for frame in frames if isinstance(frame, BufferResponse)] == [16, 16]
    assert not any(isinstance(frame, ErrorResponse) for frame in frames)
