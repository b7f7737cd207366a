"""Check that every record was delivered exactly once and intact.

Each sink vertex should have each number, from 0 (or where a kept checkpoint ends) to the last one that each source subtask
emitted, as often as the job's edges imply. Losses can be judged only after a drain, because until then a record may still be in flight. Duplicates and
corrupt records can always be judged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from testbed_runtime.checking.common import JobShape, data, events, job_shape
from testbed_runtime.checking.completeness import delivery_incomplete
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.job.ledger import CHUNK_BYTES
from testbed_runtime.core.job.messages import CHUNK_RECORDS
from testbed_runtime.core.judgement.metrics import (
    FILTERED,
    HISTORY_INCOMPLETE,
    JOB_FAILED,
    NO_DATA,
    NOT_DRAINED,
)
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.history.columns import Ints, vertex_of
from testbed_runtime.history.schema import Trial


@dataclass(slots=True)
class Delivery:
    """The result of the check. `lost` is None if it is unknown; `reason` says why. The other counts are
    minimums that are proven."""

    lost: int | None = None
    twice: Counter[str] = field(default_factory=Counter)
    """The duplicates at each sink vertex."""
    corrupted: int = 0
    out_of_order: int = 0
    committed: int = 0
    at_once: frozenset[str] = frozenset()
    """The sink vertices that commit without a checkpoint, and therefore twice after a failover."""
    checkpointed_twice: bool = False
    """Whether commits of checkpoints alone contain a duplicate at such a sink."""
    reason: str = ""
    detail: str = ""
    """The first losses and duplicates, in words."""
    examples: list[str] = field(default_factory=list)

    @property
    def duplicated(self) -> int:
        return self.twice.total()

    @property
    def at_least_once(self) -> bool:
        """Whether sinks commit without a checkpoint and all duplicates are due to that."""
        at_these = all(sink in self.at_once for sink in +self.twice)
        return bool(self.at_once) and at_these and not self.checkpointed_twice


Pairs: TypeAlias = "dict[tuple[str, str], list[dict[str, Any]]]"
"""The commits of each sink vertex and source subtask."""
MAX_EXAMPLES = 3
"""Number of places named in `detail`."""


def check_delivery(trial: Trial, entry: TrialEntry) -> Delivery:
    """Compare all sinks with all sources. Every count is exact."""
    shape = job_shape(entry)
    rows = _distinct_commits(trial.rows("delivery"))
    found = Delivery(at_once=_at_once(rows, entry))
    ends = source_ends(trial)
    found.reason, found.detail = _why_unknown(trial, entry, shape, ends)
    for row in rows:
        found.out_of_order += row["out_of_order"]
        found.corrupted += row["corrupted"]
        found.twice[vertex_of(row["task"])] += row["duplicated"]
    by_pair = grouped(((vertex_of(row["task"]), row["source"]), row) for row in rows)
    starts = source_starts(trial)
    lost = _count_sources(found, shape, by_pair, starts, ends)
    emitted = {subtask: end - starts.get(subtask, 0) for subtask, end in ends.items()}
    lost += _count_windows(found, shape, rows, emitted)
    _count_others(found, shape, by_pair)
    if not found.reason:
        found.lost = lost
    if found.examples:
        found.detail = "; ".join(filter(None, [found.detail, *found.examples]))
    return found


def _at_once(rows: list[dict[str, Any]], entry: TrialEntry) -> frozenset[str]:
    """Return the sinks that commit without a checkpoint and may commit twice. A batch job commits its exactly-once sinks once, when it has
    finished."""
    batch = bool(entry.blocking_edges) or any(v.kind == "iteration" for v in entry.job.vertices)
    held = {v.name for v in entry.job.vertices if batch and v.delivery == "exactly-once"}
    return frozenset(vertex_of(r["task"]) for r in rows if r["checkpoint"] < 0) - held


def source_starts(trial: Trial) -> dict[str, int]:
    """Map each source subtask of a job that started from a kept checkpoint to the first number that it emitted."""
    found = events(trial, "job.restored")
    return {source: int(number) for event in found for source, number in data(event)["next"].items()}


def source_ends(trial: Trial) -> dict[str, int]:
    """Map each source subtask to one more than the last number that it emitted (its latest report)."""
    ends: dict[str, int] = {}
    for event in events(trial, "source.end"):
        if isinstance(number := data(event).get("next"), int | float):
            ends[event["subject"]] = int(number)
    return ends


def _why_unknown(trial: Trial, entry: TrialEntry, shape: JobShape, ends: dict[str, int]) -> tuple[str, str]:
    states = [data(e).get("to") for e in events(trial, "job.state")]
    if states and states[-1] == "FAILED":
        return JOB_FAILED, ""
    if not entry.drained:
        return NOT_DRAINED, entry.stop_refused
    if incomplete := delivery_incomplete(trial):
        return HISTORY_INCOMPLETE, incomplete
    droppers = sorted({e["subject"] for e in events(trial, "function.dropped")})
    if droppers:
        return FILTERED, f"{', '.join(droppers)} dropped records"
    missing = [s for s in shape.source_subtasks() if s not in ends]
    if missing or not shape.sources or not shape.sinks:
        return NO_DATA, f"{', '.join(missing) or 'the job'} did not record its last number"
    return "", ""


def _distinct_commits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop commits that a JobManager repeated after a restart, because it was killed between the commit and storing that
    fact. The same numbers committed twice by one process are kept: another path of the job, or a real duplicate."""
    by_process: defaultdict[tuple[Any, ...], int] = defaultdict(int)
    most: defaultdict[tuple[Any, ...], int] = defaultdict(int)
    kept = []
    for row in rows:
        key = (row["task"], row["checkpoint"], row["source"], row["base"], row["bitmap"])
        if row["checkpoint"] >= 0:
            by_process[row["process"], key] += 1
            if by_process[row["process"], key] <= most[key]:
                continue
            most[key] += 1
        kept.append(row)
    return kept


