"""Align the checkpoint barriers of a task's channels (SingleCheckpointBarrierHandler and CheckpointBarrierTracker).

Announcements, barriers, cancellations and ends of channels go in; what the task has to do comes out. Channels are numbered across
the gates of the task. Times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import NO_TIMEOUT_MS, AlignmentType, CheckpointBarrier, SnapshotType
from testbed_runtime.core.options import Options

MAX_CHECKPOINTS_TO_TRACK = 50
"""Maximum number of pending at-least-once checkpoints, as in Flink."""

SUBSUMED = "CHECKPOINT_DECLINED_SUBSUMED"
ON_CANCELLATION_BARRIER = "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER"
INPUT_END_OF_STREAM = "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM"

UNALIGNED_AT_LEAST_ONCE = "Cannot use unaligned checkpoints with AT_LEAST_ONCE checkpointing mode"
UNALIGNED_CONCURRENT = "maxConcurrentCheckpoints can't be > 1 if UnalignedCheckpoints enabled"

REASON_TEXTS: dict[str, str] = {
    SUBSUMED: "Checkpoint was canceled because a barrier from newer checkpoint was received.",
    ON_CANCELLATION_BARRIER: "Task received cancellation from one of its inputs",
    INPUT_END_OF_STREAM: "Checkpoint was declined because one input stream is finished",
}


@dataclass(frozen=True, slots=True)
class BarrierPolicy:
    """How a job's checkpoints align (Flink's CheckpointOptions)."""

    exactly_once: bool = True
    unaligned: bool = False
    timeout_ms: int = 0
    """Age at which an aligned checkpoint becomes unaligned; 0: it is unaligned from the start."""

    @classmethod
    def of(cls, options: Options) -> BarrierPolicy:
        """Read the policy. Raises FlinkError for combinations that Flink refuses."""
        prefix = "execution.checkpointing."
        exactly_once = options.string(prefix + "mode") == "EXACTLY_ONCE"
        unaligned = options.boolean(prefix + "unaligned.enabled")
        if unaligned and not exactly_once:
            raise FlinkError("IllegalStateException", UNALIGNED_AT_LEAST_ONCE)
        if unaligned and options.integer(prefix + "max-concurrent-checkpoints") > 1:
            raise FlinkError("IllegalArgumentException", UNALIGNED_CONCURRENT)
        timeout_ms = round(options.duration(prefix + "aligned-checkpoint-timeout") * 1000)
        return cls(exactly_once, unaligned, timeout_ms)

    def barrier(
        self, checkpoint_id: int, timestamp_ms: int, kind: SnapshotType, *, ended: bool = False
    ) -> CheckpointBarrier:
        """Return the barrier of a source. A savepoint is aligned, and so is a checkpoint after the source's last record
        (`ended`), because it has to cover all of its records."""
        alignment, timeout_ms = AlignmentType.ALIGNED, NO_TIMEOUT_MS
        if not self.exactly_once:
            alignment = AlignmentType.AT_LEAST_ONCE
        elif self.unaligned and not (ended or kind.is_savepoint):
            timeout_ms = self.timeout_ms or NO_TIMEOUT_MS
            alignment = AlignmentType.ALIGNED if self.timeout_ms else AlignmentType.UNALIGNED
        return CheckpointBarrier(checkpoint_id, timestamp_ms, alignment, timeout_ms, kind)

    def handler(self, channels: int) -> BarrierHandler:
        """Return the handler of a task with this many input channels."""
        if not self.exactly_once:
            return BarrierTracker(channels)
        return AlternatingBarrierHandler(channels) if self.unaligned else AlignedBarrierHandler(channels)


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


@dataclass(frozen=True, slots=True)
class Prioritize:
    """Let the announced barrier with this sequence number overtake the data that is queued before it."""

    channel: int
    sequence_number: int


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The barrier of this channel has arrived: the data that it overtook completes the channel's state."""

    channel: int


@dataclass(frozen=True, slots=True)
class Complete:
    """All barriers of an unaligned checkpoint have arrived: its channel state is complete."""

    checkpoint_id: int
    alignment_s: float
    """Time from the first barrier to the last."""


Effect: TypeAlias = Trigger | Resume | Abort | Prioritize | Overtaken | Complete


class BarrierHandler(Protocol):
    """Handles the checkpoint events that a task polls. The task performs the returned effects in order."""

    @property
    def deadline(self) -> float | None: ...

    def on_time(self, now: float) -> list[Effect]: ...

    def on_announcement(
        self, channel: int, sequence: int, barrier: CheckpointBarrier, now: float
    ) -> list[Effect]: ...

    def on_barrier(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]: ...

    def on_cancellation(self, channel: int, checkpoint_id: int, now: float) -> list[Effect]: ...

    def on_end_of_partition(self, channel: int, now: float) -> list[Effect]: ...


class _WithoutTimeout:
    """The part of handlers whose checkpoints never become unaligned."""

    deadline: float | None = None

    def on_time(self, now: float) -> list[Effect]:
        del now
        return []

    def on_announcement(
        self, channel: int, sequence: int, barrier: CheckpointBarrier, now: float
    ) -> list[Effect]:
        """Ignore it: the barrier itself follows."""
        del channel, sequence, barrier, now
        return []


class AlignedBarrierHandler(_WithoutTimeout):
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


