"""A ledger sink notes which records arrive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.job import ledger as core_ledger
from testbed_runtime.core.job.ledger import CHUNK_BYTES, Ledger
from testbed_runtime.core.job.messages import CHUNK_RECORDS


def numbers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def seen(bitmap: str, base: int) -> list[int]:
    """The sequence numbers in a chunk's bitmap."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(bitmap), dtype=np.uint8), bitorder="little")
    return [base + int(i) for i in np.flatnonzero(bits)]


def test_numbers_become_bits_of_their_chunk():
    """Bit i, least significant first, is base + i."""
    ledger = Ledger()
    ledger.add("source-0", numbers(0, 1, CHUNK_RECORDS + 3))
    chunks = ledger.take().chunks
    assert [(c[0], c[1]) for c in chunks] == [("source-0", 0), ("source-0", CHUNK_RECORDS)]
    assert chunks[0][2] == "03" + "00" * (CHUNK_BYTES - 1)
    assert seen(chunks[1][2], chunks[1][1]) == [CHUNK_RECORDS + 3]


def test_taking_empties_the_ledger_and_goes_on():
    """Each acknowledgement holds what came since the last one."""
    ledger = Ledger()
    ledger.add("source-0", numbers(0, 1))
    assert ledger.take().chunks
    assert ledger.take().chunks == ()
    ledger.add("source-0", numbers(2))
    (chunk,) = ledger.take().chunks
    assert seen(chunk[2], 0) == [2]
    assert chunk[3:] == (0, 0, 0)


def test_a_number_that_arrives_again_is_in_another_bitmap():
    """Within a batch and across batches; the checker knows whether the job sends the record so often."""
    ledger = Ledger()
    ledger.add("source-0", numbers(0, 1, 1))
    ledger.add("source-0", numbers(1))
    ledger.add_one("source-0", 0, lane=1)
    chunks = ledger.take().chunks
    assert [(c[:2], seen(c[2], 0)) for c in chunks] == [(("source-0", 0), n) for n in ([0, 1], [0, 1], [1])]
    assert {c[3:] for c in chunks} == {(0, 0, 0)}


def test_the_bitmaps_of_a_chunk_are_limited(monkeypatch: pytest.MonkeyPatch):
    """A number that is in none of them is a duplicate."""
    monkeypatch.setattr(core_ledger, "MAX_BITMAPS", 2)
    ledger = Ledger()
    ledger.add("source-0", numbers(7, 7, 7, 7))
    assert [(seen(c[2], 0), c[3]) for c in ledger.take().chunks] == [([7], 2), ([7], 0)]


def test_no_bitmap_has_more_numbers_out_of_order_than_numbers():
    """A history in which one had would be damaged."""
    ledger = Ledger()
    ledger.add("source-0", numbers(0, 1, 0, 1, 0, 1, 0, 1))
    assert [c[4] for c in ledger.take().chunks] == [2, 1, 0, 0]


def test_order_is_judged_within_a_lane():
    """Two ways from a source to a sink may overtake each other; one way may not."""
    apart = Ledger()
    apart.add("source-0", numbers(5), lane=1)
    apart.add("source-0", numbers(4), lane=2)
    assert apart.take().chunks[0][4] == 0
    together = Ledger()
    together.add("source-0", numbers(5, 4), lane=1)
    assert together.take().chunks[0][4] == 1


def test_order_is_judged_across_a_checkpoint():
    """The last number of the part before counts."""
    ledger = Ledger()
    ledger.add("source-0", numbers(7))
    ledger.take()
    ledger.add("source-0", numbers(6))
    assert ledger.take().chunks[0][4] == 1


def test_a_corrupt_record_is_counted_and_its_number_is_not_believed():
    """Its number may be what is corrupt."""
    ledger = Ledger()
    ledger.add("source-0", numbers(0, 1, 2), intact=np.array([True, False, True]))
    (chunk,) = ledger.take().chunks
    assert seen(chunk[2], 0) == [0, 2]
    assert chunk[3:] == (0, 0, 1)


def test_only_corrupt_records_still_make_a_chunk():
    """Otherwise they would never be reported."""
    ledger = Ledger()
    ledger.add("source-0", numbers(9), intact=np.array([False]))
    (chunk,) = ledger.take().chunks
    assert chunk[5] == 1
    assert seen(chunk[2], 0) == []


def test_weights_add_up_until_they_are_taken():
    """A window's record stands for many."""
    ledger = Ledger()
    ledger.add_weight(3)
    ledger.add_weight(4)
    assert ledger.take().weight == 7
    assert ledger.take().weight == 0


@given(st.lists(st.integers(0, 3 * CHUNK_RECORDS), max_size=200), st.integers(1, 20))
def test_nothing_is_forgotten_and_nothing_is_made_up(values: list[int], batch: int):
    """The bits are the records that came."""
    ledger = Ledger()
    for start in range(0, len(values), batch):
        ledger.add("s-0", numbers(*values[start : start + batch]))
    chunks = ledger.take().chunks
    assert sorted(n for c in chunks for n in seen(c[2], c[1])) == sorted(values)
    assert sum(c[3] for c in chunks) == 0


EDGES = [0, 1, 2, 5, CHUNK_RECORDS - 1, CHUNK_RECORDS, CHUNK_RECORDS + 1, 3 * CHUNK_RECORDS]


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.lists(st.sampled_from(EDGES), min_size=1, max_size=6)), max_size=5
    )
)
def test_a_batch_counts_as_its_records_one_by_one(batches: list[tuple[int, list[int]]]):
    """Bits, duplicates and order, in two lanes and several chunks."""
    together, single = Ledger(), Ledger()
    for lane, values in batches:
        together.add("source-0", numbers(*values), lane=lane)
        for value in values:
            single.add_one("source-0", value, lane=lane)
    assert together.take() == single.take()


def test_records_in_a_row_are_marked_from_the_first_to_the_last():
    """A batch with a gap, one without, and one of a single record."""
    for values in (
        [5, 6, 7],
        [5, 7, 8],
        [9],
        [CHUNK_RECORDS - 2, CHUNK_RECORDS - 1],
        [CHUNK_RECORDS - 1, CHUNK_RECORDS],
    ):
        ledger = Ledger()
        ledger.add("source-0", numbers(*values))
        chunks = ledger.take().chunks
        assert [n for c in chunks for n in seen(c[2], c[1])] == values
        assert [c[3:] for c in chunks] == [(0, 0, 0)] * len(chunks)


def test_lanes_and_the_first_number_of_a_source():
    """Number 0 is in order at first, a lane has its own last number, and a corrupt record marks nothing."""
    ledger = Ledger()
    ledger.add_one("source-0", 0)
    ledger.add_one("source-0", 9, lane=1)
    ledger.add("source-0", numbers(1))
    ledger.add_one("source-0", 5, intact=False)
    (chunk,) = ledger.take().chunks
    assert (seen(chunk[2], 0), chunk[3:]) == ([0, 1, 9], (0, 0, 1))
