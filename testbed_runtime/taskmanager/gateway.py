"""How a task reports to its JobMaster: states in order, checkpoint answers, commits of at-least-once sinks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.core.job.executiongraph import ExecutionState
from testbed_runtime.core.job.messages import (
    JOBMASTER,
    Acknowledge,
    CommitRecords,
    SinkCommit,
    UpdateTaskExecutionState,
)
from testbed_runtime.core.waits import Outcome
from testbed_runtime.history.waits import OpenWait
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import (
    ASK_FAILURES,
    AskTimeout,
    NoAnswer,
    RecipientUnreachable,
    RemoteFailure,
    Rpc,
)
from testbed_runtime.timeouts import cancel_all

SLOW_ANSWER_S = 0.1
"""A report that is answered within this time is not recorded as a wait."""
COMMIT_RETRY_S = 0.2
"""Pause before an unanswered commit is sent again."""
COMMIT_GRACE_S = 5.0
"""How long a finished task keeps trying to hand over its last commits."""
MAX_WAITING_COMMITS = 1000
"""Maximum flushes (one every 200 ms) that are queued while the JobMaster is unreachable. The task fails with the next one."""


class JobMasterGateway(Struct, frozen=True):
    """The JobMaster of one job in one leader session."""

    rpc: Rpc
    address: Address
    job: str
    leader: str
    resource_id: str
    ask_timeout_s: float

    async def ask(self, message: Any, *, timeout_s: float | None = None, call_id: str = "") -> Any:
        """Raises ASK_FAILURES."""
        return await self.rpc.ask(
            JOBMANAGER,
            self.address,
            JOBMASTER,
            message,
            timeout_s=self.ask_timeout_s if timeout_s is None else timeout_s,
            call_id=call_id,
        )

    async def tell(self, message: Any) -> None:
        """Send a message and ignore failures, because the JobMaster's own timeouts cover its loss."""
        try:
            await self.ask(message)
        except ASK_FAILURES:
            return


class StateReports:
    """Reports the execution states of one task in order.

    As in Flink, a report does not wait for the answer to the one before: each has its own ask timeout, from the moment
    that the state changes. Calls `on_refused` when the JobMaster did not accept a non-terminal state (the task then fails)."""

    def __init__(
        self,
        gateway: JobMasterGateway,
        on_refused: Callable[[FlinkError], None],
        begin: Callable[[str, str], OpenWait],
    ) -> None:
        """`begin(kind, state)` begins the wait for the answer to a report."""
        self._gateway = gateway
        self._on_refused = on_refused
        self._begin = begin
        self._asks: set[asyncio.Task[None]] = set()

    def send(self, report: UpdateTaskExecutionState) -> None:
        kind = "failure-report" if report.state == ExecutionState.FAILED else "jobmanager"
        ask = asyncio.get_running_loop().create_task(
            self._ask(report, self._begin(kind, report.state)), name=f"report:{report.attempt[-12:]}"
        )
        self._asks.add(ask)
        ask.add_done_callback(self._asks.discard)

    async def _ask(self, report: UpdateTaskExecutionState, wait: OpenWait) -> None:
        try:
            answer = await self._gateway.ask(report)
        except RemoteFailure as error:
            wait.end(Outcome.FAILED, cause=error.message)
            self._refused(report, FlinkError(error.class_name, error.message))
        except AskTimeout as error:
            wait.end(Outcome.EXPIRED)
            self._refused(report, FlinkError(error.class_name, str(error), wait="jobmanager"))
        except RecipientUnreachable as error:
            wait.end(Outcome.FAILED, cause=str(error))
            failure = FlinkError("RecipientUnreachableException", str(error), wait="jobmanager")
            self._refused(report, failure)
        else:
            wait.end(at_least_s=0.0 if wait.kind == "failure-report" else SLOW_ANSWER_S)
            if isinstance(answer, Acknowledge) and not answer.accepted:
                self._refused(report, FlinkError("ExecutionGraphException", answer.reason))

    def _refused(self, report: UpdateTaskExecutionState, error: FlinkError) -> None:
        if not ExecutionState(report.state).terminal:
            self._on_refused(error)

    async def drained(self) -> None:
        """Wait until every report was answered or has failed."""
        while self._asks:
            await asyncio.wait(self._asks)

    async def close(self) -> None:
        """Stop waiting for answers."""
        await cancel_all(*self._asks)


class RecordCommitter:
    """Hands the flushes of an at-least-once sink to the JobMaster in order, each repeated until it is answered."""

    def __init__(
        self, gateway: JobMasterGateway, attempt: str, on_overflow: Callable[[FlinkError], None]
    ) -> None:
        self._gateway = gateway
        self._attempt = attempt
        self._on_overflow = on_overflow
        self._waiting: deque[CommitRecords] = deque()
        self._sequence = 0
        self._worker: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self.rejected = 0
        """Flushes that the JobMaster refused because a newer attempt has replaced this one."""

    def commit(self, commit: SinkCommit) -> None:
        if len(self._waiting) >= MAX_WAITING_COMMITS:
            self._on_overflow(
                FlinkError("IOException", "The JobMaster does not accept the commits of this sink.")
            )
            return
        gateway = self._gateway
        self._waiting.append(CommitRecords(self._attempt, gateway.leader, self._sequence, commit))
        self._sequence += 1
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(
                self._run(), name=f"commits:{self._attempt[-12:]}"
            )

    async def _run(self) -> None:
        while self._waiting:
            message = self._waiting[0]
            try:
                answer = await self._gateway.ask(
                    message, call_id=f"{self._attempt}/commit/{message.sequence}"
                )
            except NoAnswer:
                await asyncio.sleep(COMMIT_RETRY_S)
                continue
            except RemoteFailure:
                answer = Acknowledge(accepted=False)
            if isinstance(answer, Acknowledge) and not answer.accepted:
                self.rejected += 1
            self._waiting.popleft()
            self._answered.set()
        self._worker = None

    async def handed_over(self) -> None:
        """Wait until everything committed so far was answered, accepted or not."""
        target = self._sequence
        while self._waiting and self._waiting[0].sequence < target:
            self._answered.clear()
            await self._answered.wait()

    async def close(self) -> None:
        """Wait up to COMMIT_GRACE_S for queued commits, then stop. Call it after the last commit."""
        if self._worker is None:
            return
        await asyncio.wait([self._worker], timeout=COMMIT_GRACE_S)
        await cancel_all(self._worker)
