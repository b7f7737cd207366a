"""The adapters that a JobManager and a TaskManager are wired with: clock, history, resolver, faults, store, Rpc."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from testbed_runtime.entry.harness import Process
from testbed_runtime.faults.channel.process import ChannelFaults, routes
from testbed_runtime.faults.proxy.resolver import ProxyResolver
from testbed_runtime.history.recording.sink import StreamingSink
from testbed_runtime.ports.execution import Cpu
from testbed_runtime.ports.storage import BlobStore
from testbed_runtime.process.clock import LoopClock, system_boot_id
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.store.blobstore import FolderBlobStore
from testbed_runtime.store.http import HttpBlobStore
from testbed_runtime.transport.rpc_http import HttpRpc


class Adapters(Struct, frozen=True):
    clock: LoopClock
    history: StreamingSink
    resolver: ProxyResolver | None
    faults: ChannelFaults
    blobs: BlobStore
    rpc: HttpRpc


async def open_adapters(
    config: ProcessConfig, process: Process, name: str, *, cpu: Cpu | None = None, leads: bool = False
) -> Adapters:
    """Open the adapters of the process `name`; they are closed with it. The Rpc is not started.

    `leads`: this process takes over the store as its newest JobManager, and ends when another JobManager takes it over."""
    token = config.token()
    clock = LoopClock(system_boot_id())
    resolver = ProxyResolver(config.name, config.proxy, token) if config.proxy else None
    if resolver is not None:
        process.on_close(resolver.close)
    history = await StreamingSink.connect(config, process=name, boot_id=clock.boot_id)
    process.on_close(history.close)
    faults = ChannelFaults(config.name)
    blobs = await _open_store(config, process, on_fenced=process.end if leads else None)
    rpc = HttpRpc(
        config.name,
        config.bind,
        token,
        resolver=resolver,
        flink_version=config.flink_version,
        cpu=cpu,
        interceptor=faults.calls,
        history=history,
        connect_timeout_s=config.options().duration("pekko.tcp.timeout"),
    )
    rpc.add_routes(routes(faults))
    return Adapters(clock, history, resolver, faults, faults.store(blobs), rpc)


async def _open_store(
    config: ProcessConfig, process: Process, *, on_fenced: Callable[[str], None] | None
) -> BlobStore:
    if config.store is None:
        return FolderBlobStore(config.blob_folder)
    store = HttpBlobStore(config.store, config.token(), on_fenced=on_fenced)
    process.on_close(store.close)
    if on_fenced is not None:
        await store.take_over(config.incarnation)
    return store
