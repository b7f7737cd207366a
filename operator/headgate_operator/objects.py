"""What a Testbed is made of in a cluster: ConfigMap, Secret, Service, claim and pods. Pure builders; names are api.naming's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.models import Resources

JOBMANAGER = "jobmanager"
STORE = "store"
PROXY = "proxy"
TASKMANAGER_ROLE = "taskmanager"
GRACE_S = 10
"""Twice what the supervisor takes for an orderly end."""
START_LIMIT_S = 180
"""From the container's start to the supervisor's first answer; a small machine that starts many pods takes its time."""
LIVENESS_PERIOD_S = 5
LIVENESS_FAILURES = 6
"""Half a minute without an answer of the supervisor, which does nothing but answer."""
READINESS_PERIOD_S = 1
"""A recovery is measured in seconds, so is readiness."""
PROBE_LIMIT_S = 3
SCRATCH = "512Mi"
"""Of /run/headgate (spooled history) and of /tmp, each."""
HELPER_MEMORY = ("128Mi", "512Mi")
"""Request and limit of JobManager, store and proxy."""
HELPER_CPU = "50m"
AGENT_MEMORY = ("64Mi", "256Mi")
AGENT_CPU = "100m"
"""As much as a TaskManager: its timers are the latency that was asked for, and with a smaller share they are late whenever the node is busy."""
SECRET_UID = f"{naming.GROUP}/secret-uid"
"""Annotation: which Secret the pod got its token from."""
_NOT_PART_OF_A_POD = ("replicas", "replaceLost")
"""Of spec.taskManagers: they change how many pods there are, not what a pod is."""


def role_of(process: str) -> str:
    """Of a logical name: `tm-0` is a taskmanager, the others are called as they are."""
    return TASKMANAGER_ROLE if process.startswith("tm-") else process


def has_agent(process: str) -> bool:
    """Whether its pod has the container of the packet backends, where the Testbed asks for that."""
    return role_of(process) in {TASKMANAGER_ROLE, JOBMANAGER}


def processes(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Logical names of everything a Testbed wants, in the order of their making."""
    helpers = (STORE, JOBMANAGER, *((PROXY,) if _pods(spec).get("proxy") else ()))
    return (*helpers, *(f"tm-{n}" for n in range(replicas(spec))))


def replicas(spec: Mapping[str, Any]) -> int:
    return int((spec.get("taskManagers") or {}).get("replicas", 2))


def token_secret_name(testbed: Mapping[str, Any]) -> str:
    """Return the name of the Secret that the pods mount: the one that the spec names, otherwise the Testbed's own."""
    given = _pods(testbed["spec"]).get("tokenSecret", "")
    metadata = testbed["metadata"]
    return str(given) or naming.testbed_token_name(metadata["name"], metadata["uid"])


def config_map_name(testbed: Mapping[str, Any]) -> str:
    return naming.config_name(testbed["metadata"]["name"], testbed["metadata"]["uid"])


def testbed_json(testbed: Mapping[str, Any]) -> dict[str, Any]:
    """What every process of the testbed reads (decision 0006)."""
    spec, metadata = testbed["spec"], testbed["metadata"]
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "run": spec.get("run", ""),
        "trial": spec.get("trial", ""),
        "seed": spec.get("seed", 1),
        "recorder": recorder_address(spec.get("recorder", "")),
        "spec": dict(spec),
    }


def recorder_address(text: str) -> list[Any] | None:
    """`host:port/path` as [host, port, path]; None: nothing is recorded."""
    place, _, path = text.partition("/")
    host, _, port = place.rpartition(":")
    return [host, int(port), f"/{path}"] if host and port.isdecimal() else None


def pod_hash(testbed: Mapping[str, Any], process: str) -> str:
    """What a pod is made from. The image is no part of it: a new operator leaves running testbeds as they are. Store and proxy
    do not depend on the configuration, and a store that went would take the checkpoints along: they are never rolled."""
    if process in {STORE, PROXY}:
        return "fixed"
    config = testbed_json(testbed)
    managers = config["spec"].get("taskManagers") or {}
    config["spec"] = {
        **config["spec"],
        "taskManagers": {k: v for k, v in managers.items() if k not in _NOT_PART_OF_A_POD},
    }
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# ---- beside the pods


