"""`python -m testbed_runtime.entry.jobmanager CONFIG.json`: Dispatcher, ResourceManager and JobMaster in one process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable

from aiohttp import web

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.entry.lifeline import Lifeline
from testbed_runtime.faults.channel.process import ChannelFaults, routes
from testbed_runtime.faults.proxy.resolver import DirectResolver, ProxyResolver
from testbed_runtime.history.recording.sink import StreamingSink
from testbed_runtime.jobmanager.process import JobManager
from testbed_runtime.ports.storage import BlobStore
from testbed_runtime.process.clock import LoopClock, SeededRandom, SystemIds, loop_factory, system_boot_id
from testbed_runtime.process.config import JOB_PATH, ProcessConfig
from testbed_runtime.store.blobstore import FolderBlobStore
from testbed_runtime.store.http import HttpBlobStore
from testbed_runtime.transport.rpc_http import HttpRpc

EXIT_ERROR = 2


async def run(config: ProcessConfig) -> None:
    """Until the lifeline is cut. Raises HeadgateError when the port is in use or the store cannot be read, or when another JobManager
    has taken over."""
    fenced: list[str] = []
    options = config.options()
    process = f"jobmanager-{config.incarnation}"
    clock = LoopClock(system_boot_id())
    resolver = ProxyResolver(config.name, config.proxy, config.token()) if config.proxy else DirectResolver()
    async with Lifeline() as lifeline, contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(resolver.close)
        history = await StreamingSink.connect(config, process=process, boot_id=clock.boot_id)
        stack.push_async_callback(history.close)
        faults = ChannelFaults(config.name)

        def on_fenced(text: str) -> None:
            fenced.append(text)
            lifeline.cut.set()

        blobs = await _open_store(config, stack, on_fenced)
        rpc = HttpRpc(
            config.name,
            config.bind,
            config.token(),
            resolver=resolver,
            flink_version=config.flink_version,
            interceptor=faults.calls,
            history=history,
            connect_timeout_s=options.duration("pekko.tcp.timeout"),
        )
        rpc.add_routes(routes(faults))
        manager = JobManager(
            rpc,
            faults.store(blobs),
            history,
            clock,
            ids=SystemIds(),
            random=SeededRandom(config.seed),
            options=options,
            name=process,
        )
        stack.push_async_callback(manager.close)
        rpc.add_routes([web.get(JOB_PATH, _job_route(manager))])
        await manager.start()
        if config.job is not None:
            await manager.submit_first(config.job, config.configuration)
        print(json.dumps({"ready": {"rpc": rpc.address, "control": rpc.address}}), flush=True)  # noqa: T201
        await lifeline.cut.wait()
    if fenced:
        raise HeadgateError(fenced[0])


async def _open_store(
    config: ProcessConfig, stack: contextlib.AsyncExitStack, on_fenced: Callable[[str], None]
) -> BlobStore:
    """Over HTTP, this process writes as the newest JobManager from here on."""
    if config.store is None:
        return FolderBlobStore(config.blob_folder)
    store = HttpBlobStore(config.store, config.token(), on_fenced=on_fenced)
    stack.push_async_callback(store.close)
    await store.take_over(config.incarnation)
    return store


def _job_route(manager: JobManager) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def job(request: web.Request) -> web.Response:
        """Through no mailbox: it neither waits nor makes anybody wait."""
        del request
        return web.json_response(manager.job_summary())

    return job


def main() -> int:
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(run(ProcessConfig.load(sys.argv[1])))
    except (HeadgateError, OSError) as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
