"""The life of a task beside its work: what it restores, how it fails and ends, and what it releases."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import EndOfPartition
from testbed_runtime.core.job.jobgraph import JobVertex, OperatorConfig, SinkConfig, SourceConfig
from testbed_runtime.core.job.messages import (
    Acknowledge,
    NotifyPartitionDataAvailable,
    PartitionState,
    RequestPartitionState,
    TriggerCheckpoint,
    UpdateTaskExecutionState,
)
from testbed_runtime.core.waits import Outcome
from testbed_runtime.process.clock import LoopClock
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.workload.snapshots import ChannelState, SubtaskSnapshot
from tests.core.exchange_model import partition_id
from tests.taskmanager.deployed import Deployed, data, driven

MAP = JobVertex("work", 1, 128, operator=OperatorConfig())
SINK = JobVertex("work", 1, 128, sink=SinkConfig())
THREE = JobVertex("source", 1, 128, source=SourceConfig(records_per_second=1000.0, limit=3))
UNALIGNED = {
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.unaligned.enabled": "true",
}


class SlowStore(MemoryBlobStore):
    """A checkpoint store that takes a second to read or write an object."""

    async def get(self, key: str) -> bytes:
        await asyncio.sleep(1.0)
        return await super().get(key)

    async def put(self, key: str, data: bytes) -> None:
        if key.startswith("jobs/"):
            await asyncio.sleep(1.0)
        await super().put(key, data)


# ---- the beginning


@pytest.mark.parametrize(("subtask", "first"), [(0, (0, 1)), (1, (1, 2)), (2, (2, 0))])
def test_the_results_of_the_subtasks_are_not_all_written_to_the_same_consumer_first(
    subtask: int, first: tuple[int, int]
):
    """Each subtask, and each of its results, begins with another subpartition (Flink chooses it at random)."""

    async def drive(task: Deployed) -> None:
        task.send(0, data(0, 1))
        await task.settle()
        written = [[sub.backlog_buffers for sub in made.subpartitions] for made in task.task.partitions]
        assert written == [[int(number == place) for number in range(3)] for place in first]

    vertex = JobVertex("work", 3, 128, operator=OperatorConfig())
    driven(
        vertex, drive, outputs=(("rebalance", 3, "a"), ("rebalance", 3, "b")), subtask=subtask, reading=False
    )


def test_a_jobmaster_that_waits_for_the_first_record_hears_of_it_once():
    """Others do not."""

    async def drive(task: Deployed) -> None:
        assert task.heard(NotifyPartitionDataAvailable) == []
        for first in (0, 1):
            task.send(0, data(first, 1))
            await task.settle()

    heard = driven(MAP, drive, announced=True).heard(NotifyPartitionDataAvailable)
    assert heard == [NotifyPartitionDataAvailable(str(partition_id(100)))]
    assert driven(MAP, drive).heard(NotifyPartitionDataAvailable) == []


@pytest.mark.parametrize(("answered", "wait"), [(True, ""), (False, "jobmanager")])
def test_a_first_record_of_which_the_jobmaster_does_not_hear_fails_the_task(answered: bool, wait: str):
    """Its consumer might wait without end. A JobMaster that answers with an error was not waited for."""

    async def refuse(message: Any) -> None:
        await asyncio.sleep(0.0 if answered else 3600.0)
        raise FlinkError("Exception", "no")

    async def drive(task: Deployed) -> None:
        task.send(0, data(0, 1))
        await task.at(2000)

    task = driven(MAP, drive, announced=True, answers={NotifyPartitionDataAvailable: refuse})
    failure = task.task.failure
    assert failure is not None
    assert (failure.class_name, failure.wait) == ("TimeoutException", wait)
    assert failure.message.startswith(f"The first record of {partition_id(100)} is not known: ")


class Late:
    """A hook that holds registrations up."""

    active = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.held: list[tuple[str, str]] = []

    async def before_registration(self, vertex: str, partition: str) -> None:
        self.held.append((vertex, partition))
        await asyncio.sleep(self.seconds)

    def request_seen(self, partition: str) -> None:
        """Requests do not matter."""


@pytest.mark.parametrize(("ms", "waits"), [(0.9, []), (1.1, [("its own", 0, 1.1, Outcome.COMPLETED)])])
def test_a_task_does_nothing_else_until_its_partition_is_registered(
    ms: float, waits: list[tuple[str, float, float, str]]
):
    """It is a wait if it takes more than a millisecond."""

    async def drive(task: Deployed) -> None:
        assert (task.states, task.task.state) == ([], "DEPLOYING")
        await task.at(ms + 0.05)
        assert task.states == ["INITIALIZING", "RUNNING"]

    late = Late(ms / 1000)
    task = driven(THREE, drive, registration=late, reading=False)
    assert late.held == [("source", str(partition_id(100)))]
    assert [one for one in task.waits("partition") if one[0] == "its own"] == waits


def test_a_partition_is_registered_while_the_gates_of_its_task_wait_for_buffers():
    """Task.setupPartitionsAndGates: its consumers find it, so their requests need not be repeated."""
    one_mb = {f"taskmanager.memory.network.{end}": "1 mb" for end in ("min", "max")}

    async def drive(task: Deployed) -> None:
        network = task.environment.pool
        other = network.create_buffer_pool(1, network.total)
        taken = [segment for _ in range(network.total) if (segment := other.request_segment()) is not None]
        task.task.start()
        await task.settle()
        assert (len(taken), task.states, task.task.state) == (32, [], "DEPLOYING")
        assert task.environment.manager.get(partition_id(100)) is not None
        other.destroy()
        for segment in taken:
            other.recycle(segment)
        await task.settle()
        assert task.states == ["INITIALIZING", "RUNNING"]

    driven(MAP, drive, idle=True, reading=False, **one_mb)


def test_a_task_that_is_cancelled_before_its_partition_is_registered_ends_at_once():
    """The wait is cancelled, and the partition is never registered."""

    async def drive(task: Deployed) -> None:
        await task.at(500)
        task.task.cancel()
        await task.settle()
        assert task.environment.manager.get(partition_id(100)) is None

    task = driven(THREE, drive, registration=Late(3600.0), reading=False)
    assert (task.states, task.ended_at) == (["CANCELED"], 500)
    assert task.waits("partition") == [("its own", 0, 500, Outcome.CANCELLED)]


# ---- restores


def snapshot(**more: Any) -> SubtaskSnapshot:
    return SubtaskSnapshot(1, "work", 0, 1, 128, **more)


def test_a_restore_is_a_wait_and_an_event():
    """The wait is as long as the store takes; the state did not come from a local copy."""

    async def drive(task: Deployed) -> None:
        await task.at(1500)
        assert task.states == ["INITIALIZING", "RUNNING"]

    task = driven(MAP, drive, restore=(snapshot(),), blobs=SlowStore(), reading=False)
    assert task.waits("restore") == [("checkpoint 1", 0, 1000, Outcome.COMPLETED)]
    assert task.noted("task.restored") == [{"local": False}]


def test_J_152_a_restore_whose_snapshot_is_missing_fails_the_task():
    """It reads nothing and never runs; the wait has failed."""

    class Lost(MemoryBlobStore):
        async def get(self, key: str) -> bytes:
            raise KeyError(key)

    task = driven(MAP, restore=(snapshot(),), blobs=Lost(), reading=False)
    assert task.states == ["INITIALIZING", "FAILED"]
    assert task.failure == ("FileNotFoundException", "The state snapshot restored/0 does not exist.")
    assert task.waits("restore") == [("checkpoint 1", 0, 0, Outcome.FAILED)]
    assert task.noted("task.restored") == []


def test_J_152_a_restore_that_is_cancelled_is_a_cancelled_wait():
    """The task ends at once."""

    async def drive(task: Deployed) -> None:
        await task.at(300)
        task.task.cancel()

    task = driven(MAP, drive, restore=(snapshot(),), blobs=SlowStore(), reading=False)
    assert (task.states, task.ended_at) == (["INITIALIZING", "CANCELED"], 300)
    assert task.waits("restore") == [("checkpoint 1", 0, 300, Outcome.CANCELLED)]


class BrokenOff(MemoryBlobStore):
    """A checkpoint store whose client raises an error of its own when a read is cancelled."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def get(self, key: str) -> bytes:
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            raise self.error from None
        return await super().get(key)


