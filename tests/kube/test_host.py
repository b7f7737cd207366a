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


@pytest.mark.parametrize(
    ("containers", "error"), [("True", ""), ("False", "late-main-1-tm-0")], ids=["lost", "stuck"]
)
def test_only_pods_of_lost_nodes_are_left_behind(
    monkeypatch: pytest.MonkeyPatch, containers: str, error: str
) -> None:
    """They do not end before their node returns. A pod that a kubelet does not end is an error with its name."""
    monkeypatch.setattr("testbed_runtime.kube.host.GONE_LIMIT_S", 0.2)
    name = naming.trial_testbed_name("late", "main-1")
    metadata = {"name": "late-main-1-tm-0", "namespace": "shop", "labels": {naming.LABEL_TESTBED: name}}
    conditions = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": containers}]

    async def scenario() -> str:
        api = ModelApi()
        api.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
        api.objects["Pod", "shop", "late-main-1-tm-0"]["status"] = {"conditions": conditions}
        host = KubeTestbedHost(cast("Api", api), PLACE, Collected())
        try:
            await host.dispose(TRIAL)
        except HeadgateError as raised:
            return str(raised)
        return ""

    assert error in (raised := asyncio.run(scenario()))
    assert bool(raised) == bool(error)