def _count_sources(
    found: Delivery, shape: JobShape, by_pair: Pairs, starts: dict[str, int], ends: dict[str, int]
) -> int:
    """Return the losses over all pairs of source and sink. Duplicates and never emitted records are added to `found`."""
    lost = 0
    for source in shape.sources:
        subtasks = [f"{source}-{i}" for i in range(shape.parallelism[source])]
        for sink, copies in shape.without_windows().copies(source).items():
            for subtask in subtasks:
                commits = by_pair.get((sink, subtask), [])
                span = (starts.get(subtask, 0), ends.get(subtask))
                lost += _compare(found, (sink, subtask), _add_up(commits), copies, span)
                if sink in found.at_once:
                    of_checkpoints = _add_up(c for c in commits if c["checkpoint"] >= 0)
                    found.checkpointed_twice |= any((n > copies).any() for n in of_checkpoints.values())
    return lost


def _add_up(rows: Iterable[dict[str, Any]]) -> dict[int, Ints]:
    """Map each chunk's base to how often each number of the chunk was committed."""
    once: dict[int, int] = {}
    again: list[tuple[int, bytes]] = []
    for row in rows:
        base, bitmap = row["base"], row["bitmap"][:CHUNK_BYTES]
        bits, known = int.from_bytes(bitmap, "little"), once.get(base, 0)
        if known & bits:
            again.append((base, bitmap))
        else:
            once[base] = known | bits
    chunks = {base: _counts(bits.to_bytes(CHUNK_BYTES, "little")) for base, bits in once.items()}
    for base, bitmap in again:
        chunks[base] += _counts(bitmap.ljust(CHUNK_BYTES, b"\0"))
    return chunks


def _counts(bitmap: bytes) -> Ints:
    return np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little").astype(np.int64)


