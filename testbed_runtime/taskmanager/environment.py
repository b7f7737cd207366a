"""The network of one TaskManager: pools, partitions, connections, the data server, and the count of leaked buffers."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random
from typing import IO

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.backoff import local_backoff, remote_backoff
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.sizing import (
    BUFFERS_TIMEOUT,
    gate_buffers_spec,
    most_required,
    network_buffer_count,
    result_partition_buffers,
)
from testbed_runtime.core.faults.links import ENTROPY_BYTES, channel_id
from testbed_runtime.core.ids import ResultPartitionID, TaskManagerID
from testbed_runtime.core.job.messages import InputGateDescriptor, ResultPartitionDescriptor
from testbed_runtime.core.options import EXCLUSIVE_BUFFERS, FLOATING_BUFFERS, Options
from testbed_runtime.core.values import MAX_INT
from testbed_runtime.core.versions import (
    CHANNEL_LIMIT_IGNORED,
    GATES_DEBLOATED_ALONE,
    LAST_BUFFER_GROWS,
    NO_EXCLUSIVE_BUFFERS,
    PRIORITY_PASSES_BLOCK,
    has,
)
from testbed_runtime.ports.execution import Clock
from testbed_runtime.ports.interception import NO_INTERCEPTION, Interception
from testbed_runtime.ports.network import Address, Network, Resolver, SocketState
from testbed_runtime.taskmanager.debloating import starting_size
from testbed_runtime.taskmanager.partition_requests import PartitionNotFoundCallback
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.transport.pump import ConnectionManager, DataServer


class NetworkEnvironment:
    """Owns everything between the tasks of one TaskManager and the wire."""

    def __init__(
        self,
        resource_id: TaskManagerID,
        options: Options,
        network: Network,
        *,
        clock: Clock,
        entropy: Random,
        resolver: Resolver | None = None,
        interception: Interception = NO_INTERCEPTION,
        memory: bool,
        open_file: Callable[[], IO[bytes]] = io.BytesIO,
    ) -> None:
        """`entropy` generates the ids of input channels. Without `memory`, network buffers are counted but have no memory.
        `open_file` opens the file of a blocking result, which disappears when it is closed."""
        self.resource_id = resource_id
        self.options = options
        self._legacy = not options.credit_based
        self.hook = interception.registration
        self._clock = clock
        self._entropy = entropy
        self._open_file = open_file
        self._exclusive = options.integer(EXCLUSIVE_BUFFERS)
        self._floating = options.integer(FLOATING_BUFFERS)
        self._request_timeout_s = options.duration("taskmanager.network.memory.buffers-request-timeout")
        self.pool = NetworkBufferPool(
            network_buffer_count(options),
            options.memory("taskmanager.memory.segment-size"),
            memory=memory,
            timeout_key=options.name_of(BUFFERS_TIMEOUT),
        )
        self.manager = ResultPartitionManager(
            request_timeout_s=options.duration("taskmanager.network.partition-request-timeout"),
            waits=options.requests_wait_at_producer,
            started=clock.now(),
            on_unknown=self._on_unknown,
        )
        name, frames, tap = resource_id.name, interception.frames, interception.tap
        self.server = DataServer(
            network, self.manager, name=name, options=options, interceptor=frames, tap=tap
        )
        self.connections = ConnectionManager(
            network, name=name, options=options, resolver=resolver, interceptor=frames, tap=tap
        )

    def _on_unknown(self, partition: ResultPartitionID) -> None:
        if self.hook.active:
            self.hook.request_seen(str(partition))

    async def start(self, address: Address) -> Address:
        """Listen for consumers. Raises UserError when the port is in use."""
        return await self.server.start(address)

    async def close(self) -> None:
        """Release every partition and close every connection. Idempotent."""
        self.manager.shut_down()
        await self.connections.close()
        await self.server.close()

    def segments(self) -> dict[str, int]:
        """Return the total number of buffers and the number of buffers in use, for the history."""
        return {"total": self.pool.total, "used": self.pool.outstanding}

    @property
    def segments_in_use(self) -> int:
        """Number of buffers in use. Buffers have leaked if this is not 0 after all tasks have ended and all partitions were released."""
        return self.pool.outstanding

    def sockets(self) -> list[tuple[str, str, int, SocketState]]:
        """Return side, peer, port of the consumer's end and state of each data connection in legacy mode, where they can be measured."""
        if not self._legacy:
            return []
        ends = (("consumer", self.connections.sockets()), ("producer", self.server.sockets()))
        return [
            (s, peer, state.ports[n], state) for n, (s, found) in enumerate(ends) for peer, state in found
        ]

    # ---- partitions ----------------------------------------------------------------------------------------

    def open_file(self, what: str) -> IO[bytes]:
        """Open an empty file that disappears when it is closed. Raises FlinkError IOException, which names `what`."""
        try:
            return self._open_file()
        except OSError as error:
            raise FlinkError("IOException", f"The file of {what} cannot be opened: {error}") from error

    def create_partition(self, descriptor: ResultPartitionDescriptor, wake: Wakeup) -> ResultPartition:
        """Create a partition with its pool; it is not registered yet. `wake` is set when all its data was processed.

        Raises FlinkError IOException when there are too few buffers, or the file of a blocking result cannot be opened."""
        file = self.open_file("a blocking result") if descriptor.blocking else None
        required, maximum = result_partition_buffers(
            self.options,
            descriptor.subpartitions,
            bounded=descriptor.bounded,
            blocking=descriptor.blocking,
        )
        most = self.options.integer("taskmanager.network.memory.max-buffers-per-channel")
        overdraft = self.options.integer("taskmanager.network.memory.max-overdraft-buffers-per-gate")
        pool = self.pool.create_buffer_pool(
            required,
            maximum,
            subpartitions=descriptor.subpartitions,
            max_buffers_per_channel=MAX_INT if descriptor.blocking else most,
            max_overdraft=0 if descriptor.blocking else overdraft,
        )
        partition = ResultPartition(
            ResultPartitionID.parse(descriptor.partition),
            descriptor.subpartitions,
            pool,
            exclusive=self._exclusive,
            on_consumed=lambda partition: self.manager.release(partition.partition_id),
            on_all_data_processed=wake.set,
            file=file,
        )
        partition.last_buffer_grows = has(self.options.flink_version, LAST_BUFFER_GROWS)
        partition.buffers_fit_records = has(self.options.flink_version, GATES_DEBLOATED_ALONE)
        pool.limits_requests = not has(self.options.flink_version, CHANNEL_LIMIT_IGNORED)
        size = None if descriptor.blocking else starting_size(self.options)
        passes_block = has(self.options.flink_version, PRIORITY_PASSES_BLOCK)
        for subpartition in partition.subpartitions:
            subpartition.priority_passes_block = passes_block
            if size is not None:
                subpartition.set_buffer_size(size)
        return partition

    def register(self, partition: ResultPartition) -> None:
        """Register a partition. Consumers that wait for it are served at once."""
        self.manager.register(partition)
        self.server.arm()

    def release(self, partition: ResultPartition, cause: FlinkError | None = None) -> None:
        """Release a partition. Does nothing when it is not registered."""
        self.manager.release(partition.partition_id, cause)
        partition.release(cause)

    # ---- gates ---------------------------------------------------------------------------------------------

    def create_gate(
        self, descriptor: InputGateDescriptor, wake: Wakeup, not_found: PartitionNotFoundCallback
    ) -> InputGate:
        """Create a gate with its pool and channels; `set_up` gets its exclusive buffers. Raises FlinkError IOException."""
        limit = most_required(self.options, blocking=descriptor.blocking)
        spec = gate_buffers_spec(
            len(descriptor.channels), self._exclusive, self._floating, max_required=limit
        )
        pool = self.pool.create_buffer_pool(spec.min_floating, spec.max_floating)
        gate = InputGate(
            self.pool, pool, wake.set, exclusive=spec.exclusive_per_channel, on_partition_not_found=not_found
        )
        backoff, own = remote_backoff(self.options), str(self.resource_id)
        for channel in descriptor.channels:
            partition = ResultPartitionID.parse(channel.partition)
            if channel.producer == own:
                gate.add_local(
                    partition, channel.subpartition, manager=self.manager, backoff=local_backoff(self.options)
                )
            else:
                gate.add_remote(
                    partition,
                    channel.subpartition,
                    receiver=channel_id(self.resource_id.ordinal, self._entropy.randbytes(ENTROPY_BYTES)),
                    backoff=backoff,
                )
        return gate

    async def set_up(self, gate: InputGate) -> None:
        """Wait until the gate has its exclusive buffers. Raises FlinkError IOException on timeout, and
        IllegalArgumentException if a remote channel needs exclusive buffers and none are configured."""
        none_allowed = self._legacy or has(self.options.flink_version, NO_EXCLUSIVE_BUFFERS)
        if gate.remote_channels and not gate.exclusive and not none_allowed:
            raise FlinkError(
                "IllegalArgumentException", "Number of buffers to request must be larger than 0."
            )
        available = Wakeup()
        while not gate.set_up(self._clock.now(), self._request_timeout_s):
            self.pool.when_available(available.set)
            await available.wait(gate.set_up_deadline)
