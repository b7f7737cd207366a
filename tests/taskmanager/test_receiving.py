"""A receive queue: its reports to the coordinator, and its failure."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from testbed_runtime.core.exchange.events import AlignmentType, CheckpointBarrier
from testbed_runtime.core.job.flowcontrol import FlowControl
from testbed_runtime.core.job.jobgraph import JobVertex, SinkConfig
from testbed_runtime.core.job.messages import ReportQueue
from testbed_runtime.core.options import Options
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.receiving import Receiving
from testbed_runtime.taskmanager.waiting import Wakeup
from testbed_runtime.workload.records import framed, latency_marker
from tests.taskmanager.deployed import T0_S, Deployed, data, driven

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


# ---- in a task

SLOW = JobVertex("work", 1, 128, sink=SinkConfig(service_time_s=0.01))
"""A sink that takes 10 ms for each record."""
QUEUED = {"headgate.flow-control": "none", "headgate.flow-control.queue": "1000 b"}
"""Room for ten records of 100 bytes."""


def test_a_task_with_a_queue_reads_at_once_and_processes_one_record_after_the_other():
    """Nothing pushes back. At its end it says how full the queue was."""

    async def drive(task: Deployed) -> None:
        meter = task.task.meter
        for first in (0, 3):
            task.send(0, data(first, 3))
            await task.settle()
        assert (meter.buffers_in, meter.records_in) == (2, 0)
        for ms, count in ((9, 0), (11, 1), (29, 2), (31, 3), (59, 5), (61, 6)):
            await task.at(ms)
            assert meter.records_in == count
        task.end()

    task = driven(SLOW, drive, **QUEUED)
    assert task.noted("receive-queue.closed") == [{"dropped": 0, "largest_bytes": 600}]
    assert task.states[-1] == "FINISHED"


def test_a_barrier_and_a_latency_marker_wait_for_the_records_that_came_before_them():
    """The snapshot has all of them. What comes after a barrier is not read before."""

    async def drive(task: Deployed) -> None:
        marker = latency_marker(100, 0, 0, int(T0_S * 1e9))
        task.send(0, data(0, 2) + bytes(framed(marker)) + data(2, 1))
        for channel in (0, 1):
            task.send(channel, CheckpointBarrier(1, 0, AlignmentType.ALIGNED))
        await task.at(200)

    task = driven(SLOW, drive, **QUEUED, **{"metrics.latency.interval": "1 s"})
    assert task.completed == [(1, 30)]
    ((marked,),) = (row["ns"] for row in task.noted("latency.markers"))
    assert marked / 1e6 == pytest.approx(20, abs=0.01)


@pytest.mark.parametrize("overflow", ["fail", "drop"])
def test_a_full_queue_fails_its_task_or_drops_what_does_not_fit(overflow: str):
    """Ten records fit; the one that is processed counts until it is done."""

    async def drive(task: Deployed) -> None:
        for first, count in ((0, 6), (6, 4), (10, 1)):
            task.send(0, data(first, count))
            await task.settle()
        await task.at(300)

    task = driven(SLOW, drive, **QUEUED, **{"headgate.flow-control.overflow": overflow})
    if overflow == "fail":
        assert task.failure[0] == "OutOfMemoryError"
        assert "the receive queue of work-0 holds 1,000 bytes, which is its limit" in task.failure[1]
    else:
        assert (task.states[-1], task.task.meter.records_in) == ("CANCELED", 10)
        assert task.noted("receive-queue.closed") == [{"dropped": 1, "largest_bytes": 1000}]


def test_a_report_has_the_records_of_its_interval_and_how_long_the_last_of_them_had_waited():
    """And the share of the queue that is full. An interval without records has none."""

    async def drive(task: Deployed) -> None:
        await task.at(950)
        for first in (0, 3):
            task.send(0, data(first, 3))
            await task.settle()
        await task.at(3050)

    coordinated = {**QUEUED, "headgate.flow-control": "pid", "headgate.flow-control.interval": "1 s"}
    reports = [message.report for message in driven(SLOW, drive, **coordinated).heard(ReportQueue)]
    assert [(r.processed, round(r.queued_share, 2)) for r in reports] == [(3, 0.3), (3, 0.0), (0, 0.0)]
    assert [round(r.processing_s, 3) for r in reports] == [0.03, 0.03, 0.0]
    assert [round(r.waited_s, 3) for r in reports][:2] == [0.0, 0.03]