@pytest.mark.parametrize("error", [OSError("closed"), FlinkError("IOException", "closed")])
def test_J_138_an_error_after_the_cancellation_of_a_task_changes_nothing(error: Exception):
    """TaskTest.testExecutionFailsAfterCanceling: the task ends CANCELED, and has no cause."""

    async def drive(task: Deployed) -> None:
        await task.at(300)
        task.task.cancel()

    task = driven(MAP, drive, restore=(snapshot(),), blobs=BrokenOff(error), reading=False)
    assert (task.states, task.failure, task.task.failure) == (["INITIALIZING", "CANCELED"], ("", ""), None)


@pytest.mark.parametrize("error", [OSError("closed"), FlinkError("IOException", "closed")])
def test_J_138_an_error_after_the_failure_of_a_task_changes_nothing(error: Exception):
    """TaskTest.testExecutionFailsAfterTaskMarkedFailed: the cause is the first one, from outside."""

    async def drive(task: Deployed) -> None:
        await task.at(300)
        task.task.fail(FlinkError("Exception", "external"))

    task = driven(MAP, drive, restore=(snapshot(),), blobs=BrokenOff(error), reading=False)
    assert (task.states, task.failure) == (["INITIALIZING", "FAILED"], ("Exception", "external"))


def test_a_task_without_a_checkpoint_restores_nothing():
    """There is no wait and no event."""
    task = driven(MAP)
    assert (task.rows("waits", "restore"), task.noted("task.restored")) == ([], [])


