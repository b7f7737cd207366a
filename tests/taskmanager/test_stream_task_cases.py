"""Cases of Flink's StreamTaskTest: buffers beyond the pool, notifications of checkpoints, and the sizes of buffers of several gates."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.core.exchange.events import AlignmentType, CancelCheckpointMarker
from testbed_runtime.core.job.messages import DeclineCheckpoint
from testbed_runtime.taskmanager.meter import BACKPRESSURED
from tests.taskmanager.deployed import Deployed, driven
from tests.taskmanager.test_stream_task import CHECKPOINTS, SMALL, UNALIGNED, barrier, full_buffers, operator
from tests.taskmanager.test_task_debloating import Gate, debloating
from tests.taskmanager.test_task_life import snapshot


@pytest.mark.parametrize(("version", "overdraft"), [("1.15", 0), ("1.20", 2), ("2.x", 2)])
def test_from_1_16_on_a_task_overdraws_its_pool_for_what_it_has_begun(version: str, overdraft: int):
    """Its pool has ten buffers of one record each, and it reads four records at a time: two of the third buffer find none. A barrier
    that overtakes is handled as soon as they are written: at once, or when the consumer reads again. Nothing is lost."""

    async def drive(task: Deployed) -> None:
        task.reads = False
        (result,) = task.task.partitions
        result.subpartitions[0].set_buffer_size(1024)
        task.send(0, full_buffers(5))
        await task.settle()
        assert (result.pool.overdraft, result.queued) == (overdraft, 10 + overdraft)
        assert task.task.meter.mode == BACKPRESSURED
        for channel in (0, 1):
            task.send(channel, barrier(1, AlignmentType.UNALIGNED))
        await task.settle()
        assert bool(task.completed) is (overdraft > 0)
        task.go_on()
        await task.settle()
        assert result.pool.overdraft == 0
        assert task.completed

    task = driven(operator(), drive, version=version, **SMALL, **UNALIGNED)
    assert task.sequences == list(range(20))


def notified(task: Deployed) -> list[int]:
    """The checkpoints that the operator hears of from now on."""
    heard: list[int] = []
    run: Any = task.task._run
    run.on_completed = heard.append
    return heard


def test_I_90_an_operator_hears_of_a_completed_checkpoint_once():
    """Either the notification of it comes first, or that of a later one that was aborted."""

    async def drive(task: Deployed) -> None:
        heard = notified(task)
        task.task.notify_checkpoint_complete(3)
        task.task.notify_checkpoint_aborted(5, 3)
        task.task.notify_checkpoint_aborted(10, 8)
        task.task.notify_checkpoint_complete(8)
        await task.settle()
        assert heard == [3, 8]

    driven(operator(), drive, channels=3, **CHECKPOINTS)


def test_I_91_an_operator_does_not_hear_of_checkpoints_up_to_the_one_that_it_was_restored_from():
    """It is the first."""

    async def drive(task: Deployed) -> None:
        heard = notified(task)
        task.task.notify_checkpoint_complete(0)
        task.task.notify_checkpoint_aborted(2, 1)
        task.task.notify_checkpoint_complete(3)
        task.task.notify_checkpoint_aborted(5, 4)
        await task.settle()
        assert (task.task.descriptor.restore_checkpoint, heard) == (1, [3, 4])

    driven(operator(), drive, restore=(snapshot(),), **CHECKPOINTS)


def test_I_92_a_cancellation_from_every_channel_is_declined_once_and_passed_on():
    """Both channels."""

    async def drive(task: Deployed) -> None:
        for channel in (1, 0):
            task.send(channel, CancelCheckpointMarker(2))
        await task.settle()

    task = driven(operator(), drive, **CHECKPOINTS)
    assert task.declined == [(2, "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER")]
    assert len(task.heard(DeclineCheckpoint)) == 1
    assert [event for event in task.events if isinstance(event, CancelCheckpointMarker)] == [
        CancelCheckpointMarker(2)
    ]


def test_H_22_each_gate_has_the_size_that_its_own_throughput_needs():
    """1 kB/s over one buffer in use, and 60 kB/s over four."""
    gates = [Gate(), Gate()]
    gates[0].buffers_in_use, gates[1].buffers_in_use = 1, 4
    made = debloating(gates, **{"taskmanager.memory.starting-segment-size": "2 kb"})
    made.resume(10.0)
    for second in range(1, 9):
        gates[0].received_bytes += 1024
        gates[1].received_bytes += 60 * 1024
        made.on_time(10.0 + second)
    assert [gate.announced[-1] for gate in gates] == [1024, 60 * 1024 // 4]


def test_H_23_a_recalculation_gives_all_gates_with_the_same_throughput_the_same_size():
    """It is below that of a segment, and above nothing."""
    gates = [Gate(), Gate()]
    made = debloating(gates)
    made.resume(10.0)
    for gate in gates:
        gate.received_bytes = 13333
    made.on_time(11.0)
    sizes = [gate.announced for gate in gates]
    assert sizes[0] == sizes[1] != []
    assert 0 < sizes[0][-1] < 32 << 10
