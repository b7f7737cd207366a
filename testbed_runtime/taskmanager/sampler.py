"""Samples running tasks and their channels for the history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import to_builtins
from msgspec.structs import astuple

from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.credit import ChannelStats, SequenceViewReader
from testbed_runtime.core.exchange.gate import InputChannel, InputGate
from testbed_runtime.core.exchange.server import PartitionRequestServer
from testbed_runtime.core.job.executiongraph import ExecutionState
from testbed_runtime.core.options import Options
from testbed_runtime.core.values import MAX_INT
from testbed_runtime.ports.network import SocketState
from testbed_runtime.ports.storage import HistorySink
from testbed_runtime.taskmanager.backpressure_samples import BackPressureSampler
from testbed_runtime.taskmanager.credit_waits import CreditWaits
from testbed_runtime.taskmanager.environment import NetworkEnvironment
from testbed_runtime.taskmanager.meter import TaskMeter
from testbed_runtime.taskmanager.services import Pace
from testbed_runtime.taskmanager.task import Task
from testbed_runtime.taskmanager.work import Cores

_Key = tuple[str, str, int, str]
_NEVER = -1
_RUNNING = ExecutionState.RUNNING
FIRST_CHANNELS = 9
"""The channels are first sampled with this sample of the tasks, even in a large job whose channels are sampled rarely."""


class _Sampled:
    """One end of a channel that is sampled."""

    __slots__ = ("end", "is_remote", "key", "stats", "tick")

    def __init__(self, key: _Key, end: InputChannel | SequenceViewReader, *, is_remote: bool) -> None:
        self.key = key
        self.end = end
        self.is_remote = is_remote
        self.stats: ChannelStats | None = None
        self.tick = _NEVER
        """The tick of the newest sample."""

    def follow(self, former: _Sampled | None) -> None:
        """Continue with the sample of an earlier object of the same channel."""
        if former is not None:
            self.stats, self.tick = former.stats, former.tick


_Producers = dict[PartitionRequestServer, tuple[int, list[_Sampled]]]


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
        cores: Cores | None,
    ) -> None:
        self._tasks = tasks
        self._environment = environment
        self._history = history
        self._pace = pace
        self._credit = credit
        self._cores = cores
        self._timer: asyncio.TimerHandle | None = None
        self._consumers: dict[Task, list[_Sampled]] = {}
        """The channels that are sampled, by task."""
        self._producers: _Producers = {}
        """The channels that are sampled, by connection, and the generation of the connection's readers."""
        self._channel_ticks = 0
        self._ticks = 0
        self._segments: dict[str, int] = {}
        self._pools: dict[str, Any] = {}
        self._pool_state = (-1, 0)
        """The generation of the pools and the number of tasks when they were last recorded."""
        self._sockets: dict[tuple[str, int], SocketState] = {}
        self._instants = BackPressureSampler(self._running_meters, history, options)

    def start(self) -> None:
        """Start sampling. Idempotent; the sampler stops when no task runs."""
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
        return [task.meter for task in self._tasks() if task.state is _RUNNING]

    def _tick(self) -> None:
        self._timer = None
        tasks = [task for task in self._tasks() if not task.state.terminal]
        for task in tasks:
            if task.state is _RUNNING:
                task.meter.sample()
        self._ticks += 1
        if self._ticks % round(1 / min(1.0, self._pace.sample_s)) == 0:
            self._sample_buffers(tasks)
        self._sample_sockets()
        if (cores := self._cores) is not None:
            self._record("cpu.spent", {"seconds": cores.spent_s, "buffers": cores.buffers})
        every = self._pace.channel_every
        if self._ticks % every == min(FIRST_CHANNELS, every - 1):
            self._sample_channels(tasks)
        if tasks:
            self.start()

    def _sample_buffers(self, tasks: list[Task]) -> None:
        """Record the network buffers and the pools, if they have changed, and Flink's newest warning about their memory. Many pools
        are recorded without their usage."""
        segments = self._environment.segments()
        if segments != self._segments:
            self._segments = segments
            self._record("network.buffers", segments)
        for warning in self._environment.pool.drain_warnings()[-1:]:
            self._record("note", {}, text=warning)
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
                found = {"side": side, "peer": peer, "connection": port, **to_builtins(state)}
                self._record("socket.state", found)

    def _record(self, kind: str, found: dict[str, Any], *, text: str = "") -> None:
        subject = str(self._environment.resource_id)
        self._history.append("events", kind=kind, subject=subject, text=text, data=json.dumps(found))

    def _sample_channels(self, tasks: list[Task]) -> None:
        self._channel_ticks += 1
        known, self._consumers = self._consumers, {}
        for task in tasks:
            if task.state is _RUNNING:
                self._consumers[task] = sampled = known.get(task) or self._inputs_of(task)
                for one in sampled:
                    channel: Any = one.end
                    if not channel.is_released and (channel.requests or not one.is_remote):
                        self._note(one, channel.stats())
        self._sample_outputs(tasks)
        self._credit.end_others(self._live() if self._credit.waiting else ())

    def _inputs_of(self, task: Task) -> list[_Sampled]:
        """Return the channels of a task that are sampled."""
        descriptor, stride = task.descriptor, self._pace.channel_stride
        return [
            _Sampled(
                ("consumer", task.name, descriptor.attempt_number, f"{gate.source_vertex}-{producer}"),
                channel,
                is_remote=isinstance(channel, RemoteInputChannel),
            )
            for inputs, gate in zip(task.input.gates, descriptor.gates, strict=False)
            for channel in inputs.channels
            if ((producer := channel.partition.producer.subtask) + descriptor.subtask) % stride == 0
        ]

    def _sample_outputs(self, tasks: list[Task]) -> None:
        partitions = {p.name: (t, n) for t in tasks for n, p in enumerate(t.partitions)}
        known, self._producers = self._producers, {}
        former: dict[_Key, _Sampled] | None = None
        credit = self._credit
        for connection in self._environment.server.connections:
            found = known.get(connection)
            if found is None or found[0] != connection.generation:
                if former is None:
                    former = {one.key: one for _, sampled in known.values() for one in sampled}
                found = connection.generation, self._readers_of(connection, partitions, former)
            self._producers[connection] = found
            for one in found[1]:
                reader: Any = one.end
                view = reader.view
                if view is not None and not view.is_released and view.subpartition.name in partitions:
                    stats = reader.stats()
                    if stats.credit <= 0 or credit.waiting:
                        credit.sampled(one.key, stats)
                    self._note(one, stats)

    def _readers_of(
        self,
        connection: PartitionRequestServer,
        partitions: Mapping[str, tuple[Task, int]],
        former: Mapping[_Key, _Sampled],
    ) -> list[_Sampled]:
        """Return the channels of a connection that are sampled."""
        sampled: list[_Sampled] = []
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
                one = _Sampled(
                    ("producer", task.name, descriptor.attempt_number, peer), reader, is_remote=True
                )
                one.follow(former.get(one.key))
                sampled.append(one)
        return sampled

    def _live(self) -> set[_Key]:
        """Return the producers' ends that were sampled at this tick."""
        return {
            one.key
            for _, sampled in self._producers.values()
            for one in sampled
            if one.tick == self._channel_ticks
        }

    def _note(self, one: _Sampled, stats: ChannelStats) -> None:
        """Record a sample if it differs from the previous one."""
        tick = self._channel_ticks
        if stats != one.stats or one.tick != tick - 1:
            side, task, attempt, peer = one.key
            self._history.put("channels", (side, task, attempt, peer, not one.is_remote, *astuple(stats)))
            one.stats = stats
        one.tick = tick


