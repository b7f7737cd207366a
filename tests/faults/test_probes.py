"""Which paths a network fault is probed on."""

from __future__ import annotations

import pytest

from testbed_runtime.core.faults.model import Fault, Target
from testbed_runtime.faults.backend import FaultRequest
from testbed_runtime.faults.proxy.backend import ProxyBackend


class Surroundings:
    """The running processes."""

    def names(self):
        return ["jobmanager", "tm-0", "tm-1", "tm-2", "tm-3"]

    def control(self, name):
        return None


@pytest.mark.parametrize(
    ("plane", "expected"),
    [("data", [("tm-2", "tm-0", "data"), ("tm-3", "tm-0", "data")]), ("rpc", [("tm-2", "jobmanager", "rpc"), ("tm-3", "jobmanager", "rpc")])],
)  # fmt: skip
def test_a_path_is_probed_to_a_peer_that_talks_on_its_plane_and_is_not_hit_itself(plane, expected):
    """On the data plane another TaskManager, on the rpc plane the JobManager."""
    fault = Fault("slow", "network.latency", 0.0, 1.0, Target(), plane, "both", {"latency_s": 0.1})
    backend = ProxyBackend(None, lambda: None, lambda: ("", 0), Surroundings())
    request = FaultRequest("t/slow", fault, ("tm-2", "tm-3"), 0.0, 1)
    paths = {(p.source, p.destination, p.plane) for p in backend._choose_paths(request)}
    assert paths == set(expected)
