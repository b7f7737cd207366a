"""Typed, read-only views of Kubernetes objects as JSON. Every field that Headgate reads is parsed here. Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.api.status import (
    ACTIVE,
    COMPLETE,
    PLANNED,
    STATUS_KEY,
    FaultStatus,
    Model,
    ScenarioRunStatus,
    ScenarioStatus,
    TestbedStatus,
    TuningStudyStatus,
    read,
)
from testbed_runtime.core.exchange.tls import is_encrypted
from testbed_runtime.core.ids import TASKMANAGER, task_manager_name
from testbed_runtime.core.job.functions import FunctionReference
from testbed_runtime.core.trial.plan import NEVER, parse_replace_lost

M = TypeVar("M", bound=Model)
T = TypeVar("T")
Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON."""
STARTING = frozenset({None, "", "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that do not indicate a problem."""
WITHOUT_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
"""Reasons of a waiting container whose image cannot be pulled."""
HOW_TO_SCHEDULE = "free resources, add a node, or change pods.resources and pods.nodeSelector of the testbed"
HOW_TO_TOLERATE = "set pods.tolerations of the installation (a value of the chart), or remove the taint"
HOW_TO_SELECT = (
    "change pods.nodeSelector of the testbed, or pods.nodeSelector and pods.affinity of the installation"
)
HOW_TO_BIND = "`kubectl describe` of the volume claim says why it is not bound"
HOW_TO_REACH_VOLUME = "free resources in the zone of its volume, or delete the volume claim"
_NO_NODE = {
    "untolerated taint": HOW_TO_TOLERATE,
    "node affinity/selector": HOW_TO_SELECT,
    "unbound immediate PersistentVolumeClaims": HOW_TO_BIND,
    "persistent volumes to bind": HOW_TO_BIND,
    "volume node affinity conflict": HOW_TO_REACH_VOLUME,
    "Insufficient": "free resources, add a node, or change pods.resources of the testbed",
}
"""Parts of the scheduler's message, and what to do about each."""
HOW_TO_PULL = "correct image.* of the installation, or set global.imagePullSecrets"
HOW_TO_LOG_IN = "correct image.* of the installation, or in this namespace the pull secret"
"""Advice before the names of the pull secrets of a pod. A kubelet ignores one that does not exist."""
MAX_LOG_LINE = 500
"""Characters of a log line in a message, from its end."""
OOM_KILLED = "OOMKilled"
"""Kubernetes' reason of a container that was killed at its memory limit."""


def seconds(text: str) -> float:
    """Return an RFC 3339 time, with or without fractions, as seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


class At(Generic[T]):
    """An attribute of a view: the value at a path of its JSON, converted by `read` or by the type of the default. The default is used
    if the value is missing or null."""

    def __init__(self, *path: str, default: T, read: Callable[[Any], T] | None = None) -> None:
        self._path = path
        self._default = default
        self._read: Callable[[Any], T] = read or type(default)

    def __get__(self, view: Any, owner: object = None) -> T:
        found = view.raw
        for step in self._path:
            found = (found or {}).get(step)
        return self._default if found is None else self._read(found)


def json_at(*path: str) -> At[Manifest]:
    """Return the attribute of an object below, as JSON. Empty where it is missing."""
    return At(*path, default={}, read=lambda found: found)


def status_at(model: type[M]) -> At[M]:
    """Return the attribute of the status."""
    return At("status", default=model(), read=partial(read, model))


NAMES: tuple[str, ...] = ()
MANIFESTS: tuple[Manifest, ...] = ()


class Resource(Struct, frozen=True):
    """Any object: its metadata."""

    raw: Manifest

    namespace = At("metadata", "namespace", default="")
    uid = At("metadata", "uid", default="")
    generation = At("metadata", "generation", default=0)
    resource_version = At("metadata", "resourceVersion", default="")
    labels = json_at("metadata", "labels")
    annotations = json_at("metadata", "annotations")
    finalizers = At("metadata", "finalizers", default=NAMES)
    owners = At("metadata", "ownerReferences", default=MANIFESTS)
    """The owner references, as JSON."""
    terminating = At("metadata", "deletionTimestamp", default=False)
    spec = json_at("spec")

    @property
    def metadata(self) -> Manifest:
        found: Manifest = self.raw["metadata"]
        return found

    @property
    def kind(self) -> str:
        return str(self.raw["kind"])

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def path(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def controller(self) -> str:
        """The uid of the controlling owner; empty without one."""
        return next((str(o["uid"]) for o in self.owners if o.get("controller")), "")

    def owned_by(self, owner: Resource) -> bool:
        """Return whether this object belongs to that owner. Uids are compared, because an earlier object of the same name had another uid."""
        return any(o["uid"] == owner.uid for o in self.owners)

    def reference(self, *, controller: bool = True) -> dict[str, Any]:
        """Return an owner reference to this object, which is one of Headgate's kinds."""
        found = {
            "apiVersion": naming.API_VERSION, "kind": self.kind, "name": self.name, "uid": self.uid
        }  # fmt: skip
        return {**found, "controller": True} if controller else found

    @property
    def created(self) -> float:
        return seconds(self.metadata["creationTimestamp"])

    @property
    def deleted(self) -> float:
        """When the deletion was requested; only of an object that is terminating."""
        return seconds(self.metadata["deletionTimestamp"])


class Termination(Struct, frozen=True):
    """How a container ended."""

    exit_code: int | None
    reason: str
    message: str
    """The end of its log that the kubelet has kept."""


class Container(Struct, frozen=True):
    """The status of one container."""

    raw: Manifest

    name = At("name", default="")
    restarts = At("restartCount", default=0)

    @property
    def waiting(self) -> Manifest | None:
        found: Manifest | None = (self.raw.get("state") or {}).get("waiting")
        return found

    @property
    def running_since(self) -> float | None:
        """When the container started, in seconds since 1970; None unless it is running."""
        found = (self.raw.get("state") or {}).get("running")
        return seconds(found["startedAt"]) if found else None

    @property
    def terminated(self) -> Termination | None:
        return _termination((self.raw.get("state") or {}).get("terminated"))

    @property
    def terminations(self) -> tuple[Termination, ...]:
        """The present one and the one before the last start, newest first."""
        before = _termination((self.raw.get("lastState") or {}).get("terminated"))
        return tuple(t for t in (self.terminated, before) if t is not None)

    @property
    def end_of_log(self) -> str:
        return next((t.message for t in self.terminations if t.message), "")


def _with_log(text: str, container: Container) -> str:
    """Return the text with the last line of the container's log, which has the error of a process that ended."""
    line = container.end_of_log.strip().rpartition("\n")[2]
    return f"{text}; its log ends with: {line[-MAX_LOG_LINE:]}" if line else text


def _termination(raw: Manifest | None) -> Termination | None:
    if not raw:
        return None
    return Termination(raw.get("exitCode"), str(raw.get("reason") or ""), str(raw.get("message") or ""))


class Pod(Resource, frozen=True):
    """Any pod; `process` and what follows are for pods of a Testbed."""

    status = json_at("status")
    phase = At("status", "phase", default="Pending")
    address = At("status", "podIP", default="")
    """Empty until it has one."""
    incarnation = At("metadata", "labels", naming.LABEL_INCARNATION, default=1)
    config = At("metadata", "labels", naming.LABEL_CONFIG, default="")
    secret_uid = At("metadata", "annotations", naming.ANNOTATION_SECRET_UID, default="")
    """The uid of the Secret that the pod got its token from."""

    @property
    def images(self) -> tuple[str, ...]:
        """The image that the operator asked for, and that of the packet agents; empty for pods of earlier versions."""
        return tuple(str(self.annotations.get(naming.ANNOTATION_IMAGES, "")).split())

    @property
    def image(self) -> str:
        return self.images[0] if self.images else ""

    @property
    def ended(self) -> bool:
        return self.phase in ("Failed", "Succeeded")

    @property
    def alive(self) -> bool:
        return not self.terminating and not self.ended

    @property
    def ready(self) -> bool:
        return not self.terminating and self._condition("Ready").get("status") == "True"

    @property
    def containers(self) -> tuple[Container, ...]:
        return tuple(Container(c) for c in self.status.get("containerStatuses") or ())

    @property
    def containers_run(self) -> bool:
        """Whether all containers run. The phase is not enough: a pod whose container waits for its next start is Running, too."""
        up = not any(c.waiting is not None or c.terminated is not None for c in self.containers)
        return self.phase == "Running" and up

    @property
    def scheduled_since(self) -> float | None:
        """When the pod was scheduled to a node, in seconds since 1970; None before that."""
        found = self._condition("PodScheduled")
        return seconds(found["lastTransitionTime"]) if found.get("status") == "True" else None

    @property
    def running_since(self) -> float | None:
        """When the last of its containers started, in seconds since 1970; None while one of them does not run."""
        begun = [c.running_since for c in self.containers]
        known = [b for b in begun if b is not None]
        return max(known) if known and len(known) == len(begun) else None

    @property
    def process(self) -> str:
        """The logical name: `tm-0`, `jobmanager`."""
        role = self.labels.get(naming.LABEL_ROLE, "")
        return (
            task_manager_name(int(self.labels.get(naming.LABEL_ORDINAL, "0")))
            if role == TASKMANAGER
            else role
        )

    @property
    def problem(self) -> str:
        """Kubernetes' explanation of why the pod is not ready, and what to do about it; empty without one."""
        if self.ended and self.status.get("reason"):
            return f"{self.status['reason']}: {self.status.get('message', '')}".strip(": ")
        scheduled = self._condition("PodScheduled")
        if scheduled.get("status") == "False":
            # the rest of the message is about preemption, which the user cannot change
            nodes = str(scheduled.get("message", "")).partition(". ")[0]
            hints = [hint for part, hint in _NO_NODE.items() if part in nodes] or [HOW_TO_SCHEDULE]
            return "; ".join((f"{scheduled.get('reason', '')}: {nodes}", *hints))
        for container in self._unfinished:
            waiting, ended = container.waiting, container.terminated
            if waiting and waiting.get("reason") not in STARTING:
                text = f"{waiting['reason']}: {waiting.get('message', '')}".strip(": ")
                return (
                    f"{text}; {self._how_to_pull}"
                    if waiting["reason"] in WITHOUT_IMAGE
                    else _with_log(text, container)
                )
            if ended:
                return _with_log(
                    f"the container ended with exit code {ended.exit_code} ({ended.reason})", container
                )
        if self.phase == "Pending" and self._function_maps:
            # Kubernetes says in an Event only that a ConfigMap does not exist
            return f"ContainerCreating: it needs the ConfigMap {', '.join(self._function_maps)}"
        return ""

    @property
    def without_image(self) -> bool:
        """Whether the kubelet cannot pull the image of one of its containers."""
        return any((c.waiting or {}).get("reason") in WITHOUT_IMAGE for c in self._unfinished)

    @property
    def _how_to_pull(self) -> str:
        secrets = self.spec.get("imagePullSecrets") or ()
        names = ", ".join(str(secret.get("name")) for secret in secrets)
        return f"{HOW_TO_LOG_IN} {names}" if names else HOW_TO_PULL

    @property
    def _unfinished(self) -> tuple[Container, ...]:
        """The containers without the init containers that have finished. A service mesh adds some."""
        init = map(Container, self.status.get("initContainerStatuses") or ())
        return (*(c for c in init if c.terminated is None or c.terminated.exit_code), *self.containers)

    @property
    def _function_maps(self) -> tuple[str, ...]:
        volumes = self.spec.get("volumes") or ()
        return tuple(v["configMap"]["name"] for v in volumes if v["name"].startswith(naming.FUNCTIONS_VOLUME))

    @property
    def disruption(self) -> str:
        """Why Kubernetes ends a running pod; empty if it does not. A deletion by a user is not included."""
        target = self._condition("DisruptionTarget")
        if target.get("status") == "True":
            return f"{target.get('reason', 'DisruptionTarget')}: {target.get('message', '')}".strip(": ")
        for container in self.containers:
            if container.terminated is not None and container.terminated.reason == OOM_KILLED:
                return f"{OOM_KILLED}: the container {container.name} reached its memory limit"
        return ""

    @property
    def node_lost(self) -> bool:
        """Whether Kubernetes has given up the pod's node. Then only the condition Ready becomes false, which a kubelet never reports."""
        ready, containers = self._condition("Ready"), self._condition("ContainersReady")
        return ready.get("status") == "False" and containers.get("status") == "True"

    @property
    def unschedulable(self) -> bool:
        """Whether the scheduler found no node for it."""
        return self.alive and self._condition("PodScheduled").get("status") == "False"

    @property
    def why_not_running(self) -> str:
        if self.problem:
            return self.problem
        for condition in self.status.get("conditions") or ():
            if condition.get("status") == "False" and condition.get("message"):
                return f"{condition.get('reason', '')}: {condition['message']}"
        return f"the pod is {self.phase}"

    def _condition(self, type_: str) -> Manifest:
        return next((c for c in self.status.get("conditions") or () if c["type"] == type_), {})


class ConfigMap(Resource, frozen=True):
    def report(self, owner: Resource, model: type[M]) -> M | None:
        """Return `status.json`; None: missing, written for another owner, or malformed."""
        text = (self.raw.get("data") or {}).get(STATUS_KEY, "") if self.owned_by(owner) else ""
        try:
            return msgspec.json.decode(text, type=model) if text else None
        except msgspec.DecodeError:  # also raised if the content does not fit the model
            return None


class Secret(Resource, frozen=True):
    @property
    def token(self) -> str:
        return base64.b64decode((self.raw.get("data") or {}).get("token", "")).decode().strip()


class Testbed(Resource, frozen=True):
    __test__ = False

    status = status_at(TestbedStatus)
    pod_options = json_at("spec", "pods")
    """`spec.pods`."""
    packet_faults = At("spec", "pods", "packetFaults", default=False)
    proxy = At("spec", "pods", "proxy", default=False)
    given_secret = At("spec", "pods", "tokenSecret", default="")
    """The Secret that the spec names; empty: the Testbed has one of its own."""
    replicas = At("spec", "taskManagers", "replicas", default=2)

    @property
    def token_secret(self) -> str:
        """The Secret that its pods mount."""
        return self.given_secret or naming.testbed_token_name(self.name, self.uid)

    @property
    def certificate_secret(self) -> str:
        """The Secret with the certificate that its TaskManagers mount; empty: their data ports do not use TLS."""
        encrypted = is_encrypted(self.spec.get("flinkConfiguration") or {})
        return naming.certificate_name(self.name, self.uid) if encrypted else ""

    @property
    def function_maps(self) -> tuple[str, ...]:
        """The ConfigMaps with Python functions that its TaskManagers mount."""
        vertices = (self.spec.get("job") or {}).get("vertices") or ()
        named = [v.get("function") for v in vertices]
        named += [(v.get("iteration") or {}).get("criterion") for v in vertices]
        parsed = [FunctionReference.parse(reference) for reference in named if reference]
        return tuple(sorted({found.config_map for found in parsed if found and found.config_map}))

    @property
    def config_map(self) -> str:
        return naming.config_name(self.name, self.uid)

    @property
    def task_managers(self) -> Manifest:
        return self.spec.get("taskManagers") or {}

    @property
    def replace_lost_s(self) -> float | None:
        """Seconds after which a lost TaskManager is replaced; None: never."""
        return parse_replace_lost(str(self.task_managers.get("replaceLost", NEVER)))

    @property
    def submits_job(self) -> bool:
        return bool(self.spec.get("jobState", "running") == "running")


class Run(Resource, frozen=True):
    status = status_at(ScenarioRunStatus)
    suspended = At("spec", "suspend", default=False)
    executors = At("spec", "evaluation", "executors", default=0)
    history_claim = At("spec", "evaluation", "historyClaim", default="")

    @property
    def finished(self) -> bool:
        """Whether its status is final."""
        return (self.raw.get("status") or {}).get("phase") == COMPLETE

    @property
    def ttl_s(self) -> int | None:
        return self.spec.get("ttlSecondsAfterFinished")

    @property
    def uses_warm_spark(self) -> bool:
        return self.executors == 0

    @property
    def heal_requested(self) -> bool:
        return naming.ANNOTATION_HEAL in self.annotations


class Fault(Resource, frozen=True):
    status = status_at(FaultStatus)
    testbed = At("spec", "testbedRef", "name", default="")
    on_target_restart = At("spec", "onTargetRestart", default="Expire")

    @property
    def active(self) -> bool:
        """Whether it acts on its testbed, or is about to."""
        return (self.raw.get("status") or {}).get("phase") in (PLANNED, ACTIVE)


class Scenario(Resource, frozen=True):
    status = status_at(ScenarioStatus)


class Study(Resource, frozen=True):
    status = status_at(TuningStudyStatus)
    suspended = At("spec", "suspend", default=False)
