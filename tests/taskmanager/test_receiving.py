"""A receive queue: its reports to the coordinator, and its failure."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from testbed_runtime.core.job.flowcontrol import FlowControl
from testbed_runtime.core.options import Options
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.receiving import Receiving
from testbed_runtime.taskmanager.waiting import Wakeup

OPTIONS = {"headgate.flow-control": "pid", "headgate.flow-control.interval": "1 s"}


def queue_of(process: Any, tell: Any, wakeup: Any = None) -> Receiving:
    """A queue of `sink-0`. Its JobManager is `tell`, its task `process`, which waits for `wakeup`."""
    run: Any = SimpleNamespace(
        name="sink-0",
        descriptor=SimpleNamespace(attempt="attempt"),
        gateway=SimpleNamespace(tell=tell),
        event=lambda *_, **__: None,
        now=lambda: asyncio.get_running_loop().time(),
        wakeup=wakeup or Wakeup(),
    )
    return Receiving(run, FlowControl.read(Options(OPTIONS)), process)


async def fails(*_: Any) -> None:
    raise ValueError("the last record")


def test_a_report_waits_for_the_one_before_it():
    """The JobManager takes 10 s to answer; with an interval of 1 s, one report is on its way, not ten."""
    sent: list[Any] = []

    async def tell(message: Any) -> None:
        sent.append(message)
        await asyncio.sleep(10.0)

    async def main() -> list[int]:
        receiving = queue_of(fails, tell)
        receiving.start()
        counts = []
        for _ in range(2):
            await asyncio.sleep(9.5)
            counts.append(len(sent))
        await receiving.close()
        return counts

    assert run_virtual(main()) == [1, 2]


def test_a_failure_of_the_last_queued_record_wakes_the_task():
    """No further input has to come: the task is woken and finds the error."""

    async def tell(_: Any) -> None:
        """The JobManager takes every report."""

    async def main() -> None:
        wakeup = Wakeup()
        receiving = queue_of(fails, tell, wakeup)
        receiving.start()
        receiving.put(np.zeros(1, dtype=[("due_ns", "<i8")]), 0)
        async with asyncio.timeout(1.0):
            await wakeup.wait()
        with pytest.raises(ValueError, match="the last record"):
            receiving.raise_if_failed()
        await receiving.close()

    run_virtual(main())
