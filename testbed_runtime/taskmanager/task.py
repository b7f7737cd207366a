"""One attempt of a subtask: deploy, restore, run, end, with its own failure boundary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Protocol

from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.job.executiongraph import ExecutionState
from testbed_runtime.core.job.limits import option_limit
from testbed_runtime.core.job.messages import (
    NotifyPartitionDataAvailable,
    TaskDeploymentDescriptor,
    TriggerCheckpoint,
    UpdateTaskExecutionState,
)
from testbed_runtime.core.job.outcome import cancels, reported
from testbed_runtime.core.job.rescaling import GateRescaling
from testbed_runtime.core.versions import SAVEPOINTS_DO_NOT_COUNT, TASKS_INITIALIZE, has
from testbed_runtime.core.waits import OWN_PARTITION, Outcome
from testbed_runtime.history.waits import OpenWait
from testbed_runtime.ports.rpc import ASK_FAILURES, RemoteFailure
from testbed_runtime.taskmanager.checkpoints import (
    FinalCheckpoint,
    TaskCheckpoints,
    load_snapshots,
    restore_snapshots,
)
from testbed_runtime.taskmanager.gateway import JobMasterGateway, RecordCommitter, StateReports
from testbed_runtime.taskmanager.input import TaskInput
from testbed_runtime.taskmanager.iteration import (
    IterationHeadTask,
    IterationSynchronizationSinkTask,
    IterationTailTask,
)
from testbed_runtime.taskmanager.meter import TaskMeter
from testbed_runtime.taskmanager.output import TaskOutput
from testbed_runtime.taskmanager.partition_requests import PartitionRequests
from testbed_runtime.taskmanager.services import TaskRun, TaskServices, subtask_context
from testbed_runtime.taskmanager.source import SourceTask
from testbed_runtime.taskmanager.statefiles import AttemptFiles
from testbed_runtime.taskmanager.stream import StreamTask
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.taskmanager.work import TaskWork
from testbed_runtime.workload.inflight import VirtualChannels
from testbed_runtime.workload.partitioners import Partitioner
from testbed_runtime.workload.snapshots import ChannelState, SubtaskSnapshot

_S = ExecutionState
STOP_FAILED = "Stop-with-savepoint failed."
SLOW_REGISTRATION_S = 0.001
"""A registration of partitions within this time is not recorded as a wait."""
SLOW_OPEN_S = 0.001
"""Opening functions within this time is not recorded as a wait."""


class Invokable(Protocol):
    """The code that a task runs: see SourceTask and StreamTask."""

    async def restore(self, snapshots: list[SubtaskSnapshot]) -> None: ...

    async def read_recovered(self, on_consumed: Callable[[], None]) -> None: ...

    async def run(self) -> None: ...

    async def close(self) -> None: ...


class Task:
    """Owns its coroutine (`task:<vertex>-<subtask>:<attempt>`) and everything that it starts. It never raises to its
    TaskManager: it always ends in a state that is reported, and calls `on_end`. It calls `on_failing` when something outside its
    coroutine has failed it, before it has ended."""

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        services: TaskServices,
        gateway: JobMasterGateway,
        on_end: Callable[[Task], None],
        on_failing: Callable[[Task], None],
    ) -> None:
        self.descriptor = descriptor
        self.state = ExecutionState.CREATED
        self.failure: FlinkError | None = None
        self.partitions: list[ResultPartition] = []
        self.meter = TaskMeter(descriptor, services.clock, services.history)
        services = replace(services, options=services.options.of_job(batch=descriptor.batch))
        self._services = services
        self.reports = StateReports(gateway, self.fail, self._begin_report)
        self._gateway = gateway
        self._on_end = on_end
        self._on_failing = on_failing
        self._wakeup = Wakeup()
        self._announcing: list[asyncio.Task[None]] = []
        self.input = TaskInput([])
        self._run: TaskRun | None = None
        self._failed_partition = ""
        self._begun = False
        self._ran = False
        self._ending = False
        self._main: asyncio.Task[None] | None = None
        self._requests = PartitionRequests(self.name, descriptor, services, gateway, self.fail)
        self._files = AttemptFiles(
            services.state_backend,
            job=descriptor.job,
            attempt=descriptor.attempt,
            allocation=descriptor.allocation,
        )
        self.checkpoints = TaskCheckpoints(
            descriptor,
            blobs=services.blobs,
            local=services.local_state,
            files=self._files,
            gateway=gateway,
            options=services.options,
        )
        self._committer = RecordCommitter(gateway, descriptor.attempt, self.fail)

    @property
    def name(self) -> str:
        """`vertex-subtask`."""
        return self.meter.task

    @property
    def attempt(self) -> str:
        return self.descriptor.attempt

    @property
    def ended(self) -> bool:
        return self.state.terminal

    # ---- what the TaskExecutor calls -------------------------------------------------------------------------

    def start(self) -> None:
        name = f"task:{self.name}:{self.descriptor.attempt_number}"
        self._main = asyncio.get_running_loop().create_task(self._live(), name=name)

    def cancel(self) -> None:
        """End as CANCELED. Does nothing when it has ended or is ending."""
        if (
            self._main is not None
            and not self._ending
            and self.failure is None
            and self.state is not _S.CANCELING
        ):
            self._switch(_S.CANCELING, report=False)
            self._interrupt(self._main)

    def fail(self, cause: FlinkError, *, external: bool = True) -> None:
        """End as FAILED with this cause (CANCELED for a CancelTaskException). Only the first cause counts. `external`: Flink fails the
        task from outside its thread."""
        if (
            self._main is not None
            and not self._ending
            and self.failure is None
            and self.state is not _S.CANCELING
        ):
            self.failure = cause
            self._interrupt(self._main)
            if external:
                self._on_failing(self)

    def _interrupt(self, main: asyncio.Task[None]) -> None:
        """Cancel the coroutine. A coroutine that is cancelled before its first step would skip its failure boundary, so `_live` checks for
        that case instead."""
        if self._begun:
            main.cancel()

    def trigger_checkpoint(self, trigger: TriggerCheckpoint) -> None:
        """Trigger a checkpoint at a source. A task declines it if it is not running, or if it has no work left and can only finish
        (Task.triggerCheckpointBarrier)."""
        if self._run is None or self.state is not _S.RUNNING:
            self.checkpoints.decline_soon(trigger.checkpoint, "CHECKPOINT_DECLINED_TASK_NOT_READY")
        elif self._ran:
            self.checkpoints.decline_soon(trigger.checkpoint, "CHECKPOINT_DECLINED_TASK_CLOSING")
        else:
            self._run.triggers.append(trigger)
            self._wakeup.set()

    def set_rate(self, rate: float) -> None:
        """Limit a source. Any other task ignores it."""
        if self._run is not None:
            self._run.on_rate(rate)

    def notify_checkpoint_complete(self, checkpoint: int) -> None:
        """Handle a completed checkpoint, once, and not after a later one (StreamTask.notifyCheckpointComplete)."""
        if checkpoint <= max(self.checkpoints.last_completed, self.descriptor.restore_checkpoint):
            return
        self.checkpoints.completed(checkpoint)
        if self._run is not None:
            self._run.on_completed(checkpoint)
        self._wakeup.set()

    def notify_checkpoint_aborted(self, checkpoint: int, latest_completed: int = 0) -> None:
        """Handle an aborted checkpoint. A task that has begun the final one of a stop cannot go on, as its data has ended: it fails
        (StreamTask.notifyCheckpointAbortAsync). Until 1.14 the JobMaster fails the job."""
        self.notify_checkpoint_complete(latest_completed)
        if self.state is not _S.RUNNING or self._run is None:
            return
        if checkpoint == self._run.final.stop and has(
            self._services.options.flink_version, SAVEPOINTS_DO_NOT_COUNT
        ):
            cause = FlinkError("FlinkRuntimeException", STOP_FAILED, wait="checkpoint")
            self.fail(cause, external=False)
        else:
            self.checkpoints.abort(checkpoint)

    async def wait_ended(self) -> None:
        """Wait until the task has ended completely."""
        if self._main is not None:
            await asyncio.wait([self._main])

    # ---- life ----------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        outcome = _S.FINISHED
        invokable: Invokable | None = None
        self._begun = True
        try:
            if self.state is _S.CANCELING or self.failure is not None:
                raise asyncio.CancelledError  # noqa: TRY301 - cancelled before the first step
            invokable = await self._deploy()
            await invokable.run()
            self._ran = True
            await self.checkpoints.drained()
            if self._run is not None:
                self._run.output.finish()
        except asyncio.CancelledError:
            outcome = _S.CANCELED if self.failure is None else self._outcome_of(self.failure)
        except (
            Exception
        ) as error:  # the failure boundary: user code and bugs end one task, never its TaskManager
            outcome = self._outcome_of_error(error)
        for announcing in self._announcing:
            announcing.cancel()
        await self._end(outcome, invokable)

    def _outcome_of_error(self, error: Exception) -> ExecutionState:
        """Keep the error as the cause, if it is the first one. While the task is being cancelled, errors are ignored (Task.doRun)."""
        if self.state is _S.CANCELING:
            return _S.CANCELED
        if isinstance(error, FlinkError):
            error.__traceback__ = None  # else the failed connection, which keeps the error, keeps this task
            self.failure = self.failure or error
            self._failed_partition = self.input.failed_partition(error)
            return self._outcome_of(self.failure)
        self.failure = self.failure or FlinkError(type(error).__name__, str(error) or repr(error))
        self.failure.__cause__ = error
        return _S.FAILED

    def _outcome_of(self, failure: FlinkError) -> ExecutionState:
        return _S.CANCELED if cancels(failure, self._services.options.flink_version) else _S.FAILED

    async def _deploy(self) -> Invokable:
        """Create and register partitions, then set up gates (Task.setupPartitionsAndGates), restore the state, then request the partitions."""
        self._switch(_S.DEPLOYING, report=False)
        environment, descriptor = self._services.environment, self.descriptor
        outputs = []
        for number, wanted in enumerate(descriptor.partitions):
            partition = environment.create_partition(wanted, self._wakeup)
            self.partitions.append(partition)
            partitioner = Partitioner(
                wanted.partitioning,
                wanted.subpartitions,
                wanted.target_max_parallelism,
                start=descriptor.subtask + number,
            )
            outputs.append((partition, partitioner))
        await self._register_partitions()
        gates: list[InputGate] = []
        for gate in descriptor.gates:
            gates.append(environment.create_gate(gate, self._wakeup, self._requests.on_not_found))
            self.input = TaskInput(gates, [d.announced_recovery for d in descriptor.gates])
            await environment.set_up(gates[-1])
        self._switch(_S.INITIALIZING, report=has(self._services.options.flink_version, TASKS_INITIALIZE))
        self._run = TaskRun(
            descriptor=descriptor,
            services=self._services,
            subtask=subtask_context(descriptor),
            meter=self.meter,
            input=self.input,
            output=TaskOutput(
                outputs,
                self.meter,
                buffer_timeout_s=self._services.options.buffer_timeout_s,
                on_first=self._on_first_record,
                random=Random(f"{descriptor.seed}/{self.name}/{descriptor.attempt_number}"),  # noqa: S311
            ),
            checkpoints=self.checkpoints,
            files=self._files,
            committer=self._committer,
            wakeup=self._wakeup,
            requests=self._requests,
            gateway=self._gateway,
            now=self._services.clock.now,
            final=FinalCheckpoint(self._services.options),
        )
        if (cores := self._services.cores) is not None:
            self._run.work = TaskWork(cores, self.meter, self._run.output)
        begun = self._run.now()
        invokable = self._make_invokable(self._run)
        if self._run.now() - begun >= SLOW_OPEN_S:
            self._run.wait("open", self.descriptor.vertex.name, since_s=begun)
        await self._restore(invokable, self._run.output)
        self._connect()
        self._run.running_at = self._run.now()
        self._switch(_S.RUNNING)
        return invokable

    def _connect(self) -> None:
        """Request the partitions of each gate that has no restored input left (StreamTask.restoreStateAndGates)."""
        gates = list(zip(self.input.gates, self.descriptor.gates, strict=True))
        self._requests.connect([gates[number] for number in self.input.recovered_gates])

    def _on_first_record(self, partition: ResultPartition) -> None:
        """Notify the JobMaster, if it waits with a consumer for the first record."""
        name = str(partition.partition_id)
        if any(d.announced and d.partition == name for d in self.descriptor.partitions):
            self._announcing.append(asyncio.get_running_loop().create_task(self._announce(name)))

    async def _announce(self, partition: str) -> None:
        """Announce a partition to the JobMaster. If there is no answer, the task fails, because its consumer might wait forever."""
        try:
            await self._gateway.ask(NotifyPartitionDataAvailable(partition))
        except ASK_FAILURES as error:
            text = f"The first record of {partition} is not known: {error}"
            wait = "" if isinstance(error, RemoteFailure) else "jobmanager"
            self.fail(FlinkError("TimeoutException", text, wait=wait))

    async def _register_partitions(self) -> None:
        """Register the partitions. A fault may delay this and everything that follows."""
        environment = self._services.environment
        for partition in self.partitions:
            if environment.hook.active:
                name = str(partition.partition_id)
                wait = self._services.waits.begin(
                    "partition", self.name, OWN_PARTITION, attempt=self.descriptor.attempt_number
                )
                ended = Outcome.CANCELLED
                try:
                    await environment.hook.before_registration(self.descriptor.vertex.name, name)
                    ended = Outcome.COMPLETED
                finally:
                    wait.end(ended, at_least_s=SLOW_REGISTRATION_S)
            environment.register(partition)

    @staticmethod
    def _make_invokable(run: TaskRun) -> Invokable:
        vertex = run.descriptor.vertex
        if vertex.source is not None:
            return SourceTask(run, vertex.source)
        if vertex.iteration is not None:
            return IterationHeadTask(run, vertex.iteration)
        if vertex.feeds_back is not None:
            return IterationTailTask(run, vertex.feeds_back)
        if vertex.synchronizes is not None:
            return IterationSynchronizationSinkTask(run, vertex.synchronizes)
        return StreamTask(run)

    async def _restore(self, invokable: Invokable, output: TaskOutput) -> None:
        """Restore the state and the output that was in flight, then process the input that was in flight. Until then, the task is not
        RUNNING, and the partitions of its gate are not requested (StreamTask.restoreStateAndGates)."""
        checkpoint = self.descriptor.restore_checkpoint
        announced = [n for n, d in enumerate(self.descriptor.partitions) if d.announced_recovery]
        if not checkpoint:
            output.end_recovery(announced)
            return
        wait = self._services.waits.begin(
            "restore", self.name, f"checkpoint {checkpoint}", attempt=self.descriptor.attempt_number
        )
        ended = Outcome.CANCELLED
        try:
            blobs, local = self._services.blobs, self._services.local_state
            snapshots, is_local = await restore_snapshots(
                blobs,
                local,
                self.descriptor.restore_handles,
                subtask=self.descriptor.subtask,
                parallelism=self.descriptor.vertex.parallelism,
            )
            snapshots, copied = await self._files.fetch(snapshots, blobs, local)
            await invokable.restore(snapshots)
            await self._recover_channels(snapshots)
            output.end_recovery(announced)
            self._connect()
            await invokable.read_recovered(self._connect)
            ended = Outcome.COMPLETED
        except Exception:
            ended = Outcome.FAILED
            raise
        finally:
            wait.end(ended)
        if self._run is not None:
            self._run.event("task.restored", checkpoint=checkpoint, data={"local": is_local and copied})

    async def _recover_channels(self, snapshots: list[SubtaskSnapshot]) -> None:
        """Queue the data that was in flight: the output is sent, and the input is read, before anything else. An exchange
        with another parallelism than before is restored by its consumers."""
        descriptor, run = self.descriptor, self._run
        if run is None:
            return
        parallelism, states = descriptor.vertex.parallelism, list[ChannelState]()
        for own in snapshots:
            if (own.subtask, own.parallelism) == (descriptor.subtask, parallelism):
                await run.output.recover(
                    s for s in own.output_state if not descriptor.partitions[s.group].rescaled
                )
                states += [s for s in own.input_state if descriptor.gates[s.group].rescaled is None]
        for number, gate in enumerate(descriptor.gates):
            if (was := gate.rescaled) is None:
                continue
            producers = await load_snapshots(self._services.blobs, was.handles)
            found = VirtualChannels(number, snapshots, was.partition, producers)
            if found.size:
                rescaling = GateRescaling.of(
                    gate.partitioning,
                    descriptor.subtask,
                    consumers=(was.consumers, parallelism),
                    producers=(was.producers, len(gate.channels)),
                )
                states += found.restore(rescaling, run.subtask)
        run.input.recover(states)

    async def _end(self, outcome: ExecutionState, invokable: Invokable | None) -> None:
        """Release everything, then report the outcome. Nothing cancels this part."""
        self._ending = True
        if self._run is not None:
            self._run.output.close()
        self._requests.end_waits(self.failure, input_at=self.meter.input_at)
        await self._requests.close()
        await self.checkpoints.close()
        self.input.close()
        self.meter.close()
        if invokable is not None:
            await invokable.close()
        self._files.close()
        await self._committer.close()
        self._switch(outcome)
        # after the report: the JobMaster must learn of the cause before it learns of the consumers that fail because of it
        for partition in self.partitions:
            if outcome is _S.FINISHED:
                partition.close()
            else:
                self._services.environment.release(partition, self.failure)
        self._on_end(self)

    def _begin_report(self, kind: str, state: str) -> OpenWait:
        services, number = self._services, self.descriptor.attempt_number
        limit = option_limit(services.options, "pekko.ask.timeout")
        return services.waits.begin(kind, self.name, f"JobMaster: {state}", attempt=number, limit=limit)

    def _switch(self, state: ExecutionState, *, report: bool = True) -> None:
        self.state = state
        if not report:
            return
        failure = None
        if self.failure is not None and state in (_S.FAILED, _S.CANCELED):
            failure = reported(self.failure, cancelled=state is _S.CANCELED)
        self.reports.send(
            UpdateTaskExecutionState(
                attempt=self.attempt,
                state=state.value,
                resource_id=self._gateway.resource_id,
                cause_class=failure.class_name if failure else "",
                cause=failure.message if failure else "",
                failed_partition=self._failed_partition if failure else "",
                lost_taskmanager=failure.lost_taskmanager if failure else "",
                wait=failure.wait if failure else "",
            )
        )
