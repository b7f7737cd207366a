"""The commits of a sink task: when it reports, what it publishes, and how it ends."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from testbed_runtime.core.job.jobgraph import SinkConfig, SourceConfig
from testbed_runtime.core.options import Options
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.sinks import SinkWriter
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.records import Records
from testbed_runtime.workload.snapshots import SubtaskSnapshot
from testbed_runtime.workload.sources import GeneratedSource

CONTEXT = SubtaskContext(2, "sink", 0, 1, 128, 0, ("source", "map", "sink"))
EXACTLY_ONCE, AT_LEAST_ONCE = SinkConfig(), SinkConfig(delivery="at-least-once")
FILE = SinkConfig(kind="file", path="out")
CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}
UNCOVERED = {
    **CHECKPOINTS,
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "false",
}
INTERVAL = "execution.buffer-timeout.interval"
MS = 1_000_000


def batch(first: int, count: int, due_s: float = 10.0) -> Records:
    """Records of a source whose record 0 is due at this time."""
    t0_ns = int(due_s * 1e9)
    made = GeneratedSource(SourceConfig(), vertex=0, subtask=0, parallelism=1, seed=3, t0_ns=t0_ns)
    return made.records(first, count)


class Sink:
    """A sink task with a JobManager that keeps commits, and a store that keeps objects."""

    def __init__(self, config: SinkConfig, options: dict[str, str] | None = None) -> None:
        self.now_s = 10.0
        self.commits: list[Any] = []
        self.events: list[tuple[str, Any]] = []
        self.waits: list[tuple[Any, ...]] = []
        self.blobs: Any = MemoryBlobStore()
        self.rows: list[dict[str, Any]] = []
        self.handed_over = object()
        committer = SimpleNamespace(commit=self.commits.append, handed_over=self.handed_over)
        self.run: Any = SimpleNamespace(
            name="sink-0",
            subtask=CONTEXT,
            descriptor=SimpleNamespace(attempt_number=3, job_vertices=CONTEXT.names, restore_checkpoint=0),
            now=lambda: self.now_s,
            running_at=9.0,
            meter=SimpleNamespace(received=lambda *_: None),
            committer=committer,
            checkpoints=SimpleNamespace(last_started=0, last_completed=0),
            services=SimpleNamespace(
                blobs=self.blobs,
                options=Options(options or {}),
                history=SimpleNamespace(append=lambda table, **row: self.rows.append(row)),
            ),
            event=lambda kind, data: self.events.append((kind, data)),
            wait=lambda kind, what, *, since_s, limit, outcome: self.waits.append(
                (kind, since_s, limit.option, str(outcome))
            ),
        )
        self.writer = SinkWriter(self.run, config)

    def write(self, first: int, count: int, due_s: float = 10.0) -> None:
        self.writer.write(batch(first, count, due_s), 0)

    def counts(self) -> list[int]:
        """Records of each commit since the last call."""
        found = [commit.weight for commit in self.commits]
        self.commits.clear()
        return found

    async def keys(self) -> list[str]:
        """The keys of the store when everything is published."""
        await self.writer.drained()
        return sorted(await self.blobs.list(""))


def snapshot(checkpoint: int) -> SubtaskSnapshot:
    return SubtaskSnapshot(checkpoint, "sink", 0, 1, 128)


# ---- the first record


@pytest.mark.parametrize(("running_at", "records", "waits"), [(9.0, 0, 1), (9.0, 1, 0), (0.0, 0, 0)])
async def test_a_sink_that_received_nothing_waited_until_it_was_closed(
    running_at: float, records: int, waits: int
):
    """A failure can come before the first record. One that did not run waited for nothing."""
    sink = Sink(EXACTLY_ONCE)
    sink.run.running_at = running_at
    if records:
        sink.write(0, records)
    sink.waits.clear()
    await sink.writer.close()
    assert sink.waits == [("first-record", running_at, "", "cancelled")] * waits


@pytest.mark.parametrize(
    ("options", "seconds", "limited"),
    [
        ({INTERVAL: "5 s"}, 4.999, True),
        ({INTERVAL: "5 s"}, 5.0, False),
        ({INTERVAL: "0 ms"}, 0.0, False),
        ({INTERVAL: "5 s", "execution.buffer-timeout.enabled": "false"}, 4.0, False),
        ({}, 60.0, False),
    ],
)
async def test_a_sink_without_a_record_waited_for_a_flush_only_before_the_first_one(
    options: dict[str, str], seconds: float, limited: bool
):
    """It was closed after less than one buffer timeout. Another wait has no limit, as no option ends it."""
    sink = Sink(EXACTLY_ONCE, options)
    sink.now_s = sink.run.running_at + seconds
    await sink.writer.close()
    assert sink.waits == [("first-record", 9.0, INTERVAL if limited else "", "cancelled")]


@pytest.mark.parametrize(("due_s", "latency_ms"), [(9.75, 250), (10.5, 0)])
def test_the_first_records_of_a_sink_are_an_event_with_their_largest_latency(due_s: float, latency_ms: int):
    """Once; an empty batch is not the first. A clock that differs makes no negative latency."""
    sink = Sink(EXACTLY_ONCE)
    sink.write(0, 0)
    assert (sink.events, sink.waits) == ([], [])
    sink.write(0, 3, due_s)
    sink.write(3, 1)
    assert sink.events == [("sink.first-record", {"latency_ns": latency_ms * MS})]
    assert len(sink.waits) == 1


@pytest.mark.parametrize(
    ("seconds", "fired"), [(0.049, False), (0.05, True), (0.1, True), (0.219, True), (0.23, False)]
)
def test_the_buffer_timeout_decided_the_first_record_if_it_took_one_for_each_hop_at_most(
    seconds: float, fired: bool
):
    """Half of one at least, as a record may come in the middle of an interval; three vertices are two hops."""
    sink = Sink(EXACTLY_ONCE, {"execution.buffer-timeout.interval": "100 ms"})
    sink.now_s = sink.run.running_at + seconds
    sink.write(0, 1)
    option = "execution.buffer-timeout.interval" if fired else ""
    assert sink.waits == [("first-record", 9.0, option, "fired" if fired else "completed")]


# ---- at least once


def test_an_at_least_once_sink_reports_a_while_after_its_first_write():
    """Later writes do not postpone it; nothing is reported while nothing was written."""
    sink = Sink(AT_LEAST_ONCE)
    assert (sink.writer.next_flush(), sink.writer.at_once) == (None, True)
    sink.write(0, 2)
    sink.now_s += 0.1
    sink.write(2, 3)
    assert sink.writer.next_flush() == pytest.approx(10.2)
    sink.writer.on_time(10.199)
    assert sink.counts() == []
    sink.writer.on_time(10.2)
    assert (sink.counts(), sink.writer.next_flush()) == ([5], None)
    sink.writer.on_time(99.0)
    assert sink.counts() == []


def test_an_exactly_once_sink_has_nothing_to_report_between_checkpoints():
    """Its commits are part of acknowledgements."""
    sink = Sink(EXACTLY_ONCE)
    sink.write(0, 2)
    assert (sink.writer.next_flush(), sink.writer.at_once) == (None, False)
    sink.writer.on_time(99.0)
    assert sink.counts() == []


def test_a_checkpoint_of_an_at_least_once_sink_waits_until_everything_is_handed_over():
    """The records that it covers would be lost otherwise. The acknowledgement has no commit; a second one has nothing to report."""
    sink = Sink(AT_LEAST_ONCE)
    sink.write(0, 2)
    for counts in ([2], []):
        assert sink.writer.cut(snapshot(1)) == (None, snapshot(1), sink.handed_over)
        assert sink.counts() == counts
        assert sink.writer.next_flush() is None


async def test_each_flush_of_an_at_least_once_file_sink_is_a_part_of_its_own():
    """Numbered by attempt, so that no attempt overwrites the part of another."""
    sink = Sink(SinkConfig(kind="file", path="out", delivery="at-least-once"))
    for first in (0, 1):
        sink.write(first, 1)
        sink.writer.end(finished=False)
    parts = [f"out/part-0-{3_000_000 + n}" for n in (1, 2)]
    assert sink.counts() == [1, 1]
    assert await sink.keys() == parts


# ---- with checkpoints


def test_a_checkpoint_of_a_ledger_sink_has_its_commit_and_nothing_to_store():
    """It stores nothing outside of the acknowledgement."""
    sink = Sink(EXACTLY_ONCE)
    sink.write(0, 2)
    commit, made, store = sink.writer.cut(snapshot(4))
    assert commit is not None
    assert (commit.weight, commit.checkpoint, made, store) == (2, 4, snapshot(4), None)


async def test_a_file_sink_stores_its_lines_with_a_checkpoint_and_publishes_them_when_it_is_complete():
    """A checkpoint without lines stores nothing, and its snapshot still names what is not published yet."""
    sink = Sink(FILE)
    sink.write(0, 2)
    commit, made, store = sink.writer.cut(snapshot(4))
    assert commit is not None
    assert store is not None
    staged = "out/.staged/4-0-3"
    assert (commit.weight, made.staged) == (2, (staged,))
    await store()
    assert await sink.keys() == [staged]
    empty, made, store = sink.writer.cut(snapshot(5))
    assert empty is not None
    assert (empty.weight, made.staged, store) == (0, (staged,), None)
    sink.writer.completed(3)
    assert await sink.keys() == [staged]
    sink.writer.completed(4)
    assert await sink.keys() == [staged, "out/part-0-000004"]
    assert await sink.blobs.get(staged) == await sink.blobs.get("out/part-0-000004")


async def test_a_restored_file_sink_publishes_what_its_checkpoint_committed():
    """Only its own subtask's parts. A ledger sink has none."""
    sink = Sink(FILE)
    for subtask in (0, 1):
        await sink.blobs.put(f"out/.staged/4-{subtask}-2", b"lines")
    snapshots = [SubtaskSnapshot(4, "sink", n, 2, 128, staged=(f"out/.staged/4-{n}-2",)) for n in (0, 1)]
    await sink.writer.restore(snapshots)
    assert [key for key in await sink.keys() if "staged" not in key] == ["out/part-0-000004"]
    await Sink(EXACTLY_ONCE).writer.restore(snapshots)


