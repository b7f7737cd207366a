"""`python -m testbed_runtime.entry.spark`: the evaluation service of a namespace, or of one run that has executors.

From the environment: POD_IP, POD_NAME, POD_NAMESPACE, HEADGATE_EXECUTORS; for executors HEADGATE_SPARK_IMAGE, HEADGATE_IMAGE_PULL_POLICY,
HEADGATE_IMAGE_PULL_SECRETS and HEADGATE_HISTORY_CLAIM. The token is in a file (naming.TOKEN_FILE).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation.process import SparkWorker
from testbed_runtime.evaluation.worker import MASTER, SETTINGS
from testbed_runtime.faults.http import serve
from testbed_runtime.kube.spark.executors import executor_settings, master
from testbed_runtime.kube.spark.service import SparkService
from testbed_runtime.process.clock import loop_factory

EXIT_ERROR = 2


def worker_environment(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """What the Spark process is told: nothing without executors."""
    executors = int(environment.get("HEADGATE_EXECUTORS") or "0")
    if executors == 0:
        return {}
    settings = executor_settings(environment, executors=executors, scratch=scratch)
    return {MASTER: master(environment), SETTINGS: json.dumps(settings)}


def history_folder(environment: Mapping[str, str], scratch: Path) -> Path:
    """With executors the claim that they mount too, else our own disk."""
    shared = int(environment.get("HEADGATE_EXECUTORS") or "0") > 0
    return Path(naming.DATA_FOLDER) if shared else scratch


async def run(environment: Mapping[str, str], *, token: str, bind: tuple[str, int], scratch: Path) -> None:
    """Until SIGTERM."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    worker = SparkWorker(environment=worker_environment(environment, scratch))
    service = SparkService(worker, token=token, folder=history_folder(environment, scratch))
    service.warm_up()
    runner, address = await serve(service.application(), bind)
    try:
        print(json.dumps({"ready": {"control": list(address)}}), flush=True)  # noqa: T201
        await ended.wait()
    finally:
        await runner.cleanup()
        await service.close()


def main() -> int:
    """0 after SIGTERM; 2 when the token or the port is not there."""
    try:
        token = Path(os.environ.get("HEADGATE_TOKEN_FILE") or naming.TOKEN_FILE).read_text().strip()
        port = int(os.environ.get("HEADGATE_SPARK_PORT") or naming.SPARK_PORT)
        bind = (os.environ.get("POD_IP") or "127.0.0.1", port)
        with (
            tempfile.TemporaryDirectory(prefix="headgate-histories-") as scratch,
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            runner.run(run(os.environ, token=token, bind=bind, scratch=Path(scratch)))
    except (HeadgateError, OSError, ValueError) as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
