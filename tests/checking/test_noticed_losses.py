"""Losses of TaskManagers that are noticed late, or while the JobManager is paused."""

from __future__ import annotations

import pytest

from testbed_runtime.checking.criticalpath import attribute
from testbed_runtime.core.waits import EVERYTHING, Outcome
from tests.checking.test_critical_walk import CLOSED, LIMIT, Parts, rounded
from tests.checking.test_recovery_path import SECOND, path, wait


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (3.0, [("connection", 1.0), ("fencing", 2.0), ("fencing", 0.02), ("slot", 0.01)]),
        (1.2, [("heartbeat", 3.02), ("slot", 0.01)]),  # 0.2 s after the failure was known
    ],
)
def test_a_loss_that_is_noticed_long_after_the_failure_is_no_detection(slots: float, expected: Parts):
    """A closed connection shows it after 1 s. The JobMaster misses heartbeats until 3 s, and the ResourceManager until 3.02 s."""
    waits = [
        CLOSED,
        wait("fencing", 1, 3, Outcome.EXPIRED, who="JobMaster", **LIMIT),
        wait("heartbeat", 0, 3.02, Outcome.EXPIRED, who="ResourceManager", **LIMIT),
        last := wait("slot", slots, 3.03, who="JobMaster"),
    ]
    found = attribute(waits, (), start=0, end=last.end_ns, last=last, detected=SECOND)
    assert rounded([(s.kind, s.seconds) for s in found]) == expected
    assert {s.phase for s in found if s.kind == "fencing"} <= {"slots"}


def test_a_taskmanager_that_is_lost_while_the_jobmanager_is_paused_interrupts_the_pause():
    """The pause began the outage. The loss came 3 s later, and its replacement took longer than the pause."""
    waits = [
        wait("jobmanager", 0, 12, who=EVERYTHING, what="jobmanager"),
        wait("replacement", 3, 23, Outcome.FIRED, who="supervisor", what="tm-2", option="replaceLost"),
        wait("slot", 12.1, 23),
    ]
    assert path(waits, 23, detected=12) == [("jobmanager", 3), ("replacement", 20)]
