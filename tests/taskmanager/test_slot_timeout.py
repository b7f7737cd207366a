"""Registrations at a JobMaster that does not answer before the slots time out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.core.options import Options
from testbed_runtime.taskmanager.connections import JobConnection
from tests.taskmanager.test_connections import LATE, OPTIONS, Peer, during, offering


@pytest.mark.parametrize(
    ("options", "lost", "ended"),
    [
        ({"taskmanager.slot.timeout": "1 s"}, False, ("taskmanager.slot.timeout", "expired")),
        ({"pekko.ask.timeout": "1 s"}, False, ("pekko.ask.timeout", "expired")),  # unless it is set
        ({"taskmanager.slot.timeout": "1 s"}, True, ("", "cancelled")),
    ],
)
def test_a_registration_that_outlasts_the_last_slot_has_expired(options: Any, lost: bool, ended: Any):
    """A wait for a lost JobMaster has another limit."""

    def act(peer: Peer) -> JobConnection:
        peer.scope = replace(peer.scope, options=Options(OPTIONS | options))
        return offering("x", lost=lost)(peer)

    peer = during(2.0, act, (1.0, lambda c: c.time_out()), answers=[LATE])
    assert peer.waits[0][3:] == ((2.0 if lost else 1.0), *ended)
