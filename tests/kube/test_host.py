"""The runner's Testbeds, against the model of the API server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from testbed_runtime.api import naming
from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.kinds import TestbedResourceSpec
from testbed_runtime.api.views import Run
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.job.restore import STATE_RECOVERY
from testbed_runtime.core.trial.plan import TestbedPlan
from testbed_runtime.jobmanager.jobstore import CompletedCheckpoint, JobStore, StoredJob, StoredTask
from testbed_runtime.jobmanager.recovery import KeptCheckpoint
from testbed_runtime.kube import checkpoint
from testbed_runtime.kube.api import Api, ApiError
from testbed_runtime.kube.host import KubeTestbedHost, RunAccess, trial_testbed
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.workload.snapshots import ChannelState, SubtaskSnapshot, encode_snapshot
from tests.collecting import Collected
from tests.entry.pods import SPEC
from tests.kube.unwatched import no_folder
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
        left = trial_testbed(plan, PLACE, TRIAL)
        api.put({**left, "metadata": {**left["metadata"], "ownerReferences": []}})
        refused: Any = ApiError(422, "Invalid", "no more here")
        api.failing.append((lambda verb, kind, _: (verb, kind) == ("create", "Testbed"), refused))
        host = KubeTestbedHost(cast("Api", api), PLACE, Collected(), no_folder())
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
        host = KubeTestbedHost(cast("Api", api), PLACE, Collected(), no_folder())
        try:
            await host.dispose(TRIAL)
        except HeadgateError as raised:
            return str(raised)
        return ""

    assert error in (raised := asyncio.run(scenario()))
    assert bool(raised) == bool(error)


def counting(*, version: str = "2.x", partitioning: str = "hash", **count: Any) -> TestbedPlan:
    """`source` → `count` → `sink`; `count` has 2 subtasks unless `count` says otherwise."""
    vertices = [
        {"name": "source", "source": {}},
        {"name": "count", "parallelism": 2, "operator": "keyed-count", **count},
        {"name": "sink", "parallelism": 2, "sink": "ledger"},
    ]
    edges = [
        {"from": "source", "to": "count"},
        {"from": "count", "to": "sink", "partitioning": partitioning},
    ]
    spec = SPEC | {"flinkVersion": version, "job": {"vertices": vertices, "edges": edges}}
    spec["flinkConfiguration"] = {STATE_RECOVERY: "configmap://early-checkpoint-0"}
    return compile_testbed(TestbedResourceSpec.model_validate(spec), seed=7)


async def kept(plan: TestbedPlan, *, in_flight: bool) -> dict[str, bytes]:
    """The objects that the command line packs for checkpoint 7 of this job."""
    blobs, into, tasks = MemoryBlobStore(), MemoryBlobStore(), []
    state = (ChannelState(0, 0, (b"record",)),) if in_flight else ()
    for vertex in plan.job.vertices:
        for subtask in range(vertex.parallelism):
            key = f"jobs/j/checkpoints/7/{vertex.name}-{subtask}/a"
            mine = state if vertex.name == "sink" else ()
            snapshot = SubtaskSnapshot(7, vertex.name, subtask, vertex.parallelism, 128, input_state=mine)
            await blobs.put(key, encode_snapshot(snapshot))
            tasks.append(StoredTask(vertex.name, subtask, 0, key, 1))
    store = JobStore(blobs)
    await store.put_job(StoredJob("j", plan.job, {}, 0.0))
    await store.put_checkpoint(CompletedCheckpoint(7, "j", 15_000, False, tuple(tasks)))
    await (await KeptCheckpoint.read(blobs, "kept")).bring(into, plan.job, plan.flink_version)
    return {key: await into.get(key) for key in await into.list("")}


def test_objects_that_name_no_kept_checkpoint_are_refused() -> None:
    """They belong to something else, or are not complete."""
    with pytest.raises(UserError, match="the objects of the kept checkpoint do not name it"):
        asyncio.run(checkpoint.checked({}, counting().job, "2.x"))


@pytest.mark.parametrize(
    ("before", "wanted", "error"),
    [
        (counting(), counting(parallelism=3), ""),
        (counting(), counting(maxParallelism=256), "Cannot map operator count with max parallelism 128"),
        (counting(), counting(version="1.12", parallelism=3), "Flink 1.12 restores it at the same parallelism only"),
        (counting(), counting(partitioning="rebalance"), "need the connections that they had"),
        (counting(partitioning="broadcast"), counting(partitioning="broadcast", parallelism=3), "count → sink"),
    ],
    ids=["fits", "key groups", "before 1.13", "another connection", "broadcast"],
)  # fmt: skip
def test_a_run_that_names_the_checkpoint_of_another_one_is_checked_before_any_pod_is_created(
    before: TestbedPlan, wanted: TestbedPlan, error: str
) -> None:
    """A run that `kubectl` created has not passed the checks of the command line."""

    async def scenario() -> tuple[str, list[str]]:
        api = ModelApi()
        early: Any = {**RUN, "metadata": {"name": "early", "namespace": "shop", "uid": "u-0"}}
        parts = checkpoint.pack(await kept(before, in_flight=True))
        for part in checkpoint.config_maps(Run(early), "early-checkpoint-0", parts):
            api.put(part)
        refused: Any = ApiError(422, "Invalid", "no Testbed here")
        api.failing.append((lambda verb, kind, _: (verb, kind) == ("create", "Testbed"), refused))
        host = KubeTestbedHost(cast("Api", api), PLACE, Collected(), no_folder())
        with pytest.raises(HeadgateError) as raised:
            await host.create(wanted, context=TRIAL)
        return str(raised.value), [verb for verb, kind, _ in api.calls if kind == "Testbed"]

    text, calls = asyncio.run(scenario())
    assert (error or "no Testbed here") in text
    assert ("create" in calls) is not bool(error)
