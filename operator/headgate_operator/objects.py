"""Build the objects of a Testbed: ConfigMap, Secret, Service, claim and pods. Pure; the names come from api.naming."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headgate_operator.settings import Settings
from testbed_runtime.api import naming, podsettings
from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.kinds import TestbedResourceSpec
from testbed_runtime.api.models import Resources
from testbed_runtime.api.podsettings import POD_SECURITY, RESTRICTED
from testbed_runtime.api.resources import manifest, metadata_of
from testbed_runtime.api.views import Manifest, Resource, Testbed
from testbed_runtime.core.ids import (
    JOBMANAGER,
    PROXY,
    STORE,
    TASKMANAGER,
    ordinal_of,
    role_of,
    task_manager_names,
)
from testbed_runtime.core.job import functions
from testbed_runtime.core.trial.plan import plan_to_json
from testbed_runtime.http import HEALTHZ, READYZ

GRACE_S = 10
"""Twice the time that the supervisor takes to stop."""
START_LIMIT_S = 180
"""Limit from the container's start to the supervisor's first answer. A small machine that starts many pods is slow."""
LIVENESS_PERIOD_S = 5
LIVENESS_FAILURES = 6
"""Failed liveness probes before the container restarts: half a minute without an answer. The supervisor has little other work, so it
is stuck then."""
READINESS_PERIOD_S = 1
"""A recovery takes seconds, so readiness is checked every second."""
PROBE_LIMIT_S = 3
LOCAL_STORAGE = "16Gi"
"""Size limit of a TaskManager's state files, local copies and blocking results, of a store's checkpoints and of a recorder's history, so that
none of them fills the disk of its node. It reserves nothing."""
SCRATCH = "512Mi"
"""Size limit of /run/headgate (spooled history) and of /tmp."""
HELPER_MEMORY = ("128Mi", "512Mi")
"""Request and limit of JobManager, store and proxy."""
HELPER_CPU = "50m"
AGENT_MEMORY = ("64Mi", "256Mi")
AGENT_CPU = "100m"
"""Request of the packet agent, as much as for a TaskManager. The agent's timers produce the requested latency, and they would be late on
a busy node with a smaller share."""
FIXED = frozenset({STORE, PROXY})
"""Processes that do not depend on the configuration, so their pods stay: the store's pod holds the checkpoints."""
_NOT_PART_OF_A_POD = ("replicas", "replaceLost")
"""Fields of spec.taskManagers that change the number of pods, not their content."""


def has_agent(process: str) -> bool:
    """Return whether the pod of this process gets the container of the packet backends if the Testbed asks for packet faults."""
    return role_of(process) in {TASKMANAGER, JOBMANAGER}


def certificate_of(testbed: Manifest, process: str) -> str:
    """Return the name of the Secret with the certificate that the pod mounts; empty if it mounts none."""
    return Testbed(testbed).certificate_secret if role_of(process) == TASKMANAGER else ""


def function_maps(testbed: Manifest, process: str) -> tuple[str, ...]:
    """Return the ConfigMaps with Python functions that the pod mounts."""
    return Testbed(testbed).function_maps if role_of(process) == TASKMANAGER else ()


def processes(spec: Manifest) -> tuple[str, ...]:
    """Return the logical names of all processes of a Testbed, in the order in which their pods are created."""
    testbed = Testbed({"spec": spec})
    helpers = (STORE, JOBMANAGER, *((PROXY,) if testbed.proxy else ()))
    return (*helpers, *task_manager_names(testbed.replicas))


def testbed_json(testbed: Manifest) -> dict[str, Any]:
    """Return the configuration of the testbed, which contains its spec (decision 0006)."""
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
    """Return `host:port/path` as [host, port, path]; None if nothing is recorded."""
    place, _, path = text.partition("/")
    host, _, port = place.rpartition(":")
    return [host, int(port), f"/{path}"] if host and port.isdecimal() else None


def pod_hash(testbed: Manifest, process: str) -> str:
    """Return the hash of a pod's configuration. It does not include the image, so a new operator does not replace running pods."""
    return "fixed" if process in FIXED else configuration(testbed)