async def test_a_part_that_cannot_be_published_is_noted_and_the_next_one_is_tried_again():
    """The next attempt publishes it from the staged object."""
    sink = Sink(FILE)
    broken = deque([True, False])

    async def put(key: str, data: bytes) -> None:
        if broken.popleft():
            raise OSError("no space left")

    sink.blobs.put = put
    for checkpoint in (4, 5):
        sink.write(checkpoint, 1)
        sink.writer.cut(snapshot(checkpoint))
        sink.writer.completed(checkpoint)
        await sink.writer.drained()
    assert [(row["kind"], row["subject"], row["text"]) for row in sink.rows] == [
        ("note", "sink-0", "Could not publish a part: no space left")
    ]
    assert not broken


# ---- the end


@pytest.mark.parametrize(
    ("config", "options", "finished", "counts"),
    [
        (AT_LEAST_ONCE, CHECKPOINTS, False, [2]),
        (AT_LEAST_ONCE, {}, True, [2]),
        (EXACTLY_ONCE, {}, True, [2]),
        (EXACTLY_ONCE, {}, False, []),
        (FILE, {}, True, [2]),
        (EXACTLY_ONCE, UNCOVERED, True, []),
    ],
    ids=["failed at-least-once", "at-least-once", "bounded", "failed", "bounded file", "uncovered"],
)
async def test_the_rest_of_a_sink_is_reported_at_its_end(
    config: SinkConfig, options: dict[str, str], finished: bool, counts: list[int]
):
    """Always if at-least-once, otherwise only at the end of an input that no checkpoint covers. A sink that wrote nothing has no
    rest."""
    sink = Sink(config, options)
    sink.write(0, 2)
    sink.writer.end(finished=finished)
    assert await sink.keys() == (["out/part-0-000001"] if config is FILE else [])
    assert sink.counts() == counts
    empty = Sink(config, options)
    empty.writer.end(finished=finished)
    assert empty.counts() == []


async def test_the_rest_of_a_file_sink_is_not_written_over_the_part_of_its_restored_checkpoint():
    """An attempt that took no checkpoint itself continues after the checkpoint of a stop."""
    sink = Sink(FILE, {})
    sink.run.descriptor.restore_checkpoint = 1
    sink.write(0, 2)
    sink.writer.end(finished=True)
    assert await sink.keys() == ["out/part-0-000002"]


@pytest.mark.parametrize(
    ("options", "completed", "published"),
    [(CHECKPOINTS, 5, ["4", "5"]), (UNCOVERED, 4, ["4"]), (UNCOVERED, 0, [])],
    ids=["covered", "uncovered", "none"],
)
async def test_a_finished_file_sink_publishes_what_its_last_checkpoint_covers(
    options: dict[str, str], completed: int, published: list[str]
):
    """Its task ends after it is complete, unless it may end uncovered."""
    sink = Sink(FILE, options)
    for checkpoint in (4, 5):
        sink.write(checkpoint, 1)
        sink.writer.cut(snapshot(checkpoint))
    sink.run.checkpoints = SimpleNamespace(last_started=5, last_completed=completed)
    sink.writer.end(finished=True)
    assert [key[-1] for key in await sink.keys()] == published
    assert sink.counts() == []
