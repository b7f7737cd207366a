"""The virtual loop: time jumps, order is fixed, processes pause and die."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
from pathlib import Path

import pytest

from testbed_runtime.core.waits import STALL_TICK_S
from testbed_runtime.files import write_whole
from testbed_runtime.process.clock import StallMeter
from testbed_runtime.simulation.loop import (
    COLLECT_EVERY,
    SimulatedDeadlock,
    rare_collections,
    run_virtual,
    spawn,
)
from tests.simulation.simulating import virtual_loop


async def _ticker(ticks: list[float]) -> None:
    while True:
        await asyncio.sleep(1)
        ticks.append(asyncio.get_running_loop().time())


def test_an_hour_of_sleep_takes_exactly_an_hour_of_virtual_time():
    """Time moves only by jumps, and by exactly what was asked."""

    async def main() -> float:
        before = virtual_loop().time()
        await asyncio.sleep(3600)
        return virtual_loop().time() - before

    assert run_virtual(main()) == pytest.approx(3600)


def test_a_run_does_not_wait_for_the_disk_and_what_comes_after_it_does(tmp_path, monkeypatch):
    """A seed gives the same run again; a file that is written outside of it is on the disk, and so are the names in its folder."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)

    async def write() -> Path:
        return write_whole(tmp_path / "manifest.json", b"{}")

    async def main() -> Path:
        return await asyncio.create_task(write())

    assert run_virtual(main()).read_bytes() == b"{}"
    assert synced == []
    write_whole(tmp_path / "manifest.json", b"[]")
    assert len(synced) == 2


def test_garbage_is_collected_rarely_during_a_run_and_as_before_after_it():
    """The thresholds hold for the run, also when it fails."""
    before = gc.get_threshold()

    async def main() -> None:
        assert gc.get_threshold() == COLLECT_EVERY != before
        assert gc.get_freeze_count() > 0
        raise KeyError("run")

    with pytest.raises(KeyError):
        run_virtual(main())
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("last", "collections"), [(False, 1), (True, 0)])
def test_what_the_last_run_of_a_process_leaves_is_not_collected_before_it_ends(last: bool, collections: int):
    """A collection of everything that a command has made would free what ends with the process."""
    before, begun = gc.get_threshold(), list[str]()

    def note(phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            begun.append(phase)

    gc.callbacks.append(note)
    try:
        with rare_collections(last=last):
            made = [[number] for number in range(2 * before[0])]
            assert not begun
        made.append([])
    finally:
        gc.callbacks.remove(note)
    assert len(begun) == collections
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_timers_of_one_instant_fire_in_the_order_they_were_made():
    """No order on a decision path is left to chance."""

    async def main() -> list[int]:
        order: list[int] = []
        due = virtual_loop().time() + 1
        for number in range(100):
            virtual_loop().call_at(due + (number % 3) * 1e-12, order.append, number)
        await asyncio.sleep(2)
        return order

    assert run_virtual(main()) == run_virtual(main())


def test_a_loop_without_anything_to_wait_for_reports_a_deadlock():
    """A forgotten wake-up is an error at once and not a hang."""

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulatedDeadlock):
        run_virtual(main())


def test_a_paused_process_does_nothing_and_catches_up_when_resumed():
    """SIGSTOP: no step while paused, and the timer that came due fires on resume."""

    async def main() -> list[float]:
        ticks: list[float] = []
        spawn("tm-0", _ticker(ticks), name="ticker")
        await asyncio.sleep(2.5)
        virtual_loop().pause("tm-0")
        await asyncio.sleep(10)
        assert len(ticks) == 2
        virtual_loop().resume("tm-0")
        await asyncio.sleep(2.1)
        return [round(tick - 1000, 3) for tick in ticks]

    assert run_virtual(main()) == [1.0, 2.0, 12.5, 13.5, 14.5]


def test_a_killed_process_never_runs_again_and_leaves_the_others_alone():
    """SIGKILL: not even its finally blocks run while the others go on."""

    async def main() -> tuple[int, int]:
        dead: list[float] = []
        alive: list[float] = []
        spawn("tm-0", _ticker(dead), name="dead")
        spawn("tm-1", _ticker(alive), name="alive")
        await asyncio.sleep(2.5)
        virtual_loop().kill("tm-0")
        await asyncio.sleep(3)
        return len(dead), len(alive)

    assert run_virtual(main()) == (2, 5)


