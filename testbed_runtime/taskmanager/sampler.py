"""Samples running tasks and their channels for the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.credit import ChannelStats
from testbed_runtime.core.job.messages import InputGateDescriptor
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.taskmanager.environment import NetworkEnvironment
from testbed_runtime.taskmanager.services import Pace
from testbed_runtime.taskmanager.task import Task

_Key = tuple[str, str, int, str]


class TaskSampler:
    """One timer per TaskManager, armed while tasks run."""

    def __init__(
        self,
        tasks: Callable[[], Iterable[Task]],
        environment: NetworkEnvironment,
        history: HistorySink,
        pace: Pace,
    ) -> None:
        self._tasks = tasks
        self._environment = environment
        self._history = history
        self._pace = pace
        self._timer: asyncio.TimerHandle | None = None
        self._last: dict[_Key, ChannelStats] = {}
        self._ticks = 0

    def start(self) -> None:
        """Start sampling. Idempotent; the sampler stops by itself when no task runs."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pace.sample_s, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        tasks = [task for task in self._tasks() if not task.ended]
        for task in tasks:
            if task.state == "RUNNING":
                task.meter.sample()
        self._ticks += 1
        if self._ticks % self._pace.channel_stride == 0:
            self._sample_channels(tasks)
        if tasks:
            self.start()

    def _sample_channels(self, tasks: list[Task]) -> None:
        current: dict[_Key, ChannelStats] = {}
        for task in tasks:
            self._consumer_channels(task, current)
        self._producer_channels(
            {str(p.partition_id): (t, n) for t in tasks for n, p in enumerate(t.partitions)}, current
        )
        self._last = current

    def _consumer_channels(self, task: Task, current: dict[_Key, ChannelStats]) -> None:
        for gate, descriptor in zip(task.input.gates, task.descriptor.gates, strict=False):
            for channel in gate.channels:
                if channel.is_released:
                    continue
                remote = isinstance(channel, RemoteInputChannel)
                if remote and not channel.requests:
                    continue
                producer = channel.partition.producer.subtask
                if (producer + task.descriptor.subtask) % self._pace.channel_stride:
                    continue
                peer = _producer_name(descriptor, producer)
                self._note("consumer", task, peer, channel.stats(), current, local=not remote)

    def _producer_channels(
        self, producers: dict[str, tuple[Task, int]], current: dict[_Key, ChannelStats]
    ) -> None:
        for connection in self._environment.server.connections:
            for reader in connection.readers:
                view = reader.view
                found = producers.get(view.subpartition.name) if view is not None else None
                if view is None or found is None or view.is_released:
                    continue
                task, number = found
                output = task.descriptor.partitions[number]
                forward = output.partitioning == "forward"
                subtask = task.descriptor.subtask if forward else view.subpartition.index
                if (task.descriptor.subtask + subtask) % self._pace.channel_stride:
                    continue
                self._note(
                    "producer",
                    task,
                    f"{output.target_vertex}-{subtask}",
                    reader.stats(),
                    current,
                    local=False,
                )

    def _note(
        self,
        side: str,
        task: Task,
        peer: str,
        stats: ChannelStats,
        current: dict[_Key, ChannelStats],
        *,
        local: bool,
    ) -> None:
        key = (side, task.name, task.descriptor.attempt_number, peer)
        current[key] = stats
        if self._last.get(key) == stats:
            return
        self._history.append(
            "channels",
            side=side,
            task=task.name,
            attempt=task.descriptor.attempt_number,
            peer=peer,
            local=local,
            credit=stats.credit,
            announced=stats.announced,
            used=stats.used,
            backlog=stats.backlog,
            queued=stats.queued,
            floating=stats.floating,
            exclusive=stats.exclusive,
        )


def _producer_name(gate: InputGateDescriptor, subtask: int) -> str:
    return f"{gate.source_vertex}-{subtask}"
