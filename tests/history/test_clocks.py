"""Offsets between the clocks of processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.history.clocks import EXACT, ClockEstimator


def test_the_same_boot_id_means_offset_zero_exactly():
    """Whatever a sample says."""
    clock = ClockEstimator("b", "b")
    assert clock.offset == EXACT
    assert not clock.sample(sent_ns=0, peer_ns=10**9, received_ns=100)
    assert clock.offset == EXACT


def test_an_unknown_boot_id_is_not_the_same_one():
    """Two empty ones prove nothing."""
    assert ClockEstimator("", "").offset is None


def test_the_sample_with_the_smallest_round_trip_counts():
    """With half of it as uncertainty."""
    clock = ClockEstimator("a", "b")
    assert clock.offset is None
    assert clock.sample(sent_ns=1000, peer_ns=500, received_ns=1400)
    assert (clock.offset.offset_ns, clock.offset.uncertainty_ns) == (700, 200)
    assert not clock.sample(sent_ns=2000, peer_ns=0, received_ns=2900)
    assert clock.sample(sent_ns=3000, peer_ns=2350, received_ns=3100)
    assert (clock.offset.offset_ns, clock.offset.uncertainty_ns) == (700, 50)


def test_a_control_plane_fault_freezes_the_estimate():
    """A round trip then measures the fault."""
    clock = ClockEstimator("a", "b")
    clock.sample(sent_ns=0, peer_ns=0, received_ns=1000)
    before = clock.offset
    clock.freeze()
    assert not clock.sample(sent_ns=0, peer_ns=99, received_ns=2)
    assert clock.offset == before
    clock.thaw()
    assert clock.sample(sent_ns=0, peer_ns=99, received_ns=2)


def test_time_does_not_run_backwards():
    """An answer before its request is a bug."""
    with pytest.raises(ValueError, match="before its request"):
        ClockEstimator("a", "b").sample(sent_ns=10, peer_ns=0, received_ns=9)


@given(
    st.integers(-(10**12), 10**12),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1),
)
def test_the_true_offset_is_within_the_uncertainty(truth: int, samples: list[tuple[int, int, int]]):
    """However lopsided the way there and back."""
    clock = ClockEstimator("a", "b")
    for sent, there, back in samples:
        clock.sample(sent_ns=sent, peer_ns=sent + there - truth, received_ns=sent + there + back)
    assert clock.offset is not None
    assert abs(clock.offset.offset_ns - truth) <= clock.offset.uncertainty_ns
