"""`python -m testbed_runtime.entry.run_recorder CONFIG.json`: the recorder of a whole run, in the folder `history_folder`."""

from __future__ import annotations

import sys
from pathlib import Path

from testbed_runtime.entry.harness import Process, Ready, config_file, run_process
from testbed_runtime.history.recording.run_recorder import RunRecorder
from testbed_runtime.process.config import ProcessConfig


async def start(config: ProcessConfig, process: Process) -> Ready:
    """Raises HeadgateError when the folder or the port cannot be used."""
    recorder = RunRecorder(Path(config.history_folder), token=config.token())
    process.on_close(recorder.close)
    address = await process.listen(recorder.application(), config.bind)
    return {"rpc": address, "control": address}


if __name__ == "__main__":
    sys.exit(run_process(start, config_file(ProcessConfig.load)))
