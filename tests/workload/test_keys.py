"""Key groups: Flink's arithmetic over arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.exchange.partition import EVERY
from testbed_runtime.core.job.keygroups import group_range
from testbed_runtime.workload.keys import key_groups, key_hashes, murmur_hashes, subtasks_of
from testbed_runtime.workload.partitioners import SMALL_KEYS, Partitioner
from testbed_runtime.workload.records import Block, RecordReader, record_dtype


def murmur(code: int) -> int:
    """The hash of one int with plain integers, as an oracle."""
    mask = 0xFFFFFFFF
    code = code * 0xCC9E2D51 & mask
    code = (code << 15 | code >> 17) & mask
    code = code * 0x1B873593 & mask
    code = (code << 13 | code >> 19) & mask
    code = (code * 5 + 0xE6546B64) & mask
    code ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        code = (code ^ code >> shift) * factor & mask
    code ^= code >> 16
    signed = code - (1 << 32) if code >> 31 else code
    return 0 if signed == -(1 << 31) else abs(signed)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, 32768))
def test_the_array_form_agrees_with_plain_integers(keys, max_parallelism):
    """Hash, murmur, modulo."""
    array = np.array(keys, dtype=np.int64)
    hashes = [(k & 0xFFFFFFFFFFFFFFFF ^ (k & 0xFFFFFFFFFFFFFFFF) >> 32) & 0xFFFFFFFF for k in keys]
    assert key_hashes(array).view(np.uint32).tolist() == hashes
    assert key_groups(array, max_parallelism).tolist() == [murmur(h) % max_parallelism for h in hashes]


@pytest.mark.parametrize("code", [0, 1, -1, 42, 2**31 - 1, -(2**31)])
def test_the_murmur_hash_is_never_negative(code):
    """It indexes groups."""
    assert 0 <= murmur_hashes(np.array([code], dtype=np.int32))[0] < 2**31


@pytest.mark.parametrize(
    ("code", "expected"), [(0, 0x2362F9DE), (-1, 0x76293B50), (-0x789ABCDF, 2**32 - 0xF55B516B)]
)
def test_the_murmur_hash_is_that_of_four_bytes(code, expected):
    """The known values of MurmurHash3 with seed 0 for 00000000, FFFFFFFF and 21436587; Flink takes the absolute value."""
    assert murmur_hashes(np.array([code], dtype=np.int32)).tolist() == [expected]


def test_keys_spread_over_the_groups():
    """10,000 keys leave no group of 128 empty."""
    assert set(key_groups(np.arange(10_000), 128).tolist()) == set(range(128))


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism"), [(1, 128), (2, 128), (3, 128), (7, 10), (128, 128)]
)
def test_key_group_ranges_cover_everything_once_and_agree_with_the_routing(parallelism, max_parallelism):
    """A record goes to the subtask that keeps its key group."""
    groups = np.arange(max_parallelism)
    owners = subtasks_of(groups, parallelism, max_parallelism).tolist()
    for subtask in range(parallelism):
        mine = group_range(subtask, parallelism, max_parallelism)
        assert [g for g in range(max_parallelism) if owners[g] == subtask] == list(mine)


def records(keys):
    """Records with these keys, numbered."""
    made = np.zeros(len(keys), record_dtype(48))
    made["key"] = keys
    made["sequence"] = np.arange(len(keys))
    return made


def split(partitioner, batch):
    """The subpartitions that get some of the records, each with those records."""
    found = []
    for index, data, count in partitioner.parts(batch):
        part = RecordReader().feed([data])
        assert len(part) == count
        found.append((index, part))
    return found


def test_hash_keeps_a_key_in_one_place_and_in_order():
    """Each key has one subpartition; sequence numbers rise in each."""
    partitioner = Partitioner("hash", 4, 128)
    seen = {}
    for _ in range(3):
        for index, part in split(partitioner, records([5, 9, 5, 1, 7, 9, 3, 5])):
            assert (np.diff(part["sequence"].astype(int)) > 0).all()
            for key in part["key"].tolist():
                assert seen.setdefault(key, index) == index
    assert len(set(seen.values())) > 1


@given(st.lists(st.sampled_from([0, 1, 77, SMALL_KEYS - 1, SMALL_KEYS, -1, 2**62]), min_size=1, max_size=9))
def test_hash_agrees_with_the_key_groups_for_small_and_large_keys(keys):
    """Small keys are looked up, batches for one subpartition are not copied: neither changes who gets a record."""
    owners = subtasks_of(key_groups(np.array(keys), 128), 5, 128).tolist()
    found = {
        int(number): index
        for index, part in split(Partitioner("hash", 5, 128), records(keys))
        for number in part["sequence"]
    }
    assert [found[number] for number in range(len(keys))] == owners


def test_rebalance_deals_records_round_robin_across_batches():
    """Twelve records over three subpartitions in batches of five: four each."""
    partitioner = Partitioner("rebalance", 3, 128, start=2)
    counts = [0, 0, 0]
    first = None
    for size in (5, 5, 2):
        for index, part in split(partitioner, records(range(size))):
            counts[index] += len(part)
            if first is None and 0 in part["sequence"]:
                first = index
    assert counts == [4, 4, 4]
    assert first == 2


def test_J_107_equal_keys_go_to_the_same_subpartition_however_many_there_are():
    """KeyGroupStreamPartitionerTest.testSelectChannelsGrouping: of 1, 2 and 1024."""
    for subpartitions in (1, 2, 1024):
        partitioner = Partitioner("hash", subpartitions, 1024)
        (first,), (second,) = (split(partitioner, records([key])) for key in (42, 42))
        assert first[0] == second[0]


@pytest.mark.parametrize("start", [0, 1, 2])
def test_J_108_rebalance_goes_on_with_the_next_subpartition(start):
    """RebalancePartitionerTest.testSelectChannelsInterval: of three, after whichever was the first."""
    partitioner = Partitioner("rebalance", 3, 128, start=start)
    chosen = [index for _ in range(4) for index, _ in split(partitioner, records([7]))]
    assert chosen == [(start + number) % 3 for number in range(4)]


@pytest.mark.parametrize("subpartitions", [1, 2, 1024])
def test_J_109_forward_always_goes_to_the_first_subpartition(subpartitions):
    """ForwardPartitionerTest.testSelectChannelsInterval."""
    partitioner = Partitioner("forward", subpartitions, 1024)
    assert [index for _ in range(2) for index, _ in split(partitioner, records([7]))] == [0, 0]


def test_broadcast_sends_everything_everywhere_and_forward_to_one():
    """Nothing is left out, nothing is sent for no records."""
    batch = records([1, 2, 3])
    assert [(i, len(p)) for i, p in split(Partitioner("broadcast", 2, 128), batch)] == [(EVERY, 3)]
    assert [(i, len(p)) for i, p in split(Partitioner("forward", 1, 128), batch)] == [(0, 3)]
    for partitioning in ("hash", "rebalance", "forward", "broadcast"):
        assert split(Partitioner(partitioning, 2, 128), batch[:0]) == []
    with pytest.raises(ValueError, match="unknown partitioning"):
        Partitioner("shuffle", 2, 128)


@given(
    st.sampled_from(["hash", "rebalance", "forward", "broadcast"]),
    st.lists(st.integers(0, 500), min_size=1, max_size=40),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_the_parts_of_a_block_go_where_the_same_records_go_alone(partitioning, keys, sizes):
    """A source's block is divided once: each of its parts is what the division of those records alone gives."""
    alone, together = Partitioner(partitioning, 3, 128), Partitioner(partitioning, 3, 128)
    batch, start = records(keys), 0
    block = Block(batch)
    for size in sizes:
        end = min(start + size, len(batch))
        if start < end:
            expected = [(index, bytes(data), count) for index, data, count in alone.parts(batch[start:end])]
            found = together.parts_of(block, start, end)
            assert [(index, bytes(data), count) for index, data, count in found] == expected
        start = end


def test_another_block_is_divided_anew():
    """The division of the last block is not used for the next one."""
    partitioner = Partitioner("hash", 4, 128)
    for keys in ([1, 2, 3, 4], [40, 30, 20, 10]):
        batch = records(keys)
        expected = [
            (index, bytes(data), n) for index, data, n in Partitioner("hash", 4, 128).parts(batch[:3])
        ]
        found = partitioner.parts_of(Block(batch), 0, 3)
        assert [(index, bytes(data), count) for index, data, count in found] == expected
