"""What a ScenarioRun and a TuningStudy are made of in a cluster: recorder, runner, study and Spark pods, their Services, Secrets,
claims and accounts. Pure builders; all pods pass Pod Security `restricted`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate_operator.settings import Settings
from testbed_runtime.api import naming

SPARK_NAME = "headgate-spark"
"""Pod and Service of a namespace's warm Spark."""
WARM_SPARK_ROLE = "spark"
OWN_SPARK_ROLE = "spark-driver"
"""Another one: the warm Spark's Service would else also lead to the drivers of runs with executors."""
SPARK_TOKEN_FOLDER = "/etc/headgate/spark-token"  # noqa: S105 - where it is, not what it is
TOKEN_KEY = "token"  # noqa: S105
GRACE_S = 10
"""Above the 5 s within which our processes end in an orderly way."""
SPARK_GRACE_S = 5
"""An evaluation that is cut off is asked for again; nothing is to be saved."""
PROBE_PERIOD_S = 2
PROBE_TIMEOUT_S = 3
PROBE_FAILURES = 15
"""Half a minute of silence before a container is started again: a busy small node needs that long now and then."""
START_FAILURES = 90
"""Three minutes for the imports of a process on a busy machine, before liveness counts."""
SPARK_MEMORY = "1536Mi"
SPARK_SCRATCH = "2Gi"
"""Histories of one evaluation, and Spark's shuffle."""
SMALL_MEMORY = "512Mi"
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": naming.USER_ID,
    "runAsGroup": naming.USER_ID,
    "fsGroup": naming.USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def owner_of(obj: Mapping[str, Any], *, controller: bool = True) -> dict[str, Any]:
    """An owner reference to an object of ours."""
    reference = {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
    }
    return {**reference, "controller": True, "blockOwnerDeletion": True} if controller else reference


def spark_name(run: Mapping[str, Any]) -> str:
    """The namespace's warm one, or the run's own when it has executors."""
    return f"{run['metadata']['name']}-spark" if executors(run) else SPARK_NAME


def _spark_role(run: Mapping[str, Any]) -> str:
    return OWN_SPARK_ROLE if executors(run) else WARM_SPARK_ROLE


def executors(run: Mapping[str, Any]) -> int:
    return int((run["spec"].get("evaluation") or {}).get("executors", 0))


# ---- small things


def token_secret(owner: Mapping[str, Any], name: str, token: str) -> dict[str, Any]:
    """Of a run or of a Spark pod, under naming.token_name."""
    return {
        **_head("v1", "Secret", owner, naming.token_name(name), role="token"),
        "type": "Opaque",
        "stringData": {TOKEN_KEY: token},
    }


def recorder_service(run: Mapping[str, Any]) -> dict[str, Any]:
    name = naming.recorder_name(run["metadata"]["name"])
    return _service(run, name, role="recorder", port=naming.RECORDER_PORT)


def recorder_claim(run: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Only where the installation gives recorders a volume of a size."""
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": settings.recorder_storage}},
    }
    if settings.recorder_storage_class:
        spec["storageClassName"] = settings.recorder_storage_class
    head = _head(
        "v1",
        "PersistentVolumeClaim",
        run,
        naming.recorder_name(run["metadata"]["name"]),
        role="recorder",
    )
    return {**head, "spec": spec}


def account(namespace: str, name: str) -> dict[str, Any]:
    """A service account that pods of ours run under; not owned, it serves every run of the namespace."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace, "labels": _managed()},
        "automountServiceAccountToken": False,
    }


def role_binding(namespace: str, name: str) -> dict[str, Any]:
    """To the chart's ClusterRole of the same name, within the namespace only."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace, "labels": _managed()},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


# ---- pods


def recorder_pod(run: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Serves the run's record and folder; comes again under the same name."""
    name = naming.recorder_name(run["metadata"]["name"])
    data: dict[str, Any] = (
        {"persistentVolumeClaim": {"claimName": name}} if settings.recorder_storage else {"emptyDir": {}}
    )
    container = {
        **_container(
            "recorder", settings.image, settings, ["python", "-m", "testbed_runtime.entry.pod", "recorder"]
        ),
        "env": [*_identity("recorder"), _value("HEADGATE_RUN", run["metadata"]["name"])],
        "ports": [
            {"name": "recorder", "containerPort": naming.RECORDER_PORT},
            {"name": "supervisor", "containerPort": naming.SUPERVISOR_PORT},
        ],
        **_probes(naming.SUPERVISOR_PORT),
        "volumeMounts": [*_mounts(), {"name": "data", "mountPath": naming.DATA_FOLDER}],
    }
    volumes = [*_volumes(naming.token_name(run["metadata"]["name"])), {"name": "data", **data}]
    return _pod(run, name, settings, role="recorder", container=container, volumes=volumes)


