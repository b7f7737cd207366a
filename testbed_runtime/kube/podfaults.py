"""pod.delete and pod.evict: by the API server, measured at the pod itself: its uid is gone, or it is going and its containers ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.faults.links import owners_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.kube.api import Api, ApiError
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.ports.storage import HistorySink

BACKEND = "kubernetes"
WHY = "kubernetes: the cluster's API server; needs leave to delete pods"
POLL_S = 0.1
GONE_LIMIT_S = 40.0
"""From the deletion to the pod's end: a grace period of 30 s and some."""


@dataclass(slots=True)
class _Hit:
    fault: Fault
    targets: tuple[str, ...]
    uids: dict[str, str]
    began: float
    watcher: asyncio.Task[None] | None = None
    verified: bool = field(default=False)


class PodFaults:
    """Of one testbed. Rows go to the same table as those of the agents. `close` ends its tasks."""

    def __init__(self, api: Api, namespace: str, testbed: str) -> None:
        self._api = api
        self._namespace = namespace
        self._testbed = testbed
        self._hits: dict[str, _Hit] = {}
        self.sink: HistorySink | None = None

    def holds(self, fault_id: str) -> bool:
        return fault_id in self._hits

    async def inject(self, fault: Fault, *, fault_id: str, targets: Sequence[str]) -> FaultHandle:
        """Each pod once, by its uid. Raises HeadgateError when one is not there, ApiError when that is forbidden."""
        names = owners_of(targets)
        uids = {name: await self._uid(name) for name in names}
        missing = [name for name, uid in uids.items() if not uid]
        if missing:
            raise HeadgateError(f"{fault.kind}: there is no pod {', '.join(missing)}")
        loop = asyncio.get_running_loop()
        hit = _Hit(fault, names, uids, loop.time())
        self._hits[fault_id] = hit
        self._write(hit, "asked", text=WHY)
        for name in names:
            await self._end(fault.kind, naming.pod_name(self._testbed, name), uids[name])
        self._write(hit, "injected", t=hit.began)
        hit.watcher = loop.create_task(self._watch(hit), name=f"pod-gone {fault_id}")
        return FaultHandle(fault_id, BACKEND, WHY, names)

    async def heal(self, fault_id: str) -> None:
        """What was deleted stays so: this only says that the fault's time is over."""
        hit = self._hits.pop(fault_id, None)
        if hit is None:
            return
        await _stop(hit.watcher)
        if not hit.verified:
            self._write(hit, "unverified", text="the pod was not seen to be gone before the fault ended")
        self._write(hit, "ended", text="healed")
        self._write(hit, "clean", measured={"pods": hit.uids})

    async def close(self) -> None:
        for hit in self._hits.values():
            await _stop(hit.watcher)

    async def _end(self, kind: str, pod: str, uid: str) -> None:
        if kind == "pod.evict":
            await self._api.evict(self._namespace, pod, uid=uid)
        else:
            await self._api.delete("v1", "Pod", self._namespace, pod, uid=uid, grace_s=0)

    async def _watch(self, hit: _Hit) -> None:
        loop = asyncio.get_running_loop()
        left = set(hit.uids)
        while left and loop.time() < hit.began + GONE_LIMIT_S:
            for name in sorted(left):
                try:
                    if await self._uid(name) != hit.uids[name]:
                        left.discard(name)
                except ApiError:
                    continue  # the API server is away: asked again
            await asyncio.sleep(POLL_S)
        if not left:
            hit.verified = True
            values = {"after_s": round(loop.time() - hit.began, 3), "pods": hit.uids}
            self._write(hit, "verified", measured=values)

    async def _uid(self, name: str) -> str:
        """Of the pod that lives under this process's name; empty: none."""
        pod = await self._api.get("v1", "Pod", self._namespace, naming.pod_name(self._testbed, name))
        return "" if pod is None or _ended(pod) else str(pod["metadata"]["uid"])

    def _write(
        self,
        hit: _Hit,
        state: str,
        *,
        measured: Mapping[str, Any] | None = None,
        text: str = "",
        t: float | None = None,
    ) -> None:
        if self.sink is None:
            return
        asked = {k: v for k, v in asdict(hit.fault).items() if k not in ("name", "kind", "target")}
        row: dict[str, Any] = {} if t is None else {"t_ns": int(t * 1e9)}
        self.sink.append(
            "faults", **row, fault=hit.fault.name, state=state, kind=hit.fault.kind, backend=BACKEND,
            targets=list(hit.targets), asked=asked, measured=dict(measured or {}), text=text,
        )  # fmt: skip


def _ended(pod: Mapping[str, Any]) -> bool:
    states = pod.get("status", {}).get("containerStatuses") or ()
    going = bool(pod["metadata"].get("deletionTimestamp"))
    return going and bool(states) and all("terminated" in s.get("state", {}) for s in states)


async def _stop(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
