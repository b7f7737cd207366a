"""Blocking results: a file that is complete before it is read, and read again as often as asked."""

from __future__ import annotations

import io

import pytest
from exchange_model import partition_id, producer_pool
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import EndOfData, EndOfPartition, decode_event
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.subpartition import NO_RUN, Run, SubpartitionView

SEGMENT = 32


def blocking(
    subpartitions: int = 1, *, file: io.BytesIO | None = None, network: NetworkBufferPool | None = None
) -> ResultPartition:
    """A result with as few buffers as it may have."""
    pool = producer_pool(network or NetworkBufferPool(16, SEGMENT), subpartitions, subpartitions + 1)
    return ResultPartition(partition_id(), subpartitions, pool, file=file or io.BytesIO())


def finished(result: ResultPartition) -> ResultPartition:
    result.notify_end_of_data()
    result.finish()
    return result


def read(view: SubpartitionView, *, run: int = 0) -> tuple[bytes, list[object]]:
    """Read a view to its end, in runs of buffers. Return the data and the events, and check backlog and numbers."""
    data, events, number = b"", [], 0
    while True:
        together, next_type = view.poll_run(run, 1 << 20) if run else (NO_RUN, DataType.NONE)
        if not together.buffers:
            if (one := view.poll()) is None:
                return data, events
            together, next_type = Run([one.buffer], one.backlog, one.sequence_number), one.next_type
        for buffer, _, sequence in together:
            assert sequence == number
            number += 1
            if buffer.is_buffer:
                data += bytes(buffer.view())
            else:
                events.append(decode_event(bytes(buffer.view())))
        assert view.subpartition.backlog == list(together)[-1][1]
        assert (view.subpartition.backlog > 0) == (next_type is DataType.DATA_BUFFER)


@given(
    writes=st.lists(st.tuples(st.integers(0, 2), st.binary(min_size=1, max_size=100)), max_size=30),
    runs=st.lists(st.integers(0, 4), min_size=1, max_size=3),
)
def test_every_reading_returns_what_was_written_to_the_subpartition(writes, runs) -> None:
    """However it is cut, with subpartitions + 1 buffers, which are all given back before anything is read."""
    network = NetworkBufferPool(16, SEGMENT)
    result = blocking(3, network=network)
    for subpartition, data in writes:
        assert result.emit(subpartition, data) == len(data)
        result.flush_all()
    assert finished(result).all_data_processed
    assert result.pool.used == 0
    for run in runs:
        for index in range(3):
            wanted = b"".join(data for subpartition, data in writes if subpartition == index)
            data, events = read(result.create_view(index, lambda: None), run=run)
            assert data == wanted
            assert [type(event) for event in events] == [EndOfData, EndOfPartition]
    result.release()
    assert network.outstanding == 0


def test_a_result_is_not_read_before_its_end() -> None:
    """The request is refused in Flink's words (SortMergeResultPartition)."""
    result = blocking()
    result.emit(0, b"data")
    with pytest.raises(FlinkError, match="Trying to read unfinished blocking partition"):
        result.create_view(0, lambda: None)


def test_only_an_event_is_sent_without_credit() -> None:
    """As for a pipelined result: the backlog tells the consumer what to announce."""
    result = blocking()
    result.emit(0, bytes(SEGMENT + 1))
    view = finished(result).create_view(0, lambda: None)
    assert view.availability(credit=False) == (False, 2)
    assert view.availability(credit=True) == (True, 2)
    view.poll_run(2, 1 << 20)
    assert view.availability(credit=False) == (True, 0)


def test_a_result_that_was_read_stays_until_it_is_released() -> None:
    """A reader that leaves in the middle, and one that reads to the end."""
    file = io.BytesIO()
    result = blocking(file=file)
    result.emit(0, bytes(100))
    first = finished(result).create_view(0, lambda: None)
    first.poll()
    first.release()
    assert first.poll() is None
    again = result.create_view(0, lambda: None)
    assert len(read(again)[0]) == 100
    again.release()
    assert not result.is_released
    result.release()
    assert file.closed
    with pytest.raises(FlinkError, match=r"Partition released\."):
        result.create_view(0, lambda: None)


def test_a_result_has_a_largest_size(monkeypatch) -> None:
    """More than that fails the producer, as a full disk does."""
    monkeypatch.setattr("testbed_runtime.core.exchange.blocking.MAX_RESULT_BYTES", 2 * SEGMENT)
    result = blocking()
    with pytest.raises(FlinkError, match="A blocking result has at most 64 bytes"):
        result.emit(0, bytes(4 * SEGMENT))


def test_a_file_that_is_too_short_releases_the_result_with_the_error() -> None:
    """Its consumer gets the error; the next one does not find the partition, so the producer runs again."""
    file = io.BytesIO()
    result = blocking(file=file)
    result.emit(0, bytes(100))
    view = finished(result).create_view(0, lambda: None)
    file.truncate(10)
    assert view.poll() is None
    assert view.is_released
    assert view.failure_cause is not None
    assert view.failure_cause.class_name == "IOException"
