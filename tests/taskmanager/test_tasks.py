"""The tasks that one TaskManager holds: how many, how they are cancelled, and when they are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.jobgraph import JobVertex, SinkConfig, SourceConfig
from testbed_runtime.core.job.messages import (
    Acknowledge,
    CommitRecords,
    TaskDeploymentDescriptor,
    UpdateTaskExecutionState,
)
from testbed_runtime.core.waits import Outcome
from testbed_runtime.process.tasks import TaskKeeper
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager import tasks
from testbed_runtime.taskmanager.tasks import TaskTable
from tests.core.exchange_model import partition_id
from tests.taskmanager.deployed import Deployed, data, deployed

SOURCE = JobVertex("source", 1, 128, source=SourceConfig(records_per_second=100.0))
SINK = JobVertex("work", 1, 128, sink=SinkConfig(delivery="at-least-once"))


class Held:
    """A table of tasks in a TaskManager whose own task only keeps the network and the JobMaster there."""

    def __init__(self, around: Deployed) -> None:
        self.around = around
        self.empty: list[str] = []
        self.fatal: list[tuple[float, str]] = []
        self.keeper = TaskKeeper()
        self.table = TaskTable(
            around.services,
            self.keeper,
            on_slot_empty=self.empty.append,
            on_fatal=lambda text: self.fatal.append((around.ms, text)),
        )

    def descriptor(self, number: int, *, slot: str = "slot", **more: Any) -> TaskDeploymentDescriptor:
        """An attempt with a result of its own."""
        given = self.around.descriptor
        partitions = tuple(replace(p, partition=str(partition_id(number))) for p in given.partitions)
        attempt = f"attempt-{number}"
        return replace(given, attempt=attempt, allocation=slot, partitions=partitions, **more)

    def submit(self, number: int, *, slot: str = "slot", **more: Any) -> None:
        self.table.submit(self.descriptor(number, slot=slot, **more), self.around.gateway)

    @property
    def attempts(self) -> list[str]:
        return [task.attempt for task in self.table.all]


def holding(
    drive: Callable[[Held], Coroutine[Any, Any, None]], vertex: JobVertex = SOURCE, **settings: Any
) -> Held:
    """Drive a table in virtual time, and close it."""

    async def main() -> Held:
        async with deployed(vertex, idle=True, **settings) as around:
            held = Held(around)
            await drive(held)
            await held.table.close()
            await held.keeper.close()
        return held

    return run_virtual(main())


def test_a_taskmanager_holds_a_limited_number_of_tasks(monkeypatch: pytest.MonkeyPatch):
    """One more is refused; one that is there already is not started again."""
    monkeypatch.setattr(tasks, "MAX_TASKS", 2)

    async def drive(held: Held) -> None:
        for number in (1, 2, 2):
            held.submit(number)
        with pytest.raises(FlinkError, match="holds 2 tasks, which is its limit") as caught:
            held.submit(3)
        assert caught.value.class_name == "TaskSubmissionException"
        assert held.attempts == ["attempt-1", "attempt-2"]

    holding(drive)


def test_a_task_that_is_unknown_cannot_be_cancelled():
    """The answer names it."""

    async def drive(held: Held) -> None:
        answer = held.table.cancel("attempt-9")
        assert (answer.accepted, answer.reason) == (
            False, "Cannot find task to stop for execution attempt-9.",
        )  # fmt: skip

    holding(drive)


def test_the_last_task_of_a_slot_that_ends_empties_it():
    """A task of another slot does not count."""

    async def drive(held: Held) -> None:
        for number, slot in ((1, "a"), (2, "a"), (3, "b")):
            held.submit(number, slot=slot)
        await held.around.settle()
        for attempt, empty in (("attempt-1", []), ("attempt-2", ["a"]), ("attempt-3", ["a", "b"])):
            assert held.table.cancel(attempt).accepted
            await held.around.settle()
            assert held.empty == empty
        assert held.attempts == []

    holding(drive)


def test_a_slot_fails_its_running_tasks_only():
    """And says whether there was one."""

    async def drive(held: Held) -> None:
        for number, slot in ((1, "a"), (2, "b")):
            held.submit(number, slot=slot)
        await held.around.settle()
        cause = FlinkError("FlinkException", "freed")
        assert held.table.fail_slot("a", cause)
        await held.around.settle()
        assert held.attempts == ["attempt-2"]
        assert not held.table.fail_slot("a", cause)
        assert held.table.running("attempt-2") is not None
        assert held.table.running("attempt-1") is None

    holding(drive)


def stuck(held: Held) -> None:
    """Start a sink that hands over its commits to a JobMaster that does not answer, which takes up to 5 s at its end."""
    held.submit(1, gates=held.around.descriptor.gates)


@pytest.mark.parametrize("how", ["cancelled", "failed", "unanswered"])
@pytest.mark.parametrize(("timeout", "fatal"), [("2 s", [3000.0]), ("1 min", []), ("0 s", [])])
def test_J_146_a_task_that_does_not_end_in_time_ends_its_taskmanager(
    timeout: str, fatal: list[float], how: str
):
    """TaskTest.testFatalErrorAfterUnInterruptibleInvoke. After task.cancellation.timeout, unless that is 0, and also if the task was
    failed from outside: with its slot, or because a report was not answered. The wait has expired then; otherwise it is as long as it took, if the JobMaster cancelled the task."""

    async def never(message: Any) -> None:
        await asyncio.sleep(3600)

    async def drive(held: Held) -> None:
        stuck(held)
        await held.around.settle()
        held.around.send(0, data(0, 2))
        await held.around.at(1000)
        for _ in range(2):
            if how == "cancelled":
                assert held.table.cancel("attempt-1").accepted
            elif how == "unanswered":
                held.table.all[0].fail(FlinkError("TimeoutException", "unanswered"))
            else:
                slot = held.table.all[0].descriptor.allocation
                assert held.table.fail_slot(slot, FlinkError("FlinkException", "freed"))
        await held.around.at(2999)
        assert held.fatal == []
        await held.around.at(9000)
        assert held.attempts == []

    options = {"task.cancellation.timeout": timeout, "pekko.ask.timeout": "1 min"}
    held = holding(drive, SINK, answers={CommitRecords: never}, **options)
    assert [ms for ms, _ in held.fatal] == fatal
    waits = [(start, outcome) for _, start, _, outcome in held.around.waits("cancellation")]
    expected = {"2 s": [Outcome.EXPIRED], "1 min": [Outcome.COMPLETED] * (how == "cancelled"), "0 s": []}
    assert waits == [(1000.0, outcome) for outcome in expected[timeout]]
    if fatal:
        assert "Task did not exit gracefully within 2 + seconds. (work-0)" in held.fatal[0][1]


def test_a_cancellation_that_ends_soon_is_no_wait():
    """That of its region is recorded, by the JobMaster."""

    async def drive(held: Held) -> None:
        held.submit(1)
        await held.around.settle()
        held.table.cancel("attempt-1")
        await held.around.at(500)

    held = holding(drive, **{"task.cancellation.timeout": "2 s"})
    assert (held.around.rows("waits", "cancellation"), held.fatal) == ([], [])


def test_the_results_of_a_task_that_has_finished_are_kept_until_they_are_released():
    """They are named, or those of a slot, or those of a cancelled attempt. Those of a running task are kept in any case."""

    async def drive(held: Held) -> None:
        ended = JobVertex("source", 1, 128, source=SourceConfig(limit=1))
        options = {"vertex": ended}
        for number in (1, 2, 3):
            held.submit(number, slot=f"slot-{number}", **options)
        held.submit(4, slot="slot-4")
        views = []
        await held.around.settle()
        for task in held.table.all[:3]:
            view = task.partitions[0].create_view(0, lambda: None)
            while (polled := view.poll()) is not None:
                polled.buffer.recycle()
            view.acknowledge_all_data_processed()
            views.append(view)
        await held.around.at(500)
        assert [task.ended for task in held.table.all] == [True, True, True, False]
        assert held.attempts == ["attempt-1", "attempt-2", "attempt-3", "attempt-4"]
        held.table.release_partitions([str(partition_id(n)) for n in (1, 4, 99)])
        assert held.attempts == ["attempt-2", "attempt-3", "attempt-4"]
        held.table.release_results("slot-2")
        held.table.release_results("slot-4")
        assert held.attempts == ["attempt-3", "attempt-4"]
        assert held.table.cancel("attempt-3").accepted
        assert held.attempts == ["attempt-4"]
        running = held.table.running("attempt-4")
        assert running is not None
        assert not running.partitions[0].is_released

    holding(drive)


def test_a_task_counts_as_deployed_until_its_last_report_is_answered():
    """It counts for its own job: the JobMaster may not know yet that it has ended."""

    async def slow(message: Any) -> Any:
        if message.state == "CANCELED" and message.attempt == "attempt-1":
            await asyncio.sleep(0.5)
        return Acknowledge()

    async def drive(held: Held) -> None:
        held.submit(1)
        await held.around.settle()
        assert held.table.deployed("job") == ("attempt-1",)
        assert held.table.deployed("other") == ()
        at = held.around.ms
        held.table.cancel("attempt-1")
        await held.around.at(at + 499)
        assert (held.table.deployed("job"), held.table.deployed("other")) == (("attempt-1",), ())
        assert held.table.counters()["tasks"] == 0
        await held.around.at(at + 501)
        assert held.table.deployed("job") == ()

    holding(drive, answers={UpdateTaskExecutionState: slow})


def test_the_live_counters_are_those_of_the_running_tasks():
    """The records of the sources and of the sinks, and the largest lag."""

    async def drive(held: Held) -> None:
        held.submit(1)
        held.submit(2)
        await held.around.at(95)
        found = held.table.counters()
        assert (found["tasks"], found["records_out"], found["records_in"]) == (2, 20, 0)
        assert found["lag_s"] == pytest.approx(0, abs=0.001)
        held.table.cancel("attempt-1")
        await held.around.settle()
        assert held.table.counters()["tasks"] == 1

    holding(drive)
