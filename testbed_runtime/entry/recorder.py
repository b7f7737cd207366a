"""`python -m testbed_runtime.entry.recorder CONFIG.json`: the recorder of one trial, as a process.

`history_folder` of its configuration is the trial's folder, `<run>/history/<trial>`. Prints its ready line (`rpc` is the HTTP
address), ends with 0 when stdin closes or on SIGTERM, with 2 and a message on stderr when the disk refuses: what was recorded until
then is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.entry.lifeline import Lifeline
from testbed_runtime.history.recording.recorder import SHUTDOWN_S, Recorder
from testbed_runtime.process.config import ProcessConfig

EXIT_ERROR = 2


async def serve(config: ProcessConfig) -> int:
    """Until it is told to end or the disk refuses. The exit code."""
    recorder = Recorder(Path(config.history_folder), token=config.token())
    try:
        address = await recorder.start(config.bind)
    except OSError as error:
        where = f"{config.bind[0]}:{config.bind[1]}"
        _complain(f"the recorder cannot listen at {where}: {error.strerror}")
        return EXIT_ERROR
    print(json.dumps({"ready": {"rpc": address, "control": address}}), flush=True)  # noqa: T201
    try:
        async with Lifeline() as lifeline:
            await _first_of(lifeline.cut, recorder.failed)
            if recorder.failed.is_set():
                await asyncio.sleep(SHUTDOWN_S / 4)  # the answer that says so goes out first
    finally:
        await recorder.close()
    if recorder.failure:
        _complain(recorder.failure)
        return EXIT_ERROR
    return 0


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # the log may stand on the disk that is full
        print(text, file=sys.stderr, flush=True)  # noqa: T201


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(e.wait(), name="recorder:end") for e in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def main() -> int:
    try:
        return asyncio.run(serve(ProcessConfig.load(sys.argv[1])))
    except HeadgateError as error:
        _complain(str(error))
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
