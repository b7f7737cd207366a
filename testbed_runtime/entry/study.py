"""`python -m testbed_runtime.entry.study`: the pod of one TuningStudy (HEADGATE_STUDY, POD_NAMESPACE).

Exit code 0: the table is complete, or the study was deleted. Any other exit code restarts the pod. SIGTERM ends the process at
once; nothing is lost.
"""

from __future__ import annotations

import os
import sys

from testbed_runtime.api import naming
from testbed_runtime.api.environment import needed
from testbed_runtime.entry.harness import run_main
from testbed_runtime.kube.api import connect
from testbed_runtime.kube.study import Study

FIELD_MANAGER = naming.STUDY_ACCOUNT
SET_BY = "the operator sets it in the study's pod"


async def run() -> int:
    """Run the study until it is complete. Return the exit code."""
    study, namespace = (needed(os.environ, name, SET_BY) for name in ("HEADGATE_STUDY", "POD_NAMESPACE"))
    async with connect(namespace=namespace, field_manager=FIELD_MANAGER) as api:
        await Study(api, namespace, study).run()
    return 0


if __name__ == "__main__":
    sys.exit(run_main(run, exit_error=1))