def configuration(testbed: Manifest) -> str:
    """Return the hash of the configuration, as it was when this generation of the spec was first seen.

    An upgrade may add defaults to a stored spec. They do not change its generation, so running pods must stay."""
    seen = Testbed(testbed)
    status = seen.status
    if status.configuration and status.observed_generation == seen.generation:
        return status.configuration
    config = testbed_json(testbed)
    managers = config["spec"].get("taskManagers") or {}
    config["spec"] = {
        **config["spec"],
        "taskManagers": {k: v for k, v in managers.items() if k not in _NOT_PART_OF_A_POD},
    }
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# ---- beside the pods


def config_map(testbed: Manifest) -> dict[str, Any]:
    """Return the ConfigMap that every process of the testbed reads. The spec is compiled once, here, so that a pod need not import the
    models of documents."""
    config = testbed_json(testbed)
    plan = compile_testbed(TestbedResourceSpec.model_validate(testbed["spec"]), seed=config["seed"])
    text = json.dumps({**config, "plan": plan_to_json(plan)}, sort_keys=True, indent=1)
    return manifest("ConfigMap", _metadata(testbed, Testbed(testbed).config_map), data={"testbed.json": text})


def token_secret(testbed: Manifest, token: str) -> dict[str, Any]:
    return {**secret(_metadata(testbed, Testbed(testbed).token_secret), token), "immutable": True}


def certificate_secret(testbed: Manifest, pem: bytes) -> dict[str, Any]:
    """Return the Secret with the private key of the data ports and its certificate."""
    metadata = _metadata(testbed, Testbed(testbed).certificate_secret)
    data = {naming.CERTIFICATE_KEY: base64.b64encode(pem).decode()}
    return manifest("Secret", metadata, type="Opaque", immutable=True, data=data)


def secret(metadata: Manifest, token: str) -> dict[str, Any]:
    return manifest("Secret", metadata, type="Opaque", stringData={"token": token})


def service(testbed: Manifest) -> dict[str, Any]:
    name = Testbed(testbed).name
    metadata = _metadata(testbed, naming.service_name(name))
    return headless_service(metadata, {naming.LABEL_TESTBED: name}, "supervisor", naming.SUPERVISOR_PORT)


def headless_service(metadata: Manifest, selector: Manifest, port_name: str, port: int) -> dict[str, Any]:
    """Return a headless Service: a DNS name for each pod, ready or not."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": [{"name": port_name, "port": port, "protocol": "TCP"}],
    }
    return manifest("Service", metadata, spec=spec)


def store_claim(testbed: Manifest) -> dict[str, Any] | None:
    """Return the claim of the store's volume; None if the store uses an emptyDir."""
    storage = Testbed(testbed).pod_options.get("storage") or {}
    if not storage.get("size"):
        return None
    metadata = _metadata(testbed, naming.pod_name(Testbed(testbed).name, STORE))
    return volume_claim(metadata, storage["size"], storage.get("storageClassName") or "")


def volume_claim(metadata: Manifest, size: str, storage_class: str) -> dict[str, Any]:
    """Return a claim. An empty class is the cluster's default."""
    spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if storage_class:
        spec["storageClassName"] = storage_class
    return manifest("PersistentVolumeClaim", metadata, spec=spec)


# ---- pods


def pod(
    testbed: Manifest, process: str, *, incarnation: int, secret_uid: str, settings: Settings
) -> dict[str, Any]:
    """Return the pod of one process."""
    name = Testbed(testbed).name
    role = role_of(process)
    metadata = _metadata(testbed, naming.pod_name(name, process), role)
    metadata["labels"] |= {
        naming.LABEL_ROLE: role,
        naming.LABEL_INCARNATION: str(incarnation),
        naming.LABEL_CONFIG: pod_hash(testbed, process),
        **({naming.LABEL_ORDINAL: str(ordinal_of(process))} if role == TASKMANAGER else {}),
    }
    metadata["annotations"] = {naming.ANNOTATION_SECRET_UID: secret_uid}
    packets = Testbed(testbed).packet_faults and has_agent(process)
    return restricted_pod(
        metadata,
        settings,
        hostname=process,
        subdomain=naming.service_name(name),
        restartPolicy="Never" if role == TASKMANAGER else "Always",
        nodeSelector=dict(Testbed(testbed).pod_options.get("nodeSelector") or {}),
        initContainers=[_agent(process, incarnation, settings)] if packets else [],
        containers=[_container(testbed, process, incarnation, settings)],
        volumes=_volumes(testbed, process),
    )


