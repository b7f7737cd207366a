"""Cases of OneInputStreamTaskTest, SubtaskCheckpointCoordinatorTest and AlternatingCheckpointsTest: what a task does with barriers."""

from __future__ import annotations

import asyncio

import pytest

from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    Event,
    SnapshotType,
)
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.workload.operators import KeyedCount
from tests.taskmanager.deployed import Deployed, data, driven
from tests.taskmanager.test_stream_task import CHECKPOINTS, TIMEOUT, UNALIGNED, barrier, operator

UNALIGNED_BARRIER = barrier(1, AlignmentType.UNALIGNED)


def received(task: Deployed) -> list[int | Event]:
    return [what for _, what in task.received]


inputs = pytest.mark.parametrize("count", [1, 2, 3], ids=["one input", "two inputs", "three inputs"])


async def blocked_by_the_first_barrier(task: Deployed) -> None:
    """The first channel has the barrier of checkpoint 1, and waits with a record. Two records come on the last channel."""
    task.send(0, barrier(1), data(5, 1))
    task.send(task.channels - 1, data(0, 2))
    await task.settle()
    assert received(task) == [2]


@inputs
def test_I_111_a_barrier_is_forwarded_when_all_channels_have_it(count: int):
    """testCheckpointBarriers, with two channels for each input: not before, and the records of the others are. Then the first channel
    goes on."""

    async def drive(task: Deployed) -> None:
        await blocked_by_the_first_barrier(task)
        for channel in range(1, task.channels):
            task.send(channel, barrier(1))
            await task.settle()
            assert received(task)[1:] == ([] if channel < task.channels - 1 else [barrier(1), 1])

    driven(operator(), drive, channels=2 * count, inputs=count, **CHECKPOINTS)


@inputs
def test_I_112_later_barriers_unblock_a_channel_and_earlier_ones_are_ignored(count: int):
    """testOvertakingCheckpointBarriers: the older checkpoint is cancelled downstream, the channel that it blocked goes on, and its
    remaining barriers change nothing."""

    async def drive(task: Deployed) -> None:
        await blocked_by_the_first_barrier(task)
        task.send(1, barrier(2))
        await task.settle()
        expected = [2, CancelCheckpointMarker(1), 1]
        assert received(task) == expected
        for channel in (0, *range(2, task.channels)):
            task.send(channel, barrier(2))
        await task.settle()
        expected += [barrier(2)]
        assert received(task) == expected
        for channel in range(1, task.channels):
            task.send(channel, barrier(1))
        await task.settle()
        assert received(task) == expected
        task.send(1, data(0, 1))
        await task.settle()
        assert received(task) == [*expected, 1]

    task = driven(operator(), drive, channels=2 * count, inputs=count, **CHECKPOINTS)
    assert [number for number, _ in task.completed] == [2]


def test_I_118_a_cancellation_from_both_inputs_is_declined_once():
    """testDeclineCallOnCancelBarrierTwoInputs: one channel each."""

    async def drive(task: Deployed) -> None:
        for channel in (0, 1):
            task.send(channel, CancelCheckpointMarker(2))
            await task.settle()

    task = driven(operator(), drive, inputs=2, **CHECKPOINTS)
    assert task.declined == [(2, "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER")]
    assert received(task) == [CancelCheckpointMarker(2)]


@pytest.mark.parametrize(
    ("sent", "alignment", "persisted"),
    [
        (barrier(1, snapshot_type=SnapshotType.SAVEPOINT), AlignmentType.ALIGNED, False),
        (barrier(1, AlignmentType.FORCED_ALIGNED), AlignmentType.UNALIGNED, False),
        (barrier(1, alignment_timeout_ms=200), AlignmentType.ALIGNED, False),
        (UNALIGNED_BARRIER, AlignmentType.UNALIGNED, True),
    ],
    ids=["savepoint", "forced", "with a timeout", "unaligned"],
)
def test_I_113_a_barrier_overtakes_the_output_unless_its_checkpoint_is_aligned(
    sent: CheckpointBarrier, alignment: AlignmentType, persisted: bool
):
    """testSavepointNotResultingInPriorityEvents, testForceAlignedCheckpointResultingInPriorityEvents,
    testTimeoutableAlignedBarrierNotPriorityAndChannelStateResult, testSkipChannelStateForSavepoints: one that had to align in the
    input overtakes in the output. Only one that overtakes in the input persists what is there."""

    async def drive(task: Deployed) -> None:
        for channel, item in ((0, sent), (1, data(0, 1)), (1, sent)):
            task.send(channel, item)
            await task.settle()
        found = await task.snapshot(1)
        assert bool(found.input_state) is persisted

    task = driven(operator(), drive, **UNALIGNED)
    (forwarded,) = (event for event in task.events if isinstance(event, CheckpointBarrier))
    assert forwarded.alignment is alignment