def runner_pod(run: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The engine. A container that failed is started again by the kubelet, a pod that is gone by the operator."""
    metadata = run["metadata"]
    spark = spark_name(run)
    container = {
        **_container("runner", settings.image, settings, ["python", "-m", "testbed_runtime.entry.runner"]),
        "env": [
            *_identity("runner"),
            _value("HEADGATE_RUN", metadata["name"]),
            _value(
                "HEADGATE_RECORDER", f"{_host(naming.recorder_name(metadata['name']), metadata['namespace'])}"
                f":{naming.RECORDER_PORT}",
            ),
            _value("HEADGATE_SPARK", f"{_host(spark, metadata['namespace'])}:{naming.SPARK_PORT}"),
        ],
        "volumeMounts": [
            *_mounts(),
            {"name": "spark-token", "mountPath": SPARK_TOKEN_FOLDER, "readOnly": True},
        ],
    }  # fmt: skip
    volumes = [
        *_volumes(naming.token_name(metadata["name"])),
        {"name": "spark-token", "secret": {"secretName": naming.token_name(spark), "defaultMode": 0o440}},
    ]
    return _pod(
        run,
        naming.runner_name(metadata["name"]),
        settings,
        role="runner",
        container=container,
        volumes=volumes,
        restart="OnFailure",
        account_name=naming.RUNNER_ACCOUNT,
    )


def study_pod_name(study: str) -> str:
    return f"{study}-study"


def study_pod(study: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Creates the study's runs and writes its table."""
    container = {
        **_container("study", settings.image, settings, ["python", "-m", "testbed_runtime.entry.study"]),
        "env": [*_identity("study"), _value("HEADGATE_STUDY", study["metadata"]["name"])],
        "volumeMounts": _mounts(token=False),
    }
    return _pod(
        study,
        study_pod_name(study["metadata"]["name"]),
        settings,
        role="study",
        container=container,
        volumes=_volumes(""),
        restart="OnFailure",
        account_name=naming.STUDY_ACCOUNT,
    )


def spark_pod(run: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The namespace's warm one has every run that needs it as an owner; one with executors belongs to its run alone."""
    name = spark_name(run)
    own = executors(run) > 0
    claim = (run["spec"].get("evaluation") or {}).get("historyClaim", "")
    container = {
        **_container(
            "spark",
            settings.spark_image,
            settings,
            ["python", "-m", "testbed_runtime.entry.spark"],
            memory=SPARK_MEMORY,
        ),
        "env": [
            *_identity("spark"),
            _value("HEADGATE_EXECUTORS", str(executors(run))),
            *(_executor_values(settings, claim) if own else []),
        ],
        "ports": [{"name": "spark", "containerPort": naming.SPARK_PORT}],
        **_probes(naming.SPARK_PORT),
        "volumeMounts": [
            *_mounts(),
            *([{"name": "history", "mountPath": naming.DATA_FOLDER}] if claim and own else []),
        ],
    }
    volumes = _volumes(naming.token_name(name), scratch=SPARK_SCRATCH)
    if claim and own:
        volumes.append({"name": "history", "persistentVolumeClaim": {"claimName": claim}})
    pod = _pod(
        run,
        name,
        settings,
        role=_spark_role(run),
        container=container,
        volumes=volumes,
        account_name=naming.SPARK_ACCOUNT if own else "",
        controlled=own,
    )
    pod["spec"]["terminationGracePeriodSeconds"] = SPARK_GRACE_S
    return pod


def _executor_values(settings: Settings, claim: str) -> list[dict[str, Any]]:
    """What the driver makes its executors' pods of."""
    found = {
        "HEADGATE_SPARK_IMAGE": settings.spark_image,
        "HEADGATE_IMAGE_PULL_POLICY": settings.pull_policy,
        "HEADGATE_IMAGE_PULL_SECRETS": ",".join(settings.pull_secrets),
        "HEADGATE_HISTORY_CLAIM": claim,
    }
    return [_value(name, value) for name, value in found.items() if value]


def spark_service(run: Mapping[str, Any]) -> dict[str, Any]:
    name = spark_name(run)
    role = _spark_role(run)
    return _service(run, name, role=role, port=naming.SPARK_PORT, controlled=executors(run) > 0)


def spark_secret(run: Mapping[str, Any], token: str) -> dict[str, Any]:
    name = spark_name(run)
    own = executors(run) > 0
    secret = token_secret(run, name, token)
    if not own:
        secret["metadata"] = _metadata(run, naming.token_name(name), role="token", controlled=False)
    return secret


# ---- inside


def _managed() -> dict[str, str]:
    return {naming.LABEL_MANAGED_BY: naming.MANAGED_BY}


_KIND_LABELS = {"ScenarioRun": naming.LABEL_RUN, "TuningStudy": naming.LABEL_STUDY}


def _metadata(owner: Mapping[str, Any], name: str, *, role: str, controlled: bool = True) -> dict[str, Any]:
    """What is shared by runs (not `controlled`) carries no run's label: no single run is told of its changes."""
    labels = {**_managed(), naming.LABEL_ROLE: role}
    if controlled:
        labels[_KIND_LABELS[owner["kind"]]] = owner["metadata"]["name"]
    return {
        "name": name,
        "namespace": owner["metadata"]["namespace"],
        "labels": labels,
        "ownerReferences": [owner_of(owner, controller=controlled)],
    }


def _head(
    api_version: str,
    kind: str,
    owner: Mapping[str, Any],
    name: str,
    *,
    role: str,
    controlled: bool = True,
) -> dict[str, Any]:
    metadata = _metadata(owner, name, role=role, controlled=controlled)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _service(
    owner: Mapping[str, Any], name: str, *, role: str, port: int, controlled: bool = True
) -> dict[str, Any]:
    """Headless: a name that follows the pod, also before it is ready."""
    head = _head("v1", "Service", owner, name, role=role, controlled=controlled)
    selector = {naming.LABEL_ROLE: role}
    if controlled:
        selector[_KIND_LABELS[owner["kind"]]] = owner["metadata"]["name"]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector if controlled else {**selector, **_managed()},
        "ports": [{"name": role, "port": port, "targetPort": port}],
    }
    return {**head, "spec": spec}


def _pod(
    owner: Mapping[str, Any],
    name: str,
    settings: Settings,
    *,
    role: str,
    container: Mapping[str, Any],
    volumes: Sequence[Mapping[str, Any]],
    restart: str = "Always",
    account_name: str = "",
    controlled: bool = True,
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": bool(account_name),
        "enableServiceLinks": False,
        "securityContext": dict(_POD_SECURITY),
        "containers": [dict(container)],
        "volumes": [dict(volume) for volume in volumes],
    }
    if account_name:
        spec["serviceAccountName"] = account_name
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in settings.pull_secrets]
    return {**_head("v1", "Pod", owner, name, role=role, controlled=controlled), "spec": spec}


