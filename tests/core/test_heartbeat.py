"""Heartbeat monitors: one verdict, by silence or by unreachable calls."""

import pytest

from testbed_runtime.core.errors import OptionRefused
from testbed_runtime.core.job.heartbeat import (
    HeartbeatConfig,
    HeartbeatMonitor,
    HeartbeatState,
    timed_out_text,
    unreachable_text,
)


def test_J_01_a_peer_is_lost_after_the_timeout_since_its_last_beat():
    """Six beats 50 ms apart, then silence: lost at 200 ms, once."""
    monitor = HeartbeatMonitor(HeartbeatConfig(0.05, 0.2, 2), 0.0)
    for beat in range(1, 7):
        assert not monitor.on_time(beat * 0.05)
        monitor.on_heartbeat(beat * 0.05)
    assert monitor.deadline == 0.5
    assert not monitor.on_time(0.49)
    assert monitor.on_time(0.5)
    assert not monitor.on_time(0.6)
    assert monitor.state is HeartbeatState.TIMEOUT


def test_J_02_a_threshold_of_one_is_crossed_by_the_first_unreachable_call():
    """Long before the timeout."""
    monitor = HeartbeatMonitor(HeartbeatConfig(0.02, 10, 1), 0.0)
    assert monitor.on_unreachable()
    assert monitor.state is HeartbeatState.UNREACHABLE


def test_J_89_the_fifth_unreachable_call_crosses_a_threshold_of_five():
    """testHeartbeatManagerMarksTargetUnreachableOnRecipientUnreachableException: long before the timeout of 10 s."""
    monitor = HeartbeatMonitor(HeartbeatConfig(1, 10, 5), 0.0)
    assert [monitor.on_unreachable() for _ in range(5)] == [False] * 4 + [True]
    assert not monitor.on_unreachable()
    assert monitor.state is HeartbeatState.UNREACHABLE


def test_J_03_a_successful_call_resets_the_count():
    """Fail, fail, ok, fail under a threshold of 3."""
    monitor = HeartbeatMonitor(HeartbeatConfig(1, 10, 3), 0.0)
    assert not monitor.on_unreachable()
    assert not monitor.on_unreachable()
    monitor.on_call_success()
    assert not monitor.on_unreachable()
    assert monitor.state is HeartbeatState.RUNNING


def test_J_56_a_threshold_of_minus_one_turns_unreachable_calls_off():
    """As in 1.12."""
    monitor = HeartbeatMonitor(HeartbeatConfig(1, 10, -1), 0.0)
    assert not any(monitor.on_unreachable() for _ in range(100))


def test_a_stall_of_ones_own_extends_the_deadline():
    """Time in which the monitor itself did not run does not count."""
    monitor = HeartbeatMonitor(HeartbeatConfig(1, 5, 2), 0.0)
    monitor.extend(3.0)
    assert not monitor.on_time(7.9)
    assert monitor.on_time(8.0)


def test_a_cancelled_monitor_never_judges():
    """J-90: it is not monitored any more (testTargetUnmonitoring)."""
    monitor = HeartbeatMonitor(HeartbeatConfig(1, 5, 1), 0.0)
    monitor.cancel()
    assert not monitor.on_time(100)
    assert not monitor.on_unreachable()


def test_the_texts_are_flinks():
    """JobMaster and ResourceManager word it differently."""
    assert (
        timed_out_text("JobMaster", "TaskManager", "tm-0-1")
        == "Heartbeat of TaskManager with id tm-0-1 timed out."
    )
    assert (
        timed_out_text("ResourceManager", "TaskManager", "tm-0-1")
        == "The heartbeat of TaskManager with id tm-0-1 timed out."
    )
    assert (
        timed_out_text("JobMaster", "ResourceManager", "rm")
        == "The heartbeat of ResourceManager with id rm timed out."
    )
    assert unreachable_text("TaskManager", "tm-0-1") == "TaskManager with id tm-0-1 is no longer reachable."


@pytest.mark.parametrize(
    ("interval", "timeout", "threshold", "message"),
    [
        (0, 10, 2, "The heartbeat interval must be larger than 0."),
        (5, 4, 2, "The heartbeat timeout should be larger or equal than the heartbeat interval."),
        (
            5,
            10,
            0,
            "The number of failed heartbeat RPC requests has to be larger than 0 or -1 (deactivated).",
        ),
    ],
)
def test_what_heartbeat_services_refuse(interval, timeout, threshold, message):
    """The checkArgument calls of HeartbeatServicesImpl, the same in 1.17 and 2.3."""
    with pytest.raises(OptionRefused) as refused:
        HeartbeatConfig(interval, timeout, threshold)
    assert (refused.value.class_name, refused.value.message) == ("IllegalArgumentException", message)


def test_the_timeout_may_equal_the_interval():
    """HeartbeatServicesImpl only refuses a smaller one."""
    assert HeartbeatConfig(5, 5, -1).timeout_s == 5


@pytest.mark.parametrize(
    ("interval", "timeout", "silence", "late"),
    [(1, 8, 4.0, False), (1, 8, 4.5, True), (4, 8, 6.0, False), (4, 8, 6.5, True), (8, 8, 12.0, False)],
)
def test_a_heartbeat_is_late_after_half_of_the_timeout_and_one_and_a_half_intervals(
    interval: float, timeout: float, silence: float, late: bool
):
    """Whichever is longer. The time of the heartbeat before it is reported, and the deadline counts from the new one."""
    monitor = HeartbeatMonitor(HeartbeatConfig(interval, timeout, 2), 1.0)
    assert monitor.on_heartbeat(2.0) is None
    assert monitor.on_heartbeat(2.0 + silence) == (2.0 if late else None)
    assert (monitor.last_seen, monitor.deadline) == (2.0 + silence, 2.0 + silence + timeout)


def test_a_verdict_is_final():
    """After a timeout, an unreachable peer or the end of monitoring, nothing changes it, and no heartbeat counts."""
    ends = {
        HeartbeatState.TIMEOUT: lambda monitor: monitor.on_time(9.0),
        HeartbeatState.UNREACHABLE: lambda monitor: monitor.on_unreachable(),
        HeartbeatState.CANCELED: lambda monitor: monitor.cancel(),
    }
    for state, end in ends.items():
        monitor = HeartbeatMonitor(HeartbeatConfig(1, 5, 1), 0.0)
        end(monitor)
        assert monitor.state is state
        assert monitor.on_heartbeat(10.0) is None
        assert not monitor.on_time(99.0)
        assert not monitor.on_unreachable()
        monitor.cancel()
        assert (monitor.state, monitor.last_seen, monitor.deadline) == (state, 0.0, 5.0)


def test_a_successful_call_reports_how_many_had_failed():
    """And the count begins at 0 again."""
    monitor = HeartbeatMonitor(HeartbeatConfig(1, 10, 4), 0.0)
    for _ in range(3):
        monitor.on_unreachable()
    assert [monitor.on_call_success(), monitor.on_call_success()] == [3, 0]


def test_an_interval_of_a_millisecond_is_the_shortest():
    """Options count in whole milliseconds."""
    assert HeartbeatConfig(0.001, 0.001, 1).interval_s == 0.001
    with pytest.raises(OptionRefused, match="The heartbeat interval must be larger than 0"):
        HeartbeatConfig(0.0009, 1, 1)
