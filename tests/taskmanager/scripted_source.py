"""A source task whose output, JobManager and checkpoints are set by hand."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from types import SimpleNamespace
from typing import Any

from testbed_runtime.core.errors import FlinkError, UserError
from testbed_runtime.core.job.jobgraph import SourceConfig
from testbed_runtime.core.job.messages import InputSplit, TriggerCheckpoint
from testbed_runtime.core.options import Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.source import SourceTask
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.workload.keyedstate import SubtaskContext
from testbed_runtime.workload.snapshots import SubtaskSnapshot
from tests.taskmanager.rows import KeptRows

T0_S = 1000.0
"""The time at which a virtual loop begins."""
CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}
UNCOVERED = {**CHECKPOINTS, "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "false"}
RATE = SourceConfig(records_per_second=100.0)


class Source(KeptRows):
    """A source task whose output, JobManager and checkpoints are set by hand. `done` has what it did, with times in ms."""

    def __init__(
        self,
        config: SourceConfig = RATE,
        *,
        lazy: bool = False,
        flush_ms: float = math.inf,
        version: str = "2.x",
        parallelism: int = 1,
        **options: str,
    ) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.rows: list[dict[str, Any]] = []
        self.modes: list[int] = []
        self.flush_ms = flush_ms
        self.refuses: set[int] = set()
        """Checkpoints that were aborted."""
        self.splits: deque[Any] = deque()
        self.output: Any = SimpleNamespace(
            room_bytes=32 << 10,
            buffer_bytes=32 << 10,
            waits=0,
            is_available=True,
            all_data_processed=False,
            when_available=lambda wakeup: self.did("waits"),
            flush_after=lambda time: T0_S + self.flush_ms / 1000,
            emit_of=self._emit,
            emit_marker=self._marker,
            send_barrier=self._barrier,
            broadcast=lambda event: self.did("cancel", event.checkpoint_id),
            notify_end_of_data=lambda drain: self.did("end", drain),
            barriers_sent=None,
        )
        named = {key.replace("_", "."): value for key, value in options.items()}
        self.started: list[Any] = []
        self.checkpoints: Any = SimpleNamespace(
            begin=lambda number: number not in self.refuses,
            start=self.started.append,
            last_completed=0,
        )
        self.run: Any = SimpleNamespace(
            name="source-0",
            subtask=SubtaskContext(0, "source", 0, parallelism, 128, int(T0_S * 1e9), ("source",)),
            descriptor=SimpleNamespace(seed=3, attempt="attempt", attempt_number=2),
            meter=SimpleNamespace(enter=self.modes.append, lag_at=None),
            output=self.output,
            wakeup=Wakeup(),
            triggers=deque(),
            checkpoints=self.checkpoints,
            gateway=SimpleNamespace(ask=self._ask),
            services=SimpleNamespace(
                options=Options(named, flink_version=version),
                pace=SimpleNamespace(lazy=lazy),
                cpu=SimpleNamespace(yield_control=self._nothing),
                waits=WaitLog(self, "tm-0-1", self.now),
                network=SimpleNamespace(connect=self._connect),
            ),
            work=None,
            now=self.now,
            now_ns=lambda: int(self.now() * 1e9),
            event=lambda kind, data: self.did(kind, data["next"]),
            empty_snapshot=lambda number: SubtaskSnapshot(number, "source", 0, 1, 128),
        )
        self.task = SourceTask(self.run, config)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def did(self, *what: Any) -> None:
        self.done.append((*what, round((self.now() - T0_S) * 1000, 2)))

    async def _nothing(self) -> None:
        return

    async def _emit(self, block: Any, start: int, end: int) -> None:
        self.did("emit", end - start)

    async def _marker(self, marker: Any) -> None:
        self.did("marker", int(marker["due_ns"][0]) / 1e6 - T0_S * 1000)

    def _barrier(self, barrier: Any) -> tuple[()]:
        self.did("barrier", barrier.checkpoint_id)
        self.barrier = barrier
        return ()

    async def _ask(self, message: Any) -> Any:
        self.did("split", message.index)
        answer = self.splits.popleft()
        if isinstance(answer, Exception):
            raise answer
        return InputSplit(answer)

    async def _connect(self, address: Any, reader: Any, *, timeout_s: float) -> None:
        self.did("connect", address, timeout_s)
        raise OSError("refused")

    def trigger(self, checkpoint: int, *, drain: bool = False) -> None:
        self.run.triggers.append(TriggerCheckpoint("attempt", checkpoint, 7, "leader", drain))
        self.run.wakeup.set()


def during(made: Any, seconds: float, *steps: tuple[float, Any]) -> list[tuple[Any, ...]]:
    """Return what a source does in this time. `steps`: seconds, and a function of the source that is called then."""

    async def main() -> list[tuple[Any, ...]]:
        source: Source = made()
        loop, failed = asyncio.get_running_loop(), []

        async def run() -> None:
            try:
                await source.task.run()
            except (FlinkError, UserError) as error:
                failed.append(error)
            source.did("over")

        running = loop.create_task(run())
        for at, step in steps:
            loop.call_later(at, step, source)
        await asyncio.sleep(seconds)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        if failed:
            raise failed[0]
        return source.done

    return run_virtual(main())


def inside(check: Any) -> None:
    """Call a function in a virtual loop."""

    async def main() -> None:
        check()

    run_virtual(main())


def named(done: list[tuple[Any, ...]], *kinds: str) -> list[tuple[Any, ...]]:
    return [one for one in done if one[0] in kinds]


def process_all(source: Source) -> None:
    source.output.all_data_processed = True
    source.run.wakeup.set()
