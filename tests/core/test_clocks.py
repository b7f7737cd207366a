"""The difference between two clocks, as a process measures it by its requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.clocks import RECORDED_MAX, ClockComparison, ClockOffset

seconds = st.floats(0, 2.0)


@given(offset=st.floats(-100.0, 100.0), there=seconds, back=seconds)
def test_the_true_difference_is_within_the_uncertainty_however_unequal_the_ways_are(
    offset: float, there: float, back: float
):
    """The own clock is ahead by `offset`."""
    sent = 1000.0
    found = ClockOffset.measured(sent, sent + there - offset, sent + there + back)
    assert abs(found.offset_s - offset) <= found.uncertainty_s + 1e-9


@pytest.mark.parametrize(
    ("offset", "uncertainty", "different"),
    [(0.05, 0.002, True), (-0.05, 0.002, True), (0.05, 0.046, False), (0.004, 0.0, False), (0.0, 1.0, False)],
)
def test_clocks_differ_only_if_the_round_trip_cannot_explain_it(
    offset: float, uncertainty: float, different: bool
):
    """More than 5 ms in either direction."""
    assert ClockOffset(offset, uncertainty).different is different


def recorded(*found: tuple[float, float]) -> list[bool]:
    clocks = ClockComparison()
    return [clocks.worth_recording(ClockOffset(*one)) for one in found]


def test_equal_clocks_are_never_recorded():
    """A process of an ordinary run writes no row."""
    assert recorded((0.0, 0.001), (0.02, 0.019), (-0.3, 0.3)) == [False, False, False]


def test_a_difference_is_recorded_again_when_it_is_much_more_exact_or_contradicted():
    """Not for each answer."""
    found = recorded((0.05, 0.02), (0.05, 0.015), (0.051, 0.004), (0.05, 0.003), (0.0, 0.001), (0.0, 0.001))
    assert found == [True, False, True, False, True, False]


@pytest.mark.parametrize(("offset", "contradicts"), [(0.5, False), (0.5625, True)])
def test_an_offset_contradicts_another_if_their_uncertainties_do_not_overlap(
    offset: float, contradicts: bool
):
    """Those that touch may both be right."""
    assert recorded((0.25, 0.125), (offset, 0.125)) == [True, contradicts]
    assert recorded((-0.25, 0.125), (-offset, 0.125)) == [True, contradicts]


def test_the_rows_of_a_process_are_limited():
    """A clock that is set again and again does not fill the history."""
    found = recorded(*((float(number), 0.0) for number in range(1, 3 * RECORDED_MAX)))
    assert found.count(True) == RECORDED_MAX
