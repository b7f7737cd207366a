"""`scenarios/01-latency-spike` on this machine."""

from __future__ import annotations

from tests.e2e.shipped import MARKS, Finished, wanting

pytestmark = MARKS


def test_the_scenario_holds_and_leaves_everything_a_reader_wants(finished: Finished):
    """Pass, and all of its files."""
    assert wanting(finished) == []
