"""`python -m testbed_runtime.entry.supervisor CONFIG.json`: the supervisor of a testbed (`headgate supervise`).

When it ends, it first kills every child. It imports little, so that it is ready in a fraction of a second.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import msgspec

from testbed_runtime.entry.harness import Process, Ready, config_file, run_process
from testbed_runtime.ports.network import Address
from testbed_runtime.process.config import SupervisorConfig, SupervisorState
from testbed_runtime.supervisor.api import application
from testbed_runtime.supervisor.supervisor import Supervisor


async def start(config: SupervisorConfig, process: Process) -> Ready:
    async def clean_up() -> None:
        _clean_up(config)

    supervisor = Supervisor(config)
    await supervisor.start()
    process.on_close(clean_up)
    address = await process.listen(application(supervisor, config.token()), config.bind)
    process.on_close(supervisor.close)
    _write_state(config, address)
    return {"control": address, "echo": supervisor.echo.address}


def _write_state(config: SupervisorConfig, address: Address) -> None:
    if not config.state_file:
        return
    path = Path(config.state_file)
    work_folder = config.work_folder if config.remove_work_folder else ""
    state = SupervisorState(os.getpid(), address, config.token_file, work_folder, config.run, config.trial)
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(state))


def _clean_up(config: SupervisorConfig) -> None:
    """Remove what this process wrote outside the run's folder."""
    if config.state_file:
        Path(config.state_file).unlink(missing_ok=True)
    if config.remove_work_folder and config.work_folder:
        shutil.rmtree(config.work_folder, ignore_errors=True)


def main() -> int:
    return run_process(start, config_file(SupervisorConfig.load), has_parent=lambda config: config.owned)


if __name__ == "__main__":
    sys.exit(main())
