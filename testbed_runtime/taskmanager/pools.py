"""The buffer pools of the gates and partitions of a TaskManager, as the history records them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.values import MAX_INT
from testbed_runtime.taskmanager.task import Task


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
    """Return the buffers with data: those that a channel holds for its credit are not in use."""
    remote = [c for c in gate.channels if isinstance(c, RemoteInputChannel)]
    held = [c.buffers for c in remote if c.buffers is not None]
    return {
        "used": gate.pool.used - sum(b.available_floating for b in held),
        "used_exclusive": len(held) * gate.exclusive - sum(b.available_exclusive for b in held),
    }
