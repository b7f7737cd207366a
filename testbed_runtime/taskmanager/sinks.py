"""The commits of a sink task: it writes records, reports them, and publishes them when a checkpoint is complete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from testbed_runtime.core.job.jobgraph import SinkConfig
from testbed_runtime.core.job.limits import option_limit
from testbed_runtime.core.job.messages import SinkCommit
from testbed_runtime.core.waits import NO_LIMIT, Limit, Outcome
from testbed_runtime.taskmanager.checkpoints import covers_end
from testbed_runtime.taskmanager.meter import to_ns
from testbed_runtime.taskmanager.services import TaskRun
from testbed_runtime.workload.records import Records
from testbed_runtime.workload.sinks import FileSink, make_sink
from testbed_runtime.workload.snapshots import SubtaskSnapshot

FLUSH_S = 0.2
"""The interval in which an at-least-once sink reports its written records."""
AT_LEAST_ONCE = "at-least-once"


class SinkWriter:
    """Exactly-once commits are part of checkpoint acknowledgements; at-least-once commits every flush."""

    __slots__ = (
        "_flush_at", "_flushes", "_publishing", "_run", "_seen", "_to_publish", "at_once", "sink",
    )  # fmt: skip

    def __init__(self, run: TaskRun, config: SinkConfig) -> None:
        self._run = run
        self.sink = make_sink(config, run.subtask, run.descriptor.attempt_number)
        self.at_once = config.delivery == AT_LEAST_ONCE
        """Whether it reports written records immediately instead of with checkpoints."""
        self._flush_at: float | None = None
        self._flushes = 0
        self._seen = False
        self._publishing: asyncio.Task[None] | None = None
        self._to_publish: list[tuple[str, bytes]] = []

    async def restore(self, snapshots: list[SubtaskSnapshot]) -> None:
        """Publish what the checkpoint committed, because the previous attempt may have ended before it published this."""
        if not isinstance(self.sink, FileSink):
            return
        blobs = self._run.services.blobs
        for snapshot in snapshots:
            if snapshot.subtask == self._run.subtask.subtask:
                for key in snapshot.staged:
                    await blobs.put(self.sink.part_of_staged(key), await blobs.get(key))

    def write(self, records: Records, channel: int) -> None:
        run = self._run
        if not self._seen and len(records):
            self._seen = True
            latency_ns = to_ns(run.now()) - int(records["due_ns"].min())
            run.event("sink.first-record", data={"latency_ns": max(0, latency_ns)})
            self._record_first()
        run.meter.received(records, run.now())
        self.sink.write(records, channel)
        if self.at_once and self._flush_at is None:
            self._flush_at = run.now() + FLUSH_S

    def _record_first(self) -> None:
        """Record the wait for the first record. The buffer timeout counts as the cause if the wait took about one timeout, up to one for
        each vertex before this one. A restored record was not waited for."""
        run = self._run
        limit, since_s = self._buffer_timeout(), run.running_at or run.now()
        seconds, timeout_s = run.now() - since_s, limit.seconds or 0.0
        hops = max(1, len(run.descriptor.job_vertices) - 1)
        fired = 0.5 * timeout_s <= seconds <= 1.1 * hops * timeout_s
        outcome = Outcome.FIRED if fired else Outcome.COMPLETED
        run.wait("first-record", "", since_s=since_s, limit=limit if fired else NO_LIMIT, outcome=outcome)

    def _buffer_timeout(self) -> Limit:
        return option_limit(self._run.services.options, "execution.buffer-timeout.interval")

    # ---- at once -------------------------------------------------------------------------------------------

    def next_flush(self) -> float | None:
        """The time at which `on_time` has something to report; None while nothing was written."""
        return self._flush_at

    def on_time(self, now: float) -> None:
        if self._flush_at is not None and now >= self._flush_at:
            self._flush()

    def _flush(self) -> None:
        self._flush_at = None
        if not self.sink.uncut:
            return
        if isinstance(self.sink, FileSink):
            self._flushes += 1
            number = self._run.descriptor.attempt_number * 1_000_000 + self._flushes
            self._publish_part(self.sink, number)
        self._run.committer.commit(self.sink.flush())

    def _publish_part(self, sink: FileSink, number: int) -> None:
        sink.stage(number)
        self._publish(sink.publishable(number))

    # ---- with checkpoints ------------------------------------------------------------------------------------

    def cut(
        self, snapshot: SubtaskSnapshot
    ) -> tuple[SinkCommit | None, SubtaskSnapshot, Callable[[], Awaitable[None]] | None]:
        """Return the commit, the snapshot, and what to store before the acknowledgement."""
        if self.at_once:
            self._flush()  # hand the records over first: a checkpoint that covers them would lose them otherwise
            return None, snapshot, self._run.committer.handed_over
        commit = self.sink.cut(snapshot.checkpoint)
        if not isinstance(self.sink, FileSink):
            return commit, snapshot, None
        staged = self.sink.stage(snapshot.checkpoint)
        snapshot = self.sink.snapshot(snapshot)
        if staged is None:
            return commit, snapshot, None
        key, data = staged

        async def store() -> None:
            await self._run.services.blobs.put(key, data)

        return commit, snapshot, store

    def completed(self, checkpoint: int) -> None:
        self.sink.completed(checkpoint)
        if isinstance(self.sink, FileSink):
            self._publish(self.sink.publishable(checkpoint))

    def end(self, *, finished: bool) -> None:
        """End the sink. What an at-least-once sink wrote is always reported; what an exactly-once sink wrote after
        the last checkpoint is committed only by an end of the job's input, in a bounded job whose only checkpoint, if any, is
        that of a stop."""
        if self.at_once:
            self._flush()
        elif finished:
            options, checkpoints = self._run.services.options, self._run.checkpoints
            self.completed(checkpoints.last_completed)
            if options.ends_uncovered or (covers_end(options) and checkpoints.last_started):
                return
            if self.sink.uncut:
                if isinstance(self.sink, FileSink):
                    covered = max(checkpoints.last_started, self._run.descriptor.restore_checkpoint)
                    self._publish_part(self.sink, covered + 1)
                self._run.committer.commit(self.sink.flush())

    # ---- files ---------------------------------------------------------------------------------------------

    def _publish(self, parts: list[tuple[str, bytes]]) -> None:
        self._to_publish.extend(parts)
        if self._to_publish and self._publishing is None:
            self._publishing = asyncio.get_running_loop().create_task(
                self._publish_parts(), name=f"publish:{self._run.name}"
            )

    async def _publish_parts(self) -> None:
        """Publish the parts. If a part cannot be stored, the next attempt publishes it from the staged object."""
        try:
            while self._to_publish:
                key, data = self._to_publish.pop(0)
                await self._run.services.blobs.put(key, data)
        except OSError as error:
            self._run.services.history.append(
                "events", kind="note", subject=self._run.name, text=f"Could not publish a part: {error}"
            )
        self._publishing = None

    async def close(self) -> None:
        """Wait until everything is published. If the sink ran and received nothing, record that it waited for its first record."""
        self._end_first()
        await self.drained()

    def _end_first(self) -> None:
        if not self._seen and self._run.running_at:
            limit, since_s = self._buffer_timeout(), self._run.running_at
            # what took longer than a timeout did not wait for a flush; 0 or less flushes at once, or never
            flushes = self._run.now() - since_s < self._run.services.options.buffer_timeout_s
            limit, outcome = limit if flushes else NO_LIMIT, Outcome.CANCELLED
            self._run.wait("first-record", "", since_s=since_s, limit=limit, outcome=outcome)

    async def drained(self) -> None:
        """Wait until everything is published."""
        if self._publishing is not None:
            await asyncio.wait([self._publishing])
