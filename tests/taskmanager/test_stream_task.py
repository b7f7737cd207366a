"""An operator or sink task: what it does with data, events and timers, and what its snapshots contain."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from testbed_runtime.core.exchange.alignment import Complete, Overtaken, Trigger
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    EndOfSuperstep,
    SnapshotType,
    StopMode,
)
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.job.jobgraph import OperatorConfig, SinkConfig, SourceConfig
from testbed_runtime.core.options import Options
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY, IDLE
from testbed_runtime.taskmanager.stream import ALIGNMENT_MIN_S, RUN_BUFFERS, StreamTask
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.workload.keyedstate import KeyedState, SubtaskContext
from testbed_runtime.workload.records import framed, latency_marker
from testbed_runtime.workload.snapshots import ChannelState, SubtaskSnapshot
from testbed_runtime.workload.sources import GeneratedSource

T0_S = 1000.0
"""The time at which a virtual loop begins."""
UNALIGNED = {"execution.checkpointing.interval": "1 s", "execution.checkpointing.unaligned.enabled": "true"}


def records(first: int, count: int) -> Any:
    made = GeneratedSource(SourceConfig(), vertex=0, subtask=0, parallelism=1, seed=3, t0_ns=int(T0_S * 1e9))
    return made.records(first, count)


def data(*parts: Any) -> list[Buffer]:
    """Buffers of these records, or bytes."""
    return [
        Buffer.unpooled(bytes(part if isinstance(part, bytes) else framed(part)), DataType.DATA_BUFFER)
        for part in parts
    ]


class Stream:
    """A task with `channels` input channels whose input is a list of (channel, buffers or event). `done` has what it did."""

    def __init__(
        self,
        *arrivals: tuple[int, Any] | None,
        operator: OperatorConfig | None = None,
        sink: SinkConfig | None = None,
        channels: int = 2,
        **options: str,
    ) -> None:
        self.arrivals = deque(arrivals)
        self.done: list[tuple[Any, ...]] = []
        self.modes: list[int] = []
        self.asked: list[int] = []
        self.started: list[Any] = []
        self.refuses: set[int] = set()
        self.waits: list[tuple[str, str, float]] = []
        self.input: Any = SimpleNamespace(
            channel_count=channels, gates=[], finished=False, is_available=True, has_priority=False,
            connected=False, received_end_of_data=True, draining=True, poll=self._poll,
            resume=lambda channel: self.did("resume", channel),
            prioritize=lambda channel, sequence: self.did("prioritize", channel, sequence),
            in_flight=lambda channel, checkpoint: (b"%d" % channel,),
            state_of=lambda channel, parts: ChannelState(0, channel, tuple(parts)),
            acknowledge_end_of_data=lambda: self.did("acknowledge"),
        )  # fmt: skip
        self.output: Any = SimpleNamespace(
            is_available=True, all_data_processed=True, emit=self._emit, emit_marker=self._marker,
            broadcast=lambda event: self.did("broadcast", type(event).__name__),
            send_barrier=lambda barrier: (ChannelState(0, 9, (b"out",)),), barriers_sent=lambda barrier: barrier,
            notify_end_of_data=lambda drain: self.did("end", drain), when_available=lambda wakeup: self.did("waits"),
        )  # fmt: skip
        self.meter: Any = SimpleNamespace(
            records_in=0, bytes_in=0, buffers_in=0, enter=self.modes.append, received=lambda *_: None,
            marked=lambda source, ns: self.did("marked", source, ns),
        )  # fmt: skip
        vertex = SimpleNamespace(operator=operator, sink=sink)
        self.run: Any = self._run_of(vertex, Options(options))
        self.task = StreamTask(self.run)

    def _run_of(self, vertex: Any, options: Options) -> Any:
        context = SubtaskContext(1, "count", 0, 1, 128, int(T0_S * 1e9), ("source", "count"))
        return SimpleNamespace(
            name="count-0",
            subtask=context,
            descriptor=SimpleNamespace(vertex=vertex, attempt_number=0, job_vertices=context.names),
            meter=self.meter,
            input=self.input,
            output=self.output,
            wakeup=Wakeup(),
            running_at=T0_S,
            files=SimpleNamespace(state=KeyedState),
            committer=SimpleNamespace(
                commit=lambda commit: self.did("commit", commit.weight), handed_over=None
            ),
            checkpoints=SimpleNamespace(
                begin=lambda number: number not in self.refuses,
                start=self.started.append,
                abandon=lambda number: self.did("abandon", number),
                decline_soon=lambda number, reason: self.did("decline", number, reason),
                last_started=0,
                last_completed=0,
            ),
            requests=SimpleNamespace(note_answers=lambda since_s: self.did("answers", since_s - T0_S)),
            services=SimpleNamespace(
                options=options,
                cpu=SimpleNamespace(yield_control=self._yield, spend=asyncio.sleep),
                clock=SimpleNamespace(now=self.now),
                blobs=None,
            ),
            work=None,
            now=self.now,
            now_ns=lambda: int(self.now() * 1e9),
            event=lambda kind, **_: self.did(kind),
            wait=lambda kind, what, *, since_s, **_: self.waits.append(
                (kind, what, round(since_s - T0_S, 3))
            ),
            empty_snapshot=lambda number: SubtaskSnapshot(number, "count", 0, 1, 128),
            on_completed=None,
        )

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def did(self, *what: Any) -> None:
        self.done.append(what)

    async def _yield(self) -> None:
        self.did("yield")

    def _poll(self, most: int) -> Any:
        self.asked.append(most)
        if not self.arrivals:
            self.input.finished = True
            return 0, EndOfPartition()
        found = self.arrivals.popleft()
        if found is None:
            self.run.wakeup.set()
        return found

    async def _emit(self, found: Any) -> None:
        self.did("emit", len(found))

    async def _marker(self, marker: Any) -> None:
        self.did("marker")

    def take(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [one for one in self.done if one[0] in kinds]


def handled(made: Any, *items: tuple[int, Any], then: Any = None) -> Stream:
    """The task after it has handled these items. `made` makes it; `then` is called with it at the end."""

    async def main() -> Stream:
        stream: Stream = made()
        for channel, item in items:
            await stream.task._handle(channel, item)
        if then is not None:
            found = then(stream)
            if found is not None:
                await found
        return stream

    return run_virtual(main())


def mapping(**more: Any) -> Stream:
    return Stream(operator=OperatorConfig(kind="map"), **more)


def barrier(
    number: int = 1, alignment: AlignmentType = AlignmentType.ALIGNED, **more: Any
) -> CheckpointBarrier:
    return CheckpointBarrier(number, 0, alignment, **more)


# ---- data


def test_a_record_that_spans_buffers_is_processed_when_it_is_complete():
    """Bytes and buffers count when they come, records when they are processed. Each channel has its own rest."""
    whole = bytes(framed(records(0, 2)))
    items = [(0, data(whole[:150])), (1, data(whole[:10])), (0, data(whole[150:], whole[:104]))]
    stream = handled(mapping, *items)
    assert stream.take("emit") == [("emit", 1), ("emit", 2)]
    meter = stream.meter
    assert (meter.records_in, meter.bytes_in, meter.buffers_in) == (3, 150 + 10 + 58 + 104, 4)


def test_an_operator_that_works_in_slices_yields_between_them():
    """Not after the last one."""

    def sliced() -> Stream:
        stream = mapping()
        operator: Any = stream.task.operator
        operator.slice_records = 2
        operator.took = lambda count, seconds: stream.did("took", count)
        return stream

    stream = handled(sliced, (0, data(records(0, 5))))
    assert stream.done == [
        ("took", 2), ("emit", 2), ("yield",), ("took", 2), ("emit", 2), ("yield",), ("took", 1), ("emit", 1),
    ]  # fmt: skip


def test_an_operator_that_drops_records_says_so_once():
    """An operator without a result emits nothing."""

    def dropping() -> Stream:
        stream = mapping()
        operator: Any = stream.task.operator
        operator.drops, operator.process = True, lambda found: None
        return stream

    stream = handled(dropping, (0, data(records(0, 1))), (0, data(records(1, 1))))
    assert stream.done == [("function.dropped",)]


def test_the_service_time_of_an_operator_or_a_sink_is_spent_for_each_record():
    """Before it is processed; 3 ms for three."""
    for made in (
        lambda: Stream(operator=OperatorConfig(service_time_s=0.001)),
        lambda: Stream(sink=SinkConfig(service_time_s=0.001)),
    ):

        async def main(made: Any = made) -> tuple[float, Stream]:
            stream, loop = made(), asyncio.get_running_loop()
            begin = loop.time()
            await stream.task._handle(0, data(records(0, 3)))
            return loop.time() - begin, stream

        seconds, stream = run_virtual(main())
        assert seconds == pytest.approx(0.003)
        assert stream.meter.records_in == 3


@pytest.mark.parametrize(
    ("made", "most"),
    [
        (lambda: Stream(sink=SinkConfig()), RUN_BUFFERS),
        (lambda: Stream(sink=SinkConfig(service_time_s=0.001)), 1),
        (mapping, 1),
    ],
    ids=["sink", "slow sink", "operator"],
)
def test_a_task_that_is_slow_by_its_own_doing_takes_one_buffer_at_a_time(made: Any, most: int):
    """Otherwise more data than Flink has would be on its way."""
    assert handled(made).task._run_buffers == most


def test_latency_markers_are_taken_out_of_the_stream_in_their_place():
    """The records before and after them are processed in two parts; without the option they are records."""
    marker = latency_marker(100, 0, 0, int((T0_S - 0.5) * 1e9))
    bytes_ = bytes(framed(records(0, 2))) + bytes(framed(marker)) + bytes(framed(records(2, 3)))
    tracked = partial(mapping, **{"metrics.latency.interval": "1 s"})
    stream = handled(tracked, (0, data(bytes_)))
    assert stream.done == [("emit", 2), ("marked", "source-0", 500_000_000), ("marker",), ("emit", 3)]
    assert handled(mapping, (0, data(bytes_))).done == [("emit", 6)]


# ---- the loop


def loop_of(*arrivals: tuple[int, Any] | None, made: Any = mapping) -> Stream:
    async def main() -> Stream:
        stream: Stream = made()
        stream.arrivals.extend(arrivals)
        await stream.task.run()
        return stream

    return run_virtual(main())


def test_a_task_that_has_no_input_is_idle_and_one_that_has_no_buffer_is_backpressured():
    """A barrier that overtakes is handled meanwhile."""
    stream = loop_of(None)
    assert stream.modes[:2] == [IDLE, BUSY]

    def blocked() -> Stream:
        made = mapping()
        made.output.is_available = False

        def free() -> None:
            made.output.is_available = True
            made.run.wakeup.set()

        asyncio.get_running_loop().call_later(1.0, free)
        return made

    stream = loop_of((0, data(records(0, 1))), made=blocked)
    assert stream.modes[:2] == [BACKPRESSURED, BUSY]
    assert stream.done[0] == ("waits",)

    def urgent() -> Stream:
        made = mapping()
        made.output.is_available, made.input.has_priority = False, True
        return made

    assert loop_of((0, data(records(0, 1))), made=urgent).take("waits") == []


def test_answers_of_producers_are_noted_until_all_channels_are_connected():
    """With the time since when the task was busy."""

    def connecting() -> Stream:
        made = mapping()
        made.input.connected = True
        return made

    stream = loop_of((0, data(records(0, 1))), (0, data(records(1, 1))), made=connecting)
    assert stream.take("answers", "gate.connected") == [("answers", 0.0), ("gate.connected",)]
    waiting = loop_of((0, data(records(0, 1))), (0, data(records(1, 1))))
    assert len(waiting.take("answers")) == 3
    assert waiting.take("gate.connected") == []


def test_a_task_yields_after_data_if_there_is_more():
    """An event costs next to nothing."""
    stream = loop_of((0, data(records(0, 1))), (0, EndOfSuperstep()))
    assert stream.take("emit", "yield") == [("emit", 1), ("yield",)]


def test_a_task_waits_at_its_end_until_its_output_was_read():
    """Unless it may finish before its consumers."""
    for options, ends_s in (({}, 9.0), ({**UNALIGNED, "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "false"}, 0.0)):  # fmt: skip

        async def main(options: Any = options) -> float:
            loop = asyncio.get_running_loop()
            stream = mapping(**options)
            stream.output.all_data_processed = False

            def read() -> None:
                stream.output.all_data_processed = True
                stream.run.wakeup.set()

            loop.call_later(9.0, read)
            await stream.task._finish()
            return loop.time() - T0_S

        assert run_virtual(main()) == ends_s


# ---- timers


def test_the_next_timer_is_the_first_of_those_of_the_operator_the_sink_and_the_barriers():
    """A task without timers looks at its barriers only."""

    def check(stream: Stream) -> None:
        assert stream.task._next_timer() is None
        barriers: Any = SimpleNamespace(deadline=None)
        stream.task._barriers = barriers
        for operator_s, flush_s, deadline_s, expected in (
            (None, None, None, None), (5.0, None, None, 5.0), (5.0, 4.0, None, 4.0), (5.0, 4.0, 3.0, 3.0),
            (None, None, 3.0, 3.0), (None, 4.0, 9.0, 4.0), (0.5, 4.0, 9.0, 0.5),
        ):  # fmt: skip
            operator: Any = SimpleNamespace(
                next_timer_ns=lambda at=operator_s: None if at is None else int(at * 1e9)
            )
            sink: Any = SimpleNamespace(next_flush=lambda at=flush_s: at)
            stream.task.operator, stream.task._sink = operator, sink
            barriers.deadline = deadline_s
            stream.task._has_timers = True
            assert stream.task._next_timer() == expected
            stream.task._has_timers = False
            assert stream.task._next_timer() == deadline_s

    handled(mapping, then=check)


@pytest.mark.parametrize(
    ("made", "timers"),
    [
        (mapping, False),
        (lambda: Stream(operator=OperatorConfig(kind="window", window_s=1.0)), True),
        (lambda: Stream(sink=SinkConfig()), False),
        (lambda: Stream(sink=SinkConfig(delivery="at-least-once")), True),
    ],
    ids=["map", "window", "sink", "at-least-once sink"],
)
def test_only_windows_and_at_least_once_sinks_have_timers(made: Any, timers: bool):
    """Debloating has one too."""

    assert handled(made).task._has_timers is timers


# ---- checkpoints


def test_a_snapshot_is_taken_at_the_last_barrier_and_forwarded():
    """The alignment is a wait if it took more than a millisecond."""

    async def main() -> Stream:
        stream = mapping(**{"execution.checkpointing.interval": "1 s"})
        await stream.task._handle(0, barrier())
        await asyncio.sleep(0.5)
        assert stream.started == []
        await stream.task._handle(1, barrier())
        return stream

    stream = run_virtual(main())
    (taken,) = stream.started
    assert (taken.snapshot.checkpoint, taken.alignment_s, taken.commit) == (1, 0.5, None)
    assert taken.snapshot.output_state == (ChannelState(0, 9, (b"out",)),)
    assert taken.output is None
    assert stream.waits == [("alignment", "checkpoint 1", 0.0)]
    assert stream.take("resume") == [("resume", 0), ("resume", 1)]


@pytest.mark.parametrize(("seconds", "waits"), [(ALIGNMENT_MIN_S, 0), (2 * ALIGNMENT_MIN_S, 1)])
def test_a_short_alignment_is_no_wait(seconds: float, waits: int):
    """A millisecond, the resolution of a timer."""
    stream = handled(mapping, then=lambda s: s.task._checkpoint(Trigger(barrier(), seconds)))
    assert len(stream.waits) == waits


def test_an_aborted_checkpoint_is_cancelled_downstream():
    """No snapshot is taken."""

    def refused() -> Stream:
        stream = mapping()
        stream.refuses = {1}
        return stream

    stream = handled(refused, then=lambda s: s.task._checkpoint(Trigger(barrier(), 0.0)))
    assert (stream.started, stream.done) == ([], [("broadcast", "CancelCheckpointMarker")])


def test_a_sinks_snapshot_has_its_commit_and_remembers_a_savepoint():
    """The savepoint of a drain covers what it wrote."""
    made = partial(Stream, sink=SinkConfig())
    for kind, savepoint in ((SnapshotType.CHECKPOINT, 0), (SnapshotType.SAVEPOINT_TERMINATE, 4)):
        trigger = Trigger(barrier(4, snapshot_type=kind), 0.0)
        stream = handled(made, (0, data(records(0, 2))), then=lambda s, t=trigger: s.task._checkpoint(t))
        (taken,) = stream.started
        sink: Any = stream.task._sink
        assert (taken.commit.weight, sink.savepoint) == (2, savepoint)


@pytest.mark.parametrize(("version", "waits"), [("2.x", True), ("1.15", False)])
def test_a_barrier_that_may_time_out_in_the_output_is_watched_there(version: str, waits: bool):
    """Only if it may time out at all."""

    def check(stream: Stream) -> None:
        timeoutable = barrier(1, alignment_timeout_ms=1000)
        stream.task._checkpoint(Trigger(timeoutable, 0.0))
        stream.task._checkpoint(Trigger(barrier(2), 0.0))
        assert [taken.output is not None for taken in stream.started] == [waits, False]

    def made() -> Stream:
        stream = mapping(**UNALIGNED)
        stream.run.services.options = Options(UNALIGNED, flink_version=version)
        stream.task = StreamTask(stream.run)
        return stream

    handled(made, then=check)


def test_an_unaligned_snapshot_has_the_data_before_the_barriers_that_have_not_come():
    """The rest of an incomplete record, the data that is taken before the barrier, and the data that the barrier overtakes."""
    whole = bytes(framed(records(0, 1)))

    async def main() -> Stream:
        stream = mapping(**UNALIGNED)
        await stream.task._handle(0, data(whole[:10]))
        stream.task._perform([Trigger(barrier(1, AlignmentType.UNALIGNED), 0.0), Overtaken(0)])
        assert stream.started == []
        await stream.task._handle(0, data(whole[10:]))
        await stream.task._handle(1, data(whole[:20]))
        stream.task._perform([Overtaken(1), Complete(1, 0.25)])
        await asyncio.sleep(0.25)
        stream.task._perform([Complete(1, 0.25)])
        return stream

    stream = run_virtual(main())
    (taken,) = stream.started
    assert taken.alignment_s == 0.25
    states = {state.channel: b"".join(state.data) for state in taken.snapshot.input_state}
    assert states == {0: whole[:10] + b"0", 1: whole[:20] + b"1"}


def test_a_checkpoint_that_is_aborted_is_declined_and_cancelled_downstream():
    """A newer barrier comes before the last one of the older checkpoint."""
    stream = handled(
        lambda: mapping(**{"execution.checkpointing.interval": "1 s"}), (0, barrier(1)), (1, barrier(2))
    )
    assert [one[:2] for one in stream.take("abandon", "broadcast", "decline")] == [
        ("abandon", 1), ("broadcast", "CancelCheckpointMarker"), ("decline", 1),
    ]  # fmt: skip


def test_a_completed_checkpoint_is_passed_on_to_the_sink():
    """An operator has nothing to do with it."""

    def check(stream: Stream) -> None:
        sink: Any = stream.task._sink
        sink.completed = lambda number: stream.did("completed", number)
        stream.run.on_completed(7)

    assert handled(lambda: Stream(sink=SinkConfig()), then=check).done == [("completed", 7)]
    handled(mapping, then=lambda stream: stream.run.on_completed(7))


# ---- the end


def test_the_end_of_the_data_is_forwarded_once_when_every_channel_has_it():
    """After what the operator still holds. A sink records it."""

    def waiting() -> Stream:
        stream = mapping()
        stream.input.received_end_of_data = False
        return stream

    end = EndOfData(StopMode.DRAIN)
    assert handled(waiting, (0, end)).done == []

    def holding() -> Stream:
        stream = mapping()
        operator: Any = stream.task.operator
        operator.finish = lambda: records(0, 2)
        return stream

    stream = handled(holding, (0, end), (1, end))
    assert stream.done == [("emit", 2), ("end", True), ("acknowledge",)]
    stream = handled(lambda: Stream(sink=SinkConfig()), (0, end))
    assert stream.done == [("end", True), ("acknowledge",), ("sink.end",)]


def test_a_superstep_ends_when_every_channel_has_ended_it():
    """Again and again."""
    end = EndOfSuperstep()
    for ended, counts in (([0], 0), ([0, 1], 1), ([0, 1, 0], 1), ([0, 1, 1, 0], 2)):
        stream = handled(mapping, *((channel, end) for channel in ended))
        assert stream.done == [("broadcast", "EndOfSuperstep")] * counts


def test_the_records_of_a_task_carry_its_path():
    """A sink tells by it which way a record took."""
    paths: list[Any] = []

    def made() -> Stream:
        stream = mapping()

        async def emit(found: Any) -> None:
            paths.extend(found["path"].tolist())

        stream.output.emit = emit
        return stream

    handled(made, (0, data(records(0, 2))))
    assert len(paths) == 2
    assert all(paths)
