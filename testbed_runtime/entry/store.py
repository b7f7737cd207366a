"""`python -m testbed_runtime.entry.store CONFIG.json`: the blob store of a testbed over HTTP, in the folder `blob_folder`."""

from __future__ import annotations

import sys
from pathlib import Path

from testbed_runtime.entry.harness import Process, Ready, config_file, run_process
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.store.http import StoreServer


async def start(config: ProcessConfig, process: Process) -> Ready:
    """Raises HeadgateError when the folder or the port cannot be used."""
    server = StoreServer(Path(config.blob_folder))
    address = await process.listen(server.application(config.token()), config.bind)
    return {"rpc": address, "control": address}


if __name__ == "__main__":
    sys.exit(run_process(start, config_file(ProcessConfig.load)))
