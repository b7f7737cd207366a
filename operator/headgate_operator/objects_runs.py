"""Build the objects of a ScenarioRun and a TuningStudy: recorder, runner, study and Spark pods, their Services, Secrets, claims
and accounts. Pure; all pods pass Pod Security `restricted`."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

from headgate_operator.objects import (
    LOCAL_STORAGE,
    container_ports,
    headless_service,
    owner_of,
    probe,
    resources,
    restricted_container,
    restricted_pod,
    secret,
    volume_claim,
)
from headgate_operator.settings import Settings
from testbed_runtime.api import naming, podsettings
from testbed_runtime.api.custom_resources import CUSTOM_RESOURCES
from testbed_runtime.api.resources import manifest, metadata_of
from testbed_runtime.api.views import Resource, Run, Study
from testbed_runtime.http import HEALTHZ, READYZ

SPARK_NAME = "headgate-spark"
"""Name of the pod and the Service of a namespace's warm Spark."""
WARM_SPARK_ROLE = "spark"
OWN_SPARK_ROLE = "spark-driver"
"""A different role, so that the warm Spark's Service does not select the drivers of runs with executors."""
SPARK_TOKEN_FOLDER = "/etc/headgate/spark-token"  # noqa: S105 - a path, not a secret
SPARK_GRACE_S = 5
"""Short, because an interrupted evaluation is requested again: there is nothing to save."""
PROBE_PERIOD_S = 2
PROBE_FAILURES = 15
"""Failed liveness probes before the container restarts: half a minute, which a busy small node sometimes needs for an answer."""
START_FAILURES = 90
"""Failed startup probes before liveness is checked: a process has three minutes to import its modules on a busy machine."""
SPARK_MEMORY = "1536Mi"
SPARK_SCRATCH = "2Gi"
"""Size of the volume for the histories of one evaluation and Spark's shuffle."""
SMALL_MEMORY = "512Mi"


def spark_name(run: Run) -> str:
    """Return the name of the namespace's warm Spark, or of the run's own when it has executors."""
    return SPARK_NAME if run.uses_warm_spark else f"{run.name}-spark"


def _spark_role(run: Run) -> str:
    return WARM_SPARK_ROLE if run.uses_warm_spark else OWN_SPARK_ROLE


# ---- small things


def token_secret(owner: Resource, name: str, token: str, *, controlled: bool = True) -> dict[str, Any]:
    """Return the Secret of a run or of a Spark pod, named by naming.token_name."""
    metadata = _metadata(owner, naming.token_name(name), role="token", controlled=controlled)
    return secret(metadata, token)


def recorder_service(run: Run) -> dict[str, Any]:
    name = naming.recorder_name(run.name)
    return _service(run, name, role="recorder", port=naming.RECORDER_PORT)


def recorder_claim(run: Run, settings: Settings) -> dict[str, Any]:
    """Return the recorder's claim, for installations that set `recorder.storage`."""
    metadata = _metadata(run, naming.recorder_name(run.name), role="recorder")
    return volume_claim(metadata, settings.recorder_storage, settings.recorder_storage_class)


def account(namespace: str, name: str) -> dict[str, Any]:
    """Return a service account for Headgate's pods. It has no owner: every run of the namespace uses it."""
    return manifest(
        "ServiceAccount",
        metadata_of(name, namespace, component=_component(name)),
        automountServiceAccountToken=False,
    )


def role_binding(namespace: str, name: str, settings: Settings) -> dict[str, Any]:
    """Bind the account to its ClusterRole within the namespace only: `headgate-runner` to `<prefix>-runner` of this installation."""
    role = f"{settings.role_prefix}-{_component(name)}"
    return manifest(
        "RoleBinding",
        metadata_of(role, namespace, component=_component(name)),
        roleRef={"apiGroup": naming.RBAC_GROUP, "kind": "ClusterRole", "name": role},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    )


def _component(account_name: str) -> str:
    """Return `runner` for the account `headgate-runner`."""
    return account_name.rpartition("-")[2]


