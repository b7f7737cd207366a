"""The lease of a leader: acquired, renewed, given up at the renew deadline, taken over when it has expired."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.leaderelection import (
    HIGH_AVAILABILITY,
    RENEW_DEADLINE,
    LeaderElectionConfig,
    LeaderElector,
    Lease,
    revoked_text,
)
from testbed_runtime.core.options import Options

CONFIG = LeaderElectionConfig(lease_duration_s=15, renew_deadline_s=10, retry_period_s=2)


def elector(name: str = "a") -> LeaderElector:
    return LeaderElector(CONFIG, name)


def leading(at: float = 0.0) -> tuple[LeaderElector, Lease]:
    """A leader that acquired the lease at this time."""
    made = elector()
    lease = made.attempt(None, at)
    assert lease is not None
    made.on_written(lease)
    return made, lease


def test_the_defaults_are_flinks_and_high_availability_is_off():
    """15 s, 15 s, 5 s; `NONE`."""
    assert LeaderElectionConfig.of(Options({})) is None
    options = Options({HIGH_AVAILABILITY: "kubernetes"})
    assert LeaderElectionConfig.of(options) == LeaderElectionConfig(15, 15, 5)


def test_the_older_name_of_the_option_acts_too_and_other_services_are_refused():
    """`high-availability` until 1.16; there is no ZooKeeper."""
    assert LeaderElectionConfig.of(Options({"high-availability": "kubernetes"}, flink_version="1.12"))
    with pytest.raises(UserError, match="'zookeeper' is not one of NONE, kubernetes"):
        LeaderElectionConfig.of(Options({HIGH_AVAILABILITY: "zookeeper"}))


def test_a_lease_that_does_not_exist_or_was_released_is_acquired():
    """The number of transitions counts changes of the holder."""
    assert elector().attempt(None, 3) == Lease("a", 3, 3, 0)
    assert elector().attempt(Lease("", 1, 1, 4), 3) == Lease("a", 3, 3, 5)


def test_the_lease_of_another_contender_is_taken_over_when_it_has_expired():
    """Not before lease-duration has passed since it was renewed; when that will be is known."""
    other = Lease("b", 0, 5, 1)
    waiting = elector()
    assert waiting.attempt(other, 19.9) is None
    assert waiting.free_s == 20
    assert waiting.attempt(other, 20) == Lease("a", 20, 20, 2)
    assert not waiting.leading  # it is not written yet


def test_a_renewal_moves_the_deadline_and_keeps_the_time_of_the_acquisition():
    """A leadership is lost renew-deadline after the last renewal, once."""
    leader, lease = leading()
    assert not leader.expired(9.9)
    renewed = leader.attempt(lease, 4)
    assert renewed == Lease("a", 0, 4, 0)
    assert leader.on_written(renewed) is None
    assert not leader.expired(13.9)
    assert leader.expired(14)
    assert not leader.leading
    assert not leader.expired(14)


def test_a_renewal_counts_from_when_it_began():
    """A process that is paused while it writes the lease has lost it: the record is as old as the attempt."""
    leader, lease = leading()
    began = leader.attempt(lease, 2)
    assert began is not None
    leader.on_written(began)  # much later
    assert leader.expired(12)


def test_a_late_renewal_names_the_one_before():
    """More than half of renew-deadline is late. The first acquisition is not."""
    leader, lease = leading()
    late = leader.attempt(lease, 5.1)
    assert late is not None
    assert leader.on_written(late) == 0
    in_time = leader.attempt(late, 10.1)
    assert in_time is not None
    assert leader.on_written(in_time) is None


def test_a_leader_that_finds_another_holder_leads_no_more():
    """It was away for so long that another contender has taken over."""
    leader, _ = leading()
    assert leader.attempt(Lease("b", 8, 8, 1), 9) is None
    assert not leader.leading


def test_only_the_holder_releases_the_lease():
    """A released lease has no holder, so the next attempt succeeds at once."""
    leader, lease = leading()
    assert elector("b").release(lease, 3) is None
    assert leader.release(None, 3) is None
    released = leader.release(lease, 3)
    assert released == Lease("", 3, 3, 0)
    assert elector("b").attempt(released, 3) == Lease("b", 3, 3, 1)


def test_a_contender_waits_with_jitter_and_the_leader_without():
    """1 to 2.2 retry periods, or one."""
    contender = elector()
    assert [contender.pause_s(chance) for chance in (0.0, 0.5)] == [2, pytest.approx(3.2)]
    leader, _ = leading()
    assert leader.pause_s(0.5) == 2


def test_the_text_of_a_loss_is_flinks_and_says_why():
    """`Job leader for job id … lost leadership.`"""
    found = revoked_text("j1", f"The lease was not renewed within {RENEW_DEADLINE} = 5 s.")
    assert found.startswith("Job leader for job id j1 lost leadership. ")
    assert RENEW_DEADLINE in found
