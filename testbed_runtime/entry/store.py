"""`python -m testbed_runtime.entry.store CONFIG.json`: the BlobStore of a testbed over HTTP, on the folder `blob_folder`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.entry.lifeline import Lifeline
from testbed_runtime.faults.http import serve
from testbed_runtime.process.clock import loop_factory
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.store.http import StoreServer

EXIT_ERROR = 2


async def run(config: ProcessConfig) -> None:
    """Until the lifeline is cut. Raises HeadgateError when the folder or the port cannot be used."""
    async with Lifeline() as lifeline:
        server = StoreServer(Path(config.blob_folder))
        runner, address = await serve(server.application(config.token()), config.bind)
        try:
            ready = {"rpc": list(address), "control": list(address)}
            print(json.dumps({"ready": ready}), flush=True)  # noqa: T201
            await lifeline.cut.wait()
        finally:
            await runner.cleanup()


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