def accounts(owner: Run | Study, settings: Settings) -> list[dict[str, Any]]:
    """Return the service accounts of the owner's pods, and their bindings. In a namespaced installation the chart creates them,
    and the operator has no permission to."""
    if not settings.cluster_wide:
        return []
    if isinstance(owner, Study):
        names = [naming.STUDY_ACCOUNT]
    else:
        names = [naming.RUNNER_ACCOUNT, *([naming.SPARK_ACCOUNT] if owner.executors else [])]
    return [
        m for n in names for m in (account(owner.namespace, n), role_binding(owner.namespace, n, settings))
    ]


def missing_accounts(
    owner: Run | Study, existing: Container[tuple[str, str]], settings: Settings
) -> list[dict[str, Any]]:
    return [m for m in accounts(owner, settings) if (m["kind"], m["metadata"]["name"]) not in existing]


# ---- pods


def recorder_pod(run: Run, settings: Settings) -> dict[str, Any]:
    """Return the pod that serves the run's record and folder. It is recreated under the same name."""
    name = naming.recorder_name(run.name)
    data: dict[str, Any] = {"emptyDir": {"sizeLimit": LOCAL_STORAGE}}
    if settings.recorder_storage:
        data = {"persistentVolumeClaim": {"claimName": name}}
    command, env = ["testbed_runtime.entry.pod", "recorder"], {"HEADGATE_RUN": run.name, **naming.NO_BUNDLE}
    container = {
        **_container("recorder", settings.image, settings, command, env),
        "ports": container_ports({"recorder": naming.RECORDER_PORT, "supervisor": naming.SUPERVISOR_PORT}),
        **_probes(naming.SUPERVISOR_PORT),
        "volumeMounts": [*_mounts(), {"name": "data", "mountPath": naming.DATA_FOLDER}],
    }
    volumes = [*_volumes(naming.token_name(run.name)), {"name": "data", **data}]
    return _pod(run, name, settings, role="recorder", container=container, volumes=volumes)


def runner_pod(run: Run, settings: Settings) -> dict[str, Any]:
    """Return the pod of the engine. The kubelet restarts a failed container, the operator recreates a pod that is gone."""
    spark = spark_name(run)
    env = {
        "HEADGATE_RUN": run.name,
        "HEADGATE_RECORDER": f"{_host(naming.recorder_name(run.name), run.namespace)}:{naming.RECORDER_PORT}",
        "HEADGATE_SPARK": f"{_host(spark, run.namespace)}:{naming.SPARK_PORT}",
    }
    spark_token = {"name": "spark-token", "mountPath": SPARK_TOKEN_FOLDER, "readOnly": True}
    container = {
        **_container("runner", settings.image, settings, ["testbed_runtime.entry.runner"], env),
        "volumeMounts": [*_mounts(), spark_token],
    }
    # last, because they may refer to the others as $(POD_NAME)
    container["env"] = [*container["env"], *settings.runner_env]
    volumes = [
        *_volumes(naming.token_name(run.name)),
        {"name": "spark-token", "secret": {"secretName": naming.token_name(spark), "defaultMode": 0o440}},
    ]
    return _pod(
        run,
        naming.runner_name(run.name),
        settings,
        role="runner",
        container=container,
        volumes=volumes,
        restart="OnFailure",
        account_name=naming.RUNNER_ACCOUNT,
    )


def study_pod_name(study: str) -> str:
    return f"{study}-study"


def study_pod(study: Study, settings: Settings) -> dict[str, Any]:
    """Return the pod that creates the study's runs and writes its table."""
    command, env = ["testbed_runtime.entry.study"], {"HEADGATE_STUDY": study.name}
    container = {
        **_container("study", settings.image, settings, command, env),
        "volumeMounts": _mounts(token=False),
    }
    return _pod(
        study,
        study_pod_name(study.name),
        settings,
        role="study",
        container=container,
        volumes=_volumes(""),
        restart="OnFailure",
        account_name=naming.STUDY_ACCOUNT,
    )


