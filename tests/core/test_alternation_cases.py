"""Cases of AlternatingCheckpointsTest, AlignedCheckpointsTest, CheckpointBarrierTrackerTest and CheckpointedInputGateTest: one kind of
checkpoint after another, how long each was aligned, and barriers that come too late."""

from __future__ import annotations

import pytest

from testbed_runtime.core.exchange.alignment import (
    ON_CANCELLATION_BARRIER,
    SUBSUMED,
    Abort,
    AlignedBarrierHandler,
    AlternatingBarrierHandler,
    BarrierHandler,
    BarrierTracker,
    Complete,
    Effect,
    Overtaken,
    Resume,
    Trigger,
)
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CheckpointBarrier,
    SnapshotType,
    data_type_of,
    encode_event,
)
from testbed_runtime.core.exchange.frames import BufferResponse
from testbed_runtime.core.exchange.memory import Buffer
from tests.core.exchange_model import Consumer, barrier, data_frame, deliver, receiver_id

ALIGNED, UNALIGNED = AlignmentType.ALIGNED, AlignmentType.UNALIGNED
SAVEPOINT = SnapshotType.SAVEPOINT_TERMINATE


def savepoint(number: int) -> CheckpointBarrier:
    """An aligned barrier, as that of a savepoint is."""
    return CheckpointBarrier(number, 0, ALIGNED, snapshot_type=SAVEPOINT)


def seconds(effects: list[Effect]) -> list[tuple[str, float]]:
    """How long a checkpoint was aligned when it was triggered, and when it was complete."""
    return [(type(e).__name__, round(e.alignment_s, 6)) for e in effects if isinstance(e, Trigger | Complete)]


class Task:
    """A task with remote channels whose data is counted if it belongs to the unaligned checkpoint."""

    def __init__(self, channels: int) -> None:
        self.consumer = Consumer(segments=64, channels=channels)
        self.consumer.connect()
        self.handler = AlternatingBarrierHandler(channels)
        self.sequence = [0] * channels
        self.persisted = [0] * channels
        self.open: set[int] = set()
        self.triggered: list[int] = []
        self.aborted: list[int] = []

    def arrive(self, channel: int, *items: CheckpointBarrier | bytes) -> None:
        for item in items:
            number, self.sequence[channel] = self.sequence[channel], self.sequence[channel] + 1
            if isinstance(item, bytes):
                deliver(self.consumer.client, data_frame(channel, number, 0, item))
                continue
            event = BufferResponse(
                receiver_id(channel), 0, number, 0, data_type_of(item), memoryview(encode_event(item)), False
            )
            deliver(self.consumer.client, event)

    def read(self, *, all_of_it: bool = True) -> None:
        """Read what there is, or one element."""
        while (polled := self.consumer.gate.poll()) is not None:
            channel, item = polled
            if isinstance(item, Buffer):
                item.recycle()
                self.persisted[channel] += channel in self.open
            else:
                assert isinstance(item, CheckpointBarrier)
                self._perform(self.handler.on_barrier(channel, item, 0.0))
            if not all_of_it:
                return

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Trigger(started):
                    self.triggered.append(started.checkpoint_id)
                    self.open = set(range(len(self.sequence)))
                    for channel in self.consumer.gate.channels:
                        channel.checkpoint_started(started.checkpoint_id)
                case Overtaken(channel):
                    found = self.consumer.channel(channel).in_flight(self.triggered[-1])
                    self.persisted[channel] += len(found)
                    self.open.discard(channel)
                case Abort(checkpoint):
                    self.aborted.append(checkpoint)


def test_I_77_data_of_a_channel_that_a_savepoint_had_blocked_belongs_to_the_next_checkpoint() -> None:
    """A savepoint's barrier and data on one channel; then an unaligned barrier on the other one."""
    task = Task(2)
    task.arrive(0, savepoint(0))
    task.read()
    task.arrive(0, b"captured")
    task.arrive(1, barrier(1, UNALIGNED))
    task.read()
    assert (task.triggered, task.aborted) == ([1], [0])
    assert task.persisted == [1, 0]


def test_I_78_each_newer_checkpoint_resumes_the_channel_that_the_one_before_had_blocked() -> None:
    """Four checkpoints, each with one barrier, on one channel after the other."""
    handler = AlternatingBarrierHandler(2)
    assert handler.on_barrier(0, savepoint(0), 0.0) == []
    for number in range(1, 4):
        channel = number % 2
        found = handler.on_barrier(channel, barrier(number) if channel else savepoint(number), 0.0)
        assert found == [Abort(number - 1, SUBSUMED), Resume(1 - channel)]
        assert (handler.blocked, handler.is_pending) == ((channel,), True)


def test_I_79_each_kind_of_checkpoint_knows_how_long_it_was_aligned() -> None:
    """An aligned one of 6 ms, a savepoint of 5 ms, and an unaligned one whose last barrier comes after 10 ms."""
    handler = AlternatingBarrierHandler(2)
    assert handler.on_barrier(0, barrier(1), 1.0) == []
    assert seconds(handler.on_barrier(1, barrier(1), 1.006)) == [("Trigger", 0.006)]
    assert handler.on_barrier(0, savepoint(2), 1.006) == []
    assert seconds(handler.on_barrier(1, savepoint(2), 1.011)) == [("Trigger", 0.005)]
    assert seconds(handler.on_barrier(0, barrier(3, UNALIGNED), 1.011)) == [("Trigger", 0.0)]
    assert seconds(handler.on_barrier(1, barrier(3, UNALIGNED), 1.021)) == [("Complete", 0.01)]


