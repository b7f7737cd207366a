"""Spark's settings for executors in pods, and which files are downloaded from a recorder. Pure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.entry.spark import history_folder, worker_environment
from testbed_runtime.evaluation.worker import MASTER, SETTINGS
from testbed_runtime.kube.recorder import MAX_BYTES, wanted
from testbed_runtime.kube.spark.executors import master, pod_template
from tests.manifests import run_manifest

POD = {
    "POD_IP": "10.0.0.7",
    "POD_NAME": "late-spark",
    "POD_NAMESPACE": "lab",
    "HEADGATE_EXECUTORS": "2",
    "HEADGATE_SPARK_IMAGE": "headgate-spark:dev",
    "HEADGATE_HISTORY_CLAIM": "histories",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
}


def test_without_executors_spark_gets_no_settings(tmp_path: Path):
    """Histories stay on the pod's own disk."""
    alone = {**POD, "HEADGATE_EXECUTORS": "0"}
    assert worker_environment(alone, tmp_path) == {}
    assert history_folder(alone, tmp_path) == tmp_path


def test_executors_mount_the_claim_where_the_driver_puts_histories(tmp_path: Path):
    """The same path in both, the same image, the driver found by its address."""
    environment = worker_environment(POD, tmp_path)
    settings = json.loads(environment[SETTINGS])
    assert environment[MASTER] == "k8s://https://10.96.0.1:443"
    mount = "spark.kubernetes.executor.volumes.persistentVolumeClaim.history"
    assert settings[f"{mount}.mount.path"] == str(history_folder(POD, tmp_path)) == naming.DATA_FOLDER
    assert settings[f"{mount}.options.claimName"] == "histories"
    assert settings["spark.executor.instances"] == "2"
    assert settings["spark.driver.host"] == "10.0.0.7"
    assert settings["spark.kubernetes.container.image.pullPolicy"] == "IfNotPresent"
    private = {**POD, "HEADGATE_IMAGE_PULL_POLICY": "Always", "HEADGATE_IMAGE_PULL_SECRETS": "a,b"}
    pulled = json.loads(worker_environment(private, tmp_path)[SETTINGS])
    assert pulled["spark.kubernetes.container.image.pullPolicy"] == "Always"
    assert pulled["spark.kubernetes.container.image.pullSecrets"] == "a,b"
    assert Path(settings["spark.kubernetes.executor.podTemplateFile"]).read_text() == json.dumps(
        pod_template(settings["spark.kubernetes.driver.pod.name"])
    )


def test_executors_without_a_claim_or_a_cluster_are_refused(tmp_path: Path):
    """The error names what is missing."""
    with pytest.raises(HeadgateError, match=r"spec\.evaluation\.historyClaim"):
        worker_environment({**POD, "HEADGATE_HISTORY_CLAIM": ""}, tmp_path)
    with pytest.raises(HeadgateError, match="KUBERNETES_SERVICE_HOST"):
        master({})


def test_executor_pods_pass_pod_security_restricted():
    """No privileges, and a read-only root file system."""
    spec = pod_template("r-spark")["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    inside = spec["containers"][0]["securityContext"]
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert inside["allowPrivilegeEscalation"] is False


def test_only_sealed_tables_of_trials_that_count_are_fetched():
    """No voided trial, nothing outside `history/`, no `..`."""
    manifest = run_manifest([{"trial": "main-1"}, {"trial": "main-2", "voided": True}, {"trial": ".."}])
    sizes = dict.fromkeys(
        ["history/main-1/events.parquet", "history/main-1/sealed.json", "history/main-1/segments/1.arrow",
         "history/main-2/events.parquet", "history/../manifest.json", "logs/main-1/tm-0.log"], 10,
    )  # fmt: skip
    assert wanted(manifest, sizes) == ["history/main-1/events.parquet", "history/main-1/sealed.json"]
    with pytest.raises(HeadgateError, match="run fewer or shorter trials"):
        wanted(manifest, {"history/main-1/events.parquet": MAX_BYTES + 1})
