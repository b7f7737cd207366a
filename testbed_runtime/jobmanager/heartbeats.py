"""Heartbeats that the JobMaster and the ResourceManager send to TaskManagers, through their own mailboxes.

One timer serves all TaskManagers (HeartbeatManagerSenderImpl): an interval after it ran last, every one is sent a request, so the
first follows a registration by up to an interval. Requests, failures and timeouts are messages in the endpoint's mailbox, so a
busy endpoint sends late and decides late, as Flink's main thread does. Stalls of the whole process extend the deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.heartbeat import (
    UNREACHABLE_CLASS,
    HeartbeatConfig,
    HeartbeatMonitor,
    timed_out_text,
    unreachable_text,
)
from testbed_runtime.core.job.limits import option_limit, reachability_limit
from testbed_runtime.core.job.messages import TASKEXECUTOR, Heartbeat
from testbed_runtime.core.waits import NO_LIMIT, Limit, Outcome
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import AskTimeout, Handler, RecipientUnreachable, RemoteFailure
from testbed_runtime.timeouts import Timer


class Lost(Struct, frozen=True):
    """The verdict that a TaskManager is lost."""

    taskmanager: TaskManagerID
    text: str
    cause_class: str
    limit: Limit = NO_LIMIT
    """The limit that was exceeded."""
    wait: str = ""
    """The kind of the wait that its loss ended, if the class does not say it."""


@dataclass(slots=True)
class _Watch:
    taskmanager: TaskManagerID
    address: Address
    monitor: HeartbeatMonitor
    deadline: Timer = field(default_factory=Timer)


class HeartbeatSender:
    """Watches TaskManagers for one endpoint. `on_lost` and `on_answer` are called in that endpoint's mailbox."""

    def __init__(
        self,
        services: Services,
        endpoint: str,
        detector: str,
        origin: str,
        *,
        on_lost: Callable[[Lost], None],
        on_answer: Callable[[TaskManagerID, Heartbeat], None],
        allocations: Callable[[TaskManagerID], tuple[tuple[int, str], ...]] | None = None,
    ) -> None:
        """`allocations`: the slots of a TaskManager that a request names."""
        self._services = services
        self._endpoint = endpoint
        self._detector = detector
        self._origin = origin
        self._config = HeartbeatConfig.of(services.options)
        self._timeout = option_limit(services.options, "heartbeat.timeout")
        self._reachability = reachability_limit(services.options)
        self._on_lost = on_lost
        self._on_answer = on_answer
        self._allocations = allocations
        self._ran_at = services.clock.now()
        """When the timer ran last."""
        self._timer = Timer()
        """Set while there are TaskManagers to watch."""
        self._watches: dict[TaskManagerID, _Watch] = {}
        self.payloads: dict[TaskManagerID, dict[str, float]] = {}
        """The newest payload of each watched TaskManager: live counters."""

    def handlers(self) -> dict[type, Handler]:
        """Return the handlers to add to the endpoint's own."""
        return {Heartbeat: self._on_heartbeat}

    def watch(self, taskmanager: TaskManagerID, address: Address) -> None:
        """Watch the TaskManager from now on. The first heartbeat is sent with the next one of the others. Another call changes
        nothing (HeartbeatManagerImpl.monitorTarget)."""
        if taskmanager in self._watches:
            return
        monitor = HeartbeatMonitor(self._config, self._services.clock.now())
        self._watches[taskmanager] = watch = _Watch(taskmanager, address, monitor)
        self._arm_deadline(watch)
        if len(self._watches) == 1:
            self._arm()

    def unwatch(self, taskmanager: TaskManagerID) -> None:
        watch = self._watches.pop(taskmanager, None)
        if watch is None:
            return
        self.payloads.pop(taskmanager, None)
        watch.monitor.cancel()
        watch.deadline.cancel()
        if not self._watches:
            self._timer.cancel()

    def probe(self, taskmanager: TaskManagerID) -> None:
        """Send a heartbeat now. Only its answer counts: a failed probe is no failed heartbeat."""
        watch = self._watches.get(taskmanager)
        if watch is not None:
            self._services.tasks.spawn(self._ask(watch, counts=False), f"probe-{taskmanager}")

    def extend(self, seconds: float) -> None:
        """Extend all deadlines: this process did not run for so long."""
        for watch in self._watches.values():
            watch.monitor.extend(seconds)
            self._arm_deadline(watch)

    @property
    def watching(self) -> bool:
        return bool(self._watches)

    def close(self) -> None:
        for taskmanager in list(self._watches):
            self.unwatch(taskmanager)

    # ---- in the mailbox

    def _on_due(self) -> None:
        self._ran_at = asyncio.get_running_loop().time()
        if self._watches:
            self._arm()
        for watch in self._watches.values():
            self._services.tasks.spawn(self._ask(watch, counts=True), f"heartbeat-{watch.taskmanager}")

    async def _ask(self, watch: _Watch, *, counts: bool) -> None:
        rpc = self._services.rpc
        held = self._allocations(watch.taskmanager) if self._allocations is not None else None
        leader, now = self._services.leader, self._services.clock.now()
        request = Heartbeat(self._origin, leader, asked_at=now, allocations=held)
        try:
            answer = await rpc.ask(
                watch.taskmanager.name,
                watch.address,
                TASKEXECUTOR,
                request,
                timeout_s=self._config.timeout_s,
            )
        except RecipientUnreachable:
            if counts:
                self._services.run_async(self._endpoint, self._on_unreachable, watch)
        except (AskTimeout, RemoteFailure):
            return  # the deadline decides
        else:
            self._services.run_async(self._endpoint, self._on_reached, watch)
            if isinstance(answer, Heartbeat):
                rpc.post(self._endpoint, answer)

    def _is_watched(self, watch: _Watch) -> bool:
        return self._watches.get(watch.taskmanager) is watch

    def _on_reached(self, watch: _Watch) -> None:
        if self._is_watched(watch) and watch.monitor.on_call_success():
            self._record(
                watch, watch.monitor.last_seen, self._reachability, Outcome.COMPLETED, "reached again"
            )

    def _on_unreachable(self, watch: _Watch) -> None:
        if self._is_watched(watch) and watch.monitor.on_unreachable():
            text = unreachable_text("TaskManager", str(watch.taskmanager))
            self._lose(watch, text, UNREACHABLE_CLASS[self._detector], self._reachability)

    def _on_silent(self, watch: _Watch) -> None:
        if not self._is_watched(watch):
            return
        if watch.monitor.on_time(self._services.clock.now()):
            text = timed_out_text(self._detector, "TaskManager", str(watch.taskmanager))
            self._lose(watch, text, "TimeoutException", self._timeout)
        else:
            self._arm_deadline(watch)

    async def _on_heartbeat(self, message: Heartbeat) -> None:
        """Handle the answer of a TaskExecutor: the result of an ask, or a message of its own."""
        taskmanager = TaskManagerID.parse(message.origin)
        watch = self._watches.get(taskmanager)
        if watch is None:
            return
        late_since = watch.monitor.on_heartbeat(self._services.clock.now())
        if late_since is not None:
            self._record(watch, late_since, self._timeout, Outcome.COMPLETED, "")
        self.payloads[taskmanager] = message.payload
        self._on_answer(taskmanager, message)

    def _lose(self, watch: _Watch, text: str, cause_class: str, limit: Limit) -> None:
        self._record(watch, watch.monitor.last_seen, limit, Outcome.EXPIRED, text)
        self.unwatch(watch.taskmanager)
        self._on_lost(Lost(watch.taskmanager, text, cause_class, limit, "heartbeat"))

    def _record(self, watch: _Watch, since: float, limit: Limit, outcome: Outcome, cause: str) -> None:
        """Record a wait for a heartbeat that ends now. Those that are answered in good time are not recorded."""
        waits, what = self._services.waits, str(watch.taskmanager)
        waits.begin("heartbeat", self._detector, what, limit=limit, since_s=since).end(outcome, cause=cause)

    def record_missing(self, taskmanager: TaskManagerID, since: float, text: str) -> None:
        """Record the wait for the heartbeat that showed that a task is gone."""
        interval = option_limit(self._services.options, "heartbeat.interval")
        waits, what = self._services.waits, str(taskmanager)
        waits.begin("heartbeat", self._detector, what, limit=interval, since_s=since).end(
            Outcome.FIRED, cause=text
        )

    # ---- timers

    def _arm(self) -> None:
        """Set the timer to a whole number of intervals after its last run. A timer that was set before that run was handled is dropped."""
        passed = max(0, asyncio.get_running_loop().time() - self._ran_at) // self._config.interval_s
        due = self._ran_at + (passed + 1) * self._config.interval_s
        self._timer.set(due, self._services.run_async, self._endpoint, self._on_due)

    def _arm_deadline(self, watch: _Watch) -> None:
        watch.deadline.set(watch.monitor.deadline, self._on_deadline, watch)

    def _on_deadline(self, watch: _Watch) -> None:
        if watch.monitor.deadline > asyncio.get_running_loop().time():
            self._arm_deadline(watch)
        else:
            self._services.run_async(self._endpoint, self._on_silent, watch)
