"""An operator or sink task: what it does with data, events and timers, and what its snapshots contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    EndOfSuperstep,
    SnapshotType,
    StopMode,
)
from testbed_runtime.core.job.jobgraph import JobVertex, OperatorConfig, SinkConfig
from testbed_runtime.core.job.messages import AcknowledgeCheckpoint, CommitRecords
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY, IDLE
from testbed_runtime.workload.operators import SLICE_RECORDS_FIRST
from testbed_runtime.workload.records import framed, latency_marker, marker_positions
from tests.taskmanager.deployed import T0_S, Deployed, data, driven, records

CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}
UNALIGNED = {**CHECKPOINTS, "execution.checkpointing.unaligned.enabled": "true"}
TIMEOUT = {**UNALIGNED, "execution.checkpointing.aligned-checkpoint-timeout": "500 ms"}
SMALL = {"taskmanager.memory.segment-size": "4 kb"}
"""A buffer has room for four records of 1,020 bytes."""


def operator(kind: str = "map", **config: Any) -> JobVertex:
    return JobVertex("work", 1, 128, operator=OperatorConfig(kind=kind, **config))


def sink(**config: Any) -> JobVertex:
    return JobVertex("work", 1, 128, sink=SinkConfig(**config))


def barrier(
    number: int = 1, alignment: AlignmentType = AlignmentType.ALIGNED, **more: Any
) -> CheckpointBarrier:
    return CheckpointBarrier(number, int(T0_S * 1000), alignment, **more)


def full_buffers(count: int) -> bytes:
    """The data of so many full buffers, with `SMALL`."""
    return data(0, 4 * count, record_bytes=1020)


# ---- data


def test_a_record_that_spans_buffers_is_processed_when_it_is_complete():
    """Bytes and buffers count when they come, records when they are processed. Each channel has its own rest."""

    async def drive(task: Deployed) -> None:
        whole = data(0, 2)
        for channel, part in ((0, whole[:150]), (1, whole[:10]), (0, whole[150:] + whole[:104])):
            task.send(channel, part)
            await task.settle()
        assert task.counts == [1, 2]
        meter = task.task.meter
        assert (meter.records_in, meter.bytes_in, meter.buffers_in) == (3, 150 + 10 + 58 + 104, 3)

    driven(operator(), drive)


def test_a_function_works_in_slices_and_the_task_lets_others_run_between_them(tmp_path: Path):
    """Not after the last one. The reader gets each slice when it is done; a slice that took no time is followed by a larger one."""
    (tmp_path / "user.py").write_text("def f(record):\n    return record\n")

    async def drive(task: Deployed) -> None:
        task.send(0, data(0, 100))

    task = driven(operator("python", function=f"{tmp_path}/user.py:f"), drive)
    first = SLICE_RECORDS_FIRST
    assert task.counts == [first, 2 * first, 100 - 3 * first]
    assert task.yields == 2


def test_a_function_that_drops_records_says_so_once(tmp_path: Path):
    """A slice without a result emits nothing."""
    (tmp_path / "user.py").write_text("def f(record):\n    return None\n")

    async def drive(task: Deployed) -> None:
        for first in (0, 1):
            task.send(0, data(first, 1))
            await task.settle()

    task = driven(operator("python", function=f"{tmp_path}/user.py:f"), drive)
    assert (task.counts, task.noted("function.dropped")) == ([], [{}])


@pytest.mark.parametrize("made", [operator, sink])
@pytest.mark.parametrize(
    ("service_s", "handled"),
    [
        (0.002, {9.9: 0, 10.2: 5}),
        (0.004, {7.9: 0, 8.2: 2, 16.2: 4, 20.2: 5}),
        (0.02, {19.9: 0, 20.2: 1, 40.2: 2}),
    ],
)
def test_the_service_time_is_spent_for_each_record(made: Any, service_s: float, handled: dict[float, int]):
    """Before it counts as processed. After 10 ms, or one by one, the first records of a buffer are passed on before the last ones."""

    async def drive(task: Deployed) -> None:
        task.send(0, data(0, 5))
        for ms, count in handled.items():
            await task.at(ms)
            assert task.task.meter.records_in == count
            assert made is sink or sum(task.counts) == count

    driven(made(service_time_s=service_s), drive)


@pytest.mark.parametrize(("made", "yields"), [(sink, 2), (operator, 16)])
def test_a_sink_reads_several_buffers_at_once_and_an_operator_reads_one(made: Any, yields: int):
    """Between them the task lets others run. 18 buffers arrive, the first of each channel alone."""

    async def drive(task: Deployed) -> None:
        for channel in (0, 1):
            task.send(channel, full_buffers(9))

    task = driven(made(), drive, **SMALL)
    assert (task.task.meter.buffers_in, task.modes) == (18, {BUSY})
    assert task.yields == pytest.approx(yields, abs=1)


def test_a_sink_that_is_slow_by_its_own_doing_reads_one_buffer_at_a_time():
    """Otherwise more data than Flink has would be on its way."""

    async def drive(task: Deployed) -> None:
        task.send(0, full_buffers(9))
        meter = task.task.meter
        for ms in (2, 6, 10, 14):
            await task.at(ms)
            assert 4 * (meter.buffers_in - 1) == meter.records_in

    driven(sink(service_time_s=0.001), drive, **SMALL)


@pytest.mark.parametrize("tracked", [True, False])
def test_latency_markers_are_taken_out_of_the_stream_in_their_place(tracked: bool):
    """The records before and after them are processed in two parts; without the option they are records."""

    async def drive(task: Deployed) -> None:
        marker = latency_marker(100, 0, 0, int((task.clock.now() - 0.5) * 1e9))
        task.send(0, data(0, 2) + bytes(framed(marker)) + data(2, 3))
        await task.settle()
        (found,) = task.records
        assert [*marker_positions(found)] == [2]
        meter = task.task.meter
        assert (meter.records_in, meter.records_out) == ((5, 5) if tracked else (6, 6))

    task = driven(operator(), drive, **({"metrics.latency.interval": "1 s"} if tracked else {}))
    expected = [("source-0", [500])] if tracked else []
    assert [
        (m["source"], [round(ns / 1e6) for ns in m["ns"]]) for m in task.noted("latency.markers")
    ] == expected


def test_the_markers_since_the_last_sample_are_written_at_the_end_of_a_task():
    """A sample writes those of a second together."""

    async def drive(task: Deployed) -> None:
        for ms in (0, 100):
            await task.at(ms)
            task.send(0, bytes(framed(latency_marker(100, 0, 0, int(task.clock.now() * 1e9)))))
            await task.settle()
            task.task.meter.sample()
            assert len(task.noted("latency.markers")) == 1

    task = driven(operator(), drive, **{"metrics.latency.interval": "1 s"})
    assert [len(row["ns"]) for row in task.noted("latency.markers")] == [1, 1]


def test_the_records_of_a_task_carry_its_path():
    """A sink tells by it which way a record took."""

    async def drive(task: Deployed) -> None:
        task.send(0, data(0, 2))

    (found,) = driven(operator(), drive).records
    assert all(found["path"].tolist())
    assert not any(records(0, 2)["path"].tolist())


# ---- the loop


def test_a_task_without_input_is_idle_and_one_without_a_buffer_is_back_pressured():
    """It reads no more input then, goes on when its reader does, and loses nothing."""

    async def drive(task: Deployed) -> None:
        meter = task.task.meter
        assert meter.mode == IDLE
        task.reads = False
        for _ in range(2):
            task.send(0, full_buffers(9))
            await task.settle()
        assert (meter.mode, meter.buffers_in) == (BACKPRESSURED, 10)
        await task.at(100)
        task.go_on()
        await task.settle()
        assert (meter.mode, meter.buffers_in) == (IDLE, 18)
        meter.sample()

    task = driven(operator(), drive, **SMALL)
    assert task.sequences == [*range(36)] * 2
    spent = task.history.trial().rows("tasks")[0]
    assert spent["backpressured_ns"] / 1e6 == pytest.approx(100, abs=1)


def test_a_barrier_that_overtakes_is_handled_while_the_output_is_full():
    """The data before it, which is not processed, is in the snapshot."""

    async def drive(task: Deployed) -> None:
        task.reads = False
        for _ in range(2):
            task.send(0, full_buffers(9))
            await task.settle()
        read = task.task.meter.buffers_in
        unaligned = barrier(1, AlignmentType.UNALIGNED)
        for channel in (0, 1):
            task.send(channel, unaligned)
        await task.settle()
        assert task.task.meter.buffers_in == read
        found = await task.snapshot(1)
        assert sum(s.size for s in found.output_state) > 0
        assert sum(s.size for s in found.input_state) > 0

    driven(operator(), drive, **SMALL, **UNALIGNED)


def test_a_gate_is_connected_when_every_producer_has_answered():
    """One is registered later than the other; the wait for it ends when it answers."""

    async def drive(task: Deployed) -> None:
        for ms, number in ((50, 0), (100, 1)):
            await task.at(ms)
            assert task.rows("events", "gate.connected") == []
            task.upstream.register(task.producers[number])
            task.upstream.server.arm()
            task.send(number, data(0, 1))
        await task.settle()
        task.send(0, data(0, 1))

    task = driven(operator(), drive, started=False)
    (event,) = task.rows("events", "gate.connected")
    assert event["t_ns"] / 1e6 == pytest.approx(1e6 + 100, abs=1)
    assert len(task.rows("events", "gate.connected")) == 1


# ---- timers


async def one_record_and_a_late_barrier(task: Deployed) -> None:
    task.send(0, data(0, 1), barrier(1, alignment_timeout_ms=500))
    await task.at(1200)


@pytest.mark.parametrize(("window_s", "timeout_ms"), [(0.3, 500), (1.0, 500), (0.5, 500)])
def test_a_window_and_a_barrier_that_times_out_each_have_their_time(window_s: float, timeout_ms: int):
    """Whichever comes first, while the task has nothing to read."""
    task = driven(operator("window", window_s=window_s), one_record_and_a_late_barrier, **TIMEOUT)
    events = [(ms, what) for ms, what in task.received if not isinstance(what, int)]
    assert [ms for ms, what in task.received if what == 1] == [window_s * 1000]
    assert [(ms, what.alignment) for ms, what in events] == [(timeout_ms, AlignmentType.UNALIGNED)]


def test_a_sink_that_commits_at_once_does_so_after_its_interval_and_again_after_the_next_record():
    """A sink that commits with checkpoints does not, and neither does one that has nothing to report."""

    async def drive(task: Deployed) -> None:
        for ms, first in ((50, 0), (120, 1), (400, 2)):
            await task.at(ms)
            task.send(0, data(first, 1))
        await task.at(1000)

    task = driven(sink(delivery="at-least-once"), drive)
    assert [(ms, what.commit.weight) for ms, what in task.messages if isinstance(what, CommitRecords)] == [
        (250, 2),
        (600, 1),
    ]
    assert driven(sink(), drive).heard(CommitRecords) == []


def test_a_sink_that_commits_at_once_still_lets_a_barrier_time_out():
    """The flush, at 200 ms, is sooner than the barrier, at 500."""

    async def drive(task: Deployed) -> None:
        await one_record_and_a_late_barrier(task)
        task.send(1, barrier(1, alignment_timeout_ms=500))

    task = driven(sink(delivery="at-least-once"), drive, **TIMEOUT)
    assert [ms for ms, what in task.messages if isinstance(what, CommitRecords)] == [200]
    (taken,) = task.heard(AcknowledgeCheckpoint)
    assert taken.alignment_s == pytest.approx(1.2, abs=0.01)


# ---- checkpoints


def test_a_snapshot_is_taken_at_the_last_barrier_and_forwarded():
    """The channels whose barriers came first wait for it. The alignment is a wait if it took more than a millisecond."""

    async def drive(task: Deployed) -> None:
        task.send(0, data(0, 1), barrier(), data(1, 1))
        await task.at(500)
        assert (task.counts, task.completed) == ([1], [])
        task.send(1, data(0, 1), barrier(), data(1, 1))
        await task.settle()

    task = driven(operator("keyed-count"), drive, **CHECKPOINTS)
    assert [what for _, what in task.received] == [1, 1, barrier(), 1, 1]
    assert task.completed == [(1, 500)]
    (taken,) = task.heard(AcknowledgeCheckpoint)
    assert (taken.alignment_s, taken.commit) == (pytest.approx(0.5, abs=0.001), None)
    assert task.waits("alignment") == [("checkpoint 1", 0, 500, "completed")]


@pytest.mark.parametrize(("ms", "waits"), [(0.9, 0), (2.1, 1)])
def test_a_short_alignment_is_no_wait(ms: float, waits: int):
    """A millisecond, the resolution of a timer."""

    async def drive(task: Deployed) -> None:
        await task.at(1)
        task.send(0, barrier())
        await task.at(1 + ms)
        task.send(1, barrier())

    assert len(driven(operator(), drive, **CHECKPOINTS).waits("alignment")) == waits


def test_a_checkpoint_that_the_jobmaster_has_aborted_is_cancelled_downstream():
    """No snapshot is taken. The next one is."""

    async def drive(task: Deployed) -> None:
        task.task.notify_checkpoint_aborted(1)
        for number in (1, 2):
            for channel in (0, 1):
                task.send(channel, barrier(number))
            await task.settle()

    task = driven(operator(), drive, **CHECKPOINTS)
    assert task.events == [CancelCheckpointMarker(1), barrier(2)]
    assert (task.completed, task.declined) == ([(2, 0)], [])


def test_an_abort_that_comes_after_the_barrier_changes_nothing():
    """The snapshot is taken, and the checkpoint after it too."""

    async def drive(task: Deployed) -> None:
        for number in (1, 2):
            for channel in (0, 1):
                task.send(channel, barrier(number))
            await task.settle()
            task.task.notify_checkpoint_aborted(1)

    assert driven(operator(), drive, **CHECKPOINTS).completed == [(1, 0), (2, 0)]


def test_A_38_an_unaligned_checkpoint_is_declined_once_a_channel_has_the_barrier_of_a_newer_one():
    """The task aborts it and takes no snapshot (SingleCheckpointBarrierHandler.markCheckpointAlignedAndTransformState). The newer
    checkpoint is taken."""

    async def drive(task: Deployed) -> None:
        task.send(0, barrier(1, alignment_timeout_ms=60_000))
        await task.settle()
        # both arrive before the task handles the first of them
        for channel, checkpoint in ((1, 1), (2, 2), (0, 2), (1, 2)):
            task.send(channel, barrier(checkpoint, AlignmentType.UNALIGNED))

    task = driven(operator(), drive, channels=3, **UNALIGNED)
    assert task.declined == [(1, "CHECKPOINT_SUBSUMED")]
    assert [number for number, _ in task.completed] == [2]
    assert sorted(type(event).__name__ for event in task.events) == [
        "CancelCheckpointMarker",
        "CheckpointBarrier",
    ]


def test_a_checkpoint_that_is_aborted_is_declined_and_cancelled_downstream():
    """A newer barrier comes before the last one of the older checkpoint, which is not declined again."""

    async def drive(task: Deployed) -> None:
        task.send(0, barrier(1))
        await task.settle()
        task.send(1, barrier(2))
        await task.settle()
        task.send(0, barrier(2))

    task = driven(operator(), drive, **CHECKPOINTS)
    assert task.events == [CancelCheckpointMarker(1), barrier(2)]
    assert task.declined == [(1, "CHECKPOINT_DECLINED_SUBSUMED")]
    assert task.completed == [(2, 0)]


def test_a_cancellation_of_a_producer_is_passed_on():
    """The checkpoint is declined, and the channel that waits for it goes on."""

    async def drive(task: Deployed) -> None:
        task.send(0, barrier(1), data(0, 1))
        await task.settle()
        task.send(1, CancelCheckpointMarker(1))

    task = driven(operator(), drive, **CHECKPOINTS)
    assert [what for _, what in task.received] == [CancelCheckpointMarker(1), 1]
    assert task.declined == [(1, "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER")]


def test_a_channel_that_ends_is_not_waited_for():
    """The snapshot is taken at its END_OF_PARTITION."""

    async def drive(task: Deployed) -> None:
        task.send(0, barrier(1))
        task.send(1, EndOfData(StopMode.DRAIN))
        await task.at(200)
        assert task.completed == []
        task.producers[1].finish()

    assert driven(operator(), drive, **CHECKPOINTS).completed == [(1, 200)]


@pytest.mark.parametrize(("version", "ms"), [("2.x", 700), ("1.15", 0)])
def test_a_barrier_that_may_time_out_in_the_output_is_watched_there(version: str, ms: float):
    """The checkpoint is acknowledged when the reader has the barrier, or at its timeout with the data that it overtakes."""

    async def drive(task: Deployed) -> None:
        task.reads = False
        task.send(0, data(0, 1))
        await task.settle()
        for channel in (0, 1):
            task.send(channel, barrier(1, alignment_timeout_ms=700))
        await task.at(900)

    task = driven(operator(), drive, version=version, **TIMEOUT)
    assert task.completed == [(1, ms)]
    (taken,) = task.heard(AcknowledgeCheckpoint)
    assert taken.persisted_bytes == (104 if ms else 0)


def test_an_unaligned_snapshot_has_the_data_before_the_barriers_that_have_not_come():
    """The rest of an incomplete record, and the data that is taken before the barrier. Data after a channel's barrier is not in it."""
    whole = data(0, 1)

    async def drive(task: Deployed) -> None:
        task.send(0, whole[:10])
        await task.settle()
        task.send(0, barrier(1, AlignmentType.UNALIGNED))
        await task.settle()
        assert (task.events, task.completed) == ([barrier(1, AlignmentType.UNALIGNED)], [])
        for channel, part in ((0, whole[10:]), (1, whole[:20])):
            task.send(channel, part)
            await task.settle()
        await task.at(250)
        task.send(1, barrier(1, AlignmentType.UNALIGNED))
        await task.settle()
        states = {s.channel: b"".join(s.data) for s in (await task.snapshot(1)).input_state}
        assert states == {0: whole[:10], 1: whole[:20]}

    task = driven(operator(), drive, **UNALIGNED)
    (taken,) = task.heard(AcknowledgeCheckpoint)
    assert taken.alignment_s == pytest.approx(0.25, abs=0.001)
    assert task.waits("alignment") == [("checkpoint 1", 0, 250, "completed")]


