"""`scenarios/11-stalled-neighbour` on this machine."""

from __future__ import annotations

import sys

from tests.e2e.shipped import MARKS, Finished, shortcomings

pytestmark = MARKS
STEPS = ("reader stops", "receive queue full", "window 0", "send queue full", "not writable", "source waits")


def test_the_scenario_passes_and_writes_all_its_files(finished: Finished):
    """Pass, with exit code 0."""
    assert shortcomings(finished) == []


def test_the_sockets_show_how_tcp_pushes_back(finished: Finished):
    """Every step has its time in the variant `tcp`; with credit nothing is sampled."""
    credit, tcp = finished.trials
    assert finished.row(credit, "network.push-back")["reason"] == "NoData"
    if sys.platform == "linux":
        assert 0 < finished.value(tcp, "network.push-back") < 10
        assert all(step in finished.text(tcp, "network.push-back") for step in STEPS)
        assert finished.value(tcp, "network.window-probes") >= 1
