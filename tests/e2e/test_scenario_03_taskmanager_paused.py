"""`scenarios/03-taskmanager-paused` on this machine."""

from __future__ import annotations

from tests.e2e.shipped import MARKS, Finished, shortcomings

pytestmark = MARKS


def test_the_scenario_passes_and_writes_all_its_files(finished: Finished):
    """Pass, with exit code 0."""
    assert shortcomings(finished) == []


def test_a_pause_is_found_by_silence_and_its_zombie_commits_nothing(finished: Finished):
    """The scenario bounds how long that takes. The text is one of Flink's two, and nothing is committed twice."""
    assert "heartbeat.timeout" in finished.row("short-timeout-1", "recovery.detect")["bounded_by"]
    assert finished.text("short-timeout-1", "detection.text").endswith("timed out.")
    assert "eartbeat of TaskManager with id tm-" in finished.text("short-timeout-1", "detection.text")
    assert finished.value("short-timeout-1", "delivery.duplicated") == 0
    assert finished.value("long-timeout-1", "failovers.count") == 0
