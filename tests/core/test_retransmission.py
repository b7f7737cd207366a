"""When TCP sends again what a partition has lost, by the times that a real Linux needed."""

import pytest

from testbed_runtime.core.faults.retransmission import connects_at, resumes_at


@pytest.mark.parametrize(
    ("lost", "ends", "arrived"),
    [
        (0.0, 1.06, 1.72),
        (0.0, 3.06, 3.42),
        (0.0, 5.03, 6.80),
        (0.0, 9.08, 13.79),
        (0.0, 12.08, 13.84),
        (0.55, 1.06, 1.40),
        (1.65, 3.06, 3.38),
        (2.75, 5.03, 6.20),
        (4.95, 9.08, 11.92),
        (6.60, 12.08, 13.58),
        (5.00, 12.04, 18.78),
    ],
)
def test_bytes_arrive_when_the_kernel_sends_them_again(lost, ends, arrived):
    """Timeouts that double from 0.2 s on. The kernel's timers are up to a tenth later."""
    assert resumes_at(lost, ends) == pytest.approx(arrived, rel=0.05, abs=0.06)


@pytest.mark.parametrize(("ends", "connected"), [(1.06, 2.04), (9.08, 11.40), (12.08, 19.47)])
def test_a_connection_is_made_when_the_kernel_repeats_its_handshake(ends, connected):
    """Five times after a second each, then after 2, 4, 8 s."""
    assert connects_at(0.0, ends) == pytest.approx(connected, abs=0.6)


def test_the_time_between_two_attempts_has_a_limit():
    """TCP_RTO_MAX, 120 s."""
    assert resumes_at(0.0, 3600.0) - resumes_at(0.0, 3500.0) == pytest.approx(120.0)


def test_what_was_sent_after_a_partition_is_not_late():
    """Nothing was lost."""
    assert resumes_at(5.0, 5.0) == 5.0
