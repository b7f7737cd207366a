"""Registrations at a JobMaster that does not answer before the slots time out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.core.options import Options
from testbed_runtime.taskmanager.connections import JobConnection
from tests.taskmanager.test_connections import LATE, OPTIONS, Peer, during, offering


@pytest.mark.parametrize(
    ("version", "lost", "ended"),
    [
        ("2.x", False, ("taskmanager.slot.timeout", "expired")),
        ("1.12", False, ("akka.ask.timeout", "expired")),  # it has no option for slots
        ("2.x", True, ("", "cancelled")),
    ],
)
def test_a_registration_that_outlasts_the_last_slot_has_expired(version: str, lost: bool, ended: Any):
    """A wait for a lost JobMaster has another limit."""

    def act(peer: Peer) -> JobConnection:
        peer.scope = replace(peer.scope, options=Options(OPTIONS, flink_version=version))
        return offering("x", lost=lost)(peer)

    peer = during(2.0, act, (1.0, lambda c: c.time_out()), answers=[LATE])
    assert peer.waits[0][3:] == ((2.0 if lost else 1.0), *ended)
