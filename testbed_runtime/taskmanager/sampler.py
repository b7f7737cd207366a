"""Samples running tasks and their channels for the history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.credit import ChannelStats, SequenceViewReader
from testbed_runtime.core.exchange.gate import InputChannel
from testbed_runtime.core.exchange.server import PartitionRequestServer
from testbed_runtime.core.job.executiongraph import ExecutionState
from testbed_runtime.core.options import Options
from testbed_runtime.ports.network import SocketState
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.taskmanager.backpressure_samples import BackPressureSampler
from testbed_runtime.taskmanager.credit_waits import CreditWaits
from testbed_runtime.taskmanager.environment import NetworkEnvironment
from testbed_runtime.taskmanager.meter import TaskMeter
from testbed_runtime.taskmanager.pools import pools_of
from testbed_runtime.taskmanager.services import Pace
from testbed_runtime.taskmanager.task import Task
from testbed_runtime.taskmanager.work import Cores

_Key = tuple[str, str, int, str]


class TaskSampler:
    """One timer per TaskManager, armed while tasks run."""

    def __init__(
        self,
        tasks: Callable[[], Iterable[Task]],
        environment: NetworkEnvironment,
        history: HistorySink,
        pace: Pace,
        credit: CreditWaits,
        *,
        options: Options,
        cores: Cores | None = None,
    ) -> None:
        self._tasks = tasks
        self._environment = environment
        self._history = history
        self._pace = pace
        self._credit = credit
        self._cores = cores
        self._timer: asyncio.TimerHandle | None = None
        self._last: dict[_Key, ChannelStats] = {}
        self._consumers: dict[Task, list[tuple[_Key, InputChannel]]] = {}
        """The channels that are sampled, by task."""
        self._producers: dict[PartitionRequestServer, tuple[int, list[tuple[_Key, SequenceViewReader]]]] = {}
        """The channels that are sampled, by connection, and the generation of its readers."""
        self._ticks = 0
        self._segments: dict[str, int] = {}
        self._pools: dict[str, Any] = {}
        self._pool_state = (-1, 0)
        """The generation of the pools and the number of tasks when they were last recorded."""
        self._sockets: dict[tuple[str, int], SocketState] = {}
        self._instants = BackPressureSampler(self._running_meters, history, options)

    def start(self) -> None:
        """Start sampling. Idempotent; the sampler stops by itself when no task runs."""
        self._instants.start()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pace.sample_s, self._tick)

    def close(self) -> None:
        self._credit.end_others(())
        self._instants.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _running_meters(self) -> list[TaskMeter]:
        return [task.meter for task in self._tasks() if task.state is ExecutionState.RUNNING]

    def _tick(self) -> None:
        self._timer = None
        tasks = [task for task in self._tasks() if not task.state.terminal]
        for task in tasks:
            if task.state is ExecutionState.RUNNING:
                task.meter.sample()
        self._ticks += 1
        if self._ticks % round(1 / min(1.0, self._pace.sample_s)) == 0:
            self._sample_buffers(tasks)
        self._sample_sockets()
        if (cores := self._cores) is not None:
            self._record("cpu.spent", {"seconds": cores.spent_s, "buffers": cores.buffers})
        if self._ticks % self._pace.channel_every == 0:
            self._sample_channels(tasks)
        if tasks:
            self.start()

    def _sample_buffers(self, tasks: list[Task]) -> None:
        """Record the network buffers and the pools, if they have changed. Many pools are recorded without their usage."""
        segments = self._environment.segments()
        if segments != self._segments:
            self._segments = segments
            self._record("network.buffers", segments)
        usage, state = self._pace.channel_stride == 1, (self._environment.pool.generation, len(tasks))
        if not usage and state == self._pool_state:
            return
        self._pool_state = state
        pools = pools_of(tasks, self._environment.pool, usage=usage)
        if pools != self._pools:
            self._pools = pools
            self._record("network.pools", pools)

    def _sample_sockets(self) -> None:
        before, self._sockets = self._sockets, {}
        for side, peer, port, state in self._environment.sockets():
            self._sockets[side, port] = state
            if before.get((side, port)) != state:
                found = {"side": side, "peer": peer, "connection": port, **asdict(state)}
                self._record("socket.state", found)

    def _record(self, kind: str, found: dict[str, Any]) -> None:
        subject = str(self._environment.resource_id)
        self._history.append("events", kind=kind, subject=subject, data=json.dumps(found))

    def _sample_channels(self, tasks: list[Task]) -> None:
        current: dict[_Key, ChannelStats] = {}
        known, self._consumers = self._consumers, {}
        for task in tasks:
            if task.state is ExecutionState.RUNNING:
                self._consumers[task] = channels = known.get(task) or self._inputs_of(task)
                for key, channel in channels:
                    remote = isinstance(channel, RemoteInputChannel)
                    if not channel.is_released and (channel.requests or not remote):
                        self._note(key, channel.stats(), current, local=not remote)
        self._sample_outputs(tasks, current)
        self._credit.end_others(current)
        self._last = current

    def _inputs_of(self, task: Task) -> list[tuple[_Key, InputChannel]]:
        """Return the channels of a task that are sampled."""
        descriptor, stride = task.descriptor, self._pace.channel_stride
        return [
            (("consumer", task.name, descriptor.attempt_number, f"{gate.source_vertex}-{producer}"), channel)
            for inputs, gate in zip(task.input.gates, descriptor.gates, strict=False)
            for channel in inputs.channels
            if ((producer := channel.partition.producer.subtask) + descriptor.subtask) % stride == 0
        ]

    def _sample_outputs(self, tasks: list[Task], current: dict[_Key, ChannelStats]) -> None:
        partitions = {p.name: (t, n) for t in tasks for n, p in enumerate(t.partitions)}
        known, self._producers = self._producers, {}
        for connection in self._environment.server.connections:
            found = known.get(connection)
            if found is None or found[0] != connection.generation:
                found = connection.generation, self._readers_of(connection, partitions)
            self._producers[connection] = found
            for key, reader in found[1]:
                view = reader.view
                if view is not None and not view.is_released and view.subpartition.name in partitions:
                    self._note(key, reader.stats(), current, local=False)

    def _readers_of(
        self, connection: PartitionRequestServer, partitions: Mapping[str, tuple[Task, int]]
    ) -> list[tuple[_Key, SequenceViewReader]]:
        """Return the channels of a connection that are sampled."""
        sampled: list[tuple[_Key, SequenceViewReader]] = []
        for reader in connection.readers:
            view = reader.view
            found = partitions.get(view.subpartition.name) if view is not None else None
            if view is None or found is None:
                continue
            task, number = found
            descriptor, output = task.descriptor, task.descriptor.partitions[number]
            subtask = descriptor.subtask if output.partitioning == "forward" else view.subpartition.index
            if (descriptor.subtask + subtask) % self._pace.channel_stride == 0:
                peer = f"{output.target_vertex}-{subtask}"
                sampled.append((("producer", task.name, descriptor.attempt_number, peer), reader))
        return sampled

    def _note(
        self, key: _Key, stats: ChannelStats, current: dict[_Key, ChannelStats], *, local: bool
    ) -> None:
        current[key] = stats
        side, task, attempt, peer = key
        if side == "producer" and (stats.credit <= 0 or self._credit.waiting):
            self._credit.sampled(key, stats)
        if self._last.get(key) == stats:
            return
        self._history.append(
            "channels",
            side=side,
            task=task,
            attempt=attempt,
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
