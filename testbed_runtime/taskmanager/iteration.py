"""The tasks of an iteration: head, tail and synchronisation task. Those between head and tail are ordinary tasks.

A superstep: the heads emit its input and EndOfSuperstep, which every task passes on once all its channels have delivered it. When its
tail has received EndOfSuperstep, a head sends WorkerDoneEvent to the synchronisation task, which answers all heads after the last of
them has sent it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from testbed_runtime.core.errors import FlinkError, UserError
from testbed_runtime.core.exchange.events import EndOfSuperstep, Event, OtherEvent
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.job.jobgraph import DELTA, IterationConfig
from testbed_runtime.core.job.supersteps import (
    ALL_WORKERS_DONE,
    TERMINATION,
    Synchronization,
    aggregator_of,
    all_workers_done,
    read_worker_done,
    termination,
    worker_done,
)
from testbed_runtime.core.waits import Outcome
from testbed_runtime.taskmanager.meter import BUSY, IDLE
from testbed_runtime.taskmanager.services import TaskRun
from testbed_runtime.taskmanager.stream import StreamTask
from testbed_runtime.workload.functions import load_function
from testbed_runtime.workload.iteration import UpdateBuffer
from testbed_runtime.workload.operators import Criterion, Operator, SolutionSetJoin
from testbed_runtime.workload.records import Records, stamp_path


class IterationHeadTask(StreamTask):
    """Reads the initial input, then runs superstep after superstep with what the tail feeds back, then emits the result."""

    def __init__(self, run: TaskRun, config: IterationConfig) -> None:
        super().__init__(run)
        self._config = config
        self._key = run.services.iterations.key(run.descriptor, config.head)
        self._loop = run.services.iterations.join(self._key)
        targets = [partition.target_vertex for partition in run.descriptor.partitions]
        self._step = [i for i, target in enumerate(targets) if target == config.step]
        self._sync = [i for i, target in enumerate(targets) if target == config.sync]
        self._final = [i for i in range(len(targets)) if i not in (*self._step, *self._sync)]
        self._answers: deque[Event] = deque()
        self._result: UpdateBuffer | None = None
        self._replaced = False
        self._ended = False
        for number in self._sync:
            run.output.partitions[number].on_task_event = self._on_task_event

    @property
    def _is_delta(self) -> bool:
        return self._config.kind == DELTA

    def _on_task_event(self, event: Event) -> None:
        self._answers.append(event)
        self._run.wakeup.set()

    async def _process(self, records: Records, channel: int) -> None:
        """Take the initial input: a bulk iteration begins its first superstep with it, a delta iteration reads all of it first."""
        run = self._run
        run.meter.records_in += len(records)
        if not self._is_delta:
            await self._emit_superstep([records])
            return
        stamp_path(records, run.subtask.vertex, run.subtask.subtask)
        if self._loop.solution.put(records) and not self._replaced:
            self._replaced = True  # of two records with one key, only the second is in the solution set
            run.event("function.dropped")

    async def _emit_superstep(self, batches: Iterable[Records]) -> None:
        """Emit records to the step function."""
        run = self._run
        for records in batches:
            stamp_path(records, run.subtask.vertex, run.subtask.subtask)
            await run.output.emit(records, only=self._step)
            await run.services.cpu.yield_control()

    async def _on_end_of_data(self) -> None:
        self._run.input.acknowledge_end_of_data()

    async def _finish(self) -> None:
        """Iterate after the end of the initial input, emit the result, and wait until it has been read."""
        run, config = self._run, self._config
        if self._is_delta:
            self._loop.has_solution = True
            await self._emit_superstep(self._loop.solution.batches())
        while not await self._end_superstep_here():
            await self._emit_superstep(self._take_result().batches())
        run.wait("iteration", config.head, since_s=run.running_at)
        self._ended = True
        final = self._loop.solution.batches() if self._is_delta else self._take_result().batches()
        for records in final:
            await run.output.emit(records, only=self._final)
            await run.services.cpu.yield_control()
        run.output.notify_end_of_data(drain=True)
        await super()._finish()

    def _take_result(self) -> UpdateBuffer:
        assert self._result is not None, "no superstep has ended"
        return self._result

    async def _end_superstep_here(self) -> bool:
        """Agree with the other heads on the end of the superstep. Return whether the iteration has ended. Raises FlinkError."""
        run, config = self._run, self._config
        run.output.broadcast(EndOfSuperstep(), only=self._step)
        run.meter.enter(IDLE)
        if self._result is not None:
            self._result.close()
        self._result, count = await self._loop.back.result()
        event = worker_done(run.subtask.subtask, aggregator_of(config), count)
        run.output.broadcast(event, only=self._sync)
        while not self._answers:
            await run.wakeup.wait()
        run.meter.enter(BUSY)
        answer = self._answers.popleft()
        name = answer.class_name if isinstance(answer, OtherEvent) else type(answer).__name__
        if name not in (ALL_WORKERS_DONE, TERMINATION):
            raise FlinkError("IllegalStateException", f"{name} is not the answer of a synchronization task.")
        return name == TERMINATION

    async def close(self) -> None:
        run = self._run
        if not self._ended and run.running_at:
            run.wait("iteration", self._config.head, since_s=run.running_at, outcome=Outcome.CANCELLED)
        if self._result is not None:
            self._result.close()
        self._run.services.iterations.leave(self._key)
        await super().close()


class IterationTailTask(StreamTask):
    """An operator whose records go back to the head of its subtask. Counts those that decide whether the iteration ends."""

    _joins = False
    """Whether it joins with the solution set."""
    _early: UpdateBuffer | None = None
    """Candidates from before the solution set was complete."""

    def __init__(self, run: TaskRun, config: IterationConfig) -> None:
        self._key = run.services.iterations.key(run.descriptor, config.head)
        self._loop = run.services.iterations.join(self._key)
        try:
            self._counts = self._counting(run, config)
            super().__init__(run)
            self._emit = self._feed_back
        except BaseException:
            run.services.iterations.leave(self._key)
            raise

    @staticmethod
    def _counting(run: TaskRun, config: IterationConfig) -> Callable[[Records], int]:
        if not config.criterion:
            return len
        try:
            return Criterion(run.subtask, load_function(config.criterion), config.criterion).count
        except UserError as error:
            raise FlinkError("PythonFunction", error.problem) from error

    def _make_operator(self) -> Operator | None:
        operator = super()._make_operator()
        if isinstance(operator, SolutionSetJoin):
            self._joins = True
            operator.solution = self._loop.solution
        return operator

    async def _process(self, records: Records, channel: int) -> None:
        """Keep the candidates of other heads until the solution set is complete. Flink's tail waits for it (SolutionSetBroker), but a
        tail that waits can block a connection over which its head still reads."""
        if self._joins and not self._loop.has_solution:
            if self._early is None:
                self._early = self._run.services.iterations.new_buffer()
            self._early.add(records)
            return
        await self._process_early(channel)
        await super()._process(records, channel)

    async def _process_early(self, channel: int = 0) -> None:
        early, self._early = self._early, None
        if early is None:
            return
        try:
            for records in early.batches():
                await super()._process(records, channel)
                await self._run.services.cpu.yield_control()
        finally:
            early.close()

    async def _feed_back(self, records: Records) -> None:
        self._run.meter.records_out += len(records)
        self._loop.back.add(records, self._counts(records))

    async def _on_superstep_ended(self) -> None:
        await self._process_early()
        self._loop.back.end_superstep()

    async def close(self) -> None:
        if self._early is not None:
            self._early.close()
        self._run.services.iterations.leave(self._key)
        await super().close()


class IterationSynchronizationSinkTask(StreamTask):
    """Lets all heads begin the next superstep together, or ends the iteration."""

    def __init__(self, run: TaskRun, config: IterationConfig) -> None:
        super().__init__(run)
        self._config = config
        self._synchronization = Synchronization(config, run.input.channel_count)

    async def _handle(self, channel: int, item: list[Buffer] | Event) -> None:
        if isinstance(item, list):
            for buffer in item:
                buffer.recycle()
            raise FlinkError("RuntimeException", "Synchronization task must not see any records!")
        if not isinstance(item, OtherEvent):
            await super()._handle(channel, item)
            return
        ended = self._synchronization.on_worker_done(*read_worker_done(item))
        if ended is None:
            return
        row = {"superstep": ended.superstep, "count": ended.count, "ended": ended.ended}
        self._run.event("iteration.superstep", data=row)
        answer = termination() if ended.ended else all_workers_done(aggregator_of(self._config), ended.count)
        for gate in self._run.input.gates:
            gate.send_task_event(answer)
