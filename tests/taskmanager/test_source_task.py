"""A source task: when it emits, how much at once, what a checkpoint covers, and when it may finish."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any

import pytest

from testbed_runtime.core.errors import FlinkError, UserError
from testbed_runtime.core.exchange.events import AlignmentType, SnapshotType
from testbed_runtime.core.exchange.records import LENGTH_BYTES
from testbed_runtime.core.job.jobgraph import SourceConfig
from testbed_runtime.core.job.messages import TriggerCheckpoint
from testbed_runtime.core.job.splits import NO_SPLIT
from testbed_runtime.core.waits import Outcome
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable, RemoteFailure
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY, IDLE
from testbed_runtime.taskmanager.source import shortest_interval_s
from testbed_runtime.workload.snapshots import SubtaskSnapshot
from testbed_runtime.workload.sources import BATCH_RECORDS
from tests.taskmanager.scripted_source import (
    CHECKPOINTS,
    RATE,
    T0_S,
    UNCOVERED,
    Source,
    during,
    inside,
    named,
    process_all,
)

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
    """32 KiB, with records of 104 bytes; more subtasks fill theirs later. A static rate limit is shared in the same way."""

    def check() -> None:
        source = Source(parallelism=parallelism, **{"headgate.flow-control.rate": "50"})
        assert source.task._fill_s == pytest.approx((32 << 10) / (100 * 104) * parallelism)
        assert source.task._limiter.rate == 50 / parallelism

    inside(check)


def test_a_record_is_emitted_when_it_is_due():
    """One each 10 ms; between them the source is idle. Records of less than a tick are emitted together."""
    assert named(during(Source, 0.025), "emit") == [("emit", 1, 0.0), ("emit", 1, 10.0), ("emit", 1, 20.0)]
    fast = SourceConfig(records_per_second=1000.0)
    assert during(lambda: Source(fast), 0.011) == [("emit", 1, 0.0), ("emit", 5, 5.0), ("emit", 5, 10.0)]


def test_a_lazy_source_emits_shortly_before_its_flusher():
    """Half a tick; or when its buffers are partly full."""
    fast = SourceConfig(records_per_second=1000.0)
    made = partial(Source, fast, lazy=True, flush_ms=30.0)
    assert during(made, 0.029) == [("emit", 1, 0.0), ("emit", 27, 27.5)]

    def small() -> Source:
        source = Source(fast, lazy=True, flush_ms=200.0)
        source.task._fill_s = 0.2
        return source

    assert during(small, 0.045) == [("emit", 1, 0.0), ("emit", 20, 20.0), ("emit", 20, 40.0)]


def test_a_lazy_source_emits_what_is_due_before_a_barrier():
    """The barrier comes after what a source would have emitted by then. One that waits for its output has deferred nothing."""
    fast = SourceConfig(records_per_second=1000.0)
    made = partial(Source, fast, lazy=True, flush_ms=100.0)
    done = during(made, 0.05, (0.0125, lambda source: source.trigger(1)))
    assert named(done, "emit", "barrier")[:3] == [("emit", 1, 0.0), ("emit", 12, 12.5), ("barrier", 1, 12.5)]
    eager = during(lambda: Source(fast), 0.014, (0.0125, lambda source: source.trigger(1)))
    assert eager[-2:] == [("barrier", 1, 12.5), ("emit", 2, 12.5)]

    def blocked(source: Source) -> None:
        source.output.is_available = False
        source.trigger(1)

    done = during(made, 0.05, (0.0125, blocked))
    assert named(done, "emit", "barrier") == [("emit", 1, 0.0), ("barrier", 1, 12.5)]


def test_a_source_waits_for_its_output_and_counts_it():
    """It is back-pressured meanwhile, and idle while nothing is due."""
    made: list[Source] = []

    def blocked() -> Source:
        made.append(Source())
        made[0].output.is_available = False
        return made[0]

    def free(source: Source) -> None:
        source.output.is_available = True
        source.run.wakeup.set()

    done = during(blocked, 0.035, (0.025, free))
    assert done == [("waits", 0.0), ("emit", 3, 25.0), ("emit", 1, 30.0)]
    assert made[0].output.waits == 1
    assert made[0].modes[:4] == [BACKPRESSURED, BUSY, IDLE, BUSY]


def test_a_batch_grows_while_nothing_is_waited_for_and_fits_a_buffer_otherwise():
    """A barrier waits for the batch before it."""

    def check() -> None:
        source = Source()
        source.output.buffer_bytes = 10 * (RATE.record_bytes + LENGTH_BYTES)
        sizes = []
        for waits in (0, 1, 1, 1, 2):
            source.output.waits = waits
            sizes.append(source.task._batch_records())
        assert sizes == [BATCH_RECORDS, 10, 20, 40, 10]
        for buffer_bytes, size in ((1, 1), (1 << 30, BATCH_RECORDS)):
            source.output.buffer_bytes, source.output.waits = buffer_bytes, source.output.waits + 1
            assert source.task._batch_records() == size

    inside(check)


def test_latency_markers_are_emitted_in_their_interval():
    """With the time of their emission; without the option there is none."""
    done = during(lambda: Source(metrics_latency_interval="15 ms"), 0.036)
    assert named(done, "marker") == [("marker", 15.0, 15.0), ("marker", 30.0, 30.0)]
    assert named(during(Source, 0.036), "marker") == []


def test_the_coordinators_rate_limits_a_source_and_the_static_limit_holds_too():
    """A negative rate frees it; 0 stops it."""

    def check() -> None:
        free, limited = Source(), Source(**{"headgate.flow-control.rate": "50"})
        for source, rate, allowed in (
            (free, 20.0, 20.0), (free, 0.0, 0.0), (free, -1.0, -1.0),
            (limited, 20.0, 20.0), (limited, 80.0, 50.0), (limited, -1.0, 50.0),
        ):  # fmt: skip
            source.run.on_rate(rate)
            assert source.task._limiter.rate == allowed

    inside(check)
    done = during(lambda: Source(**{"headgate.flow-control.rate": "50"}), 0.1)
    assert [at for _, _, at in named(done, "emit")] == [20.0, 40.0, 60.0, 80.0]


def test_the_lag_of_a_source_is_that_of_its_next_record():
    """None while a lazy one waits for its flusher, and none after its end."""

    def check() -> None:
        due_ns = int(T0_S * 1e9)
        source, lazy = Source(), Source(lazy=True)
        assert [source.run.meter.lag_at(due_ns + ns) for ns in (-5, 7)] == [0, 7]
        assert lazy.run.meter.lag_at(due_ns + 7) == 7
        lazy.task._idle = source.task._idle = True
        assert (lazy.run.meter.lag_at(due_ns + 7), source.run.meter.lag_at(due_ns + 7)) == (0, 7)
        source.task._end_data()
        assert source.run.meter.lag_at(due_ns + 7) == 0

    inside(check)


def test_a_lazy_source_that_waits_for_a_buffer_in_the_middle_of_a_batch_has_a_lag():
    """It is not idle then: the records after the batch fall behind."""
    lags: list[int] = []

    def stuck() -> Source:
        source = Source(SourceConfig(records_per_second=1000.0), lazy=True, flush_ms=30.0)

        async def emit(block: Any, start: int, end: int) -> None:
            await asyncio.sleep(1.0 if start else 0.0)

        source.output.emit_of = emit
        return source

    def look(source: Source) -> None:
        lags.append(round(source.run.meter.lag_at(source.run.now_ns()) / 1e6))

    during(stuck, 0.6, (0.02, look), (0.528, look))
    assert lags == [0, 500]


# ---- splits and restores


def test_a_source_with_splits_requests_one_after_the_other():
    """Ten records in five splits: two each, until there is none."""
    config = SourceConfig(records_per_second=1000.0, limit=10, splits=5)

    def made() -> Source:
        source = Source(config)
        source.splits.extend((0, 3, NO_SPLIT))
        return source

    done = named(during(made, 0.1), "split", "emit", "end")
    assert [one[:2] for one in done] == [
        ("split", 0), ("emit", 1), ("emit", 1), ("split", 1), ("emit", 2), ("split", 2), ("end", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (AskTimeout("timed out"), "jobmanager"),
        (RecipientUnreachable("gone"), "jobmanager"),
        (RemoteFailure("Exception", "no"), ""),
    ],
)
def test_a_split_that_cannot_be_requested_fails_the_task(error: Exception, wait: str):
    """The wait for the JobManager ended, unless it answered."""
    source = SourceConfig(limit=10, splits=5)

    def made() -> Source:
        found = Source(source)
        found.splits.append(error)
        return found

    with pytest.raises(FlinkError, match="Requesting the next input split failed") as caught:
        during(made, 1.0)
    assert (caught.value.class_name, caught.value.wait) == ("InputSplitProviderException", wait)


@pytest.mark.parametrize(("next_sequence", "limit"), [(0, 0), (1, 2), (2, 2), (3, 4)])
def test_a_restored_source_goes_on_after_its_last_record(next_sequence: int, limit: int):
    """With splits, up to the end of the one that it was in. Other subtasks' snapshots are not its own."""

    async def main() -> None:
        source = Source(SourceConfig(limit=10, splits=5))
        found = [
            SubtaskSnapshot(1, "source", subtask, 1, 128, next_sequence=number)
            for subtask, number in ((0, next_sequence), (1, 9))
        ]
        await source.task.restore(found)
        generated: Any = source.task.source
        assert (generated.next_sequence, generated.limit) == (next_sequence, limit)

    run_virtual(main())


