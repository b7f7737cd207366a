"""`python -m testbed_runtime.entry.recorder CONFIG.json`: the recorder of one trial, as a process.

`history_folder` of its configuration is the trial's folder, `<run>/history/<trial>`. It ends with a failure when the disk is full
or cannot be written; what was recorded until then is kept.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from testbed_runtime.entry.harness import Process, Ready, config_file, run_process
from testbed_runtime.history.recording.recorder import Recorder
from testbed_runtime.http import SHUTDOWN_TIMEOUT_S
from testbed_runtime.process.config import ProcessConfig


async def start(config: ProcessConfig, process: Process) -> Ready:
    recorder = Recorder(Path(config.history_folder), token=config.token())
    process.on_close(recorder.close)
    address = await process.listen(recorder.application(), config.bind)
    process.spawn(_end_on_failure(recorder, process), "recorder:failure")
    return {"rpc": address, "control": address}


async def _end_on_failure(recorder: Recorder, process: Process) -> None:
    await recorder.failed.wait()
    await asyncio.sleep(SHUTDOWN_TIMEOUT_S / 2)  # the response that reports the failure is sent first
    process.end(recorder.failure)


if __name__ == "__main__":
    sys.exit(run_process(start, config_file(ProcessConfig.load)))
