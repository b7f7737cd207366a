"""`python -m testbed_runtime.entry.taskmanager CONFIG.json`: one TaskManager as a process.

Prints its ready line when it listens (registration goes on by itself), ends with 0 when stdin closes or on SIGTERM, with 2 and the
reason on stderr when it has to give up.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.entry.lifeline import Lifeline
from testbed_runtime.faults.channel.process import ChannelFaults, routes
from testbed_runtime.faults.proxy.resolver import DirectResolver, ProxyResolver
from testbed_runtime.history.recording.sink import StreamingSink
from testbed_runtime.ports.storage import BlobStore
from testbed_runtime.process.clock import LoopClock, SeededRandom, loop_factory, system_boot_id
from testbed_runtime.process.config import COUNTERS_PATH, REGISTERED_PATH, ProcessConfig
from testbed_runtime.store.blobstore import FolderBlobStore
from testbed_runtime.store.http import HttpBlobStore
from testbed_runtime.taskmanager.process import TaskManager
from testbed_runtime.transport.mailbox import SleepingCpu
from testbed_runtime.transport.rpc_http import HttpRpc
from testbed_runtime.transport.tap import HistoryTap
from testbed_runtime.transport.tcp import TcpNetwork

EXIT_ERROR = 2


async def run(config: ProcessConfig) -> int:
    """Until the lifeline is cut or the TaskManager gives up. The exit code."""
    if config.jobmanager is None:
        raise UserError("jobmanager", "a TaskManager needs the JobManager's address")
    fatal: list[str] = []
    async with AsyncExitStack() as stack:
        lifeline = await stack.enter_async_context(Lifeline())

        def on_fatal(text: str) -> None:
            fatal.append(text)
            lifeline.cut.set()

        ready = await _start(config, config.jobmanager, stack, on_fatal)
        print(json.dumps({"ready": ready}), flush=True)  # noqa: T201
        await lifeline.cut.wait()
    for text in fatal:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    return EXIT_ERROR if fatal else 0


async def _start(
    config: ProcessConfig,
    jobmanager: tuple[str, int],
    stack: AsyncExitStack,
    on_fatal: Callable[[str], None],
) -> dict[str, list[Any]]:
    """Wire everything up; the stack takes it down in reverse. Returns the addresses of the ready line."""
    resource_id = TaskManagerID(int(config.name.rpartition("-")[2]), config.incarnation)
    loop, options, token = asyncio.get_running_loop(), config.options(), config.token()
    clock = LoopClock(system_boot_id())
    history = await StreamingSink.connect(config, process=str(resource_id), boot_id=clock.boot_id)
    stack.push_async_callback(history.close)
    resolver = ProxyResolver(config.name, config.proxy, token) if config.proxy else DirectResolver()
    stack.push_async_callback(resolver.close)
    faults = ChannelFaults(config.name)
    blobs = _open_store(config, stack)
    cpu = SleepingCpu()
    rpc = HttpRpc(
        config.name,
        config.bind,
        token,
        resolver=resolver,
        flink_version=config.flink_version,
        cpu=cpu,
        interceptor=faults.calls,
        history=history,
    )
    rpc.add_routes(routes(faults))
    manager = TaskManager(
        resource_id,
        options=options,
        rpc=rpc,
        network=TcpNetwork(),
        blobs=faults.store(blobs),
        history=history,
        clock=clock,
        cpu=cpu,
        random=SeededRandom(f"{config.seed}/{resource_id}"),
        jobmanager=(jobmanager[0], jobmanager[1]),
        slots=config.slots,
        resolver=resolver,
        interceptor=faults.frames,
        tap=faults.tap(HistoryTap(history, loop.time)),
        registration_hook=faults.registration,
        on_fatal=on_fatal,
    )

    async def counters(request: web.Request) -> web.Response:
        """For live progress; through no mailbox, so it neither waits nor makes anybody wait."""
        del request
        return web.json_response(manager.counters())

    async def registered(request: web.Request) -> web.Response:
        del request
        return web.json_response({"registered": manager.is_registered})

    rpc.add_routes([web.get(COUNTERS_PATH, counters), web.get(REGISTERED_PATH, registered)])
    await rpc.start()
    stack.push_async_callback(rpc.close)
    await manager.start((config.data_bind[0], config.data_bind[1]))
    stack.push_async_callback(_within(manager.close))
    return {"rpc": list(rpc.address), "data": list(manager.data_address), "control": list(rpc.address)}


def _open_store(config: ProcessConfig, stack: AsyncExitStack) -> BlobStore:
    if config.store is None:
        return FolderBlobStore(config.blob_folder)
    store = HttpBlobStore(config.store, config.token())
    stack.push_async_callback(store.close)
    return store


CLOSE_S = 2.0
"""A TaskManager that is told to end has no more time than this for its tasks."""


def _within(close: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    async def bounded() -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await close()
        except TimeoutError:
            return

    return bounded


def main() -> int:
    """On asyncio's own loop: uvloop's time() stands still within a turn and counts whole milliseconds, and everything here is
    measured by it (latencies, busy time, slices of user code)."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(run(ProcessConfig.load(sys.argv[1])))
    except (HeadgateError, OSError) as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
