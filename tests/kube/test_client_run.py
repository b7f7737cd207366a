"""`--on kubernetes` against a model of the API server: it creates exactly one run, and recognizes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube.client_run import ClientRun, manifest
from tests.api.documents import good
from tests.collecting import Collected
from tests.operator.model import ModelApi

LAB = "lab"


class Forgetful(ModelApi):
    """Loses the first answer to a create, so the client repeats it and finds that the run exists."""

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        await super().create(manifest)
        return await super().create(manifest)


def wanted() -> dict[str, Any]:
    return manifest(good("Scenario"), name="late-1", namespace=LAB)


def client(api: ModelApi) -> ClientRun:
    return ClientRun(api, LAB, Collected())  # type: ignore[arg-type]


async def test_a_run_whose_creation_was_requested_twice_is_recognized() -> None:
    """It is followed like any other, and exists once."""
    api = Forgetful()
    await client(api).start(wanted())
    assert [run["metadata"]["name"] for run in api.select("ScenarioRun", LAB)] == ["late-1"]


async def test_a_run_of_that_name_from_another_client_is_an_error() -> None:
    """Even if it was created a moment ago."""
    api = ModelApi()
    await client(api).start(wanted())
    with pytest.raises(HeadgateError, match="ScenarioRun late-1 exists already"):
        await client(api).start(wanted())
