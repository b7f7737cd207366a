"""The cores of a TaskManager in virtual time: who runs next, who waits, and what is paid."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from testbed_runtime.core.job.cost import CALIBRATIONS, Prices
from testbed_runtime.core.options import Options
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.work import Cores, TaskWork

PRICES = CALIBRATIONS["flink-2.3"]
UNITS = Prices(
    record_out_s=1e-3, record_in_s=2e-3, buffer_in_s=4e-3, shared_in_s=3e-3, flushed_s=5e-3, flush_s=6e-3,
    flush_record_s=7e-3, network_buffer_s=1e-3, network_shared_s=0.5e-3, network_byte_s=1e-6,
)  # fmt: skip


def worker(cores: Cores) -> TaskWork:
    return TaskWork(cores, None, None)  # type: ignore[arg-type] - neither meter nor output is asked


def ends(count: float, *work: tuple[str, float, float], charges: Any = ()) -> list[tuple[str, float]]:
    """The task and the end in ms of each piece of work of (task, begin, length in ms), in the order of their ends. `charges`:
    time and length of what threads take."""

    async def main() -> list[tuple[str, float]]:
        cores, loop, found = Cores(PRICES, count), asyncio.get_running_loop(), []
        began = loop.time()
        tasks = {name: worker(cores) for name, _, _ in work}

        async def one(name: str, begin_ms: float, length_ms: float) -> None:
            await asyncio.sleep(begin_ms / 1000)
            await cores.spend(tasks[name], length_ms / 1000)
            found.append((name, round((loop.time() - began) * 1000, 3)))

        for at_ms, length_ms in charges:
            loop.call_later(at_ms / 1000, cores.charge, length_ms / 1000)
        await asyncio.gather(*(one(*each) for each in work))
        spent_ms = sum(length for *_, length in work) + sum(length for _, length in charges)
        assert cores.spent_s == pytest.approx(spent_ms / 1000), "every second is counted"
        return found

    return run_virtual(main())


def test_a_task_waits_while_every_core_has_an_owner():
    """In the order of their requests if they have received the same; two cores serve two at once."""
    work = [("a", 0, 3), ("b", 0.1, 2), ("c", 0.2, 1)]
    assert ends(1, *work) == [("a", 3), ("b", 5), ("c", 6)]
    assert ends(2, *work) == [("b", 2.1), ("a", 3), ("c", 3.1)]


def test_a_fraction_of_cores_is_that_of_slower_ones():
    """1.5 cores are two of 75 %."""
    assert ends(1.5, ("a", 0, 3), ("b", 0, 3), ("c", 0, 3)) == [("a", 4), ("b", 4), ("c", 8)]
    assert ends(0.5, ("a", 0, 3), ("b", 0, 3)) == [("a", 6), ("b", 12)]


def test_a_thread_that_is_woken_interrupts_a_task_only_if_no_core_is_free():
    """The next work of the owner takes longer by its time, and only once."""
    work = [("a", 0, 3), ("a", 3, 3), ("a", 6.5, 1)]
    assert ends(1, *work, charges=[(1, 0.5)]) == [("a", 3), ("a", 6.5), ("a", 7.5)]
    assert ends(2, *work, charges=[(1, 0.5)]) == [("a", 3), ("a", 6), ("a", 7.5)]


def test_threads_are_charged_to_the_core_that_was_interrupted_the_least():
    """Two interruptions meet two tasks."""

    async def main() -> list[float]:
        cores, loop = Cores(PRICES, 2), asyncio.get_running_loop()
        first, second = worker(cores), worker(cores)

        async def timed(task: TaskWork) -> float:
            begin = loop.time()
            await cores.spend(task, 0.002)
            return round((loop.time() - begin) * 1000, 3)

        running = [asyncio.ensure_future(timed(task)) for task in (first, second)]
        await asyncio.sleep(0.001)
        cores.charge(0.001)
        cores.charge(0.003)
        await asyncio.gather(*running)
        return list(await asyncio.gather(timed(first), timed(second)))

    assert run_virtual(main()) == [3.0, 5.0]


def alternating(first_ms: float, *, step_ms: float, other_ms: float, count: float = 1) -> float:
    """When a task ends that asks for the only core at 0.05 ms, in ms, beside one that began before it and works in steps."""

    async def main() -> float:
        cores, loop = Cores(PRICES, count), asyncio.get_running_loop()
        began, busy, newcomer = loop.time(), worker(cores), worker(cores)

        async def work() -> None:
            await cores.spend(busy, first_ms / 1000)
            while True:
                await cores.spend(busy, step_ms / 1000)

        running = asyncio.ensure_future(work())
        await asyncio.sleep(0.00005)
        await cores.spend(newcomer, other_ms / 1000)
        running.cancel()
        return round((loop.time() - began) * 1000, 3)

    return run_virtual(main())


def test_a_task_keeps_its_core_for_a_slice_until_a_thread_is_woken_and_for_a_tick_otherwise():
    """It is asked between two pieces of work; the one that has received less is next."""
    slice_ms, tick_ms = 1.4, 4.0
    assert alternating(0.5, step_ms=0.5, other_ms=1.0) == tick_ms + 1.0
    assert alternating(slice_ms, step_ms=0.5, other_ms=1.0) == slice_ms + 1.0
    assert alternating(slice_ms - 0.1, step_ms=0.5, other_ms=1.0) == slice_ms - 0.1 + 3.0 + 1.0
    assert alternating(0.5, step_ms=0.5, other_ms=1.0, count=0.5) == tick_ms + 2.0, "half as much in a tick"


def order_of(*work: tuple[str, float, tuple[float, ...]]) -> list[str]:
    """The tasks on one core in the order in which their pieces of work end. Each is (task, begin, lengths in ms): the next piece
    is asked for when the one before has ended."""

    async def main() -> list[str]:
        cores, order = Cores(PRICES, 1), list[str]()
        tasks = {name: worker(cores) for name, *_ in work}

        async def one(name: str, begin_ms: float, lengths: tuple[float, ...]) -> None:
            await asyncio.sleep(begin_ms / 1000)
            for length_ms in lengths:
                await cores.spend(tasks[name], length_ms / 1000)
                order.append(name)

        await asyncio.gather(*(one(*each) for each in work))
        return order

    return run_virtual(main())


@pytest.mark.parametrize(("first_ms", "order"), [(4, "baab"), (3.9, "baba")])
def test_of_two_tasks_that_have_received_the_same_the_one_on_the_core_goes_on(first_ms: float, order: str):
    """Also after its tick. One that has received more makes room."""
    assert "".join(order_of(("b", 0, (first_ms,)), ("a", 4.1, (4, 1)), ("b", 5, (4,)))) == order


def test_a_task_keeps_a_core_for_a_tick_also_if_its_last_owner_had_to_make_room():
    """A thread was woken while `a` had used its slice. That is over when `a` has left the core."""
    work = [("a", 0, (2,)), ("b", 1.5, (0.5, 0.5, 0.5)), ("c", 2.1, (0.5,))]
    assert "".join(order_of(*work)) == "abbbc"


def test_a_newcomer_is_owed_a_tick_at_most_counted_from_the_task_that_has_received_the_least():
    """Here one that waits, with 1 ms: so the newcomer is owed that, and runs before it."""
    work = [("b", 0, (1,)), ("x", 0.5, (0.1,)), ("a", 1.2, (0.5, 9.5)), ("b", 1.3, (1,)), ("c", 5, (1,))]
    assert "".join(order_of(*work)) == "bxaacb"


def test_a_task_that_is_cancelled_while_it_waits_for_a_core_is_cancelled():
    """It gets no core, and does not work."""

    async def main() -> None:
        cores = Cores(PRICES, 1)
        running = asyncio.ensure_future(cores.spend(worker(cores), 0.002))
        waiting = asyncio.ensure_future(cores.spend(worker(cores), 0.002))
        await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await running
        assert cores.spent_s == 0.002

    run_virtual(main())


@pytest.mark.parametrize(("used_ms", "leaves"), [(1.4, True), (1.3, False)])
def test_a_task_that_has_used_its_slice_makes_room_when_a_thread_is_woken(used_ms: float, leaves: bool):
    """At its next request, although its tick is not over."""

    async def main() -> list[str]:
        cores, order = Cores(PRICES, 1), []
        busy, waiting = worker(cores), worker(cores)

        async def wait() -> None:
            await cores.spend(waiting, 0.0001)
            order.append("waiting")

        await cores.spend(busy, 0.0001)
        other = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        await cores.spend(busy, used_ms / 1000 - 0.0001)
        cores.charge(0.0)
        assert cores.shared
        cores.charge(0.00001)
        await cores.spend(busy, 0.0001)
        order.append("busy")
        await other
        assert not cores.shared
        return order

    assert run_virtual(main()) == (["waiting", "busy"] if leaves else ["busy", "waiting"])


def test_a_core_is_free_again_when_its_owner_asks_for_nothing_or_is_cancelled():
    """Also a core that was granted to a task that no longer waits."""

    async def main() -> float:
        cores, loop = Cores(PRICES, 1), asyncio.get_running_loop()
        began = loop.time()
        pieces = [asyncio.ensure_future(cores.spend(worker(cores), 0.002)) for _ in range(3)]
        await asyncio.sleep(0.001)
        pieces[1].cancel()
        pieces[0].cancel()
        await asyncio.gather(*pieces, return_exceptions=True)
        await cores.spend(worker(cores), 0.001)
        return round((loop.time() - began) * 1000, 3)

    assert run_virtual(main()) == 4.0


@pytest.mark.parametrize(("waits", "seconds"), [(False, 0.002), (True, 0.0015)])
def test_a_buffer_costs_its_network_thread_time_by_its_bytes_and_less_while_tasks_wait(
    waits: bool, seconds: float
):
    """Both ends pay; a sent buffer is counted and keeps the thread of a slower core busy for longer."""

    async def main() -> None:
        cores = Cores(UNITS, 0.5)
        tasks = [asyncio.ensure_future(cores.spend(worker(cores), 0.01)) for _ in range(1 + waits)]
        await asyncio.sleep(0)
        before = cores.spent_s
        assert cores.send(1000) == pytest.approx(2 * seconds)
        assert (cores.spent_s - before, cores.buffers) == (pytest.approx(seconds), 1)
        cores.receive(1000)
        assert (cores.spent_s - before, cores.buffers) == (pytest.approx(2 * seconds), 1)
        await asyncio.gather(*tasks)

    run_virtual(main())


def test_the_cores_are_one_for_each_slot_unless_the_options_say_otherwise():
    """Without prices, work costs nothing."""
    assert Cores.of(Options({}), 2) is None
    cost = {"headgate.simulation.cost": "flink-2.3"}
    for more, count in (({}, 3), ({"taskmanager.cpu.cores": "2.5"}, 3), ({"taskmanager.cpu.cores": "1"}, 1)):
        made = Cores.of(Options({**cost, **more}), 3)
        assert made is not None
        assert (made.count, made.prices) == (count, PRICES)


def test_a_task_pays_for_its_work_since_the_last_payment_once_it_is_worth_it():
    """The flusher's thread has its own time; records are flushed one by one only with a buffer timeout of 0."""
    work = {"records_out": 0, "records_in": 0, "buffers_in": 0}

    async def main() -> None:
        cores, loop = Cores(UNITS, 1), asyncio.get_running_loop()
        meter, output = SimpleNamespace(**work), SimpleNamespace(flushed=0, flushes=0, flushes_each=False)
        task: Any = TaskWork(cores, meter, output)  # type: ignore[arg-type] - only their counters are asked

        async def paid() -> tuple[float, float]:
            await asyncio.sleep(0.001)  # its core is free again
            before, begin = cores.spent_s, loop.time()
            await task.pay()
            return round((cores.spent_s - before) * 1000, 6), round((loop.time() - begin) * 1000, 6)

        assert await paid() == (0, 0)
        meter.records_out, meter.records_in, meter.buffers_in = 10, 100, 1000
        assert await paid() == (4210, 4210)
        assert await paid() == (0, 0), "paid once"
        output.flushed, output.flushes = 1, 2
        assert await paid() == (17, 0), "another thread's"
        output.flushes_each, meter.records_out = True, 11
        assert await paid() == (11 * 7 + 1, 11 * 7 + 1)

    run_virtual(main())


def test_little_work_is_owed_until_it_is_a_quantum():
    """Less would be a timer for each record."""

    async def main() -> list[bool]:
        each = 0.000025
        cores = Cores(Prices(each, 0, 0, 0, 0, 0, 0, 0, 0, 0), 1)
        meter = SimpleNamespace(records_out=0, records_in=0, buffers_in=0)
        output = SimpleNamespace(flushed=0, flushes=0, flushes_each=False)
        task, paid = TaskWork(cores, meter, output), []  # type: ignore[arg-type] - only their counters are asked
        for meter.records_out in (3, 4, 7, 9):
            before = cores.spent_s
            await task.pay()
            paid.append(cores.spent_s > before)
        return paid

    assert run_virtual(main()) == [False, True, False, True]
