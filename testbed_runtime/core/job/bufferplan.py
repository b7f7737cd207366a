"""Compute how many network buffers a job needs on each TaskManager, before it runs: the need follows the topology, not the traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.exchange.sizing import (
    GateBuffersSpec,
    gate_buffers_spec,
    most_required,
    network_buffer_count,
    result_partition_buffers,
)
from testbed_runtime.core.ids import TaskManagerID, task_manager_names
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex
from testbed_runtime.core.job.keygroups import group_range
from testbed_runtime.core.job.results import BLOCKING, BOUNDED
from testbed_runtime.core.job.slots import SlotKey, SlotTable, needed_slots, slot_key, spreads_slots
from testbed_runtime.core.options import EXCLUSIVE_BUFFERS, FLOATING_BUFFERS, Options
from testbed_runtime.core.processmemory import (
    FLINK,
    NETWORK,
    PROCESS,
    SEGMENT,
    MemoryRefused,
    network_range,
    process_memory,
)
from testbed_runtime.core.values import MAX_INT, MB

FRACTION_STEPS = 100
"""Proposed fractions are whole hundredths."""
LARGEST_GROWTH = 4
"""Proposals let a process grow by eighths, up to this factor."""


class ExchangePlan(Struct, frozen=True):
    """The buffers of one edge. `channels` counts all its channels; gate and partition are those of one subtask."""

    edge: JobEdge
    channels: int
    gate: GateBuffersSpec
    gate_channels: int
    remote_channels: tuple[int, ...]
    """The number of remote channels in the gate of each subtask. Only remote channels have exclusive
    buffers."""
    partition: tuple[int, int]
    """Required and maximum buffers. A result without a limit on its pool can take all buffers of its
    TaskManager."""


@dataclass(slots=True)
class TaskManagerPlan:
    """The buffers that the tasks on one TaskManager need."""

    name: str
    tasks: int = 0
    local_channels: int = 0
    remote_channels: int = 0
    exclusive: int = 0
    required: int = 0
    """Without these buffers a task fails with `Insufficient number of network buffers`."""
    maximum: int = 0
    """No more buffers than these are ever used."""


class BufferPlan(Struct, frozen=True):
    """The plan of a job. `available` is the number of buffers of each TaskManager."""

    exchanges: tuple[ExchangePlan, ...]
    taskmanagers: tuple[TaskManagerPlan, ...]
    available: int
    segment_bytes: int

    @property
    def worst(self) -> TaskManagerPlan:
        """The TaskManager that needs the most buffers."""
        return max(self.taskmanagers, key=lambda t: (t.required, t.maximum))

    @property
    def missing(self) -> int:
        """Number of buffers that a TaskManager lacks. 0 if the job can start."""
        return max(0, self.worst.required - self.available)

    @property
    def channels(self) -> int:
        return sum(exchange.channels for exchange in self.exchanges)


def buffer_plan(graph: JobGraph, taskmanagers: int, slots: int, options: Options) -> BufferPlan:
    """Return the buffers that each TaskManager needs, with the tasks placed as the JobManager places them.
    Raises UserError if there are too few slots, and MemoryRefused."""
    owners = _placed(graph, taskmanagers, slots, options)
    plans = {name: TaskManagerPlan(name) for name in task_manager_names(taskmanagers)}
    for vertex in graph.vertices:
        for subtask in range(vertex.parallelism):
            plans[owners[slot_key(vertex, subtask)]].tasks += 1
    exchanges = tuple(_exchange(graph, edge, owners, options) for edge in graph.edges)
    for exchange in exchanges:
        _add(graph, exchange, owners, plans)
    return BufferPlan(
        exchanges, tuple(plans.values()), network_buffer_count(options), options.memory(SEGMENT)
    )


def _placed(graph: JobGraph, taskmanagers: int, slots: int, options: Options) -> dict[SlotKey, str]:
    """Return the TaskManager of each slot of the job."""
    keys, table = needed_slots(graph), SlotTable(spread=spreads_slots(options))
    for ordinal in range(taskmanagers):
        table.register(TaskManagerID(ordinal, 1), slots)
    taken = table.take([f"{group}/{index}" for group, index in keys])
    if not taken:
        problem = f"the job needs {len(keys)} slots, and {taskmanagers} TaskManagers have {table.free}"
        raise UserError("taskManagers", problem, "add TaskManagers or slots")
    return {key: slot.owner.name for key, slot in zip(keys, taken, strict=True)}


def _owners_of(graph: JobGraph, name: str, owners: Mapping[SlotKey, str]) -> list[str]:
    """Return the TaskManager of each subtask of a vertex."""
    vertex = graph.vertex(name)
    return [owners[slot_key(vertex, subtask)] for subtask in range(vertex.parallelism)]


def _exchange(
    graph: JobGraph, edge: JobEdge, owners: Mapping[SlotKey, str], options: Options
) -> ExchangePlan:
    exclusive, floating = options.integer(EXCLUSIVE_BUFFERS), options.integer(FLOATING_BUFFERS)
    consumers = graph.vertex(edge.target).parallelism
    inputs, outputs = graph.producers(edge), 1 if edge.partitioning == "forward" else consumers
    blocking = edge.result == BLOCKING
    least, most = result_partition_buffers(
        options, outputs, bounded=edge.result == BOUNDED, blocking=blocking
    )
    limit = most_required(options, blocking=blocking)
    producers = _owners_of(graph, edge.source, owners)
    by_owner = Counter(producers)
    local = [
        producers[subtask] == owner if edge.partitioning == "forward" else by_owner[owner]
        for subtask, owner in enumerate(_owners_of(graph, edge.target, owners))
    ]
    return ExchangePlan(
        edge,
        channels=inputs * consumers,
        gate=gate_buffers_spec(inputs, exclusive, floating, max_required=limit),
        gate_channels=inputs,
        remote_channels=tuple(inputs - n for n in local),
        partition=(least, most if most < MAX_INT else network_buffer_count(options)),
    )


def _add(
    graph: JobGraph,
    exchange: ExchangePlan,
    owners: Mapping[SlotKey, str],
    plans: Mapping[str, TaskManagerPlan],
) -> None:
    """Add the partitions and gates of one edge to the TaskManagers of its tasks."""
    least, most = exchange.partition
    for owner in _owners_of(graph, exchange.edge.source, owners):
        plans[owner].required += least
        plans[owner].maximum += most
    gate = exchange.gate
    targets = _owners_of(graph, exchange.edge.target, owners)
    for owner, remote in zip(targets, exchange.remote_channels, strict=True):
        plan = plans[owner]
        exclusive = gate.exclusive_per_channel * remote
        plan.local_channels += exchange.gate_channels - remote
        plan.remote_channels += remote
        plan.exclusive += exclusive
        plan.required += gate.min_floating + exclusive
        plan.maximum += max(gate.max_floating, gate.min_floating) + exclusive


def groups_each(vertex: JobVertex) -> tuple[int, int]:
    """Return the least and the most key groups of a subtask."""
    sizes = [
        len(group_range(i, vertex.parallelism, vertex.max_parallelism)) for i in range(vertex.parallelism)
    ]
    return min(sizes), max(sizes)


def enough_memory(options: Options, buffers: int) -> dict[str, str]:
    """Return the options to change, with values that give a TaskManager this many buffers: the fraction and
    the largest size of the network memory if the process has room, otherwise also the size of the process.
    Empty if no proposal suffices."""
    need = buffers * options.memory(SEGMENT)
    sized = FLINK if options.is_set(FLINK) else PROCESS
    eighth = max(1, options.memory(sized) // MB // 8)
    for eighths in range(8, 8 * LARGEST_GROWTH + 1):
        changed = {} if eighths == 8 else {sized: f"{eighths * eighth} mb"}
        proposal = _enough_fraction(options.with_values(changed), need)
        if proposal is not None:
            return changed | proposal
    return {}


def _enough_fraction(options: Options, need: int) -> dict[str, str] | None:
    """Return the smallest sufficient fraction in hundredths and, if the largest size is too small, a new one.
    None if neither helps."""
    key = f"{NETWORK}.fraction"
    try:
        largest = network_range(options).largest
    except MemoryRefused:
        return None
    changed = {f"{NETWORK}.max": f"{-(-need // MB)} mb"} if need > largest else {}
    now = int(options.number(key) * FRACTION_STEPS)
    for hundredths in range(now, FRACTION_STEPS):
        proposal = changed if hundredths == now else changed | {key: f"{hundredths / FRACTION_STEPS:g}"}
        try:
            if process_memory(options.with_values(proposal)).network >= need:
                return proposal
        except MemoryRefused:
            return None
    return None
