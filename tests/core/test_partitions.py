"""The partitions of a TaskManager and the requests that wait."""

from __future__ import annotations

import pytest
from exchange_model import nothing, partition_id, producer_pool

from testbed_runtime.core.errors import FlinkError, LocalProtocolError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import PartitionRequestListener, ResultPartitionManager


def result(number: int = 0) -> ResultPartition:
    return ResultPartition(partition_id(number), 1, producer_pool(NetworkBufferPool(8, 32), 1, 4))


class Waiting:
    """A listener that records its notifications."""

    def __init__(self, created: float, number: int = 0) -> None:
        self.notified: list[str] = []
        self.listener = PartitionRequestListener(
            partition_id(number),
            created,
            lambda _: self.notified.append("registered"),
            lambda: self.notified.append("timeout"),
        )


def test_a_partition_is_registered_once_and_found() -> None:
    """A released one is not found any more."""
    manager = ResultPartitionManager()
    first = result()
    manager.register(first)
    assert manager.get(partition_id()) is first
    with pytest.raises(LocalProtocolError, match="already registered"):
        manager.register(result())
    with pytest.raises(
        FlinkError, match=r"IndexOutOfBoundsException: Subpartition not found\. Index: 3, Size: \d"
    ):
        manager.create_view(partition_id(), 3, nothing)
    first.release()
    assert manager.get(partition_id()) is None
    with pytest.raises(
        FlinkError, match=f"PartitionNotFoundException: Partition {partition_id()} not found."
    ):
        manager.create_view(partition_id(), 0, nothing)


def test_F_86_a_request_waits_only_for_a_partition_that_is_not_registered() -> None:
    """It is served when the partition is registered. A released partition is unknown again."""
    manager = ResultPartitionManager()
    with pytest.raises(FlinkError, match="PartitionNotFoundException"):
        manager.create_view(partition_id(), 0, nothing)
    waiting = Waiting(0.0)
    manager.listen(waiting.listener)
    assert (manager.waiting, waiting.notified) == (1, [])
    manager.register(result())
    assert (manager.waiting, waiting.notified) == (0, ["registered"])
    manager.create_view(partition_id(), 0, nothing)
    manager.release(partition_id())
    with pytest.raises(FlinkError, match="PartitionNotFoundException"):
        manager.create_view(partition_id(), 0, nothing)


def test_F_150_a_request_for_a_registered_partition_is_served_without_waiting() -> None:
    """testCreateSubpartitionViewAfterRegisteredPartition: no request waits before it or after it."""
    manager = ResultPartitionManager()
    manager.register(result())
    assert manager.waiting == 0
    assert not manager.create_view(partition_id(), 0, nothing).is_released
    assert manager.waiting == 0


def test_F_87_only_the_request_that_is_older_than_the_timeout_expires() -> None:
    """One has waited since 1970, and one since the manager was started."""
    started = 1.7e9
    manager = ResultPartitionManager(request_timeout_s=1000.0, started=started)
    old, young = Waiting(0.0), Waiting(started, 1)
    manager.listen(old.listener)
    manager.listen(young.listener)
    manager.on_time(started)
    assert (old.notified, young.notified, manager.waiting) == (["timeout"], [], 1)


@pytest.mark.parametrize(
    ("created", "expires"), [(0.0, 20.0), (0.1, 20.0), (9.9, 20.0), (10.0, 30.0), (15.0, 30.0)]
)
def test_a_request_waits_one_to_two_timeouts(created: float, expires: float) -> None:
    """The checker ticks every 10 s and expires what is older than 10 s."""
    manager = ResultPartitionManager(request_timeout_s=10.0, started=0.0)
    waiting = Waiting(created)
    manager.listen(waiting.listener)
    assert manager.next_deadline == expires
    manager.on_time(expires - 0.1)
    assert waiting.notified == []
    manager.on_time(expires)
    assert waiting.notified == ["timeout"]
    assert (manager.next_deadline, manager.waiting) == (None, 0)


def test_each_request_expires_by_itself() -> None:
    """The younger one goes on waiting."""
    manager = ResultPartitionManager(request_timeout_s=10.0)
    old, young = Waiting(1.0), Waiting(12.0)
    manager.listen(old.listener)
    manager.listen(young.listener)
    manager.on_time(20.0)
    assert (old.notified, young.notified, manager.next_deadline) == (["timeout"], [], 30.0)


def test_without_a_timeout_a_request_waits_for_the_partition() -> None:
    """There is no checker."""
    manager = ResultPartitionManager(request_timeout_s=0.0)
    waiting = Waiting(0.0)
    manager.listen(waiting.listener)
    manager.on_time(1e9)
    assert manager.next_deadline is None
    manager.register(result())
    assert waiting.notified == ["registered"]


def test_release_and_shutdown_tell_who_waits_at_once() -> None:
    """A withdrawn request gets no notification."""
    manager = ResultPartitionManager()
    first, second, withdrawn = Waiting(0.0), Waiting(0.0, 1), Waiting(0.0, 1)
    for waiting in (first, second, withdrawn):
        manager.listen(waiting.listener)
    manager.withdraw(withdrawn.listener)
    manager.withdraw(withdrawn.listener)
    manager.release(partition_id())
    assert (first.notified, second.notified) == (["timeout"], [])
    registered = result(5)
    manager.register(registered)
    manager.shut_down()
    assert (second.notified, withdrawn.notified, registered.is_released) == (["timeout"], [], True)
    with pytest.raises(FlinkError, match="already shut down"):
        manager.register(result())
