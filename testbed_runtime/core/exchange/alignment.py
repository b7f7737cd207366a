"""Align the checkpoint barriers of a task's channels (SingleCheckpointBarrierHandler and CheckpointBarrierTracker).

Barriers, cancellations and ends of channels go in; triggers, resumes and aborts come out. Channels are numbered across
the gates of the task. Times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from testbed_runtime.core.exchange.events import CheckpointBarrier

MAX_CHECKPOINTS_TO_TRACK = 50
"""Maximum number of pending at-least-once checkpoints, as in Flink."""

SUBSUMED = "CHECKPOINT_DECLINED_SUBSUMED"
ON_CANCELLATION_BARRIER = "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER"
INPUT_END_OF_STREAM = "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM"

REASON_TEXTS: dict[str, str] = {
    SUBSUMED: "Checkpoint was canceled because a barrier from newer checkpoint was received.",
    ON_CANCELLATION_BARRIER: "Task received cancellation from one of its inputs",
    INPUT_END_OF_STREAM: "Checkpoint was declined because one input stream is finished",
}


@dataclass(frozen=True, slots=True)
class Trigger:
    """Take the snapshot and forward the barrier now, before the effects that follow."""

    barrier: CheckpointBarrier
    alignment_s: float
    """Time from the first barrier to the last."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Let this channel's producer continue (ResumeConsumption)."""

    channel: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Decline the checkpoint and forward a cancellation."""

    checkpoint_id: int
    reason: str
    """Name of a CheckpointFailureReason."""

    @property
    def text(self) -> str:
        return REASON_TEXTS[self.reason]


Effect: TypeAlias = Trigger | Resume | Abort


class BarrierHandler(Protocol):
    """Handles the checkpoint events that a task polls. The task performs the returned effects in order."""

    def on_barrier(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]: ...

    def on_cancellation(self, channel: int, checkpoint_id: int, now: float) -> list[Effect]: ...

    def on_end_of_partition(self, channel: int, now: float) -> list[Effect]: ...


class AlignedBarrierHandler:
    """Exactly once: a barrier blocks its channel until the barriers of all other channels have arrived."""

    def __init__(self, channels: int, *, after_tasks_finish: bool = True) -> None:
        """`after_tasks_finish`: an ended channel counts as aligned; otherwise checkpoints are declined (FLIP-147)."""
        self._open = channels
        self._after_tasks_finish = after_tasks_finish
        self._current = -1
        self._barrier: CheckpointBarrier | None = None
        self._aligned: dict[int, bool] = {}
        """Maps each aligned channel to whether it is blocked (an ended one is not), in order of arrival."""
        self._target = 0
        self._started = 0.0

    @property
    def is_pending(self) -> bool:
        return self._barrier is not None

    @property
    def pending_checkpoint(self) -> int:
        """Id of the checkpoint being aligned; -1 if there is none."""
        return -1 if self._barrier is None else self._current

    @property
    def blocked(self) -> tuple[int, ...]:
        """Channels whose producers are blocked."""
        return tuple(c for c, is_blocked in self._aligned.items() if is_blocked)

    def on_barrier(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id < self._current or (checkpoint_id == self._current and not self.is_pending):
            return [Resume(channel)]
        effects: list[Effect] = []
        if checkpoint_id > self._current:
            if self.is_pending:
                effects += self._abort(self._current, SUBSUMED)
            self._current = checkpoint_id
            self._barrier = barrier
            self._target = self._open
            self._started = now
        return effects + self._align(channel, now, blocks=True)

    def on_cancellation(self, channel: int, checkpoint_id: int, now: float) -> list[Effect]:
        """Abort on the cancellation of the pending or a newer checkpoint. Ignore older ones."""
        if checkpoint_id < self._current or (checkpoint_id == self._current and not self.is_pending):
            return []
        effects: list[Effect] = []
        if self.is_pending and checkpoint_id > self._current:
            effects = self._abort(self._current, SUBSUMED)
        return effects + self._abort(checkpoint_id, ON_CANCELLATION_BARRIER)

    def on_end_of_partition(self, channel: int, now: float) -> list[Effect]:
        self._open -= 1
        if not self.is_pending:
            return []
        if self._after_tasks_finish:
            return self._align(channel, now, blocks=False)
        return self._abort(self._current, INPUT_END_OF_STREAM)

    def _align(self, channel: int, now: float, *, blocks: bool) -> list[Effect]:
        self._aligned[channel] = blocks
        if len(self._aligned) < self._target or self._barrier is None:
            return []
        trigger = Trigger(self._barrier, now - self._started)
        return [trigger, *self._unblock()]

    def _abort(self, checkpoint_id: int, reason: str) -> list[Effect]:
        self._current = max(self._current, checkpoint_id)
        return [Abort(checkpoint_id, reason), *self._unblock()]

    def _unblock(self) -> list[Effect]:
        resumes: list[Effect] = [Resume(c) for c in self.blocked]
        self._aligned.clear()
        self._barrier = None
        return resumes


@dataclass(slots=True)
class _Pending:
    """The barriers of one checkpoint so far. `barrier` is None after an abort; the barriers are still counted."""

    checkpoint_id: int
    barrier: CheckpointBarrier | None
    target: int
    started: float
    aligned: dict[int, None] = field(default_factory=dict)

    def mark(self, channel: int) -> bool:
        """Mark a channel. Return True if all channels are marked."""
        self.aligned[channel] = None
        return len(self.aligned) >= self.target


class BarrierTracker:
    """At least once: no channel is blocked; a checkpoint is triggered when every channel has received its barrier."""

    def __init__(self, channels: int, *, after_tasks_finish: bool = True) -> None:
        self._open = channels
        self._after_tasks_finish = after_tasks_finish
        self._pending: deque[_Pending] = deque()
        self._latest = -1

    @property
    def is_pending(self) -> bool:
        return any(p.barrier is not None for p in self._pending)

    def on_barrier(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        found = next((p for p in self._pending if p.checkpoint_id == barrier.checkpoint_id), None)
        if found is None:
            if barrier.checkpoint_id <= self._latest:
                return []
            self._latest = barrier.checkpoint_id
            found = _Pending(barrier.checkpoint_id, barrier, self._open, now)
            self._pending.append(found)
            if len(self._pending) > MAX_CHECKPOINTS_TO_TRACK:
                self._pending.popleft()
        return self._complete(found, now) if found.mark(channel) else []

    def _complete(self, done: _Pending, now: float) -> list[Effect]:
        """Trigger the checkpoint and drop older pending ones, which it subsumes."""
        while self._pending:
            if self._pending.popleft() is done:
                break
        return [] if done.barrier is None else [Trigger(done.barrier, now - done.started)]

    def on_cancellation(self, channel: int, checkpoint_id: int, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._pending and self._pending[0].checkpoint_id < checkpoint_id:
            older = self._pending.popleft()
            if older.barrier is not None:
                effects.append(Abort(older.checkpoint_id, ON_CANCELLATION_BARRIER))
        first = self._pending[0] if self._pending else None
        if first is not None and first.checkpoint_id == checkpoint_id:
            if first.barrier is not None:
                first.barrier = None
                effects.append(Abort(checkpoint_id, ON_CANCELLATION_BARRIER))
        elif checkpoint_id > self._latest:
            self._latest = checkpoint_id
            first = _Pending(checkpoint_id, None, self._open, now)
            self._pending.appendleft(first)
            effects.append(Abort(checkpoint_id, ON_CANCELLATION_BARRIER))
        else:
            return effects
        if first.mark(channel):
            self._pending.remove(first)
        return effects

    def on_end_of_partition(self, channel: int, now: float) -> list[Effect]:
        self._open -= 1
        if not self._after_tasks_finish:
            aborted: list[Effect] = [
                Abort(p.checkpoint_id, INPUT_END_OF_STREAM) for p in self._pending if p.barrier is not None
            ]
            self._pending.clear()
            return aborted
        complete = [p for p in self._pending if p.mark(channel)]
        return self._complete(complete[-1], now) if complete else []