def test_data_in_flight_is_restored_before_anything_that_is_new():
    """That of the output is sent first, then that of the input is processed, then the channels are read."""
    restored = snapshot(
        output_state=(ChannelState(0, 0, (data(7, 1),)),),
        input_state=(ChannelState(0, 1, (data(8, 1)[:60], data(8, 1)[60:])),),
    )

    async def drive(task: Deployed) -> None:
        task.send(1, data(9, 1))
        task.send(0, data(10, 1))

    task = driven(MAP, drive, restore=(restored,), **UNALIGNED)
    assert task.sequences[:2] == [7, 8]
    assert sorted(task.sequences[2:]) == [9, 10]
    assert task.task.meter.records_in == 3


# ---- checkpoints


def test_J_147_a_task_that_does_not_run_yet_declines_a_checkpoint():
    """TaskTest.testDeclineCheckpoint. It forgets an abort: there was no barrier that it could concern."""

    async def drive(task: Deployed) -> None:
        await task.at(500)
        trigger = TriggerCheckpoint("attempt", 4, 7, "leader", False)
        task.task.trigger_checkpoint(trigger)
        task.task.set_rate(5.0)
        task.task.notify_checkpoint_aborted(5)
        task.task.notify_checkpoint_complete(3)
        await task.at(1500)
        assert task.declined == [(4, "CHECKPOINT_DECLINED_TASK_NOT_READY")]
        task.trigger(5)
        await task.at(3000)
        assert [number for number, _ in task.completed] == [5]

    restored = SubtaskSnapshot(1, "source", 0, 1, 128, next_sequence=1)
    vertex = JobVertex("source", 1, 128, source=SourceConfig(records_per_second=100.0))
    driven(vertex, drive, restore=(restored,), blobs=SlowStore(), reading=False)


def test_J_147_a_task_that_has_nothing_left_to_do_declines_a_checkpoint_and_ends_when_the_last_one_is_stored():
    """TaskTest.testDeclineCheckpoint. It has ended its data; only an upload is under way."""

    async def drive(task: Deployed) -> None:
        task.trigger(1, drain=True)
        await task.at(200)
        task.task.notify_checkpoint_complete(1)
        await task.settle()
        task.task.trigger_checkpoint(TriggerCheckpoint("attempt", 2, 7, "leader", False))
        await task.settle()
        assert task.declined == [(2, "CHECKPOINT_DECLINED_TASK_CLOSING")]
        assert task.ended_at is None

    async def until_stored(task: Deployed) -> None:
        await drive(task)
        await task.at(1500)
        assert task.completed == [(1, 1000)]
        assert (task.ended_at, task.states[-1]) == (1000, "FINISHED")

    vertex = JobVertex("source", 1, 128, source=SourceConfig(records_per_second=100.0))
    driven(vertex, until_stored, blobs=SlowStore())


