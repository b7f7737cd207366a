"""Align the checkpoint barriers of a task's channels (SingleCheckpointBarrierHandler and CheckpointBarrierTracker).

Announcements, barriers, cancellations and ends of channels go in; what the task has to do comes out. Channels are numbered across
the gates of the task. Times are seconds of the caller's clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.events import NO_TIMEOUT_MS, AlignmentType, CheckpointBarrier, SnapshotType
from testbed_runtime.core.options import Options
from testbed_runtime.core.versions import (
    ALIGNMENT_TIMES_OUT,
    OUTPUT_BARRIERS_TIME_OUT,
    TIMEOUT_SINCE_START,
    has,
)

MAX_CHECKPOINTS_TO_TRACK = 50
"""Maximum number of pending at-least-once checkpoints, as in Flink."""

SUBSUMED = "CHECKPOINT_DECLINED_SUBSUMED"
OVERWRITTEN = "CHECKPOINT_SUBSUMED"
"""A channel has received the barrier of a newer checkpoint before this one could start unaligned."""
ON_CANCELLATION_BARRIER = "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER"
INPUT_END_OF_STREAM = "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM"

UNALIGNED_AT_LEAST_ONCE = "Cannot use unaligned checkpoints with AT_LEAST_ONCE checkpointing mode"
UNALIGNED_CONCURRENT = "maxConcurrentCheckpoints can't be > 1 if UnalignedCheckpoints enabled"


class TimesOut(Enum):
    """The moment from which the timeout of an aligned checkpoint counts in a task. It depends on Flink's version."""

    NEVER = "never"
    FIRST_BARRIER = "first barrier"
    """The task's first barrier or announcement."""
    START = "start"
    """The start of the checkpoint."""


class BarrierPolicy(Struct, frozen=True):
    """How a job's checkpoints align (Flink's CheckpointOptions)."""

    exactly_once: bool = True
    unaligned: bool = False
    timeout_ms: int = 0
    """Age at which an aligned checkpoint becomes unaligned; 0 or NO_TIMEOUT_MS: it is unaligned from the start."""
    after_tasks_finish: bool = True
    """Whether a checkpoint continues after a channel has ended (FLIP-147)."""
    times_out: TimesOut = TimesOut.START
    times_out_in_output: bool = True
    """Whether a barrier that waits in the output of a task times out there."""

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
        timeout_ms = min(round(options.duration(prefix + "aligned-checkpoint-timeout") * 1000), NO_TIMEOUT_MS)
        version = options.flink_version
        counts = TimesOut.START if has(version, TIMEOUT_SINCE_START) else TimesOut.FIRST_BARRIER
        return cls(
            exactly_once,
            unaligned,
            timeout_ms,
            options.checkpoints_after_finish,
            counts if has(version, ALIGNMENT_TIMES_OUT) else TimesOut.NEVER,
            has(version, OUTPUT_BARRIERS_TIME_OUT),
        )

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
            never = timeout_ms == NO_TIMEOUT_MS
            alignment = AlignmentType.UNALIGNED if never else AlignmentType.ALIGNED
        return CheckpointBarrier(checkpoint_id, timestamp_ms, alignment, timeout_ms, kind)

    def handler(self, channels: int) -> BarrierHandler:
        """Return the handler of a task with this many input channels."""
        if not self.exactly_once:
            return BarrierTracker(channels, after_tasks_finish=self.after_tasks_finish)
        if not self.unaligned:
            return AlignedBarrierHandler(channels, after_tasks_finish=self.after_tasks_finish)
        return AlternatingBarrierHandler(
            channels, after_tasks_finish=self.after_tasks_finish, times_out=self.times_out
        )


class Trigger(Struct, frozen=True):
    """Take the snapshot and forward the barrier now, before the effects that follow."""

    barrier: CheckpointBarrier
    alignment_s: float
    """Time from the first barrier to the last."""


class Resume(Struct, frozen=True):
    """Let this channel's producer continue (ResumeConsumption)."""

    channel: int


class Abort(Struct, frozen=True):
    """Decline the checkpoint and forward a cancellation."""

    checkpoint_id: int
    reason: str
    """Name of a CheckpointFailureReason."""


class Prioritize(Struct, frozen=True):
    """Let the announced barrier with this sequence number overtake the data that is queued before it."""

    channel: int
    sequence_number: int


class Overtaken(Struct, frozen=True):
    """The barrier of this channel has arrived: the data that it overtook completes the channel's state."""

    channel: int


class Complete(Struct, frozen=True):
    """All barriers of an unaligned checkpoint have arrived: its channel state is complete."""

    checkpoint_id: int
    alignment_s: float
    """Time from the first barrier to the last."""


