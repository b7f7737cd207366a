"""A kept checkpoint on its way into a cluster: packed into ConfigMaps of the run, and read from them by its runner."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.models import Scenario
from testbed_runtime.api.validate_kinds import validate_kind
from testbed_runtime.api.views import Resource
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube import checkpoint
from testbed_runtime.kube.api import Api, ApiError
from testbed_runtime.kube.client_run import ClientRun
from tests.api.documents import good
from tests.collecting import Collected
from tests.operator.model import ModelApi

LAB, KEPT = "lab", "/runs/first/files/main-1"
OPTION = "execution.state-recovery.path"
NOISE = random.Random(7).randbytes(2_000_000)
OBJECTS = {"recovery": b"{}", "jobs/a/checkpoints/3/count-0": NOISE, "jobs/a/checkpoints/3/count-1": b""}
RUN = {
    "apiVersion": "headgate.dev/v1alpha1",
    "kind": "ScenarioRun",
    "metadata": {"name": "late", "namespace": LAB},
}


class Following(ClientRun):
    """Ends when the run would be followed."""

    async def follow(self, name: str) -> dict[str, Any]:
        raise HeadgateError(f"followed {name}")


async def run_from(api: ModelApi, document: dict[str, Any], objects: dict[str, bytes]) -> str:
    """`headgate run --on kubernetes` until it would follow the run. Return how it ended."""
    scenario = Scenario.model_validate(document)
    plan = compile_run(scenario, scenario_folder=cast("Any", None))
    client = Following(cast("Api", api), LAB, Collected())
    with pytest.raises(HeadgateError) as ended:
        await client.run(scenario, document, plan=plan, out=cast("Any", None), checkpoints={KEPT: objects})
    return str(ended.value)


def restored(kept: str = KEPT) -> dict[str, Any]:
    """A scenario that starts from a checkpoint in one of its variants."""
    document = good("Scenario")
    document["spec"]["variants"][1]["flinkConfiguration"] = {OPTION: kept, "heartbeat.interval": "1 s"}
    return document


async def test_a_checkpoint_arrives_at_the_runner_as_it_was() -> None:
    """It needs several ConfigMaps, which the run owns and the operator does not watch. The run names the first of them."""
    api = ModelApi()
    assert "followed" in await run_from(api, restored(), OBJECTS)
    (run,) = api.select("ScenarioRun", LAB)
    assert validate_kind(run).errors == ()
    path = run["spec"]["scenario"]["variants"][1]["flinkConfiguration"][OPTION]
    assert path == f"configmap://{run['metadata']['name']}-checkpoint-0"
    parts = api.select("ConfigMap", LAB)
    assert len(parts) == 3
    assert {part["metadata"]["ownerReferences"][0]["uid"] for part in parts} == {run["metadata"]["uid"]}
    assert not any("managed-by" in label for part in parts for label in part["metadata"]["labels"])
    assert await checkpoint.fetch(cast("Api", api), LAB, path) == OBJECTS


async def test_a_checkpoint_that_is_too_large_is_refused_before_anything_is_created() -> None:
    """With its size, and what to do."""
    api = ModelApi()
    said = await run_from(api, restored(), {"jobs/a/state": random.Random(8).randbytes(15_000_000)})
    assert "ConfigMaps hold 14400000" in said
    assert "run it on this machine" in said
    assert api.select("ScenarioRun", LAB) == []


async def test_a_run_whose_checkpoint_cannot_be_stored_is_stopped() -> None:
    """A user who may create runs, and no ConfigMaps."""
    api = ModelApi()
    refused: Any = ApiError(403, "Forbidden", "no ConfigMaps for you")
    api.failing.append((lambda verb, kind, _: (verb, kind) == ("create", "ConfigMap"), refused))
    assert "no ConfigMaps for you" in await run_from(api, restored(), OBJECTS)
    (run,) = api.select("ScenarioRun", LAB)
    assert "headgate.dev/heal" in run["metadata"]["annotations"]


async def test_a_runner_says_which_part_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line was interrupted between two of them."""
    monkeypatch.setattr(checkpoint, "FETCH_LIMIT_S", 0.1)
    monkeypatch.setattr(checkpoint, "RETRY_S", 0.01)
    api = ModelApi()
    for manifest in checkpoint.config_maps(Resource(RUN), "late-checkpoint-0", checkpoint.pack(OBJECTS))[:2]:
        api.put(manifest)
    with pytest.raises(HeadgateError, match="ConfigMap late-checkpoint-0-2 with the kept checkpoint"):
        await checkpoint.fetch(cast("Api", api), LAB, "configmap://late-checkpoint-0")


@pytest.mark.parametrize("damage", [b"", b"noise", checkpoint.pack(OBJECTS)[0]])
def test_damaged_parts_are_an_error(damage: bytes) -> None:
    """A part that is missing at the end, too."""
    with pytest.raises(HeadgateError, match=r"damaged|incomplete"):
        checkpoint.unpack([damage])


def test_parts_that_unpack_to_more_than_an_object_of_the_store_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few bytes can unpack to gigabytes, which would fill the runner's memory."""
    monkeypatch.setattr(checkpoint, "MAX_OBJECT_BYTES", 1000)
    with pytest.raises(HeadgateError, match="more than 1000 bytes"):
        checkpoint.unpack(checkpoint.pack({"zeros": bytes(10_000)}))


async def test_a_config_map_of_something_else_is_no_checkpoint() -> None:
    """Its name is in the error."""
    api = ModelApi()
    api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "namespace": LAB}})
    with pytest.raises(HeadgateError, match="ConfigMap other is not part"):
        await checkpoint.fetch(cast("Api", api), LAB, "configmap://other")