@pytest.mark.parametrize(
    "handler", [AlternatingBarrierHandler(1), AlignedBarrierHandler(1), BarrierTracker(1)]
)
def test_I_80_a_single_channel_is_aligned_at_once(handler: BarrierHandler) -> None:
    """A checkpoint and a savepoint, each with one barrier."""
    assert seconds(handler.on_barrier(0, barrier(1), 1.0)) == [("Trigger", 0.0)]
    assert seconds(handler.on_barrier(0, savepoint(2), 1.006)) == [("Trigger", 0.0)]


@pytest.mark.parametrize(
    ("sent", "triggers", "resumed"),
    [(barrier(123, UNALIGNED), [1, 0], []), (savepoint(123), [0, 1], [0, 1])],
    ids=["checkpoint", "savepoint"],
)
def test_I_81_a_checkpoint_begins_with_its_first_barrier_and_a_savepoint_with_its_last(
    sent: CheckpointBarrier, triggers: list[int], resumed: list[int]
) -> None:
    """Both channels are resumed after a savepoint. A checkpoint whose barriers overtake blocks none."""
    handler = AlternatingBarrierHandler(2)
    effects = [handler.on_barrier(channel, sent, 0.0) for channel in (0, 1)]
    assert [sum(isinstance(e, Trigger) for e in found) for found in effects] == triggers
    assert [e.channel for found in effects for e in found if isinstance(e, Resume)] == resumed


def test_I_82_an_aligned_checkpoint_is_pending_until_its_last_barrier() -> None:
    """The first of two barriers."""
    handler = AlternatingBarrierHandler(2)
    assert handler.on_barrier(0, barrier(1), 0.0) == []
    assert handler.is_pending
    assert seconds(handler.on_barrier(1, barrier(1), 0.0)) == [("Trigger", 0.0)]
    assert not handler.is_pending


@pytest.mark.parametrize("handler", [AlignedBarrierHandler(3), BarrierTracker(3)], ids=["aligned", "tracker"])
def test_I_83_the_alignment_is_from_the_first_barrier_to_the_last(handler: BarrierHandler) -> None:
    """10 ms between the second and the third one of three."""
    assert handler.on_barrier(1, barrier(1), 1.0) == []
    assert handler.on_barrier(0, barrier(1), 1.0) == []
    assert seconds(handler.on_barrier(2, barrier(1), 1.01)) == [("Trigger", 0.01)]


def test_I_84_checkpoints_one_after_another_block_and_resume_each_channel() -> None:
    """Four checkpoints with their barriers in different orders; nothing is blocked between them."""
    handler = AlignedBarrierHandler(3)
    for number, order in enumerate(((1, 2, 0), (0, 1, 2), (2, 0, 1), (1, 2, 0)), 1):
        for count, channel in enumerate(order[:-1], 1):
            assert handler.on_barrier(channel, barrier(number), 0.0) == []
            assert handler.blocked == order[:count]
        last = handler.on_barrier(order[-1], barrier(number), 0.0)
        assert last == [Trigger(barrier(number), 0.0), *(Resume(channel) for channel in order)]
        assert handler.blocked == ()


@pytest.mark.parametrize("drains", [True, False], ids=["I-85", "I-86"])
def test_I_85_I_86_an_obsolete_barrier_does_not_end_what_belongs_to_a_checkpoint(drains: bool) -> None:
    """Checkpoint 2 begins on one channel. Barriers of checkpoint 1 come late on the others, before those of 2. It makes no
    difference whether the task reads meanwhile or only at the end."""
    task, data, two, one = Task(3), b"x", barrier(2, UNALIGNED), barrier(1, UNALIGNED)
    task.arrive(0, data, two, data)
    task.arrive(1, data, one, data)
    task.arrive(2, data)
    assert task.triggered == []
    task.read(all_of_it=False)
    assert task.triggered == [2]
    for channel in range(3):
        task.arrive(channel, data)
    if drains:
        task.read()
        assert task.persisted == [1, 3, 2]
    task.arrive(1, two, data)
    task.arrive(2, one, data)
    if drains:
        task.read()
        assert task.persisted == [1, 3, 3]
    task.arrive(2, two, data)
    task.read()
    assert (task.persisted, task.triggered, task.aborted) == ([1, 3, 3], [2], [])


def test_I_87_a_cancellation_after_the_first_barrier_aborts_a_checkpoint_that_has_begun() -> None:
    """Its channel state is never complete."""
    handler = AlternatingBarrierHandler(2)
    assert handler.on_barrier(0, barrier(1, UNALIGNED), 0.0) == [
        Trigger(barrier(1, UNALIGNED), 0.0),
        Overtaken(0),
    ]
    assert handler.on_cancellation(1, 1, 0.0) == [Abort(1, ON_CANCELLATION_BARRIER)]
    assert [handler.on_end_of_partition(channel, 0.0) for channel in (0, 1)] == [[], []]


def test_I_88_the_tracker_of_one_channel_triggers_every_barrier() -> None:
    """Six checkpoints, with and without data in between; each is triggered when its barrier comes."""
    handler = BarrierTracker(1)
    found = [handler.on_barrier(0, barrier(number), 0.0) for number in range(1, 7)]
    assert found == [[Trigger(barrier(number), 0.0)] for number in range(1, 7)]
