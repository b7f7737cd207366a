"""Which fault is responsible for a failure."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.rounds import _any_active, responsible
from testbed_runtime.core.faults.kinds import KINDS as FAULTS
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


@pytest.mark.parametrize(("kind", "begun", "blamed"), [("network.reset", 8.9, 1), ("network.half-open", 8.9, 1), ("network.reset", 8.7, 0), ("network.stall", 8.9, 0)])  # fmt: skip
def test_the_fault_that_closed_a_connection_is_to_blame_rather_than_a_silent_one_on_its_producer(
    kind: str, begun: float, blamed: int
):
    """The connection was lost at once, at 9 s. The failure names the producer's TaskManager."""
    effects = [fault("cut", 2, 20, "network.partition", "tm-0"), fault("later", begun, 20, kind, "tm-1")]
    cause = Cause(at(9), "t", "X", "Task", "tm-0-1", kind="connection")
    assert responsible(effects, cause) is effects[blamed]


@pytest.mark.parametrize(("kind", "killed", "blamed"), [("network.reset", 8.95, 1), ("network.half-open", 8.9, 1), ("network.reset", 8.85, 0)])  # fmt: skip
def test_a_taskmanager_that_was_killed_after_a_fault_on_another_one_explains_its_closed_connection(
    kind: str, killed: float, blamed: int
):
    """The reset hit a spare TaskManager at 8.9 s."""
    effects = [fault("spare", 8.9, 20, kind, "tm-4"), fault("kill", killed, 20, "process.kill", "tm-0")]
    cause = Cause(at(9), "t", "X", "Task", "tm-0-1", kind="connection")
    assert responsible(effects, cause) is effects[blamed]


ON_DATA = {"partition", "checkpoint", "failure-report"}
CONTROL = {
    "partition",
    "heartbeat",
    "checkpoint",
    "failure-report",
    "lease",
    "jobmanager",
    "slot",
    "deployment",
}
DELAYING = ("network.latency", "network.duplicate", "network.reorder", "network.bandwidth")
CLOSING = ("network.loss", "network.corrupt", "network.partition", "network.reset", "network.stall", "network.half-open")  # fmt: skip
FRAMES = ("frames.delay", "frames.drop", "frames.withhold-credit")
PROCESSES = ("process.kill", "process.pause", "pod.delete", "pod.evict", "jobmanager.kill", "jobmanager.pause", "heartbeats.mute", "rpc.delay")  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "plane", "causes"),
    [
        (DELAYING, "data", ON_DATA),
        (DELAYING, "rpc", CONTROL),
        (DELAYING, "both", CONTROL),
        (CLOSING, "data", ON_DATA | {"connection"}),
        (CLOSING, "rpc", CONTROL | {"connection"}),
        (CLOSING, "both", CONTROL | {"connection"}),
        (FRAMES, "data", ON_DATA),
        (PROCESSES, "data", CONTROL | {"connection"}),
        (("registration.delay",), "data", {"partition"}),
        (("store.slow", "store.failing"), "data", {"checkpoint", "failure-report", "lease"}),
    ],
)
def test_each_kind_of_fault_explains_its_kinds_of_failures(
    kinds: tuple[str, ...], plane: str, causes: set[str]
):
    """An earlier pause is to blame for the others."""
    for kind in kinds:
        for cause in (*CONTROL, "connection"):
            effects = [
                fault("pause", 1, 10, "process.pause", "tm-0"),
                replace(fault("f", 2, 10, kind), plane=plane),
            ]
            blamed = responsible(effects, Cause(at(9), "t", "X", "Task", "", kind=cause))
            assert blamed is effects[cause in causes], (kind, cause)


def test_the_table_has_every_kind_of_fault():
    """A new kind needs a row in it."""
    assert {
        *DELAYING,
        *CLOSING,
        *FRAMES,
        *PROCESSES,
        "registration.delay",
        "store.slow",
        "store.failing",
    } == set(FAULTS)


@pytest.mark.parametrize(
    ("at_s", "ended", "missed", "active"),
    [(1.9, 9, (), False), (2, 9, (), True), (9, 9, (), True), (9.1, 9, (), False), (9.1, 9, ("f",), True), (9.1, 9, ("g",), False),
     (99, None, (), True), (1.9, None, ("f",), False)],
)  # fmt: skip
def test_a_fault_is_active_from_its_beginning_to_its_end(
    at_s: float, ended: float | None, missed: tuple[str, ...], active: bool
):
    """Both moments included. A fault whose effect is missed later has no end."""
    assert _any_active([fault("f", 2, ended)], missed, at(at_s)) is active
    assert not _any_active([], missed, at(at_s))


@pytest.mark.parametrize(
    ("first", "second", "target", "killed", "blamed"),
    [
        ((1, 4), (2, 8), "jobmanager", (), "first"),
        ((1, 9), (2, 8), "jobmanager", (), "first"),
        ((1, 2), (2, 8), "jobmanager", (), "second"),
        ((1, 4), (2, 8), "tm-0", (), "second"),
        ((1, 4), (2, 8), "jobmanager", (1, "jobmanager"), "first"),
        ((1, 4), (2, 8), "jobmanager", (1.1, "jobmanager"), "second"),
        ((1, 4), (2, 8), "jobmanager", (1.9, "jobmanager"), "second"),
        ((1, 4), (2, 8), "jobmanager", (1.1, "tm-0"), "first"),
    ],
)
def test_pauses_that_overlap_are_one_that_begins_with_the_first(
    first: tuple[float, float],
    second: tuple[float, float],
    target: str,
    killed: tuple[float, str] | tuple[()],
    blamed: str,
):
    """They must be pauses of the same process, which was not killed between their beginnings."""
    effects = [
        fault("first", *first, "jobmanager.pause", target),
        fault("second", *second, "jobmanager.pause", "jobmanager"),
    ]
    if killed:
        effects.append(fault("kill", killed[0], killed[0], "jobmanager.kill", killed[1]))
    found = responsible(effects, Cause(at(8), "t", "X", "JobMaster", "", kind="heartbeat"))
    assert found is not None
    assert found.fault == blamed
