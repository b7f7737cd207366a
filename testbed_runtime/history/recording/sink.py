"""The HistorySink of a process: rows are buffered, cut to segments and sent to the recorder, and spooled while it does not answer.

sink = await StreamingSink.connect(config, process="tm-0-1", boot_id=clock.boot_id)
sink.append("events", kind="note", text="hello")
await sink.close()
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from testbed_runtime.core.clocks import ClockComparison
from testbed_runtime.history.schema import by_column
from testbed_runtime.history.writer import SegmentWriter
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.timeouts import cancel_all, timeout
from testbed_runtime.transport.history_client import HistoryClient, RecorderRefused, RecorderUnreachable

SHIP_EVERY_S = 0.2
"""The longest time that a row waits before it is sent: a killed process loses at most this much."""
MAX_BATCH_BYTES = 1024 * 1024
"""Limit of one request, so that it is acknowledged soon."""
RETRY_S = 0.2
MAX_RETRY_S = 2.0
"""Pauses while the recorder does not answer: doubled from the first value to the second."""
FLUSH_TIMEOUT_S = 5.0
"""`ports.storage.HistorySink.flush`."""


class StreamingSink:
    """Owns one task (`history:<process>`) until `close()`. `append` never blocks; shed rows are counted and recorded."""

    def __init__(self, writer: SegmentWriter, client: HistoryClient | None, process: str) -> None:
        self._writer = writer
        self._process = process
        self._client = client
        self._rows = asyncio.Event()
        self._urgent = asyncio.Event()
        self._progress = asyncio.Event()
        self._acknowledged = 0
        self._clocks = ClockComparison()
        self._task: asyncio.Task[None] | None = None
        self.refused = ""
        """Why the recorder refuses rows; empty while it accepts them."""

    @classmethod
    async def connect(
        cls, config: ProcessConfig, *, process: str, boot_id: str, stream: str = ""
    ) -> StreamingSink:
        """Connect. Returns even if the recorder does not answer (rows are spooled); raises RecorderRefused for a wrong token. Without
        `config.recorder` rows are dropped. `stream` names this life of the process; the default is unique on a machine."""
        loop = asyncio.get_running_loop()

        def now_ns() -> int:
            return int(loop.time() * 1e9)

        writer = SegmentWriter(
            run=config.run, trial=config.trial, process=process, boot_id=boot_id, now_ns=now_ns
        )
        client = None
        if config.recorder is not None:
            stream = stream or f"{os.getpid()}-{now_ns()}"
            client = HistoryClient(
                config.recorder,
                token=config.token(),
                process=process,
                stream=stream,
                prefix=config.recorder_path,
            )
        sink = cls(writer, client, process)
        await sink._start()
        return sink

    def append(self, table: str, **row: Any) -> None:
        """See `ports.storage.HistorySink`. Mappings and lists become JSON in text columns."""
        if self._client is None or self.refused:
            return
        if self._writer.append(table, row):
            self._urgent.set()
        self._rows.set()

    def put(self, table: str, values: tuple[Any, ...]) -> None:
        self.append(table, **by_column(table, values))

    async def flush(self) -> bool:
        """Wait until everything appended so far is acknowledged. Return False on timeout (FLUSH_TIMEOUT_S) or when the recorder
        refuses. Returns at once without a recorder."""
        if self._client is None:
            return True
        if self._task is None or self._task.done():
            return False
        self._writer.cut()
        target = self._writer.next_number
        try:
            async with timeout(FLUSH_TIMEOUT_S):
                while self._acknowledged < target and not self.refused:
                    self._progress.clear()
                    self._rows.set()
                    self._urgent.set()
                    await self._progress.wait()
        except TimeoutError:
            return False
        return not self.refused

    async def close(self) -> None:
        """Flush, then end the task and the connection, also when the flush is cancelled. Idempotent."""
        try:
            await self.flush()
        finally:
            task, self._task = self._task, None
            await cancel_all(task)
            if self._client is not None:
                await self._client.close()

    async def _start(self) -> None:
        if self._client is None:
            return
        try:
            await self._client.ship(b"")
        except RecorderUnreachable:
            pass
        except BaseException:  # refused or cancelled before the sink was handed over
            await self._client.close()
            raise
        self._task = asyncio.create_task(self._run(self._client), name=f"history:{self._process}")

    async def _run(self, client: HistoryClient) -> None:
        pause = RETRY_S
        while True:
            await self._rows.wait()
            await self._wait_urgent()
            self._rows.clear()
            try:
                await self._ship_all(client)
                pause = RETRY_S
            except RecorderUnreachable:
                self._writer.cut()
                self._rows.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_S)
            except RecorderRefused as error:
                self.refused = str(error)
                self._progress.set()
                return

    async def _wait_urgent(self) -> None:
        try:
            async with timeout(SHIP_EVERY_S):
                await self._urgent.wait()
        except TimeoutError:
            pass
        self._urgent.clear()

    async def _ship_all(self, client: HistoryClient) -> None:
        self._writer.cut()
        while batch := self._writer.pending(MAX_BATCH_BYTES):
            self._acknowledged = await client.ship(b"".join(s.to_bytes() for s in batch))
            self._writer.acknowledged(self._acknowledged)
            self._progress.set()
            found = client.clock
            if found is not None and self._clocks.worth_recording(found):
                data = {"offset_s": found.offset_s, "uncertainty_s": found.uncertainty_s}
                self.append("events", kind="clock.offset", subject=self._process, data=data)
        if self._writer.buffered:
            self._rows.set()
