"""Source tasks: an open loop between checkpoints, ended by its limit or by a drain."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError, UserError
from testbed_runtime.core.exchange.alignment import BarrierPolicy
from testbed_runtime.core.exchange.events import SnapshotType
from testbed_runtime.core.exchange.records import LENGTH_BYTES
from testbed_runtime.core.job.flowcontrol import UNLIMITED, FlowControl, RateLimiter
from testbed_runtime.core.job.jobgraph import SourceConfig
from testbed_runtime.core.job.limits import option_limit
from testbed_runtime.core.job.messages import InputSplit, RequestNextInputSplit, TriggerCheckpoint
from testbed_runtime.core.job.splits import NEXT_SPLIT, NO_SPLIT, split_records
from testbed_runtime.core.options import LATENCY_INTERVAL
from testbed_runtime.core.waits import Outcome
from testbed_runtime.history.waits import OpenWait
from testbed_runtime.ports.network import Connection
from testbed_runtime.ports.rpc import ASK_FAILURES, AskTimeout, RemoteFailure
from testbed_runtime.taskmanager.checkpoints import TakenSnapshot
from testbed_runtime.taskmanager.gateway import SLOW_ANSWER_S
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY, IDLE
from testbed_runtime.taskmanager.services import TaskRun
from testbed_runtime.workload.records import Records, latency_marker
from testbed_runtime.workload.snapshots import SubtaskSnapshot
from testbed_runtime.workload.sources import BATCH_RECORDS, GeneratedSource, WordSource

TICK_S = 0.005
"""The shortest interval between two emissions, well above the cost of a loop iteration."""
FILL_TICK_S = 0.001
"""The shortest interval for a source whose buffers fill fast. epoll's timers count whole milliseconds."""
TICK_SHARE = 0.1
"""The interval as a share of the buffer timeout, and of the time in which the buffers fill. With a larger share, records would wait
for their source instead of for the flusher or for a full buffer."""
ROUNDING_NS = 2
"""A source that is woken this long after a due time finds the record due. Without it, rounding could wake it too early, and
with a buffer timeout of 0 again and again at the same time."""
CONNECT_TIMEOUT_S = 10.0
"""Time limit for a socket source to connect to its sender."""


def shortest_interval_s(buffer_timeout_s: float, fill_s: float) -> float:
    """Return the shortest interval between two emissions. 0 means that each record is written and flushed when it is due."""
    tick_s = min(TICK_S, max(FILL_TICK_S, TICK_SHARE * fill_s))
    return tick_s if buffer_timeout_s < 0 else min(tick_s, TICK_SHARE * buffer_timeout_s)


