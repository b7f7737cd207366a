"""One trial on a running testbed: carry out its schedule, record its phases and its outcome.

Two tasks: one watches the job's status, one follows the schedule. They end together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from testbed_runtime.api.status import JobNow
from testbed_runtime.core.errors import (
    AgentSilent,
    FaultHealed,
    FaultLapsed,
    FaultNotApplied,
    HeadgateError,
    StopRefused,
    TestbedDisrupted,
)
from testbed_runtime.core.faults.lease import LEASE_S
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.job.livecounters import COUNTED
from testbed_runtime.core.job.messages import TERMINAL_JOB_STATES, JobStatusReply
from testbed_runtime.core.trial import timeline
from testbed_runtime.core.trial.plan import CONTROL, TrialPlan
from testbed_runtime.core.trial.startlimit import StartLimit, start_limit
from testbed_runtime.faults.agent import fault_row
from testbed_runtime.faults.targets import VertexNotRunning, resolve_targets
from testbed_runtime.ports.hosts import FaultHandle, Testbed
from testbed_runtime.runner.progress import FaultChanged, Notice, PhaseEntered, Progress, Sample
from testbed_runtime.timeouts import timeout

POLL_S = 0.1
"""Interval between two queries of the job's status: often enough for a live display. Each query is one small message."""
STATUS_LIMIT_S = 2.0
"""Time limit for one status query. A JobManager that does not answer (paused, killed) is queried again."""
CHECK_EVERY_S = 1.0
"""Interval between two checks that the processes that every trial needs are alive."""
CALL_LIMIT_S = 15.0
"""Time limit for one call to the testbed: injecting, healing, submitting."""
SETTLE_S = 0.5
"""Time after a job has ended by itself, in which its processes record what happened."""

T = TypeVar("T")


@asynccontextmanager
async def time_limit(what: str, seconds: float) -> AsyncIterator[None]:
    """Limit the time of a block. Raises HeadgateError that names `what`."""
    limit = None
    try:
        async with timeout(seconds) as limit:
            yield
    except TimeoutError:
        if limit is None or not limit.expired():
            raise
        raise HeadgateError(f"{what} took longer than {seconds:g} s") from None


@dataclass(slots=True)
class Outcome:
    """The result of one trial."""

    job_state: str = ""
    cause: str = ""
    """The last failure of the job, as `class: text`; empty while all its tasks run, and if it finished."""
    drained: bool = False
    stop_refused: str = ""
    """Why the job refused to be drained; empty if it did not."""
    voided: str = ""
    """Why the trial is void; empty: it counts."""
    healed: str = ""
    """Why a user healed its faults: the trial is void, and the run ends with it. Empty if no user did."""
    handles: list[tuple[FaultHandle, tuple[str, ...]]] = field(default_factory=list)
    spans: tuple[timeline.PhaseSpan, ...] = ()
    residue: dict[str, Any] = field(default_factory=dict)


class Rate:
    """Computes records per second for hosts that do not report them, from a cumulative counter. Each heartbeat updates the counter,
    and a restart resets it."""

    def __init__(self) -> None:
        self._count = 0.0
        self._at: float | None = None
        self.per_second: float | None = None

    def update(self, count: float, now: float) -> float | None:
        """Return the rate between the last two values that differed. None before there are two."""
        if count != self._count:
            if self._at is not None and count > self._count and now > self._at:
                self.per_second = (count - self._count) / (now - self._at)
            self._count, self._at = count, now
        return self.per_second


