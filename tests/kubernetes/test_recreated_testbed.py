"""A Testbed that is deleted and created again under its name, on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.spaces import Space, condition
from tests.kubernetes.test_testbed import NAME, a_testbed, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


def test_a_testbed_created_again_under_its_name_runs_its_job(space: Space) -> None:
    """Ready is never True while the operator cannot ask the JobManager."""
    space.apply(a_testbed(NAME))
    first = running(space)["metadata"]["uid"]
    space.kubectl("delete", "testbed", NAME, "--wait=true", "--timeout=60s")
    space.apply(a_testbed(NAME))

    def is_running(testbed: Any) -> bool:
        answered = condition(testbed, "JobRunning", "Unknown") is None
        assert answered or condition(testbed, "Ready") is None, testbed["status"]["conditions"]
        return condition(testbed, "Ready") is not None and condition(testbed, "JobRunning") is not None

    second = space.until(f"testbed/{NAME}", is_running, 120, "Ready with a running job")
    assert second["metadata"]["uid"] != first
    assert second["status"]["jobState"] == "RUNNING"


def test_a_testbed_created_again_with_storage_does_not_take_over_the_checkpoints(space: Space) -> None:
    """The claim of the first Testbed is deleted before the second one gets its own."""
    storage = {"pods": {"storage": {"size": "1Gi"}}}
    space.apply(a_testbed(NAME, replicas=2, **storage))
    running(space, replicas=2, checkpoints=3)
    first = space.get("persistentvolumeclaim", f"{NAME}-store")["metadata"]["uid"]
    space.kubectl("delete", "testbed", NAME, "--wait=true", "--timeout=60s")
    space.apply(a_testbed(NAME, replicas=2, **storage))
    running(space, replicas=2)
    assert space.get("persistentvolumeclaim", f"{NAME}-store")["metadata"]["uid"] != first
