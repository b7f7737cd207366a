"""A task's partition requests: connect its channels, ask the JobMaster about missing partitions, request again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.localchannel import LocalInputChannel
from testbed_runtime.core.job.limits import connect_limit, partition_limit
from testbed_runtime.core.job.messages import (
    InputGateDescriptor,
    PartitionState,
    RequestPartitionState,
    TaskDeploymentDescriptor,
)
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable, RemoteFailure
from testbed_runtime.taskmanager.channel_waits import ChannelWaits
from testbed_runtime.taskmanager.gateway import JobMasterGateway

if TYPE_CHECKING:
    from testbed_runtime.taskmanager.services import TaskServices
from testbed_runtime.timeouts import Timer, cancel_all

PartitionNotFoundCallback: TypeAlias = Callable[[RemoteInputChannel], None]

RETRIGGER = frozenset(("SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING", "FINISHED"))
CANCEL = frozenset(("CANCELING", "CANCELED", "FAILED"))


def judge_producer(state: PartitionState | None, partition: str, producer: str) -> FlinkError | None:
    """Decide what a consumer does when its producer is in this state (None: the JobMaster did not answer in time). Return None to
    request again. A CancelTaskException cancels the consumer, any other error fails it."""
    if state is None or (not state.disposed and state.state in RETRIGGER):
        return None
    if state.disposed:
        return FlinkError(
            "CancelTaskException",
            f"Execution {producer} producing partition {partition} has already been disposed.",
        )
    if state.state in CANCEL:
        return FlinkError(
            "CancelTaskException", f"The producer {producer} of partition {partition} is {state.state}."
        )
    return FlinkError(
        "IllegalStateException",
        f"Producer with attempt ID {producer} of partition {partition} in unexpected state {state.state}.",
    )


def timed_out(error: FlinkError) -> bool:
    """Return whether connecting failed because of the timeout, and not because it was refused or the kernel gave up."""
    return isinstance(error.__cause__, TimeoutError) and error.__cause__.errno is None


class PartitionRequests:
    """Owns the partition requests of one task; its timer and its coroutines end with `close`.

    Calls `on_verdict(error)` when the state of a producer ends the task."""

    def __init__(
        self,
        task: str,
        descriptor: TaskDeploymentDescriptor,
        services: TaskServices,
        gateway: JobMasterGateway,
        on_verdict: Callable[[FlinkError], None],
    ) -> None:
        self._task = task
        self._attempt = descriptor.attempt_number
        limits = tuple(partition_limit(services.options, local=local) for local in (True, False))
        unreachable = connect_limit(services.options)
        self._waits = ChannelWaits(services.waits, task, self._attempt, limits, unreachable)
        self._connections = services.environment.connections
        self._gateway = gateway
        self._clock = services.clock
        self._history = services.history
        self._on_verdict = on_verdict
        self._gates: list[InputGate] = []
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._timer = Timer()
        self._closed = False
        self._stride = services.pace.channel_stride
        """The first request is recorded as an event only for channels whose index is a multiple of this number."""

    # ---- the first requests ----------------------------------------------------------------------------------

    def connect(self, gates: Sequence[tuple[InputGate, InputGateDescriptor]]) -> None:
        """Request every channel of the gates that were not requested yet: local ones at once, remote ones when they are connected."""
        gates = [found for found in gates if found[0] not in self._gates]
        self._gates += [gate for gate, _ in gates]
        self._waits.start(gates)
        remote: dict[tuple[str, tuple[str, int], int], list[RemoteInputChannel]] = {}
        for gate, descriptor in gates:
            for channel, where in zip(gate.channels, descriptor.channels, strict=True):
                if isinstance(channel, LocalInputChannel):
                    channel.request(self._clock.now())
                    self._note(channel, 0.0)
                else:
                    index = self._connections.index_of(channel.partition)
                    remote.setdefault((where.producer, where.data_address, index), []).append(channel)
        for (producer, address, index), channels in remote.items():
            work = self._connect(producer, address, index, channels)
            self._start(f"connect:{producer}/{index}/{len(self._gates)}", work)
        self._arm()

    async def _connect(
        self, producer: str, address: tuple[str, int], index: int, channels: list[RemoteInputChannel]
    ) -> None:
        try:
            client = await self._connections.client(producer, address, index)
        except FlinkError as error:
            if timed_out(error):
                self._waits.timed_out(producer)
            for channel in channels:
                failure = FlinkError(
                    "PartitionConnectionException",
                    f"Connection for partition {channel.partition} not reachable.",
                    lost_taskmanager=producer,
                )
                failure.__cause__ = error
                channel.on_error(failure)
            return
        for channel in channels:
            if not channel.is_released:
                client.add(channel)
                self._note(channel, 0.0, connection=f"{producer}/{index}")

    # ---- partitions that are not found -------------------------------------------------------------------------

    def on_not_found(self, channel: RemoteInputChannel) -> None:
        """Handle the answer PartitionNotFound of a producer."""
        if not self._closed:
            self._start(f"state:{channel.receiver.hex()}:{channel.requests}", self._ask(channel))

    async def _ask(self, channel: RemoteInputChannel) -> None:
        partition, producer = str(channel.partition), str(channel.partition.producer)
        try:
            state: PartitionState | None = await self._gateway.ask(RequestPartitionState(partition))
        except AskTimeout:
            state = None
        except RemoteFailure as error:
            self._on_verdict(FlinkError(error.class_name, error.message))
            return
        except RecipientUnreachable as error:
            failure = FlinkError("RecipientUnreachableException", str(error), wait="jobmanager")
            self._on_verdict(failure)
            return
        verdict = judge_producer(state, partition, producer)
        if verdict is not None:
            self._on_verdict(verdict)
        elif not channel.is_released and channel.error is None:
            self._retrigger(channel)

    def _retrigger(self, channel: RemoteInputChannel) -> None:
        outcome = channel.retrigger(self._clock.now())
        if isinstance(outcome, FlinkError):
            return  # the gate raises it
        if outcome == 0:
            self._note(channel, channel.backoff.current)
        self._arm()

    # ---- delayed requests ------------------------------------------------------------------------------------

    def _arm(self) -> None:
        deadlines = [gate.next_deadline for gate in self._gates]
        deadline = min((d for d in deadlines if d is not None), default=None)
        self._timer.set(None if self._closed else deadline, self._on_timer)

    def _on_timer(self) -> None:
        now = self._clock.now()
        for gate in self._gates:
            for channel in gate.channels:
                before, backoff = channel.requests, channel.backoff.current
                channel.on_time(now)
                if channel.requests > before:
                    self._note(channel, backoff)
        self._arm()

    def note_answers(self, since_s: float) -> None:
        """End the waits for partitions whose producers have answered since the last call. Since `since_s` the task has only processed
        data, so it was not waiting for any of these partitions."""
        self._waits.note_answers(since_s)

    def end_waits(self, failure: FlinkError | None, *, input_at: float) -> None:
        """End all waits, because the task ends. `input_at`: when input was last seen."""
        self._waits.end(failure, input_at)

    def _note(
        self, channel: LocalInputChannel | RemoteInputChannel, backoff_s: float, *, connection: str = ""
    ) -> None:
        self._waits.requested(channel)
        if channel.requests == 1 and channel.index % self._stride:
            return
        data: dict[str, Any] = {
            "partition": str(channel.partition),
            "request": channel.requests,
            "backoff_s": backoff_s,
        }
        if connection:
            data["connection"] = connection
        self._history.append(
            "events",
            kind="partition.request",
            subject=self._task,
            attempt=self._attempt,
            data=data,
        )

    # ---- ownership -------------------------------------------------------------------------------------------

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._task}:{name}")
        self._workers[name] = task
        task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, worker: asyncio.Task[None]) -> None:
        """Forget a worker. A bug in it fails the task, which would wait for its partition forever."""
        self._workers.pop(name, None)
        if not worker.cancelled() and (error := worker.exception()) is not None:
            self._on_verdict(FlinkError(type(error).__name__, str(error) or repr(error)))

    async def close(self) -> None:
        self._closed = True
        self._timer.cancel()
        await cancel_all(*self._workers.values())