def pools_of(tasks: Iterable[Task], network: NetworkBufferPool, *, usage: bool) -> dict[str, Any]:
    """Return the pools of these tasks: required and largest size (-1: without limit), and the size that they have now. With
    `usage` also the buffers in use: of the pool, and of a gate's exclusive ones. `free`: the buffers that all pools share
    beyond what they require; `others`: the pools that are not listed."""
    listed = []
    for task in tasks:
        for gate, source in zip(task.input.gates, task.descriptor.gates, strict=False):
            one = _sizes("in", task, source.source_vertex, gate.pool)
            one["channels"], one["exclusive"] = gate.remote_channels, gate.exclusive
            if usage:
                one |= _used(gate)
            listed.append(one)
        for partition, target in zip(task.partitions, task.descriptor.partitions, strict=False):
            if partition.is_released:
                continue
            one = _sizes("out", task, target.target_vertex, partition.pool)
            if usage:
                one["used"] = partition.pool.used
            listed.append(one)
    alive = [pool for pool in listed if pool["size"]]
    return {
        "pools": alive,
        "free": network.total - network.required,
        "others": len(network.pools) - len(alive),
    }


def _sizes(side: str, task: Task, peer: str, pool: LocalBufferPool) -> dict[str, Any]:
    return {
        "side": side,
        "task": task.name,
        "peer": peer,
        "required": pool.required,
        "most": -1 if pool.maximum == MAX_INT else pool.maximum,
        "size": 0 if pool.destroyed else pool.size,
    }


def _used(gate: InputGate) -> dict[str, int]:
    """Return the number of buffers with data. Buffers that a channel holds for its credit are not in use."""
    remote = [c for c in gate.channels if isinstance(c, RemoteInputChannel)]
    held = [c.buffers for c in remote if c.buffers is not None]
    return {
        "used": gate.pool.used - sum(b.available_floating for b in held),
        "used_exclusive": len(held) * gate.exclusive - sum(b.available_exclusive for b in held),
    }
