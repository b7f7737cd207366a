"""The waits of a task's channels for the partitions of their producers, and for data from a dead producer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from sys import intern
from typing import TypeAlias

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.localchannel import LocalInputChannel
from testbed_runtime.core.job.messages import InputGateDescriptor
from testbed_runtime.core.waits import NO_LIMIT, Limit, Outcome
from testbed_runtime.history.waits import WaitLog

Channel: TypeAlias = LocalInputChannel | RemoteInputChannel
MAX_ROWS = 16
"""Limit of rows per attempt of a task. The last answer of the task and each partition that was not found come first."""
MAX_LOOK = 64
"""Number of channels that are looked at for an answer at a time: this runs in the task's loop until all have answered."""


class ChannelWaits:
    """Records the waits of channels, each from the `start` of its gate on. A channel that needed more than one request has a row of its
    own. Of the other channels that started together, only the last one to be answered has a row."""

    def __init__(
        self, waits: WaitLog, task: str, attempt: int, limits: Sequence[Limit], unreachable: Limit = NO_LIMIT
    ) -> None:
        """`limits`: those of local and of remote channels. `unreachable`: the limit of an attempt to connect."""
        self._waits = waits
        self._task = task
        self._attempt = attempt
        self._limits = limits
        self._unreachable = unreachable
        self._timed_out: set[str] = set()
        """The TaskManagers to which connecting has timed out."""
        self._begun = 0.0
        """When the first gate was started."""
        self._silent: list[tuple[Channel, str, float]] = []
        """Channels that have not been answered, with the names of their producers and the start of the wait."""
        self._looked: list[Channel] = []
        """The unanswered channels that `note_answers` looks at next."""
        self._requested: dict[Channel, float] = {}
        """When the last request was sent, for each channel that needed more than one."""
        self._rows = 0

    def start(self, gates: Sequence[tuple[InputGate, InputGateDescriptor]]) -> None:
        now = self._waits.now()
        self._begun = self._begun or now
        self._silent += [
            (channel, intern(f"{descriptor.source_vertex}-{channel.partition.producer.subtask}"), now)
            for gate, descriptor in gates
            for channel in gate.channels
        ]
        self._looked = [found[0] for found in self._silent[-MAX_LOOK:]]

    def requested(self, channel: Channel) -> None:
        """Record that a request of the channel was sent."""
        if channel.requests > 1:
            self._requested[channel] = self._waits.now()

    def timed_out(self, producer: str) -> None:
        """Record that connecting to this TaskManager has timed out."""
        self._timed_out.add(producer)

    def note_answers(self, since_s: float) -> None:
        """Record the waits of the channels that have been answered since the last call. They ended at `since_s` at the latest: the
        task has had other work since then."""
        for channel in self._looked:
            if channel.answered:
                break
        else:
            return
        looked = self._silent[-MAX_LOOK:]
        answered = [found for found in looked if found[0].answered]
        self._silent[-MAX_LOOK:] = [found for found in looked if not found[0].answered]
        self._looked = [found[0] for found in self._silent[-MAX_LOOK:]]
        for number, (channel, producer, begun) in enumerate(answered, start=1):
            rest = itertools.chain(self._silent, answered[number:])
            last = not any(start == begun for _, _, start in rest)
            if last or channel in self._requested:
                end_s = max(begun, self._answered_at(channel, since_s, begun))
                self._record(channel, producer, begun, Outcome.COMPLETED, end_s=end_s)

    def _answered_at(self, channel: Channel, since_s: float, begun: float) -> float:
        """Return when the partition was found. If producers refuse requests for unknown partitions at once, the partition was found with
        the last request, and the first data may arrive later."""
        if channel.backoff.waits_at_producer:
            return since_s
        return self._requested.get(channel, begun)

    def end(self, failure: FlinkError | None, input_at: float) -> None:
        """End all waits, because the task ends. A peer that is gone counts as silent since input was seen, or since the requests began."""
        if failure is not None and failure.lost_taskmanager:
            peer, since = failure.lost_taskmanager, max(self._begun, input_at)
            late = peer in self._timed_out
            limit = self._unreachable if late else NO_LIMIT
            gone = self._waits.begin(
                "connection", self._task, peer, attempt=self._attempt, limit=limit, since_s=since
            )
            gone.end(Outcome.EXPIRED if late else Outcome.COMPLETED, cause=failure.message)
        for channel, producer, begun in self._silent:
            error = channel.error
            if error is None:
                continue
            missing = error.class_name == "PartitionNotFoundException"
            outcome = Outcome.EXPIRED if missing else Outcome.FAILED
            self._record(channel, producer, begun, outcome, cause=error.message)
        waiting = [found for found in self._silent if found[0].error is None]
        if waiting:
            cause = failure.message if failure is not None else ""
            self._record(*waiting[-1], Outcome.CANCELLED, cause=cause)
        self._silent, self._looked = [], []

    def _record(
        self,
        channel: Channel,
        producer: str,
        begun: float,
        outcome: Outcome,
        *,
        cause: str = "",
        end_s: float | None = None,
    ) -> None:
        if self._rows >= MAX_ROWS:
            return
        self._rows += 1
        limit = self._limits[isinstance(channel, RemoteInputChannel)]
        wait = self._waits.begin(
            "partition", self._task, producer, attempt=self._attempt, limit=limit, since_s=begun
        )
        wait.end(outcome, cause=cause, at_s=end_s)
