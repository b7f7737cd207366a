"""Pods that somebody else than a fault removes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest

from testbed_runtime.api import naming
from testbed_runtime.api.views import Pod
from testbed_runtime.core.errors import HeadgateError, TestbedDisrupted
from testbed_runtime.kube.api import Api, ApiError, WatchEvent
from testbed_runtime.kube.disruptions import Disruptions, disrupted


def a_pod(
    uid: str = "u-0", *, phase: str = "Running", deleting: bool = False, **status: Any
) -> dict[str, Any]:
    labels = {naming.LABEL_ROLE: "taskmanager", naming.LABEL_ORDINAL: "0", naming.LABEL_TESTBED: "bench"}
    metadata: dict[str, Any] = {"name": "bench-tm-0", "uid": uid, "labels": labels}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"kind": "Pod", "metadata": metadata, "status": {"phase": phase, **status}}


def conditions(**status: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": value} for kind, value in status.items()]


EVICTED = [
    {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "evicting"}
]
KILLED = [{"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]
OUT_OF_MEMORY = [{"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]


@pytest.mark.parametrize(
    ("pod", "deleted", "words"),
    [
        (a_pod(), False, ""),
        (a_pod(conditions=conditions(Ready="True", ContainersReady="True")), False, ""),
        (a_pod(conditions=conditions(Ready="False", ContainersReady="False")), False, ""),
        (a_pod(conditions=conditions(Ready="False", ContainersReady="True")), False, ""),
        (a_pod(conditions=EVICTED), False, "EvictionByEvictionAPI: evicting"),
        (a_pod(phase="Failed", conditions=EVICTED), True, "EvictionByEvictionAPI: evicting"),
        (a_pod(deleting=True), False, "was deleted"),
        (a_pod(), True, "was deleted"),
        (a_pod(phase="Failed", containerStatuses=KILLED), False, ""),
        (a_pod(phase="Failed", containerStatuses=KILLED, deleting=True), True, ""),
        (a_pod(containerStatuses=OUT_OF_MEMORY), False, "OOMKilled: the container main reached its memory limit"),
    ],
    ids=[
        "nothing", "ready", "paused", "node lost", "evicted", "evicted and gone", "being deleted", "deleted",
        "killed by a fault", "killed and replaced", "out of memory",
    ],
)  # fmt: skip
def test_a_disruption_is_distinguished_from_what_faults_do(
    pod: dict[str, Any], deleted: bool, words: str
) -> None:
    """A killed process has ended and a paused one is not ready: neither is a disruption."""
    found = disrupted(Pod(pod), deleted=deleted)
    assert words in found
    assert bool(found) == bool(words)
    assert not found or "tm-0" in found


class Watched:
    """An API server that reports these events and then nothing."""

    def __init__(self, *events: tuple[str, dict[str, Any]], error: ApiError | None = None) -> None:
        self.events = events
        self.error = error
        self.reported = asyncio.Event()

    async def watch(self, *_: Any, **__: Any):
        for type_, pod in self.events:
            yield WatchEvent(type_, pod)
        self.reported.set()
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()


def outcome(api: Watched, *asked: str) -> str:
    """Return the text of the error of `check`, with its type; empty without one."""

    async def scenario() -> str:
        watching = Disruptions(cast("Api", api), "shop", "bench", set(asked).__contains__)
        watching.open()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(watching.close)
            await api.reported.wait()
            await asyncio.sleep(0)
            try:
                watching.check()
            except HeadgateError as error:
                return f"{type(error).__name__}: {error}"
            return ""

    return asyncio.run(scenario())


def test_a_deletion_by_a_fault_of_the_trial_is_none() -> None:
    """The pod of another uid under the same name is one."""
    events = [("LISTED", a_pod("u-0")), ("SYNCED", {}), ("DELETED", a_pod("u-0")), ("ADDED", a_pod("u-1"))]
    assert outcome(Watched(*events), "u-0") == ""
    assert "was deleted" in outcome(Watched(*events, ("MODIFIED", a_pod("u-1", deleting=True))), "u-0")


def test_a_pod_that_was_deleted_while_the_watch_was_interrupted_is_noticed() -> None:
    """The next list lacks it."""
    events = [
        ("LISTED", a_pod("u-0")), ("SYNCED", {}), ("MODIFIED", a_pod("u-0")), ("LISTED", a_pod("u-1")), ("SYNCED", {})
    ]  # fmt: skip
    assert outcome(Watched(*events)).startswith(f"{TestbedDisrupted.__name__}: the pod of tm-0 was deleted")


LOST = a_pod(conditions=conditions(Ready="False", ContainersReady="True"))


@pytest.mark.parametrize(
    ("events", "words"),
    [([("MODIFIED", LOST)], "NodeNotReady: Kubernetes has lost the node of tm-0's pod"), ([("MODIFIED", LOST), ("MODIFIED", a_pod())], "")],
    ids=["lost", "back"],
)  # fmt: skip
def test_a_node_counts_as_lost_only_if_it_stays_away(
    monkeypatch: pytest.MonkeyPatch, events: list[tuple[str, dict[str, Any]]], words: str
) -> None:
    """After an outage of the API server, every node is not ready for a moment."""
    assert outcome(Watched(*events)) == ""
    monkeypatch.setattr("testbed_runtime.kube.disruptions.NODE_LOST_S", 0.0)
    assert words in outcome(Watched(*events))


def test_pods_that_must_not_be_watched_are_an_error_and_no_disruption() -> None:
    """Otherwise a trial would count although no pod was watched."""
    text = outcome(Watched(error=ApiError(403, "Forbidden", "pods is forbidden")))
    assert text.startswith("HeadgateError: the pods of the Testbed bench cannot be watched")
    assert "pods is forbidden" in text
