"""The buffer pools of the gates and partitions of a TaskManager, as the history records them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from testbed_runtime.core.exchange.buffers import MAX_INT, LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.taskmanager.task import Task


def pools_of(tasks: Iterable[Task], network: NetworkBufferPool, *, usage: bool) -> dict[str, Any]:
    """Return the pools of these tasks: required and largest size (-1: without limit), and the size that they have now. With
    `usage` also the buffers in use: of the pool, and of a gate's exclusive ones. `free`: the buffers that all pools share
    beyond what they require; `others`: the pools that are not listed."""
    listed = []
    for task in tasks:
        for gate, source in zip(task.input.gates, task.descriptor.gates, strict=False):
            one = {"side": "in", "task": task.name, "peer": source.source_vertex, **_sizes(gate.pool)}
            listed.append(one | {"channels": gate.remote_channels, "exclusive": gate.exclusive})
            if usage:
                listed[-1] |= _used(gate)
        for partition, target in zip(task.partitions, task.descriptor.partitions, strict=False):
            if partition.is_released:
                continue
            one = {"side": "out", "task": task.name, "peer": target.target_vertex, **_sizes(partition.pool)}
            listed.append(one | ({"used": partition.pool.used} if usage else {}))
    alive = [pool for pool in listed if pool["size"]]
    return {
        "pools": alive,
        "free": network.total - network.required,
        "others": len(network.pools) - len(alive),
    }


def _sizes(pool: LocalBufferPool) -> dict[str, int]:
    most = -1 if pool.maximum == MAX_INT else pool.maximum
    return {"required": pool.required, "most": most, "size": 0 if pool.destroyed else pool.size}


def _used(gate: InputGate) -> dict[str, int]:
    """Return the buffers with data: those that a channel holds for its credit are not in use."""
    remote = [c for c in gate.channels if isinstance(c, RemoteInputChannel)]
    held = [c.buffers for c in remote if c.buffers is not None]
    return {
        "used": gate.pool.used - sum(b.available_floating for b in held),
        "used_exclusive": len(held) * gate.exclusive - sum(b.available_exclusive for b in held),
    }
