"""The effect of a kill, when all threads of the process have ended soon enough, and of pauses that overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from testbed_runtime.faults.backend import FaultRequest
from testbed_runtime.faults.process import backend as process
from tests.faults.a_fault import fault


class _Table:
    """One process, in the state that `state_now` returns after its kill."""

    def __init__(self, state_now: Callable[[], str]) -> None:
        self._state_now = state_now
        self.stopped = False
        self.number = 7

    def pid(self, name: str) -> int:
        del name
        return self.number

    def state(self, name: str, pid: int) -> str:
        del name, pid
        return self._state_now()

    def signal_kill(self, name: str) -> None:
        del name

    def pause(self, name: str) -> None:
        del name
        self.stopped = True

    def resume(self, name: str) -> None:
        del name
        self.stopped = False


async def measured_kill(state_now: Callable[[], str], stop: asyncio.Event):
    request = FaultRequest("f-1", fault("process.kill"), ("tm-0",), 0.0, 1)
    backend = process.ProcessBackend(_Table(state_now))  # type: ignore[arg-type]
    await backend.prepare(request)
    await backend.apply(request)
    return await backend.observe(request, stop)


async def test_a_kill_took_effect_when_the_last_thread_has_ended_even_after_the_fault_has():
    """Nothing undoes a kill, and in a pod the fault may end within milliseconds."""
    states, ended = iter("SXXXXZ"), asyncio.Event()
    ended.set()
    assert (await measured_kill(lambda: next(states, "Z"), ended)).ok


async def test_a_killed_process_that_keeps_its_connections_is_not_verified(monkeypatch):
    """A kill on a busy machine once took three seconds, in which its peers noticed nothing."""
    monkeypatch.setattr(process, "END_LIMIT_S", 0.05)
    measured = await measured_kill(lambda: "X", asyncio.Event())
    assert (measured.ok, measured.values["states"]) == (False, {"tm-0": "X"})
    assert "its connections were open until then" in measured.text


@pytest.mark.parametrize("state", ["", "Z"])
async def test_a_reaped_process_and_a_zombie_without_threads_are_gone(state):
    """The kernel keeps the process id until the supervisor has read the exit code."""
    assert (await measured_kill(lambda: state, asyncio.Event())).ok


async def test_pauses_that_overlap_last_until_the_last_of_them_ends():
    """The first one leaves nothing behind, although the process is still stopped."""
    table = _Table(lambda: "T" if table.stopped else "S")
    backend = process.ProcessBackend(table)  # type: ignore[arg-type]
    first, second = (FaultRequest(name, fault("process.pause"), ("tm-0",), 0.0, 1) for name in ("f-1", "f-2"))
    for request in (first, second):
        await backend.prepare(request)
        await backend.apply(request)
    for request, stopped in ((first, True), (second, False)):
        await backend.remove(request)
        assert table.stopped is stopped
        assert (await backend.check(request)).ok


@pytest.mark.parametrize("applied_again", [False, True], ids=["expired", "reapplied"])
async def test_the_pause_of_a_process_does_not_hold_its_replacement(applied_again: bool):
    """Unless the fault is applied to it again, as `onTargetRestart: Reapply` asks."""
    table = _Table(lambda: "T" if table.stopped else "S")
    backend = process.ProcessBackend(table)  # type: ignore[arg-type]
    first, second = (FaultRequest(name, fault("process.pause"), ("tm-0",), 0.0, 1) for name in ("f-1", "f-2"))
    await backend.prepare(first)
    await backend.apply(first)
    table.number, table.stopped = 8, False  # it was killed and replaced
    if applied_again:
        await backend.apply(first)
    await backend.prepare(second)
    await backend.apply(second)
    await backend.remove(second)
    assert table.stopped is applied_again
    await backend.remove(first)
    assert not table.stopped
