"""An API server at which no pod changes and no Testbed is deleted, for a KubeTestbed without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from testbed_runtime.kube.disruptions import Disruptions
from testbed_runtime.kube.podfaults import PodFaults
from testbed_runtime.kube.recorder import RecorderFolder


class Unwatched:
    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield


async def never_gone() -> bool:
    return False


def unwatched() -> dict[str, Any]:
    """Return these arguments of KubeTestbed."""
    api = cast("Any", Unwatched())
    pods = PodFaults(api, "lab", "t")
    return {"pods": pods, "disruptions": Disruptions(api, "lab", "t", pods.asked), "gone": never_gone}


def no_folder() -> RecorderFolder:
    """Return a run's folder whose recorder does not exist."""
    return RecorderFolder(Path("/nonexistent"), ("127.0.0.1", 1), "token")
