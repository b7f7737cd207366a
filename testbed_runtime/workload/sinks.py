"""Sinks record what a subtask wrote, cut at each checkpoint. A completed checkpoint is the commit (exactly-once).

A cut without a completion notification is kept and sent again with the next acknowledgement (`SinkCommit.earlier`). A
failed checkpoint therefore loses nothing, and the JobMaster knows from the checkpoint id what it has already committed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from testbed_runtime.core.job.jobgraph import SinkConfig
from testbed_runtime.core.job.ledger import Ledger
from testbed_runtime.core.job.messages import SinkCommit
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.records import SMALL_RECORD_BYTES, Records, head_of, intact, one_way, text_of
from testbed_runtime.workload.snapshots import SubtaskSnapshot

FEW_RECORDS = 4
"""Up to this number, small records are cheaper to write one by one than together with numpy."""
STAGED = "/.staged/"
"""Within the key of a part that is not committed yet."""


class LedgerSink:
    """Records what each source sent: bitmaps of sequence numbers, and counts of duplicates, disorder and corruption."""

    __slots__ = ("_ledger", "_pending", "context", "uncut")

    def __init__(self, context: SubtaskContext) -> None:
        self.context = context
        self._ledger = Ledger()
        self.uncut = 0
        """Number of records since the last cut."""
        self._pending: list[SinkCommit] = []

    def write(self, records: Records, channel: int) -> None:
        """Write a batch of one input channel, in order of arrival."""
        if not len(records):
            return
        most = FEW_RECORDS if records.dtype.itemsize <= SMALL_RECORD_BYTES else 1
        if len(records) <= most:
            for number in range(len(records)):
                self._write_one(records[number : number + 1] if len(records) > 1 else records, channel)
            return
        good = intact(records)
        whole = int(np.count_nonzero(good)) == len(records)
        self.uncut += len(records)
        counts = records["count"]
        self._ledger.add_weight(int(np.add.reduce(counts if whole else counts[good])))
        sequence = np.ascontiguousarray(records["sequence"]).view(np.int64)
        vertices, subtasks, paths = records["vertex"], records["subtask"], records["path"]
        if one_way(records):
            origin = int(vertices[0]) << 48 | int(subtasks[0]) << 32 | int(paths[0])
            self._add(origin, channel, sequence, None if whole else good)
            return
        origins = vertices.astype(np.uint64) << np.uint64(48)
        origins |= subtasks.astype(np.uint64) << np.uint64(32)
        origins |= paths.astype(np.uint64)
        for origin in np.unique(origins).tolist():
            chosen = origins == origin
            self._add(origin, channel, sequence[chosen], None if whole else good[chosen])

    def _write_one(self, records: Records, channel: int) -> None:
        head, good = head_of(records)
        self.uncut += 1
        if good:
            self._ledger.add_weight(head.weight)
        source = self.context.origin(head.vertex, head.subtask)
        self._ledger.add_one(source, head.sequence, lane=channel << 32 | head.path, intact=good)

    def _add(
        self, origin: int, channel: int, sequence: npt.NDArray[np.int64], good: npt.NDArray[np.bool_] | None
    ) -> None:
        """Add records of one source on one path."""
        source = self.context.origin(origin >> 48, origin >> 32 & 0xFFFF)
        self._ledger.add(source, sequence, lane=channel << 32 | origin & 0xFFFFFFFF, intact=good)

    def flush(self) -> SinkCommit:
        """Return the records written since the last flush or cut (at-least-once)."""
        self.uncut = 0
        return self._ledger.take()

    def cut(self, checkpoint: int) -> SinkCommit:
        """Cut, and return the commit to send with the acknowledgement of `checkpoint`."""
        part = replace(self.flush(), checkpoint=checkpoint)
        commit = replace(part, earlier=tuple(self._pending))
        self._pending.append(part)
        return commit

    def completed(self, checkpoint: int) -> None:
        """Drop the cuts up to `checkpoint`, which the JobMaster has committed."""
        self._pending = [part for part in self._pending if part.checkpoint > checkpoint]

    def snapshot(self, base: SubtaskSnapshot) -> SubtaskSnapshot:
        return base


class FileSink(LedgerSink):
    """A ledger sink that also writes lines to files: staged at the barrier, published when the checkpoint completes.

    `stage` returns what must be stored before the acknowledgement, `publishable` what may be published: key and bytes."""

    def __init__(self, context: SubtaskContext, path: str, attempt: int) -> None:
        super().__init__(context)
        self._path = (path or context.name).strip("/")
        self._attempt = attempt
        self._lines: list[str] = []
        self._staged: dict[int, tuple[str, bytes]] = {}

    def write(self, records: Records, channel: int) -> None:
        super().write(records, channel)
        for record in records:
            text = text_of(record) if record["text"] else str(int(record["key"]))
            self._lines.append(f"({text},{int(record['count'])})\n")

    def stage(self, checkpoint: int) -> tuple[str, bytes] | None:
        """Return the lines since the last cut and the key, unique to this attempt, to store them under. None without
        lines."""
        if not self._lines:
            return None
        data = "".join(self._lines).encode()
        self._lines.clear()
        key = f"{self._path}{STAGED}{checkpoint}-{self.context.subtask}-{self._attempt}"
        self._staged[checkpoint] = (key, data)
        return key, data

    def publishable(self, checkpoint: int) -> list[tuple[str, bytes]]:
        """Return everything staged up to `checkpoint`, with the keys that readers see."""
        due = sorted(number for number in self._staged if number <= checkpoint)
        return [(self.part_key(number), self._staged.pop(number)[1]) for number in due]

    def part_key(self, checkpoint: int) -> str:
        return f"{self._path}/part-{self.context.subtask}-{checkpoint:06d}"

    def snapshot(self, base: SubtaskSnapshot) -> SubtaskSnapshot:
        return replace(base, staged=tuple(self._staged[number][0] for number in sorted(self._staged)))

    def part_of_staged(self, key: str) -> str:
        """Return the public key of a staged object of any attempt, for a restore."""
        checkpoint, subtask, _ = key.rpartition("/")[2].split("-")
        return f"{self._path}/part-{subtask}-{int(checkpoint):06d}"


def make_sink(config: SinkConfig, context: SubtaskContext, attempt: int) -> LedgerSink:
    """Create a sink. Raises ValueError for an unknown kind."""
    if config.kind == "ledger":
        return LedgerSink(context)
    if config.kind == "file":
        return FileSink(context, config.path, attempt)
    raise ValueError(f"unknown sink {config.kind!r}")
