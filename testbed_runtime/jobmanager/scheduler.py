"""Slots for the tasks of one job: request them, deploy the tasks once each has one, give them back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from testbed_runtime.core.ids import ResultPartitionID, TaskManagerID
from testbed_runtime.core.job.executiongraph import DeploymentContext, Execution, ExecutionState, Restore
from testbed_runtime.core.job.failover import Task
from testbed_runtime.core.job.jobgraph import JobVertex
from testbed_runtime.core.job.limits import option_limit, start_up_limit
from testbed_runtime.core.job.messages import JOBMASTER, Acknowledge, NotifyPartitionDataAvailable, SubmitTask
from testbed_runtime.core.job.results import FIRST_RECORD, FULL_RESULT
from testbed_runtime.core.job.slots import SlotKey, SlotPool, needed_slots
from testbed_runtime.core.waits import JOBMASTER_NAME, NO_LIMIT, Limit, Outcome
from testbed_runtime.history.waits import OpenWait
from testbed_runtime.jobmanager.jobstore import StoredJob
from testbed_runtime.jobmanager.resourcemanager import ResourceManager
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.jobmanager.state import Cause, JobTasks
from testbed_runtime.jobmanager.taskexecutors import Deployed
from testbed_runtime.ports.rpc import Handler
from testbed_runtime.timeouts import Timer

_S = ExecutionState
_NOT_DEPLOYED = (_S.CREATED, _S.SCHEDULED, _S.CANCELING, _S.CANCELED, _S.FAILED)
SERVICE_TIME = "headgate.jobmanager.service-time"


NOT_FULFILLABLE = (
    "Slot request bulk is not fulfillable! Could not allocate the required slot within slot request timeout"
)
NOT_ACQUIRED = "Could not acquire the minimum required resources."
"""Flink's texts."""


@dataclass(slots=True, eq=False)
class _Bulk:
    """Tasks that are deployed together as soon as each of them has a slot."""

    round: int
    restart: int
    """The number of the restart that schedules them. 0 if they waited for their inputs."""
    tasks: list[Task]
    slots: OpenWait
    timer: Timer = field(default_factory=Timer)
    """When the slots are overdue."""

    def end(self, outcome: Outcome) -> None:
        self.slots.end(outcome)
        self.timer.cancel()


@dataclass(slots=True)
class _Deployment:
    unanswered: set[str]
    """Attempts whose deployment the JobMaster has not heard of yet."""
    wait: OpenWait


