"""The fault agent: deadlines, leases, measurements and the journal of the faults of one supervisor.

    asked → injected → verified | unverified → ended (voided when the lease lapsed) → clean | residue
    asked → failed

A fault ends at its absolute deadline, on `heal`, or when a run stops renewing its lease, whichever comes first. The holders have the
deadline too. Each step becomes a row of the history's `faults` table, with its own time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from testbed_runtime.core.errors import FaultHealed, FaultNotApplied, HeadgateError, UserError
from testbed_runtime.core.faults.kinds import kind_of
from testbed_runtime.core.faults.lease import Lease, LeaseState
from testbed_runtime.core.faults.links import logical_name, owners_of
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.backend import Backend, FaultRequest, Measurement
from testbed_runtime.faults.registry import Capabilities, check_fault
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.timeouts import Timer, cancel_all, timeout

PREPARE_LIMIT_S = 4.0
"""Limit of the measurement before the fault: a path that does not answer must not delay the run."""
CONCLUDE_LIMIT_S = 2.0
"""Limit of the measurement of an effect after the fault has ended."""
CHECK_LIMIT_S = 10.0
"""Limit of ending a fault and of the measurement after it, a restart of the JobManager included."""
MAX_JOURNAL = 10_000
"""Maximum rows that wait to be copied into the history. A fault has six rows, and a process that exits has one."""

MAX_FAULTS = 256
"""Maximum faults that are active at a time. More is a bug in the caller, not a scenario. As many ids of faults that `heal_all` has ended
are remembered, so that a later renewal raises FaultHealed."""


@dataclass(slots=True)
class _Active:
    request: FaultRequest
    backend: Backend
    backend_name: str
    lease: Lease | None = None
    """Set when the fault begins."""
    ending: bool = False
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    observer: asyncio.Task[None] | None = None
    measured: Measurement | None = None

    @property
    def is_active(self) -> bool:
        """Whether the fault has begun, and its end has not."""
        return self.lease is not None and not self.ending


class Journal:
    """The newest MAX_JOURNAL rows, numbered without gaps."""

    def __init__(self) -> None:
        self._rows: deque[dict[str, Any]] = deque(maxlen=MAX_JOURNAL)
        self._next = 0

    def add(self, table: str, row: Mapping[str, Any]) -> None:
        now = asyncio.get_running_loop().time()
        self._rows.append({"number": self._next, "table": table, "row": {"t_ns": int(now * 1e9), **row}})
        self._next += 1

    def append(self, table: str, **row: Any) -> None:
        """Add a row, as a HistorySink does."""
        self.add(table, row)

    def put(self, table: str, values: tuple[Any, ...]) -> None:
        from testbed_runtime.history.schema import by_column  # imports pyarrow, late

        self.add(table, by_column(table, values))

    async def flush(self) -> bool:
        """Return True, because the reader of the journal stores its rows."""
        return True

    def since(self, number: int) -> list[dict[str, Any]]:
        return [row for row in self._rows if row["number"] >= number]


class FaultAgent:
    """Owns the observers and the tasks that end faults; `close` ends them all."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        capabilities: Capabilities,
        *,
        journal: Journal | None = None,
        seed: int = 1,
    ) -> None:
        self.journal = journal or Journal()
        self._backends = dict(backends)
        self._capabilities = capabilities
        self._seed = seed
        self._active: dict[str, _Active] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._healed: deque[str] = deque(maxlen=MAX_FAULTS)
        self._timer = Timer()

    # ---- the fault API

    async def inject(
        self, fault: Fault, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        """Begin a fault. Raises UserError or FaultNotApplied before it does anything, or HeadgateError after it undid what it
        began."""
        name, why = check_fault(fault, self._capabilities)
        backend = self._backends.get(name)
        if backend is None:
            raise UserError(
                "fault", f"{fault.kind} needs the backend {name}, which this agent does not have", why
            )
        if fault_id in self._active or fault_id in self._ending:
            raise UserError(
                "fault", f"the fault {fault_id} is already active", "choose another id, or heal it first"
            )
        others = [a.request for a in self._active.values() if a.request.fault.kind.endswith(".pause")]
        paused = tuple(name for other in others for name in other.targets)
        request = FaultRequest(fault_id, fault, tuple(targets), 0.0, self._seed, paused)
        active = _Active(request, backend, name)
        self._active[fault_id] = active
        self._write(active, "asked", text=f"{name}: {why}")
        try:
            async with timeout(PREPARE_LIMIT_S):
                await backend.prepare(request)
            await self._begin(active, lease_s)
        except (
            FaultNotApplied
        ) as error:  # undo nothing: the end of a jobmanager.kill would start a JobManager
            self._active.pop(fault_id, None)
            self._write(active, "failed", text=str(error))
            self._write(active, "clean")
            raise
        except (HeadgateError, TimeoutError) as error:
            text = str(error) or "the measurement before the fault took too long"
            self._active.pop(fault_id, None)
            await self._undo(active)
            self._write(active, "failed", text=text)
            raise HeadgateError(f"{fault.kind} could not be injected: {text}") from error
        return FaultHandle(fault_id, name, why, tuple(targets))

    async def _begin(self, active: _Active, lease_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        request = active.request
        deadline = loop.time() + request.fault.duration_s
        active.request = replace(request, deadline=deadline)
        if sum(other.is_active for other in self._active.values()) >= MAX_FAULTS:
            raise HeadgateError(f"{MAX_FAULTS} faults are active already: heal some of them first")
        active.lease = Lease(now=loop.time(), deadline=deadline, lease_s=lease_s)
        self._arm()
        begun = await active.backend.apply(active.request)
        self._write(active, "injected", t=begun)
        active.observer = loop.create_task(self._observe(active), name=f"observe-{request.fault_id}")

    async def renew(self, fault_id: str) -> None:
        """Renew the lease of a fault. Raises FaultHealed after `heal_all`, HeadgateError if the fault is no longer active."""
        if fault_id in self._healed:
            raise FaultHealed(f"all faults were healed, {fault_id} among them")
        lease = self._lease(fault_id)
        if lease is None or not lease.renew(asyncio.get_running_loop().time()):
            if lease is not None:
                self._end(fault_id)  # its timer has not run yet
            raise HeadgateError(f"the fault {fault_id} is no longer active")
        self._arm()

    async def heal(self, fault_id: str) -> None:
        """End a fault and wait until its residue is measured. Harmless when it ended or never existed."""
        active = self._active.get(fault_id)
        if active is not None and active.is_active:
            self._end(fault_id)
        task = self._ending.get(fault_id)
        if task is not None:
            await asyncio.shield(task)

    async def heal_all(self) -> None:
        """End every fault, the newest first."""
        for fault_id in [f for f, active in self._active.items() if active.is_active][::-1]:
            self._healed.append(fault_id)
            self._end(fault_id)
        tasks = list(self._ending.values())
        if tasks:
            await asyncio.wait(tasks)

    def active(self) -> list[dict[str, Any]]:
        """Return one object for each active fault, for `headgate faults`."""
        now = asyncio.get_running_loop().time()
        return [
            {
                "id": fault_id,
                "name": a.request.fault.name,
                "kind": a.request.fault.kind,
                "backend": a.backend_name,
                "targets": list(a.request.targets),
                "remaining_s": max(0.0, a.request.deadline - now),
                "verified": a.measured.ok if a.measured else None,
            }
            for fault_id, a in self._active.items()
        ]

    async def residue(self) -> dict[str, Any]:
        """Return the active faults and the residue of every holder; `{}` is clean."""
        found: dict[str, Any] = {}
        if self._active:
            found["faults"] = list(self._active)
        for backend in self._backends.values():
            found.update(await backend.residue())
        return found

    async def target_restarted(self, name: str) -> None:
        """Apply `onTargetRestart` to the faults inside a process that restarted as its next incarnation.

        Rules of the proxy are on the path and not in the process: they stay, as a broken network would."""
        for active in list(self._active.values()):
            fault = active.request.fault
            if logical_name(name) not in owners_of(active.request.targets) or not kind_of(fault).in_process:
                continue
            if fault.on_target_restart == "Reapply":
                await self._reapply(active)
            else:
                if fault.on_target_restart == "Fail":
                    self._write(active, "failed", text=f"{name} restarted while the fault was active")
                await self.heal(active.request.fault_id)

    async def close(self) -> None:
        """End every fault without measuring the residue."""
        self._timer.cancel()
        for active in list(self._active.values()):
            await self._stop_observer(active, conclude=False)
            await self._undo(active)
        self._active.clear()
        await cancel_all(*self._ending.values())

    # ---- inside

    async def _observe(self, active: _Active) -> None:
        try:
            measured = await active.backend.observe(active.request, active.stop)
        except HeadgateError as error:
            measured = Measurement(False, {}, f"the effect could not be measured: {error}")
        active.measured = measured
        self._write(
            active, "verified" if measured.ok else "unverified", measured=measured.values, text=measured.text
        )

    def _lease(self, fault_id: str) -> Lease | None:
        """Return the lease of a fault that has begun."""
        active = self._active.get(fault_id)
        return active.lease if active is not None else None

    def _arm(self) -> None:
        times = (active.lease.next_time for active in self._active.values() if active.lease is not None)
        self._timer.set(min((time for time in times if time is not None), default=None), self._on_time)

    def _on_time(self) -> None:
        now = asyncio.get_running_loop().time()
        for fault_id, active in list(self._active.items()):
            if active.lease is not None and active.lease.poll(now) is not LeaseState.ACTIVE:
                self._end(fault_id)
        self._arm()

    def _end(self, fault_id: str) -> None:
        """End a fault that has begun, unless it is ending already."""
        active, loop = self._active[fault_id], asyncio.get_running_loop()
        if active.lease is None or active.ending:
            return
        active.ending = True
        state = active.lease.heal(loop.time())
        task = loop.create_task(self._finish(active, state), name=f"end-{fault_id}")
        self._ending[fault_id] = task
        task.add_done_callback(lambda _: self._ending.pop(fault_id, None))

    async def _finish(self, active: _Active, state: LeaseState) -> None:
        """Conclude the measurement, remove the fault, measure the residue."""
        await self._stop_observer(active, conclude=True)
        note = await self._undo(active)
        self._write(active, "ended", text=note or _REASONS[state])
        if state is LeaseState.LAPSED:
            self._write(active, "voided", text=_REASONS[state])
        try:
            async with timeout(CHECK_LIMIT_S):
                left = await active.backend.check(active.request)
        except (HeadgateError, TimeoutError) as error:
            left = Measurement(False, {}, f"the residue could not be measured: {error}")
        self._write(active, "clean" if left.ok else "residue", measured=left.values, text=left.text)
        self._active.pop(active.request.fault_id, None)

    async def _stop_observer(self, active: _Active, *, conclude: bool) -> None:
        if active.observer is None:
            return
        active.stop.set()
        if conclude:
            await asyncio.wait((active.observer,), timeout=CONCLUDE_LIMIT_S)
        if not active.observer.done():
            await cancel_all(active.observer)
        if active.measured is None and conclude:
            active.measured = Measurement(False)
            self._write(active, "unverified", text="the effect was not measured before the fault ended")

    async def _undo(self, active: _Active) -> str:
        """Remove the fault. Return why that failed, or an empty string."""
        try:
            async with timeout(CHECK_LIMIT_S):
                await active.backend.remove(active.request)
        except (HeadgateError, TimeoutError) as error:
            return f"could not be removed by the agent, its own deadline ends it: {error}"
        return ""

    async def _reapply(self, active: _Active) -> None:
        try:
            await active.backend.apply(active.request)
            self._write(active, "injected", text="applied again after the process restarted")
        except HeadgateError as error:
            self._write(active, "failed", text=str(error))

    def _write(
        self,
        active: _Active,
        state: str,
        *,
        measured: Mapping[str, Any] | None = None,
        text: str = "",
        t: float | None = None,
    ) -> None:
        request = active.request
        row = fault_row(
            request.fault, state, active.backend_name, request.targets, measured=measured, text=text, t=t
        )
        self.journal.add("faults", row)


_REASONS = {
    LeaseState.HEALED: "healed",
    LeaseState.EXPIRED: "its deadline passed",
    LeaseState.LAPSED: "its lease was not renewed: the trial is void",
    LeaseState.ACTIVE: "",
}


def fault_row(
    fault: Fault,
    state: str,
    backend: str,
    targets: Sequence[str],
    *,
    measured: Mapping[str, Any] | None = None,
    text: str,
    t: float | None = None,
) -> dict[str, Any]:
    """Return a row of the history's `faults` table. `t`: the loop time of the step, by default now."""
    return {
        **({} if t is None else {"t_ns": int(t * 1e9)}),
        "fault": fault.name,
        "state": state,
        "kind": fault.kind,
        "backend": backend,
        "targets": list(targets),
        "asked": {k: v for k, v in to_builtins(fault).items() if k not in ("name", "kind", "target")},
        "measured": dict(measured or {}),
        "text": text,
    }