def restricted_pod(metadata: Manifest, settings: Settings, **spec: Any) -> dict[str, Any]:
    """Return a pod with the settings that all of Headgate's pods have, and with the settings of this installation."""
    everywhere = {
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "imagePullSecrets": [{"name": secret} for secret in settings.pull_secrets],
    }
    images = f"{spec['containers'][0]['image']} {settings.agent_image}"
    annotations = {**metadata.get("annotations", {}), naming.ANNOTATION_IMAGES: images}
    pod = manifest("Pod", {**metadata, "annotations": annotations}, spec={**everywhere, **spec})
    return podsettings.applied(pod, settings.pods)


def restricted_container(
    name: str, image: str, settings: Settings, command: Sequence[str], env: Mapping[str, str]
) -> dict[str, Any]:
    """Return a container that runs a module of Headgate's, given with its arguments."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["python", "-m", *command],
        "env": environment(**env),
        "securityContext": RESTRICTED,
    }


def _container(testbed: Manifest, process: str, incarnation: int, settings: Settings) -> dict[str, Any]:
    role = role_of(process)
    mounts = _mounts()
    if role in {STORE, TASKMANAGER}:
        mounts.append({"name": "data", "mountPath": naming.DATA_FOLDER})
    if certificate_of(testbed, process):
        folder = naming.CERTIFICATE_FILE.rpartition("/")[0]
        mounts.append({"name": "certificate", "mountPath": folder, "readOnly": True})
    for number, name in enumerate(function_maps(testbed, process)):
        folder = f"{functions.FOLDER}/{name}"
        mounts.append({"name": f"{naming.FUNCTIONS_VOLUME}{number}", "mountPath": folder, "readOnly": True})
    command, env = ["testbed_runtime.entry.pod", role], _identity(process, incarnation)
    if role != TASKMANAGER:
        env |= naming.NO_BUNDLE
    return {
        **restricted_container(role, settings.image, settings, command, env),
        "ports": container_ports(_ports(role)),
        "resources": _resources(testbed["spec"], role),
        "volumeMounts": mounts,
        "startupProbe": probe(HEALTHZ, naming.SUPERVISOR_PORT, 1, START_LIMIT_S),
        "livenessProbe": probe(HEALTHZ, naming.SUPERVISOR_PORT, LIVENESS_PERIOD_S, LIVENESS_FAILURES),
        "readinessProbe": probe(READYZ, naming.SUPERVISOR_PORT, READINESS_PERIOD_S, 1),
    }


def _identity(process: str, incarnation: int) -> dict[str, str]:
    return {"HEADGATE_NAME": process, "HEADGATE_INCARNATION": str(incarnation)}


def _agent(process: str, incarnation: int, settings: Settings) -> dict[str, Any]:
    """Return the opt-in container of the packet backends. It runs as root: Kubernetes grants ambient capabilities to no other user.

    It is a sidecar: it restarts when it is killed, even in a pod whose TaskManager must not, and it does not keep a pod
    alive whose TaskManager ended."""
    command, env = ["testbed_runtime.entry.agent"], _identity(process, incarnation) | naming.NO_BUNDLE
    alive = probe(HEALTHZ, naming.AGENT_PORT, LIVENESS_PERIOD_S, LIVENESS_FAILURES)
    return {
        **restricted_container("agent", settings.agent_image, settings, command, env),
        "restartPolicy": "Always",
        "ports": container_ports({"agent": naming.AGENT_PORT}),
        "resources": resources(AGENT_CPU, AGENT_MEMORY),
        "securityContext": {
            **RESTRICTED,
            "runAsNonRoot": False,
            "runAsUser": 0,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        },
        "volumeMounts": _mounts(),
        "startupProbe": probe(HEALTHZ, naming.AGENT_PORT, 1, START_LIMIT_S),
        "livenessProbe": alive,
        "readinessProbe": alive,
    }


def environment(**values: str) -> list[dict[str, Any]]:
    """Return the environment of a container: these values, the clock, and the pod's name and address."""
    fields = {"POD_IP": "status.podIP", "POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    return [
        *({"name": name, "value": value} for name, value in {**values, **naming.SHARED_CLOCK}.items()),
        *(
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for name, path in fields.items()
        ),
    ]


