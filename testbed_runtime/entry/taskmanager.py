"""`python -m testbed_runtime.entry.taskmanager CONFIG.json`: one TaskManager as a process.

It is ready when it listens; it registers in the background, and ends with a failure when it has to give up.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO

from aiohttp import web

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.exchange.tls import INTERNAL, TlsSettings
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.options import Options
from testbed_runtime.entry.adapters import open_adapters
from testbed_runtime.entry.harness import Process, Ready, config_file, run_process
from testbed_runtime.process.clock import SeededRandom
from testbed_runtime.process.config import COUNTERS_PATH, REGISTERED_PATH, ProcessConfig
from testbed_runtime.store.blobstore import FolderBlobStore
from testbed_runtime.store.statefiles import FolderStateFiles
from testbed_runtime.taskmanager.process import LocalFiles, TaskManager
from testbed_runtime.timeouts import timeout
from testbed_runtime.transport.mailbox import SleepingCpu
from testbed_runtime.transport.tap import HistorySampler
from testbed_runtime.transport.tcp import TcpNetwork
from testbed_runtime.transport.tls import DataTls

CLOSE_S = 2.0
"""Time limit for the TaskManager to end, with its tasks."""


async def start(config: ProcessConfig, process: Process) -> Ready:
    if config.jobmanager is None:
        raise UserError("jobmanager", "is not set", "a TaskManager needs the JobManager's address")
    resource_id = TaskManagerID(int(config.name.rpartition("-")[2]), config.incarnation)
    cpu = SleepingCpu()
    adapters = await open_adapters(config, process, str(resource_id), cpu=cpu)
    if config.local_folder:
        _delete_earlier(Path(config.local_folder), config.name)
    rpc, faults, history = adapters.rpc, adapters.faults, adapters.history
    options = config.options()
    manager = TaskManager(
        resource_id,
        options=options,
        rpc=rpc,
        network=_network(config, options),
        blobs=adapters.blobs,
        history=history,
        clock=adapters.clock,
        cpu=cpu,
        random=SeededRandom(f"{config.seed}/{resource_id}"),
        jobmanager=config.jobmanager,
        slots=config.slots,
        resolver=adapters.resolver,
        interception=faults.interception(HistorySampler(history, asyncio.get_running_loop().time)),
        on_fatal=process.end,
        files=LocalFiles(
            FolderBlobStore(_local_folder(config) / str(resource_id)),
            FolderStateFiles(_local_folder(config) / f"{resource_id}-state"),
            lambda: _spill_file(config),
        ),
    )

    async def counters(_: web.Request) -> web.Response:
        """Return counters for live progress. The call bypasses the mailbox: it neither waits for messages nor delays them."""
        return web.json_response(manager.counters())

    async def registered(_: web.Request) -> web.Response:
        return web.json_response({"registered": manager.is_registered})

    rpc.add_routes([web.get(COUNTERS_PATH, counters), web.get(REGISTERED_PATH, registered)])
    await rpc.start()
    process.on_close(rpc.close)
    await manager.start(config.data_bind)
    process.on_close(_within_limit, manager.close)
    return {"rpc": rpc.address, "data": manager.data_address, "control": rpc.address}


def _network(config: ProcessConfig, options: Options) -> TcpNetwork:
    """Return the network of the data port. Raises UserError if TLS is enabled without a certificate."""
    settings, tls = TlsSettings.read(options), None
    if settings is not None:
        if not config.certificate_file:
            raise UserError("certificate_file", "is not set", f"{INTERNAL} needs the testbed's certificate")
        tls = DataTls.load(config.certificate_file, settings)
    return TcpNetwork(options.integer("taskmanager.network.netty.sendReceiveBufferSize"), tls=tls)


def _local_folder(config: ProcessConfig) -> Path:
    return Path(config.local_folder or Path(tempfile.gettempdir()) / "headgate-local-state")


def _delete_earlier(folder: Path, process: str) -> None:
    """Delete what earlier incarnations of this TaskManager left: a process that is killed deletes nothing."""
    for left in folder.glob(f"{process}-*"):
        shutil.rmtree(left, ignore_errors=True)


def _spill_file(config: ProcessConfig) -> IO[bytes]:
    """Open the file of a blocking result beside the local copies. It has no name, so it disappears with this process."""
    folder = _local_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=folder)


async def _within_limit(close: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(TimeoutError):
        async with timeout(CLOSE_S):
            await close()


if __name__ == "__main__":
    sys.exit(run_process(start, config_file(ProcessConfig.load)))
