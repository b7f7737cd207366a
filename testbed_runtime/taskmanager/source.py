"""Source tasks: an open loop between checkpoints, ended by its limit or by a drain."""

from __future__ import annotations

from testbed_runtime.core.errors import FlinkError, UserError
from testbed_runtime.core.exchange.events import AlignmentType, CheckpointBarrier, SnapshotType
from testbed_runtime.core.job.jobgraph import SourceConfig
from testbed_runtime.core.job.messages import TriggerCheckpoint
from testbed_runtime.ports.network import Connection
from testbed_runtime.taskmanager.meter import BACKPRESSURED, BUSY, IDLE
from testbed_runtime.taskmanager.services import TaskRun
from testbed_runtime.workload.snapshots import SubtaskSnapshot
from testbed_runtime.workload.sources import GeneratedSource, WordSource

TICK_S = 0.005
"""The shortest interval between two emissions: below the flusher's interval, above the cost of a loop iteration."""
LEAD_S = TICK_S / 2
"""A lazy source emits this long before the flusher: a real one emits half a tick before it on average."""
FILL_SHARE = 0.25
"""A lazy source emits at least this often in the time in which its buffers fill."""
CONNECT_TIMEOUT_S = 10.0
"""Time limit for a socket source to connect to its sender."""


class SourceTask:
    """The invokable of a source: `restore`, then `run` to its end."""

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
        else:
            raise UserError("source.kind", f"{config.kind!r} is not a source", "write generated or socket")
        mode = run.services.options.string("execution.checkpointing.mode")
        self._alignment = AlignmentType.ALIGNED if mode == "EXACTLY_ONCE" else AlignmentType.AT_LEAST_ONCE
        self._checkpointing = run.services.options.duration("execution.checkpointing.interval") > 0
        self._drained = False
        self._ended = False
        self._lazy = run.services.pace.lazy
        self._idle = False
        self._final_checkpoint = 0
        """First checkpoint taken after the end of data."""
        run.meter.lag_at = self._lag_at

    def _lag_at(self, now_ns: int) -> int:
        """The current lag. Words of a socket have no due time, and nothing is due after the end of data or while a lazy
        source waits for its flusher."""
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

    async def close(self) -> None:
        """There is no background work beside `run`."""

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
                return
            elif not run.output.is_available:
                run.output.when_available(run.wakeup)
                await self._wait(None, backpressured=True)
            else:
                await self._emit_what_is_due()

    async def _emit_what_is_due(self) -> None:
        run = self._run
        now_ns = run.now_ns()
        records = self.source.take(now_ns)
        if records is None:
            await self._wait(self._next_time(), backpressured=False)
            return
        await run.output.emit(records)
        await run.services.cpu.breathe()

    async def _emit_before_barrier(self) -> None:
        """Emit what a lazy source has deferred, so that the barrier comes after it."""
        run = self._run
        while (
            self._lazy and run.output.is_available and (records := self.source.take(run.now_ns())) is not None
        ):
            await run.output.emit(records)

    def _next_time(self) -> float | None:
        """Return the time of the next emission: when the next record is due, but not sooner than TICK_S after the last one.

        A lazy source waits for its flusher, or until its buffers are partly full."""
        if not isinstance(self.source, GeneratedSource):
            return None
        now = self._run.now()
        soonest = max(self.source.next_due_ns() / 1e9, now + TICK_S)
        if not self._lazy:
            return soonest
        flush = self._run.output.flush_after(soonest + LEAD_S) - LEAD_S
        rate = self._config.records_per_second * self._config.record_bytes / self._run.subtask.parallelism
        filled = now + FILL_SHARE * self._run.output.room_bytes / rate
        return max(soonest, min(flush, filled))

    async def _wait(self, until: float | None, *, backpressured: bool) -> None:
        run = self._run
        if backpressured:
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
        if self._ended and not self._final_checkpoint:
            self._final_checkpoint = trigger.checkpoint
        snapshot_type = SnapshotType.SAVEPOINT_TERMINATE if trigger.drain else SnapshotType.CHECKPOINT
        barrier = CheckpointBarrier(
            trigger.checkpoint, trigger.timestamp_ms, self._alignment, snapshot_type=snapshot_type
        )
        run.output.broadcast(barrier)
        snapshot = SubtaskSnapshot(
            trigger.checkpoint,
            run.subtask.name,
            run.subtask.subtask,
            run.subtask.parallelism,
            run.subtask.max_parallelism,
            next_sequence=self.source.next_sequence,
        )
        run.checkpoints.start(snapshot, None, alignment_s=0.0)

    def _end_data(self) -> None:
        self._ended = True
        self._run.output.notify_end_of_data(drain=True)
        self._run.event("source.end", data={"next": self.source.next_sequence})

    async def _finish(self) -> None:
        """After the last record, wait until all consumers have processed it and, with checkpoints, one covers it."""
        run = self._run
        if not self._ended:
            self._end_data()
        while not self._may_finish():
            if run.triggers:
                self._checkpoint(run.triggers.popleft())
            else:
                await self._wait(None, backpressured=False)

    def _may_finish(self) -> bool:
        run = self._run
        if not run.output.all_data_processed:
            return False
        if not self._checkpointing and not self._drained:
            return True
        return 0 < self._final_checkpoint <= run.checkpoints.last_completed

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
        del error  # as with Flink's socket source: the end of the stream is the end of the data
        self._closed = True
        self._source.close()
        self._run.wakeup.set()

    def close(self) -> None:
        if self._connection is not None and not self._closed:
            self._connection.abort()