def test_a_timer_that_is_cancelled_on_resume_does_not_fire():
    """Both are due when the process goes on; the first one still decides about the second."""

    async def main() -> list[str]:
        fired: list[str] = []

        async def process() -> None:
            second = virtual_loop().call_later(2, fired.append, "second")

            def first() -> None:
                fired.append("first")
                second.cancel()

            virtual_loop().call_later(1, first)

        await spawn("tm-0", process(), name="process")
        virtual_loop().pause("tm-0")
        await asyncio.sleep(5)
        virtual_loop().resume("tm-0")
        await asyncio.sleep(1)
        return fired

    assert run_virtual(main()) == ["first"]


def test_the_dead_say_nothing_not_even_at_the_end(caplog: pytest.LogCaptureFixture):
    """No `finally` of a killed process acts before the end of the run, and asyncio has nothing to complain of."""

    async def main() -> list[str]:
        said: list[str] = []

        async def process() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                said.append("last words")
                await asyncio.sleep(1)

        spawn("tm-0", process(), name="process")
        await asyncio.sleep(1)
        virtual_loop().kill("tm-0")
        await asyncio.sleep(1)
        gc.collect()
        return list(said)

    assert run_virtual(main()) == []
    gc.collect()
    assert caplog.records == []


def test_a_task_that_fails_as_its_process_is_killed_is_not_reported(caplog: pytest.LogCaptureFixture):
    """The process that waits for it is killed between the failure and its notice: a checkpoint store that refuses."""

    async def refused() -> None:
        await asyncio.sleep(1)
        raise OSError("the store refuses")

    async def process() -> None:
        work = asyncio.get_running_loop().create_task(refused())
        work.add_done_callback(lambda _: pytest.fail("the process is dead"))
        await work

    async def main() -> None:
        loop = virtual_loop()
        spawn("tm-0", process(), name="process")
        killing = loop.time() + 1
        loop.call_at(killing, lambda: loop.call_soon(loop.call_soon, loop.kill, "tm-0"))
        await asyncio.sleep(2)

    run_virtual(main())
    gc.collect()
    assert caplog.records == []


def test_a_loop_in_which_time_stands_says_livelock():
    """Tasks that wake each other endlessly are an error with their names, and not a hang."""

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimulatedDeadlock, match="livelock"):
        run_virtual(main())


def test_a_task_that_does_not_end_when_cancelled_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture):
    """The end of a run has a limit in virtual time."""

    async def main() -> str:
        async def stubborn() -> None:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1)

        spawn("tm-0", stubborn(), name="stubborn")
        await asyncio.sleep(1)
        return "done"

    assert run_virtual(main()) == "done"
    gc.collect()
    assert caplog.records == []


def test_an_error_in_a_callback_is_reported_and_the_others_run():
    """As in any event loop, the exception handler gets it."""
    found: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: found.append(context["exception"]))
        loop.call_soon(int, "no number")
        loop.call_soon(found.append, "the next one")
        await asyncio.sleep(1)

    run_virtual(main())
    assert [type(item) for item in found] == [ValueError, str]


@pytest.mark.parametrize("pauses", [[(0.3123, 0.7)], [(0.05, 0.21), (2.0, 5.5)], [(1.0, 0.15), (3.0, 1.0)]])
def test_a_meter_that_expects_a_pause_measures_what_one_that_always_ticks_does(
    pauses: list[tuple[float, float]],
):
    """The ticks of both are at the same times, so that the history of a pause does not depend on who announces it."""
    measured: dict[bool, list[float]] = {True: [], False: []}

    async def process(announced: bool) -> None:
        meter = StallMeter(measured[announced].append, lambda: not announced)
        meter.start()
        meters[announced] = meter, contextvars.copy_context()
        await asyncio.Event().wait()

    meters: dict[bool, tuple[StallMeter, contextvars.Context]] = {}

    async def main() -> None:
        tasks = [spawn(str(announced), process(announced), name=str(announced)) for announced in measured]
        for after, seconds in pauses:
            await asyncio.sleep(after)
            meter, context = meters[True]
            context.run(meter.expect_pause)
            for announced in measured:
                virtual_loop().pause(str(announced))
            await asyncio.sleep(seconds)
            for announced in measured:
                virtual_loop().resume(str(announced))
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()

    run_virtual(main())
    assert measured[True] == measured[False]
    assert measured[True]


def test_a_process_that_stalls_again_while_it_records_a_stall_measures_both():
    """The second stall is no part of the first, and extends the heartbeats too."""
    measured: list[float] = []

    def on_stall(seconds: float) -> None:
        measured.append(seconds)
        if len(measured) == 1:
            stall(3)

    def stall(seconds: float) -> None:
        virtual_loop()._now += seconds

    async def main() -> None:
        meter = StallMeter(on_stall, lambda: True)
        meter.start()
        stall(2)
        await asyncio.sleep(5)
        meter.close()

    run_virtual(main())
    assert measured == pytest.approx([2 - STALL_TICK_S, 3 - STALL_TICK_S])