# ---- failures


@pytest.mark.parametrize(
    ("code", "cause"),
    [("raise ValueError('no such key')", ("ValueError", "no such key")), ("return 'text'", ("TypeError", "user.py:f returned str"))],
)  # fmt: skip
def test_a_function_that_fails_ends_its_task_and_not_its_taskmanager(
    tmp_path: Path, code: str, cause: tuple[str, str]
):
    """The cause is reported with the task's last state, and the partition is released with it."""
    (tmp_path / "user.py").write_text(f"def f(record):\n    {code}\n")

    async def drive(task: Deployed) -> None:
        task.send(0, data(0, 1))
        await task.settle()
        partition = task.task.partitions[0]
        assert partition.is_released
        assert partition.failure_cause is task.task.failure

    vertex = JobVertex("work", 1, 128, operator=OperatorConfig("python", function=f"{tmp_path}/user.py:f"))
    task = driven(vertex, drive)
    assert task.states == ["INITIALIZING", "RUNNING", "FAILED"]
    assert (task.failure[0], task.failure[1].startswith(cause[1])) == (cause[0], True)


class FileClock(LoopClock):
    """A clock that goes on by the milliseconds in a file, once a function has written them there."""

    def __init__(self, file: Path) -> None:
        super().__init__("sim")
        self.file = file

    def now(self) -> float:
        ms = float(self.file.read_text()) if self.file.exists() else 0.0
        return asyncio.get_running_loop().time() + ms / 1000


@pytest.mark.parametrize(("ms", "waits"), [(0.9, []), (1.1, [("work", 0, 1.1, Outcome.COMPLETED)])])
def test_a_function_that_loads_slowly_is_waited_for(
    tmp_path: Path, ms: float, waits: list[tuple[str, float, float, str]]
):
    """It is a wait if it takes more than a millisecond, as `import torch` does."""
    took = tmp_path / "took"
    (tmp_path / "user.py").write_text(
        f"from pathlib import Path\nPath({str(took)!r}).write_text('{ms}')\nf = len\n"
    )
    vertex = JobVertex("work", 1, 128, operator=OperatorConfig("python", function=f"{tmp_path}/user.py:f"))
    assert driven(vertex, clock=FileClock(took)).waits("open") == waits


def test_only_the_first_cause_of_a_failure_counts():
    """A cancellation after it changes nothing, nor does a failure after a cancellation."""

    async def fail(task: Deployed) -> None:
        for text in ("first", "second"):
            task.task.fail(FlinkError("FlinkException", text))
        task.task.cancel()

    task = driven(MAP, fail)
    assert (task.states[-1], task.failure) == ("FAILED", ("FlinkException", "first"))

    async def cancel(task: Deployed) -> None:
        task.task.cancel()
        task.task.fail(FlinkError("FlinkException", "late"))

    task = driven(MAP, cancel)
    assert (task.states[-1], task.failure, task.task.failure) == ("CANCELED", ("", ""), None)


def test_a_task_that_has_ended_ignores_what_comes_after():
    """It reports one last state."""

    async def drive(task: Deployed) -> None:
        task.task.fail(FlinkError("FlinkException", "text"))
        await task.settle()
        task.task.cancel()
        task.task.fail(FlinkError("FlinkException", "other"))
        task.task.notify_checkpoint_aborted(1)
        await task.task.wait_ended()

    task = driven(MAP, drive)
    assert task.states == ["INITIALIZING", "RUNNING", "FAILED"]
    assert task.failure == ("FlinkException", "text")


def test_a_refused_state_fails_the_task():
    """The JobMaster does not know the attempt any more."""

    async def refuse(message: UpdateTaskExecutionState) -> Acknowledge:
        return Acknowledge(accepted=message.state != "RUNNING", reason="unknown attempt")

    task = driven(MAP, answers={UpdateTaskExecutionState: refuse})
    assert task.failure == ("ExecutionGraphException", "unknown attempt")


# ---- the end