def test_an_unaligned_checkpoint_that_is_cancelled_is_not_stored():
    """The next one is, with its own data."""

    async def drive(task: Deployed) -> None:
        task.send(0, barrier(1, AlignmentType.UNALIGNED))
        await task.settle()
        task.send(1, CancelCheckpointMarker(1))
        await task.settle()
        task.send(0, data(0, 1))
        for channel in (0, 1):
            task.send(channel, barrier(2, AlignmentType.UNALIGNED))
        await task.settle()
        assert sum(s.size for s in (await task.snapshot(2)).input_state) in (0, 104)

    task = driven(operator(), drive, **UNALIGNED)
    assert [number for number, _ in task.completed] == [2]
    assert [number for number, _ in task.declined] == [1]


@pytest.mark.parametrize("kind", [SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT_TERMINATE])
def test_a_sinks_snapshot_has_its_commit(kind: SnapshotType):
    """With the number of its records since the last one."""

    async def drive(task: Deployed) -> None:
        for number, count in ((4, 2), (5, 3)):
            for channel in (0, 1):
                task.send(channel, data(0, count), barrier(number, snapshot_type=kind))
            await task.settle()

    taken = driven(sink(), drive, **CHECKPOINTS).heard(AcknowledgeCheckpoint)
    assert [(one.checkpoint, one.commit.weight) for one in taken] == [(4, 4), (5, 6)]