class Scheduler:
    """Owns the job's slot pool, for which the ResourceManager allocates slots. Runs in the JobMaster's mailbox.

    Calls `on_deploying` with the number of a restart when each of its tasks has a slot, and `on_failed` for a task that got no slot or
    could not be deployed."""

    def __init__(
        self,
        services: Services,
        stored: StoredJob,
        tasks: JobTasks,
        resourcemanager: ResourceManager,
        *,
        restore: Callable[[], Restore],
        on_deploying: Callable[[int], None],
        on_failed: Callable[[Task, Cause], None],
    ) -> None:
        self._services = services
        self._stored = stored
        self._tasks = tasks
        self._graph = tasks.graph
        self._executors = tasks.executors
        self._rm = resourcemanager
        self._restore = restore
        self._on_deploying = on_deploying
        self._on_failed = on_failed
        self.pool = SlotPool()
        self._timeout = option_limit(services.options, "slot.request.timeout")
        self._deployments: list[_Deployment] = []
        self._bulks: list[_Bulk] = []
        self._later: list[Task] = []
        """Tasks that are deployed when their inputs have a first record, or are complete."""
        self._inputs: dict[str, OpenWait] = {}
        """The waits for those inputs, by vertex."""
        self._eager = False
        """Whether consumers are deployed without a first record."""
        self._with_data: set[Task] = set()
        """Tasks whose results have one."""
        self._round = 0

    def handlers(self) -> dict[type, Handler]:
        return {NotifyPartitionDataAvailable: self._on_data_available}

    # ---- schedule

    def schedule(self, tasks: list[Task], restart: int = 0) -> None:
        """Request slots for the tasks and deploy them at once. Consumers that are deployed on a first record or on a full
        result wait for it. `restart`: the number of the restart that schedules them."""
        self._with_data -= set(tasks)
        ready = self._consumable()
        self._later += [task for task in tasks if task[0] not in ready]
        self._schedule([task for task in tasks if task[0] in ready], restart)

    def deploy_all(self) -> None:
        """Stop waiting for first records, because a final checkpoint needs every task."""
        self._eager = True
        self._schedule_consumable()

    def on_finished(self) -> None:
        """A task has FINISHED: its blocking results are complete."""
        if self._later:
            self._schedule_consumable()

    def _consumable(self) -> set[str]:
        """Return the vertices whose producers are all deployed, whose blocking inputs are complete, and whose inputs that are
        deployed on a first record have one: all such inputs or any of them."""
        filled = {producer for producer, _ in self._with_data}
        found: set[str] = set()
        incomplete = self._graph.incomplete_inputs()
        waiting = [v for v in self._graph.graph.vertices if v.name not in incomplete]
        while True:
            more = [v for v in waiting if self._has_inputs(v, found, filled)]
            if not more:
                return found
            found.update(v.name for v in more)
            waiting = [v for v in waiting if v.name not in found]

    def _has_inputs(self, vertex: JobVertex, deployed: set[str], filled: set[str]) -> bool:
        inputs = self._graph.graph.inputs(vertex.name)
        lazy = [self._eager or e.source in filled for e in inputs if e.deployment == FIRST_RECORD]
        choose = any if vertex.inputs == "any" else all
        return all(e.source in deployed for e in inputs) and (not lazy or choose(lazy))

    async def _on_data_available(self, message: NotifyPartitionDataAvailable) -> Acknowledge:
        partition = ResultPartitionID.parse(message.partition)
        execution = self._graph.find(str(partition.producer))
        if execution is None:
            return Acknowledge(accepted=False)
        self._with_data.add(execution.task)
        self._schedule_consumable()
        return Acknowledge()

    def _schedule_consumable(self) -> None:
        """Schedule what waited for its inputs."""
        ready = self._consumable()
        tasks = [task for task in self._later if task[0] in ready]
        for vertex in [v for v in self._inputs if v in ready or not self._missing(v)]:
            self._inputs.pop(vertex).end(Outcome.COMPLETED)
        self._later = [task for task in self._later if task[0] not in ready]
        self._schedule(tasks)

    def _schedule(self, tasks: list[Task], restart: int = 0) -> None:
        if not tasks:
            return
        for task in tasks:
            self._tasks.transition(task, _S.SCHEDULED)
        self._round += 1
        what = f"{len(self._keys(tasks))} slots"
        slots = self._services.waits.begin(
            "slot", JOBMASTER_NAME, what, attempt=self._round, limit=self._timeout
        )
        bulk = _Bulk(self._round, restart, tasks, slots)
        due = self._services.clock.now() + (self._timeout.seconds or 0.0)
        bulk.timer.set(due, self._services.run_async, JOBMASTER, self._on_slots_overdue, bulk)
        self._bulks.append(bulk)
        self.request_slots()

    def request_slots(self) -> None:
        """Request the slots that are still missing."""
        if self._bulks:
            self._rm.request(self.pool.missing(self._awaited()))
            self._try_deploy()

    def _awaited(self) -> list[SlotKey]:
        return self._keys(task for bulk in self._bulks for task in bulk.tasks)

    def cancel(self, tasks: frozenset[Task], text: str) -> None:
        """Deploy none of these tasks until they are scheduled again, and give back the slots that only they waited for
        (DefaultScheduler.cancelAllPendingSlotRequestsForVertices)."""
        self._later = [task for task in self._later if task not in tasks]
        self._cancel_inputs({vertex for vertex, _ in tasks})
        self._answer({str(self._graph.execution(task).attempt) for task in tasks}, Outcome.CANCELLED)
        touched = [bulk for bulk in self._bulks if not tasks.isdisjoint(bulk.tasks)]
        if not touched:
            return
        for bulk in touched:
            bulk.tasks = [task for task in bulk.tasks if task not in tasks]
            if not bulk.tasks:
                bulk.end(Outcome.CANCELLED)
                self._bulks.remove(bulk)
        self._rm.cancel_requests()
        self._rm.release(self.pool.drop_expectations(frozenset(self._awaited())), text)
        self.request_slots()

    def abandon(self) -> None:
        """Stop deploying, and take none of the requested slots."""
        self.cancel(frozenset(self._graph.tasks), f"The job {self._stored.job} ends.")

    def close(self) -> None:
        for bulk in self._bulks:
            bulk.timer.cancel()

    def _begin_deployment(self, bulk: _Bulk) -> None:
        """Wait until every task was submitted and its submission answered. A JobMaster with a service time spends it on each submission
        and on each answer."""
        attempts = {str(self._graph.execution(task).attempt) for task in bulk.tasks}
        service = option_limit(self._services.options, SERVICE_TIME)
        limit = NO_LIMIT
        if service.seconds:
            limit = Limit(SERVICE_TIME, service.value, 2 * len(attempts) * service.seconds)
        wait = self._services.waits.begin(
            "deployment", JOBMASTER_NAME, f"{len(attempts)} tasks", attempt=bulk.round, limit=limit
        )
        self._deployments.append(_Deployment(attempts, wait))

    def _answer(self, attempts: Collection[str], outcome: Outcome) -> bool:
        """End each deployment that waits only for these attempts. Return whether one ended."""
        mine = [one for one in self._deployments if not one.unanswered.isdisjoint(attempts)]
        for one in mine:
            one.unanswered.difference_update(attempts)
            if not one.unanswered:
                served = outcome is Outcome.COMPLETED and bool(one.wait.limit.option)
                one.wait.end(Outcome.FIRED if served else outcome)
                self._deployments.remove(one)
        return any(not one.unanswered for one in mine)

    def _begin_inputs(self) -> None:
        """Let each vertex wait for what its producers have to provide before it is deployed, as soon as they are all deployed. Vertices
        that begin to wait for the same results share a wait, until one of them ends it."""
        later = dict.fromkeys(vertex for vertex, _ in self._later)
        coming = self._coming() if later else set()
        begun: dict[str, OpenWait] = {}
        for vertex in later:
            missing, wait = self._missing(vertex), self._inputs.get(vertex)
            if not missing or not (wait is None or wait.ended) or not coming.isdisjoint(missing):
                continue
            what = " and the ".join(f"{result} of `{source}`" for source, result in missing.items())
            if what not in begun:
                begun[what] = self._services.waits.begin("input", JOBMASTER_NAME, what, attempt=self._round)
            self._inputs[vertex] = begun[what]

    def _missing(self, vertex: str) -> dict[str, str]:
        """Return, by producer, what a vertex needs from it before it is deployed."""
        filled = {producer for producer, _ in self._with_data}
        found = {}
        for edge in self._graph.graph.inputs(vertex):
            if edge.deployment == FULL_RESULT and not self._graph.finished_all(edge.source):
                found[edge.source] = "full result"
            elif edge.deployment == FIRST_RECORD and edge.source not in filled:
                found[edge.source] = "first record"
        return found

    def _coming(self) -> set[str]:
        """Return the vertices with a task that is not deployed (for example during a restart delay), or whose deployment has not been
        answered."""
        found = (self._graph.find(attempt) for one in self._deployments for attempt in one.unanswered)
        unanswered = {execution.task[0] for execution in found if execution is not None}
        return unanswered | {
            task[0] for task in self._graph.tasks if self._graph.execution(task).state in _NOT_DEPLOYED
        }

    def _cancel_inputs(self, cancelled: Collection[str]) -> None:
        """Cancel the waits of vertices whose tasks no longer wait for inputs, and the waits for inputs from a cancelled vertex."""
        later = {vertex for vertex, _ in self._later}
        for vertex in list(self._inputs):
            producers = {edge.source for edge in self._graph.graph.inputs(vertex)}
            if vertex not in later or not producers.isdisjoint(cancelled):
                wait = self._inputs.pop(vertex)
                if wait not in self._inputs.values():
                    wait.end(Outcome.CANCELLED)

    def _keys(self, tasks: Iterable[Task]) -> list[SlotKey]:
        wanted = {self._graph.key(task): None for task in tasks}
        return [key for key in needed_slots(self._stored.graph) if key in wanted]

    def _on_slots_overdue(self, bulk: _Bulk) -> None:
        if bulk in self._bulks:
            self._fail_requests(bulk, NOT_FULFILLABLE)

    def not_enough_resources(self) -> None:
        """Fail the tasks that wait for slots. A batch job can run with fewer slots (DeclarativeSlotPoolBridge.failPendingRequests)."""
        for bulk in list(self._bulks) if not self._graph.has_blocking else ():
            bulk.slots.limit = start_up_limit(self._services.options)
            self._fail_requests(bulk, NOT_ACQUIRED)

    def _fail_requests(self, bulk: _Bulk, text: str) -> None:
        failed = {task: self._graph.execution(task).attempt for task in self._without_slots(bulk)}
        bulk.slots.end(Outcome.EXPIRED)
        for task, attempt in failed.items():
            if self._graph.execution(task).attempt == attempt:  # the failure before did not restart it
                self._on_failed(task, Cause("NoResourceAvailableException", text, JOBMASTER_NAME))

    def _without_slots(self, bulk: _Bulk) -> list[Task]:
        """Return a task of each region that lacks a slot. Flink requests the slots of each region separately, so each region fails."""
        found: dict[Task, Task] = {}
        for task in bulk.tasks:
            if not self.pool.has([self._graph.key(task)]):
                found.setdefault(self._graph.regions.region(task)[0], task)
        return list(found.values())

    # ---- slots

    def offer(self, taskmanager: TaskManagerID, slots: Iterable[tuple[int, str]]) -> tuple[str, ...]:
        """Take the slots that were requested. Return their allocations."""
        accepted = tuple(alloc for index, alloc in slots if self.pool.offer(taskmanager, alloc, index))
        self._try_deploy()
        return accepted

    def fail_slot(self, allocation: str, text: str) -> None:
        """Give up a slot that its TaskManager does not hold any more."""
        self.pool.forget(allocation)
        self._rm.release([allocation], text)

    def lose(self, taskmanager: TaskManagerID, text: str) -> None:
        """Drop the slots of a lost TaskManager."""
        self._rm.release([slot.allocation for slot in self.pool.lose(taskmanager)], text)

    def release_all(self, text: str) -> None:
        self._rm.cancel_requests()
        held = [slot.allocation for slot in self.pool.all_held]
        for allocation in held:
            self.pool.forget(allocation)
        self._rm.release(held, text)

    # ---- deploy

    def _try_deploy(self) -> None:
        """Deploy what has its slots, unless a producer of it still waits for one."""
        waiting: set[str] = set()
        for bulk in list(self._bulks):
            vertices = {vertex for vertex, _ in bulk.tasks}
            producers = {edge.source for vertex in vertices for edge in self._graph.graph.inputs(vertex)}
            # without its own vertices: other regions of them do not matter
            behind = not waiting.isdisjoint(producers - vertices)
            if behind or not self.pool.has(map(self._graph.key, bulk.tasks)):
                waiting |= vertices
            else:
                bulk.end(Outcome.COMPLETED)
                self._bulks.remove(bulk)
                self._deploy(bulk)

    def _deploy(self, bulk: _Bulk) -> None:
        self._begin_deployment(bulk)
        if bulk.restart:
            self._on_deploying(bulk.restart)
        for task in bulk.tasks:
            self._graph.assign(task, self.pool.held(self._graph.key(task)))
        for task in bulk.tasks:
            self._tasks.transition(task, _S.DEPLOYING)
            self._services.run_async(JOBMASTER, self._submit, self._graph.execution(task))

    def _submit(self, execution: Execution) -> None:
        if execution.state is not _S.DEPLOYING:
            return  # it was cancelled meanwhile
        context = DeploymentContext(
            job=self._stored.job,
            leader=self._services.leader,
            job_started=self._stored.job_started,
            restore=self._restore(),
            data_address=self._executors.data_address,
        )
        message = SubmitTask(self._graph.descriptor(execution.task, context))
        self._executors.submit(execution, message, self._on_deployed)

    def _on_deployed(self, message: Deployed) -> None:
        if self._answer((message.attempt,), Outcome.COMPLETED):
            self._begin_inputs()
        execution = self._graph.find(message.attempt)
        if execution is None or execution.state.terminal:
            return
        if not message.class_name:
            if execution.taskmanager is not None:
                now = self._services.clock.now()
                self._tasks.deployments.acknowledge(message.attempt, execution.taskmanager, now)
            return
        owner = str(execution.taskmanager or "")
        expired = not (message.unreachable or message.refused)
        cause = Cause(
            message.class_name,
            message.text,
            JOBMASTER_NAME,
            owner,
            connection_lost=message.unreachable,
            wait="deployment" if expired else "",
        )
        if execution.state is not _S.CANCELING:
            if message.refused and execution.slot is not None:
                self.pool.forget(execution.slot.allocation)
                self._rm.release([execution.slot.allocation], message.text)
            self._executors.cancel_once(execution)
        self._on_failed(execution.task, cause)
