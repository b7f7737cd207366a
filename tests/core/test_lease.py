"""How faults end: by deadline, by lapse of the lease, by being healed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.faults.lease import LEASE_S, RENEW_EVERY_S, Lease, LeaseState


def test_a_fault_ends_at_its_absolute_deadline():
    """However often it is renewed."""
    lease = Lease(now=0.0, deadline=5.0, lease_s=LEASE_S)
    assert lease.renew(4.9)
    assert lease.poll(4.999) is LeaseState.ACTIVE
    assert lease.poll(5.0) is LeaseState.EXPIRED
    assert not lease.renew(5.0)


def test_a_fault_of_a_run_lapses_ten_seconds_after_its_last_renewal():
    """The runner died: the trial is void."""
    lease = Lease(now=0.0, deadline=100.0, lease_s=LEASE_S)
    assert lease.next_time == 10.0
    assert lease.renew(3.0)
    assert lease.next_time == 13.0
    assert lease.poll(12.99) is LeaseState.ACTIVE
    assert lease.poll(13.0) is LeaseState.LAPSED


def test_a_late_renewal_does_not_bring_a_fault_back():
    """This holds without a poll in between."""
    lease = Lease(now=0.0, deadline=100.0, lease_s=LEASE_S)
    assert not lease.renew(10.0)
    assert lease.state is LeaseState.LAPSED


def test_a_stand_alone_fault_needs_no_renewal():
    """Its deadline is all that ends it."""
    lease = Lease(now=0.0, deadline=60.0)
    assert lease.poll(59.0) is LeaseState.ACTIVE
    assert lease.next_time == 60.0
    assert lease.poll(60.0) is LeaseState.EXPIRED


def test_a_late_poll_reports_what_came_first():
    """A holder that was stalled past both times must say lapsed when the lease lapsed before the deadline."""
    assert Lease(now=0.0, deadline=11.0, lease_s=10.0).poll(50.0) is LeaseState.LAPSED
    assert Lease(now=0.0, deadline=9.0, lease_s=10.0).poll(50.0) is LeaseState.EXPIRED
    assert Lease(now=0.0, deadline=10.0, lease_s=10.0).poll(10.0) is LeaseState.EXPIRED


def test_the_first_end_stays_the_reason():
    """Healing what expired is harmless and changes nothing."""
    lease = Lease(now=0.0, deadline=5.0)
    assert lease.heal(1.0) is LeaseState.HEALED
    assert lease.poll(6.0) is LeaseState.HEALED
    expired = Lease(now=0.0, deadline=5.0)
    assert expired.heal(7.0) is LeaseState.EXPIRED


@given(st.lists(st.floats(0.1, 20.0), max_size=30), st.floats(1.0, 60.0))
def test_no_fault_outlives_its_deadline_or_its_lease(pauses: list[float], deadline: float):
    """Whatever the pattern of renewals."""
    lease = Lease(now=0.0, deadline=deadline, lease_s=LEASE_S)
    now = last = 0.0
    for pause in pauses:
        now += pause
        if lease.renew(now):
            assert now < deadline
            assert now - last < LEASE_S
            last = now
    assert lease.poll(max(now, last) + LEASE_S) is not LeaseState.ACTIVE


def test_a_runner_has_three_chances_to_renew():
    """One lost message must not void a trial."""
    assert 3 * RENEW_EVERY_S < LEASE_S