def test_a_file_sink_publishes_its_part_when_the_checkpoint_is_complete():
    """Not before. An operator has nothing to do with a completed checkpoint."""

    async def drive(task: Deployed) -> None:
        for channel in (0, 1):
            task.send(channel, data(0, 2), barrier(7))
        await task.settle()
        before = await published(task)
        task.task.notify_checkpoint_complete(7)
        await task.settle()
        assert (before, len(await published(task))) == ([], 1)

    async def published(task: Deployed) -> list[str]:
        return [key for key in await task.blobs.list("") if key.startswith("out") and ".staged" not in key]

    driven(sink(kind="file", path="out"), drive, **CHECKPOINTS)
    driven(operator(), nothing_happens, **CHECKPOINTS)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [(SnapshotType.CHECKPOINT, []), (SnapshotType.SAVEPOINT_TERMINATE, ["out/part-0-000004"])],
)
def test_the_savepoint_of_a_drain_covers_what_its_sink_wrote(kind: SnapshotType, parts: list[str]):
    """The sink waits for it, and publishes its part then. It waits for no checkpoint, where tasks may end without one."""
    key = "execution.checkpointing.checkpoints-after-tasks-finish.enabled"

    async def drive(task: Deployed) -> None:
        for channel in (0, 1):
            task.send(channel, data(0, 2), EndOfData(StopMode.DRAIN), barrier(4, snapshot_type=kind))
        await task.settle()
        for producer in task.producers:
            producer.finish()
        await task.settle()
        assert task.states[-1] == ("RUNNING" if parts else "FINISHED")
        if parts:
            task.task.notify_checkpoint_complete(4)
            await task.settle()
        assert task.states[-1] == "FINISHED"
        assert await task.blobs.list("out/part") == parts

    driven(sink(kind="file", path="out"), drive, **CHECKPOINTS, **{key: "false"})


