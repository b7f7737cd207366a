"""The input that was in flight at an unaligned checkpoint: a task processes it before it runs and requests its partitions."""

from __future__ import annotations

import pytest

from testbed_runtime.core.exchange.events import EndOfOutputChannelState, decode_event
from testbed_runtime.core.job.jobgraph import JobVertex, OperatorConfig, SinkConfig
from testbed_runtime.core.waits import Outcome
from testbed_runtime.workload.snapshots import ChannelState, SubtaskSnapshot
from tests.taskmanager.deployed import Deployed, data, driven

UNALIGNED = {
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.unaligned.enabled": "true",
    "taskmanager.memory.segment-size": "4 kb",
}
SLOW_MAP = JobVertex("work", 1, 128, operator=OperatorConfig(service_time_s=0.1))
MAP = JobVertex("work", 1, 128, operator=OperatorConfig())
SLOW_SINK = JobVertex("work", 1, 128, sink=SinkConfig(service_time_s=0.1))


def restored(count: int, **config: int) -> tuple[SubtaskSnapshot, ...]:
    """A snapshot with so many records in flight on the second channel."""
    flying = ChannelState(0, 1, (data(0, count, **config),))
    return (SubtaskSnapshot(1, "work", 0, 1, 128, input_state=(flying,)),)


@pytest.mark.parametrize("vertex", [SLOW_MAP, SLOW_SINK])
def test_I_122_a_task_requests_its_partitions_and_runs_when_the_restored_input_is_processed(
    vertex: JobVertex,
) -> None:
    """RecoveredInputChannelTest: each record takes 0.1 s. The wait for the state lasts as long."""

    async def drive(task: Deployed) -> None:
        task.send(0, data(9, 1))
        await task.at(250)
        assert task.states == ["INITIALIZING"]
        assert task.noted("partition.request") == []
        assert task.task.meter.records_in == 2
        await task.at(450)
        assert task.states == ["INITIALIZING", "RUNNING"]
        assert [request["request"] for request in task.noted("partition.request")] == [1, 1]
        assert task.task.meter.records_in == 4

    task = driven(vertex, drive, restore=restored(3), **UNALIGNED)
    assert task.waits("restore") == [("checkpoint 1", 0, 300, Outcome.COMPLETED)]


def test_each_gate_requests_its_partitions_when_its_own_restored_input_is_processed() -> None:
    """StreamTask.restoreStateAndGates: the restored input of three gates ends after 0, 0.1 and 0.4 s."""
    flying = (ChannelState(1, 0, (data(0, 1),)), ChannelState(2, 0, (data(1, 1), data(2, 1), data(3, 1))))
    snapshots = (SubtaskSnapshot(1, "work", 0, 1, 128, input_state=flying),)
    requested: list[int] = []

    async def drive(task: Deployed) -> None:
        for ms in (50, 150, 350, 450):
            await task.at(ms)
            requested.append(len(task.noted("partition.request")))
        assert task.states == ["INITIALIZING", "RUNNING"]

    driven(SLOW_MAP, drive, restore=snapshots, channels=3, inputs=3, **UNALIGNED)
    assert requested == [1, 2, 2, 3]


def test_a_late_partition_is_a_wait_also_while_another_gate_has_restored_input() -> None:
    """The producer of the first gate registers 3 s late; the restored input of the second one ends after 5 s."""
    flying = (ChannelState(1, 0, tuple(data(n, 1) for n in range(50))),)

    async def drive(task: Deployed) -> None:
        task.upstream.register(task.producers[1])
        await task.at(3000)
        task.upstream.register(task.producers[0])
        task.send(0, data(9, 1))
        await task.at(7000)

    options = UNALIGNED | {"taskmanager.network.partition-request-timeout": "3500 ms"}
    snapshots = (SubtaskSnapshot(1, "work", 0, 1, 128, input_state=flying),)
    task = driven(
        SLOW_MAP, drive, restore=snapshots, channels=2, inputs=2, started=False, reading=True, **options
    )
    (late, _) = task.waits("partition")
    assert (late[0], late[1], late[3]) == ("source-0", 0, Outcome.COMPLETED)
    assert 3000 <= late[2] <= 3200


