"""What planners look at in a pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate_operator import objects
from testbed_runtime.api import naming

ENDED = frozenset({"Failed", "Succeeded"})


@dataclass(frozen=True, slots=True)
class PodView:
    name: str
    uid: str
    owner: str
    """Uid of the controller."""
    process: str
    """Logical name: `tm-0`, `jobmanager`."""
    incarnation: int
    config: str
    secret_uid: str
    phase: str
    terminating: bool
    ready: bool
    address: str
    """Empty until it has one."""
    problem: str
    """Why it is not ready, in Kubernetes' words; empty when nothing is said."""

    @property
    def alive(self) -> bool:
        return not self.terminating and self.phase not in ENDED


def view(pod: Mapping[str, Any]) -> PodView:
    """Of a pod that a Testbed's labels are on."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    owner = next((o["uid"] for o in metadata.get("ownerReferences") or () if o.get("controller")), "")
    role = labels.get(naming.LABEL_ROLE, "")
    terminating = bool(metadata.get("deletionTimestamp"))
    return PodView(
        metadata["name"],
        metadata.get("uid", ""),
        owner,
        f"tm-{labels.get(naming.LABEL_ORDINAL, '')}" if role == objects.TASKMANAGER_ROLE else role,
        int(labels.get(naming.LABEL_INCARNATION, "1")),
        labels.get(naming.LABEL_CONFIG, ""),
        (metadata.get("annotations") or {}).get(objects.SECRET_UID, ""),
        status.get("phase", "Pending"),
        terminating,
        not terminating and _condition(status, "Ready").get("status") == "True",
        status.get("podIP", ""),
        problem_of(status),
    )


def problem_of(status: Mapping[str, Any]) -> str:
    """The first thing that keeps a pod from being ready: not scheduled, a container that waits or ended, an eviction."""
    if status.get("phase") in ENDED and status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}".strip(": ")
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', '')}: {scheduled.get('message', '')}"
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".strip(": ")
        if ended:
            return f"the container ended with exit code {ended.get('exitCode')} ({ended.get('reason', '')})"
    return ""


def _condition(status: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    return next((c for c in status.get("conditions") or () if c["type"] == type_), {})