def config_map(testbed: Mapping[str, Any]) -> dict[str, Any]:
    text = json.dumps(testbed_json(testbed), sort_keys=True, indent=1)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(testbed, config_map_name(testbed)),
        "data": {"testbed.json": text},
    }


def token_secret(testbed: Mapping[str, Any], token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(testbed, token_secret_name(testbed)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {"token": token},
    }


def service(testbed: Mapping[str, Any]) -> dict[str, Any]:
    """Headless: a name in the network for each pod, ready or not."""
    name = testbed["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(testbed, naming.service_name(name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {naming.LABEL_TESTBED: name},
            "ports": [{"name": "supervisor", "port": naming.SUPERVISOR_PORT, "protocol": "TCP"}],
        },
    }


def store_claim(testbed: Mapping[str, Any]) -> dict[str, Any] | None:
    """None: the store lives on an emptyDir."""
    storage = _pods(testbed["spec"]).get("storage") or {}
    if not storage.get("size"):
        return None
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage["size"]}},
    }
    if storage.get("storageClassName"):
        spec["storageClassName"] = storage["storageClassName"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(testbed, naming.pod_name(testbed["metadata"]["name"], STORE)),
        "spec": spec,
    }


# ---- pods


def pod(
    testbed: Mapping[str, Any], process: str, *, incarnation: int, secret_uid: str, settings: Settings
) -> dict[str, Any]:
    """The pod of one process in its next incarnation."""
    name, spec = testbed["metadata"]["name"], testbed["spec"]
    role = role_of(process)
    metadata = _metadata(testbed, naming.pod_name(name, process))
    metadata["labels"] |= {
        naming.LABEL_ROLE: role,
        naming.LABEL_INCARNATION: str(incarnation),
        naming.LABEL_CONFIG: pod_hash(testbed, process),
        **({naming.LABEL_ORDINAL: process.removeprefix("tm-")} if role == TASKMANAGER_ROLE else {}),
    }
    metadata["annotations"] = {SECRET_UID: secret_uid}
    packets = _pods(spec).get("packetFaults") and has_agent(process)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "hostname": process,
            "subdomain": naming.service_name(name),
            "restartPolicy": "Never" if role == TASKMANAGER_ROLE else "Always",
            "terminationGracePeriodSeconds": GRACE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": naming.USER_ID,
                "runAsGroup": naming.USER_ID,
                "fsGroup": naming.USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "nodeSelector": dict(_pods(spec).get("nodeSelector") or {}),
            "imagePullSecrets": [{"name": secret} for secret in settings.pull_secrets],
            **({"initContainers": [_agent(process, incarnation, settings)]} if packets else {}),
            "containers": [_container(spec, process, incarnation, settings)],
            "volumes": _volumes(testbed, process),
        },
    }


def _container(spec: Mapping[str, Any], process: str, incarnation: int, settings: Settings) -> dict[str, Any]:
    role = role_of(process)
    mounts = _mounts()
    if role == STORE:
        mounts.append({"name": "data", "mountPath": naming.DATA_FOLDER})
    return {
        "name": role,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["python", "-m", "testbed_runtime.entry.pod", role],
        "env": _environment(process, incarnation),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in _ports(role).items()
        ],
        "resources": _resources(spec, role),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
        "startupProbe": _probe("/healthz", naming.SUPERVISOR_PORT, 1, START_LIMIT_S),
        "livenessProbe": _probe("/healthz", naming.SUPERVISOR_PORT, LIVENESS_PERIOD_S, LIVENESS_FAILURES),
        "readinessProbe": _probe("/readyz", naming.SUPERVISOR_PORT, READINESS_PERIOD_S, 1),
    }


