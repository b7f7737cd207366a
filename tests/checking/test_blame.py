"""Which fault is responsible for a failure."""

from __future__ import annotations

import pytest

from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.rounds import responsible
from testbed_runtime.core.job.causes import RECOVERED
from tests.checking.test_outages import at, fault


@pytest.mark.parametrize(
    ("faults", "recovered", "other"),
    [
        ([("jobmanager.kill", "jobmanager"), ("frames.drop", "tm-1")], 0, 1),
        ([("pod.delete", "jobmanager"), ("frames.drop", "tm-1")], 0, 1),
        ([("process.kill", "jobmanager"), ("jobmanager.pause", "jobmanager")], 0, 1),
        ([("frames.drop", "tm-1"), ("jobmanager.pause", "jobmanager"), ("frames.drop", "tm-1")], 1, 2),
        ([("network.partition", "jobmanager"), ("frames.drop", "tm-1")], 1, 1),
        ([("process.kill", "tm-1"), ("frames.drop", "tm-1")], 1, 1),
    ],
)
def test_a_recovered_job_lost_its_jobmanager(faults: list[tuple[str, str]], recovered: int, other: int):
    """A fault that killed it is responsible, else one that paused it, else the last fault, as for any other failure."""
    effects = [fault(str(n), n, n + 0.5, kind, target) for n, (kind, target) in enumerate(faults)]
    for cause_class, expected in ((RECOVERED, recovered), ("E", other)):
        blamed = responsible(effects, Cause(at(9), "t", cause_class, "Task", ""))
        assert blamed is effects[expected]


@pytest.mark.parametrize(
    ("kind", "t", "name"), [("checkpoint", 9, "full"), ("checkpoint", 11, "kill"), ("lease", 9, "full"), ("heartbeat", 9, "kill")]
)  # fmt: skip
def test_a_store_that_fails_is_to_blame_for_checkpoints_although_a_process_was_killed_later(
    kind: str, t: float, name: str
):
    """While it lasts, and for no failure of a process."""
    effects = [fault("full", 2, 10, "store.failing"), fault("kill", 4, 5, "process.kill", "tm-0")]
    blamed = responsible(effects, Cause(at(t), "t", "X", "JobMaster", "", kind=kind))
    assert blamed is not None
    assert blamed.fault == name


@pytest.mark.parametrize(
    ("kind", "target", "ended", "blamed"),
    [
        ("process.kill", "tm-0", 5, False),
        ("process.pause", "tm-0", 20, False),
        ("rpc.delay", "jobmanager", 20, False),
        ("jobmanager.pause", "jobmanager", 20, True),
        ("jobmanager.kill", "jobmanager", 8.95, True),
        ("jobmanager.pause", "jobmanager", 8.5, False),
    ],
)
def test_a_function_that_raises_an_error_is_no_effect_of_a_fault(
    kind: str, target: str, ended: float, blamed: bool
):
    """Except that a JobManager which had stopped hears of it late. A fault that begins later has nothing to do with it either."""
    effects = [fault("f", 4, ended, kind, target), fault("later", 12, 13, "jobmanager.pause", "jobmanager")]
    raised = Cause(at(9), "t", "ValueError", "Task", "", own=True)
    assert responsible(effects, raised) is (effects[0] if blamed else None)


@pytest.mark.parametrize(
    ("kind", "closes"),
    [
        ("network.reset", True),
        ("network.partition", True),
        *((f"network.{kind}", False) for kind in ("latency", "bandwidth", "duplicate", "reorder")),
        ("frames.drop", False),
    ],
)
def test_a_fault_that_closes_no_connection_is_not_to_blame_for_a_lost_one(kind: str, closes: bool):
    """The pause before it may have closed it."""
    effects = [fault("pause", 2, 10, "process.pause", "tm-0"), fault("later", 4, 10, kind, "tm-1")]
    blamed = responsible(effects, Cause(at(9), "t", "X", "Task", "", kind="connection"))
    assert blamed is effects[closes]
