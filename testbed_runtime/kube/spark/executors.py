"""Spark's settings for executors in pods: they mount the claim with the histories and pass Pod Security `restricted`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed_runtime.api import naming, podsettings
from testbed_runtime.api.resources import manifest
from testbed_runtime.core.errors import HeadgateError

EXECUTOR_MEMORY = "512m"
"""Memory of an executor. A trial's tables are below 100 MB, and Spark adds its own overhead."""
EXECUTOR_CORES_REQUESTED = "100m"
TEMPLATE = "executor.json"
DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079


def master(environment: Mapping[str, str]) -> str:
    """Return Spark's master URL. Raises HeadgateError outside a cluster."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        raise HeadgateError("executors need a cluster, but KUBERNETES_SERVICE_HOST is not set")
    shown = f"[{host}]" if ":" in host else host
    return f"k8s://https://{shown}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}"


def executor_settings(environment: Mapping[str, str], *, executors: int, scratch: Path) -> dict[str, str]:
    """Return the settings to add to session.settings, and write the executors' pod template into `scratch`."""
    claim = environment.get("HEADGATE_HISTORY_CLAIM", "")
    if not claim:
        raise HeadgateError(
            "executors cannot read the histories: set spec.evaluation.historyClaim to a claim that several nodes can mount"
        )
    template = scratch / TEMPLATE
    extra = podsettings.read(environment.get(podsettings.VARIABLE, ""))
    template.write_text(json.dumps(podsettings.applied(pod_template(environment["POD_NAME"]), extra)))
    address, mount = environment["POD_IP"], "spark.kubernetes.executor.volumes.persistentVolumeClaim.history"
    secrets = environment.get("HEADGATE_IMAGE_PULL_SECRETS", "")
    return {
        **({"spark.kubernetes.container.image.pullSecrets": secrets} if secrets else {}),
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.driver.port": str(DRIVER_PORT),
        "spark.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.executor.instances": str(executors),
        "spark.executor.cores": "1",
        "spark.executor.memory": EXECUTOR_MEMORY,
        "spark.executorEnv.PYTHONPATH": environment.get("PYTHONPATH", ""),
        "spark.kubernetes.namespace": environment["POD_NAMESPACE"],
        "spark.kubernetes.driver.pod.name": environment["POD_NAME"],
        "spark.kubernetes.container.image": environment["HEADGATE_SPARK_IMAGE"],
        "spark.kubernetes.container.image.pullPolicy": environment.get("HEADGATE_IMAGE_PULL_POLICY")
        or "IfNotPresent",
        "spark.kubernetes.executor.request.cores": EXECUTOR_CORES_REQUESTED,
        "spark.kubernetes.executor.podNamePrefix": environment["POD_NAME"],
        "spark.kubernetes.executor.podTemplateFile": str(template),
        # The operator makes the driver's Service and names the claim: Spark may not delete either.
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        f"{mount}.mount.path": naming.DATA_FOLDER,
        f"{mount}.mount.readOnly": "false",
        f"{mount}.options.claimName": claim,
    }


def pod_template(driver: str) -> dict[str, Any]:
    """Return what Spark does not set itself: the security context, a writable folder, labels."""
    container = {
        "name": "executor",
        "workingDir": "/tmp",  # noqa: S108 - an emptyDir
        "securityContext": podsettings.RESTRICTED,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": podsettings.POD_SECURITY,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    labels = {**naming.recommended_labels(driver, "executor"), naming.LABEL_ROLE: "executor"}
    return manifest("Pod", {"labels": labels}, spec=spec)