def _agent(process: str, incarnation: int, settings: Settings) -> dict[str, Any]:
    """The opt-in container of the packet backends: root, because Kubernetes gives no ambient capabilities to others.

    A sidecar: it comes again when it was killed, also in a pod whose TaskManager must not, and does not keep a pod alive whose
    TaskManager ended."""
    request, limit = AGENT_MEMORY
    return {
        "name": "agent",
        "restartPolicy": "Always",
        "image": settings.agent_image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["python", "-m", "testbed_runtime.entry.agent"],
        "env": _environment(process, incarnation),
        "ports": [{"name": "agent", "containerPort": naming.AGENT_PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": AGENT_CPU, "memory": request}, "limits": {"memory": limit}},
        "securityContext": {
            "runAsNonRoot": False,
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        },
        "volumeMounts": _mounts(),
        "startupProbe": _probe("/healthz", naming.AGENT_PORT, 1, START_LIMIT_S),
        "livenessProbe": _probe("/healthz", naming.AGENT_PORT, LIVENESS_PERIOD_S, LIVENESS_FAILURES),
        "readinessProbe": _probe("/healthz", naming.AGENT_PORT, LIVENESS_PERIOD_S, LIVENESS_FAILURES),
    }


def _environment(process: str, incarnation: int) -> list[dict[str, Any]]:
    given = {"HEADGATE_NAME": process, "HEADGATE_INCARNATION": str(incarnation), **naming.SHARED_CLOCK}
    fields = {
        "POD_IP": "status.podIP",
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
    }
    return [
        *({"name": name, "value": value} for name, value in given.items()),
        *(
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for name, path in fields.items()
        ),
    ]


def _ports(role: str) -> dict[str, int]:
    own = {
        JOBMANAGER: {"rpc": naming.JOBMANAGER_PORT},
        TASKMANAGER_ROLE: {"rpc": naming.TASKMANAGER_PORT, "data": naming.DATA_PORT},
        STORE: {"store": naming.STORE_PORT},
        PROXY: {"proxy": naming.PROXY_PORT},
    }[role]
    return {**own, "supervisor": naming.SUPERVISOR_PORT, "echo": naming.ECHO_PORT}


def _resources(spec: Mapping[str, Any], role: str) -> dict[str, Any]:
    if role != TASKMANAGER_ROLE:
        request, limit = HELPER_MEMORY
        return {"requests": {"cpu": HELPER_CPU, "memory": request}, "limits": {"memory": limit}}
    wanted = {**Resources().model_dump(), **(_pods(spec).get("resources") or {})}
    requests = {key: wanted[key] for key in ("cpu", "memory") if wanted.get(key)}
    return {"requests": requests, "limits": {k: v for k, v in requests.items() if k == "memory"}}


def _probe(path: str, port: int, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "timeoutSeconds": PROBE_LIMIT_S,
        "failureThreshold": failures,
    }


def _mounts() -> list[dict[str, Any]]:
    return [
        {"name": "config", "mountPath": naming.CONFIG_FOLDER, "readOnly": True},
        {"name": "token", "mountPath": naming.TOKEN_FILE.rpartition("/")[0], "readOnly": True},
        {"name": "work", "mountPath": naming.WORK_FOLDER},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - in the pod
    ]


def _volumes(testbed: Mapping[str, Any], process: str) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": config_map_name(testbed)}},
        {"name": "token", "secret": {"secretName": token_secret_name(testbed), "defaultMode": 0o440}},
        {"name": "work", "emptyDir": {"sizeLimit": SCRATCH}},
        {"name": "tmp", "emptyDir": {"sizeLimit": SCRATCH}},
    ]
    if process == STORE:
        claim = store_claim(testbed)
        volumes.append(
            {"name": "data", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
            if claim
            else {"name": "data", "emptyDir": {}}
        )
    return volumes


def _metadata(testbed: Mapping[str, Any], name: str) -> dict[str, Any]:
    metadata = testbed["metadata"]
    return {
        "name": name,
        "namespace": metadata["namespace"],
        "labels": {
            naming.LABEL_MANAGED_BY: naming.MANAGED_BY,
            naming.LABEL_TESTBED: metadata["name"],
        },
        "ownerReferences": [
            {
                "apiVersion": testbed["apiVersion"],
                "kind": testbed["kind"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def _pods(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = spec.get("pods") or {}
    return found
