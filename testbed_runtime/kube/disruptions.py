"""Notice pods of a testbed that are removed during a trial by anything but its faults: a drained or lost node, the scheduler, a user.

Such a failover is none of the trial's faults, so the trial is void and repeated. Without this, its verdict would judge the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from testbed_runtime.api import naming
from testbed_runtime.api.views import Pod
from testbed_runtime.core.errors import HeadgateError, TestbedDisrupted
from testbed_runtime.kube.api import DELETED, LISTED, SYNCED, Api
from testbed_runtime.timeouts import cancel_all

NODE_LOST_S = 15.0
"""A node that is not ready for this long counts as lost. A node that only failed to reach the API server is ready again sooner."""


def disrupted(pod: Pod, *, deleted: bool) -> str:
    """Return a sentence about what disrupts the pod; empty if nothing does.

    A pod whose process has already ended, by a fault or by itself, does not count as disrupted when it is deleted: the operator deletes it."""
    if reason := pod.disruption:
        return f"the pod of {pod.process} was disrupted: {reason}"
    if (deleted or pod.terminating) and not pod.ended:
        return f"the pod of {pod.process} was deleted, and no fault of the trial did it"
    return ""


class Disruptions:
    """Watches the pods of one testbed in a task of its own, from `open` to `close`."""

    def __init__(self, api: Api, namespace: str, testbed: str, asked: Callable[[str], bool]) -> None:
        """`asked` returns whether a fault of the trial ended the pod with this uid."""
        self._api = api
        self._namespace = namespace
        self._testbed = testbed
        self._asked = asked
        self._pods: dict[str, Pod] = {}
        self._lost_since: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._found = ""
        self.on_pod: Callable[[Pod], None] = lambda pod: None
        """Called with each new state of a pod that exists."""

    def open(self) -> None:
        self._task = asyncio.create_task(self._watch(), name=f"disruptions {self._testbed}")

    async def close(self) -> None:
        await cancel_all(self._task)

    def check(self) -> None:
        """Raise TestbedDisrupted if a pod was disrupted, or HeadgateError if the pods cannot be watched."""
        if self._found:
            raise TestbedDisrupted(self._found)
        now = asyncio.get_running_loop().time()
        for uid, since in self._lost_since.items():
            if now - since >= NODE_LOST_S:
                lost = self._pods[uid].process
                raise TestbedDisrupted(f"NodeNotReady: Kubernetes has lost the node of {lost}'s pod")
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            raise HeadgateError(f"the pods of the Testbed {self._testbed} cannot be watched: {error}")

    async def _watch(self) -> None:
        listed: set[str] = set()
        labels = {naming.LABEL_TESTBED: self._testbed}
        async for event in self._api.watch("Pod", self._namespace, labels=labels):
            if event.type == SYNCED:
                # an interrupted watch does not report the pods that were deleted meanwhile
                for uid in self._pods.keys() - listed:
                    self._see(self._pods[uid], deleted=True)
                listed = set()
                continue
            pod = Pod(event.object)
            if event.type == LISTED:
                listed.add(pod.uid)
            self._see(pod, deleted=event.type == DELETED)

    def _see(self, pod: Pod, *, deleted: bool) -> None:
        if deleted:
            self._pods.pop(pod.uid, None)
        else:
            self._pods[pod.uid] = pod
            self.on_pod(pod)
        if pod.node_lost and not deleted:
            self._lost_since.setdefault(pod.uid, asyncio.get_running_loop().time())
        else:
            self._lost_since.pop(pod.uid, None)
        if not self._found and not self._asked(pod.uid):
            self._found = disrupted(pod, deleted=deleted)
