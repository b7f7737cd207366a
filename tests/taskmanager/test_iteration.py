"""The tasks of an iteration: what a head, a tail and a synchronization task do in a superstep and at its end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.exchange.events import (
    EndOfData,
    EndOfOutputChannelState,
    EndOfPartition,
    EndOfSuperstep,
    Event,
    OtherEvent,
    StopMode,
    decode_event,
)
from testbed_runtime.core.job.jobgraph import DELTA, IterationConfig, JobVertex, OperatorConfig
from testbed_runtime.core.job.supersteps import (
    aggregator_of,
    all_workers_done,
    read_worker_done,
    termination,
    worker_done,
)
from testbed_runtime.core.waits import Outcome
from testbed_runtime.taskmanager import backchannel
from testbed_runtime.workload.iteration import BACK_CHANNEL_BYTES, UpdateBuffer
from testbed_runtime.workload.records import RecordReader, Records
from tests.taskmanager.deployed import Deployed, data, driven, records

BULK = IterationConfig("work", max_iterations=3, step="step", sync="sync")
DELTAS = IterationConfig("work", kind=DELTA, max_iterations=3, step="step", sync="sync")
OUTPUTS = (("forward", 1, "step"), ("forward", 1, "sync"), ("forward", 1, "out"))


class Results:
    """Everything that a head has written to its step function, its synchronization task and its consumer."""

    def __init__(self, task: Deployed) -> None:
        self.task = task
        self.views = [made.create_view(0, lambda: None) for made in task.task.partitions]
        self.loop = task.services.iterations.join(task.services.iterations.key(task.descriptor, "work"))
        self.records: list[Records] = []

    async def read(self, number: int) -> list[int | Event]:
        """The sequence numbers and events that were written since the last call."""
        await self.task.settle()
        found: list[int | Event] = []
        reader = RecordReader()
        while (polled := self.views[number].poll()) is not None:
            buffer = polled.buffer
            if buffer.data_type.is_buffer:
                made = reader.feed([buffer.view()])
                if made is not None and len(made):
                    self.records.append(made.copy())
                    found += made["sequence"].tolist()
            else:
                event = decode_event(bytes(buffer.view()))
                if isinstance(event, EndOfOutputChannelState):
                    self.views[number].resume_consumption()
                else:
                    found.append(event)
            buffer.recycle()
        return found

    def tail(self, first: int, count: int, counted: int) -> None:
        """Feed these records back, of which some count, and end the superstep."""
        if count:
            self.loop.back.add(records(first, count), counted)
        self.loop.back.end_superstep()

    def answer(self, event: Event) -> None:
        """Answer the head, as the synchronization task does."""
        answered = self.task.task.partitions[1].on_task_event
        assert answered is not None
        answered(event)

    async def counted(self) -> tuple[int, int]:
        """The worker and the count of the only event that the head has sent to the synchronization task."""
        (event,) = await self.read(1)
        assert isinstance(event, OtherEvent)
        return read_worker_done(event)

    def leave(self) -> None:
        """Leave the loop, as the tail does at its end."""
        self.task.services.iterations.leave(self.task.services.iterations.key(self.task.descriptor, "work"))


def head(drive: Any, config: IterationConfig = BULK) -> Deployed:
    async def started(task: Deployed) -> None:
        await drive(task, Results(task))

    vertex = JobVertex("work", 1, 128, iteration=config)
    return driven(vertex, started, outputs=OUTPUTS, reading=False, channels=1)


def test_a_bulk_iteration_passes_its_input_and_then_each_result_to_the_step_function():
    """After the termination its result goes to the consumer, and nowhere else."""

    async def drive(task: Deployed, results: Results) -> None:
        task.send(0, data(0, 2))
        assert await results.read(0) == [0, 1]
        task.send(0, EndOfData(StopMode.DRAIN))
        assert await results.read(0) == []
        assert task.producers[0].all_data_processed
        task.producers[0].finish()
        assert await results.read(0) == [EndOfSuperstep()]
        assert await results.read(1) == []
        results.tail(5, 3, 2)
        assert await results.counted() == (0, 2)
        assert await results.read(0) == []
        results.answer(all_workers_done(aggregator_of(BULK), 2))
        assert await results.read(0) == [5, 6, 7, EndOfSuperstep()]
        results.tail(8, 1, 0)
        assert await results.counted() == (0, 0)
        await task.at(700)
        results.answer(termination())
        await task.settle()
        end = [EndOfData(StopMode.DRAIN), EndOfPartition()]
        assert await results.read(2) == [8, *end]
        assert (await results.read(0), task.states[-1]) == (end, "FINISHED")
        results.leave()
        assert all(path for made in results.records[:-1] for path in made["path"].tolist())
        meter = task.task.meter
        assert (meter.records_in, meter.records_out) == (2, 6)

    task = head(drive)
    assert task.waits("iteration") == [("work", 0, 700, Outcome.COMPLETED)]
    assert task.services.iterations.loops == {}


def test_a_delta_iteration_begins_with_its_whole_solution_set_and_ends_with_it():
    """It keeps the second of two records with one key, and says so once."""

    async def drive(task: Deployed, results: Results) -> None:
        every = {int(record["key"]) for record in records(0, 50, keys=5)}
        for first in (0, 25):
            task.send(0, data(first, 25, keys=5))
            assert await results.read(0) == []
        task.end()
        found = await results.read(0)
        assert found[-1] == EndOfSuperstep()
        assert len(found[:-1]) == len(every)
        results.tail(0, 0, 0)
        assert await results.counted() == (0, 0)
        results.answer(termination())
        assert len(await results.read(2)) == len(every) + 2  # and the two events of the end
        assert all(path for made in results.records for path in made["path"].tolist())
        results.leave()

    assert head(drive, DELTAS).noted("function.dropped") == [{}]


def test_an_answer_that_is_none_fails_the_head():
    """It names the event."""

    async def drive(task: Deployed, results: Results) -> None:
        task.end()
        await task.settle()
        results.tail(0, 0, 0)
        await task.settle()
        results.answer(EndOfSuperstep())
        await task.settle()
        results.leave()

    task = head(drive)
    text = "EndOfSuperstep is not the answer of a synchronization task."
    assert task.failure == ("IllegalStateException", text)


def test_an_iteration_that_is_cancelled_is_a_cancelled_wait():
    """Its loop is closed, with what the tail has fed back."""

    async def drive(task: Deployed, results: Results) -> None:
        task.end()
        await task.at(300)
        results.tail(0, 3, 3)
        task.task.cancel()
        await task.settle()
        results.leave()

    task = head(drive)
    assert task.waits("iteration") == [("work", 0, 300, Outcome.CANCELLED)]
    assert (task.states[-1], task.services.iterations.loops) == ("CANCELED", {})


# ---- the tail


@pytest.mark.parametrize(("criterion", "counts"), [(False, [3, 0]), (True, [1, 0])])
def test_a_tail_feeds_its_records_back_and_counts_those_that_decide(
    tmp_path: Path, criterion: bool, counts: list[int]
):
    """All of them, or those for which the criterion is true; a superstep begins again at 0."""
    (tmp_path / "user.py").write_text("def odd(record):\n    return record.sequence == 1\n")
    text = f"{tmp_path}/user.py:odd" if criterion else ""
    config = IterationConfig("head", max_iterations=3, criterion=text)

    async def drive(task: Deployed) -> None:
        iterations = task.services.iterations
        loop = iterations.join(iterations.key(task.descriptor, "head"))
        task.send(0, data(0, 2))
        task.send(1, data(2, 1))
        for superstep in counts:
            for channel in (0, 1):
                task.send(channel, EndOfSuperstep())
            made, count = await loop.back.result()
            assert count == superstep
            assert sum(map(len, made.batches())) == (3 if superstep else 0)
            made.close()
        assert task.task.meter.records_out == 3
        iterations.leave(iterations.key(task.descriptor, "head"))
        assert len(iterations.loops) == 1

    vertex = JobVertex("work", 1, 128, operator=OperatorConfig(), feeds_back=config)
    task = driven(vertex, drive, outputs=())
    assert task.services.iterations.loops == {}


@pytest.mark.parametrize("most_bytes", [BACK_CHANNEL_BYTES, 1])
@pytest.mark.parametrize("later", [0, 2])
def test_a_tail_joins_early_candidates_with_the_complete_solution_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int, most_bytes: int
):
    """Another head may begin the first superstep while its own head still reads the initial input: no candidate is lost, whether more
    arrive afterwards or not, in memory and in a file."""
    monkeypatch.setattr(backchannel, "UpdateBuffer", partial(UpdateBuffer, most_bytes=most_bytes))
    (tmp_path / "user.py").write_text("def accept(candidate, current):\n    return current\n")
    config = IterationConfig("head", kind=DELTA, max_iterations=3)

    async def drive(task: Deployed) -> None:
        iterations = task.services.iterations
        loop = iterations.join(iterations.key(task.descriptor, "head"))
        task.send(0, data(0, 3))
        await task.settle()
        task.send(0, data(3, 3))
        await task.settle()
        loop.solution.put(records(0, 20))
        loop.has_solution = True
        if later:
            task.send(1, data(6, later))
        for channel in (0, 1):
            task.send(channel, EndOfSuperstep())
        made, count = await loop.back.result()
        assert count == 6 + later
        assert [n for part in made.batches() for n in part["key"].tolist()] == records(0, 6 + later)[
            "key"
        ].tolist()
        made.close()
        iterations.leave(iterations.key(task.descriptor, "head"))

    operator = OperatorConfig(kind="solution-set-join", function=f"{tmp_path}/user.py:accept")
    vertex = JobVertex("work", 1, 128, operator=operator, feeds_back=config)
    driven(vertex, drive, outputs=())


def test_a_criterion_that_cannot_be_loaded_fails_the_tail_and_leaves_no_loop():
    """The error names the function."""
    config = IterationConfig("head", criterion="/nowhere/user.py:odd")
    vertex = JobVertex("work", 1, 128, operator=OperatorConfig(), feeds_back=config)
    task = driven(vertex, outputs=())
    assert (task.states[-1], task.failure[0]) == ("FAILED", "PythonFunction")
    assert task.services.iterations.loops == {}


# ---- the synchronization task


def synchronizing(drive: Any, config: IterationConfig) -> Deployed:
    """Drive a synchronization task; `answers` are the events that both heads get."""

    async def started(task: Deployed) -> None:
        answers: list[list[Event]] = [[], []]
        for producer, got in zip(task.producers, answers, strict=True):
            producer.on_task_event = got.append
        await drive(task, answers)

    return driven(JobVertex("work", 1, 128, synchronizes=config), started, outputs=())


def test_heads_begin_a_superstep_together_until_the_last_one_has_ended():
    """The answer comes when the last head has ended its superstep, with the sum of their counts."""
    name = aggregator_of(BULK)

    async def drive(task: Deployed, answers: list[list[Event]]) -> None:
        for superstep in (1, 2, 3):
            task.send(0, worker_done(0, name, 4))
            await task.settle()
            assert len(answers[0]) == superstep - 1
            task.send(1, worker_done(1, name, 3))
            await task.settle()
            assert len(answers[0]) == superstep
        task.end()
        assert (
            answers[0] == answers[1] == [all_workers_done(name, 7), all_workers_done(name, 7), termination()]
        )

    task = synchronizing(drive, BULK)
    assert [(row["superstep"], row["count"]) for row in task.noted("iteration.superstep")] == [
        (1, 7), (2, 7), (3, 7),
    ]  # fmt: skip
    assert [bool(row["ended"]) for row in task.noted("iteration.superstep")] == [False, False, True]
    assert task.states[-1] == "FINISHED"


def test_a_delta_iteration_ends_when_no_head_counts_a_record():
    """Before its last superstep."""
    name = aggregator_of(DELTAS)

    async def drive(task: Deployed, answers: list[list[Event]]) -> None:
        for channel in (0, 1):
            task.send(channel, worker_done(channel, name, 0))
        await task.settle()
        assert answers == [[termination()], [termination()]]

    synchronizing(drive, DELTAS)


def test_a_synchronization_task_takes_no_records():
    """It fails, and keeps no buffer."""

    async def drive(task: Deployed, answers: list[list[Event]]) -> None:
        task.send(0, data(0, 1))

    task = synchronizing(drive, BULK)
    assert task.failure == ("RuntimeException", "Synchronization task must not see any records!")
