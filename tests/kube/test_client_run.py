"""`--on kubernetes` against a model of the API server: the run that it makes is its own, and one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube.client_run import ClientRun, manifest
from testbed_runtime.runner.progress import Collected
from tests.api.documents import good
from tests.operator.model import ModelApi

LAB = "lab"


class Forgetful(ModelApi):
    """The first answer is lost on its way, so the client asks again and hears that there is one."""

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        await super().create(manifest)
        return await super().create(manifest)


def wanted() -> dict[str, Any]:
    return manifest(good("Scenario"), name="late-1", namespace=LAB)


def client(api: ModelApi) -> ClientRun:
    return ClientRun(api, LAB, Collected())  # type: ignore[arg-type]


async def test_a_run_whose_creation_was_asked_for_twice_is_ours() -> None:
    """It is followed like any other; there is one."""
    api = Forgetful()
    await client(api).start(wanted())
    assert [run["metadata"]["name"] for run in api.select("ScenarioRun", LAB)] == ["late-1"]


async def test_a_run_of_that_name_that_somebody_else_made_is_not_taken_for_ours() -> None:
    """Also one that another client has just made."""
    api = ModelApi()
    await client(api).start(wanted())
    with pytest.raises(HeadgateError, match="ScenarioRun late-1 exists already"):
        await client(api).start(wanted())
