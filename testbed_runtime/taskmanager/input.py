"""A task's input: the channels of all its gates, numbered consecutively."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.channel import LocalInputChannel, RemoteInputChannel
from testbed_runtime.core.exchange.events import Event
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.memory import Buffer

Item: TypeAlias = "tuple[int, Buffer | Event]"


class TaskInput:
    """Channels are numbered across the gates, in the descriptor's order."""

    def __init__(self, gates: Sequence[InputGate]) -> None:
        self.gates = list(gates)
        self._offsets: list[int] = []
        self._channels: list[tuple[InputGate, int]] = []
        for gate in self.gates:
            self._offsets.append(len(self._channels))
            self._channels.extend((gate, index) for index in range(len(gate.channels)))
        self._turn = 0

    @property
    def channels(self) -> list[LocalInputChannel | RemoteInputChannel]:
        return [gate.channels[index] for gate, index in self._channels]

    def poll(self) -> Item | None:
        """Return the next element, taking turns between the gates. Raises the FlinkError of a failed channel."""
        for step in range(len(self.gates)):
            number = (self._turn + step) % len(self.gates)
            found = self.gates[number].poll()
            if found is not None:
                self._turn = number + 1
                return self._offsets[number] + found[0], found[1]
        return None

    def resume(self, channel: int) -> None:
        """Resume the producer after a barrier."""
        gate, index = self._channels[channel]
        gate.resume_consumption(index)

    @property
    def connected(self) -> bool:
        """Every producer has answered."""
        return all(gate.connected for gate in self.gates)

    @property
    def received_end_of_data(self) -> bool:
        return all(gate.received_end_of_data for gate in self.gates)

    @property
    def draining(self) -> bool:
        return all(gate.draining for gate in self.gates)

    @property
    def finished(self) -> bool:
        return all(gate.finished for gate in self.gates)

    def acknowledge_end_of_data(self) -> None:
        """Tell the producers that everything up to END_OF_DATA was processed."""
        for gate in self.gates:
            gate.acknowledge_all_records_processed()

    def failed_partition(self, error: FlinkError) -> str:
        """Return the partition whose channel raised this error, empty when none did."""
        for channel in self.channels:
            if channel.error is error:
                return str(channel.partition)
        return ""

    def close(self) -> None:
        for gate in self.gates:
            gate.close()
