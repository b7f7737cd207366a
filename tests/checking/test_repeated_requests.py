"""Requests for connections that TCP repeats after a fault."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.waits import read_waits
from tests.checking.test_wait_rows import fault
from tests.manifests import trial_entry


@pytest.mark.parametrize(
    ("kind", "ended", "outcome", "ends"),
    [
        ("partition", 6.5, "completed", [6.5, 7]),
        ("partition", 6.8, "completed", [7]),
        ("partition", 5.9, "completed", [7]),  # the request is repeated after 4 s, too
        ("partition", 6.5, "expired", [7]),
        ("restore", 6.5, "completed", [7]),
    ],
)
def test_a_consumer_that_was_cut_off_connects_when_tcp_repeats_its_request(
    history: Any, kind: str, ended: float, outcome: str, ends: list[float]
):
    """The consumer asked for the connection at 2 s. TCP repeats that after 1, 2, 3, 4, 5 and 7 s."""
    built = history.empty()
    built.wait(kind, "sink-0", "map-0", (2, 7), outcome=outcome)
    cut = replace(fault("network.partition"), ended_ns=history.at(ended))
    found = [w for w in read_waits(built.trial(), trial_entry(), [cut], history.at(20)) if w.kind == kind]
    assert [w.end_ns for w in found] == [history.at(t) for t in ends]
    assert [w.fault for w in found] == ["f", ""][: len(ends)]
    assert [w.start_ns for w in found[1:]] == [history.at(t) for t in ends[:-1]]
