"""How long the pods that replace others waited for a node and for their image."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from testbed_runtime.api import naming
from testbed_runtime.api.views import HOW_TO_SCHEDULE, Pod
from testbed_runtime.kube.podstarts import PodStarts
from testbed_runtime.ports.storage import HistorySink

OPENED = 1_767_225_600.5
NS = 1_000_000_000


class Rows:
    """A `ports.storage.HistorySink` that keeps its rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[str, Any]]] = []

    def append(self, table: str, **row: Any) -> None:
        self.rows.append((table, row))


class Clock:
    def __init__(self) -> None:
        self.now = OPENED

    def __call__(self) -> float:
        return self.now


def at(seconds: float) -> str:
    """A time in whole seconds since the testbed was opened, as Kubernetes writes it."""
    return datetime.fromtimestamp(int(OPENED) + seconds, UTC).isoformat().replace("+00:00", "Z")


def a_pod(
    *,
    created: float = 2,
    scheduled: float | None = 3,
    started: tuple[float | None, ...] = (5,),
    role: str = "taskmanager",
    uid: str = "u-1",
) -> Pod:
    """The second pod of tm-1. None: not yet."""
    labels = {naming.LABEL_ROLE: role, naming.LABEL_ORDINAL: "1", naming.LABEL_INCARNATION: "2"}
    condition: dict[str, Any] = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no node",
    }
    if scheduled is not None:
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(scheduled)}
    states = [
        {"waiting": {"reason": "ContainerCreating"}} if s is None else {"running": {"startedAt": at(s)}}
        for s in started
    ]
    return Pod(
        {
            "kind": "Pod",
            "metadata": {"name": "bench-tm-1", "uid": uid, "labels": labels, "creationTimestamp": at(created)},
            "status": {"conditions": [condition], "containerStatuses": [{"state": state} for state in states]},
        }
    )  # fmt: skip


def recorded(*pods: Pod, seen_at: float = 6, close: bool = False) -> list[tuple[Any, ...]]:
    """Return what is recorded of these states of pods: kind, subject, start and end in seconds since the opening, outcome, cause."""
    clock, history = Clock(), Rows()
    starts = PodStarts(cast("HistorySink", history), clock)
    clock.now = OPENED + seen_at
    for pod in pods:
        starts.see(pod)
    if close:
        starts.close()
    begin = int(OPENED) * NS
    return [
        (
            r["kind"],
            r["what"],
            (r["start_ns"] - begin) / NS,
            (r["t_ns"] - begin) / NS,
            r["outcome"],
            r["cause"],
        )
        for table, r in history.rows
        if table == "waits"
    ]


NAME = "tm-1-" + str(naming.first_incarnation(2))


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        # two states: only the one in which all containers run counts
        ([a_pod(started=(5, None)), a_pod(started=(5, 7))], [(2, 3), (3, 7)]),
        ([a_pod(), a_pod()], [(2, 3), (3, 5)]),
        ([a_pod(scheduled=2, started=(2,))], [(2, 2), (2, 2)]),
    ],
    ids=["with a second container", "once", "within one second"],
)
def test_a_pod_that_runs_has_waited_for_a_node_and_for_its_image(pods: list[Pod], expected: list[Any]):
    """The wait for a node begins with its creation, the other one ends with the start of its last container."""
    kinds = zip(("pending", "image"), expected, strict=True)
    assert recorded(*pods) == [(kind, NAME, *times, "completed", "") for kind, times in kinds]


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (
            a_pod(scheduled=None, started=()),
            [("pending", NAME, 2, 8.5, "open", f"Unschedulable: no node; {HOW_TO_SCHEDULE}")],
        ),
        (
            a_pod(started=(None,)),
            [("pending", NAME, 2, 3, "completed", ""), ("image", NAME, 3, 8.5, "open", "")],
        ),
    ],
    ids=["no node", "no image"],
)
def test_what_a_pod_still_waits_for_is_recorded_at_the_end(pod: Pod, expected: list[Any]):
    """With Kubernetes' reason."""
    assert recorded(pod) == []
    assert recorded(pod, seen_at=8, close=True) == expected


@pytest.mark.parametrize(
    ("pod", "seen_at"),
    [
        (a_pod(role="jobmanager"), 6),
        (a_pod(created=-1, scheduled=0, started=(1,)), 6),
        (a_pod(), 3 * 3600),
        (a_pod(), -30),
    ],
    ids=["the JobManager", "a pod from before the trial", "a clock that is ahead", "a clock that is behind"],
)
def test_other_pods_are_not_recorded(pod: Pod, seen_at: float):
    """First starts are over when a trial begins, and times of another clock would be wrong."""
    assert recorded(pod, seen_at=seen_at, close=True) == []
