"""A TaskManager as a whole: what it says before its start, and what it leaves in the history at its end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.options import Options
from testbed_runtime.history.writer import MemoryHistory
from testbed_runtime.process.clock import LoopClock, SeededRandom
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.process import TaskManager
from testbed_runtime.transport.mailbox import SleepingCpu
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard
from tests.transport.inprocess_network import InProcessNetwork


def alone(history: MemoryHistory, **options: str) -> tuple[TaskManager, MemoryRpc]:
    """A TaskManager whose JobManager does not exist."""
    rpc, clock = MemoryRpc("tm-0", Switchboard()), LoopClock("sim")
    made = TaskManager(
        TaskManagerID(0, 1),
        options=Options(options),
        rpc=rpc,
        network=InProcessNetwork(),
        blobs=MemoryBlobStore(),
        history=history.sink("tm-0-1", lambda: int(clock.now() * 1e9)),
        clock=clock,
        cpu=SleepingCpu(),
        random=SeededRandom(0),
        jobmanager=("jobmanager", 1),
        slots=2,
    )
    return made, rpc


def events(history: Any, kind: str) -> list[dict[str, Any]]:
    return [row for row in history.trial().rows("events") if row["kind"] == kind]


def test_a_taskmanager_has_no_counters_before_its_start_and_is_not_registered():
    """Its address is known when it listens. Its end says that no buffer leaked."""

    async def main() -> MemoryHistory:
        history = MemoryHistory()
        made, rpc = alone(history)
        await rpc.start()
        assert (made.counters(), made.is_registered, made.data_address) == ({}, False, ("", 0))
        await made.start(("127.0.0.1", 0))
        assert (made.counters()["slots"], made.counters()["free_slots"]) == (2, 2)
        assert (made.is_registered, made.tasks, made.cores) == (False, (), None)
        assert made.data_address[1] > 0
        await made.close()
        await rpc.close()
        return history

    history = run_virtual(main())
    (row,) = events(history, "network.buffers")
    assert (row["subject"], json.loads(row["data"])) == ("tm-0-1", {"leaked": 0})


def test_a_taskmanager_that_cannot_register_in_time_says_so():
    """taskmanager.registration.timeout; the process that owns it decides what follows."""

    async def main() -> MemoryHistory:
        history = MemoryHistory()
        made, rpc = alone(history, **{"taskmanager.registration.timeout": "10 s"})
        await rpc.start()
        await made.start(("127.0.0.1", 0))
        await asyncio.sleep(9.0)
        assert events(history, "note") == []
        await asyncio.sleep(2.0)
        await made.close()
        await rpc.close()
        return history

    (row,) = events(run_virtual(main()), "note")
    assert row["text"].startswith("Could not register at the ResourceManager within")


def test_a_buffer_that_is_still_in_use_at_the_end_has_leaked():
    """The TaskManager waits half a second for it."""

    async def main(returned_s: float) -> tuple[float, int]:
        history = MemoryHistory()
        made, rpc = alone(history)
        await rpc.start()
        await made.start(("127.0.0.1", 0))
        pool = made.environment.pool.create_buffer_pool(1, 1)
        segment = pool.request_segment()
        assert segment is not None
        loop = asyncio.get_running_loop()
        pool.destroy()
        loop.call_later(returned_s, pool.recycle, segment)
        began = loop.time()
        await made.close()
        seconds = loop.time() - began
        await rpc.close()
        (row,) = events(history, "network.buffers")
        return round(seconds, 3), json.loads(row["data"])["leaked"]

    assert run_virtual(main(0.095)) == (0.1, 0)
    assert run_virtual(main(60.0)) == (0.5, 1)
