"""Cases of UnalignedCheckpointsTest: what a gate hands out, and what belongs to the checkpoints of its channels."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from testbed_runtime.core.exchange.alignment import (
    INPUT_END_OF_STREAM,
    ON_CANCELLATION_BARRIER,
    Abort,
    AlternatingBarrierHandler,
    Complete,
    Effect,
    Overtaken,
    Trigger,
)
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfPartition,
    Event,
    data_type_of,
    encode_event,
)
from testbed_runtime.core.exchange.frames import BufferResponse
from testbed_runtime.core.exchange.memory import Buffer
from tests.core.exchange_model import Consumer, barrier, data_frame, deliver, receiver_id


@dataclass
class Task:
    """A task that reads everything at once. A data buffer is as many bytes as its number among the steps, plus one."""

    channels: int
    after_tasks_finish: bool = True
    now: float = 0.0
    triggered: list[int] = field(default_factory=list)
    aborted: list[tuple[int, str]] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    in_flight: dict[int, list[int]] = field(default_factory=dict)
    """The numbers of the buffers that belong to the latest checkpoint, by channel."""
    open: set[int] = field(default_factory=set)
    alignment_s: float = 0.0

    def __post_init__(self) -> None:
        self.consumer = Consumer(segments=64, channels=self.channels)
        self.consumer.connect()
        self.handler = AlternatingBarrierHandler(self.channels, after_tasks_finish=self.after_tasks_finish)
        self.sequence = [0] * self.channels

    def take(self, steps: str) -> None:
        """Take steps: `0` data of channel 0, `b1@0` a barrier of checkpoint 1, `c1@0` a cancellation, `e@0` the end."""
        self.output.clear()
        self.in_flight.clear()
        for number, step in enumerate(steps.split()):
            what, _, on = step.rpartition("@")
            channel = int(on)
            sequence, self.sequence[channel] = self.sequence[channel], self.sequence[channel] + 1
            if not what:
                frame = data_frame(channel, sequence, 0, bytes(number + 1))
            else:
                event = self._event(what)
                payload = memoryview(encode_event(event))
                frame = BufferResponse(
                    receiver_id(channel), 0, sequence, 0, data_type_of(event), payload, False
                )
            deliver(self.consumer.client, frame)
            self._poll()

    @staticmethod
    def _event(what: str) -> Event:
        if what == "e":
            return EndOfPartition()
        checkpoint = int(what[1:])
        return (
            barrier(checkpoint, AlignmentType.UNALIGNED)
            if what[0] == "b"
            else CancelCheckpointMarker(checkpoint)
        )

    def _poll(self) -> None:
        while (polled := self.consumer.gate.poll()) is not None:
            channel, item = polled
            if isinstance(item, Buffer):
                self.output.append(item.size - 1)
                if channel in self.open:
                    self.in_flight.setdefault(channel, []).append(item.size - 1)
                item.recycle()
            elif isinstance(item, CheckpointBarrier):
                self._perform(self.handler.on_barrier(channel, item, self.now))
            elif isinstance(item, CancelCheckpointMarker):
                self._perform(self.handler.on_cancellation(channel, item.checkpoint_id, self.now))
            else:
                self._perform(self.handler.on_end_of_partition(channel, self.now))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Trigger(barrier=found):
                    self.triggered.append(found.checkpoint_id)
                    self.open = set(range(self.channels))
                case Overtaken(channel):
                    self.open.discard(channel)
                case Abort(checkpoint, reason):
                    self.aborted.append((checkpoint, reason))
                    self.open.clear()
                case Complete(_, alignment_s):
                    self.alignment_s = alignment_s

    def check(self, steps: str, *in_flight: int) -> None:
        """Everything is handed out in the order in which it came, and these steps are in flight."""
        self.take(steps)
        assert self.output == [n for n, step in enumerate(steps.split()) if "@" not in step]
        assert sorted(n for found in self.in_flight.values() for n in found) == [*in_flight]


def test_I_32_without_barriers_nothing_is_in_flight() -> None:
    """One channel, and four."""
    Task(1).check("0 0 0 e@0")
    Task(4).check("2 2 0 1 0 e@0 3 1 e@3 1 e@1 2 e@2")


def test_I_33_one_channel_has_nothing_in_flight() -> None:
    """Each barrier completes its checkpoint."""
    task = Task(1)
    task.check("0 0 0 b1@0 0 0 0 0 b2@0 b3@0 0 0 b4@0 b5@0 b6@0 0 e@0")
    assert (task.triggered, task.aborted) == ([1, 2, 3, 4, 5, 6], [])


def test_I_34_what_comes_before_the_barrier_of_its_channel_is_in_flight() -> None:
    """Also without data, with data of one channel only, and in mixed order."""
    task = Task(3)
    task.check("0 2 0 b1@1 b1@2 2 1 0 b1@0", 7)
    task.check("0 0 1 1 2 b2@0 b2@1 b2@2")
    task.check("2 2 b3@2 2 2 b3@0 b3@1")
    task.check("b4@1 b4@2 b4@0")
    task.check("0 2 0 b5@1 2 0 2 1 b5@2 1 0 2 1 b5@0", 4, 5, 6, 10)
    task.check("0 e@0 e@1 e@2")
    assert task.triggered == [1, 2, 3, 4, 5]


def test_I_35_the_alignment_lasts_from_the_first_barrier_to_the_last() -> None:
    """Six buffers are processed meanwhile, and those before the barriers of the other channels are in flight."""
    task = Task(3)
    task.take("0 1 2 b1@1 0 1 2 b1@0 0 1 2")
    task.now = 0.01
    assert sorted(task.in_flight) == [0, 2]
    task.take("b1@2 0 1 2 e@0 e@1 e@2")
    assert task.alignment_s == pytest.approx(0.01)


def test_I_36_without_checkpoints_after_tasks_finish_the_end_of_a_channel_ends_the_pending_one() -> None:
    """In one sequence, and with a checkpoint that has been completed before."""
    trailing = Task(3, after_tasks_finish=False)
    trailing.check("0 1 2 b1@1 b1@2 b1@0 2 1 0 b2@1 1 1 e@1 0 2 b2@2 2 e@2 0 e@0")
    early = Task(3, after_tasks_finish=False)
    early.check("0 1 2 b1@1 b1@2 b1@0")
    early.check("2 1 0 b2@1 1 1 e@1 0 2 b2@2 2 e@2 0 e@0")
    for task in (trailing, early):
        assert (task.triggered, task.aborted) == ([1, 2], [(2, INPUT_END_OF_STREAM)])


def test_I_37_channels_that_ended_before_are_not_waited_for() -> None:
    """Two of four end before the first checkpoint, and a third between two."""
    task = Task(4)
    task.check("e@2 e@1 0 0 3 b2@3 b2@0")
    task.check("3 0 b3@3 3 0 b3@0", 4)
    task.check("b4@0 b4@3")
    task.check("0 0 3 e@0")
    task.check("3 b5@3 3 e@3")
    assert (task.triggered, task.aborted) == ([2, 3, 4, 5], [])


def test_I_38_the_end_of_a_channel_counts_as_its_barrier() -> None:
    """The data that the channel sent before it belongs to the checkpoint."""
    task = Task(3)
    task.check("b1@0 b1@1 b1@2")
    task.check("0 0 2 b2@2 b2@0 0 2 1 e@2 e@1 0 e@0", 7)
    assert (task.triggered, task.aborted) == ([1, 2], [])
    one = Task(3)
    one.check("b1@1 0 b1@0 1 e@2 e@0 e@1", 1)
    assert (one.triggered, one.aborted) == ([1], [])
    two = Task(3)
    two.check("e@0 b3@1 1 2 e@1 b3@2", 3)
    two.check("2 b4@2 e@2")
    assert (two.triggered, two.aborted) == ([3, 4], [])


def test_I_39_a_cancellation_ends_the_checkpoint_with_nothing_in_flight() -> None:
    """The pending checkpoint, a later one, or one that has not begun: its barriers begin none any more."""
    several = Task(3)
    several.check("0 2 0 b1@1 b1@2 2 1 b1@0 0 2")
    several.check("b2@0 b2@2 0 2 c2@1")
    several.check("2 1 b3@1 b3@2 b3@0")
    several.check("0 1 c4@1 b4@2 0 b4@0")
    several.check("0 1 2 b5@2 b5@1 b5@0 0 1")
    several.check("c6@1 c6@2 b6@0 0 e@0 e@1 e@2")
    assert several.triggered == [1, 2, 3, 5]
    assert several.aborted == [(number, ON_CANCELLATION_BARRIER) for number in (2, 4, 6)]
    one = Task(1)
    one.check("0 b1@0 0 b2@0 c4@0")
    one.check("b5@0 0 c6@0 0 e@0")
    assert one.triggered == [1, 2, 5]
    assert one.aborted == [(number, ON_CANCELLATION_BARRIER) for number in (4, 6)]
    two = Task(2)
    two.check("b1@0 c2@0 c3@0 c3@1 0 e@0 e@1")
    assert two.triggered == [1]
    assert two.aborted[-1] == (3, ON_CANCELLATION_BARRIER)


@pytest.mark.parametrize("cancelled", [0, 1])
def test_I_40_each_cancellation_of_a_later_checkpoint_is_passed_on(cancelled: int) -> None:
    """After the barrier of checkpoint 0, and before it: then its barrier triggers nothing."""
    after = Task(2)
    after.take("b0@0")
    assert after.handler.is_pending
    after.take(f"c{cancelled}@0 c{cancelled + 1}@0")
    assert [number for number, _ in after.aborted] == [cancelled, cancelled + 1]
    assert not after.handler.is_pending
    before = Task(1)
    before.take("c0@0 b0@0")
    assert (before.triggered, before.aborted) == ([], [(0, ON_CANCELLATION_BARRIER)])


@pytest.mark.parametrize(
    ("triggers", "aborts", "steps", "channels"),
    [
        (False, True, "c10 c20", 1), (False, True, "c20 c10", 1), (False, True, "c10 b10", 1), (True, True, "c10 b20", 1),
        (False, True, "c20 b10", 1), (True, False, "b10 b10", 1), (True, False, "b10 b20", 1), (True, True, "b10 b20", 2),
        (True, False, "b20 b10", 1), (True, False, "b10 c10", 1), (True, True, "b10 c10", 2), (True, True, "b10 c20", 1),
        (True, False, "b20 c10", 1),
    ],
)  # fmt: skip
def test_I_117_what_a_barrier_and_a_cancellation_do_one_after_the_other(
    triggers: bool, aborts: bool, steps: str, channels: int
) -> None:
    """UnalignedCheckpointsCancellationTest: both on the first channel, of the same checkpoint or of two."""
    task = Task(channels)
    task.take(" ".join(f"{step}@0" for step in steps.split()))
    assert (bool(task.triggered), bool(task.aborted)) == (triggers, aborts)
