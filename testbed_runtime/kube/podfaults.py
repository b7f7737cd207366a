"""The faults pod.delete and pod.evict, by requests to the API server.

A fault is verified when the pod no longer exists, or is terminating and all its containers have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed_runtime.api import naming
from testbed_runtime.api.views import Pod
from testbed_runtime.core.errors import FaultNotApplied
from testbed_runtime.core.faults.links import owners_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.faults.vocabulary import BACKENDS, POD_BACKEND
from testbed_runtime.faults.agent import fault_row
from testbed_runtime.faults.backend import require_running
from testbed_runtime.kube.api import Api, ApiError
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.timeouts import cancel_all

WHY = f"{POD_BACKEND}: {BACKENDS[POD_BACKEND]}"
POLL_S = 0.1
GONE_LIMIT_S = 40.0
"""Time limit from the deletion to the end of the pod: a grace period of 30 s and some margin."""


@dataclass(slots=True)
class _PodFault:
    fault: Fault
    targets: tuple[str, ...]
    uids: dict[str, str]
    began: float
    watcher: asyncio.Task[None] | None = None
    verified: bool = field(default=False)


class PodFaults:
    """The pod faults of one testbed. They are recorded in the same table as those of the agents. `close` ends the tasks."""

    def __init__(self, api: Api, namespace: str, testbed: str) -> None:
        self._api = api
        self._namespace = namespace
        self._testbed = testbed
        self._active: dict[str, _PodFault] = {}
        self._asked: set[str] = set()
        self.sink: HistorySink | None = None

    def holds(self, fault_id: str) -> bool:
        return fault_id in self._active

    def asked(self, uid: str) -> bool:
        """Return whether a fault ended the pod with this uid."""
        return uid in self._asked

    async def inject(self, fault: Fault, *, fault_id: str, targets: Sequence[str]) -> FaultHandle:
        """Delete or evict each pod once, by its uid. Raises FaultNotApplied if a pod does not exist, ApiError if it is
        forbidden."""
        names = owners_of(targets)
        uids = {name: await self._uid(name) for name in names}
        loop = asyncio.get_running_loop()
        active = _PodFault(fault, names, uids, loop.time())
        self._write(active, "asked", text=WHY)
        try:
            require_running(name for name, uid in uids.items() if not uid)
        except FaultNotApplied as error:
            self._write(active, "failed", text=str(error))
            self._write(active, "clean")
            raise
        self._active[fault_id] = active
        self._asked.update(uids.values())
        for name in names:
            await self._end(fault.kind, naming.pod_name(self._testbed, name), uids[name])
        self._write(active, "injected", t=active.began)
        active.watcher = loop.create_task(self._watch(active), name=f"pod-gone {fault_id}")
        return FaultHandle(fault_id, POD_BACKEND, WHY, names)

    async def heal(self, fault_id: str) -> None:
        """Record the end of the fault. A deleted pod stays deleted."""
        active = self._active.pop(fault_id, None)
        if active is None:
            return
        await cancel_all(active.watcher)
        if not active.verified:
            self._write(active, "unverified", text="the pod still existed when the fault ended")
        self._write(active, "ended", text="healed")
        self._write(active, "clean", measured={"pods": active.uids})

    async def close(self) -> None:
        for active in self._active.values():
            await cancel_all(active.watcher)

    async def _end(self, kind: str, pod: str, uid: str) -> None:
        if kind == "pod.evict":
            await self._api.evict(self._namespace, pod, uid=uid)
        else:
            await self._api.delete("Pod", self._namespace, pod, uid=uid, grace_s=0)

    async def _watch(self, active: _PodFault) -> None:
        loop = asyncio.get_running_loop()
        alive = set(active.uids)
        while alive and loop.time() < active.began + GONE_LIMIT_S:
            for name in sorted(alive):
                try:
                    if await self._uid(name) != active.uids[name]:
                        alive.discard(name)
                except ApiError:
                    continue  # the API server is unreachable: try again
            await asyncio.sleep(POLL_S)
        if not alive:
            active.verified = True
            values = {"after_s": round(loop.time() - active.began, 3), "pods": active.uids}
            self._write(active, "verified", measured=values)

    async def _uid(self, name: str) -> str:
        """Return the uid of the process's pod; empty if no such pod is alive."""
        found = await self._api.get("Pod", self._namespace, naming.pod_name(self._testbed, name))
        if found is None:
            return ""
        pod = Pod(found)
        ended = pod.terminating and bool(pod.containers) and all(c.terminated for c in pod.containers)
        return "" if ended else pod.uid

    def _write(
        self,
        active: _PodFault,
        state: str,
        *,
        measured: Mapping[str, Any] | None = None,
        text: str = "",
        t: float | None = None,
    ) -> None:
        if self.sink is None:
            return
        row = fault_row(active.fault, state, POD_BACKEND, active.targets, measured=measured, text=text, t=t)
        self.sink.append("faults", **row)
