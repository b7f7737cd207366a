"""The positions of the checkpoint barriers that a remote channel has received. They decide what belongs to an unaligned checkpoint."""

from __future__ import annotations

from functools import lru_cache

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import CheckpointBarrier, Event, decode_event
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer

BARRIER_TYPES = (
    DataType.EVENT_BUFFER,
    DataType.PRIORITIZED_EVENT_BUFFER,
    DataType.ALIGNED_CHECKPOINT_BARRIER,
    DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
)
"""Types of the events that may be barriers."""


@lru_cache(maxsize=64)
def event_of(buffer: Buffer) -> Event:
    """Decode the event in a buffer, once for the many channels that share it. Raises RemoteProtocolError."""
    return decode_event(buffer.view())


class ArrivedBarriers:
    """The barriers of a channel that have arrived: the newest, and those that its gate has not passed yet."""

    __slots__ = ("_newest", "_sequences")

    def __init__(self) -> None:
        self._newest = -1
        self._sequences: dict[int, int] = {}
        """Maps checkpoints to sequence numbers. Both ascend."""

    def arrive(self, event: Buffer, sequence: int) -> CheckpointBarrier | None:
        """If the event is a barrier, note its sequence number and return the barrier. Only newer checkpoints
        are noted."""
        barrier = event_of(event)
        if not isinstance(barrier, CheckpointBarrier):
            return None
        if barrier.checkpoint_id > self._newest:
            self._newest = barrier.checkpoint_id
            self._sequences[barrier.checkpoint_id] = sequence
        return barrier

    def take(self, sequence: int) -> None:
        """Forget the barriers before the event that the gate takes, except the newest."""
        while len(self._sequences) > 1 and _precedes(next(iter(self._sequences.values())), sequence):
            del self._sequences[next(iter(self._sequences))]

    def check_newest(self, checkpoint: int) -> None:
        """Raise FlinkError CheckpointException if the barrier of a newer checkpoint has arrived. Flink knows
        the position of the newest barrier only, so it cannot tell which data belongs to an unaligned
        checkpoint that starts now."""
        if self._newest > checkpoint:
            text = (
                f"Sequence number for checkpoint {checkpoint} is not known (it was likely been overwritten by a newer "
                f"checkpoint {self._newest})"
            )
            raise FlinkError("CheckpointException", text)

    def in_flight(self, queue: list[tuple[Buffer, int]], checkpoint: int) -> tuple[bytes, ...]:
        """Return copies of the queued data that belongs to a checkpoint: the data before its barrier, or all
        data if the barrier has not arrived. Raises FlinkError CheckpointException if only a newer barrier is
        known."""
        barrier = self._sequences.get(checkpoint)
        if barrier is None:
            self.check_newest(checkpoint)
        return tuple(
            bytes(buffer.view())
            for buffer, sequence in queue
            if buffer.is_buffer and (barrier is None or _precedes(sequence, barrier))
        )


def _precedes(sequence: int, other: int) -> bool:
    """Whether an element was sent before another. Sequence numbers are 32-bit and may wrap."""
    return 0 < (other - sequence) & 0xFFFFFFFF < 1 << 31
