"""A source task: when it emits, how much at once, what a checkpoint covers, and when it may finish."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    SnapshotType,
    StopMode,
)
from testbed_runtime.core.exchange.records import LENGTH_BYTES
from testbed_runtime.core.job.jobgraph import JobVertex, SourceConfig
from testbed_runtime.core.job.messages import (
    AcknowledgeCheckpoint,
    InputSplit,
    RequestNextInputSplit,
    TriggerCheckpoint,
)
from testbed_runtime.core.job.splits import NEXT_SPLIT, NO_SPLIT
from testbed_runtime.core.waits import Outcome
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY, IDLE
from testbed_runtime.taskmanager.services import Pace
from testbed_runtime.taskmanager.source import shortest_interval_s
from testbed_runtime.workload.records import marker_positions
from testbed_runtime.workload.snapshots import SubtaskSnapshot
from testbed_runtime.workload.sources import BATCH_RECORDS
from tests.taskmanager.deployed import Deployed, driven

CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}
UNCOVERED = {**CHECKPOINTS, "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "false"}
SMALL = {"taskmanager.memory.segment-size": "4 kb"}
LAZY = Pace(lazy=True)
RECORD_BYTES = 100 + LENGTH_BYTES


def source(parallelism: int = 1, **config: Any) -> JobVertex:
    """A source with a record every 10 ms, if nothing else is said."""
    made = SourceConfig(**{"records_per_second": 100.0, **config})
    return JobVertex("source", parallelism, 128, source=made)


FAST = source(records_per_second=1000.0)
BOUNDED = source(records_per_second=1000.0, limit=3)


def during(vertex: JobVertex, ms: float, *steps: tuple[float, Any], **settings: Any) -> Deployed:
    """Run a source for this time. `steps`: functions of the task, with the times at which they are called."""

    async def drive(task: Deployed) -> None:
        for at, step in steps:
            await task.at(at)
            step(task)
        await task.at(ms)

    timeout = settings.pop("timeout", "100 ms")
    return driven(vertex, drive, **{"execution.buffer-timeout.interval": timeout, **settings})


def trigger(checkpoint: int, *, drain: bool = False) -> Any:
    return lambda task: task.trigger(checkpoint, drain=drain)


def complete(checkpoint: int) -> Any:
    return lambda task: task.task.notify_checkpoint_complete(checkpoint)


def hold(task: Deployed) -> None:
    task.acknowledges = False


def process_all(task: Deployed) -> None:
    task.go_on()


# ---- when it emits


@pytest.mark.parametrize(
    ("buffer_timeout_s", "fill_s", "interval_ms"),
    [
        (-0.001, 1.0, 5.0), (0.1, 1.0, 5.0), (0.04, 1.0, 4.0), (0.001, 1.0, 0.1), (0.0, 1.0, 0.0),
        (-0.001, 0.04, 4.0), (-0.001, 0.001, 1.0), (-0.001, 0.0, 1.0), (0.1, math.inf, 5.0),
    ],
)  # fmt: skip
def test_a_source_emits_ten_times_in_a_buffer_timeout_and_while_its_buffers_fill(
    buffer_timeout_s: float, fill_s: float, interval_ms: float
):
    """At most each millisecond for full buffers, at least each 5 ms."""
    assert shortest_interval_s(buffer_timeout_s, fill_s) * 1000 == pytest.approx(interval_ms)


@pytest.mark.parametrize("parallelism", [1, 4])
def test_the_buffers_of_a_subtask_fill_with_its_share_of_the_rate(parallelism: int):
    """A buffer of 32 KiB fills in 20 ms with all records of 104 bytes, and in 80 ms with a fourth of them. It emits ten times
    meanwhile."""
    rate = (32 << 10) / RECORD_BYTES / 0.02
    done = during(source(parallelism, records_per_second=rate), 9, timeout="1 min")
    times = [ms for ms, _ in done.emitted]
    assert times == pytest.approx([*range(0, 9, 2)] if parallelism == 1 else [0, 5], abs=0.3)


def test_a_record_is_emitted_when_it_is_due():
    """One each 10 ms; between them the source is idle. Records of less than a tick are emitted together."""
    done = during(source(), 25)
    assert done.emitted == [(0, 1), (10, 1), (20, 1)]
    assert (done.modes, done.task.meter.mode) == ({BUSY}, IDLE)
    assert during(FAST, 11).emitted == [(0, 1), (5, 5), (10, 5)]


def test_a_lazy_source_emits_shortly_before_its_flusher():
    """Half a tick; or when its buffers are partly full."""
    done = during(FAST, 31, pace=LAZY, timeout="30 ms")
    assert done.emitted == [(0, 1), (28.5, 28)]
    assert done.received == [(0, 1), (30, 28)]
    assert during(source(records_per_second=1000 / 29), 55, pace=LAZY, timeout="30 ms").emitted == [
        (0, 1), (54.68, 1),
    ], "one that is due less than half a tick before the flusher waits for the next flush"  # fmt: skip
    filling = source(records_per_second=(32 << 10) / RECORD_BYTES / 0.2)
    assert during(filling, 45, pace=LAZY, timeout="1 s").emitted == [(0, 1), (20, 31), (40, 32)]


@pytest.mark.parametrize(("pace", "before"), [(LAZY, 13), (Pace(), 11)])
def test_a_lazy_source_emits_what_is_due_before_a_barrier(pace: Pace, before: int):
    """The barrier comes after what a source would have emitted by then: another one has emitted until 10 ms."""
    done = during(FAST, 14, (12.5, trigger(1)), pace=pace)
    (barrier,) = done.events
    assert done.received[: done.received.index((12.5, barrier))] == [(0, 1), (12.5, before - 1)]
    assert done.completed == [(1, 12.5)]


def test_a_lazy_source_that_waits_for_its_output_has_deferred_nothing():
    """Its barrier does not wait for a buffer."""

    def block(task: Deployed) -> None:
        task.reads = False

    slow = source(records_per_second=1000.0, record_bytes=1020)
    done = during(slow, 300, (10, block), (200, trigger(1)), pace=LAZY, **SMALL)
    assert done.completed == [(1, 200)]
    assert done.task.meter.records_out < 100


def test_a_source_waits_for_its_output_and_goes_on_where_it_stopped():
    """It is back-pressured meanwhile, and idle while nothing is due."""
    modes: list[int] = []

    def block(task: Deployed) -> None:
        modes.append(task.task.meter.mode)
        task.reads = False

    def free(task: Deployed) -> None:
        modes.append(task.task.meter.mode)
        task.go_on()

    vertex = source(records_per_second=1000.0, record_bytes=1020)
    done = during(vertex, 200, (1.5, block), (150, free), timeout="20 ms", **SMALL)
    assert modes == [IDLE, BACKPRESSURED]
    assert done.sequences == [*range(len(done.sequences))]
    assert len(done.sequences) > 150
    assert [ms for ms, _ in done.emitted if 100 < ms < 150] == []


def test_a_batch_grows_while_nothing_is_waited_for_and_fits_a_buffer_otherwise():
    """A barrier waits for the batch before it. Three records fit into a buffer."""

    async def drive(task: Deployed) -> None:
        task.reads = False
        await task.at(1.1)
        task.go_on()

    vertex = source(records_per_second=1e7, record_bytes=1021)
    done = driven(vertex, drive, **SMALL, **{"execution.buffer-timeout.interval": "100 ms"})
    sizes = [count for _, count in done.emitted]
    assert sizes[1:7] == [BATCH_RECORDS, 3, 6, 12, 24, 48]
    large = source(records_per_second=1e7, record_bytes=5000)
    done = driven(large, drive, **SMALL, **{"execution.buffer-timeout.interval": "100 ms"})
    assert [count for _, count in done.emitted][2:5] == [1, 2, 4]


def test_J_148_latency_markers_are_emitted_in_their_interval():
    """StreamSourceOperatorLatencyMetricsTest: the first one at once, and one more than intervals have passed, with the time of their
    emission. Without the option there is none."""

    def markers(**options: str) -> list[float]:
        found = during(source(), 106, timeout="0 ms", **options).records
        return [
            round(one["due_ns"][place] / 1e6 - 1e6, 1) for one in found for place in marker_positions(one)
        ]

    assert markers(**{"metrics.latency.interval": "10 ms"}) == [10.0 * n for n in range(11)]
    assert markers(**{"metrics.latency.interval": "15 ms"}) == [15.0 * n for n in range(8)]
    assert markers() == []


def test_the_coordinators_rate_limits_a_source_and_the_static_limit_holds_too():
    """A negative rate frees it; 0 stops it. It is back-pressured while it waits for its turn."""
    rates = [(0, 20.0), (1000, 0.0), (2000, 80.0), (3000, -1.0)]
    steps = [(ms, lambda task, rate=rate: task.task.set_rate(rate)) for ms, rate in rates]

    def counts(**options: str) -> list[int]:
        done = during(FAST, 4000, *steps, **options)
        return [
            sum(count for ms, count in done.emitted if since + 1 < ms < since + 999)
            for since in range(0, 4000, 1000)
        ]

    free, limited = counts(), counts(**{"headgate.flow-control.rate": "50"})
    assert free == pytest.approx([20, 0, 80, 1000], abs=6)
    assert limited == pytest.approx([20, 0, 50, 50], abs=2)


@pytest.mark.parametrize("parallelism", [1, 4])
def test_a_static_limit_is_shared_by_the_subtasks(parallelism: int):
    """50 a second: the first record of one subtask comes after 20 ms, those of four after 80 ms."""
    vertex = source(parallelism, records_per_second=1000.0)
    done = during(vertex, 250, **{"headgate.flow-control.rate": "50"})
    step = 20.0 * parallelism
    assert [ms for ms, _ in done.emitted] == pytest.approx(
        [step * n for n in range(1, int(250 / step) + 1)], abs=0.1
    )


def test_the_lag_of_a_source_is_that_of_its_next_record():
    """None while a lazy one waits for its flusher, and none after its end."""
    lags: dict[str, list[int]] = {}

    def look(name: str) -> Any:
        def at(task: Deployed) -> None:
            now_ns = int(task.clock.now() * 1e9)
            lags.setdefault(name, []).append(round(task.task.meter.lag_at(now_ns + 10**9) / 1e6))

        return at

    during(source(), 30, (5, look("source")))
    during(source(), 30, (5, look("lazy")), pace=LAZY)
    during(BOUNDED, 30, (1.5, look("bounded")), (20, look("bounded")))
    assert lags == {"source": [995], "lazy": [0], "bounded": [pytest.approx(1000, abs=1), 0]}


def test_a_lazy_source_that_waits_for_a_buffer_in_the_middle_of_a_batch_has_a_lag():
    """It is not idle then: the records after the batch fall behind."""
    lags: list[float] = []

    def block(task: Deployed) -> None:
        task.reads = False

    def look(task: Deployed) -> None:
        lags.append(task.task.meter.lag_at(int(task.clock.now() * 1e9)) / 1e6)

    vertex = source(records_per_second=1000.0, record_bytes=1020)
    during(vertex, 600, (0, block), (20, look), (540, look), pace=LAZY, timeout="100 ms", **SMALL)
    assert lags[0] == 0
    assert 400 < lags[1] < 540


# ---- splits and restores


def splits(*numbers: int | Exception, after_s: float = 0.0) -> dict[type, Any]:
    """A JobMaster that assigns these splits, one after the other, the first of them after that time."""
    left = list(numbers)

    async def answer(message: RequestNextInputSplit) -> InputSplit:
        if after_s and len(left) == len(numbers):
            await asyncio.sleep(after_s)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return InputSplit(found)

    return {RequestNextInputSplit: answer}


SPLIT = source(records_per_second=1000.0, limit=10, splits=5)
"""Ten records in five splits of two."""


def test_a_source_with_splits_requests_one_after_the_other():
    """It ends when there is none left."""
    done = during(SPLIT, 100, answers=splits(0, 3, NO_SPLIT))
    assert [message.index for message in done.heard(RequestNextInputSplit)] == [0, 1, 2]
    assert (done.sequences, done.states[-1]) == ([0, 1, 2, 3], "FINISHED")


@pytest.mark.parametrize(
    ("after_s", "version", "waits"),
    [
        (0.0, "2.x", []),
        (0.5, "2.x", [("pekko.ask.timeout", 0, 500, "completed")]),
        (2.0, "2.x", [("pekko.ask.timeout", 0, 1000, "expired")]),
        (2.0, "1.12", [("akka.ask.timeout", 0, 1000, "expired")]),
    ],
)
def test_a_source_records_what_it_waits_for_its_next_split(after_s: float, version: str, waits: list[Any]):
    """With the option that limits it, by the name in its version. An answer at once is no row."""
    done = during(SPLIT, 2500, version=version, answers=splits(0, NO_SPLIT, after_s=after_s))
    asked = [row for row in done.rows("waits", "jobmanager") if row["what"] == NEXT_SPLIT]
    found = [wait[1:] for wait in done.waits("jobmanager") if wait[0] == NEXT_SPLIT]
    assert [(row["option"], *wait) for row, wait in zip(asked, found, strict=True)] == waits


def test_a_split_that_the_jobmaster_refuses_fails_the_task():
    """The error names the request."""
    done = during(SPLIT, 100, answers=splits(FlinkError("Exception", "no")))
    kind, text = done.failure
    assert (kind, "Requesting the next input split failed" in text) == ("InputSplitProviderException", True)
    assert done.messages[-1][1].wait == ""


def test_a_split_that_is_not_assigned_in_time_fails_the_task_after_the_ask_timeout():
    """It waited for the JobManager."""

    async def never(message: Any) -> None:
        await asyncio.sleep(3600)

    done = during(SPLIT, 1500, answers={RequestNextInputSplit: never})
    failure = done.task.failure
    assert failure is not None
    assert (failure.class_name, failure.wait) == ("InputSplitProviderException", "jobmanager")
    assert done.ended_at == 1000


@pytest.mark.parametrize(
    ("next_sequence", "read", "requests"),
    [(0, [], [0]), (1, [1], [1]), (2, [], [1]), (3, [3], [2])],
)
def test_a_restored_source_goes_on_after_its_last_record(
    next_sequence: int, read: list[int], requests: list[int]
):
    """With splits, up to the end of the one that it was in."""
    restored = SubtaskSnapshot(1, "source", 0, 1, 128, next_sequence=next_sequence)
    done = during(SPLIT, 100, restore=(restored,), answers=splits(NO_SPLIT))
    assert done.sequences == read
    assert [message.index for message in done.heard(RequestNextInputSplit)] == requests
    assert [row["checkpoint"] for row in done.rows("events", "task.restored")] == [1]


def test_a_restored_subtask_goes_on_after_its_own_last_record():
    """Not after that of another one."""
    restored = tuple(
        SubtaskSnapshot(1, "source", subtask, 2, 128, next_sequence=number)
        for subtask, number in ((0, 5), (1, 9))
    )
    done = during(source(2, records_per_second=1000.0, limit=20), 200, restore=restored)
    assert done.sequences == [5, 6, 7, 8, 9]


def test_a_source_whose_parallelism_has_changed_is_not_restored():
    """Which subtask made which record would change. The wait for the restore has failed."""
    restored = tuple(SubtaskSnapshot(1, "source", subtask, 2, 128) for subtask in (0, 1))
    done = during(source(), 100, restore=restored)
    kind, text = done.failure
    assert (kind, "had a parallelism of 2 and has 1 now" in text) == ("IllegalStateException", True)
    assert [outcome for *_, outcome in done.waits("restore")] == [Outcome.FAILED]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"kind": "stars"}, "'stars' is not a source"),
        ({"kind": "socket", "socket": "host"}, "'host' is not an address"),
        ({"kind": "socket", "socket": "host:http"}, "'host:http' is not an address"),
        ({"kind": "socket", "socket": "host:99"}, "Could not connect to host:99"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(config: dict[str, str], expected: str):
    """The error has the field, or the address."""
    _, text = during(source(**config), 100).failure
    assert expected in text


# ---- checkpoints


def test_a_checkpoint_covers_the_records_before_its_barrier():
    """A checkpoint that was aborted has a cancellation instead."""
    found: list[SubtaskSnapshot] = []

    async def drive(task: Deployed) -> None:
        await task.at(15)
        task.trigger(1)
        await task.at(16)
        task.task.notify_checkpoint_aborted(2)
        task.trigger(2)
        await task.settle()
        found.append(await task.snapshot(1))

    done = driven(source(), drive)
    barrier, cancellation = done.events
    assert isinstance(barrier, CheckpointBarrier)
    assert (barrier.checkpoint_id, barrier.timestamp_ms) == (1, 7)
    assert (barrier.snapshot_type, barrier.alignment) == (SnapshotType.CHECKPOINT, AlignmentType.ALIGNED)
    assert cancellation == CancelCheckpointMarker(2)
    assert done.completed == [(1, 15)]
    assert (found[0].checkpoint, found[0].next_sequence) == (1, 2)


@pytest.mark.parametrize(("version", "ms"), [("2.x", 800), ("1.15", 300)])
def test_a_barrier_that_may_time_out_in_the_output_is_watched_there(version: str, ms: float):
    """The checkpoint is acknowledged at its timeout, and has the data that the barrier overtakes. Flink 1.15 does not wait."""
    options = {
        **CHECKPOINTS,
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "500 ms",
    }

    def block(task: Deployed) -> None:
        task.reads = False

    def begin(task: Deployed) -> None:
        task.task.trigger_checkpoint(TriggerCheckpoint("attempt", 1, 1_000_300, "leader", False))

    done = during(source(), 900, (15, block), (300, begin), version=version, **options)
    (taken,) = done.heard(AcknowledgeCheckpoint)
    assert done.completed == [(1, ms)]
    assert (taken.persisted_bytes > 0) is (ms == 800)


# ---- the end


def test_I_76_a_bounded_source_without_checkpoints_ends_before_its_consumers_have_processed_everything():
    """testNotWaitingForAllRecordsProcessedIfCheckpointNotEnabled. Its end of data comes after its last record."""
    done = during(BOUNDED, 1000, (0, hold))
    assert done.received[-2:] == [(5, EndOfData(StopMode.DRAIN)), (5, EndOfPartition())]
    assert (done.noted("source.end"), done.ended_at) == ([{"next": 3}], 5)


def test_a_bounded_source_ends_when_a_checkpoint_after_its_last_record_is_complete():
    """One before it, or one that is only triggered, does not cover it."""
    steps = [
        (0, hold), (1, trigger(1)), (100, process_all), (200, complete(1)), (300, trigger(2)),
        (400, complete(1)), (500, complete(2)),
    ]  # fmt: skip
    done = during(BOUNDED, 1000, *steps, **CHECKPOINTS)
    assert (done.completed, done.ended_at) == ([(1, 1), (2, 300)], 500)
    assert done.waits("final-checkpoint") == [("", 100, 500, Outcome.FIRED)]
    (row,) = done.rows("waits", "final-checkpoint")
    assert row["option"] == "execution.checkpointing.interval"


def test_a_bounded_source_that_no_checkpoint_covers_ends_at_once():
    """Without checkpoints after tasks finish."""
    assert during(BOUNDED, 1000, (0, hold), **UNCOVERED).ended_at == 5


@pytest.mark.parametrize("options", [{}, CHECKPOINTS, UNCOVERED])
def test_a_drained_source_ends_with_its_final_checkpoint(options: dict[str, str]):
    """The data ends before the barrier; the wait for it is decided by the stop, not by the interval."""
    steps = [(0, hold), (15, trigger(4, drain=True)), (100, process_all), (200, complete(4))]
    done = during(source(), 1000, *steps, **options)
    end, barrier, last = done.events
    assert (end, last) == (EndOfData(StopMode.DRAIN), EndOfPartition())
    assert isinstance(barrier, CheckpointBarrier)
    assert barrier.snapshot_type is SnapshotType.SAVEPOINT_TERMINATE
    assert (done.completed, done.ended_at) == ([(4, 15)], 200)
    assert done.rows("waits", "final-checkpoint") == []


def test_I_65_an_abortion_reports_the_checkpoint_that_was_completed_before():
    """The notification about it may have been lost (StreamTask.notifyCheckpointAbortAsync). An earlier one changes nothing."""
    steps = [
        (0, hold), (15, trigger(4, drain=True)), (100, process_all),
        (150, lambda task: task.task.notify_checkpoint_aborted(5, 3)),
        (200, lambda task: task.task.notify_checkpoint_aborted(5, 4)),
    ]  # fmt: skip
    assert during(source(), 1000, *steps, **CHECKPOINTS).ended_at == 200


def test_a_stop_that_comes_while_the_final_checkpoint_is_awaited_ends_the_wait():
    """It is not the interval that decided it."""
    steps = [(100, process_all), (300, trigger(2, drain=True)), (500, complete(2))]
    done = during(BOUNDED, 1000, *steps, **CHECKPOINTS)
    assert done.ended_at == 500
    assert [(row["outcome"], row["attempt"]) for row in done.rows("waits", "final-checkpoint")] == [
        (Outcome.COMPLETED, 2)
    ]


def test_a_source_that_is_cancelled_waits_for_no_checkpoint_any_more():
    """The wait is cancelled too."""
    done = during(BOUNDED, 1000, (100, process_all), **CHECKPOINTS)
    assert [outcome for *_, outcome in done.waits("final-checkpoint")] == [Outcome.CANCELLED]
    assert done.states[-1] == "CANCELED"