def spark_pod(run: Run, settings: Settings) -> dict[str, Any]:
    """Return the Spark pod. The warm one of a namespace is owned by every run that uses it, one with executors by its run alone."""
    name = spark_name(run)
    own = not run.uses_warm_spark
    claim = run.history_claim
    command = ["testbed_runtime.entry.spark"]
    env = {"HEADGATE_EXECUTORS": str(run.executors), **(_executor_values(settings, claim) if own else {})}
    mounts, volumes = _mounts(), _volumes(naming.token_name(name), scratch=SPARK_SCRATCH)
    if claim and own:
        mounts.append({"name": "history", "mountPath": naming.DATA_FOLDER})
        volumes.append({"name": "history", "persistentVolumeClaim": {"claimName": claim}})
    container = {
        **_container("spark", settings.spark_image, settings, command, env, memory=SPARK_MEMORY),
        "ports": container_ports({"spark": naming.SPARK_PORT}),
        **_probes(naming.SPARK_PORT),
        "volumeMounts": mounts,
    }
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


def _executor_values(settings: Settings, claim: str) -> dict[str, str]:
    """Return the environment from which the driver creates its executors' pods."""
    found = {
        "HEADGATE_SPARK_IMAGE": settings.spark_image,
        "HEADGATE_IMAGE_PULL_POLICY": settings.pull_policy,
        "HEADGATE_IMAGE_PULL_SECRETS": ",".join(settings.pull_secrets),
        "HEADGATE_HISTORY_CLAIM": claim,
        podsettings.VARIABLE: json.dumps(settings.pods) if settings.pods else "",
    }
    return {name: value for name, value in found.items() if value}


def spark_service(run: Run) -> dict[str, Any]:
    name = spark_name(run)
    role = _spark_role(run)
    return _service(run, name, role=role, port=naming.SPARK_PORT, controlled=not run.uses_warm_spark)


def spark_secret(run: Run, token: str) -> dict[str, Any]:
    return token_secret(run, spark_name(run), token, controlled=not run.uses_warm_spark)


# ---- inside


def _metadata(owner: Resource, name: str, *, role: str, controlled: bool = True) -> dict[str, Any]:
    """Return metadata. An object that runs share (not `controlled`) has no label of a run, so its changes cause no reconcile of a single run."""
    labels = {naming.LABEL_ROLE: role}
    if controlled:
        labels[CUSTOM_RESOURCES[owner.kind].label] = owner.name
    reference = owner_of(owner, controller=controlled)
    return metadata_of(name, owner.namespace, labels, component=role, owner=reference)


def _service(owner: Resource, name: str, *, role: str, port: int, controlled: bool = True) -> dict[str, Any]:
    """Return the Service of a pod. A Service that runs share selects pods by role only."""
    metadata = _metadata(owner, name, role=role, controlled=controlled)
    own = CUSTOM_RESOURCES[owner.kind].label if controlled else naming.LABEL_MANAGED_BY
    selector = {label: metadata["labels"][label] for label in (naming.LABEL_ROLE, own)}
    return headless_service(metadata, selector, role, port)


def _pod(
    owner: Resource,
    name: str,
    settings: Settings,
    *,
    role: str,
    container: dict[str, Any],
    volumes: list[dict[str, Any]],
    restart: str = "Always",
    account_name: str = "",
    controlled: bool = True,
) -> dict[str, Any]:
    account = (
        {"serviceAccountName": account_name, "automountServiceAccountToken": True} if account_name else {}
    )
    metadata = _metadata(owner, name, role=role, controlled=controlled)
    return restricted_pod(
        metadata, settings, restartPolicy=restart, containers=[container], volumes=volumes, **account
    )


def _container(
    name: str,
    image: str,
    settings: Settings,
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    memory: str = SMALL_MEMORY,
) -> dict[str, Any]:
    """Return a container. The kubelet keeps the end of its log when it fails, so no permission on logs is needed to show it."""
    return {
        **restricted_container(name, image, settings, command, {"HEADGATE_NAME": name, **env}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": resources("50m", ("128Mi", memory)),
    }


def _probes(port: int) -> dict[str, Any]:
    return {
        "startupProbe": probe(HEALTHZ, port, PROBE_PERIOD_S, START_FAILURES),
        "livenessProbe": probe(HEALTHZ, port, PROBE_PERIOD_S, PROBE_FAILURES),
        "readinessProbe": probe(READYZ, port, PROBE_PERIOD_S, 1),
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
