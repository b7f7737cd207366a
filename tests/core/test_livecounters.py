"""Live counters: sums over TaskManagers, and a rate that restarts and silence do not spoil."""

from __future__ import annotations

import pytest

from testbed_runtime.core.job.livecounters import RATE_WINDOW_S, LiveCounters


def test_counts_are_added_and_the_largest_lag_is_kept():
    """One line for the whole job."""
    live = LiveCounters()
    values = live.update(
        {"tm-0-1": {"credits": 3, "lag_s": 0.2}, "tm-1-1": {"credits": 4, "lag_s": 0.1}}, 0.0
    )
    assert values == {"credits": 7.0, "lag_s": 0.2}


def test_the_rate_is_that_of_the_last_two_seconds():
    """A job that stands still shows 0 after the window, not its last rate."""
    live = LiveCounters()
    for step in range(10):
        live.update({"tm-0-1": {"records_in": 500.0 * step}}, step * 0.5)
    assert live.values["records_per_s"] == pytest.approx(1000.0)
    for step in range(5):
        live.update({"tm-0-1": {"records_in": 4500.0}}, 5.0 + step * RATE_WINDOW_S / 4)
    assert live.values["records_per_s"] == 0.0


def test_new_attempts_begin_at_zero_and_do_not_set_the_rate_back():
    """A count below the last one is what came since the restart."""
    live = LiveCounters()
    live.update({"tm-0-1": {"records_in": 9000.0}}, 0.0)
    live.update({"tm-0-1": {"records_in": 300.0}}, 1.0)
    assert live.values["records_per_s"] == pytest.approx(300.0)


def test_a_taskmanager_that_does_not_answer_is_left_out_and_comes_back_where_it_was():
    """A pause is no restart."""
    live = LiveCounters()
    live.update({"tm-0-1": {"records_in": 1000.0, "credits": 5.0}}, 0.0)
    assert "credits" not in live.update({}, 0.5)
    live.update({"tm-0-1": {"records_in": 1100.0}}, 1.0)
    assert live.values["records_per_s"] == pytest.approx(100.0)


def test_one_reading_has_no_rate_yet():
    """Nothing is better than a wrong number."""
    assert "records_per_s" not in LiveCounters().update({"tm-0-1": {"records_in": 10.0}}, 0.0)


def test_a_rate_needs_two_readings_however_far_apart_they_are():
    """The reading that begins the window is the newest one that is at least two seconds old. Readings of the same moment have no
    rate."""
    live = LiveCounters()
    live.update({"tm-0-1": {"records_in": 0.0}}, 0.0)
    assert "records_per_s" not in live.update({"tm-0-1": {"records_in": 10.0}}, 0.0)
    rates = [
        live.update({"tm-0-1": {"records_in": records}}, now)["records_per_s"]
        for now, records in ((10.0, 110.0), (11.0, 210.0), (12.0, 410.0), (12.5, 460.0), (13.0, 480.0))
    ]
    assert rates == [10.0, pytest.approx(200 / 11), 150.0, 140.0, 135.0]
