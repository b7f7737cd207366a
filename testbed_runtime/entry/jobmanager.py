"""`python -m testbed_runtime.entry.jobmanager CONFIG.json`: Dispatcher, ResourceManager and JobMaster in one process."""

from __future__ import annotations

import sys

from aiohttp import web

from testbed_runtime.core.ids import JOBMANAGER
from testbed_runtime.entry.adapters import open_adapters
from testbed_runtime.entry.harness import Process, Ready, config_file, run_process
from testbed_runtime.jobmanager.process import JobManager
from testbed_runtime.ports.hosts import JOB_PATH
from testbed_runtime.process.clock import SeededRandom, SystemIds
from testbed_runtime.process.config import ProcessConfig


async def start(config: ProcessConfig, process: Process) -> Ready:
    """Raises HeadgateError when the port is in use, the store cannot be read, or another JobManager has taken over."""
    name = f"{JOBMANAGER}-{config.incarnation}"
    adapters = await open_adapters(config, process, name, leads=True)
    rpc = adapters.rpc
    manager = JobManager(
        rpc,
        adapters.blobs,
        adapters.history,
        adapters.clock,
        ids=SystemIds(),
        random=SeededRandom(config.seed),
        options=config.options(),
        name=name,
        on_fatal=process.end,
    )
    process.on_close(manager.close)

    async def job(_: web.Request) -> web.Response:
        """Return the summary of the newest job. The call bypasses the mailboxes: it neither waits for other messages nor delays them."""
        return web.json_response(manager.job_summary())

    rpc.add_routes([web.get(JOB_PATH, job)])
    await manager.start()
    if config.job is not None:
        await manager.submit_first(config.job, config.configuration)
    return {"rpc": rpc.address, "control": rpc.address}


if __name__ == "__main__":
    sys.exit(run_process(start, config_file(ProcessConfig.load)))
