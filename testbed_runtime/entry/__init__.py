"""Process entry points: `python -m testbed_runtime.entry.taskmanager CONFIG.json` and so on. Wiring, nothing else."""

import gc
import sys

if sys.argv[0] == "-m":  # as long as Python looks for the module to run
    gc.disable()  # until `harness.run_main`: imports make no garbage, and looking for it takes a tenth to a fifth of a process's start