def _compare(
    found: Delivery, pair: tuple[str, str], chunks: dict[int, Ints], copies: int, span: tuple[int, int | None]
) -> int:
    """Return the losses of a pair of sink and source in a span of numbers. Without an end (no drain), only duplicates can be judged. A
    number below the start may arrive, because it was in flight in the checkpoint from which the job
    started."""
    lost, (sink, origin), (start, end) = 0, pair, span
    where = f"{origin} at {sink}"
    bases = sorted({*chunks, *range(0, end or 0, CHUNK_RECORDS)})
    for base in bases:
        counts = chunks.get(base)
        if counts is None:
            counts = np.zeros(CHUNK_RECORDS, dtype=np.int64)
        found.committed += int(np.count_nonzero(counts))
        if (end is None or base + CHUNK_RECORDS <= end) and (counts == copies).all():
            continue
        expected = np.full(CHUNK_RECORDS, copies, dtype=np.int64)
        if end is not None:
            expected[max(0, min(end - base, CHUNK_RECORDS)) :] = 0
        if base < start:
            expected[: start - base] = np.minimum(counts, expected)[: start - base]
        if end is not None:
            lost += _note(found, f"{where}: lost", base, counts < expected, np.maximum(expected - counts, 0))
        if end is not None and sink not in found.at_once:
            # with at-least-once, an earlier attempt may have progressed further than the last one
            strangers = counts[expected == 0]
            never = (expected == 0) & (counts > 0)
            found.corrupted += _note(found, f"{where}: never emitted", base, never, strangers)
        extra = np.where(expected > 0, np.maximum(counts - expected, 0), 0)
        found.twice[sink] += _note(found, f"{where}: twice", base, extra > 0, extra)
    return lost


def _note(found: Delivery, what: str, base: int, places: npt.NDArray[np.bool_], amounts: Ints) -> int:
    amount = int(amounts.sum())
    if amount and len(found.examples) < MAX_EXAMPLES:
        found.examples.append(f"{what} from number {base + int(np.flatnonzero(places)[0])}")
    return amount


def _count_windows(
    found: Delivery, shape: JobShape, rows: list[dict[str, Any]], emitted: dict[str, int]
) -> int:
    """Compare the summed counts behind a window, where one record represents many. Records that reach the same sink without a
    window are counted by their numbers."""
    lost, direct, origins = 0, shape.without_windows(), {*shape.source_subtasks()}
    for sink in shape.sinks:
        sources = [s for s in shape.sources if shape.windowed(s, sink)]
        if not sources or found.reason:
            continue
        copies = {s: shape.copies(s)[sink] - direct.copies(s).get(sink, 0) for s in sources}
        expected = sum(emitted[f"{s}-{i}"] * copies[s] for s in sources for i in range(shape.parallelism[s]))
        mine = [r for r in rows if vertex_of(r["task"]) == sink]
        weight = sum(r["weight"] - (r["source"] in origins) * _records(r) for r in mine)
        if weight < expected:
            found.examples.append(f"{sink}: {expected - weight} of {expected} records are in no window")
        if weight > expected:
            found.examples.append(f"{sink}: {weight - expected} records were counted twice")
        lost += max(0, expected - weight)
        found.twice[sink] += max(0, weight - expected)
        found.committed += min(weight, expected)
    return lost


def _records(row: dict[str, Any]) -> int:
    return int.from_bytes(row["bitmap"], "little").bit_count() + int(row["duplicated"])


def _count_others(found: Delivery, shape: JobShape, by_pair: Pairs) -> None:
    """Check the records that a window created: each has its own number and may be committed only once per sink vertex."""
    known = {*shape.source_subtasks()}
    for (sink, origin), mine in sorted(by_pair.items()):
        if origin in known:
            continue
        made = vertex_of(origin)
        copies = max(1, shape.copies(made).get(sink, 1)) if made in shape.parallelism else 1
        committed = found.committed
        _compare(found, (sink, origin), _add_up(mine), copies, (0, None))
        if shape.windows:
            found.committed = committed  # already counted by weight


def stale_rejections(trial: Trial) -> dict[str, int]:
    """Return the number of rejected messages of stale attempts: acknowledgements, commits, records."""
    counts: dict[str, int] = {}
    for event in events(trial, "stale.rejected"):
        more = data(event)
        what = str(more.get("what") or "acknowledgement")
        counts[what] = counts.get(what, 0) + int(more.get("count", 1))
    return counts
