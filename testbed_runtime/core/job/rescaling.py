"""Which old channels a subtask reads when data in flight is restored at another parallelism (Flink's SubtaskStateMapper and
InflightDataRescalingDescriptor)."""

from __future__ import annotations

from collections import Counter
from enum import Enum

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.keygroups import UPPER_BOUND_MAX_PARALLELISM, group_range

POINTWISE = (
    "Cannot rescale the given pointwise partitioner.\nDid you change the partitioner to forward or rescale?\nIt may also help "
    "to add an explicit shuffle()."
)


class SubtaskStateMapper(Enum):
    """How the subtasks before a change of parallelism are distributed to those after it."""

    ARBITRARY = "arbitrary"
    """Only up- and downstream have to agree. As in Flink, it is round robin."""
    RANGE = "range"
    """Divides the subtasks by key groups. An old subtask may belong to several new ones, which filter its
    records."""
    ROUND_ROBIN = "round robin"
    UNSUPPORTED = "unsupported"

    def old_subtasks(self, new: int, before: int, after: int) -> range:
        """Return the old subtasks that a new one reads. Raises FlinkError if that is not possible."""
        if self is SubtaskStateMapper.UNSUPPORTED:
            raise FlinkError("UnsupportedOperationException", POINTWISE)
        if self is not SubtaskStateMapper.RANGE:
            return range(new, before, after)
        groups = group_range(new, after, UPPER_BOUND_MAX_PARALLELISM)  # the real maximum cancels out
        first, last = (g * before // UPPER_BOUND_MAX_PARALLELISM for g in (groups.start, groups.stop - 1))
        return range(first, last + 1)

    def mapping(self, before: int, after: int) -> tuple[range, ...]:
        """Return the old subtasks of each new one."""
        return tuple(self.old_subtasks(new, before, after) for new in range(after))


_M = SubtaskStateMapper
_MAPPERS = {
    "hash": (_M.ARBITRARY, _M.RANGE),
    "rebalance": (_M.ARBITRARY, _M.ROUND_ROBIN),
    "forward": (_M.UNSUPPORTED, _M.UNSUPPORTED),
    "broadcast": (_M.UNSUPPORTED, _M.UNSUPPORTED),
}


def can_rescale(partitioning: str) -> bool:
    """Whether data in flight can be restored at another parallelism of either end."""
    return _M.UNSUPPORTED not in _MAPPERS[partitioning]


class GateRescaling(Struct, frozen=True):
    """The data in flight of a gate that one subtask restores. A pair of an old subtask and an old channel is a virtual channel."""

    subtasks: range
    """Old subtasks of this vertex."""
    channels: tuple[range, ...]
    """The old channels of each new channel."""
    ambiguous: frozenset[int]
    """Old subtasks that several new ones read. Each new one keeps the records of its own key groups."""

    @classmethod
    def of(
        cls, partitioning: str, subtask: int, *, consumers: tuple[int, int], producers: tuple[int, int]
    ) -> GateRescaling:
        """Return the rescaling of one subtask's gate. `consumers` and `producers`: the parallelism before and
        after. Raises FlinkError for a connection that cannot be rescaled."""
        upstream, downstream = _MAPPERS[partitioning]
        readers = downstream.mapping(*consumers)
        times = Counter(old for olds in readers for old in olds)
        ambiguous = frozenset(old for old, count in times.items() if count > 1)
        return cls(readers[subtask], upstream.mapping(*producers), ambiguous)