def _ports(role: str) -> dict[str, int]:
    own = {
        JOBMANAGER: {"rpc": naming.JOBMANAGER_PORT},
        TASKMANAGER: {"rpc": naming.TASKMANAGER_PORT, "data": naming.DATA_PORT},
        STORE: {"store": naming.STORE_PORT},
        PROXY: {"proxy": naming.PROXY_PORT},
    }[role]
    return {**own, "supervisor": naming.SUPERVISOR_PORT, "echo": naming.ECHO_PORT}


def _resources(spec: Manifest, role: str) -> dict[str, Any]:
    if role != TASKMANAGER:
        return resources(HELPER_CPU, HELPER_MEMORY)
    wanted = {**Resources().model_dump(), **(Testbed({"spec": spec}).pod_options.get("resources") or {})}
    requests = {key: wanted[key] for key in ("cpu", "memory") if wanted.get(key)}
    return {"requests": requests, "limits": {k: v for k, v in requests.items() if k == "memory"}}


def resources(cpu: str, memory: tuple[str, str]) -> dict[str, Any]:
    """Return resources: a request for processor time, and a request and a limit for memory."""
    request, limit = memory
    return {"requests": {"cpu": cpu, "memory": request}, "limits": {"memory": limit}}


def container_ports(ports: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()]


def probe(path: str, port: int, period_s: int, failures: int) -> dict[str, Any]:
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


def _volumes(testbed: Manifest, process: str) -> list[dict[str, Any]]:
    # only the token: a user may name any Secret, and a Python function can read the whole volume
    token = {
        "secretName": Testbed(testbed).token_secret,
        "defaultMode": 0o440,
        "items": [{"key": "token", "path": naming.TOKEN_FILE.rpartition("/")[2]}],
    }
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": Testbed(testbed).config_map}},
        {"name": "token", "secret": token},
        {"name": "work", "emptyDir": {"sizeLimit": SCRATCH}},
        {"name": "tmp", "emptyDir": {"sizeLimit": SCRATCH}},
    ]
    if process == STORE:
        claim = store_claim(testbed)
        volumes.append(
            {"name": "data", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
            if claim
            else {"name": "data", "emptyDir": {"sizeLimit": LOCAL_STORAGE}}
        )
    elif role_of(process) == TASKMANAGER:
        volumes.append({"name": "data", "emptyDir": {"sizeLimit": LOCAL_STORAGE}})
    if name := certificate_of(testbed, process):
        volumes.append({"name": "certificate", "secret": {"secretName": name, "defaultMode": 0o440}})
    for number, name in enumerate(function_maps(testbed, process)):
        volumes.append({"name": f"{naming.FUNCTIONS_VOLUME}{number}", "configMap": {"name": name}})
    return volumes


def _metadata(testbed: Manifest, name: str, component: str = "testbed") -> dict[str, Any]:
    owner = Testbed(testbed)
    labels = {naming.LABEL_TESTBED: owner.name}
    return metadata_of(name, owner.namespace, labels, component=component, owner=owner_of(owner))


def owner_of(owner: Resource, *, controller: bool = True) -> dict[str, Any]:
    """Return an owner reference to an object of Headgate's."""
    reference = owner.reference(controller=controller)
    return {**reference, "blockOwnerDeletion": True} if controller else reference
