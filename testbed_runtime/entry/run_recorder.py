"""`python -m testbed_runtime.entry.run_recorder CONFIG.json`: the recorder of a whole run on the folder `history_folder`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.entry.lifeline import Lifeline
from testbed_runtime.faults.http import serve
from testbed_runtime.history.recording.run_recorder import RunRecorder
from testbed_runtime.process.clock import loop_factory
from testbed_runtime.process.config import ProcessConfig

EXIT_ERROR = 2


async def run(config: ProcessConfig) -> None:
    """Until the lifeline is cut. Raises HeadgateError when the folder or the port cannot be used."""
    async with Lifeline() as lifeline:
        recorder = RunRecorder(Path(config.history_folder), token=config.token())
        runner, address = await serve(recorder.application(), config.bind)
        try:
            ready = {"rpc": list(address), "control": list(address)}
            print(json.dumps({"ready": ready}), flush=True)  # noqa: T201
            await lifeline.cut.wait()
        finally:
            await runner.cleanup()
            await recorder.close()


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
