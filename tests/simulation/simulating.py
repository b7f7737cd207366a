"""Documents into simulated runs, and what to ask of the record that they leave."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.core.documents import PAGE_FILE, RECOVERY_FILE, VERDICT_FILE
from testbed_runtime.core.judgement.recovery import TrialRecovery
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.history.reader import read_trial
from testbed_runtime.history.schema import TABLES, Trial
from testbed_runtime.runner.engine import RunRequest, RunResult
from testbed_runtime.runner.manifest import RunInfo
from testbed_runtime.runner.progress import Progress, Silent
from testbed_runtime.simulation.entry import simulate
from testbed_runtime.simulation.loop import PROCESS, VirtualLoop

RUN = "simulated"
UNKNOWN_MAX = 0.01
"""Share of a recovery that no recorded wait covers."""
UNKNOWN_S = 0.02
"""Seconds that no wait has to cover: a start takes 60 ms, and its first records wait for a flush of their buffers."""


STANDING: list[float] = []
"""The times at which the processes that stand still go on."""


def virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def stand_still(seconds: float) -> None:
    """Block the calling process in virtual time, as synchronous code that takes long. The other processes go on."""
    loop, task, process = virtual_loop(), asyncio.current_task(), PROCESS.get()
    assert task is not None
    pending, until = len(loop._ready), loop.time() + seconds
    loop.call_at(until, loop.stop, context=Context())
    loop.pause(process)
    asyncio.tasks._leave_task(loop, task)
    STANDING.append(until)
    while loop.time() < until:  # another process may stop the loop earlier
        loop._stopping = False  # type: ignore[attr-defined]
        loop._run_once()
    STANDING.remove(until)
    loop._stopping = any(other <= loop.time() for other in STANDING)  # type: ignore[attr-defined]
    asyncio.tasks._enter_task(loop, task)
    loop.resume(process)
    for _ in range(pending - len(loop._ready)):
        loop.call_soon(int)  # the turn that was interrupted takes as many callbacks as there were


class Complaints(logging.Handler):
    """asyncio's complaints during a run: lost tasks, exceptions that were never retrieved."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    def __enter__(self) -> Complaints:
        logging.getLogger("asyncio").addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger("asyncio").removeHandler(self)


@dataclass
class Ran:
    """One simulated run with one trial, and its record."""

    result: RunResult
    complaints: list[str]
    trial: Trial
    entry: TrialEntry
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest(self.trial)


def run_document(
    document: dict[str, Any],
    folder: Path,
    *,
    variants: Sequence[str] = (),
    control: bool = False,
    progress: Progress | None = None,
) -> tuple[RunResult, list[str]]:
    """The whole run, from the document to verdict and report; with what asyncio had to say."""
    scenario = validate(document).valid()
    folder.mkdir(parents=True, exist_ok=True)
    request = RunRequest(
        plan=compile_run(scenario, scenario_folder=folder, variants=variants, control=control),
        document=document,
        info=RunInfo(RUN, "simulation", "2000-01-01T00:00:00+00:00", {}),
        folder=folder,
    )
    with Complaints() as complaints:
        return simulate(request, progress or Silent()), complaints.texts


def run_one(document: dict[str, Any], folder: Path) -> Ran:
    """A document without variants and control: its only trial, read back from what was written."""
    result, complaints = run_document(document, folder)
    entry = read_manifest(folder).trials[0]
    trial = read_trial(folder / "history" / entry.trial, run=RUN, trial=entry.trial)
    written = folder / "metrics.json"  # not there when the run could not be carried out
    rows = json.loads(written.read_text()) if written.is_file() else []
    metrics = {
        row["metric"]: row["text"] if row["value"] is None else row["value"]
        for row in rows
        if not row["phase"] and row["quantile"] is None
    }
    return Ran(result, complaints, trial, entry, metrics)


def shortcomings(folder: Path) -> list[str]:
    """Return why the run in this folder is not one that passed, with a report, and with an owner for every second of each recovery."""
    verdict = json.loads((folder / VERDICT_FILE).read_text())
    found = [f"{e['text']}: {e['verdict']}" for e in verdict["expectations"] if e["verdict"] != "Pass"]
    found += [verdict["summary"]] if verdict["verdict"] != "Pass" else []
    found += [] if (folder / PAGE_FILE).is_file() else ["there is no report"]
    answers = map(TrialRecovery.from_json, json.loads((folder / RECOVERY_FILE).read_text()).values())
    recoveries = [one for answer in answers for one in (answer.start, *answer.recoveries)]
    found += [] if recoveries else ["there is no recovery"]
    for one in filter(None, recoveries):
        unknown_s = one.unattributed_s + one.from_events_s
        if unknown_s > max(UNKNOWN_S, UNKNOWN_MAX * one.total_s):
            found.append(f"{unknown_s} s of a recovery have no owner")
    return found


def digest(trial: Trial) -> str:
    """A digest of every row of every table, in the order of processes and their numbers."""
    found = hashlib.sha256()
    for table in TABLES:
        rows = trial.table(table).to_pylist()
        rows.sort(key=lambda row: (row["process"], row["seq"]))
        for row in rows:
            found.update(repr(sorted(row.items())).encode())
    return found.hexdigest()
