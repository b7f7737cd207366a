"""The runner's Testbeds, against the model of the API server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from testbed_runtime.api import naming
from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.kinds import TestbedResourceSpec
from testbed_runtime.api.views import Run
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube.api import Api, ApiError
from testbed_runtime.kube.host import KubeTestbedHost, RunAccess, manifest
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.runner.progress import Collected
from tests.entry.pods import SPEC
from tests.operator.model import ModelApi

RUN = {
    "apiVersion": naming.API_VERSION,
    "kind": "ScenarioRun",
    "metadata": {"name": "late", "namespace": "shop", "uid": "u-1"},
}
PLACE = RunAccess("shop", "late", "secret", ("late-recorder.shop.svc", 6126), Run(RUN))
TRIAL = TrialContext("late", "main-1", 7)


def test_a_testbed_that_an_earlier_runner_left_behind_is_replaced() -> None:
    """Its record may be lost with the recorder, so it is unknown what was done to it. It is deleted first."""
    plan = compile_testbed(TestbedResourceSpec.model_validate(SPEC), seed=7)

    async def scenario() -> list[tuple[str, str, str]]:
        api = ModelApi()
        left = manifest(plan, PLACE, TRIAL)
        api.put({**left, "metadata": {**left["metadata"], "ownerReferences": []}})
        refused: Any = ApiError(422, "Invalid", "no more here")
        api.failing.append((lambda verb, kind, _: (verb, kind) == ("create", "Testbed"), refused))
        host = KubeTestbedHost(cast("Api", api), PLACE, Collected())
        with pytest.raises(HeadgateError, match="no more here"):
            await host.create(plan, context=TRIAL)
        return api.calls

    verbs = [verb for verb, kind, _ in asyncio.run(scenario()) if kind == "Testbed"]
    assert verbs.index("delete") < verbs.index("create")
