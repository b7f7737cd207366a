"""Tests on a real cluster run only when they are asked for (`make test-cluster`, `-m cluster`): starting one takes a machine of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster, connect, disconnect


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever selects by other marks does not start a cluster by accident."""
    if "cluster" in config.option.markexpr:
        return
    skip = pytest.mark.skip(reason="needs a real Kubernetes: make test-cluster")
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(skip)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The given cluster, one that is up already, or one that is started now and taken away after the module's tests."""
    connected = connect()
    yield connected
    disconnect(connected)
