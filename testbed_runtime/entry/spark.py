"""`python -m testbed_runtime.entry.spark`: the evaluation service of a namespace, or of one run that has executors.

Environment: POD_IP, POD_NAME, POD_NAMESPACE, HEADGATE_EXECUTORS; with executors also HEADGATE_SPARK_IMAGE,
HEADGATE_IMAGE_PULL_POLICY, HEADGATE_IMAGE_PULL_SECRETS and HEADGATE_HISTORY_CLAIM. The token is in a file (naming.TOKEN_FILE).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from testbed_runtime.api import naming
from testbed_runtime.api.environment import whole_number
from testbed_runtime.entry.harness import Process, Ready, run_process
from testbed_runtime.evaluation.process import SparkWorker
from testbed_runtime.evaluation.worker import MASTER, SETTINGS
from testbed_runtime.kube.spark.executors import executor_settings, master
from testbed_runtime.kube.spark.service import SparkService
from testbed_runtime.process.config import read_token


def worker_environment(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Return the environment of the Spark process: empty without executors."""
    executors = whole_number(environment, "HEADGATE_EXECUTORS", 0)
    if executors == 0:
        return {}
    settings = executor_settings(environment, executors=executors, scratch=scratch)
    return {MASTER: master(environment), SETTINGS: json.dumps(settings)}


def history_folder(environment: Mapping[str, str], scratch: Path) -> Path:
    """Return the folder of the histories: the volume that executors mount too, or this container's own disk."""
    shared = whole_number(environment, "HEADGATE_EXECUTORS", 0) > 0
    return Path(naming.DATA_FOLDER) if shared else scratch


async def start(environment: Mapping[str, str], process: Process) -> Ready:
    token = read_token(environment.get("HEADGATE_TOKEN_FILE") or naming.TOKEN_FILE)
    bind = (
        environment.get("POD_IP") or "127.0.0.1",
        whole_number(environment, "HEADGATE_SPARK_PORT", naming.SPARK_PORT),
    )
    scratch = Path(process.enter(tempfile.TemporaryDirectory(prefix="headgate-histories-")))
    worker = SparkWorker(environment=worker_environment(environment, scratch))
    service = SparkService(worker, token=token, folder=history_folder(environment, scratch))
    service.warm_up()
    process.on_close(service.close)
    return {"control": await process.listen(service.application(), bind)}


if __name__ == "__main__":
    sys.exit(run_process(start, lambda: os.environ, has_parent=lambda _: False))
