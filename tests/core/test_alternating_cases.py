"""Timing cases of AlternatingCheckpointsTest: when announcements and barriers are read, and when the timer runs."""

from __future__ import annotations

import pytest

from testbed_runtime.core.exchange.alignment import (
    AlternatingBarrierHandler,
    Effect,
    Overtaken,
    Prioritize,
    Resume,
    Trigger,
)
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    CheckpointBarrier,
    Event,
    EventAnnouncement,
    data_type_of,
    encode_event,
)
from testbed_runtime.core.exchange.frames import BufferResponse
from testbed_runtime.core.exchange.memory import Buffer
from tests.core.exchange_model import Consumer, data_frame, deliver, receiver_id

FOREVER_MS = 2**31 - 1


class Task:
    """A task that takes one step at a time: `d0` data of channel 0 arrives, `t0` a barrier that may time out, `u0` one that
    overtakes; `A`, `B` and `D` read an announcement, a barrier, data; `l0` reads a barrier of a local channel; `+9` is 9 ms
    later, after which the timer runs, `~9` without it, and `!` runs it; `=1`: so many checkpoints were triggered."""

    def __init__(self, channels: int, timeout_ms: int) -> None:
        self.consumer = Consumer(segments=64, channels=channels)
        self.consumer.connect()
        self.handler = AlternatingBarrierHandler(channels)
        self.sequence = [0] * channels
        self.timeout_ms = timeout_ms
        self.now_ms = 0
        self.checkpoint = 1
        self.began_ms = 0
        self.triggered: list[CheckpointBarrier] = []
        self.in_flight: dict[int, int] = {}
        self.resumed: list[int] = []

    def barrier(self, kind: str) -> CheckpointBarrier:
        found = CheckpointBarrier(self.checkpoint, self.began_ms, AlignmentType.ALIGNED, self.timeout_ms)
        return found.as_unaligned() if kind == "u" else found

    def take(self, steps: str) -> None:
        for step in steps.split():
            what, rest = step[0], int(step[1:] or 0)
            if what in "dtu":
                self._arrive(what, rest)
            elif what == "l":
                self._perform(self.handler.on_barrier(rest, self.barrier("t"), self.now))
            elif what in "+~!":
                self.now_ms += rest
                self._perform(self.handler.on_time(self.now) if what != "~" else [])
            elif what == "=":
                assert len(self.triggered) == rest, (steps, step)
            elif what == "2":
                self.checkpoint, self.began_ms = 2, self.now_ms
            else:
                assert self._read() == what, (steps, step)

    @property
    def now(self) -> float:
        return self.now_ms / 1000

    def _arrive(self, what: str, channel: int) -> None:
        sequence, self.sequence[channel] = self.sequence[channel], self.sequence[channel] + 1
        if what == "d":
            deliver(self.consumer.client, data_frame(channel, sequence, 0, bytes(9)))
            return
        event = self.barrier(what)
        payload = memoryview(encode_event(event))
        frame = BufferResponse(receiver_id(channel), 0, sequence, 0, data_type_of(event), payload, False)
        deliver(self.consumer.client, frame)

    def _read(self) -> str:
        polled = self.consumer.gate.poll()
        assert polled is not None
        channel, item = polled
        return self._handle(channel, item)

    def _handle(self, channel: int, item: Buffer | Event) -> str:
        if isinstance(item, Buffer):
            item.recycle()
            return "D"
        if isinstance(item, EventAnnouncement):
            self._perform(self.handler.on_announcement(channel, item.sequence_number, item.event, self.now))
            return "A"
        assert isinstance(item, CheckpointBarrier)
        self._perform(self.handler.on_barrier(channel, item, self.now))
        return "B"

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Trigger):
                self.triggered.append(effect.barrier)
            elif isinstance(effect, Prioritize):
                self.consumer.channel(effect.channel).prioritize(effect.sequence_number)
            elif isinstance(effect, Overtaken):
                queued = self.consumer.channel(effect.channel).in_flight(self.checkpoint)
                self.in_flight[effect.channel] = len(queued)
            elif isinstance(effect, Resume):
                self.resumed.append(effect.channel)


@pytest.mark.parametrize(
    ("channels", "timeout_ms", "steps"),
    [
        pytest.param(2, 100, "t0 t1 =0 A A =0 +400 B =1", id="I-06"),
        pytest.param(2, 100, "t0 =0 A B ~400 t1 A B =1", id="I-43"),
        pytest.param(2, 10, "d0 d0 t0 d1 t1 =0 A A +11 B B =1 D D D", id="I-44"),
        pytest.param(2, 10, "d0 d0 t0 d1 t1 =0 A ~11 A ! B B =1 D D D", id="I-45"),
        pytest.param(2, 10, "d0 t0 d1 t1 =0 ~11 A ! A B B =1 D D", id="I-46"),
        pytest.param(2, 10, "d0 d0 t0 =0 A D D ~11 B ! d1 t1 A B =1 D", id="I-47"),
        pytest.param(2, 10, "l0 d1 t1 =0 ~11 A ! B =1 D", id="I-48"),
        pytest.param(3, 100, "l0 t1 t2 A A B B =1 +101 2 l0 =1 +101 t1 A B =2", id="I-49"),
        pytest.param(2, 100, "t0 t1 A A B B =1 2 d0 t0 d1 t1 =1 A A =1 +400 B =2", id="I-50"),
        pytest.param(3, FOREVER_MS, "t2 A B =0 d0 d0 t0 d1 t1 =0 A +4294967294 A B B =1 D D D", id="I-53"),
    ],
)
def test_I_06_and_I_43_to_I_50_and_I_53_a_checkpoint_turns_unaligned_once_its_timeout_has_passed(
    channels: int, timeout_ms: int, steps: str
) -> None:
    """Noticed by the timer, or earlier by what is read: an announcement, a barrier, one of a local channel."""
    task = Task(channels, timeout_ms)
    task.take(steps)
    assert task.triggered[-1].alignment is AlignmentType.UNALIGNED


def test_I_51_a_timed_out_checkpoint_resumes_the_channels_that_aligned_barriers_have_blocked() -> None:
    """The second channel's barrier is queued behind data when it overtakes, and comes as it was sent."""
    task = Task(2, 100)
    task.take("t0 A B +101 t1 A B =1")
    assert sorted(task.resumed) == [0, 1]


def test_I_52_an_overtaking_barrier_turns_a_checkpoint_unaligned_that_never_times_out() -> None:
    """The two buffers that it has overtaken belong to the checkpoint."""
    task = Task(3, FOREVER_MS)
    task.take("t0 A B d1 d1 u1 B =1")
    assert task.in_flight == {0: 0, 1: 2}