@pytest.mark.parametrize("leaves_first", [True, False])
def test_the_result_of_a_finished_task_is_released_when_its_reader_has_left(leaves_first: bool):
    """Before, what it has not read stays. Then all buffers are free again."""

    async def drive(task: Deployed) -> None:
        partition = task.task.partitions[0]
        if leaves_first:
            task.reads = False
            task.view.release()
            assert not partition.is_released
        await task.at(10)
        assert task.states[-1] == "FINISHED"
        if not leaves_first:
            assert task.events[-1] == EndOfPartition()
            assert not partition.is_released
            task.view.release()
        assert partition.is_released
        assert task.environment.segments_in_use == 0

    driven(THREE, drive)


# ---- requests for partitions

LATE = {"taskmanager.network.request-backoff.initial": "100 ms", "taskmanager.network.request-backoff.max": "400 ms"}  # fmt: skip


def requests(task: Deployed) -> list[tuple[str, int, float]]:
    """The requests that were recorded: of which partition, the number of the request, and the pause before it."""
    return [
        (row["partition"].split("@")[0].split("#")[1], row["request"], row["backoff_s"])
        for row in task.noted("partition.request")
    ]


def producer_is(state: str, *, disposed: bool = False) -> dict[type, Any]:
    async def answer(message: RequestPartitionState) -> PartitionState:
        return PartitionState(state, disposed)

    return {RequestPartitionState: answer}


def test_a_partition_that_is_not_there_is_requested_again_with_a_growing_pause():
    """The one that is there is requested once. Each first request names its connection."""

    async def drive(task: Deployed) -> None:
        task.upstream.register(task.producers[0])
        await task.at(600)
        task.upstream.register(task.producers[1])
        task.upstream.server.arm()
        task.send(1, data(0, 1))
        await task.at(2000)
        assert task.states[-1] == "RUNNING"
        assert task.counts == [1]

    task = driven(MAP, drive, version="1.12", started=False, answers=producer_is("RUNNING"), **LATE)
    found = requests(task)
    assert [one for one in found if one[0] == "1"][:4] == [
        ("1", 1, 0),
        ("1", 2, 0.1),
        ("1", 3, 0.2),
        ("1", 4, 0.4),
    ]
    numbers = [(partition, number) for partition, number, _ in found]
    assert len(numbers) == len(set(numbers)), "each request is recorded once"
    assert all("connection" in row for row in task.noted("partition.request") if row["request"] == 1)


@pytest.mark.parametrize(
    ("state", "disposed", "ends"),
    [("FAILED", False, "CANCELED"), ("RUNNING", True, "CANCELED"), ("CREATED", False, "FAILED")],
)
def test_a_missing_partition_ends_its_consumer_if_its_producer_has_ended_or_never_began(
    state: str, disposed: bool, ends: str
):
    """The JobMaster is asked for the state of the producer."""

    async def drive(task: Deployed) -> None:
        await task.at(500)

    answers = producer_is(state, disposed=disposed)
    task = driven(MAP, drive, version="1.12", started=False, answers=answers, **LATE)
    assert task.states[-1] == ends
    asked = task.heard(RequestPartitionState)
    assert {message.partition for message in asked} <= {str(partition_id(n)) for n in (0, 1)}
    assert asked


def test_a_task_that_is_cancelled_does_not_wait_for_the_answer_about_a_producer():
    """It asks the JobMaster, which does not answer, and ends at once."""

    async def never(message: Any) -> None:
        await asyncio.sleep(3600.0)

    async def drive(task: Deployed) -> None:
        await task.at(300)
        assert task.heard(RequestPartitionState)
        task.task.cancel()

    task = driven(MAP, drive, version="1.12", started=False, answers={RequestPartitionState: never}, **LATE)
    assert (task.task.state, task.ended_at) == ("CANCELED", 300)


def test_a_refused_question_about_a_producer_fails_the_task():
    """With the error of the JobMaster."""

    async def refuse(message: Any) -> None:
        raise FlinkError("PartitionProducerDisposedException", "gone")

    async def drive(task: Deployed) -> None:
        await task.at(500)

    task = driven(MAP, drive, version="1.12", started=False, answers={RequestPartitionState: refuse}, **LATE)
    assert task.failure == ("PartitionProducerDisposedException", "gone")