def test_I_114_a_checkpoint_that_was_aborted_does_not_hold_up_the_next():
    """testAbortOldAndStartNewCheckpoint: 42 has begun unaligned when the JobMaster aborts it; 43 is completed, with its channel state."""

    async def drive(task: Deployed) -> None:
        task.send(0, barrier(42, AlignmentType.UNALIGNED))
        await task.settle()
        task.task.notify_checkpoint_aborted(42)
        for channel in (0, 1):
            task.send(channel, barrier(43, AlignmentType.UNALIGNED))
        await task.settle()
        task.send(1, barrier(42, AlignmentType.UNALIGNED))

    task = driven(operator(), drive, **UNALIGNED)
    assert [number for number, _ in task.completed] == [43]


def test_I_115_no_timeout_acts_in_a_task_that_has_ended():
    """testNoActiveTimeoutAlignmentAfterClose: an aligned checkpoint would become unaligned after 100 ms."""

    async def drive(task: Deployed) -> None:
        task.send(0, barrier(1, alignment_timeout_ms=100))
        await task.settle()
        task.task.cancel()
        await task.at(101)

    task = driven(operator(), drive, **TIMEOUT)
    assert (task.states[-1], task.events, task.completed) == ("CANCELED", [], [])


def test_I_116_a_priority_event_in_a_gate_that_is_closed_is_not_handled():
    """CheckpointedInputGateTest.testPriorityBeforeClose: either it comes first, or the task is cancelled."""

    async def drive(task: Deployed) -> None:
        task.send(0, UNALIGNED_BARRIER)
        task.task.cancel()

    task = driven(operator(), drive, **UNALIGNED)
    assert (task.states[-1], task.completed) == ("CANCELED", [])


class Store(MemoryBlobStore):
    """Refuses the snapshots of some checkpoints, and never answers those of others."""

    def __init__(self, *, refused: int = 0, silent: int = 0) -> None:
        super().__init__()
        self._refused, self._silent = refused, silent

    async def put(self, key: str, data: bytes) -> None:
        if f"/checkpoints/{self._refused}/" in key:
            raise OSError("no space left on device")
        if f"/checkpoints/{self._silent}/" in key:
            await asyncio.Event().wait()
        await super().put(key, data)


def test_I_119_a_snapshot_that_cannot_be_stored_is_declined_and_the_task_goes_on():
    """TaskCheckpointingBehaviourTest.testDeclineOnCheckpointErrorInAsyncPart, testDeclineWithAsyncCheckpointExceptionWhenRunning: the next
    one is taken."""

    async def drive(task: Deployed) -> None:
        for number in (1, 2):
            for channel in (0, 1):
                task.send(channel, barrier(number))
            await task.settle()

    task = driven(operator("keyed-count"), drive, blobs=Store(refused=1), **CHECKPOINTS)
    assert task.declined == [(1, "CHECKPOINT_ASYNC_EXCEPTION")]
    assert [number for number, _ in task.completed] == [2]


def test_I_120_a_snapshot_that_cannot_be_taken_fails_the_task(monkeypatch: pytest.MonkeyPatch):
    """TaskCheckpointingBehaviourTest.testDeclineOnCheckpointErrorInSyncPart: the operator's error is the task's."""

    async def drive(task: Deployed) -> None:
        def fail(self: object, snapshot: object) -> object:
            raise RuntimeError("snapshot failed")

        monkeypatch.setattr(KeyedCount, "snapshot", fail)
        for channel in (0, 1):
            task.send(channel, barrier(1))
        await task.settle()

    task = driven(operator("keyed-count"), drive, **CHECKPOINTS)
    assert (task.states[-1], task.failure) == ("FAILED", ("RuntimeError", "snapshot failed"))
    assert task.completed == []


def test_I_121_a_task_that_is_cancelled_does_not_wait_for_the_store():
    """TaskCheckpointingBehaviourTest.testBlockingNonInterruptibleCheckpoint, StreamTaskTest: the snapshot that is being stored
    (testAsyncCheckpointingConcurrentCloseBeforeAcknowledge) is neither acknowledged nor declined; the one that was acknowledged stays
    (testAsyncCheckpointingConcurrentCloseAfterAcknowledge)."""

    async def drive(task: Deployed) -> None:
        for number in (1, 42):
            for channel in (0, 1):
                task.send(channel, barrier(number))
            await task.settle()
        task.task.cancel()
        await task.task.wait_ended()
        assert task.task.state.name == "CANCELED"
        assert (await task.snapshot(1)).checkpoint == 1

    task = driven(operator("keyed-count"), drive, blobs=Store(silent=42), **CHECKPOINTS)
    assert ([number for number, _ in task.completed], task.declined) == ([1], [])
