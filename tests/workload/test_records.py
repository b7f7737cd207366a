"""Records: a pure function of their number, verifiable, and whole however the stream is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from testbed_runtime.core.errors import RemoteProtocolError
from testbed_runtime.core.exchange.records import frame_fixed
from testbed_runtime.core.job.jobgraph import SourceConfig
from testbed_runtime.workload.records import (
    HEADER_BYTES,
    RecordReader,
    framed,
    head_of,
    intact,
    picked,
    record_dtype,
    stamp_path,
)
from testbed_runtime.workload.sources import GeneratedSource, WordSource


def source(record_bytes=100, seed=7, subtask=0, parallelism=2, **config):
    """One subtask of a source of 1000 records a second, t0 = 0."""
    settings = SourceConfig(record_bytes=record_bytes, **{"records_per_second": 1000.0, **config})
    return GeneratedSource(settings, vertex=0, subtask=subtask, parallelism=parallelism, seed=seed, t0_ns=0)


def test_the_header_is_as_long_as_the_specification_says():
    """spec refuses smaller records by this number."""
    assert record_dtype(HEADER_BYTES).itemsize == HEADER_BYTES
    with pytest.raises(ValueError, match="at least 48"):
        record_dtype(HEADER_BYTES - 1)


@pytest.mark.parametrize("record_bytes", [48, 49, 55, 56, 100, 1000])
def test_every_byte_of_a_record_counts_in_its_checksum(record_bytes):
    """A flipped bit anywhere but in the path is seen."""
    whole = source(record_bytes).records(0, 1)
    assert intact(whole).all()
    for position in range(record_bytes):
        torn = whole.copy()
        torn.view(np.uint8)[position] ^= 0x10
        changed_uncovered = 40 <= position < 44 or 46 <= position < 48
        assert intact(torn)[0] == changed_uncovered, position
        assert head_of(torn)[1] == changed_uncovered, position


@given(st.integers(48, 600), st.integers(0, 2**40))
def test_the_header_of_a_single_record_is_that_of_its_columns(record_bytes, number):
    """Reading one record without numpy gives the same fields and the same verdict on its checksum."""
    record = source(record_bytes).records(number, 1)
    head, good = head_of(record)
    columns = ("vertex", "subtask", "count", "sequence", "key", "due_ns", "checksum", "path", "text", "pad")
    assert astuple(head) == tuple(int(record[name][0]) for name in columns)
    assert good


def test_a_replay_makes_identical_records():
    """Records depend on seed, vertex, subtask and number, not on when or in what batches they are made."""
    once = source().records(0, 500)
    again = np.concatenate([source().records(first, 100) for first in range(0, 500, 100)])
    assert once.tobytes() == again.tobytes()
    assert once.tobytes() != source(seed=8).records(0, 500).tobytes()
    assert source(subtask=1).records(0, 500)["key"].tolist() != once["key"].tolist()


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(0, 200))
def test_what_a_source_hands_out_does_not_depend_on_what_it_made_ahead(sizes, back):
    """Batches of any size, also after it went back to an earlier number; each batch is framed as its copy is."""
    made, number = source(), 0
    for size in [*sizes, *sizes]:
        batch = made.take(10**12, size)
        assert batch.tobytes() == source().records(number, size).tobytes()
        assert bytes(framed(batch)) == bytes(frame_fixed(batch))
        number = made.next_sequence = max(0, made.next_sequence - back)


def test_due_times_interleave_the_subtasks_of_a_vertex():
    """Record n of the vertex is due at t0 + n / rate, whichever subtask creates it."""
    due = sorted(
        [
            *source(subtask=0).records(0, 5)["due_ns"].tolist(),
            *source(subtask=1).records(0, 5)["due_ns"].tolist(),
        ]
    )
    assert due == [n * 1_000_000 for n in range(10)]


def test_an_open_loop_hands_out_what_is_due_and_nothing_else():
    """A backlog comes in batches; before the due time there is nothing."""
    one = source(parallelism=1)
    assert len(one.take(0)) == 1
    assert one.take(999_999) is None
    assert one.next_due_ns() == 1_000_000
    assert len(one.take(3_000_000_000)) == 2048
    assert one.lag_ns(3_000_000_000) == 3_000_000_000 - 2049 * 1_000_000
    assert len(one.take(3_000_000_000, 5000)) == 3001 - 2049


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_limit_is_of_the_whole_vertex(parallelism):
    """The subtasks' shares add up to it, and each ends."""
    total = 0
    for subtask in range(parallelism):
        one = source(subtask=subtask, parallelism=parallelism, limit=10)
        batch = one.take(10**12, 100)
        total += len(batch)
        assert one.exhausted
        assert one.take(10**12) is None
    assert total == 10