Effect: TypeAlias = Trigger | Resume | Abort | Prioritize | Overtaken | Complete


class BarrierHandler(Protocol):
    """Handles the checkpoint events that a task polls. The task performs the returned effects in order."""

    deadline: float | None = None
    """When `on_time` turns the pending checkpoint into an unaligned one."""

    def on_time(self, now: float) -> list[Effect]:
        """Return no effects: the pending checkpoint has no timeout."""
        return []

    def on_announcement(
        self, channel: int, sequence: int, barrier: CheckpointBarrier, now: float
    ) -> list[Effect]:
        """Return no effects: the barrier itself follows."""
        return []

    def on_barrier(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]: ...

    def on_trigger(self, channels: Iterable[int], barrier: CheckpointBarrier, now: float) -> list[Effect]: ...

    def on_cancellation(self, channel: int, checkpoint_id: int, now: float) -> list[Effect]: ...

    def on_end_of_partition(self, channel: int, now: float) -> list[Effect]: ...

    def on_refused(self, checkpoint_id: int) -> list[Effect]:
        """Return no effects: no checkpoint is unaligned."""
        return []


class AlignedBarrierHandler(BarrierHandler):
    """Exactly once: a barrier blocks its channel until the barriers of all other channels have arrived."""

    def __init__(self, channels: int, *, after_tasks_finish: bool = True) -> None:
        """`after_tasks_finish`: an ended channel counts as aligned; otherwise checkpoints are declined (FLIP-147)."""
        self._open = channels
        self._after_tasks_finish = after_tasks_finish
        self._current = -1
        self._barrier: CheckpointBarrier | None = None
        """The first barrier of the pending checkpoint, or its announcement."""
        self._aligned: dict[int, None] = {}
        """Channels whose barrier has arrived or that have ended since the first one, in this order."""
        self._blocked: dict[int, None] = {}
        self._target = 0
        self._triggered = False
        """Whether the current barrier comes from a trigger of the JobMaster, not from a producer."""
        self._started = 0.0

    @property
    def is_pending(self) -> bool:
        return self._barrier is not None

    @property
    def blocked(self) -> tuple[int, ...]:
        """Channels whose producers are blocked."""
        return tuple(self._blocked)

    def on_announcement(
        self, channel: int, sequence: int, barrier: CheckpointBarrier, now: float
    ) -> list[Effect]:
        """Begin the checkpoint of a barrier that is queued behind data of this channel."""
        effects = self._begin(barrier, now)
        if not self._is_stale(barrier.checkpoint_id):
            effects += self._announce(channel, sequence, now)
        return effects

    def on_barrier(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        if self._is_stale(barrier.checkpoint_id):
            return [] if barrier.alignment is AlignmentType.UNALIGNED else [Resume(channel)]
        effects = self._begin(barrier, now) if barrier.checkpoint_id > self._current else []
        self._mark(channel, now)
        effects += self._receive(channel, barrier, now)
        if self._all_received:
            self._reset()
        return effects

    def on_trigger(self, channels: Iterable[int], barrier: CheckpointBarrier, now: float) -> list[Effect]:
        """Handle a checkpoint that the JobMaster triggers at this task: it counts as the barrier of these channels, which are the
        open ones, and blocks none (StreamTask.triggerUnfinishedChannelsCheckpoint)."""
        effects: list[Effect] = []
        for channel in channels:
            if not self._is_stale(barrier.checkpoint_id):
                self._triggered = True
                effects += self.on_barrier(channel, barrier, now)
                self._triggered = False
        return effects

    def on_cancellation(self, channel: int, checkpoint_id: int, now: float) -> list[Effect]:
        """Abort a newer checkpoint, or the pending one if one of its barriers has arrived. An older pending checkpoint ends without
        being reported, as in Flink."""
        if checkpoint_id > self._current or (checkpoint_id == self._current and self._aligned):
            return self._abort(checkpoint_id, ON_CANCELLATION_BARRIER)
        return []

    def on_end_of_partition(self, channel: int, now: float) -> list[Effect]:
        self._open -= 1
        if self._barrier is None:
            return []
        if not self._after_tasks_finish:
            return self._abort(self._current, INPUT_END_OF_STREAM)
        self._mark(channel, now)
        self._blocked.pop(channel, None)
        effects = self._end(channel, self._barrier, now)
        if self._all_received:
            self._reset()
        return effects

    def on_refused(self, checkpoint_id: int) -> list[Effect]:
        """Abort a checkpoint that was triggered and that a channel could not start."""
        return self._abort(checkpoint_id, OVERWRITTEN)

    # ---- in the pending checkpoint

    def _announce(self, channel: int, sequence: int, now: float) -> list[Effect]:
        return []

    def _block(self, channel: int) -> None:
        if not self._triggered:
            self._blocked[channel] = None

    def _receive(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        self._block(channel)
        return self._trigger(barrier, now) if self._all_received else []

    def _end(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        return self._trigger(barrier, now) if self._all_received else []

    def _trigger(self, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        return [Trigger(barrier, now - self._started), *self._unblock()]

    @property
    def _all_received(self) -> bool:
        return len(self._aligned) >= self._target

    def _mark(self, channel: int, now: float) -> None:
        """Count a channel as aligned. The alignment begins with the first one, or with its barrier if that is repeated."""
        self._aligned[channel] = None
        if len(self._aligned) == 1:
            self._started = now

    # ---- from one checkpoint to the next

    def _is_stale(self, checkpoint_id: int) -> bool:
        return checkpoint_id < self._current or (checkpoint_id == self._current and self._barrier is None)

    def _begin(self, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        """Start a newer checkpoint; it subsumes the pending one."""
        if barrier.checkpoint_id <= self._current:
            return []
        effects = self._abort(self._current, SUBSUMED) if self.is_pending else []
        self._current = barrier.checkpoint_id
        self._barrier = barrier
        self._target = self._open
        return effects

    def _abort(self, checkpoint_id: int, reason: str) -> list[Effect]:
        self._current = max(self._current, checkpoint_id)
        self._reset()
        return [Abort(checkpoint_id, reason), *self._unblock()]

    def _unblock(self) -> list[Effect]:
        resumes: list[Effect] = [Resume(channel) for channel in self._blocked]
        self._blocked.clear()
        return resumes

    def _reset(self) -> None:
        self._aligned.clear()
        self._barrier = self.deadline = None


class AlternatingBarrierHandler(AlignedBarrierHandler):
    """Exactly once with unaligned checkpoints: starts aligned, and switches when a barrier overtakes or is too old.

    An unaligned checkpoint is triggered by its first barrier. The data of each other channel belongs to the
    checkpoint until `Overtaken` names the channel; `Complete` follows when all barriers have arrived. Channels that
    aligned barriers have blocked stay blocked until then."""

    def __init__(
        self, channels: int, *, after_tasks_finish: bool = True, times_out: TimesOut = TimesOut.START
    ) -> None:
        super().__init__(channels, after_tasks_finish=after_tasks_finish)
        self._times_out = times_out
        self._begun = 0.0
        """When the first barrier or announcement of the pending checkpoint came."""
        self._announced: dict[int, int] = {}
        """Maps channels whose barrier is still queued behind data to its sequence number."""
        self._arrived: list[int] = []
        """Aligned channels that no `Overtaken` has named."""
        self._collecting = False
        """A barrier of the pending checkpoint has arrived; the end of a channel does not count as one."""
        self._unaligned = False

    def on_time(self, now: float) -> list[Effect]:
        """Turn the checkpoint into an unaligned one if its timeout has passed: queued barriers overtake now."""
        if self.deadline is None or now < self.deadline or self._barrier is None:
            return []
        effects = self._turn_unaligned(self._barrier, now)
        return effects + self._collect(now) if self._collecting else effects

    def _begin(self, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        before = self._current
        effects = super()._begin(barrier, now)
        if self._current > before:
            self._begun = now
            expiry = self._expiry(barrier)
            self.deadline = None if expiry == math.inf else expiry
        return effects

    def _expiry(self, barrier: CheckpointBarrier) -> float:
        """Return when an aligned barrier of the pending checkpoint is too old; infinite if never."""
        if self._times_out is TimesOut.START or not barrier.is_timeoutable:
            return barrier.deadline
        return (
            math.inf
            if self._times_out is TimesOut.NEVER
            else self._begun + barrier.alignment_timeout_ms / 1000
        )

    def _is_too_old(self, barrier: CheckpointBarrier, now: float) -> bool:
        """Whether more time has passed than the barrier's timeout. A timer acts as soon as exactly the timeout has passed."""
        return now > self._expiry(barrier)

    def _mark(self, channel: int, now: float) -> None:
        if channel not in self._aligned:
            self._arrived.append(channel)
        super()._mark(channel, now)

    def _announce(self, channel: int, sequence: int, now: float) -> list[Effect]:
        if self._unaligned:
            return [Prioritize(channel, sequence)]
        self._announced[channel] = sequence
        return self.on_time(now)

    def _receive(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        """Block the channel of an aligned barrier. The last barrier completes the alignment even if that barrier is too old."""
        overtakes = barrier.alignment is AlignmentType.UNALIGNED
        if not overtakes:
            self._block(channel)
        if not (overtakes or self._unaligned):
            self._announced.pop(channel, None)
            if self._all_received:
                return self._trigger(barrier, now)
            if not self._is_too_old(barrier, now):
                self._collecting = True
                return []
        effects = self._turn_unaligned(barrier, now)
        if not self._collecting:
            effects.append(self._start_unaligned(barrier, now))
        return effects + self._collect(now)

    def _end(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        self._announced.pop(channel, None)
        if not self._collecting:
            return []
        if self._unaligned:
            return self._collect(now)
        if self._all_received:
            return self._trigger(barrier, now)
        if not self._is_too_old(barrier, now):
            return []
        return [*self._turn_unaligned(barrier, now), *self._collect(now)]

    def _trigger(self, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        barrier = barrier.with_unaligned_supported()
        if barrier.alignment is not AlignmentType.UNALIGNED:
            return super()._trigger(barrier, now)
        return [self._start_unaligned(barrier, now), *self._collect(now)]  # it overtakes this task's output

    def _turn_unaligned(self, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        """Let the barriers that are queued behind data overtake that data. Begin the snapshot if a barrier has arrived."""
        if self._unaligned:
            return []
        self.deadline = None
        self._unaligned = True
        effects: list[Effect] = [Prioritize(c, sequence) for c, sequence in self._announced.items()]
        self._announced.clear()
        if self._collecting:
            effects.append(self._start_unaligned(barrier, now))
        return effects

    def _start_unaligned(self, barrier: CheckpointBarrier, now: float) -> Trigger:
        self._collecting = True
        return Trigger(barrier.as_unaligned(), now - self._started)

    def _collect(self, now: float) -> list[Effect]:
        """Name the channels whose state is complete now, and complete the checkpoint with the last one."""
        effects: list[Effect] = [Overtaken(channel) for channel in self._arrived]
        self._arrived.clear()
        if self._all_received:
            effects += [*self._unblock(), Complete(self._current, now - self._started)]
        return effects

    def _reset(self) -> None:
        super()._reset()
        self._announced.clear()
        self._arrived.clear()
        self._collecting = self._unaligned = False


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


class BarrierTracker(BarrierHandler):
    """At least once: no channel is blocked; a checkpoint is triggered when every channel has received its barrier.

    With one open channel, a barrier or cancellation takes effect at once, also if it is repeated, unless it is older than a checkpoint
    that was waited for."""

    def __init__(self, channels: int, *, after_tasks_finish: bool = True) -> None:
        self._open = channels
        self._after_tasks_finish = after_tasks_finish
        self._pending: deque[_Pending] = deque()
        self._latest = -1

    @property
    def is_pending(self) -> bool:
        return bool(self._pending)

    def on_barrier(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Effect]:
        if self._acts_at_once(barrier.checkpoint_id):
            return [Trigger(barrier, 0.0)]
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

    def on_trigger(self, channels: Iterable[int], barrier: CheckpointBarrier, now: float) -> list[Effect]:
        """Count a checkpoint that the JobMaster triggers at this task as the barrier of these channels."""
        return [effect for channel in channels for effect in self.on_barrier(channel, barrier, now)]

    def _acts_at_once(self, checkpoint_id: int) -> bool:
        return checkpoint_id > self._latest and self._open == 1

    def _complete(self, done: _Pending, now: float) -> list[Effect]:
        """Trigger the checkpoint and drop older pending ones, which it subsumes. Only the latest one's alignment is measured."""
        while self._pending:
            if self._pending.popleft() is done:
                break
        alignment_s = now - done.started if done.checkpoint_id == self._latest else 0.0
        return [] if done.barrier is None else [Trigger(done.barrier, alignment_s)]

    def on_cancellation(self, channel: int, checkpoint_id: int, now: float) -> list[Effect]:
        if self._acts_at_once(checkpoint_id):
            return [Abort(checkpoint_id, ON_CANCELLATION_BARRIER)]
        effects: list[Effect] = []
        while self._pending and self._pending[0].checkpoint_id < checkpoint_id:
            effects += self._abort(self._pending.popleft())
        first = self._pending[0] if self._pending else None
        if first is not None and first.checkpoint_id == checkpoint_id:
            effects += self._abort(first)
            if first.mark(channel):
                self._pending.popleft()
        elif checkpoint_id > self._latest:
            self._latest = checkpoint_id
            effects.append(Abort(checkpoint_id, ON_CANCELLATION_BARRIER))
            self._pending.appendleft(_Pending(checkpoint_id, None, self._open, now, {channel: None}))
        return effects

    def _abort(self, pending: _Pending) -> list[Effect]:
        """Abort a checkpoint, once. Its barriers are still counted."""
        if pending.barrier is None:
            return []
        pending.barrier = None
        return [Abort(pending.checkpoint_id, ON_CANCELLATION_BARRIER)]

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
