"""Data in flight of an unaligned checkpoint, for channels of another parallelism.

A virtual channel is an old channel of an old subtask: what its consumer had received, then what its producer had not sent. Only
together do they consist of whole records.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.rescaling import GateRescaling
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.keys import key_groups, subtasks_of
from testbed_runtime.workload.records import (
    RecordReader,
    Records,
    framed,
    marker_positions,
    picked,
    stamp_path,
)
from testbed_runtime.workload.snapshots import ChannelState, SubtaskSnapshot


class VirtualChannels:
    """The data in flight of one exchange when its checkpoint was taken."""

    def __init__(
        self,
        gate: int,
        consumers: Iterable[SubtaskSnapshot],
        partition: int,
        producers: Iterable[SubtaskSnapshot],
    ) -> None:
        """`gate` and `partition` are the numbers of the exchange at its consumers and producers."""
        self._gate = gate
        self._data: dict[tuple[int, int], list[bytes]] = {}
        """Maps an old consumer and an old producer to the bytes between them."""
        for snapshot in consumers:
            for state in snapshot.input_state:
                if state.group == gate:
                    self._data.setdefault((snapshot.subtask, state.channel), []).extend(state.data)
        for snapshot in producers:
            for state in snapshot.output_state:
                if state.group == partition:
                    self._data.setdefault((state.channel, snapshot.subtask), []).extend(state.data)

    @property
    def size(self) -> int:
        return sum(len(part) for parts in self._data.values() for part in parts)

    def restore(self, rescaling: GateRescaling, context: SubtaskContext) -> list[ChannelState]:
        """Return the records of one subtask by its new channels: one part for each virtual channel, whose order is kept.

        Only the order within a virtual channel is kept, not the order between it and records that now take another path. Raises
        FlinkError if a record is incomplete."""
        found = []
        for channel, olds in enumerate(rescaling.channels):
            parts = []
            for producer in olds:
                for consumer in rescaling.subtasks:
                    records = self._records(consumer, producer)
                    if records is not None and consumer in rescaling.ambiguous:
                        records = _own(records, context)
                    if records is not None and len(records):
                        stamp_path(records, context.vertex, consumer)
                        parts.append(bytes(framed(records)))
            if parts:
                found.append(ChannelState(self._gate, channel, tuple(parts)))
        return found

    def _records(self, consumer: int, producer: int) -> Records | None:
        """Return the records of a virtual channel, without latency markers, which Flink drops here too."""
        reader = RecordReader()
        records = reader.feed(self._data.get((consumer, producer), ()))
        if left := len(reader.incomplete):
            raise FlinkError(
                "IllegalStateException",
                f"The data in flight from subtask {producer} to subtask {consumer} ends with {left} bytes of an incomplete "
                "record.",
            )
        if records is None or not (markers := marker_positions(records)):
            return records
        return picked(records, np.delete(np.arange(len(records)), markers))


def _own(records: Records, context: SubtaskContext) -> Records:
    """Return the records that a hash partitioner would send to this subtask (Flink's RecordFilter)."""
    limit = context.max_parallelism
    targets = subtasks_of(key_groups(records["key"], limit), context.parallelism, limit)
    return picked(records, np.flatnonzero(targets == context.subtask))
