"""Sinks: what they saw is what they say, and nothing is lost between two checkpoints."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.job.jobgraph import SinkConfig, SourceConfig
from testbed_runtime.core.job.messages import CHUNK_RECORDS
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.latency import LatencyHistogram
from testbed_runtime.workload.records import MIN_RECORD_BYTES, SMALL_RECORD_BYTES, stamp_path
from testbed_runtime.workload.sinks import FEW_RECORDS, make_sink
from testbed_runtime.workload.snapshots import SubtaskSnapshot
from testbed_runtime.workload.sources import GeneratedSource, WordSource

CONTEXT = SubtaskContext(2, "sink", 0, 1, 128, 0, ("source", "count", "sink"))


def ledger():
    """A ledger sink."""
    return make_sink(SinkConfig(), CONTEXT, 1)


def batch(first, count, subtask=0, record_bytes=100):
    """Records of a source subtask."""
    config = SourceConfig(record_bytes=record_bytes)
    source = GeneratedSource(config, vertex=0, subtask=subtask, parallelism=2, seed=3, t0_ns=0)
    return source.records(first, count)


def numbers(commit, source="source-0"):
    """Sequence numbers in a commit."""
    found = []
    for name, base, bitmap, *_ in commit.chunks:
        if name == source:
            bits = np.unpackbits(np.frombuffer(bytes.fromhex(bitmap), np.uint8), bitorder="little")
            found += (np.flatnonzero(bits) + base).tolist()
    return found


def wrong(commit):
    """(duplicated, out of order, corrupted), summed."""
    return tuple(sum(chunk[i] for chunk in commit.chunks) for i in (3, 4, 5))


def test_a_cut_says_what_was_written_since_the_last_one():
    """Numbers per source, and the weight."""
    sink = ledger()
    sink.write(batch(4000, 200), 0)
    sink.write(batch(0, 10, subtask=1), 1)
    commit = sink.cut(1)
    assert numbers(commit) == list(range(4000, 4200))
    assert numbers(commit, "source-1") == list(range(10))
    assert (wrong(commit), commit.weight, commit.checkpoint) == ((0, 0, 0), 210, 1)
    sink.completed(1)
    assert sink.cut(2).chunks == ()


def test_a_failed_checkpoint_loses_nothing():
    """Its part travels again, under its own number, until a completion covers it."""
    sink = ledger()
    sink.write(batch(0, 5), 0)
    sink.cut(1)
    sink.write(batch(5, 5), 0)
    second = sink.cut(2)
    assert numbers(second) == [5, 6, 7, 8, 9]
    assert [(part.checkpoint, numbers(part)) for part in second.earlier] == [(1, [0, 1, 2, 3, 4])]
    sink.completed(2)
    assert sink.cut(3).earlier == ()


def test_a_record_that_comes_twice_is_noted_twice():
    """Whether that is once too often depends on the job."""
    sink = ledger()
    sink.write(batch(0, 10), 0)
    sink.write(batch(9, 2), 0)
    assert numbers(sink.cut(1)) == [*range(11), 9]


def test_disorder_is_judged_within_one_path_and_channel():
    """Two ways through the job may interleave; one way may not."""
    one_way, other_way = batch(0, 8), batch(0, 8)
    stamp_path(one_way, 1, 0)
    stamp_path(other_way, 1, 1)
    interleaved = ledger()
    interleaved.write(np.concatenate([one_way[4:8], other_way[0:4]]), 0)
    assert wrong(interleaved.cut(1)) == (0, 0, 0)
    turned = ledger()
    turned.write(one_way[[4, 5, 6, 7, 0, 1, 2, 3]], 0)
    assert wrong(turned.cut(1))[1] == 1


def test_a_torn_record_is_corrupt_and_not_delivered():
    """Its number is not to be trusted."""
    records = batch(0, 6)
    records["words"][2, 0] += 1
    sink = ledger()
    sink.write(records, 0)
    commit = sink.cut(1)
    assert numbers(commit) == [0, 1, 3, 4, 5]
    assert (wrong(commit), commit.weight) == ((0, 0, 1), 5)


def test_a_few_records_of_two_paths_are_noted_like_more():
    """Numbers, weight and disorder do not depend on how many records arrive together."""
    one_way, other_way = batch(0, 8), batch(0, 8, subtask=1)
    stamp_path(one_way, 1, 0)
    arrived = np.concatenate([one_way[[3, 0]], other_way[:4], one_way[4:]])
    few, more = ledger(), ledger()
    for position in range(0, len(arrived), FEW_RECORDS):
        few.write(arrived[position : position + FEW_RECORDS], 0)
    more.write(arrived, 0)
    commit = few.flush()
    assert commit == more.flush()
    assert wrong(commit) == (0, 1, 0)


def test_an_origin_that_does_not_exist_is_named_unknown():
    """A torn header must not end the sink."""
    records = batch(0, 1)
    records["vertex"] = 999
    sink = ledger()
    sink.write(records, 0)
    assert [chunk[0] for chunk in sink.flush().chunks] == ["unknown-0"]


def test_a_file_sink_shows_lines_only_when_their_checkpoint_is_complete():
    """Staged at the barrier under a key of the attempt, published under a key of the checkpoint."""
    words = WordSource(SourceConfig(kind="socket"), vertex=0, subtask=0)
    words.feed(b"to be \n")
    sink = make_sink(SinkConfig(kind="file", path="out"), CONTEXT, 3)
    sink.write(words.take(0), 0)
    key, data = sink.stage(1)
    assert (key, data) == ("out/.staged/1-0-3", b"(to,1)\n(be,1)\n")
    assert sink.snapshot(SubtaskSnapshot(1, "sink", 0, 1, 128)).staged == (key,)
    assert sink.publishable(0) == []
    assert sink.publishable(1) == [("out/part-0-000001", data)]
    assert sink.part_of_staged(key) == "out/part-0-000001"
    assert sink.stage(2) is None


def test_latencies_fall_into_their_buckets():
    """A bound belongs to its bucket; what is above the last has its own."""
    histogram = LatencyHistogram([10, 20, 40])
    histogram.add(np.array([-5, 10, 11, 20, 41]))
    histogram.add(np.array([], dtype=np.int64))
    assert histogram.take() == (5, [2, 2, 0, 1], 41)
    assert histogram.take() == (0, [0, 0, 0, 0], 0)


def test_single_latencies_are_counted_like_a_batch():
    """One value at a time falls into the same buckets."""
    single, batch = LatencyHistogram([10, 20, 40]), LatencyHistogram([10, 20, 40])
    values = [-5, 10, 11, 20, 40, 41]
    for value in values:
        single.add_one(value)
    batch.add(np.array(values))
    assert single.take() == batch.take()


def test_single_records_are_noted_like_a_batch():
    """A repeated, a late and a damaged record count the same, whether they arrive alone or together."""
    arrived = batch(0, 6)[[0, 1, 1, 4, 2, 3, 5]]
    arrived["key"][-1] += 1
    alone, together = ledger(), ledger()
    for position in range(len(arrived)):
        alone.write(arrived[position : position + 1], 0)
    together.write(arrived, 0)
    commit = alone.flush()
    assert commit == together.flush()
    assert numbers(commit) == [0, 1, 2, 3, 4, 1]
    assert wrong(commit) == (0, 1, 1)


@pytest.mark.parametrize(
    "record_bytes", [MIN_RECORD_BYTES, MIN_RECORD_BYTES + 1, MIN_RECORD_BYTES + 9, SMALL_RECORD_BYTES]
)
@given(
    order=st.lists(st.integers(0, 9), min_size=FEW_RECORDS + 1, max_size=12),
    damaged=st.sets(st.integers(0, 11), max_size=3),
    together=st.integers(1, FEW_RECORDS),
)
def test_a_few_records_are_noted_like_many(record_bytes, order, damaged, together):
    """In any order, repeated or damaged, around the border between two chunks of numbers: only with many is numpy used."""
    arrived = batch(CHUNK_RECORDS - 5, 10, record_bytes=record_bytes)[order]
    for position in damaged & set(range(len(order))):
        arrived["due_ns"][position] += 1
    few, many = ledger(), ledger()
    for position in range(0, len(arrived), together):
        few.write(arrived[position : position + together], 1)
    many.write(arrived, 1)
    assert few.uncut == many.uncut
    found, expected = few.flush(), many.flush()
    assert (numbers(found), found.weight) == (numbers(expected), expected.weight)
    assert wrong(found) == wrong(expected)