def test_a_source_whose_parallelism_has_changed_is_not_restored():
    """Which subtask made which record would change."""

    async def main() -> None:
        with pytest.raises(FlinkError, match="had a parallelism of 2 and has 1 now"):
            await Source().task.restore([SubtaskSnapshot(1, "source", 0, 2, 128)])

    run_virtual(main())


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (SourceConfig(kind="stars"), "'stars' is not a source"),
        (SourceConfig(kind="socket", socket="host"), "'host' is not an address"),
        (SourceConfig(kind="socket", socket="host:http"), "'host:http' is not an address"),
        (SourceConfig(kind="socket", socket="host:99"), "Could not connect to host:99: refused"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(config: SourceConfig, text: str):
    """The error has the field, or the address."""
    with pytest.raises((UserError, FlinkError), match=text):
        during(lambda: Source(config), 1.0)


# ---- checkpoints


def test_a_checkpoint_covers_the_records_before_its_barrier():
    """A checkpoint that was aborted has a cancellation instead."""
    made: list[Source] = []

    def source() -> Source:
        made.append(Source())
        made[0].refuses = {2}
        return made[0]

    done = during(source, 0.03, (0.015, lambda s: s.trigger(1)), (0.016, lambda s: s.trigger(2)))
    assert named(done, "barrier", "cancel") == [("barrier", 1, 15.0), ("cancel", 2, 16.0)]
    (taken,) = made[0].started
    assert (taken.snapshot.checkpoint, taken.snapshot.next_sequence, taken.output) == (1, 2, None)
    barrier = made[0].barrier
    assert (barrier.timestamp_ms, barrier.snapshot_type, barrier.alignment) == (
        7, SnapshotType.CHECKPOINT, AlignmentType.ALIGNED,
    )  # fmt: skip


@pytest.mark.parametrize(("version", "waits"), [("2.x", True), ("1.15", False)])
def test_a_barrier_that_may_time_out_in_the_output_is_watched_there(version: str, waits: bool):
    """Its overtaken data belongs to the snapshot."""

    def check() -> None:
        options = {
            **CHECKPOINTS,
            "execution.checkpointing.unaligned.enabled": "true",
            "execution.checkpointing.aligned-checkpoint-timeout": "1 s",
        }
        source = Source(version=version, **options)
        source.output.barriers_sent = lambda barrier: barrier
        source.task._checkpoint(TriggerCheckpoint("attempt", 1, 7, "leader"))
        (taken,) = source.started
        assert (taken.output is not None) is waits

    inside(check)


# ---- the end

BOUNDED = SourceConfig(records_per_second=1000.0, limit=3)


def complete(number: int) -> Any:
    def completed(source: Source) -> None:
        source.checkpoints.last_completed = number
        source.run.wakeup.set()

    return completed


def test_a_bounded_source_without_checkpoints_ends_when_its_consumers_have_processed_everything():
    """Its end of data comes after its last record."""
    done = during(lambda: Source(BOUNDED), 1.0, (0.5, process_all))
    assert named(done, "end", "source.end", "over") == [
        ("end", True, 5.0), ("source.end", 3, 5.0), ("over", 500.0),
    ]  # fmt: skip


def test_a_bounded_source_ends_when_a_checkpoint_after_its_last_record_is_complete():
    """One before it, or one that is only triggered, does not cover it."""
    steps = [
        (0.001, lambda s: s.trigger(1)), (0.1, process_all), (0.2, complete(1)), (0.3, lambda s: s.trigger(2)),
        (0.4, complete(1)), (0.5, complete(2)),
    ]  # fmt: skip
    made: list[Source] = []

    def source() -> Source:
        made.append(Source(BOUNDED, **CHECKPOINTS))
        return made[0]

    done = during(source, 1.0, *steps)
    assert named(done, "barrier", "over") == [("barrier", 1, 1.0), ("barrier", 2, 300.0), ("over", 500.0)]
    (wait,) = made[0].rows
    assert (wait["kind"], wait["outcome"], wait["option"]) == (
        "final-checkpoint", Outcome.FIRED, "execution.checkpointing.interval",
    )  # fmt: skip
    times = [(wait[name] / 1e9 - T0_S) for name in ("start_ns", "t_ns")]
    assert times == pytest.approx([0.1, 0.5])


def test_a_bounded_source_that_no_checkpoint_covers_ends_at_once():
    """Without checkpoints after tasks finish."""
    done = during(lambda: Source(BOUNDED, **UNCOVERED), 1.0)
    assert named(done, "over") == [("over", 5.0)]


def test_a_drained_source_ends_with_its_final_checkpoint():
    """The data ends before the barrier; the wait for it is decided by the stop, not by the interval."""
    steps = [(0.015, lambda s: s.trigger(4, drain=True)), (0.1, process_all), (0.2, complete(4))]
    for options in ({}, CHECKPOINTS, UNCOVERED):
        made: list[Source] = []

        def source(options: Any = options, made: Any = made) -> Source:
            made.append(Source(**options))
            return made[0]

        done = during(source, 1.0, *steps)
        assert named(done, "end", "barrier", "over") == [
            ("end", True, 15.0), ("barrier", 4, 15.0), ("over", 200.0),
        ]  # fmt: skip
        assert made[0].barrier.snapshot_type is SnapshotType.SAVEPOINT_TERMINATE
        assert made[0].rows == []


def test_a_stop_that_comes_while_the_final_checkpoint_is_awaited_ends_the_wait():
    """It is not the interval that decided it."""
    steps = [(0.1, process_all), (0.3, lambda s: s.trigger(2, drain=True)), (0.5, complete(2))]
    made: list[Source] = []

    def source() -> Source:
        made.append(Source(BOUNDED, **CHECKPOINTS))
        return made[0]

    assert named(during(source, 1.0, *steps), "over") == [("over", 500.0)]
    assert [(row["outcome"], row["attempt"]) for row in made[0].rows] == [(Outcome.COMPLETED, 2)]


def test_a_source_that_is_cancelled_waits_for_no_checkpoint_any_more():
    """The wait is cancelled too."""
    made: list[Source] = []

    def source() -> Source:
        made.append(Source(BOUNDED, **CHECKPOINTS))
        return made[0]

    during(source, 1.0, (0.1, process_all))
    assert [row["outcome"] for row in made[0].rows] == [Outcome.CANCELLED]
