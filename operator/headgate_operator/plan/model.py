"""The result of a planner: actions on the API server and on fault agents, a status, and when to look again. Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from headgate_operator.plan.conditions import tail
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import Status
from testbed_runtime.api.views import Manifest, Pod, Resource

UNSCHEDULABLE = "Unschedulable"
NOT_STARTED = "PodNotStarted"
NOT_CREATED = "PodNotCreated"
START_LIMIT_S = 600.0
"""How long a pod may wait to be admitted, for a node or for its image: an autoscaler needs some minutes to add a node."""
MAX_RESTARTS = 5
"""How often a pod of a run or study is recreated, or its container restarts, before the run or study fails."""


class Key(Struct, frozen=True):
    """An object of one of Headgate's kinds (`Testbed`)."""

    kind: str
    namespace: str
    name: str


class Apply(Struct, frozen=True):
    """Apply a whole object by server-side apply; harmless when nothing differs."""

    manifest: Manifest


class Create(Struct, frozen=True):
    """Create an object that is never changed, such as a pod. AlreadyExists is ignored."""

    manifest: Manifest


class Delete(Struct, frozen=True):
    """Delete with background propagation. NotFound is ignored; `uid` protects a newer object of the same name."""

    kind: str
    namespace: str
    name: str
    uid: str = ""
    grace_s: int | None = None


class SetFinalizers(Struct, frozen=True):
    """Set exactly these finalizers on the object that is reconciled; the planner includes those of others."""

    finalizers: tuple[str, ...]


class Patch(Struct, frozen=True):
    """Merge a patch into another object's spec or metadata."""

    kind: str
    namespace: str
    name: str
    patch: Manifest


class Emit(Struct, frozen=True):
    """Post an Event on the object that is reconciled. The same reason and text within an hour are counted, not repeated."""

    type: str
    """`Normal` or `Warning`."""
    reason: str
    text: str


class Ask(Struct, frozen=True):
    """Call fault agents or evict a pod; the handler does it, and the next observation shows the result.

    `what` is `inject`, `heal`, `heal-all` or `evict`; `body` is its argument."""

    what: str
    body: Mapping[str, Any] = field(default_factory=dict)


Action = Apply | Create | Delete | SetFinalizers | Patch | Emit | Ask


class Plan(Struct, frozen=True):
    """`status` is the whole status; None leaves it as it is. It is written before the actions are carried out."""

    actions: tuple[Action, ...] = ()
    status: Status | None = None
    requeue_after_s: float | None = None


def delete(kind: str, obj: Resource, *, grace_s: int | None = None) -> Delete:
    """Return the deletion of exactly this object."""
    return Delete(kind, obj.namespace, obj.name, obj.uid, grace_s)


def release(obj: Resource, *events: Emit) -> Plan:
    """Remove Headgate's finalizer, so that the API server removes a deleted object."""
    return Plan((*events, *drop_finalizer(obj)))


def add_finalizer(obj: Resource) -> list[Action]:
    """Return the addition of Headgate's finalizer; empty if the object has it."""
    if naming.FINALIZER in obj.finalizers:
        return []
    return [SetFinalizers((*obj.finalizers, naming.FINALIZER))]


def drop_finalizer(obj: Resource) -> list[Action]:
    """Return the removal of Headgate's finalizer; empty if the object does not have it."""
    if naming.FINALIZER not in obj.finalizers:
        return []
    return [SetFinalizers(tuple(f for f in obj.finalizers if f != naming.FINALIZER))]


def finalizers_patch(obj: Resource, finalizers: Sequence[str]) -> Manifest:
    """Return the patch that sets exactly these finalizers. The resource version makes a concurrent change a conflict."""
    return {"metadata": {"finalizers": list(finalizers) or None, "resourceVersion": obj.resource_version}}


def heal_skipped(obj: Resource) -> Emit | None:
    """Return the Event about a deletion whose annotation skips the healing, or None."""
    if obj.annotations.get(naming.ANNOTATION_SKIP_HEAL) != "true":
        return None
    text = f"finalizer removed without healing, as {naming.ANNOTATION_SKIP_HEAL} requests"
    return Emit("Warning", "HealSkipped", text)


def overdue(pods: Iterable[Pod], now: float) -> tuple[str, str]:
    """Return the reason, and Kubernetes' messages about the pods that have waited too long for a node or, once scheduled, for their image or
    a volume. Both are empty if no pod has waited too long."""
    alive = [p for p in pods if p.alive]
    if late := [p for p in alive if p.unschedulable and now - p.created > START_LIMIT_S]:
        return UNSCHEDULABLE, _problems(late, "has no node")
    pending = (p for p in alive if p.phase == "Pending" and p.problem)
    late = [p for p in pending if now - (p.scheduled_since or now) > START_LIMIT_S]
    return (NOT_STARTED, _problems(late, "has not started")) if late else ("", "")


def _problems(pods: Iterable[Pod], what: str) -> str:
    return "; ".join(f"pod {p.name} {what} after {START_LIMIT_S:g} s: {p.problem}" for p in pods)


def is_new(pod: Pod, before: str) -> bool:
    """Return whether this pod has started and is not the one with the uid `before`. A pod that is replaced before its image was pulled
    does not count as lost, although it passes through the phase Failed while it is deleted."""
    return pod.phase != "Pending" and not pod.terminating and pod.uid != before


def problem_of(*pods: Pod | None) -> str:
    """Return the name and the problem of the first of these pods that has one; empty if none has."""
    return next((f"pod {p.name}: {p.problem}" for p in pods if p is not None and p.problem), "")


def has_old_settings(pod: Pod, settings: Settings) -> bool:
    """Return whether the pod has no image or no node, and was created before this operator started. An upgrade of the installation may have
    corrected the image, the pull secrets or the tolerations, which a pod keeps."""
    return (pod.unschedulable or pod.without_image) and pod.created < settings.since


def with_images_of(peers: Iterable[Pod], settings: Settings) -> Settings:
    """Return the settings with the images that the operator asked for when it created these pods. The first pod that has one counts."""
    images = next((pod.images for pod in peers if pod.images and not pod.without_image), None)
    return settings if images is None else replace(settings, image=images[0], agent_image=images[-1])


def pod_loss_reason(pod: Pod | None, starts: int, what: str) -> str:
    """Return why a run or study fails after it lost its pod too often; empty before that."""
    if pod is None:
        return f"{what}'s pod was lost {starts} times" if starts > MAX_RESTARTS else ""
    for container in pod.containers:
        if container.restarts > MAX_RESTARTS:
            return f"{what}'s pod ended {container.restarts} times; the end of its log: {tail(container.end_of_log)}"
    return ""
