"""`python -m testbed_runtime.entry.supervisor CONFIG.json`: the supervisor of a testbed (`headgate supervise`).

Prints its ready line, ends every child at once and then itself when its stdin closes, on SIGTERM or SIGINT. Imports little, so that it is
there in a fraction of a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.entry.lifeline import Lifeline
from testbed_runtime.faults.http import serve
from testbed_runtime.ports.network import Address
from testbed_runtime.supervisor.api import application
from testbed_runtime.supervisor.config import SupervisorConfig
from testbed_runtime.supervisor.supervisor import Supervisor

EXIT_ERROR = 2


async def run(config: SupervisorConfig) -> None:
    """Until the lifeline is cut. What it wrote outside the run's folder is removed."""
    async with Lifeline(stdin=config.owned) as lifeline:
        supervisor = Supervisor(config)
        await supervisor.start()
        runner, address = await serve(application(supervisor, config.token()), config.bind)
        try:
            _write_state(config, address)
            ready = {"control": list(address), "echo": list(supervisor.echo.address)}
            print(json.dumps({"ready": ready}), flush=True)  # noqa: T201
            await lifeline.cut.wait()
        finally:
            await supervisor.close()
            await runner.cleanup()
            _clean_up(config)


def _write_state(config: SupervisorConfig, address: Address) -> None:
    if not config.state_file:
        return
    path = Path(config.state_file)
    state = {
        "pid": os.getpid(),
        "control": list(address),
        "token_file": config.token_file,
        "work_folder": config.work_folder if config.remove_work_folder else "",
        "run": config.run,
        "trial": config.trial,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(state))


def _clean_up(config: SupervisorConfig) -> None:
    if config.state_file:
        Path(config.state_file).unlink(missing_ok=True)
    if config.remove_work_folder and config.work_folder:
        shutil.rmtree(config.work_folder, ignore_errors=True)


def main() -> int:
    try:
        asyncio.run(run(SupervisorConfig.load(sys.argv[1])))
    except HeadgateError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
