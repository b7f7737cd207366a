"""Cases of Flink's StreamTaskFinalCheckpointsTest: checkpoints of a task whose producers have finished, and what it waits for at its end."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.core.exchange.events import (
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    SnapshotType,
    StopMode,
)
from testbed_runtime.core.job.jobgraph import JobVertex, OperatorConfig, SourceConfig
from testbed_runtime.core.job.messages import NotifyEndOfData
from tests.taskmanager.deployed import Deployed, data, driven

CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}
MODES = {
    "I-68": {},
    "I-69": {"execution.checkpointing.unaligned.enabled": "true"},
    "I-70": {
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "10 s",
    },
    "at least once": {"execution.checkpointing.mode": "AT_LEAST_ONCE"},
}


def work() -> JobVertex:
    return JobVertex("work", 1, 128, "a", operator=OperatorConfig("map"))


def source(limit: int = 3) -> JobVertex:
    config = SourceConfig(records_per_second=1000.0, limit=limit)
    return JobVertex("source", 1, 128, "a", source=config)


def watch_resumes(task: Deployed) -> list[int]:
    """The channels that the task resumes from now on."""
    resumed: list[int] = []
    run: Any = task.task._run
    run.input.resume = resumed.append
    return resumed


def barriers(task: Deployed) -> list[tuple[int, SnapshotType]]:
    return [(e.checkpoint_id, e.snapshot_type) for e in task.events if isinstance(e, CheckpointBarrier)]


def end(task: Deployed, *channels: int) -> None:
    for channel in channels:
        task.send(channel, EndOfData(StopMode.DRAIN))
        task.producers[channel].finish()


async def take(task: Deployed, checkpoint: int, *, drain: bool = False) -> None:
    task.trigger(checkpoint, drain=drain)
    await task.settle()


async def complete(task: Deployed, checkpoint: int) -> None:
    task.task.notify_checkpoint_complete(checkpoint)
    await task.settle()


@pytest.mark.parametrize("options", MODES.values(), ids=MODES.keys())
def test_I_68_to_I_70_a_checkpoint_that_the_jobmaster_triggers_counts_as_the_barrier_of_each_open_channel(
    options: dict[str, str],
):
    """testTriggeringCheckpointWithFinishedChannels: with 3 channels, with 2, and with none. No channel is resumed, as none was blocked.
    The task ends with the one that covers its end."""

    async def drive(task: Deployed) -> None:
        resumed = watch_resumes(task)
        for checkpoint, ended in ((2, ()), (4, (0,)), (6, (1, 2))):
            end(task, *ended)
            await task.settle()
            await take(task, checkpoint)
            assert [number for number, _ in task.completed][-1] == checkpoint
        assert (resumed, task.states[-1]) == ([], "RUNNING")
        await complete(task, 4)
        assert task.ended_at is None
        await complete(task, 6)

    task = driven(work(), drive, channels=3, **CHECKPOINTS, **options)
    assert task.states[-1] == "FINISHED"
    assert [number for number, _ in barriers(task)] == [2, 4, 6]
    assert [e for e in task.events if not isinstance(e, CheckpointBarrier)] == [
        EndOfData(StopMode.DRAIN),
        EndOfPartition(),
    ]


@pytest.mark.parametrize(
    ("mode", "options", "sent"),
    [
        (StopMode.DRAIN, CHECKPOINTS, 1),
        (StopMode.NO_DRAIN, CHECKPOINTS, 0),
        (StopMode.DRAIN, {}, 0),
        (
            StopMode.DRAIN,
            {**CHECKPOINTS, "execution.checkpointing.checkpoints-after-tasks-finish": "false"},
            0,
        ),
    ],
)
def test_J_96_a_task_notifies_the_jobmaster_of_the_end_of_its_data(
    mode: StopMode, options: dict[str, str], sent: int
):
    """StreamTask.notifyEndOfData: when the data of all channels has ended by itself. Where no checkpoint covers the end, that would
    change nothing."""

    async def drive(task: Deployed) -> None:
        for channel in range(2):
            assert task.heard(NotifyEndOfData) == []
            task.send(channel, EndOfData(mode))
            await task.settle()

    task = driven(work(), drive, channels=2, **options)
    assert len(task.heard(NotifyEndOfData)) == sent


def test_a_triggered_checkpoint_meets_the_barriers_of_producers_that_had_not_finished():
    """A barrier of the same checkpoint that comes later only lets its channel go on; the channel that had its barrier is resumed."""

    async def drive(task: Deployed) -> None:
        resumed = watch_resumes(task)
        barrier = CheckpointBarrier(2, 7)
        task.send(0, barrier)
        await task.settle()
        await take(task, 2)
        assert ([number for number, _ in task.completed], resumed) == ([2], [0])
        task.send(1, barrier)
        await task.settle()
        assert ([number for number, _ in task.completed], resumed) == ([2], [0, 1])

    driven(work(), drive, **CHECKPOINTS)


def test_an_unaligned_checkpoint_that_is_triggered_takes_what_is_queued_in_the_open_channels():
    """The task cannot go on, as its output is full; no barrier ends the data of a channel."""

    async def drive(task: Deployed) -> None:
        task.reads = False
        for _ in range(2):
            task.send(0, data(0, 36, record_bytes=1020))
            await task.settle()
        read = task.task.meter.buffers_in
        await take(task, 2)
        assert task.task.meter.buffers_in == read
        snapshot = await task.snapshot(2)
        assert sum(state.size for state in snapshot.input_state) > 0
        assert sum(state.size for state in snapshot.output_state) > 0

    small = {"taskmanager.memory.segment-size": "4 kb"}
    driven(work(), drive, **CHECKPOINTS, **MODES["I-69"], **small)


@pytest.mark.parametrize("vertex", [work(), source()], ids=["operator", "source"])
def test_I_71_a_task_waits_at_its_end_for_a_checkpoint(vertex: JobVertex):
    """testWaitingForFinalCheckpoint: also if everything is processed."""

    async def drive(task: Deployed) -> None:
        end(task, *range(task.channels))
        await task.at(100)
        assert task.states[-1] == "RUNNING"
        await take(task, 4)
        assert task.ended_at is None
        await complete(task, 4)

    task = driven(vertex, drive, **CHECKPOINTS)
    assert (task.states[-1], task.ended_at) == ("FINISHED", 100)


@pytest.mark.parametrize("vertex", [work(), source()], ids=["operator", "source"])
def test_I_72_the_checkpoint_that_ends_a_task_need_not_be_the_first_after_its_data(vertex: JobVertex):
    """testWaitingForFinalCheckpointNotTheFirsNotifiedComplete: the third one is the first to complete."""

    async def drive(task: Deployed) -> None:
        end(task, *range(task.channels))
        await task.at(100)
        for checkpoint in (1, 2, 3):
            await take(task, checkpoint)
        assert task.ended_at is None
        await complete(task, 3)

    task = driven(vertex, drive, **CHECKPOINTS)
    assert task.states[-1] == "FINISHED"
    assert [number for number, _ in barriers(task)] == [1, 2, 3]
    assert task.events.count(EndOfData(StopMode.DRAIN)) == 1


@pytest.mark.parametrize(("vertex", "case"), [(work(), "I-73"), (source(), "I-74")], ids=["I-73", "I-74"])
def test_I_73_I_74_a_stop_replaces_the_checkpoint_that_a_task_waits_for(vertex: JobVertex, case: str):
    """testTriggerStopWithSavepointWhenWaitingForFinalCheckpoint: the savepoint has to complete, although the one before it does."""
    del case

    async def drive(task: Deployed) -> None:
        end(task, *range(task.channels))
        await task.at(100)
        await take(task, 6)
        await take(task, 7, drain=True)
        await complete(task, 6)
        await task.at(200)
        assert task.ended_at is None
        await complete(task, 7)

    task = driven(vertex, drive, **CHECKPOINTS)
    assert (task.states[-1], task.ended_at) == ("FINISHED", 200)
    kinds = [kind for _, kind in barriers(task)]
    assert kinds == [SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT_TERMINATE]
    assert task.events.count(EndOfData(StopMode.DRAIN)) == 1


def test_I_75_a_task_ends_when_its_earlier_snapshots_are_stored():
    """testWaitingForPendingCheckpointsOnFinished: the checkpoint that ends it is complete while an older one is being stored."""

    async def drive(task: Deployed) -> None:
        put, release = task.blobs.put, task.clock.now() + 0.3

        async def slow(key: str, value: bytes) -> None:
            if "/1/" in key:
                await task.at((release - 1000.0) * 1000)
            await put(key, value)

        task.blobs.put = slow  # type: ignore[method-assign]
        end(task, 0, 1)
        await task.settle()
        for checkpoint in (1, 2):
            await take(task, checkpoint)
        await complete(task, 2)
        assert task.ended_at is None
        await task.at(400)

    task = driven(work(), drive, **CHECKPOINTS)
    assert (task.states[-1], task.ended_at) == ("FINISHED", 300)
    assert [number for number, _ in task.completed] == [2, 1]


@pytest.mark.parametrize(("version", "state"), [("1.14", "RUNNING"), ("1.15", "FAILED"), ("2.x", "FAILED")])
@pytest.mark.parametrize("vertex", [work(), source()], ids=["operator", "source"])
def test_a_task_that_has_begun_the_final_checkpoint_of_a_stop_fails_if_that_is_aborted(
    vertex: JobVertex, version: str, state: str
):
    """StreamTask.notifyCheckpointAbortAsync: its data has ended. Until 1.14, the JobMaster fails the job."""

    async def drive(task: Deployed) -> None:
        for channel in range(task.channels):
            task.send(channel, EndOfData(StopMode.DRAIN))
        await task.settle()
        await take(task, 7, drain=True)
        task.task.notify_checkpoint_aborted(6)
        await task.settle()
        assert task.states[-1] == "RUNNING"
        task.task.notify_checkpoint_aborted(7)
        await task.settle()
        assert task.states[-1] == state
        if state == "FAILED":
            assert task.failure == ("FlinkRuntimeException", "Stop-with-savepoint failed.")

    driven(vertex, drive, version=version, **CHECKPOINTS)


@pytest.mark.parametrize(("after_finish", "ends_ms"), [("true", 900), ("false", 0)])
def test_a_task_waits_at_its_end_until_its_output_was_read(after_finish: str, ends_ms: float):
    """Unless it may finish before its consumers. A checkpoint has covered it before."""

    async def drive(task: Deployed) -> None:
        task.acknowledges = False
        task.end()
        await task.at(500)
        task.trigger(1)
        await task.settle()
        task.task.notify_checkpoint_complete(1)
        await task.at(900)
        task.go_on()

    key = "execution.checkpointing.checkpoints-after-tasks-finish.enabled"
    task = driven(work(), drive, **CHECKPOINTS, **{key: after_finish})
    assert (task.ended_at, task.states[-1]) == (ends_ms, "FINISHED")