def test_I_123_a_task_declines_checkpoints_while_restored_input_is_left() -> None:
    """SingleInputGateTest, RecoveredInputChannelTest: the task is not ready. The JobMaster would not trigger one before all tasks run."""

    async def drive(task: Deployed) -> None:
        await task.at(50)
        task.trigger(5)
        await task.at(150)
        assert task.declined == [(5, "CHECKPOINT_DECLINED_TASK_NOT_READY")]

    driven(SLOW_MAP, drive, restore=restored(1), **UNALIGNED)


def test_the_end_of_the_restored_output_comes_before_what_the_restored_input_causes() -> None:
    """SequentialChannelStateReaderImpl.readOutputData ends the recovery of the output before the input is read."""

    async def drive(task: Deployed) -> None:
        found = []
        view = task.task.partitions[0].create_view(0, lambda: None)
        while (polled := view.poll()) is not None:
            buffer = polled.buffer
            event = None if buffer.is_buffer else decode_event(bytes(buffer.view()))
            found.append(type(event) if event is not None else buffer.size)
            buffer.recycle()
            if event is not None:
                view.resume_consumption()
        assert found == [EndOfOutputChannelState, len(data(0, 1))]

    driven(MAP, drive, restore=restored(1), reading=False, **UNALIGNED)


@pytest.mark.parametrize("cancelled", [False, True])
def test_restored_input_waits_for_room_in_the_output(cancelled: bool) -> None:
    """The task does not run meanwhile, and may be cancelled."""
    many = 200

    async def drive(task: Deployed) -> None:
        await task.at(100)
        assert task.states == ["INITIALIZING"]
        if cancelled:
            task.task.cancel()
            await task.settle()
            assert task.states == ["INITIALIZING", "CANCELED"]
            return
        view = task.task.partitions[0].create_view(0, lambda: None)
        read = 0
        while task.states == ["INITIALIZING"]:
            while (polled := view.poll()) is not None:
                read += polled.buffer.size if polled.buffer.is_buffer else 0
                polled.buffer.recycle()
                if not polled.buffer.is_buffer:
                    view.resume_consumption()
            await task.settle()
        assert task.states == ["INITIALIZING", "RUNNING"]
        assert read < many * 1024  # the last buffers fit into the pool

    parts = tuple(data(n, 1, record_bytes=1020) for n in range(many))
    flying = ChannelState(0, 0, parts)
    snapshots = (SubtaskSnapshot(1, "work", 0, 1, 128, input_state=(flying,)),)
    driven(MAP, drive, restore=snapshots, reading=False, **UNALIGNED)


def test_a_sink_does_not_wait_for_a_first_record_that_was_restored() -> None:
    """The record is processed after 0.1 s, before the sink runs."""

    async def drive(task: Deployed) -> None:
        await task.at(300)
        assert task.states == ["INITIALIZING", "RUNNING"]

    options = {**UNALIGNED, "execution.buffer-timeout.interval": "100 ms"}
    task = driven(SLOW_SINK, drive, restore=restored(2), **options)
    assert task.waits("first-record") == [("", 100, 100, Outcome.COMPLETED)]


@pytest.mark.parametrize("overflow", ["fail", "drop"])
def test_restored_input_does_not_wait_in_a_receive_queue(overflow: str) -> None:
    """It may be more than the queue holds: 4 KiB are 40 records."""

    async def drive(task: Deployed) -> None:
        await task.at(1000)
        assert (task.states[-1], task.task.meter.records_in) == ("RUNNING", 100)

    parts = ChannelState(0, 1, tuple(data(10 * n, 10) for n in range(10)))
    options = {"headgate.flow-control": "none", "headgate.flow-control.queue": "4 kb"}
    driven(
        MAP,
        drive,
        restore=(SubtaskSnapshot(1, "work", 0, 1, 128, input_state=(parts,)),),
        **{"taskmanager.memory.segment-size": "4 kb", "headgate.flow-control.overflow": overflow, **options},
    )
