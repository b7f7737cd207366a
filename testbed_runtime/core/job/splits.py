"""The input splits of a bounded source: which subtask reads which."""

from __future__ import annotations

NO_SPLIT = -1
NEXT_SPLIT = "JobMaster: next input split"
"""The subject of a source's wait for the JobMaster to assign it a split."""


def split_records(limit: int, splits: int) -> int:
    """Return the records of one split. Every split has the same number."""
    return limit // splits


class SplitAssigner:
    """Hands out the splits of one vertex to the subtask that asks first (Flink's DefaultInputSplitAssigner).

    The last split goes first. A split stays assigned to its subtask: after a restart the subtask gets the same
    splits in the same order."""

    def __init__(self, splits: int) -> None:
        self._left = list(range(splits))
        self._assigned: dict[int, list[int]] = {}

    def next_split(self, subtask: int, index: int) -> int:
        """Return the split number `index` of a subtask, or NO_SPLIT when all are assigned."""
        own = self._assigned.setdefault(subtask, [])
        while len(own) <= index and self._left:
            own.append(self._left.pop())
        return own[index] if index < len(own) else NO_SPLIT
