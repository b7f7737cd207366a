"""Names that every process and environment uses: processes, the job, terminal job states."""

from __future__ import annotations

JOBMANAGER = "jobmanager"
TASKMANAGER = "taskmanager"
"""The role of every TaskManager; a single one is called `tm-N`."""
RECORDER = "recorder"
PROXY = "proxy"
STORE = "store"
SUPERVISOR = "supervisor"
RUNNER = "runner"

JOB = "job"
"""A testbed runs one job, always under this name."""
TERMINAL_JOB_STATES = frozenset({"FINISHED", "FAILED", "CANCELED"})

_TASK_MANAGER_PREFIX = "tm-"


def task_manager_name(ordinal: int) -> str:
    return f"{_TASK_MANAGER_PREFIX}{ordinal}"


def task_manager_names(replicas: int) -> tuple[str, ...]:
    """Return the names of all TaskManagers of a testbed, in order of their ordinals."""
    return tuple(task_manager_name(ordinal) for ordinal in range(replicas))


def is_task_manager(name: str) -> bool:
    return name.startswith(_TASK_MANAGER_PREFIX)


def role_of(name: str) -> str:
    """Return the role of a process: `taskmanager` for `tm-N`, otherwise the name itself."""
    return TASKMANAGER if is_task_manager(name) else name
