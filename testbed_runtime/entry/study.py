"""`python -m testbed_runtime.entry.study`: the pod of one TuningStudy (HEADGATE_STUDY, POD_NAMESPACE).

Exit code 0: the table is whole, or the study is gone; anything else: start it again. SIGTERM ends it at once, nothing is lost.
"""

from __future__ import annotations

import asyncio
import os
import sys

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube.api import connect
from testbed_runtime.kube.study import Study

FIELD_MANAGER = "headgate-study"


async def run(study: str, namespace: str) -> None:
    """Until the study is over. Raises HeadgateError."""
    async with connect(namespace=namespace, field_manager=FIELD_MANAGER) as api:
        await Study(api, namespace, study).run()


def main() -> int:
    study, namespace = os.environ.get("HEADGATE_STUDY", ""), os.environ.get("POD_NAMESPACE", "")
    if not study or not namespace:
        sys.stderr.write(
            "HEADGATE_STUDY and POD_NAMESPACE are needed: the operator sets them in the study's pod\n"
        )
        return 1
    try:
        asyncio.run(run(study, namespace))
    except (HeadgateError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
