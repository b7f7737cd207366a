"""`scenarios/02-taskmanager-killed` on this machine."""

from __future__ import annotations

from tests.e2e.shipped import MARKS, Finished, shortcomings

pytestmark = MARKS


def test_the_scenario_passes_and_writes_all_its_files(finished: Finished):
    """Pass, with exit code 0."""
    assert shortcomings(finished) == []


def test_a_dead_consumer_is_found_by_missing_heartbeats(finished: Finished):
    """The scenario bounds how long that takes. Nothing is lost or duplicated, and there are at most 2 attempts."""
    detect = finished.row("downstream-1", "recovery.detect")
    assert "heartbeat.rpc-failure-threshold" in detect["bounded_by"]
    for trial in ("downstream-1", "upstream-1"):
        assert finished.value(trial, "delivery.lost") == 0
        assert finished.value(trial, "delivery.duplicated") == 0
        assert 1 <= finished.value(trial, "restarts.attempts") <= 2


def test_a_dead_producer_is_found_by_its_closed_connection(finished: Finished):
    """No heartbeat is that fast: the scenario allows half of what they need."""
    detect = finished.row("upstream-1", "recovery.detect")
    assert "close of the TCP connection" in detect["bounded_by"]
