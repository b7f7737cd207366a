"""Check the checkpoints and Python functions of a plan before anything starts. The functions are imported in a separate process, as in a
TaskManager."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.job.functions import is_in_cluster
from testbed_runtime.core.job.jobgraph import FUNCTIONS, JobVertex
from testbed_runtime.core.trial.plan import RunPlan
from testbed_runtime.jobmanager.recovery import KeptCheckpoint
from testbed_runtime.store.blobstore import FolderBlobStore, MemoryBlobStore

LIMIT_S = 30.0
"""Limit for importing all functions of a plan."""


def function_problems(plan: RunPlan, *, pods: bool = False) -> list[UserError]:
    """Return the problems of the Python functions of a plan, one error per function. `pods`: the job runs in pods, so a function may be in
    a ConfigMap, which this machine cannot load."""
    named = {
        reference: where
        for trial in plan.trials
        for vertex in trial.testbed.job.vertices
        for where, reference in _functions(vertex)
        if not (pods and is_in_cluster(reference.partition(":")[2]))
    }
    if not named:
        return []
    found = _load(list(named))
    return [
        UserError(where, found[reference], "the TaskManagers import it in the same way")
        for reference, where in named.items()
        if found.get(reference)
    ]


def _functions(vertex: JobVertex) -> Iterator[tuple[str, str]]:
    """Yield the field of each function of a vertex, and the number of its arguments with its reference."""
    if vertex.operator is not None and vertex.operator.kind in FUNCTIONS:
        arguments = FUNCTIONS[vertex.operator.kind]
        yield f"job.vertices[{vertex.name}].function", f"{arguments}:{vertex.operator.function}"
    if vertex.iteration is not None and vertex.iteration.criterion:
        yield f"job.vertices[{vertex.name}].iteration.criterion", f"1:{vertex.iteration.criterion}"


def require_functions(plan: RunPlan, *, pods: bool = False) -> None:
    """Raise HeadgateError with the problems of all functions. `pods`: as in `function_problems`."""
    if problems := function_problems(plan, pods=pods):
        raise HeadgateError("\n".join(str(p) for p in problems))


def kept_checkpoints(plan: RunPlan) -> dict[str, dict[str, bytes]]:
    """Return what each kept checkpoint that a trial starts from puts into the testbed's store, by the checkpoint's folder.

    Raises HeadgateError if a job cannot start from its checkpoint."""
    return asyncio.run(_kept_checkpoints(plan))


def checkpoint_folder(path: str) -> FolderBlobStore:
    """Open the folder of a kept checkpoint. Raises UserError if it does not exist."""
    if not Path(path).is_dir():
        raise UserError(path, "is not a folder", "name the folder files/<trial> of a run")
    return FolderBlobStore(path)


async def _kept_checkpoints(plan: RunPlan) -> dict[str, dict[str, bytes]]:
    found = {}
    for trial in plan.trials:
        if path := trial.testbed.recovery_path:
            into = MemoryBlobStore()
            kept = await KeptCheckpoint.read(checkpoint_folder(path), path)
            await kept.bring(into, trial.testbed.job, trial.testbed.flink_version)
            found[path] = {key: await into.get(key) for key in await into.list("")}
    return found


def _load(references: list[str]) -> dict[str, str]:
    """Load the functions in a child process, which user code cannot escape or block. Return the problem of each."""
    argv = [sys.executable, "-m", "testbed_runtime.workload.functions", *references]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=LIMIT_S, check=False, text=True)  # noqa: S603 - our own module
    except subprocess.TimeoutExpired:
        return dict.fromkeys(references, f"did not load within {LIMIT_S:g} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return dict.fromkeys(
            references, f"ended the process that loads it (exit code {done.returncode}): {last}"
        )
    answer = json.loads(done.stdout)
    return {str(k): str(v) for k, v in answer.items()}