def test_skewed_keys_favour_small_ones_and_stay_in_range():
    """Zipf with exponent 1.1 over 100 keys."""
    keys = source(keys=100, key_skew=1.1).records(0, 20_000)["key"]
    counts = np.bincount(keys, minlength=100)
    assert len(counts) == 100
    assert counts[0] > 2 * counts[3] > 4 * counts[40]
    uniform = np.bincount(source(keys=100).records(0, 20_000)["key"], minlength=100)
    assert uniform.min() > 120


@given(st.lists(st.integers(1, 700), min_size=1, max_size=20), st.integers(48, 120))
def test_any_cut_of_the_stream_gives_the_same_records(cuts, record_bytes):
    """A record and its length may span any number of buffers."""
    records = source(record_bytes).records(0, 40)
    stream = frame_fixed(records).tobytes()
    reader, parts, position = RecordReader(), [], 0
    for cut in [*cuts, *[50] * len(stream)]:
        batch = reader.feed([memoryview(stream)[position : position + cut]])
        position += cut
        if batch is not None:
            parts.append(batch)
        if position >= len(stream):
            break
    assert np.concatenate(parts).tobytes() == records.tobytes()


@pytest.mark.parametrize("record_bytes", [48, 49, 100, 1000])
def test_records_are_framed_without_a_copy_where_they_are_laid_out_so(record_bytes):
    """Whichever way records came to be, their bytes on the wire are the same; only where the lengths are missing is copied."""
    made = source(record_bytes).records(0, 9)
    assert framed(made) == frame_fixed(made).data
    assert np.shares_memory(np.asarray(framed(made)), made)
    assert framed(made[2:7]) == frame_fixed(made[2:7]).data
    assert framed(made[::2]) == frame_fixed(made[::2]).data
    assert framed(made[made["sequence"] % 2 == 0]) == frame_fixed(made[::2]).data
    read = RecordReader().feed([framed(made)])
    assert framed(read) == framed(made)
    assert not np.shares_memory(read, made)


@pytest.mark.parametrize("which", [np.array([3, 1, 1, 0]), slice(1, None, 3), slice(9, None)])
def test_picked_records_are_whole_and_framed(which):
    """Partitioners pick by position; the lengths come along."""
    made = source().records(0, 9)
    chosen = picked(made, which)
    assert chosen.tobytes() == made[which].tobytes()
    assert framed(chosen) == frame_fixed(made[which]).data


def test_a_stream_with_an_impossible_length_is_refused():
    """A torn stream is an error of the peer, not a huge allocation."""
    with pytest.raises(RemoteProtocolError, match="corrupted"):
        RecordReader().feed([b"\x7f\xff\xff\xff"])


def test_paths_tell_apart_the_ways_through_a_job():
    """Two ways to one sink give two paths; the checksum stays valid."""
    first, second = source().records(0, 3), source().records(0, 3)
    stamp_path(first, 1, 0)
    stamp_path(second, 1, 1)
    assert first["path"][0] != second["path"][0]
    assert intact(first).all()


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1))
def test_the_path_of_a_single_record_is_the_same_as_in_a_batch(vertex, subtask):
    """A task that gets its records one by one and one that gets them together mix the same path."""
    batch = source().records(0, 3)
    single = batch[1:2].copy()
    for _ in range(2):
        stamp_path(batch, vertex, subtask)
        stamp_path(single, vertex, subtask)
    assert single["path"][0] == batch["path"][1]


def test_words_come_out_of_a_torn_byte_stream():
    """Words may be cut anywhere; the last one ends with the stream; equal words have equal keys."""
    words = WordSource(SourceConfig(kind="socket", record_bytes=64), vertex=0, subtask=0)
    words.feed(b"to be or n")
    words.feed(b"ot to")
    words.feed(b" be")
    words.close()
    records = words.take(5)
    raw = records.view(np.uint8).reshape(len(records), -1)
    texts = [bytes(row[48 : 48 + n]).decode() for row, n in zip(raw, records["text"], strict=True)]
    assert texts == ["to", "be", "or", "not", "to", "be"]
    assert records["key"][0] == records["key"][4]
    assert len(set(records["key"].tolist())) == 4
    assert intact(records).all()
    assert words.exhausted
