"""`scenarios/18-incremental-state` on this machine."""

from __future__ import annotations

from tests.e2e.shipped import MARKS, Finished, shortcomings

pytestmark = MARKS


def test_the_scenario_passes_and_writes_all_its_files(finished: Finished):
    """Pass, with exit code 0."""
    assert shortcomings(finished) == []
