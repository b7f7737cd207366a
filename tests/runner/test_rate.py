"""The rate of records of a job whose TaskManagers report counters with their heartbeats only."""

from __future__ import annotations

from testbed_runtime.runner.trial import Rate


def test_the_rate_is_unknown_until_two_counts_differ_and_survives_a_restart():
    """500 records within 2 s. A count that stays is no news, and one that falls is that of a new attempt."""
    rate = Rate()
    counts = [(0.0, 0.0), (0.0, 1.0), (400.0, 2.0), (400.0, 3.0), (900.0, 4.0), (900.0, 5.0), (10.0, 6.0)]
    assert [rate.update(count, now) for count, now in counts] == [None, None, None, None, 250.0, 250.0, 250.0]
    assert rate.update(60.0, 7.0) == 50.0