class TrialRun:
    """The two tasks of a trial. Call `run` once, and `heal_all` after it, also if it was cancelled."""

    def __init__(self, plan: TrialPlan, testbed: Testbed, progress: Progress) -> None:
        self.plan = plan
        self.testbed = testbed
        self.progress = progress
        self.outcome = Outcome()
        self._schedule = plan.schedule()
        self._faults: dict[str, Fault] = {f.name: f for f in plan.faults}
        self._injected: dict[str, str] = {}
        self._deadlines: dict[str, float] = {}
        self._status = JobStatusReply("INITIALIZING")
        self._changed = asyncio.Event()
        self._rate = Rate()
        self._lost = ""
        self._disrupted = ""
        self._check_at = 0.0

    # ---- the trial --------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Run the trial from submission to the end of the drain. Raises HeadgateError when it cannot be carried out."""
        loop = asyncio.get_running_loop()
        try:
            await self._perform(self._schedule.begin(loop.time()))
            async with self._watched():
                await self._wait_running(start_limit(self.plan))
                await self._follow_schedule()
                await self._drain()
            await self._perform(self._schedule.drained(loop.time()))
        except HeadgateError:
            await self._check(loop.time())  # a removed pod may explain the failure
            if not self._disrupted:
                raise
            self.outcome.voided = self.outcome.voided or self._disrupted
        finally:
            self.outcome.spans = self._schedule.spans_until(loop.time())
            self.outcome.job_state = self._status.state
        await self.heal_all()
        await self._measure_residue()
        return self.outcome

    async def _measure_residue(self) -> None:
        """Measure what the faults left behind. Raises HeadgateError if that is impossible, unless the trial is void: a lost node's
        agents do not answer."""
        try:
            self.outcome.residue = dict(await self._call("residue", self.testbed.residue()))
        except HeadgateError as error:
            if not self.outcome.voided:
                raise
            self._report(f"residue was not measured: {error}")

    async def _wait_running(self, limit: StartLimit) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + limit.seconds
        while not (self._all_running() or self._ended() or self.outcome.voided):
            if loop.time() >= end:
                waits = (
                    f". The JobMaster waits for {self._status.waits_for}" if self._status.waits_for else ""
                )
                cause = f". The last failure: {self.outcome.cause}" if self.outcome.cause else ""
                raise HeadgateError(
                    f"the job is {self._status.state}, but not all of its tasks ran within {limit.text} of its submission"
                    f" ({self._status.running_tasks} of {self._status.total_tasks} tasks run){waits}{cause}"
                )
            await self._wait(self._schedule.next_time)
            await self._perform(self._schedule.due(loop.time()))
        if not (self._ended() or self.outcome.voided):
            await self._perform(self._schedule.job_running(loop.time()))

    async def _follow_schedule(self) -> None:
        """Carry out due actions until the drain. If the job terminates by itself, the schedule ends early."""
        loop = asyncio.get_running_loop()
        while self._schedule.phase != "drain":
            if self._ended():
                await asyncio.sleep(SETTLE_S)
                await self._perform(self._schedule.cut_short(loop.time()))
                return
            await self._wait(self._schedule.next_time)
            await self._perform(self._schedule.due(loop.time()))

    async def _drain(self) -> None:
        if not (self._ended() or self.outcome.voided):
            limit = self.plan.windows.drain_s
            with suppress(TimeoutError, HeadgateError):
                async with timeout(limit + CALL_LIMIT_S):
                    try:
                        self.outcome.drained = await self.testbed.stop_job(timeout_s=limit)
                    except StopRefused as refused:
                        self.outcome.stop_refused = str(refused)
            await self._update_status()
        await self._check(asyncio.get_running_loop().time())
        if self._lost and not (self.outcome.drained or self._ended() or self.outcome.voided):
            raise HeadgateError(self._lost)
        self.outcome.voided = self.outcome.voided or self._disrupted
        # a bounded source may have finished before the drain
        self.outcome.drained = self.outcome.drained or self._status.state == "FINISHED"

    def _ended(self) -> bool:
        return self._status.state in TERMINAL_JOB_STATES

    def _all_running(self) -> bool:
        status = self._status
        return (
            status.state == "RUNNING"
            and status.total_tasks > 0
            and status.running_tasks == status.total_tasks
        )

    # ---- actions ----------------------------------------------------------------------------------------------

    async def _perform(self, actions: Sequence[timeline.Action]) -> None:
        """Carry out actions that are due. If one of them makes the trial void, only the heals among the rest are done."""
        voided_before = self.outcome.voided
        for action in actions:
            if self.outcome.voided != voided_before and action.kind != timeline.HEAL:
                continue
            match action.kind:
                case timeline.ENTER:
                    self._enter(action.name)
                case timeline.SUBMIT:
                    self._record("job.submitted")
                    await self._call("submitting the job", self.testbed.submit())
                case timeline.INJECT:
                    await self._inject(self._faults[action.name])
                case timeline.RENEW:
                    await self._renew(action.name)
                case timeline.HEAL:
                    await self._heal(action.name)

    def _enter(self, phase: str) -> None:
        now = asyncio.get_running_loop().time()
        if phase != "fault" or self._schedule.fault_window_s > 0:
            left, control = self._schedule.remaining(now), self.plan.role == CONTROL
            shown = "ended" if phase == "drain" and self._ended() else phase
            self.progress.on_event(PhaseEntered(self.plan.trial, shown, left, control))
        self._record("trial.phase", phase)

    def _record(self, kind: str, subject: str = "") -> None:
        if self.testbed.history is not None:
            self.testbed.history.append("events", kind=kind, subject=subject, data="{}")

    async def _inject(self, fault: Fault) -> None:
        if self.plan.role == CONTROL:
            return
        try:
            targets = resolve_targets(
                fault,
                placement=self._status.placement,
                task_managers=self.plan.testbed.task_managers,
                seed=self.plan.seed,
            )
        except VertexNotRunning as error:
            self._record_not_applied(fault, f"not applied: {error.problem}")
            return
        self._injected[fault.name] = fault_id = f"{self.plan.trial}/{fault.name}"
        self._deadlines[fault.name] = asyncio.get_running_loop().time() + fault.duration_s
        try:
            handle = await self._call(
                f"injecting {fault.name}",
                self.testbed.inject(fault, fault_id=fault_id, targets=targets, lease_s=LEASE_S),
            )
        except FaultNotApplied as error:
            del self._injected[fault.name]
            self._report(f"fault `{fault.name}` ({fault.kind}) on {', '.join(targets)}: {error}")
            return
        except AgentSilent as error:
            await self._void(f"fault `{fault.name}` could not be injected: {error}")
            return
        self.outcome.handles.append((handle, targets))
        self._fault_changed(fault.name, fault.duration_s)
        self._report(f"fault `{fault.name}` ({fault.kind}) on {', '.join(targets)} by {handle.backend}")

    def _record_not_applied(self, fault: Fault, text: str) -> None:
        """Record a fault without a target, as an agent records one on a dead process."""
        self._report(f"fault `{fault.name}` ({fault.kind}): {text}")
        if self.testbed.history is not None:
            for state in ("asked", "failed", "clean"):
                row = fault_row(fault, state, "", (), text=text if state == "failed" else "")
                self.testbed.history.append("faults", **row)

    async def _renew(self, name: str) -> None:
        if name not in self._injected:
            return
        now = asyncio.get_running_loop().time()
        try:
            await self._call(f"renewing {name}", self.testbed.renew(self._injected[name]))
        except FaultHealed as error:
            if not self.outcome.voided:
                self.outcome.healed = self.outcome.voided = str(error)
                self._report(f"the run ends: {error}")
                await self._perform(self._schedule.cut_short(now))
        except HeadgateError as error:
            # a fault that ended at its own deadline did not lapse; the deadline counts from before the injection
            if now < self._deadlines[name] and not self.outcome.voided:
                await self._void(f"the lease of fault `{name}` lapsed: {error}")

    async def _void(self, why: str) -> None:
        """End a trial whose fault was not active as planned, or whose testbed was disrupted. It is repeated."""
        self.outcome.voided = self.outcome.voided or why
        self._report(f"trial void: {self.outcome.voided}")
        await self._perform(self._schedule.cut_short(asyncio.get_running_loop().time()))

    async def _heal(self, name: str) -> None:
        if name not in self._injected:
            return
        try:
            await self._call(f"healing {name}", self.testbed.heal(self._injected[name]))
        except FaultLapsed as error:
            del self._injected[name]
            self._fault_changed(name, None)
            if not self.outcome.voided:
                await self._void(f"fault `{name}` did not last: {error}")
            return
        del self._injected[name]
        self._fault_changed(name, None)
        self._report(f"fault `{name}` ended")

    async def heal_all(self) -> None:
        """End every fault that is still active, the newest first. Errors are reported and do not stop the others."""
        for name in reversed(list(self._injected)):
            try:
                await self._heal(name)
            except HeadgateError as error:
                self._report(f"healing fault `{name}` failed: {error}")

    async def _call(self, what: str, call: Awaitable[T]) -> T:
        async with time_limit(what, CALL_LIMIT_S):
            return await call

    # ---- watching ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        watcher = asyncio.get_running_loop().create_task(self._watch(), name=f"watch {self.plan.trial}")
        try:
            yield
        finally:
            watcher.cancel()
            await asyncio.wait({watcher})
        if not watcher.cancelled():
            watcher.result()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._update_status()
            if loop.time() >= self._check_at:
                await self._check(loop.time())
            await asyncio.sleep(POLL_S)

    async def _check(self, now: float) -> None:
        """End the trial if a process is gone that will not be restarted."""
        self._check_at = now + CHECK_EVERY_S
        try:
            async with timeout(STATUS_LIMIT_S):
                await self.testbed.check()
        except (TimeoutError, OSError):
            return
        except TestbedDisrupted as error:
            self._disrupted = str(error)
            self._changed.set()
        except HeadgateError as error:
            self._lost = str(error)
            self._changed.set()

    async def _update_status(self) -> None:
        """Query the job's status once. Without an answer the last one stays."""
        try:
            async with timeout(STATUS_LIMIT_S):
                status = await self.testbed.job_status()
        except (TimeoutError, OSError, HeadgateError):
            return
        self._changed.set()
        if status is self._status:  # a simulated job is not asked each time
            return
        if status.state != self._status.state:
            self._report(
                f"job {status.state}" + (f": {status.cause_class}: {status.cause}" if status.cause else "")
            )
        self._status = status
        if status.cause:
            self.outcome.cause = (
                f"{status.cause_class}: {status.cause}" if status.cause_class else status.cause
            )
        elif self._all_running() or status.state == "FINISHED":
            self.outcome.cause = ""
        now = asyncio.get_running_loop().time()
        rate = self._rate.update(status.counters.get(COUNTED, 0.0), now)
        known = {} if rate is None else {"records_per_s": rate}
        self.progress.on_event(
            Sample(
                self._schedule.remaining(now),
                status.state,
                JobNow(
                    running_tasks=status.running_tasks,
                    total_tasks=status.total_tasks,
                    restarts=status.restarts,
                    checkpoints=status.completed_checkpoints,
                    counters={**known, **status.counters},
                ),
            )
        )

    async def _wait(self, until: float | None) -> None:
        """Wait until something is due or a new status has arrived, whichever is first."""
        self._changed.clear()
        delay = POLL_S if until is None else max(0.0, min(until - asyncio.get_running_loop().time(), POLL_S))
        with suppress(TimeoutError):
            async with timeout(delay):
                await self._changed.wait()
        if self._disrupted and not self.outcome.voided:
            await self._void(self._disrupted)
        elif self._lost:
            raise HeadgateError(self._lost)

    def _fault_changed(self, name: str, ends_in_s: float | None) -> None:
        self.progress.on_event(FaultChanged(name, self._faults[name].kind, ends_in_s))

    def _report(self, text: str) -> None:
        self.progress.on_event(Notice(text))