def _container(
    name: str, image: str, settings: Settings, command: Sequence[str], *, memory: str = SMALL_MEMORY
) -> dict[str, Any]:
    """The end of its log is kept by the kubelet when it fails: no rights on logs are needed to show it."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": settings.pull_policy,
        "command": list(command),
        "securityContext": dict(_RESTRICTED),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": memory}},
    }


def _value(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def _identity(name: str) -> list[dict[str, Any]]:
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    return [
        _value("HEADGATE_NAME", name),
        *(_value(key, value) for key, value in naming.SHARED_CLOCK.items()),
        *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()),
    ]


def _probes(port: int) -> dict[str, Any]:
    every = {
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": PROBE_TIMEOUT_S,
        "failureThreshold": PROBE_FAILURES,
    }
    return {
        "startupProbe": {
            "httpGet": {"path": "/healthz", "port": port},
            **every,
            "failureThreshold": START_FAILURES,
        },
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": port}, **every},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": port}, **every, "failureThreshold": 1},
    }


def _mounts(*, token: bool = True) -> list[dict[str, Any]]:
    folder = naming.TOKEN_FILE.rpartition("/")[0]
    found = [{"name": "work", "mountPath": naming.WORK_FOLDER}, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    return [*found, {"name": "token", "mountPath": folder, "readOnly": True}] if token else found


def _volumes(token: str, *, scratch: str = "256Mi") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "work", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {"sizeLimit": scratch}},
    ]
    if token:
        found.append({"name": "token", "secret": {"secretName": token, "defaultMode": 0o440}})
    return found


def _host(service: str, namespace: str) -> str:
    return f"{service}.{namespace}.svc"
