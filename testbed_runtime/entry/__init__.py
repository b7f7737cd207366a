"""Process entry points: `python -m testbed_runtime.entry.taskmanager CONFIG.json` and so on. Wiring, nothing else."""