async def nothing_happens(task: Deployed) -> None:
    task.task.notify_checkpoint_complete(7)
    await task.settle()
    assert task.states[-1] == "RUNNING"


# ---- the end


@pytest.mark.parametrize(("modes", "passed"), [("DD", "DRAIN"), ("DN", "NO_DRAIN"), ("NN", "NO_DRAIN")])
def test_the_end_of_the_data_is_forwarded_once_when_every_channel_has_it(modes: str, passed: str):
    """After what the operator still holds. It drains if every channel does, and the producers learn that it was processed."""
    named = {"D": StopMode.DRAIN, "N": StopMode.NO_DRAIN}

    async def drive(task: Deployed) -> None:
        task.send(0, data(0, 3), EndOfData(named[modes[0]]))
        await task.settle()
        assert task.received == []
        assert not task.producers[0].all_data_processed
        task.send(1, EndOfData(named[modes[1]]))
        await task.settle()
        assert all(producer.all_data_processed for producer in task.producers)
        for producer in task.producers:
            producer.finish()

    task = driven(operator("window", window_s=60.0), drive)
    assert [what for _, what in task.received] == [3, EndOfData(StopMode[passed]), EndOfPartition()]
    assert (task.states[-1], task.noted("sink.end")) == ("FINISHED", [])


def test_a_sink_notes_the_end_of_its_data():
    """Once, with two channels."""

    async def drive(task: Deployed) -> None:
        task.end()

    assert driven(sink(), drive).noted("sink.end") == [{}]


def test_a_superstep_ends_when_every_channel_has_ended_it():
    """Again and again."""

    async def drive(task: Deployed) -> None:
        for channel, ended in ((0, 0), (1, 1), (1, 1), (0, 2)):
            task.send(channel, EndOfSuperstep())
            await task.settle()
            assert task.events == [EndOfSuperstep()] * ended

    driven(operator(), drive)
