"""`scenarios/02-taskmanager-killed` on this machine."""

from __future__ import annotations

from tests.e2e.shipped import MARKS, Finished, shortcomings

pytestmark = MARKS


def test_the_scenario_passes_and_writes_all_its_files(finished: Finished):
    """Pass, with exit code 0."""
    assert shortcomings(finished) == []


def test_a_dead_consumer_is_found_by_missing_heartbeats(finished: Finished):
    """Within (threshold - 1) … threshold heartbeat intervals, with the room of the scenario for a busy machine; nothing lost or doubled;
    at most 2 attempts."""
    assert 1.5 <= finished.value("downstream-1", "recovery.detect") <= 2.5
    for trial in ("downstream-1", "upstream-1"):
        assert finished.value(trial, "delivery.lost") == 0
        assert finished.value(trial, "delivery.duplicated") == 0
        assert 1 <= finished.value(trial, "restarts.attempts") <= 2


def test_a_dead_producer_is_found_by_its_closed_connection(finished: Finished):
    """Sooner than any heartbeat could tell."""
    detect = finished.row("upstream-1", "recovery.detect")
    assert detect["value"] <= 0.85
    assert "close of the TCP connection" in detect["bounded_by"]
