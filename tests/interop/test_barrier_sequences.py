"""SingleCheckpointBarrierHandler and CheckpointBarrierTracker: random barriers, announcements, cancellations, ends and timeouts."""

from __future__ import annotations

import random

import pytest

from testbed_runtime.core.exchange.alignment import (
    Abort,
    AlignedBarrierHandler,
    AlternatingBarrierHandler,
    BarrierTracker,
    Effect,
    Prioritize,
    Resume,
    Trigger,
)
from testbed_runtime.core.exchange.events import NO_TIMEOUT_MS, CheckpointBarrier
from tests.interop.sequences import ALIGNMENTS, COUNTS, compare, draw

pytestmark = pytest.mark.processes
HANDLERS = {
    "aligned": AlignedBarrierHandler,
    "alternating": AlternatingBarrierHandler,
    "tracking": BarrierTracker,
}
KINDS = {
    "aligned": ["aligned", "aligned", "aligned", "timeoutable", "unaligned"],
    "alternating": ["aligned", "timeoutable", "timeoutable", "timeoutable", "unaligned"],
    "tracking": ["at-least-once", "at-least-once", "aligned", "unaligned"],
}


class _Drawing:
    """A sequence while it is drawn. Barriers of a channel mostly come in order. Channels may disagree about the options of a
    checkpoint."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._handler = chance.choice(["aligned", "alternating", "alternating", "tracking"])
        channels, after = chance.randint(1, 4), chance.choices(["after-tasks-finish", "never"], [8, 2])[0]
        self.lines = [f"new {self._handler} {channels} {after}"]
        self._now_ms = 0
        self._checkpoints: dict[int, str] = {}
        self._last = [0] * channels
        self._announced: list[list[str]] = [[] for _ in range(channels)]
        self._live = list(range(channels))

    def step(self) -> None:
        chance = self._chance
        kind = chance.choices(["barrier", "cancel", "wait", "end"], [68, 12, 15, 3])[0]
        if kind == "wait" or not self._live:
            self._now_ms += chance.choice([1, 5, 10, 20, 50])
            self.lines.append(f"wait {self._now_ms}")
            return
        channel = chance.choice(self._live)
        if kind == "end":
            self._live.remove(channel)
            self.lines.append(f"end {channel}")
        elif self._announced[channel] and chance.random() < 0.5:
            self._barrier(channel, self._announced[channel].pop(0), may_announce=False)
        else:
            number = max(1, self._last[channel] + chance.choices([-1, 0, 1, 2, 20], [3, 5, 70, 20, 2])[0])
            self._last[channel] = max(number, self._last[channel])
            if kind == "cancel":
                self.lines.append(f"cancel {channel} {number}")
            else:
                self._barrier(channel, self._options(number), may_announce=self._handler == "alternating")

    def _options(self, number: int) -> str:
        chance = self._chance
        if number not in self._checkpoints or chance.random() < 0.2:
            kind, timeout = chance.choice(KINDS[self._handler]), chance.choice([1, 10, 20, 30])
            self._checkpoints[number] = f"{number} {self._now_ms} {kind} {timeout}"
        return self._checkpoints[number]

    def _barrier(self, channel: int, text: str, *, may_announce: bool) -> None:
        chance = self._chance
        if may_announce and "timeoutable" in text and chance.random() < 0.7:
            self._announced[channel].append(text)
            self.lines.append(f"announcement {channel} {chance.randint(0, 99)} {text}")
        else:
            # one that timed out at its sender arrives as an unaligned one
            if "timeoutable" in text and chance.random() < 0.15:
                text = text.replace("timeoutable", "unaligned")
            self.lines.append(f"barrier {channel} {text}")


def a_sequence(chance: random.Random) -> list[str]:
    """A handler of one to four channels."""
    drawing = _Drawing(chance)
    for _ in range(chance.randint(3, 40)):
        drawing.step()
    return drawing.lines


class Barriers:
    """The handler of one task."""

    def __init__(self) -> None:
        self._handler: AlignedBarrierHandler | AlternatingBarrierHandler | BarrierTracker = BarrierTracker(1)
        self._now_s = 0.0

    def step(self, words: list[str]) -> str:
        match words:
            case "new", kind, channels, after:
                after_tasks_finish = after == "after-tasks-finish"
                self._handler = HANDLERS[kind](int(channels), after_tasks_finish=after_tasks_finish)
                return ""
            case "wait", now_ms:
                self._now_s = int(now_ms) / 1000
                effects = self._handler.on_time(self._now_s)
            case "barrier", channel, *barrier:
                effects = self._handler.on_barrier(int(channel), _barrier(*barrier), self._now_s)
            case "announcement", channel, sequence, *barrier:
                effects = self._handler.on_announcement(
                    int(channel), int(sequence), _barrier(*barrier), self._now_s
                )
            case "cancel", channel, number:
                effects = self._handler.on_cancellation(int(channel), int(number), self._now_s)
            case _, channel:
                effects = self._handler.on_end_of_partition(int(channel), self._now_s)
        return ", ".join(sorted(text for effect in effects if (text := _described(effect))))

    def state(self) -> str:
        return ""


def _barrier(number: str, timestamp_ms: str, kind: str, timeout_ms: str) -> CheckpointBarrier:
    timeout = int(timeout_ms) if kind == "timeoutable" else NO_TIMEOUT_MS
    return CheckpointBarrier(int(number), int(timestamp_ms), ALIGNMENTS[kind], timeout)


def _described(effect: Effect) -> str:
    match effect:
        case Trigger():
            return f"trigger {effect.barrier.checkpoint_id} {effect.barrier.alignment.name}"
        case Resume():
            return f"resume {effect.channel}"
        case Abort():
            return f"abort {effect.checkpoint_id} {effect.reason}"
        case Prioritize():
            return f"prioritize {effect.channel} {effect.sequence_number}"
        case _:
            return ""


def _is_refused(answer: str) -> bool:
    """Whether Flink's own check failed, as for an alignment whose start its metrics lost."""
    return "Exception" in answer


@pytest.mark.parametrize("count", COUNTS)
def test_random_sequences_of_barriers_trigger_and_abort_as_in_flink(flink, count):
    """Triggers, aborts, resumed and overtaken channels after every event of each sequence."""
    compare(flink, "barriers", Barriers, draw(4, count, a_sequence), is_undefined=_is_refused)
