"""A Testbed that is deleted and created again under its name, on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.spaces import Space, condition
from tests.kubernetes.test_testbed import NAME, SETTLE_LIMIT_S, a_testbed, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


def test_a_testbed_created_again_under_its_name_runs_its_job_without_the_checkpoints_of_the_first(
    space: Space,
) -> None:
    """Ready is never True while the operator cannot ask the JobManager. The claim of the first Testbed is deleted before the second one
    gets its own."""
    wanted = a_testbed(NAME, replicas=2, pods={"storage": {"size": "1Gi"}})
    space.apply(wanted)
    first = running(space, replicas=2, checkpoints=3)["metadata"]["uid"]
    claim = space.get("persistentvolumeclaim", f"{NAME}-store")["metadata"]["uid"]
    space.kubectl("delete", "testbed", NAME, "--wait=true", "--timeout=110s")
    space.apply(wanted)

    def is_running(testbed: Any) -> bool:
        answered = condition(testbed, "JobRunning", "Unknown") is None
        assert answered or condition(testbed, "Ready") is None, testbed["status"]["conditions"]
        return condition(testbed, "Ready") is not None and condition(testbed, "JobRunning") is not None

    second = space.until(f"testbed/{NAME}", is_running, SETTLE_LIMIT_S, "Ready with a running job")
    assert second["metadata"]["uid"] != first
    assert second["status"]["jobState"] == "RUNNING"
    assert space.get("persistentvolumeclaim", f"{NAME}-store")["metadata"]["uid"] != claim
