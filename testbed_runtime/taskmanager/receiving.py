"""A task's receive queue in the modes without flow control by the network, and its reports to the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.flowcontrol import FlowControl, QueueReport, ReceiveQueue
from testbed_runtime.core.job.messages import ReportQueue
from testbed_runtime.taskmanager.services import TaskRun
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.timeouts import cancel_all
from testbed_runtime.workload.records import Records

OVERFLOW_TEXT = (
    "Java heap space: the receive queue of {0} holds {1:,} bytes, which is its limit "
    "(headgate.flow-control.queue), and nothing slows down its sources"
)


class Receiving:
    """Takes records from the network at once and queues them. A worker processes them one batch after the other.

    Records that do not fit fail the task, or are dropped. `idle` must be awaited before an event of the stream is handled (a
    barrier, a latency marker): until the queue is processed, nothing is taken from the network."""

    def __init__(
        self, run: TaskRun, flow: FlowControl, process: Callable[[Records, int], Awaitable[None]]
    ) -> None:
        self._run = run
        self._flow = flow
        self._process = process
        self._queue: ReceiveQueue[tuple[Records, int]] = ReceiveQueue(flow.queue_bytes)
        self._filled = Wakeup()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._failure: Exception | None = None
        self._worker: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._processed, self._processing_s, self._waited_s = 0, 0.0, 0.0
        self._dropped = 0
        self._sent: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        return self._worker is not None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._worker = loop.create_task(self._work(), name=f"receiving:{self._run.name}")
        if self._flow.coordinated:
            self._timer = loop.call_later(self._flow.interval_s, self._report)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await cancel_all(self._worker, self._sent)
        data = {"dropped": self._dropped, "largest_bytes": self._queue.largest_bytes}
        self._run.event("receive-queue.closed", data=data)

    def put(self, records: Records, channel: int) -> None:
        """Queue the records. Raises FlinkError (OutOfMemoryError) when they do not fit and none may be dropped."""
        fitting = min(len(records), self._queue.room(records.itemsize))
        if fitting < len(records):
            if not self._flow.drops:
                text = OVERFLOW_TEXT.format(self._run.name, self._queue.limit_bytes)
                raise FlinkError("OutOfMemoryError", text)
            self._dropped += len(records) - fitting
            records = records[:fitting]
        if fitting:
            self._queue.put((records, channel), records.nbytes, self._run.now())
            self._emptied.clear()
            self._filled.set()

    async def idle(self) -> None:
        """Wait until everything that was queued is processed."""
        await self._emptied.wait()
        self.raise_if_failed()

    def raise_if_failed(self) -> None:
        """Raise the error with which the processing of a queued record ended."""
        if self._failure is not None:
            raise self._failure

    async def _work(self) -> None:
        try:
            while True:
                while self._queue:
                    await self._one()
                self._emptied.set()
                await self._filled.wait()
        except Exception as error:  # wake the task, which fails with this error
            self._failure = error
            self._emptied.set()
            self._run.wakeup.set()

    async def _one(self) -> None:
        (records, channel), size, waited_s = self._queue.take(self._run.now())
        begin = self._run.now()
        await self._process(records, channel)
        self._queue.done(size)
        self._processed += len(records)
        self._processing_s += self._run.now() - begin
        self._waited_s = waited_s
        await self._run.services.cpu.yield_control()

    def _report(self) -> None:
        """Report the interval. While the last report is on its way, wait: the next one covers both intervals."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._flow.interval_s, self._report)
        if self._sent is not None and not self._sent.done():
            return
        report = QueueReport(
            self._queue.bytes / self._queue.limit_bytes, self._processed, self._processing_s, self._waited_s
        )
        self._processed, self._processing_s = 0, 0.0
        message: Any = ReportQueue(self._run.descriptor.attempt, report)
        self._sent = loop.create_task(self._run.gateway.tell(message), name=f"queue-report:{self._run.name}")
