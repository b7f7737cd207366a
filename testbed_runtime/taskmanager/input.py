"""A task's input: the channels of all its gates, numbered consecutively (Flink's UnionInputGate)."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from functools import partial

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.gate import InputGate, PolledRun
from testbed_runtime.core.exchange.localchannel import LocalInputChannel
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partitions import PARTITION_EXCEPTIONS
from testbed_runtime.core.exchange.pending import Pending
from testbed_runtime.workload.snapshots import ChannelState


class TaskInput:
    """Channels are numbered across the gates, in the descriptor's order."""

    def __init__(self, gates: Sequence[InputGate], announced: Sequence[bool] = ()) -> None:
        """`announced`: whether the producers of each gate announce the end of their restored data; by default all do."""
        self.gates = list(gates)
        self._offsets: list[int] = []
        self.channel_count = 0
        for gate in self.gates:
            self._offsets.append(self.channel_count)
            self.channel_count += len(gate.channels)
        self._ready: deque[int] = deque()
        """Gates with something to read, in the order in which they became readable. Not used with one gate."""
        self._ready_priority: deque[int] = deque()
        """Gates with a priority event. They are not in `_ready`."""
        self._announced = [n for n in range(len(self.gates)) if not announced or announced[n]]
        self._recovering = Pending(self.channel_count)
        """Channels whose producers have not announced the end of their restored data yet."""
        for number in set(range(len(self.gates))) - set(self._announced):
            for index in range(len(self.gates[number].channels)):
                self._recovering.discard(self._offsets[number] + index)
        self._recovered: dict[int, deque[tuple[int, list[Buffer]]]] = {}
        """The restored channel state that is still unread, by gate."""
        for number, gate in enumerate(self.gates if len(self.gates) > 1 else ()):
            gate.on_ready = partial(self._on_ready, number)
            if gate.has_data:
                self._on_ready(number, gate.has_priority)

    def _on_ready(self, number: int, priority: bool) -> None:
        """Queue a gate once. A gate that gets priority loses its place among the others."""
        if number in self._ready_priority:
            return
        if priority:
            if number in self._ready:
                self._ready.remove(number)
            self._ready_priority.append(number)
        elif number not in self._ready:
            self._ready.append(number)

    def recover(self, states: Sequence[ChannelState]) -> None:
        """Let `poll` return this input channel state before anything else from the gates that it belongs to."""
        for state in states:
            channel = self._offsets[state.group] + state.channel
            found = [(channel, [Buffer.unpooled(part, DataType.DATA_BUFFER)]) for part in state.data]
            if found:
                self._recovered.setdefault(state.group, deque()).extend(found)
        for number in sorted(self._recovered if len(self.gates) > 1 else ()):
            self._on_ready(number, priority=False)

    @property
    def is_recovering(self) -> bool:
        """Whether restored channel state is still unread. No checkpoint begins until it is read."""
        return bool(self._recovered)

    @property
    def recovered_gates(self) -> list[int]:
        """The gates without restored channel state that is still unread: their partitions may be requested."""
        return [number for number in range(len(self.gates)) if number not in self._recovered]

    @property
    def is_available(self) -> bool:
        """Whether `poll` may return something now, or the end of every gate was read."""
        if self._recovered:
            return True
        finished = True
        for gate in self.gates:
            if gate.has_data:
                return True
            finished = finished and gate.finished
        return finished

    @property
    def has_priority(self) -> bool:
        """Whether a priority event is next. The recovered data of its gate comes before it."""
        return any(
            gate.has_priority for number, gate in enumerate(self.gates) if number not in self._recovered
        )

    def state_of(self, channel: int, data: Sequence[bytes]) -> ChannelState:
        """Return a channel's state that contains this data."""
        number, index = self._find(channel)
        return ChannelState(number, index, tuple(data))

    def _find(self, channel: int) -> tuple[int, int]:
        """Return the number of the gate, and the index of the channel in it."""
        number = bisect_right(self._offsets, channel) - 1
        return number, channel - self._offsets[number]

    @property
    def channels(self) -> list[LocalInputChannel | RemoteInputChannel]:
        return [channel for gate in self.gates for channel in gate.channels]

    def poll(self, most: int) -> PolledRun | None:
        """Return the next event, or up to `most` data buffers of one channel. Gates with data take turns, in the order in which their
        data arrived. Raises the FlinkError of a failed channel."""
        if len(self.gates) == 1:
            return self._take_recovered(0) if self._recovered else self.gates[0].poll_run(most)
        while self._ready_priority or self._ready:
            number = (self._ready_priority or self._ready).popleft()
            gate = self.gates[number]
            if number in self._recovered:
                recovered = self._take_recovered(number)
                if number in self._recovered or gate.has_data:
                    self._on_ready(number, gate.has_priority)
                return recovered
            found = gate.poll_run(most)
            if gate.has_data:
                self._on_ready(number, gate.has_priority)
            if found is not None:
                return self._offsets[number] + found[0], found[1]
        return None

    def _take_recovered(self, number: int) -> PolledRun:
        """Return the next restored data of a gate that has some."""
        recovered = self._recovered[number]
        found = recovered.popleft()
        if not recovered:
            del self._recovered[number]
        return found

    def on_producer_recovered(self, channel: int) -> None:
        """Handle the end of a producer's restored data. All producers are resumed when the last one has recovered
        (UpstreamRecoveryTracker). Raises FlinkError IllegalStateException if it comes twice."""
        if not self._recovering:
            return
        if not self._recovering.discard(channel):
            raise FlinkError("IllegalStateException", f"already restored: {channel}")
        if not self._recovering:
            for gate in (self.gates[number] for number in self._announced):
                for index in range(len(gate.channels)):
                    gate.resume_consumption(index)

    def resume(self, channel: int) -> None:
        """Resume the producer after a barrier."""
        number, index = (0, channel) if len(self.gates) == 1 else self._find(channel)
        self.gates[number].resume_consumption(index)

    def checkpoint_started(self, checkpoint: int) -> None:
        """Begin an unaligned checkpoint in every channel that has not ended. Raises FlinkError CheckpointException if one cannot."""
        for channel in self.channels:
            if not channel.is_released:
                channel.checkpoint_started(checkpoint)

    def in_flight(self, channel: int, checkpoint: int) -> tuple[bytes, ...]:
        """Return copies of the queued data of the channel that belongs to the checkpoint."""
        number, index = self._find(channel)
        return self.gates[number].channels[index].in_flight(checkpoint)

    def prioritize(self, channel: int, sequence: int) -> None:
        """Let a queued barrier overtake the data before it."""
        number, index = self._find(channel)
        self.gates[number].channels[index].prioritize(sequence)

    @property
    def connected(self) -> bool:
        """Whether every producer has answered."""
        for gate in self.gates:  # noqa: SIM110 - asked for each buffer
            if not gate.connected:
                return False
        return True

    @property
    def received_end_of_data(self) -> bool:
        for gate in self.gates:  # noqa: SIM110 - asked for each channel
            if not gate.received_end_of_data:
                return False
        return True

    @property
    def draining(self) -> bool:
        return all(gate.draining for gate in self.gates)

    @property
    def finished(self) -> bool:
        for gate in self.gates:  # noqa: SIM110 - asked for each buffer
            if not gate.finished:
                return False
        return True

    def acknowledge_end_of_data(self) -> None:
        """Tell the producers that everything up to END_OF_DATA was processed."""
        for gate in self.gates:
            gate.acknowledge_all_records_processed()

    def failed_partition(self, error: FlinkError) -> str:
        """Return the partition that could not be read, empty if the error is no PartitionException of Flink. A connection that
        breaks says nothing about the partition: a blocking result can be read again."""
        if error.class_name in PARTITION_EXCEPTIONS:
            for channel in self.channels:
                if channel.error is error:
                    return str(channel.partition)
        return ""

    def close(self) -> None:
        for gate in self.gates:
            gate.close()
