"""The end of a producer's restored data: each of a task's producers is blocked until all of them have recovered."""

from __future__ import annotations

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import EndOfOutputChannelState, decode_event
from testbed_runtime.core.exchange.frames import ResumeConsumption
from testbed_runtime.core.job.jobgraph import JobVertex, OperatorConfig
from testbed_runtime.taskmanager.input import TaskInput
from testbed_runtime.workload.snapshots import ChannelState, SubtaskSnapshot
from tests.core.exchange_model import Consumer
from tests.taskmanager.deployed import Deployed, data, driven

CHANNELS = 11


def work() -> JobVertex:
    return JobVertex("work", 1, 128, "a", operator=OperatorConfig("map"))


def blocked(task: Deployed) -> int:
    return sum(producer.subpartitions[0].is_blocked for producer in task.producers)


def test_I_89_all_producers_are_resumed_when_the_last_one_has_recovered() -> None:
    """Each of eleven waits, and what it has written since does not arrive before."""

    async def drive(task: Deployed) -> None:
        for number, producer in enumerate(task.producers):
            assert (blocked(task), task.counts) == (number, [])
            producer.end_recovery()
            task.send(number, data(number, 1))
            await task.settle()
        assert blocked(task) == 0
        assert sum(task.counts) == CHANNELS

    driven(work(), drive, channels=CHANNELS, recovered=False)


def test_a_producer_recovers_once() -> None:
    """A second announcement before the others have recovered is a failure; later ones change nothing."""
    consumer = Consumer(channels=2, segments=64)
    consumer.connect()
    found = TaskInput([consumer.gate])
    found.on_producer_recovered(0)
    with pytest.raises(FlinkError, match="already restored: 0"):
        found.on_producer_recovered(0)
    assert not any(isinstance(frame, ResumeConsumption) for frame in consumer.sent())
    found.on_producer_recovered(1)
    found.on_producer_recovered(1)
    assert sum(isinstance(frame, ResumeConsumption) for frame in consumer.sent()) == 2


def test_producers_that_announce_nothing_are_not_waited_for() -> None:
    """As those of a complete result. Only those of the other gate are resumed."""
    consumers = [Consumer(channels=count, segments=64) for count in (2, 1)]
    for consumer in consumers:
        consumer.connect()
    found = TaskInput([consumer.gate for consumer in consumers], [False, True])
    found.on_producer_recovered(2)
    resumed = [sum(isinstance(f, ResumeConsumption) for f in consumer.sent()) for consumer in consumers]
    assert resumed == [0, 1]


@pytest.mark.parametrize("restored", [(), (b"restored",)], ids=["nothing", "restored"])
def test_a_task_announces_the_end_of_its_restored_data_before_it_emits(restored: tuple[bytes, ...]) -> None:
    """To every subpartition, after what is restored for it, whether anything is or not."""
    states = (ChannelState(0, 1, restored),) if restored else ()
    snapshot = SubtaskSnapshot(1, "work", 0, 1, 128, output_state=states)

    async def drive(task: Deployed) -> None:
        for number, subpartition in enumerate(task.task.partitions[0].subpartitions):
            found = []
            while (polled := subpartition.poll()) is not None:
                buffer = polled.buffer
                found.append(bytes(buffer.view()) if buffer.is_buffer else decode_event(buffer.view()))
                buffer.recycle()
            assert found == [*(restored if number == 1 else ()), EndOfOutputChannelState()]
            assert subpartition.is_blocked

    driven(
        work(),
        drive,
        restore=(snapshot,) if restored else (),
        outputs=(("hash", 2, "next"),),
        reading=False,
    )
