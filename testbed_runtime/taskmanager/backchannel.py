"""The connection between the tail and the head of an iteration, which run in one slot (Flink's BlockingBackChannel and its broker)."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from testbed_runtime.core.job.messages import TaskDeploymentDescriptor
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.workload.iteration import SolutionSet, UpdateBuffer
from testbed_runtime.workload.records import Records

LoopKey = tuple[str, str, int, int]
"""Job, head vertex, subtask, attempt number: head and tail are always restarted together."""


class BackChannel:
    """The records of a superstep on their way from the tail to the head, which gets them when the superstep has ended. Only the
    head waits, in `result`."""

    def __init__(self, open_file: Callable[[], IO[bytes]]) -> None:
        self._open_file = open_file
        self._current = UpdateBuffer(open_file)
        self._count = 0
        self._ended: deque[tuple[UpdateBuffer, int]] = deque()
        self._wakeup = Wakeup()

    def add(self, records: Records, counted: int) -> None:
        """Add records to the result of the superstep. `counted` of them count for the convergence of the iteration."""
        self._current.add(records)
        self._count += counted

    def end_superstep(self) -> None:
        self._ended.append((self._current, self._count))
        self._current, self._count = UpdateBuffer(self._open_file), 0
        self._wakeup.set()

    async def result(self) -> tuple[UpdateBuffer, int]:
        """Wait until the tail has ended the superstep. Return its records, which the caller closes, and its count."""
        while not self._ended:
            await self._wakeup.wait()
        return self._ended.popleft()

    def close(self) -> None:
        self._current.close()
        for result, _ in self._ended:
            result.close()


@dataclass(slots=True)
class Loop:
    """The part that head and tail of one subtask share."""

    back: BackChannel
    solution: SolutionSet = field(default_factory=SolutionSet)
    has_solution: bool = False
    """Whether the head has read its whole initial input. Heads of other subtasks may begin the first superstep before that."""
    members: int = 0


class IterationBroker:
    """The loops of one TaskManager. The first of head and tail to join creates the loop. The last to leave closes it."""

    def __init__(self, open_file: Callable[[], IO[bytes]] = io.BytesIO) -> None:
        self._open_file = open_file
        self.loops: dict[LoopKey, Loop] = {}

    @staticmethod
    def key(descriptor: TaskDeploymentDescriptor, head: str) -> LoopKey:
        return descriptor.job, head, descriptor.subtask, descriptor.attempt_number

    def new_buffer(self) -> UpdateBuffer:
        """Return an empty buffer with the same files as a back channel."""
        return UpdateBuffer(self._open_file)

    def join(self, key: LoopKey) -> Loop:
        loop = self.loops.get(key)
        if loop is None:
            loop = self.loops[key] = Loop(BackChannel(self._open_file))
        loop.members += 1
        return loop

    def leave(self, key: LoopKey) -> None:
        loop = self.loops[key]
        loop.members -= 1
        if not loop.members:
            loop.back.close()
            loop.solution.clear()  # the tasks may be kept for their results
            del self.loops[key]