class SourceTask:
    """The invokable of a source: `restore`, then `run` to its end."""

    __slots__ = (
        "_batch", "_checkpointing", "_config", "_deferring", "_drained", "_ended", "_fill_s",
        "_final_outcome", "_final_wait", "_idle", "_lazy", "_limiter", "_marker_at", "_marker_s", "_most",
        "_policy", "_run", "_tick_s", "_waits", "source",
    )  # fmt: skip

    def __init__(self, run: TaskRun, config: SourceConfig) -> None:
        self._run = run
        self._config = config
        context = run.subtask
        self.source: GeneratedSource | WordSource
        if config.kind == "generated":
            self.source = GeneratedSource(
                config,
                vertex=context.vertex,
                subtask=context.subtask,
                parallelism=context.parallelism,
                seed=run.descriptor.seed,
                t0_ns=context.t0_ns,
            )
        elif config.kind == "socket":
            self.source = WordSource(config, vertex=context.vertex, subtask=context.subtask)
            for partition in run.output.partitions:  # the limit of a SourceFunction (SourceStreamTask.init)
                partition.pool.max_overdraft = 0
        else:
            raise UserError("source.kind", f"{config.kind!r} is not a source", "write generated or socket")
        self._policy = BarrierPolicy.of(run.services.options)
        self._checkpointing = run.services.options.duration("execution.checkpointing.interval") > 0
        self._batch = BATCH_RECORDS
        self._waits = 0
        self._drained = False
        self._ended = False
        self._lazy = run.services.pace.lazy
        rate = config.records_per_second * (config.record_bytes + LENGTH_BYTES) / context.parallelism
        self._fill_s = run.output.room_bytes / rate if rate else math.inf
        self._tick_s = shortest_interval_s(run.services.options.buffer_timeout_s, self._fill_s)
        self._deferring = False
        """Whether the source has emitted everything that was due, and waits for its flusher."""
        self._idle = False
        self._final_wait: OpenWait | None = None
        self._final_outcome = Outcome.FIRED
        """How the wait for the final checkpoint ends: by the checkpoint interval, or by a stop of the job."""
        run.meter.lag_at = self._lag_at
        flow = FlowControl.read(run.services.options)
        self._most = flow.rate / context.parallelism if flow.rate else math.inf
        self._marker_s = run.services.options.duration(LATENCY_INTERVAL)
        self._marker_at = run.now() if self._marker_s > 0 else math.inf
        """When the next latency marker is emitted; the first one comes at once (LatencyMarkerEmitter)."""
        self._limiter = RateLimiter(UNLIMITED if math.isinf(self._most) else self._most)
        run.on_rate = self._on_rate

    def _batch_records(self) -> int:
        """Return how many records are emitted at once. A barrier waits for these records. After back-pressure they therefore fit into
        one buffer, and their number grows only while there is no back-pressure."""
        waits = self._run.output.waits
        grown = min(2 * self._batch, BATCH_RECORDS)
        if waits == self._waits:
            self._batch = grown
        else:
            fitting = self._run.output.buffer_bytes // (self._config.record_bytes + LENGTH_BYTES)
            self._batch = max(1, min(fitting, BATCH_RECORDS))
        self._waits = waits
        return self._batch

    def _lag_at(self, now_ns: int) -> int:
        """Return the lag at a given time. It is 0 for words from a socket, which have no due time, after the end of the data, and while a
        lazy source waits for its flusher."""
        if self._ended or not isinstance(self.source, GeneratedSource) or (self._lazy and self._idle):
            return 0
        return self.source.lag_ns(now_ns)

    async def restore(self, snapshots: list[SubtaskSnapshot]) -> None:
        """Continue after the last record of the checkpoint. Raises FlinkError when the vertex was rescaled."""
        for snapshot in snapshots:
            if snapshot.parallelism != self._run.subtask.parallelism:
                raise FlinkError(
                    "IllegalStateException",
                    f"The source {self._run.subtask.name} had a parallelism of {snapshot.parallelism} and has "
                    f"{self._run.subtask.parallelism} now: which subtask made which record would change.",
                )
            if snapshot.subtask == self._run.subtask.subtask:
                self.source.next_sequence = snapshot.next_sequence
        if self._config.splits and isinstance(self.source, GeneratedSource):
            size = split_records(self._config.limit, self._config.splits)
            self.source.limit = -(-self.source.next_sequence // size) * size

    async def close(self) -> None:
        """Return immediately: a source has no background work."""

    async def read_recovered(self, on_consumed: Callable[[], None]) -> None:
        """Do nothing: a source has no input."""

    async def run(self) -> None:
        reader = await self._connect_socket()
        try:
            await self._emit_until_end()
        finally:
            if reader is not None:
                reader.close()
        await self._finish()

    # ---- the loop ------------------------------------------------------------------------------------------

    async def _emit_until_end(self) -> None:
        run = self._run
        while not self._drained:
            if run.triggers:
                await self._emit_before_barrier()
                self._checkpoint(run.triggers.popleft())
            elif self.source.exhausted:
                if not await self._next_split():
                    return
            elif not run.output.is_available:
                run.output.when_available(run.wakeup)
                await self._wait(None, backpressured=True)
            else:
                if run.now() >= self._marker_at:
                    await self._emit_marker()
                await self._emit_what_is_due()

    async def _emit_marker(self) -> None:
        run, config = self._run, self._config
        context, now = run.subtask, run.now()
        marker = latency_marker(config.record_bytes, context.vertex, context.subtask, run.now_ns())
        self._marker_at = now + self._marker_s
        await run.output.emit_marker(marker)

    async def _next_split(self) -> bool:
        """Request the next input split and add its records. Return False if no split is left. Raises FlinkError."""
        if not self._config.splits or not isinstance(self.source, GeneratedSource):
            return False
        size = split_records(self._config.limit, self._config.splits)
        index = self.source.next_sequence // size
        limit = option_limit(self._run.services.options, "pekko.ask.timeout")
        waiting = self._run.begin_wait("jobmanager", NEXT_SPLIT, limit=limit)
        ended = Outcome.CANCELLED
        try:
            split: InputSplit = await self._run.gateway.ask(
                RequestNextInputSplit(self._run.descriptor.attempt, index)
            )
            ended = Outcome.COMPLETED
        except ASK_FAILURES as error:
            ended = Outcome.EXPIRED if isinstance(error, AskTimeout) else Outcome.FAILED
            text = f"Requesting the next input split failed: {error}"
            wait = "" if isinstance(error, RemoteFailure) else "jobmanager"
            raise FlinkError("InputSplitProviderException", text, wait=wait) from error
        finally:
            waiting.end(ended, at_least_s=SLOW_ANSWER_S)
        if split.number == NO_SPLIT:
            return False
        self.source.limit = (index + 1) * size
        return True

    async def _emit_what_is_due(self) -> None:
        run = self._run
        now = run.now()
        records = self._take(now, self._batch_records())
        if records is not None:
            self._deferring = False
            await self._emit(records)
            if run.work is not None:
                await run.work.pay()
            now = run.now()
            if not (self._has_caught_up(now) and run.output.is_available):
                await run.services.cpu.yield_control()
                return
        if not self._limiter.grant(now, 1):
            await self._wait(self._limiter.next_time(now), backpressured=True)
            return
        self._deferring = self._lazy
        next_time = self._next_time(now)
        until = self._marker_at if next_time is None else min(next_time, self._marker_at)
        await self._wait(until, backpressured=False)

    def _has_caught_up(self, now: float) -> bool:
        """Return whether the next record of a generated source is due later."""
        source = self.source
        return (
            isinstance(source, GeneratedSource)
            and not source.exhausted
            and source.next_due_ns() > int(now * 1e9)
        )

    async def _emit(self, records: Records) -> None:
        """Write the records that were taken last."""
        source, output = self.source, self._run.output
        if isinstance(source, GeneratedSource):
            end = source.next_sequence - source.block_start
            await output.emit_of(source.block, end - len(records), end)
        else:
            await output.emit(records)

    def _take(self, now: float, most: int) -> Records | None:
        """Return the records that are due and granted, at most `most`, or None."""
        granted = self._limiter.grant(now, most)
        records = self.source.take(int(now * 1e9), granted) if granted else None
        if records is not None:
            self._limiter.spend(len(records))
        return records

    def _on_rate(self, rate: float) -> None:
        """Take the coordinator's rate; the static limit holds too."""
        allowed = min(self._most, rate if rate >= 0 else math.inf)
        self._limiter.limit(UNLIMITED if math.isinf(allowed) else allowed, self._run.now())
        self._run.wakeup.set()

    async def _emit_before_barrier(self) -> None:
        """Emit what a lazy source has deferred, so that the barrier comes after it. A source that is behind has deferred
        nothing, and its barrier does not wait."""
        run = self._run
        now = run.now()
        while self._deferring and run.output.is_available:
            records = self._take(now, BATCH_RECORDS)
            if records is None:
                return
            await self._emit(records)

    def _next_time(self, now: float) -> float | None:
        """Return the time of the next emission: when the next record is due, but not sooner than a tick after the last one.

        A lazy source waits for its flusher, or until its buffers are partly full. It emits half a tick before the flusher: a
        real one does so on average."""
        if not isinstance(self.source, GeneratedSource):
            return None
        soonest = max((self.source.next_due_ns() + ROUNDING_NS) / 1e9, now + self._tick_s)
        if not self._lazy:
            return soonest
        flush = self._run.output.flush_after(soonest + self._tick_s / 2) - self._tick_s / 2
        return max(soonest, min(flush, now + TICK_SHARE * self._fill_s))

    async def _wait(self, until: float | None, *, backpressured: bool) -> None:
        run = self._run
        if backpressured:
            run.output.waits += 1
            run.meter.enter(BACKPRESSURED)
        else:
            run.meter.enter(IDLE)
        self._idle = not backpressured
        await run.wakeup.wait(until)
        self._idle = False
        run.meter.enter(BUSY)

    # ---- checkpoints and the end -----------------------------------------------------------------------------

    def _checkpoint(self, trigger: TriggerCheckpoint) -> None:
        """Emit the barrier, then take the snapshot. A drain ends the data before its barrier."""
        run = self._run
        if trigger.drain and not self._ended:
            self._drained = True
            self._end_data()
        if trigger.drain:
            self._final_outcome = Outcome.COMPLETED
        if not run.begin_checkpoint(trigger.checkpoint, ended=self._ended, stop=trigger.drain):
            return
        snapshot_type = SnapshotType.SAVEPOINT_TERMINATE if trigger.drain else SnapshotType.CHECKPOINT
        barrier = self._policy.barrier(
            trigger.checkpoint, trigger.timestamp_ms, snapshot_type, ended=self._ended
        )
        snapshot = replace(
            run.empty_snapshot(trigger.checkpoint),
            next_sequence=self.source.next_sequence,
            output_state=run.output.send_barrier(barrier),
        )
        taken = TakenSnapshot(snapshot)
        if barrier.is_timeoutable and self._policy.times_out_in_output:
            taken.output = partial(run.output.barriers_sent, barrier)
        run.checkpoints.start(taken)

    def _end_data(self) -> None:
        self._ended = True
        self._run.output.notify_end_of_data(drain=True)
        self._run.checkpoints.data_ended()
        self._run.event("source.end", data={"next": self.source.next_sequence})

    async def _finish(self) -> None:
        """After the last record, wait with checkpoints until all consumers have processed it, and one covers it."""
        run = self._run
        if not self._ended:
            self._end_data()
        try:
            while run.triggers or not run.may_finish(ended=self._ended):
                if run.triggers:
                    self._checkpoint(run.triggers.popleft())
                else:
                    await self._wait(None, backpressured=False)
                self._await_final_checkpoint()
            self._end_final_wait(self._final_outcome)
        finally:
            self._end_final_wait(Outcome.CANCELLED)

    def _await_final_checkpoint(self) -> None:
        """Begin the wait for the checkpoint that covers the end of the data, when everything is processed."""
        run = self._run
        if self._final_wait or self._drained or not (self._checkpointing and run.output.all_data_processed):
            return
        limit = option_limit(run.services.options, "execution.checkpointing.interval")
        self._final_wait = run.begin_wait("final-checkpoint", "", limit=limit)

    def _end_final_wait(self, outcome: Outcome) -> None:
        if self._final_wait is not None:
            self._final_wait.end(outcome)

    # ---- sockets -------------------------------------------------------------------------------------------

    async def _connect_socket(self) -> _WordReader | None:
        if not isinstance(self.source, WordSource):
            return None
        host, separator, port = self._config.socket.rpartition(":")
        if not separator or not port.isdigit():
            raise UserError("source.socket", f"{self._config.socket!r} is not an address", "write host:port")
        reader = _WordReader(self.source, self._run)
        try:
            await self._run.services.network.connect((host, int(port)), reader, timeout_s=CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            raise FlinkError(
                "ConnectException", f"Could not connect to {self._config.socket}: {error}"
            ) from error
        return reader


class _WordReader:
    """Feeds a WordSource from a connection. Stops reading while the source is full."""

    def __init__(self, source: WordSource, run: TaskRun) -> None:
        self._source = source
        self._run = run
        self._connection: Connection | None = None
        self._closed = False

    def on_connected(self, connection: Connection) -> None:
        self._connection = connection

    def on_data(self, data: memoryview) -> None:
        self._source.feed(bytes(data))
        if self._source.full and self._connection is not None:
            self._connection.pause_reading()
            self._source.on_room = self._resume
        self._run.wakeup.set()

    def _resume(self) -> None:
        if self._connection is not None and not self._closed:
            self._connection.resume_reading()

    def on_writable(self) -> None:
        return

    def on_closed(self, error: Exception | None) -> None:
        """End the data with the stream, however it ended, as Flink's socket source does."""
        self._closed = True
        self._source.close()
        self._run.wakeup.set()

    def close(self) -> None:
        if self._connection is not None and not self._closed:
            self._connection.abort()