class AlternatingBarrierHandler:
    """Exactly once with unaligned checkpoints: starts aligned, and switches when a barrier overtakes or is too old.

    An unaligned checkpoint is triggered by its first barrier. The data of each other channel belongs to the
    checkpoint until `Overtaken` names the channel; `Complete` follows when all barriers have arrived."""

    def __init__(self, channels: int, *, after_tasks_finish: bool = True) -> None:
        self._open = channels
        self._after_tasks_finish = after_tasks_finish
        self._current = -1
        self._barrier: CheckpointBarrier | None = None
        self._seen: dict[int, bool] = {}
        """Maps each channel whose barrier has arrived to whether its producer is blocked."""
        self._announced: dict[int, int] = {}
        """Maps channels whose barrier is still queued behind data to its sequence number."""
        self._target = 0
        self._started = 0.0
        self._unaligned = False
        self._triggered = False
        self.deadline: float | None = None
        """When `on_time` turns the pending checkpoint into an unaligned one."""

    @property
    def is_pending(self) -> bool:
        return self._barrier is not None

    def on_announcement(
        self, channel: int, sequence: int, barrier: CheckpointBarrier, now: float
    ) -> list[Effect]:
        """A barrier that may time out is queued behind data of this channel."""
        if self._is_stale(barrier.checkpoint_id):
            return []
        effects = self._begin(barrier, now)
        if channel in self._seen:
            return effects
        if self._unaligned:
            return [*effects, Prioritize(channel, sequence)]
        self._announced[channel] = sequence
        return effects + self.on_time(now)

    def on_barrier(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        overtakes = barrier.alignment is AlignmentType.UNALIGNED
        is_repeated = barrier.checkpoint_id == self._current and channel in self._seen
        if is_repeated or self._is_stale(barrier.checkpoint_id):
            return [] if overtakes else [Resume(channel)]
        effects = self._begin(barrier, now)
        self._announced.pop(channel, None)
        if overtakes:
            effects += self._turn_unaligned()
        else:
            effects += self.on_time(now)
        self._seen[channel] = not overtakes
        if self._unaligned:
            arrived = [channel] if self._triggered else list(self._seen)
            return effects + self._arrived_unaligned(arrived, now)
        return effects + self._arrived_aligned(now)

    def on_time(self, now: float) -> list[Effect]:
        """Turn the checkpoint into an unaligned one if its timeout has passed: queued barriers overtake now."""
        if self.deadline is None or now < self.deadline:
            return []
        effects = self._turn_unaligned()
        return effects + (self._arrived_unaligned(list(self._seen), now) if self._seen else [])

    def _turn_unaligned(self) -> list[Effect]:
        """Have the barriers that are queued behind data overtake it."""
        self.deadline = None
        self._unaligned = True
        effects: list[Effect] = [Prioritize(c, sequence) for c, sequence in self._announced.items()]
        self._announced.clear()
        return effects

    def on_cancellation(self, channel: int, checkpoint_id: int, now: float) -> list[Effect]:
        """Abort on the cancellation of the pending or a newer checkpoint. Ignore older ones."""
        if self._is_stale(checkpoint_id):
            return []
        effects: list[Effect] = []
        if self.is_pending and checkpoint_id > self._current:
            effects = self._abort(self._current, SUBSUMED)
        return effects + self._abort(checkpoint_id, ON_CANCELLATION_BARRIER)

    def on_end_of_partition(self, channel: int, now: float) -> list[Effect]:
        self._open -= 1
        if not self.is_pending or channel in self._seen:
            return []
        if not self._after_tasks_finish:
            return self._abort(self._current, INPUT_END_OF_STREAM)
        self._announced.pop(channel, None)
        self._seen[channel] = False
        if self._triggered:
            return self._arrived_unaligned([channel], now)
        return self._arrived_aligned(now)

    def _is_stale(self, checkpoint_id: int) -> bool:
        return checkpoint_id < self._current or (checkpoint_id == self._current and not self.is_pending)

    def _begin(self, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        """Start a newer checkpoint; it subsumes the pending one."""
        if barrier.checkpoint_id <= self._current:
            return []
        effects = self._abort(self._current, SUBSUMED) if self.is_pending else []
        self._current = barrier.checkpoint_id
        self._barrier = barrier
        self._target = self._open
        self._started = now
        self.deadline = barrier.deadline if barrier.is_timeoutable else None
        return effects

    def _arrived_aligned(self, now: float) -> list[Effect]:
        if len(self._seen) < self._target or self._barrier is None:
            return []
        barrier = self._barrier.with_unaligned_supported()
        if barrier.alignment is AlignmentType.UNALIGNED:  # it overtakes this task's output
            return self._arrived_unaligned(list(self._seen), now)
        trigger = Trigger(barrier, now - self._started)
        return [trigger, *self._reset()]

    def _arrived_unaligned(self, channels: list[int], now: float) -> list[Effect]:
        assert self._barrier is not None
        effects: list[Effect] = []
        if not self._triggered:
            self._triggered = True
            self.deadline = None
            effects.append(Trigger(self._barrier.as_unaligned(), now - self._started))
        for channel in channels:
            effects.append(Overtaken(channel))
            if self._seen[channel]:
                self._seen[channel] = False
                effects.append(Resume(channel))
        if len(self._seen) >= self._target:
            effects.append(Complete(self._current, now - self._started))
            effects += self._reset()
        return effects

    def _abort(self, checkpoint_id: int, reason: str) -> list[Effect]:
        self._current = max(self._current, checkpoint_id)
        return [Abort(checkpoint_id, reason), *self._reset()]

    def _reset(self) -> list[Effect]:
        resumes: list[Effect] = [Resume(c) for c, is_blocked in self._seen.items() if is_blocked]
        self._seen.clear()
        self._announced.clear()
        self._barrier = self.deadline = None
        self._unaligned = self._triggered = False
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


class BarrierTracker(_WithoutTimeout):
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
